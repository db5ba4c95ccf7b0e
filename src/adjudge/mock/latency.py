"""How long a reply takes: ``fixed:0.02``, ``lognormal:0.2,1.288``, ``pareto:0.1,1.5`` and so on.

Several specs add up. Every kind needs one uniform draw per request, turned by its quantile
function, so that one seed gives one latency to one request number.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

from adjudge.config import nearest
from adjudge.errors import ConfigError
from adjudge.mock.draws import Stream, uniform

__all__ = ["FORMS", "Latency", "latency_of", "parse_latency"]

FORMS = {
    "fixed": "fixed:SECONDS",
    "lognormal": "lognormal:MEDIAN,SIGMA",
    "pareto": "pareto:MINIMUM,ALPHA",
    "hang": "hang:PROBABILITY,SECONDS",
    "load": "load:SECONDS",
}
"""The specs, by their first word."""

_standard = NormalDist()


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
        20 medians. pareto m, α: m · (1 − u)^(−1/α), whose mean is infinite at α ≤ 1.
        """
        if self.kind == "fixed":
            return self.first
        if self.kind == "load":
            return self.first * in_flight
        if self.kind == "hang":
            return self.second if u < self.first else 0.0
        if self.kind == "lognormal":
            return self.first * math.exp(self.second * _standard.inv_cdf(u))
        return self.first * float((1.0 - u) ** (-1.0 / self.second))


def parse_latency(spec: str) -> Latency:
    """``kind:numbers`` as a latency; raises :class:`ConfigError` that shows the form."""
    kind, _, rest = spec.partition(":")
    if kind not in FORMS:
        hint = nearest(kind, FORMS)
        forms = ", ".join(FORMS.values())
        raise ConfigError(f"--latency {spec!r}: unknown kind {kind!r}{hint} (allowed: {forms})")
    values = _numbers(spec, rest)
    if len(values) != 1 + FORMS[kind].count(","):
        raise ConfigError(f"--latency {spec!r}: must have the form {FORMS[kind]}")
    part = Latency(kind, *values)
    if kind == "hang" and part.first > 1:
        raise ConfigError(f"--latency {spec!r}: the probability must be within 0 and 1")
    if kind == "pareto" and part.second <= 0:
        raise ConfigError(f"--latency {spec!r}: alpha must be above 0")
    return part


def _numbers(spec: str, text: str) -> list[float]:
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        values = []
    if not values or not all(math.isfinite(value) and value >= 0 for value in values):
        form = FORMS[spec.partition(":")[0]]
        raise ConfigError(f"--latency {spec!r}: must have the form {form}, numbers of 0 or more")
    return values


def latency_of(parts: Sequence[Latency], seed: int, number: int, in_flight: int) -> float:
    """Seconds that request ``number`` takes: the sum of all parts."""
    total = 0.0
    for i, part in enumerate(parts):
        total += part.seconds(uniform(seed, number, Stream.LATENCY + i), in_flight)
    return total
