"""The wire: what is sent, what responses mean, and that nothing but a number is a score."""

from __future__ import annotations

import contextlib
import json
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adjudge.client.exchange import ServiceWire, encode_request, read_response
from adjudge.client.settings import ClientSettings
from adjudge.errors import ErrorKind, GradingFailure
from adjudge.judges.base import HttpResponse
from adjudge.wire import ErrorInfo, JudgeRequest, JudgeResponse

BODY = encode_request(JudgeRequest(prompt="What is 2+2?", completion="4", request_id="mine"))


def wire(n: int = 1, **config: Any) -> ServiceWire:
    settings = ClientSettings.from_config({"judge_url": "http://a", **config})
    return ServiceWire(settings, [(f"r{i}", BODY) for i in range(n)])


def failure(status: int, body: Any, n: int = 1) -> GradingFailure:
    sent = wire(n)
    with pytest.raises(GradingFailure) as caught:
        sent.reply(sent.call, response(status, body))
    return caught.value


def response(status: int, body: Any) -> HttpResponse:
    return HttpResponse(status=status, headers={}, body=json.dumps(body).encode())


def said(kind: str) -> dict[str, Any]:
    return {"error": {"kind": kind, "message": "so it is"}}


def test_one_goes_to_judge_and_many_to_batch_judge(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JUDGE_MODEL_API_KEY", raising=False)
    one, two = wire(), wire(2)
    request = one.request(one.call)
    expected = {"request_id": "r0", "prompt": "What is 2+2?", "completion": "4"}
    assert (request.path, json.loads(request.body)) == ("/judge", expected)
    assert "authorization" not in request.headers
    request = two.request(two.call)
    assert request.path == "/batch_judge"
    assert json.loads(request.body) == {"requests": [expected, {**expected, "request_id": "r1"}]}


def test_the_key_is_read_at_every_request_and_never_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_MODEL_API_KEY", " k1 \n")
    sent = wire()
    assert sent.request(sent.call).headers["authorization"] == "Bearer k1"
    monkeypatch.setenv("JUDGE_MODEL_API_KEY", "k2")
    assert sent.request(sent.call).headers["authorization"] == "Bearer k2"
    monkeypatch.setenv("JUDGE_MODEL_API_KEY", "k\r\nx: y")
    with pytest.raises(GradingFailure, match="JUDGE_MODEL_API_KEY holds characters") as caught:
        sent.request(sent.call)
    assert caught.value.kind is ErrorKind.AUTH
    named = wire(api_key_env="NOT_SET_ANYWHERE")
    with pytest.raises(GradingFailure, match="NOT_SET_ANYWHERE is not set"):
        named.request(named.call)


@pytest.mark.parametrize(
    "given", [{"answer": b"4"}, {"prompt": b"x"}, {"answer": Decimal(4)}, {"answer": [b"4"]}]
)
def test_what_json_would_write_as_something_else_is_not_sent(given: dict[str, Any]) -> None:
    request = JudgeRequest(**{"prompt": "p", "completion": "c", **given})
    with pytest.raises(GradingFailure, match="cannot be sent") as caught:
        encode_request(request)
    assert caught.value.kind is ErrorKind.INVALID_INPUT


@given(st.text() | st.integers(-(2**63), 2**64 - 1) | st.booleans() | st.lists(st.text())
       | st.floats(allow_nan=False, allow_infinity=False))  # fmt: skip
def test_every_answer_of_the_wire_arrives_as_it_was(answer: Any) -> None:
    with contextlib.suppress(GradingFailure):  # half a surrogate pair
        found = msgspec.json.decode(
            encode_request(JudgeRequest("p", "c", answer)), type=JudgeRequest
        )
        assert (type(found.answer), found.answer) == (type(answer), answer)


@pytest.mark.parametrize(
    "kind", ["timeout", "truncated", "unparsable", "refused", "bug", "budget", "auth"]
)
def test_a_failed_judge_behind_judge_is_an_answer_about_this_request(kind: str) -> None:
    sent = wire()
    reply = sent.reply(sent.call, response(503, said(kind)))
    found = read_response(reply.responses[0])
    assert found is not None
    assert found.error is not None
    assert (found.score, found.error.kind) == (None, kind)


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (503, said("rate_limited"), "rate_limited"),
        (503, said("server_error"), "server_error"),
        (503, {"detail": "model not loaded"}, "server_error"),
        (503, said("no such kind"), "server_error"),
        (500, said("unparsable"), "server_error"),
        (429, said("rate_limited"), "rate_limited"),
        (401, {}, "auth"),
        (403, said("budget"), "auth"),
        (400, said("invalid_input"), "invalid_input"),
        (413, {}, "invalid_input"),
        (422, said("unsupported"), "unsupported"),
        (422, {"detail": [{"msg": "content policy"}]}, "invalid_input"),
        (404, {"detail": "Not Found"}, "invalid_input"),
        (307, {}, "unsupported"),
    ],
)
def test_what_a_refusal_means(status: int, body: Any, kind: str) -> None:
    assert failure(status, body).kind == kind
    assert failure(status, body, n=2).kind == kind


def test_a_cut_response_is_a_lost_connection() -> None:
    sent = wire()
    cut = HttpResponse(status=200, headers={}, body=b'{"score": 1', cut=True)
    with pytest.raises(GradingFailure) as caught:
        sent.reply(sent.call, cut)
    assert caught.value.kind is ErrorKind.CONNECTION


@pytest.mark.parametrize(
    "score",
    ["null", "true", '"1.0"', "[1]", "{}", "1e999", "-1e999", "1" + "0" * 400, "NaN", "Infinity"],
)
def test_only_a_finite_number_is_a_score(score: str) -> None:
    found = read_response(f'{{"score": {score}, "request_id": "a"}}'.encode())
    assert found is None or (found.score is None and found.error is not None)


def test_an_error_beside_a_score_is_an_error() -> None:
    found = read_response(b'{"score": 0.0, "error": {"kind": "timeout", "message": "late"}}')
    assert found is not None
    assert found.score is None
    assert found.error is not None
    assert found.error.kind is ErrorKind.TIMEOUT
    found = read_response(b'{"score": 0.0, "error": "failed"}')
    assert found is not None
    assert (found.score, found.error and found.error.kind) == (None, ErrorKind.SERVER_ERROR)


def test_what_else_a_response_says_is_kept_where_it_is_of_its_type() -> None:
    found = read_response(
        b'{"score": 1, "request_id": "a", "explanation": "why", "confidence": 0.5,'
        b' "detailed_scores": {"clarity": 0.25, "depth": "?"}, "metadata": {"latency": 0.1},'
        b' "x": 1}'
    )
    assert found == JudgeResponse(
        score=1.0,
        request_id="a",
        explanation="why",
        detailed_scores={"clarity": 0.25, "depth": None},
        confidence=0.5,
        metadata={"latency": 0.1},
    )
    odd = read_response(b'{"score": 1, "explanation": 3, "detailed_scores": [1], "metadata": "m"}')
    assert odd == JudgeResponse(score=1.0)


@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_reading_is_total(body: bytes) -> None:
    found = read_response(body)
    assert found is None or (found.score is None) != (found.error is None)
    for n in (1, 2):
        sent = wire(n)
        for status in (200, 204, 302, 400, 422, 429, 500, 503):
            with contextlib.suppress(GradingFailure):
                sent.reply(sent.call, HttpResponse(status=status, headers={}, body=body))


@pytest.mark.parametrize("suspect", [None, False, True])
@pytest.mark.parametrize("kind", [ErrorKind.INCOMPLETE, ErrorKind.QUORUM])
def test_a_mark_of_a_failure_arrives_as_it_was_set(kind: ErrorKind, suspect: bool | None) -> None:
    marks = {} if suspect is None else {"suspect": suspect}
    failed = GradingFailure(kind, "m", marks)
    sent = msgspec.json.encode(ErrorInfo.of(failed, "words"))
    arrived = msgspec.json.decode(sent, type=ErrorInfo)
    assert arrived.message == "words"
    assert GradingFailure(kind, "", dict(arrived.failure_metadata)).suspect is failed.suspect


def test_what_an_older_service_does_not_say_the_kind_does() -> None:
    arrived = msgspec.convert({"kind": "refused", "message": "m"}, ErrorInfo)
    assert arrived.failure_metadata == {}
    assert GradingFailure(arrived.kind, "", dict(arrived.failure_metadata)).suspect
