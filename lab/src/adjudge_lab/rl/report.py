"""A training run as one HTML file: curves, the sentinel's alarms, answers before and after.

The curves are line charts over training steps as SVG, without a library. Lines live in a stretched
view box, text outside it, so that a chart fits any column and its lettering keeps its size; colours
are classes of ``report.css``. What the policy and the judge wrote is escaped everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from adjudge.runs.report import frame
from adjudge.runs.report.charts import escape_html, format_integer, format_number, format_percent
from adjudge.runs.report.frame import Section, Tile, notes_section, render_page, render_tiles
from adjudge.runs.sentinel import MISSING_SHARE
from adjudge_lab.rl.held_out import AnswerSample

__all__ = ["ChartLine", "line_chart", "write_training_report"]


_HEIGHT = 150
_MOST_POINTS = 600


class ChartLine(NamedTuple):
    """A named curve: one value a step, ``None`` where there is none (a gap)."""

    name: str
    values: Sequence[float | None]


def line_chart(
    title: str,
    lines: Sequence[ChartLine],
    steps: Sequence[int],
    *,
    low: float | None = None,
    high: float | None = None,
    marks: Sequence[int] = (),
) -> str:
    """A figure of up to three ``lines`` over ``steps``; ``marks`` are steps to point at.

    The vertical scale goes from ``low`` to ``high``, by default what the values need. Empty
    where no value is there.
    """
    present = [
        value
        for line in lines
        for value in line.values
        if value is not None and math.isfinite(value)
    ]
    if not present:
        return ""
    bottom = min(present) if low is None else low
    top = max(present) if high is None else high
    if top - bottom < 1e-9:
        top = bottom + 1.0
    scale = _Scale(steps[0], max(steps[-1], steps[0] + 1), bottom, top)
    drawn = "".join(_mark(scale, step) for step in marks)
    drawn += "".join(_polylines(scale, line, steps, place) for place, line in enumerate(lines))
    return (
        f"<figure><figcaption><b>{escape_html(title)}</b>{_legend(lines)}</figcaption>"
        f'<svg role="img" aria-label="{escape_html(_describe_chart(title, lines))}" width="100%" '
        f'height="{_HEIGHT + 18}">{_grid(bottom, top)}'
        f'<svg width="100%" height="{_HEIGHT}" viewBox="0 0 100 100" '
        f'preserveAspectRatio="none">{drawn}</svg>{_axis(steps)}</svg></figure>'
    )


class _Scale(NamedTuple):
    first: int
    last: int
    bottom: float
    top: float

    def x(self, step: int) -> float:
        return 100 * (step - self.first) / (self.last - self.first)

    def y(self, value: float) -> float:
        share = (value - self.bottom) / (self.top - self.bottom)
        return 100 * (1 - min(1.0, max(0.0, share)))


def _polylines(scale: _Scale, line: ChartLine, steps: Sequence[int], place: int) -> str:
    """The line in pieces: it is broken where values are missing."""
    every = max(1, len(steps) // _MOST_POINTS)
    pieces: list[list[str]] = [[]]
    for index in range(0, len(steps), every):
        value = line.values[index]
        if value is None or not math.isfinite(value):
            pieces.append([])
            continue
        pieces[-1].append(f"{scale.x(steps[index]):.2f},{scale.y(value):.2f}")
    return "".join(
        f'<polyline class="s{place}" points="{" ".join(piece if len(piece) > 1 else piece * 2)}"/>'
        for piece in pieces
        if piece
    )


def _mark(scale: _Scale, step: int) -> str:
    x = scale.x(step)
    return f'<line class="mark" x1="{x:.2f}" x2="{x:.2f}" y1="0" y2="100"/>'


def _grid(bottom: float, top: float) -> str:
    parts = []
    for share in (0.0, 0.5, 1.0):
        y = _HEIGHT * (1 - share)
        text = format_number(bottom + share * (top - bottom), 2)
        parts.append(f'<line class="grid" x1="0" x2="100%" y1="{y:.0f}" y2="{y:.0f}"/>')
        parts.append(f'<text x="0" y="{y - 3 if share < 1 else y + 11:.0f}">{text}</text>')
    return "".join(parts)


def _axis(steps: Sequence[int]) -> str:
    y = _HEIGHT + 14
    return (
        f'<text x="0" y="{y}">step {steps[0]}</text>'
        f'<text x="100%" y="{y}" text-anchor="end">{steps[-1]}</text>'
    )


def _legend(lines: Sequence[ChartLine]) -> str:
    if len(lines) < 2:
        return ""
    return "".join(
        f'<span><svg class="key" viewBox="0 0 22 8" aria-hidden="true"><polyline class="s{place}" '
        f'points="0,4 22,4"/></svg>{escape_html(line.name)}</span>'
        for place, line in enumerate(lines)
    )


def _describe_chart(title: str, lines: Sequence[ChartLine]) -> str:
    """The chart in words: where each line starts and ends."""
    ends = []
    for line in lines:
        present = [value for value in line.values if value is not None]
        if present:
            ends.append(
                f"{line.name} from {format_number(present[0])} to {format_number(present[-1])}"
            )
    return f"{title}: {'; '.join(ends)}"


_NOTES = """<p><b>Judge</b> is the aggregated, normalised judge score of a step&rsquo;s answers, \
<b>reward</b> what the policy was trained on. <b>Gold</b> is a rule of weight 0: never trained on, \
only watched. A judge that climbs while the gold falls is being exploited. <b>First</b> and \
<b>last</b> are means over the first and last tenth of the steps.</p>
<p><b>Zero spread</b> is the share of groups whose rewards are all equal: nothing is learnt from \
those. <b>Length correlation</b> is the mean correlation of reward and length inside groups. \
<b>Missing</b> rewards are those whose judge failed; they are left out, never counted as 0.</p>"""

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
            _tiles(summary),
            Section("sentinel", "The sentinel’s word", _sentinel_section(summary), "Sentinel"),
            Section(
                "curves",
                "Curves",
                f'<div class="curves">{_curve_charts(summary, rows)}</div>',
                "Curves",
            ),
            frame.judge_calls_html({"endpoints": summary.get("endpoints")}),
            Section(
                "samples", "The same questions, before and after", _samples_table(shown), "Samples"
            ),
            notes_section(_NOTES),
        ],
        styles=[("adjudge_lab.rl", "report.css")],
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


def _tiles(summary: Mapping[str, Any]) -> str:
    first, last = summary["first"], summary["last"]
    alarms = [alarm for alarm in summary["sentinel"]["alarms"] if not alarm["note"]]
    names = (("Reward", "reward"), ("Environment", "env"), ("Judge", "judge"), ("Gold", "gold"))
    found = [
        _change_tile(name, first[key], last[key], missing=0 if key == "env" else last["missing"])
        for name, key in names
        if first[key] is not None or key == "reward"
    ]
    found += [
        _change_tile("Length, tokens", first["length"], last["length"], digits=1),
        _share_tile("Zero-spread groups", last["zero_spread"], "in the last tenth"),
        _share_tile(
            "Rewards missing", last["missing"], "in the last tenth", alarm_from=MISSING_SHARE
        ),
        Tile("Alarms", format_integer(len(alarms)), "of the sentinel", alarm=bool(alarms)),
    ]
    return render_tiles(found)


def _change_tile(
    name: str,
    first: float | None,
    last: float | None,
    digits: int = 2,
    missing: float | None = None,
) -> Tile:
    share = f", of {format_percent(1 - missing)} of the rollouts" if missing else ""
    return Tile(name, format_number(last, digits), f"from {format_number(first, digits)}{share}")


def _share_tile(name: str, share: float | None, note: str, alarm_from: float = math.inf) -> Tile:
    alarm = share is not None and share >= alarm_from
    return Tile(name, "–" if share is None else format_percent(share), note, alarm=alarm)


def _sentinel_section(summary: Mapping[str, Any]) -> str:
    alarms = summary["sentinel"]["alarms"]
    if not alarms:
        return f"<p>Nothing to report in {format_integer(summary['steps'])} steps.</p>"
    return f'<ul class="alarms">{"".join(map(_alarm_item, alarms))}</ul>'


def _alarm_item(one: Mapping[str, Any]) -> str:
    kind = ' class="note"' if one["note"] else ""
    return (
        f"<li{kind}><b>Step {one['step']}, {escape_html(one['rule'].replace('_', ' '))}</b>: "
        f"{escape_html(one['seen'])}.<br>What to change: {escape_html(one['advice'])}.</li>"
    )


def _curve_charts(summary: Mapping[str, Any], rows: _MetricRows) -> str:
    if not rows:
        return "<p>No step was done.</p>"
    steps = [round(row["step"]) for row in rows]
    marks = [one["step"] for one in summary["sentinel"]["alarms"] if not one["note"]]

    def line(name: str, key: str) -> ChartLine:
        return ChartLine(name, [row.get(key) for row in rows])

    gold = [] if summary["gold"] is None else [line("gold", f"judge/{summary['gold']}_score_mean")]
    charts = [
        line_chart(
            "Judge and gold", [line("judge", "judge/outcome_mean"), *gold], steps,
            low=0.0, high=1.0, marks=marks,
        ),
        line_chart(
            "Return",
            [
                line("mean", "mean_return"), line("environment", "env_return"),
                line("judge", "judge_return"),
            ],
            steps, marks=marks,
        ),
        *(
            line_chart(
                f"Score of {one['name']}", [line(one["name"], f"judge/{one['name']}_score_mean")],
                steps, marks=marks,
            )
            for one in summary["graders"]
            if one["name"] != summary["gold"]
        ),
        line_chart(
            "Judge's spread, standard deviation", [line("spread", "judge/score_std")], steps,
            low=0.0, marks=marks,
        ),
        line_chart(
            "Events, mean sum over turns", [line("events", "judge/events_mean")], steps, marks=marks
        ),
        line_chart("Length, tokens", [line("length", "length")], steps, low=0.0, marks=marks),
        line_chart(
            "Zero spread, share of groups", [line("zero spread", "judge/zero_std_frac")], steps,
            low=0.0, high=1.0, marks=marks,
        ),
        line_chart(
            "Correlation of reward and length in groups",
            [line("correlation", "judge/len_corr_group")], steps, low=-1.0, high=1.0, marks=marks,
        ),
        line_chart(
            "Judge's latency, s",
            [line("median", "judge/latency_p50"), line("99th percentile", "judge/latency_p99")],
            steps, low=0.0,
        ),
        line_chart(
            "Rewards missing, share", [line("missing", "judge/missing_frac")], steps, low=0.0
        ),
        line_chart("Cost per step, USD", [line("cost", "judge/cost_usd")], steps, low=0.0),
        line_chart(
            "Seconds of a step",
            [
                line("generating", "generate_s"), line("waiting for judges", "judge_wait_s"),
                line("updating", "update_s"),
            ],
            steps, low=0.0,
        ),
        line_chart("Entropy of the policy", [line("entropy", "entropy")], steps, low=0.0),
    ]  # fmt: skip
    return "".join(charts)


def _samples_table(shown: Sequence[AnswerSample]) -> str:
    before = [one for one in shown if one.when == "before"]
    after = [one for one in shown if one.when == "after"]
    body = "".join(
        f"<tr><td>{_quoted(first.prompt)}<small>right: {escape_html(first.reference)}</small></td>"
        f"<td>{_answer(first)}</td><td>{_answer(last)}</td></tr>"
        for first, last in zip(before, after, strict=False)
    )
    return (
        '<div class="scroll"><table class="said"><thead><tr><th scope="col">Question</th>'
        '<th scope="col">Before</th><th scope="col">After</th></tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _answer(one: AnswerSample) -> str:
    reward = "missing" if one.reward is None else format_number(one.reward, 2)
    lines = [f"reward {reward}"]
    if one.missing is not None:
        lines.append(one.missing)
    lines += [f"{name}: {told}" for name, told in one.verdicts.items()]
    return f"{_quoted(one.response)}<small>{escape_html(chr(10).join(lines))}</small>"


def _quoted(text: str) -> str:
    return f"<q>{escape_html(text)}</q>"
