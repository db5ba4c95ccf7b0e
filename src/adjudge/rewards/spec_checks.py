"""Whether a spec's tables go together, and whether its built graders fit it.

A check yields the key that is wrong, and why; the first problem is raised.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, product
from typing import TYPE_CHECKING

from adjudge.config import suggest_name
from adjudge.graders.base import GraderTraits, is_listwise
from adjudge.graders.binding import check_machines
from adjudge.types import Role, finite_range

if TYPE_CHECKING:
    from adjudge.rewards.spec import GraderEntry, RewardSpec

_Problems = Iterator[tuple[str, str]]
_Graders = Mapping[str, object]


def _raise_first(spec: RewardSpec, problems: Iterable[tuple[str, str]]) -> None:
    for key, why in problems:
        spec.refuse(key, why)


def check_spec(spec: RewardSpec) -> None:
    """Raise :class:`~adjudge.errors.ConfigError` where the tables do not go together."""
    by_entry = (_check_entry(spec, entry) for entry in spec.graders)
    problems = chain(_check_counting(spec), _check_fallback(spec), chain.from_iterable(by_entry))
    _raise_first(spec, problems)


def check_graders(spec: RewardSpec, graders: _Graders) -> None:
    """What only built graders can tell; raises :class:`~adjudge.errors.ConfigError`."""
    lacking = (entry.name for entry in spec.graders if entry.name not in graders)
    _raise_first(spec, ((f"graders.{name}", "the grader object is missing") for name in lacking))
    by_entry = (_check_grader(spec, entry, graders[entry.name]) for entry in spec.graders)
    problems = chain(chain.from_iterable(by_entry), _check_scores(spec, graders))
    _raise_first(spec, problems)


def check_machine(spec: RewardSpec, graders: _Graders) -> None:
    """:func:`~adjudge.graders.binding.check_machines`, which names the spec's file."""
    check_machines(graders, f"{spec.where}: ")


def _check_counting(spec: RewardSpec) -> _Problems:
    """Each scope that has a weight has a grader with one, at both ends of each schedule."""
    names = Counter(entry.name for entry in spec.graders)
    if repeated := [name for name, count in names.items() if count > 1]:
        yield "graders", f"the name {repeated[0]!r} is used twice"
    if not any(entry.counts for entry in spec.graders):
        yield "graders", "every weight is 0, so no grader makes a reward. Set a weight."
    if spec.reward.group != "none" and spec.reward.outcome_weight == 0:
        why = "compares outcomes, but outcome_weight is 0. Set it, or group = 'none'."
        yield "reward.group", why
    if spec.reward.aggregate != "points":
        for entry in spec.graders:
            if (lowest := min(entry.weights)) < 0:
                why = (
                    f"must be at least 0 with aggregate = {spec.reward.aggregate!r} (found "
                    f"{lowest}). Use aggregate = 'points' for signed points. Give a penalty grader "
                    "a positive weight; its score is negative."
                )
                yield f"graders.{entry.name}.weight", why
    for scope, weight in (
        ("event", spec.reward.event_weight),
        ("outcome", spec.reward.outcome_weight),
    ):
        counting = [g for g in spec.graders if g.scope == scope and g.counts]
        if counting and scope == "event" and "event_weight" not in spec.reward.model_fields_set:
            why = (
                "is 'event', but reward.event_weight is not set. Set it; 0 asks about every event "
                "for the report only."
            )
            yield f"graders.{counting[0].name}.scope", why
        if weight != 0 and not counting:
            why = (
                f"is {weight}, but no grader has scope = {scope!r} and a weight. Set it to 0, or "
                "add such a grader."
            )
            yield f"reward.{scope}_weight", why
        for step in spec.schedule_ends if counting else ():
            if not any(one.weight_at(step) for one in counting):
                why = (
                    f"at step {step} no grader of scope = {scope!r} has a weight, so there is no "
                    "reward. Let one keep a weight above 0."
                )
                yield f"graders.{counting[0].name}.weight", why


def _check_fallback(spec: RewardSpec) -> _Problems:
    wanted, names = spec.missing.fallback, [entry.name for entry in spec.graders]
    if (spec.missing.policy == "fallback") != (wanted is not None):
        why = "must name a rule grader where policy = 'fallback', and be absent elsewhere"
        yield "missing.fallback", why
    if wanted is not None and wanted not in names:
        hint, allowed = suggest_name(wanted, names), ", ".join(names)
        why = f"no grader has this name{hint} (found {wanted!r}; allowed: {allowed})"
        yield "missing.fallback", why


def _check_entry(spec: RewardSpec, entry: GraderEntry) -> _Problems:
    key = f"graders.{entry.name}"
    named = [entry.judge] if isinstance(entry.judge, str) else entry.judge or []
    for name in named:
        if name not in spec.judges:
            yield f"{key}.judge", f"there is no [judges.{name}]{suggest_name(name, spec.judges)}"
    if len({*named}) < len(named):
        yield f"{key}.judge", "must name each judge once. Use panel.votes to ask one again."
    if entry.panel is not None and len(named) < 2 and entry.panel.votes < 2:
        yield f"{key}.panel", "needs several judges, or votes of 2 or more. Leave it out."


def _check_grader(spec: RewardSpec, entry: GraderEntry, grader: object) -> _Problems:
    key = f"graders.{entry.name}"
    traits, ranks = GraderTraits.of(grader), is_listwise(grader)
    try:
        role = traits.role
    except ValueError as error:
        spec.refuse(f"{key}: role", f"{error} (allowed: {', '.join(Role)})")
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


def _check_unscaled(spec: RewardSpec, entry: GraderEntry, grader: object) -> _Problems:
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


def _check_scores(spec: RewardSpec, graders: _Graders) -> _Problems:
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
