"""How much of the advantages is the judge's own noise: a run with several draws, or two runs.

Advantages are rewards less their group's mean, after the spec's combination and group step; what
counts is the variance inside groups. A grader's share is that of its own scores, as if the others
were constant. A trainer that divides by a group's standard deviation weighs groups in another way;
where the spec does so (``z_score``), the share is that of the z-scores, each draw with its own.
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import msgspec

from adjudge.runs.summary import NumberColumn, RewardedSample, RunObserver
from adjudge.stats.noise import NoiseShare, noise_share, votes_to_halve

DrawColumns = Mapping[str, Sequence[Sequence[float | None]]]
"""By grader, and under :data:`REWARD`, a column a draw, with a number a sample."""
REWARD = ""


class DrawTotals(RunObserver):
    """What all draws of a run said, gathered sample by sample in the order of the input.

    ``asked_again`` are the names of the graders that take a draw.
    """

    def __init__(self, names: Sequence[str], asked_again: frozenset[str], draws: int) -> None:
        self._keys = {name: f"{name}_score" for name in names if name in asked_again}
        self._keys[REWARD] = "reward"
        self._once = [name for name in names if name not in asked_again]
        self._columns = {name: [NumberColumn() for _ in range(draws)] for name in self._keys}
        self._groups = array("l")
        self._numbers: dict[str, int] = {}

    def on_sample(self, one: RewardedSample) -> None:
        """Count the next sample; one that is not drawn has no draws."""
        if not one.draws:
            return
        self._groups.append(self._numbers.setdefault(one.facts.group, len(self._numbers)))
        for name, key in self._keys.items():
            for number, column in enumerate(self._columns[name]):
                column.append(one.draws[number][key])

    def on_end(self, summary: dict[str, Any]) -> None:
        """``noise`` of ``summary.json``."""
        summary["noise"] = summarise_noise(self._columns, self._groups, once=self._once)


def summarise_noise(
    columns: DrawColumns, groups: Sequence[Hashable], *, once: Sequence[str] = ()
) -> dict[str, Any]:
    """Plain data: the noise share of each grader and of the reward, and what would halve it.

    ``once``: graders that were asked once, as their answers do not change.
    """
    found = {name: _share_fields(noise_share(draws, groups)) for name, draws in columns.items()}
    reward = found.pop(REWARD)
    return {
        "draws": len(columns[REWARD]),
        "reward": reward,
        "graders": {**found, **dict.fromkeys(once)},
    }


def _share_fields(found: NoiseShare) -> dict[str, Any]:
    halve = {
        name: votes_to_halve(share)
        for name, share in (("votes", found.value), ("low", found.low), ("high", found.high))
    }
    return {
        **msgspec.structs.asdict(found),
        "pairs_right": found.pairs_right,
        "to_halve": None if found.value is None else halve,
    }
