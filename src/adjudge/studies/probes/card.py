"""The report card: what each probe found, and whether that is too much."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from adjudge.studies.probes.bench import Bench
from adjudge.studies.probes.intervals import Estimate
from adjudge.studies.probes.probe import Measured, Probe, estimated

__all__ = ["FEWEST", "MOST_MISSING", "Finding", "Verdict", "decided", "find", "overall"]

Verdict = Literal["pass", "fail", "uncertain", "not applicable"]

FEWEST = 8
"""Items below which nothing is decided."""

MOST_MISSING = 0.2
"""The share of items that may lack an answer; more, and nothing is passed."""

_LEVEL = 0.95
_RESAMPLES, _MANY_RESAMPLES = 2_000, 20_000


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the card.

    ``effect`` with its interval ``low`` to ``high``, in ``unit``; ``threshold``: the most that
    passes, of either sign where ``sided`` is ``both``. ``n`` items answered, ``missing`` did not,
    ``lost`` says why, by kind of failure. ``parts``: further numbers. ``why``: the reason of a
    verdict that the interval does not explain. ``remedy``: what helps where it failed.
    """

    probe: str
    verdict: Verdict
    what: str
    measures: str
    unit: str = ""
    effect: float | None = None
    low: float | None = None
    high: float | None = None
    threshold: float
    sided: str
    n: int = 0
    missing: int = 0
    lost: dict[str, int] = {}
    parts: dict[str, Any] = {}
    why: str = ""
    remedy: str = ""


def find(
    probe: Probe, bench: Bench, *, threshold: float | None = None, level: float = _LEVEL
) -> Finding:
    """Measure one probe on a bench that has its answers, and decide."""
    limit = probe.limit(bench.subject.kind) if threshold is None else threshold
    about: dict[str, Any] = {
        "probe": probe.name,
        "what": probe.what,
        "measures": probe.effect,
        "threshold": limit,
        "sided": probe.sided,
    }
    if obstacle := probe.obstacle(bench):
        return Finding(verdict="not applicable", why=obstacle, **about)
    bench.begin()
    measured = probe.measure(bench)
    about |= {
        "unit": measured.unit,
        "n": measured.n,
        "missing": measured.missing,
        "lost": bench.lost,
        "parts": dict(measured.parts),
    }
    if measured.why:
        return Finding(verdict="not applicable", why=measured.why, **about)
    resamples = _RESAMPLES if level <= _LEVEL else _MANY_RESAMPLES
    found = estimated(measured, level=level, resamples=resamples, seed=bench.seed)
    verdict, why = _verdict(probe, measured, found, limit)
    ends: dict[str, Any] = {"effect": found.value, "low": found.low, "high": found.high}
    remedy = probe.remedy if verdict == "fail" else ""
    return Finding(verdict=verdict, why=why, remedy=remedy, **ends, **about)


def _verdict(
    probe: Probe, measured: Measured, found: Estimate, limit: float
) -> tuple[Verdict, str]:
    if measured.n < FEWEST:
        return "uncertain", f"{measured.n} items answered; {FEWEST} are needed"
    verdict = decided(found, limit, two_sided=probe.sided == "both")
    asked = measured.asked or measured.n + measured.missing
    if measured.missing > MOST_MISSING * asked and (verdict == "pass" or found.value is None):
        return "uncertain", f"{measured.missing} of {asked} items have no answer"
    if found.value is None and measured.of_scores:
        return "not applicable", "all answers have the same score, so no shift can be measured"
    if found.low is None:
        return "uncertain", "no interval: without a few of the items there is nothing to measure"
    return verdict, ""


def decided(found: Estimate, limit: float, *, two_sided: bool = False) -> Verdict:
    """The verdict that an interval allows.

    ``fail``: all of it lies beyond the limit, so a judge within the limit fails with at most half
    of 1 − level (one end of the interval). ``pass``: none of it does. Else ``uncertain``.
    """
    if found.low is None or found.high is None:
        return "uncertain"
    if found.low > limit or (two_sided and found.high < -limit):
        return "fail"
    if found.high <= limit and (not two_sided or found.low >= -limit):
        return "pass"
    return "uncertain"


def overall(findings: Sequence[Finding]) -> Mapping[str, int]:
    """How many findings have each verdict."""
    counts = Counter(one.verdict for one in findings)
    return {verdict: counts[verdict] for verdict in ("pass", "fail", "uncertain", "not applicable")}
