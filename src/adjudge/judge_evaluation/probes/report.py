"""The report card of a run of probes: as text, Markdown, JUnit and one HTML file.

All of them say numbers and verdicts in the same words. Markdown is for a pull request, JUnit for
CI systems. The HTML file has a strip per probe.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any
from xml.sax.saxutils import escape, quoteattr

from adjudge.judge_evaluation.probes.probe import POWER, ProbeFinding
from adjudge.report.charts import PlottedInterval, signed_strip
from adjudge.report.elements import Element, bold, format_integer, small
from adjudge.report.page import Section, Tile, notes_section, render_page
from adjudge.report.table import Column, Table, lost, numeric


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


def format_detectable(one: ProbeFinding) -> str:
    """The smallest effect that would have failed a probe that did not; "none" of any size."""
    if one.verdict not in ("pass", "uncertain"):
        return ""
    if one.detectable is None:
        return "none"
    sign = "±" if one.sided == "both" else "≥ "
    return f"{sign}{one.detectable:.2f}"


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
    seen = (
        f"Seen from: the smallest effect that a probe which did not fail would have failed in "
        f"{POWER:.0%} of runs (its power)."
    )
    several = ""
    if bound > 1.5 * tail:
        several = (
            f"; one at all {bound / tail:.0f} thresholds at once would fail one or more with at "
            f"most {bound:.0%}, the family-wise error of this card"
        )
    return (
        f"Each interval is at level {card['level']:.0%} for itself: a judge that is exactly at a "
        f"threshold fails that probe with a probability of about {tail:.1%}{several}. One that is "
        f"well within hardly ever fails. {seen}"
    )


_VERDICT_LABELS = {
    "pass": "pass",
    "fail": "**FAIL**",
    "uncertain": "uncertain",
    "not applicable": "–",
}


def render_probe_markdown(card: Mapping[str, Any], findings: Sequence[ProbeFinding]) -> str:
    """A heading, a table of the probes, and how to read it."""
    grader = card["grader"]
    judges = ", ".join(grader["models"]) or "no judge"
    lines = [
        f"# Probes of `{_markdown_cell(grader['name'])}`",
        "",
        (
            f"{_markdown_cell(judges)}: {format_verdict_counts(card)}. {card['topics']} topics, "
            f"{format_questions(card)}, {card['missing']['count']:,} without an answer."
        ),
        "",
        "| probe | verdict | effect | interval | allowed | seen from | unit | items | note |",
        "|---|---|---:|---:|---:|---:|---|---:|---|",
    ]
    for one in findings:
        allowed = "" if one.verdict == "not applicable" else format_limit(one)
        cells = (one.probe, _VERDICT_LABELS[one.verdict], format_effect(one),
                 format_effect_interval(one), allowed, format_detectable(one), one.unit,
                 one.n or "", format_note(one))  # fmt: skip
        lines.append("| " + " | ".join(_markdown_cell(str(cell)) for cell in cells) + " |")
    lines += ["", multiple_testing_note(card), ""]
    lines += [f"- `{one.probe}`: {one.what}; {one.measures}." for one in findings]
    return "\n".join(lines) + "\n"


def _markdown_cell(text: str) -> str:
    """Text of others without line ends, markup of tables or HTML."""
    plain = "".join(c if c.isprintable() else " " for c in text)
    return plain.replace("|", "\\|").replace("<", "&lt;").replace("`", "'")


_ILLEGAL = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def render_probe_junit(
    card: Mapping[str, Any], findings: Sequence[ProbeFinding], *, strict: bool = False
) -> str:
    """One test case a probe: a failed verdict is a failure, one that does not apply is skipped.

    ``strict``: an uncertain one is a failure too.
    """
    failed = {"fail", "uncertain"} if strict else {"fail"}
    cases = [_junit_case(card, one, failed) for one in findings]
    failures = sum(one.verdict in failed for one in findings)
    skipped = sum(one.verdict == "not applicable" for one in findings)
    name = _xml_attribute(f"adjudge probe {card['grader']['name']}")
    counts = f'tests="{len(findings)}" failures="{failures}" errors="0" skipped="{skipped}"'
    return (
        '<?xml version="1.0" encoding="utf-8"?>\n'
        f"<testsuites {counts}>\n"
        f'<testsuite name={name} {counts} time="{card["elapsed_s"]:.3f}" '
        f"timestamp={_xml_attribute(card['created'])}>\n{''.join(cases)}</testsuite>\n</testsuites>\n"
    )


def _junit_case(card: Mapping[str, Any], one: ProbeFinding, failed: set[str]) -> str:
    said = f"{format_effect(one)} {one.unit}"
    if interval := format_effect_interval(one):
        said += f" ({interval}), allowed {format_limit(one)}"
    if more := format_note(one):
        said += f"; {more}"
    suite = _xml_attribute(f"adjudge.probe.{card['grader']['name']}")
    opening = f'<testcase classname={suite} name={_xml_attribute(one.probe)} time="0">'
    body = f"<system-out>{_xml_text(f'{one.verdict}: {said}')}</system-out>"
    if one.verdict == "not applicable":
        body = f"<skipped message={_xml_attribute(one.why)}/>"
    elif one.verdict in failed:
        body = (
            f"<failure type={_xml_attribute(one.verdict)} message={_xml_attribute(said)}>"
            f"{_xml_text(f'{one.what}: {one.measures}')}</failure>"
        )
    return f"{opening}{body}</testcase>\n"


def _xml_text(text: str) -> str:
    return escape(_ILLEGAL.sub("\ufffd", text))


def _xml_attribute(text: str) -> str:
    return quoteattr(_ILLEGAL.sub("\ufffd", text))


_SPAN = 3.0
"""How many thresholds each half of a strip shows."""


def render_probe_page(card: Mapping[str, Any], findings: Sequence[ProbeFinding]) -> str:
    """The whole page."""
    return render_page(
        f"Probes of {card['grader']['name']}",
        _facts(card),
        [
            Section("probes", "What sways the judge", _probe_table(findings), "Probes"),
            Section("details", "Details", _part_table(findings) or "None.", "Details"),
            notes_section(
                __package__ or "",
                link="How to read it",
                verdicts=format_verdict_counts(card),
                several=multiple_testing_note(card),
            ),
        ],
        tiles=_tiles(card),
    )


def _facts(card: Mapping[str, Any]) -> list[tuple[str, str]]:
    grader = card["grader"]
    return [
        ("Judge", ", ".join(grader["models"]) or "none was asked"),
        ("Grader", f"{grader['name']} ({grader['type']}; {grader['kind']} answers)"),
        ("Spec", f"{card['spec']['path']} · {card['spec']['hash']}"),
        ("Items", f"{card['items']}, {card['topics']} topics, language {card['language']}"),
        ("Asked", f"{format_questions(card)}, seed {card['seed']}, {card['repeats']} repeats"),
        ("When", f"{card['created']} · adjudge {card['adjudge']}"),
    ]


def _tiles(card: Mapping[str, Any]) -> list[Tile]:
    verdicts, missing = card["verdicts"], card["missing"]
    kinds = ", ".join(f"{kind} {count:,}" for kind, count in missing["by_kind"].items())
    cost = "–" if card["cost_usd"] is None else f"{card['cost_usd']:.4f}"
    return [
        Tile(
            "Failed", format_integer(verdicts["fail"]), "beyond the threshold", verdicts["fail"] > 0
        ),
        Tile("Passed", format_integer(verdicts["pass"]), "within it"),
        Tile("Uncertain", format_integer(verdicts["uncertain"]), "the interval straddles it"),
        Tile("Questions", format_integer(card["questions"]), f"{card['elapsed_s']:.1f} s"),
        Tile("No answer", format_integer(missing["count"]), kinds or "none", missing["count"] > 0),
        Tile("USD", cost, "of priced judges"),
    ]


def _probe_table(findings: Sequence[ProbeFinding]) -> Table:
    columns = [
        Column("Probe", "w"), Column("Verdict", "w"), Column("Effect, interval", "w"),
        Column("In thresholds: the band is allowed", "plot"), *numeric("Items"),
    ]  # fmt: skip
    return Table(columns, map(_probe_row, findings))


def _probe_row(one: ProbeFinding) -> list[object]:
    found: object = "–"
    if one.effect is not None:
        ends = format_effect_interval(one) or "no interval"
        seen = format_detectable(one)
        limits = f"{ends}; allowed {format_limit(one)}" + (f"; seen from {seen}" if seen else "")
        found = [f"{format_effect(one)} {one.unit}", small(limits)]
    verdict = bold(lost(one.verdict) if one.verdict == "fail" else one.verdict)
    return [
        [bold(one.probe), small(f"{one.what}; {one.measures}")],
        [verdict, small(format_note(one))],
        found,
        _strip(one),
        one.n or "–",
    ]


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
    rows = [
        [one.probe, _part_label(name), _format_part(value)]
        for one in findings
        for name, value in one.parts.items()
    ]
    return Table(["Probe", "Part", *numeric("Value")], rows)


def _part_label(name: str) -> str:
    """A part's name; a response that is white space is quoted."""
    return name.replace("_", " ") if name.strip() == name else repr(name)


def _format_part(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)
