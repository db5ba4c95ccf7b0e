"""What stands in a reward tensor where a reward is missing, and how it is told from a reward.

verl has no missing reward, and one NaN makes a whole group's advantages NaN. So a missing reward is
written as a number that moves nothing: the mean of the group's others. The row's ``uid`` becomes a
:class:`LeftOutUid`, equal to the uid it was, by which ``adjudge_grpo`` leaves the row out exactly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from adjudge.runs.distributions import mean

__all__ = ["LeftOutUid", "Stood", "stand_in", "stand_in_for_validation"]


class LeftOutUid(str):
    """A group's uid on a row whose reward is missing; groups with the others as ever.

    It is the one thing of a row that verl hands to an advantage estimator beside its numbers.
    """

    __slots__ = ()


@dataclass(frozen=True)
class Stood:
    """Rewards with stand-ins, and what z-scores of the rows that have one are multiplied by.

    ``inflation`` is by group, √((n−1)/(m−1)) for m rewards of n; groups with m < 2 teach nothing
    and have none.
    """

    rewards: list[float]
    inflation: dict[str, float]


def stand_in(rewards: Sequence[float | None], groups: Sequence[str]) -> Stood:
    """A missing reward becomes its group's mean; without any, the batch's; without any, 0.

    In each case all rows of such a group that the estimator is to leave out get advantage 0.
    """
    members = _members(groups)
    overall = mean([reward for reward in rewards if reward is not None]) or 0.0
    filled = [overall if reward is None else reward for reward in rewards]
    inflation = {}
    for group, places in members.items():
        present = [reward for place in places if (reward := rewards[place]) is not None]
        n, m = len(places), len(present)
        if m > 1:
            inflation[group] = math.sqrt((n - 1) / (m - 1))
        center = mean(present)
        for place in places:
            if rewards[place] is None and center is not None:
                filled[place] = center
    return Stood(filled, inflation)


def stand_in_for_validation(
    values: Sequence[float | None], groups: Sequence[str], sources: Sequence[str]
) -> list[float]:
    """Values with which verl's validation means are those of the values that are there.

    verl averages over a prompt's answers, then over the prompts of a data source. A missing value
    becomes its prompt's mean; where a prompt has none, the mean over its source's prompts. A
    source without any value gets NaN, which verl can log.
    """
    keys = list(zip(sources, groups, strict=True))
    present: dict[tuple[str, str], list[float]] = {}
    for key, value in zip(keys, values, strict=True):
        if value is not None:
            present.setdefault(key, []).append(value)
    of_prompt = {key: math.fsum(found) / len(found) for key, found in present.items()}
    of_source: dict[str, list[float]] = {}
    for (source, _), center in of_prompt.items():
        of_source.setdefault(source, []).append(center)

    def filled(key: tuple[str, str], value: float | None) -> float:
        found = of_prompt.get(key) if value is None else value
        found = mean(of_source.get(key[0], [])) if found is None else found
        return math.nan if found is None else found

    return [filled(key, value) for key, value in zip(keys, values, strict=True)]


def _members(groups: Sequence[str]) -> dict[str, list[int]]:
    members: dict[str, list[int]] = {}
    for place, group in enumerate(groups):
        members.setdefault(group, []).append(place)
    return members
