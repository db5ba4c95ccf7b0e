"""``adjudge eval policy``: one or two policies on seeds, and their judges, as tables."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from adjudge.cli.console import StageProgress, clean, output, print_json, resumable_work
from adjudge.cli.options import (
    ApiKeyEnv,
    DryRun,
    JsonSummary,
    PolicyModel,
    Quiet,
    against_option,
    new_folder,
    output_option,
    print_call_estimates,
)
from adjudge.errors import ConfigError
from adjudge_lab.environments.tasks import parse_seeds
from adjudge_lab.evaluation.report import judges_table, policy_difference_table, seeds_table
from adjudge_lab.evaluation.run import EvaluationJob, estimate_evaluation, evaluate_targets
from adjudge_lab.evaluation.targets import PolicyTarget, find_policy_target
from adjudge_lab.rl.runfile_checks import load_run_file

_MOST_ROWS = 40


def eval_policy(
    target: Annotated[
        str | None,
        typer.Argument(metavar="TARGET", help="The run file (.toml), or a model as for --model."),
    ] = None,
    model: PolicyModel = None,
    config: Annotated[
        Path | None,
        typer.Option(help="The run file with task, judges and seeds [default: the run folder's]."),
    ] = None,
    seeds: Annotated[
        str | None,
        typer.Option(
            metavar="1-20",
            help="The seeds to play [default: those of [evaluation] in the run file].",
        ),
    ] = None,
    against: Annotated[
        list[str] | None, against_option(help="Compare with this policy on the same seeds.")
    ] = None,
    api_key_env: ApiKeyEnv = None,
    no_judges: Annotated[
        bool, typer.Option("--no-judges", help="Ask no judge; report the official score alone.")
    ] = False,
    folder: Annotated[Path | None, output_option("eval")] = None,
    dry_run: DryRun = False,
    as_json: JsonSummary = False,
    quiet: Quiet = False,
) -> None:
    """Evaluate a policy on seeds, and its judges against the official score.

    Example: adjudge eval policy run.toml --model runs/first --seeds 1-20

    The official score is the environment's reward. For each judge: the mean, and Pearson's r and
    Spearman's rho against the official score, with 95 % bootstrap intervals over seeds. A failed
    judge call is missing, never 0. Two policies (--against) play the same seeds and are compared
    in pairs.

    Writes episodes.jsonl (every episode with messages and verdicts), summary.json, and report.html.
    The same command with the same -o resumes, and repeats failed judge calls.
    """
    if against and len(against) > 1:
        raise ConfigError("--against: is given more than once (allowed: one policy). Give it once.")
    other = against[0] if against else None
    targets, file = _find_policies(target, model, config, other, api_key_env)
    run = load_run_file(file)
    try:
        wanted = run.evaluation.held_out if seeds is None else parse_seeds(seeds)
    except ValueError as error:
        raise ConfigError(f"--seeds {seeds!r}: {error}") from None
    job = EvaluationJob(run, file, folder or new_folder("eval"), targets, wanted)
    job.judged = not no_judges
    if dry_run:
        print_call_estimates(estimate_evaluation(job), as_json=as_json, of="judging of")
        return
    with resumable_work(job.folder), StageProgress(show=not quiet) as shown:
        job.on_progress = shown.update
        evaluate_targets(job)
    if as_json:
        print_json(job.summary)
    else:
        print_evaluation(output(), job)


def _find_policies(
    target: str | None,
    model: str | None,
    config: Path | None,
    against: str | None,
    api_key_env: str | None,
) -> tuple[list[PolicyTarget], Path]:
    """The policies and the run file that the command line means."""
    if target is not None and target.endswith(".toml"):
        if config is not None:
            raise ConfigError(f"{target} and --config: both name a run file. Give one of them.")
        config = Path(target)
    elif target is not None:
        if model is not None:
            raise ConfigError(
                f"{target} and --model: both name a model. Name the second one with --against."
            )
        model = target
    if model is None:
        raise ConfigError(
            "--model: is required. Give a run folder of adjudge train, RUN@STEP, a checkpoint's "
            "folder, http://HOST/v1#MODEL, or a name on the hub."
        )
    names = [model, *([] if against is None else [against])]
    found = [find_policy_target(one, api_key_env=api_key_env) for one in names]
    if len({one.identity for one in found}) < len(found):
        raise ConfigError(f"--against {against!r}: is the same model as --model")
    return found, config or _find_run_file(found[0])


def _find_run_file(target: PolicyTarget) -> Path:
    """The run file that a run folder keeps; asked for where it keeps none."""
    if target.run is not None and (kept := Path(target.run) / "config.toml").is_file():
        return kept
    raise ConfigError(
        "--config: is required. Give the run file with the task and the judges (a run folder of "
        "adjudge train has its own)."
    )


def print_evaluation(console: Console, job: EvaluationJob) -> None:
    """Each model's judges against the official score, the comparison, the seeds, the cost."""
    summary = job.summary
    judged = f"judged by {summary['judge']}" if summary["judges"] else "no judge was asked"
    console.print(
        f"[bold]{clean(summary['task'])}[/]: {summary['seeds']:,} seeds, {clean(judged)}"
        f"  ·  {summary['seconds']:.1f} s"
    )
    for model in summary["models"]:
        console.print(judges_table(summary, model))
        for line in _cost_lines(model):
            console.print(f"[dim]{clean(line)}[/]", soft_wrap=True)
    if compared := policy_difference_table(summary):
        console.print(compared)
    seeds, more = seeds_table(summary, job.rows, _MOST_ROWS)
    console.print(seeds)
    if more:
        console.print(f"[dim]{more}[/]")
    console.print(
        "[dim]r (Pearson) and rho (Spearman) against the official score; 95 % bootstrap intervals "
        "over seeds; what failed is missing, never 0.[/]"
    )
    console.print(f"\n[bold]{clean(job.folder)}/[/]  episodes.jsonl  summary.json  report.html")


def _cost_lines(model: Mapping[str, Any]) -> list[str]:
    """Calls, tokens and cost, where anybody said."""
    lines = []
    policy, judges = model["policy"], model["judges"]
    if policy:
        lines.append(
            f"policy: {policy['calls']:,} replies, {policy['input_tokens']:,} tokens in, "
            f"{policy['output_tokens']:,} out"
        )
    if judges["input_tokens"] or judges["output_tokens"]:
        cost = judges["cost_usd"]
        priced = "cost unknown: no price" if cost is None else f"{cost:.4f} USD"
        lines.append(
            f"judges: {judges['input_tokens']:,} tokens in, {judges['output_tokens']:,} out, "
            f"{priced}"
        )
    return lines
