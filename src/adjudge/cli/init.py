"""``adjudge init``: a commented reward spec to start from."""

from __future__ import annotations

import shlex
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from adjudge.cli.consoles import clean, errors
from adjudge.errors import ConfigError, RolloutError
from adjudge.rollouts.guess import conversation, guess_map
from adjudge.rollouts.rows import read_rows
from adjudge.rollouts.samples import FIELDS

__all__ = ["init"]

_LOOKED_AT = 50


def init(
    output: Annotated[Path, typer.Argument(help="The spec to write.")] = Path("reward.toml"),
    source: Annotated[
        Path | None,
        typer.Option("--from", help="A file of rollouts: guess its columns and fitting graders."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Write a commented reward spec, fitted to a file of rollouts with --from.

    With --from, the columns are guessed and the command to run is printed, --map included.
    """
    if output.exists() and not force:
        raise ConfigError(f"{output}: exists; --force overwrites it")
    rows = _first_rows(source) if source is not None else []
    mapping = guess_map(rows)
    maps = [part for field, column in mapping.items() for part in ("--map", f"{field}={column}")]
    rollouts = str(source or "rollouts.jsonl")
    command = shlex.join(["adjudge", "grade", rollouts, "--spec", str(output), *maps])
    lacking = _lacking(rows, mapping)
    output.write_text(_spec(command, _kind(rows, mapping)), encoding="utf-8")
    if as_json:
        made = {"spec": str(output), "map": mapping, "command": command, "lacking": lacking}
        typer.echo(msgspec.json.encode(made).decode())
        return
    for what in lacking:
        errors().print(f"[yellow]note:[/] {clean(what)}")
    typer.echo(f"wrote {output}; now:\n  {command}")


def _first_rows(source: Path) -> list[dict[str, Any]]:
    found = [row for _, row in islice(read_rows([source]), _LOOKED_AT)]
    rows = [row for row in found if not isinstance(row, RolloutError)]
    if not rows:
        reason = f": {found[0]}" if found else ""
        raise ConfigError(f"{source}: no usable row in the first {_LOOKED_AT}{reason}")
    return rows


def _lacking(rows: list[dict[str, Any]], mapping: dict[str, str]) -> list[str]:
    """What the rows do not seem to have, in words."""
    if not rows:
        return []
    has = {field for field in FIELDS if any(mapping.get(field, field) in row for row in rows)}
    notes = []
    if not has & {"messages", "response"}:
        notes.append(
            "no column looks like messages or a response; name one with --map response=COLUMN "
            f"(columns: {', '.join(rows[0])[:200]})"
        )
    if "reference" not in has and _kind(rows, mapping) == "answer":
        notes.append("no column looks like a reference, which the answer grader compares with")
    return notes


def _kind(rows: list[dict[str, Any]], mapping: dict[str, str]) -> str:
    """``agent`` where tool calls were made (or nothing is known), else ``answer``."""
    column = mapping.get("messages", "messages")
    conversations = [conversation(row.get(column)) or [] for row in rows]
    calls = any(message.get("tool_calls") for messages in conversations for message in messages)
    return "agent" if calls or not rows else "answer"


def _spec(command: str, kind: str) -> str:
    return _HEAD.format(command=command) + (_AGENT if kind == "agent" else _ANSWER) + _TAIL


_HEAD = """\
# A reward spec: which graders look at a rollout, and how their answers become one reward.
# Run it:  {command}
version = 1
# max_concurrency = 32            # asks in flight

# One table per grader; `adjudge graders` lists the types, `adjudge graders TYPE` its parameters.
"""

_AGENT = """\
[[graders]]
name = "loop"
type = "action_loop"              # 1 = no repeated tool call
similarity_threshold = 1.0        # 1.0 counts only equal calls
weight = 0.5

[[graders]]
name = "info"
type = "information_gain"         # 1 = every tool result says something new
weight = 0.5

[[graders]]
name = "steps"
type = "step_efficiency"
weight = 0.0                      # 0: in the report, not in the reward
"""

_ANSWER = """\
[[graders]]
name = "answer"
type = "answer"                   # compares with the row's `reference`
answer_type = "auto"              # the row's answer_type, else ANY
weight = 1.0

[[graders]]
name = "repetition"
type = "ngram_repetition"         # a penalty (≤ 0): added, never averaged
weight = 0.5
"""

_TAIL = """
# Your own class:  type = "my_module:MyGrader"  (my_module.py beside this file)

[reward]
aggregate = "weighted_mean"       # points | min | soft_min
group = "none"                    # centre | z_score | rank | best_bonus, inside each group
combine_mode = "replace"          # weighted_sum | multiply, with the row's env_reward
# judge_scale = 1.0               # env + judge_scale · judge, under weighted_sum

[missing]
policy = "mask"                   # drop_group | fallback | raise; a failure is never a number
"""
