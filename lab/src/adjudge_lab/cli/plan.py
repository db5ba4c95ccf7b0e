"""``adjudge train --dry-run``: what a run or the training of a judge would do.

Of a judge: its settings; for verl the exact command and files.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.text import Text

from adjudge.cli.console import clean, output, print_json
from adjudge.report.page import bold
from adjudge.report.table import Column, Table, numeric
from adjudge_lab.judge_training.judge_file import JudgeFile
from adjudge_lab.judge_training.run import plan_training
from adjudge_lab.judge_training.trl_trainers import check_judge_settings
from adjudge_lab.rl.plan import GraderPlan, RunPlan
from adjudge_lab.rl.policy import describe_hub_problem

_COST_UNIT_EPISODES = 1_000


def print_run_plan(found: RunPlan, *, as_json: bool) -> None:
    """Print what :func:`adjudge_lab.rl.plan.plan_run` found."""
    if as_json:
        print_json(found.data())
        return
    console = output()
    _print_run(console, found)
    if found.graders:
        _print_judging(console, found)
    _print_unsupported(console, found)
    if found.warnings:
        console.print("\n[bold]warnings[/]")
        for warning in found.warnings:
            _print_point(console, warning)
    if found.verl is not None:
        _print_verl(console, found.verl.version, found.verl, found.verl.files)


def _print_run(console: Console, found: RunPlan) -> None:
    rollouts = found.rollouts
    per_step = (
        f"{rollouts['per_step']:,} a step ({rollouts['groups_per_step']:,} groups of "
        f"{rollouts['per_step'] // rollouts['groups_per_step']}), {rollouts['steps']:,} steps: "
        f"{rollouts['training']:,}"
    )
    held_out = (
        f"{rollouts['evaluation'] // rollouts['evaluations']:,} held-out episodes, "
        f"{rollouts['evaluations']:,} times: {rollouts['evaluation']:,}"
    )
    turns = "one turn" if found.turns == 1 else f"at most {found.turns:,} turns"
    facts = (
        ("run file", found.file),
        ("backend", found.backend),
        ("policy", found.policy),
        ("task", f"{found.task}, {turns}"),
        ("dataset", None if found.rows is None else f"{found.rows:,} rows"),
        ("judge", found.judge or "none: judge.enabled is false"),
        ("reward", found.reward),
        ("learning rate", found.assumed_learning_rate),
        ("rollouts", per_step),
        ("evaluation", held_out),
        ("time", found.time),
        ("settings", "  ".join(f"{key}={value}" for key, value in found.settings.items())),
    )
    rows = [[bold(name), value] for name, value in facts if value]
    console.print(Table([Column("", wrap=False), ""], rows))


def _weight_cell(grader: GraderPlan) -> str:
    weight = grader.weight
    if isinstance(weight, dict):
        return f"{weight['from']:g} → {weight['to']:g}"
    return f"{weight:g}" if weight else "report"


def _print_judging(console: Console, found: RunPlan) -> None:
    console.print()
    graders = [[one.name, one.scope, _weight_cell(one), _calls_cell(one)] for one in found.graders]
    console.print(Table(["grader", *numeric("scope", "weight", "calls an episode")], graders))
    if (one := found.episode) is None:
        return
    console.print()
    row = [
        f"{one.calls:g}",
        f"{one.input_tokens:,.0f}",
        f"{one.output_tokens:,.0f}",
        _cost_cell(one.cost_usd, _COST_UNIT_EPISODES),
    ]
    costs = f"USD per {_COST_UNIT_EPISODES:,}"
    columns = ["", *numeric("calls", "tokens in", "tokens out", costs)]
    console.print(Table(columns, [["judging an episode", *row]]))
    console.print(f"[dim]{clean(found.assumed)}[/]")
    whole = found.in_all
    cost = "" if whole["cost_usd"] is None else f"; {_cost_cell(whole['cost_usd'], 1)} USD"
    if found.budget_usd is not None:
        cost += f"; the budget is {found.budget_usd:g} USD, and the run ends where it is spent"
    console.print(
        f"[bold]the whole run[/]  ≤ {whole['calls']:,.0f} calls, {whole['input_tokens']:,.0f} "
        f"tokens in, {whole['output_tokens']:,.0f} out{cost}"
    )


def _calls_cell(one: GraderPlan) -> str:
    if not one.asks_judge:
        return "rule"
    return "not counted" if one.calls is None else f"≤ {one.calls:g}"


def _print_unsupported(console: Console, found: RunPlan) -> None:
    if not found.unmet:
        return
    flag = "the run needs --approximate"
    if any(not one.runs for one in found.unmet):
        flag = "the run is not possible"
    console.print(
        f"\n[bold yellow]settings that backend {clean(found.backend)!r} does not support[/]: {flag}"
    )
    for one in found.unmet:
        _print_point(console, str(one))


def _print_verl(console: Console, version: str, plan: Any, files: Mapping[str, Any]) -> None:
    from adjudge_lab.rl.verl.run import format_command  # noqa: PLC0415

    console.print(f"\n[bold]verl {version}[/]")
    console.print(_safe_lines(format_command(plan.command, plan.environment)), soft_wrap=True)
    for path, content in files.items():
        console.print(f"\n[bold]{clean(path)}[/]")
        console.print(_safe_lines(_file_preview(content)), soft_wrap=True)


def _file_preview(content: Any) -> str:
    if isinstance(content, str):
        return content.rstrip()
    rows = f"{content['rows']:,} rows"
    if "first" not in content:
        return rows
    return f"{rows}, the first: {msgspec.json.encode(content['first']).decode()}"


def _safe_lines(text: str) -> Text:
    """Text of several lines without control characters or markup of its own."""
    return Text("".join(c if c.isprintable() or c == "\n" else f"\\x{ord(c):02x}" for c in text))


def _print_point(console: Console, text: str) -> None:
    console.print(Table([Column("", wrap=False), ""], [["-", text]]))


def _cost_cell(cost: float | None, times: int) -> str:
    return "no price" if cost is None else f"≤ {cost * times:.4g}"


_DEFAULT_FOLDER = Path("runs/judge")
"""Where a plan without ``-o`` would write."""


def print_judge_plan(judge: JudgeFile, folder: Path | None, *, as_json: bool) -> None:
    """Print the file with every default and every variable of the environment in its place.

    For verl also its command; with a ``folder``, the files that it reads are written there.
    """
    resolved = judge.model_dump(mode="json", exclude_none=True)
    verl = None if judge.backend == "trl" else _plan_verl(judge, folder)
    checked = judge.backend == "verl" or check_judge_settings(judge)
    problem = describe_hub_problem(judge.base) if judge.is_named_model else None
    rows = None if verl is not None else plan_training(judge)
    if as_json:
        found = {"rows": rows} if verl is None else {"verl": verl.data()}
        print_json({**resolved, **found})
        return
    console = output()
    for name, value in resolved.items():
        pairs = value.items() if isinstance(value, dict) else [("", value)]
        said = "  ".join(f"{key}={_as_text(one)}" if key else _as_text(one) for key, one in pairs)
        console.print(f"[bold]{clean(name):<12}[/] {clean(said)}", soft_wrap=True)
    if rows is not None:
        console.print(
            f"[bold]rows[/]         {rows['train_rows']:,} to train on, {rows['val_rows']:,} held "
            f"out, {rows['unusable']:,} unusable\n"
            f"[bold]time[/]         {rows['steps']:,} steps of {judge.data.train_batch_size:,} "
            "rows; the run's first steps show how long one takes. No judge is asked: it costs "
            "nothing.",
            soft_wrap=True,
        )
    elif verl is None:
        console.print("data is on the hub: the dry run does not fetch it, so rows are not known")
    if not checked:
        console.print("trl is not installed here, and [trl] is not checked")
    if problem is not None:
        console.print(f"[yellow]model.path: {clean(problem)}[/]", soft_wrap=True)
    if verl is not None:
        _print_judge_verl(verl, folder)


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _plan_verl(judge: JudgeFile, folder: Path | None) -> Any:
    from adjudge_lab.judge_training.verl.run import plan_verl_judge  # noqa: PLC0415  (when asked for)

    return plan_verl_judge(judge, folder or _DEFAULT_FOLDER, write=folder is not None)


def _print_judge_verl(plan: Any, folder: Path | None) -> None:
    from adjudge_lab.judge_training.verl.run import COMMAND_FILE  # noqa: PLC0415

    console, data = output(), plan.data()
    _print_verl(console, "0.6.1", plan, data["files"])
    unusable = sum(data["data"][f"{part}_rows"]["unusable"] for part in ("train", "val"))
    notes = [f"{unusable:,} rows are unusable and are left out"] if unusable else []
    if plan.unmeasured:
        notes.append(
            "no tokenizer on this machine: rows that are too long are found during training"
        )
    if folder is None:
        notes.append("with -o FOLDER these files are written, with the command as " + COMMAND_FILE)
    console.print()
    for note in notes:
        console.print(f"[dim]{clean(note)}[/]", soft_wrap=True)
