"""Tournaments: who meets whom, strengths to ranks, and when failed comparisons may be left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given, strategies as st
from tests.unit.helpers.compared import Messages, failed, grade, shown

from adjudge.errors import ErrorKind
from adjudge.graders.llm.ranking import TournamentGrader, schedule_pairs
from adjudge.judges import ScriptedModel


class Judge(ScriptedModel):
    """Answers by what it sees as A and B, and counts."""

    def __init__(self, choose: Callable[[str, str], Any]) -> None:
        self.asked: list[tuple[str, str]] = []
        self.choose = choose
        super().__init__(self._reply)

    def _reply(self, messages: Messages) -> Any:
        a, b = shown(messages).values()
        self.asked.append((a, b))
        choice = self.choose(a, b)
        return choice if isinstance(choice, ErrorKind) else {"better": choice}


def longer(a: str, b: str) -> str:
    return "A" if len(a) > len(b) else "B"


GROUP = ["ccc", "a", "bb", "dddd"]


@pytest.mark.parametrize(("orders", "calls"), [("both", 12), ("one", 6)])
def test_all_pairs(orders: Any, calls: int) -> None:
    judge = Judge(longer)
    found = grade(TournamentGrader(judge, orders=orders), response=GROUP)
    assert found.rank == [2, 4, 3, 1]
    assert len(judge.asked) == calls
    assert found.metadata["comparisons"] == 6
    assert found.metadata["failed"] == 0
    strengths = found.metadata["strengths"]
    assert strengths[3] > strengths[0] > strengths[2] > strengths[1]
    assert sum(strengths) == pytest.approx(0, abs=1e-9)
    assert found.provenance is not None
    assert found.provenance.attempts == calls
    won = {(p["first"], p["second"]): p["score"] for p in found.metadata["pairs"]}
    assert all(won[i, j] == (len(GROUP[i]) > len(GROUP[j])) for i, j in won)


def test_a_judge_that_goes_by_position_ranks_nobody() -> None:
    found = grade(TournamentGrader(Judge(lambda _a, _b: "A")), response=GROUP)
    assert found.rank == [1, 1, 1, 1]
    assert found.metadata["inconsistent"] == 1.0


def test_equal_responses_enter_once_and_silent_ones_come_last() -> None:
    judge = Judge(longer)
    found = grade(TournamentGrader(judge), response=["a", "", "bb", "a", "<think>"])
    assert found.rank == [2, 4, 1, 2, 4]
    assert len(judge.asked) == 2
    assert found.metadata["strengths"][0] == found.metadata["strengths"][3]
    assert found.metadata["strengths"][1] is None


@given(st.permutations(["a", "bb", "ccc", "dddd", "eeeee"]))
def test_ranks_belong_to_the_texts(responses: list[str]) -> None:
    grader = TournamentGrader(Judge(longer), orders="one")
    found = grade(grader, response=responses)
    again = grade(grader, response=responses[::-1])
    assert found.rank == again.rank[::-1]
    assert found.metadata["strengths"] == again.metadata["strengths"][::-1]


def failing(kinds: Mapping[frozenset[str], ErrorKind]) -> Judge:
    return Judge(lambda a, b: kinds.get(frozenset((a, b)), longer(a, b)))


def test_a_failed_comparison_fails_the_tournament() -> None:
    judge = failing({frozenset(("a", "bb")): ErrorKind.REFUSED})
    failure = failed(TournamentGrader(judge), response=GROUP)
    assert failure.kind is ErrorKind.INCOMPLETE
    assert failure.metadata["failed"] == 1
    assert failure.metadata["failures"][0]["kind"] == "refused"
    assert failure.provenance is not None
    assert "1 of 6 comparisons failed" in str(failure)


REFUSED = {frozenset(("a", other)): ErrorKind.REFUSED for other in GROUP if other != "a"}


def test_the_others_are_ranked_where_all_failures_have_one_response() -> None:
    """A response that fails in one of both orders has failed as well."""
    once = Judge(lambda a, b: ErrorKind.REFUSED if a == "a" else longer(a, b))
    for judge in (failing(REFUSED), once):
        found = grade(TournamentGrader(judge), response=[*GROUP, "a"])
        assert found.rank == [2, None, 3, 1, None]
        assert found.as_scores() == [0.5, None, 0.0, 1.0, None]
        assert found.failure is not None
        assert found.failure.suspect
        assert found.metadata["strengths"][1] is None


@pytest.mark.parametrize(
    ("failures", "kind"),
    [
        ({frozenset(("a", "bb")): ErrorKind.RATE_LIMITED}, ErrorKind.RATE_LIMITED),
        (dict.fromkeys(REFUSED, ErrorKind.CONNECTION), ErrorKind.CONNECTION),
        ({**REFUSED, frozenset(("a", "bb")): ErrorKind.TIMEOUT}, ErrorKind.INCOMPLETE),
        ({**REFUSED, frozenset(("bb", "ccc")): ErrorKind.REFUSED}, ErrorKind.INCOMPLETE),
    ],
)
def test_an_outage_and_two_bad_responses_blame_nobody(failures: Any, kind: ErrorKind) -> None:
    assert failed(TournamentGrader(failing(failures)), response=GROUP).kind is kind


def test_groups_of_one_and_too_large_ones() -> None:
    assert failed(TournamentGrader(Judge(longer)), response=["x"]).kind is ErrorKind.INVALID_INPUT
    many = ["x" * n for n in range(1, 34)]
    assert failed(TournamentGrader(Judge(longer)), response=many).kind is ErrorKind.INVALID_INPUT


@given(st.integers(2, 64))
def test_all_meet_all_and_come_first_as_often_as_second(n: int) -> None:
    pairs = schedule_pairs(n)
    assert len({frozenset(pair) for pair in pairs}) == len(pairs) == n * (n - 1) // 2
    assert all(first != second for first, second in pairs)
    firsts, seconds = Counter(a for a, _ in pairs), Counter(b for _, b in pairs)
    assert all(abs(firsts[i] - seconds[i]) <= (n % 2 == 0) for i in range(n))
