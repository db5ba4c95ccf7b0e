"""The columns of a rollout row: which field each is.

Columns are named by dotted paths into rows (``traj``, ``info.answer``, ``choices.0.text``) or
guessed from names and values.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from adjudge.messages import parse_conversation


class _Missing:
    def __repr__(self) -> str:
        return "MISSING"


MISSING: Any = _Missing()
"""What :func:`get_path` returns where there is nothing; a stored ``null`` is ``None``."""


def get_path(data: Any, path: str) -> Any:
    """The value at ``path`` in nested mappings and lists, or :data:`MISSING`.

    A key that contains dots is found first, so flat columns named ``a.b`` work too.

    >>> get_path({"choices": [{"text": "hi"}]}, "choices.0.text")
    'hi'
    """
    if isinstance(data, Mapping) and path in data:
        return data[path]
    here = data
    for step in path.split("."):
        if isinstance(here, Mapping):
            here = here.get(step, MISSING)
        elif isinstance(here, list | tuple) and step.lstrip("-").isdigit():
            position = int(step)
            here = here[position] if -len(here) <= position < len(here) else MISSING
        else:
            return MISSING
        if here is MISSING:
            return MISSING
    return here


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


def guess_mapping(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
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


def _are_conversations(values: Sequence[Any]) -> bool:
    return bool(values) and all(parse_conversation(value) is not None for value in values)


def _are_texts(values: Sequence[Any]) -> bool:
    return bool(values) and all(isinstance(value, str) for value in values)


def _are_prompts(values: Sequence[Any]) -> bool:
    return _are_texts(values) or _are_conversations(values)


def _are_present(values: Sequence[Any]) -> bool:
    return bool(values)


def _are_ids(values: Sequence[Any]) -> bool:
    return bool(values) and all(isinstance(value, str | int) for value in values)


def _are_numbers(values: Sequence[Any]) -> bool:
    return bool(values) and all(isinstance(value, int | float) for value in values)


_FITS = {
    "messages": _are_conversations,
    "prompt": _are_prompts,
    "response": _are_texts,
    "reference": _are_present,
    "group": _are_ids,
    "env_reward": _are_numbers,
}
