"""The summary and the HTML report of a chain.

One file: stages, judges, how they did unseen, what a policy made of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from adjudge.files import iter_rows
from adjudge.report.page import (
    Element,
    Section,
    format_integer,
    format_number,
    format_percent,
    notes_section,
    render_page,
)
from adjudge.report.table import Table, numeric
from adjudge.stats import mean
from adjudge_lab.judge_training.chain.file import ResolvedStage

_JUDGE_KEYS = ("method", "label", "base", "steps", "best_step", "first", "validation", "not_done")
_RUN_KEYS = (
    "label", "base", "judge", "env_name", "steps", "steps_planned", "batch_size", "group_size",
    "graders", "gold", "first", "last",
)  # fmt: skip


def stage_summary(stage: ResolvedStage, summary: Mapping[str, Any]) -> dict[str, Any]:
    """A stage's part of the chain's ``summary.json``, from its own.

    ``report`` is where its page is, relative to the chain's folder; ``None`` without one. A run has
    ``held_out``: the mean of each of its graders, and the reward, over held-out episodes with a
    reward, ``before`` and ``after``.
    """
    same: dict[str, Any] = {
        "name": stage.name,
        "kind": stage.kind,
        "after": list(stage.after),
        "seconds": summary.get("seconds", {}).get("total"),
        "report": f"{stage.name}/report.html" if stage.kind != "evaluate" else None,
    }
    if stage.kind == "evaluate":
        return {**same, **{name: one for name, one in summary.items() if name != "seconds"}}
    if stage.kind == "judge":
        rows = summary["data"]["train_rows"]["rows"]
        synthetic = summary["data"].get("synthetic")
        return {
            **same,
            **_select_keys(summary, _JUDGE_KEYS),
            "rows": rows,
            "synthetic": synthetic,
        }
    return {
        **same,
        **_select_keys(summary, _RUN_KEYS),
        "alarms": summary["sentinel"]["alarms"],
        "held_out": _held_out_means(stage),
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
        line = {"judge": _judge_line, "evaluate": _check_line, "run": _run_line}[one["kind"]](one)
        lines.append(f"{one['name']:<12}{line}")
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
    score = _number(overall["accuracy_of_answered"])
    return f"{one['benchmark']}: {score}{span}{gone}{sure}"


def _run_line(one: Mapping[str, Any]) -> str:
    held = one["held_out"]
    names = [name for name in held.get("before", {}) if name in held.get("after", {})]
    means = ", ".join(
        f"{name} {_number(held['before'][name])} → {_number(held['after'][name])}" for name in names
    )
    return f"held-out answers: {means}" if means else f"{one['steps']} steps"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


StageSummary = Mapping[str, Any]


def write_chain_report(path: Path, summary: StageSummary) -> None:
    """Write ``report.html`` of a chain to ``path``, UTF-8; ``summary`` is its ``summary.json``.

    A policy's curves and alarms are on the page of its own stage.
    """
    stages = summary["stages"]

    def blocks(kind: str, of_stage: Callable[[StageSummary], list[object]]) -> list[object]:
        return [block for one in stages if one["kind"] == kind for block in of_stage(one)]

    columns = ["Stage", "What", "Builds on", *numeric("Seconds"), "Its own page"]
    parts: list[tuple[str, str, object]] = [
        ("stages", "Stages", Table(columns, map(_stage_row, stages))),
        ("judges", "Judges", blocks("judge", _judge_blocks) or "The chain trained no judge."),
        ("unseen", "On unseen pairs", blocks("evaluate", _evaluation_blocks) or _NO_EVALUATION),
        ("policy", "What a policy did with it", blocks("run", _policy_blocks) or _NO_POLICY),
    ]
    html = render_page(
        summary["label"],
        _facts(summary),
        [*(Section(*one, one[1]) for one in parts), notes_section(__package__ or "")],
    )
    path.write_text(html, encoding="utf-8", newline="\n")


def _facts(summary: StageSummary) -> list[tuple[str, str]]:
    return [
        ("Stages", f"{len(summary['stages'])} in {summary['seconds']['total']:g} s"),
        ("Seed", f"{summary['seed']} added to each stage's"),
        ("When", f"{summary['created']} · adjudge {summary['adjudge']}"),
    ]


_NO_EVALUATION = "The chain has no such stage."
_NO_POLICY = "The chain trained no policy."


def _interval_text(overall: StageSummary) -> str:
    low, high = overall["interval"]["low"], overall["interval"]["high"]
    return "no interval" if low is None else f"95 %: {format_number(low)} to {format_number(high)}"


_STAGE_TEXTS = {"evaluate": "evaluation of {benchmark}", "run": "policy on {env_name}"}


def _stage_row(one: StageSummary) -> list[object]:
    what = _STAGE_TEXTS.get(one["kind"], "training by {method}").format_map(one).replace("_", " ")
    page = one["report"]
    return [
        one["name"],
        what,
        ", ".join(one["after"]) or "–",
        format_number(one["seconds"], 1),
        Element("a", page, href=page) if page else "this one",
    ]


_QUALITY_KEYS = (
    ("Accuracy", "accuracy"), ("Loss", "loss"), ("Margin", "margin"),
    ("Calibration error", "calibration_error"), ("Length correlation", "length_corr"),
)  # fmt: skip


def _judge_blocks(one: StageSummary) -> list[object]:
    first, last = one["first"], one["validation"]
    rows = [
        [name, format_number(first.get(key)), format_number(last[key])]
        for name, key in _QUALITY_KEYS
        if key in last
    ]
    if "bayes_accuracy" in last:
        rows.append(["Bayes rate", "", format_number(last["bayes_accuracy"])])
    dials = "".join(
        f"; {name.replace('_', ' ')} {value}"
        for name, value in (one["synthetic"] or {}).items()
        if value and name != "n"
    )
    return [
        Element("h3", f"{one['name']}: {one['method'].replace('_', ' ')}"),
        (
            f"{format_integer(one['steps'])} steps on {format_integer(one['rows'])} rows{dials}; "
            f"the best is that of step {format_integer(one['best_step'])}."
        ),
        Table(["On held-out rows", *numeric("Before", "After")], rows),
    ]


def _evaluation_blocks(one: StageSummary) -> list[object]:
    overall = one["overall"]
    parts = {"all": overall, **(one["subsets"] if len(one["subsets"]) > 1 else {})}
    asked = "through adjudge serve" if one["served"] else "in this process"
    text = f"{format_integer(overall['items'])} items, asked {asked}"
    if one.get("left_out"):
        text += (
            f"; {format_integer(one['left_out'])} more were in the training data and are left out"
        )
    if one["unusable"]:
        text += f"; {format_integer(one['unusable'])} rows could not be used"
    if one.get("bayes_accuracy") is not None:
        text += f"; Bayes rate {format_number(one['bayes_accuracy'])}"
    return [
        Element("h3", f"{one['name']}: {one['benchmark']}"),
        f"{text}.",
        Table(
            ["Subset", *numeric("Items", "Missing", "Accuracy", "Interval")],
            [_subset_row(name, part) for name, part in parts.items()],
        ),
        *_calibration_blocks(one["calibration"]),
        _length_sentence(one["lengths"]),
    ]


def _subset_row(name: str, part: StageSummary) -> list[str]:
    kinds = ", ".join(f"{kind} {count}" for kind, count in part["failures"].items())
    return [
        name, format_integer(part["items"]), f"{format_integer(part['missing'])} {kinds}".strip(),
        format_number(part["accuracy_of_answered"]), _interval_text(part),
    ]  # fmt: skip


def _calibration_blocks(found: StageSummary | None) -> list[object]:
    if not found or found["ece"] is None:
        return []
    rows = [
        [format_integer(n), format_percent(sure), format_percent(right)]
        for n, sure, right in found["bins"]
    ]
    loss = "∞" if found.get("ruled_out") else format_number(found["log_loss"])
    return [
        (
            f"Calibration error {format_number(found['ece'])}, Brier score "
            f"{format_number(found['brier'])} (0.25 knows nothing), log loss {loss}."
        ),
        Table(["Pairs", *numeric("How sure the judge was", "How often it was right")], rows),
    ]


def _length_sentence(found: StageSummary | None) -> str:
    if not found or found["prefers_longer"] is None or found["better_is_longer"] is None:
        return ""
    return (
        f"It prefers the longer answer in {format_percent(found['prefers_longer'])}; the longer is "
        f"the better one in {format_percent(found['better_is_longer'])}."
    )


def _first_and_last(one: StageSummary) -> tuple[dict[str, float | None], dict[str, float | None]]:
    held = one["held_out"]
    return held.get("before", {}), held.get("after", {})


def _policy_blocks(one: StageSummary) -> list[object]:
    before, after = _first_and_last(one)
    means = [
        [name, format_number(before.get(name)), format_number(after[name])]
        for name in after
        if name != "reward"
    ]
    lengths = " to ".join(format_number(one[when]["length"], 1) for when in ("first", "last"))
    return [
        Element("h3", one["name"]),
        (
            f"{format_integer(one['steps'])} steps of {format_integer(one['batch_size'])} answers; "
            f"the reward is what {one['judge'] or 'nobody'} says. Answers went from {lengths} "
            "tokens."
        ),
        Table(["Held-out answers, mean", *numeric("Before", "After")], means),
        f"Alarms of the sentinel: {len(one['alarms'])}.",
    ]
