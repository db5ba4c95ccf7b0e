"""What goes wrong and how long a reply takes: faults and latency.

Chance is reproducible: draw *k* of request *n* depends on the seed, *n* and *k* alone. So a fault
added to the command line moves no other draw, and request 17 meets the same fate in every run with
one seed, however the requests before it overlapped.

``--fail NAME[=VALUE]:PROBABILITY``: a request meets at most one of the faults that replace or break
its reply; their probabilities are shares of all requests and add up to at most 1. The few that only
change a detail (``MODIFIERS``) are drawn apart and may come on top.

``--latency``: ``fixed:0.02``, ``lognormal:0.2,1.288``, ``load:0.01`` and so on; several add
up. Every kind needs one uniform draw per request, turned by its quantile function, so that one seed
gives one latency to one request number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

from adjudge.config import suggest_name
from adjudge.errors import ConfigError

_MASK = (1 << 64) - 1


# What a draw is for; the streams of modifiers and of latencies count on from these.
_FAULT, _MODIFIER, _LATENCY = 0, 16, 64


def _splitmix64(z: int) -> int:
    """The finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014)."""
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def _draw_uniform(seed: int, number: int, stream: int) -> float:
    """A number strictly between 0 and 1 for draw ``stream`` of request ``number``."""
    z = _splitmix64((seed + number * 0x9E3779B97F4A7C15) & _MASK)
    z = _splitmix64((z + stream * 0xD1B54A32D192ED03) & _MASK)
    return ((z >> 12) + 0.5) * 2.0**-52


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


class FaultSampler:
    """All faults of a server, drawn per request number."""

    def __init__(self, specs: Sequence[str], seed: int) -> None:
        self._seed = seed
        faults = [_parse_fault(spec) for spec in specs]
        self._breaking = [fault for fault in faults if fault.name not in MODIFIERS]
        self._modifying = [fault for fault in faults if fault.name in MODIFIERS]
        total = sum(fault.probability for fault in self._breaking)
        if total > 1 + 1e-9:
            raise ConfigError(
                f"--fail: the sum of the probabilities must be at most 1 (found {total:g})"
            )

    def breaking(self, number: int) -> InjectedFault | None:
        """The fault that request ``number`` meets, if any."""
        left = _draw_uniform(self._seed, number, _FAULT)
        for fault in self._breaking:
            left -= fault.probability
            if left < 0:
                return fault
        return None

    def modifying(self, number: int) -> set[str]:
        """The names of the details that go wrong for request ``number``."""
        return {
            fault.name
            for fault in self._modifying
            if _draw_uniform(self._seed, number, _MODIFIER + MODIFIERS.index(fault.name))
            < fault.probability
        }


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

_LATENCIES: dict[str, tuple[str, Callable[..., float]]] = {
    "fixed": ("SECONDS", lambda _u, _others, seconds: seconds),
    "lognormal": (
        "MEDIAN,SIGMA",
        lambda u, _others, median, sigma: median * math.exp(sigma * _standard_normal.inv_cdf(u)),
    ),
    "hang": ("PROBABILITY,SECONDS", lambda u, _others, p, seconds: seconds if u < p else 0.0),
    "load": ("SECONDS", lambda _u, others, seconds: seconds * others),
}
"""The numbers of each kind, and the seconds of a draw ``u`` in (0, 1) beside other requests.

A sigma of 1.288 puts the 99th percentile at 20 medians.
"""


class Latency:
    """How long replies take: the sum of all parts."""

    def __init__(self, specs: Sequence[str], seed: int) -> None:
        self._seed = seed
        self._parts = []
        for spec in specs:
            kind, _, rest = spec.partition(":")
            if kind not in _LATENCIES:
                allowed = ", ".join(_LATENCIES)
                raise ConfigError(
                    f"--latency {spec!r}: the kind {kind!r} is unknown"
                    f"{suggest_name(kind, _LATENCIES)} (allowed: {allowed})"
                )
            form, seconds = _LATENCIES[kind]
            numbers = _read_numbers(rest)
            if len(numbers) != 1 + form.count(",") or (kind == "hang" and numbers[0] > 1):
                raise ConfigError(
                    f"--latency {spec!r}: must have the form {kind}:{form}, with numbers of 0 or "
                    "more and probabilities of at most 1"
                )
            self._parts.append((seconds, numbers))

    def draw(self, number: int, in_flight: int) -> float:
        """Seconds that request ``number`` takes beside ``in_flight`` others."""
        return sum(
            seconds(_draw_uniform(self._seed, number, _LATENCY + i), in_flight, *numbers)
            for i, (seconds, numbers) in enumerate(self._parts)
        )
