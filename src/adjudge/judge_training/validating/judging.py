"""One judge asked about a benchmark's items, or read from a recording, and scored."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Any

import msgspec

from adjudge.engine.loop import run_blocking
from adjudge.judge_training.benchmarks.asking import Mode, ask_judge
from adjudge.judge_training.benchmarks.items import Benchmark, PairItem
from adjudge.judge_training.benchmarks.judgements import Judgement, by_item, first_failures
from adjudge.judge_training.benchmarks.preference import calibration_of, differences
from adjudge.judge_training.benchmarks.report import pairs_of, score_benchmark
from adjudge.judge_training.validating.candidates import Candidate
from adjudge.judge_training.validating.contamination import contamination_of
from adjudge.judge_training.validating.folder import ValidationFolder
from adjudge.judge_training.validating.job import ValidationJob
from adjudge.judge_training.validating.materials import Material
from adjudge.judge_training.validating.summary import contamination_entry, judge_entry
from adjudge.runner.journal import Journal
from adjudge.runner.progress import Progress, Tally

__all__ = ["judge_one"]


def judge_one(
    job: ValidationJob,
    folder: ValidationFolder,
    material: Material,
    one: Candidate,
    mode: Mode,
    place: int,
) -> dict[str, Any]:
    """One judge asked (or read) and scored: its entry of the summary."""
    benchmark = material.benchmark
    tally = Tally(sum(_questions(item) for item in benchmark.items))
    if one.recording is not None:
        known = by_item(benchmark, one.recording.on(benchmark))
        judgements = [known[item.subset, item.id] for item in benchmark.items]
    else:
        judgements = _asked(job, folder, benchmark, one, mode, place, tally)
    job.judgements[one.name] = judgements
    seen = contamination_of(material, one.folder, one.card)
    report = score_benchmark(
        benchmark,
        judgements,
        judge=one.name,
        scale=one.scale or job.scale,
        contaminated=None if seen.compared == "nothing" else seen.items,
        resamples=job.resamples,
    )
    return judge_entry(
        report,
        benchmark,
        calibrated=_calibrated(one, benchmark, judgements),
        kind=one.kind,
        mode=mode,
        scale=one.scale or job.scale,
        folder=None if one.folder is None else str(one.folder),
        questions=tally.total,
        resumed=tally.resumed,
        contamination=contamination_entry(seen),
        first_failures=first_failures(judgements),
    )


def _calibrated(
    one: Candidate, benchmark: Benchmark, judgements: Sequence[Judgement]
) -> dict[str, Any] | None:
    """How well the probabilities of a scalar judge's own card fit; ``None`` where it has none."""
    own = None if one.card is None else one.card.calibration
    if one.kind != "scalar" or own is None or own.method is None:
        return None
    chances = [own.probability(by) for by in differences(pairs_of(benchmark, judgements))]
    return {"by": own.method, **msgspec.to_builtins(calibration_of(chances))}


def _asked(
    job: ValidationJob,
    folder: ValidationFolder,
    benchmark: Benchmark,
    one: Candidate,
    mode: Mode,
    place: int,
    tally: Tally,
) -> list[Judgement]:
    assert one.judge is not None  # noqa: S101  (checked by mode_for)
    identity = sha256(one.identity.encode()).hexdigest()[:16]
    journal = Journal(folder.path / f"answers-{place + 1}.jsonl", identity)
    try:
        with Progress(tally, show=job.show_progress, title=one.name):
            return run_blocking(
                ask_judge(
                    one.judge,
                    benchmark,
                    mode=mode,
                    max_concurrency=job.concurrency or one.concurrency,
                    journal=journal,
                    tally=tally,
                )
            )
    finally:
        journal.flush()
        for model in one.local_models:
            run_blocking(model.aclose())


def _questions(item: Any) -> int:
    return 2 if isinstance(item, PairItem) else len(item.answers)
