"""The server: aiohttp reads requests, and raw bytes answer them, for a fault can tear any reply.

aiohttp handles one request of a connection at a time, so replies keep the order of their requests
whatever their latencies. As a process it is what ``adjudge mock`` runs, and what tests start.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import signal
import socket
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
from aiohttp import web

from adjudge.engine.loop import new_event_loop
from adjudge.engine.processes import settings_arguments, start_child_server, stop_at_end_of_input
from adjudge.errors import ConfigError
from adjudge.mock.behaviours import OPTION_NAMES, MockSettings
from adjudge.mock.responder import MockStats, Responder, ScheduledResponse, respond_at_once
from adjudge.mock.wire import MODEL, Api

_APIS: dict[str, Api] = {
    "chat/completions": "openai",
    "messages": "anthropic",
    "classify": "classify",
}
_HOST = "127.0.0.1"
_SHUTDOWN_S = 0.01
_BACKLOG = 4096
_log = logging.getLogger("adjudge.mock")
_log.addHandler(logging.NullHandler())  # aiohttp reports clients that send no HTTP


class _SentResponse(web.StreamResponse):
    """What aiohttp gets once the bytes of the response are on the transport."""

    def __init__(self, keep_alive: bool) -> None:
        super().__init__()
        if not keep_alive:
            self.force_close()

    @property
    def keep_alive(self) -> bool:
        """Whether the connection takes another request."""
        return super().keep_alive is None

    async def prepare(self, request: web.BaseRequest) -> None:
        """Send nothing."""

    async def write_eof(self, data: bytes = b"") -> None:
        """Send nothing."""


class Server:
    """A mock provider on the running loop; ``async with`` starts and stops it.

    The loop's clock is the only one, so it runs under virtual time too. ``stats`` counts;
    ``seed`` is the one in use. Raises :class:`ConfigError` for settings that are wrong.
    """

    _listening: asyncio.Server
    _http: web.Server

    def __init__(self, settings: MockSettings) -> None:
        self.settings = settings
        self.seed = secrets.randbits(32) if settings.seed is None else settings.seed
        self.stats = MockStats()
        self.port = settings.port
        self._responder = Responder(settings, self.seed, self.stats)

    @property
    def url(self) -> str:
        """``http://host:port``, the base URL of Anthropic clients."""
        return f"http://{_HOST}:{self.port}"

    @property
    def base_url(self) -> str:
        """``http://host:port/v1``, the base URL of OpenAI clients."""
        return f"{self.url}/v1"

    async def __aenter__(self) -> Server:
        """Listen; raises :class:`ConfigError` when the address cannot be had."""
        self._http = web.Server(
            self._handle, handler_cancellation=True, access_log=None, logger=_log
        )
        port = self.settings.port
        try:
            self._listening = await asyncio.get_running_loop().create_server(
                self._connect, _HOST, port, backlog=_BACKLOG
            )
        except (OSError, OverflowError) as error:
            raise ConfigError(
                f"--port {port}: cannot listen there: {error}. Use --port 0 for a free port."
            ) from error
        self.port = self._listening.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop listening and drop all connections."""
        self._listening.close()
        await self._http.shutdown(_SHUTDOWN_S)

    def report(self) -> dict[str, Any]:
        """The counts as JSON has them, and the seed."""
        found = vars(self.stats) | {"seed": self.seed}
        found["in_flight"] = {"now": self.stats.in_flight, "peak": found.pop("in_flight_peak")}
        opened = {"total": self.stats.connections, "open": len(self._http.connections)}
        return found | {"connections": opened}

    def _connect(self) -> asyncio.Protocol:
        self.stats.connections += 1
        return self._http()

    async def _handle(self, request: web.BaseRequest) -> _SentResponse:
        """Send the parts that are due, then wait for the next part or end."""
        transport = request.transport
        if transport is None:  # the client has left
            return _SentResponse(keep_alive=False)
        response = self._respond(request, await request.content.read())
        stats = self.stats
        stats.in_flight += 1
        stats.in_flight_peak = max(stats.in_flight_peak, stats.in_flight)
        try:
            for wait, data in response.steps:
                if wait > 0:
                    await asyncio.sleep(wait)
                transport.write(data)
            if response.end == "hang":
                await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            stats.cancelled += 1
            raise
        finally:
            stats.in_flight -= 1
        stats.replied += response.is_intact
        if response.end == "reset":
            _reset(transport)
        return _SentResponse(request.keep_alive and response.end == "keep")

    def _respond(self, request: web.BaseRequest, body: bytes) -> ScheduledResponse:
        path, headers = request.path, request.headers
        api = next((_APIS[end] for end in _APIS if path.endswith(f"/{end}")), None)
        if api is not None and request.method == "POST":
            return self._responder.respond(api, headers, body)
        if api is not None:
            return _respond_json(405, {"error": {"message": "chat requests are POST"}})
        pages = {"health": lambda: {"status": "ok"}, "stats": self.report, "models": _list_models}
        name = path.rpartition("/")[2]
        if request.method != "GET" or name not in pages:
            return _respond_json(404, {"error": {"message": "no such endpoint"}})
        refused = None if name == "health" else self._responder.keyless("openai", headers)
        return refused or _respond_json(200, pages[name]())


def _list_models() -> dict[str, Any]:
    model = {"id": MODEL, "object": "model", "type": "model", "display_name": MODEL,
             "created": 0, "owned_by": "adjudge"}  # fmt: skip
    return {"object": "list", "data": [model], "has_more": False}


def _respond_json(status: int, value: Any) -> ScheduledResponse:
    return respond_at_once(status, msgspec.json.encode(value))


def _reset(transport: asyncio.Transport) -> None:
    """End with an RST instead of a FIN: lingering for no time at all does that."""
    sock = transport.get_extra_info("socket")
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()


def serve(settings: MockSettings | None = None, **options: Any) -> Server:
    """A server for the running loop, which ``async with`` starts: its ``base_url`` is for clients.

    ``options`` are fields of :class:`MockSettings`, over those of ``settings``.
    """
    return Server(MockSettings(**{**(settings.model_dump() if settings else {}), **options}))


def run_mock(
    settings: MockSettings, ready: Callable[[Server], None], *, until_eof: bool = False
) -> dict[str, Any]:
    """Serve until SIGINT or SIGTERM (``until_eof``: or the end of standard input).

    ``ready`` is called once the server listens. Returns the counts.
    """

    async def main() -> dict[str, Any]:
        loop, stop = asyncio.get_running_loop(), asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop.set)
        if until_eof:
            stop_at_end_of_input(loop, stop.set)
        async with serve(settings) as server:
            ready(server)
            await stop.wait()
            return server.report()

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(main())


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
    with start_child_server([*command, *settings_arguments(settings, OPTION_NAMES)]) as (line, _):
        yield str(msgspec.json.decode(line)["base_url"])
