"""Rows read by the names of their columns: adjudge's own and usual ones; lists of responses."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from adjudge.errors import RolloutError
from adjudge.intake.columns import REFERENCE_COLUMNS, is_not_finite_text, is_nothing
from adjudge.messages import parse_conversation
from adjudge.rollouts.formats.base import SAMPLE_FIELDS, Row
from adjudge.rollouts.formats.completions import completion_row
from adjudge.rollouts.formats.fields import add_fields, each_row
from adjudge.text import printable


def list_columns(columns: Iterable[str]) -> str:
    """The columns of a row, for messages."""
    return printable(", ".join(columns))[:300]


def has_own_columns(rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether rows have a column for a conversation or a response under adjudge's own name.

    It may be null in all of them: a file may begin with rows that failed.
    """
    return any(
        "messages" in row
        or ("response" in row and not isinstance(row["response"], Mapping))
        or find_response_list(row) is not None
        for row in rows
    )


def find_own_columns(row: Mapping[str, Any]) -> set[str]:
    """The columns of a row, under adjudge's own names, that hold a conversation or responses."""
    found = {name for name in ("messages", "response") if row.get(name) is not None}
    if isinstance(row.get("response"), Mapping):  # a provider's
        found.remove("response")
    return found | ({"responses"} if find_response_list(row) == "responses" else set())


RESPONSE_LISTS = frozenset({"responses", "completions", "generations", "outputs"})
"""Columns with a list of texts, one a sample; verl's ``main_generation`` adds ``responses``."""

_RESPONSES = ("responses", "response", "messages", "completion", "generation", "output")
_REWARD_LISTS = ("rewards", "scores", "reward", "score", "env_reward")


def find_response_list(row: Mapping[str, Any]) -> str | None:
    """The column whose list is a row's responses: texts, and nulls where none was made.

    There is none where the row has ``response`` or ``messages``. A name other than ``responses``
    needs a prompt, and no other response beside it: benchmarks call their references so, too.
    """
    for name in sorted(RESPONSE_LISTS.intersection(row)):
        others = _RESPONSES[1:3] if name == "responses" else _RESPONSES
        prompt = name == "responses" or isinstance(row.get("prompt"), str | list)
        if prompt and all(row.get(one) is None for one in others) and _is_list_of_texts(row[name]):
            return name
    return None


def _is_list_of_texts(value: Any) -> bool:
    texts = isinstance(value, list) and all(one is None or isinstance(one, str) for one in value)
    return texts and bool(value)


def split_responses(row: Mapping[str, Any], group: str) -> Iterator[Row | RolloutError]:
    """A row for each text of the list: ``response``, ``sample`` (from 0), ``group``, ``messages``.

    ``group`` is used where the row has none of its own. A prompt in chat form becomes the
    conversation with the response at its end, and its last user message the prompt. A list of
    rewards as long as that of the responses is theirs; the ground truth of verl's ``reward_model``
    is the reference. A null is a response that could not be made.
    """
    name = find_response_list(row) or "responses"
    texts = row[name]
    lists = [one for one in _REWARD_LISTS if _is_list_of_numbers(row.get(one), len(texts))]
    rewards = row[lists[0]] if lists else [row.get("env_reward")] * len(texts)
    prompt = parse_conversation(row.get("prompt")) or row.get("prompt")
    judged = row.get("reward_model")
    truth = judged.get("ground_truth") if isinstance(judged, Mapping) else None
    own = {"reference": truth, "group": group}
    own |= {field: row[field] for field in own if row.get(field) is not None}

    def response_row(answer: tuple[int, Any]) -> Row:
        place, text = answer
        if text is None:
            raise RolloutError("is null: no response was made")
        one = add_fields(completion_row(prompt, text), env_reward=rewards[place], **own)
        columns = {**row, **dict.fromkeys(lists[:1], rewards[place])}
        own_names = {*SAMPLE_FIELDS, name}
        return {
            **{key: columns[key] for key in columns if key not in own_names},
            **one,
            "sample": place,
        }

    yield from each_row(name, list(enumerate(texts)), response_row)


def _is_list_of_numbers(value: Any, count: int) -> bool:
    return (
        isinstance(value, list)
        and len(value) == count
        and all(one is None or isinstance(one, int | float) for one in value)
    )


_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")

_NAMES: Mapping[str, tuple[str, ...]] = {
    "messages": (
        *("messages", "traj", "trajectory", "conversation", "conversations", "chat"),
        *("transcript", "history"),
    ),
    "prompt": ("prompt", "question", "query", "instruction", "problem", "input"),
    "response": (
        *("response", "completion", "output", "generation", "prediction"),
        *("model_output", "model_response", "generated_text"),
    ),
    "reference": REFERENCE_COLUMNS,
    "group": (
        *("group", "group_id", "uid", "task_id", "prompt_id", "problem_id", "question_id"),
        "instance_id",
    ),
    "env_reward": (
        *("env_reward", "reward", "score", "outcome", "success", "passed", "correct", "resolved"),
    ),
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
            values = [row[column] for row in rows if row.get(column) is not None]
            if name == "uid" and len(set(map(str, values))) == len(values):
                continue  # of the sample, not of its prompt
            if name == "label" and not _are_texts(values):
                continue  # a class or a verdict, not an answer
            if _FITS[field](values):
                guessed[field] = column
                break
    return {field: column for field, column in guessed.items() if field != column}


def fits_field(name: str, value: Any) -> bool:
    """Whether a value can be that of a field."""
    return value is None or _FITS[name]([value])


def find_reward(row: Mapping[str, Any]) -> str | None:
    """The first column of a usual name whose value can be a reward."""
    names = (name for name in _NAMES["env_reward"] if row.get(name) is not None)
    return next((name for name in names if _is_number(row[name])), None)


def _are_conversations(values: Sequence[Any]) -> bool:
    return bool(values) and all(parse_conversation(value) is not None for value in values)


def _are_texts(values: Sequence[Any]) -> bool:
    return bool(values) and all(isinstance(value, str) for value in values)


def _are_prompts(values: Sequence[Any]) -> bool:
    return _are_texts(values) or _are_conversations(values)


def _are_present(values: Sequence[Any]) -> bool:
    return not all(map(is_nothing, values))


def _are_ids(values: Sequence[Any]) -> bool:
    return bool(values) and all(isinstance(value, str | int) for value in values)


def _are_numbers(values: Sequence[Any]) -> bool:
    return bool(values) and all(_is_number(value) for value in values)


def _is_number(value: Any) -> bool:
    if isinstance(value, str):  # a cell of a CSV file
        return _NUMBER.fullmatch(value) is not None or is_not_finite_text(value)
    return isinstance(value, int | float)


_FITS = {
    "messages": _are_conversations,
    "prompt": _are_prompts,
    "response": _are_texts,
    "reference": _are_present,
    "group": _are_ids,
    "env_reward": _are_numbers,
}
