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
from collections.abc import AsyncGenerator, Callable, Generator
from dataclasses import replace
from typing import TYPE_CHECKING

from adjudge.engine.loop import ProcessLocal, run_blocking, run_on_engine
from adjudge.errors import Metadata

if TYPE_CHECKING:
    from adjudge.judges.cassette import ReplyCache
    from adjudge.judges.endpoint.endpoint import Endpoint
    from adjudge.judges.endpoint.settings import EndpointKey, SpendCeiling

_open: ProcessLocal[dict[Endpoint, AsyncGenerator[None, None]]] = ProcessLocal(dict)
"""The open endpoints of all loops in the order of opening, and what closes each with its loop."""


async def connect(wanted: EndpointKey, key: str | None) -> Endpoint:
    """The running loop's endpoint for ``wanted`` and ``key``, opened if need be.

    Who brings a budget or an open cassette along (a run) gets an endpoint of its own.
    """
    for found in list(_open.value):
        own = found.endpoint_key
        if found.serves(key) and own == replace(wanted, settings=wanted.settings or own.settings):
            return found
        if found.loop.is_closed():
            _open.value.pop(found, None)
    # A run without a judge on the network reads none of this.
    from adjudge.judges.endpoint.endpoint import Endpoint  # noqa: PLC0415

    endpoint = Endpoint(wanted, key)
    closer = _open.value[endpoint] = _close_at_shutdown(endpoint)
    await anext(closer)
    return endpoint


async def _close_at_shutdown(endpoint: Endpoint) -> AsyncGenerator[None, None]:
    """A loop's shutdown closes the asynchronous generators that were begun on it."""
    try:
        yield
    finally:
        _open.value.pop(endpoint, None)
        await endpoint.aclose()


async def aclose_one(endpoint: Endpoint) -> None:
    """Close one of the running loop's endpoints."""
    await _close(lambda one: one is endpoint)


async def _close(chosen: Callable[[Endpoint], bool] = lambda _: True) -> None:
    """Close these of the running loop's endpoints; who asks meanwhile gets new ones."""
    async with contextlib.AsyncExitStack() as closing:  # one that fails keeps no other open
        for endpoint in filter(chosen, open_endpoints()):
            endpoint.closed = True  # before the first await, or a model would still ask it
            closing.push_async_callback(_open.value.pop(endpoint).aclose)


def open_endpoints() -> list[Endpoint]:
    """Those of the running loop, in the order of opening."""
    loop = asyncio.get_running_loop()
    return [one for one in list(_open.value) if one.loop is loop]


def describe_outages() -> str:
    """What calls wait for, on any loop of this process; empty where nobody waits. In any thread."""
    return "; ".join(str(found) for one in list(_open.value) if (found := one.servers.outage))


@contextlib.contextmanager
def own_calls(budget_usd: float | None, cassette: ReplyCache | None) -> Generator[SpendCeiling]:
    """A run's own account of spending, in US dollars, for code outside the engine's loop.

    At the end the endpoints with this ceiling are closed, and then the cassette.
    """
    from adjudge.judges.endpoint.settings import SpendCeiling  # noqa: PLC0415

    budget = SpendCeiling(budget_usd)
    try:
        yield budget
    finally:
        run_blocking(_close(lambda one: one.endpoint_key.budget is budget))
        if cassette is not None:
            cassette.close()


async def aclose_all() -> None:
    """Close the endpoints of the running loop and of the engine; the next call opens new ones."""
    await _close()
    if _open.value:
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
        self._before = {one: one.stats.since(None) for one in open_endpoints()}

    def table(self) -> list[EndpointTable]:
        """One entry per endpoint that was asked, in the order of opening."""
        entries = []
        for one in open_endpoints():
            stats = one.stats.since(self._before.get(one))
            if stats.calls:
                urls, models = list(one.endpoint_key.base_urls), sorted(one.models)
                found = {"classifiers": dict(one.classifiers)} if one.classifiers else {}
                entries.append({"base_urls": urls, "models": models, **stats.summary(), **found})
        return entries

    async def read(self) -> list[EndpointTable]:
        """:meth:`table`, with what was cancelled."""
        for one in open_endpoints():
            await one.wait_for_cancelled()
        return self.table()


async def start_call_counter() -> CallCounter:
    """A counter of the running loop's calls, to be awaited from outside of it."""
    return CallCounter()
