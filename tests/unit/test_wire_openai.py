"""The chat-completions wire: what goes out, and what all kinds of replies are read as."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from adjudge.errors import ErrorKind, GradingFailure
from adjudge.judges.base import ChatCall, HttpResponse, Reply
from adjudge.judges.presets import PRESETS
from adjudge.judges.wire.openai import OpenAIWire
from adjudge.types import Usage

MESSAGES = [{"role": "user", "content": "How good is it?"}]
SCHEMA = {
    "type": "object",
    "properties": {"score": {"type": "number"}},
    "required": ["score"],
    "additionalProperties": False,
}


def call(**more: Any) -> ChatCall:
    return ChatCall(model="m", messages=MESSAGES, **more)


def sent(wire: OpenAIWire, **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(wire.request(call(**more)).body)
    return found


def completion(message: Any = None, **more: Any) -> dict[str, Any]:
    message = {"role": "assistant", "content": "ok"} if message is None else message
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    choice |= {k: more.pop(k) for k in ("finish_reason", "logprobs") if k in more}
    usage = {"prompt_tokens": 10, "completion_tokens": 2}
    return {"id": "x", "model": "m-1", "choices": [choice], "usage": usage} | more


def read(body: Any, *, status: int = 200, cut: bool = False, **more: Any) -> Reply:
    asked = more.pop("asked", call())
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    response = HttpResponse(status=status, headers=more.pop("headers", {}), body=data, cut=cut)
    return OpenAIWire(key="sk-secret", **more).reply(asked, response)


def failure(body: Any, **more: Any) -> GradingFailure:
    with pytest.raises(GradingFailure) as caught:
        read(body, **more)
    return caught.value


# -- requests ------------------------------------------------------------------------------------


def test_the_plain_request() -> None:
    request = OpenAIWire(key="sk-secret").request(call(sampling={"temperature": 0.5, "top_p": 1}))
    assert request.path == "/chat/completions"
    assert request.headers["authorization"] == "Bearer sk-secret"
    assert request.headers["content-type"] == "application/json"
    assert json.loads(request.body) == {
        "model": "m",
        "messages": MESSAGES,
        "temperature": 0.5,
        "top_p": 1,
    }
    assert "authorization" not in OpenAIWire().request(call()).headers


def test_a_schema_is_strict_only_when_closed_all_through() -> None:
    form = sent(OpenAIWire(), schema=SCHEMA)["response_format"]
    assert form["type"] == "json_schema"
    assert form["json_schema"] == {"name": "verdict", "schema": SCHEMA, "strict": True}
    open_inside = SCHEMA | {"properties": {"score": {"type": "object", "properties": {}}}}
    optional = SCHEMA | {"required": []}
    for schema in (open_inside, optional, {"type": "object"}):
        form = sent(OpenAIWire(), schema=schema)["response_format"]
        assert form["json_schema"]["strict"] is False
    named = sent(OpenAIWire(), schema=SCHEMA | {"title": "Marks"})["response_format"]
    assert named["json_schema"]["name"] == "Marks"


def test_reasons_are_bounded_where_the_server_holds_them_to_it() -> None:
    mark = {"type": "object", "properties": {"reason": {"type": "string"}, "n": {"type": "string"}}}
    own = {"properties": {"reason": {"type": "string", "maxLength": 9}, "items": [mark]}}
    assert sent(OpenAIWire(), schema=own)["response_format"]["json_schema"]["schema"] == own
    form = sent(OpenAIWire(PRESETS["llamacpp"]), schema=own)["response_format"]["json_schema"]
    bound = {"reason": {"type": "string", "maxLength": 1000}, "n": {"type": "string"}}
    inner = {"type": "object", "properties": bound}
    assert form["schema"] == {"properties": {**own["properties"], "items": [inner]}}


def test_more_likely_tokens_are_asked_for_beside_choices_and_only_choices_kept() -> None:
    llamacpp = OpenAIWire(PRESETS["llamacpp"])
    asked = call(logprobs=True, choices=["1", "2"])
    assert sent(llamacpp, logprobs=True)["top_logprobs"] == 20
    assert sent(llamacpp, logprobs=True, choices=["1", "2"])["top_logprobs"] == 1000
    top = [{"token": f"w{place}", "logprob": -1.0 - place} for place in range(30)]
    top += [{"token": " 2", "logprob": -40.0}]
    listed = {"content": [{"token": "w0", "logprob": -1.0, "top_logprobs": top}]}
    [token] = read(completion(logprobs=listed), asked=asked).logprobs or []
    assert list(token.top) == [*(f"w{place}" for place in range(20)), " 2"]
    own = call(logprobs=True, sampling={"top_logprobs": 25})
    [token] = read(completion(logprobs=listed), asked=own).logprobs or []
    assert len(token.top) == 25


def test_choices_go_where_the_server_has_them() -> None:
    choices = ("A", "B+", "a b-c")
    assert sent(OpenAIWire(PRESETS["vllm"]), choices=choices)["structured_outputs"] == {
        "choice": ["A", "B+", "a b-c"]
    }
    assert sent(OpenAIWire(PRESETS["sglang"]), choices=choices)["regex"] == r"(A|B\+|a b-c)"
    assert set(sent(OpenAIWire(), choices=choices)) == {"model", "messages"}


def test_streams_ask_for_usage() -> None:
    request = OpenAIWire(stream=True).request(call())
    body = json.loads(request.body)
    assert body["stream"] is True
    assert body["stream_options"] == {"include_usage": True}
    bare = OpenAIWire(stream=True, features=frozenset())
    assert "stream_options" not in sent(bare)


def test_draws_with_a_seed_are_different_draws() -> None:
    assert sent(OpenAIWire(), sampling={"seed": 5}, draw=0)["seed"] == 5
    assert sent(OpenAIWire(), sampling={"seed": 5}, draw=3)["seed"] == 8
    assert "seed" not in sent(OpenAIWire(), draw=3)


@pytest.mark.parametrize("content", ["\ud800", object(), [1j]])
def test_what_cannot_be_sent_is_invalid_input(content: Any) -> None:
    asked = ChatCall(model="m", messages=[{"role": "user", "content": content}])
    problem = "surrogate" if content == "\ud800" else "no JSON"
    with pytest.raises(GradingFailure, match=problem) as caught:
        OpenAIWire().request(asked)
    assert caught.value.kind is ErrorKind.INVALID_INPUT


def test_nesting_without_end_is_invalid_input() -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(GradingFailure, match="nested"):
        OpenAIWire().request(call(sampling={"extra": deep}))
    while deep:  # freed step by step: the interpreter's own way is recursive
        deep = deep[0]


# -- replies -------------------------------------------------------------------------------------


def test_the_plain_reply() -> None:
    usage = {"prompt_tokens": 10, "completion_tokens": 2}
    usage |= {"prompt_tokens_details": {"cached_tokens": 4}}  # type: ignore[dict-item]
    assert read(completion(usage=usage)) == Reply(
        text="ok",
        finish_reason="stop",
        usage=Usage(input_tokens=10, output_tokens=2, cached_tokens=4),
        model="m-1",
    )


@pytest.mark.parametrize(
    ("message", "text", "reasoning"),
    [
        ({"content": None}, "", ""),
        ({"content": None, "tool_calls": [{"id": "1"}]}, "", ""),
        ({"content": "a", "refusal": ""}, "a", ""),
        ({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, "ab", ""),
        ({"content": "a", "reasoning_content": "why"}, "a", "why"),
        ({"content": "a", "reasoning": "why"}, "a", "why"),
        ({"content": "a", "reasoning_content": None, "reasoning": "why"}, "a", "why"),
        ({"content": "<think>why</think>\n\na"}, "a", "why"),
        ({"content": "why</think>a"}, "a", "why"),
        ({"content": "<think>he wrote </think><s>5</s> but</think>a"}, "a", None),
        ({"content": "\n<think>why"}, "", "why"),
        ({"content": "<think>x</think><think>y"}, "", "x\ny"),
        ({"content": "it has no <think> tag"}, "it has no <think> tag", ""),
        (
            {"content": "its </think> is lost", "reasoning_content": "w"},
            "its </think> is lost",
            "w",
        ),
        ({"content": "<think>more</think>a", "reasoning_content": "w"}, "a", "w\nmore"),
        (
            {
                "content": [
                    {"type": "thinking", "thinking": [{"type": "text", "text": "why"}]},
                    {"type": "text", "text": "a"},
                ]
            },
            "a",
            "why",
        ),
        ({"content": [None, 3, {"type": "text", "text": None}, "a"]}, "a", ""),
    ],
)
def test_text_and_reasoning_are_kept_apart(
    message: dict[str, Any], text: str, reasoning: str | None
) -> None:
    reply = read(completion(message))
    assert reply.text == text
    if reasoning is not None:
        assert reply.reasoning == reasoning


def test_a_reply_at_its_limit_is_a_reply() -> None:
    reply = read(completion({"content": '{"sc'}, finish_reason="length"), asked=call(schema=SCHEMA))
    assert (reply.text, reply.finish_reason, reply.ignored) == ('{"sc', "length", ())


def test_of_several_choices_the_first_counts() -> None:
    body = completion()
    body["choices"].append({"index": 1, "message": {"content": "other"}})
    assert read(body).text == "ok"


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (completion({"content": None, "refusal": "I cannot"}), ErrorKind.REFUSED),
        (completion({"content": [{"type": "refusal", "refusal": "no"}]}), ErrorKind.REFUSED),
        (completion({"content": "par"}, finish_reason="content_filter"), ErrorKind.REFUSED),
        (completion({"content": "par"}, finish_reason="error"), ErrorKind.SERVER_ERROR),
        ({"choices": []}, ErrorKind.SERVER_ERROR),
        ({}, ErrorKind.SERVER_ERROR),
        ([], ErrorKind.SERVER_ERROR),
        (b"", ErrorKind.SERVER_ERROR),
        (b"<html><body>502 Bad Gateway</body></html>", ErrorKind.SERVER_ERROR),
        (json.dumps(completion()).encode()[:-9], ErrorKind.SERVER_ERROR),
        (json.dumps(completion()).encode() * 2, ErrorKind.SERVER_ERROR),
        (b"[" * 100_000, ErrorKind.SERVER_ERROR),
        (b'{"choices": "\xff"}', ErrorKind.SERVER_ERROR),
        ({"error": {"message": "overloaded", "code": 503}}, ErrorKind.SERVER_ERROR),
        ({"error": {"type": "rate_limit_error", "message": ""}}, ErrorKind.RATE_LIMITED),
        ({"error": {"code": 429, "message": "slow down"}}, ErrorKind.RATE_LIMITED),
        ({"error": {"code": "insufficient_quota"}}, ErrorKind.BUDGET),
        ({"error": {"code": "data_inspection_failed"}}, ErrorKind.REFUSED),
    ],
)
def test_a_200_that_is_no_answer(body: Any, kind: ErrorKind) -> None:
    found = failure(body)
    assert found.kind is kind
    assert found.metadata["status"] == 200


def test_a_refusals_words_stay_out_of_the_message() -> None:
    found = failure(completion({"content": None, "refusal": "private words"}))
    assert "private" not in str(found)


def test_a_cut_body_is_a_failed_connection() -> None:
    found = failure(json.dumps(completion()).encode(), cut=True)
    assert found.kind is ErrorKind.CONNECTION


# -- what was ignored ----------------------------------------------------------------------------

LOGPROBS = {
    "content": [
        {
            "token": "A",
            "logprob": -0.1,
            "top_logprobs": [
                {"token": "A", "logprob": -0.1},
                {"token": "B", "logprob": None},
                {"token": "A", "logprob": -3},
            ],
        }
    ]
}


def test_logprobs_come_with_the_likeliest_tokens() -> None:
    reply = read(completion(logprobs=LOGPROBS), asked=call(logprobs=True))
    assert reply.ignored == ()
    assert reply.logprobs is not None
    token = reply.logprobs[0]
    assert (token.token, token.logprob, token.top) == ("A", -0.1, {"A": -0.1, "B": -math.inf})
    assert read(completion(logprobs=LOGPROBS)).logprobs is None


@pytest.mark.parametrize(
    "logprobs",
    [
        None,
        {},
        {"content": None},
        {"content": []},
        {"content": [{"token": "A", "logprob": -1}]},
        {"content": [{"token": 1}]},
        [],
        "x",
    ],
)
def test_logprobs_that_did_not_come_are_ignored_ones(logprobs: Any) -> None:
    reply = read(completion(logprobs=logprobs), asked=call(logprobs=True))
    assert reply.logprobs is None
    assert reply.ignored == ("logprobs",)


@pytest.mark.parametrize(
    ("text", "asked", "ignored"),
    [
        ('{"score": 1}', call(schema=SCHEMA), ()),
        (' {"score": 1, "more": [2]}\n', call(schema=SCHEMA), ()),
        ('{"reason": 1}', call(schema=SCHEMA), ("schema",)),
        ("I think 4", call(schema=SCHEMA), ("schema",)),
        ('```json\n{"score": 1}\n```', call(schema=SCHEMA), ("schema",)),
        ("[1]", call(schema=SCHEMA), ("schema",)),
        ("[1]", call(schema={"type": "array"}), ()),
        ("[" * 100_000, call(schema={"type": "array"}), ("schema",)),
        ("A", call(choices=["A", "B"]), ()),
        (" A\n", call(choices=["A", "B"]), ()),
        ("A.", call(choices=["A", "B"]), ("choices",)),
        ("", call(choices=["A", "B"], schema=SCHEMA), ()),
    ],
)
def test_schema_and_choices_are_checked(
    text: str, asked: ChatCall, ignored: tuple[str, ...]
) -> None:
    assert read(completion({"content": text}), asked=asked).ignored == ignored


@pytest.mark.parametrize(
    "usage",
    [None, {}, [], {"prompt_tokens": None}, {"prompt_tokens": -1}, {"prompt_tokens": True}],
)
def test_missing_usage_is_told(usage: Any) -> None:
    reply = read(completion(usage=usage))
    assert (reply.usage, reply.ignored) == (None, ("usage",))


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ({"prompt_tokens": 3}, Usage(input_tokens=3)),
        ({"prompt_tokens": 3.0, "completion_tokens": "4"}, Usage(input_tokens=3)),
        ({"prompt_tokens": 3, "prompt_tokens_details": None}, Usage(input_tokens=3)),
        (
            {"prompt_tokens": 3, "prompt_tokens_details": {"cached_tokens": 9}},
            Usage(input_tokens=3, cached_tokens=3),
        ),
        (
            {"prompt_tokens": 3, "prompt_cache_hit_tokens": 2},
            Usage(input_tokens=3, cached_tokens=2),
        ),
    ],
)
def test_usage_as_servers_write_it(usage: Any, expected: Usage) -> None:
    assert read(completion(usage=usage)).usage == expected
