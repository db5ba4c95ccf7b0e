"""The stock reward function: from scores to a reward per sample."""

import math
from typing import Any

import pytest
from tests.refusals import refuses
from tests.unit.helpers.reward_functions import build, samples, scored, values

from adjudge import (
    ErrorKind,
    FunctionGrader,
    RewardResult,
    Role,
    RuleGrader,
)
from adjudge.rewards import check_results
from adjudge.rewards.formulas import combine
from adjudge.rewards.spec import RewardSettings
from adjudge.types import GraderError


def test_weighted_mean_of_normalised_scores() -> None:
    graders = {
        "a": FunctionGrader(lambda s: s, score_range=(1, 5)),
        "b": FunctionGrader(lambda t: t, score_range=(0, 1)),
    }
    made = build(graders, entries={"a": {"weight": 3.0}, "b": {"weight": 1.0}})
    [result] = made.compute(samples({"s": 3.0, "t": 1.0}))
    assert result.score == pytest.approx((3 * 0.5 + 1) / 4)
    assert result.reward_info == {
        "a_score": 3.0,
        "b_score": 1.0,
        "outcome": result.score,
        "env_reward": None,
    }
    assert result.details is not None
    assert result.details["a"] == {"score": 3.0, "reason": ""}


def test_gates_multiply_and_penalties_are_added() -> None:
    graders = {
        "s": FunctionGrader(lambda s: s, score_range=(0, 1)),
        "p": FunctionGrader(lambda p: p, score_range=(None, 0.0), role=Role.PENALTY),
        "g": FunctionGrader(lambda g: g, role=Role.GATE),
    }
    rows = samples({"s": 0.8, "p": -0.5, "g": 1.0}, {"s": 0.8, "p": -0.5, "g": 0.0})
    assert values(build(graders).compute(rows)) == [pytest.approx(0.3), pytest.approx(-0.5)]


@pytest.mark.parametrize(
    ("mode", "env", "expected"),
    [
        ("replace", None, 5.0),
        ("weighted_sum", 2.0, 7.0),
        ("weighted_sum", -2.0, 3.0),
        ("multiply", 2.0, 10.0),
        ("multiply", 0.0, 0.0),
        ("multiply", -1.0, -5.0),
        ("multiply", None, None),
        ("weighted_sum", None, None),
    ],
)
def test_combining_with_the_environment(
    mode: Any, env: float | None, expected: float | None
) -> None:
    reward = combine(0.5, env, RewardSettings(combine_mode=mode, judge_scale=10.0))
    if expected is None:
        assert isinstance(reward, GraderError)
        assert reward.kind is ErrorKind.INVALID_INPUT
    else:
        assert reward == expected


def test_a_reward_is_finite_or_missing() -> None:
    modes: tuple[Any, ...] = ("replace", "weighted_sum", "multiply")
    for mode in modes:
        reward = combine(1e308, 1e308, RewardSettings(combine_mode=mode, judge_scale=1e308))
        assert isinstance(reward, GraderError)
        assert reward.kind is ErrorKind.OUT_OF_RANGE


def test_a_report_only_grader_makes_no_reward_missing() -> None:
    graders = {"a": FunctionGrader(lambda s: s, score_range=(0, 1)), "seen": scored()}
    made = build(graders, entries={"seen": {"weight": 0.0, "mapper": {"s": "t"}}})
    [result] = made.compute(samples({"s": 1.0, "t": "budget"}))
    assert result.score == 1.0
    assert result.reward_info["seen_score"] is None
    assert (result.details or {})["seen"]["kind"] == "budget"


class Scalar:
    """A number of another library."""

    def __init__(self, value: float) -> None:
        self.value = value

    def __float__(self) -> float:
        return self.value


def test_numbers_of_other_libraries_are_numbers() -> None:
    def judge(s: float) -> Scalar:
        return Scalar(s)

    grader = FunctionGrader(judge, "j", score_range=(0, 1))
    made = build({"j": grader}, reward={"combine_mode": "weighted_sum"})
    assert values(made.compute(samples({"s": 0.5, "env_reward": Scalar(2.0)}))) == [2.5]


@pytest.mark.parametrize("step", ["centre", "rloo", "z_score", "rank", "best_bonus"])
def test_huge_numbers_give_numbers_or_nothing(step: str) -> None:
    made = build({"j": scored(score_range=None)}, reward={"normalise": False, "group": step})
    for scores in ([1.7e308, 1.7e308, 1.0], [1e200, -1e200, 3.0], [1.7e308, -1.7e308]):
        for value in values(made.compute(samples(*({"s": s} for s in scores)))):
            assert value is None or math.isfinite(value)


def test_weights_that_cannot_work_are_refused() -> None:
    gate = FunctionGrader(lambda g: g, role=Role.GATE)
    penalty = FunctionGrader(lambda p: p, role=Role.PENALTY)
    points = {"aggregate": "points"}
    with refuses("spec.graders"):
        build({"j": scored(), "g": gate}, entries={"j": {"weight": -1.0}}, reward=points)
    with refuses("spec.graders.p.weight"):
        build({"j": scored(), "p": penalty}, entries={"p": {"weight": -1.0}}, reward=points)


def test_a_share_of_groups_is_judged() -> None:
    asked: list[int] = []

    def judge(n: int) -> float:
        asked.append(n)
        return 1.0

    options: dict[str, Any] = {"sample_rate": 0.5, "combine_mode": "weighted_sum"}
    rows = samples(*({"n": n, "env_reward": 3.0} for n in range(400)), group=4)
    made = build({"j": FunctionGrader(judge, score_range=(0, 1))}, reward=options)
    results = made.compute(rows)
    drawn = {n // 4 for n in asked}
    assert len(asked) == 4 * len(drawn)
    assert 25 < len(drawn) < 75
    for result in results:
        if result.original_index // 4 in drawn:
            assert result.score == 4.0
        else:
            assert (result.score, result.missing) == (3.0, None)  # the environment's goes on
            assert (result.details or {})["source"] == "none"
    second = {r.original_index // 4 for r in made.compute(rows) if r.score == 4.0}
    assert second != drawn


@pytest.mark.parametrize(
    ("row", "mode", "kind"),
    [
        ({"env_reward": 3.0}, "replace", ErrorKind.NOT_SAMPLED),
        ({"env_reward": 3.0}, "multiply", ErrorKind.NOT_SAMPLED),
        ({}, "weighted_sum", ErrorKind.INVALID_INPUT),
        ({"env_reward": 3.0, "lost": True}, "weighted_sum", ErrorKind.INVALID_INPUT),
    ],
)
def test_an_undrawn_group_without_its_environments_reward_has_none(
    row: dict[str, Any], mode: str, kind: ErrorKind
) -> None:
    made = build({"j": scored()}, reward={"sample_rate": 1e-9, "combine_mode": mode})
    rows = samples(row)
    next(iter(rows.values()))[0].is_lost = "lost" in row
    [result] = made.compute(rows)
    assert result.missing is not None
    assert result.missing.kind is kind


def test_results_are_matched_by_index_exactly_once() -> None:
    rows = samples({}, {})
    good = [RewardResult(1, 1, 0.5), RewardResult(0, 0, None)]
    assert list(check_results(good, rows)) == [1, 0]
    for bad, message in (
        ([good[0]], "no result for original_index \\[0\\]"),
        ([*good, good[0]], "two results"),
        ([*good, RewardResult(7, 0, 1.0)], "unknown original_index \\[7\\]"),
    ):
        with pytest.raises(ValueError, match=message):
            check_results(bad, rows)


@pytest.mark.parametrize(
    ("step", "becomes"),
    [
        ("z_score", "get 0"),
        ("rank", "have no reward"),
        ("best_bonus", "always get the bonus"),
    ],
)
def test_groups_of_one_under_a_group_step_are_said_once(
    step: str, becomes: str, caplog: pytest.LogCaptureFixture
) -> None:
    made = build({"j": scored()}, reward={"group": step})
    made.compute(samples({"s": 0.5}, {"s": 0.25}))
    assert not caplog.messages
    for _ in range(2):
        made.compute(samples({"s": 0.5}, {"s": 0.25}, {"s": 0.25}, group=2))
    [message] = caplog.messages
    assert "1 of 2 groups have one sample only" in message
    assert becomes in message
    assert "spec: reward.group" in message


def test_a_grader_without_a_range_counts_as_it_is() -> None:
    plain = FunctionGrader(lambda s: s)
    rows = samples({"s": 7.0, "t": 3.0}, {"s": -2.0, "t": 1.0})
    assert values(build({"mine": plain}).compute(rows)) == [7.0, -2.0]
    mixed = build({"mine": plain, "t": FunctionGrader(lambda t: t, score_range=(1, 5))})
    assert values(mixed.compute(rows)) == [(7.0 + 0.5) / 2, -1.0]
    half_open = FunctionGrader(lambda s: s, score_range=(None, 9.0))
    assert values(build({"mine": half_open}).compute(rows)) == [7.0, -2.0]


class Unbounded(RuleGrader):
    """A rule without a range."""

    def evaluate(self, s: float) -> float:
        return s


@pytest.mark.parametrize(
    ("reward", "missing"),
    [
        ({"aggregate": "min"}, {}),
        ({}, {"suspect": "min"}),
        ({}, {"policy": "fallback", "fallback": "mine"}),
    ],
)
def test_what_needs_a_range_names_the_grader_that_has_none(
    reward: dict[str, Any], missing: dict[str, Any]
) -> None:
    graders = {"mine": Unbounded("mine"), "judge": scored()}
    with refuses("spec.graders.mine.score_range"):
        build(graders, reward=reward, missing=missing)
    ranged = Unbounded("mine")
    ranged.score_range = (0.0, 1.0)
    build({**graders, "mine": ranged}, reward=reward, missing=missing)
    build(graders, reward={**reward, "normalise": False}, missing=missing)
