"""Checking that what a column holds is a conversation that a judge can be trained on."""

from __future__ import annotations

from typing import Any

import msgspec

from adjudge.judge_training.data.problems import BrokenRow, found
from adjudge.judge_training.data.rows import Messages
from adjudge.rollouts.messages import content_text

__all__ = [
    "MAX_CHARACTERS",
    "MAX_DEPTH",
    "MAX_MESSAGES",
    "ROLES",
    "conversation",
    "ends_with_answer",
    "json_value",
    "text",
]

ROLES = ("system", "developer", "user", "assistant", "tool")
MAX_MESSAGES = 2_000
MAX_CHARACTERS = 4_000_000
"""Characters of one column of one row; about a million tokens."""
MAX_DEPTH = 32
"""Of lists and objects inside a message (tool calls)."""

_LIST = "a list of chat messages {role, content}, or the JSON text of one"


def json_value(value: str, key: str) -> Any:
    """The JSON that a column holds as text; raises :class:`BrokenRow`."""
    _measure(len(value), key)
    try:
        return msgspec.json.decode(value)
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError) as error:
        kind = "nested too deeply" if isinstance(error, RecursionError) else "that is not JSON"
        raise BrokenRow(key, f"text of {len(value)} characters {kind}", _LIST) from None


def conversation(value: Any, key: str) -> Messages:
    """``value`` as chat messages: a list of them, or the JSON text of one.

    Null fields of a message and empty ``tool_calls`` are left out (a Parquet column has every field
    in every message).
    Raises :class:`BrokenRow` for anything a chat template cannot show.
    """
    if isinstance(value, str):
        value = json_value(value, key)
    if not isinstance(value, list) or not value:
        raise BrokenRow(key, found(value), _LIST)
    if len(value) > MAX_MESSAGES:
        raise BrokenRow(key, f"{len(value)} messages", f"at most {MAX_MESSAGES}")
    messages = [_message(message, f"{key}[{number}]") for number, message in enumerate(value)]
    _measure(sum(map(_size, messages)), key)
    return messages


def ends_with_answer(messages: Messages, key: str) -> Messages:
    """``messages``, where something is asked and the last turn is the assistant's, with a text."""
    last = messages[-1]
    if last["role"] != "assistant":
        raise BrokenRow(
            f"{key}[-1].role", found(last["role"], label=True), "assistant, who answers"
        )
    if not content_text(last["content"]).strip() and "tool_calls" not in last:
        raise BrokenRow(f"{key}[-1].content", "no text", "an answer")
    if not any(message["role"] == "user" for message in messages):
        raise BrokenRow(key, "no user's message", "a conversation with something asked")
    return messages


def text(value: Any, key: str) -> str:
    """``value`` as text that is not blank; raises :class:`BrokenRow`."""
    if not isinstance(value, str):
        raise BrokenRow(key, found(value), "text")
    _measure(len(value), key)
    if not value.strip():
        raise BrokenRow(key, "no text", "text")
    return value


def _measure(characters: int, key: str) -> None:
    if characters > MAX_CHARACTERS:
        raise BrokenRow(key, f"{characters:,} characters", f"at most {MAX_CHARACTERS:,}")


def _message(value: Any, key: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise BrokenRow(key, found(value), "a chat message {role, content}")
    role = value.get("role")
    if role not in ROLES:
        raise BrokenRow(f"{key}.role", found(role, label=True), ", ".join(ROLES))
    content = value.get("content")
    if isinstance(content, list):
        for number, part in enumerate(content):
            _part(part, f"{key}.content[{number}]")
    elif content is None and not value.get("tool_calls"):
        raise BrokenRow(f"{key}.content", "nothing", "text (null only beside tool_calls)")
    elif content is not None and not isinstance(content, str):
        raise BrokenRow(f"{key}.content", found(content), "text, or a list of text parts")
    if _too_deep(value):
        raise BrokenRow(key, "deep nesting", f"at most {MAX_DEPTH} lists and objects in another")
    rest = {name: field for name, field in value.items() if field is not None}
    if not rest.get("tool_calls", True):
        del rest["tool_calls"]
    return rest | {"content": content}


def _part(part: Any, key: str) -> None:
    kind = part.get("type", "text") if isinstance(part, dict) else None
    if kind != "text":
        # A judge of texts would never see it, and be trained on a label that depends on it.
        shown = found(kind, label=True) if isinstance(part, dict) else found(part)
        raise BrokenRow(f"{key}.type", shown, "text")
    if not isinstance(part.get("text"), str):
        raise BrokenRow(f"{key}.text", found(part.get("text")), "text")


def _too_deep(value: Any) -> bool:
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return False
    return True


def _size(value: Any) -> int:
    """Characters of all texts inside ``value``, which is not deep."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(map(_size, value.values())) + sum(map(len, value))
    return sum(map(_size, value)) if isinstance(value, list) else 8
