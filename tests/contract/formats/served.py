"""The formats behind a real HTTP server, and trainers' client modules loaded without their rest."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import importlib.util
import json
import sys
import threading
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

import pytest
from aiohttp import web

from adjudge.errors import ErrorKind
from adjudge.service.formats import load_formats
from adjudge.service.requests import RequestRefused
from adjudge.wire import ErrorInfo, JudgeRequest, JudgeResponse


class Judge:
    """Scores a completion by its length; fails the first ``failures`` times, then no more."""

    def __init__(self, failures: int = 0) -> None:
        self.asked: list[JudgeRequest] = []
        self.failures = failures

    async def __call__(self, requests: Sequence[JudgeRequest]) -> list[JudgeResponse]:
        self.asked += requests
        if self.failures:
            self.failures -= 1
            error = ErrorInfo(ErrorKind.TIMEOUT, "no answer in time")
            return [JudgeResponse(error=error) for _ in requests]
        return [JudgeResponse(score=float(len(one.completion))) for one in requests]


def application(judge: Judge) -> web.Application:
    """Every format at its path."""
    app = web.Application()
    for form in load_formats(()):

        async def handle(request: web.Request, form: Any = form) -> web.Response:
            try:
                status, body = 200, await form.answer(await request.read(), judge)
            except RequestRefused as refused:  # the service answers so
                error = {"kind": refused.kind, "message": str(refused)}
                status, body = refused.status, json.dumps({"error": error}).encode()
            return web.Response(status=status, body=body, content_type="application/json")

        app.router.add_post(form.path, handle)
    return app


@contextlib.contextmanager
def serving(judge: Judge) -> Iterator[str]:
    """A server in a thread of its own; its address."""
    loop = asyncio.new_event_loop()

    async def start() -> tuple[web.AppRunner, str]:
        runner = web.AppRunner(application(judge))
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        return runner, f"http://{host}:{port}"

    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    runner, address = asyncio.run_coroutine_threadsafe(start(), loop).result()
    try:
        yield address
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def client_module(name: str, target: str) -> Any:
    """A module of an installed trainer without running its packages' ``__init__``.

    These import what only training needs. The module itself is the trainer's own, unchanged.
    """
    package = name.partition(".")[0]
    found = importlib.util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        pytest.skip(f"{package} is not installed here; run `{target}`", allow_module_level=True)
    parts, paths = name.split(".")[:-1], list(found.submodule_search_locations)
    for depth in range(1, len(parts) + 1):
        inner = "/".join(["", *parts[1:depth]])
        bare = ModuleType(".".join(parts[:depth]))
        bare.__path__ = [path + inner for path in paths]
        sys.modules.setdefault(bare.__name__, bare)
    return importlib.import_module(name)
