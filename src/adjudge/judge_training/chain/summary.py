"""What a stage came to, as the chain's summary and page have it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from adjudge.judge_training.chain.agreement import agreements
from adjudge.judge_training.chain.file import Stage
from adjudge.runs.distributions import mean
from adjudge.training.state import read_rows

__all__ = ["chain_lines", "stage_summary"]

_OF_JUDGE = ("method", "label", "base", "steps", "best_step", "first", "validation", "not_done")
_OF_RUN = (
    "label", "base", "judge", "env_name", "steps", "steps_planned", "batch_size", "group_size",
    "graders", "gold", "first", "last",
)  # fmt: skip


def stage_summary(stage: Stage, summary: Mapping[str, Any]) -> dict[str, Any]:
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
        return {**told, **_some(summary, _OF_JUDGE), "rows": rows, "synthetic": synthetic}
    golds = [one["name"] for one in summary["graders"] if not one["weight"]]
    return {
        **told,
        **_some(summary, _OF_RUN),
        "alarms": summary["sentinel"]["alarms"],
        "held_out": _held_out(stage),
        "agreement": msgspec.to_builtins(agreements(stage.folder / "rollouts.jsonl", golds)),
    }


def _some(summary: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: summary.get(name) for name in names}


def _held_out(stage: Stage) -> dict[str, dict[str, float | None]]:
    rows = _evaluations(stage.folder)
    steps = [row["step"] for row in rows]
    if not steps:
        return {}
    return {
        when: _means([row for row in rows if row["step"] == step])
        for when, step in (("before", min(steps)), ("after", max(steps)))
    }


def _evaluations(folder: Path) -> list[dict[str, Any]]:
    return read_rows(folder / "evaluation.jsonl")


def _means(rows: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """The means of the graders' scores and of the reward, of what is there."""
    found = [{**row["reward_info"], "reward_score": row["reward"]} for row in rows]
    names = dict.fromkeys(name for one in found for name in one if name.endswith("_score"))
    return {
        name.removesuffix("_score"): mean([one[name] for one in found if one.get(name) is not None])
        for name in names
    }


def chain_lines(summary: Mapping[str, Any]) -> list[str]:
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
