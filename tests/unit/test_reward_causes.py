"""Whose doing it is that nothing was judged, and what the reward is then."""

import re
from pathlib import Path
from typing import Any

import pytest
from tests.refusals import refuses
from tests.unit.helpers.reward_functions import build, samples, values

import adjudge
from adjudge import (
    BaseGrader,
    ErrorKind,
    FunctionGrader,
    GraderMode,
    GraderRank,
    GraderScore,
    GradingFailure,
)
from adjudge.engine.loop import run_blocking
from adjudge.errors import SUSPECT_KINDS
from adjudge.types import GraderError


def says(field: str) -> FunctionGrader:
    """A grader whose answer is the sample's ``field``: a kind of failure, or nothing to judge."""

    def judge(**fields: Any) -> Any:
        said = fields[field]
        if isinstance(said, str):
            raise GradingFailure(said, "failed")
        return GraderScore(field, 1.0, "", {"evaluable": False}) if said is None else said

    return FunctionGrader(judge, field, score_range=(0, 1))


def test_trajectories_without_a_call_have_no_reward_from_graders_of_calls() -> None:
    spec = {"graders": [{"name": "loop", "type": "action_loop"},
                        {"name": "gain", "type": "information_gain"}]}  # fmt: skip
    said = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "No tools used."}]
    run = adjudge.grade([{"group": group, "messages": said} for group in "abcc"], spec)
    assert run.rewards == [None] * 4
    assert run.summary["missing"]["by_kind"] == {"not_applicable": 4}


def test_parts_of_a_group_are_not_taken_for_the_group() -> None:
    made = build({"answer": says("right"), "loops": says("calls")})
    judged = _judged(made, {"right": 0.0, "calls": None}, {"right": 1.0, "calls": None})
    assert [one.score for one in made.reward(judged, whole_groups=False)] == [0.5, 1.0]
    assert [one.score for one in made.reward(judged)] == [0.0, 1.0]
    # A trainer that asks about one sample at a time gets the same ruler for all of a group.
    assert [made.reward([one], whole_groups=False)[0].score for one in judged] == [0.5, 1.0]


@pytest.mark.parametrize("kind", sorted(SUSPECT_KINDS))
def test_a_spec_may_count_suspect_failures_as_the_minimum(kind: str) -> None:
    made = build({"judge": says("said")}, missing={"suspect": "min"})
    found = made.compute(samples({"said": kind}, {"said": 1.0}))
    assert values(found) == [0.0, 1.0]
    assert found[0].details is not None
    assert found[0].details["judge"]["kind"] == kind  # it stays visible as the failure it was
    made = build({"judge": says("said")})
    assert values(made.compute(samples({"said": kind}, {"said": 1.0}))) == [None, 1.0]


@pytest.mark.parametrize("kind", sorted(set(ErrorKind) - SUSPECT_KINDS - {ErrorKind.AUTH}))
def test_no_other_failure_is_ever_a_number(kind: str) -> None:
    made = build({"judge": says("said")}, missing={"suspect": "min", "patience_s": 0.0})
    assert (
        values(made.compute(samples({"said": kind}, *({"said": 1.0} for _ in range(40)))))[0]
        is None
    )


def test_a_failed_ranking_costs_the_sample_that_it_blames_alone() -> None:
    class Ranks(BaseGrader):
        async def aevaluate(self, blames: list[bool]) -> GraderRank:
            failure = GraderError("ranks", ErrorKind.REFUSED, "refused")
            if all(blames):
                raise GradingFailure("refused", "all of them")
            places = [None if one else 1.0 + sum(not b for b in blames[:at])
                      for at, one in enumerate(blames)]  # fmt: skip
            return GraderRank("ranks", places, failure=failure)

    grader = Ranks("ranks", GraderMode.LISTWISE)
    one, everyone = (
        [{"blames": blames} for blames in row] for row in ((False, True, False), [True] * 3)
    )
    for missing, worst in (({}, None), ({"suspect": "min"}, 0.0)):
        made = build({"ranks": grader}, missing=missing)
        found = made.compute(samples(*one, group=3))
        assert values(found) == [1.0, worst, 0.0]
        assert found[1].details is not None
        assert found[1].details["ranks"]["kind"] == "refused"
        assert values(made.compute(samples(*everyone, group=3))) == [None] * 3


class Asks(BaseGrader):
    """A question of its own, whose minimum is what an empty answer gets."""

    score_range = (0.0, 1.0)

    async def aevaluate(self, said: float | None) -> float | GraderScore:
        return self._candidate_fault("empty") if said is None else said


def test_silence_does_not_escape_negative_points() -> None:
    made = build(
        {"recommends": Asks(), "fails_to": Asks()},
        entries={"recommends": {"weight": 5.0}, "fails_to": {"weight": -8.0}},
        reward={"aggregate": "points"},
    )
    found = made.compute(samples({"said": 1.0}, {"said": None}))
    assert values(found) == [pytest.approx(-0.6), pytest.approx(-1.6)]


@pytest.mark.parametrize("reduce", ["sum", "mean"])
def test_idle_event_graders_leave_the_outcome(reduce: str) -> None:
    idle = {"events": [{"calls": None}]}
    rows = [{"right": 0.9, **idle}, {"right": 0.2, **idle}, {"right": 0.4, "events": []}]
    made = build(
        {"answer": says("right"), "loops": says("calls")},
        entries={"loops": {"scope": "event"}},
        reward={"event_weight": 1.0, "event_reduce": reduce},
    )
    assert values(made.compute(samples(*rows))) == pytest.approx([0.9, 0.2, 0.4])


def test_an_imputed_failure_counts_its_grader_for_the_whole_group() -> None:
    made = build({"answer": says("right"), "b": says("fails")}, missing={"suspect": "min"})
    rows = [{"right": 0.9, "fails": fails} for fails in (None, None, "refused")]
    assert values(made.compute(samples(*rows))) == pytest.approx([0.95, 0.95, 0.45])


@pytest.mark.parametrize("env", [10**400, [1.0, 2.0], "1.0"])
def test_an_environments_reward_that_is_no_number_is_missing(env: Any) -> None:
    made = build({"answer": says("right")}, reward={"combine_mode": "weighted_sum"})
    assert values(made.compute(samples({"right": 1.0, "env_reward": env}))) == [None]


def _judged(made: Any, *rows: dict[str, Any]) -> Any:
    [(group, members)] = samples(*rows).items()
    return run_blocking(made.grade(members, [group] * len(members)))


def test_the_docs_give_every_kind_one_cause() -> None:
    page = (Path(__file__).parents[2] / "docs/failures.md").read_text(encoding="utf-8")
    table = page.partition("## Kinds")[2].partition("\n## ")[0]
    told: dict[str, tuple[str, bool]] = {}
    for row in re.findall(r"^\| (`.*)$", table, re.MULTILINE):
        kinds, cause, suspect, *_ = (cell.strip() for cell in row.split("|"))
        for kind in re.findall(r"`(\w+)`", kinds):
            assert kind not in told
            told[kind] = (cause.partition(":")[0], suspect.partition(",")[0] == "yes")
    assert told == {
        str(kind): (str(GraderError("g", kind, "").cause), GraderError("g", kind, "").suspect)
        for kind in ErrorKind
    }


MATH = {"reference": "4", "word": None}
WORD = {"reference": None, "word": "w"}
MIXED = {"graders": [
    {"name": "math", "type": "answer", "answer_type": "NUMBER"},
    {"name": "word", "type": "string_match", "mapper": {"reference": "word"}},
]}  # fmt: skip


@pytest.mark.parametrize(
    ("groups", "wanted"),
    [
        ([[MATH, MATH], [WORD, WORD]], [1.0, 1.0, 0.0, 0.0]),
        ([[{"reference": "4"}] * 2, [{"word": "w"}] * 2], [1.0, 1.0, 0.0, 0.0]),
        ([[MATH, {**MATH, "word": "x"}]], [None, 0.5]),  # in some of a group: missing
        ([[MATH] * 20], [1.0] * 20),  # the column is there, with nothing in it so far
        ([[{"reference": "4"}] * 2], [None] * 2),  # no such column: it may be misspelt
    ],
)
def test_a_grader_whose_field_a_whole_group_lacks_is_left_out_there(
    groups: list[list[dict[str, Any]]], wanted: list[float | None]
) -> None:
    made = adjudge.SpecRewardFunction(adjudge.RewardSpec.from_dict(MIXED))
    rows = [(str(at), row) for at, group in enumerate(groups) for row in group]
    given: dict[str, list[adjudge.RewardSample]] = {name: [] for name, _ in rows}
    for at, (name, row) in enumerate(rows):
        given[name].append(adjudge.RewardSample(at, at, "q", f"{at}: \\boxed{{4}}", None, row))
    assert values(made.compute(given)) == wanted


def test_a_lost_rollout_takes_no_reward_from_its_group() -> None:
    made = adjudge.SpecRewardFunction(adjudge.RewardSpec.from_dict(MIXED))
    group = [adjudge.RewardSample(at, at, "q", "\\boxed{4}", None, MATH) for at in range(2)]
    lost = adjudge.RewardSample(2, 2, "q", None, None, MATH, is_lost=True)
    assert values(made.compute({"g": [*group, lost]})) == [1.0, 1.0, None]


def test_what_a_group_lacks_is_the_same_whatever_was_graded_before() -> None:
    math, word = ({"reference": "4"}, {"word": "w"})
    made = adjudge.SpecRewardFunction(adjudge.RewardSpec.from_dict(MIXED))
    for row in (word, math, word):
        group = [adjudge.RewardSample(at, at, "q", "\\boxed{4}", None, row) for at in range(2)]
        assert values(made.compute({"g": group})) == [None, None]
    rows = [{"prompt": str(row), "response": "\\boxed{4}", **row} for row in (word, math, word)]
    assert adjudge.grade(rows, MIXED).rewards == [0.0, 1.0, 0.0]


@pytest.mark.parametrize(
    "error",
    [GradingFailure("invalid_input", "too long", {"status": 400, "suspect": True}), ValueError()],
)
def test_a_null_beside_a_failure_does_not_explain_it(error: Exception) -> None:
    class Judge(BaseGrader):
        def __init__(self) -> None:
            super().__init__("judge")

        async def aevaluate(self, response: str, reference: str | None) -> float:
            raise error

    made = build({"judge": Judge(), "one": FunctionGrader(lambda response: 1.0, "one")},
                 missing={"max_missing": 1.0})  # fmt: skip
    given = [adjudge.RewardSample(at, at, "q", "r", None, {"reference": None}) for at in range(2)]
    assert values(made.compute({"g": given})) == [None, None]


def test_a_grader_with_nothing_to_judge_so_far_is_named_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rows = [{"prompt": str(at), "response": "4", "reference": ""} for at in range(20)]
    run = adjudge.grade([{**row, "word": "4"} for row in rows], MIXED)
    assert run.rewards == [1.0] * 20
    assert [one.getMessage()[:13] for one in caplog.records] == ["graders.math:"]
    assert [one.partition(" ")[0] for one in run.summary["warnings"]][:1] == ["math"]


def test_a_field_that_no_sample_has_at_all_is_refused_by_name() -> None:
    made = adjudge.SpecRewardFunction(adjudge.RewardSpec.from_dict(MIXED))
    given = [adjudge.RewardSample(i, i, "q", f"{i}", None, {"reference": "4"}) for i in range(16)]
    with refuses("spec.graders.word"):
        made.compute({"g": given})
    template = {
        "name": "q",
        "type": "llm",
        "template": "{note} {reply_form}",
        "score_range": (0, 1),
    }
    judge = {"type": "scripted", "script": '{"reason": "", "score": 1}'}
    spec = {"graders": [*MIXED["graders"], template], "judges": {"main": judge}}
    rows = [{"prompt": "q", "response": "\\boxed{4}", **MATH, "note": None, "group": "a"},
            {"prompt": "q", "response": "w", **WORD, "note": "n", "group": "b"}]  # fmt: skip
    assert adjudge.grade(rows, spec).rewards == [1.0, 1.0]
    with refuses("spec.graders.q.template"):
        adjudge.grade([{k: v for k, v in row.items() if k != "note"} for row in rows], spec)
