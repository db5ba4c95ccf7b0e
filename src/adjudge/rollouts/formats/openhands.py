"""OpenHands: the output of its evaluations, and trajectories that it saved.

A run is a list of events: actions of the agent or the user, and observations. An event of the
software agent SDK has a ``kind``; one of the versions before has an ``action`` or an
``observation``. The first name the tool call that the model made, or the action stands for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from adjudge.errors import RolloutError
from adjudge.intake.conversation import assistant_message, read_messages
from adjudge.rollouts.formats.base import RolloutFormat, Row
from adjudge.rollouts.formats.chat import answered_columns
from adjudge.rollouts.formats.fields import (
    Record,
    add_fields,
    as_id,
    as_object,
    as_objects,
    as_text,
    describe_error,
    is_number,
)
from adjudge.rollouts.formats.logs import all_lines, read_lines

_EVENT_LISTS = ("history", "trajectory", "events")
_CONVERSATIONS = ("messages", "fncall_messages")


def _is_event(value: Any) -> bool:
    event = as_object(value)
    if not isinstance(event.get("source"), str):
        return False
    if (kind := as_text(event.get("kind"))) is not None:
        return kind.endswith(("Event", "Observation"))
    return (isinstance(event.get("action"), str) and "args" in event) or (
        isinstance(event.get("observation"), str) and "content" in event
    )


def _list_events(record: Record) -> list[Any]:
    """The events of an output; the first versions wrote pairs of an action and what it led to."""
    for name in _EVENT_LISTS:
        if isinstance(record.get(name), list):
            pairs = [one if isinstance(one, list) else [one] for one in record[name]]
            if events := [event for pair in pairs for event in pair]:
                return events if _is_event(events[0]) else []
    return []


def _is_output(record: Record) -> bool:
    if as_id(record.get("instance_id")) is None:
        return False
    if "test_result" in record and ("history" in record or "error" in record):
        return True
    return bool(_list_events(record)) or isinstance(record.get("fncall_messages"), list)


def _convert_output(record: Record) -> Iterator[Row]:
    error = as_text(record.get("error"))
    if error is not None and not any(reason in error.lower() for reason in _AGENT_ENDED):
        raise RolloutError(f"the run failed: {describe_error(error)}")
    talk = next((record[one] for one in _CONVERSATIONS if isinstance(record.get(one), list)), None)
    events = _list_events(record)
    if talk is None and not events:
        raise RolloutError("history: has no events, so nothing can be judged")
    messages = _event_messages(events) if talk is None else read_messages(talk, "messages")
    instance = as_id(record.get("instance_id"))
    instruction = as_text(record.get("instruction"))
    if instruction is not None and not any(one["role"] == "user" for one in messages):
        messages.insert(0, {"role": "user", "content": instruction})
    result = as_object(record.get("test_result"))
    yield add_fields(
        dict(answered_columns(messages)),
        group=instance,
        instance_id=instance,
        env_reward=_find_reward(record, result),
        termination_reason=error,
        test_result=dict(result) or None,
    )


_AGENT_ENDED = (
    "maximum iteration",
    "stuck in a loop",
    "maximum budget",
    "max budget",
    "agentstuck",
)
"""Errors of runs that the agent ended: it used up its steps or its money."""


def _find_reward(record: Record, result: Record) -> Any:
    places = (record, as_object(record.get("report")), as_object(result.get("report")), result)
    found = [place["resolved"] for place in places if is_number(place.get("resolved"))]
    found += [
        result[name] for name in ("score", "result", "success") if is_number(result.get(name))
    ]
    return found[0] if found else None


def _convert_trajectory(record: Record) -> Iterator[Row]:
    yield dict(answered_columns(_event_messages(read_lines(record))))


def _event_messages(events: Sequence[Any]) -> list[dict[str, Any]]:
    turns: list[Any] = []
    called: dict[str, list[Any]] = {}
    for place, event in enumerate(events):
        if not isinstance(event, dict):
            raise RolloutError(f"history.{place}: must be an event (found {type(event).__name__})")
        turn = _sdk_turn(event) if "kind" in event else _event_turn(event)
        if turn is None:
            continue
        response = as_text(event.get("llm_response_id")) or _response_id(event)
        calls = turn.get("tool_calls")
        if response is not None and calls and response in called:  # another call of this reply
            known = [call.get("id") for call in as_objects(called[response])]
            called[response] += [call for call in as_objects(calls) if call.get("id") not in known]
            continue
        if response is not None and isinstance(calls, list):
            called[response] = turn["tool_calls"] = list(calls)
        turns.append(turn)
    return read_messages(turns, "history")


def _response_id(event: Record) -> str | None:
    called = as_object(event.get("tool_call_metadata"))
    has_action = "action" in event
    return as_text(as_object(called.get("model_response")).get("id")) if has_action else None


# Events of the software agent SDK

_SDK_RESULTS = ("ObservationEvent", "AgentErrorEvent", "UserRejectObservation")
_SDK_CONTENTS = ("error", "rejection_reason")


def _sdk_turn(event: Record) -> dict[str, Any] | None:
    kind, is_finish = event["kind"], event.get("tool_name") == "finish"
    if kind == "SystemPromptEvent":
        return {"role": "system", "content": [event.get("system_prompt")]}
    if kind == "MessageEvent":
        return dict(as_object(event.get("llm_message")))
    if kind == "ActionEvent" and is_finish:
        said = as_text(as_object(event.get("action")).get("message"))
        return assistant_message(said or event.get("thought"))
    if kind == "ActionEvent":
        reasoning = as_text(event.get("reasoning_content"))
        return assistant_message(event.get("thought"), [event.get("tool_call")], reasoning)
    if kind in _SDK_RESULTS and not is_finish:
        seen = as_object(event.get("observation"))
        given = [event.get(key) for key in _SDK_CONTENTS] + [seen.get("content")]
        content = next((one for one in given if one is not None), seen.get("output"))
        return {"role": "tool", "tool_call_id": event.get("tool_call_id"), "content": content}
    return None  # states, tokens, condensations


# Events of the versions before

_SILENT = (
    *("null", "recall", "condensation", "condensation_request", "loop_recovery"),
    *("change_agent_state", "agent_state_changed", "pause", "resume", "stop"),
)


def _event_turn(event: Record) -> dict[str, Any] | None:
    action, seen = event.get("action"), event.get("observation")
    if action in _SILENT or seen in _SILENT or (action is None and seen is None):
        return None
    called = as_object(event.get("tool_call_metadata"))
    if isinstance(action, str):
        return _action_turn(event, action, as_object(event.get("args")), called)
    if not called and event.get("cause") is None:
        return {"role": "user", "content": event.get("content")}
    answered = as_text(called.get("tool_call_id")) or f"event_{as_id(event.get('cause'))}"
    return {"role": "tool", "tool_call_id": answered, "content": event.get("content")}


def _action_turn(event: Record, action: str, args: Record, called: Record) -> dict[str, Any]:
    thought = args.get("thought")
    thought = thought.get("text") if isinstance(thought, dict) else thought
    is_user = event.get("source") == "user"
    if is_user or action in ("system", "message", "finish"):
        outputs = as_object(args.get("outputs"))
        said = (args.get("content"), args.get("final_thought"), outputs.get("content"), thought)
        texts = map(as_text, (*said, args.get("command"), event.get("message")))
        role = "system" if action == "system" else "user" if is_user else "assistant"
        return {"role": role, "content": next(filter(None, texts), "")}
    choices = as_objects(as_object(called.get("model_response")).get("choices"))
    reply = as_object(choices[0].get("message")) if choices else {}
    if calls := as_objects(reply.get("tool_calls")):
        return assistant_message(
            reply.get("content"), calls, as_text(reply.get("reasoning_content"))
        )
    call = {
        "id": as_text(called.get("tool_call_id")) or f"event_{as_id(event.get('id'))}",
        "name": as_text(called.get("function_name")) or action,
        "arguments": {key: one for key, one in args.items() if key != "thought"},
    }
    return assistant_message(thought or None, [call])


OPENHANDS_FORMATS = (
    RolloutFormat(
        "openhands", "OpenHands evaluation output", _is_output, _convert_output, own=("messages",)
    ),
    RolloutFormat(
        "openhands-trajectory",
        "OpenHands trajectory",
        _is_event,
        _convert_trajectory,
        conversations=all_lines,
    ),
)
"""No record is in two of them."""
