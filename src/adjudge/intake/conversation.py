"""Chat messages of all makers in one form: OpenAI's, as :func:`read_messages` reads them.

OpenAI's chats and items, blocks of Anthropic and Gemini, OpenTelemetry's parts, LangChain's and
ShareGPT's messages. What is of no known form raises :class:`~adjudge.errors.RolloutError` with the
keys that it has: nothing replaces a text that was not understood.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TypeGuard

from adjudge.errors import Fields, RolloutError
from adjudge.intake.columns import as_object, decode_value, describe_value, first_of, list_keys
from adjudge.intake.parts import (
    ID_KEYS,
    NO_MESSAGES,
    RESULT_KEYS,
    Message,
    Piece,
    assistant_message,
    is_result,
    make_content,
    message_text,
    read_call,
    read_parts,
    read_thought,
    read_tool_call,
    tool_call,
    tool_message,
)
from adjudge.types import MISSING

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
CALL_KEYS = (
    *("tool_calls", "toolCalls", "tool_call", "tool_uses", "function_call", "function_calls"),
    *("invalid_tool_calls", "toolInvocations"),
)
_THOUGHT_KEYS = ("reasoning_content", "reasoning", "thinking", "tool_plan")
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
        if not thoughts and _have_own_form(one := (turn,)):
            talk += one
        else:
            _add_turn(talk, thoughts, turn, f"{name}.{place}")
    if thoughts:  # it thought, and then it said nothing
        talk.append(assistant_message("", (), "\n".join(thoughts)))
    return talk


def list_messages(value: object, name: str) -> Sequence[object]:
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


# --- one message ----------------------------------------------------------------------------------


def _have_own_form(turns: Sequence[object]) -> TypeGuard[Sequence[Message]]:  # noqa: PLR0911  (one loop is twice as fast)
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
        kind in ("reasoning", *NO_MESSAGES) or kind.endswith(("_call", "_call_output"))
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
    elif not any(key in inner for key in _SAYING_KEYS + RESULT_KEYS * (role == "tool")):
        raise RolloutError(f"{where}: has no content (found {list_keys(given)})")
    else:
        talk += _turn_messages(turn, role, where, thoughts)


def _add_item(talk: list[Message], thoughts: list[str], item: Message, where: str) -> None:
    """Calls join the assistant's message before them, reasoning the message after it."""
    kind = item["type"]
    if kind == "reasoning":
        thought = read_thought(item, where)
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
        (_, made), *results = read_call(named, where)
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
    if role == "tool" and not (isinstance(content, list) and any(map(is_result, content))):
        content = first_of(turn, RESULT_KEYS) if content is None else content
        return [tool_message(first_of(every, ID_KEYS), content, spoken, turn.get("name"))]
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
            (_, made), *own = read_call(given, f"{where}.{key}")
            if calls.setdefault(made["id"] or len(calls), made) is made:
                results += [result for _, result in own]
    return [list(calls.values()), results]


def _list_calls(given: object, where: str) -> Sequence[object]:
    given = decode_value(given, where)
    return given if isinstance(given, list | tuple) else [given]


def _cut_turn(
    role: str, content: object, where: str, calls: list[Message], thought: str
) -> list[Message]:
    """The turn, cut where the result of a tool is a part of it."""
    pieces = read_parts(content, where)
    if all(kind in ("text", "media") for kind, _ in pieces):
        return [_make_turn(role, None if content is None else make_content(pieces), calls, thought)]
    messages: list[Message] = []
    spoken: list[Piece] = []
    for kind, value in [*pieces, ("end", None)]:
        if kind not in ("result", "end"):
            spoken.append((kind, value))
            continue
        if spoken or calls or (kind == "end" and (thought or not messages)):
            used = {one["id"] for one in calls} - {""}  # calls that stood beside the content
            made = [*calls, *(one for k, one in spoken if k == "call" and one["id"] not in used)]
            words = [thought, *(one for k, one in spoken if k == "thought")]
            said = make_content(spoken) or (None if made else "")
            messages.append(_make_turn(role, said, made, "\n".join(filter(None, words))))
            spoken, calls, thought = [], [], ""
        messages += [value] if kind == "result" else []
    return messages


def _make_turn(role: str, content: object, calls: Sequence[Message], thought: str) -> Message:
    if role == "assistant":
        return assistant_message(content, calls, thought)
    if calls:
        raise RolloutError(f"a call of a tool is in a turn of the role {role!r}")
    return {"role": role, "content": content}
