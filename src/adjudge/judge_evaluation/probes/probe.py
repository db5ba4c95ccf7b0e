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
from adjudge.report.charts import signed_strip
from adjudge.report.page import (
    Element,
    Section,
    Tile,
    format_integer,
    notes_section,
    render_page,
    small,
)
from adjudge.report.table import Column, Table, lost, numeric, styled
from adjudge.stats import Estimate
from adjudge.stats.estimates import (
    ItemColumns,
    Statistic,
    bootstrap,
    estimate_largest_share,
    estimate_share,
)

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

    def estimate(self) -> Estimate:
        """The effect and its interval: a share or a difference of two, or a shift of any size."""
        if self.shares:
            return estimate_largest_share(list(self.shares.values()), level=LEVEL)
        if self.statistic is None:
            return estimate_share(self.rows, level=LEVEL)
        found = bootstrap(self.rows, self.statistic, level=LEVEL)
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
        "lost": dict(Counter(bench.failed.values())),
        "parts": dict(measured.parts),
        "questions": len(bench.looked_at),
    }
    if measured.why:
        return ProbeFinding(verdict="not applicable", why=measured.why, **about)
    found = measured.estimate()
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
        whole = replace(measured, rows=measured.with_length).estimate()
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


# --- the card, as text and as a page -------------------------------------------------------------


def format_effect(one: ProbeFinding) -> str:
    """The effect; "–" where there is none."""
    return "–" if one.effect is None else _format_signed(one.effect, one)


def format_effect_interval(one: ProbeFinding) -> str:
    """Its interval, or nothing."""
    if one.low is None or one.high is None:
        return ""
    return f"{_format_signed(one.low, one)} to {_format_signed(one.high, one)}"


def format_limit(one: ProbeFinding) -> str:
    """The threshold with the sign of what it bounds."""
    return f"±{one.threshold:g}" if one.sided == "both" else f"≤ {one.threshold:g}"


def _format_signed(value: float, one: ProbeFinding) -> str:
    plain = one.unit.startswith("share") and one.probe != "self_preference"
    text = f"{value:.3f}" if plain else f"{value:+.3f}"
    return text.replace("-", "−")


def format_note(one: ProbeFinding) -> str:
    """What else is to be said of a line: why there is no verdict, what is missing."""
    notes = [one.why] if one.why else []
    if one.missing:
        kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(one.lost.items()))
        notes.append(f"{one.missing} items missing" + (f" ({kinds})" if kinds else ""))
    if one.remedy:
        notes.append(f"what helps: {one.remedy}")
    return "; ".join(notes)


def format_verdict_counts(card: Mapping[str, Any]) -> str:
    """How many probes have each verdict."""
    return ", ".join(f"{count} {verdict}" for verdict, count in card["verdicts"].items() if count)


def format_questions(card: Mapping[str, Any]) -> str:
    """How many questions were asked, how many of controls, and the calls that they took."""
    text = f"{card['questions']:,} questions"
    if card["control_questions"]:
        text += f" ({card['control_questions']:,} about neutral controls)"
    return text + (f", {card['calls']:,} calls" if card["calls"] else "")


def family_wise_error(verdicts: Mapping[str, int], level: float) -> float:
    """The most that the chance is of one failed probe or more, for a judge at all thresholds."""
    decided = sum(verdicts[name] for name in ("pass", "fail", "uncertain"))
    return min(1.0, round(decided * (1 - level) / 2, 6))


def multiple_testing_note(card: Mapping[str, Any]) -> str:
    """What many probes at once mean for the verdicts."""
    tail = (1 - card["level"]) / 2
    bound = family_wise_error(card["verdicts"], card["level"])
    several = ""
    if bound > 1.5 * tail:
        several = (
            f"; one at all {bound / tail:.0f} thresholds at once would fail one or more with at "
            f"most {bound:.0%}, the family-wise error of this card"
        )
    return (
        f"Each interval is at level {card['level']:.0%} for itself: a judge that is exactly at a "
        f"threshold fails that probe with a probability of about {tail:.1%}{several}. One that is "
        "well within hardly ever fails."
    )


_VERDICTS = {
    "pass": styled("pass", "good"),
    "fail": styled("FAIL", "worst"),
    "uncertain": lost("uncertain"),
}
_SPAN = 3.0
"""How many thresholds each half of a strip shows."""


def render_probe_page(card: Mapping[str, Any], findings: Sequence[ProbeFinding]) -> str:
    """The whole page."""
    grader, verdicts, missing = card["grader"], card["verdicts"], card["missing"]
    kinds = ", ".join(f"{kind} {count:,}" for kind, count in missing["by_kind"].items())
    cost = "–" if card["cost_usd"] is None else f"{card['cost_usd']:.4f}"
    counts = {name: format_integer(verdicts[name]) for name in verdicts}
    return render_page(
        f"Probes of {grader['name']}",
        [
            ("Judge", ", ".join(grader["models"]) or "none was asked"),
            ("Grader", f"{grader['name']} ({grader['type']}; {grader['kind']} answers)"),
            ("Spec", f"{card['spec']['path']} · {card['spec']['hash']}"),
            ("Items", f"{card['items']}, {card['topics']} topics, language {card['language']}"),
            ("Asked", f"{format_questions(card)}, seed {card['seed']}, {card['repeats']} repeats"),
            ("When", f"{card['created']} · adjudge {card['adjudge']}"),
        ],
        [
            Section("probes", "What sways the judge", probe_table(findings), "Probes"),
            Section("changes", "What each probe does", _change_table(findings), "Changes"),
            Section("details", "Details", _part_table(findings) or "None.", "Details"),
            notes_section(
                __package__ or "",
                link="How to read it",
                verdicts=format_verdict_counts(card),
                several=multiple_testing_note(card),
            ),
        ],
        tiles=[
            Tile("Failed", counts["fail"], "beyond the threshold", verdicts["fail"] > 0),
            Tile("Passed", counts["pass"], "within it"),
            Tile("Uncertain", counts["uncertain"], "the interval straddles it"),
            Tile("Questions", format_integer(card["questions"]), f"{card['elapsed_s']:.1f} s"),
            Tile("No answer", format_integer(missing["count"]), kinds or "none",
                 missing["count"] > 0),
            Tile("USD", cost, "of priced judges"),
        ],
    )  # fmt: skip


def probe_table(findings: Sequence[ProbeFinding]) -> Table:
    """The probes that apply, a row each; for page and terminal."""
    rows = [
        [
            one.probe,
            _VERDICTS[one.verdict],
            format_effect(one),
            format_effect_interval(one),
            format_limit(one),
            _strip(one),
            small(one.unit.split()[0]),
            one.n,
        ]
        for one in findings
        if one.verdict != "not applicable"
    ]
    probe, verdict, unit = (Column(name, wrap=False) for name in ("probe", "verdict", "in"))
    numbers = [Column(name, "n", wrap=False) for name in ("effect", "95 %", "allowed")]
    return Table(
        [probe, verdict, *numbers, Column("in thresholds: the band is allowed", "plot"), unit,
         Column("items", "i")],
        rows,
        drop=("items",),
        keep=("verdict", "effect"),
    )  # fmt: skip


def _change_table(findings: Sequence[ProbeFinding]) -> Table:
    rows = [
        [one.probe, f"{one.what}; {one.measures}", f"{one.verdict}: {note}" if note else ""]
        for one in findings
        for note in [format_note(one)]
    ]
    return Table(["probe", Column("what is changed, and measured", "w"), Column("note", "w")], rows)


def _strip(one: ProbeFinding) -> Element | None:
    """Effect and interval in units of the threshold; beyond the span at the edge."""
    unit = one.threshold or 1e-9
    value, low, high = (None if x is None else x / unit for x in (one.effect, one.low, one.high))
    allowed = (-1.0 if one.sided == "both" else -_SPAN, 1.0)
    label = (
        f"{one.probe}: {format_effect(one)}, {format_effect_interval(one)}, allowed "
        f"{format_limit(one)}"
    )
    return signed_strip(Estimate(value, low, high), label, _SPAN, allowed)


def _part_table(findings: Sequence[ProbeFinding]) -> Table:
    rows = []
    for one in findings:
        for name, value in one.parts.items():
            # A response that is white space is quoted.
            label = name.replace("_", " ") if name.strip() == name else repr(name)
            shown = f"{value:.3f}" if isinstance(value, float) else str(value)
            rows.append([one.probe, label, shown])
    return Table(["Probe", "Part", *numeric("Value")], rows)
