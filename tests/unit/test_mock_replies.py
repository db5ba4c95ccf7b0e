"""What the mock provider says: behaviours, schemas, and both providers' shapes."""

import math
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adjudge.errors import ConfigError
from adjudge.mock.behaviours import (
    DEFAULT_REPLY,
    FixedBehaviour,
    MockAnswer,
    MockSettings,
    make_behaviour,
    minimal_instance,
    read_script,
)
from adjudge.mock.http import Api, BadRequest, ChatRequest, read_chat_request
from adjudge.mock.responses import (
    ReplyEnvelope,
    provider_error_body,
    response_body,
    response_events,
    split_tokens,
)


def asked(text: str = "hello", api: Api = "openai", **fields: Any) -> ChatRequest:
    body = {"model": "m", "messages": [{"role": "user", "content": text}], **fields}
    if api == "anthropic":
        body.setdefault("max_tokens", 100)
    return read_chat_request(api, msgspec.json.encode(body))


def said(settings: MockSettings, question: ChatRequest) -> str:
    return make_behaviour(settings).answer(question).text


def schema_of(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


def with_schema(schema: dict[str, Any]) -> dict[str, Any]:
    form = {"type": "json_schema", "json_schema": {"name": "v", "schema": schema}}
    return {"response_format": form}


# --- behaviours


def test_the_default_reply() -> None:
    assert said(MockSettings(), asked()) == DEFAULT_REPLY == '{"score": 1, "reason": "mock"}'


def test_the_default_keeps_to_schema_and_choices_and_a_text_of_the_users_does_not() -> None:
    schema = schema_of(score={"type": "integer", "minimum": 3, "maximum": 5})
    in_form = asked(**with_schema(schema))
    in_choices = asked(structured_outputs={"choice": ["no", "yes"]})
    assert msgspec.json.decode(said(MockSettings(), in_form)) == {"score": 5}
    assert said(MockSettings(), in_choices) == "yes"
    assert said(MockSettings(), asked(structured_outputs={"choice": ["0", "1", "2"]})) == "1"
    assert said(MockSettings(), asked(regex=r"(4\.5|a b)")) == "a b"
    assert said(MockSettings(), asked(regex="([0-9]+)")) == DEFAULT_REPLY
    for question in (in_form, in_choices):
        assert said(MockSettings(reply="prose"), question) == "prose"


def test_rubric_counts_keywords_of_the_last_user_message() -> None:
    settings = MockSettings(keywords=("Refund", "sorry", "voucher"))
    found = msgspec.json.decode(said(settings, asked("We are SORRY; a refund comes, a refund.")))
    assert found == {"score": 2, "reason": "2 of 3 keywords: Refund, sorry"}
    assert msgspec.json.decode(said(settings, asked("no")))["score"] == 0
    scale = schema_of(score={"type": "integer", "minimum": 1, "maximum": 4})
    all_three = asked("refund sorry voucher", **with_schema(scale))
    assert msgspec.json.decode(said(settings, all_three)) == {"score": 3}
    none = asked("no", **with_schema(scale))
    assert msgspec.json.decode(said(settings, none)) == {"score": 1}
    answers = ["bad", "fair", "good", "best"]
    for text, choice in (("no", "bad"), ("sorry refund", "good"), ("sorry refund voucher", "best")):
        assert said(settings, asked(text, structured_outputs={"choice": answers})) == choice


def test_length_likes_longer_answers() -> None:
    settings = MockSettings(behaviour="length")
    scores = [msgspec.json.decode(said(settings, asked("x" * n)))["score"] for n in
              (0, 10, 1000, 9000)]  # fmt: skip
    assert scores == [1, pytest.approx(1.089), 5.5, 9.1]


def test_echo_and_text_parts() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {}},
             {"type": "text", "text": "b"}]  # fmt: skip
    messages = [{"role": "user", "content": "old"}, {"role": "user", "content": parts},
                {"role": "assistant", "content": "x"}]  # fmt: skip
    question = read_chat_request("openai", msgspec.json.encode({"messages": messages}))
    assert said(MockSettings(behaviour="echo"), question) == "ab"


def test_a_script_is_followed_in_order_and_by_key(tmp_path: Path) -> None:
    path = tmp_path / "script.jsonl"
    path.write_text(
        '"first"\n\n{"reply": {"score": 2}}\n{"reply": "keyed", "when": "loop", "finish": "length"}'
    )
    behaviour = make_behaviour(MockSettings(script=str(path)))
    texts = [behaviour.answer(asked(text)).text for text in ("a", "a loop", "b", "c")]
    assert texts == ["first", "keyed", '{"score":2}', "first"]
    assert behaviour.answer(asked("loop")).finish == "length"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('"a"\n{"reply": ', r"s\.jsonl:2"),
        ('{"answer": "x"}', r"s\.jsonl:1"),
        ("7", r"s\.jsonl:1"),
        ('{"reply": "x", "finish": "done"}', "finish: unknown finish reason"),
        ("\n", "has no rows"),
    ],
)
def test_a_wrong_script_is_explained(tmp_path: Path, text: str, complaint: str) -> None:
    (tmp_path / "s.jsonl").write_text(text)
    with pytest.raises(ConfigError, match=complaint):
        read_script(tmp_path / "s.jsonl")


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        (MockSettings(behaviour="rubrik"), "did you mean 'rubric'"),
        (MockSettings(behaviour="rubric"), "--keyword"),
        (MockSettings(behaviour="scripted"), "--script"),
        (MockSettings(behaviour="length", reply="x"), "--reply: needs --behaviour fixed"),
        (MockSettings(script="none.jsonl"), "cannot be read"),
    ],
)
def test_a_wrong_behaviour_is_explained(settings: MockSettings, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        make_behaviour(settings)


# --- requests


@pytest.mark.parametrize(
    ("api", "body"),
    [
        ("openai", b"{"),
        ("openai", b"[]"),
        ("openai", b'{"model": "m"}'),
        ("openai", b'{"messages": "hello"}'),
        ("openai", b'{"messages": [], "stream": "yes"}'),
        ("openai", b'{"messages": [' + b"[" * 100_000),
        ("anthropic", b'{"messages": []}'),
    ],
)
def test_a_body_that_is_no_chat_request_is_refused(api: Api, body: bytes) -> None:
    with pytest.raises(BadRequest) as caught:
        read_chat_request(api, body)
    assert caught.value.status == 400


def test_what_is_asked_for_is_found() -> None:
    schema = schema_of(score={"type": "integer"})
    assert asked(**with_schema(schema)).schema == schema
    assert asked(structured_outputs={"json": schema}).schema == schema
    assert asked(logprobs=True, top_logprobs=5).logprobs == 5
    assert asked(logprobs=False, top_logprobs=5).logprobs is None
    assert asked(api="anthropic", output_config={"format": {"schema": schema}}).schema == schema
    tool = {"name": "verdict", "input_schema": schema}
    called = asked(api="anthropic", tools=[tool], tool_choice={"type": "tool", "name": "verdict"})
    assert (called.tool, called.schema) == ("verdict", schema)


# --- schemas


@pytest.mark.parametrize(
    "schema",
    [
        schema_of(score={"type": "number", "minimum": -1, "maximum": 0.5}, why={"type": "string"}),
        schema_of(
            n={"type": "integer", "exclusiveMinimum": 3},
            s={"type": "string", "minLength": 8, "maxLength": 9},
        ),
        schema_of(n={"type": "integer", "maximum": -4}, b={"type": "boolean"}),
        schema_of(x={"type": "number", "exclusiveMaximum": 0.25}, c={"const": [1]}),
        schema_of(
            v={"enum": ["a", "b"]}, l={"type": "array", "items": {"type": "null"}, "minItems": 2}
        ),
        {"$defs": {"v": schema_of(a={"type": ["string", "null"]})}, "$ref": "#/$defs/v"},
        schema_of(a={"anyOf": [{"type": "integer"}, {"type": "null"}]}),
        {"type": "object"},
    ],
)
@pytest.mark.parametrize("share", [0.0, 0.4, 1.0])
def test_instances_are_valid(schema: dict[str, Any], share: float) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.validate(minimal_instance(schema, share), schema)


def test_a_schema_that_refers_to_itself_ends() -> None:
    branches = {name: {"$ref": "#"} for name in "abcd"}
    schema = schema_of(**branches)
    assert isinstance(minimal_instance(schema), dict)
    assert minimal_instance({"$ref": "#"}) is None
    assert minimal_instance({"$ref": 3}) is None


# --- shapes


@given(st.text(max_size=200))
def test_tokens_join_to_the_text(text: str) -> None:
    assert "".join(split_tokens(text)) == text


ENVELOPE = ReplyEnvelope(7, "mock-1", 1_700_000_000)


def shaped(api: Api, answer: MockAnswer, question: ChatRequest) -> dict[str, Any]:
    body: dict[str, Any] = msgspec.json.decode(response_body(api, answer, question, ENVELOPE))
    return body


def test_openai_shape() -> None:
    question = asked("hello")
    body = shaped("openai", MockAnswer("ok 5", "hm"), question)
    assert body["id"] == "chatcmpl-mock-7"
    assert body["object"] == "chat.completion"
    assert body["model"] == "mock-1"
    (choice,) = body["choices"]
    assert choice["message"] == {
        "role": "assistant", "content": "ok 5", "refusal": None, "reasoning_content": "hm",
    }  # fmt: skip
    assert choice["finish_reason"] == "stop"
    assert choice["logprobs"] is None
    usage = body["usage"]
    assert usage["prompt_tokens"] == math.ceil(question.size / 4)
    assert usage["completion_tokens"] == 4
    assert usage["total_tokens"] == usage["prompt_tokens"] + 4


def test_logprobs_over_choices_sum_to_one() -> None:
    question = asked(
        logprobs=True, top_logprobs=20, structured_outputs={"choice": ["A", "B", "tie"]}
    )
    answer = FixedBehaviour().answer(question)
    (token,) = shaped("openai", answer, question)["choices"][0]["logprobs"]["content"]
    assert token["token"] == answer.text == "tie"
    assert token["bytes"] == list(b"tie")
    probabilities = {one["token"]: math.exp(one["logprob"]) for one in token["top_logprobs"]}
    assert probabilities == pytest.approx({"tie": 0.75, "A": 0.125, "B": 0.125})


def test_logprobs_of_text_cover_it_and_keep_to_the_number_asked_for() -> None:
    question = asked(logprobs=True, top_logprobs=2)
    content = shaped("openai", MockAnswer("is 4é"), question)["choices"][0]["logprobs"]["content"]
    assert "".join(token["token"] for token in content) == "is 4é"
    assert all(token["logprob"] <= 0 for token in content)
    assert [len(token["top_logprobs"]) for token in content] == [1, 1, 2, 1]
    bare = shaped("openai", MockAnswer("4"), asked(logprobs=True))["choices"][0]["logprobs"][
        "content"
    ]
    assert bare[0]["top_logprobs"] == []


def test_an_openai_stream_joins_to_the_body() -> None:
    question = asked(stream=True, stream_options={"include_usage": True}, logprobs=True)
    answer = MockAnswer('{"score": 4}', "let me see", "length")
    *events, done = response_events("openai", answer, question, ENVELOPE)
    assert done == b"data: [DONE]\n\n"
    chunks = [msgspec.json.decode(event.removeprefix(b"data: ")) for event in events]
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert {chunk["id"] for chunk in chunks} == {"chatcmpl-mock-7"}
    *ordinary, usage = chunks
    assert usage["choices"] == []
    assert usage["usage"] == shaped("openai", answer, question)["usage"]
    deltas = [chunk["choices"][0]["delta"] for chunk in ordinary]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert "".join(delta.get("content", "") for delta in deltas) == answer.text
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == answer.reasoning
    finishes = [chunk["choices"][0]["finish_reason"] for chunk in ordinary]
    assert finishes == [None] * (len(finishes) - 1) + ["length"]
    assert "usage" not in ordinary[-1]
    counted = [chunk["choices"][0]["logprobs"] for chunk in ordinary]
    assert sum(len(one["content"]) for one in counted if one) == len(split_tokens(answer.text))


def test_anthropic_shape() -> None:
    body = shaped("anthropic", MockAnswer("ok 5", "hm"), asked(api="anthropic"))
    assert (body["type"], body["role"], body["id"]) == ("message", "assistant", "msg_mock-7")
    assert [block["type"] for block in body["content"]] == ["thinking", "text"]
    assert body["stop_reason"] == "end_turn"
    assert body["usage"]["output_tokens"] == 4
    cut = shaped("anthropic", MockAnswer("ok", finish="length"), asked(api="anthropic"))
    assert cut["stop_reason"] == "max_tokens"


def test_an_anthropic_tool_that_is_insisted_on_is_called() -> None:
    schema = schema_of(score={"type": "integer", "minimum": 2, "maximum": 9})
    question = asked(
        api="anthropic",
        tools=[{"name": "verdict", "input_schema": schema}],
        tool_choice={"type": "tool", "name": "verdict"},
    )
    answer = FixedBehaviour().answer(question)
    body = shaped("anthropic", answer, question)
    (block,) = body["content"]
    assert (block["type"], block["name"], block["input"]) == ("tool_use", "verdict", {"score": 9})
    assert body["stop_reason"] == "tool_use"
    events = sent_events(response_events("anthropic", answer, question, ENVELOPE))
    parts = [e["delta"]["partial_json"] for e in events if e["type"] == "content_block_delta"]
    assert msgspec.json.decode("".join(parts)) == {"score": 9}


def sent_events(events: list[bytes]) -> list[dict[str, Any]]:
    found = []
    for event in events:
        name, data, end = event.split(b"\n", 2)
        assert end == b"\n"
        value = msgspec.json.decode(data.removeprefix(b"data: "))
        assert name == b"event: " + value["type"].encode()
        found.append(value)
    return found


def test_an_anthropic_stream_joins_to_the_body() -> None:
    answer = MockAnswer("ok, 5", "hm so")
    events = sent_events(
        response_events("anthropic", answer, asked(api="anthropic", stream=True), ENVELOPE)
    )
    kinds = [event["type"] for event in events]
    assert kinds[0] == "message_start"
    assert kinds[-2:] == ["message_delta", "message_stop"]
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    assert "".join(delta.get("text", "") for delta in deltas) == answer.text
    assert "".join(delta.get("thinking", "") for delta in deltas) == answer.reasoning
    assert events[-2]["delta"]["stop_reason"] == "end_turn"
    assert events[-2]["usage"]["output_tokens"] == 7


def test_refusals() -> None:
    body = shaped("openai", MockAnswer("", finish="refusal"), asked())
    message = body["choices"][0]["message"]
    assert message["content"] is None
    assert message["refusal"]
    assert body["choices"][0]["finish_reason"] == "stop"
    filtered = shaped("openai", MockAnswer("", finish="content_filter"), asked())["choices"][0]
    assert (filtered["message"]["content"], filtered["finish_reason"]) == ("", "content_filter")
    anthropic = shaped("anthropic", MockAnswer("", finish="refusal"), asked(api="anthropic"))
    assert (anthropic["content"], anthropic["stop_reason"]) == ([], "refusal")


def test_errors_have_each_providers_words() -> None:
    assert msgspec.json.decode(provider_error_body("openai", 429, "slow"))["error"] == {
        "message": "slow", "type": "requests", "param": None, "code": "rate_limit_exceeded",
    }  # fmt: skip
    money = msgspec.json.decode(provider_error_body("openai", 429, "pay", money=True))["error"]
    assert money["code"] == "insufficient_quota"
    overloaded = msgspec.json.decode(provider_error_body("anthropic", 529, "busy"))
    assert overloaded == {
        "type": "error", "error": {"type": "overloaded_error", "message": "busy"},
    }  # fmt: skip
