"""A swap study: gather the rollouts, ask or read every judge, compare, write the folder."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

import adjudge
from adjudge.errors import ConfigError
from adjudge.rewards.groups import mean_and_std
from adjudge.runs.whole import write_json, write_whole
from adjudge.studies.swap.agreement import compare
from adjudge.studies.swap.asking import JudgeFile, ask, judge_files
from adjudge.studies.swap.criteria import criteria_disagreement
from adjudge.studies.swap.explained import explained
from adjudge.studies.swap.page import page
from adjudge.studies.swap.rollouts import Gathered, gather
from adjudge.studies.swap.shapes import Source, find_sources
from adjudge.studies.swap.sheet import Judgements, Sheet
from adjudge.studies.swap.table import write_rows

__all__ = ["SwapStudy", "run_swap", "summarise_swap"]


@dataclass
class SwapStudy:
    """What is to be compared, and what came of it: ``summary`` is empty until it is done.

    ``judges``: ``FILE`` or ``NAME=FILE``; ``stored``: judges whose rewards are a column, by name.
    ``group``: the columns that together name a group. ``budget_usd``: what each judge may cost.
    """

    rollouts: Sequence[Path]
    judges: Sequence[str]
    folder: Path
    mapping: Mapping[str, str] = field(default_factory=dict)
    stored: Mapping[str, str] = field(default_factory=dict)
    group: Sequence[str] = ()
    seed: int = 0
    budget_usd: float | None = None
    show_progress: bool = True
    summary: dict[str, Any] = field(default_factory=dict)


def run_swap(study: SwapStudy) -> dict[str, Any]:
    """Do the study and give its summary.

    Writes to its folder ``rollouts.jsonl`` (what every judge is asked about), ``judges/NAME`` (a
    run folder of ``adjudge grade`` per judge that is asked, from which the same study resumes),
    ``summary.json``, ``report.html``, and a row per sample and judge: ``rows.parquet`` where
    pyarrow is installed, else ``rows.jsonl``. Raises :class:`~adjudge.errors.ConfigError` for fewer
    than two judges and what cannot be read, and as :func:`~adjudge.runs.grading.grade_rollouts`.
    """
    started = time.perf_counter()
    files = judge_files(study.judges)
    names = Counter([*(one.name for one in files), *study.stored])
    if twice := [name for name, count in names.items() if count > 1]:
        raise ConfigError(f"--stored: a judge is called {twice[0]!r} already")
    if len(names) < 2:
        raise ConfigError(f"a swap compares two judges or more; found {', '.join(names) or 'none'}")
    sources = find_sources(study.rollouts, study.mapping)
    study.folder.mkdir(parents=True, exist_ok=True)
    rollouts = study.folder / "rollouts.jsonl"
    gathered = gather(sources, rollouts, group=study.group, stored=study.stored)
    asked = [_asked(study, one, rollouts, gathered.sheet) for one in files]
    gathered.sheet.judges[:0] = asked
    gathered.sheet.snap_ties()
    numbers = summarise_swap(gathered.sheet, seed=study.seed)
    circumstances = _circumstances(study, sources, gathered)
    study.summary = {**circumstances, **numbers}
    study.summary["rows"] = write_rows(study.folder, gathered.sheet).name
    study.summary["elapsed_s"] = round(time.perf_counter() - started, 3)
    write_json(study.folder / "summary.json", study.summary)
    write_whole(study.folder / "report.html", page(study.summary).encode())
    return study.summary


def _asked(study: SwapStudy, judge: JudgeFile, rollouts: Path, sheet: Sheet) -> Judgements:
    return ask(
        judge,
        rollouts,
        sheet.lines,
        study.folder / "judges" / judge.name,
        budget_usd=study.budget_usd,
        show_progress=study.show_progress,
    )


def summarise_swap(sheet: Sheet, *, seed: int = 0) -> dict[str, Any]:
    """``samples``, ``groups``, ``judges`` and ``pairs`` of ``summary.json``; pure."""
    members = sheet.members
    sizes = sorted(map(len, members))
    return {
        "samples": len(sheet.lines),
        "groups": {
            "count": len(sizes),
            "size_min": sizes[0],
            "size_median": sizes[len(sizes) // 2],
            "size_max": sizes[-1],
        },
        "judges": [_judge(one, sheet, members, seed) for one in sheet.judges],
        "pairs": [
            {
                "judges": [a.name, b.name],
                **msgspec.to_builtins(compare(a.rewards, b.rewards, members, seed=seed)),
                "criteria": msgspec.to_builtins(
                    criteria_disagreement(a.marks, b.marks, members, seed=seed)
                ),
            }
            for a, b in sheet.pairs
        ],
    }


def _judge(
    one: Judgements, sheet: Sheet, members: Sequence[Sequence[int]], seed: int
) -> dict[str, Any]:
    present = [reward for reward in one.rewards if reward is not None]
    features = [line.features for line in sheet.lines]
    mean, std = mean_and_std(present) if present else (None, None)
    inside = [[r for at in group if (r := one.rewards[at]) is not None] for group in members]
    compared = [group for group in inside if len(group) > 1]
    shares = explained(one.rewards, features, members, seed=seed)
    return {
        "name": one.name,
        "kind": one.kind,
        "source": one.source,
        "judged": len(present),
        "missing": len(one.rewards) - len(present),
        "missing_by_kind": one.missing,
        "mean": mean,
        "std": std,
        "compared_groups": len(compared),
        "flat_groups": sum(min(group) == max(group) for group in compared),
        "tied_best": sum(group.count(max(group)) > 1 for group in compared),
        "explained": msgspec.to_builtins(shares),
        "calls": one.calls,
    }


def _circumstances(
    study: SwapStudy, sources: Sequence[Source], gathered: Gathered
) -> dict[str, Any]:
    return {
        "adjudge": adjudge.__version__,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "inputs": [
            {"path": str(one.path), "shape": one.shape, "map": one.mapping} for one in sources
        ],
        "grouped_by": gathered.grouped_by,
        "seed": study.seed,
        "level": 0.95,
        "broken_rows": {
            "count": len(gathered.broken),
            "first": [{"where": row.where, "message": row.message} for row in gathered.broken[:20]],
        },
    }
