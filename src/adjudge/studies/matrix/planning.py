"""What a study would do, without doing it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adjudge.studies.matrix.identity import check_arms
from adjudge.training.planning.plan import plan

if TYPE_CHECKING:
    from adjudge.studies.matrix.arms import Arm
    from adjudge.studies.matrix.file import StudyFile
    from adjudge.studies.matrix.tables import Judge

__all__ = ["study_plan"]


def study_plan(study: StudyFile, folder: Path) -> dict[str, Any]:
    """The runs of ``study`` as they would be done in ``folder``, as plain data; nothing is written.

    ``plans``: of each its cells. ``judges``: what each is and whether ``folder`` has it trained
    (``None``: it needs no training). ``runs``: how many of each kind and how many are done.
    ``calls``: what the arms would ask of judges that are asked over a network, at most; ``None``
    where that cannot be counted.

    Raises :class:`~adjudge.errors.ConfigError` for arms that would be confounded.
    """
    arms = study.arms(folder)
    check_arms(study, arms)
    trained = study.training_files(folder)
    judges = [_judge(name, judge, folder) for name, judge in study.judges.items()]
    return {
        "label": study.label,
        "folder": str(folder),
        "pilot": study.pilot,
        "seeds": list(study.seeds),
        "gold": study.gold,
        "plans": _plans(study, arms),
        "judges": judges,
        "held_out": [one["name"] for one in judges if one["held_out"]],
        "arms": [
            {"name": arm.name, "plans": list(arm.plans), "done": _over(folder / "arms" / arm.name)}
            for arm in arms
        ],
        "runs": {
            "policies": _count([_has_policy(study, folder, seed) for seed in study.seeds]),
            "judges": _count([_over(folder / "judges" / name) for name in trained]),
            "arms": _count([_over(folder / "arms" / arm.name) for arm in arms]),
        },
        "calls": _calls(study, arms),
        "warnings": list(study.warnings),
    }


def _has_policy(study: StudyFile, folder: Path, seed: int) -> bool:
    """A policy that is trained has a folder before it is done."""
    own = folder / "policies" / f"seed-{seed}"
    return own.is_dir() if study.policy is None else _over(own)


def _over(folder: Path) -> bool:
    return (folder / "summary.json").exists()


def _count(done: Sequence[bool]) -> dict[str, int]:
    return {"in_all": len(done), "done": sum(done)}


def _plans(study: StudyFile, arms: Sequence[Arm]) -> list[dict[str, Any]]:
    """The plans in the file's order; after them any that arms name besides."""
    known: Mapping[str, Any] = {one.name: one for one in study.plans}
    names = [*known, *dict.fromkeys(name for arm in arms for name in arm.plans)]
    return [_plan(name, known.get(name), arms) for name in dict.fromkeys(names)]


def _plan(name: str, table: Any, arms: Sequence[Arm]) -> dict[str, Any]:
    own = [arm for arm in arms if name in arm.plans]
    return {
        "name": name,
        "title": "" if table is None else table.title,
        "question": "other" if table is None else table.question,
        "x": None if table is None else table.x,
        "cells": [list(cell) for cell in dict.fromkeys((arm.judge, arm.mitigation) for arm in own)],
        "arms": len(own),
    }


def _judge(name: str, judge: Judge, folder: Path) -> dict[str, Any]:
    if judge.members is not None:
        how = f"panel of {', '.join(judge.members)} ({judge.aggregate})"
    elif judge.run is not None:
        types = [str(one.get("type")) for one in judge.run.get("graders", [])]
        how = ", ".join(types) or ", ".join(judge.run)
    else:
        how = judge.train if isinstance(judge.train, str) else "trained here"
    return {
        "name": name,
        "how": how,
        "levels": dict(judge.levels),
        "bias": dict(judge.bias),
        "held_out": judge.held_out,
        "trained": None if judge.train is None else _over(folder / "judges" / name),
    }


def _calls(study: StudyFile, arms: Sequence[Arm]) -> float | None:
    """One arm of each cell is looked at: its seeds ask the same number of questions."""
    cells: dict[tuple[str, str], list[Arm]] = {}
    for arm in arms:
        cells.setdefault((arm.judge, arm.mitigation), []).append(arm)
    total = 0.0
    for of in cells.values():
        calls = _arm_calls(study, of[0])
        if calls is None:
            return None
        total += calls * len(of)
    return total


def _arm_calls(study: StudyFile, arm: Arm) -> float | None:
    if (arm.data.get("judge") or {}).get("folder"):
        return 0.0  # a trained judge answers in the run itself
    return plan(arm.run(f"{study.where}: arm {arm.name}")).in_all.get("calls", 0.0)
