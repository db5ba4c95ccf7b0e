"""An endpoint's circuit breaker, its servers, and an outage of all of them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from typing import Any

import pytest
from tests.unit.helpers.scripted_provider import (
    Answer,
    Line,
    Provider,
    failure,
    now,
    together,
)
from tests.unit.helpers.virtual_service import in_virtual_time
from tests.unit.helpers.virtual_time import run_virtual

from adjudge.errors import ErrorKind, GradingFailure, JudgeUnavailable
from adjudge.judges.base import Reply
from adjudge.judges.endpoint.calls import Servers
from adjudge.judges.endpoint.settings import CallPolicy
from adjudge.judges.models.http import wait_for_server


@in_virtual_time
async def test_an_open_circuit_lets_one_probe_through_and_calls_wait() -> None:
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


@in_virtual_time
async def test_timeouts_open_the_circuit_and_a_hanging_probe_does_not_block_it() -> None:
    line = Line(Provider(), breaker_failures=4, hedge=False, max_attempts=2, deadline_s=60)
    await line.warm(1.0)
    start = now()
    line.provider.plan = lambda at, url, n: None if at < start + 30 else 0.1
    outcomes = await together(*(line.ask(str(i)) for i in range(12)))
    assert line.endpoint.stats.circuit_opened >= 1
    # A probe is the second and last send of its call, so it hangs on; the others get through.
    replies = [outcome for outcome in outcomes if isinstance(outcome, Reply)]
    assert 12 > len(replies) >= 5


@in_virtual_time
async def test_a_cancelled_probe_makes_room_for_another() -> None:
    line = Line(Provider(500, None, 0.1), breaker_failures=1, max_attempts=9)
    ask = asyncio.ensure_future(line.ask("a"))
    await asyncio.sleep(5)  # failed once, and hangs as the probe
    other = asyncio.ensure_future(line.ask("b"))
    await asyncio.sleep(1)
    assert len(line.provider.sends) == 2
    ask.cancel()
    assert (await other).text == "b"


def refused(url: str = "http://a") -> GradingFailure:
    said = f"no response from {url}: connection refused; is the server running?"
    return GradingFailure("connection", said, {"sent": False})


@in_virtual_time
async def test_calls_to_a_server_that_was_never_reached_fail_at_once_with_the_cause() -> None:
    line = Line(Provider(refused()), breaker_failures=4, deadline_s=120)
    errors = await together(*(line.ask(str(i)) for i in range(64)))
    assert {error.kind for error in errors} == {ErrorKind.CONNECTION}
    assert {str(error) for error in errors} == {str(refused())}
    assert now() < 2
    assert len(line.provider.sends) < 64


@in_virtual_time
async def test_calls_to_a_server_that_went_away_wait_and_then_name_the_cause() -> None:
    line = Line(Provider(0.1, refused()), breaker_failures=4, max_attempts=99, deadline_s=30)
    await line.ask("before")
    assert line.endpoint.servers.outage is None
    waiting = asyncio.create_task(together(*(line.ask(str(i)) for i in range(8))))
    await asyncio.sleep(10)
    assert "connection refused" in str(line.endpoint.servers.outage)
    errors = await waiting
    assert {error.kind for error in errors} == {ErrorKind.CIRCUIT_OPEN}
    assert all("connection refused" in str(error) for error in errors)
    assert now() == pytest.approx(30.1, abs=0.1)


@in_virtual_time
async def test_a_call_that_expires_does_not_quote_what_failed_before_the_last_reply() -> None:
    failed = GradingFailure("server_error", "status 500 about another sample")
    line = Line(Provider(failed, 0.1, None), max_attempts=2, deadline_s=30, hedge=False)
    await line.ask("another")
    late = await failure(line.ask("late"))
    assert late.kind is ErrorKind.TIMEOUT
    assert str(late) == "no complete reply within 30 s (1 sends)"
    assert "last_failure" not in late.metadata
    assert line.endpoint.servers.all[0].is_up


URLS = ("http://a", "http://b", "http://c")


@in_virtual_time
async def test_calls_go_where_the_least_is_in_flight_and_groups_stay_together() -> None:
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


@in_virtual_time
async def test_a_group_spills_when_its_server_is_much_busier() -> None:
    line = Line(Provider(1.0), URLS, start_concurrency=64)
    await together(*(line.ask(str(i), group="one") for i in range(60)))
    used = [url for _, url, _ in line.provider.sends]
    home = max(URLS, key=used.count)
    assert 20 < used.count(home) < 45


def test_a_lost_server_moves_only_its_own_groups() -> None:
    urls = [f"http://{i}" for i in range(4)]
    servers = Servers(urls, CallPolicy(breaker_failures=1))
    groups = [f"group {i}" for i in range(200)]
    before = {group: servers.pick(0.0, group, None) for group in groups}
    servers.all[2].failed(0.0)
    after = {group: servers.pick(0.0, group, None) for group in groups}
    moved = {group for group in groups if before[group] is not after[group]}
    assert moved == {group for group in groups if before[group] is servers.all[2]}
    assert 20 < len(moved) < 80


@in_virtual_time
async def test_a_bad_server_is_ejected_and_probed() -> None:
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


@in_virtual_time
async def test_retries_and_hedges_go_elsewhere() -> None:
    line = Line(Provider(), URLS[:2])
    await line.warm(1.0)
    line.provider.plan = lambda at, url, n: 500 if n == 0 else 0.1
    await line.ask("retried", group="at home")
    line.provider.plan = lambda at, url, n: None if n == 2 else 0.1
    await line.ask("hedged", group="at home")
    used = [url for _, url, _ in line.provider.sends]
    assert used[0] != used[1]
    assert used[2] != used[3]


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


@in_virtual_time
async def test_waiting_for_a_server_ends_with_its_first_answer_or_the_cause() -> None:
    provider = Provider()
    provider.plan = lambda at, url, n: refused(url) if at < 90 or url != "http://b" else 404
    heard: list[str] = []

    def waiting(seconds: float) -> Coroutine[Any, Any, None]:
        return wait_for_server(URLS, seconds, transport=provider, on_wait=heard.append)

    with pytest.raises(JudgeUnavailable, match="connection refused.*waited for 20 s"):
        await waiting(20.0)
    assert now() == pytest.approx(20.0)
    await waiting(600.0)
    assert now() == pytest.approx(90.0, abs=2.1)
    assert "waiting for up to" in heard[0]


def forbidding(line: Line, forbidden: set[str], fast: float | int = 403) -> None:
    """Make the provider take a second for an answer and forbid some texts at once."""
    line.provider.plan = lambda at, url, n: fast if line.provider.sends[n][2] in forbidden else 1.0


@in_virtual_time
async def test_a_request_that_a_firewall_forbids_is_refused_and_not_the_key() -> None:
    line = Line(Provider(), hedge=False)
    forbidding(line, {"bad"})
    await line.ask("first")
    for text in ("bad", "good", "bad"):
        (outcome,) = await together(line.ask(text))
        if text == "good":
            assert outcome.text == text
        else:
            assert (outcome.kind, outcome.suspect) == (ErrorKind.REFUSED, True)
            assert outcome.metadata["status"] == 403
    assert line.endpoint.stats.failures == {ErrorKind.REFUSED: 2}


@in_virtual_time
async def test_the_first_answer_may_be_a_firewalls_while_others_are_out() -> None:
    line = Line(Provider(), hedge=False)
    bad = {f"bad {i}" for i in range(30)}
    forbidding(line, bad)
    asked = [*sorted(bad)[:12], "good", *sorted(bad)[12:]]
    outcomes = await together(*(line.ask(text) for text in asked))
    assert [one.kind for one in outcomes if isinstance(one, GradingFailure)] == ["refused"] * 30


@in_virtual_time
async def test_a_key_that_was_forbidden_from_the_start_is_refused() -> None:
    line = Line(Provider(403))
    (alone,) = await together(line.ask("x"))
    assert alone.kind is ErrorKind.AUTH
    line = Line(Provider(403))
    outcomes = await together(*(line.ask(str(i)) for i in range(5)))
    assert sorted(one.kind for one in outcomes) == ["auth"] + ["refused"] * 4


@in_virtual_time
async def test_a_key_that_is_forbidden_everything_after_a_while_is_refused() -> None:
    line = Line(Provider())
    await line.warm(n=3)
    line.provider.script = (403,)
    for _ in range(20):  # one question asked again and again, and one group, are one
        (outcome,) = await together(line.ask("0", group="g"))
        assert outcome.kind is ErrorKind.REFUSED
    kinds = [(await together(line.ask(str(i))))[0].kind for i in range(8)]
    assert kinds == ["refused"] * 6 + ["auth"] * 2
