"""What the readers of dumps make of messages: a conversation's columns, a request's messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from adjudge.errors import RolloutError
from adjudge.intake.conversation import (
    Message,
    message_text,
    read_messages,
    tool_call,
)
from adjudge.intake.rollouts import first_turn
from adjudge.rollouts.formats.base import Row
from adjudge.rollouts.formats.fields import Record, as_object, as_objects, as_text


def tool_calls(
    given: Any, call_id: str = "id", name: str = "name", arguments: str = "arguments"
) -> list[Message]:
    """A list of calls in OpenAI form; what has the other names is a call's id, name and input."""
    return [
        tool_call(one.get(call_id), one.get(name), one.get(arguments)) for one in as_objects(given)
    ]


def split_reasoning(content: Any) -> tuple[str, str]:
    """The text and the reasoning of a message's content: a text, or a list of typed parts.

    Texts of several parts are joined by a line end; images and other parts are left out.
    """
    if not isinstance(content, list):
        return message_text(content), ""
    texts: list[Any] = []
    reasoning: list[Any] = []
    for part in content:
        if isinstance(part, Mapping) and part.get("type") in ("reasoning", "thinking"):
            reasoning += [part.get("reasoning"), part.get("thinking")]
        else:
            texts.append(part.get("text") if isinstance(part, Mapping) else part)
    said, thought = ([one for one in some if as_text(one)] for some in (texts, reasoning))
    return "\n".join(said), "\n".join(thought)


def answered_columns(messages: Sequence[Message]) -> Row:
    """The columns of a conversation in which all turns of the assistant are the policy's.

    Raises :class:`RolloutError` for a conversation in which the policy never spoke.
    """
    turns = first_turn(messages)
    if turns == len(messages):
        raise RolloutError("has no message of the assistant: nothing was answered")
    return {"messages": list(messages), "opening_turns": turns}


def request_messages(request: Record, name: str) -> list[Message]:
    """The messages of a request to a provider's API; none where it has none."""
    places = (request, as_object(request.get("config")))
    system = next((one[key] for one in places for key in SYSTEM_KEYS if one.get(key)), None)
    turn = system if isinstance(system, dict) else {"content": system}
    said = read_messages([_SYSTEM_ROLE | turn | _SYSTEM_ROLE], f"{name}.system") if system else []
    given = next((request[key] for key in TURN_KEYS if request.get(key) is not None), None)
    if isinstance(given, list) and "contents" in request:  # Gemini's user needs no role
        given = [{"role": "user"} | one if isinstance(one, dict) else one for one in given]
    if isinstance(given, str):
        return [*said, {"role": "user", "content": given}]
    return said + ([] if given is None else read_messages(given, name))


SYSTEM_KEYS = ("system", "instructions", "systemInstruction", "system_instruction")
_SYSTEM_ROLE = {"role": "system"}
TURN_KEYS = ("messages", "contents", "input")
