"""Ways through the samples of a run: links, the next one of a sort, the worst disagreements.

A link names a sample in the page's address, and still does after a reload or on another machine:
``17`` is the sample of that index, ``3/17`` that of step 3 of a training run.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from adjudge.report.page import to_browser_json
from adjudge.runs.judge_findings import find_judge_problems
from adjudge.runs.label_queue import MOST, Disagreements, find_disagreements
from adjudge.runs.view.index import RolloutIndex, present_number
from adjudge.runs.view.run_reader import RunReader

_SCORE = "_score"
_MAX_DETAILS = 20_000
"""Samples that are read again where only what graders said tells disagreements."""


def sample_link(reading: RunReader, row: int) -> str:
    """The link of a sample."""
    rollouts = reading.rollouts
    index = rollouts.places[row]
    if reading.kind == "train":
        return f"{rollouts.groups[rollouts.group_of[row]].step}/{index}"
    return str(index)


def find_row(reading: RunReader, index: int, step: int | None = None) -> dict[str, int] | None:
    """The row that a link names; ``None`` where there is none, or not yet."""
    rollouts = reading.rollouts
    rows: Iterable[int] = range(len(rollouts))
    if step is not None:
        groups = rollouts.steps.get(step, ())
        rows = (row for group in groups for row in rollouts.groups[group].rows)
    row = next((row for row in rows if rollouts.places[row] == index), None)
    return None if row is None else {"row": row}


def describe_steps(reading: RunReader, row: int) -> dict[str, str | None]:
    """The links from one sample to others; ``failure`` and ``group`` begin again at the end."""
    rollouts = reading.rollouts
    members = rollouts.groups[rollouts.group_of[row]].rows
    place = members.index(row)
    found = {
        "previous": row - 1 if row else None,
        "next": row + 1 if row + 1 < len(rollouts) else None,
        "group": members[(place + 1) % len(members)] if len(members) > 1 else None,
        "failure": _next_failure(rollouts, row),
    }
    return {name: None if one is None else sample_link(reading, one) for name, one in found.items()}


def _next_failure(rollouts: RolloutIndex, row: int) -> int | None:
    found = rollouts.failed.find(1, row + 1)
    if found < 0:
        found = rollouts.failed.find(1)
    return None if found in {-1, row} else found


def list_disagreements(reading: RunReader) -> dict[str, Any]:
    """The worst disagreements of the run so far, each with the link of its sample."""
    found = find_run_disagreements(reading)
    rollouts = reading.rollouts
    return {
        "samples": len(rollouts),
        "rule": found.rule,
        "worst": [
            {
                **one._asdict(),
                "row": one.place,
                "link": sample_link(reading, one.place),
                "name": _name(reading, one.place),
            }
            for one in found.worst
        ],
    }


def list_judge_findings(folder: Path) -> dict[str, Any]:
    """What stands out about the judges of the run in ``folder``, as plain data."""
    return dict(to_browser_json(find_judge_problems(folder)))


def _name(reading: RunReader, row: int) -> str:
    rollouts = reading.rollouts
    group = rollouts.groups[rollouts.group_of[row]]
    step = f", step {group.step}" if reading.kind == "train" else ""
    return f"Sample {rollouts.places[row]}{step}" + (f", group {group.name}" if group.name else "")


def find_run_disagreements(reading: RunReader, *, most: int | None = MOST) -> Disagreements:
    """The worst disagreements of the run so far; ``most`` ``None`` for all."""
    rollouts = reading.rollouts
    every = range(len(rollouts))
    scores = {
        key.removesuffix(_SCORE): [rollouts.score(key, row) for row in every]
        for key in rollouts.scores
        if key.endswith(_SCORE)
    }
    env_rewards = [present_number(value) for value in rollouts.env_reward]
    graders = reading.graders
    judges = [name for name, one in graders.items() if one.asks_judge]
    # Rules alone do not disagree with themselves.
    details = reading.iter_details(_MAX_DETAILS) if judges or not graders else ()
    return find_disagreements(rollouts.group_of, env_rewards, scores, judges, details, most=most)
