"""What a training run came to: first and last, and the sentinel's word."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from adjudge.rewards.spec import RewardSpec
from adjudge.runs.distributions import mean
from adjudge.training.runfile import RunFile
from adjudge.training.sentinel import Alarm
from adjudge.training.verdicts import Shown

__all__ = ["first_and_last", "summarise"]


def summarise(
    run: RunFile,
    spec: RewardSpec,
    rows: Sequence[dict[str, float]],
    shown: Sequence[Shown],
    alarms: Sequence[Alarm],
) -> dict[str, Any]:
    """The summary of a run as plain data; ``None`` for what was never measured.

    ``first`` and ``last`` are means over the first and last tenth of the steps: the judge's reward
    (``reward``, scaled and combined as it was trained on), the environment's return (``env``), the
    judge's normalised score (``judge``), the gold, and the length in tokens.
    """
    gold = run.sentinel.gold
    quantities = {
        "reward": "reward",
        "env": "env_return",
        "judge": "judge/outcome_mean",
        "gold": None if gold is None else f"judge/{gold}_score_mean",
        "length": "length",
        "zero_spread": "judge/zero_std_frac",
        "missing": "judge/missing_frac",
    }
    pairs = {
        name: (None, None) if key is None else first_and_last(rows, key)
        for name, key in quantities.items()
    }
    return {
        "label": run.model.label,
        "base": run.model.base,
        "variety": run.algorithm.variety,
        "env_name": run.env_name,
        "judge": run.judge_name,
        "seed": run.training.seed,
        "steps": len(rows),
        "steps_planned": run.training.steps,
        "batch_size": run.training.rollouts_per_step,
        "group_size": run.training.group_size,
        "graders": [
            {"name": one.name, "type": one.type, "weight": one.weight} for one in spec.graders
        ],
        "gold": gold,
        "first": {name: pair[0] for name, pair in pairs.items()},
        "last": {name: pair[1] for name, pair in pairs.items()},
        "samples": {
            when: mean([one.reward for one in shown if one.when == when and one.reward is not None])
            for when in ("before", "after")
        },
        "sentinel": {
            "action": run.sentinel.action,
            "alarms": [msgspec.to_builtins(alarm) for alarm in alarms],
        },
    }


def first_and_last(rows: Sequence[dict[str, float]], key: str) -> tuple[float | None, float | None]:
    """Means of a metric over the first and the last tenth of the steps, at least one each.

    >>> first_and_last([{"x": float(i)} for i in range(30)], "x")
    (1.0, 28.0)
    """
    tenth = max(1, len(rows) // 10)
    ends = (rows[:tenth], rows[-tenth:])
    first, last = (mean([row[key] for row in part if key in row]) for part in ends)
    return first, last
