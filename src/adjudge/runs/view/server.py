"""The server of the live page of a run folder.

It answers this machine only, at fixed paths, and changes nothing but ``labels.jsonl``
(:class:`~adjudge.runs.labels.LabelDesk`).
"""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import socket
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from importlib import resources
from inspect import signature
from pathlib import Path
from typing import Any, get_type_hints

import msgspec
from aiohttp import web
from aiohttp.http import HttpProcessingError

from adjudge.engine.processes import stop_at_end_of_input
from adjudge.errors import ConfigError, RunFolderError
from adjudge.hosts import is_loopback_header
from adjudge.runs.labels import MAX_BODY, LabelDesk, RequestRefused
from adjudge.runs.samples import describe_sample, find_row, list_disagreements
from adjudge.runs.view.answers import build_overview, list_groups
from adjudge.runs.view.run_reader import RunReader

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
_REPORT_POLICY = (
    "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline'; "
    "style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
"""Of a report, whose own policy admits its script and style by hash and nothing else."""
_HOST = "127.0.0.1"
"""The page shows samples to whoever can reach it, so it is served on this machine alone."""
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
            for name in (
                *("report/page", "report/sample", "runs.report/grading"),
                *("runs.view/page", "runs.view/labels"),
            )
        ],
    ),
    **{
        f"/{name}.js": ("text/javascript", [f"adjudge.{room}/{name}.js"])
        for room, names in (
            ("report", ("elements", "transcript", "verdicts", "sample")),
            ("runs.view", ("page", "ask", "charts", "explorer", "story", "labels")),
        )
        for name in names
    },
}


def _is_own_error(record: logging.LogRecord) -> bool:
    """Whether it is no malformed request, which aiohttp refuses and would report as an error."""
    return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))


_server_log = logging.getLogger("adjudge.view")
_server_log.addFilter(_is_own_error)


_QUESTIONS: Mapping[str, Callable[..., Any]] = {
    "groups": list_groups,
    "sample": describe_sample,
    "find": find_row,
    "disagreements": list_disagreements,
}
"""What answers questions about the run, which is its first argument."""


def _query_of(answer: Callable[..., Any]) -> type[msgspec.Struct]:
    """What an address asks: the arguments of ``answer``, after which reading the page has seen."""
    types = get_type_hints(answer)
    arguments = [
        (name, types[name]) if one.default is one.empty else (name, types[name], one.default)
        for name, one in signature(answer).parameters.items()
        if name not in ("run", "reading")
    ]
    fields = [("generation", int | None, None), *arguments]
    return msgspec.defstruct("Query", fields, kw_only=True)


class ViewServer:
    """Serves one run folder on ``port``, 0 for any; ``async with`` starts and stops it.

    With ``read_only`` nobody labels.

    Nobody is asked for a key, so it listens on this machine only, and answers only requests whose
    ``Host`` names this machine: a web page elsewhere whose name was pointed here has another.
    Raises :class:`~adjudge.errors.ConfigError` for a port that is taken.
    """

    def __init__(self, folder: Path, *, port: int = 0, read_only: bool = False) -> None:
        if folder.exists() and not folder.is_dir():
            raise ConfigError(f"{folder}: is a file. Give the run's folder.")
        self.port = port
        self.reading = RunReader(folder)
        self.desk = LabelDesk(self.reading, read_only=read_only)
        self._lock = asyncio.Lock()
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        """Where the page is."""
        return f"http://{_HOST}:{self.port}/"

    async def __aenter__(self) -> ViewServer:
        app = web.Application(middlewares=[_guard], client_max_size=MAX_BODY)
        for path, (kind, files) in _ASSETS.items():
            names = (file.split("/") for file in files)
            parts = [resources.files(room).joinpath(name).read_bytes() for room, name in names]
            app.router.add_get(path, partial(_asset, body=b"".join(parts), kind=kind))
        app.router.add_get("/api/overview", self._overview)
        app.router.add_get("/report.html", self._report)
        for name, answer in _QUESTIONS.items():
            self._add_question(app, name, answer, self.reading)
        self._add_question(app, "labels", self.desk.describe)
        self._add_question(app, "labels/queue", self.desk.next_entries)
        app.router.add_post("/api/labels", self._write_label)
        self._runner = web.AppRunner(app, access_log=None, logger=_server_log)
        await self._runner.setup()
        try:
            listener = socket.create_server((_HOST, self.port))
        except OSError as error:
            raise ConfigError(
                f"--port {self.port}: cannot listen there: {error.strerror or error}. Use --port 0 "
                "for a free port."
            ) from error
        self.port = listener.getsockname()[1]
        await web.SockSite(self._runner, listener).start()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _overview(self, request: web.Request) -> web.Response:
        """Reads what is new; 204 where that is nothing since the version the page has."""
        async with self._lock:
            await asyncio.to_thread(self.reading.refresh)
            if request.query.get("version") == self.reading.version:
                return web.Response(status=204, headers=_HEADERS)
            find = partial(build_overview, self.reading)
            return _response(await asyncio.to_thread(_json, find))

    async def _report(self, _: web.Request) -> web.Response:
        """The folder's report, in an origin of its own: it can ask this server nothing."""
        body = await asyncio.to_thread(self.reading.read_report)
        if body is None:
            raise RequestRefused(404, "this folder has no report.html")
        headers = {**_HEADERS, "Content-Security-Policy": _REPORT_POLICY}
        # A browser opens no sandboxed page that asks for an opener of the same origin.
        del headers["Cross-Origin-Opener-Policy"]
        return web.Response(body=body, content_type="text/html", charset="utf-8", headers=headers)

    def _add_question(
        self, app: web.Application, name: str, answer: Callable[..., Any], *given: RunReader
    ) -> None:
        query = _query_of(answer)

        async def handle(request: web.Request) -> web.Response:
            """409 where the folder was read anew since the page looked."""
            try:
                asked = msgspec.convert(dict(request.query), query, strict=False)
            except msgspec.ValidationError as error:
                raise RequestRefused(400, str(error)) from None
            async with self._lock:
                seen, *arguments = msgspec.structs.astuple(asked)
                if seen not in (None, self.reading.generation):
                    raise RequestRefused(409, "the run was written anew")
                found = await asyncio.to_thread(_json, partial(answer, *given, *arguments))
            if found == b"null":
                raise RequestRefused(404, "no such sample or group")
            return _response(found)

        app.router.add_get(f"/api/{name}", handle)

    async def _write_label(self, request: web.Request) -> web.Response:
        """Append one label; it is on the disk when this is answered."""
        self.desk.check_request(request.headers)
        body = await request.read()
        async with self._lock:
            written = await asyncio.to_thread(_json, partial(self.desk.write, body))
        return _response(written)


async def _asset(_request: web.Request, *, body: bytes, kind: str) -> web.Response:
    return web.Response(body=body, content_type=kind, charset="utf-8", headers=_HEADERS)


def _json(find: Callable[[], Any]) -> bytes:
    """What ``find`` finds, as ASCII: escapes carry any text, halves of surrogate pairs too."""
    return json.dumps(find(), separators=(",", ":"), allow_nan=False).encode("ascii")


def _response(body: bytes) -> web.Response:
    return web.Response(body=body, content_type="application/json", headers=_HEADERS)


# --- who may ask --------------------------------------------------------------------------------


@web.middleware
async def _guard(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Refuse names that are not this machine's, and what other sites' pages ask."""
    if not is_loopback_header(request.headers.get("Host", "")):
        return _error_response(403, "this page answers to 127.0.0.1, localhost and [::1] only")
    site = request.headers.get("Sec-Fetch-Site", "none")
    if request.path.startswith("/api/") and site not in {"none", "same-origin"}:
        return _error_response(403, "asked by another site")
    try:
        return await handler(request)
    except RequestRefused as refused:
        return _error_response(refused.status, str(refused))
    except RunFolderError as error:  # a full disk, a file that may not be written
        return _error_response(500, str(error))
    except web.HTTPException as error:
        return _error_response(error.status, error.reason)


def _error_response(status: int, message: str) -> web.Response:
    return web.Response(
        status=status, text=message + "\n", content_type="text/plain", headers=_HEADERS
    )


# --- running ------------------------------------------------------------------------------------


def serve_view(
    server: ViewServer, ready: Callable[[ViewServer], None], *, until_eof: bool = False
) -> None:
    """Serve until SIGINT or SIGTERM (``until_eof``: or the end of standard input).

    ``ready`` is called once it listens.
    """

    async def serve() -> None:
        loop, stop = asyncio.get_running_loop(), asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop.set)
        async with server:
            if until_eof:
                stop_at_end_of_input(loop, stop.set)
            ready(server)
            await stop.wait()

    asyncio.run(serve())
