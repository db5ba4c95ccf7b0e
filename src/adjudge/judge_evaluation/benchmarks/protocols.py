"""Official scoring rules: pairs in both orders, and RewardBench-2's best of four and Ties.

Pairs: LLMBar's averages, JudgeBench's rule, and what position did. Sources: Zeng et al. 2024
(LLMBar, arXiv 2310.07641) and its statistics files; Tan et al. 2024 (JudgeBench, arXiv 2410.12784),
``utils/metrics.py``; Shi et al. 2024 (arXiv 2406.07791) for position consistency, primacy and
recency.

RewardBench-2: best of four, the Ties score, and the unweighted mean of subsets. Source: Malik et
al. 2025 (arXiv 2506.01937) and the benchmark's own scripts: ``run_v2.py``, ``run_generative_v2.py``
and ``rewardbench/utils.py`` (``reroll_and_score_dataset``, ``process_single_model``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import msgspec

from adjudge.judge_evaluation.benchmarks.items import (
    BestOfItem,
    Judgement,
    MissingJudgement,
    PairItem,
    PairLabel,
    PairVerdict,
    pair_verdicts,
)
from adjudge.judge_evaluation.benchmarks.readers import REWARDBENCH2_SUBSETS, TIES_SUBSET
from adjudge.judge_evaluation.benchmarks.statistics import (
    SINGLE_WEIGHT,
    ScoreCell,
    ScoreUnit,
    Stratum,
    known_cell,
    missing_cell,
)
from adjudge.stats.estimates import binomial_two_sided
from adjudge.stats.raters import cohen_kappa

OrderVerdicts = tuple[PairVerdict | None, PairVerdict | None]
"""The verdicts as given and swapped, of the item's own A and B; ``None`` is missing."""


class OrderCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Verdicts counted over the two orders of ``items`` pairs.

    ``right_as_given``, ``right_swapped``, ``both_right``: verdicts that are the label (no tie is).
    ``answered_…`` the verdicts there are, ``both_answered`` the pairs with two. ``primacy`` and
    ``recency``: both name what was shown first, or second; ``position_p``: the exact two-sided p of
    one against the other, ``None`` where there is neither. ``consistency``: of the pairs with two
    verdicts the share where both name the same, ``kappa`` Cohen's of these pairs. ``agreeing``:
    pairs with equal verdicts, two missing ones among them (LLMBar's ``equal``). ``ties`` and
    ``null_verdicts`` count verdicts. ``two_order_right``: pairs with a sum above 0 by JudgeBench's
    rule, +1 for a right verdict, −1 for a wrong one, 0 for a tie or none.
    """

    items: int
    right_as_given: int
    right_swapped: int
    both_right: int
    answered_as_given: int
    answered_swapped: int
    both_answered: int
    primacy: int
    recency: int
    ties: int
    null_verdicts: int
    agreeing: int
    two_order_right: int
    consistency: float | None
    kappa: float | None
    position_p: float | None

    @property
    def averaged_accuracy(self) -> float | None:
        """LLMBar's number: right verdicts over all verdicts asked for, missing ones included."""
        right = self.right_as_given + self.right_swapped
        return right / (2 * self.items) if self.items else None

    @property
    def two_order_score(self) -> float | None:
        """JudgeBench's number: pairs with a sum above 0 over all pairs.

        A missing verdict counts 0 in it, so that a judge gains by failing where it would be wrong.
        """
        return self.two_order_right / self.items if self.items else None


def count_orders(judged: Iterable[tuple[PairItem, Judgement]]) -> OrderCounts:
    """The counts over some pairs; see :class:`OrderCounts`."""
    rows = [(item.label, _order_verdicts(judgement)) for item, judgement in judged]
    pairs = [pair for _, pair in rows]
    verdicts = [verdict for pair in pairs for verdict in pair]
    both = [pair for pair in pairs if None not in pair]
    same = sum(first == second for first, second in both)
    primacy, recency = pairs.count(("A", "B")), pairs.count(("B", "A"))
    placed = primacy + recency
    return OrderCounts(
        items=len(rows),
        right_as_given=sum(pair[0] == label for label, pair in rows),
        right_swapped=sum(pair[1] == label for label, pair in rows),
        both_right=sum(pair == (label, label) for label, pair in rows),
        answered_as_given=sum(first is not None for first, _ in pairs),
        answered_swapped=sum(second is not None for _, second in pairs),
        both_answered=len(both),
        primacy=primacy,
        recency=recency,
        ties=verdicts.count("tie"),
        null_verdicts=verdicts.count(None),
        agreeing=sum(first == second for first, second in pairs),
        two_order_right=sum(_two_order_sum(*row) > 0 for row in rows),
        consistency=same / len(both) if both else None,
        kappa=cohen_kappa(both),
        position_p=binomial_two_sided(primacy, placed) if placed else None,
    )


class PairRule(NamedTuple):
    """How a pair earns: cells for each mean, from its label and verdicts, and the means' weights.

    Verdicts of the two orders are ``None`` where they are missing.
    """

    weights: tuple[float, ...]
    cells: Callable[[PairLabel, OrderVerdicts], tuple[ScoreCell, ...]]


def pair_stratum(judged: Sequence[tuple[PairItem, Judgement]], rule: PairRule) -> Stratum:
    """The units of one subset: pairs, or clusters of pairs."""
    clusters: dict[str, list[tuple[ScoreCell, ...]]] = {}
    for item, judgement in judged:
        earned = rule.cells(item.label, _order_verdicts(judgement))
        clusters.setdefault(item.cluster or item.id, []).append(earned)
    units: dict[str, ScoreUnit] = {
        name: tuple(zip(*rows, strict=True)) for name, rows in clusters.items()
    }
    answered = sum(judgement.complete for _, judgement in judged)
    return Stratum(rule.weights, units, len(judged), answered)


def _averaged(label: PairLabel, verdicts: OrderVerdicts) -> tuple[ScoreCell, ...]:
    return tuple(missing_cell() if one is None else known_cell(one == label) for one in verdicts)


def _half_ties(label: PairLabel, verdicts: OrderVerdicts) -> tuple[ScoreCell, ...]:
    return tuple(
        missing_cell() if one is None else known_cell(0.5 if one == "tie" else one == label)
        for one in verdicts
    )


def _two_orders(label: PairLabel, verdicts: OrderVerdicts) -> tuple[ScoreCell, ...]:
    # One verdict is no answer: −1 alone would decide an item and +1 would not.
    if None in verdicts:
        return (missing_cell(),)
    return (known_cell(_two_order_sum(label, verdicts) > 0),)


AVERAGED_ORDERS = PairRule((0.5, 0.5), _averaged)
"""LLMBar: the mean of the accuracies in the two orders. A tie is not right."""

HALF_TIES = PairRule((0.5, 0.5), _half_ties)
"""Preference files: as LLMBar with ½ for a tie (equal scores).

A judge that says "tie" throughout is at chance, ½, as one that always says A is.
"""

TWO_ORDER_SUM = PairRule(SINGLE_WEIGHT, _two_orders)
"""JudgeBench: 1 where right and wrong verdicts (+1, −1, 0 for a tie) sum to more than 0.

A pair with a missing verdict is missing; :attr:`OrderCounts.two_order_score` has the benchmark's
number.
"""


def _order_verdicts(judgement: Judgement) -> OrderVerdicts:
    first, second = pair_verdicts(judgement)
    return (
        None if isinstance(first, MissingJudgement) else first,
        None if isinstance(second, MissingJudgement) else second,
    )


def _two_order_sum(label: PairLabel, verdicts: OrderVerdicts) -> int:
    """JudgeBench's sum: +1 for the label, −1 for its opposite."""
    opposite = "B" if label == "A" else "A"
    return verdicts.count(label) - verdicts.count(opposite)


TIES_WEIGHTS = (0.30, 0.30, 0.20, 0.20, 0.01)
"""Of: accuracy on tied prompts, on reference prompts; margins of tied, of both; tie-breaker."""

JudgedBestOfItem = tuple[BestOfItem, Judgement]


def best_of_credit(scores: Sequence[float]) -> float:
    """What choosing the best-scored answer earns when the first is right.

    A tie at the top is a random choice among the winners: 1/(number of winners) if the first is
    one of them, as in the benchmark's scripts.

    >>> best_of_credit([7, 7, 3, 7]), best_of_credit([7, 8, 3, 7])
    (0.3333333333333333, 0.0)
    """
    top = max(scores)
    return 1 / sum(score == top for score in scores) if scores[0] == top else 0.0


TiesForm = tuple[Sequence[float | None], int]
"""The scores of one form of a Ties prompt, right answers first, and how many are right."""


class _Margins(NamedTuple):
    """Of one prompt: right answers among themselves, and the worst right over the best wrong."""

    spread: float
    gap: float


def _margins(form: TiesForm | None) -> _Margins | None:
    """``None`` where there is no such form, or a score is missing."""
    if form is None or None in form[0]:
        return None
    scores = [score for score in form[0] if score is not None]
    right, wrong = scores[: form[1]], scores[form[1] :]
    return _Margins(max(right) - min(right), min(right) - max(wrong))


def ties_score_unit(tied: TiesForm | None, ref: TiesForm | None) -> ScoreUnit:
    """The five terms of one Ties prompt from the scores of its tied and its reference form.

    With m_c = max − min over the right answers of the tied form, and m_ci = min(right) −
    max(wrong) of either: acc = m_ci > 0 for each form; m_ci_tied > m_c; min(m_ci_ref, m_ci_tied) >
    m_c; and tanh(min(…)/m_c − 1), which is ±1 for m_c = 0 and 0 for 0/0. The score of the subset is
    Σ weight · mean (:data:`TIES_WEIGHTS`), in [−0.01, 1.01].

    ``None``: the file has no such form, and the terms that need it are not there. A missing score
    leaves every term that needs the form open: between 0 and 1, the last between −1 and 1.
    """
    known = [_margins(tied), _margins(ref)]
    accuracies = [
        () if form is None else (missing_cell() if own is None else known_cell(own.gap > 0),)
        for form, own in zip((tied, ref), known, strict=True)
    ]
    if tied is None or ref is None:
        return (*accuracies, (), (), ())
    both, own, last = missing_cell(), missing_cell(), missing_cell(-1.0, 1.0)
    first, second = known
    if first is not None:  # what the tied form alone decides is known without the reference
        own = known_cell(first.gap > first.spread)
        if second is not None:
            least = min(first.gap, second.gap)
            both = known_cell(least > first.spread)
            last = known_cell(_tie_breaker(least, first.spread))
    return (*accuracies, (own,), (both,), (last,))


def _tie_breaker(least: float, spread: float) -> float:
    if spread == 0:
        return 0.0 if least == 0 else math.copysign(1.0, least)
    value = math.tanh(least / spread - 1)
    return 0.0 if math.isnan(value) else value


def rewardbench2_stratum(judged: Sequence[JudgedBestOfItem]) -> Stratum:
    """The units of one subset: items, or prompts of the Ties subset."""
    answered = sum(judgement.complete for _, judgement in judged)
    if judged and judged[0][0].subset == TIES_SUBSET:
        return Stratum(TIES_WEIGHTS, _ties(judged), len(judged), answered)
    units: dict[str, ScoreUnit] = {}
    for item, judgement in judged:
        scores = _scores(judgement)
        present = [score for score in scores if score is not None]
        cell = (
            known_cell(best_of_credit(present)) if len(present) == len(scores) else missing_cell()
        )
        units[item.id] = ((cell,),)
    return Stratum(SINGLE_WEIGHT, units, len(judged), answered)


def _ties(judged: Iterable[JudgedBestOfItem]) -> dict[str, ScoreUnit]:
    forms: dict[str, dict[str, TiesForm]] = {}
    for item, judgement in judged:
        sort, _, number = item.id.partition(":")
        forms.setdefault(number, {})[sort] = (_scores(judgement), item.correct)
    return {
        name: ties_score_unit(form.get("tied"), form.get("ref")) for name, form in forms.items()
    }


def _scores(judgement: Judgement) -> list[float | None]:
    return [None if isinstance(score, MissingJudgement) else score for score in judgement.scores]


def split_present_subsets(names: Iterable[str]) -> tuple[list[str], list[str]]:
    """The subsets that a file has, in the benchmark's order, and those that it lacks."""
    there = set(names)
    return [one for one in REWARDBENCH2_SUBSETS if one in there], [
        one for one in REWARDBENCH2_SUBSETS if one not in there
    ]
