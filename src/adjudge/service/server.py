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
from contextlib import contextmanager
from http import HTTPStatus
from types import FrameType
from typing import Any, ClassVar

import msgspec
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from adjudge.engine.child_server import settings_arguments, start_child_server, stop_at_end_of_input
from adjudge.engine.loop import run_blocking
from adjudge.errors import ConfigError, ErrorKind
from adjudge.rewards.function import SpecRewardFunction
from adjudge.service.app import GroupRendezvous, Service
from adjudge.service.backend import Backend
from adjudge.service.formats import FORMATS, WireFormat
from adjudge.service.rendezvous import Rendezvous
from adjudge.service.requests import error_body, read_service_keys
from adjudge.service.settings import ServiceSettings

MAX_HEADER_BYTES = 32 * 1024
"""Bytes of a request's line and headers; more are refused with 431."""
MAX_HEADER_LINES = 100

_TIMER_RESOLUTION_S = 1e-3
_GRACE_S = 0.02
"""Between a timeout and what follows from it. After a standstill of the process, timers may run
before what has arrived meanwhile is read, and a request that came in time would be thrown away."""
_LINGER_S = 2.0
_LINGER_BYTES = 64 << 20
_AsgiApp = Callable[[Any, Any, Any], Awaitable[None]]


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
        self._in_head = False
        self._under_way = False
        self._completed = False
        self._large = False
        self._head_bytes = 0
        self._lingering = 0
        self._refusal = (400, ErrorKind.INVALID_INPUT, "this is not an HTTP/1.1 request")
        self._task: asyncio.Task[None] | None = None
        self._answering: RequestResponseCycle | None = None
        self._clock: asyncio.TimerHandle | None = None
        self._idle: asyncio.TimerHandle | None = None
        self._idle_since = self._looked_at = 0.0
        self._start_clock()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has gone: nobody waits for its answer."""
        self._stop_clock()
        if self._idle is not None:
            self._idle.cancel()
        super().connection_lost(exc)
        if self._task is not None and not self.cycle.response_complete:
            self._task.cancel()

    def data_received(self, data: bytes) -> None:
        """Parse what came, and watch how long a request takes to come."""
        if self._lingering:
            self._lingering -= len(data)
            if self._lingering <= 0:
                self.transport.close()
            return
        self._completed = False
        self._large = len(data) > MAX_HEADER_BYTES
        super().data_received(data)
        if self._completed:
            self._stop_clock()
            if not self._under_way:
                return
        if self.transport.is_closing():
            return
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEADER_BYTES:
                self._refusal = _HEAD_TOO_LONG
                self.send_400_response("")
                return
        self._start_clock()

    def on_message_begin(self) -> None:
        """A request's first byte."""
        super().on_message_begin()
        self._in_head = self._under_way = True
        self._head_bytes = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header line; those after the body mean nothing here."""
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Check what was not counted on the way, and start the answer."""
        self._in_head = False
        headers = self.headers
        if len(headers) > MAX_HEADER_LINES or (
            self._large
            and len(self.url) + sum(len(name) + len(value) for name, value in headers)
            > MAX_HEADER_BYTES
        ):
            self._refusal = _HEAD_TOO_LONG
            raise ValueError("the head is too long")  # reaches send_400_response by the parser
        if sum(name == b"host" for name, _ in headers) > 1:
            self._refusal = _TWO_HOSTS
            raise ValueError("two hosts")
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """The request is here."""
        self._under_way = False
        self._completed = True
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Go on with the next request; or read a refused one on, so that the refusal arrives."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
        else:
            self._idle_since = self.loop.time()
            if self._idle is None:
                self._idle = self.loop.call_later(self.timeout_keep_alive, self._check_idle)
        if self._under_way and not self._in_head and self.cycle.response_complete:
            self._linger()

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002  (uvicorn's own words)
        """Write the refusal, whatever uvicorn would have said, and close."""
        if self.transport.is_closing():
            return
        status, kind, message = self._refusal
        body = error_body(kind, message)
        self.transport.write(
            b"%bcontent-length: %d\r\nconnection: close\r\n\r\n%b"
            % (_STATUS_LINES[status], len(body), body)
        )
        self._abandon()
        self._linger()

    def _abandon(self) -> None:
        """Answer nothing more: this connection is at its end, whatever was asked before."""
        self.pipeline.clear()
        if self._answering is not None and not self._answering.response_complete:
            self._answering.disconnected = True
            if self._task is not None:
                self._task.cancel()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answering = cycle
        task = self.loop.create_task(cycle.run_asgi(_DisconnectGuard(cycle, app)))
        task.add_done_callback(self.tasks.discard)
        self.tasks.add(task)
        self._task = task

    def _check_idle(self) -> None:
        """Close a connection that nobody uses; one timer for all its requests."""
        self._idle = None
        if self.transport.is_closing() or self._under_way or not self.cycle.response_complete:
            return
        left = self._idle_since + self.timeout_keep_alive - self.loop.time()
        if left > _TIMER_RESOLUTION_S:
            self._idle = self.loop.call_later(left, self._check_idle)
        elif self._looked_at != self._idle_since:
            self._looked_at = self._idle_since
            self._idle = self.loop.call_later(_GRACE_S, self._check_idle)
        else:
            self.transport.close()

    def _start_clock(self) -> None:
        if self._clock is None:
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
        if self._is_answering():
            self._start_clock()
        elif not self._under_way or (not self._in_head and self.cycle.response_started):
            self.transport.close()
        else:
            self._refusal = _REQUEST_TOO_SLOW
            self.send_400_response("")
            self.transport.close()

    def _is_answering(self) -> bool:
        """Whether an earlier request is still being answered: it is not the client that is late."""
        if self._under_way and not self._in_head:
            return bool(self.pipeline)
        return self._task is not None and not self.cycle.response_complete

    def _linger(self) -> None:
        """Close our side; read and drop for a moment, since closing at once may lose the answer."""
        self._stop_clock()
        if self.transport.is_closing():
            return
        self._lingering = _LINGER_BYTES
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._clock = self.loop.call_later(_LINGER_S, self.transport.close)


class _DisconnectGuard:
    """An application whose cancellation is no error when its client has left.

    ``scope["adjudge.reply"]`` is a shorter way to answer than two messages.
    """

    __slots__ = ("_app", "_cycle")

    def __init__(self, cycle: RequestResponseCycle, app: _AsgiApp) -> None:
        self._cycle = cycle
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        scope["adjudge.reply"] = self.reply
        try:
            await self._app(scope, receive, send)
        except asyncio.CancelledError:
            if not self._cycle.disconnected:
                raise
        finally:
            del scope["adjudge.reply"]  # it points back here: only the collector would free it

    def reply(self, status: int, headers: bytes, body: bytes) -> bool:
        """Write a whole response; ``headers`` are lines with their ends. ``False``: not possible.

        What uvicorn does on two messages, without looking at each header by regular expressions.
        """
        cycle = self._cycle
        if cycle.disconnected:
            return True
        if cycle.flow.write_paused or cycle.response_started:
            return False
        cycle.response_started = cycle.response_complete = True
        close = b"" if cycle.keep_alive else b"connection: close\r\n"
        cycle.transport.write(
            b"%bcontent-length: %d\r\n%b%b\r\n%b"
            % (_STATUS_LINES[status], len(body), headers, close, body)
        )
        if not cycle.keep_alive and not cycle.more_body:  # else it is closed after lingering
            cycle.transport.close()
        cycle.message_event.set()
        cycle.on_response()
        return True


_STATUS_LINES = {
    one.value: b"HTTP/1.1 %d %b\r\ncontent-type: application/json\r\n"
    % (one.value, one.phrase.encode())
    for one in HTTPStatus
}
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
    formats: Sequence[WireFormat] = FORMATS,
    until_eof: bool = False,
) -> None:
    """Serve until SIGINT or SIGTERM (``until_eof``: or the end of standard input), then drain.

    On adjudge's own event loop, where the judges of specs run, too; signals are handled here, in
    the main thread. ``ready`` is called once requests are taken. A second signal ends it at once.
    Raises :class:`ConfigError` for a public address without a key, a port in use, and whatever the
    backend finds wrong when it loads.
    """
    keys = read_service_keys(settings)
    _allow_connections()
    stop = _StopSignal()

    def make_service() -> Service:
        rendezvous = _make_rendezvous(backend, settings)
        return Service(backend, settings, keys=keys, formats=formats, rendezvous=rendezvous)

    with _open_listener(settings) as listener, _handle_signals(stop):
        run_blocking(_serve(make_service, listener, stop, ready, until_eof))


def _allow_connections() -> None:
    """As many open files as this process may have: each sample that waits holds a connection."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # "unlimited" is refused on some systems
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


class _StopSignal:
    """Set in the main thread's signal handler, awaited on the engine."""

    def __init__(self) -> None:
        self._set = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._event = asyncio.Event()

    def now(self, *_: object) -> None:
        """Begin to stop; a second time, interrupt."""
        if self._set:
            raise KeyboardInterrupt
        self._set = True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._event.set)

    async def wait(self) -> None:
        """Until it is time."""
        self._loop = asyncio.get_running_loop()
        if not self._set:
            await self._event.wait()

    def soon(self) -> None:
        """The same from the engine's side."""
        self._set = True
        self._event.set()


@contextmanager
def _handle_signals(stop: _StopSignal) -> Iterator[None]:
    before: dict[int, Callable[[int, FrameType | None], Any] | int | None] = {}
    for number in (int(signal.SIGINT), int(signal.SIGTERM)):
        before[number] = signal.signal(number, stop.now)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _open_listener(settings: ServiceSettings) -> Iterator[socket.socket]:
    """Bound here, so that a port in use is a sentence and not a stopped event loop."""
    host, port = settings.host, settings.port
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise ConfigError(
            f"--host {host} --port {port}: cannot listen there: {error.strerror or error}. Use "
            "--port 0 for a free port."
        ) from error
    with contextlib.closing(listener):
        yield listener


async def _serve(
    make_service: Callable[[], Service],
    listener: socket.socket,
    stop: _StopSignal,
    ready: Callable[[RunningService], None],
    until_eof: bool,
) -> None:
    service = make_service()
    server = _make_server(service)
    loop = asyncio.get_running_loop()
    if until_eof:
        stop_at_end_of_input(loop, stop.soon)
    serving = loop.create_task(server.serve(sockets=[listener]))
    stopping = loop.create_task(stop.wait())
    try:
        loading = loop.create_task(service.start())
        await asyncio.wait({serving, stopping, loading}, return_when=asyncio.FIRST_COMPLETED)
        if loading.done():
            loading.result()
            gc.collect()
            gc.freeze()  # requests leave no cycles; nothing here need be looked at again
            ready(_describe_running(service, listener))
            await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
        else:
            loading.cancel()
        await service.drain(service.settings.drain_s)
    finally:
        stopping.cancel()
        server.should_exit = True
        await serving
        await service.backend.aclose()


def _make_rendezvous(backend: Backend, settings: ServiceSettings) -> GroupRendezvous | None:
    """Groups are a spec's: another backend has nothing that compares.

    A backend elsewhere (replicas) has a rendezvous of its own.
    """
    own: GroupRendezvous | None = getattr(backend, "rendezvous", None)
    if own is not None:
        return own
    function = getattr(backend, "function", None)
    return Rendezvous(function, settings) if isinstance(function, SpecRewardFunction) else None


def _make_server(service: Service) -> uvicorn.Server:
    return uvicorn.Server(
        uvicorn.Config(
            service,
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


def _describe_running(service: Service, listener: socket.socket) -> RunningService:
    settings = service.settings
    port = listener.getsockname()[1]
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return RunningService(
        url=f"http://{host}:{port}",
        port=port,
        pid=os.getpid(),
        backend=service.backend.name,
        version=service.backend.version,
        routes=service.routes,
        key_env=service.auth.variable,
        compares_groups=service.backend.compares_groups,
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
