"""Histories of an endpoint under every kind of trouble, and what must hold of each of them."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

import msgspec
from hypothesis import given, settings, strategies as st
from tests.unit.helpers.virtual_time import run_virtual

from adjudge.errors import ErrorKind, GradingFailure
from adjudge.judges.base import ChatCall, HttpRequest, HttpResponse, Reply
from adjudge.judges.endpoint.endpoint import Endpoint
from adjudge.judges.endpoint.settings import (
    CallPolicy,
    EndpointKey,
    EndpointSettings,
    Price,
    estimate_tokens,
)
from adjudge.types import Usage

EPSILON_S = 0.05
MAX_TOKENS = 10
PRICE = Price(input=0.0, output=1_000_000.0)
RESERVATION = 10.0

# What the provider does with a send: reply, hang, refuse, fail, lose the line, cut the body.
ANSWERS = st.one_of(
    st.tuples(st.just("reply"), st.floats(0.0, 3.0)),
    st.tuples(st.just("reply"), st.floats(0.0, 0.2)),
    st.tuples(st.just("hang"), st.just(0.0)),
    st.tuples(st.just("429"), st.sampled_from([0.0, 1.0, 5.0, 500.0])),
    st.tuples(st.sampled_from(["500", "503", "cut", "refused"]), st.floats(0.0, 1.0)),
    st.tuples(st.just("connection"), st.floats(0.0, 1.0)),
)

# A caller: when it asks, what, and for how long it waits before it is cancelled (if it is).
CALLERS = st.tuples(
    st.floats(0.0, 10.0),
    st.integers(0, 30),
    st.none() | st.floats(0.0, 5.0),
)

SETTINGS = st.builds(
    EndpointSettings,
    max_concurrency=st.integers(1, 6),
    max_attempts=st.integers(1, 4),
    deadline_s=st.sampled_from([2.0, 8.0, 20.0]),
    hedge=st.booleans(),
    budget_usd=st.none() | st.sampled_from([5.0, 25.0, 100.0]),
    requests_per_minute=st.none() | st.just(300.0),
)


POLICIES = st.builds(
    CallPolicy,
    start_concurrency=st.integers(1, 6),
    breaker_failures=st.sampled_from([2, 8]),
)


class Sent(msgspec.Struct):
    """One send as the provider saw it."""

    body: str
    start: float
    end: float = float("inf")
    how: str = "?"
    billed: float = 0.0


class Asked(msgspec.Struct):
    """One call as its caller saw it."""

    body: str
    start: float
    outcomes: list[Any] = []
    end: float = float("inf")
    cancelled: bool = False


class Provider:
    def __init__(self, answers: list[tuple[str, float]], settings: EndpointSettings) -> None:
        self.answers = answers
        self.settings = settings
        self.sends: list[Sent] = []
        self.in_flight = 0

    async def post(self, base_url: str, request: HttpRequest) -> HttpResponse:
        loop = asyncio.get_running_loop()
        kind, number = self.answers[len(self.sends) % len(self.answers)]
        sent = Sent(request.body.decode(), loop.time())
        self.sends.append(sent)
        self.in_flight += 1
        assert self.in_flight <= self.settings.max_concurrency
        try:
            response = await self._respond(kind, number, request)
        except asyncio.CancelledError:
            sent.how = "cancelled"
            sent.billed = RESERVATION
            raise
        except GradingFailure:
            sent.how = "lost"
            raise
        else:
            sent.how = kind
            sent.billed = 1.0 if kind == "reply" else 0.0
            return response
        finally:
            sent.end = loop.time()
            self.in_flight -= 1

    async def _respond(self, kind: str, number: float, request: HttpRequest) -> HttpResponse:
        await asyncio.sleep(1e6 if kind == "hang" else 0.01 if kind == "429" else number)
        if kind == "connection":
            raise GradingFailure(ErrorKind.CONNECTION, "reset")
        headers = {"retry-after": str(number)} if kind == "429" and number else {}
        status = {"429": 429, "500": 500, "503": 503, "refused": 451}.get(kind, 200)
        return HttpResponse(status=status, headers=headers, body=request.body, cut=kind == "cut")

    async def aclose(self) -> None:
        pass


class Wire:
    def request(self, call: ChatCall) -> HttpRequest:
        return HttpRequest(path="/", headers={}, body=str(call.messages[0]["content"]).encode())

    def reply(self, call: ChatCall, response: HttpResponse) -> Reply:
        kinds = {429: ErrorKind.RATE_LIMITED, 451: ErrorKind.REFUSED}
        if response.status != 200:
            kind = kinds.get(response.status, ErrorKind.SERVER_ERROR)
            raise GradingFailure(kind, "no", {"status": response.status})
        if response.cut:
            raise GradingFailure(ErrorKind.TRUNCATED, "cut", {"status": 200})
        return Reply(text=response.body.decode(), usage=Usage(input_tokens=1, output_tokens=1))


def play(
    answers: list[tuple[str, float]],
    callers: list[tuple[float, int, float | None]],
    settings: EndpointSettings,
    policy: CallPolicy | None = None,
) -> tuple[list[Sent], list[Asked], Endpoint]:
    """One history: what was sent, and what was asked."""
    provider = Provider(answers, settings)
    asked: list[Asked] = []

    async def caller(endpoint: Endpoint, start: float, what: int, patience: float | None) -> None:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(start)
        note = Asked(str(what), loop.time())
        asked.append(note)
        sampling = {"temperature": 0, "max_tokens": MAX_TOKENS}
        call = ChatCall(model="m", messages=[{"content": note.body}], sampling=sampling)
        assert estimate_tokens(call.messages, call.sampling)[1] == RESERVATION
        try:
            async with asyncio.timeout(patience):
                note.outcomes.append(await endpoint.ask(call, Wire(), price=PRICE))
        except GradingFailure as failure:
            note.outcomes.append(failure)
        except TimeoutError as late:
            note.cancelled = True
            note.outcomes.append(late)
        note.end = loop.time()

    async def run() -> Endpoint:
        key = EndpointKey("test", ("http://a",), "", settings, policy, transport=lambda: provider)
        endpoint = Endpoint(key, rng=random.Random(0))
        async with asyncio.TaskGroup() as group:
            for who in callers:
                group.create_task(caller(endpoint, *who))
        await asyncio.sleep(1000)  # whatever was still to be sent would be sent now
        return endpoint

    endpoint = run_virtual(run())
    return provider.sends, asked, endpoint


@settings(max_examples=150, deadline=None)
@given(
    answers=st.lists(ANSWERS, min_size=1, max_size=12),
    callers=st.lists(CALLERS, min_size=1, max_size=30),
    settings=SETTINGS,
    policy=POLICIES,
)
def test_every_history_keeps_the_promises(
    answers: list[tuple[str, float]],
    callers: list[tuple[float, int, float | None]],
    settings: EndpointSettings,
    policy: CallPolicy,
) -> None:
    sends, asked, endpoint = play(answers, callers, settings, policy)
    stats = endpoint.stats

    for note in asked:
        assert len(note.outcomes) == 1  # exactly one outcome
        outcome = note.outcomes[0]
        if isinstance(outcome, Reply):
            assert outcome.text == note.body  # and nobody else's
        assert note.end <= note.start + settings.deadline_s + EPSILON_S
    assert stats.calls == len(asked) == stats.answered + sum(stats.failures.values())
    assert stats.answered >= sum(isinstance(note.outcomes[0], Reply) for note in asked)

    for sent in sends:
        # When it was sent somebody waited for it, and it ended with the last who did.
        assert any(n.body == sent.body and n.start <= sent.start <= n.end for n in asked)
        waiting = [n for n in asked if n.body == sent.body and n.start <= sent.end]
        assert sent.end <= max(note.end for note in waiting) + EPSILON_S

    assert stats.peak_in_flight <= settings.max_concurrency
    assert stats.sends == len(sends)
    flights = stats.sends - stats.retries - stats.timeouts - stats.hedges
    assert flights <= stats.calls - stats.deduplicated
    hedges = stats.hedges
    per_flight = Counter(sent.body for sent in sends)
    for body, n in per_flight.items():
        times = sum(note.body == body for note in asked)
        assert n <= times * settings.max_attempts + hedges
    assert settings.hedge or hedges == 0

    leaked = endpoint._open or endpoint._live or endpoint._joinable
    assert not leaked
    assert [server.in_flight for server in endpoint.servers.all] == [0]
    assert stats.cost_usd >= sum(sent.billed for sent in sends)
    if settings.budget_usd is not None:
        assert stats.cost_usd <= settings.budget_usd + 1e-9
