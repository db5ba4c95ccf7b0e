"""What all wires do with a reply's text: part it from the thinking, see what was not honoured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from adjudge.errors import ErrorKind, GradingFailure
from adjudge.judges.base import ChatCall, TokenLogprobs
from adjudge.types import Usage

__all__ = ["count", "encode_body", "not_honoured", "split_thinking"]

_OPEN, _CLOSE = "<think>", "</think>"
_encoder = msgspec.json.Encoder()
_json = msgspec.json.Decoder(msgspec.Raw)
_object = msgspec.json.Decoder(dict[str, msgspec.Raw])


def encode_body(body: Mapping[str, Any]) -> bytes:
    """``body`` as JSON; ``GradingFailure(invalid_input)`` for what JSON or UTF-8 cannot hold."""
    try:
        return _encoder.encode(body)
    except UnicodeEncodeError:
        problem = "a message has half of a surrogate pair, which UTF-8 cannot hold"
    except (TypeError, ValueError, OverflowError):
        problem = "messages, schema or sampling hold something that is no JSON"
    except RecursionError:
        problem = "messages, schema or sampling are nested too deeply"
    raise GradingFailure(ErrorKind.INVALID_INPUT, f"the call cannot be sent: {problem}")


def split_thinking(text: str) -> tuple[str, str]:
    """``(text, reasoning)`` of a reply with inline thinking.

    Thinking ends at the last ``</think>``: what the judge quotes of a candidate may hold one too,
    and only what follows the last is certainly its own verdict. Without an opening tag (some chat
    templates write it into the prompt) everything before is thinking all the same. A ``<think>``
    that begins the text, or what is left of it, and never closes makes all of it reasoning. A text
    that is one JSON object from its first sign to its last has no thinking around it, only
    quotations inside.

    >>> split_thinking("<think>2 is even</think> yes")
    ('yes', '2 is even')
    >>> split_thinking("<think>2 is")
    ('', '2 is')
    >>> split_thinking('{"reason": "it wrote </think>", "score": 1}')
    ('{"reason": "it wrote </think>", "score": 1}', '')
    """
    bare = text.strip()
    if bare.startswith("{") and bare.endswith("}"):
        return text, ""
    if _CLOSE not in text:
        opened = text.lstrip()
        return ("", opened[len(_OPEN) :].strip()) if opened.startswith(_OPEN) else (text, "")
    thought, _, rest = text.rpartition(_CLOSE)
    rest, thought = rest.strip(), thought.strip()
    if rest.startswith(_OPEN):
        rest, thought = "", f"{thought}\n{rest[len(_OPEN) :]}"
    return rest, thought.removeprefix(_OPEN).strip()


def count(value: Any) -> int | None:
    """A token count as servers write it; ``None`` for what is none (negative, text, NaN, …)."""
    if type(value) is int:
        return value if value >= 0 else None
    if type(value) is float and 0.0 <= value < 1e15:
        return int(value)
    return None


def not_honoured(
    call: ChatCall,
    text: str,
    finish_reason: str | None,
    logprobs: list[TokenLogprobs] | None,
    usage: Usage | None,
) -> tuple[str, ...]:
    """The names of what ``call`` asked for and this reply evidently lacks, in a fixed order.

    A reply that ran into its length limit, or has no text, says nothing about schema and choices.
    """
    missing = []
    if call.logprobs and not logprobs:
        missing.append("logprobs")
    if text and finish_reason != "length":
        if call.schema is not None and not _fits(text, call.schema):
            missing.append("schema")
        if call.choices is not None and text.strip() not in call.choices:
            missing.append("choices")
    if usage is None:
        missing.append("usage")
    return tuple(missing)


def _fits(text: str, schema: Mapping[str, Any]) -> bool:
    """Whether ``text`` is JSON with the keys that ``schema`` requires; no full validation."""
    try:
        if schema.get("type") != "object":
            _json.decode(text)
            return True
        found = _object.decode(text)
    except (ValueError, RecursionError):
        return False
    return all(name in found for name in schema.get("required", ()))
