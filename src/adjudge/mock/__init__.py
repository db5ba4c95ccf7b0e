"""A provider that misbehaves on purpose: ``adjudge mock``, and the same for tests.

=================  ===========================================================================
``MockSettings``   what it is told, as plain data
``serve``          on the running loop: ``async with serve(fail=("429:0.1",)) as server:``
``start_mock``     in a process of its own: ``with start_mock(latency=("fixed:0.02",)) as url:``
``FAULTS``         every fault by name, and what it does
=================  ===========================================================================
"""

from adjudge.mock.behaviours import MockSettings
from adjudge.mock.responder import FAULTS
from adjudge.mock.server import Server, serve, start_mock

__all__ = ["FAULTS", "MockSettings", "Server", "serve", "start_mock"]
