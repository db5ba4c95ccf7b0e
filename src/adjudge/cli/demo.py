"""``adjudge demo``: the main job on files that ship with the package."""

from __future__ import annotations

import math
import shlex
import shutil
from collections.abc import Mapping, Sequence
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from adjudge.cli.console import errors, output as console_for_output, print_input
from adjudge.cli.grade import report_run, run_job
from adjudge.cli.options import JsonSummary, new_folder, output_option
from adjudge.report.table import Table, lost, numeric, styled
from adjudge.rewards.spec import GraderEntry, RewardSpec
from adjudge.runs.job import GradingJob
from adjudge.runs.sample_index import compare_advantages
from adjudge.types import RewardResult

_FILES = ("rollouts.jsonl", "judge_results.jsonl", "reward.toml")
_GROUP_SIZE = 8


def demo(
    output: Annotated[Path | None, output_option("demo")] = None, as_json: JsonSummary = False
) -> None:
    """Grade 64 shipped rollouts; a tenth of the judge calls failed.

    Example: adjudge demo

    Shows the GRPO advantages of one group with a failed judge call: when the call counts as 0, and
    when it is left out. Then prints the whole run as `adjudge grade` does. Needs no key, no network
    and no checkout.
    """
    folder = output or new_folder("demo")
    inputs = _copy_inputs(folder)
    rollouts, spec = inputs / "rollouts.jsonl", inputs / "reward.toml"
    job = GradingJob(
        paths=[rollouts],
        spec=RewardSpec.load(spec),
        folder=folder,
        on_input=None if as_json else partial(print_input, errors()),
    )
    run = run_job(job, folder, keep_rows=True)
    if not as_json:
        group = [row.result for row in run.rows[:_GROUP_SIZE]]
        _print_advantages(console_for_output(), group, job.spec.graders)
    report_run(run, as_json=as_json)
    if not as_json:
        typer.echo("\nTo grade your own rollouts, run adjudge init FILE, or edit this spec and run")
        files = [shlex.quote(str(file)) for file in (rollouts, spec)]
        typer.echo("  adjudge grade {} \\\n    --spec {}".format(*files))


def _copy_inputs(folder: Path) -> Path:
    inputs = folder / "inputs"
    inputs.mkdir(parents=True, exist_ok=True)
    shipped = resources.files("adjudge.cli") / "demo_data"
    for name in _FILES:
        with resources.as_file(shipped / name) as file:
            shutil.copyfile(file, inputs / name)
    return inputs


def _print_advantages(
    console: Console, group: Sequence[RewardResult], graders: Sequence[GraderEntry]
) -> None:
    weights = {grader.name: grader.weight_at(0) for grader in graders}
    filled = [_zero_filled(result, weights) for result in group]
    compared = compare_advantages([result.score for result in group], filled)
    rows, failed, changes = [], [], []
    for place, result in enumerate(group):
        sample, env = result.original_index, f"{result.reward_info['env_reward']:g}"
        as_zero, left_out = compared.as_zero[place] or 0.0, compared.left_out[place]
        turned = place in compared.turned
        if left_out is None:
            rank = 1 + sum(other > filled[place] for other in filled)
            failed.append(f"sample {sample} (env {env}) gets {filled[place]:.3f}, rank {rank}")
            cells = [styled(f"{as_zero:+.2f}", "worst"), styled("left out", "good")]
        else:
            changes.append(0.0 if turned else abs(as_zero) - abs(left_out))
            cells = [
                styled(f"{one:+.2f}", "good" if one > 0 else "bad") for one in (as_zero, left_out)
            ]
        scores = [_score_cell(result, result.reward_info[f"{name}_score"]) for name in weights]
        reward = _score_cell(result, result.score)
        rows.append([sample, env, *scores, reward, *cells, lost("turned") if turned else ""])
    console.print(f"[bold]One group of {len(group)}: GRPO advantages when a judge call fails[/]")
    columns = numeric("env", *weights, "reward", "failure = 0", "adjudge")
    console.print(Table(["sample", *columns, "sign"], rows))
    formula = " + ".join(f"{weight:g} {name}" for name, weight in weights.items())
    shrink, grow = sum(one < 0 for one in changes), sum(one > 0 for one in changes)
    console.print(
        f"[dim]reward = {formula}. With the failed score as 0, {'; '.join(failed)} of "
        f"{len(group)}. Of the other {len(changes)} advantages, {len(compared.turned)} turn their "
        f"sign, {shrink} shrink and {grow} grow. Left out, the other samples keep exactly the "
        f"advantages of a group of {len(changes)}.[/]\n"
    )


def _zero_filled(result: RewardResult, weights: Mapping[str, float]) -> float:
    """The reward if a failed grader's score had been taken as 0, as is common.

    Only for the comparison: nothing else in adjudge fills a missing reward.
    """
    if result.score is not None:
        return result.score
    return math.fsum(
        weight * (result.reward_info[f"{name}_score"] or 0.0)  # adjudge: meant
        for name, weight in weights.items()
    )


def _score_cell(result: RewardResult, score: float | None) -> object:
    if score is not None:
        return f"{score:.3f}"
    return lost(result.missing.kind if result.missing else "missing")
