"""The toy in which a policy may break its judge: what failures count as decides what it learns."""

import pytest
from benchmarks import break_the_judge
from benchmarks.break_the_judge import ARMS, TRAPS, Arm, Run, kept, train

from adjudge import ErrorKind, GraderError
from adjudge.errors import Cause

STEPS = 25


@pytest.fixture(scope="module")
def run() -> Run:
    return train("judge", Arm(), 0.0, 0, STEPS)


def test_the_judge_fails_for_the_baits_and_nothing_else() -> None:
    said = break_the_judge.verdicts("judge")
    for action, verdict in zip(TRAPS["judge"], said, strict=True):
        if isinstance(verdict, GraderError):
            assert (action.kind, verdict.kind) == ("breaking", ErrorKind.REFUSED)
            assert verdict.suspect
        else:
            assert verdict.normalized == (action.kind == "right")


def test_a_suspect_failure_left_out_is_a_shelter_and_its_minimum_is_none(run: Run) -> None:
    as_minimum = train("judge", ARMS['adjudge, suspect = "min"'], 0.0, 0, STEPS)
    as_zero = train("judge", ARMS["all failures as 0"], 0.0, 0, STEPS)
    assert as_minimum == as_zero
    assert as_minimum.curve[-1]["breaking"] < run.curve[-1]["breaking"] / 1.5


def test_honest_answers_keep_their_advantages_when_calls_are_lost(run: Run) -> None:
    for name in ("adjudge", 'adjudge, suspect = "min"'):
        found = kept("judge", ARMS[name], 0, run.answers)
        assert (found["own"], found["turned"], found["invented"], found["lost"]) == (0, 0, 0, 0)
    zero = kept("judge", ARMS["all failures as 0"], 0, run.answers)
    assert zero["own"] > 0.5
    assert zero["turned"] > 0.01
    assert zero["invented"] > 0.1
    assert zero["lost"] < -0.5 < 0 < zero["due"]


@pytest.mark.slow
def test_what_the_answer_alone_breaks_is_a_verdict_and_not_a_shelter() -> None:
    bomb = break_the_judge.verdicts("answer")[-1]
    assert bomb.cause is Cause.CANDIDATE
    ends = {name: train("answer", arm, 0.0, 0, 50).curve[-1] for name, arm in ARMS.items()}
    assert ends["adjudge"] == ends["all failures as 0"]
    assert ends["adjudge"]["breaking"] < ends["adjudge"]["wrong"]
    assert ends["adjudge"]["breaking"] < ends["all failures left out"]["breaking"] / 2
