"""Whether a reward orders a policy's own answers as a gold does, early and late in training."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path

import msgspec

__all__ = ["Agreement", "agreements"]


class Agreement(msgspec.Struct, frozen=True):
    """Of ``pairs`` of answers to one prompt in one step whose golds differ, the ``share`` ordered
    alike by the reward; equal rewards are half right. ``None`` without a pair.
    """

    share: float | None
    pairs: int


class _Rollout(msgspec.Struct):
    step: int
    group: str
    reward: float | None = None
    reward_info: dict[str, float | None] = {}


_decoder = msgspec.json.Decoder(_Rollout)


def agreements(path: Path, golds: Sequence[str]) -> dict[str, tuple[Agreement, Agreement]]:
    """By the name of a gold's grader the agreement in the first and in the last tenth of the steps.

    ``path`` is a run's ``rollouts.jsonl``. Rollouts whose reward or gold is missing are left out.
    """
    rows = list(_rollouts(path))
    steps = sorted({row.step for row in rows})
    tenth = max(1, len(steps) // 10)
    ends = (set(steps[:tenth]), set(steps[-tenth:]))
    first, last = ([row for row in rows if row.step in end] for end in ends)
    return {gold: (_agreement(first, gold), _agreement(last, gold)) for gold in golds}


def _rollouts(path: Path) -> Iterator[_Rollout]:
    if not path.exists():
        return
    with path.open("rb") as file:
        for line in file:
            yield _decoder.decode(line)


def _agreement(rows: Sequence[_Rollout], gold: str) -> Agreement:
    groups: dict[tuple[int, str], list[tuple[float, float]]] = defaultdict(list)
    for row in rows:
        worth = row.reward_info.get(f"{gold}_score")
        if row.reward is not None and worth is not None:
            groups[row.step, row.group].append((row.reward, worth))
    right, pairs = 0.0, 0
    for members in groups.values():
        for (reward, worth), (other, less) in combinations(members, 2):
            if worth != less:
                pairs += 1
                right += 0.5 if reward == other else (reward > other) == (worth > less)
    return Agreement(right / pairs if pairs else None, pairs)
