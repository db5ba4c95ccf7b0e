"""Rows read by the names of their columns: adjudge's own and usual ones; lists of responses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from adjudge.errors import RolloutError
from adjudge.intake.columns import (
    REFERENCE_COLUMNS,
    RewardColumns,
    find_reference,
    find_reward,
    is_nothing,
    is_reward,
    usual_name,
)
from adjudge.intake.conversation import CALL_KEYS, looks_like_messages, read_messages
from adjudge.rollouts.formats.base import SAMPLE_FIELDS, Row
from adjudge.rollouts.formats.fields import add_fields, completion_row, each_row
from adjudge.text import printable
from adjudge.types import MISSING, get_path


def list_columns(columns: Iterable[str]) -> str:
    """The columns of a row, for messages."""
    return printable(", ".join(columns))[:300]


def has_own_columns(rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether rows have a column for a conversation or a response under adjudge's own name.

    It may be null in all of them: a file may begin with rows that failed.
    """
    return any(
        "messages" in row
        or ("response" in row and not _is_providers(row["response"]))
        or find_response_list(row) is not None
        for row in rows
    )


def find_own_columns(row: Mapping[str, Any]) -> set[str]:
    """The columns of a row, under adjudge's own names, that hold a conversation or responses."""
    found = {name for name in ("messages", "response") if row.get(name) is not None}
    if _is_providers(row.get("response")):
        found.remove("response")
    return found | ({"responses"} if find_response_list(row) == "responses" else set())


def _is_providers(response: Any) -> bool:
    """Whether a column ``response`` is an API's object."""
    return isinstance(response, Mapping) and not _is_response(response)


RESPONSE_LISTS = frozenset({"responses", "completions", "generations", "outputs", "response"})
"""Columns with a list of texts, one a sample; verl's ``main_generation`` adds ``responses``."""

_RESPONSES = ("responses", "response", "messages", "completion", "generation", "output")
_REWARD_LISTS = ("rewards", "scores", "reward", "score", "env_reward")


def find_response_list(row: Mapping[str, Any]) -> str | None:
    """The column whose list is a row's responses: texts, and nulls where none was made.

    There is none where the row has another response or ``messages``. A name in the plural other
    than ``responses`` needs a prompt: benchmarks call their references so, too.
    """
    for name in sorted(RESPONSE_LISTS.intersection(row)):
        others = ("response", "messages") if name == "responses" else _RESPONSES
        asked = isinstance(row.get("prompt"), str | list) or (
            name != "outputs" and find_column(row, "prompt") is not None
        )
        prompt = name in ("response", "responses") or asked
        if (
            prompt
            and all(one == name or row.get(one) is None for one in others)
            and is_list_of_texts(row[name])
        ):
            return name
    return None


def is_list_of_texts(value: Any) -> bool:
    """Whether a value is a list of texts, and nulls where none was made."""
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
    listed = _find_reward_list(row, len(texts))
    rewards = [row.get("env_reward")] * len(texts) if listed is None else row[listed]
    prompt = row.get("prompt")
    judged = row.get("reward_model")
    truth = judged.get("ground_truth") if isinstance(judged, Mapping) else None
    own = {"reference": truth, "group": group}
    own |= {field: row[field] for field in own if row.get(field) is not None}

    def response_row(answer: tuple[int, Any]) -> Row:
        place, text = answer
        if text is None:
            raise RolloutError("is null: no response was made")
        one = add_fields(completion_row(prompt, text), env_reward=rewards[place], **own)
        columns = row if listed is None else {**row, listed: rewards[place]}
        own_names = {*SAMPLE_FIELDS, name}
        return {
            **{key: columns[key] for key in columns if key not in own_names},
            **one,
            "sample": place,
        }

    yield from each_row(name, list(enumerate(texts)), response_row)


def _find_reward_list(row: Mapping[str, Any], count: int) -> str | None:
    """The column of a row that has a reward for each of its ``count`` responses."""
    lists = {name: one for name, one in row.items() if _is_list_of_numbers(one, count)}
    usual = next((name for name in _REWARD_LISTS if name in lists), None)
    if usual is not None or not lists:
        return usual
    return find_reward([{name: lists[name][n] for name in lists} for n in range(count)]).column


def _is_list_of_numbers(value: Any, count: int) -> bool:
    return isinstance(value, list) and len(value) == count and all(map(is_reward, value))


NAMES: Mapping[str, tuple[str, ...]] = {
    "messages": (
        *("messages", "traj", "trajectory", "conversation", "conversations", "chat"),
        *("transcript", "history", "contents", "messages_and_choices", "convo"),
    ),
    "prompt": (
        *("prompt", "question", "query", "user_input", "instruction", "problem", "input", "inputs"),
        *("input.messages", "input.question", "inputs.question", "doc.query"),
        *("instance.input.text", "request", "request.messages", "raw_input.question"),
        "user_prompt",
    ),
    # What was said before what was extracted from it; an answer is perhaps the reference.
    "response": (
        *("response", "completion", "output", "generation", "model_output", "model_response"),
        *("model_answer", "raw_output", "raw_response", "generated_text", "output_text"),
        *("actual_output", "llm_output", "outputs", "model_patch", "prediction"),
        "answer",
    ),
    "reference": REFERENCE_COLUMNS,
    "group": (
        *("group", "group_id", "uid", "task_id", "prompt_id", "problem_id", "question_id"),
        "instance_id",
    ),
}
"""The usual names of each field's column, the first of them that fits; dots reach into objects."""

_ANSWERED = ("reference", "ground_truth", "reference_answer", "expected_answer", "correct_answer")
"""A row with one of these and ``answer`` has its policy's answer in it."""


def guess_mapping(
    rows: Sequence[Mapping[str, Any]], responses: Sequence[str] = ()
) -> dict[str, str]:
    """``{field: column}`` for the fields whose column has another name; never two for one column.

    A name counts only where the values fit the field: messages are lists of chat messages,
    rewards are numbers, a group's values repeat or look like ids. ``responses``: names that may be
    the response's, too, such as those of attempts.
    """
    columns = [column for column, _ in Counter(c for row in rows for c in row).most_common()]
    by_name = {usual_name(column): column for column in reversed(columns)}
    guessed: dict[str, str] = {}
    for field, names in NAMES.items():
        for name in (*names[:-1], *responses, names[-1]) if field == "response" else names:
            column = by_name.get(name, name if "." in name else None)
            if column is None or column in guessed.values():
                continue
            values = [get_path(row, column) for row in rows]
            values = [value for value in values if value is not None and value is not MISSING]
            if name == "uid" and len(set(map(str, values))) == len(values):
                continue  # of the sample, not of its prompt
            if name == "label" and find_reference({name: values[0] if values else None}) is None:
                continue  # a class or a verdict, not an answer
            if name == "answer" and field == "response" and by_name.keys().isdisjoint(_ANSWERED):
                continue
            if _fit(field, values):
                guessed[field] = column
                break
    if guessed.get("messages", "").endswith("history") and {"prompt", "response"} <= guessed.keys():
        del guessed["messages"]  # what came before the question
    reward = find_reward_column(rows).column
    if reward is not None and reward not in guessed.values():
        guessed["env_reward"] = reward
    return {field: column for field, column in guessed.items() if field != column}


def find_column(row: Mapping[str, Any], name: str) -> str | None:
    """The column of a row that has a usual name of the field ``name``, and fits it."""
    if name == "env_reward":
        return find_reward([row]).column
    for column in NAMES[name]:
        if column == "answer" and name == "response":  # most often the reference
            continue
        value = get_path(row, column) if "." in column else row.get(column)
        if value is not None and value is not MISSING and _fit(name, [value]):
            return column
    return None


def join_input(row: Mapping[str, Any]) -> str | None:
    """Alpaca's question: the instruction, and the input to which it is applied."""
    instruction, given = row.get("instruction"), row.get("input")
    if isinstance(instruction, str) and isinstance(given, str) and given.strip():
        return f"{instruction}\n\n{given}"
    return None


def find_reward_column(rows: Sequence[Mapping[str, Any]]) -> RewardColumns:
    """Where the rewards of rows are; no column where a list has one for each response of a row."""
    for row in rows:
        texts = find_response_list(row)
        if texts is not None and _find_reward_list(row, len(row[texts])) is not None:
            return RewardColumns()
    return find_reward(rows)


def fits_field(name: str, value: Any) -> bool:
    """Whether a value can be that of a field."""
    return value is None or _fit(name, [value])


_TEXT_KEYS = (
    *("text", "content", "output", "answer", "response", "completion", "question", "prompt"),
    *("query", "input"),
)


def as_answer(value: Mapping[str, Any]) -> Mapping[str, Any]:
    """An object that calls tools as the message of the assistant that it is."""
    calls = any(value.get(key) for key in CALL_KEYS)
    return {"role": "assistant", **value} if calls else value


def object_text(value: Mapping[str, Any]) -> str | None:
    """The text of an object that has one: ``{"text": …}``, ``{"content": …, "role": …}``."""
    texts = [value[name] for name in _TEXT_KEYS if value.get(name) is not None]
    return texts[0] if len(texts) == 1 and isinstance(texts[0], str) else None


def _is_response(value: Any) -> bool:
    """Whether a value is a text, an object with one, or messages that begin with an answer."""
    if isinstance(value, Mapping):
        return object_text(value) is not None or looks_like_messages([as_answer(value)])
    if isinstance(value, list) and looks_like_messages(value):
        with suppress(RolloutError):
            return read_messages(value, "")[0]["role"] in ("assistant", "tool")
        return False
    return isinstance(value, str)


def _are_prompts(values: Sequence[Any]) -> bool:
    if values and all(isinstance(value, Mapping) for value in values):
        return all(
            object_text(value) is not None or looks_like_messages(value.get("messages"))
            for value in values
        )
    texts = any(values) and all(isinstance(value, str) for value in values)
    return texts or (bool(values) and all(map(looks_like_messages, values)))


_FITS: Mapping[str, Callable[[Any], bool]] = {
    "messages": looks_like_messages,
    "response": _is_response,
    "group": lambda value: isinstance(value, str | int),
    "env_reward": is_reward,
}


def _fit(name: str, values: Sequence[Any]) -> bool:
    """Whether values can be those of a field."""
    if name == "prompt":
        return _are_prompts(values)
    if name == "reference":
        return not all(map(is_nothing, values))
    return bool(values) and all(map(_FITS[name], values))
