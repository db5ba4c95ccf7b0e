"""The tidy table: a row per checkpoint, scorer and measure, with what is missing left null."""

import msgspec
from lab.tests.unit.helpers.made_study import bare_arm

from adjudge_lab.studies.results import (
    AnswerScores,
    CheckpointResult,
    StudyResult,
    iter_study_rows,
)


def result() -> StudyResult:
    scores = {
        "mine": AnswerScores([0.5, None], {"timeout": 1}),
        "other": AnswerScores([None, None], {"unparsable": 2}),
        "gold": AnswerScores([1.0, 0.0]),
    }
    point = CheckpointResult(
        step=4, kl=0.25, scores=scores, prompts=["p", "p"], features={"words": 3.0}
    )
    arm = msgspec.structs.replace(
        bare_arm([point], "mine"), levels={"size": 8, "mitigation": "none"}, rewards=2
    )
    return StudyResult(gold="gold", judges={}, arms=[arm], best_of=[])


def test_rows_say_who_scored_what_as_whom() -> None:
    rows = list(iter_study_rows(result()))
    assert [(row["measure"], row["scorer"], row["role"]) for row in rows] == [
        ("score", "mine", "proxy"),
        ("score", "other", "held_out"),
        ("score", "gold", "gold"),
        ("words", None, None),
    ]
    assert [row["value"] for row in rows] == [0.5, None, 0.5, 3.0]
    assert [row["missing"] for row in rows] == [1, 2, 0, 0]
    assert {(row["step"], row["kl"], row["answers"]) for row in rows} == {(4, 0.25, 2)}
    assert msgspec.json.decode(rows[0]["levels"]) == {"mitigation": "none", "size": 8}


def test_episodes_that_failed_are_missing_from_features() -> None:
    (arm,) = result().arms
    (point,) = arm.points
    points = [msgspec.structs.replace(point, unanswered=1)]
    made = msgspec.structs.replace(
        result(), arms=[msgspec.structs.replace(arm, points=points)], judges={}
    )
    assert [row["missing"] for row in iter_study_rows(made) if row["measure"] == "words"] == [1]
