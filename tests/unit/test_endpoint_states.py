"""The drawings of the state machines say what the code does."""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from typing import Any

import pytest
from tests.unit.helpers.scripted_provider import Answer, Line, Provider, together

from adjudge.engine.clock import run_virtual
from adjudge.judges.endpoint import dispatcher, endpoint
from adjudge.judges.endpoint.calls import BreakerState, Call, CallState, CircuitBreaker

NAME = re.compile(r"\b[A-Z]{4,}(?:_[A-Z]+)*\b")

DRAWN = {
    "WAITING": {"SENT", "FAILED", "CANCELLED"},
    "SENT": {"HEDGED", "DONE", "RETRY_WAIT", "WAITING", "FAILED", "CANCELLED"},
    "HEDGED": {"SENT", "FAILED", "CANCELLED"},  # of two attempts one ends first, then the call
    "RETRY_WAIT": {"WAITING", "FAILED", "CANCELLED"},
}
"""The arrows of the dispatcher's drawing."""


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> dict[str, set[str]]:
    """From which state calls went to which."""
    seen: dict[str, set[str]] = defaultdict(set)

    class Watched(Call):
        def __setattr__(self, name: str, value: Any) -> None:
            if name == "state":
                seen[self.state.name].add(value.name)
            super().__setattr__(name, value)

    monkeypatch.setattr(endpoint, "Call", Watched)
    return seen


def test_the_drawings_name_every_state() -> None:
    assert set(NAME.findall(str(dispatcher.__doc__))) == set(CallState.__members__)
    assert set(NAME.findall(str(CircuitBreaker.__doc__))) == set(BreakerState.__members__)
    assert {to for way in DRAWN.values() for to in way} == set(CallState.__members__)


def test_calls_go_the_drawn_ways_and_no_other(ways: dict[str, set[str]]) -> None:
    async def play(line: Line, *script: Answer, calls: int = 1, patience: float = 50.0) -> None:
        line.provider.sends.clear()
        line.provider.script = script
        asks = [asyncio.wait_for(line.ask(f"{script} {n}"), patience) for n in range(calls)]
        await together(*asks)

    async def run() -> None:
        line = Line(Provider(), max_concurrency=4, hedge_budget=1.0, deadline_s=60.0)
        await line.warm(1.0)
        await play(line, 500, 0.5)
        await play(line, None, 0.5)  # the hedge wins
        await play(line, 402, calls=6)
        await play(line, None, calls=6, patience=1.0)
        await play(line, 500, calls=2, patience=0.2)
        plain = Line(Provider(), max_concurrency=4, hedge=False, deadline_s=60.0)
        await plain.warm(1.0)
        await play(plain, None, 0.5)  # sent again for silence
        last = asyncio.ensure_future(play(plain, None, calls=6))
        await asyncio.sleep(0.1)
        await plain.endpoint.aclose()
        await last
        short = Line(Provider(), hedge=False, deadline_s=1.0)
        await play(short, (429, {"retry-after": "0.9"}), 0.01)
        await play(short, (429, {"retry-after": "0.9"}), (429, {"retry-after": "0.9"}))

    run_virtual(run())
    drawn = {state: to for state, to in DRAWN.items() if state in ways}
    assert {state: to - DRAWN[state] for state, to in ways.items()} == {
        state: set() for state in ways
    }
    unseen = {(state, to) for state in drawn for to in drawn[state] - ways[state]}
    assert unseen <= {("HEDGED", "FAILED"), ("HEDGED", "CANCELLED"), ("RETRY_WAIT", "FAILED")}
    assert set(ways) == set(DRAWN)
