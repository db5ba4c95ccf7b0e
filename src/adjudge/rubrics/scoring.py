"""From marks to a score: pure formulas, and the exact interval where marks are missing.

A mark that is ``None`` means *not applicable*: the criterion leaves numerator and denominator. A
criterion without a mark was not answered; nothing is assumed about it, and the answer is then the
interval that the score must lie in.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from adjudge.config import suggest_name
from adjudge.errors import InvalidInput
from adjudge.rubrics.rubric import CATEGORY_WEIGHTS, Category, Criterion, Mark, Rubric

MarkMapping = Mapping[str, Mark]


class RubricScore(msgspec.Struct, frozen=True):
    """Every criterion that counts was answered.

    ``score`` is ``earned / possible``, then clipped and capped as the rubric says. ``vetoes``: ids
    of failed gates. ``not_applicable``: ids that left the formula.
    """

    score: float
    earned: float
    possible: float
    vetoes: tuple[str, ...] = ()
    not_applicable: tuple[str, ...] = ()


class Incomplete(msgspec.Struct, frozen=True):
    """Some criteria that count have no mark: the score is not known, but lies in [low, high].

    Both ends are reached by some completion of the marks; completions that leave nothing to judge
    have no score and are left out. ``answered`` counts marks, ``missing`` has the ids without one.
    """

    low: float
    high: float
    answered: int
    missing: tuple[str, ...]


class NotEvaluable(msgspec.Struct, frozen=True):
    """There is nothing to divide by: no criterion of positive weight applies, and no veto failed.

    ``missing`` has ids without a mark; no mark for them could change this.
    """

    not_applicable: tuple[str, ...]
    missing: tuple[str, ...] = ()


Outcome = RubricScore | Incomplete | NotEvaluable


class _Term(NamedTuple):
    """A criterion in the formula. Positive weights are earned when the mark is ``credited``, and
    are part of what is possible; negative ones are only ever lost.
    """

    id: str
    weight: float
    credited: bool


def score(rubric: Rubric, marks: MarkMapping) -> Outcome:
    """The score of ``marks`` (criterion id → mark), by the rubric's scheme.

    ``points``: Σ points of met / Σ positive points, from Σ negative / Σ positive to 1, not clipped
    (HealthBench). ``weights``, ``categories``: Σ w·met / Σ w in [0, 1] (Rubrics as
    Rewards, arXiv 2507.17746, equation 1). A failed gate caps the score at ``veto_score``.
    Criteria with 0 points are never asked for. A mark that is missing makes the outcome
    :class:`Incomplete` even where the others settle the score, so that whether a sample has a
    score does not depend on how good it is; ``low == high`` tells.

    Raises ``GradingFailure(invalid_input)`` for marks of unknown criteria, for ``None`` where
    ``na_allowed`` is false and for shares where the scale is binary.

    >>> rubric = Rubric((Criterion("Names a dose", "dose", 5), Criterion("Alarms", "alarm", -3)))
    >>> score(rubric, {"dose": True, "alarm": True}).score
    0.4
    >>> score(rubric, {"dose": True})
    Incomplete(low=0.4, high=1.0, answered=1, missing=('alarm',))
    """
    _check_marks(rubric, marks)
    terms = _terms(rubric)
    missing = tuple(c.id for c in rubric.criteria if c.id not in marks and c.worth != 0)
    if not missing:
        return _final(rubric, terms, marks)
    ends = [_final(rubric, terms, full) for full in _extremes(rubric, terms, marks, missing)]
    scores = [end.score for end in ends if isinstance(end, RubricScore)]
    if not scores:
        return NotEvaluable(_not_applicable(marks), missing)
    answered = sum(c.id in marks for c in rubric.criteria)
    return Incomplete(min(scores), max(scores), answered, missing)


def score_range(rubric: Rubric) -> tuple[float, float] | None:
    """Lowest and highest score that any marks can give, both reached; ``None``: there is none.

    The lowest of signed points depends on the criteria.

    >>> score_range(Rubric((Criterion("a", points=2), Criterion("b", points=-5))))
    (-2.5, 1.0)
    """
    outcome = score(rubric, {})
    return (outcome.low, outcome.high) if isinstance(outcome, Incomplete) else None


def subscores(rubric: Rubric, marks: MarkMapping, tag: str) -> dict[str, Outcome]:
    """One outcome per value of ``tag`` (HealthBench: ``axis``), over the criteria that carry it.

    The same formula on fewer criteria, without gates; criteria without the tag are left out.
    """
    groups: dict[str, list[Criterion]] = {}
    for criterion in rubric.criteria:
        if tag in criterion.tags:
            open_ended = dataclasses.replace(criterion, veto=False)
            groups.setdefault(criterion.tags[tag], []).append(open_ended)
    _check_marks(rubric, marks)
    outcomes = {}
    for value, criteria in groups.items():
        part = dataclasses.replace(rubric, criteria=tuple(criteria))
        outcomes[value] = score(part, {c.id: marks[c.id] for c in criteria if c.id in marks})
    return outcomes


def _check_marks(rubric: Rubric, marks: MarkMapping) -> None:
    criteria = {criterion.id: criterion for criterion in rubric.criteria}
    for name, mark in marks.items():
        criterion = criteria.get(name)
        if criterion is None:
            problem = f"is no criterion of the rubric{suggest_name(str(name)[:40], criteria)}"
        elif mark is None:
            problem = "" if criterion.na_allowed else "may not be None: na_allowed is false"
        elif criterion.scale == "binary":
            problem = "" if isinstance(mark, bool) else "must be True or False: scale is binary"
        else:
            given: object = mark
            is_share = isinstance(given, int | float) and 0 <= given <= 1
            problem = "" if is_share else "must be a share in [0, 1]"
        if problem:
            raise InvalidInput(f"mark {str(name)[:40]!r}: {problem}")


def _terms(rubric: Rubric) -> list[_Term]:
    terms = []
    for criterion in rubric.criteria:
        weight, credited = criterion.worth, True
        if rubric.scheme == "categories" and weight:
            credited = not criterion.is_fault
            weight = CATEGORY_WEIGHTS[criterion.category or Category.ESSENTIAL]
        if weight:
            terms.append(_Term(criterion.id, weight, credited))
    return terms


def _final(
    rubric: Rubric, terms: Iterable[_Term], marks: MarkMapping
) -> RubricScore | NotEvaluable:
    """The outcome of marks that are complete."""
    earned, possible = [], []
    for term in terms:
        mark = marks[term.id]
        if mark is not None:
            earned.append(term.weight * (mark if term.credited else 1 - mark))
            possible.append(max(term.weight, 0.0))
    total = math.fsum(possible)
    vetoes = tuple(c.id for c in rubric.criteria if c.veto and marks[c.id] is c.is_fault)
    if total == 0 and not vetoes:
        return NotEvaluable(_not_applicable(marks))
    sum_earned = math.fsum(earned)
    # With nothing else to judge, the veto is the score.
    value = sum_earned / total if total else math.inf
    if rubric.clip:
        value = max(0.0, value)
    if vetoes:
        value = min(value, rubric.veto_score)
    return RubricScore(value, sum_earned, total, vetoes, _not_applicable(marks))


def _not_applicable(marks: MarkMapping) -> tuple[str, ...]:
    return tuple(name for name, mark in marks.items() if mark is None)


def _extremes(
    rubric: Rubric, terms: list[_Term], marks: MarkMapping, missing: Iterable[str]
) -> list[dict[str, Mark]]:
    """Completions among which are one of the lowest score and one of the highest.

    Every score is A/D with A ≤ D, so that earning w raises it whatever else holds: the highest
    earns everything and loses nothing. The lowest loses everything and earns nothing; where a
    criterion may be not applicable, leaving it out lowers a negative A/D further, down to the one
    criterion of least weight that must remain. All of this fails every open veto, or none.
    """
    unanswered = set(missing)
    open_terms = [term for term in terms if term.id in unanswered]
    best = {t.id: t.credited == (t.weight > 0) for t in open_terms}
    worst: dict[str, Mark] = {t.id: t.credited != (t.weight > 0) for t in open_terms}
    may_leave = {c.id for c in rubric.criteria if c.na_allowed}
    leaving = [t for t in open_terms if t.weight > 0 and t.id in may_leave]
    bare: dict[str, Mark] = {**worst, **{t.id: None for t in leaving}}
    completions: list[dict[str, Mark]] = [{**marks, **best}, {**marks, **worst}, {**marks, **bare}]
    if leaving:
        least = min(leaving, key=lambda term: term.weight)
        completions.append({**marks, **bare, least.id: worst[least.id]})
    return completions
