"""Files of providers' APIs: OpenAI's responses, batches and preferences, Anthropic's batches.

A batch's results do not hold its prompts: these are in the file of its requests, under the same
``custom_id``, and are joined where both files are given. A failed request is an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from adjudge.errors import RolloutError
from adjudge.rollouts.formats.base import RolloutFormat, Row
from adjudge.rollouts.formats.chat import (
    Record,
    as_id,
    as_object,
    as_objects,
    as_text,
    assistant_message,
    describe_error,
    is_conversation,
    known_columns,
    message_from_output,
    message_text,
    split_reasoning,
    tool_call,
)

# OpenAI responses: a chat completion, a completion, or a response of the Responses API

_OBJECTS = ("chat.completion", "text_completion", "response")


def _is_openai_response(record: Record) -> bool:
    return record.get("object") in _OBJECTS and any(
        isinstance(record.get(name), list) for name in ("choices", "output")
    )


def _convert_openai_response(body: Record) -> Iterator[Row | RolloutError]:
    common = known_columns(
        group=as_id(body.get("id")), model=as_text(body.get("model")), usage=body.get("usage")
    )
    if isinstance(body.get("output"), list):
        yield {**common, **_row_of_output(body)}
        return
    choices = as_objects(body.get("choices"))
    if not choices:
        kind = as_text(body.get("object"))
        raise RolloutError(f"is no chat completion, completion or response (object: {kind})")
    for number, choice in enumerate(choices):
        sample = {"sample": number} if len(choices) > 1 else {}
        try:
            yield {**common, **sample, **_row_of_choice(choice)}
        except RolloutError as error:
            if len(choices) == 1:
                raise
            yield RolloutError(f"choices.{number}: {error}")


def _row_of_choice(choice: Record) -> Row:
    reason = as_text(choice.get("finish_reason"))
    if isinstance(choice.get("text"), str):
        return known_columns(response=choice["text"], finish_reason=reason)
    message = as_object(choice.get("message"))
    calls = as_objects(message.get("tool_calls"))
    content = message.get("content")
    text = message_text(content if content is not None else message.get("refusal"))
    if not calls and content is None and not text:
        raise RolloutError(f"the message has no content (finish_reason: {reason})")
    thought = as_text(message.get("reasoning_content")) or as_text(message.get("reasoning"))
    turn = assistant_message(text or (None if calls else ""), calls, thought)
    return known_columns(messages=[turn], finish_reason=reason)


def _row_of_output(body: Record) -> Row:
    status = as_text(body.get("status"))
    if body.get("error") is not None or status in ("failed", "cancelled"):
        raise RolloutError(f"the request failed: {describe_error(body.get('error'))}")
    turn = message_from_output(body["output"])
    reason = as_text(as_object(body.get("incomplete_details")).get("reason"))
    if turn["content"] is None and "tool_calls" not in turn:
        raise RolloutError(f"the response has no text (status: {status}, reason: {reason})")
    return known_columns(messages=[turn], status=status, incomplete_reason=reason)


def _request_id(record: Record) -> str | None:
    """The id of a batch's request; none for a result, with its request or without."""
    if "response" in record or "result" in record or record.get("error") is not None:
        return None
    return as_id(record.get("custom_id"))


# OpenAI batch: {id, custom_id, response: {status_code, request_id, body}, error}


def _is_openai_batch(record: Record) -> bool:
    if as_id(record.get("custom_id")) is None:
        return False
    if _is_openai_request(record):
        return True
    response = record.get("response")
    if isinstance(response, Mapping):
        return "body" in response or "status_code" in response
    return response is None and isinstance(record.get("error"), Mapping)


def _is_openai_request(record: Record) -> bool:
    return isinstance(record.get("body"), Mapping) and "url" in record and "response" not in record


def _convert_openai_batch(record: Record) -> Iterator[Row | RolloutError]:
    if _is_openai_request(record):
        raise RolloutError("is a request of the batch. Give the batch's output file.")
    response = as_object(record.get("response"))
    body = as_object(response.get("body"))
    code = response.get("status_code", 200)
    if record.get("error") is not None or not body:
        raise RolloutError(f"the request failed: {describe_error(record.get('error'))}")
    if not isinstance(code, int) or not 200 <= code < 300:
        raise RolloutError(f"the request failed with status {as_id(code)}: {describe_error(body)}")
    name = as_id(record.get("custom_id"))
    request = as_object(record.get("body")).get("messages")  # where somebody put both together
    for row in _convert_openai_response(body):
        if isinstance(row, RolloutError):
            yield row
            continue
        if is_conversation(request) and "messages" in row:
            row["messages"] = [*request, *row["messages"]]
        yield {**row, "group": name, "custom_id": name}


# Anthropic batch: {custom_id, result: {type, message: {content: […], stop_reason, usage}}}

_RESULTS = ("succeeded", "errored", "canceled", "expired")


def _is_anthropic_batch(record: Record) -> bool:
    if as_id(record.get("custom_id")) is None:
        return False
    if isinstance(record.get("params"), Mapping) and "result" not in record:
        return True
    return as_object(record.get("result")).get("type") in _RESULTS


def _convert_anthropic_batch(record: Record) -> Iterator[Row]:
    result = as_object(record.get("result"))
    if not result and "params" in record:
        raise RolloutError("is a request of the batch. Give the batch's results.")
    kind = as_text(result.get("type"))
    if kind == "errored":
        raise RolloutError(f"the request failed: {describe_error(result.get('error'))}")
    message = as_object(result.get("message"))
    if kind != "succeeded" or not isinstance(message.get("content"), list):
        raise RolloutError(f"the request has no message (result: {kind})")
    reason = as_text(message.get("stop_reason"))
    blocks = as_objects(message["content"])
    calls = [
        tool_call(block.get("id"), block.get("name"), block.get("input"))
        for block in blocks
        if block.get("type") == "tool_use"
    ]
    # Citations cut one text into several blocks, so nothing stands between them.
    text = "".join(message_text(b.get("text")) for b in blocks if b.get("type") == "text")
    if not text and not calls and reason == "refusal":
        raise RolloutError("the message has no content (stop_reason: refusal)")
    thought = split_reasoning(blocks)[1]
    turn = assistant_message(text or (None if calls else ""), calls, thought)
    name = as_id(record.get("custom_id"))
    request = as_object(record.get("params"))
    asked = request["messages"] if is_conversation(request.get("messages")) else []
    system = message_text(request.get("system"))
    opening = [{"role": "system", "content": system}] if system else []
    yield known_columns(
        messages=[*opening, *asked, turn],
        group=name,
        custom_id=name,
        model=as_text(message.get("model")),
        stop_reason=reason,
        usage=message.get("usage"),
    )


API_FORMATS = (
    RolloutFormat(
        "openai-batch",
        "OpenAI batch output",
        _is_openai_batch,
        _convert_openai_batch,
        request_id=_request_id,
    ),
    RolloutFormat(
        "anthropic-batch",
        "Anthropic message batch results",
        _is_anthropic_batch,
        _convert_anthropic_batch,
        request_id=_request_id,
    ),
    RolloutFormat(
        "openai-response", "OpenAI responses", _is_openai_response, _convert_openai_response
    ),
)
"""No record is in two of them."""
