"""What happens between the samples of one group, missing ones left out.

Every step is computed from the present rewards alone, with exactly rounded sums, so the rest of a
group is bit for bit what the group without the missing sample would give, in any order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from adjudge.types import mid_ranks

__all__ = ["GroupStep", "group_step", "mean_and_std", "z_scores"]

GroupStep = Literal["none", "centre", "z_score", "rank", "best_bonus"]


def group_step(
    rewards: Sequence[float | None], step: GroupStep, *, bonus: float = 0.1
) -> list[float | None]:
    """``rewards`` of one group after ``step``; ``None`` stays ``None`` and counts nowhere.

    * ``none``: unchanged;
    * ``centre``: r − mean;
    * ``z_score``: (r − mean)/std, std with n − 1 as in GRPO; 0 where all are equal;
    * ``rank``: (n − place)/(n − 1), best 1, worst 0, ties at mid-rank; a lone sample has nobody to
      be ranked against and becomes ``None``;
    * ``best_bonus``: the best (all that tie) get ``bonus`` on top.
    """
    present = [reward for reward in rewards if reward is not None]
    if not present:
        return list(rewards)
    stepped: Sequence[float | None] = present
    if step == "centre":
        mean, _ = mean_and_std(present)
        stepped = [reward - mean for reward in present]
    elif step == "z_score":
        stepped = z_scores(present)
    elif step == "rank":
        stepped = _ranks(present)
    elif step == "best_bonus":
        best = max(present)
        stepped = [reward + bonus if reward == best else reward for reward in present]
    values = iter(stepped)
    return [None if reward is None else next(values) for reward in rewards]


def z_scores(present: Sequence[float]) -> list[float]:
    """(r − mean)/std with n − 1; 0 for a lone sample and where all are equal."""
    mean, std = mean_and_std(present)
    return [(reward - mean) / std if std else 0.0 for reward in present]


def mean_and_std(values: Sequence[float]) -> tuple[float, float]:
    """Mean and sample standard deviation (n − 1), in any order the same to the last bit.

    The deviation is exactly 0 for one value and for equal values. Huge values do not overflow on
    the way: deviations are scaled before they are squared.
    """
    n = len(values)
    try:
        mean = math.fsum(values) / n
    except OverflowError:
        mean = math.fsum(value / n for value in values)
    if n < 2 or min(values) == max(values):
        return mean, 0.0
    off = [value - mean for value in values]
    scale = max(map(abs, off))
    if scale == 0:
        return mean, 0.0
    squares = math.fsum([(one / scale) ** 2 for one in off])
    return mean, scale * math.sqrt(squares / (n - 1))


def _ranks(present: Sequence[float]) -> Sequence[float | None]:
    n = len(present)
    if n < 2:
        return [None] * n
    places = mid_ranks([-reward for reward in present])
    return [(n - place) / (n - 1) for place in places]
