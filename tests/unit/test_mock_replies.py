"""What the mock provider says, as a client on a real socket sees it."""

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.refusals import refuses
from tests.unit.helpers.mock_client import MESSAGES, ask, run

from adjudge.errors import ConfigError
from adjudge.mock import Server, serve

DEFAULT = '{"score": 1, "reason": "mock"}'
ABC: dict[str, Any] = {"structured_outputs": {"choice": ["bad", "fair", "good", "best"]}}


def asked(text: str = "hello", **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], **fields}


def schema_of(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


def with_schema(**properties: Any) -> dict[str, Any]:
    schema = {"name": "v", "schema": schema_of(**properties)}
    return {"response_format": {"type": "json_schema", "json_schema": schema}}


def answers(*questions: dict[str, Any], **options: Any) -> list[dict[str, Any]]:
    found = []

    async def body(server: Server, session: aiohttp.ClientSession) -> None:
        for question in questions:
            status, _, reply = await ask(server, session, question)
            assert status == 200, reply
            found.append(json.loads(reply))

    run(body, **options)
    return found


def said(*questions: dict[str, Any], **options: Any) -> list[str]:
    replies = answers(*questions, **options)
    return [reply["choices"][0]["message"]["content"] for reply in replies]


SCALE = with_schema(score={"type": "integer", "minimum": 3, "maximum": 5})
YES: dict[str, Any] = {"structured_outputs": {"choice": ["no", "yes"]}}
FOUR = with_schema(score={"type": "integer", "minimum": 1, "maximum": 4})
PARTS = [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {}},
         {"type": "text", "text": "b"}]  # fmt: skip


@pytest.mark.parametrize(
    ("question", "options", "expected"),
    [
        (asked(), {}, DEFAULT),
        (asked(**SCALE), {}, '{"score":5}'),
        (asked(structured_outputs={"json": schema_of(a={"enum": [1, 2]})}), {}, '{"a":2}'),
        (asked(**YES), {}, "yes"),
        (asked(structured_outputs={"choice": ["0", "1", "2"]}), {}, "1"),
        (asked(regex=r"(4\.5|a b)"), {}, "a b"),
        (asked(regex="([0-9]+)"), {}, DEFAULT),
        (asked(**SCALE), {"reply": "prose"}, "prose"),
        (asked(**YES), {"reply": "prose"}, "prose"),
        (asked("no", **FOUR), {"keywords": ("sorry",)}, '{"score":1}'),
        (asked("so SORRY", **FOUR), {"keywords": ("Sorry", "so", "x")}, '{"score":2}'),
        (asked("sorry", **ABC), {"keywords": ("sorry",)}, "best"),
        (asked("no", **ABC), {"keywords": ("sorry",)}, "bad"),
        (asked("so sorry"), {"keywords": ("Sorry", "x")},
         '{"score": 1, "reason": "1 of 2 keywords: Sorry"}'),
        (asked("x" * 1000), {"behaviour": "length"}, '{"score": 5.5, "reason": "1000 characters"}'),
        ({"messages": [*asked("old")["messages"], {"role": "user", "content": PARTS}]},
         {"behaviour": "echo"}, "ab"),
    ],
)  # fmt: skip
def test_replies(question: dict[str, Any], options: dict[str, Any], expected: str) -> None:
    assert said(question, **options) == [expected]


def test_instances_are_valid() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    schema = schema_of(
        low={"type": "number", "minimum": -1, "maximum": 0.5},
        high={"type": "integer", "maximum": -4},
        why={"type": "string", "maxLength": 9},
        flag={"type": "boolean"},
        marks={"type": "array", "minItems": 2, "items": schema_of(
            step={"enum": [1, 2]}, mark={"enum": ["good", "bad"]})},
    )  # fmt: skip
    for word in ("hello", "so", "so x"):
        form = {"structured_outputs": {"json": schema}}
        jsonschema.validate(json.loads(said(asked(word, **form), keywords=("so", "x"))[0]), schema)


def test_a_script_is_followed_in_order_and_by_key(tmp_path: Path) -> None:
    path = tmp_path / "script.jsonl"
    path.write_text(
        '"first"\n\n{"reply": {"score": 2}}\n{"reply": "keyed", "when": "loop", "finish": "length"}'
    )
    questions = [asked(text) for text in ("a", "a loop", "b", "c")]
    replies = answers(*questions, script=str(path))
    texts = [reply["choices"][0]["message"]["content"] for reply in replies]
    assert texts == ["first", "keyed", '{"score":2}', "first"]
    assert replies[1]["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize(
    "text",
    ['"a"\n{"reply": ', '{"answer": "x"}', "7", '{"reply": "x", "finish": "done"}', "\n", None],
)
def test_a_wrong_script_is_refused(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "s.jsonl").write_text(text)
    with pytest.raises(ConfigError, match=r"s\.jsonl"):
        serve(script=str(tmp_path / "s.jsonl"))


@pytest.mark.parametrize(
    ("key", "options"),
    [
        ("--behaviour", {"behaviour": "rubrik"}),
        ("--behaviour", {"behaviour": "rubric"}),
        ("--behaviour", {"behaviour": "scripted"}),
        ("--behaviour", {"behaviour": "length", "reply": "x"}),
        *[("--latency", {"latency": (spec,)}) for spec in
          ("lognorml:1,1", "fixed:x", "fixed:-1", "lognormal:1")],
        *[("--fail", {"fail": specs}) for specs in
          [("429",), ("429:2",), ("resett:0.1",), ("500=3:0.1",), ("hang=x:0.1",),
           ("429:0.6", "500:0.6")]],
    ],
)  # fmt: skip
def test_wrong_settings_are_refused(key: str, options: dict[str, Any]) -> None:
    with refuses(key):
        serve(**options)


@pytest.mark.parametrize(
    "sent",
    [
        b"{", b"[]", b'{"model": "m"}', b'{"messages": "hello"}', b'{"messages": [' + b"[" * 10**5,
        b'{"messages": [{"role": "user", "content": 3}]}',
        json.dumps(asked(structured_outputs={"json": schema_of(a={"$ref": "#"})})).encode(),
    ],
)  # fmt: skip
def test_a_body_that_is_no_chat_request_is_refused(sent: bytes) -> None:
    async def body(server: Server, session: aiohttp.ClientSession) -> None:
        async with session.post(f"{server.base_url}/chat/completions", data=sent) as response:
            assert response.status == 400
        async with session.post(f"{server.base_url}/messages", json=asked()) as response:
            assert response.status == 400

    run(body)


def test_reasoning_and_tokens(tmp_path: Path) -> None:
    (path := tmp_path / "script.jsonl").write_text('{"reply": "ok 5", "reasoning": "hm"}')
    (reply, cut) = answers(asked(), asked() | {"max_tokens": 9}, script=str(path))
    assert reply["choices"][0]["message"]["reasoning_content"] == "hm"
    assert reply["usage"]["completion_tokens"] == 4
    assert [block["type"] for block in cut["content"]] == ["thinking", "text"]
    assert cut["stop_reason"] == "end_turn"


def test_logprobs_of_a_choice_share_the_probability() -> None:
    (reply,) = answers(asked(logprobs=True, top_logprobs=5, **YES))
    (token,) = reply["choices"][0]["logprobs"]["content"]
    assert (token["token"], [one["token"] for one in token["top_logprobs"]]) == (
        "yes", ["yes", "no"],
    )  # fmt: skip


def test_a_stream_joins_to_the_body() -> None:
    async def body(server: Server, session: aiohttp.ClientSession) -> None:
        question = asked(stream=True, stream_options={"include_usage": True})
        _, _, found = await ask(server, session, question)
        lines = [line[6:] for line in found.splitlines() if line.startswith(b"data: {")]
        *events, last = [json.loads(line) for line in lines]
        deltas = [one["delta"].get("content", "") for e in events for one in e["choices"]]
        assert ("".join(deltas), "usage" in last) == (DEFAULT, True)
        status, _, found = await ask(server, session, MESSAGES | {"stream": True})
        assert (status, b"stream" in found) == (400, True)

    run(body)


def test_latency_and_faults_come_as_often_as_asked() -> None:
    async def body(server: Server, session: aiohttp.ClientSession) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(400):
                group.create_task(ask(server, session))
        seen = server.stats.faults
        assert seen["429"] / 400 == pytest.approx(0.1, abs=0.05)
        assert seen["wrong-id"] / (400 - seen["429"]) == pytest.approx(0.5, abs=0.1)

    run(body, fail=("429:0.1", "wrong-id:0.5"), latency=("fixed:0.001",), seed=3)
