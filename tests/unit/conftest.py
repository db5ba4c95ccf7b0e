"""Fixtures of several files."""

import pytest

from adjudge.graders.code.sandbox import Sandbox


@pytest.fixture
def sandbox(sandboxed: None) -> Sandbox:
    """A sandbox with its defaults."""
    return Sandbox()
