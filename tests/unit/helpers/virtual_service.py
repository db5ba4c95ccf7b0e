"""The client's inside against a scripted service in virtual time."""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

from tests.unit.helpers.scripted_provider import Seesaw
from tests.unit.helpers.stand_in_service import score_of
from tests.unit.helpers.virtual_time import run_virtual

from adjudge.client.batcher import JudgeRewardResult, RequestBatcher
from adjudge.client.settings import ClientSettings
from adjudge.judges.base import HttpRequest, HttpResponse
from adjudge.judges.endpoint.endpoint import Endpoint
from adjudge.wire import JudgeRequest


class Service:
    """Answers the n-th POST as ``plan`` says: seconds, a status, an exception; ``None`` hangs."""

    def __init__(self) -> None:
        self.each: Callable[[dict[str, Any]], Any] = score_of
        self.whole: Callable[[list[dict[str, Any]]], Any] | None = None
        self.plan: Callable[[int], float | int | Exception | None] = lambda n: 0.1
        self.posts: list[tuple[float, str, list[dict[str, Any]]]] = []
        self.cancelled = 0
        self.in_flight = self.peak = 0

    async def post(self, base_url: str, request: HttpRequest) -> HttpResponse:
        payload = json.loads(request.body)
        many = request.path == "/batch_judge"
        requests = payload["requests"] if many else [payload]
        n = len(self.posts)
        self.posts.append((asyncio.get_running_loop().time(), request.path, requests))
        self.in_flight += 1
        self.peak = max(self.peak, self.in_flight)
        try:
            answer = self.plan(n)
            if isinstance(answer, Exception):
                raise answer
            await asyncio.sleep(
                1e6 if answer is None else answer if isinstance(answer, float) else 0.1
            )
            if isinstance(answer, int):
                return HttpResponse(status=answer, headers={}, body=b"{}")
            if self.whole is not None and many:
                return HttpResponse(status=200, headers={}, body=_json(self.whole(requests)))
            said = [self.each(one) for one in requests]
            body = {"responses": said} if many else said[0]
            return HttpResponse(status=200, headers={}, body=_json(body))
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.in_flight -= 1

    async def aclose(self) -> None:
        pass


def _json(body: Any) -> bytes:
    return body if isinstance(body, bytes) else json.dumps(body).encode()


_lines: list[RequestBatcher] = []


def in_virtual_time(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test on a loop of virtual time, and close its clients."""

    @functools.wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        async def main() -> None:
            _lines.clear()
            await test(*arguments, **named)
            for line in _lines:
                await line.aclose()

        run_virtual(main())

    return run


def line_to(
    service: Service, made: type[ClientSettings] = ClientSettings, **config: Any
) -> RequestBatcher:
    settings = made.from_config({"judge_url": "http://a", **config})
    key = settings.endpoint_key("test")
    endpoint = Endpoint(replace(key, transport=lambda: service), rng=Seesaw())
    line = RequestBatcher(settings, endpoint, rng=Seesaw())
    _lines.append(line)
    return line


def asked(line: RequestBatcher, completion: str, **fields: Any) -> asyncio.Task[JudgeRewardResult]:
    async def ask() -> JudgeRewardResult:
        return (await line.ask([JudgeRequest(prompt="p", completion=completion, **fields)]))[0]

    return asyncio.get_running_loop().create_task(ask())


async def answers(line: RequestBatcher, *completions: str) -> list[JudgeRewardResult]:
    waiters = [asked(line, completion) for completion in completions]
    await asyncio.wait(waiters)
    return [waiter.result() for waiter in waiters]


def scores(found: list[JudgeRewardResult]) -> list[float | None]:
    return [one.score for one in found]


def kind(result: JudgeRewardResult) -> str:
    assert result.score is None, result
    return str(result.error_kind)
