"""A scripted provider, a wire without a format, and an endpoint to it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any

import pytest

from adjudge.errors import ErrorKind, GradingFailure
from adjudge.judges.base import ChatCall, HttpRequest, HttpResponse, Reply
from adjudge.judges.endpoint.endpoint import Endpoint
from adjudge.judges.endpoint.settings import CallPolicy, EndpointKey, EndpointSettings, Price
from adjudge.types import Usage

KINDS = {
    400: ErrorKind.INVALID_INPUT,
    401: ErrorKind.AUTH,
    402: ErrorKind.BUDGET,
    403: ErrorKind.AUTH,
    429: ErrorKind.RATE_LIMITED,
    451: ErrorKind.REFUSED,
}
PRICE = Price(input=0.0, output=1_000_000.0)  # a dollar per output token: sums are plain to see


class Wire:
    """The text of the first message travels as the body and comes back as the reply."""

    def request(self, call: ChatCall) -> HttpRequest:
        body = call.messages[0]["content"].encode()
        return HttpRequest(path="/chat", headers={}, body=body)

    def reply(self, call: ChatCall, response: HttpResponse) -> Reply:
        status = response.status
        if status != 200:
            kind = KINDS.get(status, ErrorKind.SERVER_ERROR)
            raise GradingFailure(kind, f"status {status}", {"status": status})
        if response.cut:
            raise GradingFailure(ErrorKind.TRUNCATED, "cut", {"status": 200})
        usage = Usage(input_tokens=10, output_tokens=1)
        return Reply(text=response.body.decode(), usage=usage, model="served")


Answer = float | int | tuple[int, Mapping[str, str]] | Exception | None
"""Seconds until a reply; a status, perhaps with headers; an exception; ``None`` hangs."""


class Provider:
    """Answers the n-th send with ``script[n]``, and all after the script with its last line."""

    def __init__(self, *script: Answer) -> None:
        self.script = script
        self.sends: list[tuple[float, str, str]] = []
        self.cancelled: list[tuple[float, int]] = []
        self.in_flight = self.peak = 0
        self.closed = False
        self.plan: Callable[[float, str, int], Answer] | None = None

    async def post(self, base_url: str, request: HttpRequest) -> HttpResponse:
        n, now = len(self.sends), asyncio.get_running_loop().time()
        self.sends.append((now, base_url, request.body.decode()))
        self.in_flight += 1
        self.peak = max(self.peak, self.in_flight)
        try:
            answer = self.script[min(n, len(self.script) - 1)] if self.script else 0.0
            if self.plan is not None:
                answer = self.plan(now, base_url, n)
            return await self._answer(answer, request)
        except asyncio.CancelledError:
            self.cancelled.append((asyncio.get_running_loop().time(), n))
            raise
        finally:
            self.in_flight -= 1

    async def _answer(self, answer: Answer, request: HttpRequest) -> HttpResponse:
        if answer is None:
            await asyncio.sleep(1e6)
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, float):
            await asyncio.sleep(answer)
            return HttpResponse(status=200, headers={}, body=request.body)
        await asyncio.sleep(0.01)
        status, headers = answer if isinstance(answer, tuple) else (answer or 200, {})
        return HttpResponse(status=status, headers=headers, body=b"", cut=status == 200)

    async def aclose(self) -> None:
        self.closed = True


class Seesaw(random.Random):
    """Jitter that is always the most it can be."""

    def uniform(self, a: float, b: float) -> float:
        return b


class Line:
    """An endpoint, its provider, and shorthands."""

    def __init__(
        self, provider: Provider, urls: Sequence[str] = ("http://a",), **more: Any
    ) -> None:
        cache = more.pop("cache", None)
        names = CallPolicy.__struct_fields__
        policy = CallPolicy(**{name: more.pop(name) for name in names if name in more})
        self.provider = provider
        how = EndpointSettings(**more), policy, cache
        key = EndpointKey("test", tuple(urls), "", *how, transport=lambda: provider)
        self.endpoint = Endpoint(key, rng=Seesaw())
        self.wire = Wire()

    async def ask(self, text: str = "q", *, draw: int = 0, price: Price | None = None,
                  group: str | None = None, form: Mapping[str, Any] | None = None,
                  **sampling: Any) -> Reply:  # fmt: skip
        call = ChatCall(model="m", messages=[{"content": text}], draw=draw, sampling=sampling,
                        group=group, **(form or {}))  # fmt: skip
        return await self.endpoint.ask(call, self.wire, price=price)

    async def warm(self, seconds: float = 1.0, n: int = 40) -> None:
        """Make the usual latency known, then forget the sends."""
        script, self.provider.script = self.provider.script, (seconds,)
        plan, self.provider.plan = self.provider.plan, None
        await together(*(self.ask(f"warm {i}") for i in range(n)))
        self.provider.script, self.provider.plan = script, plan
        self.provider.sends.clear()


async def together(*asks: Coroutine[Any, Any, Any]) -> list[Any]:
    """All outcomes, exceptions as values, in order."""
    tasks = [asyncio.ensure_future(ask) for ask in asks]
    await asyncio.wait(tasks)
    return [task.exception() or task.result() for task in tasks]


def now() -> float:
    return asyncio.get_running_loop().time()


async def failure(ask: Awaitable[Reply]) -> GradingFailure:
    with pytest.raises(GradingFailure) as caught:
        await ask
    return caught.value
