"""Several judges or draws: reductions, quorum, who was missing and why, disagreement."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.refusals import refuses

from adjudge.errors import Cause, ConfigError, ErrorKind, GradingFailure
from adjudge.graders import BaseGrader
from adjudge.graders.llm.judge_grader import LLMGrader
from adjudge.graders.llm.multi_judge import MultiJudge
from adjudge.judges import ScriptedModel
from adjudge.runner import GradingRunner
from adjudge.types import (
    GraderError,
    GraderMode,
    GraderRank,
    GraderScore,
    Provenance,
    Role,
    Usage,
)


class Stated(BaseGrader):
    """Gives or raises what it is told, by draw."""

    score_range = (1.0, 5.0)

    def __init__(self, *answers: Any, **attributes: Any) -> None:
        super().__init__("stated")
        self.answers = answers
        self.draws: list[int] = []
        for name, value in attributes.items():
            setattr(self, name, value)

    async def aevaluate(self, response: str, draw: int = 0) -> Any:
        assert response == "hello"
        self.draws.append(draw)
        answer = self.answers[draw % len(self.answers)]
        if isinstance(answer, ErrorKind):
            cost = Provenance(source="live", usage=Usage(input_tokens=1), attempts=1)
            raise GradingFailure(answer, "stated", provenance=cost)
        if isinstance(answer, Exception):
            raise answer
        return answer


def score(value: float) -> GraderScore:
    cost = Provenance(source="live", usage=Usage(input_tokens=10), attempts=1)
    return GraderScore("stated", value, f"because {value}", provenance=cost)


def panel(*answers: Any, **attributes: Any) -> dict[str, BaseGrader]:
    stated = (Stated(answer, **attributes) for answer in answers)
    return {f"judge{number}": one for number, one in enumerate(stated, 1)}


def grade(grader: MultiJudge, **fields: Any) -> Any:
    return asyncio.run(grader.aevaluate(**{"response": "hello", "other": 1, **fields}))


def failed(grader: MultiJudge) -> GradingFailure:
    with pytest.raises(GradingFailure) as caught:
        grade(grader)
    return caught.value


@pytest.mark.parametrize(
    ("reduce", "answers", "expected"),
    [
        ("mean", (1, 2, 5), 8 / 3),
        ("median", (1, 2, 5), 2.0),
        ("median", (1, 2, 4, 5), 3.0),
        ("vote", (2, 2, 5), 2.0),
        ("vote", (1, 1, 4, 4), 2.5),
        ("vote", (1, 2, 5), 2.0),
    ],
)
def test_reductions(reduce: Any, answers: tuple[float, ...], expected: float) -> None:
    found = grade(MultiJudge(panel(*answers), reduce=reduce))
    assert found.score == pytest.approx(expected, abs=1e-12)
    assert found.metadata["answered"] == found.metadata["asked"] == len(answers)


def test_what_each_said_and_how_far_they_are_apart() -> None:
    found = grade(MultiJudge(panel(score(2), score(4), score(4))))
    assert found.metadata["members"]["judge1"] == {"score": 2.0, "reason": "because 2"}
    assert found.metadata["spread"] == pytest.approx(0.942809)
    assert found.metadata["agreement"] == pytest.approx(2 / 3)
    assert found.provenance is not None
    assert found.provenance.attempts == 3
    assert found.provenance.usage == Usage(input_tokens=30)
    assert "missing" not in found.metadata
    assert found.evaluable


def test_votes_are_draws_of_their_own() -> None:
    grader, other = Stated(*range(1, 6)), Stated(5.0)
    found = grade(MultiJudge({"only": grader, "other": other}, votes=2))
    assert (grader.draws, other.draws, found.metadata["asked"]) == ([0, 1], [0, 1], 4)
    grader.draws.clear()
    found = grade(MultiJudge({"only": grader}, votes=3), draw=1)
    assert sorted(grader.draws) == [3, 4, 5]
    assert found.score == pytest.approx((4 + 5 + 1) / 3)
    assert found.metadata["members"].keys() == {"only/1", "only/2", "only/3"}


def test_by_default_all_must_answer() -> None:
    failure = failed(MultiJudge(panel(2.0, ErrorKind.UNPARSABLE, 4.0)))
    assert failure.kind is ErrorKind.QUORUM
    assert "2 of 3 answered, 3 needed (judge2: unparsable)" in str(failure)
    assert failure.metadata["members"]["judge3"]["score"] == 4.0
    assert failure.metadata["missing"]["judge2"]["kind"] == "unparsable"


def test_with_a_quorum_the_missing_are_left_out_and_named() -> None:
    grader = MultiJudge(panel(score(2), ErrorKind.UNPARSABLE, score(5)), quorum=2)
    found = grade(grader)
    assert found.score == 3.5
    assert (found.metadata["asked"], found.metadata["answered"]) == (3, 2)
    assert found.metadata["missing"] == {"judge2": {"kind": "unparsable", "error": "stated"}}
    assert found.provenance.usage == Usage(input_tokens=21), "failures cost too"


@pytest.mark.parametrize(
    ("answers", "quorum", "kind"),
    [
        ((3.0, ErrorKind.TIMEOUT, ErrorKind.SERVER_ERROR), 2, ErrorKind.TIMEOUT),
        ((3.0, ErrorKind.TIMEOUT, ErrorKind.REFUSED), 2, ErrorKind.QUORUM),
        ((3.0, ErrorKind.REFUSED, ErrorKind.REFUSED), 2, ErrorKind.QUORUM),
        ((3.0, ErrorKind.TIMEOUT, ErrorKind.AUTH), 2, ErrorKind.AUTH),
        ((3.0, TimeoutError("slow"), ConnectionResetError("gone")), 2, ErrorKind.TIMEOUT),
        ((ErrorKind.UNPARSABLE, ErrorKind.UNPARSABLE), None, ErrorKind.UNPARSABLE),
        ((3.0, ErrorKind.AUTH), 1, ErrorKind.AUTH),
    ],
)
def test_the_kind_of_a_missed_quorum(
    answers: tuple[Any, ...], quorum: int | None, kind: ErrorKind
) -> None:
    assert failed(MultiJudge(panel(*answers), quorum=quorum)).kind is kind


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (7.0, "out_of_range"),
        (float("nan"), "out_of_range"),
        ("4", "bug"),
        (None, "bug"),
        (GraderError("x", ErrorKind.REFUSED, "no"), "refused"),
    ],
)
def test_what_is_no_score_of_the_scale_never_enters(answer: Any, kind: str) -> None:
    found = grade(MultiJudge(panel(2.0, answer, 4.0), quorum=2))
    assert found.score == 3.0
    assert found.metadata["missing"]["judge2"]["kind"] == kind


def test_a_bug_in_a_grader_is_a_bug() -> None:
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        grade(MultiJudge(panel(2.0, ZeroDivisionError()), quorum=1))


def test_nothing_to_judge_is_said_of_the_whole() -> None:
    silent = GraderScore("stated", 1.0, "", {"evaluable": False})
    assert not grade(MultiJudge(panel(silent, silent))).evaluable
    assert grade(MultiJudge(panel(silent, 3.0))).evaluable
    empty = GraderScore("stated", 1.0, "", {"cause": "candidate"})
    assert grade(MultiJudge(panel(empty, empty))).cause is Cause.CANDIDATE
    assert grade(MultiJudge(panel(empty, 3.0))).cause is None


def ranking(*places: float) -> Stated:
    return Stated(GraderRank("stated", list(places)), mode=GraderMode.LISTWISE, score_range=None)


def test_rankings_are_joined_by_their_mean_place() -> None:
    grader = MultiJudge({"a": ranking(1, 2, 3), "b": ranking(1, 3, 2), "c": ranking(1, 1, 3)})
    found = grade(grader)
    assert grader.mode is GraderMode.LISTWISE
    assert found.rank == pytest.approx([3.5 / 3, 6.5 / 3, 8 / 3])
    assert found.as_scores() == [1.0, 0.5, 0.0]
    assert found.metadata["spread"] > 0


def test_a_response_that_a_judge_of_the_quorum_did_not_rank_has_no_rank() -> None:
    blamed = GraderRank(
        "b", [1, None, 2], failure=GraderError("b", ErrorKind.REFUSED, "refused", {})
    )
    members = {
        "a": ranking(3, 1, 2),
        "b": Stated(blamed, mode=GraderMode.LISTWISE, score_range=None),
    }
    found = grade(MultiJudge(members))
    assert (found.rank, found.failure) == ([1.5, None, 1.5], blamed.failure)
    assert grade(MultiJudge(members, quorum=1)).rank == [3, 1, 2]


def test_a_gate_is_voted_on_and_opens_for_a_majority_only() -> None:
    def gates(*answers: float) -> dict[str, BaseGrader]:
        return panel(*answers, role=Role.GATE, score_range=(0.0, 1.0))

    assert grade(MultiJudge(gates(0, 1))).score == 0.0
    assert grade(MultiJudge(gates(0, 1, 1))).score == 1.0
    with refuses("stated.reduce"):
        MultiJudge(gates(0, 1), reduce="mean")


def test_in_a_run_with_real_judges() -> None:
    def grader(reply: Any) -> LLMGrader:
        return LLMGrader(ScriptedModel(reply), template="{response}", score_range=(0, 10))

    good, bad = grader(['{"score": 6}', '{"score": 8}']), grader("no idea")
    both = MultiJudge({"good": good, "bad": bad}, "panel", votes=2, quorum=2)
    runner = GradingRunner({"panel": both}, show_progress=False)
    (found,) = runner.run([{"response": "hello"}])["panel"]
    assert isinstance(found, GraderScore)
    assert found.score == 7.0
    assert found.score_range == (0, 10)
    assert found.metadata["missing"].keys() == {"bad/1", "bad/2"}
    assert both.fingerprint == f"good:{good.fingerprint},bad:{bad.fingerprint}"


@pytest.mark.parametrize(
    ("graders", "arguments", "message"),
    [
        ({}, {}, "table of graders by judge"),
        ([Stated(1)], {}, "table of graders by judge"),
        ({"a": Stated(1), "b": Stated(1, score_range=(0, 1))}, {}, "differ in score_range"),
        ({"a": Stated(1)}, {"votes": 0}, "votes"),
        ({"a": Stated(1)}, {"quorum": 2}, "quorum"),
        ({"a": Stated(1)}, {"reduce": "max"}, "reduce"),
        ({"a": ranking(1, 2)}, {"reduce": "vote"}, "not allowed for rankings"),
    ],
)
def test_wrong_parameters(graders: Any, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        MultiJudge(graders, **arguments)
