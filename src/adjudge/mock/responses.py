"""The response bodies of the two providers, whole and as server-sent events.

OpenAI: ``chat.completion`` and ``chat.completion.chunk`` (with ``reasoning_content``, as DeepSeek,
DashScope and vLLM have it). Anthropic: ``message`` and its stream of typed events. Tokens and their
log-probabilities are made up; input tokens are a quarter of the request's bytes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import msgspec

from adjudge.mock.behaviours import MockAnswer
from adjudge.mock.http import Api, ChatRequest
from adjudge.text import encode_exactly

_TOKEN = re.compile(r"\d+|[^\W\d]+|\s+|[^\w\s]")
_CHOSEN_PROBABILITY = 0.75
_NEIGHBOUR_PROBABILITY = 0.1


def split_tokens(text: str) -> list[str]:
    """``text`` in words, numbers, marks and runs of white space, which join to it again.

    >>> split_tokens('{"score": 12}')
    ['{', '"', 'score', '"', ':', ' ', '12', '}']
    """
    return _TOKEN.findall(text)


def reply_tokens(text: str, choices: Sequence[str] | None) -> list[str]:
    """The tokens of a reply; a choice is one token, as where decoding is masked to choices."""
    if choices and text in choices:
        return [text]
    return split_tokens(text)


def make_logprobs(
    pieces: Sequence[str], shown: int, choices: Sequence[str] | None
) -> list[dict[str, Any]]:
    """OpenAI's ``logprobs.content`` for ``pieces``, with up to ``shown`` alternatives each."""
    items = []
    for piece in pieces:
        likely = _token_probabilities(piece, choices)
        top = [_logprob(token, p) for token, p in list(likely.items())[:shown]]
        items.append(_logprob(piece, likely[piece]) | {"top_logprobs": top})
    return items


def _logprob(token: str, probability: float) -> dict[str, Any]:
    encoded = list(encode_exactly(token))
    return {"token": token, "logprob": math.log(probability), "bytes": encoded}


def _token_probabilities(piece: str, choices: Sequence[str] | None) -> dict[str, float]:
    """Made-up probabilities, the token's own first.

    Over choices they sum to 1; a number shares with its two neighbours; a word stands alone.
    """
    if choices and piece in choices:
        others = [choice for choice in dict.fromkeys(choices) if choice != piece]
        if not others:
            return {piece: 1.0}
        return {piece: _CHOSEN_PROBABILITY} | dict.fromkeys(
            others, (1 - _CHOSEN_PROBABILITY) / len(others)
        )
    if piece.isascii() and piece.isdigit() and len(piece) < 16:
        number = int(piece)
        near = {str(one): _NEIGHBOUR_PROBABILITY for one in (number - 1, number + 1) if one >= 0}
        near.pop(piece, None)
        return {piece: 1 - sum(near.values())} | near
    return {piece: 0.95}


REFUSAL_TEXT = "I'm sorry, but I can't help with that."

_encode = msgspec.json.Encoder().encode


class ReplyEnvelope(msgspec.Struct, gc=False):
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


def response_body(
    api: Api, answer: MockAnswer, request: ChatRequest, envelope: ReplyEnvelope
) -> bytes:
    """The whole response body."""
    shape = _openai_body if api == "openai" else _anthropic_body
    return _encode(shape(answer, request, envelope))


def response_events(
    api: Api, answer: MockAnswer, request: ChatRequest, envelope: ReplyEnvelope
) -> list[bytes]:
    """The response as server-sent events, the end mark included."""
    if api == "anthropic":
        return [
            b"event: %b\ndata: %b\n\n" % (event["type"].encode(), _encode(event))
            for event in _anthropic_events(answer, request, envelope)
        ]
    chunks = _openai_chunks(answer, request, envelope)
    return [b"data: %b\n\n" % _encode(one) for one in chunks] + [b"data: [DONE]\n\n"]


# --- OpenAI


def _openai_body(
    answer: MockAnswer, request: ChatRequest, envelope: ReplyEnvelope
) -> dict[str, Any]:
    refused = answer.finish == "refusal"
    message: dict[str, Any] = {
        "role": "assistant",
        "content": None if refused else answer.text,
        "refusal": (answer.text or REFUSAL_TEXT) if refused else None,
    }
    if answer.reasoning:
        message["reasoning_content"] = answer.reasoning
    logprobs = None
    if request.logprobs is not None and not refused:
        pieces = reply_tokens(answer.text, request.choices)
        wanted = make_logprobs(pieces, request.logprobs, request.choices)
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
        "usage": _openai_usage(answer, request),
    }


def _openai_finish(answer: MockAnswer) -> str:
    return "stop" if answer.finish == "refusal" else answer.finish


def _openai_usage(answer: MockAnswer, request: ChatRequest) -> dict[str, Any]:
    sent, got = _count_tokens(answer, request)
    return {
        "prompt_tokens": sent,
        "completion_tokens": got,
        "total_tokens": sent + got,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


def _openai_chunks(
    answer: MockAnswer, request: ChatRequest, envelope: ReplyEnvelope
) -> list[dict[str, Any]]:
    deltas: list[tuple[dict[str, Any], list[dict[str, Any]] | None]] = [
        ({"role": "assistant", "content": ""}, None)
    ]
    deltas += [({"reasoning_content": piece}, None) for piece in split_tokens(answer.reasoning)]
    if answer.finish == "refusal":
        deltas += [
            ({"refusal": piece}, None) for piece in split_tokens(answer.text or REFUSAL_TEXT)
        ]
    else:
        for piece in reply_tokens(answer.text, request.choices):
            wanted = (
                None
                if request.logprobs is None
                else make_logprobs([piece], request.logprobs, request.choices)
            )
            deltas.append(({"content": piece}, wanted))
    chunks = [
        _openai_chunk(envelope, i, delta, wanted, None) for i, (delta, wanted) in enumerate(deltas)
    ]
    chunks.append(_openai_chunk(envelope, len(chunks), {}, None, _openai_finish(answer)))
    if request.include_usage:
        last = _openai_chunk(envelope, len(chunks), {}, None, None)
        chunks.append(last | {"choices": [], "usage": _openai_usage(answer, request)})
    return chunks


def _openai_chunk(
    envelope: ReplyEnvelope,
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


def _anthropic_body(
    answer: MockAnswer, request: ChatRequest, envelope: ReplyEnvelope
) -> dict[str, Any]:
    sent, got = _count_tokens(answer, request)
    return _anthropic_message(envelope, sent, got) | {
        "content": _anthropic_blocks(answer, request, envelope),
        "stop_reason": _anthropic_stop(answer, request),
    }


def _anthropic_message(envelope: ReplyEnvelope, sent: int, got: int) -> dict[str, Any]:
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


def _anthropic_blocks(
    answer: MockAnswer, request: ChatRequest, envelope: ReplyEnvelope
) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    if answer.reasoning:
        blocks.append({"type": "thinking", "thinking": answer.reasoning, "signature": "mock"})
    if (called := _tool_input(answer, request)) is not None:
        identity = envelope.identity("toolu_")
        blocks.append({"type": "tool_use", "id": identity, "name": request.tool, "input": called})
    elif answer.text:
        blocks.append({"type": "text", "text": answer.text})
    return blocks


def _tool_input(answer: MockAnswer, request: ChatRequest) -> dict[str, Any] | None:
    """The reply as the input of the tool that the request insists on, where it can be one."""
    if request.tool is None or answer.finish != "stop":
        return None
    try:
        return msgspec.json.decode(answer.text, type=dict[str, Any])
    except msgspec.DecodeError:
        return None


def _anthropic_stop(answer: MockAnswer, request: ChatRequest) -> str:
    if _tool_input(answer, request) is not None:
        return "tool_use"
    stops = {"stop": "end_turn", "length": "max_tokens"}
    return stops.get(answer.finish, "refusal")


def _anthropic_events(
    answer: MockAnswer, request: ChatRequest, envelope: ReplyEnvelope
) -> list[dict[str, Any]]:
    sent, got = _count_tokens(answer, request)
    started = _anthropic_message(envelope, sent, 1)
    events: list[dict[str, Any]] = [{"type": "message_start", "message": started}, {"type": "ping"}]
    for index, block in enumerate(_anthropic_blocks(answer, request, envelope)):
        empty, deltas = _block_deltas(block)
        events.append({"type": "content_block_start", "index": index, "content_block": empty})
        events += [{"type": "content_block_delta", "index": index, "delta": one} for one in deltas]
        events.append({"type": "content_block_stop", "index": index})
    stop = {"stop_reason": _anthropic_stop(answer, request), "stop_sequence": None}
    events.append({"type": "message_delta", "delta": stop, "usage": {"output_tokens": got}})
    events.append({"type": "message_stop"})
    return events


def _block_deltas(block: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A block as it starts, and what is added to it."""
    if block["type"] == "tool_use":
        pieces = split_tokens(_encode(block["input"]).decode())
        deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]
        return block | {"input": {}}, deltas
    if block["type"] == "thinking":
        pieces = split_tokens(block["thinking"])
        deltas = [{"type": "thinking_delta", "thinking": piece} for piece in pieces]
        deltas.append({"type": "signature_delta", "signature": block["signature"]})
        return block | {"thinking": "", "signature": ""}, deltas
    pieces = split_tokens(block["text"])
    return block | {"text": ""}, [{"type": "text_delta", "text": piece} for piece in pieces]


# --- both


def _count_tokens(answer: MockAnswer, request: ChatRequest) -> tuple[int, int]:
    """Tokens in and out."""
    got = len(reply_tokens(answer.text, request.choices))
    if answer.reasoning:
        got += len(split_tokens(answer.reasoning))
    return -(-request.size // 4), got


_OPENAI_ERRORS = {
    400: ("invalid_request_error", None),
    401: ("invalid_request_error", "invalid_api_key"),
    403: ("permission_error", None),
    404: ("invalid_request_error", "model_not_found"),
    429: ("requests", "rate_limit_exceeded"),
}
_ANTHROPIC_ERRORS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}


def provider_error_body(api: Api, status: int, message: str, *, money: bool = False) -> bytes:
    """The provider's error object; ``money`` marks a 429 that waiting does not cure."""
    if api == "anthropic":
        default = "api_error" if status >= 500 else "invalid_request_error"
        kind = "billing_error" if money else _ANTHROPIC_ERRORS.get(status, default)
        return _encode({"type": "error", "error": {"type": kind, "message": message}})
    named: tuple[str, str | None] = ("insufficient_quota", "insufficient_quota")
    if not money:
        fallback = ("server_error" if status >= 500 else "invalid_request_error", None)
        named = _OPENAI_ERRORS.get(status, fallback)
    error = {"message": message, "type": named[0], "param": None, "code": named[1]}
    return _encode({"error": error})


def error_event(api: Api, message: str) -> bytes:
    """An error in the middle of a stream."""
    body = provider_error_body(api, 500, message)
    return b"event: error\ndata: %b\n\n" % body if api == "anthropic" else b"data: %b\n\n" % body
