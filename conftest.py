"""What holds in every test of both packages.

Properties are tried with the same 25 examples every time, or with 100 others each time:
``--hypothesis-profile=random``. A test that needs more than Python is marked ``needs``.
"""

from __future__ import annotations

import gc
import os
import shutil
from collections.abc import Generator
from pathlib import Path

import pytest
from _pytest.doctest import DoctestModule

from adjudge.graders.code.sandbox import sandbox_available

collect_ignore_glob = ["docs/conformance/*.py"]  # for the trainers' own repositories

try:
    from hypothesis import settings
except ModuleNotFoundError:  # where a trainer is tested, for one
    pass
else:
    # How long an example takes says more about who else uses the machine; pytest has a timeout.
    settings.register_profile("random", deadline=None, max_examples=100, print_blob=True)
    settings.register_profile("same", deadline=None, max_examples=25, derandomize=True)
    settings.load_profile("same")


@pytest.fixture
def sandboxed() -> None:
    """A machine on which programs can be sandboxed; else the test is skipped, or fails in CI."""
    reason = sandbox_available()
    if reason is not None and os.environ.get("ADJUDGE_REQUIRE_ALL") == "1":
        pytest.fail(reason)
    if shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed (apt install bubblewrap)")
    if reason is not None:
        pytest.skip(reason)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what asks for a sandbox or a browser, so that `-m needs` finds it."""
    for item in items:
        if not {"sandboxed", "browser"}.isdisjoint(getattr(item, "fixturenames", ())):
            item.add_marker("needs")


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(
    file_path: Path,
) -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
    """Look for examples in the files that have some: in all of them it is half of collecting."""
    found = yield
    if file_path.suffix != ".py" or ">>> " in file_path.read_text(encoding="utf-8"):
        return found
    return [one for one in found if not isinstance(one, DoctestModule)]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What collecting makes stays to the end: the garbage collector is not to look at it again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()
