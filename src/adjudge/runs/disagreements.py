"""Which samples of a run their judges disagree about most.

Numbers of two judges have two scales, so places are compared and not numbers: the rank of a sample
in its group, among the members that both have a number for, from 0 (the lowest) to 1 (ties at
mid-rank). In a run whose groups have one member, the whole run is one group. The size of a
disagreement is the distance of two such ranks, from 0 to 1; of equal sizes the one comes first
whose numbers are further apart, each on a scale from the least to the most of the run. Below
:data:`LEAST` it is none: two orders that contradict each other nowhere can be almost that far
apart by ties alone. A side that says the same of a whole group orders nothing in it.

The first of these rules that finds anything is the run's:

1. each judge against the environment's reward;
2. two judges against each other;
3. a judge against itself: the two orders of a pair say different things (1), the criteria of a
   rubric that got no verdict (their share), the deviation of several judges or votes.

Where no grader asks a judge, the first two rules take all graders.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from heapq import nsmallest
from itertools import combinations
from typing import Any, NamedTuple

import msgspec

from adjudge.rewards.groups import group_step

MOST = 20
"""How many are listed."""

LEAST = 0.5
"""The least distance of two ranks that is a disagreement."""

ScoreColumn = Sequence[float | None]


class Disagreement(msgspec.Struct, frozen=True):
    """A sample that is judged in two ways: its ``place`` among the samples given, from 0."""

    place: int
    size: float
    text: str


class Disagreements(msgspec.Struct, frozen=True):
    """The worst of a run, the worst first, and the rule that they were found by."""

    rule: str = ""
    worst: Sequence[Disagreement] = ()


class _Side(NamedTuple):
    """What one side says of the members of a group."""

    name: str
    numbers: Sequence[float]

    def describe(self, at: int) -> str:
        value = self.numbers[at]
        above = sum(number > value for number in self.numbers)
        equal = self.numbers.count(value)
        rank = f"tied for {above + 1} to {above + equal}" if equal > 1 else f"rank {above + 1}"
        return f"{self.name} {_format(value)} ({rank} of {len(self.numbers)})"


class _Entry(NamedTuple):
    """One disagreement; the least is the worst."""

    size: float
    apart: float
    place: int
    sides: tuple[_Side, ...] = ()
    at: int = 0
    text: str = ""

    def as_disagreement(self) -> Disagreement:
        text = self.text or "; ".join(side.describe(self.at) for side in self.sides)
        return Disagreement(self.place, -self.size, text)


def find_disagreements(
    groups: Sequence[Hashable],
    env_rewards: ScoreColumn,
    scores: Mapping[str, ScoreColumn],
    judges: Collection[str] = (),
    details: Iterable[Mapping[str, Any] | None] = (),
    *,
    most: int | None = MOST,
) -> Disagreements:
    """The worst disagreements of a run.

    ``scores``: the numbers of each grader; ``judges``: the names of those that ask a judge.
    ``details`` has what each sample's graders said; it is read where the numbers say nothing.
    ``most``: how many are listed, ``None`` for all.
    """
    judging = {name: scores[name] for name in scores if name in judges} or scores
    against_env = [(name, column, "environment", env_rewards) for name, column in judging.items()]
    between = [(a, judging[a], b, judging[b]) for a, b in combinations(judging, 2)]
    by_rank = "rank in the group (of the run, where groups have one member)"
    for rule, pairs in (
        (f"a judge against the environment’s reward, by {by_rank}", against_env),
        (f"two judges against each other, by {by_rank}", between),
    ):
        entries = (entry for pair in pairs for entry in _pair_entries(groups, *pair))
        if worst := _choose_worst(entries, most):
            return Disagreements(rule, worst)
    if worst := _choose_worst(_inner_entries(details), most):
        return Disagreements("a judge against itself: orders, votes, criteria", worst)
    return Disagreements()


def _choose_worst(entries: Iterable[_Entry], most: int | None) -> list[Disagreement]:
    """Of each sample its worst one."""
    worst: dict[int, _Entry] = {}
    for entry in entries:
        known = worst.get(entry.place)
        if known is None or entry[:3] < known[:3]:
            worst[entry.place] = entry
    chosen = nsmallest(
        len(worst) if most is None else most, worst.values(), key=lambda entry: entry[:3]
    )
    return [entry.as_disagreement() for entry in chosen]


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
        sides = _Side(one, first), _Side(other, second)
        ranks = zip(group_step(first, "rank"), group_step(second, "rank"), strict=True)
        for at, ((place, a, b), (rank, its_rank)) in enumerate(zip(entries, ranks, strict=True)):
            if rank is not None and its_rank is not None and abs(rank - its_rank) >= LEAST:
                apart = abs(_scaled(a, *scales[0]) - _scaled(b, *scales[1]))
                yield _Entry(-abs(rank - its_rank), -apart, place, sides, at)


def _scaled(value: float, low: float, high: float) -> float:
    return (value - low) / (high - low) if high > low else 0.5


def _format(value: float) -> str:
    return f"{value:.4g}".replace("-", "−")


# --- a judge against itself ---------------------------------------------------------------------


def _inner_entries(details: Iterable[Mapping[str, Any] | None]) -> Iterator[_Entry]:
    for place, detail in enumerate(details):
        for name, said in (detail or {}).items():
            metadata = said.get("metadata") if isinstance(said, Mapping) else None
            if isinstance(metadata, Mapping):
                for size, text in _inner_sizes(metadata):
                    yield _Entry(-size, 0.0, place, text=f"{name}: {text}")


def _inner_sizes(metadata: Mapping[str, Any]) -> Iterator[tuple[float, str]]:
    if metadata.get("consistent") is False:
        yield 1.0, "the two orders of the pair say different things"
    spread = metadata.get("spread")
    if isinstance(spread, float) and 0 < spread < math.inf:
        yield spread, f"its judges or votes differ by {_format(spread)} (std)"
    criteria, missing = metadata.get("criteria"), metadata.get("missing")
    if isinstance(criteria, list | dict) and isinstance(missing, list) and criteria and missing:
        text = f"{len(missing)} of {len(criteria)} criteria got no verdict"
        yield len(missing) / len(criteria), text
