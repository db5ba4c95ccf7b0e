"""Which samples are worth a person's time, in which order.

Half of a run's samples, chosen by a hash of their place, are the pool of random ones; those where
the run disagrees with itself and those that nearly tie in their group come from the other half. So
the random ones are a simple random sample of the run whatever is asked besides, and what they say
of the judge holds for the run; what the others say holds for the samples where it is in doubt. The
order depends on the run and the seed alone: two people get the same samples, and can be compared.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import pairwise
from typing import NamedTuple

from adjudge.runs.labels import QueueReason
from adjudge.stats import snap_ties

QUEUE_SHARES: Mapping[QueueReason, float] = {"random": 0.5, "disagreement": 0.3, "near tie": 0.2}
"""The share of each reason in the queue, as long as there are samples for it."""

QUEUE_SIZE = 50
"""Labels of a round, of which the page says how many are done."""

_LEAST_DISAGREEMENT = 0.25
"""Of the places in the run's order, 0 to 1, that two numbers give a sample."""


class QueueSample(NamedTuple):
    """What the queue must know of a sample; ``row`` is its place in the run's file."""

    row: int
    step: int
    sample_index: int
    group: int
    reward: float | None
    env_reward: float | None
    scores: Sequence[float | None]


class QueueEntry(NamedTuple):
    """A sample to be labelled, why, and the row of the one that it nearly ties with."""

    row: int
    queue: QueueReason
    beside: int | None = None


def build_queue(samples: Sequence[QueueSample], *, seed: int = 0) -> list[QueueEntry]:
    """All samples that have a reward, once each at most: the most useful first.

    Reasons alternate by :data:`QUEUE_SHARES`; where one has no samples left, the others go on. Of
    the half that is not random only samples with a reason are in the queue.
    """
    judged = [one for one in samples if one.reward is not None]
    order = {one.row: _hash_place(one, seed) for one in judged}
    pool = sorted((one.row for one in judged if order[one.row] & 1), key=order.__getitem__)
    asked = [one for one in judged if not order[one.row] & 1]
    apart = measure_disagreement(judged)
    streams: dict[QueueReason, Iterator[QueueEntry]] = {
        "random": (QueueEntry(row, "random") for row in pool),
        "disagreement": (
            QueueEntry(one.row, "disagreement")
            for one in sorted(asked, key=lambda one: (-apart[one.row], order[one.row]))
            if apart[one.row] >= _LEAST_DISAGREEMENT
        ),
        "near tie": (
            QueueEntry(row, "near tie", other)
            for row, other in _near_ties(judged)
            if not order[row] & 1
        ),
    }
    return list(_interleave(streams))


def measure_disagreement(samples: Sequence[QueueSample]) -> dict[int, float]:
    """By row: how far apart the run's own numbers put a sample, from 0 to 1.

    Each number is the sample's place among all of the run, ties in the middle, so that scales do
    not matter. The judge's reward against the environment's where there is one, else the grader
    that is highest against the one that is lowest.
    """
    width = max((len(one.scores) for one in samples), default=0)
    columns = [
        [one.reward for one in samples],
        [one.env_reward for one in samples],
        *(
            [one.scores[at] if at < len(one.scores) else None for one in samples]
            for at in range(width)
        ),
    ]
    reward, env, *graders = [_places(column) for column in columns]
    found = {}
    for at, one in enumerate(samples):
        pair = [places[at] for places in (reward, env)]
        if None in pair:
            pair = [places[at] for places in graders]
        known = [place for place in pair if place is not None]
        found[one.row] = max(known) - min(known) if len(known) > 1 else 0.0
    return found


def _places(column: Sequence[float | None]) -> list[float | None]:
    """Each value's mid-rank as a share of the values there are; all ``None`` where none varies."""
    present = sorted(value for value in column if value is not None)
    if not present or present[0] == present[-1]:
        return [None] * len(column)
    place = {
        value: (bisect_left(present, value) + bisect_right(present, value)) / (2 * len(present))
        for value in set(present)
    }
    return [None if value is None else place[value] for value in column]


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
    """From the stream that is furthest behind its share, until all are empty; a row once."""
    counts = dict.fromkeys(streams, 0)
    open_ones, used = dict(streams), set()
    while open_ones:
        total = sum(counts[reason] for reason in open_ones) + 1
        reason = max(open_ones, key=lambda one: QUEUE_SHARES[one] * total - counts[one])
        entry = next((one for one in open_ones[reason] if one.row not in used), None)
        if entry is None:
            del open_ones[reason]
            continue
        used.add(entry.row)
        counts[reason] += 1
        yield entry


def _hash_place(one: QueueSample, seed: int) -> int:
    digest = blake2b(f"{seed}/{one.step}/{one.sample_index}".encode(), digest_size=8).digest()
    return int.from_bytes(digest)
