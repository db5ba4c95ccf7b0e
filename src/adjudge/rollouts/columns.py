"""The columns of a rollout row: which field each is, and the messages and events that they hold.

Columns are named by dotted paths into rows (``traj``, ``info.answer``, ``choices.0.text``) or
guessed from names and values. Chat messages are read as people really write them. A trajectory is
cut into events: one turn of the assistant, and what came back from it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from adjudge.errors import ErrorKind, GradingFailure

__all__ = [
    "MISSING",
    "content_text",
    "get_path",
    "guess_mapping",
    "parse_conversation",
    "split_events",
]


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


def parse_conversation(value: Any) -> list[dict[str, Any]] | None:
    """``value`` as chat messages, if it is such a list or the JSON text of one."""
    if isinstance(value, str):
        try:
            value = msgspec.json.decode(value)
        except (msgspec.MsgspecError, RecursionError):
            return None
    if not isinstance(value, list) or not value:
        return None
    return value if all(isinstance(m, dict) and "role" in m for m in value) else None


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


def content_text(content: Any) -> str:
    """The text of a message's ``content``: a string, null, or a list of content parts.

    Parts that are not text (images, audio) contribute nothing.
    """
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(_part_text(part) for part in content)
    return str(content)


def _part_text(part: Any) -> str:
    if isinstance(part, str):
        return part
    text = part.get("text") if isinstance(part, dict) else None
    return text if isinstance(text, str) else ""


_LONGEST = 20_000
"""Messages; more are no trajectory that a judge could be shown."""

_UNREADABLE = (TypeError, ValueError, OverflowError, RecursionError)
_encoder = msgspec.json.Encoder()


def split_events(messages: Any) -> list[dict[str, Any]]:
    r"""The events of a trajectory, in order; none where the assistant never spoke.

    ``messages`` are in OpenAI chat format, each perhaps wrapped as ``{"message": …}``. An event is
    one assistant message with all messages up to the next one: results of tools, and what the
    environment says in the user's role. What stands before the first belongs to no event. Fields:

    * ``index``: the event's place, from 0;
    * ``response``: the turn as text: its content, then a line ``name(arguments)`` per call;
    * ``event``: ``text``, ``tool_calls`` (as written) and ``observations`` (messages);
    * ``history``: the messages before the turn, earlier events included.

    Raises ``GradingFailure(invalid_input)`` for what is no list of messages.

    >>> events = split_events([
    ...     {"role": "user", "content": "Chop a tree."},
    ...     {"role": "assistant", "content": "I go to it.", "tool_calls": [
    ...         {"id": "a", "function": {"name": "move", "arguments": '{"to": "tree"}'}}]},
    ...     {"role": "tool", "tool_call_id": "a", "content": "There is a tree."},
    ...     {"role": "assistant", "content": "Done."},
    ... ])
    >>> [event["response"] for event in events]
    ['I go to it.\nmove({"to": "tree"})', 'Done.']
    >>> [len(event["history"]) for event in events]
    [1, 3]
    """
    turns = _parse_messages(messages)
    starts = [place for place, message in enumerate(turns) if message.get("role") == "assistant"]
    ends = [*starts, len(turns)][1:]
    return [
        _build_event(index, turns, start, end)
        for index, (start, end) in enumerate(zip(starts, ends, strict=True))
    ]


def _build_event(index: int, turns: list[Any], start: int, end: int) -> dict[str, Any]:
    turn = turns[start]
    calls = _tool_calls(turn)
    try:
        text = content_text(turn.get("content"))
        lines = [*([text] if text else []), *map(_call_text, calls)]
    except _UNREADABLE:
        raise _invalid_messages(
            f"messages.{start}: is nested too deeply, or no JSON data"
        ) from None
    return {
        "index": index,
        "response": "\n".join(lines),
        "event": {"text": text, "tool_calls": calls, "observations": turns[start + 1 : end]},
        "history": turns[:start],
    }


def _parse_messages(given: Any) -> list[Any]:
    if not isinstance(given, list):
        raise _invalid_messages(
            f"a trajectory is a list of chat messages, not a {type(given).__name__}"
        )
    if len(given) > _LONGEST:
        raise _invalid_messages(f"a trajectory of {len(given):,} messages; at most {_LONGEST:,} go")
    turns = []
    for place, message in enumerate(given):
        inner = message.get("message", message) if isinstance(message, Mapping) else message
        if not isinstance(inner, Mapping):
            raise _invalid_messages(
                f"messages.{place}: must be an object, not a {type(inner).__name__}"
            )
        turns.append(inner)
    return turns


def _tool_calls(turn: Mapping[str, Any]) -> list[Any]:
    """The turn's calls as written, the former ``function_call`` form included."""
    calls = turn.get("tool_calls")
    if isinstance(calls, list) and calls:
        return calls
    former = turn.get("function_call")
    return [former] if isinstance(former, Mapping) else []


def _call_text(call: Any) -> str:
    inner = call.get("tool_call", call) if isinstance(call, Mapping) else call
    function = inner.get("function", inner) if isinstance(inner, Mapping) else None
    if not isinstance(function, Mapping):
        return _json(call)
    arguments = function.get("arguments", "")
    return (
        f"{function.get('name')}({arguments if isinstance(arguments, str) else _json(arguments)})"
    )


def _json(value: Any) -> str:
    return _encoder.encode(value).decode()


def _invalid_messages(message: str) -> GradingFailure:
    return GradingFailure(ErrorKind.INVALID_INPUT, message)
