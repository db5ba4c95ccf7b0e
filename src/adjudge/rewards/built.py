"""What only a spec's built graders can tell: whether they fit it, and what they depend on."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import adjudge
from adjudge.errors import ConfigError
from adjudge.graders.base import is_listwise
from adjudge.rewards.spec import GraderEntry, RewardSpec
from adjudge.types import Role, finite_range

__all__ = ["check_graders", "check_machine", "fingerprint"]


def fingerprint(spec: RewardSpec, graders: Mapping[str, Any]) -> str:
    """The hash of a spec together with what its graders' answers depend on outside it.

    A grader's ``fingerprint`` speaks for the files it read; the source file of the user's own
    class speaks for itself. A journal or run folder of another fingerprint is another run.
    """
    said = [adjudge.__version__, spec.hash]
    for name in sorted(graders):
        said += [name, str(getattr(graders[name], "fingerprint", "")), _source(graders[name])]
        said += _judges(graders[name])
    return sha256("\0".join(said).encode()).hexdigest()[:16]


def _judges(grader: Any) -> list[str]:
    """What the replies of a grader's judges depend on beside the spec: addresses, files, code."""
    members = [member.grader for member in getattr(grader, "members", ())]
    models = [getattr(one, "model", None) for one in (grader, *members)]
    return [str(getattr(model, "fingerprint", "")) for model in models if model is not None]


def _source(grader: Any) -> str:
    """The digest of the file of the user's own class; shipped ones go with adjudge's version."""
    module = sys.modules.get(type(grader).__module__)
    path = getattr(module, "__file__", None)
    if path is None or type(grader).__module__.startswith("adjudge."):
        return ""
    try:
        return sha256(Path(path).read_bytes()).hexdigest()
    except OSError:
        return ""


def check_graders(spec: RewardSpec, graders: Mapping[str, Any]) -> None:
    """What only built graders can tell; raises :class:`ConfigError`."""
    if lacking := [entry.name for entry in spec.graders if entry.name not in graders]:
        raise ConfigError(f"{spec.where}: no grader object for {lacking[0]!r}")
    for entry in spec.graders:
        _check_grader(spec, entry, graders[entry.name])
    if spec.reward.aggregate == "points":
        _check_points(spec, graders)
    if spec.missing.fallback is not None:
        _check_fallback_grader(spec, graders[spec.missing.fallback])


def check_machine(spec: RewardSpec, graders: Mapping[str, Any]) -> None:
    """Raise :class:`ConfigError` for all that this machine lacks: sandbox, package, key, device.

    Whatever begins to grade calls it before the first sample.
    """
    lacking = []
    for name, grader in graders.items():
        if (check := getattr(grader, "check_machine", None)) is not None:
            try:
                check()
            except ConfigError as error:
                lacking.append(f"{spec.where}: graders.{name}: {error}")
    if lacking:
        raise ConfigError("\n".join(lacking))


def _check_grader(spec: RewardSpec, entry: GraderEntry, grader: Any) -> None:
    where = f"{spec.where}: graders.{entry.name}"
    listwise = is_listwise(grader)
    if listwise and entry.scope == "event":
        raise ConfigError(f"{where}: ranks groups, not events")
    role = _role(grader, where)
    if role is not Role.SCORE and entry.weight < 0:
        raise ConfigError(f"{where}.weight: is {entry.weight}; a {role} takes a weight ≥ 0")
    needs_range = entry.weight != 0 or entry.name == spec.missing.fallback
    if not spec.reward.normalise or listwise or role is not Role.SCORE or not needs_range:
        return
    if finite_range(getattr(grader, "score_range", None)) is None:
        raise ConfigError(
            f"{where}: has no finite score_range to normalise by; set one on the grader, or "
            "[reward] normalise = false"
        )


def _role(grader: Any, where: str) -> Role:
    try:
        return Role(getattr(grader, "role", Role.SCORE))
    except ValueError as error:
        raise ConfigError(f"{where}: role: {error} (allowed: {', '.join(Role)})") from None


def _check_points(spec: RewardSpec, graders: Mapping[str, Any]) -> None:
    for scope in ("outcome", "event"):
        scores = [
            entry.weight
            for entry in spec.graders
            if entry.scope == scope and getattr(graders[entry.name], "role", "score") == Role.SCORE
        ]
        if any(scores) and max(scores) <= 0:
            raise ConfigError(
                f"{spec.where}: graders: aggregate = 'points' needs a positive weight among the "
                f"{scope} scores"
            )


def _check_fallback_grader(spec: RewardSpec, grader: Any) -> None:
    where, name = f"{spec.where}: missing.fallback", spec.missing.fallback
    scope = next(entry.scope for entry in spec.graders if entry.name == name)
    if not getattr(grader, "is_rule", False):
        raise ConfigError(
            f"{where}: {name!r} is not a rule grader, so it may fail for the same reason as the "
            "one it replaces"
        )
    if scope == "event" or is_listwise(grader) or getattr(grader, "role", "score") != Role.SCORE:
        raise ConfigError(f"{where}: {name!r} must score whole samples, one at a time")
