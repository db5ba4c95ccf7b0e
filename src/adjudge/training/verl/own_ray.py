"""A Ray of a run's own, so that two runs on one machine do not meet in one cluster.

verl starts Ray where its process finds none: it would join a cluster that somebody started on the
machine. With the variable ``RAY_PORT`` the run starts its own, whose control service listens there.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping

from adjudge.errors import ConfigError

__all__ = ["PORT_VARIABLE", "check_free", "own_ray"]

PORT_VARIABLE = "RAY_PORT"
"""The variable with the port of the run's own Ray; another one for each run on a machine."""

_LOWEST, _HIGHEST = 1024, 65_535


def own_ray(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables with which Ray starts anew and listens at ``RAY_PORT``; none without it.

    None either where ``RAY_ADDRESS`` names a cluster to join, as in a Ray job, whose pods may have
    a ``RAY_PORT`` as well. Raises :class:`~adjudge.errors.ConfigError` for what is no port.

    >>> own_ray({"RAY_PORT": "6380"})
    {'RAY_ADDRESS': 'local', 'RAY_GCS_SERVER_PORT': '6380'}
    """
    port = environment.get(PORT_VARIABLE, "").strip()
    if not port or environment.get("RAY_ADDRESS", "local") not in ("", "local"):
        return {}
    is_port = port.isascii() and port.isdecimal() and len(port) <= len(str(_HIGHEST))
    if not is_port or not _LOWEST <= int(port) <= _HIGHEST:
        raise ConfigError(
            f"{PORT_VARIABLE}: found {port[:20]!r}, must be a port from {_LOWEST} to {_HIGHEST}"
        )
    return {"RAY_ADDRESS": "local", "RAY_GCS_SERVER_PORT": port}


def check_free(variables: Mapping[str, str]) -> None:
    """Raise :class:`~adjudge.errors.ConfigError` if the port of :func:`own_ray` is taken."""
    port = variables.get("RAY_GCS_SERVER_PORT")
    if port is None:
        return
    try:
        socket.create_server(("", int(port))).close()
    except OSError as error:
        raise ConfigError(
            f"{PORT_VARIABLE}: {port} is not free ({error.strerror}); another run's Ray may listen "
            f"there: give this one a {PORT_VARIABLE} of its own"
        ) from None
