"""A judge service that does as it is told, over real sockets, in a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from adjudge.client import JudgeRewardSystem

Answer = tuple[int, Any] | tuple[int, Any, dict[str, str]]
"""Status, body (bytes as they are, else JSON), headers."""


def score_of(request: dict[str, Any]) -> dict[str, Any]:
    """Half the completion's length in tenths: tells every completion's score from the others'."""
    return {
        "score": len(request["completion"]) / 100,
        "request_id": request["request_id"],
        "explanation": f"{len(request['completion'])} characters",
        "metadata": {"latency": 0.001, "model_version": "v1"},
    }


@dataclass
class StandIn:
    """``each`` answers one request, ``whole`` a whole POST (``None``: as ``each`` says)."""

    url: str = ""
    version: str = "v1"
    delay: float = 0.0
    each: Callable[[dict[str, Any]], Any] = score_of
    whole: Callable[[str, list[dict[str, Any]]], Answer | None] = lambda path, requests: None
    posts: list[tuple[str, list[dict[str, Any]]]] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    in_flight: int = 0
    peak: int = 0

    async def say_health(self, _: web.Request) -> web.Response:
        return web.json_response({"model_version": self.version})

    @property
    def requests(self) -> list[dict[str, Any]]:
        return [request for _, requests in self.posts for request in requests]

    async def handle(self, http: web.Request) -> web.Response:
        self.in_flight += 1
        self.peak = max(self.peak, self.in_flight)
        try:
            payload = await http.json()
            many = http.path == "/batch_judge"
            requests = payload["requests"] if many else [payload]
            self.posts.append((http.path, requests))
            self.keys.append(http.headers.get("authorization"))
            if self.delay:
                await asyncio.sleep(self.delay)
            answer = self.whole(http.path, requests)
            if answer is None:
                said = [self.each(request) for request in requests]
                answer = 200, {"responses": said} if many else said[0]
            status, body, *headers = answer
            raw = body if isinstance(body, bytes) else json.dumps(body).encode()
            return web.Response(
                status=status,
                body=raw,
                content_type="application/json",
                headers=headers[0] if headers else None,
            )
        finally:
            self.in_flight -= 1


@contextlib.contextmanager
def stand_in(**options: Any) -> Iterator[StandIn]:
    """A running service; stopped, with its thread, at the end."""
    service = StandIn(**options)
    loop = asyncio.new_event_loop()
    ready = threading.Event()
    app = web.Application(client_max_size=64 << 20)
    app.router.add_post("/{path}", service.handle)
    app.router.add_get("/health", service.say_health)
    runner = web.AppRunner(app, shutdown_timeout=0.1)

    async def start() -> None:
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        service.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        ready.set()

    def run() -> None:
        loop.run_until_complete(start())
        loop.run_forever()
        loop.run_until_complete(runner.cleanup())
        loop.close()

    thread = threading.Thread(target=run, name="stand-in")
    thread.start()
    ready.wait(10)
    try:
        yield service
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)


def system(url: str, **config: Any) -> JudgeRewardSystem:
    """Rewards from it, soon."""
    return JudgeRewardSystem({"judge_url": url, "batch_timeout": 0.005, **config})
