"""Second copies of slow calls."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence

import pytest
from tests.unit.helpers.scripted_provider import (
    PRICE,
    Answer,
    Line,
    Provider,
    Wire,
    now,
    together,
)

from adjudge.engine.clock import run_virtual


def test_a_slow_call_is_asked_twice_and_the_first_reply_wins() -> None:
    async def run() -> None:
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

    run_virtual(run())


def test_losers_teach_neither_breaker_nor_limit() -> None:
    async def run() -> None:
        line = Line(Provider(None, 0.5), breaker_failures=1, hedge_budget=1.0)
        await line.warm(1.0)
        limit = line.endpoint.stats.limit
        for _ in range(5):
            line.provider.sends.clear()
            await line.ask()
        stats = line.endpoint.stats
        assert (stats.hedge_wins, stats.circuit_opened, stats.limit) == (5, 0, limit)
        assert stats.send_failures == {}

    run_virtual(run())


def test_what_losers_would_have_taken_is_not_forgotten() -> None:
    async def run() -> None:
        line = Line(Provider(), hedge_budget=1.0)
        await line.warm(1.0)
        assert line.endpoint._dispatcher is not None
        digest = line.endpoint._dispatcher.health.digest("m", False)
        line.provider.plan = lambda at, url, n: None if n % 2 == 0 else 0.1
        for i in range(40):
            await line.ask(str(i))
        # Half of the first copies took longer than the hedge's delay, so it must have grown.
        assert line.endpoint.stats.hedge_wins > 0
        assert digest.hedge_s > 1.5

    run_virtual(run())


def test_hedges_stay_inside_the_limit() -> None:
    async def run() -> None:
        line = Line(Provider(), max_concurrency=4)
        await line.warm(1.0)
        line.provider.plan = lambda at, url, n: None if n < 4 else 0.5
        replies = await together(*(line.ask(str(i)) for i in range(8)))
        assert [reply.text for reply in replies] == [str(i) for i in range(8)]
        assert line.provider.peak == 4

    run_virtual(run())


def test_the_budget_bounds_hedges_and_never_gates_the_timeout() -> None:
    async def run() -> None:
        line = Line(Provider(), hedge_budget=0.0, start_concurrency=64, breaker_failures=99)
        await line.warm(1.0)
        line.provider.plan = lambda at, url, n: None if n < 50 else 0.5
        start = now()
        await together(*(line.ask(str(i)) for i in range(50)))
        stats = line.endpoint.stats
        assert stats.hedges == 0
        assert stats.timeouts == 50
        assert now() - start < 5

    run_virtual(run())


def test_hedging_fades_where_the_first_copy_always_wins() -> None:
    async def run(latency: Callable[[random.Random, int], float]) -> int:
        rng = random.Random(0)
        line = Line(Provider(), max_concurrency=32, start_concurrency=32)
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

    assert run_virtual(run(busy)) < 90 < 200 < run_virtual(run(unlucky)) < 0.15 * 3_000 + 32


def test_no_hedges_while_the_server_says_that_it_is_overloaded() -> None:
    async def run() -> None:
        line = Line(Provider(429, 0.1, None))
        await line.warm(1.0)
        await line.ask()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2.5):  # hedged at 1.5 s, had it not been for the refusal
                await line.ask("slow")
        assert line.endpoint.stats.hedges == 0

    run_virtual(run())


def test_a_stream_is_hedged_before_its_first_chunk_or_on_a_stall() -> None:
    async def run(chunks: Sequence[float], then: Answer) -> tuple[int, float]:
        line = Line(Provider(then, 0.5, chunks=chunks))
        line.wire = Wire(stream=True)
        line.provider.script, script = (0.0,), line.provider.script
        line.provider.chunks = ()
        digest = None
        await line.ask("bind")
        assert line.endpoint._dispatcher is not None
        digest = line.endpoint._dispatcher.health.digest("m", True)
        for _ in range(40):
            digest.add(1.0)  # the usual time to the first chunk
        line.provider.script, line.provider.chunks = script, chunks
        line.provider.sends.clear()
        start = now()
        await line.ask()
        return line.endpoint.stats.hedges, now() - start

    # No first chunk: as late as any other call.
    hedges, seconds = run_virtual(run((), None))
    assert (hedges, round(seconds, 1)) == (1, 2.0)
    # Chunks keep coming, for far longer than the first one takes: nothing to hedge.
    hedges, seconds = run_virtual(run([0.9] * 30, 0.5))
    assert (hedges, round(seconds, 1)) == (0, 27.5)
    # Two chunks, then nothing: a stall.
    hedges, seconds = run_virtual(run([0.9, 0.9], None))
    assert (hedges, round(seconds, 1)) == (1, 1.8 + 5.0 + 0.5)
