"""Chat messages of verl's rollouts: as the batch has them, else rebuilt from its tokens.

verl's tool loop keeps its messages to itself. What is left is the prompt's conversation
(``raw_prompt``, with ``data.return_raw_chat=True``), the response's tokens, and the mask that tells
the policy's tokens (1) from what came back (0). Turns are the runs of that mask; calls and results
are read from ``<tool_call>`` and ``<tool_response>`` tags (Hermes, Qwen).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

import msgspec

from adjudge.errors import ErrorKind, GradingFailure

__all__ = ["first_question_of", "given_messages", "rebuilt_messages"]

Decode = Callable[[Sequence[int]], str]


def given_messages(value: Any) -> list[dict[str, Any]] | None:
    """A list of chat messages, perhaps as JSON text; ``None`` for anything else."""
    if isinstance(value, str):
        try:
            value = msgspec.json.decode(value)
        except (msgspec.MsgspecError, RecursionError):
            return None
    if not isinstance(value, list | tuple) or not all(isinstance(item, dict) for item in value):
        return None
    return list(value) or None


def first_question_of(messages: Sequence[dict[str, Any]] | None) -> str | None:
    """The last user message before the assistant's first, when it is plain text."""
    question = None
    for message in messages or []:
        if message.get("role") == "assistant":
            break
        if message.get("role") == "user":
            content = message.get("content")
            question = content if isinstance(content, str) else None
    return question


def rebuilt_messages(
    opening: Sequence[dict[str, Any]],
    text: str,
    ids: Sequence[int],
    mask: Sequence[int] | None,
    turns: int | None,
    decode: Decode,
) -> list[dict[str, Any]]:
    """``opening`` and the response's turns; ``text`` is the response, ``ids`` are its tokens.

    ``mask`` is over ``ids``; without one, and with more than two ``turns`` in the conversation,
    nobody can tell the policy's words from a tool's. Raises ``GradingFailure(invalid_input)``.
    """
    if mask is None and turns is not None and turns > 2:
        raise _unreadable(f"{turns} turns, and no response_mask to tell them apart")
    if mask is None or all(mask):
        return [*opening, _turn(text, 0)]
    messages = list(opening)
    start, calls = 0, 0
    for own, run in groupby(mask, key=bool):
        end = start + len(list(run))
        said = decode(ids[start:end])
        if own:
            turn = _turn(said, calls)
            calls += len(turn.get("tool_calls", ()))
            messages.append(turn)
        else:
            messages += _observations(said, messages[-1] if messages else {})
        start = end
    return messages


def _turn(text: str, calls_before: int) -> dict[str, Any]:
    """One assistant message; a ``<tool_call>`` that is no call stays text."""
    content: list[str] = []
    calls: list[dict[str, Any]] = []
    for inside, part in _tagged(text, "tool_call"):
        call = _call(part, calls_before + len(calls)) if inside else None
        if call is not None:
            calls.append(call)
        else:
            content.append(f"<tool_call>{part}</tool_call>" if inside else part)
    message: dict[str, Any] = {"role": "assistant", "content": "".join(content).strip()}
    if calls:
        message["tool_calls"] = calls
    return message


def _call(text: str, number: int) -> dict[str, Any] | None:
    try:
        said = msgspec.json.decode(text.strip())
    except (msgspec.MsgspecError, RecursionError):
        return None
    if not isinstance(said, dict) or not isinstance(said.get("name"), str):
        return None
    arguments = said.get("arguments", {})
    if not isinstance(arguments, str):
        arguments = msgspec.json.encode(arguments).decode()
    function = {"name": said["name"], "arguments": arguments}
    return {"id": f"call_{number}", "type": "function", "function": function}


def _observations(text: str, turn: dict[str, Any]) -> list[dict[str, Any]]:
    """Results of tools, in the order of the turn's calls."""
    results = [part for inside, part in _tagged(text, "tool_response") if inside]
    if not results:
        raise _unreadable("what came back between turns has no <tool_response> tags")
    ids = [call["id"] for call in turn.get("tool_calls", ())]
    messages: list[dict[str, Any]] = []
    for place, result in enumerate(results):
        message = {"role": "tool", "content": result.strip()}
        if place < len(ids):
            message["tool_call_id"] = ids[place]
        messages.append(message)
    return messages


def _tagged(text: str, tag: str) -> list[tuple[bool, str]]:
    """``text`` cut at ``<tag>…</tag>``: (inside or not, part), in one pass."""
    opener, closer = f"<{tag}>", f"</{tag}>"
    parts, at = [], 0
    while (start := text.find(opener, at)) >= 0:
        end = text.find(closer, start)
        if end < 0:
            break
        parts += [(False, text[at:start]), (True, text[start + len(opener) : end])]
        at = end + len(closer)
    return [*parts, (False, text[at:])]


def _unreadable(why: str) -> GradingFailure:
    return GradingFailure(
        ErrorKind.INVALID_INPUT,
        f"the messages of a rollout cannot be rebuilt: {why}; put a 'messages' column into the "
        "batch's non_tensor_batch",
    )
