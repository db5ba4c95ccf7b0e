"""What a client counts on each event loop, and shows as ``get_metrics``."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import Any

from adjudge.errors import GradingFailure
from adjudge.judges.endpoint.endpoint import Endpoint
from adjudge.judges.endpoint.settings import LatencyHistogram
from adjudge.wire import JudgeResponse

_BINS = 10


class ClientCounts:
    """Requests by what became of them; ``requests == scored + errors`` once nothing is out.

    ``posts``: batches sent. ``travelled`` and ``batched``: requests in them, all and in batches of
    two or more. ``strays``: responses that belong to no request.
    """

    def __init__(self) -> None:
        self.started = time.monotonic()
        self.requests = self.scored = self.cache_hits = self.shared = self.fallbacks = 0
        self.posts = self.travelled = self.batched = self.strays = 0
        self.failures: Counter[str] = Counter()
        self.latencies = LatencyHistogram()
        self.histogram = [0] * (_BINS + 2)

    def answered(
        self,
        response: JudgeResponse | None,
        failure: Exception | None,
        seconds: float,
        cached: bool,
    ) -> None:
        """A request has its outcome."""
        if response is None or response.score is None:
            kind = failure.kind if isinstance(failure, GradingFailure) else "bug"
            self.failures[str(kind)] += 1
            return
        self.scored += 1
        if not cached:
            self.latencies.add(seconds)
        # Place 0 holds those below 0, the last one those above 1.
        if 0 <= response.score <= 1:
            place = min(int(response.score * _BINS) + 1, _BINS)
        else:
            place = 0 if response.score < 0 else -1
        self.histogram[place] += 1


def collect_metrics(
    counts: ClientCounts, endpoint: Endpoint, queue: dict[str, Any]
) -> dict[str, Any]:
    """The numbers since the first request, always the same keys.

    Shares are of ``total_requests`` and 0 where there were none. ``latency`` is the median, in
    seconds as all times, ``None`` while nothing was scored. ``batch_processing_rate`` is batches a
    second, ``batched_share`` the share of requests sent that did not travel alone,
    ``current_queue_size`` those that wait to be sent. ``reward_histogram`` counts the judge's
    scores, cached ones too, between its ``edges``, and outside. ``last_failure_time`` is in POSIX
    seconds.
    """
    stats, detector = endpoint.stats, endpoint.servers[0].detector
    now, failed_at = asyncio.get_running_loop().time(), detector.failed_at
    total, errors = max(counts.requests, 1), sum(counts.failures.values())
    elapsed = max(time.monotonic() - counts.started, 1e-9)
    return {
        "total_requests": counts.requests,
        "scored": counts.scored,
        "cache_hit_rate": counts.cache_hits / total,
        "cache_hits": counts.cache_hits,
        "shared_in_flight": counts.shared,
        "batch_processing_rate": counts.posts / elapsed,
        "batches": counts.posts,
        "batched_share": counts.batched / max(counts.travelled, 1),
        **queue,
        "peak_in_flight_batches": stats.peak_in_flight,
        "errors": errors,
        "error_rate": errors / total,
        "failures": dict(counts.failures),
        "fallbacks": counts.fallbacks,
        "fallback_rate": counts.fallbacks / total,
        "stray_responses": counts.strays,
        "retries": stats.retries + stats.timeouts,
        "latency": counts.latencies.quantile(0.5),
        "latency_p95": counts.latencies.quantile(0.95),
        "latency_p99": counts.latencies.quantile(0.99),
        "loop_lag_max": stats.loop_lag_max_s,
        "reward_histogram": {
            "edges": [edge / _BINS for edge in range(_BINS + 1)],
            "counts": counts.histogram[1:-1],
            "below": counts.histogram[0],
            "above": counts.histogram[-1],
        },
        "circuit_breaker": {
            "state": detector.state(now).upper(),
            "failure_count": detector.failures,
            "last_failure_time": failed_at and time.time() - now + failed_at,
        },
    }
