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

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, SummaryMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from adjudge.judges.endpoint.connections import Connection, open_connections
from adjudge.service.queue import BackendQueue, FairQueue

REQUEST_OUTCOMES = ("answered", "failed", "refused", "queue_full", "unavailable", "disconnected")
"""A judgement, a judge's failure, a fault of the request, no room, not now, the client left."""

_SECONDS_BUCKETS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120),
)
_SIZE_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128)
_UPSTREAM_COUNTERS = {
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


class RouteMetrics(NamedTuple):
    """The counters of one route: of requests by outcome, and of their seconds."""

    outcomes: Mapping[str, Counter]
    seconds: Histogram


class ServiceMetrics(Collector):
    """One service's counters and gauges, and what the judges' endpoints count themselves."""

    _queue: BackendQueue

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = registry = CollectorRegistry()
        self.requests = Counter(
            "judge_requests",
            f"HTTP requests; outcomes: {', '.join(REQUEST_OUTCOMES)}",
            ("route", "outcome"),
            registry=registry,
        )
        self.seconds = Histogram(
            "judge_request_duration_seconds",
            "seconds from a request's arrival to its answer",
            ("route",),
            registry=registry,
            buckets=_SECONDS_BUCKETS,
        )
        self.failures = Counter(
            "judge_failures", "judgements that ended without a score", ("kind",), registry=registry
        )
        self.batches = Histogram(
            "judge_batch_size",
            "judgements that were begun at once, those of groups left out",
            registry=registry,
            buckets=_SIZE_BUCKETS,
        )
        ProcessCollector(registry=registry)

    def of_route(self, path: str) -> RouteMetrics:
        """The counters of the route at ``path``."""
        outcomes = {one: self.requests.labels(path, one) for one in REQUEST_OUTCOMES}
        return RouteMetrics(outcomes, self.seconds.labels(path))

    def watch(self, queue: BackendQueue) -> None:
        """Where to read what holds at the moment."""
        self._queue = queue
        self.registry.register(self)

    def failed(self, kind: str) -> None:
        """One judgement ended without a score."""
        self.failures.labels(kind).inc()

    def text(self) -> bytes:
        """All numbers, as Prometheus reads them; on the service's event loop."""
        return generate_latest(self.registry)

    def collect(self) -> Iterator[Metric]:
        """What holds now."""
        yield GaugeMetricFamily("judge_inflight", "judgements under way now", self._queue.judging)
        yield GaugeMetricFamily("judge_queue_size", "judgements that wait now", self._queue.waiting)
        yield from _collect_shares(self._queue.queue)
        yield from _collect_upstream(open_connections())


def _collect_shares(queue: FairQueue[Any]) -> Iterator[Metric]:
    label = ("client",)
    places = GaugeMetricFamily(
        "judge_client_places",
        "places in the queue that are the client's, beside the clients that wait now",
        labels=label,
    )
    waiting = GaugeMetricFamily(
        "judge_client_waiting", "a client's judgements that wait now", labels=label
    )
    waits = SummaryMetricFamily(
        "judge_client_wait_seconds", "seconds that a client's judgements waited", labels=label
    )
    for name, share in queue.shares.items():
        places.add_metric((name,), queue.places(share))
        waiting.add_metric((name,), share.waiting)
        waits.add_metric((name,), share.begun, share.wait_s)
    yield from (places, waiting, waits)


def _collect_upstream(connections: Sequence[Connection]) -> Iterator[Metric]:
    stats = [one.endpoint.stats for one in connections]
    cost = sum(one.cost_usd for one in stats)
    # 0 USD where no reply had a price would be a number that nobody knows.
    known = cost if cost or not any(one.unpriced for one in stats) else None
    what = "what the judges have cost, in US dollars; absent where no reply had a price"
    yield CounterMetricFamily("judge_cost_usd", what, known)
    for name, meaning in _UPSTREAM_COUNTERS.items():
        family = CounterMetricFamily(f"judge_upstream_{name}", meaning, labels=("endpoint",))
        for endpoint, one in _number_endpoints(connections):
            family.add_metric((endpoint,), getattr(one.endpoint.stats, name))
        yield family
    failures = CounterMetricFamily(
        "judge_upstream_failures", "questions that got no reply", labels=("endpoint", "kind")
    )
    limit = GaugeMetricFamily(
        "judge_upstream_limit", "limit of calls in flight now", labels=("endpoint",)
    )
    up = GaugeMetricFamily(
        "judge_upstream_up",
        "0 while the circuit breaker lets no request through",
        labels=("endpoint",),
    )
    for endpoint, one in _number_endpoints(connections):
        up.add_metric((endpoint,), one.endpoint.outage is None)
        limit.add_metric((endpoint,), one.endpoint.stats.limit)
        for kind, count in one.endpoint.stats.failures.items():
            failures.add_metric((endpoint, str(kind)), count)
    yield from (failures, limit, up)


def _number_endpoints(connections: Sequence[Connection]) -> Iterator[tuple[str, Connection]]:
    """Numbered, since two judges may share an address with different keys."""
    for number, one in enumerate(connections, 1):
        yield f"{number}:{','.join(one.endpoint_key.base_urls)}", one
