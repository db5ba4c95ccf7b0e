"""OpenHands: the output of its evaluations, and trajectories that it saved.

A run is a list of events: actions of the agent or the user, and observations. An event of the
software agent SDK has a ``kind``; one of the versions before has an ``action`` or an
``observation``. The first name the tool call that the model made, or the action stands for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from adjudge.errors import RolloutError
from adjudge.intake.columns import describe_value
from adjudge.intake.conversation import Message
from adjudge.rollouts.formats.base import RolloutFormat, Row
from adjudge.rollouts.formats.fields import Record, as_id, as_object, as_objects, is_number
from adjudge.rollouts.formats.logs import log_format, log_row, read_lines
from adjudge.types import get_path


def _is_event(event: Record) -> bool:
    kind, source = event.get("kind"), event.get("source")
    is_sdk = isinstance(kind, str) and kind.endswith(("Event", "Observation"))
    pairs = (("action", "args"), ("observation", "content"))
    acts = any(isinstance(event.get(one), str) and beside in event for one, beside in pairs)
    return isinstance(source, str) and (is_sdk or acts)


def _is_output(record: Record) -> bool:
    if as_id(record.get("instance_id")) is None or "history" not in record:
        return False
    return "test_result" in record or any(map(_is_event, as_objects(record["history"])[:1]))


_AGENT_ENDED = ("maximum iteration", "stuck in a loop", "budget", "agentstuck")
"""Errors of runs that the agent ended: it used up its steps or its money."""

_REWARDS = (
    *("resolved", "report.resolved", "test_result.report.resolved", "test_result.resolved"),
    *("test_result.score", "test_result.result", "test_result.success"),
)


def _convert_output(record: Record) -> Iterator[Row]:
    error = as_id(record.get("error"))
    has_ended = error is None or any(reason in error.lower() for reason in _AGENT_ENDED)
    events = record.get("history") if has_ended else []
    instance = as_id(record.get("instance_id"))
    yield log_row(
        _event_turns(events if isinstance(events, list) else []),
        None if has_ended else error,
        group=instance,
        instance_id=instance,
        env_reward=next(filter(is_number, (get_path(record, one) for one in _REWARDS)), None),
        termination_reason=error,
        test_result=dict(as_object(record.get("test_result"))) or None,
    )


def _convert_trajectory(record: Record) -> Iterator[Row]:
    yield log_row(_event_turns(read_lines(record)), None)


def _event_turns(events: Any) -> list[Message]:
    turns: list[Message] = []
    called: dict[str, list[Any]] = {}
    for place, event in enumerate(events):
        if not isinstance(event, dict):
            raise RolloutError(f"history.{place}: must be an event (found {describe_value(event)})")
        turn = _sdk_turn(event) if "kind" in event else _event_turn(event)
        if turn is None:
            continue
        calls = as_objects(turn.get("tool_calls"))
        ids = ("llm_response_id", "tool_call_metadata.model_response.id")
        response = next(filter(None, (as_id(get_path(event, one)) for one in ids)), None)
        if calls and response in called:  # another call of this reply
            called[response] += [one for one in calls if one not in called[response]]
            continue
        if calls and response is not None:
            called[response] = turn["tool_calls"] = calls
        turns.append(turn)
    return turns


def _sdk_turn(event: Record) -> Message | None:
    """What an event of the software agent SDK says; nothing: states, tokens, condensations."""
    kind, is_finish = event["kind"], event.get("tool_name") == "finish"
    if kind == "SystemPromptEvent":
        return {"role": "system", "content": event.get("system_prompt")}
    if kind == "MessageEvent":
        return dict(as_object(event.get("llm_message")))
    if kind == "ActionEvent":
        turn = {"role": "assistant", "content": event.get("thought")}
        if is_finish:
            return turn | {"content": as_id(get_path(event, "action.message")) or turn["content"]}
        thought = as_id(event.get("reasoning_content"))
        return turn | {"tool_calls": [event.get("tool_call")], "reasoning_content": thought}
    if kind in ("ObservationEvent", "AgentErrorEvent", "UserRejectObservation") and not is_finish:
        seen = as_object(event.get("observation"))
        given = (event.get("error"), event.get("rejection_reason"), seen.get("content"))
        content = next((one for one in given if one is not None), seen.get("output"))
        return {"role": "tool", "tool_call_id": event.get("tool_call_id"), "content": content}
    return None


_SILENT = (
    *("null", "recall", "condensation", "condensation_request", "loop_recovery"),
    *("change_agent_state", "agent_state_changed", "pause", "resume", "stop"),
)


def _event_turn(event: Record) -> Message | None:
    """What an event of the versions before says."""
    action, source = event.get("action"), event.get("source")
    called, args = as_object(event.get("tool_call_metadata")), as_object(event.get("args"))
    call_id = as_id(called.get("tool_call_id"))
    if action in _SILENT or event.get("observation") in _SILENT:
        return None
    if not isinstance(action, str):
        cause = as_id(event.get("cause"))
        if not (call_id or cause):
            return {"role": "user", "content": event.get("content")}
        answered = call_id or f"event_{cause}"
        return {"role": "tool", "tool_call_id": answered, "content": event.get("content")}
    if source == "user" or action in ("system", "message", "finish"):
        names = ("content", "final_thought", "outputs.content", "thought", "command")
        texts = filter(None, (as_id(get_path(args, one)) for one in names))
        role = "system" if action == "system" else "user" if source == "user" else "assistant"
        return {"role": role, "content": next(texts, "")}
    reply = as_object(get_path(called, "model_response.choices.0.message"))
    if reply.get("tool_calls"):
        said = ("content", "tool_calls", "reasoning_content")
        return {"role": "assistant", **{name: reply.get(name) for name in said}}
    call = {
        "id": call_id or f"event_{as_id(event.get('id'))}",
        "name": as_id(called.get("function_name")) or action,
        "arguments": {key: one for key, one in args.items() if key != "thought"},
    }
    return {"role": "assistant", "content": args.get("thought") or None, "tool_calls": [call]}


OPENHANDS_FORMATS = (
    RolloutFormat("openhands", "OpenHands evaluation output", _is_output, _convert_output),
    log_format(
        None, "openhands-trajectory", "OpenHands trajectory", _is_event, _convert_trajectory
    ),
)
"""No record is in two of them."""
