"""A trajectory cut into events: one turn of the assistant, and what came back from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from adjudge.errors import ErrorKind, GradingFailure
from adjudge.rollouts.messages import content_text

__all__ = ["events_of"]

_LONGEST = 20_000
"""Messages; more are no trajectory that a judge could be shown."""

_UNREADABLE = (TypeError, ValueError, OverflowError, RecursionError)
_encoder = msgspec.json.Encoder()


def events_of(messages: Any) -> list[dict[str, Any]]:
    r"""The events of a trajectory, in order; none where the assistant never spoke.

    ``messages`` are in OpenAI chat format, each perhaps wrapped as ``{"message": …}``. An event is
    one assistant message with all messages up to the next one: results of tools, and what the
    environment says in the user's role. What stands before the first belongs to no event. Fields:

    * ``index``: the event's place, from 0;
    * ``response``: the turn as text: its content, then a line ``name(arguments)`` per call;
    * ``event``: ``text``, ``tool_calls`` (as written) and ``observations`` (messages);
    * ``history``: the messages before the turn, earlier events included.

    Raises ``GradingFailure(invalid_input)`` for what is no list of messages.

    >>> events = events_of([
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
    turns = _messages(messages)
    starts = [place for place, message in enumerate(turns) if message.get("role") == "assistant"]
    ends = [*starts, len(turns)][1:]
    return [
        _event(index, turns, start, end)
        for index, (start, end) in enumerate(zip(starts, ends, strict=True))
    ]


def _event(index: int, turns: list[Any], start: int, end: int) -> dict[str, Any]:
    turn = turns[start]
    calls = _calls(turn)
    try:
        text = content_text(turn.get("content"))
        lines = [*([text] if text else []), *map(_call_text, calls)]
    except _UNREADABLE:
        raise _invalid(f"messages.{start}: is nested too deeply, or no JSON data") from None
    return {
        "index": index,
        "response": "\n".join(lines),
        "event": {"text": text, "tool_calls": calls, "observations": turns[start + 1 : end]},
        "history": turns[:start],
    }


def _messages(given: Any) -> list[Any]:
    if not isinstance(given, list):
        raise _invalid(f"a trajectory is a list of chat messages, not a {type(given).__name__}")
    if len(given) > _LONGEST:
        raise _invalid(f"a trajectory of {len(given):,} messages; at most {_LONGEST:,} go")
    turns = []
    for place, message in enumerate(given):
        inner = message.get("message", message) if isinstance(message, Mapping) else message
        if not isinstance(inner, Mapping):
            raise _invalid(f"messages.{place}: must be an object, not a {type(inner).__name__}")
        turns.append(inner)
    return turns


def _calls(turn: Mapping[str, Any]) -> list[Any]:
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


def _invalid(message: str) -> GradingFailure:
    return GradingFailure(ErrorKind.INVALID_INPUT, message)
