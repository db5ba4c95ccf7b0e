"""Whose marks count: the rubric grader of a reward spec, asked about the rows' own rubrics."""

from __future__ import annotations

from pathlib import Path

from adjudge.config import load_toml, nearest
from adjudge.errors import ConfigError
from adjudge.rewards.spec import GraderEntry, RewardSpec

__all__ = ["rubric_spec"]

_FIXED = ("rubric", "rubric_id", "criteria", "part")


def rubric_spec(target: str, *, concurrency: int | None = None) -> tuple[RewardSpec, str]:
    """The spec of ``FILE.toml`` or ``FILE.toml#GRADER`` with that grader alone, and its name.

    Its rubric is each row's, its formula HealthBench's (``points``, not clipped), whatever the spec
    says; how it asks, and whom, is the spec's. Raises :class:`ConfigError` for a spec without a
    rubric grader or with several of which none is named, and for one with a rubric of its own.
    """
    file, _, wanted = target.partition("#")
    path = Path(file)
    if path.suffix.lower() != ".toml":
        raise ConfigError(f"{target}: must be a reward spec (SPEC.toml, or SPEC.toml#GRADER)")
    whole = RewardSpec.load(path)
    entry = _chosen(whole, wanted)
    if isinstance(entry.judge, list) or entry.panel is not None:
        raise ConfigError(f"{target}: {entry.name} asks several judges; give it one")
    if own := [key for key in _FIXED if (entry.model_extra or {}).get(key) is not None]:
        raise ConfigError(
            f"{target}: {entry.name}.{own[0]}: every row brings its own rubric; leave it out"
        )
    data = load_toml(path)
    table = next(one for one in data["graders"] if one["name"] == entry.name)
    kept = {key: value for key, value in table.items() if key not in ("mapper", "scope")}
    data["graders"] = [
        {**kept, "field": "rubric", "scheme": "points", "clip": False, "weight": 1.0}
    ]
    data["reward"] = {"normalise": False}
    data["missing"] = {
        key: value
        for key, value in data.get("missing", {}).items()
        if key in ("max_missing", "patience_s")
    }
    if concurrency is not None:
        data["max_concurrency"] = concurrency
    return RewardSpec.from_dict(data, where=str(path), folder=path.parent), entry.name


def _chosen(spec: RewardSpec, wanted: str) -> GraderEntry:
    rubrics = {entry.name: entry for entry in spec.graders if entry.type == "rubric"}
    if wanted:
        if wanted not in rubrics:
            raise ConfigError(
                f"{spec.where}#{wanted}: is no grader of type rubric{nearest(wanted, rubrics)}"
            )
        return rubrics[wanted]
    if len(rubrics) == 1:
        return next(iter(rubrics.values()))
    named = f"; name one: {spec.where}#GRADER ({', '.join(rubrics)})" if rubrics else ""
    raise ConfigError(
        f"{spec.where}: has {len(rubrics)} graders of type rubric, one marks the criteria{named}"
    )
