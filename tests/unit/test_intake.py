"""What intake decides that no door shows by itself: what is said once, and what a reward is."""

from __future__ import annotations

import logging
import math
from array import array
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.rows import write_jsonl

import adjudge
from adjudge.engine.loop import run_blocking
from adjudge.rollouts.samples import GroupNames, SampleReader
from adjudge.types import Sample

ANSWER = {"graders": [{"name": "right", "type": "string_match"}]}
ASKED = [{"role": "user", "content": "2 + 2?"}]


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
    said = [[{"role": "assistant", "content": text}] for text in ("hm</think>4", "4", "hm")]
    with caplog.at_level(logging.WARNING):
        found = run_blocking(reward([ASKED] * 3, said, [[1]] * 3, answer=["4"] * 3))
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


@pytest.mark.parametrize("said", [[], ASKED, [{"role": "tool", "content": "4"}]])
def test_a_rollout_in_which_the_policy_never_spoke_is_missing(said: list[dict[str, str]]) -> None:
    trl = adjudge.make_reward(ANSWER, trainer="trl")
    assert run_blocking(trl([ASKED], [said], answer=["4"])) == [None]
    assert adjudge.make_reward(ANSWER)([ASKED], [said], answer=["4"]) == [None]
    rows = [{"prompt": ASKED, "response": said}, {"messages": ASKED + said, "opening_turns": 1}]
    rows.append({"prompt": "2 + 2?", "response": "4", "answer": "4"})
    assert len(adjudge.grade(rows, ANSWER, progress=False).broken) == 2


def test_a_completion_that_cannot_be_read_is_missing_and_costs_no_other() -> None:
    said = ["4", 4, math.nan, ({"role": "assistant", "content": "4"},), [{"content": "4"}]]
    rewards = adjudge.make_reward(ANSWER)([ASKED] * 5, said, answer=["4"] * 5)
    assert rewards == [1.0, None, None, 1.0, None]


def test_arrays_of_any_library_are_lists_in_a_trainer_too() -> None:
    spec = {"graders": [{"name": "right", "type": "answer", "answer_type": "NUMBER"}]}
    reward = adjudge.make_reward(spec, trainer="trl")
    assert run_blocking(reward(["2 + 2?"], ["4"], answer=[array("q", [3, 4])])) == [1.0]


def test_a_sample_is_graded_with_what_it_knows_of_itself() -> None:
    turns = [{"role": "assistant", "content": text} for text in ("4", "5")]
    talk, extra = [*ASKED, turns[0], *ASKED, turns[1]], {"answer": "4"}
    shown = Sample(0, 0, "2 + 2?", "5", talk, extra, opening_turns=3, group="g")
    lost = Sample(1, 0, "2 + 2?", "4", None, extra, is_lost=True, problem="cut off")
    spec = {
        "graders": [{"name": "right", "type": "string_match", "scope": "event"}],
        "reward": {"event_weight": 1.0, "outcome_weight": 0.0},
    }
    run = adjudge.grade([shown, lost], spec, progress=False)
    assert [one.message for one in run.broken] == ["cut off"]
    assert [(row.reward, row.group) for row in run.rows] == [(0.0, "g")]


def test_a_datasets_column_never_replaces_what_the_policy_said() -> None:
    reward = adjudge.make_reward(ANSWER, trainer="trl")
    columns = {"reward_info": [{}], "dataset_columns": [{"response": "4", "answer": "5"}]}
    assert run_blocking(reward(["2 + 2?"], ["5"], answer=["4"], **columns)) == [0.0]
