"""The judge's part and the environment's reward as one reward."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from adjudge.errors import ErrorKind
from adjudge.rewards.samples import Part
from adjudge.types import GraderError

__all__ = ["CombineMode", "EventReduce", "combine", "judge_part", "reduce_events"]

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
