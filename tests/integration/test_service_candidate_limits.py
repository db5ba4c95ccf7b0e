"""Bombs through ``adjudge serve`` in every format, through its client, and through ``grade``."""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.unit.helpers.service_processes import post
from tests.unit.test_candidate_limits import BOMBS, REFERENCE

from adjudge import GraderError, GradingRunner
from adjudge.client import ServedGrader
from adjudge.errors import ErrorKind
from adjudge.service.server import start_service

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


def served(folder: Path, spec: str) -> Iterator[str]:
    (path := folder / "spec.toml").write_text(spec)
    with start_service(str(path)) as url:
        yield url


@pytest.fixture(scope="module")
def maths(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    yield from served(tmp_path_factory.mktemp("maths"), MATHS)


@pytest.fixture(scope="module")
def pattern(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    yield from served(tmp_path_factory.mktemp("pattern"), PATTERN)


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
