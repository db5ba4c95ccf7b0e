"""Whatever a server sends, a wire says one of two things: a reply, or why there is none."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, strategies as st

from adjudge.errors import GradingFailure
from adjudge.judges.base import ChatCall, HttpResponse, Reply, Wire
from adjudge.judges.presets import PRESETS
from adjudge.judges.wire.anthropic import AnthropicWire
from adjudge.judges.wire.openai import OpenAIWire, parse_events
from adjudge.text import split_thinking

CALL = ChatCall(
    model="m",
    messages=[{"role": "user", "content": "x"}],
    schema={"type": "object", "required": ["score"]},
    choices=["A"],
    logprobs=True,
)
WIRES: list[Wire] = [OpenAIWire(), OpenAIWire(stream=True), AnthropicWire()]

# Keys that the formats use, so that nonsense reaches every branch.
KEYS = [
    "choices", "message", "delta", "content", "text", "type", "thinking", "reasoning_content",
    "refusal", "logprobs", "top_logprobs", "token", "logprob", "usage", "prompt_tokens", "index",
    "prompt_tokens_details", "cached_tokens", "error", "code", "object", "detail", "param", "model",
    "finish_reason", "stop_reason", "input_tokens", "cache_read_input_tokens", "tool_calls",
]  # fmt: skip
VALUES = ["text", "error", "content_filter", "stop", "refusal", "insufficient_quota", "<think>"]
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(VALUES),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner),
    max_leaves=20,
)
statuses = st.integers(0, 999) | st.sampled_from([200, 200, 200, 201, 302, 400, 401, 403, 429, 500])
headers = st.dictionaries(
    st.sampled_from(["content-type", "retry-after", "x-ratelimit-reset-tokens"]),
    st.sampled_from(["text/event-stream", "application/json", "1", "\x00"]),
)


def outcome(wire: Wire, status: int, body: bytes, headers: Any, cut: bool) -> None:
    response = HttpResponse(status=status, headers=headers, body=body, cut=cut)
    found: Reply | GradingFailure
    try:
        found = wire.reply(CALL, response)
    except GradingFailure as failure:
        found = failure
    if isinstance(found, GradingFailure):
        assert found.metadata["status"] == status
        assert len(str(found)) < 400
    else:
        assert 200 <= status < 300
        assert isinstance(found.text, str)
        assert isinstance(found.reasoning, str)


@given(st.sampled_from(WIRES), statuses, json_values, headers, st.booleans())
def test_any_json(wire: Wire, status: int, body: Any, headers: Any, cut: bool) -> None:
    outcome(wire, status, json.dumps(body).encode(), headers, cut)


@given(json_values, json_values, st.sampled_from(["stop", None, 3, "length"]))
def test_any_message(message: Any, logprobs: Any, finish: Any) -> None:
    choice = {"message": message, "logprobs": logprobs, "finish_reason": finish}
    body = {"choices": [choice], "usage": message}
    outcome(WIRES[0], 200, json.dumps(body).encode(), {}, False)
    body = {"content": [message, logprobs], "usage": message, "stop_reason": finish}
    outcome(WIRES[2], 200, json.dumps(body).encode(), {}, False)


@given(st.lists(json_values, max_size=4), st.booleans(), st.booleans())
def test_any_stream(chunks: list[Any], done: bool, cut: bool) -> None:
    wrapped = [
        {"choices": [{"delta": chunk, "logprobs": chunk}]} if i % 2 else chunk
        for i, chunk in enumerate(chunks)
    ]
    body = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in wrapped)
    outcome(WIRES[1], 200, (body + "data: [DONE]\n\n" * done).encode(), {}, cut)


@given(st.text(st.characters(exclude_categories=["Cs"])), st.data())
def test_a_stream_says_what_the_whole_reply_says(text: str, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=5)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    chunks: list[Any] = [{"choices": [{"delta": {"content": piece}}]} for piece in pieces]
    chunks.append({"choices": [{"delta": {}, "finish_reason": "stop"}]})
    streamed = "".join(f"data: {json.dumps(chunk)}\r\n\r\n" for chunk in chunks) + "data: [DONE]"
    whole = json.dumps({"choices": [{"message": {"content": text}, "finish_reason": "stop"}]})
    replies = [
        WIRES[0].reply(CALL, HttpResponse(status=200, headers={}, body=body.encode()))
        for body in (streamed, whole)
    ]
    assert replies[0] == replies[1]


@given(st.lists(st.binary(min_size=1).filter(lambda b: not set(b) & set(b"\r\n")), max_size=5))
def test_events_come_out_as_they_went_in(payloads: list[bytes]) -> None:
    body = b"".join(b"data: " + payload + b"\n\n" for payload in payloads)
    assert list(parse_events(body)) == payloads
    assert list(parse_events(body, cut=True)) == payloads


@given(st.text(), st.text())
def test_thinking_never_passes_for_text(thought: str, text: str) -> None:
    found, reasoning = split_thinking(f"<think>{thought}</think>{text}")
    if "think>" not in text:
        assert found == text.strip()
        assert reasoning == thought.strip().removeprefix("<think>").strip() or "<think>" in thought
    assert split_thinking(f"<think>{thought}".replace("</think>", ""))[0] == ""


messages = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["system", "user", "assistant", "tool"])},
        optional={
            "content": st.none()
            | st.text()
            | st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": st.text()})),
            "tool_calls": st.none()
            | st.lists(
                st.fixed_dictionaries(
                    {
                        "function": st.fixed_dictionaries(
                            {"name": st.text(), "arguments": st.text() | st.none()}
                        )
                    }
                )
            ),
        },
    )
    | st.dictionaries(st.sampled_from(["role", "content"]), json_values),
    max_size=4,
)


@given(messages, st.sampled_from([*WIRES, OpenAIWire(PRESETS["sglang"])]))
def test_any_messages_become_json_or_a_failure(messages: Any, wire: Any) -> None:
    call = ChatCall(model="m", messages=messages, choices=["a", "(b"], draw=2)
    try:
        body = wire.request(call).body
    except GradingFailure as failure:
        body = json.dumps({"model": str(failure.kind)}).encode()
    assert json.loads(body)["model"] in {"m", "invalid_input", "unsupported"}
