"""The endpoint against a scripted provider in virtual time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from itertools import pairwise
from typing import Any

import pytest

from adjudge.engine.virtual import VirtualLoop, run_virtual
from adjudge.errors import ErrorKind, GradingFailure
from adjudge.judges.base import ChatCall, HttpRequest, HttpResponse, Reply
from adjudge.judges.budget import Price
from adjudge.judges.endpoint import Endpoint, EndpointSettings
from adjudge.types import Usage

KINDS = {
    400: ErrorKind.INVALID_INPUT,
    401: ErrorKind.AUTH,
    402: ErrorKind.BUDGET,
    429: ErrorKind.RATE_LIMITED,
    451: ErrorKind.REFUSED,
}
PRICE = Price(input=0.0, output=1_000_000.0)  # a dollar per output token: sums are plain to see


class Wire:
    """The text of the first message travels as the body and comes back as the reply."""

    def __init__(self, stream: bool = False) -> None:
        self.stream = stream

    def request(self, call: ChatCall) -> HttpRequest:
        body = call.messages[0]["content"].encode()
        return HttpRequest(path="/chat", headers={}, body=body, stream=self.stream)

    def reply(self, call: ChatCall, response: HttpResponse) -> Reply:
        status = response.status
        if status != 200:
            kind = KINDS.get(status, ErrorKind.SERVER_ERROR)
            raise GradingFailure(kind, f"status {status}", {"status": status})
        if response.cut:
            raise GradingFailure(ErrorKind.TRUNCATED, "cut", {"status": 200})
        usage = Usage(input_tokens=10, output_tokens=1)
        return Reply(text=response.body.decode(), usage=usage, model="served")


Answer = float | int | tuple[int, Mapping[str, str]] | Exception | None
"""Seconds until a reply; a status, perhaps with headers; an exception; ``None`` hangs."""


class Provider:
    """Answers the n-th send with ``script[n]``, and all after the script with its last line."""

    def __init__(self, *script: Answer, chunks: Sequence[float] = ()) -> None:
        self.script = script
        self.chunks = chunks
        self.sends: list[tuple[float, str, str]] = []
        self.cancelled: list[tuple[float, int]] = []
        self.in_flight = self.peak = 0
        self.closed = False
        self.plan: Callable[[float, str, int], Answer] | None = None

    async def post(
        self, base_url: str, request: HttpRequest, on_chunk: Callable[[], None] | None = None
    ) -> HttpResponse:
        n, now = len(self.sends), asyncio.get_running_loop().time()
        self.sends.append((now, base_url, request.body.decode()))
        self.in_flight += 1
        self.peak = max(self.peak, self.in_flight)
        try:
            answer = self.script[min(n, len(self.script) - 1)] if self.script else 0.0
            if self.plan is not None:
                answer = self.plan(now, base_url, n)
            for gap in self.chunks if n == 0 else ():
                await asyncio.sleep(gap)
                assert on_chunk is not None
                on_chunk()
            return await self._answer(answer, request)
        except asyncio.CancelledError:
            self.cancelled.append((asyncio.get_running_loop().time(), n))
            raise
        finally:
            self.in_flight -= 1

    async def _answer(self, answer: Answer, request: HttpRequest) -> HttpResponse:
        if answer is None:
            await asyncio.sleep(1e6)
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, float):
            await asyncio.sleep(answer)
            return HttpResponse(status=200, headers={}, body=request.body)
        await asyncio.sleep(0.01)
        status, headers = answer if isinstance(answer, tuple) else (answer or 200, {})
        return HttpResponse(status=status, headers=headers, body=b"", cut=status == 200)

    async def aclose(self) -> None:
        self.closed = True


class Seesaw(random.Random):
    """Jitter that is always the most it can be."""

    def uniform(self, a: float, b: float) -> float:
        return b


class Line:
    """An endpoint, its provider, and shorthands."""

    def __init__(
        self, provider: Provider, urls: Sequence[str] = ("http://a",), **more: Any
    ) -> None:
        cache = more.pop("cache", None)
        self.provider = provider
        self.endpoint = Endpoint(
            urls, provider, EndpointSettings(**more), cache=cache, rng=Seesaw()
        )
        self.wire = Wire()

    async def ask(self, text: str = "q", *, draw: int = 0, price: Price | None = None,
                  group: str | None = None, **sampling: Any) -> Reply:  # fmt: skip
        call = ChatCall(model="m", messages=[{"content": text}], draw=draw, sampling=sampling)
        return await self.endpoint.ask(call, self.wire, group=group, price=price)

    async def warm(self, seconds: float = 1.0, n: int = 40) -> None:
        """Make the usual latency known, then forget the sends."""
        script, self.provider.script = self.provider.script, (seconds,)
        chunks, self.provider.chunks = self.provider.chunks, ()
        plan, self.provider.plan = self.provider.plan, None
        await together(*(self.ask(f"warm {i}") for i in range(n)))
        self.provider.script, self.provider.chunks, self.provider.plan = script, chunks, plan
        self.provider.sends.clear()


async def together(*asks: Coroutine[Any, Any, Any]) -> list[Any]:
    """All outcomes, exceptions as values, in order."""
    tasks = [asyncio.ensure_future(ask) for ask in asks]
    await asyncio.wait(tasks)
    return [task.exception() or task.result() for task in tasks]


def now() -> float:
    return asyncio.get_running_loop().time()


async def failure(ask: Awaitable[Reply]) -> GradingFailure:
    with pytest.raises(GradingFailure) as caught:
        await ask
    return caught.value


# ── one call ─────────────────────────────────────────────────────────────────────────────────────


def test_a_reply_says_where_it_comes_from() -> None:
    async def run() -> None:
        line = Line(Provider(0.5))
        reply = await line.ask("hello", price=PRICE)
        assert reply.text == "hello"
        source = reply.provenance
        assert (source.source, source.model, source.attempts) == ("live", "served", 1)
        assert source.latency_s == pytest.approx(0.5)
        assert reply.usage is not None
        assert reply.usage.cost_usd == 1.0
        assert source.usage == reply.usage
        stats = line.endpoint.stats
        assert (stats.calls, stats.answered, stats.sends) == (1, 1, 1)
        assert (stats.input_tokens, stats.output_tokens, stats.cost_usd) == (10, 1, 1.0)
        await line.endpoint.aclose()
        assert line.provider.closed

    run_virtual(run())


@pytest.mark.parametrize("status", [400, 401, 402, 451])
def test_what_no_retry_cures_is_sent_once(status: int) -> None:
    async def run() -> None:
        line = Line(Provider(status))
        error = await failure(line.ask())
        assert error.kind is KINDS[status]
        assert error.metadata == {"status": status, "attempts": 1}
        assert len(line.provider.sends) == 1
        assert line.endpoint.stats.failures == {KINDS[status]: 1}

    run_virtual(run())


@pytest.mark.parametrize(
    "answer",
    [500, 503, 529, 429, 200, GradingFailure(ErrorKind.CONNECTION, "refused")],
    ids=str,
)
def test_what_passes_is_retried_with_growing_waits(answer: Answer) -> None:
    async def run() -> None:
        line = Line(Provider(answer, answer, answer, 0.0), retry_base_s=1.0)
        reply = await line.ask()
        assert reply.provenance.attempts == 4
        times = [sent for sent, _, _ in line.provider.sends]
        gaps = [b - a for a, b in pairwise(times)]
        assert gaps == pytest.approx([1.0, 2.0, 4.0], abs=0.05)
        assert line.endpoint.stats.retries == 3

    run_virtual(run())


def test_attempts_run_out_with_the_last_failure() -> None:
    async def run() -> None:
        line = Line(Provider(500), max_attempts=3)
        error = await failure(line.ask())
        assert error.kind is ErrorKind.SERVER_ERROR
        assert error.metadata == {"status": 500, "attempts": 3}
        assert line.endpoint.stats.send_failures == {"server_error": 3}

    run_virtual(run())


def test_retry_after_is_honoured_where_it_fits() -> None:
    async def run() -> None:
        line = Line(Provider((429, {"retry-after": "30"}), 0.0))
        await line.ask()
        assert 30.0 <= line.provider.sends[1][0] <= 30.6

        line = Line(Provider((429, {"retry-after": "300"}), 0.0))
        error = await failure(line.ask())
        assert error.kind is ErrorKind.RATE_LIMITED
        assert len(line.provider.sends) == 1

    run_virtual(run())


def test_a_server_may_forbid_retries() -> None:
    async def run() -> None:
        line = Line(Provider((500, {"x-should-retry": "false"}), 0.0))
        assert (await failure(line.ask())).kind is ErrorKind.SERVER_ERROR
        assert len(line.provider.sends) == 1

    run_virtual(run())


def test_only_the_deadline_fails_a_silent_call() -> None:
    async def run() -> None:
        line = Line(Provider(None), deadline_s=100.0, hedge=False, breaker_failures=99)
        await line.warm(1.0)
        start = now()
        error = await failure(line.ask())
        assert error.kind is ErrorKind.TIMEOUT
        assert now() - start == pytest.approx(100.0, abs=0.05)
        # Given up after 3, 6, 12 and 24 s; the fifth and last may take all that is left.
        times = [sent - start for sent, _, _ in line.provider.sends]
        assert times == pytest.approx([0.0, 3.0, 9.0, 21.0, 45.0], abs=0.2)
        assert line.endpoint.stats.timeouts == 4
        assert line.endpoint.stats.send_failures == {"timeout": 5}

    run_virtual(run())


def test_a_deadline_counts_waiting_for_a_slot() -> None:
    async def run() -> None:
        line = Line(Provider(None), deadline_s=10.0, max_concurrency=1, hedge=False)
        start = now()
        kinds = [error.kind for error in await together(line.ask("a"), line.ask("b"))]
        assert kinds == [ErrorKind.TIMEOUT] * 2
        assert now() - start == pytest.approx(10.0, abs=0.05)

    run_virtual(run())


def test_time_that_the_loop_was_busy_is_no_timeout() -> None:
    async def run() -> None:
        line = Line(Provider(5.0), deadline_s=20.0, hedge=False)
        ask = asyncio.ensure_future(line.ask())
        await asyncio.sleep(0.1)
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        loop.advance(60.0)
        assert (await ask).text == "q"
        assert line.endpoint.stats.loop_lag_max_s == pytest.approx(60.0, abs=0.1)

    run_virtual(run())


def test_an_exception_that_is_no_failure_goes_through() -> None:
    async def run() -> None:
        line = Line(Provider(ZeroDivisionError("oops"), 0.0), max_concurrency=1)
        with pytest.raises(ZeroDivisionError):
            await line.ask()
        assert (await line.ask()).text == "q"
        assert line.endpoint.stats.failures == {"bug": 1}

    run_virtual(run())


def test_an_endpoint_belongs_to_one_loop() -> None:
    line = Line(Provider())
    assert line.endpoint.stats.limit == 0
    run_virtual(line.ask())
    with pytest.raises(RuntimeError, match="one event loop"):
        run_virtual(line.ask())
    with pytest.raises(ValueError, match="base URL"):
        Endpoint([], Provider())


def test_closing_ends_what_is_under_way() -> None:
    async def run() -> None:
        line = Line(Provider(None), max_concurrency=1)
        asks = [asyncio.ensure_future(line.ask(str(i))) for i in range(2)]
        await asyncio.sleep(1)
        await line.endpoint.aclose()
        assert [(await failure(ask)).kind for ask in asks] == [ErrorKind.CANCELLED] * 2
        assert line.provider.in_flight == 0
        with pytest.raises(RuntimeError, match="closed"):
            await line.ask()

    run_virtual(run())


# ── cancellation ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("after", [None, 0.0, 1.0])
def test_cancelling_the_caller_cancels_the_send(after: float | None) -> None:
    async def run() -> None:
        line = Line(Provider(None), max_concurrency=1)
        ask = asyncio.ensure_future(line.ask())
        if after is not None:  # else before anything could run
            await asyncio.sleep(after)
        ask.cancel()
        with pytest.raises(asyncio.CancelledError):
            await ask
        sent = len(line.provider.sends)
        await asyncio.sleep(500)
        assert len(line.provider.sends) == sent
        assert line.provider.in_flight == 0
        line.provider.script = (0.0,)
        assert (await line.ask("next")).text == "next"  # the slot is free again

    run_virtual(run())


def test_closing_in_the_step_in_which_a_send_starts() -> None:
    async def run() -> None:
        line = Line(Provider(None), spend_ceiling_usd=9.0)
        ask = asyncio.ensure_future(line.ask(price=PRICE, max_tokens=7))
        await asyncio.sleep(0)  # the send's task exists and has not run yet
        await line.endpoint.aclose()
        assert (await failure(ask)).kind is ErrorKind.CANCELLED
        assert line.provider.sends == []
        assert line.endpoint._dispatcher is not None
        assert line.endpoint._dispatcher.health.limit.in_flight == 0
        assert line.endpoint.stats.cost_usd == 0.0

    run_virtual(run())


def test_nothing_is_sent_after_cancelling_a_call_that_waits_to_retry() -> None:
    async def run() -> None:
        line = Line(Provider(500), retry_base_s=10.0)
        ask = asyncio.ensure_future(line.ask())
        await asyncio.sleep(5)
        ask.cancel()
        await asyncio.sleep(500)
        assert len(line.provider.sends) == 1

    run_virtual(run())


# ── equal calls ──────────────────────────────────────────────────────────────────────────────────


def test_equal_calls_in_flight_share_a_reply_at_temperature_0() -> None:
    async def run() -> None:
        line = Line(Provider(1.0))
        first, second = await together(line.ask(temperature=0), line.ask(temperature=0))
        assert first is second
        assert len(line.provider.sends) == 1
        await line.ask(temperature=0)  # not in flight any more, and there is no cache
        assert len(line.provider.sends) == 2
        stats = line.endpoint.stats
        assert (stats.calls, stats.answered, stats.deduplicated) == (3, 3, 1)

    run_virtual(run())


def test_votes_are_votes() -> None:
    async def run() -> None:
        line = Line(Provider(1.0))
        await together(*(line.ask(draw=i, temperature=0) for i in range(3)))
        await together(line.ask(temperature=1), line.ask(temperature=1), line.ask(), line.ask())
        assert len(line.provider.sends) == 7
        assert line.endpoint.stats.deduplicated == 0

    run_virtual(run())


def test_a_shared_call_lives_as_long_as_anybody_waits() -> None:
    async def run() -> None:
        line = Line(Provider(1.0, None))
        asks = [asyncio.ensure_future(line.ask(temperature=0)) for _ in range(3)]
        await asyncio.sleep(0.5)
        asks[0].cancel()
        asks[2].cancel()
        assert (await asks[1]).text == "q"
        asks = [asyncio.ensure_future(line.ask(temperature=0)) for _ in range(2)]
        await asyncio.sleep(0.5)
        for ask in asks:
            ask.cancel()
        await asyncio.sleep(0.1)
        assert line.provider.in_flight == 0
        stats = line.endpoint.stats
        assert stats.failures == {"cancelled": 4}
        assert stats.calls == stats.answered + 4

    run_virtual(run())


class Cache:
    """A dict with the cache's face; ``strict``: what is not in it fails."""

    def __init__(self, sampled: bool = False, strict: bool = False) -> None:
        self.kept: dict[str, Reply] = {}
        self.puts = 0
        self.sampled = sampled
        self.strict = strict

    def key(self, call: ChatCall, provider: str) -> str:
        return f"{provider}/{call.messages[0]['content']}/{call.draw}"

    def get(self, key: str) -> Reply | None:
        if self.strict and key not in self.kept:
            raise GradingFailure(ErrorKind.UNSUPPORTED, "not recorded")
        return self.kept.get(key)

    def put(self, key: str, reply: Reply, call: ChatCall | None = None) -> None:
        assert call is not None
        self.puts += 1
        self.kept[key] = reply


def test_a_cache_answers_without_sending() -> None:
    async def run() -> None:
        cache = Cache()
        line = Line(Provider(1.0), cache=cache)
        first = await line.ask(temperature=0)
        assert await line.ask(temperature=0) is first
        assert first.provenance.prompt_hash == "http://a/q/0"
        stats = line.endpoint.stats
        assert (len(line.provider.sends), cache.puts, stats.cache_hits) == (1, 1, 1)
        assert stats.calls == stats.answered == 2
        cache.strict = True
        assert (await failure(line.ask("new"))).kind is ErrorKind.UNSUPPORTED
        assert stats.calls == stats.answered + stats.failures["unsupported"]

    run_virtual(run())


def test_a_cache_that_keeps_sampled_replies_makes_equal_calls_share() -> None:
    async def run() -> None:
        cache = Cache(sampled=True)
        line = Line(Provider(1.0), cache=cache)
        first, second = await together(line.ask(), line.ask())
        assert first is second
        assert cache.puts == 1

    run_virtual(run())


# ── hedges ───────────────────────────────────────────────────────────────────────────────────────


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


# ── breaker and several servers ──────────────────────────────────────────────────────────────────


def test_an_open_circuit_lets_one_probe_through_and_calls_wait() -> None:
    async def run() -> None:
        line = Line(Provider(), breaker_failures=4, max_attempts=9, hedge=False)
        line.provider.plan = lambda at, url, n: 500 if at < 20 else 0.1
        replies = await together(*(line.ask(str(i)) for i in range(8)))
        assert [reply.text for reply in replies] == [str(i) for i in range(8)]
        times = [sent for sent, _, _ in line.provider.sends]
        # Probes 1, 2, 4, 8 and 10 s after the one before; then all others at once.
        probes = [t for t in times if 0.1 < t < 25.1]
        assert probes[:5] == pytest.approx([1.0, 3.0, 7.1, 15.1, 25.1], abs=0.2)
        assert len([t for t in times if 0.1 < t < 25]) == 4
        assert line.endpoint.stats.circuit_opened == 1

    run_virtual(run())


def test_calls_that_only_meet_an_open_circuit_say_so() -> None:
    async def run() -> None:
        line = Line(Provider(500), breaker_failures=4, max_attempts=99, deadline_s=30)
        errors = await together(*(line.ask(str(i)) for i in range(20)))
        assert {error.kind for error in errors} == {ErrorKind.CIRCUIT_OPEN}
        assert now() == pytest.approx(30, abs=0.05)
        # The first twenty, and four probes (after 1, 3, 7 and 15 s), one of them at 25 s.
        assert len(line.provider.sends) <= 20 + 5

    run_virtual(run())


def test_timeouts_open_the_circuit_and_a_hanging_probe_does_not_block_it() -> None:
    async def run() -> None:
        line = Line(Provider(), breaker_failures=4, hedge=False, max_attempts=2, deadline_s=60)
        await line.warm(1.0)
        start = now()
        line.provider.plan = lambda at, url, n: None if at < start + 30 else 0.1
        outcomes = await together(*(line.ask(str(i)) for i in range(12)))
        assert line.endpoint.stats.circuit_opened >= 1
        # A probe is the second and last send of its call, so it hangs on; the others get through.
        replies = [outcome for outcome in outcomes if isinstance(outcome, Reply)]
        assert 12 > len(replies) >= 5

    run_virtual(run())


def test_a_cancelled_probe_makes_room_for_another() -> None:
    async def run() -> None:
        line = Line(Provider(500, None, 0.1), breaker_failures=1, max_attempts=9)
        ask = asyncio.ensure_future(line.ask("a"))
        await asyncio.sleep(5)  # failed once, and hangs as the probe
        other = asyncio.ensure_future(line.ask("b"))
        await asyncio.sleep(1)
        assert len(line.provider.sends) == 2
        ask.cancel()
        assert (await other).text == "b"

    run_virtual(run())


URLS = ("http://a", "http://b", "http://c")


def test_calls_go_where_the_least_is_in_flight_and_groups_stay_together() -> None:
    async def run() -> None:
        line = Line(Provider(1.0), URLS)
        await together(*(line.ask(str(i)) for i in range(18)))
        used = [url for _, url, _ in line.provider.sends]
        assert sorted(used) == sorted(URLS * 6)
        line.provider.sends.clear()
        for i in range(30):
            await line.ask(str(i), group=f"group {i % 10}")
        homes: dict[int, set[str]] = {}
        for _, url, body in line.provider.sends:
            homes.setdefault(int(body) % 10, set()).add(url)
        assert all(len(urls) == 1 for urls in homes.values())
        assert len(set.union(*homes.values())) > 1

    run_virtual(run())


def test_a_group_spills_when_its_server_is_much_busier() -> None:
    async def run() -> None:
        line = Line(Provider(1.0), URLS, start_concurrency=64)
        await together(*(line.ask(str(i), group="one") for i in range(60)))
        used = [url for _, url, _ in line.provider.sends]
        home = max(URLS, key=used.count)
        assert 20 < used.count(home) < 45

    run_virtual(run())


def test_a_bad_server_is_ejected_and_probed() -> None:
    async def run() -> None:
        line = Line(Provider(), URLS[:2], breaker_failures=3)

        def plan(at: float, url: str, n: int) -> Answer:
            return 500 if url == "http://b" and at < 30 else 0.2

        line.provider.plan = plan
        for i in range(300):
            await line.ask(str(i))
        sends = line.provider.sends
        bad = [at for at, url, _ in sends if url == "http://b" and 2 < at < 30]
        assert len(bad) <= 5
        assert [url for at, url, _ in sends if at > 45].count("http://b") > 10
        assert line.endpoint.stats.failures == {}

    run_virtual(run())


def test_a_silent_server_is_not_asked_again_at_once() -> None:
    async def run() -> None:
        line = Line(Provider(), URLS[:2], hedge=False)
        await line.warm(1.0)
        line.provider.plan = lambda at, url, n: None if n == 0 else 0.1
        await line.ask(group="at home")
        assert len({url for _, url, _ in line.provider.sends}) == 2

    run_virtual(run())


def test_retries_and_hedges_go_elsewhere() -> None:
    async def run() -> None:
        line = Line(Provider(), URLS[:2])
        await line.warm(1.0)
        line.provider.plan = lambda at, url, n: 500 if n == 0 else 0.1
        await line.ask("retried", group="at home")
        line.provider.plan = lambda at, url, n: None if n == 2 else 0.1
        await line.ask("hedged", group="at home")
        used = [url for _, url, _ in line.provider.sends]
        assert used[0] != used[1]
        assert used[2] != used[3]

    run_virtual(run())


# ── rates and money ──────────────────────────────────────────────────────────────────────────────


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


def test_a_ceiling_without_a_price_is_refused() -> None:
    async def run() -> None:
        line = Line(Provider(0.0), spend_ceiling_usd=1.0)
        assert (await failure(line.ask())).kind is ErrorKind.BUDGET
        assert line.provider.sends == []

    run_virtual(run())


def test_the_ceiling_holds_and_leftovers_are_used() -> None:
    async def run() -> None:
        # Each call reserves $4 and costs $1: three at a time, and ten calls for $13 in all.
        line = Line(Provider(1.0), spend_ceiling_usd=13.0, start_concurrency=64)
        asks = (line.ask(str(i), price=PRICE, max_tokens=4) for i in range(20))
        outcomes = await together(*asks)
        replies = [outcome for outcome in outcomes if isinstance(outcome, Reply)]
        assert len(replies) == 10
        kinds = {outcome.kind for outcome in outcomes if isinstance(outcome, GradingFailure)}
        assert kinds == {ErrorKind.BUDGET}
        assert line.endpoint.stats.cost_usd == 10.0
        assert line.provider.peak == 3

    run_virtual(run())


def test_failed_sends_cost_nothing_and_lost_ones_their_reservation() -> None:
    async def run() -> None:
        lost = GradingFailure(ErrorKind.CONNECTION, "reset")
        line = Line(Provider(500, lost, 0.0))
        await line.ask(price=PRICE, max_tokens=4)
        assert line.endpoint.stats.cost_usd == 5.0
        assert line.endpoint.stats.assumed_usd == 4.0

    run_virtual(run())


# ── an outage ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("down", [500, GradingFailure(ErrorKind.CONNECTION, "refused")], ids=str)
def test_an_outage_of_a_minute_costs_a_minute_and_no_call(down: Answer) -> None:
    rng = random.Random(5)
    workers, outage = 64, (60.0, 120.0)

    def plan(at: float, url: str, n: int) -> Answer:
        if outage[0] <= at < outage[1]:
            return down
        if at < outage[1] and rng.random() < 0.1:
            return 429
        return rng.lognormvariate(-1.6, 0.5)

    async def run() -> None:
        line = Line(Provider(), max_concurrency=workers)
        line.provider.plan = plan
        done: list[float] = []
        asked: list[float] = []

        async def worker(name: int) -> None:
            while now() < 180:
                asked.append(now())
                reply = await line.ask(f"{name} {now()}")
                assert reply.text.startswith(f"{name} ")
                done.append(now())

        outcomes = await together(*(worker(i) for i in range(workers)))
        assert outcomes == [None] * workers
        assert line.endpoint.stats.failures == {}
        within = [t for t, _, _ in line.provider.sends if outage[0] <= t < outage[1]]
        calls = [t for t in asked if outage[0] <= t < outage[1]]
        assert len(within) <= 1.1 * (len(calls) + workers)
        before = len([t for t in done if 50 <= t < 60])
        after = [len([t for t in done if s <= t < s + 10]) for s in range(120, 170)]
        full = next(i for i, rate in enumerate(after) if rate >= 0.9 * before)
        assert full <= 20

    run_virtual(run())
