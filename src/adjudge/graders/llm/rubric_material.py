"""What of a sample a rubric's judge is shown: a response, a whole trajectory, or one event."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from adjudge.errors import ErrorKind, GradingFailure
from adjudge.graders.llm.candidate import Showing
from adjudge.graders.llm.material import blank, lacking, question, turns_of
from adjudge.prompts import LanguageEnum

__all__ = ["Material", "Show", "Shown", "material_of"]

Show = Literal["auto", "response", "trajectory", "event"]
Shown = Literal["response", "trajectory", "event"]
Unsaid = Literal["", "empty", "unclosed_think"]

_EVENT_KEYS = {"text", "tool_calls", "observations"}


class Material(msgspec.Struct, frozen=True):
    """What is shown, by the fields of the prompt ``rubric_shown_SHOWN``.

    ``unsaid``: why the judge sees a candidate without words, ``empty`` or ``unclosed_think``.
    """

    shown: Shown
    values: dict[str, Any] = {}
    unsaid: Unsaid = ""


def material_of(
    fields: Mapping[str, Any],
    show: Show,
    showing: Showing,
    language: LanguageEnum = LanguageEnum.EN,
) -> Material:
    """What the judge sees of a sample's ``fields``.

    ``auto``: the ``event`` of a trajectory where there is one; the whole trajectory where
    ``messages`` hold tool calls or results; else the response. ``view`` and ``truncated`` are
    ``showing``'s. Raises ``GradingFailure(invalid_input)`` for a sample without what is to be
    shown.
    """
    shown = _chosen(fields) if show == "auto" else show
    return _MAKERS[shown](fields, showing, language)


def _chosen(fields: Mapping[str, Any]) -> Shown:
    event = fields.get("event")
    # A column that happens to be called so is no event of a trajectory.
    if _is_event(event) or (event is not None and isinstance(fields.get("events"), list)):
        return "event"
    messages = fields.get("messages")
    turns = messages if isinstance(messages, list) else ()
    acts = any(
        isinstance(turn, Mapping)
        and (turn.get("tool_calls") or turn.get("role") in ("tool", "function"))
        for turn in turns
    )
    return "trajectory" if acts else "response"


def _response(fields: Mapping[str, Any], showing: Showing, language: LanguageEnum) -> Material:
    response = fields.get("response")
    if fields.get("messages"):
        turns = turns_of(fields["messages"])
        before, response = question(turns, response)
        conversation: Any = turns[:before]
    else:
        conversation = _turns(fields.get("prompt"))
    if response is None:
        raise lacking(["response"], fields)
    ended = showing.shown({"response": response, **_finish(fields)}, language)
    seen = ended or showing.shown({"response": "", **_finish(fields)}, language) or {}
    values = {"conversation": _past(conversation, showing), "response": seen["response"]}
    said = showing.shown({"response": response})
    if ended is None or said is None:
        return Material("response", values, unsaid="unclosed_think")
    return Material("response", values, unsaid="empty" if blank(said["response"]) else "")


def _past(turns: Any, showing: Showing) -> Any:
    """What went before, each turn as it is shown; it need not end in an answer."""
    if not isinstance(turns, list):
        return turns
    seen = showing.shown({"messages": [*turns, {"role": "user"}]})
    return turns if seen is None else seen["messages"][:-1]


def _finish(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {"finish_reason": fields.get("finish_reason")}


def _turns(prompt: Any) -> Any:
    """A prompt as the conversation that it is, where it is one written as JSON."""
    if not isinstance(prompt, str) or not prompt.startswith("[{"):
        return prompt
    try:
        turns = msgspec.json.decode(prompt)
    except (ValueError, RecursionError):
        return prompt
    are_messages = all(isinstance(turn, dict) and "role" in turn for turn in turns)
    return turns if are_messages else prompt


def _trajectory(fields: Mapping[str, Any], showing: Showing, language: LanguageEnum) -> Material:
    if fields.get("messages") is None:
        raise lacking(["messages"], fields)
    turns = turns_of(fields["messages"])
    if all(turn["role"] != "assistant" for turn in turns):
        raise GradingFailure(ErrorKind.INVALID_INPUT, "messages: has no turn of the assistant")
    seen = showing.shown({"messages": turns, **_finish(fields)}, language)
    unclosed = seen is None
    if seen is None:
        turns = [*turns[:-1], {**turns[-1], "content": ""}]
        seen = showing.shown({"messages": turns, **_finish(fields)}, language) or {}
    values = {"trajectory": [*seen["messages"], *_cut_note(fields, showing, language)]}
    return Material("trajectory", values, unsaid="unclosed_think" if unclosed else "")


def _cut_note(fields: Mapping[str, Any], showing: Showing, language: LanguageEnum) -> list[Any]:
    """What a judge is told of a rollout that was cut, as a turn of its own."""
    bare = {"response": "", **_finish(fields)}
    note = (showing.shown(bare, language) or bare)["response"]
    return [{"role": "note", "content": note}] if note else []


def _is_event(event: Any) -> bool:
    """Whether it is one of :func:`adjudge.rollouts.events.events_of`."""
    return isinstance(event, Mapping) and event.keys() >= _EVENT_KEYS


def _event(fields: Mapping[str, Any], showing: Showing, language: LanguageEnum) -> Material:
    event, history = fields.get("event"), fields.get("history")
    if event is None:
        raise lacking(["event"], fields)
    note = _cut_note(fields, showing, language)
    before = history if isinstance(history, list) else _turns(fields.get("prompt"))
    past = _past(before, showing)
    if not _is_event(event):
        return Material("event", {"history": past, "event": event})
    calls, after = event["tool_calls"], event["observations"]
    turn = {"role": "assistant", "content": event["text"], "tool_calls": calls}
    seen = showing.shown({"messages": [turn]}, language)
    unsaid: Unsaid = "unclosed_think" if seen is None else ""
    [now] = [{**turn, "content": ""}] if seen is None else seen["messages"]
    if not unsaid and blank(now["content"]) and not calls:
        unsaid = "empty"
    came = after if isinstance(after, list) else [after]
    messages = fields.get("messages")
    turns = len(before) + 1 + len(came) if isinstance(before, list) else -1
    is_last = isinstance(messages, list) and len(messages) == turns
    shown = [now, *came, *(note if is_last else [])]
    return Material("event", {"history": past, "event": shown}, unsaid=unsaid)


_MAKERS = {"response": _response, "trajectory": _trajectory, "event": _event}
