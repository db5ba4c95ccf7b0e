"""What a grader asks a judge: in which prompt, and what of the sample's messages.

The question has the shipped wording or one of the user's own. Shipped prompts are files beside
their graders, ``prompts/NAME.en.txt`` and ``prompts/NAME.zh.txt``, in two parts that a line
``=====`` parts: what is the same for every sample (the system message: task, criteria, scale,
``{reply_form}``), and the material. That order, static text first and the candidate last, is what
prefix caches hit on.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any

from adjudge.errors import LACKED, ConfigError, Fields, GradingFailure, InvalidInput, Metadata
from adjudge.graders.base import is_nan
from adjudge.messages import content_text, render_value
from adjudge.prompts import ChatMessage, LanguageEnum, PromptTemplate
from adjudge.text import final_text
from adjudge.verdicts.strict import Ending

_PART = "\n=====\n"

REPLY_FORM = "reply_form"
"""The field of a template that says what the reply must look like; never a sample's."""


@cache
def load_shipped_prompt(name: str, *trusted: str) -> PromptTemplate:
    """The template of a shipped grader, in both languages; ``trusted`` fields are not fenced."""
    messages = {language: _messages(name, language) for language in LanguageEnum}
    return PromptTemplate(messages, trusted=(REPLY_FORM, *trusted))


def _messages(name: str, language: LanguageEnum) -> list[ChatMessage]:
    file = resources.files("adjudge.graders.llm").joinpath(f"prompts/{name}.{language}.txt")
    static, _, material = file.read_text(encoding="utf-8").partition(_PART)
    return [ChatMessage("system", static.strip()), ChatMessage("user", material.strip())]


TemplateInput = Any
"""A :class:`~adjudge.prompts.PromptTemplate`, its messages, one text; ``None``: the shipped one."""


def resolve_template(
    given: TemplateInput, shipped: str = "", needs: Collection[str] = ()
) -> PromptTemplate:
    """``given``, an author's own, else the prompt file ``shipped``; the reply's form has no fence.

    Raises :class:`ConfigError` for a template without one of the fields that it ``needs``.
    """
    if given is None:
        return load_shipped_prompt(shipped)
    messages = [ChatMessage("user", given)] if isinstance(given, str) else given
    trusted = frozenset([REPLY_FORM])
    if isinstance(given, PromptTemplate):
        messages, trusted = given.messages, given.trusted | trusted
    template = PromptTemplate(messages, trusted=trusted)
    if template.exposed:
        raise ConfigError(
            "template: a system message has fields of the sample (found: "
            f"{', '.join(sorted(template.exposed))}). Move them to the user's message."
        )
    for name in needs:
        if name not in template.fields:
            raise ConfigError(
                f"template: lacks the field {{{name}}}, which the judge must see. Add it."
            )
    return template


def parse_ending(verdict: object, template: PromptTemplate) -> Ending | None:
    """Where ``template``'s own words put the verdict, as its author declares.

    Raises :class:`ConfigError` for what is no declaration, and beside ``{reply_form}``, which says
    it already.
    """
    ending = Ending.of(verdict)
    if ending is not None and REPLY_FORM in template.fields:
        raise ConfigError(
            "verdict: the template has {reply_form}, which asks for the verdict. "
            "Leave out one of the two."
        )
    return ending


def final_messages(messages: Sequence[object]) -> tuple[list[object], bool]:
    """The messages with the assistant's thinking taken out, and whether the last never ended it."""
    shown: list[object] = []
    unended = False
    for message in messages:
        unended, seen = False, message
        if isinstance(message, Mapping) and message.get("role") == "assistant":
            content = turn_content(message)
            if isinstance(content, str):
                text = final_text(content)
                unended = text is None and not message.get("tool_calls")
                seen = {**message, "content": text or ""}
        shown.append(seen)
    return shown, unended


def _is_image(part: object) -> bool:
    return isinstance(part, Mapping) and not isinstance(part.get("text"), str)


Transcript = list[Metadata]
"""Chat messages, one object with a role each."""


def read_turns(messages: object) -> Transcript:
    """Chat messages as a transcript shows them: one object with a role each.

    ``{"message": …}`` is unwrapped and the former ``function_call`` becomes a tool call. Raises
    ``GradingFailure(invalid_input)`` for what is no list of messages, or an empty one.

    >>> read_turns([{"message": {"role": "user", "content": "Hello"}}])
    [{'role': 'user', 'content': 'Hello'}]
    """
    if not isinstance(messages, list | tuple) or not messages:
        found = "empty" if isinstance(messages, list | tuple) else type(messages).__name__
        raise InvalidInput(f"messages is {found}, must be a list of chat messages")
    return [_turn(message, place) for place, message in enumerate(messages)]


def _turn(message: object, place: int) -> Metadata:
    inner = message.get("message", message) if isinstance(message, Mapping) else None
    if not isinstance(inner, Mapping) or not isinstance(inner.get("role"), str):
        raise InvalidInput(f"messages[{place}] is no object with a role")
    turn = dict(inner)
    if turn["role"] == "assistant" and isinstance(turn.get("content"), Mapping):
        turn["content"] = "".join(str(piece) for piece in render_value(turn["content"]))
    calls, legacy = turn.get("tool_calls"), turn.pop("function_call", None)
    if calls is not None and not isinstance(calls, list):
        raise InvalidInput(
            f"messages[{place}].tool_calls is {type(calls).__name__}, must be a list"
        )
    if not calls and legacy is not None:
        turn["tool_calls"] = [legacy]
    return turn


def find_answer_turn(turns: Sequence[Fields]) -> int | None:
    """The place of the last assistant turn that says something; ``None`` without one."""
    for place in range(len(turns) - 1, -1, -1):
        if turns[place]["role"] == "assistant" and not is_blank(turn_content(turns[place])):
            return place
    return None


def turn_content(turn: Fields) -> object:
    """The text of a turn, or its parts where some are no text."""
    content = turn.get("content")
    if isinstance(content, list) and any(map(_is_image, content)):
        return content
    return content_text(content)


def split_question(turns: Transcript, response: object) -> tuple[int, object]:
    """How many turns come before ``response`` (``None``: the last thing said), and the response.

    A response of the sample's own that is not the last thing said follows the conversation. If the
    conversation ends with an assistant's turn, it replaces that turn. A trajectory in which the
    assistant says nothing has the response ``""``; without an assistant's turn it is ``None``.
    """
    place = find_answer_turn(turns)
    if response is None:
        if place is None:
            acted = any(turn["role"] == "assistant" for turn in turns)
            return len(turns), "" if acted else None
        return place, turn_content(turns[place])
    if place is not None and (
        place == len(turns) - 1
        or (isinstance(response, str) and turn_content(turns[place]) == response)
    ):
        return place, response
    return len(turns), response


def read_exchange(fields: Fields) -> tuple[object, object]:
    """What came before the response (``messages``, else the prompt), and the response."""
    response = fields.get("response")
    if is_blank(fields.get("messages")):
        return fields.get("prompt"), response
    turns = read_turns(fields["messages"])
    place, response = split_question(turns, response)
    return turns[:place], response


def conversation_query(turns: Transcript) -> object:
    """A conversation as a query: one user's turn alone is its content; ``None`` without any."""
    if len(turns) == 1 and turns[0]["role"] == "user":
        return turn_content(turns[0])
    return turns if any(turn["role"] == "user" for turn in turns) else None


def count_opening_turns(turns: Transcript) -> int:
    """How many turns come before the assistant's first."""
    places = (place for place, turn in enumerate(turns) if turn["role"] == "assistant")
    return next(places, len(turns))


def is_blank(value: object) -> bool:
    """Whether there is nothing to show: null, NaN, white space, an object or list without more."""
    if isinstance(value, str):
        return not value or value.isspace()
    if isinstance(value, list | tuple):
        return all(map(is_blank, value))
    return value is None or is_nan(value) or (isinstance(value, dict) and not value)


def first_present(fields: Fields, names: Sequence[str]) -> object:
    """The first of several fields that has something to show, else ``None``."""
    present = (fields[name] for name in names if not is_blank(fields.get(name)))
    return next(present, None)


def join_lines(value: object) -> object:
    """A list of tool definitions or calls with one JSON object per line; text as it is."""
    if not isinstance(value, list | tuple):
        return value
    return "\n".join(str(piece) for item in value for piece in render_value(item))


def missing_field_failure(names: Sequence[str], fields: Fields) -> GradingFailure:
    """The failure of a sample that has none of the fields ``names``."""
    has = ", ".join(sorted(map(str, fields))[:20])
    wanted = " or ".join(repr(name) for name in names)
    return InvalidInput(f"the sample has no field {wanted} (it has: {has})", {LACKED: list(names)})


def require_text_field(fields: Fields, name: str) -> str:
    """The text in a field; ``GradingFailure(invalid_input)`` where it is absent or no text."""
    value = fields.get(name)
    if isinstance(value, str):
        return value
    found = "is absent" if value is None else f"is a {type(value).__name__}"
    raise InvalidInput(f"{name!r} {found}, must be text", {LACKED: [name]} if value is None else {})


def extract_query(fields: Fields) -> object:
    """What a response answers: ``query``, else the conversation before it, else ``prompt``."""
    if not is_blank(fields.get("query")):
        return fields["query"]
    if "event" in fields and "history" in fields:  # an event: what comes later is not known yet
        past = fields["history"]
        return conversation_query(read_turns(past)) if past else fields.get("prompt")
    query = None
    if not is_blank(fields.get("messages")):
        turns = read_turns(fields["messages"])
        place, _ = split_question(turns, fields.get("response"))
        query = conversation_query(turns[:place])
    return first_present(fields, ("prompt",)) if query is None else query


def add_query(fields: Fields, template: PromptTemplate) -> Metadata:
    """``fields`` with ``query`` filled in (:func:`extract_query`).

    Raises ``GradingFailure(invalid_input)`` where the template needs ``query`` and it is missing.
    """
    query = extract_query(fields)
    if query is None and "query" in template.fields:
        raise missing_field_failure(("query", "messages", "prompt"), fields)
    rest = {name: value for name, value in fields.items() if name != "query"}
    return rest if query is None else {**rest, "query": query}
