"""The policy as an endpoint: what a task app asks while it plays an episode."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NoReturn

import msgspec
from aiohttp import web

from adjudge.errors import ConfigError, ErrorKind, GradingFailure
from adjudge.hosts import is_loopback
from adjudge.judges.wire.transport import normalize_url
from adjudge_lab.environments.task_wire import json_response, listen
from adjudge_lab.environments.tasks import (
    OutOfContext,
    Policy,
    prompt_too_long_error,
    request_reply,
)

_MAX_BODY = 16 << 20
_READ_S = 60.0
_CLOSE_S = 0.5
_PATHS = ("/{seat}", "/{seat}/chat/completions", "/{seat}/v1/chat/completions")


class _CompletionRequest(msgspec.Struct):
    """What a task app says; sampling is the policy's own affair, so that is passed over."""

    messages: list[dict[str, Any]]
    stream: bool | None = None
    n: int | None = None
    tools: list[Any] | None = None
    functions: list[Any] | None = None


class PolicySession:
    """One episode's place at the gateway, of :meth:`PolicyGateway.seat`.

    ``url`` is the base of an OpenAI endpoint, and its last part the key to it. ``messages``: the
    conversation so far, as the policy saw it, its replies included; ``replies`` counts them.
    ``asked``: whether the policy was asked at all. When the policy raises, or the task app does
    what cannot be a rollout, ``failure`` holds that and ``failed`` is set.
    """

    def __init__(self, url: str, policy: Policy) -> None:
        self.url = url
        self.messages: list[dict[str, Any]] = []
        self.replies = 0
        self.was_asked = False
        self.failure: Exception | None = None
        self.failed = asyncio.Event()
        self._policy = policy
        self._asking: asyncio.Task[Any] | None = None

    async def reply(self, messages: list[dict[str, Any]]) -> str:
        """The policy's next words; raises what it raises, and ``unsupported``."""
        if self.failure is not None:
            raise self.failure
        if self._asking is not None:
            self.refuse("asked for two replies at once")
        messages = self._grown(messages)
        self.messages, self.was_asked = messages, True
        self._asking = asyncio.current_task()
        try:
            said = await request_reply(self._policy, [*messages])
        except OutOfContext:
            if not self.replies:
                self._fail(prompt_too_long_error("task app"))
            raise
        except Exception as error:  # whatever the policy raises goes to whoever opened the seat
            self._fail(error)
            raise
        finally:
            self._asking = None
        self.messages = [*messages, {"role": "assistant", "content": said}]
        self.replies += 1
        return said

    def close(self) -> None:
        """Stop what is still being asked."""
        if self._asking is not None:
            self._asking.cancel()

    def refuse(self, what: str) -> NoReturn:
        """Raise ``unsupported``: the task app did what cannot be a rollout."""
        failure = GradingFailure(ErrorKind.UNSUPPORTED, f"the task app {what}")
        self._fail(failure)
        raise failure

    def _grown(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """What is known and what is new; refuses what is not one conversation that only grows.

        Each turn's reward could not be tied to what the policy had read and said, otherwise.
        """
        known = self.messages
        if len(messages) < len(known) or not all(map(_are_equal_messages, known, messages)):
            self.refuse(
                "rewrote the conversation between two turns (it must send all earlier messages, "
                "the policy's replies word for word, and add to them)"
            )
        new = messages[len(known) :]
        if not new and known and known[-1]["role"] == "assistant":
            self.refuse("asked again after a reply without saying anything new")
        if any(message["role"] == "assistant" for message in new):
            self.refuse("sent an assistant message that the policy did not write")
        return [*known, *new]

    def _fail(self, error: Exception) -> None:
        if self.failure is None:
            self.failure = error
            self.failed.set()


class PolicyGateway:
    """Lets task apps ask a policy in this process, as ``POST …/v1/chat/completions``.

    It listens while at least one seat is open, on the event loop that opened it; all seats that
    are open at a time are of one loop. A seat's address cannot be guessed, is good for one episode
    and one conversation, and is all that an app needs to ask.

    ``host`` and ``port`` (0: a free one) are where it listens; ``advertise`` is the base URL by
    which apps on other machines reach that, and needed where ``host`` is no loopback address.
    Raises :class:`~adjudge.errors.ConfigError`, also where the port is taken.
    """

    def __init__(
        self, *, host: str = "127.0.0.1", port: int = 0, advertise: str | None = None
    ) -> None:
        self.is_local = is_loopback(host) and advertise is None
        if not is_loopback(host) and advertise is None:
            raise ConfigError(
                f"host {host}: task apps on other machines need an address of this one. Give "
                "advertise, the http:// address by which they reach it, or use 127.0.0.1."
            )
        self._host, self._port = host, port
        self._advertise = None if advertise is None else normalize_url(advertise)
        self._listener: _GatewayServer | None = None

    @asynccontextmanager
    async def open_session(self, policy: Policy) -> AsyncIterator[PolicySession]:
        """A seat for ``policy``; afterwards its address is unknown here."""
        listener = self._listener
        if listener is None:
            listener = self._listener = _GatewayServer(self._host, self._port)
        token = secrets.token_urlsafe(32)
        listener.expected += 1
        try:
            base = await listener.start()
            seat = PolicySession(f"{self._advertise or base}/{token}", policy)
            listener.seats[token] = seat
            try:
                yield seat
            finally:
                del listener.seats[token]
                seat.close()
        finally:
            listener.expected -= 1
            if not listener.expected:
                if self._listener is listener:
                    self._listener = None
                await listener.close()


class _GatewayServer:
    """The server behind the seats that are open at a time."""

    def __init__(self, host: str, port: int) -> None:
        self.seats: dict[str, PolicySession] = {}
        self.expected = 0
        self._host, self._port = host, port
        self._starting = asyncio.Lock()
        self._base = ""
        app = web.Application(client_max_size=_MAX_BODY)
        app.add_routes([web.post(path, self._answer) for path in _PATHS])
        self._runner = web.AppRunner(
            app, access_log=None, handler_cancellation=True, shutdown_timeout=_CLOSE_S
        )

    async def start(self) -> str:
        """Listen, if that has not begun; the address."""
        async with self._starting:
            if not self._base:
                what = f"policy gateway at {self._host}:{self._port}: the gateway"
                self._base = await listen(self._runner, self._host, self._port, what)
            return self._base

    async def close(self) -> None:
        """Stop listening and drop all connections."""
        await self._runner.cleanup()

    async def _answer(self, request: web.Request) -> web.Response:
        try:
            return _completion_response(await self._complete_request(request))
        except _CompletionRefused as refused:
            error = {
                "message": str(refused),
                "type": "invalid_request_error",
                "param": None,
                "code": refused.code,
            }
            return json_response(refused.status, {"error": error})

    async def _complete_request(self, request: web.Request) -> str:
        seat = self.seats.get(request.match_info["seat"])
        if seat is None:
            raise _CompletionRefused(404, "no such seat: its episode is over, or never was")
        try:
            async with asyncio.timeout(_READ_S):
                ask = _read_completion_request(await request.read())
        except TimeoutError:
            raise _CompletionRefused(
                408, f"the request did not arrive within {_READ_S:g} s"
            ) from None
        except (ValueError, RecursionError) as error:
            raise _CompletionRefused(400, f"not understood: {error}"[:300]) from None
        try:
            _check_text_only(ask, seat)
            return await seat.reply(ask.messages)
        except OutOfContext:
            raise _CompletionRefused(
                400,
                "the conversation is longer than the policy can read",
                code="context_length_exceeded",
            ) from None
        except Exception as error:  # noqa: BLE001  (it goes on to whoever opened the seat)
            if isinstance(error, GradingFailure) and error.kind is ErrorKind.UNSUPPORTED:
                raise _CompletionRefused(400, str(error)) from None
            raise _CompletionRefused(500, "the policy failed") from None


class _CompletionRefused(Exception):
    """A completion that there is not; ``code`` is OpenAI's."""

    def __init__(self, status: int, message: str, *, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.code = status, code


def _read_completion_request(body: bytes) -> _CompletionRequest:
    """Raises ``ValueError`` (msgspec's are, too) and ``RecursionError``."""
    ask = msgspec.json.decode(body, type=_CompletionRequest)
    if not ask.messages:
        raise ValueError("messages: must not be empty")
    for place, message in enumerate(ask.messages):
        role = message.get("role")
        texts = isinstance(role, str) and isinstance(message.get("content") or "", str)
        if not texts:
            raise ValueError(f"messages.{place}: needs a role, and a text as its content")
    return ask


def _check_text_only(ask: _CompletionRequest, seat: PolicySession) -> None:
    """Raise ``unsupported`` for what a policy that speaks in words cannot give."""
    if ask.stream:
        seat.refuse("wants the reply as a stream")
    if ask.tools or ask.functions:
        seat.refuse("offers tools, and the policy answers in words only")
    if ask.n not in (None, 1):
        seat.refuse("wants several replies at once")


def _are_equal_messages(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two messages say the same; what is null or empty says nothing."""
    return one is other or _without_empty_values(one) == _without_empty_values(other)


def _without_empty_values(message: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in message.items() if value is not None and value != []}


def _completion_response(said: str) -> web.Response:
    message = {"role": "assistant", "content": said}
    return json_response(
        200,
        {
            "id": f"chatcmpl-{secrets.token_hex(8)}",
            "object": "chat.completion",
            "model": "policy",
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        },
    )
