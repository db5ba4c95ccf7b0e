"""One chat request in, what becomes of it out.

That is the reply in parts, when each is sent and how it ends; and what was counted.
"""

from __future__ import annotations

import hmac
import math
import time
from collections import Counter
from enum import IntEnum
from typing import Any

import msgspec

from adjudge.mock.behaviours import PROSE_REPLY, MockAnswer, MockSettings, make_behaviour
from adjudge.mock.faults import (
    FAULT_STATUSES,
    DrawStream,
    FaultSampler,
    InjectedFault,
    RateLimitBucket,
    draw_latency,
    draw_uniform,
    parse_fault_option,
    parse_latency,
    parse_outage_option,
    retry_headers,
)
from adjudge.mock.http import (
    LAST_CHUNK,
    Api,
    BadRequest,
    ChatRequest,
    RequestHead,
    format_chunk,
    format_response,
    format_stream_head,
    last_text,
    read_chat_request,
)
from adjudge.mock.responses import (
    ReplyEnvelope,
    error_event,
    provider_error_body,
    response_body,
    response_events,
)


class MockStats:
    """Counts since the start.

    ``requests``: chat requests, all of them. ``replied``: sound replies sent to the end.
    ``refused``: by reason (``bad_request outage key rpm stream_only``). ``faults``: by name.
    ``cancelled``: requests whose client left before the reply had ended.
    """

    def __init__(self) -> None:
        self.requests = 0
        self.replied = 0
        self.cancelled = 0
        self.connections = 0
        self.open = 0
        self.in_flight = 0
        self.in_flight_peak = 0
        self.refused: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()

    def as_dict(self) -> dict[str, Any]:
        """The counts as JSON has them."""
        return {
            "requests": self.requests,
            "replied": self.replied,
            "refused": dict(self.refused),
            "faults": dict(self.faults),
            "cancelled": self.cancelled,
            "connections": {"total": self.connections, "open": self.open},
            # A reply without latency is never seen in flight.
            "in_flight": {
                "now": self.in_flight,
                "peak": max(self.in_flight_peak, min(1, self.requests)),
            },
        }


class _Scored(msgspec.Struct):
    score: float = 0.0


_PIECES = 20
_RESET_AFTER_S = 0.005  # so that the client sees the first half before the reset


class ConnectionEnd(IntEnum):
    """What becomes of the connection after the last part."""

    KEEP = 0
    CLOSE = 1
    RESET = 2
    HANG = 3


class ScheduledResponse(msgspec.Struct, gc=False):
    """Parts, each with the seconds to wait before it, and the end.

    ``sound`` when nothing was done to the reply.
    """

    steps: list[tuple[float, bytes]]
    end: ConnectionEnd = ConnectionEnd.KEEP
    is_intact: bool = False


def schedule_body(
    status: int,
    content_type: bytes,
    body: bytes,
    extra: bytes,
    fault: InjectedFault | None,
    wait: float,
) -> ScheduledResponse:
    """A whole body after ``wait`` seconds, or what ``fault`` leaves of it."""
    whole = format_response(status, body, content_type, extra)
    if fault is None:
        return ScheduledResponse([(wait, whole)], is_intact=True)
    if fault.name == "duplicate-response":
        return ScheduledResponse([(wait, whole + whole)])
    head_size = len(whole) - len(body)
    size = max(1, -(-len(body) // _PIECES))
    pieces = [body[i : i + size] for i in range(0, len(body), size)]
    middle = len(pieces) // 2
    if (broken := _schedule_broken(whole[:head_size], pieces, middle, fault, wait)) is not None:
        return broken
    return ScheduledResponse([(wait, whole)])


def schedule_events(
    events: list[bytes], extra: bytes, fault: InjectedFault | None, wait: float
) -> ScheduledResponse:
    """A stream: all events after ``wait`` seconds."""
    head = format_stream_head(extra)
    pieces = [format_chunk(event) for event in events]
    pieces.append(LAST_CHUNK)
    if fault is not None:
        if fault.name == "duplicate-response":
            return ScheduledResponse([(wait, (head + b"".join(pieces)) * 2)])
        if (
            broken := _schedule_broken(head, pieces, first_half_size(events), fault, wait)
        ) is not None:
            return broken
    return ScheduledResponse([(wait, head + b"".join(pieces))], is_intact=fault is None)


def first_half_size(events: list[bytes]) -> int:
    """How many events make the first half of a stream; never those that tell of its end."""
    return max(1, (len(events) - 3) // 2)


def _schedule_broken(
    head: bytes, pieces: list[bytes], middle: int, fault: InjectedFault, wait: float
) -> ScheduledResponse | None:
    """The script of a fault of the connection, or ``None`` for another fault."""
    name, value = fault.name, fault.value
    if name == "reset-before":
        return ScheduledResponse([(wait, b"")], ConnectionEnd.RESET)
    if name == "hang":
        if value is None:
            return ScheduledResponse([], ConnectionEnd.HANG)
        return ScheduledResponse([(wait + value, head + b"".join(pieces))])
    if name == "drip":
        gap = (value or 0.0) / max(1, len(pieces))
        return ScheduledResponse([(wait, head)] + [(gap, piece) for piece in pieces])
    ends = {"reset": ConnectionEnd.RESET, "close": ConnectionEnd.CLOSE, "stall": ConnectionEnd.HANG}
    if name not in ends:
        return None
    half = (wait, head + b"".join(pieces[:middle]))
    rest = [(_RESET_AFTER_S, b"")] if name == "reset" else []
    return ScheduledResponse([half, *rest], ends[name])


# As DashScope words it.
_STREAM_ONLY_MESSAGE = (
    "This model only support stream mode, please enable the stream parameter to access the model."
)
_HTML_PAGE = (
    b"<html>\r\n<head><title>502 Bad Gateway</title></head>\r\n<body>\r\n<center><h1>502 Bad "
    b"Gateway</h1></center>\r\n<hr><center>mock</center>\r\n</body>\r\n</html>\r\n"
)


class Responder:
    """Decides each reply from the settings, the request and its number.

    ``started`` is the loop's time at the start, from which outages count.
    """

    def __init__(self, settings: MockSettings, seed: int, stats: MockStats, started: float) -> None:
        self._stats = stats
        self._seed = seed
        self._started = started
        self._model = settings.model
        self._created = int(time.time())
        self._behaviour = make_behaviour(settings)
        self._latency = [parse_latency(spec) for spec in settings.latency]
        self._faults = FaultSampler([parse_fault_option(spec) for spec in settings.fail], seed)
        self._outages = [parse_outage_option(spec) for spec in settings.outage]
        self._stream_only = settings.stream_only
        self._bucket = None if settings.rpm is None else RateLimitBucket(settings.rpm, started)
        key = settings.key()
        self._key = None if key is None else key.encode()
        self._guarded = bool(self._outages) or self._key is not None or self._bucket is not None

    def respond(
        self, api: Api, head: RequestHead, body: bytes, now: float
    ) -> bytes | ScheduledResponse:
        """The response: bytes when it is due at once, else its parts and times."""
        stats = self._stats
        stats.requests += 1
        number = stats.requests
        extra = b""
        if self._guarded:
            if (refusal := self._refuse_unread(api, head, now)) is not None:
                return refusal
            if self._bucket is not None:
                extra = self._bucket.headers(api)
        try:
            request = read_chat_request(api, body)
            if self._stream_only and not request.stream:
                return self._refused("stream_only", api, 400, _STREAM_ONLY_MESSAGE)
            return self._respond(api, request, number, extra)
        except BadRequest as error:
            return self._refused("bad_request", api, error.status, str(error))

    def classify(self, head: RequestHead, body: bytes, now: float) -> bytes | ScheduledResponse:
        """A scalar judge's output, as vLLM's ``/classify`` gives it: score + log(1 + characters).

        Of the behaviour's score and the length of the response, for a judge that says the same of
        every response is refused as none.
        """
        self._stats.requests += 1
        if (refusal := self._refuse_unread("openai", head, now)) is not None:
            return refusal
        try:
            text = last_text(read_chat_request("openai", body).messages, "assistant")
            said = msgspec.Raw(msgspec.json.encode({"role": "user", "content": text}))
            reply = self._behaviour.answer(ChatRequest(messages=[said], size=len(body))).text
        except BadRequest as error:
            return self._refused("bad_request", "openai", error.status, str(error))
        try:
            score = msgspec.json.decode(reply, type=_Scored).score
        except msgspec.DecodeError:
            score = 0.0
        self._stats.replied += 1
        output = {"probs": [score + math.log1p(len(text))]}
        usage = {"prompt_tokens": -(-len(body) // 4)}
        answer = {"data": [output], "model": self._model, "usage": usage}
        return format_response(200, msgspec.json.encode(answer))

    def down(self, now: float) -> bytes | ScheduledResponse | None:
        """What an outage answers at ``now``, or ``None`` when there is none."""
        since = now - self._started
        for outage in self._outages:
            if outage.start <= since < outage.end:
                if outage.status is None:
                    return ScheduledResponse([], ConnectionEnd.RESET)
                return format_response(
                    outage.status, provider_error_body("openai", outage.status, "down")
                )
        return None

    def keyless(self, api: Api, head: RequestHead) -> bytes | None:
        """The refusal of a request without the key, or ``None``."""
        if self._key is None or _has_key(head, self._key):
            return None
        return format_response(401, provider_error_body(api, 401, "the key is missing or wrong"))

    def _refuse_unread(
        self, api: Api, head: RequestHead, now: float
    ) -> bytes | ScheduledResponse | None:
        """The refusal of a request that is not even looked at."""
        if (down := self.down(now)) is not None:
            self._stats.refused["outage"] += 1
            return down
        if (refusal := self.keyless(api, head)) is not None:
            self._stats.refused["key"] += 1
            return refusal
        if self._bucket is not None and (wait := self._bucket.take(now)):
            headers = self._bucket.headers(api, wait)
            return self._refused("rpm", api, 429, "requests per minute exceeded", headers)
        return None

    def _refused(
        self, reason: str, api: Api, status: int, message: str, extra: bytes = b""
    ) -> bytes:
        self._stats.refused[reason] += 1
        return format_response(status, provider_error_body(api, status, message), extra=extra)

    def _wait(self, number: int) -> float:
        if not self._latency:
            return 0.0
        return draw_latency(self._latency, self._seed, number, self._stats.in_flight)

    def _respond(
        self, api: Api, request: ChatRequest, number: int, extra: bytes
    ) -> bytes | ScheduledResponse:
        fault = self._faults.breaking(number)
        if fault is not None and fault.name == "cut-stream" and not request.stream:
            fault = None
        if fault is not None:
            self._stats.faults[fault.name] += 1
            if fault.name in FAULT_STATUSES:
                return _schedule_error(api, fault)
        changed = self._apply_modifiers(request, number)
        return self._composed(api, request, number, extra, fault, changed)

    def _composed(
        self,
        api: Api,
        request: ChatRequest,
        number: int,
        extra: bytes,
        fault: InjectedFault | None,
        changed: set[str],
    ) -> ScheduledResponse:
        answer = (
            MockAnswer(PROSE_REPLY) if "drop-schema" in changed else self._behaviour.answer(request)
        )
        if fault is not None:
            answer = _corrupt_answer(answer, fault.name)
        envelope = ReplyEnvelope(number, self._model, self._created, "wrong-id" in changed)
        wait = self._wait(number)
        if request.stream and (fault is None or not fault.name.startswith("html")):
            events = response_events(api, answer, request, envelope)
            if fault is not None:
                events = _corrupt_events(events, fault.name, api)
            script = schedule_events(events, extra, fault, wait)
        else:
            body = response_body(api, answer, request, envelope)
            status, kind = 200, b"application/json"
            if fault is not None:
                status, kind, body = self._spoiled_body(body, fault.name, api, number)
            script = schedule_body(status, kind, body, extra, fault, wait)
        script.is_intact = script.is_intact and not changed
        return script

    def _apply_modifiers(self, request: ChatRequest, number: int) -> set[str]:
        """The details that go wrong; what is to be ignored is taken out of ``asked``."""
        changed = set(self._faults.modifying(number))
        if not changed:
            return changed
        if request.logprobs is None:
            changed.discard("drop-logprobs")
        elif "drop-logprobs" in changed:
            request.logprobs = None
        if request.schema is None and request.choices is None:
            changed.discard("drop-schema")
        elif "drop-schema" in changed:
            request.schema = request.choices = request.tool = request.block = None
        self._stats.faults.update(changed)
        return changed

    def _spoiled_body(
        self, body: bytes, name: str, api: Api, number: int
    ) -> tuple[int, bytes, bytes]:
        if name == "html":
            heads = draw_uniform(self._seed, number, DrawStream.VARIANT) < 0.5
            name = "html-200" if heads else "html-502"
        if name in {"html-200", "html-502"}:
            return int(name[-3:]), b"text/html", _HTML_PAGE
        if name == "error200":
            body = provider_error_body(api, 500, "the engine failed")
        elif name == "truncated":
            body = body[: len(body) // 2]
        elif name == "duplicate":
            body += body
        return 200, b"application/json", body


def _corrupt_events(events: list[bytes], name: str, api: Api) -> list[bytes]:
    half = first_half_size(events)
    if name == "error200":
        return [*events[:half], error_event(api, "the engine failed")]
    if name == "cut-stream":
        return events[:half]
    if name == "truncated":
        return [*events[: half - 1], events[half - 1][: len(events[half - 1]) // 2]]
    return events * 2 if name == "duplicate" else events


def _has_key(head: RequestHead, key: bytes) -> bool:
    given = head.header(b"x-api-key")
    if given is None:
        scheme, _, given = (head.header(b"authorization") or b"").partition(b" ")
        if scheme.lower() != b"bearer":
            return False
    return hmac.compare_digest(given.strip(), key)


def _schedule_error(api: Api, fault: InjectedFault) -> ScheduledResponse:
    """An error answer; errors come at once."""
    status = FAULT_STATUSES[fault.name]
    body = provider_error_body(api, status, f"mock fault {fault.name}", money=fault.name == "quota")
    extra = retry_headers(api, fault.value or 0.0) if fault.name == "429-retry" else b""
    return ScheduledResponse([(0.0, format_response(status, body, extra=extra))])


def _corrupt_answer(answer: MockAnswer, name: str) -> MockAnswer:
    """The answer after a fault that changes what the model says."""
    if name == "empty":
        return MockAnswer("")
    if name == "refusal":
        return MockAnswer("", finish="refusal")
    if name == "content-filter":
        return MockAnswer("", finish="content_filter")
    if name == "max-tokens":
        return MockAnswer(answer.text[: len(answer.text) // 2], answer.reasoning, "length")
    if name == "duplicate-text":
        return MockAnswer(f"{answer.text}\n{answer.text}", answer.reasoning)
    return answer
