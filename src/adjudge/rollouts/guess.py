"""Which column is which, guessed from names and values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

__all__ = ["conversation", "guess_map"]

_NAMES: Mapping[str, tuple[str, ...]] = {
    "messages": ("messages", "traj", "trajectory", "conversation", "conversations", "chat"),
    "prompt": ("prompt", "question", "query", "instruction", "problem", "input"),
    "response": ("response", "completion", "output", "generation", "prediction"),
    "reference": (
        "reference",
        "ground_truth",
        "gold",
        "solution",
        "target",
        "label",
        "expected",
        "reference_answer",
        "answer",
    ),
    "group": ("group", "group_id", "uid", "task_id", "prompt_id", "problem_id", "question_id"),
    "env_reward": ("env_reward", "reward", "score", "outcome", "success", "passed", "correct"),
}


def guess_map(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """``{field: column}`` for the fields whose column has another name; never two for one column.

    A name counts only where the values fit the field: messages are lists of chat messages,
    rewards are numbers, a group's values repeat or look like ids.
    """
    columns = [column for column, _ in Counter(c for row in rows for c in row).most_common()]
    by_lower = {column.lower(): column for column in reversed(columns)}
    guessed: dict[str, str] = {}
    for field, names in _NAMES.items():
        for name in names:
            column = by_lower.get(name)
            if column is None or column in guessed.values():
                continue
            if _FITS[field]([row[column] for row in rows if row.get(column) is not None]):
                guessed[field] = column
                break
    return {field: column for field, column in guessed.items() if field != column}


def conversation(value: Any) -> list[dict[str, Any]] | None:
    """``value`` as chat messages, if it is such a list or the JSON text of one."""
    if isinstance(value, str):
        try:
            value = msgspec.json.decode(value)
        except (msgspec.MsgspecError, RecursionError):
            return None
    if not isinstance(value, list) or not value:
        return None
    return value if all(isinstance(m, dict) and "role" in m for m in value) else None


def _conversations(values: Sequence[Any]) -> bool:
    return bool(values) and all(conversation(value) is not None for value in values)


def _texts(values: Sequence[Any]) -> bool:
    return bool(values) and all(isinstance(value, str) for value in values)


def _prompts(values: Sequence[Any]) -> bool:
    return _texts(values) or _conversations(values)


def _anything(values: Sequence[Any]) -> bool:
    return bool(values)


def _ids(values: Sequence[Any]) -> bool:
    return bool(values) and all(isinstance(value, str | int) for value in values)


def _numbers(values: Sequence[Any]) -> bool:
    return bool(values) and all(isinstance(value, int | float) for value in values)


_FITS = {
    "messages": _conversations,
    "prompt": _prompts,
    "response": _texts,
    "reference": _anything,
    "group": _ids,
    "env_reward": _numbers,
}
