"""What must hold for every rubric and every set of marks."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from adjudge.checks.rubric_lint import lint
from adjudge.errors import ConfigError, GradingFailure
from adjudge.rubrics import (
    Category,
    Criterion,
    Incomplete,
    Rubric,
    RubricScore,
    parse_rubric,
    rubric_from,
    score,
    score_range,
)
from adjudge.rubrics.rubric import Mark, Scheme

SCHEMES: tuple[Scheme, ...] = ("points", "weights", "categories")


@st.composite
def rubrics(draw: st.DrawFn, most: int = 5) -> Rubric:
    scheme = draw(st.sampled_from(SCHEMES))
    lowest = 0 if scheme == "weights" else -5
    criteria = []
    for _ in range(draw(st.integers(1, most))):
        points = draw(st.integers(lowest, 5))
        category = draw(st.sampled_from(Category)) if scheme == "categories" else None
        veto = points != 0 and draw(st.integers(0, 4)) == 0
        na_allowed = draw(st.booleans())
        criteria.append(Criterion("x", "", points, category, veto=veto, na_allowed=na_allowed))
    clip, cap = draw(st.booleans()), draw(st.sampled_from((-2.0, 0.0, 0.25)))
    return Rubric(tuple(criteria), scheme=scheme, clip=clip, veto_score=cap)


@st.composite
def marked(draw: st.DrawFn, partial: bool = True) -> tuple[Rubric, dict[str, Mark]]:
    rubric = draw(rubrics())
    marks: dict[str, Mark] = {}
    for criterion in rubric.criteria:
        if partial and draw(st.booleans()):
            continue
        choices: list[Mark] = [True, False, None] if criterion.na_allowed else [True, False]
        marks[criterion.id] = draw(st.sampled_from(choices))
    return rubric, marks


def completions(rubric: Rubric, marks: Mapping[str, Mark]) -> list[dict[str, Mark]]:
    open_ones = [c for c in rubric.criteria if c.id not in marks]
    choices: list[list[Mark]] = [
        [True, False, None] if c.na_allowed else [True, False] for c in open_ones
    ]
    return [
        {**marks, **{c.id: mark for c, mark in zip(open_ones, chosen, strict=True)}}
        for chosen in itertools.product(*choices)
    ]


def known(rubric: Rubric, marks: Mapping[str, Mark]) -> float | None:
    outcome = score(rubric, marks)
    return outcome.score if isinstance(outcome, RubricScore) else None


@given(marked())
@pytest.mark.slow
@settings(max_examples=400)
def test_the_interval_is_what_all_completions_span(case: tuple[Rubric, dict[str, Mark]]) -> None:
    rubric, marks = case
    outcome = score(rubric, marks)
    possible = [known(rubric, full) for full in completions(rubric, marks)]
    scores = [one for one in possible if one is not None]
    if isinstance(outcome, Incomplete):
        assert (outcome.low, outcome.high) == pytest.approx((min(scores), max(scores)), abs=1e-12)
        assert {*outcome.missing} <= {c.id for c in rubric.criteria} - {*marks}
    elif isinstance(outcome, RubricScore):
        assert set(scores) == {outcome.score}
    else:
        assert scores == []


@given(rubrics())
def test_the_range_is_reached_at_both_ends_and_never_left(rubric: Rubric) -> None:
    scores = [s for full in completions(rubric, {}) if (s := known(rubric, full)) is not None]
    bounds = score_range(rubric)
    if bounds is None:
        assert scores == [] or all(c.worth == 0 for c in rubric.criteria)
    else:
        assert bounds == pytest.approx((min(scores), max(scores)), abs=1e-12)


@given(marked(partial=False), st.data())
def test_meeting_a_demand_never_costs_and_meeting_a_fault_never_pays(
    case: tuple[Rubric, dict[str, Mark]], data: st.DataObject
) -> None:
    rubric, marks = case
    criterion = data.draw(st.sampled_from(rubric.criteria))
    met = known(rubric, {**marks, criterion.id: True})
    unmet = known(rubric, {**marks, criterion.id: False})
    if met is None or unmet is None:
        return
    if criterion.is_fault:
        assert met <= unmet + 1e-12
    else:
        assert met >= unmet - 1e-12


@given(marked(), st.randoms(use_true_random=False))
def test_the_order_of_criteria_and_marks_means_nothing(
    case: tuple[Rubric, dict[str, Mark]], rng: Any
) -> None:
    rubric, marks = case
    criteria = rng.sample(rubric.criteria, len(rubric.criteria))
    shuffled = dataclasses.replace(rubric, criteria=tuple(criteria))
    other = score(shuffled, dict(rng.sample(list(marks.items()), len(marks))))
    first = score(rubric, marks)
    assert type(first) is type(other)
    if isinstance(first, RubricScore) and isinstance(other, RubricScore):
        assert first.score == other.score
    elif isinstance(first, Incomplete) and isinstance(other, Incomplete):
        assert (first.low, first.high) == (other.low, other.high)
        assert {*first.missing} == {*other.missing}


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(
        st.sampled_from(
            ("criteria", "criterion", "points", "weight", "category", "tags", "id", "veto", "scale",
             "scoring_guide", "global_rubric", "outcome", "events", "scheme", "0-1", "version")
        ),
        inner,
        max_size=5,
    ),
    max_leaves=20,
)  # fmt: skip


@given(json_values)
@pytest.mark.slow
@settings(max_examples=300)
def test_no_data_makes_reading_fail_in_any_other_way(value: Any) -> None:
    try:
        lint(parse_rubric(value))
    except ConfigError as error:
        complaint = str(error)
    else:
        complaint = "rubric: "
    assert complaint.startswith("rubric: ")
    with contextlib.suppress(GradingFailure):
        rubric_from(value)
