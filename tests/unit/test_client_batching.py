"""Batches in virtual time: when they leave, who gets which response, what outages do, the cache."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, strategies as st
from tests.unit.helpers.stand_in_service import score_of
from tests.unit.helpers.virtual_service import (
    Service,
    answers,
    asked,
    in_virtual_time,
    kind,
    line_to,
    scores,
)

from adjudge.client import batcher
from adjudge.client.settings import PatientSettings
from adjudge.errors import ErrorKind, GradingFailure


@in_virtual_time
async def test_a_batch_leaves_when_it_is_full_or_its_first_has_waited() -> None:
    service = Service()
    line = line_to(service, max_batch_size=4, batch_timeout=0.05)
    waiters = []
    for n in range(6):  # a gap after the first does not end the batch
        waiters.append(asked(line, "x" * n))
        await asyncio.sleep(0.012)
    await asyncio.wait(waiters)
    await answers(line, "one alone")
    assert [(round(at, 3), path, len(items)) for at, path, items in service.posts] == [
        (0.036, "/batch_judge", 4),
        (0.098, "/batch_judge", 2),
        (0.248, "/judge", 1),
    ]


@in_virtual_time
async def test_never_more_than_max_concurrent_requests_and_later_batches_are_fuller() -> None:
    service = Service()
    line = line_to(service, max_batch_size=8, max_concurrent_requests=2, batch_timeout=0.01)
    waiters = []
    for n in range(60):
        waiters.append(asked(line, "x" * n))
        await asyncio.sleep(0.004)
    await asyncio.wait(waiters)
    assert service.peak == 2
    assert [len(items) for _, _, items in service.posts[2:-1]] == [8] * (len(service.posts) - 3)
    assert line.metrics()["batched_share"] > 0.8


RESPONSES = st.sampled_from(["lost", "kept", "twice", "garbage", "error", "nameless", "unscored"])


@given(st.lists(RESPONSES, min_size=2, max_size=12), st.integers(0, 1000), st.booleans())
@in_virtual_time
async def test_responses_are_matched_by_request_id_and_never_by_position(
    fates: list[str], seed: int, strays: bool
) -> None:
    """Whatever comes back, a request gets its own response or none, and none hangs."""

    def whole(requests: list[dict[str, Any]]) -> dict[str, Any]:
        said: list[Any] = []
        error = {"kind": "unparsable", "message": "m"}
        for request in requests:
            fate, mine = fates[len(request["completion"])], score_of(request)
            outcomes: dict[str, list[Any]] = {
                "lost": [],
                "kept": [mine],
                "twice": [mine, {**mine, "score": 0.999}],
                "garbage": ["?", None, 3],
                "error": [{"request_id": mine["request_id"], "error": error}],
                "nameless": [{"score": 0.999}],
                "unscored": [{"request_id": mine["request_id"], "score": "high"}],
            }
            said += outcomes[fate]
        if strays:
            said.append({"request_id": "r999999", "score": 0.999})
        random.Random(seed).shuffle(said)
        return {"responses": said}

    service = Service()
    service.whole = whole
    line = line_to(service, max_batch_size=12, max_retries=0)
    found = await answers(line, *("x" * n for n in range(len(fates))))
    for n, (fate, answer) in enumerate(zip(fates, found, strict=True)):
        if fate == "kept":
            assert scores([answer]) == [n / 100]
        else:
            assert kind(answer) == ("unparsable" if fate == "error" else "server_error")


@in_virtual_time
async def test_a_passing_error_of_one_item_is_asked_again_alone_as_often_as_allowed() -> None:
    service = Service()
    seen: Counter[str] = Counter()

    def each(request: dict[str, Any]) -> dict[str, Any]:
        seen[request["completion"]] += 1
        kinds = {"bb": "timeout", "ccc": "rate_limited", "dddd": "unparsable"}
        said = kinds.get(request["completion"])
        if said is None or (said == "timeout" and seen["bb"] == 3):
            return score_of(request)
        return {"request_id": request["request_id"], "error": {"kind": said, "message": "said"}}

    service.each = each
    line = line_to(service, max_retries=2)
    found = await answers(line, "a", "bb", "ccc", "dddd")
    assert scores(found) == [0.01, 0.02, None, None]
    assert [kind(one) for one in found[2:]] == ["rate_limited", "unparsable"]
    assert found[3].error == "said"
    assert seen == {"a": 1, "bb": 3, "ccc": 3, "dddd": 1}
    start = asyncio.get_running_loop().time()
    (late,) = await answers(line_to(service, max_retries=100, timeout=5.0), "ccc")
    assert kind(late) == "rate_limited"
    assert asyncio.get_running_loop().time() - start == pytest.approx(5.0, abs=0.1)


@in_virtual_time
async def test_one_request_that_the_service_refuses_does_not_take_the_others_along() -> None:
    service = Service()
    service.plan = lambda n: 422 if "poison" in str(service.posts[n]) else 0.1
    line = line_to(service)
    found = await answers(line, "a", "bb", "poison", "dddd", "eeeee")
    assert scores(found) == [0.01, 0.02, None, 0.04, 0.05]
    assert kind(found[2]) == "invalid_input"


@in_virtual_time
async def test_what_nobody_waits_for_is_not_sent_and_a_score_that_comes_is_kept() -> None:
    service = Service()
    service.plan = lambda n: 1.0
    line = line_to(service, max_batch_size=1, max_concurrent_requests=1)
    first, second, twin = asked(line, "a"), asked(line, "bb"), asked(line, "bb")
    third = asked(line, "ccc")
    await asyncio.sleep(0.5)
    for one in (first, second, third):
        one.cancel()
    await asyncio.wait([twin])
    assert scores([twin.result()]) == [0.02]
    await asyncio.sleep(2.0)
    assert [items[0]["completion"] for _, _, items in service.posts] == ["a", "bb"]
    assert line.metrics()["in_flight_requests"] == 0
    assert scores(await answers(line, "a")) == [0.01]
    assert len(service.posts) == 2


@in_virtual_time
async def test_closing_ends_everything() -> None:
    service = Service()
    service.plan = lambda n: None
    line = line_to(service, max_batch_size=2, max_concurrent_requests=1)
    waiters = [asked(line, "x" * n) for n in range(5)]
    await asyncio.sleep(0.2)
    await line.aclose()
    await asyncio.wait(waiters)
    assert [kind(waiter.result()) for waiter in waiters] == ["cancelled"] * 5
    assert service.in_flight == 0
    await line.endpoint.aclose()


@in_virtual_time
async def test_a_batch_is_closed_before_it_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    service = Service()
    monkeypatch.setattr(batcher, "MAX_BATCH_BYTES", 1000)
    line = line_to(service)
    found = await answers(line, "a" * 400, "b" * 400, "c" * 400, "d" * 4000)
    assert scores(found) == [4.0, 4.0, 4.0, 40.0]
    assert [len(items) for _, _, items in service.posts] == [2, 1, 1]


@in_virtual_time
async def test_a_silent_service_is_a_timeout_in_time_also_for_who_waits_to_be_sent() -> None:
    service = Service()
    service.plan = lambda n: None
    line = line_to(service, timeout=10.0, max_concurrent_requests=1, max_batch_size=1)
    start = asyncio.get_running_loop().time()
    found = await answers(line, "a", "bb", "ccc")
    assert [kind(one) for one in found] == ["timeout"] * 3
    assert asyncio.get_running_loop().time() - start == pytest.approx(10.0, abs=0.2)
    for one in found:
        assert "timeout waiting for results" in str(one.error)
        assert "raise timeout" in str(one.error)
    assert line.metrics()["failures"] == {"timeout": 3}


@in_virtual_time
async def test_who_joins_an_old_request_has_time_of_ones_own() -> None:
    service = Service()
    service.plan = lambda n: None
    line = line_to(service, timeout=10.0)
    first = asked(line, "a")
    await asyncio.sleep(8.0)
    start = asyncio.get_running_loop().time()
    assert kind((await answers(line, "a"))[0]) == kind(await first) == "timeout"
    assert asyncio.get_running_loop().time() - start == pytest.approx(10.0, abs=0.2)


@in_virtual_time
async def test_timeouts_open_the_breaker_and_answers_start_its_count_again() -> None:
    """Five timeouts at a threshold of 2, which an earlier client left closed."""
    service = Service()
    line = line_to(
        service, timeout=1.0, max_retries=0, circuit_breaker_threshold=2, use_cache=False
    )
    service.plan = lambda n: None if n % 2 else 0.1
    for _ in range(6):  # never two failures in a row
        await answers(line, "a")
    assert line.metrics()["circuit_breaker"]["state"] == "CLOSED"
    service.plan = lambda n: None
    kinds = [kind((await answers(line, "a"))[0]) for _ in range(5)]
    assert kinds[-1] == "circuit_open"
    breaker = line.metrics()["circuit_breaker"]
    assert (breaker["state"], breaker["failure_count"]) == ("OPEN", 2)
    assert breaker["last_failure_time"] is not None


@in_virtual_time
async def test_an_open_breaker_fails_at_once_and_closes_after_its_time() -> None:
    service = Service()
    service.plan = lambda n: GradingFailure(ErrorKind.CONNECTION, "refused")
    line = line_to(
        service, max_retries=0, circuit_breaker_threshold=3, circuit_breaker_timeout=60.0
    )
    for _ in range(3):
        assert kind((await answers(line, "a"))[0]) == "connection"
    start, sent = asyncio.get_running_loop().time(), len(service.posts)
    (answer,) = await answers(line, "a")
    assert kind(answer) == "circuit_open"
    assert "circuit breaker open" in str(answer.error)
    assert "circuit_breaker_timeout = 60 s" in str(answer.error)
    assert asyncio.get_running_loop().time() - start <= 0.1  # its batch's wait
    assert len(service.posts) == sent
    await asyncio.sleep(60)
    assert line.metrics()["circuit_breaker"]["state"] == "HALF_OPEN"
    service.plan = lambda n: 0.1
    assert scores(await answers(line, "a")) == [0.01]
    assert line.metrics()["circuit_breaker"]["state"] == "CLOSED"


@pytest.mark.parametrize("trouble", [GradingFailure(ErrorKind.CONNECTION, "refused"), 503, 429])
@pytest.mark.parametrize("away_s", [10.0, 60.0, 1e6])
@in_virtual_time
async def test_who_trains_waits_for_an_outage_as_long_as_its_time_lasts(
    trouble: Any, away_s: float, caplog: pytest.LogCaptureFixture
) -> None:
    now, service = asyncio.get_running_loop().time, Service()
    line = line_to(service, PatientSettings, timeout=120.0)
    assert scores(await answers(line, "first")) == [0.05]
    start = now()
    service.plan = lambda n: 0.1 if now() >= start + away_s else trouble
    found = await answers(line, "a", "bb")
    if away_s < 120:
        assert scores(found) == [0.01, 0.02]
        assert now() - start < away_s + 40
    else:
        assert 90 < now() - start <= 120.1
        assert "timeout = 120 s" in str(found[0].error)
    assert len(service.posts) < 40
    warned = "http://a: 2 requests wait until the service answers again" in caplog.text
    assert warned is (trouble != 429)


# ── equal requests ───────────────────────────────────────────────────────────────────────────


@in_virtual_time
async def test_equal_requests_share_one_and_later_ones_come_from_the_cache() -> None:
    service = Service()
    line = line_to(service, cache_size=2)
    assert scores(await answers(line, "a", "a", "a", "bb")) == [0.01, 0.01, 0.01, 0.02]
    assert [one.cached for one in await answers(line, "bb", "a")] == [True, True]
    counted = line.metrics()
    assert (counted["cache_hits"], counted["shared_in_flight"]) == (2, 2)
    assert counted["cache_hit_rate"] == pytest.approx(2 / 6)
    assert sum(len(items) for _, _, items in service.posts) == 2
    await answers(line, "ccc")  # in the place of the one that was used longest ago
    assert [one.cached for one in await answers(line, "a", "bb")] == [True, False]


@in_virtual_time
async def test_another_version_of_the_judge_clears_the_cache_and_failures_are_never_kept() -> None:
    service = Service()
    service.plan = lambda n: 400 if n == 0 else 0.1
    line = line_to(service)
    assert kind((await answers(line, "a"))[0]) == "invalid_input"
    assert scores(await answers(line, "a", "bb")) == [0.01, 0.02]
    service.each = lambda request: {**score_of(request), "metadata": {"model_version": "v2"}}
    await answers(line, "ccc")
    assert line.metrics()["model_version"] == "v2"
    assert [one.cached for one in await answers(line, "a", "ccc")] == [False, True]
