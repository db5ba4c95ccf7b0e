"""Rows read by the names of their columns: adjudge's own and usual ones; lists of responses."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from adjudge.errors import RolloutError
from adjudge.messages import last_question, parse_conversation
from adjudge.rollouts.formats.base import Row

SAMPLE_FIELDS = ("messages", "prompt", "response", "reference", "group", "env_reward")
"""The columns that mean something by name; every other column is an extra."""


def has_own_columns(rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a conversation or a response stands under adjudge's own name in some row."""
    return any(_is_own(row) for row in rows)


def _is_own(row: Mapping[str, Any]) -> bool:
    response = row.get("response")
    own = response is not None and not isinstance(response, Mapping)
    return own or row.get("messages") is not None or has_response_list(row)


RESPONSES_COLUMN = "responses"
"""The column that verl's ``main_generation`` adds: a list of texts, one a sample."""


def has_response_list(row: Mapping[str, Any]) -> bool:
    """Whether a row's responses are its list.

    They are not where the row has ``response`` or ``messages``, and not where the list holds
    anything else than texts and nulls.
    """
    texts = row.get(RESPONSES_COLUMN)
    if not isinstance(texts, list) or not texts:
        return False
    if any(row.get(name) is not None for name in ("response", "messages")):
        return False
    return all(text is None or isinstance(text, str) for text in texts)


def split_responses(row: Mapping[str, Any], group: str) -> Iterator[Row | RolloutError]:
    """A row for each text: ``response``, ``sample`` (from 0), ``group``, ``messages``.

    ``group`` is used where the row has none of its own. A prompt in chat form becomes the
    conversation with the response at its end, and its last user message the prompt. A null is a
    response that could not be made.
    """
    common = {name: value for name, value in row.items() if name != RESPONSES_COLUMN}
    if common.get("group") is None:
        common["group"] = group
    chat = parse_conversation(row.get("prompt"))
    if chat is not None:
        common["prompt"] = last_question(chat)
    for number, text in enumerate(row[RESPONSES_COLUMN]):
        if text is None:
            yield RolloutError(f"{RESPONSES_COLUMN}.{number}: is null: no response was made")
            continue
        one = {**common, "response": text, "sample": number}
        if chat is not None:
            one["messages"] = [*chat, {"role": "assistant", "content": text}]
        yield one


_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")

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
    return bool(values) and all(_is_number(value) for value in values)


def _is_number(value: Any) -> bool:
    if isinstance(value, str):  # a cell of a CSV file
        return _NUMBER.fullmatch(value) is not None
    return isinstance(value, int | float)


_FITS = {
    "messages": _are_conversations,
    "prompt": _are_prompts,
    "response": _are_texts,
    "reference": _are_present,
    "group": _are_ids,
    "env_reward": _are_numbers,
}
