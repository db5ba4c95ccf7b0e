"""``adjudge train`` of a file with ``kind = "judge"``: here, by verl, or on a Ray cluster."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from adjudge.cli.bars import StageBars
from adjudge.cli.consoles import clean, errors, output, print_json
from adjudge.cli.grade import new_folder
from adjudge.cli.plan_judge import print_judge_plan
from adjudge.errors import ConfigError
from adjudge.judge_training.card import SPEC
from adjudge.judge_training.judge_tables import VARIABLES
from adjudge.judge_training.judgefile import JudgeFile
from adjudge.judge_training.report import summary_lines
from adjudge.training.launch import run_module, submit

__all__ = ["train_judge"]


def train_judge(
    path: Path,
    folder: Path | None,
    *,
    seed: int | None,
    dry_run: bool,
    as_json: bool,
    quiet: bool,
    ray: str | None = None,
    poll: bool = False,
) -> None:
    """Train the judge of ``path`` into ``folder``, or with ``dry_run`` say what it resolves to.

    ``ray``: submit it as a job to the cluster whose dashboard is there, by default
    ``grpo.ray_address`` (or ``RAY_ADDRESS``) where GRPO on verl gives one; ``poll``: follow it.
    """
    judge = JudgeFile.load(path)
    if seed is not None:
        judge = judge.with_seed(seed)
    if dry_run:
        print_judge_plan(judge, folder, as_json=as_json)
        return
    address = ray or _own_cluster(judge)
    if address is not None:
        raise typer.Exit(_submit(path, address, folder, seed=seed, poll=poll))
    folder = folder or new_folder("judge")
    try:
        if judge.backend == "verl":
            summary = _by_verl(judge, path, folder, quiet=quiet or as_json)
        else:
            summary = _here(judge, path, folder, quiet=quiet)
    except KeyboardInterrupt:
        errors().print(f"To go on where it stopped: the same command with -o {clean(folder)}")
        raise
    if as_json:
        print_json(summary)
        return
    console = output()
    for line in summary_lines(summary):
        console.print(clean(line), soft_wrap=True)
    asks = (folder / SPEC).exists()  # else it was taught to answer, not to judge
    names = ["judge.json", *([SPEC] if asks else []), "report.html"]
    console.print(f"\n[bold]{clean(folder)}/[/]  {'  '.join(names)}")
    if asks:
        console.print(f"[dim]adjudge serve {clean(folder)}[/]", soft_wrap=True)


def _here(judge: JudgeFile, path: Path, folder: Path, *, quiet: bool) -> dict[str, Any]:
    from adjudge.judge_training.run import JudgeJob, run_judge  # noqa: PLC0415  (not for a plan)

    with StageBars(show=not quiet) as bars:
        return run_judge(JudgeJob(judge, path, folder, on_progress=bars.update))


def _by_verl(judge: JudgeFile, path: Path, folder: Path, *, quiet: bool) -> dict[str, Any]:
    from adjudge.judge_training.verl.run import run_verl_judge  # noqa: PLC0415  (when asked for)

    def launch(argv: Sequence[str], env: Mapping[str, str]) -> int:
        return run_module(list(argv), env=env, on_line=(lambda _: None) if quiet else _line)

    found = run_verl_judge(judge, path, folder, launch=launch)
    if isinstance(found, int):
        raise typer.Exit(found)
    return found


def _own_cluster(judge: JudgeFile) -> str | None:
    """The dashboard that the file, or the environment, gives for GRPO on verl.

    Inside a job of a cluster ``RAY_ADDRESS`` is not a dashboard's, and the run is done there.
    """
    if judge.backend != "verl" or judge.method != "grpo":
        return None
    address = judge.grpo.ray_address
    given = "ray_address" in judge.grpo.model_fields_set
    return address if given and address.startswith(("http://", "https://")) else None


def _submit(path: Path, address: str, folder: Path | None, *, seed: int | None, poll: bool) -> int:
    if folder is None or not folder.is_absolute():
        raise ConfigError(
            "--ray: give -o an absolute folder that the cluster's machines share or keep; the "
            "folder that a job runs in goes away with the job"
        )
    arguments = ["-o", str(folder), *(() if seed is None else ("--seed", str(seed)))]
    # Ray has its own RAY_ADDRESS in a job, which is not the dashboard's.
    names = [name for name in VARIABLES if name != "RAY_ADDRESS" and os.environ.get(name)]
    env = {name: os.environ[name] for name in names}
    return submit(path, address=address, arguments=arguments, env=env, poll=poll, on_line=_line)


def _line(text: str) -> None:
    output().print(clean(text), soft_wrap=True, highlight=False)
