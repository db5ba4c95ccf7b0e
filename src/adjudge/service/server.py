"""The service as a process: what ``adjudge serve`` runs, and how tests start one.

uvicorn's HTTP protocol is hardened (:class:`GuardedProtocol`), since hostile requests would else
hold connections and memory for ever (``tests/integration/test_service_hostile.py``): header limits,
reading against the clock, gone clients. None of that costs a timer or a task for a request that
arrives whole in one piece.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any, ClassVar

import msgspec
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from adjudge.engine.loop import run_blocking
from adjudge.engine.processes import settings_arguments, start_child_server, stop_at_end_of_input
from adjudge.errors import ConfigError, ErrorKind
from adjudge.service import DRAIN_S, ServiceSettings
from adjudge.service.app import JSON_HEAD, Reply, Service
from adjudge.service.backend import Backend
from adjudge.service.formats import Format, load_formats
from adjudge.service.rendezvous import make_rendezvous
from adjudge.service.requests import read_service_keys
from adjudge.wire import ErrorInfo, JudgeResponse

MAX_HEADER_BYTES = 32 * 1024
"""Bytes of a request's line and headers; more are refused with 431."""
MAX_HEADER_LINES = 100

_GRACE_S = 0.02
"""Between a timeout and what follows from it. After a standstill of the process, timers may run
before what has arrived meanwhile is read, and a request that came in time would be thrown away."""
_LINGER_S = 2.0
_LINGER_BYTES = 64 << 20


class GuardedProtocol(HttpToolsProtocol):
    """One connection: uvicorn alone waits without end for a slow head or body, and limits neither.

    A head that is too long or has too many lines is refused with 431, one that is no HTTP with 400,
    a request that has not arrived within ``read_timeout_s`` with 408; then the connection closes.
    When the client goes, the task that works for it is cancelled. A request that was refused
    before its body had come is read on for a moment, so that the client gets to see the answer.
    """

    read_timeout_s: ClassVar[float] = 20.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the clock: a connection that never asks anything is closed, too."""
        super().connection_made(transport)
        self._ask: Callable[..., Awaitable[Reply]] = self.app
        self.app = self._answer
        self._in_head = self._arriving = self._completed = False
        self._head_bytes = self._lingering = 0
        self._refusal = _NO_HTTP
        self._task: asyncio.Task[None] | None = None
        self._clock: asyncio.TimerHandle | None = None
        self._start_clock()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has gone: nobody waits for its answer."""
        self._stop_clock()
        super().connection_lost(exc)
        if self._task is not None:
            self._task.cancel()

    def data_received(self, data: bytes) -> None:
        """Parse what came, and watch how long a request takes to come."""
        if self._lingering:
            self._lingering -= len(data)
            if self._lingering <= 0:
                self.transport.close()
            return
        self._head_bytes += len(data)
        self._completed = False
        super().data_received(data)
        if self._completed and not self._arriving:
            return
        if self._in_head and self._head_bytes > MAX_HEADER_BYTES:
            self._refuse(_HEAD_TOO_LONG)
        elif self._clock is None and not self.transport.is_closing():
            self._start_clock()

    def on_message_begin(self) -> None:
        """A request's first byte."""
        super().on_message_begin()
        self._in_head = self._arriving = True

    def on_headers_complete(self) -> None:
        """Check what was not counted on the way, and start the answer."""
        self._in_head = False
        headers = self.headers
        is_long = len(headers) > MAX_HEADER_LINES or (
            self._head_bytes > MAX_HEADER_BYTES
            and len(self.url) + sum(len(name) + len(value) for name, value in headers)
            > MAX_HEADER_BYTES
        )
        if is_long or [name for name, _ in headers].count(b"host") > 1:
            self._refusal = _HEAD_TOO_LONG if is_long else _TWO_HOSTS
            raise ValueError("a head that is refused")  # reaches send_400_response by the parser
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """The request is here."""
        self._arriving, self._completed = False, True
        self._head_bytes = 0
        self._stop_clock()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Go on with the next request; or read a refused one on, so that the refusal arrives."""
        self._task = None
        super().on_response_complete()
        if self._arriving and not self._in_head and self.cycle.response_complete:
            self._linger()

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002  (uvicorn's own words)
        """Write the refusal, whatever uvicorn would have said, and close."""
        self._refuse(self._refusal)

    def timeout_keep_alive_handler(self) -> None:
        """Close a connection that nobody uses, unless something has come that is not read yet."""
        self.timeout_keep_alive_task = self.loop.call_later(_GRACE_S, self.transport.close)

    async def _answer(self, scope: Any, receive: Any, send: Any) -> None:  # noqa: ARG002
        """Let the service answer; a cancellation is no error when the client has left."""
        cycle: RequestResponseCycle = receive.__self__
        self._task = asyncio.current_task()
        try:
            reply = await self._ask(scope, receive, None if cycle.more_body else cycle.body)
            if cycle.flow.write_paused:
                await cycle.flow.drain()
        except asyncio.CancelledError:
            if not self._is_closed():
                raise
        if self._is_closed():
            cycle.disconnected = True
        else:
            self._write(cycle, reply)

    def _is_closed(self) -> bool:
        return bool(self._lingering) or self.transport.is_closing()

    def _write(self, cycle: RequestResponseCycle, reply: Reply) -> None:
        """What uvicorn does on two messages, without a look at each header by expressions."""
        status, head, body = reply
        cycle.response_started = cycle.response_complete = True
        close = b"" if cycle.keep_alive else b"connection: close\r\n"
        shown = b"" if cycle.scope["method"] == "HEAD" else body
        cycle.transport.write(
            b"%bcontent-length: %d\r\n%b%b\r\n%b"
            % (_STATUS_LINES[status], len(body), head, close, shown)
        )
        if not cycle.keep_alive and not cycle.more_body:  # else it is closed after lingering
            cycle.transport.close()
        cycle.message_event.set()
        cycle.on_response()

    def _refuse(self, refusal: tuple[int, ErrorKind, str]) -> None:
        """Answer nothing more: this connection is at its end, whatever was asked before."""
        if self.transport.is_closing():
            return
        status, kind, message = refusal
        body = msgspec.json.encode(JudgeResponse(error=ErrorInfo(kind, message)))
        self.transport.write(
            b"%b%bcontent-length: %d\r\nconnection: close\r\n\r\n%b"
            % (_STATUS_LINES[status], JSON_HEAD, len(body), body)
        )
        self.pipeline.clear()
        if self._task is not None:
            self._task.cancel()
        self._linger()

    def _start_clock(self) -> None:
        self._clock = self.loop.call_later(self.read_timeout_s, self._on_clock)

    def _stop_clock(self) -> None:
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None

    def _on_clock(self) -> None:
        self._clock = self.loop.call_later(_GRACE_S, self._refuse_late)

    def _refuse_late(self) -> None:
        self._clock = None
        if self.transport.is_closing():
            return
        in_body = self._arriving and not self._in_head
        if self.pipeline if in_body else self._task is not None:
            self._start_clock()  # an earlier request is being answered: the client is not late
        elif not self._arriving or (in_body and self.cycle.response_started):
            self.transport.close()
        else:
            self._refuse(_REQUEST_TOO_SLOW)
            self.transport.close()

    def _linger(self) -> None:
        """Close our side; read and drop for a moment, since closing at once may lose the answer."""
        self._stop_clock()
        if self.transport.is_closing():
            return
        self._lingering = _LINGER_BYTES
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._clock = self.loop.call_later(_LINGER_S, self.transport.close)


_STATUS_LINES = {
    one.value: b"HTTP/1.1 %d %b\r\n" % (one.value, one.phrase.encode()) for one in HTTPStatus
}
_NO_HTTP = (400, ErrorKind.INVALID_INPUT, "this is not an HTTP/1.1 request")
_HEAD_TOO_LONG = (
    431,
    ErrorKind.INVALID_INPUT,
    f"the head has more than {MAX_HEADER_BYTES} bytes or {MAX_HEADER_LINES} lines",
)
_TWO_HOSTS = (400, ErrorKind.INVALID_INPUT, "the request names two hosts")
_REQUEST_TOO_SLOW = (408, ErrorKind.TIMEOUT, "the request did not arrive in time")


_CLOSE_S = 2
"""For answers that are written to reach their clients, after the drain."""


class RunningService(msgspec.Struct, frozen=True):
    """A service that listens and is ready."""

    url: str
    port: int
    pid: int
    backend: str
    version: str
    routes: list[str]
    key_env: str | None
    """The variable with the key that clients must send, if there is one."""
    compares_groups: str | None = None
    """What needs a whole group, so that only ``/group_judge`` answers."""


def run_service(
    backend: Backend,
    settings: ServiceSettings,
    ready: Callable[[RunningService], None],
    *,
    formats: Sequence[Format] | None = None,
    until_eof: bool = False,
) -> None:
    """Serve until SIGINT or SIGTERM (``until_eof``: or the end of standard input), then drain.

    On adjudge's own event loop, where the judges of specs run, too; signals are handled here, in
    the main thread. ``ready`` is called once requests are taken. A second signal ends it at once.
    Raises :class:`ConfigError` for a public address without a key, a port in use, and whatever the
    backend finds wrong when it loads.
    """
    keys = read_service_keys(settings)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # "unlimited" is refused on some systems
        # Each sample that waits holds a connection.
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    stop: Future[None] = Future()

    def stop_now(*_: object) -> None:
        if stop.done():
            raise KeyboardInterrupt
        stop.set_result(None)

    async def serve() -> None:
        service = Service(
            backend,
            settings,
            keys=keys,
            formats=load_formats(()) if formats is None else formats,
            rendezvous=make_rendezvous(backend, settings),
        )
        if until_eof:
            stop_at_end_of_input(asyncio.get_running_loop(), stop_now)
        await _serve(service, listener, asyncio.wrap_future(stop), ready)

    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, stop_now) for number in numbers]
    try:
        with _open_listener(settings) as listener:
            run_blocking(serve())
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def _open_listener(settings: ServiceSettings) -> socket.socket:
    """Bound here, so that a port in use is a sentence and not a stopped event loop."""
    host, port = settings.host, settings.port
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise ConfigError(
            f"--host {host} --port {port}: cannot listen there: {error.strerror or error}. Use "
            "--port 0 for a free port."
        ) from error


async def _serve(
    service: Service,
    listener: socket.socket,
    stop: asyncio.Future[None],
    ready: Callable[[RunningService], None],
) -> None:
    server = _make_server(service)
    loop = asyncio.get_running_loop()
    serving = loop.create_task(server.serve(sockets=[listener]))
    loading = loop.create_task(service.start())
    try:
        await asyncio.wait({serving, stop, loading}, return_when=asyncio.FIRST_COMPLETED)
        if loading.done():
            loading.result()
            gc.collect()
            gc.freeze()  # requests leave no cycles; nothing here need be looked at again
            host, port = service.settings.host, listener.getsockname()[1]
            ready(
                RunningService(
                    url=f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}",
                    port=port,
                    pid=os.getpid(),
                    backend=service.backend.name,
                    version=service.backend.version,
                    routes=service.routes,
                    key_env=service.auth.variable,
                    compares_groups=service.backend.compares_groups,
                )
            )
            await asyncio.wait({serving, stop}, return_when=asyncio.FIRST_COMPLETED)
        else:
            loading.cancel()
        await service.drain(DRAIN_S)
    finally:
        server.should_exit = True
        await serving
        await service.backend.aclose()


def _make_server(service: Service) -> uvicorn.Server:
    return uvicorn.Server(
        uvicorn.Config(
            service.answer,
            interface="asgi3",
            http=GuardedProtocol,
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="error",
            access_log=False,
            server_header=False,
            date_header=False,
            proxy_headers=False,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=_CLOSE_S,
        )
    )


@contextmanager
def start_service(target: str | type, **settings: Any) -> Iterator[str]:
    """Run ``adjudge serve TARGET`` as a process and give its URL, once it is ready.

    ``target`` is a spec's file, ``module:Class`` or the class itself; ``settings`` are fields of
    :class:`ServiceSettings`; the port is a free one unless given. The process ends with the block,
    or with this process if that dies first. Raises :class:`ConfigError` for wrong settings and
    ``RuntimeError`` when the process does not start.
    """
    chosen = ServiceSettings(**{"port": 0, **settings})
    if isinstance(target, type):
        target = f"{target.__module__}:{target.__qualname__}"
    command = [sys.executable, "-m", "adjudge", "serve", target, "--json", "--until-eof"]
    with start_service_process([*command, *settings_arguments(chosen)]) as (started, _):
        yield started.url


@contextmanager
def start_service_process(
    command: list[str],
) -> Iterator[tuple[RunningService, subprocess.Popen[bytes]]]:
    """Run a command that serves (with ``--json --until-eof``), until the block ends."""
    with start_child_server(command) as (line, process):
        yield msgspec.json.decode(line, type=RunningService), process
