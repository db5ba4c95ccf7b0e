"""One chat request in, what becomes of it out.

That is the bytes of the reply in parts, when each is sent and how the connection ends.

Chance is reproducible: draw *k* of request *n* depends on the seed, *n* and *k* alone. So a fault
added to the command line moves no other draw, and request 17 meets the same fate in every run with
one seed, however the requests before it overlapped.

``--fail NAME[=VALUE]:PROBABILITY``: a request meets at most one of the faults that replace or break
its reply; their probabilities are shares of all requests and add up to at most 1. The few that only
change a detail (``MODIFIERS``) are drawn apart and may come on top.

``--latency``: ``fixed:0.02`` and ``lognormal:0.2,1.288``; several add up. Each turns one draw per
request by its quantile function, so that one seed gives one latency to one request number.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from statistics import NormalDist
from typing import Literal

import msgspec

from adjudge.config import suggest_name
from adjudge.errors import ConfigError
from adjudge.mock.behaviours import PROSE_REPLY, MockSettings, make_behaviour
from adjudge.mock.wire import (
    MODEL,
    Api,
    BadRequest,
    ChatReply,
    ChatRequest,
    MockAnswer,
    format_event,
    provider_error_body,
    read_chat_request,
)

# What a draw is for; the streams of modifiers and of latencies count on from these.
_FAULT, _MODIFIER, _LATENCY = 0, 16, 64


def _draw_uniform(seed: int, number: int, stream: int) -> float:
    """A number strictly between 0 and 1 for draw ``stream`` of request ``number``."""
    digest = hashlib.blake2b(b"%d %d %d" % (seed, number, stream), digest_size=8).digest()
    return ((int.from_bytes(digest) >> 12) + 0.5) * 2.0**-52


FAULTS = {
    "400": "an invalid-request error",
    "401": "an authentication error",
    "403": "a permission error",
    "404": "an unknown-model error",
    "422": "an unprocessable-request error",
    "429": "rate limited, without Retry-After",
    "429-retry": "rate limited, with Retry-After (=SECONDS, default 1)",
    "quota": "a 429 with insufficient_quota: no credit is left, so a retry does not help",
    "500": "an internal error",
    "502": "a bad-gateway error",
    "503": "service unavailable",
    "504": "a gateway time-out",
    "529": "overloaded",
    "reset-before": "the connection is reset before any byte of a reply",
    "reset": "the connection is reset in the middle of the body",
    "close": "the connection is closed in the middle of the body",
    "stall": "half of the body, then nothing more",
    "hang": "accepted and never answered, or only after =SECONDS",
    "drip": "the body in small pieces over =SECONDS (default 3)",
    "truncated": "JSON cut in half, the content length consistent",
    "cut-stream": "a stream that ends properly in its middle, without finish reason and [DONE]",
    "duplicate": "the body twice: two JSON documents in one",
    "duplicate-text": "the reply text twice: two verdicts in one",
    "duplicate-response": "a complete second response after the first",
    "html": "an HTML error page, with status 502 or 200 by the number of the request",
    "html-200": "an HTML error page with status 200",
    "html-502": "an HTML error page with status 502",
    "error200": "status 200 with an error body (in a stream: an error event in its middle)",
    "refusal": "the model refuses (OpenAI: the refusal field; Anthropic: stop_reason refusal)",
    "content-filter": "moderation (OpenAI: finish_reason content_filter; Anthropic: refusal)",
    "empty": "an empty reply text",
    "max-tokens": "the reply text cut in half, finish reason length",
    "wrong-id": "another request's id (in a stream: a new id with every chunk)",
    "drop-logprobs": "log-probabilities silently left out",
    "stream-only": "status 400 unless the request streams",
    "drop-schema": "schema and choices silently ignored: the reply is prose",
}
"""Every fault and what it does."""

MODIFIERS = ("wrong-id", "drop-logprobs", "drop-schema")
"""Faults that are drawn on their own."""

FAULT_STATUSES = {
    **{name: int(name[:3]) for name in FAULTS if name[0].isdigit()},
    "quota": 429,
    "stream-only": 400,
}
"""Faults that are an error answer, and its HTTP status."""

STREAM_FAULTS = {"cut-stream": True, "stream-only": False}
"""Faults of streams alone, or of whole replies alone."""

_FAULT_VALUES = {"429-retry": 1.0, "hang": None, "drip": 3.0}


@dataclass(frozen=True, slots=True)
class InjectedFault:
    """One kind of trouble; ``value`` is the number after ``=`` or its default."""

    name: str
    probability: float
    value: float | None = None


def _parse_fault(spec: str) -> InjectedFault:
    """``NAME:PROBABILITY`` or ``NAME=VALUE:PROBABILITY``; raises :class:`ConfigError`."""
    left, _, right = spec.rpartition(":")
    name, equals, text = left.partition("=")
    if left and name not in FAULTS:
        hint = suggest_name(name, FAULTS)
        raise ConfigError(
            f"--fail {spec!r}: the fault {name!r} is unknown{hint} (allowed: those that "
            "adjudge mock --faults lists)"
        )
    numbers = _read_numbers(f"{right},{text}" if equals else right)
    if not numbers or numbers[0] > 1 or (equals and name not in _FAULT_VALUES):
        raise ConfigError(
            f"--fail {spec!r}: must have the form NAME:PROBABILITY, from 0 to 1, like 429:0.05, "
            f"or NAME=SECONDS:PROBABILITY for {', '.join(_FAULT_VALUES)}"
        )
    return InjectedFault(name, numbers[0], numbers[1] if equals else _FAULT_VALUES.get(name))


def _read_numbers(text: str) -> list[float]:
    """Numbers of 0 or more between commas; none of them when one is something else."""
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        return []
    return values if all(math.isfinite(value) and value >= 0 for value in values) else []


_standard_normal = NormalDist()


def _parse_latency(spec: str) -> tuple[float, float]:
    """Median and sigma of ``lognormal:MEDIAN,SIGMA``, or of ``fixed:SECONDS``, whose sigma is 0.

    A sigma of 1.288 puts the 99th percentile at 20 medians. Raises :class:`ConfigError`.
    """
    kind, _, rest = spec.partition(":")
    numbers = _read_numbers(rest)
    if len(numbers) != {"fixed": 1, "lognormal": 2}.get(kind):
        raise ConfigError(
            f"--latency {spec!r}: must have the form fixed:SECONDS or lognormal:MEDIAN,SIGMA, with "
            "numbers of 0 or more"
        )
    return numbers[0], sum(numbers[1:])


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
        self._latencies = [_parse_latency(spec) for spec in settings.latency]
        faults = [_parse_fault(spec) for spec in settings.fail]
        self._faults = [fault for fault in faults if fault.name not in MODIFIERS]
        self._modifiers = [fault for fault in faults if fault.name in MODIFIERS]
        if (total := sum(fault.probability for fault in self._faults)) > 1 + 1e-9:
            raise ConfigError(
                f"--fail: the sum of the probabilities must be at most 1 (found {total:g})"
            )
        self._draw = partial(_draw_uniform, seed)
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

    def _draw_fault(self, request: ChatRequest, number: int) -> InjectedFault | None:
        """What replaces or breaks the reply, if anything does."""
        left = self._draw(number, _FAULT)
        for fault in self._faults:
            left -= fault.probability
            if left < 0:
                of_streams = STREAM_FAULTS.get(fault.name, request.stream)
                return fault if of_streams == request.stream else None
        return None

    def _draw_changes(self, request: ChatRequest, number: int) -> set[str]:
        """The details that go wrong; what is to be ignored is taken out of the request."""
        changed = {
            fault.name
            for fault in self._modifiers
            if self._draw(number, _MODIFIER + MODIFIERS.index(fault.name)) < fault.probability
        }
        if request.logprobs is None:
            changed.discard("drop-logprobs")
        if request.schema is None and request.choices is None:
            changed.discard("drop-schema")
        if "drop-logprobs" in changed:
            request.logprobs = None
        if "drop-schema" in changed:
            request.schema = request.choices = None
        self._stats.faults.update(changed)
        return changed

    def _respond(self, api: Api, request: ChatRequest, number: int) -> ScheduledResponse:
        fault = self._draw_fault(request, number)
        if fault is not None:
            self._stats.faults[fault.name] += 1
            if fault.name in FAULT_STATUSES or fault.name.startswith("html"):
                return _respond_error(api, fault, number)
        changed = self._draw_changes(request, number)
        name = "" if fault is None else fault.name
        answer = MockAnswer(PROSE_REPLY) if "drop-schema" in changed else self._behaviour(request)
        if fault is not None:
            answer = _corrupt_answer(answer, name)
        reply = ChatReply(answer, request, number, self._created, "wrong-id" in changed)
        wait = sum(
            median * math.exp(sigma * _standard_normal.inv_cdf(self._draw(number, _LATENCY + i)))
            for i, (median, sigma) in enumerate(self._latencies)
        )
        failed = provider_error_body(api, 500, "the engine failed")
        if request.stream:
            pieces = reply.events()
            half = max(1, (len(pieces) - 3) // 2)  # never those that tell of the stream's end
            events = _tear(pieces, half, name, [*pieces[:half], format_event(failed)])
            lines = b"cache-control: no-cache\r\ntransfer-encoding: chunked"
            head = _format_head(200, b"text/event-stream", lines)
            pieces = [*(b"%x\r\n%b\r\n" % (len(event), event) for event in events), b"0\r\n\r\n"]
        else:
            body = reply.body(api)
            size = len(body) if fault is None else max(1, -(-len(body) // _PIECES))
            pieces = [body[i : i + size] for i in range(0, len(body), size)]
            half = len(pieces) // 2
            pieces = _tear(pieces, half, name, [failed])
            length = b"content-length: %d" % sum(map(len, pieces))
            head = _format_head(200, b"application/json", length)
        response = _schedule(head, pieces, half, fault, wait)
        response.is_intact = response.is_intact and not changed
        return response


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
