"""``adjudge train`` of a file with ``kind = "chain"``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from adjudge.cli.bars import StageBars
from adjudge.cli.consoles import clean, errors, output, print_json
from adjudge.cli.grade import new_folder
from adjudge.errors import JudgeAuthError, JudgeUnavailable
from adjudge.judge_training.chain.file import ChainFile, Stage
from adjudge.judge_training.chain.plan import chain_plan, plan_lines
from adjudge.judge_training.chain.summary import chain_lines
from adjudge.training.sentinel import Alarm

__all__ = ["train_chain"]


def train_chain(
    path: Path,
    folder: Path | None,
    *,
    seed: int | None,
    dry_run: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Do the chain of ``path`` in ``folder``, or with ``dry_run`` say what its stages come to."""
    chain = ChainFile.load(path).shifted(seed or 0)
    folder = folder or new_folder("chain")
    if dry_run:
        found = chain_plan(chain, folder)
        _print(found, as_json=as_json, lines=plan_lines(found))
        return
    from adjudge.judge_training.chain.run import ChainJob, run_chain  # noqa: PLC0415  (not a plan)

    with _Bars(len(chain.stages), show=not quiet) as bars:
        job = ChainJob(
            chain, path, folder,
            on_stage=bars.stage, on_progress=bars.update, on_alarm=bars.alarm,
        )  # fmt: skip
        try:
            run_chain(job)
        except (KeyboardInterrupt, JudgeUnavailable, JudgeAuthError):
            errors().print(f"To go on where it stopped: the same command with -o {clean(folder)}")
            raise
    _print(job.summary, as_json=as_json, lines=chain_lines(job.summary))
    if not as_json:
        output().print(f"\n[bold]{clean(folder)}/[/]  report.html  summary.json", soft_wrap=True)


def _print(found: dict[str, Any], *, as_json: bool, lines: list[str]) -> None:
    if as_json:
        print_json(found)
        return
    for line in lines:
        output().print(clean(line), soft_wrap=True)


class _Bars(StageBars):
    """A bar for each part of a stage, a line as each stage begins."""

    def __init__(self, stages: int, *, show: bool) -> None:
        super().__init__(show=show)
        self._stages_in_all = stages

    def stage(self, number: int, stage: Stage, over: bool) -> None:
        """A line for the stage that begins, or was done before."""
        if self.show:
            said = "done before" if over else f"{stage.kind}, {stage.folder}"
            place = f"[bold]{number}/{self._stages_in_all} {clean(stage.name)}[/]"
            self.line(f"{place}  [dim]{clean(said)}[/]")

    def alarm(self, alarm: Alarm) -> None:
        """A line for what a policy's sentinel just found."""
        if self.show:
            where = f"step {alarm.step}, {alarm.rule.replace('_', ' ')}"
            self.line(f"[bold yellow]sentinel[/] {where}: {clean(alarm.seen)}")
