"""Benchmark items with known labels, and a judge's judgements of them.

Items have subsets. A judgement is kept with its scores or verdicts, and what is missing and why.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from adjudge.datasets.rows import ChatMessages, PreferenceLabel, RowProblem
from adjudge.errors import ConfigError, ErrorKind
from adjudge.judge_evaluation import convert_row, read_records

BenchmarkKind = Literal["rewardbench2", "llmbar", "judgebench", "preference"]
BENCHMARK_KINDS: tuple[BenchmarkKind, ...] = ("rewardbench2", "llmbar", "judgebench", "preference")
PairLabel = Literal["A", "B"]


class BenchmarkItem(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt with several answers, of which some are ``right``; of two, the better one is.

    An answer is what its side says after ``prompt``: as a rule one assistant's turn. A benchmark of
    the best answer has the right ones first; the two of a pair are called A and B. ``where`` is
    ``FILE:ROW``; ``id`` is unique in its subset. ``margin`` is how much better, where the file says
    so. Items of one ``cluster`` (default: each its own) are drawn together by the bootstrap.
    """

    id: str
    subset: str
    prompt: ChatMessages
    answers: list[ChatMessages]
    right: list[bool]
    where: str
    margin: float | None = None
    cluster: str = ""

    @property
    def conversations(self) -> list[ChatMessages]:
        """The prompt with each answer, as a judge of single answers sees it."""
        return [[*self.prompt, *answer] for answer in self.answers]

    @property
    def label(self) -> PairLabel:
        """Of a pair: the better one."""
        return "A" if self.right[0] else "B"

    @property
    def texts(self) -> list[str] | None:
        """The answers as text; ``None`` where one is more than one assistant's turn."""
        if any(len(one) != 1 or one[0]["role"] != "assistant" for one in self.answers):
            return None
        return [one[0]["content"] for one in self.answers]


def item_digest(item: BenchmarkItem) -> str:
    """A digest of all that a judge is shown of an item, wherever the item was read."""
    data = msgspec.json.encode([item.prompt, *item.answers], order="deterministic")
    return blake2b(data, digest_size=12).hexdigest()


class Benchmark(msgspec.Struct, frozen=True, kw_only=True):
    """Items of one kind, and the ``problems`` of the rows that could not be read.

    ``title`` names it in reports. Items keep the order of the ``files`` (name, bytes, SHA-256) that
    they are from; ``(subset, id)`` is unique.
    """

    kind: BenchmarkKind
    items: Sequence[BenchmarkItem]
    problems: list[RowProblem] = []
    title: str = ""
    files: list[dict[str, Any]] = []

    @property
    def subsets(self) -> list[str]:
        """The names of the subsets, in the order of their first items."""
        return list(dict.fromkeys(item.subset for item in self.items))


def benchmark_as_pairs(benchmark: Benchmark) -> Benchmark:
    """RewardBench-2 items as pairs (right answer, wrong answer), for judges that only compare.

    Not the benchmark's own protocol, which picks the best of four; ``title`` says so. An item's
    pairs are one cluster. The Ties subset has no such reading (its formula needs scores) and is
    left out. Other benchmarks come back as they are.
    """
    if benchmark.kind != "rewardbench2":
        return benchmark
    pairs = [
        BenchmarkItem(
            id=f"{item.id}/{place}",
            subset=item.subset,
            prompt=item.prompt,
            answers=[item.answers[0], item.answers[place]],
            right=[True, False],
            where=item.where,
            cluster=item.id,
        )
        for item in benchmark.items
        if item.subset != "Ties"
        for place in range(1, len(item.answers))
    ]
    title = f"{benchmark.title or benchmark.kind} as pairs, without Ties (not its own protocol)"
    return msgspec.structs.replace(benchmark, kind="preference", items=pairs, title=title)


PairVerdict = PreferenceLabel
OrderVerdicts = tuple[PairVerdict | None, PairVerdict | None]
"""The verdicts as given and swapped, of the item's own A and B; ``None`` is missing."""

MAX_ABSOLUTE_SCORE = 1e100
"""The largest size of a score: its square is still a number."""

_FLIPPED: Mapping[Any, Any] = {"A": "B", "B": "A", "tie": "tie"}


class MissingJudgement(msgspec.Struct, frozen=True):
    """A score or verdict that a judge did not give: by which failure, in words."""

    kind: ErrorKind
    message: str = ""


class Judgement(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One judge on one item.

    ``scores``: one per answer in the item's order (of a pair: A, B). ``verdicts``: in the order
    shown as given, then swapped; both name the item's own A and B, whatever was shown first. A
    judge gives one of the two. ``judge`` and ``item``, the digest of the item, are there in a file.
    Scores beyond ±1e100, which is no scale, are refused with ``ValueError``, and so is NaN.
    """

    subset: str
    id: str
    scores: list[float | MissingJudgement] = []
    verdicts: list[PairVerdict | MissingJudgement] = []
    judge: str = ""
    item: str = ""

    def __post_init__(self) -> None:
        if not all(
            isinstance(score, MissingJudgement) or abs(score) <= MAX_ABSOLUTE_SCORE
            for score in self.scores
        ):
            raise ValueError(
                f"a score of {self.id[:80]!r} is not a number up to {MAX_ABSOLUTE_SCORE}"
            )

    @property
    def missing(self) -> list[MissingJudgement]:
        """The scores or verdicts that are missing."""
        said = (*self.scores, *self.verdicts)
        return [one for one in said if isinstance(one, MissingJudgement)]

    @property
    def complete(self) -> bool:
        """Whether nothing is missing."""
        return not self.missing

    @property
    def known_scores(self) -> list[float | None]:
        """The scores, ``None`` where one is missing."""
        return [None if isinstance(one, MissingJudgement) else one for one in self.scores]


_Said = TypeVar("_Said", PairVerdict, PairVerdict | MissingJudgement)


def flip_verdict(verdict: _Said) -> _Said:
    """The verdict of one who was shown the two the other way round; a missing one stays missing."""
    found: _Said = _FLIPPED.get(verdict, verdict)
    return found


def pair_verdicts(judgement: Judgement) -> OrderVerdicts:
    """The verdicts on a pair, as given and swapped.

    From scores: the higher one, equal ones are a tie. They do not know of an order, so that both
    orders say the same; a missing score makes both missing.
    """
    if judgement.verdicts:
        first, second = (
            None if isinstance(one, MissingJudgement) else one for one in judgement.verdicts
        )
        return first, second
    a, b = judgement.known_scores
    if a is None or b is None:
        return None, None
    verdict: PairVerdict = "A" if a > b else "B" if b > a else "tie"
    return verdict, verdict


def count_missing_kinds(judgements: Iterable[Judgement]) -> dict[str, int]:
    """How many scores or verdicts are missing, by kind of failure."""
    found = Counter(one.kind.value for judgement in judgements for one in judgement.missing)
    return dict(sorted(found.items()))


def first_failure_messages(judgements: Iterable[Judgement]) -> dict[str, str]:
    """What the first failure of each kind said; kinds whose failures say nothing are left out."""
    found: dict[str, str] = {}
    for judgement in judgements:
        for one in judgement.missing:
            if one.message:
                found.setdefault(one.kind.value, one.message)
    return dict(sorted(found.items()))


def check_judgement(judgement: Judgement, item: BenchmarkItem, kind: BenchmarkKind) -> None:
    """Raise :class:`ConfigError` for what is no score per answer, nor two verdicts on a pair."""
    scores, verdicts = len(judgement.scores), len(judgement.verdicts)
    pair, wanted = kind != "rewardbench2", len(item.answers)
    if (scores, verdicts) == (wanted, 0) or (pair and (scores, verdicts) == (0, 2)):
        return
    allowed = "2 scores or 2 verdicts" if pair else f"{wanted} scores"
    raise ConfigError(
        f"judgement {item.subset}/{item.id[:80]}: must have {allowed} (found {scores} scores and "
        f"{verdicts} verdicts)"
    )


def read_judgements(path: Path) -> list[Judgement]:
    """Recorded judgements, failures included.

    Raises :class:`~adjudge.errors.ConfigError` naming the lines that are none.
    """
    return read_records([path], lambda row, _: convert_row(row, Judgement))
