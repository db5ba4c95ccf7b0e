"""Chat messages, content parts and tools in OpenAI's format, as Anthropic wants them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from adjudge.errors import ErrorKind, GradingFailure

__all__ = ["system_and_turns", "tools"]

Blocks = list[dict[str, Any]]

_CACHED = {"type": "ephemeral"}
_NATIVE = frozenset(
    {"image", "document", "tool_use", "tool_result", "thinking", "redacted_thinking"}
)


def system_and_turns(messages: Sequence[Mapping[str, Any]]) -> tuple[Blocks, Blocks]:
    """``(system blocks, user and assistant turns)``.

    ``system`` and ``developer`` messages are lifted out, and the last of their blocks is marked for
    the prompt cache, unless a caller has marked one. Empty texts, which the API refuses, are left
    out. Raises ``GradingFailure``: ``invalid_input`` for what is no chat message, ``unsupported``
    for parts that the API has no form for (audio).
    """
    system: Blocks = []
    turns: Blocks = []
    for message in messages:
        role = _get(message, "role")
        if not isinstance(role, str):
            raise GradingFailure(ErrorKind.INVALID_INPUT, "a message must be a mapping with a role")
        if role in ("system", "developer"):
            system += _blocks(message.get("content"))
            continue
        blocks = _turn(role, message)
        if blocks:
            turns.append(
                {"role": "assistant" if role == "assistant" else "user", "content": blocks}
            )
    if system and not any("cache_control" in block for block in system):
        system[-1] = {**system[-1], "cache_control": _CACHED}
    return system, turns


def _get(mapping: Any, name: str) -> Any:
    return mapping.get(name) if isinstance(mapping, Mapping) else None


def _turn(role: str, message: Mapping[str, Any]) -> Blocks:
    content = message.get("content")
    if role in ("tool", "function"):
        result: dict[str, Any] = {
            "type": "tool_result",
            "tool_use_id": str(message.get("tool_call_id") or ""),
        }
        if inner := _blocks(content):
            result["content"] = inner
        return [result]
    if role not in ("user", "assistant"):
        raise GradingFailure(
            ErrorKind.INVALID_INPUT, f"a message has the unknown role {role!r:.40}"
        )
    blocks = _blocks(content)
    for call in message.get("tool_calls") or ():
        blocks.append(_tool_use(call))
    return blocks


def _blocks(content: Any) -> Blocks:
    if content is None:
        return []
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    if not isinstance(content, list | tuple):
        raise GradingFailure(
            ErrorKind.INVALID_INPUT, "content must be text, null or a list of content parts"
        )
    return [block for part in content if (block := _block(part)) is not None]


def _block(part: Any) -> dict[str, Any] | None:
    if isinstance(part, str):
        return {"type": "text", "text": part} if part else None
    if not isinstance(part, Mapping):
        raise GradingFailure(ErrorKind.INVALID_INPUT, "a content part must be text or a mapping")
    kind = part.get("type")
    if kind == "text":
        return dict(part) if part.get("text") else None
    if kind == "image_url":
        return {"type": "image", "source": _image_source(part.get("image_url"))}
    if kind in _NATIVE:
        return dict(part)
    raise GradingFailure(
        ErrorKind.UNSUPPORTED, f"a content part of type {kind!r:.40} cannot be sent to Anthropic"
    )


def _image_source(image: Any) -> dict[str, str]:
    url = _get(image, "url") if isinstance(image, Mapping) else image
    if not isinstance(url, str):
        raise GradingFailure(ErrorKind.INVALID_INPUT, "an image part has no URL")
    if url.startswith(("https://", "http://")):
        return {"type": "url", "url": url}
    head, separator, data = url.partition(";base64,")
    if not separator or not head.startswith("data:image/"):
        raise GradingFailure(
            ErrorKind.INVALID_INPUT, "an image must be a web address or a base64 data URL"
        )
    return {"type": "base64", "media_type": head.removeprefix("data:"), "data": data}


def _tool_use(call: Any) -> dict[str, Any]:
    function = _get(call, "function")
    name = _get(function, "name")
    if not isinstance(name, str):
        raise GradingFailure(ErrorKind.INVALID_INPUT, "a tool call has no function name")
    arguments = _arguments(_get(function, "arguments"))
    return {"type": "tool_use", "id": str(call.get("id") or ""), "name": name, "input": arguments}


def _arguments(arguments: Any) -> Mapping[str, Any]:
    """A call's arguments as the object that the API wants; other text goes under ``arguments``."""
    if isinstance(arguments, Mapping):
        return arguments
    if not arguments:
        return {}
    try:
        decoded = msgspec.json.decode(arguments)
    except (ValueError, TypeError, RecursionError):
        decoded = arguments
    return decoded if isinstance(decoded, dict) else {"arguments": decoded}


def tools(definitions: Any) -> Any:
    """Tool definitions of OpenAI's form (``{"type": "function", …}``); others pass through."""
    if not isinstance(definitions, list | tuple):
        return definitions
    return [_tool(definition) for definition in definitions]


def _tool(definition: Any) -> Any:
    function = _get(definition, "function")
    if not isinstance(function, Mapping):
        return definition
    tool = {
        "name": function.get("name"),
        "input_schema": function.get("parameters") or {"type": "object"},
    }
    if function.get("description"):
        tool["description"] = function["description"]
    return tool
