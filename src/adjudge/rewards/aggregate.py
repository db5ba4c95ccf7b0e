"""From one sample's results to one number, or to the failure that leaves it missing.

A failure of any grader that counts makes the aggregate missing: no weight is spread over the
survivors, because then two samples of one group would be measured with different rulers. For the
same reason a grader that had nothing to judge is left out for a whole group or for none of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from adjudge.errors import Cause, ErrorKind
from adjudge.graders.llm.reduce import soft_min
from adjudge.types import GraderError, GraderResult, GraderScore, Role

__all__ = ["AggregateMethod", "GateRule", "NotApplicable", "Term", "aggregate"]

AggregateMethod = Literal["weighted_mean", "points", "min", "soft_min"]
GateRule = Literal["multiply", "veto"]
NotApplicable = Literal["score", "min", "missing"]
"""What a grader that had nothing to judge gives: its stated score, its worst, or nothing."""


@dataclass(frozen=True)
class Term:
    """How one grader enters: its weight (0 = report only) and whether it is essential.

    ``worst`` is what adds least to the reward, on the scale that is aggregated; ``None`` where
    the grader's range is open. ``suspect_is_worst``: a failure that the candidate may have brought
    about counts as ``worst`` instead of leaving the reward missing.
    """

    name: str
    weight: float = 1.0
    essential: bool = False
    worst: float | None = None
    suspect_is_worst: bool = False


def aggregate(
    results: Mapping[str, GraderResult],
    terms: Sequence[Term],
    *,
    method: AggregateMethod = "weighted_mean",
    beta: float = 1.0,
    gate: GateRule = "multiply",
    normalise: bool = True,
    not_applicable: NotApplicable = "score",
) -> float | GraderError:
    """One number for one sample, or the ``GraderError`` that makes it missing.

    Scores (normalised to [0, 1] unless ``normalise`` is false) are combined by ``method``:

    * ``weighted_mean``: Σ wᵢsᵢ / Σ wᵢ;
    * ``points``: Σ wᵢsᵢ / Σ wᵢ over positive wᵢ, weights being signed points (HealthBench);
    * ``min``: the smallest over essential graders (over all when none is marked);
    * ``soft_min``: −β·log Σ w̄ᵢ·e^(−sᵢ/β), w̄ normalised; β → 0 is the minimum, β → ∞ the mean.

    Then gates and penalties: ``multiply`` gives method·Πgates + Σ penalties, ``veto`` gives 0 for
    any closed gate and method + Σ penalties otherwise. Weights scale penalties; a gate's weight
    only says whether it counts. ``not_applicable``: what a score that had nothing to judge
    enters as.
    """
    values = _values(results, terms, normalise, not_applicable)
    if not isinstance(values, tuple):
        return values
    scores, gates, penalties = values
    if gate == "veto" and 0.0 in gates:
        return 0.0
    if method == "points" and scores and all(term.weight <= 0 for term, _ in scores):
        why = "no grader of positive points had anything to judge"
        return GraderError("aggregate", ErrorKind.NOT_APPLICABLE, why)
    try:
        # Gates alone: open is 1, closed is 0; penalties alone start from 0.
        total = _METHODS[method](scores, beta) if scores else float(bool(gates))
        if gates or penalties:
            penalty = math.fsum([term.weight * value for term, value in penalties])
            total = total * math.prod(gates) + penalty
    except ArithmeticError as error:
        return GraderError("aggregate", ErrorKind.OUT_OF_RANGE, f"does not compute: {error}")
    if not math.isfinite(total):
        return GraderError("aggregate", ErrorKind.OUT_OF_RANGE, f"overflows to {total}")
    return total


_Values = list[tuple[Term, float]]


def _values(
    results: Mapping[str, GraderResult],
    terms: Sequence[Term],
    normalise: bool,
    not_applicable: NotApplicable,
) -> tuple[_Values, list[float], _Values] | GraderError:
    """The scores, gates and penalties that count; or the failure that makes the sample missing."""
    scores: _Values = []
    gates: list[float] = []
    penalties: _Values = []
    failures: list[GraderError] = []
    for term in terms:
        if term.weight == 0:
            continue
        result = results[term.name]
        if isinstance(result, GraderScore) and not result.metadata:  # the usual case
            value = _scored(term, result, normalise)
        else:
            value = _value(term, result, normalise, not_applicable)
        if not isinstance(value, float):
            failures.append(value)
        elif result.role is Role.SCORE:
            scores.append((term, value))
        elif result.role is Role.GATE:
            gates.append(value)
        else:
            penalties.append((term, value))
    return _joined(failures) if failures else (scores, gates, penalties)


def _value(
    term: Term, result: GraderResult, normalise: bool, not_applicable: NotApplicable
) -> float | GraderError:
    if isinstance(result, GraderError):
        worst = term.worst if term.suspect_is_worst and result.suspect else None
        return result if worst is None else worst
    if not isinstance(result, GraderScore):
        return GraderError(term.name, ErrorKind.BUG, "a rank is not a score")
    if result.metadata and (value := _unjudged(term, result, not_applicable)) is not None:
        return value
    return _scored(term, result, normalise)


def _unjudged(
    term: Term, result: GraderScore, not_applicable: NotApplicable
) -> float | GraderError | None:
    """What a score counts as that was given without judging, where that is not the score itself."""
    cause = result.cause
    if cause is Cause.CANDIDATE and term.weight < 0:
        return term.worst  # the grader's minimum would spare it what the points take away
    if cause is not Cause.NOT_APPLICABLE or not_applicable == "score":
        return None
    if not_applicable == "min" and term.worst is not None:
        return term.worst
    return GraderError(term.name, ErrorKind.NOT_APPLICABLE, result.reason or "nothing to judge")


def _scored(term: Term, result: GraderScore, normalise: bool) -> float | GraderError:
    if result.role is not Role.SCORE or not normalise:
        return result.score
    value = result.normalized
    if value is None:
        return GraderError(
            term.name,
            ErrorKind.UNSUPPORTED,
            "has no finite score_range to normalise by; set one, or normalise = false",
        )
    return value


def _joined(failures: Sequence[GraderError]) -> GraderError:
    """The first failure in the spec's order, naming the others; its marks are those of all.

    ``suspect`` says whether any is, ``local`` that one is and none may pass by itself.
    """
    first = failures[0]
    others = ", ".join(f"{failure.name} ({failure.kind})" for failure in failures[1:])
    message = f"{first.name}: {first.error}" + (f"; also failed: {others}" if others else "")
    marks = {"suspect": any(failure.suspect for failure in failures)}
    if any(one.metadata.get("local") for one in failures) and not any(
        one.passing for one in failures
    ):
        marks["local"] = True
    return GraderError(first.name, first.kind, message, marks)


def _weighted_mean(values: _Values, _beta: float) -> float:
    return math.fsum([t.weight * v for t, v in values]) / math.fsum([t.weight for t, _ in values])


def _points(values: _Values, _beta: float) -> float:
    possible = math.fsum(t.weight for t, _ in values if t.weight > 0)
    return math.fsum(t.weight * v for t, v in values) / possible


def _minimum(values: _Values, _beta: float) -> float:
    essential = [v for t, v in values if t.essential]
    return min(essential or [v for _, v in values])


def _soft_minimum(values: _Values, beta: float) -> float:
    return soft_min([v for _, v in values], beta, [t.weight for t, _ in values])


_METHODS: Mapping[AggregateMethod, Callable[[_Values, float], float]] = {
    "weighted_mean": _weighted_mean,
    "points": _points,
    "min": _minimum,
    "soft_min": _soft_minimum,
}
