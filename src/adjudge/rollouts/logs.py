"""Logs of coding agents: one conversation over the lines of a file, or the events of a run.

Claude Code's sessions and the stream of its prints, Codex's rollouts and stream, Gemini CLI's
sessions, and files with a chat message a line. Lines that report, such as titles, snapshots and
progress, are passed over. These logs have no reward.

OpenHands has the output of its evaluations, and trajectories that it saved. A run is a list of
events: actions of the agent or the user, and observations. An event of the software agent SDK has a
``kind``; one of the versions before has an ``action`` or an ``observation``. The first name the
tool call that the model made, or the action stands for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from adjudge.errors import RolloutError
from adjudge.intake.columns import as_id, as_object, describe_value
from adjudge.intake.conversation import read_messages
from adjudge.intake.parts import Message, message_text
from adjudge.rollouts.columns import list_columns
from adjudge.rollouts.fields import (
    Record,
    RolloutFormat,
    Row,
    SplitLines,
    answered_columns,
    as_objects,
    describe_error,
    is_number,
    shape,
)
from adjudge.types import get_path


def read_lines(record: Record) -> list[Record]:
    """The lines of a log; raises :class:`RolloutError` for a line alone."""
    if lines := as_objects(record.get("lines")):
        return lines
    raise RolloutError("is a line of a log, and no conversation by itself")


NameOf = Callable[[Record], str | None]
"""The name of the conversation that a line belongs to."""


def split_by(name_of: NameOf) -> SplitLines:
    """The places of the lines of each name; those without one are passed over."""

    def split(lines: Sequence[Record]) -> list[list[int]]:
        talks: dict[str, list[int]] = {}
        for place, line in enumerate(lines):
            if (name := name_of(line)) is not None:
                talks.setdefault(name, []).append(place)
        return list(talks.values()) or [list(range(len(lines)))]

    return split


def log_format(name_of: NameOf | None, *form: Any, own: tuple[str, ...] = ()) -> RolloutFormat:
    """A format of lines that are a conversation with all of the same name, or with all others."""
    split = split_by(name_of or (lambda _: ""))
    return replace(RolloutFormat(*form), own=own, conversations=split)


def log_row(turns: Sequence[Any], failure: str | None, **fields: Any) -> Row:
    """The row of a log's messages; ``failure`` is what broke the run and was not overcome."""
    if failure is not None:
        raise RolloutError(f"the run failed: {describe_error(failure)}")
    known = {name: one for name, one in fields.items() if one is not None}
    return {**answered_columns(read_messages(turns, "lines")), **known}


# Claude Code: {type: "user", message: {role, content: [blocks]}, uuid, parentUuid, sessionId, …}

_CLAUDE_SIGNS = ({"parentUuid", "isSidechain"}, {"leafUuid", "summary"}, {"messageId", "snapshot"})


def _is_claude_code(record: Record) -> bool:
    if record.get("type") in ("user", "assistant"):
        message = as_object(record.get("message"))
        return "content" in message and message.get("role") == record["type"]
    return "type" in record and any(one <= record.keys() for one in _CLAUDE_SIGNS)


def _session_of(line: Record) -> str | None:
    return as_id(line.get("sessionId")) or as_id(line.get("session_id"))


def _split_sessions(lines: Sequence[Record]) -> Iterable[Sequence[int]]:
    """By session; one that goes on after a line of another is of the same."""
    session_of: dict[str | None, str] = {}

    def name_of(line: Record) -> str | None:
        name = session_of.get(as_id(line.get("parentUuid")), _session_of(line) or "")
        if (uuid := as_id(line.get("uuid"))) is not None:
            session_of[uuid] = name
        return name if "message" in line or line.get("type") == "result" else None

    return split_by(name_of)(lines)


def _convert_claude_code(record: Record) -> Iterator[Row]:
    lines = read_lines(record)
    turns: dict[str, dict[str, Any]] = {}
    failure: Any = None
    ended: Record = {}
    # A subagent has a conversation of its own; its file has no other.
    own = [one for one in lines if not (one.get("isSidechain") or one.get("parent_tool_use_id"))]
    for line in _last_branch(own or lines):
        message = as_object(line.get("message"))
        is_silent = line.get("isMeta") or message.get("model") == "<synthetic>"  # its own words
        if line.get("type") == "result":
            ended = line
        elif line.get("isApiErrorMessage"):
            failure = message_text(message.get("content"))
        elif message and not is_silent and not (line.get("isCompactSummary") and turns):
            failure = None
            blocks = content if isinstance(content := message.get("content"), list) else [content]
            key = as_id(message.get("id")) or f"turn {len(turns)}"
            turn = turns.setdefault(key, {"role": line.get("type"), "content": []})
            turn["content"] += [block for block in blocks if block not in turn["content"]]
    reason = as_id(ended.get("subtype"))
    if ended.get("is_error") and not (reason or "").startswith("error_max"):
        failure = as_id(ended.get("result")) or reason or "no reason is given"
    session = next(filter(None, map(_session_of, lines)), None)
    yield log_row([*turns.values()], failure, session_id=session, termination_reason=reason)


def _last_branch(lines: Sequence[Record]) -> Iterator[Record]:
    """The lines without repeated ones and without questions, and what they led to, asked anew."""
    last = {as_id(one.get("parentUuid")): as_id(one.get("uuid")) for one in lines if _asks(one)}
    seen: set[str] = set()
    dropped: set[str | None] = set()
    for line in lines:
        uuid, parent = as_id(line.get("uuid")), as_id(line.get("parentUuid"))
        if parent is not None and (parent in dropped or (_asks(line) and last[parent] != uuid)):
            dropped.add(uuid)
        elif uuid is None or uuid not in seen:
            yield line
        seen |= set() if uuid is None else {uuid}


def _asks(line: Record) -> bool:
    content = as_object(line.get("message")).get("content")
    is_result = any("tool_use_id" in block for block in as_objects(content))
    return line.get("type") == "user" and not is_result and not line.get("isMeta")


# Codex: {timestamp, type: "response_item", payload: {…}}, {type: "item.completed", item: {…}}, or
# items of the Responses API alone

_CODEX_SILENT = ("ghost_snapshot", "compaction_summary", "context_compaction", "other")
_CODEX_KEYS = {
    **dict.fromkeys(("session_meta", "response_item", "event_msg"), "payload"),
    **dict.fromkeys(("function_call", "function_call_output", "custom_tool_call"), "call_id"),
    "thread.started": "thread_id",
}


def _is_codex(record: Record) -> bool:
    kind = record.get("type")
    return isinstance(kind, str) and _CODEX_KEYS.get(kind) in record


def _convert_codex(record: Record) -> Iterator[Row]:
    items: list[Any] = []
    failure: Any = None
    session: str | None = None
    for line in read_lines(record):
        kind, payload = line.get("type"), as_object(line.get("payload", line))
        found: list[Any] = []
        if kind in ("session_meta", "thread.started"):
            session = session or as_id(payload.get("id")) or as_id(payload.get("thread_id"))
        elif kind in ("turn.failed", "error") or payload.get("type") == "error":
            failure = payload.get("error") or payload.get("message") or payload
        elif kind == "item.completed":
            found = _stream_items(as_object(line.get("item")))
        elif kind == "response_item" or ("payload" not in line and "." not in (as_id(kind) or ".")):
            found = [] if payload.get("type") in _CODEX_SILENT else [payload]
        failure = None if found else failure
        items += found
    yield log_row(items, failure, session_id=session)


def _stream_items(item: Record) -> list[Any]:
    """The items that an item of ``codex exec --json`` stands for."""
    kind = item.get("type")
    if kind == "agent_message":
        return [{"role": "assistant", "content": item.get("text")}]
    if kind == "reasoning":
        return [{"type": kind, "content": item.get("text")}]
    if kind in ("error", "todo_list"):
        return []
    given = ("command", "arguments", "changes", "query", "prompt")
    arguments = {name: item[name] for name in given if name in item}
    call = {"name": item.get("tool", kind), "arguments": arguments.get("arguments", arguments)}
    result = item.get("aggregated_output", item.get("result", item.get("status")))
    return [
        {"type": "function_call", "call_id": item.get("id"), **call},
        {"type": "function_call_output", "call_id": item.get("id"), "output": result},
    ]


# Gemini CLI: {sessionId, projectHash, messages: [{type: "gemini", content, toolCalls, thoughts}]},
# or that without messages, and then a line for each, written again where it changes


_is_gemini_cli = shape(sessionId=object, projectHash=object)


def _convert_gemini_cli(record: Record) -> Iterator[Row]:
    lines = read_lines(record)
    messages: dict[str, Record] = {}
    for line in lines:
        for one in as_objects(line.get("messages")) if "sessionId" in line else [line]:
            if not ("type" in one or "$set" in one):
                raise RolloutError(f"is a line of an unknown kind (found keys {list_columns(one)})")
            messages[as_id(one.get("id")) or f"message {len(messages)}"] = one
    turns: list[Any] = []
    failure: Any = None
    for message in messages.values():
        kind, content = message.get("type"), message.get("content")
        if kind == "error":
            failure = message_text(content)
        elif kind not in (None, "info", "warning"):
            failure = None
            calls = as_objects(message.get("toolCalls"))
            thoughts = (one.get("description") for one in as_objects(message.get("thoughts")))
            thought = "\n".join(filter(None, map(as_id, thoughts)))
            turn = {"role": "model" if kind == "gemini" else kind, "content": content}
            turns.append(
                {
                    **turn,
                    "tool_calls": [{**one, "result": None} for one in calls],
                    "reasoning_content": thought,
                }
            )
            results = [one.get("result") for one in calls]
            turns += [{"role": "user", "parts": one} for one in results if isinstance(one, list)]
    yield log_row(turns, failure, session_id=as_id(lines[0].get("sessionId")))


# A chat message a line: {role, content, …}

_CONVERSATIONS = ("session_id", "sessionId", "conversation_id", "thread_id", "trajectory_id")
_LINE_KEYS = {"id", "timestamp", "created_at", "time", "index", "turn", "step", *_CONVERSATIONS}
_MESSAGE_KEYS = {
    *("role", "content", "name", "tool_calls", "tool_call_id", "function_call", "refusal"),
    *("reasoning_content", "reasoning", "thinking", "model", "usage", "metadata"),
    *_LINE_KEYS,
}
_TURN_ROLES = ("system", "developer", "user", "assistant", "tool")


def _is_message(record: Record) -> bool:
    return {"role", "content"} <= record.keys() <= _MESSAGE_KEYS and record["role"] in _TURN_ROLES


def _talk_of(line: Record) -> str | None:
    return next((as_id(line[key]) for key in _CONVERSATIONS if key in line), "")


def _convert_messages(record: Record) -> Iterator[Row]:
    lines = read_lines(record)
    for place, line in enumerate(lines):
        if not _is_message(line):
            found = list_columns(line)
            raise RolloutError(f"lines.{place}: is no message like the first (found keys {found})")
    turns = [{key: one for key, one in line.items() if key not in _LINE_KEYS} for line in lines]
    row = log_row(turns, None, session_id=_talk_of(lines[0]) or None)
    later = {turn["role"] for turn in row["messages"][row["opening_turns"] :]}
    if row["opening_turns"] == 0 or later & {"system", "developer"}:
        raise RolloutError(
            "role: an answer is first, or a system message after one: the lines may be of several "
            f"conversations (allowed: one, or a column {_CONVERSATIONS[0]}). Write a line for each."
        )
    yield row


LOG_FORMATS = (
    RolloutFormat(
        *("claude-code", "Claude Code session", _is_claude_code, _convert_claude_code),
        conversations=_split_sessions,
    ),
    log_format(None, "codex", "Codex rollout", _is_codex, _convert_codex),
    log_format(
        *(None, "gemini-cli", "Gemini CLI session", _is_gemini_cli, _convert_gemini_cli),
        own=("messages",),
    ),
    log_format(
        *(_talk_of, "message-lines", "chat messages, one a line", _is_message, _convert_messages)
    ),
)
"""No record is in two of them."""


# OpenHands: {instance_id, history: [events], test_result, error}, or an event a line


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
