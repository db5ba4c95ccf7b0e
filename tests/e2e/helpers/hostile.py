"""Run folders full of text that means harm, made by the real pipeline with a judge that means harm.

What can come from outside stands in every place where it can: conversations, tool calls, rubrics,
groups and file names in the rollouts; verdicts, reasons, thinking and the model's name from the
judge's server; authors and notes in the labels.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.e2e.helpers.command import run_here

HOSTILE = (
    "</script><script>alert('out of the data block')</script>",
    "<img src=x onerror=alert(1)>",
    "</textarea></style></pre><svg onload=alert(2)>",
    "<!--<script>",
    "javascript:alert(3) <a href='http://example.com/leak'>x</a>",
    "{{7*7}} {% raw %} ${alert(4)} <%= 7 %> @@SCRIPT@@ \\u003cscript\\u003e",
    "line\u2028separator\u2029and NUL\x00 and bell\x07 and escape\x1b[31m",
    "abc\u202egnp.exe\u202c and \u200bzero width \u2066isolate",
    "lone \ud800 surrogates \udfff here",
    "__proto__ constructor toString",
    "=cmd()|' /C calc'!A0",
)
LONG = "x" * 1_000_000
MARKS = ("onerror=alert(1)", "<script>alert('out of the data block')", "{{7*7}}", "<!--<script>")
"""Pieces that a page must show as they are."""


def reply_to(number: int, asked: dict[str, Any]) -> dict[str, Any]:
    """A response whose every text is hostile; each third reply cannot be read at first."""
    text = HOSTILE[number % len(HOSTILE)]
    prompt = json.dumps(asked["messages"])
    keys = asked.get("response_format", {}).get("json_schema", {}).get("schema", {})
    names = list(keys.get("properties", {}))
    if number % 3 == 0 and "Your last reply" not in prompt:
        content = f"{text} {{not the form"
    elif "1" in names:
        mark = {"reason": text, "verdict": ("MET", "UNMET")[number % 2]}
        content = json.dumps(dict.fromkeys(names, mark))
    elif "better" in names:
        content = json.dumps({"reason": text, "better": "AB"[number % 2]})
    else:
        content = json.dumps({"reason": text, "score": 1 + number % 5})
    message = {"role": "assistant", "content": content, "reasoning_content": text}
    return {
        "id": text, "object": "chat.completion", "created": 1, "model": text,
        "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
        "usage": {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11},
    }  # fmt: skip


@contextmanager
def hostile_judge(first: int) -> Iterator[str]:
    """A chat server on a thread, whose replies are numbered from ``first``; its base URL."""
    count = iter(range(first, 10**9))

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            answer = json.dumps(reply_to(next(count), body)).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def handle_one_request(self) -> None:
            try:
                super().handle_one_request()
            except ConnectionError:
                self.close_connection = True

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
        server.shutdown()


def _messages(text: str, answer: str) -> list[dict[str, Any]]:
    arguments = json.dumps({text: [text, {text: text}]})
    call = {"id": text, "type": "function", "function": {"name": text, "arguments": arguments}}
    broken = {"id": "2", "type": "function", "function": {"name": text, "arguments": text}}
    return [
        {"role": "system", "content": text},
        {"role": "user", "content": [{"type": "text", "text": text}]},
        {"role": "assistant", "content": f"<think>{text}</think>{text}",
         "reasoning_content": text, "tool_calls": [call, broken]},
        {"role": "tool", "tool_call_id": text, "name": text, "content": text},
        {"role": "assistant", "content": answer},
    ]  # fmt: skip


def hostile_rows() -> list[dict[str, Any]]:
    """A rollout for each text, in groups of two that are named by a text; one answer is a line
    of a megabyte."""
    rows = []
    for number, text in enumerate(HOSTILE * 2):
        rows.append(
            {
                "group": HOSTILE[number // 2],
                "messages": _messages(text, LONG if number == 3 else f"{text} answer {number}"),
                "reference": text,
                "env_reward": float(number % 2),
                "step": number % 4,
                text: text,
            }
        )
    return rows


def write_inputs(folder: Path, url: str) -> tuple[Path, Path]:
    """The rollouts under a hostile file name, and a spec with hostile words."""
    rollouts = folder / "<img src=x onerror=alert(1)>{{7*7}}\u202e'\".jsonl"
    rollouts.write_text("".join(json.dumps(row) + "\n" for row in hostile_rows()))
    text = json.dumps(HOSTILE[1] + HOSTILE[3] + HOSTILE[5])
    words = HOSTILE[1].replace("{", "").replace("}", "")
    criteria = [json.dumps(HOSTILE[number]) for number in (0, 1, 4)]
    spec = folder / "reward.toml"
    spec.write_text(
        f"""
version = 1

[[graders]]
name = "quality"
type = "llm"
score_range = [1, 5]
template = '''
{words} </script> <!--<script> Rate this. {{reply_form}}
{{query}}
{{response}}
'''

[[graders]]
name = "list"
type = "rubric"
criteria = [{", ".join(criteria)}]

[[graders]]
name = "pair"
type = "pairwise"

[[graders]]
name = "loop"
type = "action_loop"

[judges.main]
type = "vllm"
model = {text}
base_url = "{url}"

[judges.main.endpoint]
hedge = false
max_attempts = 1
"""
    )
    return rollouts, spec


def hostile_run(folder: Path, name: str = "run", first: int = 0) -> Path:
    """A run folder of ``adjudge grade``, in which every text is hostile.

    ``first``: with another number the same rollouts are judged otherwise.
    """
    folder.mkdir(exist_ok=True)
    with hostile_judge(first) as url:
        rollouts, spec = write_inputs(folder, url)
        done = run_here("grade", rollouts, "--spec", spec, "-o", name, folder=folder)
    assert done.returncode in {0, 1}, done.stderr
    return folder / name
