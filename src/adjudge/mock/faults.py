"""What goes wrong and how long a reply takes: faults, outages, latency, rate limits.

Chance is reproducible: draw *k* of request *n* depends on the seed, *n* and *k* alone. So a fault
added to the command line moves no other draw, and request 17 meets the same fate in every run with
one seed, however the requests before it overlapped.

``--fail NAME[=VALUE]:PROBABILITY``: a request meets at most one of the faults that replace or break
its reply; their probabilities are shares of all requests and add up to at most 1. The few that only
change a detail (``MODIFIERS``) are drawn apart and may come on top. ``--outage`` says when all
requests fail.

``--latency``: ``fixed:0.02``, ``lognormal:0.2,1.288``, ``load:0.01`` and so on; several add
up. Every kind needs one uniform draw per request, turned by its quantile function, so that one seed
gives one latency to one request number.

``--rpm``: requests per minute as providers limit them, with the headers that tell of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import IntEnum
from statistics import NormalDist

from adjudge.config import suggest_name
from adjudge.errors import ConfigError
from adjudge.mock.http import Api

_MASK = (1 << 64) - 1


class DrawStream(IntEnum):
    """What a draw is for; the members of a family count on from the number given here."""

    FAULT = 0
    VARIANT = 1
    MODIFIER = 16
    LATENCY = 64


def _splitmix64(z: int) -> int:
    """The finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014)."""
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def draw_uniform(seed: int, number: int, stream: int) -> float:
    """A number strictly between 0 and 1 for draw ``stream`` of request ``number``."""
    z = _splitmix64((seed + number * 0x9E3779B97F4A7C15) & _MASK)
    z = _splitmix64((z + stream * 0xD1B54A32D192ED03) & _MASK)
    return ((z >> 12) + 0.5) * 2.0**-52


FAULT_STATUSES = {
    "400": 400,
    "401": 401,
    "403": 403,
    "404": 404,
    "422": 422,
    "429": 429,
    "429-retry": 429,
    "quota": 429,
    "500": 500,
    "502": 502,
    "503": 503,
    "504": 504,
    "529": 529,
}
"""Faults that are an error answer, and its HTTP status."""

FAULTS = {
    "400": "an invalid-request error",
    "401": "an authentication error",
    "403": "a permission error",
    "404": "an unknown-model error",
    "422": "an unprocessable-request error",
    "429": "rate limited, without Retry-After",
    "429-retry": "rate limited, with Retry-After (=SECONDS, default 1) and rate-limit headers",
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
    "html": "an HTML error page, half of the time with status 200, else 502",
    "html-200": "an HTML error page with status 200",
    "html-502": "an HTML error page with status 502",
    "error200": "status 200 with an error body (in a stream: an error event in its middle)",
    "refusal": "the model refuses (OpenAI: the refusal field; Anthropic: stop_reason refusal)",
    "content-filter": "moderation (OpenAI: finish_reason content_filter; Anthropic: refusal)",
    "empty": "an empty reply text",
    "max-tokens": "the reply text cut in half, finish reason length",
    "wrong-id": "another request's id (in a stream: a new id with every chunk)",
    "drop-logprobs": "log-probabilities silently left out",
    "drop-schema": "schema and choices silently ignored: the reply is prose",
}
"""Every fault and what it does."""

MODIFIERS = ("wrong-id", "drop-logprobs", "drop-schema")
"""Faults that are drawn on their own."""

_FAULT_VALUES = {"429-retry": 1.0, "hang": None, "drip": 3.0}


@dataclass(frozen=True, slots=True)
class InjectedFault:
    """One kind of trouble; ``value`` is what stood after ``=`` or its default."""

    name: str
    probability: float
    value: float | None = None


@dataclass(frozen=True, slots=True)
class Outage:
    """Down from ``start`` to ``end`` seconds after the start: resets, or ``status`` if given."""

    start: float
    end: float
    status: int | None = None


class FaultSampler:
    """All faults of a server, drawn per request number."""

    def __init__(self, faults: Sequence[InjectedFault], seed: int) -> None:
        self._seed = seed
        self._breaking = [fault for fault in faults if fault.name not in MODIFIERS]
        self._modifying = [fault for fault in faults if fault.name in MODIFIERS]
        total = sum(fault.probability for fault in self._breaking)
        if total > 1 + 1e-9:
            raise ConfigError(
                f"--fail: the sum of the probabilities must be at most 1 (found {total:g})"
            )

    def __bool__(self) -> bool:
        return bool(self._breaking or self._modifying)

    def breaking(self, number: int) -> InjectedFault | None:
        """The fault that request ``number`` meets, if any."""
        if not self._breaking:
            return None
        left = draw_uniform(self._seed, number, DrawStream.FAULT)
        for fault in self._breaking:
            left -= fault.probability
            if left < 0:
                return fault
        return None

    def modifying(self, number: int) -> tuple[str, ...]:
        """The names of the details that go wrong for request ``number``."""
        return tuple(
            fault.name
            for fault in self._modifying
            if draw_uniform(self._seed, number, DrawStream.MODIFIER + MODIFIERS.index(fault.name))
            < fault.probability
        )


def parse_fault_option(spec: str) -> InjectedFault:
    """``NAME:PROBABILITY`` or ``NAME=VALUE:PROBABILITY``; raises :class:`ConfigError`."""
    left, colon, right = spec.rpartition(":")
    if not colon:
        raise ConfigError(f"--fail {spec!r}: must have the form NAME:PROBABILITY, like 429:0.05")
    probability = _non_negative_number(right)
    if probability is None or probability > 1:
        raise ConfigError(
            f"--fail {spec!r}: the probability must be a number from 0 to 1 (found {right!r})"
        )
    name, equals, text = left.partition("=")
    if name not in FAULTS:
        hint = suggest_name(name, FAULTS)
        raise ConfigError(
            f"--fail {spec!r}: the fault {name!r} is unknown{hint} (allowed: those that "
            "adjudge mock --faults lists)"
        )
    if not equals:
        return InjectedFault(name, probability, _FAULT_VALUES.get(name))
    if name not in _FAULT_VALUES:
        raise ConfigError(
            f"--fail {spec!r}: this fault takes no value (allowed for {', '.join(_FAULT_VALUES)}). "
            "Leave the value out."
        )
    value = _non_negative_number(text)
    if value is None:
        raise ConfigError(
            f"--fail {spec!r}: the value must be a number of seconds, 0 or more (found {text!r})"
        )
    return InjectedFault(name, probability, value)


def parse_outage_option(spec: str) -> Outage:
    """``START,END`` or ``START,END,503`` in seconds; raises :class:`ConfigError`."""
    parts = spec.split(",")
    numbers = [_non_negative_number(part) for part in parts[:2]]
    start, end = numbers if len(numbers) == 2 else (None, None)
    known = len(parts) == 2 or (len(parts) == 3 and parts[2] == "503")
    if start is None or end is None or end <= start or not known:
        raise ConfigError(
            f"--outage {spec!r}: must have the form START,END (resets connections) or "
            "START,END,503, in seconds after the start, with END above START"
        )
    return Outage(start, end, 503 if len(parts) == 3 else None)


def _non_negative_number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None


LATENCY_FORMS = {
    "fixed": "fixed:SECONDS",
    "lognormal": "lognormal:MEDIAN,SIGMA",
    "hang": "hang:PROBABILITY,SECONDS",
    "load": "load:SECONDS",
}
"""The specs, by their first word."""

_standard_normal = NormalDist()


@dataclass(frozen=True, slots=True)
class Latency:
    """One part of a reply's latency: its kind and its one or two numbers."""

    kind: str
    first: float
    second: float = 0.0

    def seconds(self, u: float, in_flight: int) -> float:
        """Seconds for the draw ``u`` in (0, 1) with ``in_flight`` other requests being answered.

        fixed S: S. load S: S · in_flight. hang P, S: S with probability P (the reply comes in the
        end). lognormal m, σ: m · e^(σ·z), z standard normal; σ = 1.288 puts the 99th percentile at
        20 medians.
        """
        if self.kind == "fixed":
            return self.first
        if self.kind == "load":
            return self.first * in_flight
        if self.kind == "hang":
            return self.second if u < self.first else 0.0
        return self.first * math.exp(self.second * _standard_normal.inv_cdf(u))


def parse_latency(spec: str) -> Latency:
    """``kind:numbers`` as a latency; raises :class:`ConfigError` that shows the form."""
    kind, _, rest = spec.partition(":")
    if kind not in LATENCY_FORMS:
        hint = suggest_name(kind, LATENCY_FORMS)
        forms = ", ".join(LATENCY_FORMS.values())
        raise ConfigError(
            f"--latency {spec!r}: the kind {kind!r} is unknown{hint} (allowed: {forms})"
        )
    values = _parse_numbers(spec, rest)
    if len(values) != 1 + LATENCY_FORMS[kind].count(","):
        raise ConfigError(f"--latency {spec!r}: must have the form {LATENCY_FORMS[kind]}")
    part = Latency(kind, *values)
    if kind == "hang" and part.first > 1:
        raise ConfigError(f"--latency {spec!r}: the probability must be from 0 to 1")
    return part


def _parse_numbers(spec: str, text: str) -> list[float]:
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        values = []
    if not values or not all(math.isfinite(value) and value >= 0 for value in values):
        form = LATENCY_FORMS[spec.partition(":")[0]]
        raise ConfigError(
            f"--latency {spec!r}: must have the form {form}, with numbers of 0 or more"
        )
    return values


def draw_latency(parts: Sequence[Latency], seed: int, number: int, in_flight: int) -> float:
    """Seconds that request ``number`` takes: the sum of all parts."""
    total = 0.0
    for i, part in enumerate(parts):
        total += part.seconds(draw_uniform(seed, number, DrawStream.LATENCY + i), in_flight)
    return total


class RateLimitBucket:
    """A token bucket: full at the start, refilled evenly, ``rpm`` tokens at most."""

    def __init__(self, rpm: float, now: float) -> None:
        self.rpm = rpm
        self._capacity = max(1.0, rpm)
        self._left = self._capacity
        self._then = now

    def take(self, now: float) -> float:
        """0 when a request may pass, else the seconds until the next one may."""
        per_second = self.rpm / 60
        self._left = min(self._capacity, self._left + (now - self._then) * per_second)
        self._then = now
        if self._left >= 1.0 - 1e-9:
            self._left -= 1.0
            return 0.0
        return (1.0 - self._left) / per_second

    def headers(self, api: Api, wait: float = 0.0) -> bytes:
        """The limit, what is left, when it is full again and, with ``wait``, when to retry."""
        full_in = (self._capacity - self._left) * 60 / self.rpm
        lines = rate_limit_headers(api, self.rpm, max(0, int(self._left + 1e-9)), full_in)
        return lines + _retry_lines(api, wait, math.ceil(wait)) if wait else lines


def rate_limit_headers(api: Api, limit: float, left: int, reset_s: float) -> bytes:
    """Rate-limit headers: durations like ``6m0.5s`` (OpenAI), RFC 3339 times (Anthropic)."""
    if api == "anthropic":
        reset = (datetime.now(UTC) + timedelta(seconds=reset_s)).strftime("%Y-%m-%dT%H:%M:%SZ")
        prefix = "anthropic-ratelimit-requests-"
        lines = f"{prefix}limit: {limit:g}\r\n{prefix}remaining: {left}\r\n{prefix}reset: {reset}"
    else:
        minutes, seconds = divmod(round(reset_s, 3), 60)
        reset = f"{minutes:.0f}m{seconds:g}s" if minutes else f"{seconds:g}s"
        lines = (
            f"x-ratelimit-limit-requests: {limit:g}\r\n"
            f"x-ratelimit-remaining-requests: {left}\r\nx-ratelimit-reset-requests: {reset}"
        )
    return lines.encode() + b"\r\n"


def retry_headers(api: Api, seconds: float) -> bytes:
    """All that a provider says on refusing for ``seconds``: nothing left, and when to retry."""
    return rate_limit_headers(api, 60, 0, seconds) + _retry_lines(api, seconds, seconds)


def _retry_lines(api: Api, exact: float, shown: float) -> bytes:
    lines = b"retry-after: %b\r\n" % f"{shown:g}".encode()
    if api == "openai":
        lines += b"retry-after-ms: %d\r\n" % math.ceil(exact * 1000)
    return lines
