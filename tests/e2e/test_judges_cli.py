"""Judges of a spec through the command line, against a real provider process."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.helpers.command import invoke
from tests.unit.helpers.mock_provider import start_mock_here

pytestmark = pytest.mark.slow  # whole commands, and a server each

OWN = """
import json
from adjudge import BaseGrader, GraderScore

class Judged(BaseGrader):
    score_range = (0.0, 1.0)

    def __init__(self, model, name: str = ""):
        super().__init__(name)
        self.model = model

    async def aevaluate(self, response):
        reply = await self.model.achat([{"role": "user", "content": response}])
        score = json.loads(reply.text)["score"]
        return GraderScore(self.name, float(score), provenance=reply.provenance)
"""

SPEC = """
[[graders]]
name = "quality"
type = "judged_by_own:Judged"

[judges.main]
type = "vllm"
model = "mock"
base_url = "{url}"
price = {{ input = 1.0, output = 2.0 }}
"""


@pytest.fixture(scope="module")
def provider() -> Iterator[str]:
    with start_mock_here(latency=("fixed:0.005",)) as base_url:
        yield base_url


def folder(tmp_path: Path, url: str) -> Path:
    (tmp_path / "judged_by_own.py").write_text(OWN)
    (tmp_path / "spec.toml").write_text(SPEC.format(url=url))
    rows = [{"prompt": f"p{i // 4}", "response": f"r{i}"} for i in range(40)]
    (tmp_path / "rollouts.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return tmp_path


def test_grade_shows_a_table_of_calls(tmp_path: Path, provider: str) -> None:
    here = folder(tmp_path, provider)
    out = here / "out"
    done = invoke("grade", here / "rollouts.jsonl", "-s", here / "spec.toml", "-o", out, "-q")
    assert done.exit_code == 0, done.output
    assert f"mock @ {provider.partition('://')[2]}" in done.output
    assert "latency p50 / p95 / p99" in done.output
    summary = json.loads((out / "summary.json").read_text())
    (endpoint,) = summary["endpoints"]
    assert endpoint["calls"] == endpoint["answered"] == 40
    assert endpoint["failures"] == {}
    assert endpoint["models"] == ["mock"]
    assert endpoint["cost_usd"] > 0
    judged = summary["graders"]["quality"]["judge"]
    assert judged["sources"] == {"live": 40}
    assert judged["input_tokens"] == endpoint["input_tokens"] > 0
    assert judged["cost_usd"] == pytest.approx(endpoint["cost_usd"])
    assert "Judge calls" in (out / "report.html").read_text()


@pytest.mark.slow
def test_doctor_says_what_a_server_honours(tmp_path: Path) -> None:
    with start_mock_here(fail=("drop-logprobs:1", "drop-schema:1")) as url:
        here = folder(tmp_path, url)
        done = invoke("doctor", here / "spec.toml", "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.output)["judges"]["main"]
    honoured = {one["feature"]: one["honoured"] for one in found["findings"]}
    assert honoured["reply"] == honoured["usage"] == honoured["streaming"] == "yes"
    assert honoured["logprobs"] == honoured["schema"] == "no"
    shown = invoke("doctor", here / "spec.toml")
    assert shown.exit_code == 3  # the provider is gone by now
    assert "connection" in shown.output


def test_doctor_advises_features(tmp_path: Path, provider: str) -> None:
    here = folder(tmp_path, provider)
    text = (here / "spec.toml").read_text()
    (here / "spec.toml").write_text(text + 'features = ["logprobs"]\n')
    done = invoke("doctor", here / "spec.toml")
    assert done.exit_code == 0, done.output
    assert 'features = ["schema", "choices", "logprobs", "stream_usage"]' in done.output


JUDGE = """
[[graders]]
name = "quality"
type = "llm"
template = "How good is {response}? {reply_form}"
score_range = [0, 1]
judge = "main"

[judges.main]
type = "vllm"
model = "mock"
base_url = "URL"
"""


def judged(tmp_path: Path, url: str) -> Path:
    (tmp_path / "judge.toml").write_text(JUDGE.replace("URL", url))
    rows = [{"prompt": f"p{i // 4}", "response": f"r{i}"} for i in range(16)]
    (tmp_path / "rollouts.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return tmp_path


def grade(work: Path, *arguments: str) -> Any:
    folder = work / "out"
    spec, rollouts = work / "judge.toml", work / "rollouts.jsonl"
    return invoke("grade", rollouts, "-s", spec, "-o", folder, "-q", *arguments)


@pytest.mark.parametrize("arguments", [(), ("--wait-for-judge", "0.5")])
def test_nobody_listening_ends_the_command_with_the_cause(
    tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
    work = judged(tmp_path, url)
    done = grade(work, *arguments)
    said = " ".join(done.output.split())
    assert done.exit_code == 3
    assert f"{url}: connection refused; is the server running?" in said
    assert "never reached its judge" in said
    asked = invoke("probe", work / "judge.toml", "-o", work / "card", "--n", "2", "-q", *arguments)
    assert asked.exit_code == 3
    assert "connection refused" in asked.output


def test_a_judge_that_starts_late_is_waited_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    work = judged(tmp_path, f"http://127.0.0.1:{port}/v1")
    with ExitStack() as stack:
        late = threading.Timer(0.5, lambda: stack.enter_context(start_mock_here(port=port)))
        late.start()
        done = grade(work, "--wait-for-judge", "60")
        late.join()
    assert done.exit_code == 0, done.output
    assert "connection refused" in caplog.text
