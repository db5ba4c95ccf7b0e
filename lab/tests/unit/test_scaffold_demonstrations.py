"""What a tiny policy imitates before rubrics, and the mock that marks them."""

import json
import random
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.refusals import refuses

from adjudge.graders.llm.rubric_question import (
    build_criteria_fields,
    format_criteria,
    load_rubric_template,
)
from adjudge.mock.behaviours import MockSettings, make_behaviour
from adjudge.mock.wire import read_chat_request
from adjudge.prompts import LanguageEnum
from adjudge.rubrics import rubric_from
from adjudge_lab.rl.policy import generate_rubric_demonstrations
from adjudge_lab.rl.runfile_checks import load_run_file

ROOT = Path(__file__).parents[3]
ROWS: list[dict[str, Any]] = [
    {"prompt": "Which fruit?", "rubrics": [{"criterion": 'Says "plum"', "points": 5}]},
    {"prompt": "Which tree?", "rubrics": ['Names "oak" and "elm"', {"text": "Odd", "points": -1}]},
    {"prompt": "Which stone?", "rubrics": ["opal"]},
]


def test_half_of_the_answers_follow_a_scaffold_and_the_others_know_nothing() -> None:
    rows = list(islice(generate_rubric_demonstrations(ROWS, random.Random(1)), 400))
    assert rows == list(islice(generate_rubric_demonstrations(ROWS, random.Random(1)), 400))
    shown = [row["messages"] for row in rows if row["messages"][0]["role"] == "system"]
    plain = [row["messages"] for row in rows if row["messages"][0]["role"] == "user"]
    assert 150 < len(shown) < 250
    for system, _, answer in shown:
        for word in ("plum", "oak", "elm", "opal"):
            if word in system["content"]:
                assert word in answer["content"].split("\n")
    said: dict[str, set[str]] = {}
    for question, answer in plain:
        said.setdefault(question["content"], set()).update(answer["content"].split("\n"))
    assert all(words == {"plum", "oak", "elm", "opal"} for words in said.values())
    fruit = [turns for turns in shown if turns[1]["content"] == "Which fruit?"]
    assert any("opal" in system["content"] for system, *_ in fruit)  # of any row


def test_a_row_without_points_shows_nothing_and_one_that_cannot_be_read_is_named() -> None:
    watched = {"prompt": "Which?", "rubrics": [{"criterion": "Watched", "points": 0}]}
    rows = list(islice(generate_rubric_demonstrations([watched, *ROWS], random.Random(1)), 100))
    assert any(row["messages"][-2]["content"] == "Which?" for row in rows)
    assert not any("Watched" in turn["content"] for row in rows for turn in row["messages"])
    with refuses("rollout.dataset"):
        next(generate_rubric_demonstrations([watched], random.Random(1)))
    with refuses("rollout.dataset"):
        next(
            generate_rubric_demonstrations(
                [*ROWS, {"prompt": "q", "rubrics": "x"}], random.Random(1)
            )
        )


def marks(criteria: list[Any], response: str) -> dict[str, Any]:
    rubric, language = rubric_from(criteria), LanguageEnum.EN
    lines = format_criteria(rubric, rubric.criteria, language)
    rendered = load_rubric_template("rubric", "response", given=True).render(
        {
            **build_criteria_fields(lines, language, given=True),
            "conversation": 'Is it "plum"?\n9. No',
            "response": response,
            "reply_form": "",
        }
    )
    request = read_chat_request("openai", msgspec.json.encode({"messages": rendered.messages}))
    found = json.loads(make_behaviour(MockSettings(behaviour="criteria"))(request).text)
    return {number: found[number]["verdict"] for number in map(str, range(1, len(criteria) + 1))}


def test_the_mock_marks_criteria_by_the_words_that_they_quote() -> None:
    criteria = ['Says "plum"', 'Says "oak" and "elm"', "Is rude"]
    assert marks(criteria, "A Plum, an elm.") == {"1": "MET", "2": "UNMET", "3": "UNMET"}
    assert marks(criteria, "oak elm") == {"1": "UNMET", "2": "MET", "3": "UNMET"}


@pytest.mark.parametrize("name", ["rl_rubrics_tiny", "ruscarl_tiny"])
def test_the_examples_are_runs(name: str) -> None:
    run = load_run_file(ROOT / "examples" / f"{name}.toml")
    assert run.starts_mock
    assert (run.rollout.scaffold is not None) == (name == "ruscarl_tiny")
