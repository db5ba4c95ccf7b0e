"""One chat request in, what becomes of it out.

That is the bytes of the reply in parts, when each is sent and how the connection ends.
"""

from __future__ import annotations

import hmac
import math
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Literal

import msgspec

from adjudge.mock.behaviours import PROSE_REPLY, MockSettings, make_behaviour
from adjudge.mock.faults import (
    FAULT_STATUSES,
    STREAM_FAULTS,
    FaultSampler,
    InjectedFault,
    Latency,
)
from adjudge.mock.wire import (
    MODEL,
    Api,
    BadRequest,
    ChatReply,
    ChatRequest,
    MockAnswer,
    error_event,
    provider_error_body,
    read_chat_request,
)


@dataclass
class MockStats:
    """Counts since the start.

    ``requests``: chat requests, all of them. ``replied``: sound replies sent to the end.
    ``refused``: by reason (``bad_request key``). ``faults``: by name.
    ``cancelled``: requests whose client left before the reply had ended.
    """

    requests: int = 0
    replied: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    cancelled: int = 0
    connections: int = 0
    in_flight: int = 0
    in_flight_peak: int = 0

    def as_dict(self, open_connections: int) -> dict[str, Any]:
        """The counts as JSON has them."""
        found = vars(self) | {
            "connections": {"total": self.connections, "open": open_connections},
            "in_flight": {"now": self.in_flight, "peak": self.in_flight_peak},
        }
        del found["in_flight_peak"]
        return found


ConnectionEnd = Literal["keep", "close", "reset", "hang"]
"""What becomes of the connection after the last part."""

_PIECES = 20
_RESET_AFTER_S = 0.005  # so that the client sees the first half before the reset
_REASONS = {status.value: status.phrase for status in HTTPStatus} | {529: "Overloaded"}


@dataclass(slots=True)
class ScheduledResponse:
    """Parts, each with the seconds to wait before it, and the end; intact: a sound chat reply."""

    steps: list[tuple[float, bytes]]
    end: ConnectionEnd = "keep"
    is_intact: bool = False


def respond_at_once(
    status: int, body: bytes, extra: bytes = b"", kind: bytes = b"application/json"
) -> ScheduledResponse:
    """A whole response, due now."""
    head = _format_head(status, kind, extra + b"content-length: %d" % len(body))
    return ScheduledResponse([(0.0, head + body)])


def _format_head(status: int, content_type: bytes, lines: bytes) -> bytes:
    return b"HTTP/1.1 %d %b\r\ncontent-type: %b\r\n%b\r\n\r\n" % (
        status, _REASONS[status].encode(), content_type, lines,
    )  # fmt: skip


def _schedule(
    head: bytes, pieces: list[bytes], middle: int, fault: InjectedFault | None, wait: float
) -> ScheduledResponse:
    """The response after ``wait`` seconds, or what a fault of the connection leaves of it."""
    whole = head + b"".join(pieces)
    if fault is None:
        return ScheduledResponse([(wait, whole)], is_intact=True)
    half = (wait, head + b"".join(pieces[:middle]))
    seconds = fault.value or 0.0
    gap = seconds / max(1, len(pieces))
    steps: dict[str, tuple[list[tuple[float, bytes]], ConnectionEnd]] = {
        "hang": ([], "hang") if fault.value is None else ([(wait + seconds, whole)], "keep"),
        "drip": ([(wait, head), *((gap, piece) for piece in pieces)], "keep"),
        "duplicate-response": ([(wait, whole * 2)], "keep"),
        "reset-before": ([(wait, b"")], "reset"),
        "reset": ([half, (_RESET_AFTER_S, b"")], "reset"),
        "close": ([half], "close"),
        "stall": ([half], "hang"),
    }
    return ScheduledResponse(*steps.get(fault.name, ([(wait, whole)], "keep")))


# As DashScope words it.
_STREAM_ONLY_MESSAGE = (
    "This model only support stream mode, please enable the stream parameter to access the model."
)
_FAILED = "the engine failed"
_HTML_PAGE = (
    b"<html>\r\n<head><title>502 Bad Gateway</title></head>\r\n<body>\r\n<center><h1>502 Bad "
    b"Gateway</h1></center>\r\n<hr><center>mock</center>\r\n</body>\r\n</html>\r\n"
)


class _Scored(msgspec.Struct):
    score: float = 0.0


class Responder:
    """Decides each reply from the settings, the request and its number."""

    def __init__(self, settings: MockSettings, seed: int, stats: MockStats) -> None:
        self._stats = stats
        self._created = int(time.time())
        self._behaviour = make_behaviour(settings)
        self._latency = Latency(settings.latency, seed)
        self._faults = FaultSampler(settings.fail, seed)
        self._key = settings.key().encode()

    def respond(self, api: Api, headers: Mapping[str, str], body: bytes) -> ScheduledResponse:
        """The response to a chat request."""
        self._stats.requests += 1
        number = self._stats.requests
        if (refusal := self.keyless(api, headers)) is not None:
            self._stats.refused["key"] += 1
            return refusal
        try:
            request = read_chat_request(api, body)
            if api == "classify":
                return self._classify(request)
            return self._respond(api, request, number)
        except (BadRequest, msgspec.ValidationError) as error:
            self._stats.refused["bad_request"] += 1
            return respond_at_once(400, provider_error_body(api, 400, str(error)))

    def _classify(self, request: ChatRequest) -> ScheduledResponse:
        """A scalar judge's output, as vLLM's ``/classify`` gives it: score + log(1 + characters).

        Of the behaviour's score and the length of the response, for a judge that says the same of
        every response is refused as none.
        """
        text = request.user = request.assistant
        try:
            score = msgspec.json.decode(self._behaviour(request).text, type=_Scored).score
        except msgspec.DecodeError:
            score = 0.0
        self._stats.replied += 1
        answer = {
            "data": [{"probs": [score + math.log1p(len(text))]}],
            "model": MODEL,
            "usage": {"prompt_tokens": -(-request.size // 4)},
        }
        return respond_at_once(200, msgspec.json.encode(answer))

    def keyless(self, api: Api, headers: Mapping[str, str]) -> ScheduledResponse | None:
        """The refusal of a request without the key, or ``None``."""
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        given = headers.get("x-api-key", bearer if scheme.lower() == "bearer" else "")
        if not self._key or hmac.compare_digest(given.strip().encode(), self._key):
            return None
        return respond_at_once(401, provider_error_body(api, 401, "the key is missing or wrong"))

    def _respond(self, api: Api, request: ChatRequest, number: int) -> ScheduledResponse:
        fault = self._faults.breaking(number)
        if fault is not None and STREAM_FAULTS.get(fault.name, request.stream) != request.stream:
            fault = None
        if fault is not None:
            self._stats.faults[fault.name] += 1
            if fault.name in FAULT_STATUSES or fault.name.startswith("html"):
                return _respond_error(api, fault, number)
        changed = self._apply_modifiers(request, number)
        name = "" if fault is None else fault.name
        drops = "drop-schema" in changed
        answer = MockAnswer(PROSE_REPLY) if drops else self._behaviour(request)
        if fault is not None:
            answer = _corrupt_answer(answer, name)
        reply = ChatReply(answer, request, number, self._created, "wrong-id" in changed)
        wait = self._latency.draw(number, self._stats.in_flight)
        if request.stream:
            pieces = reply.events(api)
            half = max(1, (len(pieces) - 3) // 2)  # never those that tell of the stream's end
            events = _tear(pieces, half, name, [*pieces[:half], error_event(api, _FAILED)])
            lines = b"cache-control: no-cache\r\ntransfer-encoding: chunked"
            head = _format_head(200, b"text/event-stream", lines)
            pieces = [*(b"%x\r\n%b\r\n" % (len(event), event) for event in events), b"0\r\n\r\n"]
        else:
            body = reply.body(api)
            size = len(body) if fault is None else max(1, -(-len(body) // _PIECES))
            pieces = [body[i : i + size] for i in range(0, len(body), size)]
            half = len(pieces) // 2
            pieces = _tear(pieces, half, name, [provider_error_body(api, 500, _FAILED)])
            length = b"content-length: %d" % sum(map(len, pieces))
            head = _format_head(200, b"application/json", length)
        response = _schedule(head, pieces, half, fault, wait)
        response.is_intact = response.is_intact and not changed
        return response

    def _apply_modifiers(self, request: ChatRequest, number: int) -> set[str]:
        """The details that go wrong; what is to be ignored is taken out of the request."""
        changed = self._faults.modifying(number)
        if request.logprobs is None:
            changed.discard("drop-logprobs")
        elif "drop-logprobs" in changed:
            request.logprobs = None
        if request.schema is None and request.choices is None:
            changed.discard("drop-schema")
        elif "drop-schema" in changed:
            request.schema = request.choices = None
        self._stats.faults.update(changed)
        return changed


def _respond_error(api: Api, fault: InjectedFault, number: int) -> ScheduledResponse:
    """An error answer; errors come at once."""
    name = fault.name
    if name.startswith("html"):
        status = int(name[5:] or (502, 200)[number % 2])
        return respond_at_once(status, _HTML_PAGE, kind=b"text/html")
    said = _STREAM_ONLY_MESSAGE if name == "stream-only" else f"mock fault {name}"
    status, extra = FAULT_STATUSES[name], b""
    body = provider_error_body(api, status, said, money=name == "quota")
    if name == "429-retry":
        extra = b"retry-after: %d\r\n" % math.ceil(fault.value or 0.0)
    return respond_at_once(status, body, extra)


def _tear(pieces: list[bytes], half: int, name: str, failed: list[bytes]) -> list[bytes]:
    """The pieces of a body, or of a stream its events, after a fault that changes them."""
    torn = {
        "error200": failed,
        "cut-stream": pieces[:half],
        "truncated": [*pieces[: half - 1], pieces[half - 1][: len(pieces[half - 1]) // 2]],
        "duplicate": pieces * 2,
    }
    return torn.get(name, pieces)


def _corrupt_answer(answer: MockAnswer, name: str) -> MockAnswer:
    """The answer after a fault that changes what the model says."""
    text = answer.text
    changed = {
        "empty": MockAnswer(""),
        "refusal": MockAnswer("", finish="refusal"),
        "content-filter": MockAnswer("", finish="content_filter"),
        "max-tokens": MockAnswer(text[: len(text) // 2], answer.reasoning, "length"),
        "duplicate-text": MockAnswer(f"{text}\n{text}", answer.reasoning),
    }
    return changed.get(name, answer)
