"""The limit that learns, the rate buckets, what response headers ask for, and what is slow."""

from __future__ import annotations

import math

import pytest

from adjudge.judges.endpoint.limits import AdaptiveLimit, LatencyDigest
from adjudge.judges.wire import parse_retry_after

DATE = "Sat, 21 Nov 2026 10:00:00 GMT"


def rounds(limit: AdaptiveLimit, n: int, now: float = 0.0, used: float = 1.0) -> None:
    """``n`` rounds of successes with this share of the limit in flight."""
    for _ in range(n):
        for _ in range(limit.limit):
            limit.succeeded(now, round(limit.limit * used))


def test_it_grows_only_while_it_is_used() -> None:
    limit = AdaptiveLimit(start=10, maximum=64)
    rounds(limit, 5, used=0.7)
    assert limit.limit == 10
    rounds(limit, 1, used=0.8)
    assert limit.limit > 10


def test_refusals_cut_once_per_cooldown() -> None:
    limit = AdaptiveLimit(start=100, maximum=200)
    for at in (0.0, 1.0, 14.9):
        limit.throttled(at, None)
        limit.succeeded(at, 1)
    assert (limit.limit, limit.cuts) == (80, 1)
    limit.throttled(15.0, None)
    assert (limit.limit, limit.cuts) == (64, 2)


def test_a_server_that_refuses_more_than_it_answers_is_cut_again_at_once() -> None:
    limit = AdaptiveLimit(start=100, maximum=200)
    limit.throttled(0.0, None)
    limit.succeeded(0.1, 1)
    limit.throttled(0.2, None)
    assert limit.cuts == 1, "one for one says nothing yet"
    limit.throttled(0.2, None)
    assert (limit.limit, limit.cuts) == (64, 2)


def test_refusals_in_a_row_stop_all_sending() -> None:
    limit = AdaptiveLimit(start=10, maximum=64)
    limit.throttled(0.0, 7.0)
    limit.throttled(0.0, 7.0)
    limit.succeeded(0.0, 1)
    limit.throttled(0.0, 7.0)
    assert limit.paused_until < 0
    limit.throttled(0.0, 7.0)
    limit.throttled(0.5, 7.0)
    assert limit.paused_until == 7.5


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "20", "retry-after-ms": "1500"}, 1.5),
        ({"retry-after": "Sat, 21 Nov 2026 10:00:30 GMT", "date": DATE}, 30.0),
        ({"retry-after": "Sat, 21 Nov 2026 09:00:00 GMT", "date": DATE}, 0.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-5"}, None),
        ({"retry-after": "1e9"}, 3600.0),
    ],
)
def test_what_headers_ask_for(headers: dict[str, str], seconds: float | None) -> None:
    assert parse_retry_after(headers) == (None if seconds is None else pytest.approx(seconds))


def test_it_is_never_cut_below_its_minimum() -> None:
    limit = AdaptiveLimit(start=20, maximum=64)
    for i in range(50):
        limit.throttled(i * 100.0, None)
    assert limit.limit == 4
    assert AdaptiveLimit(start=2, maximum=2).limit == 2


# ── what is slow ─────────────────────────────────────────────────────────────────────────────────


def digest_of(samples: list[float], out: list[float]) -> LatencyDigest:
    digest = LatencyDigest()
    for sample in samples:
        digest.add(sample)
    digest.refresh(out)
    return digest


@pytest.mark.parametrize(
    ("n", "out", "hedge_s", "give_up_s"),
    [
        (4, 0, math.inf, math.inf),
        (16, 4, 0.2, 1.25),  # of 20 that were sent
        (14, 6, math.inf, 20 / 14),
        (20, 0, 0.15, 1.0),
    ],
)
def test_what_a_cold_digest_says(n: int, out: int, hedge_s: float, give_up_s: float) -> None:
    digest = digest_of([0.1] * n, [5.0] * out)
    assert (digest.hedge_s, digest.give_up_s) == pytest.approx((hedge_s, give_up_s))
