"""Task apps on a free port of this machine: ours, and any that a test makes up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from adjudge.errors import GradingFailure
from adjudge_lab.environments import Episode, Step, TaskAppConfig, TaskAppTask, build_app

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Counting:
    """Counts down from the seed, ``by`` as many as the reply has words; each word is worth 1."""

    name = "counting"
    instructions = "Say words."

    def __init__(self, by: int = 1) -> None:
        self._by = by

    def reset(self, seed: int) -> str:
        self._seed = self._left = seed
        return f"{seed} to go"

    def step(self, reply: str) -> Step:
        words = len(reply.split()) * self._by
        self._left -= words
        info = {"left": self._left, "achievements": ["half"] * (2 * self._left <= self._seed)}
        return Step(f"{self._left} to go", float(words), self._left <= 0, info)


def counting_app(**settings: Any) -> TaskAppConfig:
    return TaskAppConfig(**{"app_id": "count", "name": "Counting", "make": Counting, **settings})


@asynccontextmanager
async def running(app: web.Application) -> AsyncIterator[str]:
    """The app's address while it runs."""
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.2)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def counting(**settings: Any) -> AsyncIterator[str]:
    async with running(build_app(counting_app(**settings))) as url:
        yield url


@asynccontextmanager
async def strange(rollout: Handler) -> AsyncIterator[str]:
    """A task app of which only ``/rollout`` is there, and does as the test says."""
    app = web.Application(client_max_size=1 << 26)
    app.add_routes([web.post("/rollout", rollout), web.get("/info", rollout)])
    async with running(app) as url:
        yield url


async def said(url: str, *messages: dict[str, Any], **more: Any) -> tuple[int, Any]:
    """Ask an OpenAI endpoint as a task app would."""
    async with aiohttp.ClientSession() as session:
        body = {"model": "any", "messages": list(messages), **more}
        async with session.post(f"{url}/v1/chat/completions", json=body) as answer:
            return answer.status, await answer.json()


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def rollout(*rewards: Any, **more: Any) -> dict[str, Any]:
    """An answer with a step for each reward."""
    steps = [{"obs": {}, "tool_calls": [], "reward": one, "done": False} for one in rewards]
    return {"trajectories": [{"steps": steps, "final": None, "length": len(steps)}], **more}


def task(url: str, **settings: Any) -> TaskAppTask:
    return TaskAppTask(url, **{"env_name": "counting", "max_turns": 20, **settings})


def words(messages: Any) -> str:
    return f"word {len(messages)}"


def against(handler: Handler, policy: Callable[..., Any] = words, **settings: Any) -> Episode:
    async def work() -> Episode:
        async with strange(handler) as url:
            return await task(url, **settings).play(5, policy)

    return asyncio.run(work())


def failure(handler: Handler, **settings: Any) -> GradingFailure:
    with pytest.raises(GradingFailure) as caught:
        against(handler, **settings)
    return caught.value


async def seat_of(request: web.Request) -> str:
    body = await request.json()
    return str(body["policy"]["config"]["inference_url"])


def speaking(answer: Any) -> Handler:
    """An app that asks for one reply and then answers so."""

    async def handler(request: web.Request) -> web.StreamResponse:
        assert (await said(await seat_of(request), user("a")))[0] == 200
        if isinstance(answer, bytes):
            return web.Response(body=answer, content_type="application/json")
        return web.json_response(answer)

    return handler
