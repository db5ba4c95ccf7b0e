"""Chat messages of all makers in one form: OpenAI's, as :func:`read_messages` reads them.

OpenAI's chats and items of its Responses API, Anthropic's and Gemini's blocks, OpenTelemetry's
parts, LangChain's messages, ShareGPT's turns. A message, a part or a call of a form that is not
known raises :class:`~adjudge.errors.RolloutError` with the keys that it has: nothing stands in for
a text that was not understood.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from adjudge.errors import RolloutError
from adjudge.intake.columns import describe_value
from adjudge.messages import MEDIA_PARTS, TEXT_PARTS, THINKING_PARTS
from adjudge.text import encode_json, printable
from adjudge.types import MISSING

Message = dict[str, Any]

_ROLES = {
    name: role
    for role, names in {
        "assistant": ("assistant", "model", "ai", "gpt", "bot", "agent", "chatbot", "chatgpt"),
        "user": ("user", "human"),
        "system": ("system",),
        "developer": ("developer",),
        "tool": ("tool", "function", "observation", "ipython", "tool_response"),
        "call": ("function_call", "tool_call"),  # ShareGPT's
    }.items()
    for name in names
}
_OWN_ROLES = {"system", "developer", "user", "assistant", "tool"}
_ROLE_KEYS = ("role", "from", "sender", "speaker", "author")
_CONTENT_KEYS = ("content", "parts", "value", "text", "message", "prompt")

_CALL_PARTS = ("tool_use", "tool_call", "tool-call", "function_call")
_RESULT_PARTS = ("tool_result", "tool_call_response", "tool-result", "function_call_output")
_NO_MESSAGES = (
    *("item_reference", "mcp_list_tools", "mcp_approval_request", "mcp_approval_response"),
    *("compaction", "remove", "step-start"),
)
"""Items and parts that say nothing."""

_ID_KEYS = ("tool_call_id", "tool_use_id", "call_id", "toolCallId", "id")
_NAME_KEYS = ("name", "function", "toolName", "tool_name", "function_name", "tool")
_ARGUMENT_KEYS = ("arguments", "args", "input", "parameters", "action")
_RESULT_PART_TYPES = {*TEXT_PARTS, *MEDIA_PARTS}
_RESULT_KEYS = ("content", "response", "result", "output")
_MEDIA_KEYS = ("inlineData", "inline_data", "fileData", "file_data")  # Gemini's
_SAYING_KEYS = (*_CONTENT_KEYS, "tool_calls", "function_call", "reasoning_content", "reasoning")
_THOUGHT_KEYS = ("reasoning_content", "reasoning", "thinking")
_READ_KEYS = {"role", "content", "tool_calls", "additional_kwargs", *_THOUGHT_KEYS}


def read_messages(value: Any, name: str) -> list[Message]:
    """The messages of the column ``name`` in OpenAI's form.

    ``value``: a list of messages or items, the JSON text of one, or a state that has ``messages``.
    Thinking becomes ``reasoning_content``, calls ``tool_calls``, a result a message of its own.
    Messages that have the form already stay as they are. Raises :class:`RolloutError`.

    >>> read_messages([{"from": "human", "value": "2 + 2?"}], "messages")
    [{'role': 'user', 'content': '2 + 2?'}]
    """
    value = list_messages(value, name)
    if all(map(_has_own_form, value)):
        return list(value)
    if all(map(_is_choice, value)):
        raise RolloutError(f"{name}: are the choices of one answer, and no conversation")
    talk: list[Message] = []
    thoughts: list[str] = []
    for place, turn in enumerate(value):
        _add_turn(talk, thoughts, turn, f"{name}.{place}")
    if thoughts:  # it thought, and then it said nothing
        talk.append(assistant_message("", (), "\n".join(thoughts)))
    return talk


def list_messages(value: Any, name: str) -> Sequence[Any]:
    """The messages as they were written: of a list, its JSON text, or a state of ``messages``."""
    if isinstance(value, str):
        try:
            value = msgspec.json.decode(value)
        except (msgspec.MsgspecError, RecursionError, UnicodeEncodeError) as error:
            raise RolloutError(f"{name}: is text but not JSON: {error}") from None
    if isinstance(value, Mapping) and isinstance(value.get("messages"), list):
        value = value["messages"]
    if not isinstance(value, list | tuple):
        raise RolloutError(
            f"{name}: must be a list of chat messages (found {describe_value(value)})"
        )
    if len(value) == 1 and isinstance(value[0], list):  # a batch of one
        return value[0]
    return value


def looks_like_messages(value: Any) -> bool:
    """Whether a value is a list of messages or items, or its JSON text, perhaps of other roles."""
    if isinstance(value, str):
        try:
            value = msgspec.json.decode(value) if value.lstrip()[:1] == "[" else None
        except (msgspec.MsgspecError, RecursionError, UnicodeEncodeError):
            return False
    if not isinstance(value, list | tuple) or not value:
        return False
    if not all(isinstance(one, Mapping) and _looks_like_message(one) for one in value):
        return False
    return not all(map(_is_choice, value))


def _is_choice(one: Any) -> bool:
    """Whether it is one of the answers that an API gives beside each other, and no turn."""
    if not isinstance(one, Mapping) or "message" not in one:
        return False
    return "role" not in one and not one.keys().isdisjoint(("finish_reason", "index"))


def _looks_like_message(turn: Mapping[str, Any]) -> bool:
    inner = _unwrap(turn)
    if _role_of(inner) is not None:
        return any(key in inner for key in _SAYING_KEYS)
    kind = inner.get("type")
    return _is_item(kind) or any(isinstance(inner.get(key), str) for key in _ROLE_KEYS[:2])


def tool_call(call_id: Any, name: Any, arguments: Any) -> Message:
    """A tool call in OpenAI form; arguments that are no text become JSON."""
    if not isinstance(arguments, str):
        arguments = encode_value({} if arguments is None else arguments)
    function = {"name": name if isinstance(name, str) else "", "arguments": arguments}
    return {"id": _as_id(call_id), "type": "function", "function": function}


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


def tool_message(call_id: Any, content: Any, where: str = "content") -> Message:
    """The result of a tool call; an object that is no part is what the tool gave, as JSON."""
    if isinstance(content, Mapping | bool | int | float) or (
        isinstance(content, list) and not all(map(_is_part, content))
    ):
        content = encode_value(content)
    return {
        "role": "tool",
        "tool_call_id": _as_id(call_id),
        "content": _content(_Parts(content, where).pieces),
    }


def read_tool_call(value: Any, where: str) -> Message:
    """A call of a tool in OpenAI's form, of that form, a flat one, or the JSON text of either.

    The input of a custom tool is a text, and no JSON.

    >>> read_tool_call({"id": "1", "name": "add", "args": {"a": 2}}, "tool_calls")
    {'id': '1', 'type': 'function', 'function': {'name': 'add', 'arguments': '{"a":2}'}}
    """
    call = value
    if isinstance(call, str):
        try:
            call = msgspec.json.decode(call)
        except (ValueError, RecursionError):
            raise RolloutError(f"{where}: a call is text but not JSON") from None
    inner: Any = call
    for key in ("function", "custom", "tool_call"):
        if isinstance(inner, Mapping) and isinstance(inner.get(key), Mapping):
            inner = inner[key]
    name = _first(inner, _NAME_KEYS) if isinstance(inner, Mapping) else None
    if not isinstance(name, str):
        found = _keys_of(call) if isinstance(call, Mapping) else describe_value(call)
        raise RolloutError(f"{where}: must be calls with the 'name' of a tool (found {found})")
    arguments = _first(inner, _ARGUMENT_KEYS)
    if isinstance(arguments, Mapping):  # null: the argument of another row's call of a table
        arguments = {key: one for key, one in arguments.items() if one is not None}
    return tool_call(_first(call, _ID_KEYS) or _first(inner, _ID_KEYS), name, arguments)


# --- one message ----------------------------------------------------------------------------------


def _has_own_form(turn: Any) -> bool:
    """Whether a message is one of OpenAI's chats already, and nothing of it has another name."""
    if turn.__class__ is not dict or (role := turn.get("role")).__class__ is not str:
        return False
    content = turn.get("content", MISSING)
    if content.__class__ is str:
        if len(turn) == 2:
            return role in _OWN_ROLES  # as nearly all are
    elif content.__class__ is list:  # texts alone become one text
        if not all(map(_is_own_part, content)) or all(map(_is_text_part, content)):
            return False
    elif content is not None:
        return False
    # A table gives each message the keys of all others, with null.
    if (
        role not in _OWN_ROLES
        or "type" in turn
        or ([*turn.values()].count(None) != (content is None))
    ):
        return False
    calls = turn.get("tool_calls")
    return calls is None or (calls.__class__ is list and all(map(_is_own_call, calls)))


def _is_text_part(part: Any) -> bool:
    return isinstance(part, str) or part.get("type") == "text"


def _is_own_part(part: Any) -> bool:
    if not isinstance(part, dict):
        return isinstance(part, str)
    kind = part.get("type")
    if not isinstance(kind, str):
        return False
    return isinstance(part.get("text"), str) if kind == "text" else kind in MEDIA_PARTS


def _is_own_call(call: Any) -> bool:
    function = call.get("function") if call.__class__ is dict else None
    if function.__class__ is not dict or function.get("name").__class__ is not str:
        return False
    arguments = function.get("arguments")
    if arguments.__class__ is dict:  # null: the argument of another row's call of a table
        return None not in arguments.values()
    return arguments.__class__ is str


def _unwrap(turn: Mapping[str, Any]) -> Mapping[str, Any]:
    """The message itself: LangChain's dumps and lists of choices have it one level down."""
    kind = turn.get("type")
    if kind == "constructor" and isinstance(turn.get("kwargs"), Mapping):
        path = turn.get("id")
        return {"type": path[-1] if isinstance(path, list) and path else None, **turn["kwargs"]}
    if isinstance(turn.get("data"), Mapping) and "content" in turn["data"]:
        return {"type": kind, **turn["data"]}
    inner = turn.get("message")
    return inner if isinstance(inner, Mapping) and "role" not in turn else turn


def _role_of(turn: Mapping[str, Any]) -> str | None:
    """A message's role in OpenAI's words."""
    for key in _ROLE_KEYS:
        if (value := turn.get(key)) is not None:
            value = value.get("role") if isinstance(value, Mapping) else value
            return _ROLES.get(value.lower()) if isinstance(value, str) else None
    kind = turn.get("type")
    if not isinstance(kind, str) or "content" not in turn:
        return None
    kind = kind.removesuffix("Chunk").removesuffix("Message").lower()  # LangChain's classes
    return _ROLES.get(kind)


def _is_item(kind: Any) -> bool:
    """Whether a type is one of the Responses API's items that have no role."""
    return isinstance(kind, str) and (
        kind in ("reasoning", *_NO_MESSAGES) or kind.endswith(("_call", "_call_output"))
    )


def _add_turn(talk: list[Message], thoughts: list[str], given: Any, where: str) -> None:
    """Add the messages of one element of a list; ``thoughts`` wait for what they lead to."""
    if not isinstance(given, Mapping):
        raise RolloutError(f"{where}: must be a chat message (found {describe_value(given)})")
    inner = _unwrap(given)
    # A table gives each message the keys of all others, with null.
    turn = {key: one for key, one in inner.items() if one is not None}
    kind, role = turn.get("type"), _role_of(turn)
    if role is None and _is_item(kind):
        _add_item(talk, thoughts, turn, where)
    elif role is None:
        shown = next(
            (f", {key} {describe_value(turn[key])}" for key in _ROLE_KEYS if key in turn), ""
        )
        raise RolloutError(
            f"{where}.role: must be a known one (found {_keys_of(turn)}{shown}; allowed: "
            f"{', '.join(sorted(_OWN_ROLES))}, and what other makers call these)"
        )
    elif not any(key in inner for key in _SAYING_KEYS):
        raise RolloutError(f"{where}: has no content (found {_keys_of(given)})")
    else:
        talk += _turn_messages(turn, role, where, thoughts)


def _add_item(talk: list[Message], thoughts: list[str], item: Message, where: str) -> None:
    """Calls join the assistant's message before them, reasoning the message after it."""
    kind = item["type"]
    if kind == "reasoning":
        thought = _Parts(item.get("content") or item.get("summary"), where).words
        thoughts += [thought] if thought else []
    elif kind.endswith("_output"):
        talk.append(tool_message(item.get("call_id"), item.get("output"), f"{where}.output"))
    elif kind.endswith("_call"):
        if not talk or talk[-1]["role"] != "assistant":
            talk.append(assistant_message(None))
        _add_reasoning(talk[-1], thoughts)
        if _first(item, _ARGUMENT_KEYS) is None:
            given = {key: item[key] for key in ("code", "queries") if key in item}
            item = {**item, "arguments": given}
        # A tool of the provider's is named by the item's type.
        named = {"name": kind, **item, "id": item.get("call_id") or item.get("id")}
        talk[-1].setdefault("tool_calls", []).append(read_tool_call(named, where))


def _add_reasoning(message: Message, thoughts: list[str]) -> None:
    if thoughts:
        before = [message["reasoning_content"]] if "reasoning_content" in message else []
        message["reasoning_content"] = "\n".join(before + thoughts)
        thoughts.clear()


def _turn_messages(turn: Message, role: str, where: str, thoughts: list[str]) -> list[Message]:
    key = next((one for one in _CONTENT_KEYS if one in turn), "content")
    content, spoken = turn.get(key), f"{where}.{key}"
    if role == "call":
        made = content if isinstance(content, list) else [content]
        return [assistant_message(None, [read_tool_call(one, spoken) for one in made])]
    if role == "tool" and not (isinstance(content, list) and any(map(_is_result, content))):
        return [_name_result(tool_message(_first(turn, _ID_KEYS), content, spoken), turn)]
    beside = turn.get("additional_kwargs")
    given: Any = turn.get("tool_calls")
    given = beside.get("tool_calls") if not given and isinstance(beside, Mapping) else given
    if given and not isinstance(given, list | tuple):
        raise RolloutError(f"{where}.tool_calls: must be a list (found {describe_value(given)})")
    calls = [read_tool_call(one, f"{where}.tool_calls") for one in given or ()]
    thought = next((turn[one] for one in _THOUGHT_KEYS if isinstance(turn.get(one), str)), "")
    thought = "\n".join(filter(None, [*thoughts, thought]))
    messages = _Parts(content, spoken).messages(role, calls, thought)
    own_keys = turn.get("role") == role and key == "content" and "type" not in turn
    for message in messages:
        if message["role"] == role:
            thoughts.clear()
            message.update(
                (name, one)
                for name, one in turn.items()
                if name in ("name", "function_call") or (own_keys and name not in _READ_KEYS)
            )
    return messages


def _name_result(message: Message, given: Mapping[str, Any]) -> Message:
    if isinstance(given.get("name"), str):
        message["name"] = given["name"]
    if not message["tool_call_id"]:
        del message["tool_call_id"]
    return message


# --- parts of a message ---------------------------------------------------------------------------


def _is_result(part: Any) -> bool:
    kind = part.get("type") if isinstance(part, Mapping) else None
    keyed = isinstance(part, Mapping) and (
        "functionResponse" in part or "function_response" in part
    )
    return keyed or (
        isinstance(kind, str) and (kind in _RESULT_PARTS or kind.endswith("_tool_result"))
    )


def _is_part(value: Any) -> bool:
    """Whether an element of a tool's result is a part of a message, and not data."""
    if not isinstance(value, Mapping):
        return isinstance(value, str)
    kind = value.get("type")
    return value.keys() == {"text"} or (isinstance(kind, str) and kind in _RESULT_PART_TYPES)


def _read_part(given: Any, where: str) -> tuple[str, Any]:
    """``text``, ``thought``, ``call``, ``result`` or ``media``, and what it is; ``""``: nothing."""
    if isinstance(given, str):
        return "text", given
    if not isinstance(given, Mapping):
        raise RolloutError(f"{where}: must be a part of a message (found {describe_value(given)})")
    part = {key: one for key, one in given.items() if one is not None}
    kind = part.get("type")
    text = part.get("text", part.get("content"))
    text = part.get("answer") if part.keys() <= {"answer", "thought"} else text
    text = text.get("value") if isinstance(text, Mapping) else text  # of OpenAI's Assistants
    if kind in (None, *TEXT_PARTS) and isinstance(text, str) and part.get("thought") is not True:
        return "text", text
    if kind == "refusal" and isinstance(part.get("refusal"), str):
        return "text", part["refusal"]
    known = isinstance(kind, str) and kind in MEDIA_PARTS
    if known or any(key in part for key in _MEDIA_KEYS):
        return "media", given
    return _read_act(part, where)


def _read_act(part: Mapping[str, Any], where: str) -> tuple[str, Any]:
    """A part that is no words: a thought, a call of a tool, a result, or nothing."""
    kind = part.get("type")
    if kind in _NO_MESSAGES:
        return "", None
    if kind in THINKING_PARTS or part.get("thought") is True:
        words = (part.get(key) for key in ("thinking", "reasoning", "text", "content"))
        return "thought", next((one for one in words if isinstance(one, str)), "")
    if _is_result(part):
        inner = _inner(part, "functionResponse", "function_response")
        result = tool_message(_first(inner, _ID_KEYS), _first(inner, _RESULT_KEYS), where)
        return "result", _name_result(result, inner)
    call = _inner(part, "functionCall", "function_call")
    if (
        call is not part
        or kind in _CALL_PARTS
        or (isinstance(kind, str) and kind.endswith("_tool_use"))
    ):
        return "call", read_tool_call(call, where)
    shown = "" if kind is None else f", type {describe_value(kind)}"
    raise RolloutError(f"{where}: is a part of an unknown form (found {_keys_of(part)}{shown})")


class _Parts:
    """What a message's content says: a text, null, a part, or a list of parts."""

    def __init__(self, content: Any, where: str) -> None:
        self._given = content
        if content is None:
            content = []
        listed = isinstance(content, list | tuple)
        parts = list(content) if listed else [content]
        self.pieces = [
            _read_part(part, f"{where}.{place}" if listed else where)
            for place, part in enumerate(parts)
        ]

    @property
    def text(self) -> str:
        """Texts alone: images and the like contribute nothing."""
        return "".join(value for kind, value in self.pieces if kind == "text")

    @property
    def words(self) -> str:
        """Texts and thoughts."""
        return "".join(value for kind, value in self.pieces if kind in ("text", "thought"))

    def messages(self, role: str, calls: list[Message], thought: str) -> list[Message]:
        """The turn, cut where the result of a tool is a part of it."""
        if all(kind in ("text", "media") for kind, _ in self.pieces):
            content = None if self._given is None else _content(self.pieces)
            return [_make_turn(role, content, calls, thought)]
        messages: list[Message] = []
        open_pieces: list[tuple[str, Any]] = []

        def close() -> None:
            nonlocal calls, thought
            used = {one["id"] for one in calls} - {""}
            mine = [one for kind, one in open_pieces if kind == "call" and one["id"] not in used]
            words = [thought, *(one for kind, one in open_pieces if kind == "thought")]
            content = _content(open_pieces)
            every = [*calls, *mine]
            reasoning = "\n".join(filter(None, words))
            messages.append(_make_turn(role, content or (None if every else ""), every, reasoning))
            calls, thought = [], ""
            open_pieces.clear()

        for kind, value in self.pieces:
            if kind != "result":
                open_pieces.append((kind, value))
                continue
            if open_pieces or calls:
                close()
            messages.append(value)
        if open_pieces or calls or thought or not messages:
            close()
        return messages


def _content(pieces: Sequence[tuple[str, Any]]) -> Any:
    if all(kind != "media" for kind, _ in pieces):
        return "".join(value for kind, value in pieces if kind == "text")
    return [
        {"type": "text", "text": value} if kind == "text" else value
        for kind, value in pieces
        if kind in ("text", "media")
    ]


def message_text(content: Any, where: str = "content") -> str:
    """The text of a message's content in any maker's form; raises :class:`RolloutError`."""
    return _Parts(content, where).text


def _make_turn(role: str, content: Any, calls: Sequence[Message], thought: str) -> Message:
    if role == "assistant":
        return assistant_message(content, calls, thought)
    if calls:
        raise RolloutError(f"a call of a tool is in a turn of the role {role!r}")
    return {"role": role, "content": content}


# --- values ---------------------------------------------------------------------------------------


def _inner(part: Mapping[str, Any], *keys: str) -> Mapping[str, Any]:
    return next((part[key] for key in keys if isinstance(part.get(key), Mapping)), part)


def _first(values: Any, keys: Sequence[str]) -> Any:
    if not isinstance(values, Mapping):
        return None
    return next((values[key] for key in keys if values.get(key) is not None), None)


def _keys_of(value: Mapping[str, Any]) -> str:
    return printable(f"keys {', '.join(map(str, value))}")[:120]


def _as_id(value: Any) -> str:
    return value if isinstance(value, str) else f"{value}" if type(value) is int else ""


def encode_value(value: Any) -> str:
    """``value`` as JSON; raises :class:`RolloutError` for what is none."""
    try:
        return encode_json(value).decode()
    except OverflowError:  # an integer of more than 64 bits
        with suppress(TypeError, ValueError, RecursionError):
            return json.dumps(value)
    except (TypeError, ValueError, RecursionError):
        pass
    raise RolloutError("a value is nested too deeply, or no JSON data")
