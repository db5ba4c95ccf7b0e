"""What happens between the samples of one group: the group steps.

Every step is computed from the present rewards alone, with exactly rounded sums, so the rest of a
group is bit for bit what the group without the missing sample would give, in any order. Rewards
that differ by rounding alone are made equal first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

from adjudge.stats import mean_and_std, snap_ties, z_scores
from adjudge.types import mid_ranks

STD_EPSILON = 1e-4
"""What TRL adds to the standard deviation of a group."""

GroupStep = Literal["none", "centre", "rloo", "z_score", "gdpo", "rank", "best_bonus"]


def group_step(
    rewards: Sequence[float | None],
    step: GroupStep,
    *,
    bonus: float = 0.1,
    epsilon: float = 0.0,
) -> list[float | None]:
    """``rewards`` of one group after ``step``; ``None`` stays ``None`` and counts nowhere.

    NaN and infinities are no rewards: they become ``None``. Near-ties are made equal before, by
    :func:`snap_ties`.

    * ``none``: unchanged otherwise;
    * ``centre``: r − mean, as Dr. GRPO (Liu et al. 2025);
    * ``rloo``: r − mean of the others (Ahmadian et al. 2024), which is n/(n − 1)·(r − mean); a lone
      sample has no others and gets 0, as from ``centre``;
    * ``z_score``: (r − mean)/(std + ``epsilon``), std with n − 1 as in GRPO; 0 where all are equal;
    * ``gdpo``: of several components, see :func:`gdpo_step`; of one, as these are, ``z_score``;
    * ``rank``: (n − place)/(n − 1), best 1, worst 0, ties at mid-rank; a lone sample has nobody to
      be ranked against and becomes ``None``;
    * ``best_bonus``: the best (all that tie) get ``bonus`` on top.
    """
    rewards = [one if one is not None and math.isfinite(one) else None for one in rewards]
    present = [reward for reward in rewards if reward is not None]
    if not present:
        return rewards
    present = snap_ties(present)
    stepped: Sequence[float | None] = present
    if step in ("centre", "rloo"):
        mean, _ = mean_and_std(present)
        n = len(present)
        share = n / (n - 1) if step == "rloo" and n > 1 else 1.0
        stepped = [share * (reward - mean) for reward in present]
    elif step in ("z_score", "gdpo"):
        stepped = z_scores(present, epsilon)
    elif step == "rank":
        stepped = _rank_scores(present)
    elif step == "best_bonus":
        best = max(present)
        stepped = [reward + bonus if reward == best else reward for reward in present]
    values = iter(stepped)
    return [None if reward is None else next(values) for reward in rewards]


def gdpo_step(
    components: Sequence[Mapping[str, float] | None], weights: Mapping[str, float]
) -> list[float | None]:
    """Σ wₖ·zₖ for each sample of one group, zₖ being component k's z-score within the group.

    GDPO (Liu et al. 2026, arXiv:2601.05242) without its last step: that divides by the deviation of
    the whole batch, which no group knows, and belongs to the trainer. ``components[i]`` has sample
    *i*'s components by name, ``None`` where one is missing: such a sample stays ``None`` and counts
    in no component, so the others are those of the group without it. A component that all samples
    share, and a lone sample's, is 0.

    >>> scores = (1.0, 0.0), (0.0, 1.0), (0.0, 0.0)
    >>> said = [{"right": right, "form": form} for right, form in scores]
    >>> [round(total, 2) for total in gdpo_step(said, {"right": 1.0, "form": 0.5})]
    [0.87, 0.0, -0.87]
    """
    components = [
        one if one is not None and all(map(math.isfinite, one.values())) else None
        for one in components
    ]
    present = [one for one in components if one is not None]
    if not present:
        return [None] * len(components)
    terms: list[list[float]] = [[] for _ in present]
    for name in present[0]:
        column = [None if one is None else one[name] for one in components]
        stepped = group_step(column, "z_score")
        found = (value for value in stepped if value is not None)
        for mine, value in zip(terms, found, strict=True):
            mine.append(weights[name] * value)
    totals = iter(terms)
    return [None if one is None else math.fsum(next(totals)) for one in components]


def _rank_scores(present: Sequence[float]) -> Sequence[float | None]:
    n = len(present)
    if n < 2:
        return [None] * n
    places = mid_ranks([-reward for reward in present])
    return [(n - place) / (n - 1) for place in places]
