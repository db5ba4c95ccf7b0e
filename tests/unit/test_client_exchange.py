"""One exchange with a service in virtual time: what is sent, and what comes of any answer."""

from __future__ import annotations

import json
import math
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies as st
from tests.unit.helpers.virtual_service import Service, answers, kind, line_to
from tests.unit.helpers.virtual_time import run_virtual

from adjudge.client.batcher import JudgeRewardResult
from adjudge.client.exchange import encode_request
from adjudge.errors import ErrorKind, GradingFailure
from adjudge.judges.base import HttpRequest, HttpResponse
from adjudge.wire import ErrorInfo, JudgeRequest


def ask(
    body: Any, status: int = 200, n: int = 1, cut: bool = False, **config: Any
) -> tuple[list[JudgeRewardResult], list[HttpRequest]]:
    """What becomes of ``n`` requests that get this answer, and what was sent."""
    sent: list[HttpRequest] = []

    async def run() -> list[JudgeRewardResult]:
        service = Service()

        async def post(base_url: str, request: HttpRequest) -> HttpResponse:
            sent.append(request)
            said = body if isinstance(body, bytes) else json.dumps(body).encode()
            return HttpResponse(status=status, headers={}, body=said, cut=cut)

        service.post = post  # type: ignore[method-assign]
        line = line_to(service, **{"max_retries": 0, **config})
        found = await answers(line, *("x" * i for i in range(n)))
        await line.aclose()
        return found

    return run_virtual(run()), sent


def said(kind: str) -> dict[str, Any]:
    return {"error": {"kind": kind, "message": "so it is"}}


def test_the_key_is_read_at_every_request_and_never_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for key, header in ((None, None), (" k1 \n", "Bearer k1"), ("k2", "Bearer k2")):
        if key is not None:
            monkeypatch.setenv("JUDGE_MODEL_API_KEY", key)
        (request,) = ask({"score": 1})[1]
        assert request.headers.get("authorization") == header
    monkeypatch.setenv("JUDGE_MODEL_API_KEY", "k\r\nx: y")
    (found,), _ = ask({"score": 1})
    assert kind(found) == "auth"
    assert "JUDGE_MODEL_API_KEY holds characters" in str(found.error)


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        *[(503, said(one), one) for one in ("truncated", "unparsable", "refused", "rate_limited")],
        (503, {"detail": "model not loaded"}, "server_error"),
        (503, said("no such kind"), "server_error"),
        (500, said("unparsable"), "server_error"),
        (429, said("rate_limited"), "rate_limited"),
        (401, {}, "auth"),
        (403, said("budget"), "auth"),
        (400, said("invalid_input"), "invalid_input"),
        (422, said("unsupported"), "unsupported"),
        (422, said("too_long"), "too_long"),
        (422, {"detail": [{"msg": "content policy"}]}, "invalid_input"),
        (422, {"error": {"message": "no kind"}}, "invalid_input"),
        (404, {"detail": "Not Found"}, "invalid_input"),
        (307, {}, "unsupported"),
    ],
)
def test_what_a_refusal_means(status: int, body: Any, expected: str) -> None:
    assert kind(ask(body, status)[0][0]) == expected
    if expected not in {"truncated", "unparsable", "refused"}:  # of one request
        assert kind(ask(body, status, n=2)[0][1]) == expected


@pytest.mark.parametrize("status", [200, 400, 413, 422])
@pytest.mark.parametrize("marks", [{"suspect": False}, {"suspect": True}, {"final": True}, {}])
@pytest.mark.parametrize("kind", ["invalid_input", "incomplete", "quorum"])
def test_what_is_said_of_a_request_holds_also_where_it_travels_alone(
    status: int, marks: Any, kind: str
) -> None:
    failed = GradingFailure(kind, "m", marks)
    error = msgspec.to_builtins(ErrorInfo.of(failed, "words"))
    for n in (1, 2):
        found: Any = ask({"error": error}, status, n)[0][0].failure
        assert (found.kind, str(found)) == (kind, "words")
        assert (found.suspect, found.final) == (failed.suspect, failed.final)


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize(
    ("status", "body", "words", "sends"),
    [
        (200, said("content_policy"), "so it is", 1),
        (200, b"<html>", "http://a: the server answered 200, but its body is not", 2),
        (302, {}, "http://a: the server answered 302", 1),
        (404, {}, "is this a judge service's address", 1),
    ],
)
def test_what_no_judge_service_says_is_named(
    n: int, status: int, body: Any, words: str, sends: int
) -> None:
    (found, *_), sent = ask(body, status, n, max_retries=1)
    assert (words in str(found.error), len(sent)) == (True, sends)


def test_a_cut_response_is_a_lost_connection() -> None:
    assert kind(ask(b'{"score": 1', cut=True)[0][0]) == "connection"


@pytest.mark.parametrize(
    "score", ["null", "true", '"1.0"', "[1]", "1e999", "1" + "0" * 400, "NaN", "-Infinity"]
)
def test_only_a_finite_number_is_a_score(score: str) -> None:
    assert kind(ask(f'{{"score": {score}}}'.encode())[0][0]) == "server_error"


@pytest.mark.parametrize(
    ("error", "expected"), [(said("refused")["error"], "refused"), ("failed", "server_error")]
)
def test_an_error_beside_a_score_is_an_error(error: Any, expected: str) -> None:
    assert kind(ask({"score": 0.0, "error": error})[0][0]) == expected


def test_what_else_a_response_says_is_kept_where_it_is_of_its_type() -> None:
    more = {"explanation": "why", "confidence": 0.5, "metadata": {"latency": 0.1}}
    sent = {"score": 1, **more, "detailed_scores": {"clarity": 0.25, "depth": "?"}, "x": 1}
    kept = {"score": 1.0, **more, "detailed_scores": {"clarity": 0.25, "depth": None}}
    assert msgspec.to_builtins(ask(sent)[0][0].response) == kept
    odd = {"score": 1, "explanation": 3, "detailed_scores": [1], "metadata": "m", "responses": 3}
    assert msgspec.to_builtins(ask(odd)[0][0].response) == {"score": 1.0}


@given(
    st.binary(max_size=60) | st.text(max_size=60).map(str.encode),
    st.sampled_from([200, 204, 302, 400, 429, 500, 503]),
    st.sampled_from([1, 2]),
)
def test_any_answer_is_a_score_or_a_failure(body: bytes, status: int, n: int) -> None:
    for found in ask(body, status, n)[0]:
        assert (found.score is None) == isinstance(found.failure, GradingFailure)
        assert found.score is None or math.isfinite(found.score)


# ── what is sent ─────────────────────────────────────────────────────────────────────────────────

TEXTS = st.sampled_from(["a||b", "c", "a", "b||c", "", "None", "null", '"'])
REQUESTS = st.fixed_dictionaries(
    {"completion": TEXTS},
    optional={
        "answer": TEXTS | st.none() | st.sampled_from([1, 1.0, True, ["a"], ["a", "b"]]),
        "answer_type": TEXTS | st.none(),
        "metadata": st.none() | st.dictionaries(st.sampled_from("xy"), TEXTS | st.booleans()),
        "images": st.none() | st.lists(TEXTS, max_size=2),
    },
)


def told(request: JudgeRequest) -> str:
    """What it says, as text: 1, 1.0 and True are equal, and three answers."""
    metadata = request.metadata and sorted(request.metadata.items())
    parts = request.prompt, request.completion, request.answer, request.answer_type, request.images
    return repr((*parts, metadata))


@given(REQUESTS, REQUESTS)
def test_only_equal_requests_have_equal_keys(a: dict[str, Any], b: dict[str, Any]) -> None:
    one = JudgeRequest(prompt="p", **a)
    other = JudgeRequest(prompt="p", **b)
    same = told(one) == told(other)
    assert (encode_request(one)[1] == encode_request(other)[1]) is same


ENDLESS: list[Any] = []
ENDLESS.append(ENDLESS)


@pytest.mark.parametrize(
    "problem",
    [
        {"completion": 3},
        {"prompt": "half \ud800"},
        {"prompt": b"x"},
        *[{"answer": one} for one in (math.inf, object(), b"4", Decimal(4), [b"4"])],
        *[{"metadata": {"n": 1, "x": one}} for one in (object(), b"x", {1}, Decimal(1), {1: 2})],
        {"metadata": {1: 2}},
        {"messages": [{"role": "user", "content": b"x"}]},
        {"messages": "text"},
        {"answer_type": 5},
        {"images": "one"},
        *[{"metadata": {"text": "\ud800", "more": one}} for one in (object(), ENDLESS)],
    ],
    ids=lambda problem: next(iter(problem)),
)
def test_what_is_no_request_is_refused_before_it_is_sent(problem: dict[str, Any]) -> None:
    with pytest.raises(GradingFailure) as raised:
        encode_request(JudgeRequest(**{"prompt": "p", "completion": "c", **problem}))
    assert raised.value.kind is ErrorKind.INVALID_INPUT
    assert "half" in repr(problem) or next(iter(problem)) in str(raised.value)


def test_the_order_of_metadata_and_the_request_id_do_not_count() -> None:
    one = JudgeRequest(prompt="p", completion="c", metadata={"a": 1, "b": 2}, request_id="1")
    other = JudgeRequest(prompt="p", completion="c", metadata={"b": 2, "a": 1}, request_id="2")
    assert encode_request(one)[1] == encode_request(other)[1]


def test_half_surrogate_pairs_of_the_policy_are_question_marks() -> None:
    body, key = encode_request(JudgeRequest("p", "half \ud800 é"))
    assert json.loads(body)["completion"] == "half ? é"
    assert key == encode_request(JudgeRequest("p", "half ? é"))[1]
    call = {"name": "f\ud800", "arguments": {"a\udfff": ["b\ud800", 3, None]}}
    messages = [{"role": "assistant", "content": "half \ud800", "tool_calls": [call]}]
    metadata = {"events": ({"text": "\udc80"},), "n": 1, "level": math.nan, "more": [-math.inf]}
    body, _ = encode_request(JudgeRequest("p", "c", messages=messages, metadata=metadata))
    sent = json.loads(body)
    assert sent["messages"] == [
        {
            "role": "assistant",
            "content": "half ?",
            "tool_calls": [{"name": "f?", "arguments": {"a?": ["b?", 3, None]}}],
        }
    ]
    numbers = {"n": 1, "level": None, "more": [None]}  # JSON has no others
    assert sent["metadata"] == {"events": [{"text": "?"}], **numbers}
    assert messages[0]["content"] == "half \ud800"  # the caller's own stay as they are
