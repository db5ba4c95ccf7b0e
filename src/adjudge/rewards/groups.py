"""What happens between the samples of one group, missing ones left out.

Every step is computed from the present rewards alone, with exactly rounded sums, so the rest of a
group is bit for bit what the group without the missing sample would give, in any order. Rewards
that differ by rounding alone are made equal first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import sub
from typing import Literal

from adjudge.types import mid_ranks

__all__ = ["TIE_TOLERANCE", "GroupStep", "group_step", "mean_and_std", "snap_ties", "z_scores"]

GroupStep = Literal["none", "centre", "z_score", "rank", "best_bonus"]

TIE_TOLERANCE = 2.0**-28
"""Two rewards tie if they differ by no more than this share of the terms they were summed from.

That is 4e-9: ten million times the rounding of float64, and a sixteenth of that of float32, in
which trainers keep rewards. Being so much wider than the errors of a sum, it leaves them no weight:
what rounding does to rewards 10 tolerances apart changes a z-score by less than 1e-6.
"""


def group_step(
    rewards: Sequence[float | None],
    step: GroupStep,
    *,
    bonus: float = 0.1,
    scales: Sequence[float] | None = None,
) -> list[float | None]:
    """``rewards`` of one group after ``step``; ``None`` stays ``None`` and counts nowhere.

    Near-ties are made equal before, by :func:`snap_ties` with the ``scales`` of ``rewards``.

    * ``none``: unchanged otherwise;
    * ``centre``: r − mean;
    * ``z_score``: (r − mean)/std, std with n − 1 as in GRPO; 0 where all are equal;
    * ``rank``: (n − place)/(n − 1), best 1, worst 0, ties at mid-rank; a lone sample has nobody to
      be ranked against and becomes ``None``;
    * ``best_bonus``: the best (all that tie) get ``bonus`` on top.
    """
    present = [reward for reward in rewards if reward is not None]
    if not present:
        return list(rewards)
    if scales is not None:
        pairs = zip(rewards, scales, strict=True)
        scales = [scale for reward, scale in pairs if reward is not None]
    present = snap_ties(present, scales)
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


def snap_ties(values: Sequence[float], scales: Sequence[float] | None = None) -> list[float]:
    """``values`` with those made equal that differ by rounding alone; their order plays no part.

    ``scales[i]``: the size of the terms that ``values[i]`` was summed from, which is more than its
    own where they cancel; by default the largest absolute value. From the smallest value up, those
    within :data:`TIE_TOLERANCE` of the largest scale among them become the smallest of them. So a
    long ramp of tiny steps becomes several levels, and nothing moves by more than the tolerance.

    >>> snap_ties([0.1 + 0.2, 0.3, 0.3, 0.7])
    [0.3, 0.3, 0.3, 0.7]
    """
    distinct = sorted(set(values))
    if len(distinct) < 2:
        return list(values)
    top = max(map(abs, distinct)) if scales is None else max(scales)
    if math.isinf(top) or min(map(sub, distinct[1:], distinct)) > TIE_TOLERANCE * top:
        return list(values)
    if scales is None or min(scales) == top:
        limits = dict.fromkeys(distinct, TIE_TOLERANCE * top)
    else:  # of equal values the largest scale comes last
        pairs = sorted(zip(values, scales, strict=True))
        limits = {value: TIE_TOLERANCE * scale for value, scale in pairs}
    low = distinct[0]
    limit = limits[low]
    snapped = {}
    for value in distinct:
        own = limits[value]
        if value - low > limit and value - low > own:
            low = value
            limit = own
        elif own > limit:
            limit = own
        snapped[value] = low
    return [snapped[value] for value in values]


def z_scores(present: Sequence[float]) -> list[float]:
    """(r − mean)/std with n − 1; 0 for a lone sample and where all are equal."""
    mean, std = mean_and_std(present)
    return [(reward - mean) / std if std else 0.0 for reward in present]


def mean_and_std(values: Sequence[float]) -> tuple[float, float]:
    """Mean and sample standard deviation (n − 1), in any order the same to the last bit.

    For one value and for equal values it is exactly that value and 0. A mean that is only the
    rounding of its values (that of z-scores, say) is 0. Huge values do not overflow on the way:
    deviations are scaled before they are squared.
    """
    n = len(values)
    if min(values) == max(values):  # their sum's nth part may be off by rounding
        return values[0], 0.0
    try:
        mean = math.fsum(values) / n
    except OverflowError:
        mean = math.fsum(value / n for value in values)
    off = [value - mean for value in values]
    scale = max(map(abs, off))
    if scale == 0:
        return mean, 0.0
    squares = math.fsum([(one / scale) ** 2 for one in off])
    mean = 0.0 if abs(mean) < 2.0**-52 * scale else mean
    return mean, scale * math.sqrt(squares / (n - 1))


def _ranks(present: Sequence[float]) -> Sequence[float | None]:
    n = len(present)
    if n < 2:
        return [None] * n
    places = mid_ranks([-reward for reward in present])
    return [(n - place) / (n - 1) for place in places]
