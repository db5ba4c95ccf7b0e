"""``adjudge train``: a policy learns from judges, or a judge from preferences."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from adjudge.cli.bars import StageBars
from adjudge.cli.consoles import clean, errors, output, print_json
from adjudge.cli.env_file import load_env_file
from adjudge.cli.grade import new_folder
from adjudge.config import load_toml
from adjudge.errors import ConfigError, JudgeAuthError, JudgeUnavailable
from adjudge.training.launch import run_module, submit
from adjudge.training.rl import StepRow
from adjudge.training.run import TrainingJob, train_run
from adjudge.training.runfile import RunFile
from adjudge.training.sentinel import Alarm

__all__ = ["train"]

_OF_JUDGED = ("reward", "judge", "gold")


class Kind(StrEnum):
    """What is trained."""

    RL = "rl"
    JUDGE = "judge"
    CHAIN = "chain"


def train(
    run: Annotated[
        Path | None, typer.Argument(metavar="RUN.toml", help="The run file.", show_default=False)
    ] = None,
    config: Annotated[
        Path | None, typer.Option("--config", help="The run file, as an option.")
    ] = None,
    kind: Annotated[
        Kind | None, typer.Option("--type", help="What is trained; the run file says it, too.")
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output",
            help="The run folder [default: runs/train-TIME]. One of the same run that was "
            "interrupted is gone on with.",
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(
            "--seed", min=0, help="Instead of the run file's; of a chain: added to each stage's."
        )
    ] = None,
    env_file: Annotated[
        Path | None,
        typer.Option("--env-file", help="A file of KEY=VALUE lines for the environment."),
    ] = None,
    approximate: Annotated[
        bool,
        typer.Option(
            "--approximate", help="Run although the backend cannot honour all that the file asks."
        ),
    ] = False,
    ray: Annotated[
        str | None,
        typer.Option(
            "--ray", metavar="ADDRESS",
            help="Submit the run as a job to this Ray cluster (http://HEAD:8265); needs -o.",
        ),
    ] = None,
    poll: Annotated[
        bool, typer.Option("--poll", help="Follow a submitted job until it ends.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Train nothing: say what would be done, and stop.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the summary as JSON instead of lines.")
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="No progress bar and no line a step.")
    ] = False,
) -> None:  # fmt: skip
    """Train a policy against judges and environments, a judge, or both in a chain, as a file says.

    The policy plays episodes; each is judged as it ends; TRL's GRPOTrainer (or verl) learns from
    the rewards. What a judge could not say is missing and learned from by nobody.

    Writes to the run folder as it goes: metrics.jsonl (a row a step), rollouts.jsonl (every
    rollout with its verdicts), evaluation.jsonl (held-out episodes), checkpoints/; at the end
    model/, summary.json, report.html. adjudge view FOLDER shows it all while it runs. The same
    command with the same -o goes on with a run that was interrupted; what was played and paid for
    is not played or paid for again. A sentinel watches whether the judge's reward still means what
    was wanted; by [sentinel] action it warns or stops the run.

    A file with kind = "judge" trains a judge instead, and its folder is the judge: adjudge serve
    FOLDER, or [judge] folder in a run file. One with kind = "chain" has [[stages]] that are done in
    order, each begun with what an earlier one left ("@NAME"), stages that are over not again: a
    judge, how it does on unseen pairs, a policy that learns from it. See docs/training-judges.md.

    Needs torch and TRL (make demo-rl sets them up). base = "tiny" needs no network and no GPU;
    --dry-run needs none of it.

    Example: adjudge train examples/rl_tiny.toml -o runs/first

    Example: adjudge train examples/judge_tiny.toml -o runs/chain
    """
    path = _one_file(run, config)
    if env_file is not None:
        load_env_file(env_file)
    found = load_toml(path).get("kind", "rl")
    if kind is not None and kind != found:
        raise ConfigError(f"{path}: kind: found {found!r}, and --type says {str(kind)!r}")
    if poll and ray is None and found != "judge":  # which may name a cluster itself
        raise ConfigError("--poll: follows what --ray submits; give its ADDRESS, too")
    if approximate and found != "rl":
        raise ConfigError(f"--approximate: is for the backends of a policy; {path} is a {found}")
    told: dict[str, Any] = {"seed": seed, "dry_run": dry_run, "as_json": as_json, "quiet": quiet}
    if found == "judge":
        from adjudge.cli.train_judge import train_judge  # noqa: PLC0415  (only when asked for)

        train_judge(path, folder, **told, ray=ray, poll=poll)
        return
    if found == "chain":
        from adjudge.cli.train_chain import train_chain  # noqa: PLC0415  (only when asked for)

        if ray is not None:
            raise ConfigError(
                "--ray: a chain is done on this machine; give its stages by themselves"
            )
        train_chain(path, folder, **told)
        return
    wanted = RunFile.load(path)
    if seed is not None:
        wanted = wanted.with_seed(seed)
    if dry_run:
        from adjudge.cli.plan import print_plan  # noqa: PLC0415  (only when asked for)
        from adjudge.training.planning.foreseen import check_run_machine  # noqa: PLC0415
        from adjudge.training.planning.plan import plan  # noqa: PLC0415  (only when asked for)

        print_plan(plan(wanted), as_json=as_json)
        check_run_machine(wanted)
        return
    from adjudge.training.planning.honoured import check_honoured  # noqa: PLC0415  (not for a plan)

    check_honoured(wanted, approximate)
    if ray is not None:
        _submit(wanted, path, ray, folder, seed=seed, approximate=approximate, poll=poll)
        return
    if wanted.backend == "verl":
        from adjudge.training.verl.run import run_verl  # noqa: PLC0415  (only when asked for)

        raise typer.Exit(run_verl(wanted, folder or new_folder("train"), launch=_launched))
    _train_here(wanted, path, folder or new_folder("train"), quiet=quiet, as_json=as_json)


def _one_file(run: Path | None, config: Path | None) -> Path:
    given = [path for path in (run, config) if path is not None]
    if len(given) != 1:
        raise ConfigError("give the run file once: adjudge train RUN.toml, or --config RUN.toml")
    return given[0]


def _train_here(run: RunFile, path: Path, folder: Path, *, quiet: bool, as_json: bool) -> None:
    with _Bars(show=not quiet) as bar:
        job = TrainingJob(
            run,
            path,
            folder,
            on_progress=bar.update,
            on_row=(lambda *_: None) if quiet else bar.row,
            on_alarm=bar.alarm,
        )
        bar.begin(folder)
        try:
            train_run(job)
        except (KeyboardInterrupt, JudgeUnavailable, JudgeAuthError):
            errors().print(f"To go on where it stopped: the same command with -o {clean(folder)}")
            raise
    if as_json:
        print_json(job.summary)
    else:
        _print_summary(job)


def _submit(
    run: RunFile,
    path: Path,
    address: str,
    folder: Path | None,
    *,
    seed: int | None,
    approximate: bool,
    poll: bool,
) -> None:
    if folder is None or not folder.is_absolute():
        raise ConfigError(
            "--ray: give -o an absolute folder that the cluster's machines share or keep; the "
            "folder that a job runs in goes away with the job"
        )
    arguments = ["-o", str(folder), *(["--approximate"] * approximate)]
    if seed is not None:
        arguments += ["--seed", str(seed)]
    named = (run.judge_key_env, run.services.task_key_env if run.services.task_url else None)
    env = {name: os.environ[name] for name in named if name is not None and name in os.environ}
    raise typer.Exit(
        submit(path, address=address, arguments=arguments, env=env, poll=poll, on_line=_line)
    )


def _launched(argv: Sequence[str], env: Mapping[str, str]) -> int:
    return run_module(list(argv), env=env, on_line=_line)


def _line(text: str) -> None:
    output().print(clean(text), soft_wrap=True, highlight=False)


def _print_summary(job: TrainingJob) -> None:
    console, summary = output(), job.summary
    first, last = summary["first"], summary["last"]
    steps = f"{summary['steps']} of {summary['steps_planned']} steps"
    console.print(f"[bold]{steps}[/] in {summary['seconds']['total']:.0f} s; first → last tenth:")
    for name, key in (
        ("reward", "reward"), ("environment", "env"), ("judge", "judge"), ("gold", "gold"),
        ("length, tokens", "length"),
    ):  # fmt: skip
        if first[key] is not None and last[key] is not None:
            share = _share_shown(summary) if key in _OF_JUDGED else ""
            console.print(f"  {name:<16}{first[key]:7.3f} → {last[key]:.3f}{share}")
    _print_sentinel(console, summary)
    console.print(f"\n[bold]{clean(job.folder)}/[/]  report.html  rollouts.jsonl  model/")
    console.print(f"[dim]adjudge view {clean(job.folder)}[/]", soft_wrap=True)


def _share_shown(summary: dict[str, Any]) -> str:
    """How many rollouts stand behind a mean of rewards, where some are missing."""
    missing = [summary[when]["missing"] or 0.0 for when in ("first", "last")]
    if not any(missing):
        return ""
    shares = " → ".join(f"{1 - share:.1%}" for share in missing)
    return f"  [yellow]of {shares} of the rollouts, the others' rewards are missing[/]"


def _print_sentinel(console: Console, summary: dict[str, Any]) -> None:
    alarms = summary["sentinel"]["alarms"]
    if not alarms:
        console.print("  sentinel        nothing to report")
    for one in alarms:
        style = "bold" if one["note"] else "bold yellow"
        where = f"step {one['step']}, {one['rule'].replace('_', ' ')}"
        console.print(
            f"  sentinel        [{style}]{where}[/]: {clean(one['seen'])}", soft_wrap=True
        )
        console.print(f"                  [dim]→[/] {clean(one['advice'])}", soft_wrap=True)


class _Bars(StageBars):
    """A bar a stage; steps and alarms are lines above them."""

    def begin(self, folder: Path) -> None:
        """A line with where the run is written, and how to watch it."""
        if self.show:
            self.line(f"[bold]{clean(folder)}/[/]  [dim]adjudge view {clean(folder)}[/]")

    def row(self, step: int, row: StepRow) -> None:
        """A line a step: what it came to, and how much of it is whose."""
        parts = [
            f"{name}={row[name]:.3g}"
            for name in ("mean_return", "env_return", "judge_return")
            if name in row
        ]
        if missing := row.get("judge/missing_frac"):
            parts.append(f"missing={missing:.1%}")
        self.line(f"[bold]{clean(f'[ITER {step}]')}[/] {' '.join(parts)}")

    def alarm(self, alarm: Alarm) -> None:
        """A line for what the sentinel just found."""
        where = f"step {alarm.step}, {alarm.rule.replace('_', ' ')}"
        self.line(f"[bold yellow]sentinel[/] {where}: {clean(alarm.seen)}")
