"""Which endpoint a model's calls go through.

There is one endpoint per provider, address, key, settings and cache, on each loop. Models hold
configuration only. The endpoint, with its connections, limits and detectors of outages, belongs to
the running event loop and is shared by all models of the process that name the same; so ten graders
on one account respect one limit. A model without settings takes those that are there.

Endpoints close when their loop shuts down, or by :func:`aclose_all`. A forked child starts with
none and touches nothing that it inherited.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Generator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from adjudge.engine.loop import run_blocking, run_on_engine
from adjudge.errors import Metadata

if TYPE_CHECKING:
    from adjudge.judges.base import Transport
    from adjudge.judges.cassette import ReplyCache
    from adjudge.judges.endpoint.endpoint import Endpoint
    from adjudge.judges.endpoint.settings import CallPolicy, EndpointSettings, SpendCeiling


@dataclass(frozen=True)
class EndpointKey:
    """What a model needs of an endpoint; those that agree on it share one.

    ``provider`` is the wire it speaks, ``cache_name`` what replies are kept under (default: the
    first address), ``cache`` an absolute path or an open cache, ``budget`` a ceiling shared with
    other endpoints (a run's; it gets endpoints of its own).
    ``ca_file`` and ``headers`` (each header's name and variable) are those of
    :class:`~adjudge.judges.wire.transport.AiohttpTransport`. ``transport`` opens what sends the
    bytes, where that is not HTTP to ``base_urls``.
    """

    provider: str
    base_urls: tuple[str, ...]
    key_env: str
    settings: EndpointSettings | None = None
    policy: CallPolicy | None = None
    cache: str | ReplyCache | None = None
    cache_name: str | None = None
    ca_file: str | None = None
    headers: tuple[tuple[str, str], ...] = ()
    budget: SpendCeiling | None = None
    transport: Callable[[], Transport] | None = None

    def open_transport(self) -> Transport:
        """What sends the bytes."""
        if self.transport is not None:
            return self.transport()
        from adjudge.judges.wire.transport import AiohttpTransport  # noqa: PLC0415  (as below)

        return AiohttpTransport(ca_file=self.ca_file, headers=dict(self.headers))


@dataclass(eq=False)
class Connection:
    """An open endpoint, who opened it, and what was learnt about its models.

    ``secret`` is a digest of its key. ``models`` are those that are asked here. ``quirks``, by
    model: ``stream_only`` of one that answered only streams, ``no_temperature`` of one that refused
    temperature 0. ``classifiers``: what was found out about a classifier's server, by model.
    """

    endpoint: Endpoint
    endpoint_key: EndpointKey
    secret: bytes
    own_cache: ReplyCache | None = None
    closed: bool = False
    quirks: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    models: set[str] = field(default_factory=set)
    classifiers: dict[str, dict[str, str]] = field(default_factory=dict)


class _LoopConnections(list[Connection]):
    """The connections of one event loop, in the order of opening, and what closes them with it."""

    closer: AsyncGenerator[None, None]


_Registry = WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopConnections]
_registry: _Registry = WeakKeyDictionary()
# A parent's endpoints are kept referenced in a child: dropping them would close its sockets there.
_inherited: list[_Registry] = []


def _after_fork() -> None:
    global _registry  # noqa: PLW0603  (the one process-wide registry)
    _inherited.append(_registry)
    _registry = WeakKeyDictionary()


os.register_at_fork(after_in_child=_after_fork)


async def connect(wanted: EndpointKey, key: str | None) -> Connection:
    """The running loop's connection for ``wanted`` and ``key``, opened if need be.

    Who brings a budget or an open cassette along (a run) gets a connection of its own.
    """
    here, secret = await _loop_connections(), hashlib.sha256((key or "").encode()).digest()
    for found in here:
        own = found.endpoint_key
        if secret == found.secret and own == replace(
            wanted, settings=wanted.settings or own.settings
        ):
            return found
    # A run without a judge on the network reads none of this.
    from adjudge.judges.endpoint.endpoint import Endpoint  # noqa: PLC0415

    cache, own_cache = wanted.cache, None
    if isinstance(cache, str):
        cache = own_cache = open_cache(cache)
    endpoint = Endpoint(
        wanted.base_urls,
        wanted.open_transport(),
        wanted.settings,
        wanted.policy,
        cache=cache,
        provider=wanted.cache_name,
        budget=wanted.budget,
    )
    here.append(Connection(endpoint, wanted, secret, own_cache))
    return here[-1]


def open_cache(path: Path | str, *, sampled: bool = False) -> ReplyCache:
    """A cache that records into a file; ``sampled``: also what chance has a say in."""
    from adjudge.judges.cassette import ReplyCache  # noqa: PLC0415  (few runs keep replies)

    return ReplyCache(path, sampled=sampled)


async def _loop_connections() -> _LoopConnections:
    """The running loop's part of the registry; the first call makes sure that it will be closed."""
    loop = asyncio.get_running_loop()
    here = _registry.get(loop)
    if here is None:
        for dead in [other for other in _registry if other.is_closed()]:
            del _registry[dead]
        here = _registry[loop] = _LoopConnections()
        # A loop's shutdown closes the asynchronous generators that were begun on it.
        here.closer = _close_at_shutdown()
        await anext(here.closer)
    return here


async def _close_at_shutdown() -> AsyncGenerator[None, None]:
    try:
        yield
    finally:
        await _close()


async def _close(chosen: Callable[[Connection], bool] = lambda _: True) -> None:
    """Close these of the running loop's connections."""
    here = _registry.get(asyncio.get_running_loop()) or _LoopConnections()
    async with contextlib.AsyncExitStack() as closing:  # one that fails keeps no other open
        for connection in [one for one in here if chosen(one)]:
            here.remove(connection)
            connection.closed = True
            if connection.own_cache is not None:
                closing.callback(connection.own_cache.close)
            closing.push_async_callback(connection.endpoint.aclose)


def open_connections() -> list[Connection]:
    """Those of the running loop, in the order of opening."""
    return [*_registry.get(asyncio.get_running_loop(), ())]


def describe_outages() -> str:
    """What calls wait for, on any loop of this process; empty where nobody waits. In any thread."""
    connections = [one for here in [*_registry.values()] for one in [*here]]
    return "; ".join(str(found) for one in connections if (found := one.endpoint.outage))


async def aclose_one(connection: Connection) -> None:
    """Close one of the running loop's connections."""
    await _close(lambda one: one is connection)


@contextlib.contextmanager
def own_calls(budget_usd: float | None, cassette: ReplyCache | None) -> Generator[SpendCeiling]:
    """A run's own account of spending, in US dollars, for code outside the engine's loop.

    At the end the connections of the ceiling and the cassette are closed, and the cassette.
    """
    from adjudge.judges.endpoint.settings import SpendCeiling  # noqa: PLC0415

    budget = SpendCeiling(budget_usd)
    owned = [owner for owner in (budget, cassette) if owner is not None]
    try:
        yield budget
    finally:
        run_blocking(
            _close(lambda one: one.endpoint_key.budget in owned or one.endpoint_key.cache in owned)
        )
        if cassette is not None:
            cassette.close()


async def aclose_all() -> None:
    """Close the endpoints of the running loop and of the engine; the next call opens new ones."""
    await _close()
    if any(_registry.values()):
        await run_on_engine(_close())


EndpointTable = Metadata
"""``base_urls`` and ``models`` of an endpoint, the numbers of
:class:`~adjudge.judges.endpoint.settings.EndpointStats` (times in seconds, money in US dollars,
``None`` where nothing was measured) and, where there are some, ``classifiers``: route, output and
who applies the template, by model."""


class CallCounter:
    """Counts from its making to :meth:`table`, over all endpoints of the running loop.

    Endpoints are shared, so the calls of others on the same loop count too.
    """

    def __init__(self) -> None:
        self._before = {one: one.endpoint.stats.since(None) for one in open_connections()}

    def table(self) -> list[EndpointTable]:
        """One entry per endpoint that was asked, in the order of opening."""
        entries = []
        for one in open_connections():
            stats = one.endpoint.stats.since(self._before.get(one))
            if stats.calls:
                urls, models = list(one.endpoint_key.base_urls), sorted(one.models)
                found = {"classifiers": dict(one.classifiers)} if one.classifiers else {}
                entries.append({"base_urls": urls, "models": models, **stats.summary(), **found})
        return entries

    def read(self) -> list[EndpointTable]:
        """:meth:`table` of the engine's loop with what was cancelled, for code outside of it."""

        async def read() -> list[EndpointTable]:
            for one in open_connections():
                await one.endpoint.wait_for_cancelled()
            return self.table()

        return run_blocking(read())


def start_call_counter() -> CallCounter:
    """A counter of the calls on the engine's loop from now on, for code outside of it."""

    async def start() -> CallCounter:
        return CallCounter()

    return run_blocking(start())
