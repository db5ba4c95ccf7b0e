"""The judge's part and the environment's reward as one reward, and how large its terms are."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

from adjudge.errors import ErrorKind
from adjudge.rewards.aggregate import AggregateMethod, Term
from adjudge.rewards.samples import Part
from adjudge.types import GraderError, GraderResult, GraderScore, Role

__all__ = [
    "AggregateScale",
    "CombineMode",
    "EventReduce",
    "combine",
    "judge_part",
    "reduce_events",
]

CombineMode = Literal["replace", "weighted_sum", "multiply"]
EventReduce = Literal["sum", "mean"]


def reduce_events(events: Sequence[Part], how: EventReduce) -> Part:
    """E, the sum or mean over a sample's events; one missing event makes it missing.

    No events sum to 0; their mean does not exist and is ``invalid_input``.
    """
    present = []
    for event in events:
        if isinstance(event, GraderError):
            return event
        present.append(event)
    if how == "sum":
        return math.fsum(present)
    if not present:
        return GraderError("events", ErrorKind.INVALID_INPUT, "no events to take a mean of")
    return math.fsum(present) / len(present)


def judge_part(outcome: Part, events: Part, *, outcome_weight: float, event_weight: float) -> Part:
    """J = event_weight·E + outcome_weight·O; a part of weight 0 is not needed and not missed."""
    if event_weight == 0 and isinstance(outcome, float):  # the usual case
        return outcome_weight * outcome
    weighted = []
    if event_weight != 0:
        if isinstance(events, GraderError):
            return events
        weighted.append(event_weight * events)
    if outcome_weight != 0:
        if isinstance(outcome, GraderError):
            return outcome
        weighted.append(outcome_weight * outcome)
    return math.fsum(weighted)


def combine(
    judge: Part,
    env_reward: float | None,
    *,
    mode: CombineMode,
    judge_scale: float = 1.0,
    negative_env: Literal["missing", "allow"] = "missing",
) -> Part:
    """The reward from J and the environment's reward, s being ``judge_scale``.

    ``replace`` is s·J, ``weighted_sum`` env + s·J, ``multiply`` env·s·J. A needed environment
    reward that is absent is ``invalid_input``; so is a negative one under ``multiply`` (a better
    judgement would make it worse) unless ``negative_env = "allow"``.
    """
    if not isinstance(judge, float):
        return judge
    if mode == "replace":
        return _finite(judge_scale * judge)
    if env_reward is None or not math.isfinite(env_reward):
        return GraderError(
            "env_reward",
            ErrorKind.INVALID_INPUT,
            f"combine_mode = {mode!r} needs a finite env_reward; the sample has none",
        )
    if mode == "weighted_sum":
        return _finite(env_reward + judge_scale * judge)
    if env_reward < 0 and negative_env == "missing":
        return GraderError(
            "env_reward",
            ErrorKind.INVALID_INPUT,
            f"env_reward {env_reward} is negative under multiply: a better judgement would make "
            'it worse; set negative_env = "allow" to multiply all the same',
        )
    return _finite(env_reward * judge_scale * judge)


def _finite(reward: float) -> Part:
    if math.isfinite(reward):
        return reward
    return GraderError("reward", ErrorKind.OUT_OF_RANGE, f"the reward overflows to {reward}")


# --- the size of the terms, by which near-ties are told -----------------------------------------


class AggregateScale:
    """How large the terms of one sample's aggregate are, together; an upper bound.

    Rounding errors go with the terms: 5 − 4.7 is off by the rounding of 5. A normalised score
    counts as 1, because it was made from a range (1 − 0.9 is off by the rounding of 1). So all but
    penalties and scores that are not normalised is known from the spec's ``terms`` alone.
    """

    def __init__(
        self,
        terms: Sequence[Term],
        roles: Mapping[str, Role],
        *,
        method: AggregateMethod,
        normalise: bool,
    ) -> None:
        scores = [term for term in terms if roles[term.name] is Role.SCORE]
        weights = {term.name: abs(term.weight) for term in terms}
        if method in ("weighted_mean", "points"):
            total = math.fsum(term.weight for term in scores if term.weight > 0)
            weights |= {term.name: abs(term.weight) / total for term in scores}
        else:
            weights |= {term.name: 1.0 for term in scores}
        self._known = math.fsum(weights[term.name] for term in scores) if normalise else 0.0
        seen = (Role.PENALTY,) if normalise else (Role.PENALTY, Role.SCORE)
        self._seen = [(name, weights[name]) for name in weights if roles[name] in seen]

    def of(self, each: Sequence[Mapping[str, GraderResult]]) -> list[float]:
        """The scales of the aggregates of several samples or events."""
        if not self._seen:
            return [self._known] * len(each)
        return [self._known + self._seen_in(results) for results in each]

    def _seen_in(self, results: Mapping[str, GraderResult]) -> float:
        found = ((weight, results.get(name)) for name, weight in self._seen)
        return sum(abs(w * result.score) for w, result in found if isinstance(result, GraderScore))
