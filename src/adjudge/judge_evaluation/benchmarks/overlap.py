"""Duplicate rows and test rows seen in training: exact matches, and near duplicates by MinHash.

Near duplicates are found in linear time: MinHash signatures, banded, candidates checked exactly.

A document is a question and its answers. Each of these is the set of its 3-word shingles (words as
:func:`adjudge.graders.base.split_words` reads them, signs included, so that Chinese falls into
characters), two of them are as similar as their Jaccard index (Broder, "On the resemblance and
containment of documents", 1997), and documents are as similar as their least similar parts: a long
question in common does not make two answers alike. Parts under :data:`MIN_WORDS` words must be
equal: in "Paris." one word more or less is another answer.

Signatures come from one hash per shingle (one permutation hashing with optimal densification:
Shrivastava, "Optimal Densification for Fast and Accurate Minwise Hashing", 2017); documents that
agree in all rows of a band are candidates (Leskovec, Rajaraman & Ullman, "Mining of Massive
Datasets", ch. 3).

*Error.* Candidates are compared by their sets, so whatever is reported is as similar as it says (up
to collisions of 64-bit hashes). What is missed: a pair of similarity s becomes a candidate with a
probability of about 1 − (1 − s⁴)³² or more (:func:`detection_probability`), and a document is
compared with at most :data:`MAX_CANDIDATES` earlier ones of each band.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cached_property, lru_cache
from hashlib import blake2b
from itertools import permutations
from operator import mul
from typing import Literal, TypeVar

import msgspec

from adjudge.datasets.rows import (
    Comparison,
    DatasetRow,
    Demonstration,
    Preference,
    Rating,
    render_transcript,
    split_answers,
)
from adjudge.errors import ConfigError
from adjudge.graders.base import split_words
from adjudge.prompts import clean_text

SHINGLE = 3
BANDS, ROWS = 32, 4
MAX_CANDIDATES = 8
MIN_WORDS = 12

_BINS = BANDS * ROWS  # a power of two: the low bits of a hash are its bin
_EMPTY = 1 << 64
# Knuth's linear congruential generator (MMIX): full period, so every bin is reached.
_FACTOR, _ODD = 6364136223846793005, 1442695040888963407
_FACTORS = (1, 0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F)  # one for each word of a shingle
_QUESTION = 0xD6E8FEB86659FD93  # keeps the shingles of questions and answers apart
_COMMON_BAND = 32  # characters of a word whose hash is kept

Shingles = frozenset[int]


def normalize_words(text: str) -> list[str]:
    """What counts of a text: its lower-case words and signs, without white space and invisibles.

    >>> normalize_words("Paris,\u200b  of COURSE.")
    ['paris', ',', 'of', 'course', '.']
    """
    return split_words(clean_text(text), signs=True)


def detection_probability(similarity: float) -> float:
    """The probability that two texts of this Jaccard index are compared at all.

    >>> [round(detection_probability(s), 4) for s in (0.3, 0.5, 0.7, 0.8)]
    [0.2291, 0.8732, 0.9998, 1.0]
    """
    return 1.0 - (1.0 - similarity**ROWS) ** BANDS


class TextDocument:
    """A question and its answers, as words (of :func:`normalize_words`), ready to be compared."""

    def __init__(self, question: Sequence[str], answers: Sequence[Sequence[str]]) -> None:
        self.parts = [_Part(question, _QUESTION), *(_Part(answer, 0) for answer in answers)]

    def similarity(self, other: TextDocument) -> float:
        """That of the least similar parts, answers matched whichever way is best; 0 to 1."""
        if len(self.parts) != len(other.parts):
            return 0.0
        answers = permutations(other.parts[1:]) if len(other.parts) < 4 else [other.parts[1:]]
        best = max(
            min((a.similarity(b) for a, b in zip(self.parts[1:], order, strict=True)), default=1.0)
            for order in answers
        )
        return min(best, self.parts[0].similarity(other.parts[0]))

    @cached_property
    def bands(self) -> list[tuple[int, ...]]:
        """A key for each band; those of documents without words are all alike."""
        return _band_keys(frozenset().union(*(part.shingles for part in self.parts)))


class _Part:
    def __init__(self, text: Sequence[str], salt: int) -> None:
        self.shingles = _shingles(text, salt)
        self._long = len(text) >= MIN_WORDS
        self._digest = blake2b(" ".join(text).encode(), digest_size=16).digest()

    def similarity(self, other: _Part) -> float:
        if self._digest == other._digest:
            return 1.0
        if not (self._long and other._long):
            return 0.0
        common = len(self.shingles & other.shingles)
        return common / (len(self.shingles) + len(other.shingles) - common)


class NearDuplicateIndex:
    """Documents, each with a number, and which of them a further one is nearly equal to."""

    def __init__(self, threshold: float) -> None:
        self._threshold = threshold
        self._documents: list[tuple[int, TextDocument]] = []
        self._bands: list[dict[tuple[int, ...], list[int]]] = [
            defaultdict(list) for _ in range(BANDS)
        ]

    def add(self, number: int, document: TextDocument) -> None:
        """One more; several may have one number."""
        place = len(self._documents)
        self._documents.append((number, document))
        for band, rows in zip(self._bands, document.bands, strict=True):
            bucket = band[rows]
            # A cluster of near-copies would otherwise be compared pair by pair.
            if len(bucket) < MAX_CANDIDATES:
                bucket.append(place)

    def nearest(self, document: TextDocument) -> tuple[int, float] | None:
        """The number of the most similar one, and how similar; ``None`` under the threshold."""
        places = {
            place
            for band, rows in zip(self._bands, document.bands, strict=True)
            for place in band.get(rows, ())
        }
        found = [(self._documents[at][1].similarity(document), -at) for at in places]
        similarity, place = max(found, default=(0.0, 0))
        return (self._documents[-place][0], similarity) if similarity >= self._threshold else None


def _shingles(text: Sequence[str], salt: int) -> Shingles:
    hashes = [_known_hash(word) if len(word) < _COMMON_BAND else _hash(word) for word in text]
    if not hashes:
        return frozenset()
    runs = zip(*(hashes[at:] for at in range(min(SHINGLE, len(hashes)))), strict=False)
    # A sum of uniform hashes times odd numbers is uniform, and tells orders of words apart.
    return frozenset((salt + sum(map(mul, run, _FACTORS))) % _EMPTY for run in runs)


def _hash(word: str) -> int:
    return int.from_bytes(blake2b(word.encode(), digest_size=8).digest(), "little")


_known_hash = lru_cache(1 << 16)(_hash)


def _band_keys(shingles: Shingles) -> list[tuple[int, ...]]:
    bins = [_EMPTY] * _BINS
    for shingle in shingles or (0,):
        place = shingle % _BINS
        bins[place] = min(bins[place], shingle)
    filled = [_fill_bin(bins, place) for place in range(_BINS)]
    return [tuple(filled[start : start + ROWS]) for start in range(0, _BINS, ROWS)]


def _fill_bin(bins: Sequence[int], place: int) -> int:
    """The bin's own minimum, or that of the first bin with one on a path that all texts share."""
    state, at = place, place
    while bins[at] == _EMPTY:
        state = (state * _FACTOR + _ODD) % _EMPTY
        at = (state >> 33) % _BINS
    return bins[at]


NEAR_THRESHOLD = 0.8
"""Jaccard index of 3-word shingles from which two rows are near duplicates."""

MatchKind = Literal["id", "exact", "near"]


class Duplicate(msgspec.Struct, frozen=True):
    """Row ``second`` (its place in the list) repeats the earlier row ``first``.

    ``similarity`` is 1.0 for an exact one (equal words and signs, answers of a pair in any order).
    ``contradicts``: both have labels, which disagree; known for exact ones only.
    """

    first: int
    second: int
    how: MatchKind
    similarity: float
    contradicts: bool = False


class Leak(msgspec.Struct, frozen=True):
    """A test row (``test``, its place in the list) found in training.

    ``train`` is the place of the training row, or ``None`` where only the id is known to have been
    trained on; ``where`` names both.
    """

    test: int
    train: int | None
    how: MatchKind
    similarity: float
    subset: str
    where: tuple[str, str]


class Leakage(msgspec.Struct, frozen=True):
    """Which test rows were seen: one leak for each of them, by id, else exact, else near.

    ``seen`` and ``total`` count test rows by subset (``all`` where they have none). ``missed`` is
    the probability that a row just similar enough (``threshold``) goes unnoticed.
    """

    leaks: tuple[Leak, ...]
    seen: dict[str, int]
    total: dict[str, int]
    threshold: float
    missed: float

    @property
    def contaminated(self) -> bool:
        """Whether any test row was seen."""
        return bool(self.leaks)

    def __str__(self) -> str:
        rows = sum(self.total.values())
        if not self.leaks:
            return f"no overlap in {rows:,} rows"
        parts = ", ".join(
            f"{subset} {self.seen[subset]:,}/{self.total[subset]:,}"
            for subset in self.total
            if self.seen.get(subset)
        )
        return f"CONTAMINATED: {len(self.leaks):,} of {rows:,} rows were trained on ({parts})"


def find_duplicates(
    rows: Sequence[DatasetRow], *, near: float | None = NEAR_THRESHOLD
) -> list[Duplicate]:
    """Every row that repeats an earlier one, with the earlier one; linear in the text.

    ``near``: the Jaccard index from which rows are near duplicates; ``None`` looks for exact ones
    only. :mod:`~adjudge.judge_evaluation.benchmarks.overlap` states what it can miss.
    Look before swapping: a swapped comparison repeats its original.
    """
    index = _index(near)
    first: dict[bytes, int] = {}
    found = []
    for number, row in enumerate(rows):
        parts = _row_parts(row)
        if (earlier := first.setdefault(_digest(parts), number)) != number:
            contradicts = _contradict(rows[earlier], row)
            found.append(Duplicate(earlier, number, "exact", 1.0, contradicts))
        elif index is not None:
            document = TextDocument(parts[0], parts[1:])
            if (similar := index.nearest(document)) is not None:
                found.append(Duplicate(similar[0], number, "near", similar[1]))
            else:
                index.add(number, document)
    return found


_R = TypeVar("_R", Demonstration, Preference, Rating, Comparison)


def drop_duplicates(
    rows: Sequence[_R], *, near: float | None = NEAR_THRESHOLD
) -> tuple[list[_R], list[Duplicate]]:
    """The rows that repeat no earlier one, and what was left out.

    Of rows that contradict one another the first stays too; look at ``contradicts``.
    """
    found = find_duplicates(rows, near=near)
    repeated = {duplicate.second for duplicate in found}
    return [row for number, row in enumerate(rows) if number not in repeated], found


def find_leakage(
    train: Iterable[DatasetRow],
    test: Sequence[DatasetRow],
    *,
    near: float | None = NEAR_THRESHOLD,
    trained_ids: Collection[str] = (),
) -> Leakage:
    """Which rows of ``test`` a judge trained on ``train`` has seen, in whatever kind of row.

    Rows match by ``source_ids`` (``trained_ids`` are further ones, from a judge's card, say), or by
    a prompt with one of its answers, equal or similar. Linear in the text; raises
    :class:`ConfigError` for a threshold outside (0, 1].
    """
    seen = _TrainingIndex(near, trained_ids)
    for number, row in enumerate(train):
        seen.add(number, row)
    leaks = []
    total: Counter[str] = Counter()
    for number, row in enumerate(test):
        subset = row.subset or "all"
        total[subset] += 1
        if (match := seen.find(row)) is not None:
            place, how, similarity = match
            where = (row.where, "" if place is None else seen.where[place])
            leaks.append(Leak(number, place, how, similarity, subset, where))
    return Leakage(
        leaks=tuple(leaks),
        seen=dict(Counter(leak.subset for leak in leaks)),
        total=dict(total),
        threshold=1.0 if near is None else near,
        missed=0.0 if near is None else 1.0 - detection_probability(near),
    )


class _TrainingIndex:
    """What was trained on, for looking up test rows."""

    def __init__(self, near: float | None, trained_ids: Collection[str]) -> None:
        self.where: list[str] = []
        self._ids: dict[str, int | None] = dict.fromkeys(trained_ids)
        self._exact: dict[bytes, int] = {}
        self._index = _index(near)

    def add(self, number: int, row: DatasetRow) -> None:
        self.where.append(row.where)
        for source_id in row.source_ids:
            self._ids.setdefault(source_id, number)
        for parts in _prompt_and_answer(row):
            repeated = self._exact.setdefault(_digest(parts), number) != number
            if self._index and not repeated:
                self._index.add(number, TextDocument(parts[0], parts[1:]))

    def find(self, row: DatasetRow) -> tuple[int | None, MatchKind, float] | None:
        for source_id in row.source_ids:
            if source_id in self._ids:
                return self._ids[source_id], "id", 1.0
        units = list(_prompt_and_answer(row))
        for parts in units:
            if (number := self._exact.get(_digest(parts))) is not None:
                return number, "exact", 1.0
        if self._index is None:
            return None
        similar = (self._index.nearest(TextDocument(parts[0], parts[1:])) for parts in units)
        best = max(filter(None, similar), key=lambda found: found[1], default=None)
        return None if best is None else (best[0], "near", best[1])


def _index(near: float | None) -> NearDuplicateIndex | None:
    if near is None:
        return None
    if not 0.0 < near <= 1.0:
        raise ConfigError(f"near must be a number above 0 and at most 1, or None (found {near})")
    return NearDuplicateIndex(near)


def _row_parts(row: DatasetRow) -> list[list[str]]:
    prompt, answers = split_answers(row)
    return [
        normalize_words(render_transcript(prompt)),
        *sorted(normalize_words(render_transcript(answer)) for answer in answers),
    ]


def _prompt_and_answer(row: DatasetRow) -> Iterator[list[list[str]]]:
    """Question and answer, for each answer."""
    prompt, answers = split_answers(row)
    asked = normalize_words(render_transcript(prompt))
    for answer in answers:
        yield [asked, normalize_words(render_transcript(answer))]


def _digest(parts: Sequence[Sequence[str]]) -> bytes:
    # Words and signs hold no white space, so the joined text cuts in one way only.
    return blake2b("\n".join(map(" ".join, parts)).encode(), digest_size=16).digest()


def _contradict(one: DatasetRow, other: DatasetRow) -> bool:
    return None not in (a := _row_label(one), b := _row_label(other)) and a != b


def _row_label(row: DatasetRow) -> object:
    """What a row says about its answers, whatever their order; ``None``: it says nothing."""
    if isinstance(row, Demonstration):
        return None
    if isinstance(row, Rating):
        return row.label
    if isinstance(row, Preference):
        _, sides = split_answers(row)
        return normalize_words(render_transcript(sides[0]))
    better = {"A": row.a, "B": row.b, "tie": None}[row.label]
    return (
        "tie"
        if better is None
        else normalize_words(render_transcript([{"role": "assistant", "content": better}]))
    )
