"""What a probe is, and what it measures."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from adjudge.studies.probes.bench import Bench
from adjudge.studies.probes.intervals import (
    Estimate,
    Row,
    Statistic,
    bootstrap,
    largest_share,
    share,
)
from adjudge.studies.probes.subject import Kind

__all__ = [
    "EVERY_KIND",
    "OF_SCORES",
    "SIGNED_SHARE",
    "Measured",
    "Probe",
    "estimated",
    "mean_shift",
    "standard_shift",
]

OF_SCORES = "SD of scores"
"""The unit of a shift of scores."""

SIGNED_SHARE = (-1.0, 1.0)
"""The bounds of a net preference, and of a difference of two shares."""

EVERY_KIND: tuple[Kind, ...] = ("scores", "compares", "ranks")
Sided = Literal["up", "both"]
"""Whether only too large an effect is a fault, or one of either sign."""


@dataclass(frozen=True)
class Measured:
    """What one probe found.

    ``rows``: a row for each item that answered, ``statistic``: the effect from their sums; or
    ``shares``, where the effect is a share of hits (of several named ones: the largest).
    ``missing``: items without an answer that was needed. ``unit``: of the effect. ``parts``:
    further numbers for the reader. ``why``: there is nothing to measure by, and why. ``bounds``:
    what the effect lies between by its nature. ``asked``: items in all, where not ``n`` and
    ``missing`` together, since several shares have items of their own.
    """

    unit: str
    rows: Sequence[Row] = ()
    statistic: Statistic | None = None
    shares: Mapping[str, Sequence[Row]] = field(default_factory=dict)
    missing: int = 0
    parts: Mapping[str, Any] = field(default_factory=dict)
    why: str = ""
    bounds: tuple[float, float] = (-math.inf, math.inf)
    asked: int = 0

    @property
    def of_scores(self) -> bool:
        """Whether the effect is in standard deviations of the scores."""
        return self.unit == OF_SCORES

    @property
    def n(self) -> int:
        """Items that answered."""
        return max([len(self.rows), *(len(rows) for rows in self.shares.values())])


@dataclass(frozen=True)
class Probe:
    """A named change, the number that says what it does, and how much of it is too much.

    ``threshold`` is the largest effect that passes (of either sign, if ``sided`` is ``both``), one
    for graders that score, one for those that compare or rank. ``hindrance``: why it says nothing
    about this subject and these items; empty when it does. ``remedy``: what helps where it fails.
    """

    name: str
    what: str
    effect: str
    measure: Callable[[Bench], Measured]
    threshold: float
    sided: Sided = "up"
    kinds: tuple[Kind, ...] = EVERY_KIND
    of_pairs: float | None = None
    hindrance: Callable[[Bench], str] = lambda _: ""
    remedy: str = ""

    def limit(self, kind: Kind) -> float:
        """The default threshold for a kind of grader."""
        return self.threshold if self.of_pairs is None or kind == "scores" else self.of_pairs

    def obstacle(self, bench: Bench) -> str:
        """Why the probe does not apply; empty when it does."""
        kind = bench.subject.kind
        if kind not in self.kinds:
            return _NOT_FOR[kind]
        return self.hindrance(bench)


_NOT_FOR: Mapping[Kind, str] = {
    "scores": "the grader sees one answer at a time",
    "compares": "the grader compares answers and gives no score",
    "ranks": "the grader ranks answers and gives no score",
}


def estimated(measured: Measured, *, level: float, resamples: int, seed: int) -> Estimate:
    """The effect and its interval."""
    if measured.shares:
        parts = list(measured.shares.values())
        if len(parts) == 1:
            return share(parts[0], level=level)
        return largest_share(parts, level=level)
    if measured.statistic is None:
        return Estimate()
    found = bootstrap(
        measured.rows, measured.statistic, level=level, resamples=resamples, seed=seed
    )
    if found.low is None or found.high is None:
        return found
    low, high = measured.bounds
    return msgspec.structs.replace(found, low=max(low, found.low), high=min(high, found.high))


def mean_shift(sums: Sequence[float]) -> float | None:
    """Of columns ``(shift, 1, …)``: the mean shift."""
    return sums[0] / sums[1] if sums[1] else None


def standard_shift(sums: Sequence[float]) -> float | None:
    """Of columns ``(shift, 1, Σs, Σs², count)``: the mean shift in standard deviations of s."""
    spread = _deviation(*sums[2:5])
    return sums[0] / sums[1] / spread if sums[1] and spread else None


def _deviation(total: float, squares: float, count: float) -> float:
    """The standard deviation from sums; 0 where it is not more than rounding."""
    if count < 2:
        return 0.0
    mean = total / count
    variance = squares / count - mean * mean
    return math.sqrt(variance) if variance > 1e-12 * max(1.0, mean * mean) else 0.0


def needs_repeats(bench: Bench) -> str:
    """The hindrance of a probe that must ask more than once."""
    return "" if bench.repeats > 1 else "needs --repeats 2 or more"
