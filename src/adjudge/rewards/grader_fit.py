"""Whether built graders fit the spec, which the spec alone cannot tell: their roles and ranges."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import product

from adjudge.graders.base import GraderTraits, is_listwise
from adjudge.rewards.spec import GraderEntry, Problems, RewardSpec
from adjudge.types import Role, finite_range

_Graders = Mapping[str, object]


def check_graders(spec: RewardSpec, graders: _Graders) -> None:
    """What only built graders can tell; raises :class:`~adjudge.errors.ConfigError`."""
    if lacking := [entry.name for entry in spec.graders if entry.name not in graders]:
        spec.refuse(f"graders.{lacking[0]}", "the grader object is missing")
    by_entry = (_check_grader(spec, entry, graders[entry.name]) for entry in spec.graders)
    spec.refuse_first(*by_entry, _check_scores(spec, graders))


def _check_grader(spec: RewardSpec, entry: GraderEntry, grader: object) -> Problems:
    key = f"graders.{entry.name}"
    traits, ranks = GraderTraits.of(grader), is_listwise(grader)
    role = traits.role
    if ranks and entry.scope == "event":
        yield key, "ranks groups, not events. Set scope = 'outcome'."
    is_outcome_gate = role is Role.GATE and entry.counts and entry.scope == "outcome"
    if is_outcome_gate and spec.reward.group == "gdpo":
        why = (
            "is a gate, which multiplies, but reward.group = 'gdpo' adds up graders. Use weight = "
            "0, or group = 'z_score'."
        )
        yield key, why
    if role is not Role.SCORE and (lowest := min(entry.weights)) < 0:
        yield f"{key}.weight", f"must be at least 0 for a {role} (found {lowest})"
    is_fallback = entry.name == spec.missing.fallback
    if (entry.counts or is_fallback) and _lacks_range(spec, grader):
        yield from _check_unscaled(spec, entry, grader)
    if is_fallback and not traits.is_rule:
        why = (
            f"{entry.name!r} is not a rule grader, so it may fail for the same reason as the one "
            "it replaces. Name a rule grader."
        )
        yield "missing.fallback", why
    if is_fallback and (entry.scope == "event" or ranks or role is not Role.SCORE):
        yield "missing.fallback", f"{entry.name!r} must score whole samples, one at a time"


def _check_unscaled(spec: RewardSpec, entry: GraderEntry, grader: object) -> Problems:
    """A grader without a finite range counts as it is, but where a scale is needed."""
    key = f"graders.{entry.name}"
    if entry.type == "rubric":
        why = (
            "signed points have no finite score_range to normalise by. Set clip = true, so that a "
            "negative sum counts as 0, or [reward] normalise = false."
        )
        yield key, why
    worst = (GraderTraits.of(grader).score_range or (None, None))[min(entry.weights) < 0]
    why = ""
    if entry.name == spec.missing.fallback:
        why = "missing.fallback, whose scores take the place of rewards"
    elif spec.missing.suspect == "min" and (worst is None or math.isinf(worst)):
        why = "missing.suspect = 'min', which gives a failure the lowest score"
    if why:
        yield f"{key}.score_range", f"is required by {why}. Give [low, high]."


def _lacks_range(spec: RewardSpec, grader: object) -> bool:
    """Whether ``normalise`` finds nothing to normalise by in a grader that it is for."""
    traits = GraderTraits.of(grader)
    scored = traits.role is Role.SCORE and not is_listwise(grader)
    return spec.reward.normalise and scored and finite_range(traits.score_range) is None


def _list_scored(spec: RewardSpec, graders: _Graders) -> list[GraderEntry]:
    """The graders whose scores are averaged."""
    return [
        entry
        for entry in spec.graders
        if entry.counts and GraderTraits.of(graders[entry.name]).role is Role.SCORE
    ]


def find_unscaled(spec: RewardSpec, graders: _Graders) -> dict[str, list[str]]:
    """The graders without a range: their scores count as they are.

    Each has the names of the normalised ones of its scope, beside which its scores count.
    """
    scored = _list_scored(spec, graders)
    lacking = {entry.name for entry in scored if _lacks_range(spec, graders[entry.name])}
    return {
        entry.name: [
            one.name for one in scored if one.scope == entry.scope and one.name not in lacking
        ]
        for entry in scored
        if entry.name in lacking
    }


def _check_scores(spec: RewardSpec, graders: _Graders) -> Problems:
    """What the scores of a scope are together."""
    if spec.reward.aggregate == "points":
        for scope, step in product(("outcome", "event"), spec.schedule_ends):
            scored = [one for one in _list_scored(spec, graders) if one.scope == scope]
            weights = [one.weight_at(step) for one in scored]
            if any(weights) and max(weights) <= 0:
                why = f"aggregate = 'points' needs a positive weight among the {scope} scores"
                yield "graders", why
    for name, beside in find_unscaled(spec, graders).items():
        if spec.reward.aggregate == "min" and beside:
            why = (
                "is required by aggregate = 'min', which compares its scores with those of "
                f"{beside[0]} in [0, 1]. Give [low, high]."
            )
            yield f"graders.{name}.score_range", why


def worst_contribution(
    spec: RewardSpec, graders: Mapping[str, object], entry: GraderEntry
) -> float | None:
    """What of a grader adds least to the reward; ``None`` where its range is open, or it ranks."""
    grader, weight = graders[entry.name], entry.weight_at(0)
    traits = GraderTraits.of(grader)
    role = traits.role
    if is_listwise(grader):
        return None  # a failed ranking is of the whole group, and blames nobody
    if role == Role.GATE:
        return 0.0
    ends = traits.score_range or (None, None)
    if role == Role.SCORE and spec.reward.normalise and finite_range(ends):
        ends = (0.0, 1.0)
    end = ends[weight < 0]
    return None if end is None or math.isinf(end) else float(end)
