"""Streamed chat completions: joined when whole, ``truncated`` when not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from adjudge.errors import ErrorKind, GradingFailure
from adjudge.judges.base import ChatCall, HttpResponse, Reply
from adjudge.judges.wire.openai import OpenAIWire, parse_events
from adjudge.types import Usage

TOKEN = {"token": "A", "logprob": -0.1, "top_logprobs": [{"token": "A", "logprob": -0.1}]}
LOGPROBS = {"content": [TOKEN]}


def call(**more: Any) -> ChatCall:
    return ChatCall(model="m", messages=[{"role": "user", "content": "x"}], **more)


def read(body: bytes, *, cut: bool = False, stream: bool = True, asked: Any = None) -> Reply:
    response = HttpResponse(status=200, headers={}, body=body, cut=cut)
    return OpenAIWire(stream=stream).reply(asked or call(), response)


def stream(*chunks: Any, done: bool = True) -> bytes:
    events = [f"data: {json.dumps(chunk)}\n\n" for chunk in chunks]
    return "".join([*events, "data: [DONE]\n\n"] if done else events).encode()


def delta(finish_reason: str | None = None, **fields: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": fields, "finish_reason": finish_reason}
    return {"model": "m-1", "choices": [choice]}


def test_a_stream_is_joined() -> None:
    body = stream(
        delta(role="assistant", content=""),
        delta(reasoning_content="wh"),
        delta(reasoning_content="y"),
        delta(content="o"),
        delta(content="k", finish_reason=None),
        delta(finish_reason="stop"),
        {"model": "m-1", "choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 1}},
    )
    reply = read(body)
    assert (reply.text, reply.reasoning, reply.finish_reason) == ("ok", "why", "stop")
    assert reply.usage == Usage(input_tokens=3, output_tokens=1)
    assert reply.model == "m-1"
    assert reply.ignored == ()


def test_a_stream_keeps_logprobs_and_inline_thinking() -> None:
    first, second = delta(content="<thi"), delta(content="nk>w</think>A", finish_reason="stop")
    first["choices"][0]["logprobs"] = LOGPROBS
    second["choices"][0]["logprobs"] = LOGPROBS
    reply = read(stream(first, second), asked=call(logprobs=True))
    assert (reply.text, reply.reasoning) == ("A", "w")
    assert reply.logprobs is not None
    assert len(reply.logprobs) == 2


def test_of_a_stream_with_several_choices_the_first_counts() -> None:
    other = {"choices": [{"index": 1, "delta": {"content": "other"}, "finish_reason": "stop"}]}
    assert read(stream(delta(content="a"), other, delta(content="b"))).text == "ab"


PART, GARBLED = (
    stream(delta(content="score: 5"), delta(content="0"), done=False),
    b"data: {oops}\n\n",
)
ERROR = {"error": {"message": "CUDA out of memory", "code": 500}}


@pytest.mark.parametrize(
    ("body", "cut", "kind"),
    [
        (PART, False, ErrorKind.TRUNCATED),
        (PART + b'data: {"choices": [{"del', True, ErrorKind.TRUNCATED),
        (b": hello\n\n", True, ErrorKind.CONNECTION),
        (b"", True, ErrorKind.CONNECTION),
        (stream(delta(content="score: 5"), ERROR), False, ErrorKind.SERVER_ERROR),
        (PART + GARBLED + stream(), False, ErrorKind.SERVER_ERROR),
        (stream(), False, ErrorKind.SERVER_ERROR),
    ],
)
def test_a_stream_without_its_end_is_a_failure(body: bytes, cut: bool, kind: ErrorKind) -> None:
    with pytest.raises(GradingFailure) as caught:
        read(body, cut=cut)
    assert caught.value.kind is kind
    assert "score" not in str(caught.value)


def test_after_its_finish_reason_nothing_of_a_stream_is_missed_but_usage() -> None:
    reply = read(stream(delta(content="a", finish_reason="stop"), done=False), cut=True)
    assert (reply.text, reply.ignored) == ("a", ("usage",))


def test_a_server_that_does_not_stream_after_all_is_understood() -> None:
    whole = {"choices": [{"message": {"content": "ok"}, "finish_reason": "stop"}]}
    assert read(json.dumps(whole).encode()).text == "ok"
    streamed = stream(delta(content="ok", finish_reason="stop"))
    assert read(streamed, stream=False).text == "ok"


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (b": ping\n\ndata: a\n\ndata:b\n\n", [b"a", b"b"]),
        (b"data: a\r\n\r\ndata: b\r\n\r\n", [b"a", b"b"]),
        (b"data: a\r\rdata: b\r\r", [b"a", b"b"]),
        (b"\xef\xbb\xbfevent: message\nid: 7\ndata: a\ndata: b\n\n", [b"a\nb"]),
        (b"data\n\ndatabase: x\n\n", []),
    ],
)
def test_events_are_read_as_servers_write_them(body: bytes, found: list[bytes]) -> None:
    assert list(parse_events(body)) == found
