"""What a chain would do, without doing it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from adjudge.judge_training.chain.file import ChainFile, Stage
from adjudge.judge_training.judgefile import JudgeFile
from adjudge.training.planning.plan import plan
from adjudge.training.runfile import RunFile

__all__ = ["chain_plan", "plan_lines"]


def chain_plan(chain: ChainFile, folder: Path) -> dict[str, Any]:
    """The stages as they would be done in ``folder``, as plain data.

    A judge's stage with every default in its place; a policy's as its own dry run has it, where
    that can be said before its judge is trained, else what its file says. Nothing is asked,
    started, written or read but the files that are named.
    """
    stages = [_stage(stage) for stage in chain.stages_in(folder)]
    return {"label": chain.label, "seed": chain.seed, "folder": str(folder), "stages": stages}


def _stage(stage: Stage) -> dict[str, Any]:
    told: dict[str, Any] = {
        "name": stage.name,
        "kind": stage.kind,
        "after": list(stage.after),
        "folder": str(stage.folder),
    }
    match stage.file:
        case JudgeFile() as judge:
            settings = judge.model_dump(mode="json", exclude_none=True)
            return {**told, "settings": settings, "overrides": judge.overrides}
        case RunFile() as run:
            settings = run.model_dump(mode="json", exclude_none=True)
            told["settings"] = settings
            return {**told, "plan": None if run.awaits_judge else plan(run).data()}
        case check:
            return {**told, "settings": check.model_dump(mode="json", exclude_none=True)}


def plan_lines(found: Mapping[str, Any]) -> list[str]:
    """What a terminal shows of a chain's plan."""
    lines = []
    for number, one in enumerate(found["stages"], start=1):
        after = f", builds on {', '.join(one['after'])}" if one["after"] else ""
        lines.append(f"{number}  {one['name']}: {_WHAT[one['kind']](one['settings'])}{after}")
        lines += [
            f"   {name:<10} {_values(value)}"
            for name, value in one["settings"].items()
            if isinstance(value, dict) and value
        ]
    return lines


def _judge(settings: Mapping[str, Any]) -> str:
    return f"judge by {settings['method'].replace('_', ' ')} on {settings['backend']}"


def _check(settings: Mapping[str, Any]) -> str:
    what = "made-up preferences" if "synthetic" in settings else ", ".join(settings["files"])
    return f"{settings['judge']} evaluated on {what}"


def _run(settings: Mapping[str, Any]) -> str:
    training = settings["training"]
    steps = training["num_epochs"] * training["iterations_per_epoch"]
    answers = training["batch_size"] * training["gradient_accumulation_steps"]
    judged = settings["judge"]
    who = judged.get("folder") or judged["model"] or "nobody"
    served = ", behind adjudge serve" if settings["services"].get("judge_url") else ""
    return (
        f"policy, {steps:,} steps of {answers:,} answers in groups of {training['group_size']}, "
        f"judged by {who}{served}"
    )


_WHAT = {"judge": _judge, "evaluate": _check, "run": _run}


def _values(table: Mapping[str, Any]) -> str:
    return "  ".join(f"{key}={value}" for key, value in table.items() if value not in ({}, []))
