"""The service's numbers in Prometheus' form: names, units and labels that stay few.

=============================  ==================================================================
``judge_requests_total``       HTTP requests by ``route`` and ``outcome`` (:data:`REQUEST_OUTCOMES`)
``judge_request_duration_…``   seconds from a request's arrival to its answer, by ``route``
``judge_failures_total``       judgements without a score, by ``kind``
``judge_inflight``             judgements in the backend's hands
``judge_queue_size``           judgements that wait
``judge_client_…``             each client's share of the queue: places, waiting, seconds waited
``judge_batch_size``           how many requests the backend was given at once
``judge_cost_usd_total``       what the judges behind the spec have cost; absent without a price
``judge_upstream_…``           each judge's endpoint: calls, cache hits, limit, up or given up, …
=============================  ==================================================================
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    SummaryMetricFamily,
)
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from adjudge.judges.endpoint.connections import open_endpoints
from adjudge.service.queue import BackendQueue

REQUEST_OUTCOMES = ("answered", "failed", "refused", "queue_full", "unavailable", "disconnected")
"""A judgement, a judge's failure, a fault of the request, no room, not now, the client left."""

_SECONDS_BUCKETS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120),
)
_SIZE_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128)
_COUNTED_UPSTREAM = {
    "calls": "questions to a judge's endpoint, answered or not",
    "answered": "questions that got a reply",
    "cache_hits": "replies from the cache",
    "deduplicated": "questions that shared the reply of an equal one in flight",
    "sends": "requests sent, including those sent again",
    "retries": "requests sent again after a failure",
    "timeouts": "requests sent again because no answer came in time",
    "limit_cuts": "how often the limit of calls in flight was reduced",
    "circuit_opened": "how often the circuit breaker opened",
    "input_tokens": "tokens of the questions, as the server counts them",
    "output_tokens": "tokens of the replies",
    "unpriced": "replies without a price, which are in no cost",
}
FAMILIES: Sequence[tuple[type[Any], tuple[str, ...], dict[str, str]]] = (
    (CounterMetricFamily, ("route", "outcome"), {
        "requests": f"HTTP requests; outcomes: {', '.join(REQUEST_OUTCOMES)}",
    }),
    (HistogramMetricFamily, ("route",), {
        "request_duration_seconds": "seconds from a request's arrival to its answer",
    }),
    (HistogramMetricFamily, (), {
        "batch_size": "judgements that were begun at once, those of groups left out",
    }),
    (CounterMetricFamily, ("kind",), {"failures": "judgements that ended without a score"}),
    (GaugeMetricFamily, (), {
        "inflight": "judgements under way now",
        "queue_size": "judgements that wait now",
    }),
    (GaugeMetricFamily, ("client",), {
        "client_places": "the client's places in the queue, beside the clients that wait now",
        "client_waiting": "a client's judgements that wait now",
    }),
    (SummaryMetricFamily, ("client",), {
        "client_wait_seconds": "seconds that a client's judgements waited",
    }),
    (CounterMetricFamily, (), {
        "cost_usd": "what the judges have cost, in US dollars; absent where no reply had a price",
    }),
    (CounterMetricFamily, ("endpoint",), {
        f"upstream_{name}": meaning for name, meaning in _COUNTED_UPSTREAM.items()
    }),
    (CounterMetricFamily, ("endpoint", "kind"), {
        "upstream_failures": "questions that got no reply",
    }),
    (GaugeMetricFamily, ("endpoint",), {
        "upstream_limit": "limit of calls in flight now",
        "upstream_up": "0 while the circuit breaker lets no request through",
    }),
)  # fmt: skip
"""What is shown under ``judge_…``: types, labels, and each name with its meaning."""

_Rows = Sequence[tuple[Any, ...]]
"""Values of a family, each after its labels'."""


class Distribution:
    """How many values are at most each of ``bounds``, and what they sum to.

    The client library's own takes a lock at each count; all of ours are made on one event loop.
    """

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Count a value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def read(self) -> tuple[list[tuple[str, int]], float]:
        """The buckets, as Prometheus names them, and the sum."""
        names = [*map(str, map(float, self._bounds)), "+Inf"]
        return [*zip(names, accumulate(self._counts), strict=True)], self._sum


class RouteMetrics:
    """What one route answered: requests by outcome, and their seconds."""

    def __init__(self) -> None:
        self.outcomes = dict.fromkeys(REQUEST_OUTCOMES, 0)
        self.seconds = Distribution(_SECONDS_BUCKETS)


class ServiceMetrics(Collector):
    """One service's counters, what holds in its ``queue``, and what the endpoints count."""

    def __init__(self) -> None:
        self.queue: BackendQueue
        self.routes: dict[str, RouteMetrics] = {}
        self.failures: Counter[str] = Counter()
        """Judgements without a score, by kind."""
        self.batches = Distribution(_SIZE_BUCKETS)

    def text(self) -> bytes:
        """All numbers, as Prometheus reads them; on the service's event loop."""
        registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        registry.register(self)
        return generate_latest(registry)

    def collect(self) -> Iterator[Metric]:
        """What was counted, and what holds now."""
        rows = self._rows() | _upstream_rows()
        for family, labels, meanings in FAMILIES:
            for name, meaning in meanings.items():
                shown = family(f"judge_{name}", meaning, labels=labels)
                for row in rows[name]:
                    shown.add_metric(*row)
                yield shown

    def _rows(self) -> dict[str, _Rows]:
        routes, queue = self.routes.items(), self.queue.queue
        shares = [((name,), share) for name, share in queue.shares.items()]
        return {
            "requests": [
                ((path, outcome), count)
                for path, route in routes
                for outcome, count in route.outcomes.items()
            ],
            "request_duration_seconds": [((path,), *one.seconds.read()) for path, one in routes],
            "failures": [((kind,), count) for kind, count in self.failures.items()],
            "batch_size": [((), *self.batches.read())],
            "inflight": [((), self.queue.judging)],
            "queue_size": [((), queue.waiting)],
            "client_places": [(name, queue.places(share)) for name, share in shares],
            "client_waiting": [(name, share.waiting) for name, share in shares],
            "client_wait_seconds": [(name, share.begun, share.wait_s) for name, share in shares],
        }


def _upstream_rows() -> dict[str, _Rows]:
    # Numbered, since two judges may share an address with different keys.
    endpoints = [
        ((f"{number}:{','.join(one.endpoint_key.base_urls)}",), one)
        for number, one in enumerate(open_endpoints(), 1)
    ]
    stats = [(key, one.stats) for key, one in endpoints]
    cost = sum(one.cost_usd for _, one in stats)
    # 0 USD where no reply had a price would be a number that nobody knows.
    known = cost or not any(one.unpriced for _, one in stats)
    return {
        "cost_usd": [((), cost)] if known else [],
        **{
            f"upstream_{name}": [(key, getattr(one, name)) for key, one in stats]
            for name in (*_COUNTED_UPSTREAM, "limit")
        },
        "upstream_failures": [
            ((*key, kind), count) for key, one in stats for kind, count in one.failures.items()
        ],
        "upstream_up": [(key, one.servers.outage is None) for key, one in endpoints],
    }
