"""Tool calls and their results, read out of OpenAI chat messages."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Sequence
from typing import Any

import msgspec

from adjudge.errors import ErrorKind, GradingFailure
from adjudge.graders.view import content_text

__all__ = [
    "UNPRINTABLE",
    "Step",
    "ToolCall",
    "Trajectory",
    "calls_by_turn",
    "decode_arguments",
    "invalid",
    "parse_call",
    "parse_trajectory",
]


class ToolCall(msgspec.Struct, frozen=True, gc=False):
    """One tool call.

    ``arguments`` is as written: an object, a JSON string (perhaps a broken one), or ``None``.
    """

    name: str
    arguments: Any


class Step(msgspec.Struct, frozen=True, gc=False):
    """A tool call with its result, the observation ("" when it has no text)."""

    call: ToolCall
    observation: str


class Trajectory(msgspec.Struct, frozen=True):
    """The answered calls in the order of their results, and what could not be paired.

    ``unanswered_calls`` had no result; ``orphan_results`` answered no call.
    """

    steps: list[Step]
    unanswered_calls: int
    orphan_results: int

    def unpaired(self) -> dict[str, int]:
        """The two counts by name, for a result's metadata."""
        return {
            "unanswered_calls": self.unanswered_calls,
            "orphan_results": self.orphan_results,
        }


def parse_trajectory(messages: Any) -> Trajectory:
    """Pair every tool result with its call, in the order of the messages.

    A result with an id answers the latest open call of that id, so ids may be reused. A result
    without id answers the oldest open call without id, or else the oldest open call. Messages and
    calls may be wrapped as ``{"message": …}`` and ``{"tool_call": …}``; the former
    ``function_call`` form is read too. Raises ``GradingFailure(invalid_input)`` when the messages
    are not a list of objects or a tool call has no readable form; a result that answers nothing
    and a call without result are counted.

    >>> parse_trajectory([
    ...     {"role": "assistant", "tool_calls": [
    ...         {"id": "a", "function": {"name": "look", "arguments": "{}"}}]},
    ...     {"role": "tool", "tool_call_id": "a", "content": "a door"},
    ... ]).steps
    [Step(call=ToolCall(name='look', arguments='{}'), observation='a door')]
    """
    open_calls = _OpenCalls()
    steps = []
    orphans = 0
    for position, message in enumerate(_listed(messages)):
        message = _unwrapped(message)  # noqa: PLW2901
        role = message.get("role")
        if role == "assistant":
            if "tool_calls" in message or "function_call" in message:
                for raw in _raw_calls(message, position):
                    open_calls.add(parse_call(raw, position), _call_id(raw))
        elif role == "tool" or role == "function":  # noqa: PLR1714 (twice as fast as a tuple)
            answered = open_calls.take(_usable_id(message.get("tool_call_id")))
            if answered is None:
                orphans += 1
            else:
                content = message.get("content")
                text = content if type(content) is str else _observation(content, position)
                steps.append(Step(answered, text))
    return Trajectory(steps, open_calls.count, orphans)


def calls_by_turn(messages: Any) -> list[list[ToolCall]]:
    """The tool calls of each assistant message that has any, answered or not.

    Raises as :func:`parse_trajectory`.
    """
    turns = []
    for position, outer in enumerate(_listed(messages)):
        message = _unwrapped(outer)
        if message.get("role") == "assistant":
            calls = [parse_call(raw, position) for raw in _raw_calls(message, position)]
            if calls:
                turns.append(calls)
    return turns


def parse_call(raw: Any, where: int | str) -> ToolCall:
    """A tool call from ``{"function": {"name", "arguments"}}`` or ``{"name", "arguments"}``.

    Either may be wrapped as ``{"tool_call": …}``; a missing name is "", and so is one in a message
    that is no text, which the policy may have written. Raises ``GradingFailure(invalid_input)`` for
    anything else, saying ``where``: a message's position or a field.
    """
    if type(raw) is dict and "tool_call" not in raw:  # as nearly everybody writes it
        function = raw.get("function")
        if type(function) is dict and type(name := function.get("name")) is str:
            return ToolCall(name, function.get("arguments"))
    if isinstance(raw, dict):
        inner = raw.get("tool_call", raw)
        function = inner.get("function", inner) if isinstance(inner, dict) else inner
        if isinstance(function, dict):
            name = function.get("name")
            if isinstance(name, str) or name is None or isinstance(where, int):
                name = name if isinstance(name, str) else ""
                return ToolCall(name, function.get("arguments"))
    place = f"messages[{where}].tool_calls" if isinstance(where, int) else where
    message = f"{place}: a tool call is not an object with a function and its name"
    raise invalid(message, suspect=isinstance(where, int))


UNPRINTABLE = "arguments that cannot be read as text"
"""Stands for a call's arguments that Python will not print: nested too deeply, say."""


def decode_arguments(text: str) -> Any:
    """The JSON value of an arguments string; raises ``ValueError`` when it is not JSON.

    The same value as ``json.loads``, which also reads what is not strictly JSON (``NaN``, lone
    surrogates).
    """
    try:
        return _decoder.decode(text)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        pass
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def invalid(message: str, *, suspect: bool = False) -> GradingFailure:
    """The failure of an input that cannot be judged; ``suspect``: the policy may have written it.

    A file in another format looks the same, so it is no verdict.
    """
    return GradingFailure(ErrorKind.INVALID_INPUT, message, {"suspect": True} if suspect else {})


_decoder = msgspec.json.Decoder()

_CallId = str | int | None


class _OpenCalls:
    """Calls that still wait for a result, by the order in which they were made."""

    def __init__(self) -> None:
        self.count = 0
        self._calls: list[ToolCall | None] = []  # None: answered
        self._latest: dict[str | int, int] = {}  # of each id
        self._before: list[int] = []  # the call of the same id before this one, or -1
        self._without_id: deque[int] = deque()
        self._oldest = 0

    def add(self, call: ToolCall, call_id: _CallId) -> None:
        number = len(self._calls)
        self._calls.append(call)
        self.count += 1
        if call_id is None:
            self._before.append(-1)
            self._without_id.append(number)
        else:
            self._before.append(self._latest.get(call_id, -1))
            self._latest[call_id] = number

    def take(self, call_id: _CallId) -> ToolCall | None:
        """Remove and return the call that a result with this id answers."""
        if call_id is None:
            return self._take_oldest()
        number = self._latest.get(call_id, -1)
        while number >= 0:
            call = self._calls[number]
            before = self._before[number]
            self._latest[call_id] = before
            if call is not None:
                self._calls[number] = None
                self.count -= 1
                return call
            number = before
        return None

    def _take_oldest(self) -> ToolCall | None:
        if self._without_id:
            return self._take(self._without_id.popleft())
        while self._oldest < len(self._calls):
            call = self._take(self._oldest)
            self._oldest += 1
            if call is not None:
                return call
        return None

    def _take(self, number: int) -> ToolCall | None:
        call = self._calls[number]
        if call is not None:
            self._calls[number] = None
            self.count -= 1
        return call


def _listed(messages: Any) -> Sequence[Any]:
    if not isinstance(messages, list | tuple):
        raise invalid(f"messages is {_kind(messages)}, not a list")
    return messages


def _unwrapped(message: Any) -> dict[str, Any]:
    if type(message) is dict and "message" not in message:
        return message
    if not isinstance(message, dict):
        raise invalid(f"messages has {_kind(message)} where an object is due")
    inner = message.get("message")
    return inner if isinstance(inner, dict) else message


def _call_id(raw: dict[str, Any]) -> _CallId:
    return _usable_id(raw.get("tool_call", raw).get("id"))


def _raw_calls(message: dict[str, Any], position: int) -> Sequence[Any]:
    calls = message.get("tool_calls")
    if calls is None:
        legacy = message.get("function_call")
        return () if legacy is None else (legacy,)
    if not isinstance(calls, list | tuple):
        what = f"messages[{position}].tool_calls is {_kind(calls)}, not a list"
        raise invalid(what, suspect=True)
    return calls


def _usable_id(value: Any) -> _CallId:
    if type(value) is str:
        return value or None
    return value if type(value) is int else None


def _observation(content: Any, position: int) -> str:
    try:
        return content_text(content)
    except (RecursionError, ValueError):
        # A structure that Python will not print: nested too deeply, or a number too long.
        what = f"messages[{position}].content cannot be read as text"
        raise invalid(what, suspect=True) from None


def _kind(value: Any) -> str:
    return "null" if value is None else type(value).__name__
