"""A field's value as a judge reads it: text, a transcript, JSON, images."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from adjudge.errors import ErrorKind, GradingFailure

__all__ = ["Mark", "Piece", "pieces_of"]

Piece = str | Mapping[str, Any]
"""Text, or a content part that is none (an image)."""

_IMAGES = ("image_url", "input_image", "image")
_ODD = re.compile(r"[^\w.-]+")
_LONGEST_NAME = 40


class Mark(str):
    """Words of ours among a value's own: where a turn or a call begins.

    A tag is put into it that the value's author cannot know, so that no text within a turn can
    pass for another turn.
    """

    __slots__ = ()

    def marked(self, tag: str) -> str:
        """The words with ``tag`` in them, or without any."""
        return self.replace("\0", f"-{tag}" if tag else "")


_encoder = msgspec.json.Encoder()


def pieces_of(value: Any) -> list[Piece]:
    """``value`` in pieces, in order.

    Text is itself and ``None`` nothing; a list of chat messages is a transcript with its tool
    calls, a list of content parts their texts and images; everything else is JSON. Raises
    ``GradingFailure(invalid_input)`` for what JSON cannot hold. Texts that touch are one piece.
    """
    if isinstance(value, str):
        return [value]
    if value is None:
        return [""]
    if isinstance(value, list) and value and all(isinstance(one, Mapping) for one in value):
        if all("role" in one for one in value):
            return _joined(_transcript(value))
        if all("type" in one and "function" not in one for one in value):
            return _joined(_parts(value))
    return [_json(value)]


def _joined(pieces: list[Piece]) -> list[Piece]:
    """Neighbouring texts as one, so that nothing can hide in the seam."""
    joined: list[Piece] = []
    for piece in pieces:
        last = joined[-1] if joined else None
        if type(piece) is str and type(last) is str:
            joined[-1] = last + piece
        else:
            joined.append(piece)
    return joined


def _transcript(messages: list[Mapping[str, Any]]) -> list[Piece]:
    """Messages as numbered turns; a judge can name a step by its number."""
    pieces: list[Piece] = []
    for number, message in enumerate(messages):
        name = f" {_word(message['name'])}" if isinstance(message.get("name"), str) else ""
        before = "\n\n" if number else ""
        pieces.append(Mark(f"{before}[{number}\0] {_word(message.get('role'))}{name}:\n"))
        pieces += _parts(message.get("content"))
        calls = message.get("tool_calls")
        for call in calls if isinstance(calls, list) else ():
            pieces += (Mark("\n→\0 "), _call(call))
    return pieces


def _word(name: Any) -> str:
    """A role or a name as one word; it stands in a line of ours."""
    return _ODD.sub("_", str(name))[:_LONGEST_NAME]


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
    except RecursionError:  # a policy may have nested it
        return f"[a {type(value).__name__} that is nested too deeply to be shown]"
    except UnicodeEncodeError:  # half a character, which a policy may have written
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        return text.encode("utf-8", "replace").decode()
    except (TypeError, ValueError, OverflowError):
        raise GradingFailure(
            ErrorKind.INVALID_INPUT,
            f"a {type(value).__name__} cannot be shown to a judge: it is no text, no messages and "
            "no JSON",
        ) from None
