"""Fixtures; where Ray is not installed, all that is collected is the test that says so."""

import os
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
if find_spec("ray") is None:
    collect_ignore = [str(path) for path in HERE.glob("*.py") if path.stem != "test_installed"]

sys.path.insert(0, str(HERE))


@pytest.fixture(scope="session")
def two_nodes() -> Iterator[Any]:
    from cluster_of_two import TwoNodes

    # Workers get the environment that their node was started in.
    os.environ["PYTHONPATH"] = os.pathsep.join(str(Path(p).resolve()) for p in ("src", "lab/src"))
    os.environ.pop("RAY_ADDRESS", None)
    nodes = TwoNodes()
    yield nodes
    nodes.cluster.shutdown()
