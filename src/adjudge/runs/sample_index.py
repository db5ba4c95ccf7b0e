"""An index of a run's samples: where each lies, its numbers, its group, and who disagrees.

Of each row about a hundred bytes stay in memory, its place and the few numbers that groups need;
texts and verdicts are read from the file when asked. Also what a group's advantages are, and what
they would be if failures counted as 0.

Numbers of two judges have two scales, so places are compared and not numbers: the rank of a sample
in its group, among the members that both have a number for, from 0 (the lowest) to 1 (ties at
mid-rank). In a run whose groups have one member, the whole run is one group. The size of a
disagreement is the distance of two such ranks, from 0 to 1; of equal sizes the one comes first
whose numbers are further apart, each on a scale from the least to the most of the run. Below
:data:`LEAST` it is none: two orders that contradict each other nowhere can be almost that far
apart by ties alone. A side that says the same of a whole group orders nothing in it.

The first of these rules that finds anything is the run's:

1. each judge against the environment's reward;
2. two judges against each other.

Where no grader asks a judge, the rules take all graders.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from heapq import nsmallest
from itertools import chain, combinations
from typing import Annotated, NamedTuple

import msgspec

from adjudge.rewards.formulas import STD_EPSILON, group_step
from adjudge.stats import mean_and_std

MAX_DRAWN = 1e12
"""Numbers beyond this are not drawn, and count as not there."""


def drawable_number(value: object) -> float | None:
    """A number that can be drawn, else ``None``: no boolean, no NaN, none beyond ``MAX_DRAWN``."""
    if type(value) not in {int, float}:
        return None
    return float(value) if -MAX_DRAWN <= value <= MAX_DRAWN else None  # type: ignore[operator, arg-type]


_ZERO_TOLERANCE = 1e-9
"""An advantage closer to 0 than this is 0: a reward that is the mean leaves a rounding error."""


class AdvantageComparison(msgspec.Struct, frozen=True):
    """A group's advantages with missing rewards left out, and with each counted as 0.

    ``left_out`` has ``None`` where the reward is missing. ``turned`` are the places of present
    rewards whose advantage has the other sign when the failures beside them count as 0. The
    numbers as 0 are ``None`` where they are not known: after a group step.
    """

    left_out: list[float | None]
    as_zero: Sequence[float | None]
    turned: list[int]


def compute_advantages(rewards: Sequence[float | None]) -> list[float | None]:
    """(r − mean)/(std + 1e-4) over the present rewards, std with n − 1; 0 for one alone.

    Rewards that differ by rounding alone count as equal, whoever recorded them.

    >>> compute_advantages([1.0, None])
    [0.0, None]
    """
    rewards = group_step(rewards, "none")
    present = [reward for reward in rewards if reward is not None]
    if not present:
        return rewards
    mean, std = mean_and_std(present)
    return [None if reward is None else (reward - mean) / (std + STD_EPSILON) for reward in rewards]


def compare_advantages(
    rewards: Sequence[float | None],
    filled: Sequence[float] | None = None,
    *,
    stepped: bool = False,
) -> AdvantageComparison:
    """The comparison for one group; ``rewards`` has ``None`` where one is missing.

    ``filled``: the rewards with each failure as 0. ``stepped``: a group step came after the
    rewards' parts, so that a 0 in the place of a missing reward is not what a failure counted as 0
    gets (after a z-score it would be the mean).

    >>> compare_advantages([0.4, 0.6, None, None]).turned  # 0.4: the lesser of two, but above 0
    [0]
    """
    left_out = compute_advantages(rewards)
    if stepped and None in rewards:
        return AdvantageComparison(left_out, [None] * len(rewards), [])
    if filled is None:
        filled = [0.0 if reward is None else reward for reward in rewards]  # adjudge: meant
    as_zero = [0.0 if value is None else value for value in compute_advantages(filled)]
    turned = [
        place
        for place, (mine, theirs) in enumerate(zip(left_out, as_zero, strict=True))
        if mine is not None
        and min(abs(mine), abs(theirs)) > _ZERO_TOLERANCE
        and (mine > 0) != (theirs > 0)
    ]
    return AdvantageComparison(left_out, as_zero, turned)


MAX_SCORES = 48
_MAX_STEP = 2**53
RowIndex = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
"""The number of a row as JSON holds it exactly; another one is no run's."""
_MAX_KINDS = 200
_ABSENT = math.nan


class MissingReason(msgspec.Struct, frozen=True):
    """Why a reward is missing: the kind of the failure, and its message."""

    kind: str = "missing"
    message: str = ""


class SampleRow(msgspec.Struct, frozen=True, kw_only=True):
    """What the index takes from a row of either file; the rest is passed over unread."""

    step: Annotated[int, msgspec.Meta(ge=-_MAX_STEP, le=_MAX_STEP)] | None = None
    index: RowIndex | None = None
    group: str | int | None = None
    reward: float | None = None
    missing: MissingReason | None = None
    env_reward: float | None = None
    advantage: float | None = None
    reward_info: dict[str, float | None] | None = None
    tokens: float | None = None


_decoder = msgspec.json.Decoder(SampleRow)


class SampleGroup(NamedTuple):
    """The samples that are compared with each other, by their rows in the index."""

    name: str
    step: int
    rows: array[int]


class RolloutIndex:
    """The index of ``rollouts.jsonl`` or ``rewards.jsonl``, row by row.

    Rows without a step (a grading run has none) are of step 0. ``broken`` counts lines that are no
    row; they are passed over. ``scores`` has a column for every part of a reward, NaN for absent.
    ``stepped``: whether the recorded rewards came from a group step.
    """

    def __init__(self, *, stepped: bool = False) -> None:
        self.stepped = stepped
        self.offsets = array("Q")
        self.sizes = array("L")
        self.places = array("q")
        self.reward = array("d")
        self.env_reward = array("d")
        self.advantage = array("d")
        self.tokens = array("d")
        self.group_of = array("L")
        self.kind_of = array("H")
        self.failed = bytearray()
        """1 where the reward is missing or a grader failed."""
        self.scores: dict[str, array[float]] = {}
        self.groups: list[SampleGroup] = []
        self.steps: dict[int, list[int]] = {}
        self.kinds: list[str] = [""]
        self.broken = 0
        self.lost: Counter[str] = Counter()
        self.sum = 0.0
        self.missing: dict[int, int] = {}
        self._ids: dict[tuple[int, str], int] = {}
        self._kind_ids: dict[str, int] = {"": 0}
        self._fresh: set[int] = set()
        self._turned: dict[int, int] = {}
        self._turned_sum = 0

    def __len__(self) -> int:
        return len(self.offsets)

    def add(self, offset: int, line: bytes) -> None:
        """Take in the line at ``offset``."""
        if not line.strip():
            return
        try:
            row = _decoder.decode(line)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            self.broken += 1
            return
        self.add_row(row, offset, len(line))

    def add_row(self, row: SampleRow, offset: int, size: int) -> None:
        """Take in a row that lies at ``offset``."""
        number, reward = len(self.offsets), _number(row.reward)
        self._place(number, row, reward)
        self.offsets.append(offset)
        self.sizes.append(size)
        self.places.append(number if row.index is None else row.index)
        info = row.reward_info or {}
        env_reward = row.env_reward if row.env_reward is not None else info.get("env_reward")
        self.reward.append(reward)
        self.env_reward.append(_number(env_reward))
        self.advantage.append(_number(row.advantage))
        self.tokens.append(_number(row.tokens))
        failed = math.isnan(reward) or any(
            value is None and key.endswith("_score") for key, value in info.items()
        )
        self.failed.append(failed)
        self._score(number, info)

    def _place(self, number: int, row: SampleRow, reward: float) -> None:
        """Into its step and group; a group with a missing reward is compared anew when asked."""
        step = row.step or 0
        key = (step, "" if row.group is None else str(row.group))
        if (group := self._ids.get(key)) is None:
            group = self._ids[key] = len(self.groups)
            self.groups.append(SampleGroup(key[1], step, array("L")))
            self.steps.setdefault(step, []).append(group)
        self.groups[group].rows.append(number)
        self.group_of.append(group)
        if math.isnan(reward):
            kind = self._kind(row.missing.kind if row.missing else "missing")
            self.kind_of.append(kind)
            self.lost[self.kinds[kind]] += 1
            self.missing[group] = self.missing.get(group, 0) + 1
        else:
            self.kind_of.append(0)
            self.sum += reward
        if group in self.missing:
            self._fresh.add(group)

    def _kind(self, kind: str) -> int:
        if kind not in self._kind_ids:
            if len(self.kinds) >= _MAX_KINDS:
                kind = "other"
            if kind in self._kind_ids:
                return self._kind_ids[kind]
            self._kind_ids[kind] = len(self.kinds)
            self.kinds.append(kind)
        return self._kind_ids[kind]

    def _score(self, number: int, info: dict[str, float | None]) -> None:
        for key, value in info.items():
            if key == "env_reward" or value is None:
                continue
            column = self.scores.get(key)
            if column is None:
                if len(self.scores) >= MAX_SCORES:
                    continue
                column = self.scores[key] = array("d")
            if len(column) < number:
                column.extend([_ABSENT] * (number - len(column)))
            column.append(_number(value))

    def score(self, key: str, row: int) -> float | None:
        """One part of one reward."""
        column = self.scores[key]
        return present_number(column[row]) if row < len(column) else None

    def rewards_of(self, group: int) -> list[float | None]:
        """The rewards of a group, ``None`` for missing."""
        return [present_number(self.reward[row]) for row in self.groups[group].rows]

    def both_ways(self, group: int) -> AdvantageComparison:
        """A group's advantages, with failures left out and with each as 0."""
        return compare_advantages(self.rewards_of(group), stepped=self.stepped)

    def turned(self, group: int) -> int | None:
        """How many of a group's advantages would change their sign if failures counted as 0.

        ``None`` where that is not known.
        """
        if self.stepped and group in self.missing:
            return None
        self._compare()
        return self._turned.get(group, 0)

    def turned_in_all(self) -> tuple[int, int]:
        """Rewards whose advantage would turn, and groups with any, in the whole run."""
        self._compare()
        return self._turned_sum, len(self._turned)

    def _compare(self) -> None:
        for group in self._fresh:
            found = len(self.both_ways(group).turned)
            self._turned_sum += found - self._turned.pop(group, 0)
            if found:
                self._turned[group] = found
        self._fresh.clear()


def _number(value: float | None) -> float:
    return value if value is not None and -MAX_DRAWN <= value <= MAX_DRAWN else _ABSENT


def present_number(value: float) -> float | None:
    """The number that a column holds; ``None`` for NaN, which is none."""
    return None if math.isnan(value) else value


# --- disagreements -------------------------------------------------------------------------------

MOST = 20
"""How many disagreements are listed."""

LEAST = 0.5
"""The least distance of two ranks that is a disagreement."""

ScoreColumn = Sequence[float | None]


class Disagreement(NamedTuple):
    """A sample that is judged in two ways: its ``place`` among the samples given, from 0."""

    place: int
    size: float
    text: str


class Disagreements(NamedTuple):
    """The worst of a run, the worst first, and the rule that they were found by."""

    rule: str = ""
    worst: Sequence[Disagreement] = ()


class _Entry(NamedTuple):
    """One disagreement; the least is the worst. ``sides``: names, a group's numbers, the place."""

    size: float
    apart: float
    place: int
    sides: Sequence[tuple[str, Sequence[float], int]]

    def describe(self) -> str:
        """Both sides with their ranks."""
        parts = []
        for name, numbers, at in self.sides:
            above = sum(number > numbers[at] for number in numbers)
            equal = numbers.count(numbers[at])
            rank = f"tied for {above + 1} to {above + equal}" if equal > 1 else f"rank {above + 1}"
            number = f"{numbers[at]:.4g}".replace("-", "−")
            parts.append(f"{name} {number} ({rank} of {len(numbers)})")
        return "; ".join(parts)


def find_disagreements(
    groups: Sequence[Hashable],
    env_rewards: ScoreColumn,
    scores: Mapping[str, ScoreColumn],
    judges: Collection[str] = (),
    *,
    most: int | None = MOST,
) -> Disagreements:
    """The worst disagreements of a run.

    ``scores``: the numbers of each grader; ``judges``: the names of those that ask a judge.
    ``most``: how many are listed, ``None`` for all.
    """
    judging = {name: scores[name] for name in scores if name in judges} or scores
    against_env = [(name, column, "environment", env_rewards) for name, column in judging.items()]
    between = [(a, judging[a], b, judging[b]) for a, b in combinations(judging, 2)]
    by_rank = "by rank in the group (of the run, where groups have one member)"
    for rule, pairs in (
        (f"a judge against the environment’s reward, {by_rank}", against_env),
        (f"two judges against each other, {by_rank}", between),
    ):
        worst: dict[int, _Entry] = {}
        for entry in chain.from_iterable(_pair_entries(groups, *pair) for pair in pairs):
            known = worst.setdefault(entry.place, entry)
            if entry[:3] < known[:3]:  # of each sample its worst one
                worst[entry.place] = entry
        if worst:
            count = len(worst) if most is None else most
            chosen = nsmallest(count, worst.values(), key=lambda one: one[:3])
            return Disagreements(
                rule, [Disagreement(one.place, -one.size, one.describe()) for one in chosen]
            )
    return Disagreements()


def _pair_entries(
    groups: Sequence[Hashable], one: str, ours: ScoreColumn, other: str, theirs: ScoreColumn
) -> Iterator[_Entry]:
    members: dict[Hashable, list[tuple[int, float, float]]] = {}
    for place, (mine, its) in enumerate(zip(ours, theirs, strict=False)):
        if mine is not None and its is not None:
            members.setdefault(groups[place], []).append((place, mine, its))
    every = [entry for entries in members.values() for entry in entries]
    if not every:
        return
    scales = [(min(side), max(side)) for side in zip(*(entry[1:] for entry in every), strict=True)]
    alone = len(members) == len(every)
    for entries in [every] if alone else members.values():
        if len(entries) == 1:
            continue
        _, first, second = zip(*entries, strict=True)
        if min(first) == max(first) or min(second) == max(second):
            continue
        ranks = zip(group_step(first, "rank"), group_step(second, "rank"), strict=True)
        for at, ((place, a, b), (rank, its_rank)) in enumerate(zip(entries, ranks, strict=True)):
            if rank is not None and its_rank is not None and abs(rank - its_rank) >= LEAST:
                mine, its = (
                    (value - low) / (high - low) if high > low else 0.5
                    for value, (low, high) in zip((a, b), scales, strict=True)
                )
                sides = ((one, first, at), (other, second, at))
                yield _Entry(-abs(rank - its_rank), -abs(mine - its), place, sides)
