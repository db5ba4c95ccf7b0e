"""What a benchmark of judges consists of: items with known right answers, by subset."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

__all__ = [
    "KINDS",
    "Benchmark",
    "BestOfItem",
    "Item",
    "Kind",
    "Label",
    "PairItem",
    "RowProblem",
    "Turns",
    "as_pairs",
]

Kind = Literal["rewardbench2", "llmbar", "judgebench", "preference"]
KINDS: tuple[Kind, ...] = ("rewardbench2", "llmbar", "judgebench", "preference")
Label = Literal["A", "B"]
Turns = list[dict[str, Any]]
"""Chat messages: ``role`` and ``content`` as text."""


class BestOfItem(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt with several answers, of which the first ``correct`` are right.

    ``where`` is ``FILE:ROW``; ``id`` is unique in its subset.
    """

    id: str
    subset: str
    prompt: Turns
    answers: list[str]
    correct: int
    where: str

    def conversation(self, place: int) -> Turns:
        """The prompt with the answer at ``place``, as a judge of single answers sees it."""
        return [*self.prompt, {"role": "assistant", "content": self.answers[place]}]


class PairItem(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt with two continuations, of which ``label`` is the better.

    ``a`` and ``b`` are what each side says after ``prompt``: as a rule one assistant's turn.
    ``margin`` is how much better, where the file says so. Items of one ``cluster`` (default: each
    its own) are drawn together by the bootstrap.
    """

    id: str
    subset: str
    prompt: Turns
    a: Turns
    b: Turns
    label: Label
    where: str
    margin: float | None = None
    cluster: str = ""

    def conversation(self, side: Label) -> Turns:
        """The prompt with one side, as a judge of single answers sees it."""
        return [*self.prompt, *(self.a if side == "A" else self.b)]

    @property
    def texts(self) -> tuple[str, str] | None:
        """Both answers as text; ``None`` where one is more than one assistant's turn."""
        if any(len(side) != 1 or side[0]["role"] != "assistant" for side in (self.a, self.b)):
            return None
        return self.a[0]["content"], self.b[0]["content"]


Item = BestOfItem | PairItem


class RowProblem(msgspec.Struct, frozen=True):
    """A row that is no item: its place ``FILE:ROW``, and why (key, found, allowed)."""

    where: str
    reason: str


class Benchmark(msgspec.Struct, frozen=True, kw_only=True):
    """Items of one kind, and the ``problems`` of the rows that could not be read.

    ``title`` names it in reports. Items keep the order of the files; ``(subset, id)`` is unique.
    """

    kind: Kind
    items: Sequence[Item]
    problems: list[RowProblem] = []
    title: str = ""

    @property
    def subsets(self) -> list[str]:
        """The names of the subsets, in the order of their first items."""
        return list(dict.fromkeys(item.subset for item in self.items))


def as_pairs(benchmark: Benchmark) -> Benchmark:
    """RewardBench-2 items as pairs (right answer, wrong answer), for judges that only compare.

    Not the benchmark's own protocol, which picks the best of four; ``title`` says so. An item's
    pairs are one cluster. The Ties subset has no such reading (its formula needs scores) and is
    left out. Other benchmarks come back as they are.
    """
    if benchmark.kind != "rewardbench2":
        return benchmark
    pairs = [
        PairItem(
            id=f"{item.id}/{place}",
            subset=item.subset,
            prompt=item.prompt,
            a=[{"role": "assistant", "content": item.answers[0]}],
            b=[{"role": "assistant", "content": item.answers[place]}],
            label="A",
            where=item.where,
            cluster=item.id,
        )
        for item in benchmark.items
        if isinstance(item, BestOfItem) and item.subset != "Ties"
        for place in range(1, len(item.answers))
    ]
    title = f"{benchmark.title or benchmark.kind} as pairs, without Ties (not its own protocol)"
    return Benchmark(kind="preference", items=pairs, problems=benchmark.problems, title=title)
