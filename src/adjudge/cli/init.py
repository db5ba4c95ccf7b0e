"""``adjudge init``: a commented reward spec to start from."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from adjudge.errors import ConfigError, RolloutError
from adjudge.rollouts.guess import guess_map
from adjudge.rollouts.rows import read_rows

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
    mapping: dict[str, str] = {}
    rows: list[dict[str, Any]] = []
    if source is not None:
        found = (row for _, row in read_rows([source]))
        rows = [row for row in islice(found, _LOOKED_AT) if not isinstance(row, RolloutError)]
        if not rows:
            raise ConfigError(f"{source}: no usable row in the first {_LOOKED_AT}")
        mapping = guess_map(rows)
    maps = "".join(f" --map {field}={column}" for field, column in mapping.items())
    command = f"adjudge grade {source or 'rollouts.jsonl'} --spec {output}{maps}"
    agentic = not rows or _has_tool_calls(rows, mapping.get("messages", "messages"))
    output.write_text(_spec(command, agentic=agentic), encoding="utf-8")
    if as_json:
        made = {"spec": str(output), "map": mapping, "command": command}
        typer.echo(msgspec.json.encode(made).decode())
    else:
        typer.echo(f"wrote {output}; now:\n  {command}")


def _has_tool_calls(rows: list[dict[str, Any]], column: str) -> bool:
    messages = [message for row in rows for message in row.get(column) or [] if message]
    return any(isinstance(message, dict) and message.get("tool_calls") for message in messages)


def _spec(command: str, *, agentic: bool) -> str:
    return _HEAD.format(command=command) + (_AGENT if agentic else _ANSWER) + _TAIL


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
