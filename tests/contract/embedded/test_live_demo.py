"""``adjudge demo --live``: the whole command with its real model, and the folder that it writes."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("xllamacpp", reason="xllamacpp is not installed here; run `make test-embedded`")


def _run(*arguments: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "adjudge", *arguments], cwd=folder, capture_output=True, text=True,
        env={**os.environ, "COLUMNS": "160"}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Where it ran, and what it printed."""
    folder = tmp_path_factory.mktemp("demo")
    return folder, _run("demo", "--live", "-o", "out", folder=folder)


def _rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "rewards.jsonl").read_text().splitlines()]


def test_each_answer_has_a_verdict_or_a_reason_why_not(demo: tuple[Path, str]) -> None:
    folder, _ = demo
    rows = _rows(folder / "out")
    assert len(rows) == 8
    for row in rows:
        rubric = row["details"]["rubric"]
        if "error" in rubric:
            assert row["reward"] is None
            assert row["missing"]["kind"] == rubric["kind"]
        else:
            marks = rubric["metadata"]["criteria"]
            score = marks["correct"]["met"] - marks["error"]["met"]
            assert rubric["score"] == score
            assert row["reward"] == pytest.approx((score + 1) / 2)
    assert any(row["reward"] is not None for row in rows)


def test_the_report_has_the_judges_words(demo: tuple[Path, str]) -> None:
    folder, _ = demo
    reasons = [
        mark["reason"]
        for row in _rows(folder / "out")
        for mark in row["details"]["rubric"].get("metadata", {}).get("criteria", {}).values()
    ]
    page = (folder / "out" / "report.html").read_text()
    assert any(len(reason) > 10 and reason[:20] in page for reason in reasons)


def test_the_written_spec_grades_again(demo: tuple[Path, str]) -> None:
    """Its replies are in the folder, so this asks nobody."""
    folder, _ = demo
    inputs = folder / "out" / "inputs"
    rollouts, spec = str(inputs / "rollouts.jsonl"), str(inputs / "reward.toml")
    _run("grade", rollouts, "--spec", spec, "-o", "next", folder=folder)
    first, second = _rows(folder / "out"), _rows(folder / "next")
    judged = [one["reward"] is not None for one in first]
    assert [one["reward"] for one, ok in zip(second, judged, strict=True) if ok] == [
        one["reward"] for one in first if one["reward"] is not None
    ]
