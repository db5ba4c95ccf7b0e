"""Logs of coding agents: one conversation over the lines of a file.

Claude Code's sessions and the stream of its prints, Codex's rollouts and stream, Gemini CLI's
sessions, and files with a chat message a line. Lines that report, such as titles, snapshots and
progress, are passed over. These logs have no reward.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from adjudge.errors import RolloutError
from adjudge.intake.conversation import message_text, read_messages
from adjudge.rollouts.formats.base import RolloutFormat, Row, SplitLines
from adjudge.rollouts.formats.chat import answered_columns
from adjudge.rollouts.formats.columns import list_columns
from adjudge.rollouts.formats.fields import Record, as_id, as_object, as_objects, describe_error


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
    conversations = split_by(name_of or (lambda _: ""))
    return replace(RolloutFormat(*form), own=own, conversations=conversations)


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


def _is_gemini_cli(record: Record) -> bool:
    return {"sessionId", "projectHash"} <= record.keys()


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
