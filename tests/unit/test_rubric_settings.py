"""The rubric grader's settings: what is refused, what a spec may say, what is logged."""

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.refusals import refuses
from tests.unit.helpers.rubric_judge import GUIDE, MET, POINTS, Judge, grade

from adjudge.errors import ConfigError
from adjudge.graders.llm.rubric import RubricGrader
from adjudge.graders.registry import build_grader
from adjudge.rubrics import RubricBundle


def made(**settings: Any) -> RubricGrader:
    return RubricGrader(Judge(MET), **settings)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda: made(criteria=POINTS, ask="one"),
            r"ask: must be .*found 'one'",
        ),
        (
            lambda: made(criteria=POINTS, rubric_id="a@v1"),
            "rubric_id and criteria: each is a rubric",
        ),
        (lambda: made(criteria=[{"criterion": "Bad", "points": -1}]), "no score can be earned"),
        (lambda: made(criteria=["a", 3]), "criteria.2"),
        (lambda: made(criteria=GUIDE, clip=True), "clip does not apply"),
        (lambda: made(criteria=RubricBundle(GUIDE), part="events"), "no rubric for 'events'"),
        (lambda: made(criteria=RubricBundle(events=POINTS)), r"\(allowed: 'events'\)"),
        (lambda: made(rubric=Path("none.toml")), r"none\.toml: cannot be read"),
        (lambda: made(rubric_id="none@v1"), "must be one file"),
    ],
)
def test_wrong_settings_are_named(make: Callable[[], Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make()


BUNDLE = """
[global_rubric]
criteria = ["Explores"]
scoring_guide = { "0-10" = "all of it" }

[events]
criteria = [
  { criterion = "Is brief", points = 2 },
  { criterion = "Alarms without need", points = -1 },
]
"""


def test_rubrics_are_found_beside_the_spec(tmp_path: Path) -> None:
    folder = tmp_path / "rubrics" / "crafter"
    folder.mkdir(parents=True)
    (folder / "bundle@v1.toml").write_text(BUNDLE)
    given = {"rubric_id": "crafter/bundle@v1", "rubric_dir": "rubrics", "part": "events"}

    def from_spec(settings: Mapping[str, Any]) -> Any:
        return build_grader(
            "adjudge.graders.llm.rubric:RubricGrader",
            "r",
            settings,
            where="spec",
            folder=tmp_path,
            judges={"main": Judge(MET)},
        )

    events = from_spec(given)
    assert events.score_range == (-0.5, 1.0)
    assert grade(events).score == pytest.approx(-0.5)
    assert from_spec({**given, "part": "outcome"}).score_range == (0.0, 10.0)
    by_path = from_spec(
        {"rubric": "rubrics/crafter/bundle@v1.toml", "part": "events", "ask": "each"}
    )
    assert by_path.fingerprint == events.fingerprint != from_spec({}).fingerprint
    inline = from_spec({"criteria": ["Is brief"], "clip": True})
    assert inline.fixed.criteria[0].text == "Is brief"
    with refuses("spec.rubric_id"):
        from_spec({**given, "rubric_id": "crafter/bundel@v1"})


def test_call_lines_name_the_policy_and_cannot_be_forged(caplog: pytest.LogCaptureFixture) -> None:
    grader = RubricGrader(Judge(MET), criteria=POINTS, ask="each")
    with caplog.at_level(logging.INFO, logger="adjudge.rubric"):
        grade(grader, policy="crafter-react")
        grade(grader, policy_name="a\n[RUBRIC_SCORE] event=9")
    line = "[RUBRIC_CALL] policy={}, provider=scripted, model=scripted"
    assert caplog.messages == [line.format("crafter-react"), line.format("unknown")]
