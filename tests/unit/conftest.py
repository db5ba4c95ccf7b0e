"""Fixtures of several files."""

import os
import shutil

import pytest

from adjudge.engine.sandbox import Sandbox, sandbox_available


@pytest.fixture
def sandboxed() -> None:
    """A machine on which programs can be sandboxed; else the test is skipped, or fails."""
    reason = sandbox_available()
    if reason is not None and os.environ.get("ADJUDGE_REQUIRE_ALL") == "1":
        pytest.fail(reason)
    if shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed (apt install bubblewrap)")
    if reason is not None:
        pytest.skip(reason)


@pytest.fixture
def sandbox(sandboxed: None) -> Sandbox:
    """A sandbox with its defaults."""
    return Sandbox()
