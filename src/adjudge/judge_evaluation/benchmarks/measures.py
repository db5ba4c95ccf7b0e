"""What is measured of judgements: official scores, both orders, calibration, and length.

Pairs: LLMBar's averages, JudgeBench's rule, and what position did. Sources: Zeng et al. 2024
(LLMBar, arXiv 2310.07641) and its statistics files; Tan et al. 2024 (JudgeBench, arXiv 2410.12784),
``utils/metrics.py``; Shi et al. 2024 (arXiv 2406.07791) for position consistency, primacy and
recency.

Every official score is a weighted sum of means over units (items, or prompts of the Ties subset). A
unit earns values towards each mean, and ``None`` where the judge did not answer: nothing that is
missing becomes a value.

RewardBench-2: best of four, the Ties score, and the unweighted mean of subsets. Source: Malik et
al. 2025 (arXiv 2506.01937) and the benchmark's own scripts: ``run_v2.py``, ``run_generative_v2.py``
and ``rewardbench/utils.py`` (``reroll_and_score_dataset``, ``process_single_model``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec

from adjudge.errors import ConfigError
from adjudge.judge_evaluation.benchmarks.items import (
    BenchmarkItem,
    BenchmarkKind,
    Judgement,
    OrderVerdicts,
    PairLabel,
    pair_verdicts,
)
from adjudge.judge_evaluation.benchmarks.readers import TIES_SUBSET
from adjudge.stats import mean, mean_of_all, sigmoid
from adjudge.stats.agreement import cohen_kappa, measure_reliability, spearman_correlation
from adjudge.stats.estimates import binomial_two_sided

JudgedItem = tuple[BenchmarkItem, Judgement]

Earned = Sequence[float | None]
"""What a unit earns towards one mean; nothing: it has no part in that mean."""

ScoreUnit = Sequence[Earned]
"""What a unit earns towards each mean."""


class WeightedMean(NamedTuple):
    """One of the means that a score is the sum of; what is missing lies between ``low`` and 1."""

    weight: float = 1.0
    low: float = 0.0


class Stratum(NamedTuple):
    """The units of one subset by id, the means of its score, and how many items are behind.

    ``answered`` counts the items of which nothing is missing.
    """

    means: tuple[WeightedMean, ...]
    units: Mapping[str, ScoreUnit]
    items: int
    answered: int


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


def count_orders(judged: Iterable[JudgedItem]) -> OrderCounts:
    """The counts over some pairs; see :class:`OrderCounts`."""
    rows = [(item.label, pair_verdicts(judgement)) for item, judgement in judged]
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
    """How a pair earns: values for each mean, from its label and verdicts (``None``: missing)."""

    means: tuple[WeightedMean, ...]
    earn: Callable[[PairLabel, OrderVerdicts], Earned]


def make_stratum(kind: BenchmarkKind, judged: Sequence[JudgedItem]) -> Stratum:
    """The units of one subset: items, prompts of the Ties subset, pairs, or clusters of pairs."""
    units: dict[str, ScoreUnit] = {}
    means: tuple[WeightedMean, ...] = (WeightedMean(),)
    if kind != "rewardbench2":
        means, earn = PAIR_RULES[kind]
        clusters: dict[str, list[Earned]] = {}
        for item, judgement in judged:
            earned = earn(item.label, pair_verdicts(judgement))
            clusters.setdefault(item.cluster or item.id, []).append(earned)
        units = {name: tuple(zip(*rows, strict=True)) for name, rows in clusters.items()}
    elif judged and judged[0][0].subset == TIES_SUBSET:
        means, units = TIES_MEANS, _ties(judged)
    else:
        for item, judgement in judged:
            credit = best_of_credit(judgement.known_scores, item.right)
            units[item.id] = ((credit,),)
    return Stratum(means, units, len(judged), sum(one.complete for _, one in judged))


def _each_order(tie: float) -> Callable[[PairLabel, OrderVerdicts], Earned]:
    """The verdict of each order by itself; a tie earns ``tie``."""
    return lambda label, verdicts: tuple(
        None if one is None else tie if one == "tie" else float(one == label) for one in verdicts
    )


def _two_orders(label: PairLabel, verdicts: OrderVerdicts) -> Earned:
    # One verdict is no answer: −1 alone would decide an item and +1 would not.
    return (None if None in verdicts else float(_two_order_sum(label, verdicts) > 0),)


_BOTH_ORDERS = (WeightedMean(0.5), WeightedMean(0.5))

PAIR_RULES: Mapping[BenchmarkKind, PairRule] = {
    "llmbar": PairRule(_BOTH_ORDERS, _each_order(0.0)),
    "judgebench": PairRule((WeightedMean(),), _two_orders),
    "preference": PairRule(_BOTH_ORDERS, _each_order(0.5)),
}
"""LLMBar: the mean of the accuracies in the two orders; a tie is not right.

Preference files: as LLMBar with ½ for a tie (equal scores), so that a judge that says "tie"
throughout is at chance, as one that always says A is.

JudgeBench: 1 where right and wrong verdicts (+1, −1, 0 for a tie) sum to more than 0. A pair with a
missing verdict is missing; :attr:`OrderCounts.two_order_score` has the benchmark's number.
"""


def _two_order_sum(label: PairLabel, verdicts: OrderVerdicts) -> int:
    """JudgeBench's sum: +1 for the label, −1 for its opposite."""
    opposite = "B" if label == "A" else "A"
    return verdicts.count(label) - verdicts.count(opposite)


TIES_MEANS = (
    WeightedMean(0.30),
    WeightedMean(0.30),
    WeightedMean(0.20),
    WeightedMean(0.20),
    WeightedMean(0.01, low=-1.0),
)
"""Of: accuracy on tied prompts, on reference prompts; margins of tied, of both; tie-breaker."""


def best_of_credit(scores: Sequence[float | None], right: Sequence[bool]) -> float | None:
    """What choosing the best-scored answer earns; ``None`` where a score is missing.

    A tie at the top is a random choice among the winners: the share of them that is right, as in
    the benchmark's scripts.

    >>> one = [True, False, False, False]
    >>> best_of_credit([7, 7, 3, 7], one), best_of_credit([7, 8, 3, 7], one)
    (0.3333333333333333, 0.0)
    """
    known = [one for one in scores if one is not None]
    if len(known) < len(scores):
        return None
    top = max(known)
    best = [ok for ok, score in zip(right, known, strict=True) if score == top]
    return sum(best) / len(best)


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
    Σ weight · mean (:data:`TIES_MEANS`), in [−0.01, 1.01].

    ``tied`` or ``ref`` is ``None`` where the file has no such form: the terms that need it are not
    there. A missing score leaves every term missing that needs the form.
    """
    first, second = _margins(tied), _margins(ref)
    accuracies = [
        () if form is None else (None if own is None else float(own.gap > 0),)
        for form, own in ((tied, first), (ref, second))
    ]
    if tied is None or ref is None:
        return (*accuracies, (), (), ())
    # What the tied form alone decides is known without the reference.
    own = None if first is None else float(first.gap > first.spread)
    both = last = None
    if first is not None and second is not None:
        least = min(first.gap, second.gap)
        both = float(least > first.spread)
        last = _tie_breaker(least, first.spread)
    return (*accuracies, (own,), (both,), (last,))


def _tie_breaker(least: float, spread: float) -> float:
    if spread == 0:
        return 0.0 if least == 0 else math.copysign(1.0, least)
    value = math.tanh(least / spread - 1)
    return 0.0 if math.isnan(value) else value


def _ties(judged: Iterable[JudgedItem]) -> dict[str, ScoreUnit]:
    forms: dict[str, dict[str, TiesForm]] = {}
    for item, judgement in judged:
        sort, _, number = item.id.partition(":")
        forms.setdefault(number, {})[sort] = (judgement.known_scores, sum(item.right))
    return {
        name: ties_score_unit(form.get("tied"), form.get("ref")) for name, form in forms.items()
    }


# --- pairs: calibration and length --------------------------------------------------------------

ScoreScale = Literal["logits", "probabilities"]
"""``logits``: Bradley-Terry scores. ``probabilities``: each answer's σ of such a score, in [0, 1].

Scores on any other scale say how answers order, not how sure that is.
"""


class CalibrationMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """How probabilities of the better answer's winning fit what happened, over ``pairs`` pairs.

    ``brier`` = mean (1 − p)², 0.25 for p = ½ throughout. ``ece`` = Σ n_b/n · |accuracy_b −
    confidence_b| over 10 equal bins of the confidence max(p, 1 − p) in [0.5, 1] (Naeini et al.
    2015; Guo et al. 2017); p = ½ is right by half. ``log_loss`` = mean −ln p, the Bradley-Terry
    loss; ``ruled_out`` counts the pairs with p = 0, and with any it is infinite, which JSON cannot
    say: ``None``. ``bins``: (pairs, confidence, accuracy) of those that are not empty.
    """

    pairs: int
    brier: float | None
    ece: float | None
    log_loss: float | None
    bins: list[tuple[int, float, float]] = []
    ruled_out: int = 0


class LengthEffects(msgspec.Struct, frozen=True, kw_only=True):
    """What length has to do with the judge, over ``pairs`` pairs; lengths are characters.

    ``spearman`` correlates the difference of scores with that of lengths; for
    verdicts, which of the two both orders name (1, 0 or -1 each, averaged) takes its place.
    ``prefers_longer`` and ``better_is_longer`` are shares of the judge's choices and of the labels
    over pairs of different length; a good judge without length bias has both alike. The accuracies
    are over the pairs whose better answer is longer, or shorter. Ties, and orders that disagree,
    are half. ``None``: no such pair, or nothing varies.
    """

    pairs: int
    spearman: float | None
    prefers_longer: float | None
    better_is_longer: float | None
    accuracy_longer: float | None
    accuracy_shorter: float | None


def score_differences(judged: Sequence[JudgedItem]) -> list[float]:
    """Score of the better answer less that of the other, of every pair with two scores."""
    return [better - other for _, better, other in _scored_pairs(judged)]


def win_probabilities(judged: Sequence[JudgedItem], scale: ScoreScale) -> list[float]:
    """P(the better answer wins) of every pair with two scores: σ(s_better − s_other).

    ``probabilities`` are turned back into scores first (logit): p(1 − q) / (p(1 − q) + q(1 − p)), ½
    where both are equally certain. Raises :class:`~adjudge.errors.ConfigError` for one that is not
    in [0, 1].
    """
    if scale == "logits":
        return list(map(sigmoid, score_differences(judged)))
    found = []
    for where, p, q in _scored_pairs(judged):
        if not (0 <= p <= 1 and 0 <= q <= 1):
            raise ConfigError(
                f"scores as probabilities: must be in [0, 1] (found {p!r} and {q!r} in {where})"
            )
        ours, theirs = p * (1 - q), q * (1 - p)
        found.append(ours / (ours + theirs) if ours + theirs else 0.5)
    return found


def _scored_pairs(judged: Sequence[JudgedItem]) -> Iterator[tuple[str, float, float]]:
    """Where each pair with two scores is from, the better answer's score, and the other's."""
    for item, judgement in judged:
        scores = [one for one in judgement.known_scores if one is not None]
        if len(scores) == 2:
            a, b = scores if item.label == "A" else scores[::-1]
            yield item.where, a, b


def calibration_metrics(probabilities: Sequence[float]) -> CalibrationMetrics:
    """See :class:`CalibrationMetrics`.

    >>> calibration_metrics([0.8, 0.8, 0.8, 0.8, 0.2]).brier
    0.16
    """
    count = len(probabilities)
    if not count:
        return CalibrationMetrics(pairs=0, brier=None, ece=None, log_loss=None)
    sure = [max(p, 1 - p) for p in probabilities]
    fit = measure_reliability(sure, [_half_ties(p - 0.5) for p in probabilities])
    ruled_out = sum(p == 0 for p in probabilities)
    return CalibrationMetrics(
        pairs=count,
        brier=math.fsum((1 - p) ** 2 for p in probabilities) / count,
        ece=fit.error,
        log_loss=None if ruled_out else -math.fsum(map(math.log, probabilities)) / count,
        bins=[(one.pairs, one.said, one.right) for one in fit.bins],
        ruled_out=ruled_out,
    )


def measure_length_effects(judged: Sequence[JudgedItem]) -> LengthEffects:
    """See :class:`LengthEffects`."""
    rows: list[tuple[float, float, float]] = []
    for item, judgement in judged:
        if (margin := _signed_preference(item, judgement)) is not None:
            share = _half_ties(margin) if judgement.scores else (1 + margin) / 2
            a, b = (sum(len(turn["content"]) for turn in side) for side in item.answers)
            rows.append((margin, share, float(a - b if item.label == "A" else b - a)))
    margins, lengths = [row[0] for row in rows], [row[2] for row in rows]
    uneven = [(choice, by) for _, choice, by in rows if by]
    return LengthEffects(
        pairs=len(rows),
        spearman=spearman_correlation(margins, lengths),
        prefers_longer=mean([choice if by > 0 else 1 - choice for choice, by in uneven]),
        better_is_longer=mean([float(by > 0) for _, by in uneven]),
        accuracy_longer=mean([choice for choice, by in uneven if by > 0]),
        accuracy_shorter=mean([choice for choice, by in uneven if by < 0]),
    )


def _signed_preference(item: BenchmarkItem, judgement: Judgement) -> float | None:
    """How far a judge is for the better answer: a difference of scores, or verdicts, -1 to 1."""
    if judgement.scores:
        return next(iter(score_differences([(item, judgement)])), None)
    return mean_of_all(
        None if one is None else 0.0 if one == "tie" else 1.0 if one == item.label else -1.0
        for one in pair_verdicts(judgement)
    )


def _half_ties(margin: float) -> float:
    return 0.5 if margin == 0 else float(margin > 0)
