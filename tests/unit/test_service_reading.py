"""Bodies, settings and scores, without a server."""

import asyncio
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies as st

from adjudge.engine.processes import settings_arguments
from adjudge.errors import ErrorKind
from adjudge.service import ServiceSettings
from adjudge.service.queue import check_responses
from adjudge.service.requests import (
    AsgiReceive,
    BodyReader,
    RequestRefused,
    check_request,
    check_value_count,
    decode_body,
)
from adjudge.wire import ErrorInfo, JudgeRequest, JudgeResponse


def test_bodies_that_arrive_count_and_are_given_back() -> None:
    bodies = BodyReader(10, most=25)

    async def run() -> None:
        gates = [asyncio.Event() for _ in range(3)]

        def sender(gate: asyncio.Event) -> AsgiReceive:
            sent = iter((b"x" * 9, b"x"))

            async def receive() -> dict[str, Any]:
                part = next(sent, None)
                if part == b"x":
                    await gate.wait()
                return {"type": "http.request", "body": part, "more_body": part != b"x"}

            return receive

        reads = [asyncio.ensure_future(bodies.read((), sender(gate))) for gate in gates]
        await asyncio.sleep(0)
        assert bodies.held == 18
        with pytest.raises(RequestRefused) as refused:  # no room, and it leaves none taken
            await reads[2]
        assert refused.value.status == 429
        assert refused.value.retry_after == 1
        reads[0].cancel()
        gates[1].set()
        assert len(await reads[1]) == 10
        assert bodies.held == 10  # the reader's, until it is answered

    asyncio.run(run())


PIXEL = {"url": "data:image/png;base64,iVBORw0KGgo="}


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "http://169.254.169.254/"}},
        {"type": "image_url", "image_url": "file:///etc/passwd"},
        {"type": "input_image", "image_url": "https://example.com/a.png"},
        {"type": "image", "source": {"type": "url", "url": "http://a"}},
    ],
)
def test_no_address_of_an_image_goes_to_a_judge_that_would_fetch_it(part: dict[str, Any]) -> None:
    of_another_maker = {("block_type" if k == "type" else k): one for k, one in part.items()}
    for request in (
        JudgeRequest("p", "c", messages=[{"role": "user", "content": [part]}]),
        JudgeRequest("p", "c", messages=[{"role": "user", "content": [of_another_maker]}]),
        JudgeRequest("p", "c", metadata={"query": [part]}),
        JudgeRequest("p", "c", metadata={"images": [part]}),
    ):
        with pytest.raises(RequestRefused, match="never fetched") as refused:
            check_request(request, 100)
        assert refused.value.status == 422
    fine = [{"type": "image_url", "image_url": PIXEL}]
    check_request(JudgeRequest("p", "c", messages=[{"role": "user", "content": fine}]), 100)
    odd = {"query": [*fine, {"type": ["odd"]}, {"url": "http://a"}]}
    check_request(JudgeRequest("p", "c", metadata=odd), 100)


def test_a_conversation_that_comes_alone_is_read_and_needs_an_answer() -> None:
    talk = [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}]
    request = JudgeRequest(None, "", messages=talk)
    check_request(request, 100)
    assert (request.prompt, request.completion) == ("2 + 2?", "4")
    with pytest.raises(RequestRefused, match="no turn"):
        check_request(JudgeRequest(None, "", messages=talk[:1]), 100)


@pytest.mark.parametrize(
    ("image", "status"),
    [
        ("iVBORw0KGgo=", None),
        ("data:image/png;base64,iVBORw0KGgo=", None),
        ("QUJD", 422),
        ("", 422),
        ("data:image/png;base64,", 422),
        ("data:image/png,QUJD", 422),
        ("data:QUJD", 422),
        ("https://example.com/a.png", 422),
        ("iVBORw0KGgo\u0665", 422),
        ("A" * 200, 413),
    ],
)
def test_images_are_base64_and_small(image: str, status: int | None) -> None:
    request = JudgeRequest("p", "c", images=[image])
    if status is None:
        check_request(request, 100)
        assert request.images == ["data:image/png;base64,iVBORw0KGgo="]
        return
    with pytest.raises(RequestRefused) as refused:
        check_request(request, 100)
    assert refused.value.status == status


def test_a_refusal_never_quotes_the_request() -> None:
    decoder = msgspec.json.Decoder(JudgeRequest)
    for body in (b'{"prompt": "secret"', b'{"prompt": "secret", "completion": 5}', b"secret"):
        with pytest.raises(RequestRefused) as refused:
            decode_body(decoder.decode, body)
        assert "secret" not in str(refused.value)


FACTS = {"model_version": "1"}


def test_a_score_keeps_everything_but_the_backends_idea_of_its_id() -> None:
    answer = JudgeResponse(
        1, "wrong", "why", {"a": 0.5, "b": None}, 0.9, {"cost_usd": 0.1, "model_version": "x"}
    )
    check_responses([answer], [JudgeRequest("p", "c", request_id="7")], FACTS)
    assert answer == JudgeResponse(
        1.0, "7", "why", {"a": 0.5, "b": None}, 0.9, {"cost_usd": 0.1, "model_version": "1"}
    )


def test_an_error_beside_a_score_leaves_no_score() -> None:
    error = ErrorInfo(ErrorKind.UNPARSABLE, "no verdict")
    answer = JudgeResponse(0.0, error=error)
    check_responses([answer], [JudgeRequest("p", "c")], FACTS)
    assert (answer.score, answer.error) == (None, error)


def test_settings_travel_as_arguments() -> None:
    assert settings_arguments(ServiceSettings()) == ["--port=8888"]
    assert settings_arguments(ServiceSettings(port=0, batch_timeout=0.5, host="::1")) == [
        "--host=::1",
        "--port=0",
        "--batch-timeout=0.5",
    ]


def is_refused(body: bytes, most: int) -> bool:
    try:
        check_value_count(body, most)
    except RequestRefused as refused:
        return (refused.status, refused.kind) == (413, ErrorKind.INVALID_INPUT)
    return False


def nodes(value: Any) -> tuple[int, int]:
    """How many values there are, itself included, and how many of them hold others."""
    if isinstance(value, dict):
        value = list(value.values())
    if not isinstance(value, list):
        return 1, 0
    inside = [nodes(one) for one in value]
    return 1 + sum(n for n, _ in inside), 1 + sum(n for _, n in inside)


TEXTS = st.text(st.sampled_from('",[]{}\\:a\n é')) | st.text(max_size=3)
JSON = st.recursive(
    TEXTS | st.integers() | st.none(),
    lambda inside: st.lists(inside) | st.dictionaries(TEXTS, inside),
    max_leaves=60,
)


@given(JSON, st.integers(10, 200))
def test_values_are_counted_and_what_texts_hold_is_not(value: Any, most: int) -> None:
    body = json.dumps(value, ensure_ascii=False).encode() + b" " * most
    count, containers = nodes(value)
    if count > most or containers > most // 10:
        assert is_refused(body, most)
    elif count + 10 * containers < most:
        assert not is_refused(body, most)


@pytest.mark.parametrize("text", [',[{"' * 5000, '\\"[,' * 5000, '",' * 4000, "\\" * 9999 + ",["])
def test_a_long_text_of_commas_and_brackets_is_one_value(text: str) -> None:
    assert not is_refused(json.dumps({"prompt": text, "completion": [text] * 9}).encode(), 1000)
    assert is_refused(json.dumps({"prompt": text, "completion": [text] * 1000}).encode(), 1000)


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("images", ["AAAA"] * 10_001),
        ("messages", [{"role": "user", "content": "hi"}] * 10_001),
        ("metadata", dict.fromkeys(map(str, range(10_001)))),
    ],
)
def test_parts_are_counted_before_they_are_looked_at(name: str, parts: Any) -> None:
    check_request(JudgeRequest("p", "c", images=["iVBORw0KGgo="] * 9), 100)
    with pytest.raises(RequestRefused, match=f"{name}: found 10001, at most 10000") as refused:
        check_request(JudgeRequest("p", "c", **{name: parts}), 100)
    assert refused.value.status == 413
