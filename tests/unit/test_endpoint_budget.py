"""An endpoint's rates and money."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.helpers.scripted_provider import (
    PRICE,
    Line,
    Provider,
    failure,
    together,
)
from tests.unit.helpers.virtual_service import in_virtual_time
from tests.unit.helpers.virtual_time import run_virtual

from adjudge.errors import ErrorKind, GradingFailure
from adjudge.judges.base import Reply


def test_request_and_token_rates_space_calls_out() -> None:
    async def run(n: int, **settings: Any) -> list[float]:
        line = Line(Provider(0.0), deadline_s=1000.0, **settings)
        await together(*(line.ask(f"{i:030}", max_tokens=82) for i in range(n)))
        return [sent for sent, _, _ in line.provider.sends]

    times = run_virtual(run(40, requests_per_minute=60.0))
    assert len([t for t in times if t < 0.5]) == 6  # six seconds' worth at once
    assert times[-1] == pytest.approx(34.0, abs=0.5)
    # Each call reserves 100 tokens (30 bytes, 8 for the message, 82 for the reply) and uses 11.
    times = run_virtual(run(40, tokens_per_minute=660.0))
    assert times[-1] == pytest.approx(40 * 11 / 11, rel=0.3)


@in_virtual_time
async def test_a_ceiling_without_a_price_is_refused() -> None:
    line = Line(Provider(0.0), budget_usd=1.0)
    assert (await failure(line.ask())).kind is ErrorKind.BUDGET
    assert line.provider.sends == []


@in_virtual_time
async def test_the_ceiling_holds_and_leftovers_are_used() -> None:
    # Each call reserves $4 and costs $1: three at a time, and ten calls for $13 in all.
    line = Line(Provider(1.0), budget_usd=13.0, start_concurrency=64)
    asks = (line.ask(str(i), price=PRICE, max_tokens=4) for i in range(20))
    outcomes = await together(*asks)
    replies = [outcome for outcome in outcomes if isinstance(outcome, Reply)]
    assert len(replies) == 10
    kinds = {outcome.kind for outcome in outcomes if isinstance(outcome, GradingFailure)}
    assert kinds == {ErrorKind.BUDGET}
    assert line.endpoint.stats.cost_usd == 10.0
    assert line.provider.peak == 3


@in_virtual_time
async def test_failed_sends_cost_nothing_and_lost_ones_their_reservation() -> None:
    lost = GradingFailure(ErrorKind.CONNECTION, "reset")
    line = Line(Provider(500, lost, 0.0))
    await line.ask(price=PRICE, max_tokens=4)
    assert line.endpoint.stats.cost_usd == 5.0
    assert line.endpoint.stats.assumed_usd == 4.0


@in_virtual_time
async def test_what_never_left_costs_nothing_and_leaves_the_ceiling_whole() -> None:
    refused = GradingFailure(ErrorKind.CONNECTION, "no response", {"sent": False})
    line = Line(Provider(refused, refused, 429, 400), budget_usd=6.0)
    failed = await failure(line.ask("1", price=PRICE, max_tokens=4))
    assert failed.kind is ErrorKind.INVALID_INPUT
    assert len(line.provider.sends) == 4
    assert line.endpoint.stats.cost_usd == line.endpoint.stats.assumed_usd == 0.0
    line.provider.script = (0.0,)
    await together(*(line.ask(str(i), price=PRICE, max_tokens=4) for i in range(3)))
    assert line.endpoint.stats.cost_usd == 3.0
