"""``adjudge serve`` as a user runs it: processes, HTTP, signals."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import ANY

import pytest
from tests.unit.helpers.service_processes import post

pytestmark = pytest.mark.slow

ADJUDGE = [sys.executable, "-m", "adjudge"]
KEY = "a-key-of-this-test"
RULES = """
version = 1
[[graders]]
name = "right"
type = "answer"
"""


@pytest.fixture
def rules(tmp_path: Path) -> str:
    path = tmp_path / "rules.toml"
    path.write_text(RULES)
    return str(path)


@contextmanager
def serve(*words: str, folder: Path | None = None) -> Iterator[subprocess.Popen[str]]:
    """A running ``adjudge serve`` on a free port; killed if the test leaves it running."""
    with subprocess.Popen(
        [*ADJUDGE, "serve", *words, "--port", "0"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder,
        env={**os.environ, "COLUMNS": "120"},
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            process.kill()


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_the_line_to_try_works(rules: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_MODEL_API_KEY", KEY)
    with serve(rules) as process:
        lines = [line_of(process) for _ in range(6)]
        url = lines[0]
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+", url)
        command = next(line for line in lines if line.startswith("try: ")).removeprefix("try: ")
        assert KEY not in "".join(lines)
        program, *words = shlex.split(os.path.expandvars(command))
        assert (program, words[0], words[3]) == ("curl", "-H", "-d")
        name, _, value = words[1].partition(": ")
        status, body = post(words[2], json.loads(words[4]), **{name: value})
        assert (status, body["score"]) == (200, 1.0)
        assert post(words[2], json.loads(words[4]))[0] == 401
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()


def test_a_spec_that_compares_says_how_to_try_it(tmp_path: Path) -> None:
    spec = tmp_path / "compared.toml"
    spec.write_text(RULES + '[reward]\ngroup = "centre"\n')
    with serve(str(spec)) as process:
        lines = [line_of(process) for _ in range(7)]
        assert any(line.strip() == "POST /group_judge" for line in lines)
        command = next(line for line in lines if line.startswith("try: ")).removeprefix("try: ")
        _, url, _, body = shlex.split(command)
        assert post(url, json.loads(body)) == (200, ANY)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
