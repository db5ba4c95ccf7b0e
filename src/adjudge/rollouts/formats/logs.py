"""Logs of coding agents: one conversation over the lines of a file.

Claude Code's sessions and the stream of its prints, Codex's rollouts and stream, Gemini CLI's
sessions, and files with a chat message a line. Lines that report, such as titles, snapshots and
progress, are passed over. These logs have no reward.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from adjudge.errors import RolloutError
from adjudge.intake.columns import describe_value
from adjudge.intake.conversation import message_text, read_messages
from adjudge.rollouts.formats.base import RolloutFormat, Row
from adjudge.rollouts.formats.chat import answered_columns
from adjudge.rollouts.formats.columns import list_columns
from adjudge.rollouts.formats.fields import (
    Record,
    add_fields,
    as_id,
    as_object,
    as_objects,
    as_text,
    describe_error,
)


def read_lines(record: Record) -> list[Record]:
    """The lines of a log; raises :class:`RolloutError` for a line alone."""
    lines = as_objects(record.get("lines"))
    if not lines:
        raise RolloutError("is a line of a log, and no conversation by itself")
    return lines


def split_lines(names: Iterable[str | None]) -> list[list[int]]:
    """The places of the lines of each name; those without one are passed over."""
    talks: dict[str, list[int]] = {}
    count = 0
    for place, name in enumerate(names):
        count += 1
        if name is not None:
            talks.setdefault(name, []).append(place)
    return list(talks.values()) or [list(range(count))]


def all_lines(lines: Sequence[Record]) -> list[Sequence[int]]:
    """A file with one conversation."""
    return [range(len(lines))]


def _log_row(turns: Sequence[Any], failure: str | None, **fields: Any) -> Row:
    """The row of a log's messages; ``failure`` is what broke the run and was not overcome."""
    if failure is not None:
        raise RolloutError(f"the run failed: {describe_error(failure)}")
    return add_fields(dict(answered_columns(read_messages(turns, "lines"))), **fields)


# Claude Code: {type: "user", message: {role, content: [blocks]}, uuid, parentUuid, sessionId, …}

_CLAUDE_SIGNS = (
    *({"parentUuid", "isSidechain"}, {"leafUuid", "summary"}),
    *({"messageId", "snapshot"}, {"subtype", "session_id"}),
)
"""Keys of lines that are no messages."""


def _is_claude_code(record: Record) -> bool:
    if record.get("type") not in ("user", "assistant"):
        return isinstance(record.get("type"), str) and any(
            signs <= record.keys() for signs in _CLAUDE_SIGNS
        )
    message = as_object(record.get("message"))
    ids = (record.get(name) for name in ("uuid", "sessionId", "session_id"))
    return "content" in message and (
        message.get("role") == record["type"] or any(map(as_text, ids))
    )


def _split_sessions(lines: Sequence[Record]) -> list[list[int]]:
    """By session; one that goes on after a line of another is of the same."""
    session_of: dict[str | None, str] = {}
    names: list[str | None] = []
    for line in lines:
        own = as_text(line.get("sessionId")) or as_text(line.get("session_id")) or ""
        name = session_of.get(as_text(line.get("parentUuid")), own)
        if (uuid := as_text(line.get("uuid"))) is not None:
            session_of[uuid] = name
        says = isinstance(line.get("message"), dict) or line.get("type") == "result"
        names.append(name if says else None)
    return split_lines(names)


def _convert_claude_code(record: Record) -> Iterator[Row]:
    lines = read_lines(record)
    turns: list[dict[str, Any]] = []
    by_id: dict[str, list[Any]] = {}
    failure: Any = None
    ended: Record = {}
    # A subagent has a conversation of its own; its file has no other.
    main = [
        one for one in lines if not one.get("isSidechain") and not one.get("parent_tool_use_id")
    ]
    for line in _last_branch(main or lines):
        kind, message = line.get("type"), as_object(line.get("message"))
        if kind == "result":
            ended = line
        elif not message:
            pass  # a title, a snapshot, progress
        elif kind not in ("user", "assistant"):
            raise RolloutError(
                f"type: is unknown for a line with a message (found {describe_value(kind)}; "
                "allowed: user, assistant)"
            )
        elif line.get("isApiErrorMessage"):
            failure = message_text(message.get("content"))
        elif message.get("model") == "<synthetic>" or line.get("isMeta"):
            pass  # Claude Code's own words
        elif not (line.get("isCompactSummary") and turns):
            failure = None
            content, key = message.get("content"), as_text(message.get("id"))
            blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
            if kind == "assistant" and key in by_id and isinstance(blocks, list):
                by_id[key] += [block for block in blocks if block not in by_id[key]]
                continue
            if kind == "assistant" and key is not None and isinstance(blocks, list):
                content = by_id[key] = list(blocks)
            turns.append({"role": message.get("role", kind), "content": content})
    reason = as_text(ended.get("subtype"))
    if ended.get("is_error") and not (reason or "").startswith("error_max"):
        failure = as_text(ended.get("result")) or reason or "no reason is given"
    ids = (as_text(one.get("sessionId")) or as_text(one.get("session_id")) for one in lines)
    session = next(filter(None, ids), None)
    yield _log_row(turns, failure, session_id=session, termination_reason=reason)


def _last_branch(lines: Sequence[Record]) -> Iterator[Record]:
    """The lines without repeated ones and without questions, and what they led to, asked anew."""
    dropped: set[str | None] = set()
    asked: dict[str, str | None] = {}
    for line in lines:
        content = as_object(line.get("message")).get("content")
        is_result = any("tool_use_id" in block for block in as_objects(content))
        parent = as_text(line.get("parentUuid"))
        is_asked = line.get("type") == "user" and not is_result and not line.get("isMeta")
        if is_asked and parent is not None:
            uuid = as_text(line.get("uuid"))
            if asked.get(parent, uuid) != uuid:
                dropped.add(asked[parent])
            asked[parent] = uuid
    seen: set[str] = set()
    for line in lines:
        uuid, parent = as_text(line.get("uuid")), as_text(line.get("parentUuid"))
        if uuid in dropped or (parent is not None and parent in dropped):
            dropped.add(uuid)
        elif uuid is None or uuid not in seen:
            yield line
        if uuid is not None:
            seen.add(uuid)


# Codex: {timestamp, type: "response_item", payload: {…}}; items alone; {type: "item.completed", …}

_CODEX_LINES = ("session_meta", "response_item", "event_msg", "turn_context", "compacted")
_CODEX_ITEMS = ("function_call", "function_call_output", "local_shell_call", "custom_tool_call")
_CODEX_STREAM = ("thread.started", "turn.started", "item.completed", "turn.completed")
_CODEX_SILENT = (
    "ghost_snapshot",
    "compaction",
    "compaction_summary",
    "context_compaction",
    "other",
)


def _is_codex(record: Record) -> bool:
    kind = record.get("type")
    if kind == "message":  # an item of the former form
        parts = as_objects(record.get("content"))
        return any(part.get("type") in ("input_text", "output_text") for part in parts)
    if kind in _CODEX_ITEMS:
        return "call_id" in record
    return (kind in _CODEX_LINES and isinstance(record.get("payload"), dict)) or (
        kind in _CODEX_STREAM and not {"thread_id", "item", "usage"}.isdisjoint(record)
    )


def _convert_codex(record: Record) -> Iterator[Row]:
    items: list[Any] = []
    failure: Any = None
    session: str | None = None
    for line in read_lines(record):
        kind, payload = line.get("type"), as_object(line.get("payload"))
        found: list[Any] = []
        if kind == "session_meta":
            session = session or as_text(payload.get("id"))
        elif kind == "thread.started":
            session = as_text(line.get("thread_id"))
        elif kind in ("turn.failed", "error") or payload.get("type") == "error":
            failure = line.get("error") or line.get("message") or payload.get("message") or line
        elif kind == "item.completed":
            found = _stream_items(as_object(line.get("item")))
        elif kind == "response_item":
            found = [] if payload.get("type") in _CODEX_SILENT else [payload]
        elif "payload" not in line and (
            kind in (*_CODEX_ITEMS, "message", "reasoning") or "call_id" in line
        ):
            found = [line]
        failure = None if found else failure
        items += found
    yield _log_row(items, failure, session_id=session)


def _stream_items(item: Record) -> list[Any]:
    """The items that an item of ``codex exec --json`` stands for."""
    kind, text = item.get("type"), item.get("text")
    if kind == "agent_message":
        return [{"role": "assistant", "content": text}]
    if kind == "reasoning":
        return [{"type": "reasoning", "summary": [{"type": "summary_text", "text": text}]}]
    if kind in ("error", "todo_list"):
        return []
    named = {"call_id": item.get("id"), "name": item.get("tool", kind)}
    given = ("command", "arguments", "changes", "query", "prompt")
    result = item.get("aggregated_output", item.get("result", item.get("status")))
    arguments = {name: item[name] for name in given if name in item}
    return [
        {"type": "function_call", **named, "arguments": arguments.get("arguments", arguments)},
        {"type": "function_call_output", **named, "output": result},
    ]


# Gemini CLI: {sessionId, projectHash, messages: [{type: "gemini", content, toolCalls, thoughts}]}


def _is_gemini_cli(record: Record) -> bool:
    return {"sessionId", "projectHash"} <= record.keys() and isinstance(
        record.get("messages"), list
    )


def _convert_gemini_cli(record: Record) -> Iterator[Row]:
    turns: list[Any] = []
    failure: Any = None
    for message in as_objects(record["messages"]):
        kind, content = message.get("type"), message.get("content")
        if kind == "error":
            failure = message_text(content)
        elif kind not in ("info", "warning"):
            failure = None
            calls = as_objects(message.get("toolCalls"))
            thoughts = (
                as_text(one.get("description")) for one in as_objects(message.get("thoughts"))
            )
            thought = "\n".join(filter(None, thoughts))
            role = "model" if kind == "gemini" else kind
            turn = {"role": role, "content": content, "reasoning_content": thought}
            turns.append({**turn, "tool_calls": [{**one, "result": None} for one in calls]})
            results = [one.get("result") for one in calls if isinstance(one.get("result"), list)]
            turns += [{"role": "user", "parts": result} for result in results if result]
    yield _log_row(turns, failure, session_id=as_text(record.get("sessionId")))


# A chat message a line: {role, content, …}

_CONVERSATIONS = (
    *("session_id", "sessionId", "conversation_id", "thread_id", "chat_id", "trajectory_id"),
    "episode_id",
)
_LINE_KEYS = {
    *("id", "timestamp", "created_at", "time", "ts", "index", "turn", "step"),
    *_CONVERSATIONS,
}
_MESSAGE_KEYS = {
    *("role", "content", "name", "tool_calls", "tool_call_id", "function_call", "refusal"),
    *("reasoning_content", "reasoning", "thinking", "model", "usage", "metadata"),
    *_LINE_KEYS,
}
_TURN_ROLES = ("system", "developer", "user", "assistant", "tool")


def _is_message(record: Record) -> bool:
    return {"role", "content"} <= record.keys() <= _MESSAGE_KEYS and record["role"] in _TURN_ROLES


def _split_talks(lines: Sequence[Record]) -> list[list[int]]:
    return split_lines(
        next((as_id(line[key]) for key in _CONVERSATIONS if key in line), "") for line in lines
    )


def _convert_messages(record: Record) -> Iterator[Row]:
    lines = read_lines(record)
    for place, line in enumerate(lines):
        if not _is_message(line):
            found = list_columns(line)
            raise RolloutError(f"lines.{place}: is no message like the first (found keys {found})")
    turns = [{key: one for key, one in line.items() if key not in _LINE_KEYS} for line in lines]
    named = (as_id(line[key]) for line in lines for key in _CONVERSATIONS if key in line)
    row = _log_row(turns, None, session_id=next(named, None))
    opening = row["opening_turns"]
    said = row["messages"][opening:]
    if opening == 0:
        raise RolloutError(
            "role: no question comes before the first answer, so the lines may be of several "
            "conversations. Write one line for each, with its turns in 'messages'."
        )
    if any(turn["role"] in ("system", "developer") for turn in said):
        raise RolloutError(
            "role: a system message comes after an answer, so the lines are of several "
            f"conversations (allowed: one, or a column such as {_CONVERSATIONS[0]}). Write one "
            "line for each conversation, with its turns in 'messages'."
        )
    yield row


LOG_FORMATS = (
    RolloutFormat(
        "claude-code",
        "Claude Code session",
        _is_claude_code,
        _convert_claude_code,
        conversations=_split_sessions,
    ),
    RolloutFormat("codex", "Codex rollout", _is_codex, _convert_codex, conversations=all_lines),
    RolloutFormat(
        "gemini-cli", "Gemini CLI session", _is_gemini_cli, _convert_gemini_cli, own=("messages",)
    ),
    RolloutFormat(
        "message-lines",
        "chat messages, one a line",
        _is_message,
        _convert_messages,
        conversations=_split_talks,
    ),
)
"""No record is in two of them."""
