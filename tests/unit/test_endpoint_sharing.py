"""Equal calls of an endpoint: in flight, and from its cache."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.unit.helpers.cassettes import opened
from tests.unit.helpers.scripted_provider import (
    Line,
    Provider,
    failure,
    together,
)
from tests.unit.helpers.virtual_service import in_virtual_time

from adjudge.errors import ConfigError, ErrorKind
from adjudge.judges.base import HttpResponse, Reply, call_round
from adjudge.judges.cassette import ReplyCache


@in_virtual_time
async def test_votes_are_votes() -> None:
    line = Line(Provider(1.0))
    await together(*(line.ask(draw=i, temperature=0) for i in range(3)))
    await together(line.ask(temperature=1), line.ask(temperature=1), line.ask(), line.ask())
    assert len(line.provider.sends) == 7
    assert line.endpoint.stats.deduplicated == 0


FORMS: list[dict[str, Any]] = [
    {},
    {"choices": ["A", "B"]},
    {"choices": ["B", "A"]},
    {"choices": ["\ud800"]},
    {"logprobs": True},
    {"schema": {}},
    {"schema": {"a": 1, "b": 2}},
    {"schema": {"b": 2, "a": 1}},
    {"schema": {"a": True, "b": 2}},
]


@in_virtual_time
async def test_calls_that_want_other_forms_of_reply_share_none() -> None:
    """This wire leaves all of it out of the request."""
    line = Line(Provider(1.0))
    asks = [line.ask(form=form, temperature=0) for form in FORMS for _ in range(2)]
    replies = await together(*asks)
    sources = [reply.provenance.source for reply in replies]
    assert sources == ["live", "shared"] * len(FORMS)
    assert len(line.provider.sends) == len(FORMS)
    assert line.endpoint.stats.deduplicated == len(FORMS)


@in_virtual_time
async def test_a_shared_call_lives_as_long_as_anybody_waits() -> None:
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


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[ReplyCache]:
    with opened(tmp_path / "judge.sqlite", sampled=True) as found:
        yield found


@in_virtual_time
async def test_replies_that_have_come_are_kept_before_closing_ends(cache: ReplyCache) -> None:
    line = Line(Provider(), cache=cache)
    waiting = asyncio.get_running_loop().create_future()

    async def post(*_: object) -> HttpResponse:
        await waiting
        return HttpResponse(status=200, headers={}, body=b"come")

    line.provider.post = post  # type: ignore[assignment,method-assign]  # one reply, to the step
    ask = asyncio.ensure_future(line.ask(temperature=0))
    await asyncio.sleep(0.1)
    waiting.set_result(None)
    await asyncio.sleep(0)  # the send has its reply, and who asked is about to be told
    assert not ask.done()
    await line.endpoint.aclose()
    assert cache.report().stored == 1
    assert (await ask).text == "come"


@pytest.mark.parametrize("status", [200, 451])
@in_virtual_time
async def test_an_outcome_is_kept_before_an_equal_call_can_be_sent(
    status: int, cache: ReplyCache
) -> None:
    line = Line(Provider(), cache=cache)
    equal: list[asyncio.Task[Reply]] = []
    call_round.set(object())

    async def post(*_: object) -> HttpResponse:
        equal.append(asyncio.ensure_future(line.ask(temperature=1)))
        return HttpResponse(status=status, headers={}, body=b"come")

    line.provider.post = post  # type: ignore[assignment,method-assign]
    await together(line.ask(temperature=1))
    await asyncio.wait(equal)
    assert [bool(one.exception()) for one in equal] == [status == 451]
    assert (len(equal), cache.report().stored + cache.report().failures) == (1, 1)


@in_virtual_time
async def test_failed_calls_are_kept_and_cancelled_ones_are_not(cache: ReplyCache) -> None:
    line = Line(Provider(401, 500, None), cache=cache, max_attempts=1, deadline_s=5.0)
    outcomes = [await failure(line.ask(text, temperature=0)) for text in "abc"]
    assert [one.kind for one in outcomes] == ["auth", "server_error", "timeout"]
    left = asyncio.ensure_future(line.ask("d", temperature=0))
    await asyncio.sleep(0.1)
    left.cancel()
    await asyncio.sleep(0.1)
    assert cache.report().failures == 3
    unsent = Line(Provider(), cache=cache, budget_usd=1.0)
    assert (await failure(unsent.ask("e", temperature=0))).kind is ErrorKind.BUDGET
    assert cache.report().failures == 4


@in_virtual_time
async def test_a_cache_that_cannot_keep_an_outcome_says_so_to_who_asked(
    cache: ReplyCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    def put(*_: object) -> None:
        raise ConfigError("this cache was closed")

    monkeypatch.setattr(cache, "keep", put)
    line = Line(Provider(0.1), cache=cache)
    outcomes = await together(line.ask(), line.ask())
    assert [type(one) for one in outcomes] == [ConfigError, ConfigError]
    assert line.provider.in_flight == 0
