"""A training run as one HTML file: curves, the sentinel's word, answers before and after.

What the policy and the judge said is escaped wherever it stands.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from adjudge.runs.report import calls
from adjudge.runs.report.charts import esc, integer, number, percent
from adjudge.runs.report.frame import Section, Tile, framed, how_to_read, tiles
from adjudge.training.curves import Line, line_chart
from adjudge.training.sentinel import MISSING
from adjudge.training.verdicts import Shown

__all__ = ["write_report"]

_NOTES = """<p><b>Judge</b> is the aggregated, normalised judge score of a step&rsquo;s answers, \
<b>reward</b> what the policy was trained on. <b>Gold</b> is a rule of weight 0: never trained on, \
only watched. A judge that climbs while the gold falls is being exploited. <b>First</b> and \
<b>last</b> are means over the first and last tenth of the steps.</p>
<p><b>Zero spread</b> is the share of groups whose rewards are all equal: nothing is learnt from \
those. <b>Length correlation</b> is the mean correlation of reward and length inside groups. \
<b>Missing</b> rewards are those whose judge failed; they are left out, never counted as 0.</p>"""

Rows = Sequence[Mapping[str, float]]


def write_report(
    path: Path, summary: Mapping[str, Any], rows: Rows, shown: Sequence[Shown]
) -> None:
    """Write ``report.html`` of a run to ``path``, UTF-8.

    ``summary`` is the run's ``summary.json``, ``rows`` are those of ``metrics.jsonl``.
    """
    html = framed(
        "Training report",
        _facts(summary),
        [
            _tiles(summary),
            Section("sentinel", "The sentinel’s word", _sentinel(summary), "Sentinel"),
            Section(
                "curves", "Curves", f'<div class="curves">{_curves(summary, rows)}</div>', "Curves"
            ),
            calls.section({"endpoints": summary.get("endpoints")}),
            Section("samples", "The same questions, before and after", _samples(shown), "Samples"),
            how_to_read(_NOTES),
        ],
        styles=[("adjudge.training", "report.css")],
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
        _change(name, first[key], last[key], missing=0 if key == "env" else last["missing"])
        for name, key in names
        if first[key] is not None or key == "reward"
    ]
    found += [
        _change("Length, tokens", first["length"], last["length"], digits=1),
        _share("Zero-spread groups", last["zero_spread"], "in the last tenth"),
        _share("Rewards missing", last["missing"], "in the last tenth", alarm_from=MISSING),
        Tile("Alarms", integer(len(alarms)), "of the sentinel", alarm=bool(alarms)),
    ]
    return tiles(found)


def _change(
    name: str,
    first: float | None,
    last: float | None,
    digits: int = 2,
    missing: float | None = None,
) -> Tile:
    share = f", of {percent(1 - missing)} of the rollouts" if missing else ""
    return Tile(name, number(last, digits), f"from {number(first, digits)}{share}")


def _share(name: str, share: float | None, note: str, alarm_from: float = math.inf) -> Tile:
    alarm = share is not None and share >= alarm_from
    return Tile(name, "–" if share is None else percent(share), note, alarm=alarm)


def _sentinel(summary: Mapping[str, Any]) -> str:
    alarms = summary["sentinel"]["alarms"]
    if not alarms:
        return f"<p>Nothing to report in {integer(summary['steps'])} steps.</p>"
    return f'<ul class="alarms">{"".join(map(_alarm, alarms))}</ul>'


def _alarm(one: Mapping[str, Any]) -> str:
    kind = ' class="note"' if one["note"] else ""
    return (
        f"<li{kind}><b>Step {one['step']}, {esc(one['rule'].replace('_', ' '))}</b>: "
        f"{esc(one['seen'])}.<br>What to change: {esc(one['advice'])}.</li>"
    )


def _curves(summary: Mapping[str, Any], rows: Rows) -> str:
    if not rows:
        return "<p>No step was done.</p>"
    steps = [round(row["step"]) for row in rows]
    marks = [one["step"] for one in summary["sentinel"]["alarms"] if not one["note"]]

    def line(name: str, key: str) -> Line:
        return Line(name, [row.get(key) for row in rows])

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


def _samples(shown: Sequence[Shown]) -> str:
    before = [one for one in shown if one.when == "before"]
    after = [one for one in shown if one.when == "after"]
    body = "".join(
        f"<tr><td>{_quoted(first.prompt)}<small>right: {esc(first.reference)}</small></td>"
        f"<td>{_answer(first)}</td><td>{_answer(last)}</td></tr>"
        for first, last in zip(before, after, strict=False)
    )
    return (
        '<div class="scroll"><table class="said"><thead><tr><th scope="col">Question</th>'
        '<th scope="col">Before</th><th scope="col">After</th></tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _answer(one: Shown) -> str:
    reward = "missing" if one.reward is None else number(one.reward, 2)
    lines = [f"reward {reward}"]
    if one.missing is not None:
        lines.append(one.missing)
    lines += [f"{name}: {told}" for name, told in one.verdicts.items()]
    return f"{_quoted(one.response)}<small>{esc(chr(10).join(lines))}</small>"


def _quoted(text: str) -> str:
    return f"<q>{esc(text)}</q>"
