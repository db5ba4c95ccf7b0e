"""The endpoint against a scripted provider in virtual time: one call, and cancelling it."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest
from tests.unit.helpers.scripted_provider import (
    KINDS,
    PRICE,
    Answer,
    Line,
    Provider,
    failure,
    now,
    together,
)
from tests.unit.helpers.virtual_service import in_virtual_time
from tests.unit.helpers.virtual_time import VirtualLoop

from adjudge.errors import ErrorKind, GradingFailure
from adjudge.judges.base import Reply


@in_virtual_time
async def test_a_reply_says_where_it_comes_from() -> None:
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


@pytest.mark.parametrize("status", [400, 401, 402, 451, 500])
@in_virtual_time
async def test_what_no_retry_cures_or_the_server_forbids_is_sent_once(status: int) -> None:
    kind = KINDS.get(status, ErrorKind.SERVER_ERROR)
    headers = {"x-should-retry": "false"} if status == 500 else {}
    line = Line(Provider((status, headers), 0.0))
    error = await failure(line.ask())
    assert error.kind is kind
    assert error.metadata == {"status": status, "attempts": 1}
    assert len(line.provider.sends) == 1
    assert line.endpoint.stats.failures == {kind: 1}


@pytest.mark.parametrize(
    "answer",
    [500, 503, 529, 429, 200, GradingFailure(ErrorKind.CONNECTION, "refused")],
    ids=str,
)
@in_virtual_time
async def test_what_passes_is_retried_with_growing_waits(answer: Answer) -> None:
    line = Line(Provider(answer, answer, answer, 0.0))
    reply = await line.ask()
    assert reply.provenance.attempts == 4
    times = [sent for sent, _, _ in line.provider.sends]
    gaps = [b - a for a, b in pairwise(times)]
    assert gaps == pytest.approx([0.5, 1.0, 2.0], abs=0.05)
    assert line.endpoint.stats.retries == 3


@in_virtual_time
async def test_retry_after_is_honoured_where_it_fits() -> None:
    line = Line(Provider((429, {"retry-after": "30"}), 0.0))
    await line.ask()
    assert 30.0 <= line.provider.sends[1][0] <= 30.6

    line = Line(Provider((429, {"retry-after": "300"}), 0.0))
    error = await failure(line.ask())
    assert error.kind is ErrorKind.RATE_LIMITED
    assert len(line.provider.sends) == 1


@in_virtual_time
async def test_a_wait_that_is_longer_than_the_deadline_is_kept() -> None:
    line = Line(Provider((429, {"retry-after": "300"}), 0.0))
    first, second = await together(line.ask("a"), line.ask("b"))
    assert {type(first), type(second)} == {GradingFailure, Reply}, "one was out already"
    for at in (1.0, 100.0):
        await asyncio.sleep(at)
        again = await failure(line.ask("a"))
        assert (again.kind, again.metadata["attempts"]) == (ErrorKind.RATE_LIMITED, 0)
    await asyncio.sleep(100.0)
    assert (await line.ask("a")).text == "a", "the deadline is behind what the server asked for"
    assert [sent > 299 for sent, _, _ in line.provider.sends] == [False, False, True]


@in_virtual_time
async def test_only_the_deadline_fails_a_silent_call() -> None:
    line = Line(Provider(None), deadline_s=100.0, hedge=False, breaker_failures=99)
    await line.warm(1.0)
    start = now()
    error = await failure(line.ask())
    assert error.kind is ErrorKind.TIMEOUT
    assert now() - start == pytest.approx(100.0, abs=0.05)
    # Given up after 3, 6, 12 and 24 s; the fifth and last may take all that is left.
    times = [sent - start for sent, _, _ in line.provider.sends]
    assert times == pytest.approx([0.0, 3.0, 9.0, 21.0, 45.0], abs=0.2)
    await line.endpoint.wait_for_cancelled()
    assert line.endpoint.stats.timeouts == 4
    assert line.endpoint.stats.send_failures == {"timeout": 5}


@in_virtual_time
async def test_time_that_the_loop_was_busy_is_no_timeout() -> None:
    line = Line(Provider(5.0), deadline_s=20.0, hedge=False)
    ask = asyncio.ensure_future(line.ask())
    await asyncio.sleep(0.1)
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    loop.advance(60.0)
    assert (await ask).text == "q"
    assert line.endpoint.stats.loop_lag_max_s == pytest.approx(60.0, abs=0.1)


@in_virtual_time
async def test_an_exception_that_is_no_failure_goes_through() -> None:
    line = Line(Provider(ZeroDivisionError("oops"), 0.0), max_concurrency=1)
    with pytest.raises(ZeroDivisionError):
        await line.ask()
    assert (await line.ask()).text == "q"
    assert line.endpoint.stats.failures == {"bug": 1}


@in_virtual_time
async def test_closing_ends_what_is_under_way() -> None:
    line = Line(Provider(None), max_concurrency=1)
    asks = [asyncio.ensure_future(line.ask(str(i))) for i in range(2)]
    await asyncio.sleep(1)
    await line.endpoint.aclose()
    assert [(await failure(ask)).kind for ask in asks] == [ErrorKind.CANCELLED] * 2
    assert line.provider.in_flight == 0
    with pytest.raises(RuntimeError, match="closed"):
        await line.ask()


# ── cancellation ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("after", [None, 0.0, 1.0])
@in_virtual_time
async def test_cancelling_the_caller_cancels_the_send(after: float | None) -> None:
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


@in_virtual_time
async def test_closing_in_the_step_in_which_a_send_starts() -> None:
    line = Line(Provider(None), budget_usd=9.0)
    ask = asyncio.ensure_future(line.ask(price=PRICE, max_tokens=7))
    await asyncio.sleep(0)  # the send's task exists and has not run yet
    await line.endpoint.aclose()
    assert (await failure(ask)).kind is ErrorKind.CANCELLED
    assert line.provider.sends == []
    assert not line.endpoint._live
    assert line.endpoint.stats.cost_usd == 0.0
