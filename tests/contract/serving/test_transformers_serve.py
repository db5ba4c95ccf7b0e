"""The line to a judge against `transformers serve`: run by `make test-serving`.

A real server that nobody here wrote, with a tiny random model. It answers at temperature 0 with the
same nonsense every time, so that a reply which reached the wrong question would show. It drops
log-probabilities and schemas without a word, which is what `Reply.ignored` is for.
"""

import asyncio
import http.client
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from adjudge import BaseGrader, GraderScore, GradingFailure, GradingRunner
from adjudge.errors import ErrorKind
from adjudge.judges import ChatModel, OpenAIChatModel

pytest.importorskip("transformers", reason="not installed here; run `make test-serving`")

READY_S = 180
SCHEMA = {
    "type": "object",
    "properties": {"score": {"type": "integer"}},
    "required": ["score"],
    "additionalProperties": False,
}
ITEMS = [{"question": f"Is answer {number} good?"} for number in range(32)]


def ask(text: str) -> list[dict[str, str]]:
    return [{"role": "system", "content": "You judge."}, {"role": "user", "content": text}]


@dataclass
class Serving:
    """A running `transformers serve`; ``model`` is the folder, which is the name it goes by."""

    process: subprocess.Popen[bytes]
    port: int
    model: str
    log: Path

    def judge(self, *, model: str | None = None, **options: Any) -> OpenAIChatModel:
        settings = {"temperature": 0.0, "max_tokens": 12, **options}
        url = f"http://127.0.0.1:{self.port}/v1"
        return OpenAIChatModel(model or self.model, base_url=url, **settings)

    def wait_until_ready(self) -> None:
        give_up = time.monotonic() + READY_S
        while time.monotonic() < give_up:
            if self.process.poll() is not None:
                self._fail(f"ended with exit code {self.process.returncode}")
            if self._healthy():
                return
            time.sleep(0.2)
        self._fail(f"was not ready after {READY_S} s")

    def kill(self) -> None:
        """End the server and whatever it started, at once."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)

    def _healthy(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def _fail(self, what: str) -> None:
        tail = self.log.read_text(errors="replace")[-3000:]
        pytest.fail(f"transformers serve {what}; the end of its output:\n{tail}", pytrace=False)


def serve(model: Path, folder: Path) -> Iterator[Serving]:
    (folder / "hf" / "hub").mkdir(parents=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [str(Path(sys.executable).with_name("transformers")), "serve", str(model)]
    command += ["--host", "127.0.0.1", "--port", str(port), "--device", "cpu", "--dtype", "float32"]
    offline = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "hf"), "OMP_NUM_THREADS": "1"}
    log = folder / "server.log"
    with (
        log.open("wb") as output,
        subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=os.environ | offline,
            start_new_session=True,
        ) as process,
    ):
        serving = Serving(process, port, str(model), log)
        try:
            serving.wait_until_ready()
            yield serving
        finally:
            serving.kill()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    script = Path(__file__).with_name("tiny_model.py")
    subprocess.run([sys.executable, str(script), str(folder)], check=True, timeout=READY_S)
    return folder


@pytest.fixture(scope="module")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    yield from serve(model, tmp_path_factory.mktemp("server"))


class Letters(BaseGrader):
    """The share of letters in the judge's reply, which is kept as the reason."""

    score_range = (0.0, 1.0)

    def __init__(self, judge: ChatModel) -> None:
        super().__init__("letters")
        self.judge = judge

    async def aevaluate(self, question: str) -> GraderScore:
        text = (await self.judge.achat(ask(question))).text
        if not text:
            raise GradingFailure(ErrorKind.UNPARSABLE, "the reply is empty")
        return GraderScore(self.name, sum(map(str.isalpha, text)) / len(text), text)


def graded(judge: ChatModel) -> list[Any]:
    runner = GradingRunner({"letters": Letters(judge)}, max_concurrency=32, show_progress=False)
    return asyncio.run(runner.arun(ITEMS))["letters"]


@pytest.fixture(scope="module")
def one_by_one(server: Serving) -> list[str]:
    """What the server says to each item when it is asked nothing else meanwhile."""
    judge = server.judge()
    return [judge.chat(ask(item["question"])).text for item in ITEMS]


@pytest.mark.parametrize("preset", ["openai", "vllm"])
def test_a_chat_call(server: Serving, preset: str) -> None:
    reply = server.judge(preset=preset).chat(ask("Is it good?"))
    assert reply.text
    assert reply.finish_reason in {"stop", "length"}
    assert reply.model is not None
    assert server.model in reply.model
    assert reply.usage is not None
    assert reply.usage.input_tokens > 10
    assert 1 <= reply.usage.output_tokens <= 12
    assert reply.ignored == ()
    assert reply.provenance.source == "live"
    assert reply.provenance.attempts == 1


def test_a_stream_says_the_same(server: Serving) -> None:
    whole, streamed = (server.judge(stream=stream) for stream in (False, True))
    texts = set()
    for number in range(6):
        question = ask(f"Question {number}")
        one, other = whole.chat(question), streamed.chat(question)
        # The whole reply comes without white space around it.
        assert other.text.strip() == one.text.strip()
        assert other.finish_reason == one.finish_reason
        assert other.usage == one.usage
        assert other.usage is not None
        assert "usage" not in other.ignored
        texts.add(one.text)
    assert len(texts) > 1


@pytest.mark.parametrize("stream", [False, True])
def test_what_is_dropped_without_a_word_is_named(server: Serving, stream: bool) -> None:
    judge = server.judge(max_tokens=64, stream=stream)
    replies = [
        judge.chat(ask(f"Question {number}"), schema=SCHEMA, logprobs=True) for number in range(8)
    ]
    assert all("logprobs" in reply.ignored for reply in replies)
    assert all(reply.logprobs is None for reply in replies)
    # One that ran into its length limit says nothing about the schema.
    ended = [reply for reply in replies if reply.finish_reason == "stop"]
    assert ended
    assert all("schema" in reply.ignored for reply in ended)


def test_a_choice_list_is_refused_or_named(server: Serving) -> None:
    """It is sent with `preset="vllm"`, and this server refuses fields that it does not know."""
    with pytest.raises(GradingFailure, match="structured_outputs") as caught:
        server.judge(preset="vllm").chat(ask("Is it good?"), choices=["yes", "no"])
    assert caught.value.kind in {"invalid_input", "unsupported"}
    assert caught.value.metadata["status"] == 422
    assert caught.value.metadata["attempts"] == 1
    judge = server.judge(preset="openai", max_tokens=64)
    replies = [judge.chat(ask(f"Question {n}"), choices=["yes", "no"]) for n in range(8)]
    ended = [reply for reply in replies if reply.finish_reason == "stop"]
    assert ended
    assert all(reply.ignored == ("choices",) for reply in ended)


def test_a_wrong_model_name_is_the_callers_error(server: Serving) -> None:
    with pytest.raises(GradingFailure, match="somebody-else") as caught:
        server.judge(model="somebody-else").chat(ask("Is it good?"))
    assert caught.value.kind == "invalid_input"
    assert caught.value.metadata["status"] == 400
    assert caught.value.metadata["attempts"] == 1


@pytest.mark.parametrize("stream", [False, True])
def test_32_at_once_each_get_their_own_reply(
    server: Serving, one_by_one: list[str], stream: bool
) -> None:
    results = graded(server.judge(stream=stream))
    assert [type(result) for result in results] == [GraderScore] * len(ITEMS)
    assert [result.reason.strip() for result in results] == [text.strip() for text in one_by_one]
    assert len({result.score for result in results}) > 1
