"""The order of training rows: like lengths in one batch, so that little is padding."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from adjudge.judge_training.distributed import Place, launched

__all__ = ["LengthGrouped", "length_grouped", "share"]

_BATCHES = 50
"""Batches among whose rows like lengths are looked for: more would follow length too closely."""


def length_grouped(lengths: Sequence[int], size: int, rng: random.Random) -> list[int]:
    """Every place once, in an order whose consecutive batches of ``size`` have like lengths.

    Rows are shuffled; of each 50 batches the rows are sorted by length and cut into batches, whose
    order is shuffled, so that length says nothing about time. The last batch may be smaller.

    >>> order = length_grouped([5, 1, 5, 1], 2, random.Random(0))
    >>> sorted(order), {abs(order[0] - order[1]), abs(order[2] - order[3])}
    ([0, 1, 2, 3], {2})
    """
    places = list(range(len(lengths)))
    rng.shuffle(places)
    batches: list[list[int]] = []
    for start in range(0, len(places), size * _BATCHES):
        near = sorted(places[start : start + size * _BATCHES], key=lambda place: -lengths[place])
        batches += [near[at : at + size] for at in range(0, len(near), size)]
    short = [batch for batch in batches if len(batch) < size]
    whole = [batch for batch in batches if len(batch) == size]
    rng.shuffle(whole)
    return [place for batch in [*whole, *short] for place in batch]


class LengthGrouped:
    """A sampler whose order depends on seed and epoch alone, so that a resumed run has the same.

    ``size`` is what all processes compute at once: accelerate deals an order out in batches, one to
    each process in turn, so that those of a step are alike and wait for nobody. Where the last ones
    do not come out even, it fills them up with rows from the epoch's beginning.
    """

    def __init__(self, lengths: Sequence[int], size: int, seed: int) -> None:
        self._lengths, self._size, self._seed = lengths, size, seed
        self._epoch = 0

    def __len__(self) -> int:
        return len(self._lengths)

    def __iter__(self) -> Iterator[int]:
        rng = random.Random(f"{self._seed} {self._epoch}")  # noqa: S311  (no secret)
        return iter(length_grouped(self._lengths, self._size, rng))

    def set_epoch(self, epoch: int) -> None:
        """Which pass over the rows comes next, from 0."""
        self._epoch = epoch


def share(count: int, place: Place | None = None) -> range:
    """Which of ``count`` rows are this process's (or that of ``place``) to compute.

    >>> [list(share(5, Place(rank, 2))) for rank in (0, 1)]
    [[0, 2, 4], [1, 3]]
    """
    place = place or launched() or Place(0, 1)
    return range(place.rank, count, place.world)
