"""Where a call begins: the cache, equal calls in flight, and then the dispatcher.

::

    ask ──► kept in the cache? ──► an equal call in flight? ──► a new Call ──► its outcome
              yes: the reply         yes: waits with it          │                ▲
                                                                 ▼                │
                                     :mod:`adjudge.judges.endpoint.dispatcher` ───┘

To read one call from its question to its outcome: this file, ``dispatcher`` (the states of a call),
``calls`` (what a call and an attempt are), ``capacity`` (what may go out now).

A call ends in exactly one way: a reply, a failure that no retry cures, its attempts used up, its
deadline, or its caller's cancellation.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Protocol

from adjudge.errors import ErrorKind, GradingFailure
from adjudge.judges.base import ChatCall, HttpRequest, Reply, Transport, Wire
from adjudge.judges.cassette.encoding import encode_reply_form
from adjudge.judges.endpoint.calls import Call, CircuitBreaker
from adjudge.judges.endpoint.dispatcher import Dispatcher
from adjudge.judges.endpoint.settings import EndpointSettings, Price, SpendCeiling
from adjudge.judges.endpoint.stats import EndpointStats

__all__ = ["Endpoint", "EndpointSettings", "ReplyStore"]


class ReplyStore(Protocol):
    """Where replies are kept; synchronous and fast.

    ``sampled``: whether it also keeps replies that chance has a say in. Then equal calls in flight
    share one reply at any temperature, or a replay would not repeat the run.
    """

    sampled: bool

    def key(self, call: ChatCall, provider: str) -> str:
        """The same for calls whose replies are interchangeable, and for no others."""

    def get(self, key: str) -> Reply | None:
        """The kept reply, if any; ``GradingFailure`` for a kept failure, and where one must be."""

    def put(self, key: str, reply: Reply, call: ChatCall | None = None) -> None:
        """Keep the reply to ``call`` (or not, as the cache sees fit)."""

    def put_failure(self, key: str, failure: GradingFailure, call: ChatCall | None = None) -> None:
        """Keep that ``call`` failed for good (or not, as the cache sees fit)."""

    def forget(self, key: str) -> None:
        """The call that :meth:`get` had nothing for ended without an outcome."""


class Endpoint:
    """The line to one provider (one key, one or more base URLs), shared by all who ask it.

    Belongs to the event loop that first asks. ``provider`` names it in cache keys (default: the
    first base URL); ``rng`` is the source of jitter; ``budget`` is a ceiling beside its own, which
    other endpoints of the loop may share. See :class:`EndpointSettings` for what it
    does and by how much.
    """

    def __init__(
        self,
        base_urls: Sequence[str],
        transport: Transport,
        settings: EndpointSettings | None = None,
        cache: ReplyStore | None = None,
        *,
        provider: str | None = None,
        rng: random.Random | None = None,
        budget: SpendCeiling | None = None,
    ) -> None:
        if not base_urls:
            raise ValueError("an endpoint needs at least one base URL")
        self._urls = list(base_urls)
        self._transport = transport
        self._settings = settings or EndpointSettings()
        self._cache = cache
        self._provider = base_urls[0] if provider is None else provider
        self._budget = budget
        self._rng = rng or random.Random()  # noqa: S311  (jitter)
        self._joinable: dict[tuple[int, str, bytes], Call] = {}
        self._stats = EndpointStats()
        self._dispatcher: Dispatcher | None = None
        self._closed = False

    @property
    def stats(self) -> EndpointStats:
        """Counters so far."""
        if self._dispatcher is not None:
            self._dispatcher.health.gauge(self._stats)
            self._stats.loop_lag_max_s = self._dispatcher.lag_max_s
        return self._stats

    @property
    def breakers(self) -> list[CircuitBreaker]:
        """Those of its servers, in the order of the addresses; none before the first call."""
        health = None if self._dispatcher is None else self._dispatcher.health
        return [] if health is None else [replica.breaker for replica in health.replicas]

    @property
    def outage(self) -> GradingFailure | None:
        """Why nothing is sent while calls wait: all servers are ejected; else ``None``."""
        health = None if self._dispatcher is None else self._dispatcher.health
        return None if health is None or health.up() else health.ejected_failure()

    async def ask(
        self, chat_call: ChatCall, wire: Wire, *, price: Price | None = None, keep: bool = True
    ) -> Reply:
        """One complete reply, with its provenance and, given a ``price``, its cost.

        An equal call in flight (same request, same ``draw``, same wishes for the reply's form,
        temperature 0) is joined and shares its outcome. ``keep=False``: the cache is neither asked
        nor told (what finds out about a server). A wire that has ``prepare`` is prepared before its
        first request, which a reply from the cache does not need.

        Raises ``GradingFailure``: ``timeout`` (the deadline passed), ``circuit_open`` (it passed
        while the server was down), ``budget`` (the spend ceiling, or no price under one), or the
        kind of the last send's failure. ``metadata["attempts"]`` counts sends.
        """
        loop = asyncio.get_running_loop()
        dispatcher = self._bound(loop)
        self._stats.calls += 1
        key = asked = None
        try:
            if self._cache is not None and keep:
                key = self._cache.key(chat_call, self._provider)
                kept = self._cache.get(key)
                if kept is not None:
                    self._stats.cache_hits += 1
                    self._stats.answered += 1
                    return kept
            asked = key
            if price is None:
                self._refuse_unpriced()
            if (prepare := getattr(wire, "prepare", None)) is not None:
                await prepare()
            request = wire.request(chat_call)
            if not isinstance(request, HttpRequest):  # a wire of the user's own
                found = type(request).__name__
                raise TypeError(f"the wire's request must be an HttpRequest (found {found})")
            join = _deduplication_key(chat_call, request) if self._shares(chat_call) else None
        except GradingFailure as failure:
            self._stats.count_failure(failure.kind)
            if self._cache is not None and asked is not None:  # else the cache itself failed
                self._cache.put_failure(asked, failure, chat_call)
            raise
        waiter: asyncio.Future[Reply] = loop.create_future()
        call = None if join is None else self._joinable.get(join)
        if call is not None:
            self._stats.deduplicated += 1
            call.waiters.append(waiter)
        else:
            call = Call(
                chat_call=chat_call,
                wire=wire,
                request=request,
                price=price,
                cache_key=key,
                join_key=join,
                latencies=dispatcher.health.digest(chat_call.model, request.stream),
                waiters=[waiter],
            )
            if join is not None:
                self._joinable[join] = call
            dispatcher.submit(call)
        try:
            return await waiter
        except asyncio.CancelledError:
            dispatcher.cancel_waiter(call, waiter)
            raise

    async def wait_for_cancelled(self, timeout_s: float = 1.0) -> None:
        """Wait until what was cancelled is counted in :attr:`stats`."""
        if self._dispatcher is not None:
            await self._dispatcher.wait_for_cancelled(timeout_s)

    async def aclose(self) -> None:
        """End what is under way as ``cancelled``, and close the connections.

        Replies that have come are in the cache afterwards; it is its opener's to close.
        """
        self._closed = True
        if self._dispatcher is not None:
            await self._dispatcher.aclose()
        await self._transport.aclose()

    def _bound(self, loop: asyncio.AbstractEventLoop) -> Dispatcher:
        dispatcher = self._dispatcher
        if self._closed:
            raise RuntimeError("this endpoint is closed")
        if dispatcher is None:
            dispatcher = self._dispatcher = Dispatcher(
                self._urls,
                self._transport,
                self._settings,
                self._stats,
                self._rng,
                self._on_complete,
                self._budget,
            )
        elif dispatcher.loop is not loop:
            raise RuntimeError("an endpoint belongs to one event loop; make one per loop")
        return dispatcher

    def _refuse_unpriced(self) -> None:
        if self._settings.budget_usd is not None or self._budget is not None:
            raise GradingFailure(
                ErrorKind.BUDGET, "a spend ceiling is set and the price of this model is unknown"
            )

    def _shares(self, call: ChatCall) -> bool:
        """Whether an equal call in flight has the same reply."""
        if not self._settings.dedupe:
            return False
        kept_anyway = self._cache is not None and self._cache.sampled
        return kept_anyway or call.sampling.get("temperature") == 0

    def _on_complete(self, call: Call, outcome: Reply | Exception | None) -> None:
        """A call has ended: its outcome is kept before anybody can ask the same again."""
        if call.join_key is not None:
            self._joinable.pop(call.join_key, None)
        if self._cache is None or call.cache_key is None:
            return
        if isinstance(outcome, Reply):
            self._cache.put(call.cache_key, outcome, call.chat_call)
        elif isinstance(outcome, GradingFailure):
            self._cache.put_failure(call.cache_key, outcome, call.chat_call)
        else:
            self._cache.forget(call.cache_key)


def _deduplication_key(call: ChatCall, request: HttpRequest) -> tuple[int, str, bytes]:
    """What two calls share a reply by: a wire may leave out of the body what was asked for.

    A NUL parts the two; the form, being JSON, has none.
    """
    form = encode_reply_form(call)
    body = request.body + b"\0" + form if form else request.body
    return call.draw, request.path, body
