"""What a group's advantages are, and what they would be if failures counted as 0."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from adjudge.rewards.groups import group_step, mean_and_std

__all__ = ["EPSILON", "Both", "advantages", "both_ways"]

EPSILON = 1e-4
"""Added to the standard deviation, as TRL does."""

_NOTHING = 1e-9
"""An advantage closer to 0 than this is 0: a reward that is the mean leaves a rounding error."""


class Both(msgspec.Struct, frozen=True):
    """A group's advantages with missing rewards left out, and with each counted as 0.

    ``left_out`` has ``None`` where the reward is missing, ``as_zero`` a number for every sample.
    ``turned`` are the places of present rewards whose advantage has the other sign when the
    failures beside them count as 0. Means and deviations are ``None`` where there is no reward.
    """

    left_out: list[float | None]
    as_zero: list[float]
    turned: list[int]
    mean: float | None
    std: float | None
    mean_as_zero: float
    std_as_zero: float


def advantages(rewards: Sequence[float | None]) -> list[float | None]:
    """(r − mean)/(std + 1e-4) over the present rewards, std with n − 1; 0 for one alone.

    Rewards that differ by rounding alone count as equal, whoever recorded them.

    >>> advantages([1.0, None])
    [0.0, None]
    """
    rewards = group_step(rewards, "none")
    present = [reward for reward in rewards if reward is not None]
    if not present:
        return rewards
    mean, std = mean_and_std(present)
    return [None if reward is None else (reward - mean) / (std + EPSILON) for reward in rewards]


def both_ways(rewards: Sequence[float | None], filled: Sequence[float] | None = None) -> Both:
    """The comparison for one group; ``rewards`` has ``None`` where one is missing.

    ``filled``: all rewards of the group as they would be with each failure as 0, where that is more
    than a 0 in the place of the missing reward.

    >>> both_ways([0.4, 0.6, None, None]).turned  # 0.4 is the lesser of two, but more than 0
    [0]
    """
    if filled is None:
        filled = [0.0 if reward is None else reward for reward in rewards]  # adjudge: meant
    left_out = advantages(rewards)
    as_zero = [0.0 if value is None else value for value in advantages(filled)]
    turned = [
        place
        for place, (mine, theirs) in enumerate(zip(left_out, as_zero, strict=True))
        if mine is not None
        and min(abs(mine), abs(theirs)) > _NOTHING
        and (mine > 0) != (theirs > 0)
    ]
    present = [reward for reward in group_step(rewards, "none") if reward is not None]
    mean, std = mean_and_std(present) if present else (None, None)
    mean_as_zero, std_as_zero = mean_and_std(filled) if filled else (0.0, 0.0)
    return Both(left_out, as_zero, turned, mean, std, mean_as_zero, std_as_zero)
