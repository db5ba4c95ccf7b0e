"""What readers of formats share: values read with care, and the OpenAI chat messages they make.

Records are untrusted. A value of another type than the format says is taken for absent where the
sample can do without it, and is a :class:`~adjudge.errors.RolloutError` where it cannot.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeGuard

import msgspec

from adjudge.errors import RolloutError
from adjudge.messages import content_text
from adjudge.rollouts.formats.base import Row

Record = Mapping[str, Any]
Message = dict[str, Any]

_SHOWN = 300
_MOST_ENVELOPES = 4


def as_object(value: Any) -> Mapping[str, Any]:
    """``value`` if it is a JSON object, else an empty one."""
    return value if isinstance(value, Mapping) else {}


def as_objects(value: Any) -> list[Mapping[str, Any]]:
    """The JSON objects in a list; none for what is no list."""
    items = value if isinstance(value, list | tuple) else ()
    return [item for item in items if isinstance(item, Mapping)]


def as_text(value: Any) -> str | None:
    """``value`` if it is a text that is not empty."""
    return value if isinstance(value, str) and value else None


def as_id(value: Any) -> str | None:
    """A text or a whole number as the name of a task, a request or a call."""
    if isinstance(value, int) and not isinstance(value, bool):
        try:
            return str(value)
        except ValueError:  # too long to print
            return None
    return as_text(value)


def is_number(value: Any) -> bool:
    """Whether ``value`` is a finite number or a truth value, small enough for a float."""
    try:
        return isinstance(value, bool | int | float) and math.isfinite(value)
    except OverflowError:
        return False


def as_number(value: Any, name: str) -> float | None:
    """A number or truth value as a float; ``None`` for null."""
    if value is None:
        return None
    if not is_number(value):
        raise RolloutError(f"{name}: must be a finite number (found {type(value).__name__})")
    return float(value)


def known_columns(**columns: Any) -> Row:
    """The columns that the record has: those that are not ``None``."""
    return {name: value for name, value in columns.items() if value is not None}


def is_conversation(value: Any) -> TypeGuard[list[Message]]:
    """Whether ``value`` is a list of messages, each with a role; one at least."""
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(item, Mapping) and isinstance(item.get("role"), str) for item in value)
    )


def check_answered(messages: Sequence[Mapping[str, Any]]) -> None:
    """Raise :class:`RolloutError` for a conversation in which the policy never spoke."""
    if not any(message.get("role") == "assistant" for message in messages):
        raise RolloutError("has no message of the assistant: nothing was answered")


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


def tool_call(call_id: Any, name: Any, arguments: Any) -> dict[str, Any]:
    """A tool call in OpenAI form; arguments that are no text become JSON."""
    written = arguments if isinstance(arguments, str) else _encode(arguments)
    function = {"name": name if isinstance(name, str) else "", "arguments": written}
    return {"id": as_id(call_id) or "", "type": "function", "function": function}


def _encode(value: Any) -> str:
    try:
        return msgspec.json.encode({} if value is None else value).decode()
    except (TypeError, ValueError, OverflowError):  # a long integer, half an emoji
        pass
    except RecursionError:
        raise RolloutError("a tool call is nested too deeply") from None
    try:
        return json.dumps(value)
    except (TypeError, ValueError, RecursionError):
        raise RolloutError("the arguments of a tool call are no JSON data") from None


def assistant_message(
    content: Any, calls: Sequence[Any] = (), reasoning: str | None = None
) -> Message:
    """A turn of the assistant; ``content`` is null where it only called tools."""
    message: Message = {"role": "assistant", "content": content}
    if reasoning:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = list(calls)
    return message


def tool_message(call_id: Any, content: Any) -> Message:
    """The result of a tool call."""
    return {"role": "tool", "tool_call_id": as_id(call_id) or "", "content": message_text(content)}


def message_text(content: Any) -> str:
    """The text of a message's content: a text, null, or a list of parts."""
    if content is None or isinstance(content, str | list):
        return content_text(content)
    raise RolloutError(f"the content of a message is no text (found {type(content).__name__})")


def split_reasoning(content: Any) -> tuple[str, str]:
    """The text and the reasoning of a message's content: a text, or a list of typed parts.

    Texts of several parts are joined by a line end; images and other parts are left out.
    """
    if not isinstance(content, list):
        return message_text(content), ""
    texts = _texts(content)
    reasoning: list[str] = []
    for part in as_objects(content):
        kind = part.get("type")
        if kind in ("reasoning", "thinking"):
            reasoning += _texts([part.get("reasoning"), part.get("thinking")])
        else:
            texts += _texts([part.get("text")])
    return "\n".join(filter(None, texts)), "\n".join(filter(None, reasoning))


def message_from_output(items: Any) -> Message:
    """The assistant's message in the ``output`` of OpenAI's Responses API.

    Calls of functions and custom tools become tool calls. Items of tools that run at the provider
    (web search, code interpreter) are left out.
    """
    texts: list[str] = []
    reasoning: list[str] = []
    calls = []
    for item in as_objects(items):
        kind = item.get("type")
        if kind == "message":
            parts = as_objects(item.get("content"))
            texts += _texts(part.get("text") or part.get("refusal") for part in parts)
        elif kind == "reasoning":
            parts = as_objects(item.get("summary")) + as_objects(item.get("content"))
            reasoning += _texts(part.get("text") for part in parts)
        elif kind == "function_call":
            name, arguments = item.get("name"), item.get("arguments")
            calls.append(tool_call(item.get("call_id") or item.get("id"), name, arguments))
        elif kind == "custom_tool_call":
            calls.append(tool_call(item.get("call_id"), item.get("name"), item.get("input")))
    return assistant_message("".join(texts) or None, calls, "\n".join(reasoning))


def _texts(values: Iterable[Any]) -> list[str]:
    return [value for value in values if isinstance(value, str)]
