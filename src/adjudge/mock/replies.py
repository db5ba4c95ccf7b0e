"""One chat request in, what becomes of it out."""

from __future__ import annotations

import hmac
import time
from functools import lru_cache

import msgspec

from adjudge.mock.asked import Api, Asked, read_request
from adjudge.mock.behaviour import PROSE, Answer
from adjudge.mock.delivery import End, Script, deliver_body, deliver_events, middle_of
from adjudge.mock.draws import Stream, uniform
from adjudge.mock.faults import STATUS, Fault, Faults, parse_fault, parse_outage
from adjudge.mock.http import BadRequest, Head, json_ok, response
from adjudge.mock.latency import latency_of, parse_latency
from adjudge.mock.limits import Bucket, retry_headers
from adjudge.mock.settings import MockSettings, make_behaviour
from adjudge.mock.stats import Stats
from adjudge.mock.wire import Envelope, body_of, error_body, error_event, events_of

__all__ = ["Responder"]

# As DashScope words it.
_STREAM_ONLY = (
    "This model only support stream mode, please enable the stream parameter to access the model."
)
_HTML = (
    b"<html>\r\n<head><title>502 Bad Gateway</title></head>\r\n<body>\r\n<center><h1>502 Bad "
    b"Gateway</h1></center>\r\n<hr><center>mock</center>\r\n</body>\r\n</html>\r\n"
)


class Responder:
    """Decides each reply from the settings, the request and its number.

    ``started`` is the loop's time at the start, from which outages count.
    """

    def __init__(self, settings: MockSettings, seed: int, stats: Stats, started: float) -> None:
        self._stats = stats
        self._seed = seed
        self._started = started
        self._model = settings.model
        self._created = int(time.time())
        self._behaviour = make_behaviour(settings)
        self._latency = [parse_latency(spec) for spec in settings.latency]
        self._gap = settings.chunk_delay
        self._faults = Faults([parse_fault(spec) for spec in settings.fail], seed)
        self._outages = [parse_outage(spec) for spec in settings.outage]
        self._stream_only = settings.stream_only
        self._bucket = None if settings.rpm is None else Bucket(settings.rpm, started)
        key = settings.key()
        self._key = None if key is None else key.encode()
        self._guarded = bool(self._outages) or self._key is not None or self._bucket is not None
        self._ready = lru_cache(maxsize=256)(self._make_ready)

    def respond(self, api: Api, head: Head, body: bytes, now: float) -> bytes | Script:
        """The response: bytes when it is due at once, else its parts and times."""
        stats = self._stats
        stats.requests += 1
        number = stats.requests
        extra = b""
        if self._guarded:
            if (refusal := self._turned_away(api, head, now)) is not None:
                return refusal
            if self._bucket is not None:
                extra = self._bucket.headers(api)
        try:
            asked = read_request(api, body)
            if self._stream_only and not asked.stream:
                return self._refused("stream_only", api, 400, _STREAM_ONLY)
            if not self._faults:
                return self._sound(api, asked, number, extra)
            return self._perhaps_faulty(api, asked, number, extra)
        except BadRequest as error:
            return self._refused("bad_request", api, error.status, str(error))

    def down(self, now: float) -> bytes | Script | None:
        """What an outage answers at ``now``, or ``None`` when there is none."""
        since = now - self._started
        for outage in self._outages:
            if outage.start <= since < outage.end:
                if outage.status is None:
                    return Script([], End.RESET)
                return response(outage.status, error_body("openai", outage.status, "down"))
        return None

    def keyless(self, api: Api, head: Head) -> bytes | None:
        """The refusal of a request without the key, or ``None``."""
        if self._key is None or _has_key(head, self._key):
            return None
        return response(401, error_body(api, 401, "the key is missing or wrong"))

    def _turned_away(self, api: Api, head: Head, now: float) -> bytes | Script | None:
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
        return response(status, error_body(api, status, message), extra=extra)

    def _sound(self, api: Api, asked: Asked, number: int, extra: bytes) -> bytes | Script:
        """The reply when nothing goes wrong; most are ready but for their numbers."""
        behaviour = self._behaviour
        special = asked.stream or asked.logprobs is not None or asked.tool is not None
        if special or extra or not behaviour.repeats:
            return self._composed(api, asked, number, extra, None, set())
        answer = behaviour.constant
        if answer is None or not asked.plain:
            answer = behaviour.answer(asked)
        one_token = asked.choices is not None and answer.text in asked.choices
        data = self._ready(api, answer, one_token).response(number, asked.size)
        wait = self._wait(number)
        if wait > 0:
            return Script([(wait, data)], sound=True)
        self._stats.replied += 1
        return data

    def _make_ready(self, api: Api, answer: Answer, one_token: bool) -> _Ready:
        """The template of a reply, made the long way with numbers that occur nowhere else."""
        number, sent = 987_654_321_012, 876_543_210_123
        choices = [answer.text] if one_token else None
        asked = Asked(messages=[], size=4 * sent, choices=choices)
        body = body_of(api, answer, asked, Envelope(number, self._model, self._created))
        usage = msgspec.json.decode(body)["usage"]
        got = usage["completion_tokens"] if api == "openai" else usage["output_tokens"]
        template = body.replace(b"%", b"%%")
        for hole in (number, sent, sent + got):
            template = template.replace(b"%d" % hole, b"%d")
        return _Ready(template, got, api == "openai")

    def _wait(self, number: int) -> float:
        if not self._latency:
            return 0.0
        return latency_of(self._latency, self._seed, number, self._stats.in_flight)

    def _perhaps_faulty(self, api: Api, asked: Asked, number: int, extra: bytes) -> bytes | Script:
        fault = self._faults.breaking(number)
        if fault is not None and fault.name == "cut-stream" and not asked.stream:
            fault = None
        if fault is not None:
            self._stats.faults[fault.name] += 1
            if fault.name in STATUS:
                return _error(api, fault)
        changed = self._changed(asked, number)
        if fault is None and not changed:
            return self._sound(api, asked, number, extra)
        return self._composed(api, asked, number, extra, fault, changed)

    def _composed(
        self,
        api: Api,
        asked: Asked,
        number: int,
        extra: bytes,
        fault: Fault | None,
        changed: set[str],
    ) -> Script:
        answer = Answer(PROSE) if "drop-schema" in changed else self._behaviour.answer(asked)
        if fault is not None:
            answer = _spoiled(answer, fault.name)
        envelope = Envelope(number, self._model, self._created, "wrong-id" in changed)
        wait = self._wait(number)
        if asked.stream and (fault is None or not fault.name.startswith("html")):
            events = events_of(api, answer, asked, envelope)
            if fault is not None:
                events = _spoiled_events(events, fault.name, api)
            script = deliver_events(events, extra, fault, wait, self._gap)
        else:
            body = body_of(api, answer, asked, envelope)
            status, kind = 200, b"application/json"
            if fault is not None:
                status, kind, body = self._spoiled_body(body, fault.name, api, number)
            script = deliver_body(status, kind, body, extra, fault, wait)
        script.sound = script.sound and not changed
        return script

    def _changed(self, asked: Asked, number: int) -> set[str]:
        """The details that go wrong; what is to be ignored is taken out of ``asked``."""
        changed = set(self._faults.modifying(number))
        if not changed:
            return changed
        if asked.logprobs is None:
            changed.discard("drop-logprobs")
        elif "drop-logprobs" in changed:
            asked.logprobs = None
        if asked.schema is None and asked.choices is None:
            changed.discard("drop-schema")
        elif "drop-schema" in changed:
            asked.schema = asked.choices = asked.tool = None
        self._stats.faults.update(changed)
        return changed

    def _spoiled_body(
        self, body: bytes, name: str, api: Api, number: int
    ) -> tuple[int, bytes, bytes]:
        if name == "html":
            heads = uniform(self._seed, number, Stream.VARIANT) < 0.5
            name = "html-200" if heads else "html-502"
        if name in {"html-200", "html-502"}:
            return int(name[-3:]), b"text/html", _HTML
        if name == "error200":
            body = error_body(api, 500, "the engine failed")
        elif name == "truncated":
            body = body[: len(body) // 2]
        elif name == "duplicate":
            body += body
        return 200, b"application/json", body


def _spoiled_events(events: list[bytes], name: str, api: Api) -> list[bytes]:
    half = middle_of(events)
    if name == "error200":
        return [*events[:half], error_event(api, "the engine failed")]
    if name == "cut-stream":
        return events[:half]
    if name == "truncated":
        return [*events[: half - 1], events[half - 1][: len(events[half - 1]) // 2]]
    return events * 2 if name == "duplicate" else events


def _has_key(head: Head, key: bytes) -> bool:
    given = head.header(b"x-api-key")
    if given is None:
        scheme, _, given = (head.header(b"authorization") or b"").partition(b" ")
        if scheme.lower() != b"bearer":
            return False
    return hmac.compare_digest(given.strip(), key)


def _error(api: Api, fault: Fault) -> Script:
    """An error answer; errors come at once."""
    status = STATUS[fault.name]
    body = error_body(api, status, f"mock fault {fault.name}", money=fault.name == "quota")
    extra = retry_headers(api, fault.value or 0.0) if fault.name == "429-retry" else b""
    return Script([(0.0, response(status, body, extra=extra))])


def _spoiled(answer: Answer, name: str) -> Answer:
    """The answer after a fault that changes what the model says."""
    if name == "empty":
        return Answer("")
    if name == "refusal":
        return Answer("", finish="refusal")
    if name == "content-filter":
        return Answer("", finish="content_filter")
    if name == "max-tokens":
        return Answer(answer.text[: len(answer.text) // 2], answer.reasoning, "length")
    if name == "duplicate-text":
        return Answer(f"{answer.text}\n{answer.text}", answer.reasoning)
    return answer


class _Ready:
    """A response with holes for its number and its token counts."""

    def __init__(self, template: bytes, output_tokens: int, has_total: bool) -> None:
        self._template = template
        self._output = output_tokens
        self._has_total = has_total

    def response(self, number: int, size: int) -> bytes:
        """The whole response to request ``number`` of ``size`` bytes."""
        sent = -(-size // 4)
        if self._has_total:
            return json_ok(self._template % (number, sent, sent + self._output))
        return json_ok(self._template % (number, sent))
