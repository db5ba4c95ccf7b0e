"""What a format of rollout files is, and what the readers of dumps share.

A format says how its records are recognised and which rows they become. Records are untrusted. A
value of another type than the format says is taken for absent where the sample can do without it,
and is a :class:`~adjudge.errors.RolloutError` where it cannot.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, TypeGuard

import msgspec

from adjudge.errors import RolloutError
from adjudge.intake.columns import RewardColumns, as_id, as_object, encode_value
from adjudge.intake.conversation import read_messages
from adjudge.intake.parts import Message, join_pieces, read_parts
from adjudge.intake.rollouts import first_turn
from adjudge.text import encode_exactly
from adjudge.types import MISSING, get_path

SAMPLE_FIELDS = (
    *("messages", "opening_turns", "prompt", "response", "reference", "group", "env_reward"),
)
"""The columns that mean something by name; every other column is an extra."""

Row = dict[str, Any]
"""The columns of one sample, named as :data:`SAMPLE_FIELDS` are."""


def shape(**kinds: Any) -> Callable[[Mapping[str, Any]], bool]:
    """Whether a record has columns of these types; ``object`` is any, a tuple several."""
    return lambda record: all(
        name in record and isinstance(record[name], kind) for name, kind in kinds.items()
    )


SplitLines = Callable[[Sequence[Mapping[str, Any]]], Iterable[Sequence[int]]]
"""The places of each conversation's lines among the lines of a file."""

SplitRecord = Callable[[Mapping[str, Any]], Sequence[Mapping[str, Any]] | None]
"""The parts of a record that has several samples; ``None`` for a record that is one."""


@dataclass(frozen=True)
class RolloutFormat:
    """One format of records: a JSON line, an element of a JSON array, a document, a table's row.

    ``name`` is what users write, ``title`` what people call the format. ``matches`` tells from a
    record's keys and types whether it is one, and never raises. ``convert`` gives the rows of a
    record, one a sample; it raises :class:`~adjudge.errors.RolloutError` for a record without a
    sample, such as one whose run failed. In a record of several samples, each that failed comes as
    a ``RolloutError`` at its place, so that the others are read. ``pairs``: its rows answer one
    prompt, and the data says which is better; ``sides``: the columns of the two answers.
    ``request_id``: its prompts are in records of their own, often in another file; the id of
    such a record, ``None`` for a result. A result with that ``custom_id`` is converted together
    with it. ``join``: a record with what stands in files beside its own; ``None`` where it is a
    part of another file's record. ``own``: the columns of adjudge's own names that its records
    have; a record with another of them is a row under these names, and of no format. ``parts``: the
    column of a record's samples, and what splits the record: each part is converted by itself, and
    a mapped column is looked for there first. ``reward``: which column of the rows is the reward,
    by the first records or parts, where the format leaves a choice. ``conversations``: its records
    are lines of a log, and ``convert`` gets those of a conversation together, under ``lines``; the
    places of each one's lines in the file. A file is a log where one of its first lines is.
    """

    name: str
    title: str
    matches: Callable[[Mapping[str, Any]], bool]
    convert: Callable[[Mapping[str, Any]], Iterable[Row | RolloutError]]
    pairs: bool = False
    sides: tuple[str, ...] = ()
    request_id: Callable[[Mapping[str, Any]], str | None] | None = None
    join: Callable[[Path, Mapping[str, Any]], Mapping[str, Any] | None] | None = None
    own: tuple[str, ...] = ()
    parts: tuple[str, SplitRecord] | None = None
    reward: Callable[[Sequence[Mapping[str, Any]]], RewardColumns] | None = None
    conversations: SplitLines | None = None

    def split(self, record: Mapping[str, Any]) -> Sequence[Mapping[str, Any]] | None:
        """The parts of a record of several samples; ``None`` of one that is converted whole."""
        return None if self.parts is None else self.parts[1](record)

    def rows(self, record: Mapping[str, Any]) -> Iterator[Row | RolloutError]:
        """The rows of a record, one a sample; why there is none in a row's place."""
        parts = self.split(record)
        if self.parts is None or parts is None:
            yield from self.convert(record)
            return
        for place, part in enumerate(parts):
            try:
                yield from self.convert(part)
            except RolloutError as error:
                yield RolloutError(f"{self.parts[0]}.{place}: {error}")


Record = Mapping[str, Any]

_SHOWN = 300
_MOST_ENVELOPES = 4

_OWN = frozenset({*SAMPLE_FIELDS, "index"})
"""What a row's columns mean by name: a dump's column of that name does not become one."""

_BULK = frozenset(
    {
        *("tokens", "token_ids", "input_ids", "prompt_ids", "completion_ids", "response_ids"),
        *("prompt_token_ids", "completion_token_ids", "response_token_ids"),
        *("loss_mask", "attention_mask", "completion_mask"),
        *("logprobs", "log_probs", "rollout_log_probs", "completion_logprobs"),
        *("trajectory", "tool_defs", "tools"),
    }
)
"""Columns that no grader reads."""


def as_objects(value: Any) -> list[Mapping[str, Any]]:
    """The JSON objects in a list; none for what is no list."""
    items = value if isinstance(value, list | tuple) else ()
    return [item for item in items if isinstance(item, Mapping)]


def read_json(value: Any) -> Any:
    """What a text of JSON holds, as tables have objects; any other value as it is."""
    with suppress(msgspec.MsgspecError, RecursionError, UnicodeEncodeError):
        return msgspec.json.decode(value) if isinstance(value, str) else value
    return value


def are_objects(value: Any) -> TypeGuard[list[Record]]:
    """Whether ``value`` is a list of JSON objects alone, or an empty list."""
    return isinstance(value, list) and all(isinstance(item, Mapping) for item in value)


def at(record: Any, path: str) -> Any:
    """The value at a dotted path; null where there is none."""
    found = get_path(record, path)
    return None if found is MISSING else found


def as_text(value: Any) -> str | None:
    """``value`` if it is a text that is not empty."""
    return value if isinstance(value, str) and value else None


def is_number(value: Any) -> bool:
    """Whether ``value`` is a finite number or a truth value, small enough for a float."""
    try:
        return isinstance(value, bool | int | float) and math.isfinite(value)
    except OverflowError:
        return False


def describe_error(error: Any) -> str:
    """What an error object says, in one line; APIs put one ``error`` inside another."""
    for _ in range(_MOST_ENVELOPES):
        if not isinstance(error, Mapping) or not isinstance(error.get("error"), Mapping):
            break
        error = error["error"]
    if isinstance(error, Mapping):
        parts = (as_id(error.get(name)) for name in ("type", "code", "message"))
        error = ": ".join(dict.fromkeys(part for part in parts if part))
    text = as_text(error) or "no reason is given"
    return " ".join(text[: 2 * _SHOWN].split())[:_SHOWN]


def add_fields(row: Row, **fields: Any) -> Row:
    """``row`` with those of ``fields`` that are there: not null, and not NaN as tables write it."""
    for name, value in fields.items():
        if value is not None and not (isinstance(value, float) and math.isnan(value)):
            row[name] = value
    return row


def make_row(**fields: Any) -> Row:
    """A row with those of ``fields`` that are there."""
    return add_fields({}, **fields)


def pick_fields(values: Record, *names: str) -> Row:
    """The fields of those ``names``, under the same names."""
    return {name: values.get(name) for name in names}


def add_extras(row: Row, values: Record, *used: str) -> Row:
    """``row`` with the columns of ``values`` that it lacks, without bulk and those ``used``."""
    for name, value in values.items():
        if name not in row and name not in _OWN and name not in _BULK and name not in used:
            row[name] = value
    return row


def group_name(*parts: Any) -> str | None:
    """A group's name of an id, the last of ``parts``, and what it is an id within, if known.

    >>> group_name(5, None, "math")
    '5/math'
    >>> group_name(5, None) is None
    True
    """
    names = [as_id(part) for part in parts]
    return "/".join(filter(None, names)) if names[-1] else None


def digest_prompt(prompt: Any) -> str | None:
    """A short name of a text or a conversation; ``None`` of nothing."""
    if prompt is None:
        return None
    text = prompt if isinstance(prompt, str) else encode_value(prompt)
    return blake2b(encode_exactly(text), digest_size=8).hexdigest()


def completion_row(prompt: Any, completion: Any) -> Row:
    """A prompt and what answers it as a row; each is a text or a list of messages.

    Raises :class:`RolloutError` where there is no completion.
    """
    if not isinstance(completion, str | list):
        found = "" if completion is None else f" (found {type(completion).__name__})"
        raise RolloutError(f"there is no response{found}")
    return make_row(prompt=prompt, response=completion)


def split_reasoning(content: Any) -> tuple[str, str]:
    """The text and the reasoning of a message's content in any maker's form."""
    pieces = read_parts(content, "content")
    return join_pieces(pieces, "text"), join_pieces(pieces, "thought")


def answered_columns(messages: Sequence[Message]) -> Row:
    """The columns of a conversation in which all turns of the assistant are the policy's.

    Raises :class:`RolloutError` for a conversation in which the policy never spoke.
    """
    turns = first_turn(messages)
    if turns == len(messages):
        raise RolloutError("has no message of the assistant: nothing was answered")
    return {"messages": list(messages), "opening_turns": turns}


def request_messages(request: Record, name: str) -> list[Message]:
    """The messages of a request to a provider's API; none where it has none."""
    places = (request, as_object(request.get("config")))
    system = next((one[key] for one in places for key in SYSTEM_KEYS if one.get(key)), None)
    turn = system if isinstance(system, dict) else {"content": system}
    said = read_messages([_SYSTEM_ROLE | turn | _SYSTEM_ROLE], f"{name}.system") if system else []
    given = next((request[key] for key in TURN_KEYS if request.get(key) is not None), None)
    if isinstance(given, list) and "contents" in request:  # Gemini's user needs no role
        given = [{"role": "user"} | one if isinstance(one, dict) else one for one in given]
    if isinstance(given, str):
        return [*said, {"role": "user", "content": given}]
    return said + ([] if given is None else read_messages(given, name))


SYSTEM_KEYS = ("system", "instructions", "systemInstruction", "system_instruction")
_SYSTEM_ROLE = {"role": "system"}
TURN_KEYS = ("messages", "contents", "input")
