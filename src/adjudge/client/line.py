"""What one client keeps on one event loop: its way to the service, its cache, its counts."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from typing import Any

import msgspec
from cachetools import TTLCache

from adjudge.client.advice import advised
from adjudge.client.batcher import Batcher, Item
from adjudge.client.exchange import encode, with_unicode_text
from adjudge.client.metrics import Counts, metrics
from adjudge.client.settings import ClientSettings
from adjudge.client.wire import JudgeRequest, JudgeResponse
from adjudge.errors import ErrorKind, GradingFailure
from adjudge.judges.endpoint import Endpoint

__all__ = ["Answer", "Line", "Prepared", "prepare"]

_keys = msgspec.json.Encoder(order="deterministic")
_KEYED = ("prompt", "completion", "answer", "answer_type", "images", "metadata", "messages")


class Answer(msgspec.Struct):
    """What became of one request: ``response`` or ``failure``, and how long it took in seconds.

    ``cached``: an earlier request's score; ``shared``: that of an equal one in flight. ``batch``:
    how many requests travelled together.
    """

    response: JudgeResponse | None = None
    failure: Exception | None = None
    cached: bool = False
    shared: bool = False
    latency: float = 0.0
    batch: int = 0


class Prepared(msgspec.Struct, frozen=True):
    """A request that can be sent: its JSON, and what equal requests have in common."""

    request: JudgeRequest
    body: bytes
    key: bytes


class _Flight(msgspec.Struct, eq=False):
    """A request that was sent, and all who wait for it."""

    item: Item | None = None
    waiters: list[asyncio.Future[Answer]] = []


def prepare(request: JudgeRequest) -> Prepared:
    """Encode a request and hash what its score depends on; runs in any thread.

    Raises ``GradingFailure(invalid_input)`` for what is no request.
    """
    try:
        body = encode(request)
    except GradingFailure:
        request = with_unicode_text(request)
        body = encode(request)
    # An array of JSON values: no text can pass for a border between two, nor "None" for none.
    parts = [getattr(request, name) for name in _KEYED]
    return Prepared(request, body, hashlib.sha256(_keys.encode(parts)).digest())


class Line:
    """Asks the service through ``endpoint``, from the running loop only."""

    def __init__(self, settings: ClientSettings, endpoint: Endpoint) -> None:
        self.settings = settings
        self.endpoint = endpoint
        self.batcher = Batcher(endpoint, settings)
        self.counts = Counts()
        self._loop = asyncio.get_running_loop()
        self._cache: TTLCache[bytes, JudgeResponse] = TTLCache(
            settings.cache_size, settings.cache_ttl, timer=self._loop.time
        )
        self._flights: dict[bytes, _Flight] = {}
        self._version: str | None = None

    def ask(self, prepared: Prepared) -> asyncio.Future[Answer]:
        """The answer, sooner or later; never an exception. Cancelling it takes the question back.

        Failures say what to change; they are never cached.
        """
        self.counts.requests += 1
        waiter: asyncio.Future[Answer] = self._loop.create_future()
        waiter.add_done_callback(self._counted(prepared.request, self._loop.time()))
        key = prepared.key if self.settings.use_cache else None
        if key is not None and (kept := self._cache.get(key)) is not None:
            self.counts.cache_hits += 1
            waiter.set_result(Answer(kept, cached=True))
            return waiter
        flight = None if key is None else self._flights.get(key)
        if flight is None:
            flight = _Flight()
            try:
                flight.item = self.batcher.submit(prepared.body, self._ended(flight, key))
            except GradingFailure as failure:
                waiter.set_result(Answer(failure=failure))
                return waiter
            if key is not None:
                self._flights[key] = flight
        else:
            self.counts.shared += 1
        flight.waiters.append(waiter)
        waiter.add_done_callback(self._left(flight, key))
        return waiter

    async def aclose(self) -> None:
        """End what is under way; the endpoint is its opener's to close."""
        await self.batcher.aclose()

    def metrics(self) -> dict[str, Any]:
        """See :func:`adjudge.client.metrics.metrics`."""
        return metrics(self.counts, self.batcher, self.endpoint, self._version)

    def _ended(
        self, flight: _Flight, key: bytes | None
    ) -> Callable[[Item, JudgeResponse | Exception], None]:
        def ended(item: Item, outcome: JudgeResponse | Exception) -> None:
            if key is not None:
                self._flights.pop(key, None)
            answer = Answer(batch=item.batch)
            if isinstance(outcome, JudgeResponse):
                self._keep(key, outcome)
                answer.response = outcome
            elif isinstance(outcome, GradingFailure):
                answer.failure = advised(outcome, self.settings)
            else:
                answer.failure = outcome
            for n, waiter in enumerate(flight.waiters):
                if not waiter.done():
                    waiter.set_result(msgspec.structs.replace(answer, shared=n > 0))

        return ended

    def _left(self, flight: _Flight, key: bytes | None) -> Callable[[asyncio.Future[Answer]], None]:
        def left(waiter: asyncio.Future[Answer]) -> None:
            if not waiter.cancelled() or flight.item is None:
                return
            flight.waiters.remove(waiter)
            if not flight.waiters and not flight.item.done:
                if key is not None:
                    self._flights.pop(key, None)
                self.batcher.leave(flight.item)

        return left

    def _counted(
        self, request: JudgeRequest, asked: float
    ) -> Callable[[asyncio.Future[Answer]], None]:
        def counted(waiter: asyncio.Future[Answer]) -> None:
            if waiter.cancelled():
                self.counts.failed(ErrorKind.CANCELLED)
                return
            answer = waiter.result()
            answer.latency = self._loop.time() - asked
            if answer.response is not None:  # on the wire it went by another name
                answer.response = msgspec.structs.replace(
                    answer.response, request_id=request.request_id
                )
            self.counts.answered(answer.response, answer.failure, answer.latency, answer.cached)

        return counted

    def _keep(self, key: bytes | None, response: JudgeResponse) -> None:
        version = (response.metadata or {}).get("model_version")
        if isinstance(version, str) and version != self._version:
            self._cache.clear()  # another judge: its scores are on another ruler
            self._version = version
        if key is not None:
            self._cache[key] = response
