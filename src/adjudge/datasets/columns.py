"""What the columns of a row must hold: conversations, prompts, texts, labels, ids, two answers.

Each check gives the value back, or raises :class:`~adjudge.datasets.rows.BrokenRow` with the
column, what was found in it and what is allowed.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Mapping
from itertools import combinations
from typing import Any, TypeVar

from adjudge.datasets.files import RawColumns
from adjudge.datasets.rows import (
    RATINGS,
    BrokenRow,
    ChatMessages,
    DatasetRow,
    LoadedRows,
    Preference,
    Rating,
    RowProblem,
    RowProblems,
    describe_found,
    shared_prompt_length,
    split_answers,
)
from adjudge.errors import RolloutError
from adjudge.intake.conversation import list_messages, looks_like_messages, read_messages
from adjudge.intake.parts import Message
from adjudge.messages import content_text, prompt_messages
from adjudge.types import get_path

MAX_MESSAGES = 2_000

MAX_PAIRS_PER_PROMPT = 1_000
"""Pairs made from one prompt; one with more answers than that is a problem, not a flood."""

_LIST = "a list of chat messages {role, content}, or the JSON text of one"


def check_conversation(value: Any, key: str) -> ChatMessages:
    """``value`` as chat messages in OpenAI's form, of any maker's; see :func:`.read_messages`.

    Empty ``tool_calls`` are left out (a Parquet column has every field in every message).
    Raises :class:`BrokenRow` for anything a chat template cannot show.
    """
    given = value
    try:
        given = list_messages(value, key)
        if not 0 < len(given) <= MAX_MESSAGES:
            raise BrokenRow(key, f"{len(given)} messages", f"1 to {MAX_MESSAGES}")
        messages = read_messages(given, key)
    except RolloutError as error:  # its words may quote the row
        place = str(error).partition(": ")[0]
        inner = place.removeprefix(f"{key}.")
        found = given if inner == place else get_path(given, inner)
        place = re.sub(r"\.(\d+)", r"[\1]", place) if place.startswith(key) else key
        shown = describe_found(found, label=place.endswith(".role"))
        raise BrokenRow(place, shown, _LIST) from None
    places = [f"{key}[{number}]" for number in range(len(messages))]
    return list(map(_check_message, messages, places))


def check_prompt(value: Any, key: str) -> ChatMessages:
    """A prompt as messages: text is a user's message, unless it is the JSON of a conversation."""
    if isinstance(value, str) and not looks_like_messages(value):
        return prompt_messages(check_text(value, key))
    messages = check_conversation(value, key)
    if messages[-1]["role"] == "assistant":
        raise BrokenRow(
            f"{key}[-1].role", "text 'assistant'", "user, system or tool: who is answered"
        )
    return messages


def check_ends_with_answer(messages: ChatMessages, key: str) -> ChatMessages:
    """``messages``, where something is asked and the last turn is the assistant's."""
    last = messages[-1]
    if last["role"] != "assistant":
        raise BrokenRow(
            f"{key}[-1].role", describe_found(last["role"], label=True), "assistant, who answers"
        )
    if not any(message["role"] == "user" for message in messages):
        raise BrokenRow(key, "no user's message", "a conversation with something asked")
    return messages


_T = TypeVar("_T", bound=DatasetRow)


def check_answers(row: _T, *keys: str) -> _T:
    """``row``, where each answer has a text or calls tools; ``keys`` are their columns."""
    _, answers = split_answers(row)
    for key, answer in zip(keys, answers, strict=True):
        last = answer[-1]
        if not content_text(last["content"]).strip() and "tool_calls" not in last:
            raise BrokenRow(f"{key}[-1].content", "no text", "an answer")
    return row


def check_text(value: Any, key: str, *, blank: bool = False) -> str:
    """``value`` as text; ``blank`` allows blank text."""
    if not isinstance(value, str):
        raise BrokenRow(key, describe_found(value), "text")
    if not (blank or value.strip()):
        raise BrokenRow(key, "no text", "text")
    return value


def _check_message(message: Message, key: str) -> Message:
    content, calls = message.get("content"), message.get("tool_calls")
    if isinstance(content, list):
        # A judge of texts would never see it, and be trained on a label that depends on it.
        raise BrokenRow(f"{key}.content", "parts that are no texts", "text")
    if content is None and not calls:
        raise BrokenRow(f"{key}.content", "nothing", "text (null only beside tool_calls)")
    if calls or "tool_calls" not in message:
        return message
    return {name: field for name, field in message.items() if name != "tool_calls"}


def check_rating(value: Any, key: str) -> int:
    """``value`` as a label 0 to 4; raises :class:`BrokenRow`."""
    whole = isinstance(value, int | float) and not isinstance(value, bool)
    if not whole or value not in RATINGS:
        raise BrokenRow(key, describe_found(value, label=True), "a whole number from 0 to 4")
    return int(value)


def check_margin(value: Any, key: str) -> float | None:
    """By how much the better answer is better, never negative; ``None`` where it is missing."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BrokenRow(key, describe_found(value), "a number, or null")
    if isinstance(value, float) and math.isnan(value):
        return None  # how pandas writes "none"
    if not 0 <= value < 1e9:
        raise BrokenRow(key, describe_found(value), "a finite number, 0 or more, or null")
    return float(value)


def check_subset(value: Any, key: str) -> str | None:
    """The subset that a row names, if it does."""
    if value is not None and not isinstance(value, str):
        raise BrokenRow(key, describe_found(value), "text")
    return value


def check_id(value: Any, key: str) -> str | None:
    """The id that a row gives, if it does."""
    if value is None:
        return None
    if type(value) not in (str, int):
        raise BrokenRow(key, describe_found(value), "text or a whole number")
    return str(value)


def source_fields(row: RawColumns, where: str, names: Mapping[str, str]) -> dict[str, Any]:
    """Where a row is from, by the columns of ``names``: ``where`` and ``subset``."""
    key = names.get("subset")
    return {"where": where, "subset": key and check_subset(row.get(key), key)}


def make_preference(
    chosen: ChatMessages,
    rejected: ChatMessages,
    margin: float | None,
    fields: Mapping[str, Any],
    keys: tuple[str, str] = ("chosen", "rejected"),
) -> Preference:
    """A preference of two different answers to one question; else raises :class:`BrokenRow`."""
    for key, side in zip(keys, (chosen, rejected), strict=True):
        check_ends_with_answer(side, key)
    if chosen == rejected:
        raise BrokenRow(keys[1], f"the same as {keys[0]}", "another answer")
    asked = next(n for n, message in enumerate(chosen) if message["role"] == "user") + 1
    shared = shared_prompt_length(chosen, rejected)
    if shared < asked:
        raise BrokenRow(keys[1], "another beginning", f"the question that {keys[0]} begins with")
    for key, side in zip(keys, (chosen, rejected), strict=True):
        if shared == len(side):
            raise BrokenRow(key, "the beginning of the other", "an answer of its own")
    return Preference(chosen=chosen, rejected=rejected, margin=margin, **fields)


def pair_ratings(rated: LoadedRows[Rating]) -> LoadedRows[Preference]:
    """Any two answers to the same prompt with different ratings; other pairs are problems."""
    by_prompt: dict[str, list[Rating]] = defaultdict(list)
    for one in rated.rows:
        by_prompt[repr(one.messages[:-1])].append(one)
    pairs: list[Preference] = []
    for answers in by_prompt.values():
        _pair_up(answers, pairs, rated.problems)
    return LoadedRows(pairs, rated.problems)


def _pair_up(answers: list[Rating], pairs: list[Preference], problems: RowProblems) -> None:
    count, found = len(answers), "no other answer to it"
    if count < 2 or count * (count - 1) // 2 > MAX_PAIRS_PER_PROMPT:
        found = found if count < 2 else f"{count:,} answers to it"
        allowed = f"two or more answers, {MAX_PAIRS_PER_PROMPT} pairs or fewer"
        problems.add(RowProblem(answers[0].where, "prompt", found, allowed))
        return
    for one, other in combinations(answers, 2):
        try:
            pairs.append(_better_first(one, other))
        except BrokenRow as problem:
            problems.add(problem.problem_at(one.where))


def _better_first(one: Rating, other: Rating) -> Preference:
    if one.label == other.label:
        raise BrokenRow("helpfulness", f"{one.label} for both answers", "different numbers")
    better, worse = (one, other) if one.label > other.label else (other, one)
    margin = float(better.label - worse.label)
    return make_preference(better.messages, worse.messages, margin, {"where": one.where})
