"""The live page of a run folder, and its server.

The server answers this machine only, read only, at fixed paths, with numbers as the only questions.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from aiohttp import web

from adjudge.errors import ConfigError
from adjudge.hosts import is_loopback, is_loopback_header
from adjudge.runs.view import answers
from adjudge.runs.view.run_reader import RunReader

__all__ = ["ViewServer", "ViewSettings", "serve_view"]


_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
_ASSETS = {
    "/": ("text/html", ["adjudge.runs.view/page.html"]),
    "/page.css": (
        "text/css",
        [
            f"adjudge.{name}.css"
            for name in ("report/page", "runs.report/grading", "runs.view/page")
        ],
    ),
    "/elements.js": (
        "text/javascript",
        ["adjudge.report/elements.js", "adjudge.runs.view/elements.js"],
    ),
    **{
        f"/{name}.js": ("text/javascript", [f"adjudge.runs.view/{name}.js"])
        for name in ("page", "charts", "explorer", "story")
    },
}
_MAX_NUMBER = 2**53


class _Question(NamedTuple):
    """What answers it, the numbers that it must have, and what else it may say."""

    answer: Callable[..., Any]
    numbers: tuple[str, ...]
    choices: tuple[str, ...] = ()


@dataclass(frozen=True)
class ViewSettings:
    """Which folder, and where; ``host`` is an address of this machine's own, ``port`` 0 any."""

    folder: Path
    host: str = "127.0.0.1"
    port: int = 0


class _RequestRefused(Exception):
    """A request that is not answered: an HTTP status and why."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class ViewServer:
    """Serves one run folder; ``async with`` starts and stops it.

    Nobody is asked for a key, so it listens on this machine only, and answers only requests whose
    ``Host`` names this machine: a web page elsewhere whose name was pointed here has another.
    Raises :class:`~adjudge.errors.ConfigError` for another host, or an address that is taken.
    """

    def __init__(self, settings: ViewSettings) -> None:
        _check_settings(settings)
        self.settings = settings
        self.port = settings.port
        self.reading = RunReader(settings.folder)
        self._lock = asyncio.Lock()
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        """Where the page is."""
        host = f"[{self.settings.host}]" if ":" in self.settings.host else self.settings.host
        return f"http://{host}:{self.port}/"

    async def __aenter__(self) -> ViewServer:
        app = web.Application(middlewares=[_guard])
        for path, (kind, files) in _ASSETS.items():
            app.router.add_get(path, partial(_asset, body=_read_assets(files), kind=kind))
        app.router.add_get("/api/overview", self._overview)
        for name, question in _QUESTIONS.items():
            app.router.add_get(f"/api/{name}", partial(self._answered, question=question))
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        listener = self._listen()
        self.port = listener.getsockname()[1]
        await web.SockSite(self._runner, listener).start()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    def _listen(self) -> socket.socket:
        host, port = self.settings.host, self.settings.port
        try:
            family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
            return socket.create_server((host, port), family=family)
        except OSError as error:
            raise ConfigError(
                f"--host {host} --port {port}: cannot listen there: {error.strerror or error}. Use "
                "--port 0 for a free port."
            ) from error

    async def _overview(self, request: web.Request) -> web.Response:
        """Reads what is new; 204 where that is nothing since the version the page has."""
        async with self._lock:
            await asyncio.to_thread(self.reading.refresh)
            if request.query.get("version") == self.reading.version:
                return web.Response(status=204, headers=_HEADERS)
            find = partial(answers.build_overview, self.reading)
            return _response(await asyncio.to_thread(_json, find))

    async def _answered(self, request: web.Request, *, question: _Question) -> web.Response:
        """One question about samples; 409 where the folder was read anew since the page looked."""
        asked = {key: _parse_parameter(key, value) for key, value in request.query.items()}
        async with self._lock:
            if asked.get("generation") != self.reading.generation:
                raise _RequestRefused(409, "the run was written anew")
            numbers = [_required_number(asked, key) for key in question.numbers]
            choices = {key: asked[key] for key in question.choices if key in asked}
            find = partial(question.answer, self.reading, *numbers, **choices)
            found = await asyncio.to_thread(_json, find)
        if found == b"null":
            raise _RequestRefused(404, "no such sample or group")
        return _response(found)


def _check_settings(settings: ViewSettings) -> None:
    if not is_loopback(settings.host):
        raise ConfigError(
            f"--host {settings.host}: the page shows samples to whoever can reach it, so it is "
            "served on this machine only (allowed: 127.0.0.1, localhost, ::1). From elsewhere, "
            "run: ssh -L 8000:127.0.0.1:PORT this-machine"
        )
    if settings.folder.exists() and not settings.folder.is_dir():
        raise ConfigError(f"{settings.folder}: is a file. Give the run's folder.")


def _read_assets(files: list[str]) -> bytes:
    parts = (file.split("/") for file in files)
    return b"".join(resources.files(package).joinpath(name).read_bytes() for package, name in parts)


async def _asset(_request: web.Request, *, body: bytes, kind: str) -> web.Response:
    return web.Response(body=body, content_type=kind, charset="utf-8", headers=_HEADERS)


def _json(find: Callable[[], Any]) -> bytes:
    """What ``find`` finds, as ASCII: escapes carry any text, halves of surrogate pairs too."""
    return json.dumps(find(), separators=(",", ":"), allow_nan=False).encode("ascii")


def _response(body: bytes) -> web.Response:
    return web.Response(body=body, content_type="application/json", headers=_HEADERS)


# --- questions ----------------------------------------------------------------------------------


def _parse_parameter(key: str, value: str) -> int | str:
    """A parameter of a question: a whole number, or one of the names of a list of groups."""
    if key == "show" and value in answers.GROUP_FILTERS:
        return value
    digits = value.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 16) or key == "show":
        raise _RequestRefused(400, f"{key[:40]!r} is not a whole number")
    return int(value)


def _required_number(asked: Mapping[str, int | str], key: str) -> int:
    found = asked.get(key)
    if not isinstance(found, int) or abs(found) > _MAX_NUMBER:
        raise _RequestRefused(400, f"{key!r} must be a whole number")
    return found


_QUESTIONS: Mapping[str, _Question] = {
    "histograms": _Question(answers.build_histograms, ("from", "to")),
    "groups": _Question(answers.list_groups, ("from", "to", "page"), ("show",)),
    "group": _Question(answers.describe_group, ("id",)),
    "sample": _Question(answers.describe_sample, ("row",)),
}


# --- who may ask --------------------------------------------------------------------------------


@web.middleware
async def _guard(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Refuse names that are not this machine's, and what other sites' pages ask."""
    try:
        _check_origin(request)
        return await handler(request)
    except _RequestRefused as refused:
        return _error_response(refused.status, str(refused))
    except web.HTTPException as error:
        return _error_response(error.status, error.reason)


def _check_origin(request: web.Request) -> None:
    if not is_loopback_header(request.headers.get("Host", "")):
        raise _RequestRefused(403, "this page answers to 127.0.0.1, localhost and [::1] only")
    site = request.headers.get("Sec-Fetch-Site", "none")
    if request.path.startswith("/api/") and site not in {"none", "same-origin"}:
        raise _RequestRefused(403, "asked by another site")


def _error_response(status: int, message: str) -> web.Response:
    return web.Response(
        status=status, text=message + "\n", content_type="text/plain", headers=_HEADERS
    )


# --- running ------------------------------------------------------------------------------------


def serve_view(
    settings: ViewSettings, ready: Callable[[ViewServer], None], *, until_eof: bool = False
) -> None:
    """Serve until SIGINT or SIGTERM (``until_eof``: or the end of standard input).

    ``ready`` is called once the server listens. Raises :class:`~adjudge.errors.ConfigError` as
    :class:`ViewServer` does.
    """
    asyncio.run(_serve(settings, ready, until_eof))


async def _serve(
    settings: ViewSettings, ready: Callable[[ViewServer], None], until_eof: bool
) -> None:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with ViewServer(settings) as server:
        if until_eof:
            loop.add_reader(sys.stdin.fileno(), _watch_input, loop, stop)
        ready(server)
        await stop.wait()


def _watch_input(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    if not os.read(sys.stdin.fileno(), 4096):
        loop.remove_reader(sys.stdin.fileno())
        stop.set()
