"""The mock provider in a thread of this process: ``start_mock`` without a process to start."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from threading import Thread
from typing import Any

from adjudge.engine.loop import run_blocking
from adjudge.judges.endpoint.connections import aclose_one, open_endpoints
from adjudge.mock import MockSettings, serve


@contextmanager
def start_mock_here(settings: MockSettings | None = None, **options: Any) -> Iterator[str]:
    """The base URL of a mock that listens as long as the block runs.

    Then the engine's endpoints for it are closed: the port may come again, and calls to a server
    that was there before wait for it.
    """
    started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event, str]] = Future()

    async def listen() -> None:
        stopped = asyncio.Event()
        async with serve(settings, **options) as server:
            started.set_result((asyncio.get_running_loop(), stopped, server.base_url))
            await stopped.wait()

    def run() -> None:
        try:
            asyncio.run(listen())
        except BaseException as error:
            if started.done():
                raise
            started.set_exception(error)

    thread = Thread(target=run, name="mock")
    thread.start()
    try:
        loop, stopped, url = started.result()
        try:
            yield url
        finally:
            loop.call_soon_threadsafe(stopped.set)
            run_blocking(_close_endpoints(url))
    finally:
        thread.join()


async def _close_endpoints(url: str) -> None:
    root = url.removesuffix("v1")
    for endpoint in open_endpoints():
        if any(f"{one}/".startswith(root) for one in endpoint.endpoint_key.base_urls):
            await aclose_one(endpoint)
