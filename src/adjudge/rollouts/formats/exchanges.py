"""Rows that hold a conversation under the names of a provider's or a framework's own.

Requests with their responses, as proxies and clients log them; Gemini's contents; states of
LangGraph; trajectories of ART.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from adjudge.errors import RolloutError
from adjudge.intake.columns import describe_value, is_nothing
from adjudge.intake.conversation import Message, looks_like_messages, read_messages
from adjudge.messages import prompt_messages
from adjudge.rollouts.formats.api_results import response_rows
from adjudge.rollouts.formats.base import RolloutFormat, Row
from adjudge.rollouts.formats.chat import SYSTEM_KEYS, TURN_KEYS, answered_columns, request_messages
from adjudge.rollouts.formats.columns import find_column, find_reward_column, object_text
from adjudge.rollouts.formats.completions import completion_row
from adjudge.rollouts.formats.fields import Record, add_extras, as_object, as_objects, read_json
from adjudge.types import get_path


def _own_columns(row: Row, record: Record, *used: str) -> Row:
    """``row`` with the record's other columns."""
    own = {key: record[key] for key in ("group", "reference") if not is_nothing(record.get(key))}
    return add_extras({**row, **own}, record, *used, *TURN_KEYS, *SYSTEM_KEYS)


# A request and its response: {request: {messages, …}, response: {…}}, or the request's keys beside

_REPLY_KEYS = ("request", "response", "choices", "candidates", "content")
_FOREIGN = ("custom_id", "responses_create_params", "object", "trajectory_format")


def _find_reply(record: Record) -> Record | None:
    """The response, if it is one of a provider's."""
    beside = as_object(read_json(record.get("response")))
    if _is_reply(beside) or not {"role", "message", "candidates"}.isdisjoint(beside):
        return beside
    if "contents" in record and isinstance(record.get("response"), str):
        return {"role": "assistant", "content": record["response"]}
    return record if _is_reply(record) else None


def _is_reply(reply: Record) -> bool:
    made = as_objects(reply.get("candidates"))
    return (
        any("message" in one for one in as_objects(reply.get("choices")))
        or any("content" in one or "finishReason" in one for one in made)
        or (isinstance(reply.get("content"), list) and "stop_reason" in reply)
        or looks_like_messages(reply.get("output"))
    )


def _find_request(record: Record) -> Record:
    return as_object(read_json(record.get("request"))) or record


def _is_exchange(record: Record) -> bool:
    request, reply = _find_request(record), _find_reply(record)
    asked = any(isinstance(request.get(key), str | list) for key in TURN_KEYS)
    known = reply is not None and not any(key in record for key in _FOREIGN)
    return known and (asked or (reply is not record and _is_reply(reply or {})))


def _convert_exchange(record: Record) -> Iterator[Row | RolloutError]:
    asked, reply = request_messages(_find_request(record), "request"), _find_reply(record) or {}
    if not asked and (name := find_column(record, "prompt")) is not None:
        given: Any = get_path(record, name)
        given = object_text(given) if isinstance(given, Mapping) else given
        asked = read_messages(prompt_messages(given), name)
    if reply.get("error"):
        raise RolloutError(f"the request failed: {describe_value(reply['error'])}")
    if isinstance(reply.get("choices"), list) or isinstance(reply.get("output"), list):
        rows: Any = response_rows(reply, asked)
    else:
        rows = [completion_row(asked, one) for one in _read_replies(reply)]
    for row in rows:
        yield row if isinstance(row, RolloutError) else _own_columns(row, record, *_REPLY_KEYS)


def _read_replies(reply: Record) -> list[list[Message]]:
    """The answers in a response of Anthropic's, Gemini's or Ollama's."""
    turn = {key: reply[key] for key in ("role", "content") if key in reply}
    found = [as_object(reply.get("message")) or turn]
    if isinstance(reply.get("candidates"), list):
        found = [as_object(one.get("content")) for one in as_objects(reply["candidates"])]
        if not found or not all(found):
            raise RolloutError("response.candidates: one has no content: nothing was answered")
    return [read_messages([{"role": "model", **one}], "response") for one in found]


# Conversations under other names


def _is_request(record: Record) -> bool:
    """Whether it is Gemini's contents."""
    contents = as_objects(record.get("contents"))
    is_gemini = bool(contents) and all("parts" in one for one in contents)
    return is_gemini and _find_reply(record) is None


def _convert_request(record: Record) -> Iterator[Row]:
    """A request whose last message is the answer."""
    messages = request_messages(record, "messages")
    if not any(one["role"] == "assistant" for one in messages):
        raise RolloutError("has no message of the assistant: nothing was answered")
    yield _own_columns({"messages": messages}, record)


def _is_state(record: Record) -> bool:
    return isinstance(as_object(record.get("values")).get("messages"), list)


def _convert_state(record: Record) -> Iterator[Row]:
    if record.get("next"):
        raise RolloutError("next: is a checkpoint before the end of the run, and no whole rollout")
    yield _own_columns({"messages": read_messages(record["values"], "values")}, record, "values")


def _is_art(record: Record) -> bool:
    return isinstance(record.get("messages_and_choices"), list)


def _convert_art(record: Record) -> Iterator[Row]:
    given = record["messages_and_choices"]
    messages = read_messages(given, "messages_and_choices")
    choices = [place for place, one in enumerate(given) if "message" in as_object(one)]
    if choices and len(messages) == len(given):  # turns of the assistant before: the prompt's
        opening: Row = {"opening_turns": choices[0]}
    else:
        opening = answered_columns(messages)
    yield _own_columns({"messages": messages, **opening}, record, "messages_and_choices")


_format = partial(RolloutFormat, reward=find_reward_column)

EXCHANGE_FORMATS = (
    _format(
        *("request-response", "requests with responses", _is_exchange, _convert_exchange),
        own=("messages", "response"),
    ),
    _format(
        *("requests", "Gemini contents", _is_request, _convert_request),
    ),
    _format("langgraph-states", "LangGraph states", _is_state, _convert_state),
    _format("art-trajectories", "ART trajectories", _is_art, _convert_art),
)
"""No record is in two of them."""
