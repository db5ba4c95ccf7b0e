"""The response bodies of the two providers, whole and as server-sent events.

OpenAI: ``chat.completion`` and ``chat.completion.chunk`` (with ``reasoning_content``, as DeepSeek,
DashScope and vLLM have it). Anthropic: ``message`` and its stream of typed events. Input
tokens are a quarter of the request's bytes.
"""

from __future__ import annotations

from typing import Any

import msgspec

from adjudge.mock.asked import Api, Asked
from adjudge.mock.behaviour import Answer
from adjudge.mock.tokens import logprobs_of, reply_tokens, tokens

__all__ = [
    "REFUSAL",
    "Envelope",
    "body_of",
    "error_body",
    "error_event",
    "events_of",
]

REFUSAL = "I'm sorry, but I can't help with that."

_encode = msgspec.json.Encoder().encode


class Envelope(msgspec.Struct, gc=False):
    """What surrounds a reply: which request it answers, whose model, since when."""

    number: int
    model: str
    created: int
    wrong_id: bool = False

    def identity(self, prefix: str, part: int = 0) -> str:
        """The reply's id; a wrong one differs in every ``part`` of a stream."""
        if self.wrong_id:
            return f"{prefix}wrong-{part}"
        return f"{prefix}mock-{self.number}"


def body_of(api: Api, answer: Answer, asked: Asked, envelope: Envelope) -> bytes:
    """The whole response body."""
    shape = _openai_body if api == "openai" else _anthropic_body
    return _encode(shape(answer, asked, envelope))


def events_of(api: Api, answer: Answer, asked: Asked, envelope: Envelope) -> list[bytes]:
    """The response as server-sent events, the end mark included."""
    if api == "anthropic":
        return [
            b"event: %b\ndata: %b\n\n" % (event["type"].encode(), _encode(event))
            for event in _anthropic_events(answer, asked, envelope)
        ]
    chunks = _openai_chunks(answer, asked, envelope)
    return [b"data: %b\n\n" % _encode(one) for one in chunks] + [b"data: [DONE]\n\n"]


# --- OpenAI


def _openai_body(answer: Answer, asked: Asked, envelope: Envelope) -> dict[str, Any]:
    refused = answer.finish == "refusal"
    message: dict[str, Any] = {
        "role": "assistant",
        "content": None if refused else answer.text,
        "refusal": (answer.text or REFUSAL) if refused else None,
    }
    if answer.reasoning:
        message["reasoning_content"] = answer.reasoning
    logprobs = None
    if asked.logprobs is not None and not refused:
        pieces = reply_tokens(answer.text, asked.choices)
        wanted = logprobs_of(pieces, asked.logprobs, asked.choices)
        logprobs = {"content": wanted, "refusal": None}
    return {
        "id": envelope.identity("chatcmpl-"),
        "object": "chat.completion",
        "created": envelope.created,
        "model": envelope.model,
        "choices": [
            {
                "index": 0,
                "message": message,
                "logprobs": logprobs,
                "finish_reason": _openai_finish(answer),
            }
        ],
        "usage": _openai_usage(answer, asked),
    }


def _openai_finish(answer: Answer) -> str:
    return "stop" if answer.finish == "refusal" else answer.finish


def _openai_usage(answer: Answer, asked: Asked) -> dict[str, Any]:
    sent, got = _used(answer, asked)
    return {
        "prompt_tokens": sent,
        "completion_tokens": got,
        "total_tokens": sent + got,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


def _openai_chunks(answer: Answer, asked: Asked, envelope: Envelope) -> list[dict[str, Any]]:
    deltas: list[tuple[dict[str, Any], list[dict[str, Any]] | None]] = [
        ({"role": "assistant", "content": ""}, None)
    ]
    deltas += [({"reasoning_content": piece}, None) for piece in tokens(answer.reasoning)]
    if answer.finish == "refusal":
        deltas += [({"refusal": piece}, None) for piece in tokens(answer.text or REFUSAL)]
    else:
        for piece in reply_tokens(answer.text, asked.choices):
            wanted = (
                None
                if asked.logprobs is None
                else logprobs_of([piece], asked.logprobs, asked.choices)
            )
            deltas.append(({"content": piece}, wanted))
    chunks = [
        _openai_chunk(envelope, i, delta, wanted, None) for i, (delta, wanted) in enumerate(deltas)
    ]
    chunks.append(_openai_chunk(envelope, len(chunks), {}, None, _openai_finish(answer)))
    if asked.include_usage:
        last = _openai_chunk(envelope, len(chunks), {}, None, None)
        chunks.append(last | {"choices": [], "usage": _openai_usage(answer, asked)})
    return chunks


def _openai_chunk(
    envelope: Envelope,
    part: int,
    delta: dict[str, Any],
    wanted: list[dict[str, Any]] | None,
    finish: str | None,
) -> dict[str, Any]:
    logprobs = None if wanted is None else {"content": wanted, "refusal": None}
    return {
        "id": envelope.identity("chatcmpl-", part),
        "object": "chat.completion.chunk",
        "created": envelope.created,
        "model": envelope.model,
        "choices": [{"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": finish}],
    }


# --- Anthropic


def _anthropic_body(answer: Answer, asked: Asked, envelope: Envelope) -> dict[str, Any]:
    sent, got = _used(answer, asked)
    return _anthropic_message(envelope, sent, got) | {
        "content": _anthropic_blocks(answer, asked, envelope),
        "stop_reason": _anthropic_stop(answer, asked),
    }


def _anthropic_message(envelope: Envelope, sent: int, got: int) -> dict[str, Any]:
    return {
        "id": envelope.identity("msg_"),
        "type": "message",
        "role": "assistant",
        "model": envelope.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {
            "input_tokens": sent,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": got,
        },
    }


def _anthropic_blocks(answer: Answer, asked: Asked, envelope: Envelope) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    if answer.reasoning:
        blocks.append({"type": "thinking", "thinking": answer.reasoning, "signature": "mock"})
    if (called := _tool_input(answer, asked)) is not None:
        identity = envelope.identity("toolu_")
        blocks.append({"type": "tool_use", "id": identity, "name": asked.tool, "input": called})
    elif answer.text:
        blocks.append({"type": "text", "text": answer.text})
    return blocks


def _tool_input(answer: Answer, asked: Asked) -> dict[str, Any] | None:
    """The reply as the input of the tool that the request insists on, where it can be one."""
    if asked.tool is None or answer.finish != "stop":
        return None
    try:
        return msgspec.json.decode(answer.text, type=dict[str, Any])
    except msgspec.DecodeError:
        return None


def _anthropic_stop(answer: Answer, asked: Asked) -> str:
    if _tool_input(answer, asked) is not None:
        return "tool_use"
    stops = {"stop": "end_turn", "length": "max_tokens"}
    return stops.get(answer.finish, "refusal")


def _anthropic_events(answer: Answer, asked: Asked, envelope: Envelope) -> list[dict[str, Any]]:
    sent, got = _used(answer, asked)
    started = _anthropic_message(envelope, sent, 1)
    events: list[dict[str, Any]] = [{"type": "message_start", "message": started}, {"type": "ping"}]
    for index, block in enumerate(_anthropic_blocks(answer, asked, envelope)):
        empty, deltas = _block_deltas(block)
        events.append({"type": "content_block_start", "index": index, "content_block": empty})
        events += [{"type": "content_block_delta", "index": index, "delta": one} for one in deltas]
        events.append({"type": "content_block_stop", "index": index})
    stop = {"stop_reason": _anthropic_stop(answer, asked), "stop_sequence": None}
    events.append({"type": "message_delta", "delta": stop, "usage": {"output_tokens": got}})
    events.append({"type": "message_stop"})
    return events


def _block_deltas(block: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A block as it starts, and what is added to it."""
    if block["type"] == "tool_use":
        pieces = tokens(_encode(block["input"]).decode())
        deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]
        return block | {"input": {}}, deltas
    if block["type"] == "thinking":
        pieces = tokens(block["thinking"])
        deltas = [{"type": "thinking_delta", "thinking": piece} for piece in pieces]
        deltas.append({"type": "signature_delta", "signature": block["signature"]})
        return block | {"thinking": "", "signature": ""}, deltas
    pieces = tokens(block["text"])
    return block | {"text": ""}, [{"type": "text_delta", "text": piece} for piece in pieces]


# --- both


def _used(answer: Answer, asked: Asked) -> tuple[int, int]:
    """Tokens in and out."""
    got = len(reply_tokens(answer.text, asked.choices))
    if answer.reasoning:
        got += len(tokens(answer.reasoning))
    return -(-asked.size // 4), got


_OPENAI_KINDS = {
    400: ("invalid_request_error", None),
    401: ("invalid_request_error", "invalid_api_key"),
    403: ("permission_error", None),
    404: ("invalid_request_error", "model_not_found"),
    429: ("requests", "rate_limit_exceeded"),
}
_ANTHROPIC_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}


def error_body(api: Api, status: int, message: str, *, money: bool = False) -> bytes:
    """The provider's error object; ``money`` marks a 429 that waiting does not cure."""
    if api == "anthropic":
        default = "api_error" if status >= 500 else "invalid_request_error"
        kind = "billing_error" if money else _ANTHROPIC_KINDS.get(status, default)
        return _encode({"type": "error", "error": {"type": kind, "message": message}})
    named: tuple[str, str | None] = ("insufficient_quota", "insufficient_quota")
    if not money:
        fallback = ("server_error" if status >= 500 else "invalid_request_error", None)
        named = _OPENAI_KINDS.get(status, fallback)
    error = {"message": message, "type": named[0], "param": None, "code": named[1]}
    return _encode({"error": error})


def error_event(api: Api, message: str) -> bytes:
    """An error in the middle of a stream."""
    body = error_body(api, 500, message)
    return b"event: error\ndata: %b\n\n" % body if api == "anthropic" else b"data: %b\n\n" % body
