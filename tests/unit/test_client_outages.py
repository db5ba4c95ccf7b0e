"""Batches that a service does not answer: timeouts, the breaker, retries, what ends at once."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.helpers.virtual_service import (
    Service,
    answers,
    in_virtual_time,
    kind,
    line_to,
    scores,
)

from adjudge.errors import ErrorKind, GradingFailure


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
        assert "timeout waiting for results" in str(one.failure)
        assert "raise timeout" in str(one.failure)
    assert line.metrics()["failures"] == {"timeout": 3}


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
    assert "circuit breaker open" in str(answer.failure)
    assert "circuit_breaker_timeout = 60 s" in str(answer.failure)
    assert asyncio.get_running_loop().time() - start <= 0.1  # its batch's wait
    assert len(service.posts) == sent
    await asyncio.sleep(60)
    assert line.metrics()["circuit_breaker"]["state"] == "HALF_OPEN"
    service.plan = lambda n: 0.1
    assert scores(await answers(line, "a")) == [0.01]
    assert line.metrics()["circuit_breaker"]["state"] == "CLOSED"


@in_virtual_time
async def test_what_opens_the_breaker_does_not_wait_for_its_retries() -> None:
    service = Service()
    service.plan = lambda n: GradingFailure(ErrorKind.CONNECTION, "refused")
    line = line_to(service, max_retries=3, circuit_breaker_threshold=1)
    (answer,) = await answers(line, "a")
    assert (kind(answer), len(service.posts)) == ("connection", 1)
    assert asyncio.get_running_loop().time() <= 0.1


@in_virtual_time
async def test_a_batch_is_sent_again_up_to_max_retries() -> None:
    for retries in (0, 1, 3):
        service = Service()
        service.plan = lambda n: 500
        line = line_to(service, max_retries=retries)
        (answer,) = await answers(line, "a")
        assert (kind(answer), len(service.posts)) == ("server_error", retries + 1)
        assert f"max_retries = {retries}" in str(answer.failure)


@pytest.mark.parametrize(("status", "expected"), [(401, "auth"), (404, "invalid_input")])
@in_virtual_time
async def test_what_no_retry_cures_is_sent_once(status: int, expected: str) -> None:
    service = Service()
    service.plan = lambda n: status
    line = line_to(service)
    (answer,) = await answers(line, "a")
    assert (kind(answer), len(service.posts)) == (expected, 1)
    assert ("api_key_env" if status == 401 else "judge_url") in str(answer.failure)
