"""Chat messages of all makers in one form: OpenAI's, as :func:`read_messages` reads them.

OpenAI's chats and items, blocks of Anthropic and Gemini, OpenTelemetry's parts, LangChain's and
ShareGPT's messages. What is of no known form raises :class:`~adjudge.errors.RolloutError` with the
keys that it has: nothing replaces a text that was not understood.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from adjudge.errors import Fields, RolloutError
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
from adjudge.types import MISSING

Message = dict[str, Any]
_Piece = tuple[str, Any]

_ROLES = {
    name: role
    for role, names in {
        "assistant": ("assistant", "model", "ai", "gpt", "bot", "agent", "chatbot", "chatgpt"),
        "user": ("user", "human"),
        "system": ("system",),
        "developer": ("developer",),
        "tool": ("tool", "function", "observation", "environment", "ipython", "tool_response"),
        "call": ("function_call", "tool_call"),  # ShareGPT's
    }.items()
    for name in names
}
_OWN_ROLES = {"system", "developer", "user", "assistant", "tool"}
_ROLE_KEYS = ("role", "from", "sender", "speaker", "author")
_CONTENT_KEYS = ("parts", "content", "blocks", "items", "value", "text", "message", "prompt")
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
_NO_MESSAGES = (
    *("item_reference", "mcp_list_tools", "mcp_approval_request", "mcp_approval_response"),
    *("compaction", "remove", "step-start"),
)
"""Items and parts that say nothing."""

_ID_KEYS = ("tool_call_id", "tool_use_id", "call_id", "toolCallId", "toolUseId", "id")
_NAME_KEYS = ("name", "function", "toolName", "tool_name", "function_name", "tool")
_ARGUMENT_KEYS = ("arguments", "args", "input", "parameters", "tool_input", "action")
_RESULT_KEYS = ("content", "response", "result", "output", "text", "value")
_OWN_RESULT_KEYS = ("output", "outputs", "result", "results", "errorText")
"""Where a call has its own result: the tools of providers, the messages of interfaces."""
_MEDIA_KEYS = ("inlineData", "inline_data", "fileData", "file_data", "image", "document", "video")
CALL_KEYS = (
    *("tool_calls", "toolCalls", "tool_call", "tool_uses", "function_call", "function_calls"),
    *("invalid_tool_calls", "toolInvocations"),
)
_THOUGHT_KEYS = ("reasoning_content", "reasoning", "thinking", "tool_plan")
_THOUGHT_PART_KEYS = ("thinking", "reasoning", "reasoningText", "text", "content", "summary")
_SAYING_KEYS = (*_CONTENT_KEYS, *CALL_KEYS, *_THOUGHT_KEYS)
_READ_KEYS = {"role", "content", "additional_kwargs", "channel", *CALL_KEYS, *_THOUGHT_KEYS}
_OTHER_KEYS = {*_SAYING_KEYS, *_READ_KEYS, "type", "recipient", "refusal", "audio"}
_OTHER_KEYS -= {"role", "content", "tool_calls", "reasoning_content"}
"""What a message of OpenAI's chats has nowhere, or what becomes something else in it."""


def read_messages(value: object, name: str) -> list[Message]:
    """The messages of the column ``name`` in OpenAI's form.

    ``value``: a list of messages or items, the JSON text of one, or a state that has ``messages``.
    Thinking becomes ``reasoning_content``, calls ``tool_calls``, a result a message of its own.
    Messages that have the form already stay as they are. Raises :class:`RolloutError`.

    >>> read_messages([{"from": "human", "value": "2 + 2?"}], "messages")
    [{'role': 'user', 'content': '2 + 2?'}]
    """
    value = list_messages(value, name)
    if _have_own_form(value):
        return list(value)
    if all(map(_is_choice, value)):
        raise RolloutError(f"{name}: are the choices of one answer, and no conversation")
    talk: list[Message] = []
    thoughts: list[str] = []
    for place, turn in enumerate(value):
        if not thoughts and _have_own_form((turn,)):
            talk.append(turn)
        else:
            _add_turn(talk, thoughts, turn, f"{name}.{place}")
    if thoughts:  # it thought, and then it said nothing
        talk.append(assistant_message("", (), "\n".join(thoughts)))
    return talk


def list_messages(value: object, name: str) -> Sequence[Any]:
    """The messages as they were written: of a list, its JSON text, or a state of ``messages``."""
    value = decode_value(value, name)
    if isinstance(value, Mapping) and isinstance(value.get("messages"), list):
        value = value["messages"]
    if not isinstance(value, list | tuple):
        raise RolloutError(
            f"{name}: must be a list of chat messages (found {describe_value(value)})"
        )
    if len(value) == 1 and isinstance(value[0], list):  # a batch of one
        return value[0]
    if value and type(first := as_object(value[0]).get("created_at")) is int:
        last = as_object(value[-1]).get("created_at")  # the list of a thread begins with its end
        return value[::-1] if type(last) is int and last < first else value
    return value


def looks_like_messages(value: object) -> bool:
    """Whether a value is a list of messages or items, or its JSON text, perhaps of other roles."""
    if isinstance(value, str):
        with suppress(RolloutError):
            value = decode_value(value, "") if value.lstrip()[:1] == "[" else None
    if not isinstance(value, list | tuple) or not value:
        return False
    looks = all(isinstance(one, Mapping) and _is_turn(_unwrap(one)) for one in value)
    return looks and not all(map(_is_choice, value))


def _is_choice(one: object) -> bool:
    """Whether it is one of the answers that an API gives beside each other, and no turn."""
    keys = as_object(one).keys()
    made = not keys.isdisjoint(("finish_reason", "index"))
    return made and "message" in keys and "role" not in keys


def _is_turn(turn: Fields) -> bool:
    if _role_of(turn) is not None:
        return any(key in turn for key in _SAYING_KEYS)
    return _is_item(turn.get("type")) or any(isinstance(turn.get(k), str) for k in _ROLE_KEYS[:2])


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
    message = {"role": "tool", "content": _content(_read_parts(content, where))}
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
    return tool_call(first_of(call, _ID_KEYS) or first_of(inner, _ID_KEYS), name, arguments)


# --- one message ----------------------------------------------------------------------------------


def _have_own_form(turns: Iterable[Any]) -> bool:  # noqa: PLR0911  (one loop is twice as fast)
    """Whether messages are OpenAI's chats already, and nothing of them has another name."""
    for turn in turns:
        if turn.__class__ is not dict or (role := turn.get("role")).__class__ is not str:
            return False
        content = turn.get("content", MISSING)
        if role not in _OWN_ROLES:
            return False
        if content.__class__ is not str and (content is not None or role == "tool"):
            return False
        if len(turn) == 2 and content is not None:
            continue
        # A table gives each message the keys of all others, with null.
        if not _OTHER_KEYS.isdisjoint(turn) or ([*turn.values()].count(None) != (content is None)):
            return False
        if "tool_calls" in turn:
            calls = turn["tool_calls"]
            if calls.__class__ is not list or (calls and role != "assistant"):
                return False
            for call in calls:
                function = call.get("function") if call.__class__ is dict else None
                if function.__class__ is not dict or function.get("name").__class__ is not str:
                    return False
                given = function.get("arguments")
                # null: the argument of another row's call of a table
                if given.__class__ is not str and (
                    given.__class__ is not dict or None in given.values()
                ):
                    return False
    return True


def _unwrap(turn: Fields) -> Fields:
    """The message itself: LangChain's dumps and lists of choices have it one level down."""
    kind = turn.get("type")
    if kind == "constructor" and isinstance(turn.get("kwargs"), Mapping):
        path = turn.get("id")
        return {"type": path[-1] if isinstance(path, list) and path else None, **turn["kwargs"]}
    if isinstance(turn.get("data"), Mapping) and "content" in turn["data"]:
        return {"type": kind, **turn["data"]}
    inner = as_object(turn.get("message", turn.get("content")))
    return (
        inner if inner and "role" not in turn and ("message" in turn or "role" in inner) else turn
    )


def _role_of(turn: Fields) -> str | None:
    """A message's role in OpenAI's words."""
    for key in _ROLE_KEYS:
        if (value := turn.get(key)) is not None:
            value = value.get("role") if isinstance(value, Mapping) else value
            return _ROLES.get(value.lower()) if isinstance(value, str) else None
    kind = turn.get("type")
    if not isinstance(kind, str) or ("content" not in turn and "text" not in turn):
        return None
    kind = kind.removesuffix("Chunk").removesuffix("Message").lower()  # LangChain's classes
    return _ROLES.get(kind)


def _is_item(kind: object) -> bool:
    """Whether a type is one of the Responses API's items that have no role."""
    return isinstance(kind, str) and (
        kind in ("reasoning", *_NO_MESSAGES) or kind.endswith(("_call", "_call_output"))
    )


def _add_turn(talk: list[Message], thoughts: list[str], given: object, where: str) -> None:
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
        shown = [f", {key} {describe_value(turn[key])}" for key in _ROLE_KEYS if key in turn]
        raise RolloutError(
            f"{where}.role: must be a known one (found {list_keys(turn)}{''.join(shown[:1])}; "
            f"allowed: {', '.join(sorted(_OWN_ROLES))}, and what other makers call these)"
        )
    elif not any(key in inner for key in _SAYING_KEYS + _RESULT_KEYS * (role == "tool")):
        raise RolloutError(f"{where}: has no content (found {list_keys(given)})")
    else:
        talk += _turn_messages(turn, role, where, thoughts)


def _add_item(talk: list[Message], thoughts: list[str], item: Message, where: str) -> None:
    """Calls join the assistant's message before them, reasoning the message after it."""
    kind = item["type"]
    if kind == "reasoning":
        thought = _read_thought(item, where)
        thoughts += [thought] if thought else []
    elif kind.endswith("_output"):
        talk.append(tool_message(item.get("call_id"), item.get("output"), f"{where}.output"))
    elif kind.endswith("_call"):
        if not talk or talk[-1]["role"] != "assistant":
            talk.append(assistant_message(None))
        last = talk[-1] = {**talk[-1]}
        if thoughts:
            words = [last.get("reasoning_content"), *thoughts]
            last["reasoning_content"] = "\n".join(filter(None, words))
            thoughts.clear()
        given = {key: item[key] for key in ("code", "queries") if key in item}
        # A tool of the provider's is named by the item's type.
        name = None if kind in ("function_call", "custom_tool_call", "mcp_call") else kind
        named = {"name": name, "action": given, "output": item.get("error"), **item}
        named["id"] = item.get("call_id") or item.get("id")
        (_, made), *results = _read_call(named, where)
        last["tool_calls"] = [*last.get("tool_calls", ()), made]
        talk += [result for _, result in results]


def _turn_messages(turn: Message, role: str, where: str, thoughts: list[str]) -> list[Message]:
    said = [one for one in _CONTENT_KEYS if one in turn]
    key = next((one for one in said if turn[one]), (*said, "content")[0])
    content, spoken = turn.get(key), f"{where}.{key}"
    beside = as_object(turn.get("additional_kwargs"))
    every = {**beside, **{name: one for name, one in turn.items() if one}} if beside else turn
    if role == "call":
        made = _list_calls(content, spoken)
        return [assistant_message(None, [read_tool_call(one, spoken) for one in made])]
    if role == "tool" and not (isinstance(content, list) and any(map(_is_result, content))):
        content = first_of(turn, _RESULT_KEYS) if content is None else content
        return [tool_message(first_of(every, _ID_KEYS), content, spoken, turn.get("name"))]
    calls, results = _read_calls(every, where)
    if results and content:
        raise RolloutError(f"{where}: a call has its result beside a text: which was first?")
    words = (every[one] for one in _THOUGHT_KEYS if isinstance(every.get(one), str))
    thought = "\n".join(filter(None, [*thoughts, next(words, "")]))
    if role == "assistant":
        audio = as_object(turn.get("audio"))
        content = content or audio.get("transcript") or turn.get("refusal") or content
        to = turn.get("recipient") if "channel" in turn else None  # Harmony's
        if isinstance(to, str) and to not in ("all", "assistant", "user"):
            given = message_text(content, spoken)
            calls, content = [tool_call("", to.removeprefix("functions."), given)], None
        elif turn.get("channel") == "analysis":
            thoughts.append(message_text(content, spoken))
            return []
    messages = _cut_turn(role, content, spoken, calls, thought) + results
    own_keys = turn.get("role") == role and key == "content" and "type" not in turn
    for message in messages:
        if message["role"] == role:
            thoughts.clear()
            message.update(
                (name, one)
                for name, one in turn.items()
                if name == "name" or (own_keys and name not in _READ_KEYS)
            )
    return messages


def _read_calls(turn: Message, where: str) -> list[list[Message]]:
    """The calls that a message has beside its content, each once, and their own results."""
    calls: dict[object, Message] = {}
    results: list[Message] = []
    for key in CALL_KEYS:
        if not turn.get(key) or (key == "toolInvocations" and turn.get("parts")):
            continue  # the parts have them in their places
        for given in _list_calls(turn[key], f"{where}.{key}"):
            (_, made), *own = _read_call(given, f"{where}.{key}")
            if calls.setdefault(made["id"] or len(calls), made) is made:
                results += [result for _, result in own]
    return [list(calls.values()), results]


def _list_calls(given: object, where: str) -> Sequence[object]:
    given = decode_value(given, where)
    return given if isinstance(given, list | tuple) else [given]


# --- parts of a message ---------------------------------------------------------------------------


def _kind_of(part: object) -> str:
    kind = first_of(part, _KIND_KEYS)
    return kind if isinstance(kind, str) else "" if kind is None else "?"


def _is_result(part: object) -> bool:
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


def _read_part(given: object, where: str) -> list[_Piece]:
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


def _read_act(part: Fields, kind: str, where: str) -> list[_Piece]:
    """A part that is no words: a thought, a call of a tool, a result, or nothing."""
    if kind in _NO_MESSAGES:
        return []
    thought = _inner(part, "reasoningContent")
    if kind in THINKING_PARTS or part.get("thought") is True or thought is not part:
        return [("thought", _read_thought(thought, where))]
    if _is_result(part):
        inner = _inner(part, *_RESULTS_BY_KEY)
        call_id = first_of(inner, _ID_KEYS) or first_of(inner.get("origin"), _ID_KEYS)
        given = first_of(inner, _RESULT_KEYS)
        return [("result", tool_message(call_id, given, where, inner.get("name")))]
    call = _inner(part, *_CALLS_BY_KEY)
    if (code := first_of(part, _CODE_BY_KEY)) is not None:
        call = {"name": next(key for key in _CODE_BY_KEY if key in part), "args": code}
    elif kind.startswith("tool-") and "toolCallId" in part:  # Vercel's
        call = {"name": part.get("toolName", kind.removeprefix("tool-")), **part}
    if call is not part or kind in _CALL_PARTS or kind.endswith("_tool_use"):
        return _read_call(call, where)
    shown = f", type {describe_value(kind)}" if kind else ""
    raise RolloutError(f"{where}: is a part of an unknown form (found {list_keys(part)}{shown})")


def _read_thought(part: Fields, where: str) -> str:
    given = next((part[key] for key in _THOUGHT_PART_KEYS if part.get(key)), None)
    return _text_of(_read_parts(given, where), "text", "thought")


def _read_call(given: object, where: str) -> list[_Piece]:  # and the result that a call has
    call = read_tool_call(given, where)
    found = first_of(given, _OWN_RESULT_KEYS)
    made: list[_Piece] = [("call", call)]
    return made if found is None else [*made, ("result", tool_message(call["id"], found, where))]


def _read_parts(content: object, where: str) -> list[_Piece]:
    """What a message's content says: a text, null, a part, or a list of parts."""
    inner = as_object(content).get("parts")
    content = inner if isinstance(inner, list) else [] if content is None else content
    parts = content if isinstance(content, list | tuple) else [content]
    pieces: list[_Piece] = []
    try:
        for place, part in enumerate(parts):
            pieces += _read_part(part, f"{where}.{place}" if parts is content else where)
    except RecursionError:
        raise RolloutError(f"{where[:100]}: is nested too deeply") from None
    return pieces


def _cut_turn(
    role: str, content: object, where: str, calls: list[Message], thought: str
) -> list[Message]:
    """The turn, cut where the result of a tool is a part of it."""
    pieces = _read_parts(content, where)
    if all(kind in ("text", "media") for kind, _ in pieces):
        return [_make_turn(role, None if content is None else _content(pieces), calls, thought)]
    messages: list[Message] = []
    spoken: list[_Piece] = []
    for kind, value in [*pieces, ("end", None)]:
        if kind not in ("result", "end"):
            spoken.append((kind, value))
            continue
        if spoken or calls or (kind == "end" and (thought or not messages)):
            used = {one["id"] for one in calls} - {""}  # calls that stood beside the content
            made = [*calls, *(one for k, one in spoken if k == "call" and one["id"] not in used)]
            words = [thought, *(one for k, one in spoken if k == "thought")]
            said = _content(spoken) or (None if made else "")
            messages.append(_make_turn(role, said, made, "\n".join(filter(None, words))))
            spoken, calls, thought = [], [], ""
        messages += [value] if kind == "result" else []
    return messages


def _text_of(pieces: Sequence[_Piece], *kinds: str) -> str:
    return "".join(value for kind, value in pieces if kind in kinds)


def _content(pieces: Sequence[_Piece]) -> object:
    if all(kind != "media" for kind, _ in pieces):
        return _text_of(pieces, "text")
    return [
        {"type": "text", "text": value} if kind == "text" else value
        for kind, value in pieces
        if kind in ("text", "media")
    ]


def message_text(content: object, where: str = "content") -> str:
    """The text of a message's content in any maker's form; raises :class:`RolloutError`."""
    return _text_of(_read_parts(content, where), "text")


def _make_turn(role: str, content: object, calls: Sequence[Message], thought: str) -> Message:
    if role == "assistant":
        return assistant_message(content, calls, thought)
    if calls:
        raise RolloutError(f"a call of a tool is in a turn of the role {role!r}")
    return {"role": role, "content": content}
