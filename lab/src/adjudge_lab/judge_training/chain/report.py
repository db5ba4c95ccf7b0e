"""The summary and the HTML report of a chain.

One file: stages, judges, how they did unseen, what a policy made of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from adjudge.files import iter_rows
from adjudge.judge_evaluation.benchmarks.contamination import contamination_warning
from adjudge.runs.report.charts import escape_html, format_integer, format_number, format_percent
from adjudge.runs.report.frame import Section, Tile, notes_section, render_page, render_tiles
from adjudge.runs.stats import mean
from adjudge_lab.judge_training.chain.evaluation import gold_agreements
from adjudge_lab.judge_training.chain.file import ResolvedStage
from adjudge_lab.rl.report import ChartLine, line_chart

__all__ = [
    "StageSummary",
    "chain_summary_lines",
    "stage_summary",
    "write_chain_report",
]


_JUDGE_KEYS = ("method", "label", "base", "steps", "best_step", "first", "validation", "not_done")
_RUN_KEYS = (
    "label", "base", "judge", "env_name", "steps", "steps_planned", "batch_size", "group_size",
    "graders", "gold", "first", "last",
)  # fmt: skip


def stage_summary(stage: ResolvedStage, summary: Mapping[str, Any]) -> dict[str, Any]:
    """A stage's part of the chain's ``summary.json``, from its own.

    ``report`` is where its page is, relative to the chain's folder; ``None`` without one. A run has
    ``held_out``: the mean of each of its graders, and the reward, over held-out episodes ``before``
    and ``after``, whose rewards are there; and ``agreement``: by gold how far the reward orders the
    policy's own answers alike, in the first and the last tenth of the steps.
    """
    told: dict[str, Any] = {
        "name": stage.name,
        "kind": stage.kind,
        "after": list(stage.after),
        "seconds": summary.get("seconds", {}).get("total"),
        "report": f"{stage.name}/report.html" if stage.kind != "evaluate" else None,
    }
    if stage.kind == "evaluate":
        return {**told, **{name: one for name, one in summary.items() if name != "seconds"}}
    if stage.kind == "judge":
        rows = summary["data"]["train_rows"]["rows"]
        synthetic = summary["data"].get("synthetic")
        return {**told, **_select_keys(summary, _JUDGE_KEYS), "rows": rows, "synthetic": synthetic}
    golds = [one["name"] for one in summary["graders"] if not one["weight"]]
    return {
        **told,
        **_select_keys(summary, _RUN_KEYS),
        "alarms": summary["sentinel"]["alarms"],
        "held_out": _held_out_means(stage),
        "agreement": msgspec.to_builtins(gold_agreements(stage.folder / "rollouts.jsonl", golds)),
    }


def _select_keys(summary: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: summary.get(name) for name in names}


def _held_out_means(stage: ResolvedStage) -> dict[str, dict[str, float | None]]:
    rows = _evaluations(stage.folder)
    steps = [row["step"] for row in rows]
    if not steps:
        return {}
    return {
        when: _means([row for row in rows if row["step"] == step])
        for when, step in (("before", min(steps)), ("after", max(steps)))
    }


def _evaluations(folder: Path) -> list[dict[str, Any]]:
    return list(iter_rows(folder / "evaluation.jsonl", dict[str, Any]))


def _means(rows: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """The means of the graders' scores and of the reward, of what is there."""
    found = [{**row["reward_info"], "reward_score": row["reward"]} for row in rows]
    names = dict.fromkeys(name for one in found for name in one if name.endswith("_score"))
    return {
        name.removesuffix("_score"): mean([one[name] for one in found if one.get(name) is not None])
        for name in names
    }


def chain_summary_lines(summary: Mapping[str, Any]) -> list[str]:
    """What a terminal shows of a chain's ``summary.json``: a line or a few a stage."""
    lines = []
    for one in summary["stages"]:
        told = {"judge": _judge_line, "evaluate": _check_line, "run": _run_line}[one["kind"]](one)
        lines.append(f"{one['name']:<12}{told}")
    return [*lines, f"{'in all':<12}{summary['seconds']['total']:.0f} s"]


def _judge_line(one: Mapping[str, Any]) -> str:
    key = "accuracy" if "accuracy" in one["validation"] else "loss"
    bayes = one["validation"].get("bayes_accuracy")
    most = "" if bayes is None else f" (Bayes rate {bayes:.3f})"
    method = one["method"].replace("_", " ")
    first, last = (_number(one[when].get(key)) for when in ("first", "validation"))
    return f"{method}: {key} on held-out rows {first} → {last}{most}"


def _check_line(one: Mapping[str, Any]) -> str:
    overall = one["overall"]
    low, high = overall["interval"]["low"], overall["interval"]["high"]
    span = "" if low is None else f" [{low:.3f}, {high:.3f}]"
    gone = f", {overall['missing']} of {overall['items']} missing" if overall["missing"] else ""
    ece = (one["calibration"] or {}).get("ece")
    sure = "" if ece is None else f", calibration error {ece:.3f}"
    seen = (one.get("contamination") or {}).get("seen")
    known = f"CONTAMINATED ({seen} items were trained on): " if seen else ""
    score = _number(overall["accuracy_of_answered"])
    return f"{known}{one['benchmark']}: {score}{span}{gone}{sure}"


def _run_line(one: Mapping[str, Any]) -> str:
    held = one["held_out"]
    names = [name for name in held.get("before", {}) if name in held.get("after", {})]
    told = ", ".join(
        f"{name} {_number(held['before'][name])} → {_number(held['after'][name])}" for name in names
    )
    return f"held-out answers: {told}" if told else f"{one['steps']} steps"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


StageSummary = Mapping[str, Any]

_NOTES = """<p><b>Accuracy</b> is the share of pairs whose better side scores higher. The <b>Bayes \
rate</b> is what a judge could expect that knows everything but the chance in the labels. \
Intervals hold 95 % of 2,000 resamples of the pairs.</p>
<p><b>Calibration error</b>: how far &sigma;(difference) as a probability is from the share that \
is right, in ten bins. <b>Prefers the longer</b>: of pairs of different length; without a bias \
it is the share in which the longer is better.</p>
<p><b>The judge</b> is what the policy was trained on; a <b>gold</b> it never sees. Where the \
judge climbs and a gold does not follow, the policy has found what the judge gets wrong.</p>
<p><b>Ordered as by</b> a gold: of two answers to one question whose golds differ, the share in \
which the reward says the same, equal rewards half. A judge that is good on made-up pairs need \
not be on what a policy says, and less so on what it says in the end.</p>"""


def write_chain_report(
    path: Path, summary: StageSummary, curves: Mapping[str, Sequence[Mapping[str, float]]]
) -> None:
    """Write ``report.html`` of a chain to ``path``, UTF-8.

    ``summary`` is the chain's ``summary.json``, ``curves`` the rows of ``metrics.jsonl`` of each
    stage that trained a policy.
    """
    stages = summary["stages"]
    of = {kind: [one for one in stages if one["kind"] == kind] for kind in _EMPTY}
    seen = "".join(map(_evaluation_html, of["evaluate"])) or _EMPTY["evaluate"]
    policies = "".join(_policy_html(one, curves.get(one["name"], [])) for one in of["run"])
    html = render_page(
        summary["label"],
        _facts(summary),
        [
            render_tiles(_tiles(stages)),
            Section(
                "stages",
                "Stages",
                _table(
                    ("Stage", "What", "Builds on", "Seconds", "Its own page"),
                    map(_stage_row, stages),
                ),
                "Stages",
            ),
            Section(
                "judges",
                "Judges",
                "".join(map(_judge_html, of["judge"])) or _EMPTY["judge"],
                "Judges",
            ),
            Section("unseen", "On unseen pairs", seen, "On unseen pairs"),
            Section("policy", "What a policy did with it", policies or _EMPTY["run"], "The policy"),
            notes_section(_NOTES),
        ],
        styles=[("adjudge_lab.rl", "report.css"), (__package__ or "", "page.css")],
    )
    path.write_text(html, encoding="utf-8", newline="\n")


_EMPTY = {
    "judge": "<p>The chain trained no judge.</p>",
    "evaluate": "<p>The chain has no such stage.</p>",
    "run": "<p>The chain trained no policy.</p>",
}


def _facts(summary: StageSummary) -> list[tuple[str, str]]:
    return [
        ("Stages", f"{len(summary['stages'])} in {summary['seconds']['total']:g} s"),
        ("Seed", f"{summary['seed']} added to each stage's"),
        ("When", f"{summary['created']} · adjudge {summary['adjudge']}"),
    ]


def _tiles(stages: Sequence[StageSummary]) -> list[Tile]:
    tiles = []
    for one in stages:
        name = one["name"]
        if one["kind"] == "judge" and "accuracy" in one["validation"]:
            start = format_number(one["first"].get("accuracy"))
            tiles.append(
                Tile(
                    f"Accuracy, {name}",
                    format_number(one["validation"]["accuracy"]),
                    f"from {start}",
                )
            )
        elif one["kind"] == "evaluate":
            overall = one["overall"]
            tiles.append(
                Tile(
                    f"Unseen, {name}",
                    format_number(overall["accuracy_of_answered"]),
                    _interval_text(overall),
                )
            )
        elif one["kind"] == "run":
            before, after = _first_and_last(one)
            tiles += [
                Tile(
                    key.capitalize(),
                    format_number(after[key]),
                    f"from {format_number(before.get(key))}",
                )
                for key in after
                if key != "reward"
            ]
    return tiles


def _interval_text(overall: StageSummary) -> str:
    low, high = overall["interval"]["low"], overall["interval"]["high"]
    return "no interval" if low is None else f"95 %: {format_number(low)} to {format_number(high)}"


def _table(heads: Sequence[str], rows: Any) -> str:
    head = "".join(f'<th scope="col">{name}</th>' for name in heads)
    return (
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _cells(*cells: str) -> str:
    return f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


_STAGE_TEXTS = {"evaluate": "evaluation of {benchmark}", "run": "policy on {env_name}"}


def _stage_row(one: StageSummary) -> str:
    what = _STAGE_TEXTS.get(one["kind"], "training by {method}").format_map(one).replace("_", " ")
    page = one["report"]
    link = f'<a href="{escape_html(page)}">{escape_html(page)}</a>' if page else "this one"
    after = ", ".join(one["after"]) or "–"
    return _cells(
        escape_html(one["name"]),
        escape_html(what),
        escape_html(after),
        format_number(one["seconds"], 1),
        link,
    )


_QUALITY_KEYS = (
    ("Accuracy", "accuracy"), ("Loss", "loss"), ("Margin", "margin"),
    ("Calibration error", "calibration_error"), ("Length correlation", "length_corr"),
)  # fmt: skip


def _judge_html(one: StageSummary) -> str:
    first, last = one["first"], one["validation"]
    rows = [
        _cells(name, format_number(first.get(key)), format_number(last[key]))
        for name, key in _QUALITY_KEYS
        if key in last
    ]
    if "bayes_accuracy" in last:
        rows.append(_cells("Bayes rate", "", format_number(last["bayes_accuracy"])))
    dials = "".join(
        f"; {escape_html(name.replace('_', ' '))} {escape_html(value)}"
        for name, value in (one["synthetic"] or {}).items()
        if value and name != "n"
    )
    return (
        f"<h3>{escape_html(one['name'])}: {escape_html(one['method'].replace('_', ' '))}</h3>"
        f"<p>{format_integer(one['steps'])} steps on {format_integer(one['rows'])} rows{dials}; "
        "the best is that "
        f"of step {format_integer(one['best_step'])}.</p>"
        + _table(("On held-out rows", "Before", "After"), rows)
    )


def _evaluation_html(one: StageSummary) -> str:
    overall = one["overall"]
    rows = [_subset("all", overall)]
    if len(one["subsets"]) > 1:
        rows += [_subset(name, part) for name, part in one["subsets"].items()]
    parts = [f"<h3>{escape_html(one['name'])}: {escape_html(one['benchmark'])}</h3>"]
    asked = "through adjudge serve" if one["served"] else "in this process"
    said = f"{format_integer(overall['items'])} items, asked {asked}"
    if one.get("left_out"):
        said += (
            f"; {format_integer(one['left_out'])} more were in the training data and are left out"
        )
    if one["unusable"]:
        said += f"; {format_integer(one['unusable'])} rows could not be used"
    if one.get("bayes_accuracy") is not None:
        said += f"; Bayes rate {format_number(one['bayes_accuracy'])}"
    parts.append(f"<p>{said}.</p>{_contamination_note(one)}")
    parts.append(_table(("Subset", "Items", "Missing", "Accuracy", "Interval"), rows))
    return "".join(parts) + _calibration(one["calibration"]) + _lengths(one["lengths"])


def _contamination_note(one: StageSummary) -> str:
    """That the judge was trained on some of the items; of files that it was compared with them."""
    if not (found := one.get("contamination")):
        return ""
    if line := contamination_warning(one["judge"], found, one["overall"]["items"]):
        return f"<p><b>{escape_html(line)}</b></p>"
    return f"<p>Contamination: {escape_html('; '.join(found['notes']))}.</p>"


def _subset(name: str, part: StageSummary) -> str:
    gone = format_integer(part["missing"])
    kinds = ", ".join(f"{kind} {count}" for kind, count in part["failures"].items())
    return _cells(
        escape_html(name), format_integer(part["items"]), f"{gone} {escape_html(kinds)}".strip(),
        format_number(part["accuracy_of_answered"]), _interval_text(part),
    )  # fmt: skip


def _calibration(found: StageSummary | None) -> str:
    if not found or found["ece"] is None:
        return ""
    rows = [
        _cells(format_integer(n), format_percent(sure), format_percent(right))
        for n, sure, right in found["bins"]
    ]
    loss = "∞" if found.get("ruled_out") else format_number(found["log_loss"])
    return (
        f"<p>Calibration error {format_number(found['ece'])}, Brier score "
        f"{format_number(found['brier'])} (0.25 "
        f"knows nothing), log loss {loss}.</p>"
        + _table(("Pairs", "How sure the judge was", "How often it was right"), rows)
    )


def _lengths(found: StageSummary | None) -> str:
    if not found or found["prefers_longer"] is None or found["better_is_longer"] is None:
        return ""
    return (
        f"<p>It prefers the longer answer in {format_percent(found['prefers_longer'])}; the longer "
        "is the "
        f"better one in {format_percent(found['better_is_longer'])}.</p>"
    )


def _first_and_last(one: StageSummary) -> tuple[dict[str, float | None], dict[str, float | None]]:
    held = one["held_out"]
    return held.get("before", {}), held.get("after", {})


def _policy_html(one: StageSummary, rows: Sequence[Mapping[str, float]]) -> str:
    before, after = _first_and_last(one)
    names = [name for name in after if name != "reward"]
    means = _table(
        ("Held-out answers, mean", "Before", "After"),
        [
            _cells(escape_html(name), format_number(before.get(name)), format_number(after[name]))
            for name in names
        ],
    )
    length = (
        f"{format_number(one['first']['length'], 1)} to {format_number(one['last']['length'], 1)}"
    )
    asked = one["judge"] or "nobody"
    reward = f"the reward is what {escape_html(asked)} says"
    size = f"{format_integer(one['steps'])} steps of {format_integer(one['batch_size'])} answers"
    parts = [
        f"<h3>{escape_html(one['name'])}</h3>",
        f"<p>{size}; {reward}. Answers went from {length} tokens.</p>",
        means,
        _agreement(one["agreement"]),
        _alarms(one["alarms"]),
    ]
    return "".join(parts) + _curves(one, rows)


def _agreement(found: StageSummary) -> str:
    rows = [
        _cells(
            escape_html(gold),
            *(f"{format_number(end['share'])} of {format_integer(end['pairs'])}" for end in ends),
        )
        for gold, ends in found.items()
    ]
    if not rows:
        return ""
    heads = ("Its own answers ordered as by", "First tenth of the steps", "Last tenth")
    return _table(heads, rows)


def _alarms(alarms: Sequence[StageSummary]) -> str:
    if not alarms:
        return "<p>The sentinel saw nothing.</p>"
    return f'<ul class="alarms">{"".join(map(_alarm, alarms))}</ul>'


def _alarm(one: StageSummary) -> str:
    kind = ' class="note"' if one["note"] else ""
    rule = escape_html(one["rule"].replace("_", " "))
    return (
        f"<li{kind}><b>Step {format_integer(one['step'])}, {rule}</b>: "
        f"{escape_html(one['seen'])}.</li>"
    )


def _curves(one: StageSummary, rows: Sequence[Mapping[str, float]]) -> str:
    if not rows:
        return ""
    steps = [round(row["step"]) for row in rows]

    def line(name: str, key: str) -> ChartLine:
        return ChartLine(name, [row.get(key) for row in rows])

    gold = one["gold"]
    both = [line("judge", "judge/outcome_mean")]
    if gold is not None:
        both.append(line(gold, f"judge/{gold}_score_mean"))
    others = [g["name"] for g in one["graders"] if not g["weight"] and g["name"] != gold]
    charts = [
        line_chart("Judge and gold", both, steps, low=0.0, high=1.0),
        *(
            line_chart(f"Score of {name}", [line(name, f"judge/{name}_score_mean")], steps)
            for name in others
        ),
        line_chart("Length, tokens", [line("length", "length")], steps, low=0.0),
        line_chart("Judge's spread", [line("spread", "judge/score_std")], steps, low=0.0),
    ]
    return f'<div class="curves">{"".join(charts)}</div>'
