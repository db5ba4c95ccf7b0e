"""Which samples of a run are worth a person's time: its disagreements, and the queue of labels.

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

Where no grader asks a judge, the first two rules take all graders.

Half of a run's samples, chosen by a hash of their place, are the pool of random ones in the queue;
those where the run disagrees with itself and those that nearly tie in their group come from the
other half. So the random ones are a simple random sample of the run whatever is asked besides, and
what they say of the judge holds for the run; what the others say holds for the samples where it is
in doubt. The order depends on the run alone: two people get the same samples.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from hashlib import blake2b
from heapq import nsmallest
from itertools import combinations, pairwise
from typing import Literal, NamedTuple

from adjudge.rewards.formulas import group_step
from adjudge.stats import snap_ties

MOST = 20
"""How many disagreements are listed."""

LEAST = 0.5
"""The least distance of two ranks that is a disagreement."""

QueueReason = Literal["random", "disagreement", "near tie"]
QUEUE_SHARES: Mapping[QueueReason, float] = {"random": 0.5, "disagreement": 0.3, "near tie": 0.2}
"""The share of each reason in the queue, as long as there are samples for it."""

_ORDER: tuple[QueueReason, ...] = (
    "random", "disagreement", "random", "near tie", "random", "disagreement", "random",
    "disagreement", "random", "near tie",
)  # fmt: skip

QUEUE_SIZE = 50
"""Labels of a round, of which the page says how many are done."""

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
    for rule, entries in (
        (
            f"a judge against the environment’s reward, {by_rank}",
            (entry for pair in against_env for entry in _pair_entries(groups, *pair)),
        ),
        (
            f"two judges against each other, {by_rank}",
            (entry for pair in between for entry in _pair_entries(groups, *pair)),
        ),
    ):
        worst: dict[int, _Entry] = {}
        for entry in entries:  # of each sample its worst one
            known = worst.setdefault(entry.place, entry)
            if entry[:3] < known[:3]:
                worst[entry.place] = entry
        if worst:
            count = len(worst) if most is None else most
            chosen = nsmallest(count, worst.values(), key=lambda one: one[:3])
            return Disagreements(
                rule, [Disagreement(one.place, -one.size, _describe(one.sides)) for one in chosen]
            )
    return Disagreements()


def _describe(sides: Sequence[tuple[str, Sequence[float], int]]) -> str:
    parts = []
    for name, numbers, at in sides:
        above = sum(number > numbers[at] for number in numbers)
        equal = numbers.count(numbers[at])
        rank = f"tied for {above + 1} to {above + equal}" if equal > 1 else f"rank {above + 1}"
        parts.append(f"{name} {_format(numbers[at])} ({rank} of {len(numbers)})")
    return "; ".join(parts)


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
                apart = abs(_scaled(a, *scales[0]) - _scaled(b, *scales[1]))
                sides = ((one, first, at), (other, second, at))
                yield _Entry(-abs(rank - its_rank), -apart, place, sides)


def _scaled(value: float, low: float, high: float) -> float:
    return (value - low) / (high - low) if high > low else 0.5


def _format(value: float) -> str:
    return f"{value:.4g}".replace("-", "−")


# --- the queue ------------------------------------------------------------------------------------


class QueueSample(NamedTuple):
    """What the queue must know of a sample; ``row`` is its place in the run's file."""

    row: int
    step: int
    sample_index: int
    group: int
    reward: float | None


class QueueEntry(NamedTuple):
    """A sample to be labelled, why, and the row of the one that it nearly ties with."""

    row: int
    queue: QueueReason
    beside: int | None = None


def build_queue(
    samples: Sequence[QueueSample], disputed: Sequence[int] = (), *, seed: int = 0
) -> list[QueueEntry]:
    """All samples that have a reward, once each at most: the most useful first.

    ``disputed``: the rows that the run disagrees with itself about
    (:func:`find_disagreements`), the worst first.
    Reasons alternate by :data:`QUEUE_SHARES`; where one has no samples left, the others go on. Of
    the half that is not random only samples with a reason are in the queue.
    """
    judged = [one for one in samples if one.reward is not None]
    order = {one.row: _hash_place(one, seed) for one in judged}
    pool = sorted((one.row for one in judged if order[one.row] & 1), key=order.__getitem__)
    streams: dict[QueueReason, Iterator[QueueEntry]] = {
        "random": (QueueEntry(row, "random") for row in pool),
        "disagreement": (
            QueueEntry(row, "disagreement") for row in disputed if not order.get(row, 1) & 1
        ),
        "near tie": (
            QueueEntry(row, "near tie", other)
            for row, other in _near_ties(judged)
            if not order[row] & 1
        ),
    }
    return list(_interleave(streams))


def _near_ties(samples: Sequence[QueueSample]) -> Iterator[tuple[int, int]]:
    """Two samples of a group with rewards next to each other, the closest first; equal ones not."""
    groups: dict[int, list[tuple[float, int]]] = {}
    for one in samples:
        if one.reward is not None:
            groups.setdefault(one.group, []).append((one.reward, one.row))
    gaps = []
    for members in groups.values():
        rewards = snap_ties([reward for reward, _ in members])
        ranked = sorted(zip(rewards, (row for _, row in members), strict=True))
        gaps += [(high - low, row, other) for (low, other), (high, row) in pairwise(ranked)]
    for gap, row, other in sorted(gaps):
        if gap > 0:
            yield row, other


def _interleave(streams: dict[QueueReason, Iterator[QueueEntry]]) -> Iterator[QueueEntry]:
    """By the shares of the reasons, until all streams are empty; a row once."""
    used: set[int] = set()
    while streams:
        for reason in _ORDER:
            entry = next((one for one in streams.get(reason, ()) if one.row not in used), None)
            if entry is None:
                streams.pop(reason, None)
            else:
                used.add(entry.row)
                yield entry


def _hash_place(one: QueueSample, seed: int) -> int:
    digest = blake2b(f"{seed}/{one.step}/{one.sample_index}".encode(), digest_size=8).digest()
    return int.from_bytes(digest)
