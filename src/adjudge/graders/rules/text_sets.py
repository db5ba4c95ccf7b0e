"""How similar texts are to one another as sets of tokens, without comparing all pairs."""

from __future__ import annotations

import math
import sys
from array import array
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import count, groupby, pairwise
from typing import Literal, TypeAlias

__all__ = ["Similarity", "nearest_earlier", "similar_pairs", "tokens_of"]

Similarity = Literal["jaccard", "ordered"]
"""``jaccard``: sets of lower-case words. ``ordered``: sets of adjacent pairs of words."""

_MAX_LANES = 448  # masks of one-byte lanes then fit Python's small-object allocator
_MAX_BLOCK_BYTES = 1 << 24

_BELOW = [bytes(range(k)) for k in range(257)]

_Overlaps: TypeAlias = "bytes | array[int]"  # a string: array takes no [] before Python 3.12


def tokens_of(text: str, similarity: Similarity) -> Iterable[Hashable]:
    """The tokens whose set stands for a text.

    Under ``jaccard`` the lower-case words between white space; under ``ordered`` the pairs of
    adjacent words, with a mark at either end (word 2-shingles; Broder, "On the resemblance and
    containment of documents", 1997), so that "a b" and "b a" differ.

    >>> list(tokens_of("Open door", "ordered"))
    [(None, 'open'), ('open', 'door'), ('door', None)]
    """
    words = text.lower().split()
    if similarity == "jaccard" or not words:
        return words
    return pairwise((None, *words, None))


def nearest_earlier(texts: Iterable[str], similarity: Similarity) -> list[float]:
    """For each text the highest Jaccard index |A ∩ B| / |A ∪ B| with any text before it.

    0.0 for the first; a text without words is similar to nothing, not even to itself. Exactly the
    maximum over all earlier texts: one integer addition per token compares a text with up to 448
    others at once, so ordinary trajectories cost little more than reading them.

    >>> nearest_earlier(["a b c", "c B a", "a b d"], "jaccard")
    [0.0, 1.0, 0.5]
    >>> nearest_earlier(["a b c", "c B a", "a b d"], "ordered")
    [0.0, 0.0, 0.3333333333333333]
    """
    numbers = _Numbers()
    known: dict[str, frozenset[int]] = {}
    first: dict[frozenset[int], int] = {}
    nearest = []
    for text in texts:
        tokens = known.get(text)
        if tokens is None:
            tokens = known[text] = numbers.of(tokens_of(text, similarity))
        nearest.append(1.0 if tokens in first else 0.0)
        if tokens:
            first.setdefault(tokens, len(nearest) - 1)
    distinct = list(first)
    values = [0.0] * len(distinct)
    for start, end in _blocks(distinct):
        _compare_with_block(distinct, start, end, numbers.used, values)
    for position, value in zip(first.values(), values, strict=True):
        nearest[position] = value
    return nearest


def similar_pairs(groups: Mapping[frozenset[Hashable], int], threshold: float) -> int:
    """How many pairs of texts have a Jaccard index of at least ``threshold`` (0 to 1).

    ``groups`` has the token sets of the texts and how often each occurs. Linear at threshold 1.

    >>> similar_pairs({frozenset("ab"): 2, frozenset("abc"): 1}, 0.6)
    3
    """
    if threshold <= 0.0:
        total = sum(groups.values())
        return total * (total - 1) // 2
    if threshold >= 1.0:
        return sum(own * (own - 1) for tokens, own in groups.items() if tokens) // 2
    # Ordered by size and number of members, so that equal lanes lie side by side.
    ranked = sorted(filter(None, groups), key=lambda tokens: (len(tokens), groups[tokens]))
    members = [groups[tokens] for tokens in ranked]
    numbers = _Numbers()
    sets = [numbers.of(tokens) for tokens in ranked]
    ordered_pairs = -sum(members)  # each text is similar to itself
    for start, end in _blocks(sets):
        lanes = _Weighted(sets[start:end], members[start:end], numbers.used, threshold)
        for tokens, own in zip(sets, members, strict=True):
            ordered_pairs += own * lanes.similar(tokens)
    return ordered_pairs // 2


class _Numbers:
    """Tokens by number, from 0."""

    def __init__(self) -> None:
        # A missing key takes the next number, all in C.
        self._numbers: defaultdict[Hashable, int] = defaultdict(count().__next__)
        self._number = self._numbers.__getitem__

    def of(self, tokens: Iterable[Hashable]) -> frozenset[int]:
        return frozenset(map(self._number, tokens))

    @property
    def used(self) -> int:
        return len(self._numbers)


class _Lanes:
    """|A ∩ B| of one set A with many sets B at once, by one integer addition per token of A.

    Every token has an integer with a 1 in the lane of each set that contains it. The sum of these
    integers over the tokens of A holds |A ∩ B| in the lane of B: a lane is as wide as the largest
    set needs, so nothing carries over. Lanes are ordered by size of set: of all sets with an equal
    overlap, the first has the highest Jaccard index. A lane counts 0 until it is filled.
    """

    def __init__(self, sets: Sequence[frozenset[int]], vocabulary: int) -> None:
        self._sets = sets
        self._sizes = [len(tokens) for tokens in sets]
        self._width = 1 if self._sizes[-1] < 1 << 8 else 2 if self._sizes[-1] < 1 << 16 else 4
        self._masks = [0] * vocabulary

    def fill(self, lane: int) -> None:
        bit = 1 << 8 * self._width * lane
        masks = self._masks
        for token in self._sets[lane]:
            masks[token] |= bit

    def overlaps(self, tokens: frozenset[int]) -> _Overlaps | None:
        """|A ∩ B| by lane; ``None`` when all are 0."""
        total = sum(filter(None, map(self._masks.__getitem__, tokens)))
        if not total:
            return None
        packed = total.to_bytes(len(self._sets) * self._width, "little")
        if self._width == 1:
            return packed
        wide = array("H" if self._width == 2 else "I", packed)
        if sys.byteorder == "big":
            wide.byteswap()
        return wide

    def nearest(self, tokens: frozenset[int], floor: float) -> float:
        """The highest Jaccard index of ``tokens`` with a filled lane, or ``floor`` if higher."""
        overlaps = self.overlaps(tokens)
        if overlaps is None:
            return floor
        top = _largest(overlaps)
        best = max(floor, self._jaccard(len(tokens), overlaps, top))
        if self._bound(len(tokens), top - 1) > best:
            for overlap in sorted(set(overlaps) - {0, top}, reverse=True):
                if self._bound(len(tokens), overlap) <= best:
                    break
                best = max(best, self._jaccard(len(tokens), overlaps, overlap))
        return best

    def _jaccard(self, size: int, overlaps: _Overlaps, overlap: int) -> float:
        other = self._sizes[overlaps.index(overlap)]
        return overlap / (size + other - overlap)

    def _bound(self, size: int, overlap: int) -> float:
        """No set with this overlap or a smaller one comes nearer."""
        return overlap / (size + max(self._sizes[0], overlap) - overlap)


class _Weighted(_Lanes):
    """Filled lanes that stand for several texts each, counted above a threshold."""

    def __init__(
        self,
        sets: Sequence[frozenset[int]],
        members: Sequence[int],
        vocabulary: int,
        threshold: float,
    ) -> None:
        super().__init__(sets, vocabulary)
        self._threshold = threshold
        self._runs = list(_runs(self._sizes, members))
        for lane in range(len(sets)):
            self.fill(lane)

    def similar(self, tokens: frozenset[int]) -> int:
        """How many texts have a Jaccard index with ``tokens`` of at least the threshold."""
        overlaps = self.overlaps(tokens)
        if overlaps is None:
            return 0
        found = 0
        for start, end, size, members in self._runs:
            needed = _needed_overlap(len(tokens), size, self._threshold)
            if needed <= min(len(tokens), size):
                found += members * _at_least(overlaps[start:end], needed)
        return found


def _compare_with_block(
    sets: list[frozenset[int]], start: int, end: int, vocabulary: int, nearest: list[float]
) -> None:
    """Raise ``nearest`` of every set by comparing it with earlier ones in ``start``…``end``."""
    ranked = sorted(range(start, end), key=lambda position: len(sets[position]))
    lane_of = {position: lane for lane, position in enumerate(ranked)}
    lanes = _Lanes([sets[position] for position in ranked], vocabulary)
    for position in range(start, len(sets)):
        nearest[position] = lanes.nearest(sets[position], nearest[position])
        if position < end:
            lanes.fill(lane_of[position])


def _blocks(sets: Sequence[frozenset[int]]) -> Iterator[tuple[int, int]]:
    """Start and end of runs of sets that are compared with at once; they keep the masks small."""
    start = tokens = 0
    for position, members in enumerate(sets):
        lanes = position - start
        tokens += len(members)
        # Every token may need a mask of a lane per set, up to four bytes wide.
        too_big = tokens * (lanes + 1) * (1 if len(members) < 256 else 4) > _MAX_BLOCK_BYTES
        if lanes == _MAX_LANES or (lanes and too_big):
            yield start, position
            start, tokens = position, len(members)
    if sets:
        yield start, len(sets)


def _largest(overlaps: _Overlaps) -> int:
    """``max(overlaps)``; bytes are sieved in C, which leaves larger ones each time."""
    if not isinstance(overlaps, bytes):
        return max(overlaps)
    rest = overlaps
    while True:
        largest = rest[0]
        rest = rest.translate(None, _BELOW[largest + 1])
        if not rest:
            return largest


def _at_least(overlaps: _Overlaps, needed: int) -> int:
    if isinstance(overlaps, bytes):
        return len(overlaps.translate(None, _BELOW[needed]))
    return sum(overlap >= needed for overlap in overlaps)


def _runs(sizes: Sequence[int], members: Sequence[int]) -> Iterator[tuple[int, int, int, int]]:
    """Runs of lanes with equal size and members: start, end, size, members."""
    start = 0
    for (size, own), run in groupby(zip(sizes, members, strict=True)):
        end = start + sum(1 for _ in run)
        yield start, end, size, own
        start = end


def _needed_overlap(size: int, other: int, threshold: float) -> int:
    """The smallest overlap whose Jaccard index, as a float, reaches ``threshold`` (above 0)."""
    both = size + other
    needed = max(1, math.ceil(threshold * both / (1.0 + threshold)))
    while needed > 1 and (needed - 1) / (both - needed + 1) >= threshold:
        needed -= 1
    while needed < both and needed / (both - needed) < threshold:
        needed += 1
    return needed
