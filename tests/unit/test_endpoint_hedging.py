"""Second copies of slow calls."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import pytest
from tests.unit.helpers.scripted_provider import (
    PRICE,
    Line,
    Provider,
    now,
    together,
)
from tests.unit.helpers.virtual_service import in_virtual_time
from tests.unit.helpers.virtual_time import run_virtual


@in_virtual_time
async def test_a_slow_call_is_asked_twice_and_the_first_reply_wins() -> None:
    line = Line(Provider(None, 0.5))
    await line.warm(1.0)
    start = now()
    reply = await line.ask(price=PRICE, max_tokens=7)
    assert now() - start == pytest.approx(2.0, abs=0.1)
    assert reply.provenance.attempts == 2
    await asyncio.sleep(0.01)
    assert [n for _, n in line.provider.cancelled] == [0]
    stats = line.endpoint.stats
    assert (stats.hedges, stats.hedge_wins, stats.timeouts, stats.retries) == (1, 1, 0, 0)
    # The loser is billed at its reservation, the winner at what it used.
    assert stats.assumed_usd == pytest.approx(7.0)
    assert stats.cost_usd == pytest.approx(8.0)


@in_virtual_time
async def test_losers_teach_neither_breaker_nor_limit() -> None:
    line = Line(Provider(None, 0.5), breaker_failures=1)
    await line.warm(1.0)
    limit = line.endpoint.stats.limit
    for _ in range(5):
        line.provider.sends.clear()
        await line.ask()
    stats = line.endpoint.stats
    assert (stats.hedge_wins, stats.circuit_opened, stats.limit) == (5, 0, limit)
    assert stats.send_failures == {}


def test_hedging_fades_where_the_first_copy_always_wins() -> None:
    async def run(latency: Callable[[random.Random, int], float]) -> int:
        rng = random.Random(0)
        line = Line(Provider(), max_concurrency=64, start_concurrency=64)
        line.provider.plan = lambda at, url, n: latency(rng, line.provider.in_flight)
        work = iter(range(3_000))

        async def worker() -> None:
            for i in work:
                await line.ask(str(i))

        await together(*(worker() for _ in range(32)))
        return line.endpoint.stats.hedges

    def busy(rng: random.Random, in_flight: int) -> float:
        return rng.lognormvariate(-1.5, 0.3) * (1 + (in_flight / 16) ** 2)

    def unlucky(rng: random.Random, in_flight: int) -> float:
        return rng.lognormvariate(-1.5, 1.3)

    assert run_virtual(run(busy)) < 90 < 120 < run_virtual(run(unlucky)) < 0.16 * 3_000


@in_virtual_time
async def test_no_hedges_while_the_server_says_that_it_is_overloaded() -> None:
    line = Line(Provider(429, 0.1, None))
    await line.warm(1.0)
    await line.ask()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(2.5):  # hedged at 1.5 s, had it not been for the refusal
            await line.ask("slow")
    assert line.endpoint.stats.hedges == 0


@pytest.mark.parametrize("warm", [False, True])
def test_a_small_step_waits_for_no_hanging_call(warm: bool) -> None:
    async def run() -> float:
        line = Line(Provider())
        if warm:
            await line.warm(0.2)
        line.provider.plan = lambda at, url, n: None if n in (3, 12) else 0.1 + n / 100
        start = now()
        await together(*(line.ask(str(i)) for i in range(20)))
        return now() - start

    assert run_virtual(run()) < 1.0
