"""A judge asked about every item: scores of each answer, or verdicts on pairs in both orders."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

from adjudge.errors import ConfigError, ErrorKind
from adjudge.graders.base import Answer, BaseGrader
from adjudge.judge_training.benchmarks.items import Benchmark, Item, PairItem
from adjudge.judge_training.benchmarks.judgements import (
    WIDEST,
    Judgement,
    Missing,
    Verdict,
    flipped,
)
from adjudge.judge_training.benchmarks.judges import Judge
from adjudge.runner.journal import Journal
from adjudge.runner.progress import Tally
from adjudge.runner.runner import Ask, GradingRunner
from adjudge.types import GraderError, GraderResult, GraderScore, Message

__all__ = ["Mode", "ask_judge", "mode_of"]

Mode = Literal["pointwise", "pairwise"]

_SCORE, _COMPARE = "score", "compare"
_NUMBER = {"A": 1.0, "tie": 0.5, "B": 0.0}
_VERDICT: dict[float, Verdict] = {1.0: "A", 0.5: "tie", 0.0: "B"}


async def ask_judge(
    judge: Judge,
    benchmark: Benchmark,
    *,
    mode: Mode | None = None,
    max_concurrency: int = 32,
    journal: Journal | None = None,
    tally: Tally | None = None,
) -> list[Judgement]:
    """One judgement per item, in the items' order; what failed is missing with its kind.

    ``pointwise``: every answer is scored by itself. ``pairwise``: every pair is compared in both
    orders. By default pairs are compared where the judge can. A pair whose sides are more than one
    answer cannot be compared: ``invalid_input``. Whatever a judge raises concerns that question
    alone, but for :class:`~adjudge.errors.ConfigError` and
    :class:`~adjudge.errors.JudgeAuthError`, which go through, and are raised for a judge that
    cannot do what is asked.
    """
    chosen = mode_of(judge, benchmark, mode)
    asks = [ask for item in benchmark.items for ask in _asks(item, chosen)]
    grader = _Scores(judge) if chosen == "pointwise" else _Verdicts(judge)
    runner = GradingRunner(
        {grader.name: grader},
        max_concurrency=max_concurrency,
        show_progress=False,
        journal=journal,
        tally=tally,
    )
    results, _ = await runner.aask([ask for ask in asks if ask is not None])
    found = iter(results)
    each = iter([None if ask is None else next(found) for ask in asks])
    return [_judgement(item, chosen, each) for item in benchmark.items]


def mode_of(judge: Judge, benchmark: Benchmark, mode: Mode | None = None) -> Mode:
    """How ``judge`` is asked; raises :class:`~adjudge.errors.ConfigError` where it cannot be."""
    can = {_SCORE: hasattr(judge, _SCORE), _COMPARE: hasattr(judge, _COMPARE)}
    best_of = benchmark.kind == "rewardbench2"
    if mode is None:
        mode = "pairwise" if can[_COMPARE] and not best_of else "pointwise"
    if best_of and (mode == "pairwise" or not can[_SCORE]):
        raise ConfigError(
            "RewardBench-2 scores every answer by itself; this judge is to compare pairs (its "
            "items as pairs are not the benchmark's own protocol: as_pairs)"
        )
    if not can[_COMPARE if mode == "pairwise" else _SCORE]:
        raise ConfigError(f"mode: found {mode!r}, which this judge cannot do")
    return mode


class _Scores(BaseGrader):
    """The runner's view of a judge that scores."""

    def __init__(self, judge: Any) -> None:
        super().__init__(_SCORE)
        self._judge = judge

    async def aevaluate(self, messages: Sequence[Message]) -> Answer:
        answer: Answer = await self._judge.score(messages)
        return answer


class _Verdicts(BaseGrader):
    """The runner's view of a judge that compares: 1 for what was shown first, 0 for the second."""

    score_range = (0.0, 1.0)

    def __init__(self, judge: Any) -> None:
        super().__init__(_COMPARE)
        self._judge = judge

    async def aevaluate(self, turns: Sequence[Message], first: str, second: str) -> Answer:
        said = await self._judge.compare(turns, first, second)
        if isinstance(said, GraderError):
            return said
        if not isinstance(said, str) or said not in _NUMBER:
            return GraderError(self.name, ErrorKind.BUG, "compare() must give 'A', 'B' or 'tie'")
        return _NUMBER[said]


def _asks(item: Item, mode: Mode) -> list[Ask | None]:
    """The questions about one item; ``None``: one that cannot be asked."""
    if not isinstance(item, PairItem):
        shown = [item.conversation(place) for place in range(len(item.answers))]
        return [Ask(_SCORE, {"messages": messages}) for messages in shown]
    if mode == "pointwise":
        return [Ask(_SCORE, {"messages": item.conversation(side)}) for side in ("A", "B")]
    if item.texts is None:
        return [None, None]
    a, b = item.texts
    return [
        Ask(_COMPARE, {"turns": item.prompt, "first": first, "second": second})
        for first, second in ((a, b), (b, a))
    ]


def _judgement(item: Item, mode: Mode, results: Iterator[GraderResult | None]) -> Judgement:
    if mode == "pointwise":
        count = 2 if isinstance(item, PairItem) else len(item.answers)
        scores = [_score(next(results)) for _ in range(count)]
        return Judgement(subset=item.subset, id=item.id, scores=scores)
    given, swapped = (_verdict(next(results)) for _ in range(2))
    turned = swapped if isinstance(swapped, Missing) else flipped(swapped)
    return Judgement(subset=item.subset, id=item.id, verdicts=[given, turned])


def _score(result: GraderResult | None) -> float | Missing:
    if not isinstance(result, GraderScore):
        return _missing(result)
    if abs(result.score) > WIDEST:
        return Missing(ErrorKind.OUT_OF_RANGE, f"the score is beyond {WIDEST}")
    return result.score


def _verdict(result: GraderResult | None) -> Verdict | Missing:
    return _VERDICT[result.score] if isinstance(result, GraderScore) else _missing(result)


def _missing(result: GraderResult | None) -> Missing:
    if isinstance(result, GraderError):
        said = result.error[:500].encode("utf-8", "replace").decode()  # no lone surrogates
        return Missing(result.kind, said)
    return Missing(ErrorKind.INVALID_INPUT, "a side is more than one answer: score it instead")
