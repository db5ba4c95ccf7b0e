"""The Messages wire: OpenAI's chat format out, Anthropic's replies in."""

from __future__ import annotations

import json
from typing import Any

import pytest

from adjudge.errors import GradingFailure
from adjudge.judges.base import ChatCall, HttpResponse, Reply
from adjudge.judges.wire.anthropic import AnthropicWire
from adjudge.types import Usage

USER = {"role": "user", "content": "How good is it?"}
SCHEMA = {"type": "object", "required": ["score"]}


def sent(messages: list[Any], **more: Any) -> dict[str, Any]:
    asked = ChatCall(model="c", messages=messages, **more)
    found: dict[str, Any] = json.loads(AnthropicWire("k").request(asked).body)
    return found


def message(*content: Any, **more: Any) -> dict[str, Any]:
    usage = {"input_tokens": 5, "output_tokens": 2}
    blocks = list(content) or [{"type": "text", "text": "ok"}]
    found = {"type": "message", "role": "assistant", "model": "c-1", "stop_reason": "end_turn"}
    return found | {"content": blocks, "usage": usage} | more


def read(body: Any, *, status: int = 200, cut: bool = False, **asked: Any) -> Reply:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    call = ChatCall(model="c", messages=[USER], **asked)
    response = HttpResponse(status=status, headers={"retry-after": "1"}, body=data, cut=cut)
    return AnthropicWire("k").reply(call, response)


def failure(body: Any, **more: Any) -> GradingFailure:
    with pytest.raises(GradingFailure) as caught:
        read(body, **more)
    return caught.value


def test_the_plain_request() -> None:
    request = AnthropicWire("k").request(ChatCall(model="c", messages=[USER]))
    assert request.path == "/v1/messages"
    assert request.headers["x-api-key"] == "k"
    assert request.headers["anthropic-version"] == "2023-06-01"
    assert "authorization" not in request.headers
    assert json.loads(request.body) == {
        "model": "c",
        "max_tokens": 1024,
        "messages": [{"role": "user", "content": [{"type": "text", "text": "How good is it?"}]}],
    }


def test_system_messages_are_lifted_out_and_cached() -> None:
    body = sent(
        [
            {"role": "system", "content": "Rules"},
            {"role": "developer", "content": [{"type": "text", "text": "Rubric"}]},
            USER,
            {"role": "system", "content": ""},
        ]
    )
    assert body["system"] == [
        {"type": "text", "text": "Rules"},
        {"type": "text", "text": "Rubric", "cache_control": {"type": "ephemeral"}},
    ]
    assert [turn["role"] for turn in body["messages"]] == ["user"]
    own = {"type": "text", "text": "R", "cache_control": {"type": "ephemeral", "ttl": "1h"}}
    body = sent([{"role": "system", "content": [own]}, {"role": "system", "content": "x"}, USER])
    assert body["system"] == [own, {"type": "text", "text": "x"}]


def test_the_callers_messages_are_left_as_they_are() -> None:
    block = {"type": "text", "text": "R"}
    sent([{"role": "system", "content": [block]}, USER])
    assert block == {"type": "text", "text": "R"}


def test_images_are_translated() -> None:
    content = [
        {"type": "text", "text": "look"},
        {"type": "text", "text": ""},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,QUJD"}},
        {"type": "image_url", "image_url": "https://example.com/a.png"},
    ]
    [user] = sent([{"role": "user", "content": content}])["messages"]
    source = {"type": "base64", "media_type": "image/png", "data": "QUJD"}
    assert user["content"] == [
        {"type": "text", "text": "look"},
        {"type": "image", "source": source},
        {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}},
    ]


def test_sampling_gets_the_names_it_has_here() -> None:
    body = sent(
        [USER], sampling={"max_completion_tokens": 7, "stop": "END", "seed": 3, "temperature": 0.0}
    )
    assert body["max_tokens"] == 7
    assert body["stop_sequences"] == ["END"]
    assert body["temperature"] == 0.0
    assert "seed" not in body
    assert "stop" not in body


def test_bounds_that_the_api_answers_with_400_are_not_sent() -> None:
    number = {"type": "number", "minimum": 0, "maximum": 1}
    listed = {"type": "array", "minItems": 3, "maxItems": 3, "items": number}
    properties = {"minimum": number, "places": listed, "some": {"type": "array", "minItems": 1}}
    body = sent([USER], schema={"type": "object", "properties": properties})
    assert body["output_config"]["format"]["schema"]["properties"] == {
        "minimum": {"type": "number"},
        "places": {"type": "array", "items": {"type": "number"}},
        "some": {"type": "array", "minItems": 1},
    }


def test_a_schema_goes_into_the_output_config() -> None:
    body = sent([USER], schema=SCHEMA, sampling={"output_config": {"effort": "low"}})
    form = {"type": "json_schema", "schema": SCHEMA}
    assert body["output_config"] == {"effort": "low", "format": form}
    wire = AnthropicWire("k", features=frozenset())
    asked = ChatCall(model="c", messages=[USER], schema=SCHEMA)
    assert "output_config" not in json.loads(wire.request(asked).body)


@pytest.mark.parametrize(
    ("bad", "kind"),
    [
        ("text", "invalid_input"),
        ({"content": "no role"}, "invalid_input"),
        ({"role": "oracle", "content": "x"}, "unsupported"),
        ({"role": "user", "content": 3}, "invalid_input"),
        ({"role": "user", "content": [3]}, "invalid_input"),
        ({"role": "user", "content": [{"type": "input_audio"}]}, "unsupported"),
        ({"role": "user", "content": [{"type": "image_url"}]}, "invalid_input"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}, "invalid_input"),
        ({"role": "assistant", "tool_calls": [{"function": {}}]}, "unsupported"),
        ({"role": "tool", "content": "out"}, "unsupported"),
    ],
)
def test_what_cannot_be_translated_is_said(bad: Any, kind: str) -> None:
    with pytest.raises(GradingFailure) as caught:
        sent([bad])
    assert caught.value.kind == kind


def test_the_plain_reply() -> None:
    usage = {"input_tokens": 5, "output_tokens": 2}
    usage |= {"cache_read_input_tokens": 100, "cache_creation_input_tokens": 10}
    assert read(message(usage=usage)) == Reply(
        text="ok",
        finish_reason="stop",
        usage=Usage(input_tokens=115, output_tokens=2, cached_tokens=100),
        model="c-1",
    )


def test_thinking_is_kept_apart() -> None:
    blocks = [
        {"type": "thinking", "thinking": "why", "signature": "s"},
        {"type": "redacted_thinking", "data": "x"},
        {"type": "text", "text": "a"},
        {"type": "tool_use", "id": "1", "name": "f", "input": {}},
        {"type": "text", "text": "b"},
    ]
    reply = read(message(*blocks))
    assert (reply.text, reply.reasoning) == ("ab", "why")


@pytest.mark.parametrize(
    ("stop", "finish"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("tool_use", "tool_calls"),
        ("pause_turn", "pause_turn"),
        (None, None),
        (3, None),
    ],
)
def test_finish_reasons(stop: Any, finish: str | None) -> None:
    assert read(message(stop_reason=stop)).finish_reason == finish


def test_what_the_api_lacks_is_marked() -> None:
    reply = read(message(), logprobs=True, schema=SCHEMA, choices=["A"])
    assert reply.ignored == ("logprobs", "schema", "choices")
    assert read(message(usage=None)).ignored == ("usage",)


def test_empty_content_is_an_empty_reply() -> None:
    assert read(message() | {"content": []}).text == ""


@pytest.mark.parametrize(
    ("body", "more", "kind"),
    [
        (message(stop_reason="refusal"), {}, "refused"),
        ({"type": "error", "error": {"type": "overloaded_error"}}, {"status": 529}, "server_error"),
        ({"type": "error", "error": {"type": "rate_limit_error"}}, {"status": 429}, "rate_limited"),
        ({"type": "error", "error": {"type": "authentication_error"}}, {"status": 401}, "auth"),
        ({"type": "error", "error": {"type": "overloaded_error"}}, {}, "server_error"),
        (
            {"error": {"type": "invalid_request_error", "message": "credit balance is too low"}},
            {"status": 400},
            "budget",
        ),
        (
            {"error": {"message": "Output blocked by content filtering policy"}},
            {"status": 400},
            "refused",
        ),
        (message(), {"cut": True}, "connection"),
        ({}, {}, "server_error"),
        ({"content": "text"}, {}, "server_error"),
        ([], {}, "server_error"),
        (b"", {}, "server_error"),
        (b"<html>", {}, "server_error"),
        (b"\xff{", {}, "server_error"),
    ],
)
def test_failures(body: Any, more: dict[str, Any], kind: str) -> None:
    found = failure(body, **more)
    assert found.kind == kind
    assert found.metadata["status"] == more.get("status", 200)
