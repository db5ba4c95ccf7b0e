"""A client of one judge service: requests in batches, each response matched by its id.

::

    ask ─► a kept score, or that of an equal request under way
     └──► waits until its batch is full, or its oldest is batch_timeout old ─► one HTTP request
                 ▲                                                                   │
                 └── again, later ◄── passing error of this request alone ◄──────────┤
                                                                     a score ─► out ◄┘

A request ends in exactly one way: a response, a failure, or its total timeout. What is on its way
goes on when its caller leaves, and its score is kept for who asks again. What happens to a batch as
a whole (retries, breaker, limits) is the endpoint's.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import Counter, OrderedDict
from collections.abc import Sequence
from itertools import accumulate, count, islice
from typing import TYPE_CHECKING, Any, Literal, Self, cast

import msgspec

from adjudge.client.exchange import (
    RequestOrFailure,
    ServiceReply,
    ServiceWire,
    add_advice,
    encode_request,
    to_failure,
)
from adjudge.client.settings import ClientSettings
from adjudge.engine.clock import LogLimiter, PeriodicTimer
from adjudge.errors import ErrorKind, GradingFailure, is_passing
from adjudge.judges.endpoint.connections import aclose_one, connect
from adjudge.judges.endpoint.limits import full_jitter
from adjudge.judges.endpoint.settings import LatencyHistogram
from adjudge.wire import JudgeRequest, JudgeResponse

if TYPE_CHECKING:
    from adjudge.judges.endpoint.endpoint import Endpoint

_log = logging.getLogger("adjudge")

MAX_BATCH_BYTES = 8 << 20
"""Beyond this a batch is closed before it is full."""

_MAX_CONCURRENT_ASKS = 5_000
"""Requests of one call that are under way at once: each has its ``timeout`` from then on."""

_SPLIT_STATUSES = (400, 413, 422)
_client_numbers = count()


class JudgeRewardResult(msgspec.Struct):
    """One reward; ``score`` is ``None`` when the judge failed, and ``error`` says why.

    ``source``: ``judge``, ``rule_fallback`` (then ``error`` is why the judge was replaced) or
    ``none``. ``latency`` in seconds, waiting for a batch included. ``cached``: an earlier request's
    score. ``response`` is all that the judge said; others may have the same one, so leave it as it
    is.
    """

    score: float | None
    source: Literal["judge", "rule_fallback", "none"]
    request_id: str | None = None
    latency: float = 0.0
    cached: bool = False
    explanation: str | None = None
    detailed_scores: dict[str, float | None] | None = None
    error: str | None = None
    failure: GradingFailure | None = None
    response: JudgeResponse | None = None

    @classmethod
    def of(
        cls,
        answer: JudgeResponse | GradingFailure,
        asked: RequestOrFailure,
        latency: float = 0.0,
        cached: bool = False,
    ) -> Self:
        """What a judge's ``answer`` means."""
        name = asked.request_id if isinstance(asked, JudgeRequest) else None
        if isinstance(answer, GradingFailure):
            return cls(None, "none", name, latency, error=str(answer), failure=answer)
        found = cls(answer.score, "judge", name, latency, cached, answer.explanation)
        found.response = answer
        if answer.detailed_scores is not None:
            found.detailed_scores = {**answer.detailed_scores}
        return found

    @property
    def error_kind(self) -> ErrorKind | None:
        """The kind of what went wrong."""
        return None if self.failure is None else self.failure.kind

    def as_reward(self) -> dict[str, Any]:
        """As a mapping: ``reward`` and ``acc_reward`` (the same; ``None`` is missing).

        ``source``, ``explanation``, ``cached`` and ``latency`` are always there;
        ``detailed_scores``, and ``error`` with ``error_kind``, only where there are some.
        """
        found: dict[str, Any] = {
            "reward": self.score,
            "acc_reward": self.score,
            "source": self.source,
            "explanation": self.explanation,
            "cached": self.cached,
            "latency": self.latency,
        }
        if self.detailed_scores is not None:
            found["detailed_scores"] = self.detailed_scores
        if self.error is not None:
            found |= {"error": self.error, "error_kind": str(self.error_kind)}
        return found


class ServiceClient:
    """Asks one judge service; every object has limits, breaker and cache of its own.

    Configuration only, for any process: requests run on the engine's loop, and the first one opens
    what they need. A pickled client, and one in a forked child, starts anew.
    """

    def __init__(self, settings: ClientSettings) -> None:
        self.settings = settings
        self._closed = False
        self._opened: RequestBatcher | None = None
        self._endpoint_key = settings.endpoint_key(f"judge-service-{next(_client_numbers)}")

    def __reduce__(self) -> tuple[Any, ...]:
        return ServiceClient, (self.settings,)

    async def ask(self, asked: Sequence[RequestOrFailure]) -> list[JudgeRewardResult]:
        """One result per request, in order; on the engine's loop.

        ``RuntimeError`` after :meth:`aclose`.
        """
        batcher = await self.batcher()
        results: list[JudgeRewardResult] = []
        for start in range(0, len(asked), _MAX_CONCURRENT_ASKS):
            results += await batcher.ask(asked[start : start + _MAX_CONCURRENT_ASKS])
        return results

    async def batcher(self) -> RequestBatcher:
        """The engine's, opened if need be; ``RuntimeError`` after :meth:`aclose`."""
        if self._closed:
            raise RuntimeError("this client of a judge service is closed")
        endpoint = await connect(self._endpoint_key, None)
        if self._opened is None or self._opened.endpoint is not endpoint:
            endpoint.models["judge service"] = set()
            self._opened = RequestBatcher(self.settings, endpoint)
        return self._opened

    async def metrics(self) -> dict[str, Any]:
        """The counts of this process, also after :meth:`aclose`; see :class:`RequestBatcher`."""
        if self._closed and self._opened is not None:
            return self._opened.metrics()
        return (await self.batcher()).metrics()

    async def aclose(self) -> None:
        """End what is under way and close the connections, for good."""
        self._closed = True
        if self._opened is not None:
            await self._opened.aclose()
            await aclose_one(self._opened.endpoint)


class _Call(msgspec.Struct, eq=False):
    """Requests that were asked about together: ``done`` when none is ``left``."""

    done: asyncio.Future[None]
    left: int = 0


class _Item(msgspec.Struct, eq=False):
    """One request on its way; ``outcome`` is its response, or what went wrong."""

    key: bytes
    body: bytes
    name: str
    until: float
    """Its deadline, on the batcher's clock."""
    queued: float
    calls: list[_Call] = []
    """Who waits for it."""
    outcome: JudgeResponse | Exception | None = None
    ended: float = 0.0
    answers: int = 0
    """How often the service answered it with an error."""
    failure: GradingFailure | None = None
    """Its latest error."""


class RequestBatcher:
    """Asks the service through ``endpoint``, from the running loop only."""

    def __init__(
        self, settings: ClientSettings, endpoint: Endpoint, rng: random.Random | None = None
    ) -> None:
        self.settings = settings
        self.endpoint = endpoint
        self.counts: Counter[str] = Counter()
        self._failures: Counter[str] = Counter()
        self._latencies = LatencyHistogram()
        self._outages = LogLimiter()
        self._rng = rng or random.Random()  # noqa: S311  (jitter)
        self._loop = asyncio.get_running_loop()
        self._opened = self._loop.time()
        self._clock = PeriodicTimer(self._loop, self._sweep)
        self._known: OrderedDict[bytes, _Item | JudgeResponse] = OrderedDict()
        self.version: str | None = None
        """Of the judge that answered last."""
        self._open: dict[_Item, None] = {}  # in the order of their deadlines
        self._waiting: dict[_Item, None] = {}
        self._batches: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._names = count(1)
        self._closed = False

    async def ask(self, asked: Sequence[RequestOrFailure]) -> list[JudgeRewardResult]:
        """What becomes of each request, in order. Cancelling takes back what was not sent yet.

        Failures say what to change; they are never cached.
        """
        if self._closed:
            raise RuntimeError("this client of a judge service is closed")
        self.counts["requests"] += len(asked)
        began, call = self._loop.time(), _Call(self._loop.create_future())
        until = self._clock.now() + self.settings.timeout
        items = [self._admit(one, call, began, until) for one in asked]
        self._clock.wake()
        self._pump()
        try:
            if call.left:
                await call.done
        except asyncio.CancelledError:
            self._failures[str(ErrorKind.CANCELLED)] += len(asked)
            for item in items:
                if isinstance(item, _Item):
                    item.calls.remove(call)
                    if item in self._waiting and not item.calls:
                        self._forget(item)
            raise
        results = [self._result(*one, began) for one in zip(items, asked, strict=True)]
        failed = [one.failure.kind for one in results if one.failure is not None]
        for kind in failed:
            self._failures[str(kind)] += 1
        self.counts["scored"] += len(results) - len(failed)
        return results

    def take_back(self, results: Sequence[JudgeRewardResult]) -> list[int]:
        """Which ``results`` are of another judge than the newest.

        They no longer count.
        """
        if self.version is None:
            return []
        said = enumerate(one.response and one.response.model_version for one in results)
        old = [n for n, v in said if v != self.version and (v is not None or results[n].cached)]
        kept = sum(results[n].cached for n in old)
        self.counts.subtract({"requests": len(old), "scored": len(old), "cache_hits": kept})
        return old

    async def aclose(self) -> None:
        """End everything as ``cancelled``; the endpoint is its opener's to close."""
        self._closed = True
        self._clock.stop()
        if self._timer is not None:
            self._timer.cancel()
        for item in list(self._open):
            self._end(item, GradingFailure(ErrorKind.CANCELLED, "the client was closed"))
        for task in (tasks := list(self._batches)):
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def metrics(self) -> dict[str, Any]:
        """The numbers since the first request, always the same keys.

        ``total_requests == scored + errors`` once nothing is out; ``failures`` are the errors by
        kind. Shares are of ``total_requests`` and 0 where there were none. ``latency`` is the
        median of HTTP requests that were answered, retries included, in seconds; ``None`` while
        there is none.
        ``batch_processing_rate`` is batches a second, ``batched_share`` the share of requests sent
        that did not travel alone, ``current_queue_size`` those that wait to be sent,
        ``last_failure_time`` is in POSIX seconds.
        """
        counts, stats = self.counts, self.endpoint.stats
        server, now = self.endpoint.servers.all[0], self._loop.time()
        total, errors = max(counts["requests"], 1), sum(self._failures.values())
        return {
            "total_requests": counts["requests"],
            "scored": counts["scored"],
            "cache_hits": counts["cache_hits"],
            "cache_hit_rate": counts["cache_hits"] / total,
            "shared_in_flight": counts["shared"],
            "batches": stats.calls,
            "batch_processing_rate": stats.calls / max(now - self._opened, 1e-9),
            "batched_share": counts["batched"] / max(counts["sent"], 1),
            "current_queue_size": len(self._waiting),
            "in_flight_requests": len(self._open) - len(self._waiting),
            "model_version": self.version,
            "errors": errors,
            "error_rate": errors / total,
            "failures": dict(self._failures),
            "fallbacks": counts["fallbacks"],
            "retries": stats.retries + stats.timeouts,
            "latency": self._latencies.quantile(0.5),
            "circuit_breaker": {
                "state": server.state(now).upper(),
                "failure_count": server.failures,
                "last_failure_time": server.failed_at and time.time() - now + server.failed_at,
            },
        }

    # ── asked ────────────────────────────────────────────────────────────────────────────────

    def _admit(
        self, one: RequestOrFailure, call: _Call, now: float, until: float
    ) -> _Item | JudgeRewardResult:
        """What ``call`` waits for, or what is known of the request."""
        if isinstance(one, GradingFailure):
            return JudgeRewardResult.of(one, one)
        try:
            body, key = encode_request(one)
        except GradingFailure as failure:
            return JudgeRewardResult.of(failure, one)
        found = self._known.get(key)
        if isinstance(found, JudgeResponse):
            self._known.move_to_end(key)
            self.counts["cache_hits"] += 1
            return JudgeRewardResult.of(found, one, cached=True)
        if found is None or until - found.until > self.settings.timeout / 2:  # else too soon over
            found = _Item(key, body, f"r{next(self._names)}", until, now)
            if self.settings.use_cache:
                self._known[key] = found
            self._open[found] = self._waiting[found] = None
        else:
            self.counts["shared"] += 1
        found.calls.append(call)
        call.left += 1
        return found

    def _result(
        self, item: _Item | JudgeRewardResult, asked: RequestOrFailure, began: float
    ) -> JudgeRewardResult:
        if isinstance(item, JudgeRewardResult):
            return item
        found = item.outcome
        if isinstance(found, (JudgeResponse, GradingFailure)):
            return JudgeRewardResult.of(found, asked, item.ended - began)
        raise cast("Exception", found)

    # ── waiting → sent ───────────────────────────────────────────────────────────────────────

    def _pump(self) -> None:
        """Send what is due, as long as there is room; else see to it that it happens later."""
        s = self.settings
        while self._waiting and len(self._batches) < s.max_concurrent_requests:
            due = next(iter(self._waiting)).queued + s.batch_timeout
            if len(self._waiting) < s.max_batch_size and self._loop.time() < due:
                if self._timer is None:
                    self._timer = self._loop.call_at(due, self._on_timer)
                return
            sizes = accumulate(len(item.body) for item in self._waiting)
            first = zip(islice(self._waiting, s.max_batch_size), sizes, strict=False)
            items = [
                item for n, (item, size) in enumerate(first) if not n or size <= MAX_BATCH_BYTES
            ]
            for item in items:
                del self._waiting[item]
            task = self._loop.create_task(self._exchange(items))
            self._batches.add(task)
            # Not in the task: one that is cancelled before it begins never runs a line of its own.
            task.add_done_callback(self._on_complete)

    def _on_timer(self) -> None:
        self._timer = None
        self._pump()

    async def _exchange(self, items: Sequence[_Item]) -> None:
        """One HTTP request, or two halves of it when the service refuses what is in it."""
        wire = ServiceWire({item.name: item.body for item in items}, self.settings.api_key_env)
        self.counts["sent"] += len(items)
        self.counts["batched"] += len(items) if len(items) > 1 else 0
        try:
            began = time.monotonic()  # finer than the loop's own
            reply = await self.endpoint.ask(wire.call, wire)
            self._latencies.add(time.monotonic() - began)
        except GradingFailure as failure:
            if len(items) > 1 and failure.metadata.get("status") in _SPLIT_STATUSES:
                await self._exchange(items[: len(items) // 2])
                await self._exchange(items[len(items) // 2 :])
                return
            failure = add_advice(failure, self.settings)
            for item in items:
                self._end(item, failure)
        except Exception as bug:  # noqa: BLE001  (no judge's failure: the caller gets it as it is)
            for item in items:
                self._end(item, bug)
        else:
            for item, response in zip(items, cast("ServiceReply", reply).responses, strict=True):
                if response.error is None:
                    self._end(item, response)
                else:
                    self._retry(item, to_failure(response.error))

    def _on_complete(self, task: asyncio.Task[None]) -> None:
        self._batches.remove(task)
        if not self._closed:
            self._pump()

    # ── answered ─────────────────────────────────────────────────────────────────────────────

    def _retry(self, item: _Item, failure: GradingFailure) -> None:
        """The service answered, and this request has no score: ask again if it may pass."""
        item.answers += 1
        item.failure = failure
        passes = is_passing(failure.kind, failure.metadata)
        # However long one waits for a service, its judges have been asked again by itself.
        if passes and item.answers <= (3 if self.settings.waits else self.settings.max_retries):
            self._loop.call_later(full_jitter(item.answers, self._rng), self._queue, item)
        else:
            self._end(item, failure)

    def _queue(self, item: _Item) -> None:
        if not item.calls:
            self._forget(item)
        elif item in self._open:
            item.queued = self._loop.time()
            self._waiting[item] = None
            self._pump()

    def _sweep(self) -> bool:
        """End what has waited for too long.

        Its batch goes on to the endpoint's own deadline, or the breaker would never learn that the
        service keeps silent.
        """
        while self._open and (item := next(iter(self._open))).until <= self._clock.now():
            waits = item in self._waiting
            problem = "it was still waiting to be sent" if waits else "no answer came"
            late = item.failure or GradingFailure(ErrorKind.TIMEOUT, problem)
            self._end(item, add_advice(late, self.settings))
        outage = self.endpoint.servers.outage if self.settings.waits else None
        if outage is not None and self._open and self._outages.count():
            words = "%s: %d requests wait until the service answers again: %s"
            _log.warning(words, self.settings.judge_url, len(self._open), outage)
        return bool(self._open)

    def _end(self, item: _Item, outcome: JudgeResponse | Exception) -> None:
        if item not in self._open:
            return
        del self._open[item]
        item.outcome, item.ended = outcome, self._loop.time()
        for call in item.calls:
            call.left -= 1
            if not call.left and not call.done.done():
                call.done.set_result(None)
        if not isinstance(outcome, JudgeResponse):
            self._forget(item)
            return
        version = outcome.model_version
        if version not in (None, self.version):
            self._known.clear()  # another judge: its scores are on another ruler
            self.version = version
        if self.settings.use_cache:
            self._known[item.key] = outcome
            if len(self._known) > self.settings.cache_size:
                self._known.popitem(last=False)

    def _forget(self, item: _Item) -> None:
        self._open.pop(item, None)
        self._waiting.pop(item, None)
        if self._known.get(item.key) is item:
            del self._known[item.key]
