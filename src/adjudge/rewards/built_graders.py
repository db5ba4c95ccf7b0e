"""What only a spec's built graders can tell: whether they fit it, and what they depend on."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from hashlib import sha256
from itertools import chain, product
from pathlib import Path
from typing import Any

from adjudge.config import find_references
from adjudge.errors import Metadata
from adjudge.graders.base import GraderTraits, is_listwise
from adjudge.graders.binding import check_machines
from adjudge.graders.registry import describe_object
from adjudge.judges.base import digest_source
from adjudge.rewards.spec import GraderEntry, Problems, RewardSpec
from adjudge.types import Role, finite_range
from adjudge.version import __version__

_Graders = Mapping[str, object]


def check_graders(spec: RewardSpec, graders: _Graders) -> None:
    """What only built graders can tell; raises :class:`~adjudge.errors.ConfigError`."""
    if lacking := [entry.name for entry in spec.graders if entry.name not in graders]:
        spec.refuse(f"graders.{lacking[0]}", "the grader object is missing")
    by_entry = (_check_grader(spec, entry, graders[entry.name]) for entry in spec.graders)
    spec.refuse_first(chain.from_iterable([*by_entry, _check_scores(spec, graders)]))


def check_machine(spec: RewardSpec, graders: _Graders) -> None:
    """:func:`~adjudge.graders.binding.check_machines`, which names the spec's file."""
    check_machines(graders, f"{spec.where}: ")


def _check_grader(spec: RewardSpec, entry: GraderEntry, grader: object) -> Problems:
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


def compute_fingerprint(spec: RewardSpec, graders: _Graders) -> str:
    """The hash of a spec together with what its graders' answers depend on outside it.

    A grader's ``fingerprint`` speaks for the files it read; the source file of the user's own class
    speaks for itself. A journal or run folder of another fingerprint is another run.
    """
    said = [__version__, spec.hash]
    said += [
        describe_object(one.grader_type) for one in spec.graders if one.grader_type is not one.type
    ]
    for name in sorted(graders):
        said += _grader_fingerprints(name, graders[name])
    return _short_digest(said)


def describe_settings(spec: RewardSpec, graders: _Graders) -> Metadata:
    """A spec as plain tables: defaults filled in, and what is not set left out.

    ``content`` of a grader is a digest of what its answers depend on outside the spec: files,
    code, judges' addresses. Where the spec's file has ``${NAME}``, so have the settings: the value
    may be a secret.
    """
    said = hide_variables(
        spec, spec.model_dump(mode="json", exclude_none=True, exclude={"version"})
    )
    tables = {}
    for entry, table in zip(spec.graders, said["graders"], strict=True):
        del table["name"]
        content = _short_digest(_grader_fingerprints(entry.name, graders[entry.name]))
        tables[entry.name] = {**table, "content": content}
    return {**said, "graders": tables}


def hide_variables(spec: RewardSpec, value: Any) -> Any:
    """Plain data made of a spec, with ``${NAME}`` again for each text that has it in the file."""
    path = Path(spec.where)
    written = find_references(path) if path.is_file() else {}

    def hide(inner: object) -> object:
        if isinstance(inner, dict):
            return {key: hide(below) for key, below in inner.items()}
        if isinstance(inner, list):
            return [hide(below) for below in inner]
        return written.get(inner, inner) if isinstance(inner, str) else inner

    return hide(value)


def _short_digest(said: Sequence[str]) -> str:
    return sha256("\0".join(said).encode()).hexdigest()[:16]


def _grader_fingerprints(name: str, grader: object) -> list[str]:
    """What a grader's answers, and its judges' replies, depend on beside the spec."""
    traits = GraderTraits.of(grader)
    models = [GraderTraits.of(one).model for one in (grader, *traits.members)]
    return [
        name,
        str(traits.fingerprint),
        digest_source(type(grader)),
        # What ships has a fingerprint of its own, which a class derived from it may not know of.
        *(
            str(getattr(model, "fingerprint", "")) + digest_source(type(model))
            for model in models
            if model is not None
        ),
    ]
