"""The parts of a message: texts, thoughts, calls of tools, results and media of all makers.

Each becomes what OpenAI's chats have for it. What is of no known form raises
:class:`~adjudge.errors.RolloutError` with the keys that it has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from adjudge.errors import Fields, Metadata, RolloutError
from adjudge.intake.columns import (
    as_id,
    as_object,
    decode_value,
    describe_value,
    encode_value,
    first_of,
    list_keys,
)
from adjudge.messages import MEDIA_PARTS, TEXT_PARTS, THINKING_PARTS

Message = Metadata
Piece = tuple[str, Any]
"""``text``, ``thought``, ``call``, ``result`` or ``media``, and what it is."""

_KIND_KEYS = ("type", "block_type", "content_type")
_CALL_PARTS = ("tool_use", "tool_call", "tool-call", "function_call", "dynamic-tool")
_RESULT_PARTS = ("tool_call_response", "tool-result", "function_result", "function_call_output")
_CALLS_BY_KEY = ("functionCall", "function_call", "toolUse", "tool_call", "toolInvocation")
_CODE_BY_KEY = ("executableCode", "executable_code")
_RESULTS_BY_KEY = (
    *("functionResponse", "function_response", "toolResult", "tool_call_result"),
    *("codeExecutionResult", "code_execution_result"),
)
"""Keys of a part that has no type: the part is the object there."""
NO_MESSAGES = (
    *("item_reference", "mcp_list_tools", "mcp_approval_request", "mcp_approval_response"),
    *("compaction", "remove", "step-start"),
)
"""Items and parts that say nothing."""

ID_KEYS = ("tool_call_id", "tool_use_id", "call_id", "toolCallId", "toolUseId", "id")
_NAME_KEYS = ("name", "function", "toolName", "tool_name", "function_name", "tool")
_ARGUMENT_KEYS = ("arguments", "args", "input", "parameters", "tool_input", "action")
RESULT_KEYS = ("content", "response", "result", "output", "text", "value")
_OWN_RESULT_KEYS = ("output", "outputs", "result", "results", "errorText")
"""Where a call has its own result: the tools of providers, the messages of interfaces."""
_MEDIA_KEYS = ("inlineData", "inline_data", "fileData", "file_data", "image", "document", "video")
_THOUGHT_PART_KEYS = ("thinking", "reasoning", "reasoningText", "text", "content", "summary")


def tool_call(call_id: object, name: object, arguments: object) -> Message:
    """A tool call in OpenAI form; arguments that are no text become JSON."""
    if not isinstance(arguments, str):
        arguments = encode_value({} if arguments is None else arguments)
    function = {"name": name if isinstance(name, str) else "", "arguments": arguments}
    return {"id": as_id(call_id) or "", "type": "function", "function": function}


def assistant_message(
    content: object, calls: Sequence[object] = (), reasoning: str | None = None
) -> Message:
    """A turn of the assistant; ``content`` is null where it only called tools."""
    message: Message = {"role": "assistant", "content": content}
    if reasoning:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = list(calls)
    return message


def tool_message(
    call_id: object, content: object, where: str = "content", name: object = None
) -> Message:
    """The result of a tool call; an object that is no part is what the tool gave, as JSON."""
    given = as_object(content)
    if given.keys() == {"type", "value"} and given["type"] in ("text", "json"):
        content = given["value"]  # Vercel's
    if isinstance(content, Mapping | bool | int | float) or (
        isinstance(content, list) and not all(map(_is_part, content))
    ):
        content = encode_value(content)
    named = {"tool_call_id": as_id(call_id), "name": name if isinstance(name, str) else ""}
    message = {"role": "tool", "content": make_content(read_parts(content, where))}
    return message | {key: one for key, one in named.items() if one}


def read_tool_call(value: object, where: str) -> Message:
    """A call of a tool in OpenAI's form, of that form, a flat one, or the JSON text of either.

    The input of a custom tool is a text, and no JSON.

    >>> read_tool_call({"id": "1", "name": "add", "args": {"a": 2}}, "tool_calls")
    {'id': '1', 'type': 'function', 'function': {'name': 'add', 'arguments': '{"a":2}'}}
    """
    call = decode_value(value, where)
    inner = as_object(call)
    for key in ("function", "custom", "tool_call"):
        inner = as_object(inner.get(key)) or inner
    name = first_of(inner, _NAME_KEYS)
    if not isinstance(name, str):
        found = list_keys(call) if isinstance(call, Mapping) else describe_value(call)
        raise RolloutError(f"{where}: must be calls with the 'name' of a tool (found {found})")
    arguments = first_of(inner, _ARGUMENT_KEYS)
    others = [one for key, one in inner.items() if one and key not in _OWN_RESULT_KEYS]
    texts = [one for one in others if isinstance(one, str) and one[0] == "{"]
    if arguments is None and (texts or any(isinstance(one, Mapping) for one in others)):
        raise RolloutError(f"{where}: a call has no known 'arguments' (found {list_keys(inner)})")
    if isinstance(arguments, Mapping):  # null: the argument of another row's call of a table
        arguments = {key: one for key, one in arguments.items() if one is not None}
    return tool_call(first_of(call, ID_KEYS) or first_of(inner, ID_KEYS), name, arguments)


def _kind_of(part: object) -> str:
    kind = first_of(part, _KIND_KEYS)
    return kind if isinstance(kind, str) else "" if kind is None else "?"


def is_result(part: object) -> bool:
    """Whether a part is the result of a tool."""
    kind = _kind_of(part)
    keyed = not as_object(part).keys().isdisjoint(_RESULTS_BY_KEY)
    return keyed or kind in _RESULT_PARTS or kind.endswith(("tool_result", "_execution_result"))


def _is_part(value: object) -> bool:
    """Whether an element of a tool's result is a part of a message, and not data."""
    if not isinstance(value, Mapping):
        return isinstance(value, str)
    return value.keys() == {"text"} or _kind_of(value) in (*TEXT_PARTS, *MEDIA_PARTS)


def _inner(part: Fields, *keys: str) -> Fields:
    found = (part[key] for key in keys if key in part)
    return next((one for one in found if isinstance(one, Mapping)), part)


def _read_part(given: object, where: str) -> list[Piece]:
    """``text``, ``thought``, ``call``, ``result`` or ``media``, and what it is."""
    if isinstance(given, str):
        return [("text", given)]
    if not isinstance(given, Mapping):
        raise RolloutError(f"{where}: must be a part of a message (found {describe_value(given)})")
    part = {key: one for key, one in given.items() if one is not None}
    kind = _kind_of(part)
    text = first_of(part, ("text", "content", "value"))
    text = part.get("answer") if part.keys() <= {"answer", "thought"} else text
    text = text.get("value") if isinstance(text, Mapping) else text  # of OpenAI's Assistants
    if kind in ("", *TEXT_PARTS) and isinstance(text, str) and part.get("thought") is not True:
        return [("text", text)]
    if kind == "refusal" and isinstance(part.get("refusal"), str):
        return [("text", part["refusal"])]
    if kind in MEDIA_PARTS:
        return [("media", given if "type" in given else {**given, "type": kind})]
    if not kind and not part.keys().isdisjoint(_MEDIA_KEYS):
        return [("media", {**given, "type": "file"})]
    return _read_act(part, kind, where)


def _read_act(part: Fields, kind: str, where: str) -> list[Piece]:
    """A part that is no words: a thought, a call of a tool, a result, or nothing."""
    if kind in NO_MESSAGES:
        return []
    thought = _inner(part, "reasoningContent")
    if kind in THINKING_PARTS or part.get("thought") is True or thought is not part:
        return [("thought", read_thought(thought, where))]
    if is_result(part):
        inner = _inner(part, *_RESULTS_BY_KEY)
        call_id = first_of(inner, ID_KEYS) or first_of(inner.get("origin"), ID_KEYS)
        given = first_of(inner, RESULT_KEYS)
        return [("result", tool_message(call_id, given, where, inner.get("name")))]
    call = _inner(part, *_CALLS_BY_KEY)
    if (code := first_of(part, _CODE_BY_KEY)) is not None:
        call = {"name": next(key for key in _CODE_BY_KEY if key in part), "args": code}
    elif kind.startswith("tool-") and "toolCallId" in part:  # Vercel's
        call = {"name": part.get("toolName", kind.removeprefix("tool-")), **part}
    if call is not part or kind in _CALL_PARTS or kind.endswith("_tool_use"):
        return read_call(call, where)
    shown = f", type {describe_value(kind)}" if kind else ""
    raise RolloutError(f"{where}: is a part of an unknown form (found {list_keys(part)}{shown})")


def read_thought(part: Fields, where: str) -> str:
    """The text of a part or an item that thinks."""
    given = next((part[key] for key in _THOUGHT_PART_KEYS if part.get(key)), None)
    return join_pieces(read_parts(given, where), "text", "thought")


def read_call(given: object, where: str) -> list[Piece]:
    """A call, and the result that it has itself."""
    call = read_tool_call(given, where)
    found = first_of(given, _OWN_RESULT_KEYS)
    made: list[Piece] = [("call", call)]
    return made if found is None else [*made, ("result", tool_message(call["id"], found, where))]


def read_parts(content: object, where: str) -> list[Piece]:
    """What a message's content says: a text, null, a part, or a list of parts."""
    inner = as_object(content).get("parts")
    content = inner if isinstance(inner, list) else [] if content is None else content
    parts = content if isinstance(content, list | tuple) else [content]
    pieces: list[Piece] = []
    try:
        for place, part in enumerate(parts):
            pieces += _read_part(part, f"{where}.{place}" if parts is content else where)
    except RecursionError:
        raise RolloutError(f"{where[:100]}: is nested too deeply") from None
    return pieces


def join_pieces(pieces: Sequence[Piece], *kinds: str) -> str:
    """The texts of the pieces of these kinds."""
    return "".join(value for kind, value in pieces if kind in kinds)


def make_content(pieces: Sequence[Piece]) -> object:
    """The content of a message: a text, or a list of parts where there are media."""
    if all(kind != "media" for kind, _ in pieces):
        return join_pieces(pieces, "text")
    return [
        {"type": "text", "text": value} if kind == "text" else value
        for kind, value in pieces
        if kind in ("text", "media")
    ]


def message_text(content: object, where: str = "content") -> str:
    """The text of a message's content in any maker's form; raises :class:`RolloutError`."""
    return join_pieces(read_parts(content, where), "text")
