"""Messages of dumps in OpenAI's chat form: made of their parts, or read as a dump holds them.

A dump's messages differ from OpenAI's in small things: calls of tools without ``function`` around
them, as JSON text, or with arguments that are an object; nulls for what a table's other rows have;
items of the Responses API in place of messages. What is no message raises ``RolloutError``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from adjudge.errors import RolloutError
from adjudge.intake.rollouts import check_turns, first_turn
from adjudge.messages import content_text
from adjudge.rollouts.formats.base import Row
from adjudge.rollouts.formats.fields import Record, as_id, as_objects, encode_value

Message = dict[str, Any]


def tool_call(call_id: Any, name: Any, arguments: Any) -> dict[str, Any]:
    """A tool call in OpenAI form; arguments that are no text become JSON."""
    written = (
        arguments
        if isinstance(arguments, str)
        else encode_value({} if arguments is None else arguments)
    )
    function = {"name": name if isinstance(name, str) else "", "arguments": written}
    return {"id": as_id(call_id) or "", "type": "function", "function": function}


def tool_calls(
    given: Any, call_id: str = "id", name: str = "name", arguments: str = "arguments"
) -> list[Message]:
    """A list of calls in OpenAI form; what has the other names is a call's id, name and input."""
    return [
        tool_call(one.get(call_id), one.get(name), one.get(arguments)) for one in as_objects(given)
    ]


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


def _texts(values: Iterable[Any]) -> list[str]:
    return [value for value in values if isinstance(value, str)]


def answered_columns(messages: Sequence[Message]) -> Row:
    """The columns of a conversation in which all turns of the assistant are the policy's.

    Raises :class:`RolloutError` for a conversation in which the policy never spoke.
    """
    turns = first_turn(messages)
    if turns == len(messages):
        raise RolloutError("has no message of the assistant: nothing was answered")
    return {"messages": list(messages), "opening_turns": turns}


def read_messages(value: Any, name: str) -> list[Message]:
    """The messages of the column ``name`` in OpenAI's form; raises :class:`RolloutError`."""
    turns = check_turns(value, name)
    return [_read_message(one, f"{name}.{place}") for place, one in enumerate(turns)]


def _read_message(turn: Message, where: str) -> Message:
    # A table gives each message the keys of all others, with null.
    message = {key: one for key, one in turn.items() if one is not None}
    message.setdefault("content", None)
    calls = message.pop("tool_calls", None)
    if calls:
        if not isinstance(calls, list | tuple):
            raise RolloutError(f"{where}.tool_calls: must be a list (found {type(calls).__name__})")
        message["tool_calls"] = [read_tool_call(call, f"{where}.tool_calls") for call in calls]
    return message


def read_tool_call(value: Any, where: str) -> dict[str, Any]:
    """A call of a tool in OpenAI's form, of that form, a flat one, or the JSON text of either.

    The input of a custom tool is a text, and no JSON.

    >>> read_tool_call({"id": "1", "name": "add", "arguments": {"a": 2}}, "tool_calls")
    {'id': '1', 'type': 'function', 'function': {'name': 'add', 'arguments': '{"a":2}'}}
    """
    call = value
    if isinstance(call, str):
        try:
            call = msgspec.json.decode(call)
        except (ValueError, RecursionError):
            raise RolloutError(f"{where}: a call is text but not JSON") from None
    function = None
    if isinstance(call, Mapping):
        function = call.get("function") or call.get("custom") or call
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise RolloutError(
            f"{where}: must be calls with the 'name' of a tool (found {type(call).__name__})"
        )
    arguments = function.get("arguments", function.get("input"))
    if isinstance(arguments, Mapping):  # null: the argument of another row's call of a table
        arguments = {key: one for key, one in arguments.items() if one is not None}
    return tool_call(call.get("id"), function["name"], arguments)


def read_response_items(items: Any, name: str) -> list[Message]:
    """The messages that items of OpenAI's Responses API say; raises :class:`RolloutError`.

    Calls join the assistant's message before them, reasoning the message after it. Images are
    left out.
    """
    if not isinstance(items, list | tuple):
        raise RolloutError(f"{name}: must be a list of items (found {type(items).__name__})")
    messages: list[Message] = []
    reasoning: list[str] = []
    for place, item in enumerate(items):
        where = f"{name}.{place}"
        if not isinstance(item, Mapping):
            raise RolloutError(f"{where}: must be an object (found {type(item).__name__})")
        kind = item.get("type") or "message"
        if not isinstance(kind, str):
            raise RolloutError(f"{where}.type: must be text (found {type(kind).__name__})")
        if kind == "reasoning":
            thought = _item_text(item.get("content") or item.get("summary"))
            reasoning += [thought] if thought else []
            continue
        if kind == "message":
            turn = {"role": item.get("role"), "content": _item_text(item.get("content"))}
            messages += check_turns([turn], where)
        elif kind.endswith("_output"):
            messages.append(tool_message(item.get("call_id"), _item_text(item.get("output"))))
        elif kind.endswith("_call"):
            if not messages or messages[-1]["role"] != "assistant":
                messages.append(assistant_message(None))
            messages[-1].setdefault("tool_calls", []).append(_item_call(item, where))
        if reasoning and messages and messages[-1]["role"] == "assistant":
            before = (
                [messages[-1]["reasoning_content"]] if "reasoning_content" in messages[-1] else []
            )
            messages[-1]["reasoning_content"] = "\n".join(before + reasoning)
            reasoning = []
    return messages


def _item_call(item: Record, where: str) -> dict[str, Any]:
    """A call of a function, or of a tool of the provider's, named by the item's type."""
    given = next((item[key] for key in _CALL_ARGUMENTS if item.get(key) is not None), None)
    if given is None:
        given = {key: item[key] for key in ("code", "queries") if item.get(key) is not None}
    call = {"name": item.get("name") or item["type"], "arguments": given}
    return read_tool_call({"id": item.get("call_id") or item.get("id"), **call}, where)


_CALL_ARGUMENTS = ("arguments", "input", "action")


def _item_text(content: Any) -> str:
    if isinstance(content, list):
        refusals = [one.get("refusal") for one in content if isinstance(one, Mapping)]
        return content_text(content) or "".join(_texts(refusals))
    return content_text(content) if isinstance(content, str | None) else encode_value(content)


def request_messages(request: Record, name: str) -> list[Message]:
    """The messages of a request to OpenAI's APIs, chats and responses; none where it has none."""
    if isinstance(request.get("messages"), list):
        return read_messages(request["messages"], f"{name}.messages")
    messages: list[Message] = []
    if isinstance(request.get("instructions"), str):
        messages.append({"role": "system", "content": request["instructions"]})
    given = request.get("input")
    if isinstance(given, str):
        return [*messages, {"role": "user", "content": given}]
    return messages + read_response_items([] if given is None else given, f"{name}.input")
