"""What goes wrong, how often, and when: ``--fail NAME[=VALUE]:PROBABILITY`` and ``--outage``.

A request meets at most one of the faults that replace or break its reply; their probabilities are
shares of all requests and add up to at most 1. The few that only change a detail (``MODIFIERS``)
are drawn apart and may come on top.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from adjudge.config import nearest
from adjudge.errors import ConfigError
from adjudge.mock.draws import Stream, uniform

__all__ = [
    "FAULTS",
    "MODIFIERS",
    "STATUS",
    "Fault",
    "Faults",
    "Outage",
    "parse_fault",
    "parse_outage",
]

STATUS = {
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
    "429": "rate limited, without saying for how long",
    "429-retry": "rate limited, with Retry-After (=SECONDS, default 1) and rate-limit headers",
    "quota": "a 429 that means money: insufficient_quota, no retry helps",
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
    "duplicate-response": "a whole second response that nobody asked for",
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

_VALUED = {"429-retry": 1.0, "hang": None, "drip": 3.0}


@dataclass(frozen=True, slots=True)
class Fault:
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


class Faults:
    """All faults of a server, drawn per request number."""

    def __init__(self, faults: Sequence[Fault], seed: int) -> None:
        self._seed = seed
        self._breaking = [fault for fault in faults if fault.name not in MODIFIERS]
        self._modifying = [fault for fault in faults if fault.name in MODIFIERS]
        total = sum(fault.probability for fault in self._breaking)
        if total > 1 + 1e-9:
            raise ConfigError(f"--fail: the probabilities add up to {total:g}; at most 1 is left")

    def __bool__(self) -> bool:
        return bool(self._breaking or self._modifying)

    def breaking(self, number: int) -> Fault | None:
        """The fault that request ``number`` meets, if any."""
        if not self._breaking:
            return None
        left = uniform(self._seed, number, Stream.FAULT)
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
            if uniform(self._seed, number, Stream.MODIFIER + MODIFIERS.index(fault.name))
            < fault.probability
        )


def parse_fault(spec: str) -> Fault:
    """``NAME:PROBABILITY`` or ``NAME=VALUE:PROBABILITY``; raises :class:`ConfigError`."""
    left, colon, right = spec.rpartition(":")
    if not colon:
        raise ConfigError(f"--fail {spec!r}: must have the form NAME:PROBABILITY, like 429:0.05")
    probability = _number(right)
    if probability is None or probability > 1:
        raise ConfigError(f"--fail {spec!r}: the probability must be within 0 and 1, not {right!r}")
    name, equals, text = left.partition("=")
    if name not in FAULTS:
        hint = nearest(name, FAULTS)
        raise ConfigError(
            f"--fail {spec!r}: unknown fault {name!r}{hint} (see adjudge mock --help)"
        )
    if not equals:
        return Fault(name, probability, _VALUED.get(name))
    if name not in _VALUED:
        raise ConfigError(f"--fail {spec!r}: only {', '.join(_VALUED)} take a value")
    value = _number(text)
    if value is None:
        raise ConfigError(f"--fail {spec!r}: {text!r} must be seconds, 0 or more")
    return Fault(name, probability, value)


def parse_outage(spec: str) -> Outage:
    """``START,END`` or ``START,END,503`` in seconds; raises :class:`ConfigError`."""
    parts = spec.split(",")
    numbers = [_number(part) for part in parts[:2]]
    start, end = numbers if len(numbers) == 2 else (None, None)
    known = len(parts) == 2 or (len(parts) == 3 and parts[2] == "503")
    if start is None or end is None or end <= start or not known:
        raise ConfigError(
            f"--outage {spec!r}: must be START,END in seconds after the start (connections are "
            "reset) or START,END,503"
        )
    return Outage(start, end, 503 if len(parts) == 3 else None)


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None
