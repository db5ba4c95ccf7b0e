"""What is to be validated: judges, items, how they are asked; checked before anybody is asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from adjudge.errors import ConfigError
from adjudge.judge_training.benchmarks.asking import Mode, mode_of
from adjudge.judge_training.benchmarks.intervals import RESAMPLES
from adjudge.judge_training.benchmarks.items import Benchmark, as_pairs
from adjudge.judge_training.benchmarks.judgements import Judgement
from adjudge.judge_training.benchmarks.preference import ScoreScale
from adjudge.judge_training.validating.candidates import Candidate, find_candidate
from adjudge.judge_training.validating.materials import (
    Material,
    item_digest,
    kind_of,
    read_material,
)

__all__ = ["ValidationJob", "candidates_of", "material_of", "mode_for"]


@dataclass
class ValidationJob:
    """Which judges are validated on what, and where it goes.

    ``judges``: one, or several on the same items: names as
    :func:`~adjudge.judge_training.validating.candidates.find_candidate` takes them, or candidates.
    ``data``: files, or ``["local"]``; may be left out where a judge is a recording with its items.
    ``kind``: that of the benchmark, told from the files by default. ``mode``, ``scale`` (of scores
    whose judge does not say) and ``concurrency`` (default: that of the judge's spec) are for judges
    that are asked. ``summary`` and ``judgements`` (by judge) are what comes out.
    """

    judges: Sequence[str | Candidate]
    folder: Path
    data: Sequence[str] = ()
    kind: str | None = None
    mode: Mode | None = None
    scale: ScoreScale | None = None
    concurrency: int | None = None
    show_progress: bool = False
    resamples: int = RESAMPLES
    summary: dict[str, Any] = field(default_factory=dict)
    judgements: dict[str, list[Judgement]] = field(default_factory=dict)


def candidates_of(job: ValidationJob) -> list[Candidate]:
    """The judges, each under a name of its own; raises :class:`ConfigError` for one twice."""
    found = [find_candidate(one) if isinstance(one, str) else one for one in job.judges]
    seen: dict[str, str] = {}
    names: set[str] = set()
    for one in found:
        if one.identity in seen:
            raise ConfigError(f"--against {one.name}: is the same judge as {seen[one.identity]}")
        seen[one.identity] = one.name
        one.name = _unused(one.name, names)
    return found


def _unused(name: str, names: set[str]) -> str:
    number, free = 2, name
    while free in names:
        number, free = number + 1, f"{name} ({number})"
    names.add(free)
    return free


def material_of(job: ValidationJob, candidates: Sequence[Candidate]) -> Material:
    """The items; raises :class:`ConfigError` where there are none, or not of the kind asked for."""
    kind_of(job.kind)
    material = read_material(job.data, job.kind) if job.data else _recorded_items(job, candidates)
    if job.mode == "pairwise" and material.benchmark.kind == "rewardbench2":
        pairs = as_pairs(material.benchmark)
        if not pairs.items:
            raise ConfigError("--mode pairwise: Ties alone has no pairs")
        return Material(pairs, material.files, material.local)
    return material


def _recorded_items(job: ValidationJob, candidates: Sequence[Candidate]) -> Material:
    """The items that a recording brings along."""
    recordings = [one.recording for one in candidates if one.recording is not None]
    benchmark = next((one.benchmark for one in recordings if one.benchmark is not None), None)
    if benchmark is None:
        raise ConfigError(
            "--data: is required: files of the benchmark, or 'local' for a self-made sample of its "
            "shape (only LLMBar's recorded verdicts bring their items along)"
        )
    if job.kind not in (None, benchmark.kind):
        raise ConfigError(f"--benchmark {job.kind}: the recorded items are those of llmbar")
    files = [{"file": "recorded", "bytes": 0, "sha256": _items_hash(benchmark)}]
    return Material(benchmark, files)


def _items_hash(benchmark: Benchmark) -> str:
    return sha256("".join(map(item_digest, benchmark.items)).encode()).hexdigest()


def mode_for(job: ValidationJob, one: Candidate, benchmark: Benchmark) -> Mode:
    """How a judge is asked, or was; raises :class:`ConfigError` where it cannot be."""
    if one.recording is not None:
        return "pointwise" if one.recording.scores else "pairwise"
    if one.judge is None:
        raise ConfigError(f"judge {one.name}: neither answers nor was recorded")
    best_of = benchmark.kind == "rewardbench2"
    if best_of and not hasattr(one.judge, "score"):
        raise ConfigError(
            f"judge {one.name}: compares pairs, and rewardbench2 scores every answer by itself; "
            "--mode pairwise asks about its items as pairs (not the benchmark's own protocol)"
        )
    try:
        return mode_of(one.judge, benchmark, job.mode)
    except ConfigError as error:
        raise ConfigError(f"judge {one.name}: {error}") from None
