"""A chain of trainings: its folder, its plan, and its run.

The folder is claimed for one file and seed, with a folder a stage. Each stage is done once, and
gone on with where it stopped.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from adjudge.checks.steps import StepAlarm
from adjudge.errors import AdjudgeError, ConfigError, RunFolderError
from adjudge.runs.folder import RunFolder, read_json_object
from adjudge.version import describe_writer
from adjudge_lab.judge_training.chain.evaluation import (
    check_serving_libraries,
    check_stage_inputs,
    evaluate_trained_judge,
)
from adjudge_lab.judge_training.chain.file import ChainFile, ResolvedStage
from adjudge_lab.judge_training.chain.report import stage_summary, write_chain_report
from adjudge_lab.judge_training.judge_file import JudgeFile, JudgeJob
from adjudge_lab.judge_training.run import run_judge
from adjudge_lab.rl.plan import plan_run
from adjudge_lab.rl.rewards import check_service_libraries, format_toml
from adjudge_lab.rl.run import TrainingJob, train_run
from adjudge_lab.rl.runfile import RunFile

_SUMMARY = "summary.json"


_STAGE_FILES = (_SUMMARY, "run.json")


class ChainFolder(RunFolder):
    """``path``, claimed for ``chain`` (read from ``source``), or taken up again where it stopped.

    Raises :class:`~adjudge.errors.RunFolderError` as :class:`~adjudge.runs.folder.RunFolder`, and
    for a stage's folder that holds something else.
    """

    def __init__(self, path: Path, chain: ChainFile, source: Path) -> None:
        super().__init__(
            path,
            {"kind": "chain", "label": chain.label, "seed": chain.seed},
            {"seed": "another seed"},
            config=source.read_bytes(),
            # The summary of a stage would be taken for what this chain made of it; a stage that has
            # no result has given its own claim back.
            outputs=[f"{one.name}/{file}" for one in chain.stages for file in _STAGE_FILES],
            once=True,
        )

    def _prepare(self) -> None:
        self.update_facts(pid=os.getpid())

    def stage_file(self, stage: ResolvedStage) -> Path:
        """The stage's own file beside its folder: what the chain's says, references resolved."""
        kind = {"judge": {"kind": "judge"}, "run": {"kind": "rl"}}.get(stage.kind, {})
        return self.write(f"{stage.name}.toml", format_toml({**kind, **stage.data}).encode())


def chain_plan(chain: ChainFile, folder: Path) -> dict[str, Any]:
    """The stages as they would be done in ``folder``, as plain data.

    A judge's stage with every default in its place; a policy's as its own dry run has it, where
    that can be said before its judge is trained, else what its file says. Nothing is asked,
    started, written or read but the files that are named.
    """
    stages = [_plan_stage(stage) for stage in chain.stages_in(folder)]
    return {"label": chain.label, "seed": chain.seed, "folder": str(folder), "stages": stages}


def _plan_stage(stage: ResolvedStage) -> dict[str, Any]:
    file = stage.file
    overview: dict[str, Any] = {
        "name": stage.name,
        "kind": stage.kind,
        "after": list(stage.after),
        "folder": str(stage.folder),
        "settings": file.model_dump(mode="json", exclude_none=True),
    }
    if isinstance(file, JudgeFile):
        overview["overrides"] = file.overrides
    if isinstance(file, RunFile):
        overview["plan"] = None if file.lacks_trained_judge else plan_run(file).data()
    return overview


def chain_plan_lines(found: Mapping[str, Any]) -> list[str]:
    """What a terminal shows of a chain's plan."""
    lines = []
    for number, one in enumerate(found["stages"], start=1):
        after = f", builds on {', '.join(one['after'])}" if one["after"] else ""
        lines.append(f"{number}  {one['name']}: {_PLAN_TEXTS[one['kind']](one['settings'])}{after}")
        lines += [
            f"   {name:<10} {_table_values(value)}"
            for name, value in one["settings"].items()
            if isinstance(value, dict) and value
        ]
    return lines


def _plan_judge(settings: Mapping[str, Any]) -> str:
    return f"judge by {settings['method'].replace('_', ' ')} on {settings['backend']}"


def _plan_evaluation(settings: Mapping[str, Any]) -> str:
    what = "made-up preferences" if "synthetic" in settings else ", ".join(settings["files"])
    return f"{settings['judge']} evaluated on {what}"


def _plan_policy(settings: Mapping[str, Any]) -> str:
    training = settings["training"]
    steps = training["num_epochs"] * training["iterations_per_epoch"]
    answers = training["batch_size"] * training["gradient_accumulation_steps"]
    judged = settings["judge"]
    who = judged.get("folder") or judged["model"] or "nobody"
    served = ", behind adjudge serve" if settings["services"].get("judge_url") else ""
    return (
        f"policy, {steps:,} steps of {answers:,} answers in groups of {training['group_size']}, "
        f"judged by {who}{served}"
    )


_PLAN_TEXTS = {"judge": _plan_judge, "evaluate": _plan_evaluation, "run": _plan_policy}


def _table_values(table: Mapping[str, Any]) -> str:
    return "  ".join(f"{key}={value}" for key, value in table.items() if value not in ({}, []))


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
    on_stage: Callable[[int, ResolvedStage, bool], None] = lambda *_: None
    on_progress: Callable[[str, int, int], None] = lambda *_: None
    on_alarm: Callable[[StepAlarm], None] = lambda _: None
    summary: dict[str, Any] = field(default_factory=dict)


def run_chain(job: ChainJob) -> dict[str, Any]:
    """Do the stages in order into ``job.folder``, or go on with a chain that was interrupted.

    A stage with a ``summary.json`` is not done again; an interrupted one goes on as its own
    kind of run does. The folder then holds a folder and a file a stage, ``summary.json`` and
    ``report.html``. Raises what a stage raises, with the stage's name in it, and
    :class:`~adjudge.errors.RunFolderError` for a folder of another chain.
    """
    # Of missing libraries and files one hears before hours of training.
    stages = job.chain.stages_in(job.folder)
    for stage in stages:
        if not (stage.folder / _SUMMARY).exists():
            check_stage_inputs(stage, job.folder)
        if isinstance(stage.file, RunFile):
            check_service_libraries(stage.file)
        elif stage.kind == "evaluate":
            check_serving_libraries()
    with (
        closing(ChainFolder(job.folder, job.chain, job.source)) as folder,
        folder.releases_failed_start(),
    ):
        found = []
        for number, stage in enumerate(stages, start=1):
            known = read_json_object(stage.folder / _SUMMARY)
            job.on_stage(number, stage, known is not None)
            summary = _run_stage(job, folder, stage) if known is None else known
            found.append(stage_summary(stage, summary))
        job.summary = {
            **describe_writer(),
            "kind": "chain",
            "label": job.chain.label or job.source.stem,
            "seed": job.chain.seed,
            "stages": found,
            "seconds": {"total": round(sum(one["seconds"] or 0.0 for one in found), 1)},
        }
        write_chain_report(folder.path / "report.html", job.summary)
        folder.write_json(_SUMMARY, job.summary)
    return job.summary


def _run_stage(job: ChainJob, folder: ChainFolder, stage: ResolvedStage) -> dict[str, Any]:
    """Do one stage; its summary, in which ``seconds.total`` is what this took now."""
    started = time.perf_counter()

    def report_progress(what: str, done: int, total: int) -> None:
        job.on_progress(f"{stage.name}: {what}", done, total)

    try:
        source = folder.stage_file(stage)
        match stage.file:
            case JudgeFile() as judge:
                summary = run_judge(
                    JudgeJob(judge, source, stage.folder, on_progress=report_progress)
                )
            case RunFile() as run:
                summary = train_run(
                    TrainingJob(
                        run,
                        source,
                        stage.folder,
                        on_progress=report_progress,
                        on_alarm=job.on_alarm,
                    )
                )
            case check:
                stage.folder.mkdir(parents=True, exist_ok=True)
                summary = evaluate_trained_judge(check, stage.beside, stage.folder, report_progress)
                folder.write_json(f"{stage.name}/{_SUMMARY}", summary)
    except (ConfigError, RunFolderError) as error:
        raise _with_stage_name(error, stage) from error
    summary["seconds"]["total"] = round(time.perf_counter() - started, 1)
    return summary


def _with_stage_name(error: AdjudgeError, stage: ResolvedStage) -> AdjudgeError:
    """The complaint with the stage's name, if it has not got it."""
    said = str(error)
    return error if said.startswith(stage.where) else type(error)(f"{stage.where}: {said}")
