"""A key that a judge's server repeats is in nothing that a run keeps or prints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.helpers.command import invoke

from adjudge.judges.base import HttpRequest, HttpResponse
from adjudge.judges.wire.transport import AiohttpTransport

KEY = "canary-91f2c77a"
SPEC = """
[[graders]]
name = "quality"
type = "llm"
template = "From 0 to 5, how good is this? {response} {reply_form}"
score_range = [0, 5]
[missing]
max_missing = 1.0
[judges.main]
type = "TYPE"
model = "m"
base_url = "http://judge.invalid"
api_key_env = "CANARY"
[judges.main.endpoint]
max_attempts = 1
"""
VERDICT = json.dumps({"reason": f"You sent Authorization: Bearer {KEY}, {KEY}.", "score": 3})

ANTHROPIC = {"type": "message", "role": "assistant", "model": f"m {KEY}", "stop_reason": "end_turn",
             "content": [{"type": "text", "text": VERDICT}],
             "usage": {"input_tokens": 1, "output_tokens": 1}}  # fmt: skip


def choice(content: str, **more: Any) -> list[dict[str, Any]]:
    message = {"role": "assistant", "content": content, **more}
    return [{"index": 0, "message": message, "finish_reason": "stop"}]


def streamed(*pieces: str) -> bytes:
    parts = [{"choices": [{"index": 0, "delta": {"content": one}}], "model": "m"} for one in pieces]
    parts[-1]["choices"][0]["finish_reason"] = "stop"  # type: ignore[index]
    return b"".join(b"data: " + json.dumps(one).encode() + b"\n\n" for one in parts) + (
        b"data: [DONE]\n\n"
    )


@pytest.mark.parametrize(
    ("status", "body", "scores"),
    [
        (200, {"choices": choice(VERDICT)}, True),
        (200, {"choices": choice('{"reason": "r", "score": 3}'), "model": f"m {KEY}"}, True),
        (200, {"choices": choice(VERDICT, reasoning_content=f"It sent {KEY}")}, True),
        (200, {"choices": choice(f"headers: {{'authorization': 'Bearer {KEY}'}}")}, False),
        (200, {"error": {"message": f"wrong: {KEY}", "code": KEY}}, False),
        (400, {"error": {"message": f"wrong: {KEY}"}}, False),
        (
            200,
            json.dumps({"choices": choice(VERDICT)}).replace("canary", "\\u0063anary").encode(),
            True,
        ),
        (200, streamed(*VERDICT), True),
        (200, ANTHROPIC, True),
        (429, {"error": {"message": "wait"}}, False),
    ],
)
def test_a_key_that_is_repeated_is_kept_nowhere(
    status: int, body: Any, scores: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()

    async def post(_: AiohttpTransport, __: str, request: HttpRequest) -> HttpResponse:
        assert KEY in str(dict(request.headers))
        is_stream = data.startswith(b"data:")
        headers = {"content-type": "text/event-stream" if is_stream else "application/json",
                   "retry-after": KEY, "x-ratelimit-key": KEY}  # fmt: skip
        return HttpResponse(status=status, headers=headers, body=data)

    monkeypatch.setattr(AiohttpTransport, "post", post)
    monkeypatch.setenv("CANARY", KEY)
    monkeypatch.chdir(tmp_path)
    kind = "anthropic" if body is ANTHROPIC else "openai"
    Path("s.toml").write_text(SPEC.replace("TYPE", kind))
    Path("r.jsonl").write_text('{"prompt": "p", "response": "r"}\n')
    words = ["grade", "r.jsonl", "-s", "s.toml", "-o", "out", "--record", "c.sqlite"]
    said = [invoke(*one) for one in (words, ["doctor", "s.toml"])]
    (row,) = map(json.loads, Path("out/rewards.jsonl").read_text().splitlines())
    assert (row["reward"] is not None) == scores
    for one in said:
        assert KEY not in one.output + one.stderr
    kept = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(kept) > 5
    assert not [str(path) for path in kept if KEY.encode() in path.read_bytes()]
