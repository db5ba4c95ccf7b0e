"""A whole chain: each stage in its folder, done once, gone on with where it stopped."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import adjudge
from adjudge.errors import AdjudgeError, ConfigError, RunFolderError
from adjudge.judge_training.chain.checking import check_inputs, check_judge, check_libraries
from adjudge.judge_training.chain.file import ChainFile, Stage
from adjudge.judge_training.chain.folder import ChainFolder, summary_of
from adjudge.judge_training.chain.report import write_chain_report
from adjudge.judge_training.chain.summary import stage_summary
from adjudge.judge_training.judgefile import JudgeFile
from adjudge.judge_training.run import JudgeJob, run_judge
from adjudge.training.run import TrainingJob, train_run
from adjudge.training.runfile import RunFile
from adjudge.training.sentinel import Alarm
from adjudge.training.served import check_service
from adjudge.training.state import read_rows

__all__ = ["ChainJob", "run_chain"]

_SUMMARY = "summary.json"


@dataclass
class ChainJob:
    """A chain's file and a folder to run it into.

    ``on_stage(number, stage, over)`` hears of each stage as it begins, from 1, ``over`` if it was
    done before; ``on_progress(what, done, total)`` of the steps within it, ``what`` beginning with
    the stage's name; ``on_alarm`` of each alarm of a policy's sentinel. ``summary`` is what
    :func:`run_chain` found, the content of ``summary.json``.
    """

    chain: ChainFile
    source: Path
    folder: Path
    on_stage: Callable[[int, Stage, bool], None] = lambda *_: None
    on_progress: Callable[[str, int, int], None] = lambda *_: None
    on_alarm: Callable[[Alarm], None] = lambda _: None
    summary: dict[str, Any] = field(default_factory=dict)


def run_chain(job: ChainJob) -> dict[str, Any]:
    """Do the stages in order into ``job.folder``, or go on with a chain that was interrupted.

    A stage whose ``summary.json`` is there is not done again; an interrupted one goes on as its own
    kind of run does. The folder then holds a folder and a file a stage, ``summary.json`` and
    ``report.html``. Raises what a stage raises, with the stage's name in it, and
    :class:`~adjudge.errors.RunFolderError` for a folder of another chain.
    """
    # Of missing libraries and files one hears before hours of training.
    stages = job.chain.stages_in(job.folder)
    for stage in stages:
        if not (stage.folder / _SUMMARY).exists():
            check_inputs(stage, job.folder)
        if isinstance(stage.file, RunFile):
            check_service(stage.file)
        elif stage.kind == "evaluate":
            check_libraries()
    with closing(ChainFolder(job.folder, job.chain, job.source)) as folder:
        found = []
        for number, stage in enumerate(stages, start=1):
            known = summary_of(stage.folder / _SUMMARY)
            job.on_stage(number, stage, known is not None)
            summary = _done(job, folder, stage) if known is None else known
            found.append(stage_summary(stage, summary))
        job.summary = {
            "adjudge": adjudge.__version__,
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "kind": "chain",
            "label": job.chain.label or job.source.stem,
            "seed": job.chain.seed,
            "stages": found,
            "seconds": {"total": round(sum(one["seconds"] or 0.0 for one in found), 1)},
        }
        curves = {
            stage.name: read_rows(stage.folder / "metrics.jsonl")
            for stage in stages
            if stage.kind == "run"
        }
        write_chain_report(folder.path / "report.html", job.summary, curves)
        folder.write_json(_SUMMARY, job.summary)
    return job.summary


def _done(job: ChainJob, folder: ChainFolder, stage: Stage) -> dict[str, Any]:
    """Do one stage; its summary, in which ``seconds.total`` is what this took now."""
    started = time.perf_counter()

    def heard(what: str, done: int, total: int) -> None:
        job.on_progress(f"{stage.name}: {what}", done, total)

    try:
        source = folder.stage_file(stage)
        match stage.file:
            case JudgeFile() as judge:
                summary = run_judge(JudgeJob(judge, source, stage.folder, on_progress=heard))
            case RunFile() as run:
                summary = train_run(
                    TrainingJob(run, source, stage.folder, on_progress=heard, on_alarm=job.on_alarm)
                )
            case check:
                stage.folder.mkdir(parents=True, exist_ok=True)
                summary = check_judge(check, stage.beside, stage.folder, heard)
                folder.write_json(f"{stage.name}/{_SUMMARY}", summary)
    except (ConfigError, RunFolderError) as error:
        raise _named(error, stage) from error
    summary["seconds"]["total"] = round(time.perf_counter() - started, 1)
    return summary


def _named(error: AdjudgeError, stage: Stage) -> AdjudgeError:
    """The complaint with the stage's name, if it has not got it."""
    said = str(error)
    return error if said.startswith(stage.where) else type(error)(f"{stage.where}: {said}")
