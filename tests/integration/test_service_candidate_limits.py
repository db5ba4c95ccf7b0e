"""Bombs through ``adjudge serve`` and its client."""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

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


@pytest.mark.parametrize("bomb", [BOMB, SUM], ids=["tower", "sum"])
def test_a_bomb_is_a_score_of_its_own(maths: str, bomb: str) -> None:
    texts = (bomb, r"\boxed{x/2}", bomb)
    rows = [{"prompt": "q", "completion": text, "answer": REFERENCE} for text in texts]
    status, body = post(f"{maths}/batch_judge", {"requests": rows})
    assert (status, [one["score"] for one in body["responses"]]) == (200, [0.0, 1.0, 0.0])
    status, body = post(f"{maths}/judge", rows[0])
    assert (status, body["score"]) == (200, 0.0)


def test_a_slow_comparison_is_marked_as_local(pattern: str) -> None:
    status, body = post(f"{pattern}/judge", SLOW)
    assert (status, body["error"]["kind"], body["error"]["local"]) == (503, "timeout", True)
    trainers = {"prompt": "q", "response": SLOW["completion"], "label": SLOW["answer"]}
    status, body = post(f"{pattern}/slime", trainers)
    # Trainers ask again after a 503, which would not help.
    assert (status, body["error"]["kind"], body["error"]["local"]) == (422, "timeout", True)


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
