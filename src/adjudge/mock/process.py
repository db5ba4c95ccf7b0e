"""A mock provider as a process: what ``adjudge mock`` runs, and how tests start one."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from adjudge.mock.server import Server, serve
from adjudge.mock.settings import MockSettings

__all__ = ["run", "start_mock"]

_STOP_S = 5.0


def run(
    settings: MockSettings, ready: Callable[[Server], None], *, until_eof: bool = False
) -> dict[str, Any]:
    """Serve until SIGINT or SIGTERM (``until_eof``: or the end of standard input).

    ``ready`` is called once the server listens. Returns the counts.
    """
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(_run(settings, ready, until_eof))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    try:
        import uvloop  # noqa: PLC0415  (optional: not every platform has it)
    except ImportError:
        return asyncio.new_event_loop
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


async def _run(
    settings: MockSettings, ready: Callable[[Server], None], until_eof: bool
) -> dict[str, Any]:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    if until_eof:
        loop.add_reader(sys.stdin.fileno(), _watch_input, loop, stop)
    async with serve(settings) as server:
        ready(server)
        gc.collect()
        gc.freeze()  # requests leave no cycles; nothing here need be looked at again
        await stop.wait()
        return server.report()


def _watch_input(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    if not os.read(sys.stdin.fileno(), 65536):
        loop.remove_reader(sys.stdin.fileno())
        stop.set()


@contextmanager
def start_mock(settings: MockSettings | None = None, **options: Any) -> Iterator[str]:
    """Run ``adjudge mock`` as a process and give its base URL (``http://127.0.0.1:PORT/v1``).

    ``options`` are fields of :class:`MockSettings`, over those of ``settings``; the port is a free
    one unless given. The process ends with the block, or with this process if that dies first;
    ``GET {base_url}/stats`` has its counts. Raises :class:`ConfigError` for wrong settings and
    ``RuntimeError`` when the process does not start.
    """
    settings = serve(settings, **options).settings  # complains here, in words, if it must
    command = [sys.executable, "-m", "adjudge", "mock", "--json", "--until-eof"]
    with subprocess.Popen(  # noqa: S603  (this very program)
        [*command, *settings.arguments()], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        try:
            yield _base_url(process)
        finally:
            _stop(process)


def _base_url(process: subprocess.Popen[bytes]) -> str:
    line = process.stdout.readline() if process.stdout is not None else b""
    if not line:
        raise RuntimeError(f"adjudge mock did not start (exit code {process.wait()})")
    return str(msgspec.json.decode(line)["base_url"])


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.stdin is not None:
        process.stdin.close()
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
