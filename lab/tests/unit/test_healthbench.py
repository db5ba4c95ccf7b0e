"""HealthBench's rows, the join with answers, and the aggregate by hand."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.refusals import refuses
from tests.rows import write_jsonl

from adjudge.errors import ConfigError
from adjudge_lab.evaluation.healthbench import (
    HealthbenchItem,
    MarkedSample,
    build_missing_sample,
    mark_sample,
    read_healthbench_answers,
    read_healthbench_items,
    summarise_healthbench,
)
from adjudge_lab.evaluation.healthbench_run import load_rubric_grader_spec
from adjudge_lab.evaluation.responses import PromptResponse

CHAT = [
    {"role": "user", "content": "My leg hurts."},
    {"role": "assistant", "content": "Since when?"},
    {"role": "user", "content": "Yesterday."},
]
CRITERIA = [
    {"criterion": "Asks about a fall", "points": 6, "tags": ["axis:context", "level:example"]},
    {"criterion": "Names rest", "points": 4, "tags": ["axis:accuracy", "level:cluster"]},
    {"criterion": "Alarms", "points": -8, "tags": {"axis": "accuracy", "cluster": None}},
]
ROW = {"prompt": CHAT, "rubrics": CRITERIA, "example_tags": ["theme:context_seeking"]}


def written(path: Path, *rows: Any) -> Path:
    return write_jsonl(path, rows)


def item_of(folder: Path, **changes: Any) -> HealthbenchItem:
    (item,) = read_healthbench_items(written(folder / "data.jsonl", ROW | changes), "prompt")
    return item


ANSWER = PromptResponse(place="p", sample=0, text="Rest.", line=1)


def told(item: HealthbenchItem, *met: bool | None, **more: Any) -> dict[str, Any]:
    marks = {
        one.id: {"met": mark, "reason": ""}
        for one, mark in zip(item.rubric.criteria, met, strict=True)
        if mark is not None
    }
    return {**more, "metadata": {"criteria": marks}}


def test_a_missing_mark_is_an_interval_and_no_score(tmp_path: Path) -> None:
    item = item_of(tmp_path)
    detail = told(item, True, None, False, error="1 of 3 has no verdict", kind="incomplete")
    one = mark_sample(item, ANSWER, detail)
    assert (one.score, one.low, one.high) == (None, 0.6, 1.0)
    assert one.kind == "incomplete"
    assert one.tags == {}
    lost = build_missing_sample(item, ANSWER, "timeout", "late")
    assert (lost.low, lost.high) == (-0.8, 1.0)


def sample(key: str, score: float | None, number: int = 0, **more: Any) -> MarkedSample:
    ends = {"low": score, "high": score} if score is not None else {"low": -2.0, "high": 1.0}
    kind = "" if score is not None else "timeout"
    return MarkedSample(
        **{"key": key, "sample": number, "score": score, "kind": kind, **ends, **more}
    )


def test_what_is_missing_is_in_no_mean_and_in_the_bounds() -> None:
    found = summarise_healthbench([sample("a", 0.5), sample("b", None), sample("c", 0.7)])
    assert found["overall"]["score"] == pytest.approx(0.6)
    assert found["missing_by_kind"] == {"timeout": 1}
    assert found["bounds"] == pytest.approx([0.0, 2.2 / 3])
    nothing = summarise_healthbench([sample("a", None)])
    assert nothing["overall"]["score"] is None


def test_answers_are_joined_by_the_whole_conversation_or_by_key(tmp_path: Path) -> None:
    rows = [
        {"prompt": CHAT, "response": "a"},
        {"prompt": json.dumps(CHAT), "responses": ["b", "c"]},
        {"prompt": "Yesterday.", "response": "to another prompt"},
        {"prompt": CHAT, "response": 7},
        {"prompt": CHAT, "sample": 5, "error": {"kind": "timeout"}},
    ]
    found, problems = read_healthbench_answers(written(tmp_path / "r.jsonl", *rows), "prompt")
    place = item_of(tmp_path).place
    assert [(one.sample, one.text) for one in found if one.place == place] == [
        (0, "a"), (1, "b"), (2, "c"), (5, None)]  # fmt: skip
    assert found[-1].failure == "timeout"
    assert [one.line for one in problems] == [4]
    keyed = written(tmp_path / "k.jsonl", {"key": 0, "response": "x"}, {"response": "y"})
    found, problems = read_healthbench_answers(keyed, "key")
    assert [one.place for one in found] == ["0"]
    (item,) = read_healthbench_items(tmp_path / "data.jsonl", "key")
    assert item.place == "0"
    assert len(problems) == 1


def test_a_null_in_a_list_is_a_sample_that_could_not_be_made(tmp_path: Path) -> None:
    rows = [{"prompt": CHAT, "sample": 0, "responses": ["a", None, "c"]}]
    found, problems = read_healthbench_answers(written(tmp_path / "r.jsonl", *rows), "prompt")
    assert [(one.sample, one.text, one.failure) for one in found] == [
        (0, "a", ""), (1, None, "unknown"), (2, "c", "")]  # fmt: skip
    assert problems == []


def test_rows_whose_keys_are_the_same_are_refused(tmp_path: Path) -> None:
    """They would be samples of one prompt."""
    other = {**ROW, "prompt": "Q"}
    for rows in ([ROW | {"id": "x"}, other | {"id": "x"}], [ROW | {"id": "1"}, other]):
        with pytest.raises(ConfigError, match=r"2: has the same key \('.'\) as .*data.jsonl:1"):
            read_healthbench_items(written(tmp_path / "data.jsonl", *rows), "prompt")


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"prompt": 1}, "must be chat messages or a text"),
        ({"prompt": "Q", "rubrics": []}, "rubrics"),
        (
            {"prompt": "Q", "rubrics": [{"criterion": "a", "points": -1}]},
            "no criterion with positive points",
        ),
    ],
)
def test_rows_that_cannot_be_used_say_why(tmp_path: Path, row: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        read_healthbench_items(written(tmp_path / "data.jsonl", row), "prompt")


SPEC = """
[[graders]]
name = "other"
type = "length_penalty"

[[graders]]
name = "marks"
type = "rubric"
ask = "each"
clip = true
{more}

[reward]
aggregate = "min"

[judges.main]
type = "scripted"
script = "x"
"""


def test_the_specs_rubric_grader_is_asked_about_the_rows_own_rubrics(tmp_path: Path) -> None:
    path = tmp_path / "judge.toml"
    path.write_text(SPEC.format(more=""))
    spec, name = load_rubric_grader_spec(f"{path}#marks")
    assert (name, len(spec.graders)) == ("marks", 1)
    grader = spec.build_graders()["marks"]
    assert (grader.ask, grader.field, grader.clip) == ("each", "rubric", False)
    assert load_rubric_grader_spec(str(path))[0].hash == spec.hash
    with pytest.raises(ConfigError, match="is no grader of type rubric"):
        load_rubric_grader_spec(f"{path}#other")
    path.write_text(SPEC.format(more='criteria = ["a"]'))
    with refuses("marks.criteria"):
        load_rubric_grader_spec(str(path))
    with refuses("model"):
        load_rubric_grader_spec("model")
