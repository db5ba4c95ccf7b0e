"""Conversations as dumps hold them, in OpenAI's chat form; and prompts that a template rendered.

A dump's messages differ from OpenAI's in small things: calls of tools without ``function`` around
them, as JSON text, or with arguments that are an object; nulls for what a table's other rows have;
items of the Responses API in place of messages. What is no message raises ``RolloutError``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from adjudge.errors import RolloutError
from adjudge.messages import content_text, last_answer, last_question, prompt_messages
from adjudge.rollouts.formats.base import Row
from adjudge.rollouts.formats.chat import Message, tool_call
from adjudge.text import encode_json


def read_messages(value: Any, name: str) -> list[Message]:
    """The messages of the column ``name`` in OpenAI's form; raises :class:`RolloutError`."""
    if not isinstance(value, list | tuple):
        raise RolloutError(
            f"{name}: must be a list of chat messages (found {type(value).__name__})"
        )
    return [_read_message(one, f"{name}.{place}") for place, one in enumerate(value)]


def _read_message(value: Any, where: str) -> Message:
    if not isinstance(value, Mapping) or not isinstance(value.get("role"), str):
        raise RolloutError(
            f"{where}: must be a chat message with a 'role' (found {type(value).__name__})"
        )
    # A table gives each message the keys of all others, with null.
    message = {key: one for key, one in value.items() if one is not None}
    message.setdefault("content", None)
    if not isinstance(message["content"], str | list | None):
        found = type(message["content"]).__name__
        raise RolloutError(f"{where}.content: must be text or a list of parts (found {found})")
    calls = message.pop("tool_calls", None)
    if calls:
        if not isinstance(calls, list | tuple):
            raise RolloutError(f"{where}.tool_calls: must be a list (found {type(calls).__name__})")
        message["tool_calls"] = [read_tool_call(call, f"{where}.tool_calls") for call in calls]
    return message


def read_tool_call(value: Any, where: str) -> dict[str, Any]:
    """A call of a tool in OpenAI's form, of that form, a flat one, or the JSON text of either.

    >>> read_tool_call({"id": "1", "name": "add", "arguments": {"a": 2}}, "tool_calls")
    {'id': '1', 'type': 'function', 'function': {'name': 'add', 'arguments': '{"a":2}'}}
    """
    call = value
    if isinstance(call, str):
        try:
            call = msgspec.json.decode(call)
        except (ValueError, RecursionError):
            raise RolloutError(f"{where}: a call is text but not JSON") from None
    function = call.get("function", call) if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise RolloutError(
            f"{where}: must be calls with the 'name' of a tool (found {type(call).__name__})"
        )
    arguments = function.get("arguments")
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
    reasoning = ""
    for place, item in enumerate(items):
        if not isinstance(item, Mapping):
            raise RolloutError(f"{name}.{place}: must be an object (found {type(item).__name__})")
        kind = item.get("type") or "message"
        if not isinstance(kind, str):
            raise RolloutError(f"{name}.{place}.type: must be text (found {type(kind).__name__})")
        if kind == "reasoning":
            reasoning += _item_text(item.get("content") or item.get("summary"))
            continue
        if kind == "message":
            message = _read_message({**item, "content": _item_text(item.get("content"))}, name)
            messages.append({key: message[key] for key in ("role", "content")})
        elif kind.endswith("_output"):
            answer = {"role": "tool", "content": _item_text(item.get("output"))}
            messages.append({**answer, "tool_call_id": item.get("call_id")})
        elif kind.endswith("_call"):
            if not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant", "content": None})
            messages[-1].setdefault("tool_calls", []).append(_item_call(item, f"{name}.{place}"))
        if reasoning and messages and messages[-1]["role"] == "assistant":
            before = messages[-1].get("reasoning_content", "")
            messages[-1]["reasoning_content"] = before + reasoning
            reasoning = ""
    return messages


def _item_call(item: Mapping[str, Any], where: str) -> dict[str, Any]:
    """A call of a function, or of a tool of the provider's, named by the item's type."""
    given = item.get("arguments", item.get("input", item.get("action")))
    call = {"name": item.get("name") or item["type"], "arguments": given}
    return read_tool_call({"id": item.get("call_id") or item.get("id"), **call}, where)


def _item_text(content: Any) -> str:
    if isinstance(content, list):
        refusals = [one.get("refusal") for one in content if isinstance(one, Mapping)]
        return content_text(content) or "".join(one for one in refusals if isinstance(one, str))
    return content_text(content) if isinstance(content, str | None) else _encode(content)


def _encode(value: Any) -> str:
    try:
        return encode_json(value).decode()
    except (TypeError, ValueError, OverflowError, RecursionError):
        raise RolloutError("the output of a tool is nested too deeply, or no JSON data") from None


def completion_row(prompt: Any, completion: Any) -> Row:
    """A prompt and what answers it as a row; each is a text or a list of messages.

    A conversation becomes ``messages``, of which ``prompt`` is the last question before the answer
    and ``response`` the last text of the answer. A text that a chat template rendered is read back
    into its messages where that is certain. Raises :class:`RolloutError` for anything else.
    """
    if not isinstance(completion, str | list | tuple):
        found = "" if completion is None else f" (found {type(completion).__name__})"
        raise RolloutError(f"there is no response{found}")
    if prompt is None and isinstance(completion, str):
        return {"response": completion}
    chat = None
    if isinstance(prompt, str):
        if (rendered := read_rendered_prompt(prompt)) is not None:
            chat, ending = rendered
            if ending and isinstance(completion, str):
                text, ended, after = completion.rpartition(ending)
                completion = text if ended and not after.strip() else completion
        elif isinstance(completion, str):
            return {"prompt": prompt, "response": completion}
        else:
            chat = prompt_messages(prompt)
    elif prompt is not None:
        chat = read_messages(prompt, "prompt")
    return conversation_row(chat or [], completion)


def conversation_row(before: list[Message], completion: Any) -> Row:
    """The row of messages and the answer that follows them; raises :class:`RolloutError`."""
    if isinstance(completion, str):
        answer = [{"role": "assistant", "content": completion}]
    else:
        answer = read_messages(completion, "completion")
    row = {"messages": [*before, *answer], "response": last_answer(answer) or ""}
    question = last_question(before)
    return row if question is None else {**row, "prompt": question}


_TEMPLATES = (
    ("<|im_start|>", "\n", "<|im_end|>"),
    ("<|start_header_id|>", "<|end_header_id|>\n\n", "<|eot_id|>"),
)
"""What begins a message, ends its role and ends the message: ChatML (Qwen) and Llama 3."""

_ROLES = ("system", "user", "assistant", "tool")
_THINKING = ("", "<think>\n", "<think>\n\n</think>\n\n")
"""What templates write after the assistant's role."""


def read_rendered_prompt(text: str) -> tuple[list[Message], str] | None:
    r"""The messages of a prompt that a chat template rendered, and what ends a message there.

    ``None`` where the text could be another prompt's, too. Trainers that decode tokens without the
    special ones leave ``system``, ``user`` and ``assistant`` on lines of their own; such a prompt
    is read where each of them is there once.

    >>> read_rendered_prompt("<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n")
    ([{'role': 'user', 'content': 'Why?'}], '<|im_end|>')
    >>> read_rendered_prompt("system\nBe brief.\nuser\nWhy?\nassistant\n")[0][1]
    {'role': 'user', 'content': 'Why?'}
    """
    for opening, middle, ending in _TEMPLATES:
        if opening in text:
            messages = _split_rendered(text, opening, middle, ending)
            return None if messages is None else (messages, ending)
    messages = _split_bare(text)
    return None if messages is None else (messages, "")


def _split_rendered(text: str, opening: str, middle: str, ending: str) -> list[Message] | None:
    head, *parts = text.split(opening)
    role, _, rest = parts.pop().partition(middle)
    if head.strip() not in ("", "<|begin_of_text|>") or role != "assistant":
        return None
    if rest not in _THINKING or not parts:
        return None
    messages = []
    for part in parts:
        role, found, rest = part.partition(middle)
        content, end, after = rest.partition(ending)
        if role not in _ROLES or not found or not end or after.strip():
            return None
        messages.append({"role": role, "content": content})
    return messages


def _split_bare(text: str) -> list[Message] | None:
    for thinking in _THINKING:
        if text.endswith("\nassistant\n" + thinking):
            lines = text.removesuffix("\nassistant\n" + thinking).split("\n")
            break
    else:
        return None
    roles = [place for place, line in enumerate(lines) if line in _ROLES]
    if (
        not roles
        or roles[0] != 0
        or [lines[place] for place in roles]
        not in (
            ["user"],
            ["system", "user"],
        )
    ):
        return None
    return [
        {"role": lines[start], "content": "\n".join(lines[start + 1 : end])}
        for start, end in zip(roles, [*roles[1:], len(lines)], strict=True)
    ]
