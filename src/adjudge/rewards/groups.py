"""What happens between the samples of one group, missing ones left out.

Every step is computed from the present rewards alone, with exactly rounded sums, so the rest of a
group is bit for bit what the group without the missing sample would give, in any order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from adjudge.types import mid_ranks

__all__ = ["GroupStep", "group_step", "z_scores"]

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
    stepped = iter(_STEPS[step](present, bonus))
    return [None if reward is None else next(stepped) for reward in rewards]


def _none(present: list[float], bonus: float) -> Sequence[float | None]:  # noqa: ARG001
    return present


def _centre(present: list[float], bonus: float) -> Sequence[float | None]:  # noqa: ARG001
    if not present:
        return []
    mean = math.fsum(present) / len(present)
    return [reward - mean for reward in present]


def z_scores(present: Sequence[float]) -> list[float]:
    """(r − mean)/std with n − 1; 0 for a lone sample and where all are equal."""
    n = len(present)
    if n < 2 or min(present) == max(present):
        return [0.0] * n
    mean = math.fsum(present) / n
    std = math.sqrt(math.fsum((reward - mean) ** 2 for reward in present) / (n - 1))
    return [(reward - mean) / std for reward in present] if std > 0 else [0.0] * n


def _z_score(present: list[float], bonus: float) -> Sequence[float | None]:  # noqa: ARG001
    return z_scores(present)


def _rank(present: list[float], bonus: float) -> Sequence[float | None]:  # noqa: ARG001
    n = len(present)
    if n < 2:
        return [None] * n
    places = mid_ranks([-reward for reward in present])
    return [(n - place) / (n - 1) for place in places]


def _best_bonus(present: list[float], bonus: float) -> Sequence[float | None]:
    best = max(present, default=0.0)
    return [reward + bonus if reward == best else reward for reward in present]


_STEPS: Mapping[GroupStep, Callable[[list[float], float], Sequence[float | None]]] = {
    "none": _none,
    "centre": _centre,
    "z_score": _z_score,
    "rank": _rank,
    "best_bonus": _best_bonus,
}
