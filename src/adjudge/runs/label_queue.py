"""Which samples are worth a person's time, in which order.

Half of a run's samples, chosen by a hash of their place, are the pool of random ones; those where
the run disagrees with itself and those that nearly tie in their group come from the other half. So
the random ones are a simple random sample of the run whatever is asked besides, and what they say
of the judge holds for the run; what the others say holds for the samples where it is in doubt. The
order depends on the run and the seed alone: two people get the same samples, and can be compared.
"""

from __future__ import annotations

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
    (:func:`~adjudge.runs.disagreements.find_disagreements`), the worst first.
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
