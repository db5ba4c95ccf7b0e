"""The server: a raw ``asyncio.Protocol`` on any running loop, or in a process of its own.

One request at a time per connection: one whose reply is still to come leaves further (pipelined)
requests in its buffer, so replies keep the order of their requests whatever their latencies. As a
process it is what ``adjudge mock`` runs, and what tests start.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import resource
import secrets
import signal
import socket
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from adjudge.engine.child_server import settings_arguments, start_child_server, stop_at_end_of_input
from adjudge.errors import ConfigError
from adjudge.mock.behaviours import OPTION_NAMES, MockSettings
from adjudge.mock.http import (
    CONTINUE_RESPONSE,
    Api,
    BadRequest,
    HttpRequestMessage,
    RequestHead,
    RequestParser,
    format_response,
)
from adjudge.mock.responder import ConnectionEnd, MockStats, Responder, ScheduledResponse
from adjudge.mock.responses import provider_error_body

_CHAT_PATHS: dict[bytes, Api] = {
    b"/v1/chat/completions": "openai",
    b"/chat/completions": "openai",
    b"/v1/messages": "anthropic",
    b"/messages": "anthropic",
}
_MAX_BUFFERED = 1024 * 1024  # bytes a client may send ahead of its reply before reading pauses
_BACKLOG = 4096


class _Connection(asyncio.Protocol):
    """One client's connection."""

    _transport: asyncio.Transport

    def __init__(self, server: Server) -> None:
        self._server = server
        self._stats = server.stats
        self._parser = RequestParser()
        self._script: ScheduledResponse | None = None
        self._at = 0
        self._keep_alive = True
        self._paused = False
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Count it."""
        self._transport = transport  # type: ignore[assignment]  # a server's are full transports
        self._server.connections.add(self)
        self._stats.connections += 1
        self._stats.open += 1

    def connection_lost(self, _exc: Exception | None) -> None:
        """Forget what was still to be sent; a client that left before its reply has cancelled."""
        self._server.connections.discard(self)
        self._stats.open -= 1
        if self._timer is not None:
            self._timer.cancel()
        if self._script is not None:
            self._end_script()
            if not self._server.closing:
                self._stats.cancelled += 1

    def data_received(self, data: bytes) -> None:
        """Answer what is whole, unless an answer is still under way."""
        self._parser.feed(data)
        if self._script is None:
            self._work()
        elif self._parser.buffered > _MAX_BUFFERED and not self._paused:
            self._paused = True
            self._transport.pause_reading()

    def abort(self) -> None:
        """Drop the connection."""
        self._transport.abort()

    def _work(self) -> None:
        transport = self._transport
        while self._script is None and not transport.is_closing():
            try:
                request = self._parser.next()
            except BadRequest as error:
                body = provider_error_body("openai", error.status, str(error))
                transport.write(format_response(error.status, body, extra=b"connection: close\r\n"))
                transport.close()
                return
            if request is None:
                self._invite()
                return
            self._keep_alive = request.head.keep_alive
            reply = self._server.reply(request)
            if type(reply) is bytes:
                transport.write(reply)
                if not self._keep_alive:
                    transport.close()
            else:
                self._start(reply)  # type: ignore[arg-type]  # bytes has no subclass here

    def _invite(self) -> None:
        if self._parser.wants_continue:
            self._parser.wants_continue = False
            self._transport.write(CONTINUE_RESPONSE)
        if self._paused:
            self._paused = False
            self._transport.resume_reading()

    def _start(self, script: ScheduledResponse) -> None:
        stats = self._stats
        stats.in_flight += 1
        stats.in_flight_peak = max(stats.in_flight_peak, stats.in_flight)
        self._script = script
        self._at = 0
        self._play(script)

    def _play(self, script: ScheduledResponse) -> None:
        """Send the parts that are due, then wait for the next or end."""
        steps = script.steps
        while self._at < len(steps):
            wait, data = steps[self._at]
            if wait > 0:
                self._timer = self._server.loop.call_later(wait, self._resume, script)
                return
            self._transport.write(data)
            self._at += 1
        self._finish(script)

    def _resume(self, script: ScheduledResponse) -> None:
        self._timer = None
        self._transport.write(script.steps[self._at][1])
        self._at += 1
        self._play(script)
        if self._script is None:
            self._work()

    def _finish(self, script: ScheduledResponse) -> None:
        if script.end is ConnectionEnd.HANG:
            return
        self._end_script()
        self._stats.replied += script.is_intact
        if script.end is ConnectionEnd.RESET:
            self._reset()
        elif script.end is ConnectionEnd.CLOSE or not self._keep_alive:
            self._transport.close()

    def _end_script(self) -> None:
        self._script = None
        self._stats.in_flight -= 1

    def _reset(self) -> None:
        """End with an RST instead of a FIN: lingering for no time at all does that."""
        sock = self._transport.get_extra_info("socket")
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._transport.abort()


class Server:
    """A mock provider on the running loop; ``async with`` starts and stops it.

    The loop's clock is the only one, so it runs under virtual time too. ``stats`` counts;
    ``seed`` is the one in use. Raises :class:`ConfigError` for settings that are wrong.
    """

    loop: asyncio.AbstractEventLoop
    _responder: Responder
    _listening: asyncio.Server

    def __init__(self, settings: MockSettings) -> None:
        self.settings = settings.checked()
        self.seed = secrets.randbits(32) if settings.seed is None else settings.seed
        self.stats = MockStats()
        self.connections: set[_Connection] = set()
        self.closing = False
        self.port = settings.port
        self.started = 0.0
        Responder(settings, self.seed, self.stats, 0.0)  # complain now rather than on starting

    @property
    def url(self) -> str:
        """``http://host:port``, the base URL of Anthropic clients."""
        host = f"[{self.settings.host}]" if ":" in self.settings.host else self.settings.host
        return f"http://{host}:{self.port}"

    @property
    def base_url(self) -> str:
        """``http://host:port/v1``, the base URL of OpenAI clients."""
        return f"{self.url}/v1"

    async def start(self) -> None:
        """Listen; raises :class:`ConfigError` when the address cannot be had."""
        self.loop = asyncio.get_running_loop()
        self.started = self.loop.time()
        self._responder = Responder(self.settings, self.seed, self.stats, self.started)
        host, port = self.settings.host, self.settings.port
        try:
            self._listening = await self.loop.create_server(
                lambda: _Connection(self), host, port, backlog=_BACKLOG
            )
        except OSError as error:
            reason = error.strerror or str(error)
            raise ConfigError(
                f"--host {host} --port {port}: cannot listen there: {reason}. Use --port 0 for "
                "a free port."
            ) from error
        self.port = self._listening.sockets[0].getsockname()[1]

    async def aclose(self) -> None:
        """Stop listening and drop all connections."""
        self.closing = True
        self._listening.close()
        while self.connections:
            for connection in tuple(self.connections):
                connection.abort()
            await asyncio.sleep(0)
        await self._listening.wait_closed()

    async def __aenter__(self) -> Server:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def report(self) -> dict[str, Any]:
        """The counts, with the seed, the seconds since the start and this process's CPU seconds."""
        used = resource.getrusage(resource.RUSAGE_SELF)
        return self.stats.as_dict() | {
            "seed": self.seed,
            "uptime_s": round(self.loop.time() - self.started, 3),
            "cpu_s": round(used.ru_utime + used.ru_stime, 4),
        }

    def reply(self, request: HttpRequestMessage) -> bytes | ScheduledResponse:
        """What a request gets; chat requests are the responder's."""
        head = request.head
        api = _CHAT_PATHS.get(head.target)
        if api is None:
            path = head.target.partition(b"?")[0]
            api = next((_CHAT_PATHS[end] for end in _CHAT_PATHS if path.endswith(end)), None)
            if head.method == b"POST" and path.endswith(b"/classify"):
                return self._responder.classify(head, request.body, self.loop.time())
            if api is None:
                return self._other(path, head)
        if head.method != b"POST":
            return _format_json(405, {"error": {"message": "chat requests are POST"}})
        return self._responder.respond(api, head, request.body, self.loop.time())

    def _other(self, path: bytes, head: RequestHead) -> bytes | ScheduledResponse:
        name = path.rpartition(b"/")[2]
        if head.method != b"GET" or name not in {b"health", b"stats", b"models"}:
            return _format_json(404, {"error": {"message": "no such endpoint"}})
        down = self._responder.down(self.loop.time())
        if name == b"health":
            return down or _format_json(200, {"status": "ok"})
        if (refused := self._responder.keyless("openai", head)) is not None:
            return refused
        if name == b"stats":
            return _format_json(200, self.report())
        return down or _format_json(200, self._models())

    def _models(self) -> dict[str, Any]:
        name = self.settings.model
        model = {"id": name, "object": "model", "type": "model", "display_name": name,
                 "created": 0, "owned_by": "adjudge"}  # fmt: skip
        return {"object": "list", "data": [model], "has_more": False}


def _format_json(status: int, value: Any) -> bytes:
    return format_response(status, msgspec.json.encode(value))


def serve(settings: MockSettings | None = None, **options: Any) -> Server:
    """A server for the running loop, which ``async with`` starts: its ``base_url`` is for clients.

    ``options`` are fields of :class:`MockSettings`, over those of ``settings``.
    """
    return Server(msgspec.structs.replace(settings or MockSettings(), **options))


def run_mock(
    settings: MockSettings, ready: Callable[[Server], None], *, until_eof: bool = False
) -> dict[str, Any]:
    """Serve until SIGINT or SIGTERM (``until_eof``: or the end of standard input).

    ``ready`` is called once the server listens. Returns the counts.
    """
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(_serve_until_stopped(settings, ready, until_eof))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    try:
        import uvloop  # noqa: PLC0415  (optional: not every platform has it)
    except ImportError:
        return asyncio.new_event_loop
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


async def _serve_until_stopped(
    settings: MockSettings, ready: Callable[[Server], None], until_eof: bool
) -> dict[str, Any]:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    if until_eof:
        stop_at_end_of_input(loop, stop.set)
    async with serve(settings) as server:
        ready(server)
        gc.collect()
        gc.freeze()  # requests leave no cycles; nothing here need be looked at again
        await stop.wait()
        return server.report()


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
