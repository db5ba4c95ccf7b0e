"""Reading replies is total, and the three ways of it agree with each other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hypothesis import given, settings, strategies as st

from adjudge.rubrics import Criterion, Rubric
from adjudge_lab.studies.judge_dumps import ReplyForm, parse_reply, read_dump

POINTS = [4, 1, -2]
RUBRIC = Rubric(tuple(Criterion("c", str(n), p) for n, p in enumerate(POINTS, 1)), clip=True)
FORMS = [
    ReplyForm(name="marks", rubric=RUBRIC),
    ReplyForm(name="brackets"),
    ReplyForm(name="score", low=0, high=1),
    ReplyForm(name="score"),
]
WORDS = ["PRESENT", "NOT_PRESENT", '"1"', '"2"', '"3"', ":", "{", "}", "[[1]]", "[[0]]", "[[", "]]",
         "```json\n", "```", "\n", " ", ",", "1", "0.5", "<think>", "</think>", '"score"', "NaN",
         "1e999", "\0", "PRESENT."]  # fmt: skip
REPLIES = st.one_of(
    st.text(max_size=80), st.lists(st.sampled_from(WORDS), max_size=24).map("".join)
)


@settings(max_examples=40, deadline=None)
@given(reply=REPLIES, form=st.sampled_from(FORMS))
def test_every_reply_is_a_score_or_a_kind(reply: str, form: ReplyForm) -> None:
    strict, anywhere, either = (
        parse_reply(reply, form, parse) for parse in ("strict", "anywhere", "either")
    )
    for found in (strict, anywhere, either):
        assert (found.score is None) == bool(found.kind)
        assert (found.score is not None) == bool(found.how)
    assert either == (strict if strict.score is not None else anywhere)


@settings(max_examples=40, deadline=None)
@given(marks=st.lists(st.booleans(), min_size=3, max_size=3), around=st.sampled_from(["", "so "]))
def test_marks_become_the_score_of_the_formula(marks: list[bool], around: str) -> None:
    said = {str(n): "PRESENT" if mark else "NOT_PRESENT" for n, mark in enumerate(marks, 1)}
    found = parse_reply(around + json.dumps(said), FORMS[0], "either")
    earned = sum(points for points, mark in zip(POINTS, marks, strict=True) if mark)
    assert found.score == max(0, earned) / 5
    assert found.how == ("anywhere" if around else "strict")


NAMES = st.sampled_from(["role", "content", "criterion", "points"])
VALUES: Any = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
COLUMNS = st.sampled_from(["prompt", "messages", "response", "score", "id", "judge", "source",
                           "rubrics", "judge_debug"])  # fmt: skip


@settings(max_examples=15, deadline=None)
@given(row=st.dictionaries(COLUMNS, VALUES, max_size=6))
def test_any_row_is_a_prompt_or_a_problem(row: dict[str, Any], tmp_path_factory: Any) -> None:
    path = Path(tmp_path_factory.getbasetemp()) / "dump.jsonl"
    path.write_text(json.dumps(row) + "\n" + '{"prompt": "p"}\n')
    found, problems = read_dump(path)
    assert len(found) + len(problems) == 2
