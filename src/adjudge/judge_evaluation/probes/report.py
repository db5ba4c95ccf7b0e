"""The report card of a run of probes, as text and as a page with a strip for each probe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from adjudge.judge_evaluation.probes.probe import ProbeFinding
from adjudge.report.charts import PlottedInterval, signed_strip
from adjudge.report.elements import Element, format_integer, small
from adjudge.report.page import Section, Tile, notes_section, render_page
from adjudge.report.table import Column, Table, lost, numeric, styled


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
    return signed_strip(PlottedInterval(value, low, high), label, _SPAN, allowed)


def _part_table(findings: Sequence[ProbeFinding]) -> Table:
    rows = []
    for one in findings:
        for name, value in one.parts.items():
            # A response that is white space is quoted.
            label = name.replace("_", " ") if name.strip() == name else repr(name)
            shown = f"{value:.3f}" if isinstance(value, float) else str(value)
            rows.append([one.probe, label, shown])
    return Table(["Probe", "Part", *numeric("Value")], rows)
