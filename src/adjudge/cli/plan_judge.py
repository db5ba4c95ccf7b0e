"""``adjudge train --dry-run`` of a judge: its settings; for verl the exact command and files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from rich.text import Text

from adjudge.cli.consoles import clean, output, print_json
from adjudge.judge_training.judgefile import JudgeFile

__all__ = ["print_judge_plan"]

_NOWHERE = Path("runs/judge")
"""Where a plan without ``-o`` would write."""


def print_judge_plan(judge: JudgeFile, folder: Path | None, *, as_json: bool) -> None:
    """Print the file with every default and every variable of the environment in its place.

    For verl also what it would be told; with a ``folder``, what it reads is written there.
    """
    resolved = judge.model_dump(mode="json", exclude_none=True)
    verl = None if judge.backend == "trl" else _verl(judge, folder)
    if as_json:
        found = resolved if verl is None else {**resolved, "verl": verl.data()}
        print_json(found)
        return
    console = output()
    for name, value in resolved.items():
        pairs = value.items() if isinstance(value, dict) else [("", value)]
        told = "  ".join(f"{key}={one}" if key else str(one) for key, one in pairs)
        console.print(f"[bold]{clean(name):<12}[/] {clean(told)}", soft_wrap=True)
    if verl is not None:
        _print_verl(verl, folder)


def _verl(judge: JudgeFile, folder: Path | None) -> Any:
    from adjudge.judge_training.verl.run import plan_verl_judge  # noqa: PLC0415  (when asked for)

    return plan_verl_judge(judge, folder or _NOWHERE, write=folder is not None)


def _print_verl(plan: Any, folder: Path | None) -> None:
    from adjudge.judge_training.verl.run import COMMAND  # noqa: PLC0415
    from adjudge.training.verl.run import shown  # noqa: PLC0415

    console, files = output(), plan.files
    console.print("\n[bold]verl 0.6.1[/]")
    console.print(_lines(shown(plan.command, plan.environment)), soft_wrap=True)
    first = msgspec.json.encode(files.first).decode()
    for path, rows, more in (
        (files.train, files.train_rows, f", the first: {first}"),
        (files.validation, files.val_rows, ""),
    ):
        console.print(f"\n[bold]{clean(path)}[/]")
        console.print(_lines(f"{rows:,} rows{more}"), soft_wrap=True)
    unusable = sum(files.facts[f"{part}_rows"]["unusable"] for part in ("train", "val"))
    notes = [f"{unusable:,} rows are unusable, and left out"] if unusable else []
    if plan.unmeasured:
        notes.append("no tokenizer here: rows that are too long are found when it runs")
    if folder is None:
        notes.append("with -o FOLDER these files are written, and the command as " + COMMAND)
    console.print()
    for note in notes:
        console.print(f"[dim]{clean(note)}[/]", soft_wrap=True)


def _lines(text: str) -> Text:
    """Text of several lines without control characters or markup of its own."""
    return Text("".join(c if c.isprintable() or c == "\n" else f"\\x{ord(c):02x}" for c in text))
