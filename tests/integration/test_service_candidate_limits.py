"""Bombs through ``adjudge serve`` in every format, through its client, and through ``grade``."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.unit.test_candidate_limits import BOMBS, REFERENCE

from adjudge import GraderError, GradingRunner
from adjudge.client import ServedGrader
from adjudge.errors import ErrorKind
from adjudge.service.server import start_service_process

pytestmark = pytest.mark.slow

MATHS = """
version = 1
[[graders]]
name = "maths"
type = "answer"
answer_type = "MATH_EXPRESSIONS"
"""
PATTERN = """
version = 1
[[graders]]
name = "pattern"
type = "answer"
answer_type = "REGEX"
"""
# The row's pattern explodes on this text: nobody can say by whose doing.
SLOW = {"prompt": "q", "completion": "a" * 60 + "b", "answer": "(a+)+$"}
BOMB = rf"\boxed{{{BOMBS['tower']}}}"
SUM = rf"\boxed{{{BOMBS['sum']}}}"
COMMAND = [sys.executable, "-m", "adjudge"]


def spec_file(folder: Path, text: str) -> str:
    path = folder / "spec.toml"
    path.write_text(text)
    return str(path)


@pytest.fixture(scope="module")
def maths(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    path = spec_file(tmp_path_factory.mktemp("maths"), MATHS)
    with start_service_process(
        [*COMMAND, "serve", path, "--port", "0", "--json", "--until-eof"]
    ) as found:
        yield found[0].url


@pytest.fixture(scope="module")
def pattern(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    path = spec_file(tmp_path_factory.mktemp("pattern"), PATTERN)
    with start_service_process(
        [*COMMAND, "serve", path, "--port", "0", "--json", "--until-eof"]
    ) as found:
        yield found[0].url


def post(url: str, value: Any) -> tuple[int, Any]:
    request = urllib.request.Request(
        url, json.dumps(value).encode(), {"content-type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as refused:
        return refused.code, json.load(refused)


def row(completion: str, answer: str) -> dict[str, Any]:
    said = [
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": completion}],
        }
    ]
    return {
        "responses_create_params": {"input": "q"},
        "response": {"output": said},
        "expected_answer": answer,
    }


def formats(completion: str, answer: str) -> dict[str, Any]:
    """What each trainer sends about one completion."""
    one = {"prompt": "q", "response": completion, "label": answer}
    whole = {"prompt": "q", "completion": completion, "answer": answer}
    return {
        "/judge": whole,
        "/batch_judge": {"requests": [whole, whole]},
        "/get_reward": {"query": [f"q{completion}"], "prompts": ["q"], "labels": [answer]},
        "/slime": one,
        "/slime/parts": one,
        "/verify": row(completion, answer),
    }


def scores(path: str, body: Any) -> list[Any]:
    found: dict[str, Any] = {
        "/judge": lambda: [body["score"]],
        "/batch_judge": lambda: [one["score"] for one in body["responses"]],
        "/get_reward": lambda: body["rewards"],
        "/slime": lambda: [body],
        "/slime/parts": lambda: [body["score"]],
        "/verify": lambda: [body["reward"]],
    }
    return list(found[path]())


@pytest.mark.parametrize("bomb", [BOMB, SUM], ids=["tower", "sum"])
@pytest.mark.parametrize("path", formats("", ""))
def test_a_bomb_is_a_score_in_every_format(maths: str, path: str, bomb: str) -> None:
    status, body = post(maths + path, formats(bomb, REFERENCE)[path])
    assert status == 200, body
    assert set(scores(path, body)) == {0.0}
    status, body = post(maths + path, formats(r"\boxed{x/2}", REFERENCE)[path])
    assert set(scores(path, body)) == {1.0}


def test_llamafactory_sends_no_reference(tmp_path: Path) -> None:
    schema = tmp_path / "spec.toml"
    schema.write_text(
        'version = 1\n[[graders]]\nname = "json"\ntype = "json_schema"\n'
        "schema = {uniqueItems = true, unevaluatedItems = true}\n"
    )
    with start_service_process(
        [*COMMAND, "serve", str(schema), "--port", "0", "--json", "--until-eof"]
    ) as found:
        many = json.dumps([{"a": n} for n in range(20_000)])
        status, body = post(
            f"{found[0].url}/llamafactory", {"model": "model", "messages": [many, "[1, 2]"]}
        )
    assert (status, body["scores"]) == (200, [0.0, 1.0])


@pytest.mark.parametrize("path", formats("", ""))
def test_a_slow_comparison_is_marked_as_local_in_every_format(pattern: str, path: str) -> None:
    status, body = post(pattern + path, formats(SLOW["completion"], SLOW["answer"])[path])
    if path == "/batch_judge":
        body = body["responses"][0]
    error = body["error"]
    assert (error["kind"], error["local"]) == ("timeout", True)
    # Trainers ask again after a 503, which would not help.
    expected = {"/judge": 503, "/batch_judge": 200}
    assert status == expected.get(path, 422)


def timeouts(url: str) -> int:
    """How many judgements of the service have ended in a timeout, by its own count."""
    with urllib.request.urlopen(f"{url}/metrics") as response:
        numbers = response.read().decode()
    found = re.search(r'^judge_failures_total\{kind="timeout"\} (\d+)', numbers, re.MULTILINE)
    return int(found[1]) if found else 0


def test_a_remote_local_timeout_is_no_outage_and_is_asked_once(pattern: str) -> None:
    rows = [{**SLOW, "response": SLOW["completion"], "reference": SLOW["answer"]}] * 3
    judged = timeouts(pattern)
    runner = GradingRunner({"served": ServedGrader(pattern)}, show_progress=False)
    for asked in (rows[:1], rows):  # alone, and as a batch
        for found in runner.run(list(asked))["served"]:
            assert isinstance(found, GraderError)
            assert found.kind is ErrorKind.TIMEOUT
            assert found.metadata["local"]
            assert found.suspect
            assert not found.passing
        judged += len(asked)
        assert timeouts(pattern) == judged


def test_a_run_with_many_bombs_ends_well(tmp_path: Path) -> None:
    bombs = [f"\\boxed{{{bomb}}}" for bomb in BOMBS.values()]
    texts = [*(bombs * 2)[:20], *[r"\boxed{x/2}"] * 12]
    rollouts = tmp_path / "rollouts.jsonl"
    rollouts.write_text(
        "".join(
            json.dumps({"prompt": "q", "response": text, "reference": REFERENCE}) + "\n"
            for text in texts
        )
    )
    output = tmp_path / "run"
    done = subprocess.run(
        [*COMMAND, "grade", str(rollouts), "-s", spec_file(tmp_path, MATHS), "-o", str(output)],
        capture_output=True, text=True, check=False, env={**os.environ, "COLUMNS": "120"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = (output / "rewards.jsonl").read_text().splitlines()
    rewards = [json.loads(line)["reward"] for line in lines]
    assert rewards == [0.0] * 20 + [1.0] * 12
