"""``adjudge serve`` as a user runs it: a spec whose judge is a provider elsewhere."""

import json
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from tests.unit.helpers.mock_provider import start_mock_here
from tests.unit.helpers.service_processes import post

from adjudge.service.server import start_service

SPEC = """
version = 1
[[graders]]
name = "right"
type = "answer"
weight = 0.5
[[graders]]
name = "quality"
type = "llm"
judge = "main"
weight = 0.5
template = "How good is {{response}} as an answer to {{prompt}}?"
score_range = [0, 10]
[judges.main]
type = "openai"
model = "mock"
base_url = "{url}"
api_key_env = "NO_SUCH_KEY_IS_NEEDED"
"""
COMMAND = [sys.executable, "-m", "adjudge", "serve"]


def get(url: str) -> str:
    with urllib.request.urlopen(url) as response:
        return str(response.read().decode())


@pytest.mark.parametrize(
    ("grader", "refused"),
    [
        ('type = "llm"\ntemplate = "Rate {response}"', False),
        ('type = "llm"\ntemplate = "Rate {query} {response}"', True),
        ('type = "relevance"', True),
        ('type = "llm"\ntemplate = "Rate {level} {response}"', True),
    ],
)
def test_what_llama_factory_cannot_ask_is_refused(
    tmp_path: Path, grader: str, refused: bool
) -> None:
    path = tmp_path / "spec.toml"
    path.write_text(
        'version = 1\n[reward]\nnormalise = false\n[judges.main]\ntype = "scripted"\n'
        f"""script = '{{"score": 4, "reason": "good"}}'\n[[graders]]\nname = "fit"\n{grader}\n"""
    )
    arguments = [*COMMAND, str(path), "--port", "0", "--damping", "0.5:0.8"]
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with process:
        assert process.stdout is not None
        assert process.stderr is not None
        url = process.stdout.readline().strip()
        assert json.loads(get(f"{url}/health"))["graders"] == ["fit"]
        body = {"model": "model", "messages": ["user 2 + 2? assistant 4"]}
        status, found = post(f"{url}/llamafactory", body)
        assert (status, found.get("scores")) == ((422, None) if refused else (200, [4.0]))
        process.send_signal(signal.SIGINT)


def test_a_judge_elsewhere_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_SUCH_KEY_IS_NEEDED", "x")
    with start_mock_here(reply='{"score": 5, "reason": "good"}') as provider:
        spec = tmp_path / "spec.toml"
        spec.write_text(SPEC.format(url=provider))
        with start_service(str(spec)) as url:
            asked = {"prompt": "What is 2 + 2?", "completion": "4", "answer": "4"}
            _, answer = post(f"{url}/judge", asked)
            assert set(answer["detailed_scores"]) == {"right", "quality"}
            assert answer["score"] is not None
            numbers = get(f"{url}/metrics")
            assert f'judge_upstream_calls_total{{endpoint="1:{provider}"}} 1.0' in numbers
            assert f'judge_upstream_unpriced_total{{endpoint="1:{provider}"}} 1.0' in numbers
            assert "\njudge_cost_usd_total" not in numbers  # its spec has no price
            [calls] = json.loads(get(f"{url}/calls"))
            assert (calls["base_urls"], calls["calls"], calls["answered"]) == ([provider], 1, 1)
            assert json.loads(get(f"{url}/health"))["model_loaded"] is True
