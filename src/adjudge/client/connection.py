"""A client of one judge service, and its batcher on each event loop.

The client itself is configuration only, for any thread, loop and process.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

from adjudge.client.batcher import RequestBatcher, RequestOutcome
from adjudge.client.exchange import PreparedRequest
from adjudge.client.settings import ClientSettings
from adjudge.judges.endpoint.connections import Connection, EndpointKey, aclose_one, connect

_MAX_CONCURRENT_ASKS = 5_000
"""Requests of one call that are under way at once; more would fill the queue by themselves."""

_client_numbers = itertools.count()


class ServiceClient:
    """Asks one judge service; every object has limits, breaker and cache of its own.

    What belongs to an event loop is opened by the first request on it, and closes with
    :meth:`aclose` or with the loop. A pickled client, and one in a forked child, starts anew.
    """

    def __init__(self, settings: ClientSettings) -> None:
        self.settings = settings
        self._closed = False
        self._connections: WeakKeyDictionary[
            asyncio.AbstractEventLoop, tuple[Connection, RequestBatcher]
        ] = WeakKeyDictionary()
        self._endpoint_key = EndpointKey(
            provider=f"judge-service-{next(_client_numbers)}",
            base_urls=(settings.judge_url,),
            key_env=settings.api_key_env,
            settings=settings.endpoint,
            owner="judge service",
        )

    def __reduce__(self) -> tuple[type[ServiceClient], tuple[ClientSettings]]:
        return type(self), (self.settings,)

    async def ask(self, prepared: Sequence[PreparedRequest]) -> list[RequestOutcome]:
        """One answer per request, in order; runs on the running loop, whichever it is."""
        batcher = await self.batcher()
        outcomes: list[RequestOutcome] = []
        for start in range(0, len(prepared), _MAX_CONCURRENT_ASKS):
            outcomes += await batcher.ask(prepared[start : start + _MAX_CONCURRENT_ASKS])
        return outcomes

    async def batcher(self) -> RequestBatcher:
        """The running loop's, opened if need be; ``RuntimeError`` after :meth:`aclose`."""
        if self._closed:
            raise RuntimeError("this client of a judge service is closed")
        loop = asyncio.get_running_loop()
        found = self._connections.get(loop)
        if found is None or found[0].closed:
            connection = await connect(self._endpoint_key, None)
            found = self._connections.get(loop)
            if found is None or found[0] is not connection:
                connection.models.add("judge service")
                found = connection, RequestBatcher(self.settings, connection.endpoint)
                self._connections[loop] = found
        return found[1]

    async def metrics(self) -> dict[str, Any]:
        """The running loop's counts, also after :meth:`aclose`."""
        found = self._connections.get(asyncio.get_running_loop())
        batcher = await self.batcher() if found is None else found[1]
        return batcher.metrics()

    async def aclose(self) -> None:
        """End what is under way on the running loop and close its connections, for good."""
        self._closed = True
        found = self._connections.get(asyncio.get_running_loop())
        if found is not None:
            await found[1].aclose()
            await aclose_one(found[0])
