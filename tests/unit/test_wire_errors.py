"""What a provider's errors are read as: the kind, what travels with it, and what must not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from adjudge.errors import GradingFailure
from adjudge.judges.base import ChatCall, HttpResponse
from adjudge.judges.wire.openai import OpenAIWire

MESSAGES = [{"role": "user", "content": "How good is it?"}]


def failure(body: Any, *, status: int, headers: dict[str, str] | None = None) -> GradingFailure:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    response = HttpResponse(status=status, headers=headers or {}, body=data)
    with pytest.raises(GradingFailure) as caught:
        OpenAIWire(key="sk-secret").reply(ChatCall(model="m", messages=MESSAGES), response)
    return caught.value


def openai_error(message: str = "", code: Any = None, type_: str = "", param: Any = None) -> Any:
    return {"error": {"message": message, "type": type_, "code": code, "param": param}}


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (400, openai_error("bad"), "invalid_input"),
        (400, openai_error("flagged", "content_filter"), "refused"),
        (400, openai_error("x", "data_inspection_failed"), "refused"),
        (400, openai_error("violating our usage policy", "invalid_prompt"), "refused"),
        (400, openai_error("no", "unsupported_parameter", param="max_tokens"), "unsupported"),
        (400, openai_error("logprobs is not supported with this model"), "unsupported"),
        (400, openai_error("in arrears", "Arrearage"), "budget"),
        (401, openai_error("Incorrect API key"), "auth"),
        (402, openai_error("pay"), "budget"),
        (403, openai_error("country"), "auth"),
        (403, openai_error("You are not allowed to request logprobs"), "unsupported"),
        (403, openai_error("x", "AllocationQuota.FreeTierOnly"), "budget"),
        (403, openai_error("x", "content_policy_violation"), "refused"),
        (403, openai_error("m requires moderation on p. Your input was flagged for x."), "refused"),
        (403, {"error": {"code": 403, "message": "x", "metadata": {"reasons": ["y"]}}}, "refused"),
        (403, {"error": {"message": "x", "metadata": {"flagged_input": "y"}}}, "refused"),
        (403, openai_error("Rejected by the safety system"), "refused"),
        (403, openai_error("The prompt was blocked due to SAFETY"), "refused"),
        (400, openai_error("x", "ResponsibleAIPolicyViolation"), "refused"),
        (400, openai_error("x", "PROHIBITED_CONTENT"), "refused"),
        (403, openai_error("Your account was flagged for potential abuse"), "auth"),
        (403, openai_error("Requests with this API key to this method are blocked."), "auth"),
        (403, openai_error("Verify your organization for safety system checks"), "auth"),
        (403, {"error": {"message": "x", "metadata": {"provider_name": "y"}}}, "auth"),
        (401, openai_error("your input was flagged"), "auth"),
        (403, b"<html>Request blocked by WAF</html>", "auth"),
        (404, openai_error("no such model", "model_not_found"), "invalid_input"),
        (409, b"", "server_error"),
        (422, {"detail": "bad"}, "invalid_input"),
        (422, {"detail": [{"input": MESSAGES}]}, "invalid_input"),
        (429, openai_error("slow down", "rate_limit_exceeded"), "rate_limited"),
        (429, openai_error("x", "insufficient_quota"), "budget"),
        (429, openai_error("You exceeded your current quota"), "budget"),
        (429, openai_error("You exceeded your current quota. Please retry in 9s."), "rate_limited"),
        (429, openai_error("Allocated quota exceeded.", "insufficient_quota"), "rate_limited"),
        (429, openai_error("Free allocated quota exceeded."), "budget"),
        (429, b"", "rate_limited"),
        (500, b"<html>oops</html>", "server_error"),
        (503, openai_error("queue full"), "server_error"),
        (529, b"", "server_error"),
        (301, b"", "unsupported"),
        (101, b"", "server_error"),
        (400, {"object": "error", "message": "too long", "code": 400}, "too_long"),
        (413, b"", "too_long"),
        (400, {"error": None}, "invalid_input"),
        (400, {"error": [1]}, "invalid_input"),
    ],
)
def test_errors_by_status_and_body(status: int, body: Any, kind: str) -> None:
    found = failure(body, status=status)
    assert found.kind == kind
    assert found.metadata["status"] == status
    assert found.suspect is (
        kind in ("refused", "too_long") or (kind == "invalid_input" and status in (400, 422))
    )


OF_EVERY_REQUEST = [
    "response_format.type: json_schema is not supported",
    "temperature must be in [0, 1]",
    "`temperature` may only be set to 1 when thinking is enabled",
    "Invalid schema for response_format 'x': In context=()",
    "max_tokens: 100000 > 8192, the maximum allowed number of output tokens",
    "foo: Extra inputs are not permitted",
    "Unrecognized request argument supplied: foo",
    "[{'type': 'extra_forbidden', 'loc': ('body', 'foo'), 'msg': 'no', 'input': 3}]",
    "[{'type': 'value_error', 'loc': ('body', 'top_p'), 'msg': 'must be', 'input': 3}]",
    "The provided JSON schema contains features not supported by xgrammar",
    "This model does not support the 'logprobs' parameter",
    "Input validation error: `temperature` must be strictly positive",
    "litellm.UnsupportedParamsError: openai does not support parameters: ['response_format']",
    'Invalid JSON payload received. Unknown name "foo": Cannot find field.',
    'json: unknown field "foo"',
]
OF_ONE_SAMPLE = [
    "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens.",
    "'max_tokens' is too large: 9. This model's maximum context length is 8 tokens.",
    "input length and `max_tokens` exceed context limit: 188240 + 21333 > 200000 tokens",
    "`inputs` tokens + `max_new_tokens` must be <= 4096",
    "messages.0.content.0: Extra inputs are not permitted",
    "Invalid content: 'temperature is not supported'",
    'could not parse the message: "response_format is not supported"',
    "Failed to generate JSON. Please adjust your prompt.",
]


@pytest.mark.parametrize("message", [*OF_EVERY_REQUEST, *OF_ONE_SAMPLE])
def test_a_refusal_is_of_every_request_or_of_one_sample(message: str) -> None:
    found = failure(openai_error(message), status=400)
    assert (found.final, found.suspect) == (
        (True, False) if message in OF_EVERY_REQUEST else (False, True)
    )


@pytest.mark.parametrize(("last", "final"), [("top_p", True), ("content", False)])
def test_pydantic_says_where_a_request_is_wrong(last: str, final: bool) -> None:
    place = ["body", *(["messages", 0] if last == "content" else []), last]
    body = {"detail": [{"type": "value_error", "loc": place, "msg": "is wrong", "input": "x"}]}
    assert failure(body, status=422).final is final


def test_only_headers_about_limits_travel() -> None:
    headers = {
        "retry-after": "2",
        "x-ratelimit-reset-tokens": "6m0s",
        "anthropic-ratelimit-tokens-remaining": "0",
        "set-cookie": "secret",
        "x-request-id": "1",
    }
    metadata = failure(b"", status=429, headers=headers).metadata
    assert set(metadata["headers"]) == {
        "retry-after",
        "x-ratelimit-reset-tokens",
        "anthropic-ratelimit-tokens-remaining",
    }


@pytest.mark.parametrize(
    ("message", "absent"),
    [
        ("Incorrect API key provided: sk-proj-abc*****wxyz.", "wxyz"),
        ("Invalid key gsk_abcdef0123", "abcdef"),
        ("Authorization: Bearer abc.def", "abc.def"),
        ("api key: hunter22", "hunter22"),
        ("token 0123456789abcdef0123456789abcdef is bad", "0123456789abcdef"),
        ("1 error: {'type': 'missing', 'input': {'messages': 'the prompt'}}", "the prompt"),
        ('bad request {"messages": [{"content": "the prompt"}]}', "the prompt"),
        ("x" * 25 + " " + "long " * 500, "long " * 50),
        ("a\x1b[31mred\x00", "\x1b"),
    ],
)
def test_secrets_and_echoes_stay_out_of_messages(message: str, absent: str) -> None:
    said = str(failure(openai_error(message), status=401))
    assert absent not in said
    assert len(said) < 280


def test_the_servers_own_words_are_quoted() -> None:
    found = failure(openai_error("model 'm' does\nnot exist"), status=404)
    assert str(found) == "the server answered 404: model 'm' does not exist"
