"""What of a sample a judge is shown: fields by name, or read out of its messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from adjudge.errors import ErrorKind, GradingFailure
from adjudge.graders.view import content_text
from adjudge.prompts.values import pieces_of

__all__ = [
    "Turns",
    "answer_place",
    "asked",
    "blank",
    "first_given",
    "lacking",
    "lines",
    "opening",
    "question",
    "said",
    "turns_of",
]

Turns = list[dict[str, Any]]
"""Chat messages, one object with a role each."""


def turns_of(messages: Any) -> Turns:
    """Chat messages as a transcript shows them: one object with a role each.

    ``{"message": …}`` is unwrapped and the former ``function_call`` becomes a tool call. Raises
    ``GradingFailure(invalid_input)`` for what is no list of messages, or an empty one.

    >>> turns_of([{"message": {"role": "user", "content": "Hello"}}])
    [{'role': 'user', 'content': 'Hello'}]
    """
    if not isinstance(messages, list | tuple) or not messages:
        found = "empty" if isinstance(messages, list | tuple) else type(messages).__name__
        raise _invalid(f"messages is {found}, must be a list of chat messages")
    return [_turn(message, place) for place, message in enumerate(messages)]


def _turn(message: Any, place: int) -> dict[str, Any]:
    inner = message.get("message", message) if isinstance(message, Mapping) else None
    if not isinstance(inner, Mapping) or not isinstance(inner.get("role"), str):
        raise _invalid(f"messages[{place}] is no object with a role")
    turn = dict(inner)
    if turn["role"] == "assistant" and isinstance(turn.get("content"), Mapping):
        turn["content"] = "".join(str(piece) for piece in pieces_of(turn["content"]))
    calls, legacy = turn.get("tool_calls"), turn.pop("function_call", None)
    if calls is not None and not isinstance(calls, list):
        raise _invalid(f"messages[{place}].tool_calls is {type(calls).__name__}, must be a list")
    if not calls and legacy is not None:
        turn["tool_calls"] = [legacy]
    return turn


def answer_place(turns: Sequence[Mapping[str, Any]]) -> int | None:
    """Where the last assistant turn that says something stands; ``None`` when none does."""
    for place in range(len(turns) - 1, -1, -1):
        if turns[place]["role"] == "assistant" and not blank(said(turns[place])):
            return place
    return None


def said(turn: Mapping[str, Any]) -> Any:
    """The text of a turn, or its parts where some are no text."""
    content = turn.get("content")
    if isinstance(content, list) and any(
        isinstance(part, Mapping) and not isinstance(part.get("text"), str) for part in content
    ):
        return content
    return content_text(content)


def question(turns: Turns, response: Any) -> tuple[int, Any]:
    """How many turns come before ``response`` (``None``: the last thing said), and the response.

    A response of the sample's own that is not the last thing said follows the conversation, unless
    that ends with an assistant's turn, which it then stands for. A trajectory in which the
    assistant says nothing has the response ``""``; without an assistant's turn it is ``None``.
    """
    place = answer_place(turns)
    if response is None:
        if place is None:
            acted = any(turn["role"] == "assistant" for turn in turns)
            return len(turns), "" if acted else None
        return place, said(turns[place])
    same = place is not None and isinstance(response, str) and said(turns[place]) == response
    if place is not None and (same or place == len(turns) - 1):
        return place, response
    return len(turns), response


def asked(turns: Turns) -> Any:
    """A conversation as a query: one user's turn alone is its content; ``None`` without any."""
    if len(turns) == 1 and turns[0]["role"] == "user":
        return said(turns[0])
    return turns if any(turn["role"] == "user" for turn in turns) else None


def opening(turns: Turns) -> int:
    """How many turns come before the assistant's first."""
    for place, turn in enumerate(turns):
        if turn["role"] == "assistant":
            return place
    return len(turns)


def blank(value: Any) -> bool:
    """Whether there is nothing to show: null, white space, an empty list or object."""
    if isinstance(value, str):
        return not value or value.isspace()
    return value is None or (isinstance(value, list | tuple | dict) and not value)


def first_given(fields: Mapping[str, Any], names: Sequence[str]) -> Any:
    """The first of several fields that has something to show, else ``None``."""
    for name in names:
        value = fields.get(name)
        if value is not None and not blank(value):
            return value
    return None


def lines(value: Any) -> Any:
    """A list of tool definitions or calls with one JSON object per line; text as it is."""
    if not isinstance(value, list | tuple):
        return value
    return "\n".join(str(piece) for item in value for piece in pieces_of(item))


def lacking(names: Sequence[str], fields: Mapping[str, Any]) -> GradingFailure:
    """The failure of a sample that has none of the fields ``names``."""
    has = ", ".join(sorted(map(str, fields))[:20])
    wanted = " or ".join(repr(name) for name in names)
    return _invalid(f"the sample has no field {wanted} (it has: {has})")


def _invalid(message: str) -> GradingFailure:
    return GradingFailure(ErrorKind.INVALID_INPUT, message)
