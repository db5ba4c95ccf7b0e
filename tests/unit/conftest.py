"""Fixtures of several files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from adjudge.graders.code.sandbox import Sandbox

if TYPE_CHECKING:
    from tests.unit.helpers.stand_in_service import StandIn


@pytest.fixture
def sandbox(sandboxed: None) -> Sandbox:
    """A sandbox with its defaults."""
    return Sandbox()


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    """A running stand-in of a judge service, without a key in the environment."""
    from tests.unit.helpers.stand_in_service import stand_in  # (aiohttp, which few tests need)

    monkeypatch.delenv("JUDGE_MODEL_API_KEY", raising=False)
    with stand_in() as running:
        yield running
