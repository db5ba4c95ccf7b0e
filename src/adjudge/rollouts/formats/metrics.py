"""Logs of metrics by step: verl's file logger, ``trainer_state.json``, exports of W&B, tables.

A log has means of steps and no rollouts, so it is never read as rows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from adjudge.errors import ConfigError, RolloutError
from adjudge.intake.columns import is_reward, read_env_reward
from adjudge.rollouts.formats.columns import find_column, list_columns

METRIC_NAMES: Mapping[str, tuple[str, ...]] = {
    "judge/outcome_mean": (
        *("critic/score/mean", "reward", "reward/mean", "reward_mean", "mean_reward"),
        *("objective/scores", "judge/score_mean"),
    ),
    "judge/score_std": ("reward_std", "reward/std"),
    "length": ("response_length/mean", "completions/mean_length"),
    "judge/len_corr_group": (),
    "judge/zero_std_frac": ("frac_reward_zero_std",),
    "judge/missing_frac": (),
    "judge/part_group_var": (),
    "judge/env_group_var": (),
}
"""What the checks over steps read, as adjudge logs it, and its names in verl, TRL and others."""

_STEPS = ("_step", "step", "Step", "global_step", "train/global_step")
_PREFIX = re.compile(r"^(.* - )?(train/|rollout/)?")
"""What is before a metric's name; a chart of W&B has the name of the run there."""

_WANDB_CLOCKS = ("_runtime", "_timestamp")
_KNOWN = [name for own, names in METRIC_NAMES.items() for name in (own, *names)]


def find_log(records: Sequence[Mapping[str, Any]]) -> str:
    """What log of metrics the first records of a file are of, for people; ``""`` for no log."""
    if not records:
        return ""
    if all({*one} == {"step", "data"} and _are_numbers(one["data"]) for one in records):
        return "metrics of verl's file logger"
    if len(records) == 1 and "global_step" in records[0] and _state_rows(records[0]):
        return "metrics of a trainer_state.json"
    if all("_step" in one and not one.keys().isdisjoint(_WANDB_CLOCKS) for one in records):
        return "metrics of a W&B history"
    return ""


def is_step_table(records: Sequence[Mapping[str, Any]]) -> bool:
    """Whether records are means by step: numbers alone, one row a step, and of no group."""
    rows = [{name: one for name, one in row.items() if one is not None} for row in records]
    steps = [(_step_of(row), *sorted(row)) for row in rows]
    return (
        len(rows) > 1
        and all(step[0] is not None for step in steps)
        and all(map(_are_numbers, rows))
        and any(map(_read_row, rows))
        and len({*steps}) == len(steps)
        and all(find_column(row, "group") is None for row in rows)
    )


def read_log(
    records: Iterable[Any], say: Callable[[str], None] = lambda _: None
) -> list[dict[str, float]]:
    """The rows of a log: each its ``step`` and what of :data:`METRIC_NAMES` it has.

    ``say`` hears which metric of the log each of them is.

    Raises :class:`ConfigError` for a log that has none of them, or those of several runs.
    """
    found, names, used = list[dict[str, float]](), dict[str, None](), dict[str, None]()
    for row in (row for record in records for row in _rows_of(record)):
        step, read = _step_of(row), _read_row(row)
        names |= dict.fromkeys(row)
        if step is not None and read:
            used |= {f"{one} is {name!r}": None for one, (name, _) in read.items() if one != name}
            found.append({"step": step, **{name: number for name, (_, number) in read.items()}})
    if not found:
        raise ConfigError(
            f"metrics: none is one that the checks read (found {list_columns(names)}; known: "
            f"{', '.join(_KNOWN)}). Log the mean reward of each step as 'reward'."
        )
    say(f"metrics: {', '.join(used)}")
    return found


def _state_rows(record: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    rows = record.get("log_history")
    return [one for one in rows if isinstance(one, Mapping)] if isinstance(rows, list) else []


def _rows_of(record: Any) -> Iterator[Mapping[str, Any]]:
    if not isinstance(record, Mapping):
        return
    if isinstance(data := record.get("data"), Mapping):
        yield {**data, "_step": record.get("step")}
    else:
        yield from _state_rows(record) or [record]


def _step_of(row: Mapping[str, Any]) -> int | None:
    step = next((row[name] for name in _STEPS if row.get(name) is not None), None)
    number = _read_number(step)
    return int(number) if number is not None and number.is_integer() else None


def _read_number(value: Any) -> float | None:
    with suppress(RolloutError):
        return read_env_reward(value)
    return None


def _read_row(row: Mapping[str, Any]) -> dict[str, tuple[str, float]]:
    """What a row has of :data:`METRIC_NAMES`, and its column."""
    columns: dict[str, str] = {}
    for column in row:
        name = _PREFIX.sub("", str(column))
        if columns.setdefault(name, column) != column and name in _KNOWN:
            raise ConfigError(
                f"{name}: two columns are this metric, perhaps of two runs (found "
                f"{columns[name]!r} and {column!r}). Export one run at a time."
            )
    found: dict[str, tuple[str, float]] = {}
    for own, names in METRIC_NAMES.items():
        for column in (columns[name] for name in (*reversed(names), own) if name in columns):
            if (number := _read_number(row[column])) is not None:
                found[own] = column, number
    return found


def _are_numbers(row: Any) -> bool:
    return isinstance(row, Mapping) and bool(row) and all(map(is_reward, row.values()))
