"""What each formula gives for a few marks by hand, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from adjudge.errors import GradingFailure
from adjudge.rubrics import (
    Category,
    Criterion,
    Incomplete,
    NotEvaluable,
    Rubric,
    RubricScore,
    score,
    score_range,
    subscores,
)

DOSE = Criterion("Names a dose", "dose", 5)
CALL = Criterion("Says when to call", "call", 3)
ALARM = Criterion("Alarms", "alarm", -8)


def value(rubric: Rubric, **marks: Any) -> float:
    outcome = score(rubric, marks)
    assert isinstance(outcome, RubricScore)
    return outcome.score


def test_points_over_positive_points_are_not_clipped() -> None:
    rubric = Rubric((DOSE, CALL, ALARM))
    assert value(rubric, dose=True, call=False, alarm=False) == 5 / 8
    assert value(rubric, dose=True, call=True, alarm=True) == 0
    assert value(rubric, dose=False, call=False, alarm=True) == -1
    assert score_range(rubric) == (-1, 1)
    assert score_range(Rubric((DOSE, CALL, ALARM), clip=True)) == (0, 1)


def test_weights_and_not_applicable() -> None:
    rubric = Rubric((DOSE, Criterion("Cites", "cite", 3, na_allowed=True)))
    assert value(rubric, dose=True, cite=False) == 5 / 8
    assert value(rubric, dose=True, cite=None) == 1
    assert score(rubric, {"dose": True, "cite": None}) == RubricScore(1.0, 5.0, 5.0, (), ("cite",))


def test_nothing_left_to_judge_is_no_score() -> None:
    rubric = Rubric((Criterion("Cites", "cite", 3, na_allowed=True), ALARM))
    assert score(rubric, {"cite": None, "alarm": False}) == NotEvaluable(("cite",))
    assert score(rubric, {"cite": None}) == NotEvaluable(("cite",), ("alarm",))
    assert score_range(Rubric((ALARM,))) is None
    assert score_range(Rubric((Criterion("Shown only", points=0),))) is None


def test_categories_use_the_categories_weights_whatever_the_points_say() -> None:
    criteria = (
        Criterion("Names the cause", "cause", 5, Category.ESSENTIAL),
        Criterion("Is brief", "brief", 2, Category.OPTIONAL),
        Criterion("Avoids jargon", "jargon", None, Category.PITFALL),
        Criterion("Alarms", "alarm", -2, Category.PITFALL),
    )
    rubric = Rubric(criteria, scheme="categories")
    total = 1.0 + 0.3 + 0.9 + 0.9
    assert value(rubric, cause=True, brief=False, jargon=True, alarm=True) == pytest.approx(
        1.9 / total
    )
    # A pitfall of negative points is phrased as the fault: unmet is what a good response does.
    assert value(rubric, cause=False, brief=False, jargon=False, alarm=False) == pytest.approx(
        0.9 / total
    )
    assert score_range(rubric) == (0.0, 1.0)


def test_a_failed_veto_caps_the_score_and_never_raises_it() -> None:
    rubric = Rubric((DOSE, ALARM, Criterion("Invents a fact", "invents", -1, veto=True)))
    assert value(rubric, dose=True, alarm=False, invents=False) == 1
    assert value(rubric, dose=True, alarm=False, invents=True) == 0
    assert value(rubric, dose=False, alarm=True, invents=True) == -9 / 5
    outcome = score(rubric, {"dose": True, "alarm": False, "invents": True})
    assert isinstance(outcome, RubricScore)
    assert outcome.vetoes == ("invents",)


@pytest.mark.parametrize(("english", "wanted"), [(True, 1), (None, 1), (False, -1)])
def test_a_positive_veto_fails_when_it_applies_and_is_not_met(
    english: bool | None, wanted: float
) -> None:
    veto = Criterion("Is in English", "english", 1, veto=True, na_allowed=True)
    rubric = Rubric((DOSE, veto), veto_score=-1)
    assert value(rubric, dose=True, english=english) == wanted
    assert score_range(rubric) == (-1, 1)


def test_a_veto_decides_where_nothing_else_can_be_judged() -> None:
    rubric = Rubric(
        (
            Criterion("Cites", "cite", 1, na_allowed=True),
            Criterion("Invents", "invents", -1, veto=True),
        ),
        veto_score=-2,
    )
    assert value(rubric, cite=None, invents=True) == -2
    assert score(rubric, {"cite": None}) == Incomplete(-2, -2, 1, ("invents",))


def test_subscores_by_tag() -> None:
    rubric = Rubric(
        (
            Criterion("a", "a", 5, tags={"axis": "accuracy"}),
            Criterion("b", "b", -5, veto=True, tags={"axis": "accuracy"}),
            Criterion("c", "c", 2, tags={"axis": "tone"}),
            Criterion("d", "d", 2),
        )
    )
    marks = {"a": True, "b": True, "d": False}
    found = subscores(rubric, marks, "axis")
    assert found == {
        "accuracy": RubricScore(0.0, 0.0, 5.0),
        "tone": Incomplete(0.0, 1.0, 0, ("c",)),
    }


@pytest.mark.parametrize(
    ("marks", "complaint"),
    [
        ({"doze": True}, "is no criterion of the rubric; did you mean 'dose'?"),
        ({"dose": None}, "na_allowed is false"),
        ({"dose": 0.5}, "scale is binary"),
        ({"dose": 1}, "scale is binary"),
        ({"part": 1.5}, "a share in"),
        ({"part": float("nan")}, "a share in"),
        ({"part": "yes"}, "a share in"),
    ],
)
def test_marks_that_are_none(marks: dict[str, Any], complaint: str) -> None:
    rubric = Rubric((DOSE, Criterion("p", "part", 1, scale="bounded")))
    with pytest.raises(GradingFailure, match="invalid_input|mark") as caught:
        score(rubric, marks)
    assert complaint in str(caught.value)
