"""What intake decides that no door shows by itself: what is said once, and what a reward is."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.rows import write_jsonl

import adjudge
from adjudge.rollouts.samples import GroupNames, SampleReader
from adjudge.types import Sample

ANSWER = {"graders": [{"name": "right", "type": "string_match"}]}


def write(folder: Path, *rows: Mapping[str, object]) -> Path:
    return write_jsonl(folder / "rows.jsonl", rows)


def test_a_column_that_is_passed_over_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    rows = [{"prompt": "2 + 2?", "response": "4", "solution": "so 4", "answer": "4"}] * 3
    with caplog.at_level(logging.WARNING):
        assert adjudge.grade(rows, ANSWER, progress=False).rewards == [1.0, 1.0, 1.0]
    said = [one.getMessage() for one in caplog.records if "passed over" in one.getMessage()]
    assert len(said) == 1
    assert "'answer'" in said[0]
    assert "'solution'" in said[0]


def test_texts_that_may_be_cut_thinking_are_spoken_of_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    reward = adjudge.make_reward(ANSWER, trainer="trl")
    talk = [[{"role": "user", "content": "2 + 2?"}]] * 3
    said = [[{"role": "assistant", "content": text}] for text in ("hm</think>4", "4", "hm")]
    with caplog.at_level(logging.WARNING):
        found = adjudge.engine.loop.run_blocking(
            reward(prompts=talk, completions=said, completion_ids=[[1]] * 3, answer=["4"] * 3)
        )
    assert found == [1.0, 1.0, 0.0]
    assert sum("plain text" in one.getMessage() for one in caplog.records) == 1


def test_conversations_that_go_on_with_other_questions_are_other_groups(tmp_path: Path) -> None:
    def talk(country: str, answer: str) -> dict[str, object]:
        turns = ["Capital of France?", "Paris.", f"And of {country}?", answer]
        roles = ["user", "assistant"] * 2
        return {"messages": [{"role": r, "content": c} for r, c in zip(roles, turns, strict=True)]}

    path = write(tmp_path, *(talk(c, a) for c in ("Italy", "Spain") for a in ("Rome", "Madrid")))
    names = GroupNames()
    groups = [names.name(one) for _, one in SampleReader([path]).read() if isinstance(one, Sample)]
    assert groups[0] == groups[1] != groups[2] == groups[3]
    assert "-m group=COLUMN" in names.source
