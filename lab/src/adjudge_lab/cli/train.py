"""``adjudge train``: a policy learns from judges, a judge from preferences, or both in a chain.

What the file says: ``kind = "rl"`` (the default), ``"judge"`` or ``"chain"``. A policy and a judge
are trained here, by verl, or on a Ray cluster.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

import typer
from rich.console import Console

from adjudge.checks.steps import StepAlarm, describe_unchecked
from adjudge.cli.console import StageProgress, clean, output, print_json, say_how_to_resume
from adjudge.cli.options import EnvFile, budget_option, new_folder, output_option, ray_option
from adjudge.config import load_toml
from adjudge.errors import ConfigError
from adjudge.graders.llm.trained_judge_card import SPEC_FILE
from adjudge_lab.cli.plan import print_judge_plan, print_run_plan
from adjudge_lab.judge_training.chain.file import ChainFile, ResolvedStage
from adjudge_lab.judge_training.chain.report import chain_summary_lines
from adjudge_lab.judge_training.chain.run import ChainJob, chain_plan, chain_plan_lines, run_chain
from adjudge_lab.judge_training.judge_file import JUDGE_VARIABLES, JudgeFile, JudgeJob
from adjudge_lab.judge_training.report import judge_summary_lines
from adjudge_lab.rl.launch import run_module, submit_job
from adjudge_lab.rl.rewards import (
    check_run_machine,
    find_judge_key_env,
    name_judge,
    uses_only_rules,
)
from adjudge_lab.rl.run import TrainingJob, train_run
from adjudge_lab.rl.runfile import RunFile
from adjudge_lab.rl.runfile_checks import check_run_budget, load_run_file
from adjudge_lab.rl.trl_backend import StepMetrics


def train_chain_file(
    path: Path,
    folder: Path | None,
    *,
    seed: int | None,
    dry_run: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Do the chain of ``path`` in ``folder``, or with ``dry_run`` say what its stages come to."""
    chain = ChainFile.load(path).with_seed_offset(seed or 0)
    folder = folder or new_folder("chain")
    if dry_run:
        found = chain_plan(chain, folder)
        _print_lines(found, chain_plan_lines(found), as_json=as_json)
        return
    with _ChainProgress(len(chain.stages), show=not quiet) as shown:
        job = ChainJob(
            chain, path, folder,
            on_stage=shown.stage, on_progress=shown.update,
            on_alarm=(lambda _: None) if quiet else shown.alarm,
        )  # fmt: skip
        with say_how_to_resume(folder):
            run_chain(job)
    _print_lines(job.summary, chain_summary_lines(job.summary), as_json=as_json)
    if not as_json:
        output().print(f"\n[bold]{clean(folder)}/[/]  report.html  summary.json", soft_wrap=True)


def _print_lines(found: Mapping[str, Any], lines: Sequence[str], *, as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    for line in lines:
        output().print(clean(line), soft_wrap=True)


class _TrainingProgress(StageProgress):
    """The progress of each stage; a line for a resumed run and for each alarm."""

    def resume(self, step: int) -> None:
        """A line with the step after which an interrupted run goes on."""
        if self.show:
            self.line(f"[bold]resumed after step {step}[/]  [dim]what was judged is kept[/]")

    def alarm(self, alarm: StepAlarm) -> None:
        """A line for what a policy's sentinel just found."""
        where = f"step {alarm.step}, {alarm.rule.replace('_', ' ')}"
        self.line(f"[bold yellow]sentinel[/] {where}: {clean(alarm.seen)}")


class _ChainProgress(_TrainingProgress):
    """The progress of each part of a stage; a line as each stage begins."""

    def __init__(self, stages: int, *, show: bool) -> None:
        super().__init__(show=show)
        self._stages_in_all = stages

    def stage(self, number: int, stage: ResolvedStage, over: bool) -> None:
        """A line for the stage that begins, or was done before."""
        if self.show:
            said = "done before" if over else f"{stage.kind}, {stage.folder}"
            place = f"[bold]{number}/{self._stages_in_all} {clean(stage.name)}[/]"
            self.line(f"{place}  [dim]{clean(said)}[/]")


def train_judge_file(
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

    ``ray``: submit it as a job to the cluster with the dashboard there, by default
    ``grpo.ray_address`` (or ``RAY_ADDRESS``) where GRPO on verl gives one; ``poll``: follow it.
    """
    judge = JudgeFile.load(path)
    if seed is not None:
        judge = judge.with_seed(seed)
    if dry_run:
        print_judge_plan(judge, folder, as_json=as_json)
        return
    address = ray or _cluster_address(judge)
    if address is not None:
        # Ray has its own RAY_ADDRESS in a job, which is not the dashboard's.
        names = [name for name in JUDGE_VARIABLES if name != "RAY_ADDRESS" and os.environ.get(name)]
        _submit(path, address, folder, names, seed=seed, poll=poll)
    folder = folder or new_folder("judge")
    with say_how_to_resume(folder):
        if judge.backend == "verl":
            summary = _by_verl(judge, path, folder, quiet=quiet or as_json)
        else:
            summary = _here(judge, path, folder, quiet=quiet)
    _print_lines(summary, judge_summary_lines(summary), as_json=as_json)
    if as_json:
        return
    console = output()
    asks = (folder / SPEC_FILE).exists()  # else it was taught to answer, not to judge
    names = ["judge.json", *([SPEC_FILE] if asks else []), "report.html"]
    console.print(f"\n[bold]{clean(folder)}/[/]  {'  '.join(names)}")
    if asks:
        console.print(f"[dim]adjudge serve {clean(folder)}[/]", soft_wrap=True)


def _here(judge: JudgeFile, path: Path, folder: Path, *, quiet: bool) -> dict[str, Any]:
    from adjudge_lab.judge_training.run import run_judge  # noqa: PLC0415  (not for a plan)

    with _TrainingProgress(show=not quiet) as shown:
        job = JudgeJob(judge, path, folder, on_progress=shown.update, on_resume=shown.resume)
        return run_judge(job)


def _by_verl(judge: JudgeFile, path: Path, folder: Path, *, quiet: bool) -> dict[str, Any]:
    from adjudge_lab.judge_training.verl.run import run_verl_judge  # noqa: PLC0415  (when asked for)

    found = run_verl_judge(judge, path, folder, launch=partial(_launch_module, quiet=quiet))
    if isinstance(found, int):
        raise typer.Exit(found)
    return found


def _cluster_address(judge: JudgeFile) -> str | None:
    """The dashboard that the file, or the environment, gives for GRPO on verl.

    Inside a job of a cluster ``RAY_ADDRESS`` is not a dashboard's, and the run is done there.
    """
    if judge.backend != "verl" or judge.method != "grpo":
        return None
    address = judge.grpo.ray_address
    given = "ray_address" in judge.grpo.model_fields_set
    return address if given and address.startswith(("http://", "https://")) else None


def train(
    run: Annotated[
        Path | None, typer.Argument(metavar="RUN.toml", help="The run file.", show_default=False)
    ] = None,
    config: Annotated[Path | None, typer.Option(help="The run file, given as an option.")] = None,
    kind: Annotated[
        Literal["rl", "judge", "chain"] | None,
        typer.Option("--type", help="What is trained; must be the run file's kind."),
    ] = None,
    folder: Annotated[
        Path | None,
        output_option("train", more=" An interrupted run resumes."),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="The seed [default: the file's]; of a chain, added to each stage's.",
        ),
    ] = None,
    env_file: EnvFile = None,  # noqa: ARG001  (loaded as the command line is read)
    budget_usd: Annotated[
        float | None,
        budget_option(
            help="The most that the judge may cost in this folder [default: the file's]."
        ),
    ] = None,
    approximate: Annotated[
        bool,
        typer.Option(
            "--approximate",
            help="Run although the backend lacks some settings of the file.",
        ),
    ] = False,
    ray: Annotated[
        str | None,
        ray_option(
            "--ray",
            metavar="ADDRESS",
            help="Submit the run to this Ray cluster (http://HEAD:8265); needs -o.",
        ),
    ] = None,
    poll: Annotated[
        bool,
        ray_option("--poll", help="Follow a submitted job to its end, as a local run always is."),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the plan without training, and stop.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Show no progress bar and no line per step.")
    ] = False,
) -> None:
    """Train a policy against judges, a judge, or both in a chain.

    Example: adjudge train examples/rl_tiny.toml -o runs/first

    Of a policy, each episode is judged when it ends; TRL's GRPOTrainer (or verl) learns from the
    rewards. A failed judge call is a missing reward, which training leaves out. `adjudge view`
    shows the run while it goes on. The same command with the same -o resumes it.

    A file with kind = "judge" trains a judge, for `adjudge serve` or a run file. One with kind =
    "chain" has [[stages]] that run in order; "@NAME" is the result of an earlier stage.

    Needs the extra `train` of adjudge-lab, which brings torch and TRL. base = "tiny" needs no
    network and no GPU; --dry-run needs none of them.
    """
    path = _single_run_file(run, config)
    found = load_toml(path).get("kind", "rl")
    _check_kind(path, found, kind, {"--approximate": approximate, "--budget-usd": budget_usd})
    shared: dict[str, Any] = {"seed": seed, "dry_run": dry_run, "as_json": as_json, "quiet": quiet}
    if found == "judge":
        train_judge_file(path, folder, **shared, ray=ray, poll=poll)
        return
    if found == "chain":
        if ray is not None:
            raise ConfigError("--ray: cannot run a chain. Submit its stages one by one.")
        train_chain_file(path, folder, **shared)
        return
    wanted = load_run_file(path)
    if seed is not None:
        wanted = wanted.with_seed(seed)
    if budget_usd is not None:
        wanted = wanted.with_budget(budget_usd)
        check_run_budget(wanted)
    if dry_run:
        from adjudge_lab.rl.plan import check_run_data, plan_run  # noqa: PLC0415  (only when asked for)

        check_run_data(wanted)
        print_run_plan(plan_run(wanted), as_json=as_json)
        check_run_machine(wanted)
        return
    from adjudge_lab.rl.backend_checks import check_backend_support  # noqa: PLC0415  (not for a plan)

    check_backend_support(wanted, approximate)
    if ray is not None:
        task_key = wanted.services.task_key_env if wanted.services.task_url else None
        names = [name for name in (find_judge_key_env(wanted), task_key) if name is not None]
        more = ["--approximate"] * approximate
        more += [] if budget_usd is None else ["--budget-usd", str(budget_usd)]
        _submit(path, ray, folder, names, *more, seed=seed, poll=poll)
    if wanted.backend == "verl":
        from adjudge_lab.rl.verl.run import run_verl  # noqa: PLC0415  (only when asked for)

        folder = folder or new_folder("train")
        with say_how_to_resume(folder):
            code = run_verl(wanted, folder, launch=_launch_module)
        raise typer.Exit(code)
    _train_here(wanted, path, folder or new_folder("train"), quiet=quiet, as_json=as_json)


def _check_kind(path: Path, found: str, wanted: str | None, options: Mapping[str, Any]) -> None:
    """Refuse a ``--type`` that the file is not of, and ``options`` that only a policy's has."""
    if wanted not in (None, found):
        raise ConfigError(
            f"{path}: kind: is not what --type says (found {found!r}; --type: {wanted!r})"
        )
    for option, given in options.items():
        if given not in (None, False) and found != "rl":
            raise ConfigError(
                f"{option}: works only for the training of a policy (found kind = {found!r} in "
                f"{path}). Remove {option}."
            )


def _single_run_file(run: Path | None, config: Path | None) -> Path:
    given = [path for path in (run, config) if path is not None]
    if len(given) != 1:
        raise ConfigError(
            "RUN.toml: must be given exactly once. Use either adjudge train RUN.toml or --config "
            "RUN.toml."
        )
    return given[0]


def _train_here(run: RunFile, path: Path, folder: Path, *, quiet: bool, as_json: bool) -> None:
    with _PolicyProgress(run, show=not quiet) as bar:
        job = TrainingJob(
            run,
            path,
            folder,
            on_progress=bar.update,
            on_row=(lambda *_: None) if quiet else bar.row,
            on_alarm=bar.alarm,
            on_resume=bar.resume,
        )
        bar.begin(folder)
        with say_how_to_resume(folder):
            train_run(job)
    if as_json:
        print_json(job.summary)
    else:
        _print_summary(job)


def _submit(
    path: Path,
    address: str,
    folder: Path | None,
    names: Sequence[str],
    *more: str,
    seed: int | None,
    poll: bool,
) -> NoReturn:
    """Submit a run with the environment variables ``names``, and end as it ends."""
    if folder is None or not folder.is_absolute():
        raise ConfigError(
            "--ray: needs -o with an absolute folder. Use a folder that the cluster's machines "
            "share or keep: the folder that a job runs in is deleted with the job."
        )
    arguments = ["-o", str(folder), *more, *(() if seed is None else ("--seed", str(seed)))]
    env = {name: os.environ[name] for name in names if name in os.environ}
    raise typer.Exit(
        submit_job(
            path, address=address, arguments=arguments, env=env, poll=poll, on_line=_print_log_line
        )
    )


def _launch_module(argv: Sequence[str], env: Mapping[str, str], *, quiet: bool = False) -> int:
    return run_module(list(argv), env=env, on_line=(lambda _: None) if quiet else _print_log_line)


def _print_log_line(text: str) -> None:
    output().print(clean(text), soft_wrap=True, highlight=False)


def _print_summary(job: TrainingJob) -> None:
    console, summary = output(), job.summary
    first, last = summary["first"], summary["last"]
    steps = f"{summary['steps']} of {summary['steps_planned']} steps"
    console.print(
        f"[bold]{steps}[/] in {summary['seconds']['total']:.0f} s; mean of the first → last tenth:"
    )
    for name, key in (
        ("reward", "reward"), ("environment", "env"), ("judge's score", "judge"), ("gold", "gold"),
        ("length, tokens", "length"),
    ):  # fmt: skip
        ends = [first[key], last[key]]
        if ends != [None, None]:
            means = " → ".join("none" if one is None else f"{one:.3f}" for one in ends)
            console.print(f"  {name:<16}{means}  {_coverage(summary['covered'][key])}")
    _print_sentinel(console, summary)
    console.print(f"\n[bold]{clean(job.folder)}/[/]  report.html  rollouts.jsonl  model/")
    console.print(f"[dim]adjudge view {clean(job.folder)}[/]", soft_wrap=True)


def _coverage(shares: list[float]) -> str:
    """Of how many rollouts a mean is, first and last."""
    if min(shares) == 1:
        return "[dim]of all rollouts[/]"
    return f"[yellow]of {' → '.join(f'{share:.1%}' for share in shares)} of the rollouts[/]"


def _print_sentinel(console: Console, summary: dict[str, Any]) -> None:
    alarms = summary["sentinel"]["alarms"]
    if not alarms:
        unchecked = describe_unchecked(summary["sentinel"]["unchecked"], "sentinel.gold")
        console.print(f"  sentinel        no alarms  [dim]{clean(unchecked)}[/]", soft_wrap=True)
    for one in alarms:
        style = "bold" if one["note"] else "bold yellow"
        where = f"step {one['step']}, {one['rule'].replace('_', ' ')}"
        console.print(
            f"  sentinel        [{style}]{where}[/]: {clean(one['seen'])}", soft_wrap=True
        )
        console.print(f"                  [dim]→[/] {clean(one['advice'])}", soft_wrap=True)


def describe_judging(run: RunFile, row: StepMetrics) -> Iterator[str]:
    """Whom a step's judged rollouts were shown to, and the means of their scores."""
    judge = run.judge
    if not judge.enabled or row.get("judge/drawn_frac") == 0:
        return
    if not uses_only_rules(run):
        kind = "local" if judge.folders else judge.type
        policy = run.rollout.policy_name
        yield f"[RUBRIC_CALL] policy={policy}, provider={kind}, model={name_judge(run)}"

    def mean_of(name: str, weight: float) -> str:
        return "none" if weight == 0 else f"{row[name]:.3g}" if name in row else "missing"

    yield (
        f"[RUBRIC_SCORE] event={mean_of('judge/events_mean', judge.event_weight)}, "
        f"outcome={mean_of('judge/outcome_mean', judge.outcome_weight)}, "
        f"combined={mean_of('judge_return', 1.0)}"
    )


class _PolicyProgress(_TrainingProgress):
    """The progress of each stage; steps and alarms are lines of their own."""

    def __init__(self, run: RunFile, *, show: bool) -> None:
        super().__init__(show=show)
        self._run = run

    def begin(self, folder: Path) -> None:
        """A line with where the run is written, and how to watch it."""
        if self.show:
            self.line(f"[bold]{clean(folder)}/[/]  [dim]adjudge view {clean(folder)}[/]")

    def row(self, step: int, row: StepMetrics) -> None:
        """A line a step: its means, and of how many rollouts each is where that is not all."""
        parts, total = [], int(row.get("rollouts", 0.0))
        for name in ("mean_return", "env_return", "judge_return"):
            if name in row:
                count = int(row.get(f"rollouts/{name}", total))
                parts.append(f"{name}={row[name]:.3g}{f' (of {count})' * (count < total)}")
        parts.append(f"rollouts={total}")
        if (drawn := row.get("judge/drawn_frac")) is not None:
            parts.append(f"drawn={drawn:.1%}")
        if missing := row.get("judge/missing_frac"):
            parts.append(f"missing={missing:.1%}")
        self.line(f"[bold]{clean(f'[ITER {step}]')}[/] {', '.join(parts)}")
        for line in describe_judging(self._run, row):
            self.line(f"[dim]{clean(line)}[/]")
