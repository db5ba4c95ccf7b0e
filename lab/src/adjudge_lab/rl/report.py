"""A training run as one HTML file: curves, the sentinel's alarms, answers before and after."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from adjudge.checks.steps import MISSING_SHARE, describe_unchecked
from adjudge.report.charts import ChartLine, line_chart
from adjudge.report.page import (
    Element,
    Fragment,
    Section,
    Tile,
    bold,
    format_integer,
    format_number,
    format_percent,
    notes_section,
    quote,
    render_page,
    small,
)
from adjudge.report.table import Table
from adjudge.runs.report.tables import judge_calls_section
from adjudge_lab.rl.held_out import AnswerSample

_MetricRows = Sequence[Mapping[str, float]]


def write_training_report(
    path: Path, summary: Mapping[str, Any], rows: _MetricRows, shown: Sequence[AnswerSample]
) -> None:
    """Write ``report.html`` of a run to ``path``, UTF-8.

    ``summary`` is the run's ``summary.json``, ``rows`` are those of ``metrics.jsonl``.
    """
    html = render_page(
        "Training report",
        _facts(summary),
        [
            Section("sentinel", "The sentinel’s word", _sentinel(summary), "Sentinel"),
            Section("curves", "Curves", _curve_charts(summary, rows), "Curves"),
            judge_calls_section({key: summary.get(key) for key in ("endpoints", "spending")}),
            Section("held-out", "Held-out prompts", held_out_section(summary), "Held-out"),
            Section(
                "samples",
                "The same questions, before and after",
                _samples(shown, summary["gold"]),
                "Samples",
            ),
            notes_section(__package__ or ""),
        ],
        tiles=_tiles(summary),
    )
    path.write_text(html, encoding="utf-8", newline="\n")


def _facts(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    seconds = summary["seconds"]
    per_step = f"{summary['batch_size']} answers in groups of {summary['group_size']}"
    took = ", ".join(f"{name.replace('_', ' ')} {value:g} s" for name, value in seconds.items())
    return [
        ("Run", " · ".join(filter(None, (summary["label"], f"seed {summary['seed']}")))),
        ("Policy", f"{summary['base']} on {summary['env_name']}, {summary['variety']}"),
        ("Judge", summary["judge"] or "none: the environment's reward alone"),
        ("Steps", f"{summary['steps']} of {summary['steps_planned']}, each {per_step}"),
        ("Took", took),
        ("When", f"{summary['created']} · adjudge {summary['adjudge']}"),
    ]


def _tiles(summary: Mapping[str, Any]) -> list[Tile]:
    first, last = summary["first"], summary["last"]
    alarms = [alarm for alarm in summary["sentinel"]["alarms"] if not alarm["note"]]
    names = (("Reward", "reward"), ("Environment", "env"), ("Judge", "judge"), ("Gold", "gold"))
    found = [
        _change_tile(name, first[key], last[key], covered=summary["covered"][key][1])
        for name, key in names
        if first[key] is not None or key == "reward"
    ]
    return [
        *found,
        _change_tile("Length, tokens", first["length"], last["length"], digits=1),
        _share_tile("Zero-spread groups", last["zero_spread"], "in the last tenth"),
        _share_tile(
            "Rewards missing", last["missing"], "in the last tenth", alarm_from=MISSING_SHARE
        ),
        Tile("Alarms", format_integer(len(alarms)), "of the sentinel", alarm=bool(alarms)),
    ]


def _change_tile(
    name: str,
    first: float | None,
    last: float | None,
    digits: int = 2,
    covered: float | None = 1.0,
) -> Tile:
    share = ""
    if covered is not None and covered < 1:
        share = f", of {format_percent(covered)} of the rollouts"
    return Tile(name, format_number(last, digits), f"from {format_number(first, digits)}{share}")


def _share_tile(name: str, share: float | None, note: str, alarm_from: float = math.inf) -> Tile:
    alarm = share is not None and share >= alarm_from
    return Tile(name, "–" if share is None else format_percent(share), note, alarm=alarm)


def _sentinel(summary: Mapping[str, Any]) -> Element | str:
    alarms = summary["sentinel"]["alarms"]
    if not alarms:
        unchecked = describe_unchecked(summary["sentinel"]["unchecked"], "[sentinel] gold")
        said = f"Nothing to report in {format_integer(summary['steps'])} steps"
        return f"{said}; {unchecked}." if unchecked else f"{said}."
    return alarm_list(alarms)


def alarm_list(alarms: Sequence[Mapping[str, Any]]) -> Element:
    """What a sentinel saw, with its advice; notes are not in the colour of alarms."""
    items = []
    for one in alarms:
        rule = bold(f"Step {format_integer(one['step'])}, {one['rule'].replace('_', ' ')}")
        other = f" Or else: {one['otherwise']}." if one["otherwise"] else ""
        more = Element("div", f"What to change: {one['advice']}.")
        kind = "note" if one["note"] else ""
        items.append(Element("li", rule, f": {one['seen']}.{other}", more, class_=kind))
    return Element("ul", items, class_="alarms")


def curve_grid(charts: Sequence[Element | None]) -> Element:
    """Charts beside each other; those without a value are left out."""
    return Element("div", charts, class_="curves")


class CurveChart(NamedTuple):
    """A chart over the steps: names and metrics of its lines, its scale, and alarms if wanted."""

    title: str
    lines: Sequence[tuple[str, str]]
    low: float | None = None
    high: float | None = None
    alarms: bool = False


def draw_curves(
    charts: Sequence[CurveChart], rows: _MetricRows, alarms: Sequence[int] = ()
) -> Element:
    """``charts`` of what ``rows`` have, beside each other; ``alarms``: the steps to point at."""
    steps = [round(row["step"]) for row in rows]
    return curve_grid([
        line_chart(
            one.title,
            [ChartLine(name, [row.get(key) for row in rows]) for name, key in one.lines],
            steps, low=one.low, high=one.high, marks=alarms if one.alarms else (),
        )
        for one in charts
    ])  # fmt: skip


_CHARTS = (
    CurveChart("Judge's spread, standard deviation", [("spread", "judge/score_std")], 0.0,
               alarms=True),
    CurveChart("Events, mean sum over turns", [("events", "judge/events_mean")], alarms=True),
    CurveChart("Length, tokens", [("length", "length")], 0.0, alarms=True),
    CurveChart("Zero spread, share of groups", [("zero spread", "judge/zero_std_frac")], 0.0, 1.0,
               alarms=True),
    CurveChart("Correlation of reward and length in groups",
               [("correlation", "judge/len_corr_group")], -1.0, 1.0, alarms=True),
    CurveChart("Judge's latency, s",
               [("median", "judge/latency_p50"), ("99th percentile", "judge/latency_p99")], 0.0),
    CurveChart("Drawn for judging, share", [("drawn", "judge/drawn_frac")], 0.0),
    CurveChart("Cost per step, USD", [("cost", "judge/cost_usd")], 0.0),
    CurveChart("Seconds of a step", [("generating", "generate_s"),
               ("waiting for judges", "judge_wait_s"), ("updating", "update_s")], 0.0),
    CurveChart("Entropy of the policy", [("entropy", "entropy")], 0.0),
)  # fmt: skip
_FIRST_CURVES = 3
"""What matters most; the others are folded."""
_RETURN_LINES = (("mean", "mean_return"), ("environment", "env_return"), ("judge", "judge_return"))


def _curve_charts(summary: Mapping[str, Any], rows: _MetricRows) -> Element | str:
    if not rows:
        return "No step was done."
    gold = summary["gold"]
    names = [one["name"] for one in summary["graders"] if one["name"] != gold]
    judge_lines = [("judge", "judge/outcome_mean")]
    judge_lines += [] if gold is None else [("gold", f"judge/{gold}_score_mean")]
    charts = [
        CurveChart("Return", _RETURN_LINES, alarms=True),
        CurveChart("Judge and gold", judge_lines, 0.0, 1.0, alarms=True),
        CurveChart("Rewards missing, share", [("missing", "judge/missing_frac")], 0.0, alarms=True),
        *(
            CurveChart(f"Score of {name}", [(name, f"judge/{name}_score_mean")], alarms=True)
            for name in names
        ),
        *_CHARTS,
    ]
    marks = [one["step"] for one in summary["sentinel"]["alarms"] if not one["note"]]
    first, more = charts[:_FIRST_CURVES], charts[_FIRST_CURVES:]
    return Fragment(
        draw_curves(first, rows, marks),
        Element("details", Element("summary", "More curves"), draw_curves(more, rows, marks)),
    )


def held_out_section(summary: Mapping[str, Any]) -> Element | str:
    """After training against before, and against fixed answers, with 95 % intervals."""
    found = summary.get("held_out")
    if not found:
        return "There is no evaluation after training."
    fixed = list(found["splits"][0]["baselines"])
    columns = ["Prompts", "n", "Before", "After", "Gain"]
    columns += [part for name in fixed for part in (f"Answer “{name}”", "After against it")]
    rows = [_split_cells(one, fixed) for one in found["splits"]]
    parts: list[Any] = [
        Table(columns, rows),
        small("Differences are paired by prompt; intervals are 95 %, over prompts."),
    ]
    if found["graders"]:
        heads = ["Grader, reported only", "Answers", "Before", "After", "ρ with the reward"]
        graders = [
            [
                one["name"],
                format_integer(one["n"]),
                format_number(one["before"], 2),
                format_number(one["after"], 2),
                _interval(one["agreement"]),
                "–" if one["missing"] is None else format_percent(one["missing"]),
            ]
            for one in found["graders"]
        ]
        parts.append(Table([*heads, "Missing"], graders))
    return Element("div", parts)


def _split_cells(one: Mapping[str, Any], fixed: Sequence[str]) -> list[str]:
    cells = [
        one["split"].replace("_", " "),
        format_integer(one["prompts"]),
        format_number(one["before"], 3),
        format_number(one["after"], 3),
        _interval(one["gain"]),
    ]
    for name in fixed:
        cells.append(format_number(one["baselines"].get(name), 3))
        cells.append(_interval(one["above"].get(name) or {}))
    return cells


def _interval(one: Mapping[str, Any]) -> str:
    why = str(one.get("why") or "–")
    if one.get("value") is None:
        return why
    value = format_number(one["value"], 3)
    if one.get("low") is None:
        return f"{value} ({why})"
    return f"{value} ({format_number(one['low'], 3)} to {format_number(one['high'], 3)})"


_FIRST_SAMPLES = 4
"""The worst ones; the others are folded."""


def _samples(shown: Sequence[AnswerSample], gold: str | None) -> Element | str:
    """Answers before and after training, the worst after it first.

    With a gold grader: of the lowest gold the highest reward, where the judge is misled. Else the
    lowest reward, missing ones first.
    """
    before = [one for one in shown if one.when == "before"]
    after = [one for one in shown if one.when == "after"]
    pairs = list(zip(before, after, strict=False))
    if not pairs:
        return ""
    pairs.sort(key=lambda pair: _worst_first(pair[1], gold))
    by = "lowest reward" if gold is None else f"lowest {gold}, then highest reward"
    first, more = pairs[:_FIRST_SAMPLES], pairs[_FIRST_SAMPLES:]
    folded = Element(
        "details",
        Element("summary", f"{format_integer(len(more))} more"),
        _samples_table(more),
    )
    return Fragment(
        small(f"Order: {by} after training."), _samples_table(first), folded if more else None
    )


def _worst_first(last: AnswerSample, gold: str | None) -> tuple[float, float]:
    if gold is None:
        return (-math.inf if last.reward is None else last.reward), 0.0
    score = math.inf
    with suppress(ValueError):  # a verdict begins with its score; a failure has none
        score = float(last.verdicts.get(gold, "").partition(" ")[0])
    return score, math.inf if last.reward is None else -last.reward


def _samples_table(pairs: Sequence[tuple[AnswerSample, AnswerSample]]) -> Table:
    rows = [
        [[quote(first.prompt), small("right: ", first.reference)], _answer(first), _answer(last)]
        for first, last in pairs
    ]
    return Table(["Question", "Before", "After"], rows, kind="said", row_heads=False)


def _answer(one: AnswerSample) -> list[Element]:
    reward = "missing" if one.reward is None else format_number(one.reward, 2)
    lines = [f"reward {reward}"]
    if one.missing is not None:
        lines.append(one.missing)
    lines += [f"{name}: {verdict}" for name, verdict in one.verdicts.items()]
    return [quote(one.response), small("\n".join(lines))]
