"""What a probe is, what it measures, and the verdict that its interval allows.

The report card has what each probe found, and whether that is too much.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import msgspec

from adjudge.judge_evaluation.probes.bench import AnswerKind, ProbeBench
from adjudge.stats import Estimate
from adjudge.stats.bootstrap import Statistic, bootstrap
from adjudge.stats.estimates import ItemColumns, estimate_largest_share, estimate_share

SCORE_SD_UNIT = "SD of scores"
"""The unit of a shift of scores."""

ALL_ANSWER_KINDS: tuple[AnswerKind, ...] = ("scores", "compares", "ranks")

LEVEL = 0.95
"""The level of all intervals of a card."""

EffectSide = Literal["up", "both"]
"""Whether only too large an effect is a fault, or one of either sign."""


@dataclass(frozen=True)
class Measurement:
    """What one probe found.

    ``rows``: a row for each item that answered, ``statistic``: the effect from their sums; without
    it the effect is the share of hits in ``(hits, trials)``, or with ``shares`` the largest of
    several. ``asked``: items in all, by default the bench's; those without a row lack an answer
    that was needed. ``unit``: of the effect. ``parts``: further numbers for the reader. ``why``:
    there is nothing to measure by, and why. ``least``: below which the effect cannot be by its
    nature. ``with_length``: rows as ``rows``, of an effect that the length of a change is part of,
    where ``rows`` are without it.
    """

    unit: str
    rows: Sequence[ItemColumns] = ()
    statistic: Statistic | None = None
    shares: Mapping[str, Sequence[ItemColumns]] = field(default_factory=dict)
    asked: int | None = None
    parts: Mapping[str, Any] = field(default_factory=dict)
    why: str = ""
    least: float | None = None
    with_length: Sequence[ItemColumns] = ()

    @property
    def of_scores(self) -> bool:
        """Whether the effect is in standard deviations of the scores."""
        return self.unit == SCORE_SD_UNIT

    def estimate(self, seed: int) -> Estimate:
        """The effect and its interval: a share or a difference of two, or a shift of any size."""
        if self.shares:
            return estimate_largest_share(list(self.shares.values()), level=LEVEL)
        if self.statistic is None:
            return estimate_share(self.rows, level=LEVEL)
        found = bootstrap(self.rows, self.statistic, level=LEVEL, seed=seed)
        if found.low is None or found.high is None:
            return found
        low, high = (-math.inf, math.inf) if self.of_scores else (-1.0, 1.0)
        low = low if self.least is None else self.least
        return msgspec.structs.replace(found, low=max(low, found.low), high=min(high, found.high))


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
    measure: Callable[[ProbeBench], Measurement]
    threshold: float
    sided: EffectSide = "up"
    kinds: tuple[AnswerKind, ...] = ALL_ANSWER_KINDS
    of_pairs: float | None = None
    hindrance: Callable[[ProbeBench], str] = lambda _: ""
    remedy: str | Callable[[ProbeBench], str] = ""

    def limit(self, kind: AnswerKind) -> float:
        """The default threshold for a kind of grader."""
        return self.threshold if self.of_pairs is None or kind == "scores" else self.of_pairs

    def obstacle(self, bench: ProbeBench) -> str:
        """Why the probe does not apply; empty when it does."""
        kind = bench.subject.kind
        if kind not in self.kinds:
            return _WRONG_KIND_REASONS[kind]
        return self.hindrance(bench)


_WRONG_KIND_REASONS: Mapping[AnswerKind, str] = {
    "scores": "the grader sees one answer at a time",
    "compares": "the grader compares answers and gives no score",
    "ranks": "the grader ranks answers and gives no score",
}


def mean_shift(sums: Sequence[float]) -> float | None:
    """Of columns ``(shift, 1, …)``: the mean shift."""
    return sums[0] / sums[1] if sums[1] else None


def standard_shift(sums: Sequence[float]) -> float | None:
    """Of columns ``(shift, 1, Σs, Σs², count)``: the mean shift in standard deviations of s."""
    spread = standard_deviation(*sums[2:5])
    return sums[0] / sums[1] / spread if sums[1] and spread else None


def standard_deviation(total: float, squares: float, count: float) -> float:
    """The standard deviation from sums; 0 where it is not more than rounding."""
    if count < 2:
        return 0.0
    mean = total / count
    variance = squares / count - mean * mean
    return math.sqrt(variance) if variance > 1e-12 * max(1.0, mean * mean) else 0.0


def require_repeats(bench: ProbeBench) -> str:
    """The hindrance of a probe that must ask more than once."""
    return "" if bench.repeats > 1 else "needs --repeats 2 or more"


ProbeVerdict = Literal["pass", "fail", "uncertain", "not applicable"]

MIN_ITEMS = 8
"""Items below which nothing is decided."""

MAX_MISSING_SHARE = 0.2
"""The share of items that may lack an answer; more, and nothing is passed."""


class ProbeFinding(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the card.

    ``effect`` with its interval ``low`` to ``high``, in ``unit``; ``threshold``: the most that
    passes, of either sign where ``sided`` is ``both``. ``n`` items answered, ``missing`` did not,
    ``lost`` says why, by kind of failure. ``parts``: further numbers. ``why``: the reason of a
    verdict that the interval does not explain. ``remedy``: what helps where it failed.
    ``questions``: how many answers it looked at, with those that others need too.
    """

    probe: str
    verdict: ProbeVerdict
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
    questions: int = 0


def evaluate_probe(
    probe: Probe, bench: ProbeBench, *, threshold: float | None = None
) -> ProbeFinding:
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
        return ProbeFinding(verdict="not applicable", why=obstacle, **about)
    bench.reset_failures()
    measured = probe.measure(bench)
    answered = [len(rows) for rows in measured.shares.values()] or [len(measured.rows)]
    asked = len(bench.items) if measured.asked is None else measured.asked
    about |= {
        "unit": measured.unit,
        "n": max(answered),
        "missing": max(0, asked - min(answered)),
        "lost": bench.missing_by_kind,
        "parts": dict(measured.parts),
        "questions": len(bench.looked_at),
    }
    if measured.why:
        return ProbeFinding(verdict="not applicable", why=measured.why, **about)
    found = measured.estimate(bench.seed)
    two_sided = probe.sided == "both"
    verdict, why = decide_verdict(found, limit, two_sided=two_sided), ""
    if about["n"] < MIN_ITEMS:
        verdict, why = "uncertain", f"{about['n']} items answered; {MIN_ITEMS} are needed"
    elif about["missing"] > MAX_MISSING_SHARE * asked and (
        verdict == "pass" or found.value is None
    ):
        verdict, why = "uncertain", f"{about['missing']} of {asked} items have no answer"
    elif found.value is None and measured.of_scores:
        why = "all answers have the same score, so no shift can be measured"
        verdict = "not applicable"
    elif found.low is None:
        why = "no interval: without a few of the items there is nothing to measure"
    if measured.with_length:
        whole = replace(measured, rows=measured.with_length).estimate(bench.seed)
        ends = {"": whole.value, "_low": whole.low, "_high": whole.high}
        about["parts"] |= {f"with_length{end}": at for end, at in ends.items() if at is not None}
        if decide_verdict(whole, limit, two_sided=two_sided) == "fail":
            why = why or _length_reason(verdict, whole)
    if verdict == "fail":
        about["remedy"] = probe.remedy if isinstance(probe.remedy, str) else probe.remedy(bench)
    about |= {"effect": found.value, "low": found.low, "high": found.high}
    return ProbeFinding(verdict=verdict, why=why, **about)


def _length_reason(verdict: ProbeVerdict, whole: Estimate) -> str:
    """What a change that fails with its length, and not beyond it, is owed to."""
    ends = f"{whole.value:+.3f} ({whole.low:+.3f} to {whole.high:+.3f})".replace("-", "−")
    if verdict == "pass":
        return f"length alone explains it: with its length the shift is {ends}"
    if verdict == "uncertain":
        return f"with its length the shift is {ends}; whether length alone explains it is uncertain"
    return ""


def decide_verdict(found: Estimate, limit: float, *, two_sided: bool = False) -> ProbeVerdict:
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


def count_verdicts(findings: Sequence[ProbeFinding]) -> Mapping[str, int]:
    """How many findings have each verdict."""
    counts = Counter(one.verdict for one in findings)
    return {verdict: counts[verdict] for verdict in ("pass", "fail", "uncertain", "not applicable")}
