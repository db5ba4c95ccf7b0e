"""A field's value as a judge reads it: text, a transcript, JSON, images."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from adjudge.errors import ErrorKind, GradingFailure

__all__ = ["Piece", "pieces_of"]

Piece = str | Mapping[str, Any]
"""Text, or a content part that is none (an image)."""

_IMAGES = ("image_url", "input_image", "image")
_encoder = msgspec.json.Encoder()


def pieces_of(value: Any) -> list[Piece]:
    """``value`` in pieces, in order.

    Text is itself and ``None`` nothing; a list of chat messages is a transcript with its tool
    calls, a list of content parts their texts and images; everything else is JSON. Raises
    ``GradingFailure(invalid_input)`` for what JSON cannot hold.
    """
    if isinstance(value, str):
        return [value]
    if value is None:
        return [""]
    if isinstance(value, list) and value and all(isinstance(one, Mapping) for one in value):
        if all("role" in one for one in value):
            return _transcript(value)
        if all("type" in one for one in value):
            return _parts(value)
    return [_json(value)]


def _transcript(messages: list[Mapping[str, Any]]) -> list[Piece]:
    """Messages as numbered turns; a judge can name a step by its number."""
    pieces: list[Piece] = []
    for number, message in enumerate(messages):
        role = message.get("role")
        name = f" {message['name']}" if isinstance(message.get("name"), str) else ""
        pieces.append(f"{chr(10) if number else ''}[{number}] {role}{name}:\n")
        pieces += _parts(message.get("content"))
        calls = message.get("tool_calls")
        for call in calls if isinstance(calls, list) else ():
            pieces.append(f"\n→ {_call(call)}")
        pieces.append("\n")
    return pieces


def _call(call: Any) -> str:
    inner = call.get("tool_call", call) if isinstance(call, Mapping) else call
    function = inner.get("function", inner) if isinstance(inner, Mapping) else None
    if not isinstance(function, Mapping):
        return _json(call)
    arguments = function.get("arguments", "")
    return (
        f"{function.get('name')}({arguments if isinstance(arguments, str) else _json(arguments)})"
    )


def _parts(content: Any) -> list[Piece]:
    if content is None:
        return []
    if isinstance(content, str):
        return [content]
    if not isinstance(content, list):
        return [_json(content)]
    pieces: list[Piece] = []
    for part in content:
        if isinstance(part, str):
            pieces.append(part)
        elif isinstance(part, Mapping) and isinstance(part.get("text"), str):
            pieces.append(part["text"])
        elif isinstance(part, Mapping) and part.get("type") in _IMAGES:
            pieces.append(part)
        else:
            pieces.append(_json(part))
    return pieces


def _json(value: Any) -> str:
    try:
        return _encoder.encode(value).decode()
    except (TypeError, ValueError, OverflowError, RecursionError, UnicodeEncodeError):
        raise GradingFailure(
            ErrorKind.INVALID_INPUT,
            f"a {type(value).__name__} cannot be shown to a judge: it is no text, no messages and "
            "no JSON",
        ) from None
