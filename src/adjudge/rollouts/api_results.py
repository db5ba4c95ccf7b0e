"""What providers' APIs gave: responses, batches of OpenAI's and Anthropic's, logged exchanges.

A batch's results do not hold its prompts: these are in the file of its requests, under the same
``custom_id``, and are joined where both files are given. A failed request is an error.

Further rows hold a conversation under the names of a provider's or a framework's own: requests with
their responses, as proxies and clients log them; Gemini's contents; states of LangGraph;
trajectories of ART.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from adjudge.errors import RolloutError
from adjudge.intake.columns import as_id, as_object, describe_value, is_nothing
from adjudge.intake.conversation import looks_like_messages, read_messages
from adjudge.intake.parts import Message
from adjudge.messages import prompt_messages
from adjudge.rollouts.columns import find_column, find_reward_column, object_text
from adjudge.rollouts.fields import (
    SYSTEM_KEYS,
    TURN_KEYS,
    Record,
    RolloutFormat,
    Row,
    add_extras,
    add_fields,
    answered_columns,
    are_objects,
    as_objects,
    as_text,
    completion_row,
    describe_error,
    digest_prompt,
    make_row,
    pick_fields,
    read_json,
    request_messages,
    shape,
)
from adjudge.types import get_path

# OpenAI responses: a chat completion, a completion, or a response of the Responses API

_OBJECTS = ("chat.completion", "text_completion", "response")


def _is_openai_response(record: Record) -> bool:
    given = (record.get("choices"), record.get("output"))
    return record.get("object") in _OBJECTS and any(are_objects(one) for one in given)


def _convert_openai_response(body: Record) -> Iterator[Row | RolloutError]:
    column = find_column(body, "prompt")  # saved beside the answer
    prompt = None if column is None else get_path(body, column)
    yield from response_rows(
        body, [{"role": "user", "content": prompt}] if isinstance(prompt, str) else []
    )


def response_rows(body: Record, asked: list[Message]) -> Iterator[Row | RolloutError]:
    """A row for each choice, with the messages that were ``asked`` before it.

    Answers to the same messages are a group; where these are not known, those of one request.
    """
    group = digest_prompt(asked) if asked else as_id(body.get("id"))
    common = make_row(group=group, model=as_text(body.get("model")), usage=body.get("usage"))
    if isinstance(body.get("output"), list):
        yield common | _row_of_output(body, asked)
        return
    if isinstance(body.get("content"), list):
        yield common | _row_of_message(body, asked)
        return
    choices = as_objects(body.get("choices"))
    if not choices:
        kind = as_text(body.get("object"))
        raise RolloutError(f"is no chat completion, completion or response (object: {kind})")
    if len(choices) == 1:
        yield common | _row_of_choice(choices[0], asked)
        return
    for place, one in enumerate(choices):
        try:
            yield common | _row_of_choice(one, asked) | {"sample": place}
        except RolloutError as error:
            yield RolloutError(f"choices.{place}: {error}")


def _row_of_choice(choice: Record, asked: list[Message]) -> Row:
    reason = as_text(choice.get("finish_reason"))
    if isinstance(choice.get("text"), str):
        return add_fields({"response": choice["text"]}, finish_reason=reason)
    message = as_object(choice.get("message"))
    content = message.get("content")
    content = message.get("refusal") if content is None else content
    turn = pick_fields(message, "tool_calls", "function_call", "reasoning_content", "reasoning")
    if content is None and not (turn["tool_calls"] or turn["function_call"]):
        raise RolloutError(f"the message has no content (finish_reason: {reason})")
    turn |= {"role": "assistant", "content": content}
    return add_fields(completion_row(asked, [turn]), finish_reason=reason)


def _row_of_output(body: Record, asked: list[Message]) -> Row:
    status = as_text(body.get("status"))
    if body.get("error") is not None or status in ("failed", "cancelled"):
        raise RolloutError(f"the request failed: {describe_error(body.get('error'))}")
    answer = read_messages(body["output"], "output")
    reason = as_text(as_object(body.get("incomplete_details")).get("reason"))
    if not any(message["content"] or "tool_calls" in message for message in answer):
        raise RolloutError(f"the response has no text (status: {status}, reason: {reason})")
    return add_fields(completion_row(asked, answer), status=status, incomplete_reason=reason)


def _row_of_message(body: Record, asked: list[Message]) -> Row:
    """Of a message of Anthropic's."""
    reason = as_text(body.get("stop_reason"))
    said = read_messages([{"role": "assistant", "content": body["content"]}], "message")
    turn = said[0]
    if not turn["content"] and "tool_calls" not in turn and reason == "refusal":
        raise RolloutError("the message has no content (stop_reason: refusal)")
    if asked and asked[-1]["role"] == "assistant" and turn["content"] is not None:
        *asked, beginning = asked  # the request gave the first words of the answer
        turn["content"] = beginning["content"] + turn["content"]
    return add_fields(completion_row(asked, said), stop_reason=reason)


def _request_id(record: Record) -> str | None:
    """The id of a batch's request; none for a result, with its request or without."""
    if "response" in record or "result" in record or record.get("error") is not None:
        return None
    return as_id(record.get("custom_id"))


# Batches: {custom_id, response: {status_code, body}, error} of OpenAI's, of Anthropic's
# {custom_id, result: {type, message: {content: […], stop_reason, usage}}}

_REQUESTS = ({"custom_id", "method", "url", "body"}, {"custom_id", "params"})
_RESULTS = ("succeeded", "errored", "canceled", "expired")


def _is_batch(record: Record) -> bool:
    """Whether it is a result, or a request."""
    if as_id(record.get("custom_id")) is None:
        return False
    if record.keys() in _REQUESTS:
        return isinstance(record.get("body", record.get("params")), Mapping)
    response = record.get("response")
    if isinstance(response, Mapping):
        return "body" in response or "status_code" in response
    is_failed = response is None and isinstance(record.get("error"), Mapping)
    return is_failed or as_object(record.get("result")).get("type") in _RESULTS


def _convert_batch(record: Record) -> Iterator[Row | RolloutError]:
    if _request_id(record) is not None:
        raise RolloutError("is a request of the batch. Give the batch's results.")
    result, response = as_object(record.get("result")), as_object(record.get("response"))
    reply = as_object(result.get("message", response.get("body")))
    error, code = record.get("error", result.get("error")), response.get("status_code", 200)
    if error is not None or not reply:
        raise RolloutError(f"the request failed: {describe_error(error or result.get('type'))}")
    if not isinstance(code, int) or not 200 <= code < 300:
        raise RolloutError(f"the request failed with status {as_id(code)}: {describe_error(reply)}")
    name = as_id(record.get("custom_id"))
    request = as_object(record.get("body", record.get("params")))
    asked = request_messages(request, "body")
    own = {"custom_id": name} if asked else {"custom_id": name, "group": name}
    if (prompt := as_text(request.get("prompt"))) is not None:  # of a completion
        own |= {"prompt": prompt, "group": digest_prompt(prompt)}
    for row in response_rows(reply, asked):
        yield row if isinstance(row, RolloutError) else row | own


API_FORMATS = (
    RolloutFormat(
        *("batches", "batch results (OpenAI, Anthropic)", _is_batch, _convert_batch),
        request_id=_request_id,
    ),
    RolloutFormat(
        "openai-response", "OpenAI responses", _is_openai_response, _convert_openai_response
    ),
)
"""No record is in two of them."""


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
        asked = prompt_messages(given) if isinstance(given, str) else given
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
    return [[{"role": "model", **one}] for one in found]


# Conversations under other names


def _is_request(record: Record) -> bool:
    """Whether it is Gemini's contents."""
    contents = as_objects(record.get("contents"))
    is_gemini = bool(contents) and all("parts" in one for one in contents)
    return is_gemini and _find_reply(record) is None


def _convert_request(record: Record) -> Iterator[Row]:
    """A request whose last message is the answer."""
    yield _own_columns({"messages": request_messages(record, "messages")}, record)


def _is_state(record: Record) -> bool:
    return isinstance(as_object(record.get("values")).get("messages"), list)


def _convert_state(record: Record) -> Iterator[Row]:
    if record.get("next"):
        raise RolloutError("next: is a checkpoint before the end of the run, and no whole rollout")
    yield _own_columns({"messages": record["values"]}, record, "values")


_is_art = shape(messages_and_choices=list)


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
