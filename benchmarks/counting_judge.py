"""A judge over HTTP in the process that starts it, which remembers what it was asked and when."""

from __future__ import annotations

import json
import math
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_TAG = re.compile(r"(</?\w+-|\[\d+-|→-)[0-9a-f]{6,16}")
"""Every process has tags of its own."""

_AGAIN = "\n\nYour last reply to this question"
"""How a question begins that is asked again since the reply was of no use: still that question."""


@dataclass
class Question:
    """What the judge was asked, when that came and was answered, by the system's clock."""

    text: str
    came: float
    over: float = math.inf


@dataclass
class CountingJudge:
    """Answers by what it is shown, always the same; to every twelfth text with nothing of use."""

    questions: list[Question] = field(default_factory=list)
    url: str = ""

    def reply(self, body: bytes) -> tuple[Question, bytes]:
        """The question and its answer."""
        said = json.loads(body)["messages"][-1]["content"]
        said = _TAG.sub(r"\1", said)
        question = Question(said.split(_AGAIN)[0], time.time())
        self.questions.append(question)
        # By the question alone, so that whatever the repair ask says, the answer stays of no use.
        number = int.from_bytes(sha256(question.text.encode()).digest()[:4])
        time.sleep(0.01 + number % 7 / 100)
        score = number // 7 % 3
        text = json.dumps({"score": score, "reason": "so"}) if number % 12 else "I would rather not"
        answer = {
            "id": "x", "object": "chat.completion", "created": 1, "model": "counting",
            "choices": [
                {"index": 0, "finish_reason": "stop",
                 "message": {"role": "assistant", "content": text}}
            ],
            "usage": {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11},
        }  # fmt: skip
        return question, json.dumps(answer).encode()


@contextmanager
def counting_judge() -> Iterator[CountingJudge]:
    """A judge on a port of its own."""
    judge = CountingJudge()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            question, answer = judge.reply(body)
            question.over = time.time()
            try:
                self.send_response(200)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)
            except OSError:  # whoever asked was killed
                self.close_connection = True

        def handle_one_request(self) -> None:
            try:
                super().handle_one_request()
            except OSError:
                self.close_connection = True

        def log_message(self, *_: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 128

    server = Server(("127.0.0.1", 0), Handler)
    judge.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield judge
    finally:
        server.shutdown()
        server.server_close()
