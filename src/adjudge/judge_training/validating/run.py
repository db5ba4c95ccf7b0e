"""A whole validation: judges asked about a benchmark's items, scored, compared, written down."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

import adjudge
from adjudge.engine.loop import run_blocking
from adjudge.errors import PASSING_KINDS, JudgeUnavailable
from adjudge.judge_training.benchmarks.compare import compare_judges
from adjudge.judge_training.benchmarks.items import KINDS, Benchmark
from adjudge.judge_training.benchmarks.judgements import Judgement
from adjudge.judge_training.benchmarks.local import write_local_sample
from adjudge.judge_training.validating.candidates import Candidate
from adjudge.judge_training.validating.folder import open_folder
from adjudge.judge_training.validating.job import (
    ValidationJob,
    candidates_of,
    material_of,
    mode_for,
)
from adjudge.judge_training.validating.judging import judge_one
from adjudge.judge_training.validating.materials import Material, item_digest
from adjudge.judge_training.validating.recorded import JUDGEMENTS, Kept
from adjudge.judge_training.validating.report import write_validation_report
from adjudge.judge_training.validating.summary import compared_entry, material_entry
from adjudge.judges.calls import CallCount

__all__ = ["ValidationJob", "validate_judges"]


def validate_judges(job: ValidationJob) -> dict[str, Any]:
    """Ask, score and compare; the summary.

    Writes ``judgements.jsonl`` (a line an item and judge), ``summary.json`` and ``report.html``. A
    folder that holds the same validation is gone on with: what was answered is not asked again,
    what failed is. Raises :class:`~adjudge.errors.RunFolderError` for any other folder,
    :class:`~adjudge.errors.ConfigError` for what cannot be validated,
    :class:`~adjudge.errors.JudgeAuthError` for a refused key, and, after writing,
    :class:`~adjudge.errors.JudgeUnavailable` where a judge answered nothing because it was away.
    """
    started = time.perf_counter()
    candidates = candidates_of(job)
    material = material_of(job, candidates)
    benchmark = material.benchmark
    modes = [mode_for(job, one, benchmark) for one in candidates]
    calls = run_blocking(_count())
    with open_folder(job.folder, _manifest(job, candidates, material)) as folder:
        if material.local:
            _write_sample(folder.path, job.kind)
        entries = [
            judge_one(job, folder, material, one, mode, place)
            for place, (one, mode) in enumerate(zip(candidates, modes, strict=True))
        ]
        folder.write(JUDGEMENTS, _lines(benchmark, job.judgements))
        compared = compare_judges(benchmark, job.judgements, resamples=job.resamples)
        job.summary = {
            "adjudge": adjudge.__version__,
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "benchmark": material_entry(material),
            "judges": entries,
            "compared": [compared_entry(one) for one in compared],
            "seconds": round(time.perf_counter() - started, 1),
            "endpoints": run_blocking(_table(calls)),
        }
        folder.write_json("summary.json", job.summary)
        write_validation_report(folder.path / "report.html", job.summary, benchmark, job.judgements)
    _refuse_silence(entries)
    return job.summary


def _manifest(
    job: ValidationJob, candidates: Sequence[Candidate], material: Material
) -> dict[str, Any]:
    return {
        "kind": "validation",
        "adjudge": adjudge.__version__,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "label": " against ".join(one.name for one in candidates),
        "judges": [[one.name, one.identity] for one in candidates],
        "items": material.identity,
        "asked": {"mode": job.mode},
    }


def _lines(benchmark: Benchmark, judgements: Mapping[str, Sequence[Judgement]]) -> bytes:
    """A line an item and judge, items in order."""
    digests = [item_digest(item) for item in benchmark.items]
    lines = []
    for place, digest in enumerate(digests):
        for name, own in judgements.items():
            said = own[place]
            kept = Kept(
                judge=name,
                item=digest,
                subset=said.subset,
                id=said.id,
                scores=said.scores,
                verdicts=said.verdicts,
            )
            lines.append(msgspec.json.encode(kept) + b"\n")
    return b"".join(lines)


def _refuse_silence(entries: Sequence[Mapping[str, Any]]) -> None:
    """A judge that was away throughout was not validated."""
    for entry in entries:
        overall = entry["overall"]
        kinds = {*overall["failures"]}
        away = kinds and kinds <= {kind.value for kind in PASSING_KINDS}
        gone = sum(overall["failures"].values())
        if entry["kind"] != "recorded" and away and gone == entry["questions"]:
            why = "; ".join(f"{kind}: {said}" for kind, said in entry["first_failures"].items())
            raise JudgeUnavailable(f"{entry['name']} answered nothing ({why})")


def _write_sample(folder: Path, name: str | None) -> None:
    for kind in KINDS:
        if kind == name:
            write_local_sample(folder / f"local-{kind}.jsonl", kind)


async def _count() -> CallCount:
    return CallCount()


async def _table(calls: CallCount) -> list[dict[str, Any]]:
    return calls.table()
