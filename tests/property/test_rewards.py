"""What must hold for every spec, every failure and every order."""

from collections.abc import Sequence
from typing import Any, get_args

import pytest
from hypothesis import given, settings, strategies as st

from adjudge import (
    ErrorKind,
    FunctionGrader,
    GraderError,
    GraderScore,
    GradingFailure,
    RewardResult,
    RewardSample,
    RewardSpec,
    SpecRewardFunction,
)
from adjudge.rewards.spec import GroupStep
from adjudge.stats import TIE_TOLERANCE
from adjudge.types import GradedSample, GraderResult

FINAL_KINDS = (ErrorKind.INVALID_INPUT, ErrorKind.BUDGET, ErrorKind.UNPARSABLE, ErrorKind.TIMEOUT)
units = st.floats(0, 1, allow_subnormal=False)
maybe = st.one_of(units, st.sampled_from(FINAL_KINDS))
groups_of_answers = st.lists(st.lists(maybe, min_size=1, max_size=6), min_size=1, max_size=4)
STEPS: tuple[GroupStep, ...] = get_args(GroupStep)


def looked_up(answer: float | ErrorKind) -> float:
    if isinstance(answer, ErrorKind):
        raise GradingFailure(answer, "recorded")
    return answer


def function(group: str = "none", policy: str = "mask", **missing: Any) -> SpecRewardFunction:
    spec = RewardSpec.from_dict(
        {
            "graders": [
                {"name": "judge", "type": "m:J", "weight": 0.7},
                {"name": "rule", "type": "m:R", "weight": 0.3},
            ],
            "reward": {"group": group},
            "missing": {"policy": policy, "patience_s": 0, "max_missing": 1.0, **missing},
        }
    )
    rule = FunctionGrader(lambda i: (i % 5) / 4, "rule", score_range=(0, 1))
    rule.is_rule = True
    judge = FunctionGrader(looked_up, "judge", score_range=(0, 1))
    return SpecRewardFunction(spec, graders={"judge": judge, "rule": rule})


def batch(answers: Sequence[Sequence[float | ErrorKind]]) -> dict[str, list[RewardSample]]:
    index = 0
    made: dict[str, list[RewardSample]] = {}
    for g, group in enumerate(answers):
        made[f"p{g}"] = []
        for place, answer in enumerate(group):
            extra = {"answer": answer, "i": index}
            made[f"p{g}"].append(RewardSample(index, place, "p", "r", None, extra))
            index += 1
    return made


def by_index(results: list[RewardResult]) -> dict[int, float | None]:
    assert len({r.original_index for r in results}) == len(results)
    return {r.original_index: r.score for r in results}


@settings(deadline=None, max_examples=60)
@given(groups_of_answers)
def test_before_the_group_step_a_failure_leaves_all_others_as_they_are(
    answers: list[list[float | ErrorKind]],
) -> None:
    healed = [[0.5 if isinstance(a, ErrorKind) else a for a in group] for group in answers]
    with_failures = by_index(function().compute(batch(answers)))
    without = by_index(function().compute(batch(healed)))
    flat = [a for group in answers for a in group]
    for index, answer in enumerate(flat):
        if isinstance(answer, ErrorKind):
            assert with_failures[index] is None
        else:
            # The healed one may be the smallest of near-ties.
            assert with_failures[index] == pytest.approx(without[index], rel=0, abs=TIE_TOLERANCE)


@settings(deadline=None, max_examples=60)
@given(groups_of_answers, st.sampled_from(STEPS))
def test_after_the_group_step_the_rest_equal_the_group_without_the_missing(
    answers: list[list[float | ErrorKind]], step: str
) -> None:
    full = batch(answers)
    scores = by_index(function(step).compute(full))
    kept = {
        key: [s for s in group if not isinstance((s.extra or {})["answer"], ErrorKind)]
        for key, group in full.items()
    }
    alone = by_index(function(step).compute({k: v for k, v in kept.items() if v}))
    for group in full.values():
        for sample in group:
            assert scores[sample.original_index] == alone.get(sample.original_index)


@settings(deadline=None, max_examples=60)
@given(groups_of_answers, st.sampled_from(STEPS), st.randoms(use_true_random=False))
def test_permuting_samples_permutes_rewards(
    answers: list[list[float | ErrorKind]], step: str, rng: Any
) -> None:
    first = batch(answers)
    second = {key: rng.sample(group, len(group)) for key, group in first.items()}
    order = rng.sample(list(second), len(second))
    assert by_index(function(step).compute(first)) == by_index(
        function(step).compute({key: second[key] for key in order})
    )


@settings(deadline=None, max_examples=60)
@given(groups_of_answers, st.sampled_from(("mask", "drop_group")), st.sampled_from(STEPS))
def test_no_policy_turns_a_failure_into_a_number_unasked(
    answers: list[list[float | ErrorKind]], policy: str, step: str
) -> None:
    results = function(step, policy).compute(batch(answers))
    flat = [a for group in answers for a in group]
    group_of = [g for g in answers for _ in g]
    assert len({tuple(r.reward_info) for r in results}) == 1
    for result in results:
        answer = flat[result.original_index]
        assert (result.score is None) == (result.missing is not None)
        if isinstance(answer, ErrorKind):
            assert result.score is None
            assert result.missing is not None
            assert result.missing.kind is answer
            assert result.reward_info["judge_score"] is None
        elif policy == "drop_group":  # one missing reward drops its group
            dropped = any(isinstance(a, ErrorKind) for a in group_of[result.original_index])
            assert (result.missing is not None and result.missing.kind == "quorum") == dropped


@settings(deadline=None, max_examples=60)
@given(groups_of_answers)
def test_fallback_replaces_the_whole_group_or_none_of_it(
    answers: list[list[float | ErrorKind]],
) -> None:
    results = function(policy="fallback", fallback="rule").compute(batch(answers))
    place = 0
    for group in answers:
        some = results[place : place + len(group)]
        place += len(group)
        failed = any(isinstance(a, ErrorKind) for a in group)
        assert {(r.details or {})["source"] for r in some} == {
            "rule_fallback" if failed else "graders"
        }
        for result in some:
            assert result.score is not None
            if failed:
                assert result.score == (result.original_index % 5) / 4


NAMES = {"a": 2.0, "b": 1.0}
hundredths = st.integers(0, 100).map(lambda percent: percent / 100)
cells = st.tuples(hundredths, st.booleans()) | st.sampled_from(FINAL_KINDS)
rows_of_cells = st.lists(st.tuples(cells, cells), min_size=1, max_size=5)
_Row = tuple[tuple[float, bool] | ErrorKind, ...]


def reduced(rows: Sequence[_Row], **reward: Any) -> list[RewardResult]:
    """The rewards of one group; a cell is a score, and whether it had something to judge."""
    spec = RewardSpec.from_dict(
        {
            "graders": [{"name": n, "type": "m:G", "weight": w} for n, w in NAMES.items()],
            "reward": reward,
        }
    )
    graders = {name: FunctionGrader(lambda: 0.0, name, score_range=(0, 1)) for name in NAMES}
    graded = []
    for place, row in enumerate(rows):
        said: dict[str, GraderResult] = {
            name: GraderError(name, cell, "x")
            if isinstance(cell, ErrorKind)
            else GraderScore(name, cell[0], "", {"evaluable": cell[1]}, (0, 1))
            for name, cell in zip(NAMES, row, strict=True)
        }
        graded.append(GradedSample(place, place, "g", 0.5, said, []))
    return SpecRewardFunction(spec, graders=graders).reward(graded)


@given(
    rows_of_cells,
    st.sampled_from(["weighted_mean", "min", "points"]),
    st.sampled_from(["replace", "weighted_sum", "multiply"]),
    st.data(),
)
def test_a_neighbours_score_changes_no_samples_own_reward(
    rows: list[_Row], method: str, mode: str, data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, len(rows) - 1))
    other = tuple(
        cell if isinstance(cell, ErrorKind) else (data.draw(hundredths), cell[1])
        for cell in rows[at]
    )
    before, after = (
        reduced(group, aggregate=method, combine_mode=mode)
        for group in (rows, [*rows[:at], other, *rows[at + 1 :]])
    )
    for place, (one, two) in enumerate(zip(before, after, strict=True)):
        if place != at:
            assert one.reward_info == two.reward_info
            assert one.missing == two.missing
            if one.score is not None:
                assert one.score == pytest.approx(two.score, rel=0, abs=TIE_TOLERANCE)


@given(rows_of_cells)
def test_only_a_grader_with_nothing_to_judge_in_the_whole_group_is_left_out(
    rows: list[_Row],
) -> None:
    answered = [[c for c in column if isinstance(c, tuple)] for column in zip(*rows, strict=True)]
    idle = [bool(column) and not any(judged for _, judged in column) for column in answered]
    for row, result in zip(rows, reduced(rows), strict=True):
        left = [
            (weight, cell)
            for weight, cell, out in zip(NAMES.values(), row, idle, strict=True)
            if not out or isinstance(cell, ErrorKind)
        ]
        scores = [(weight, cell[0]) for weight, cell in left if isinstance(cell, tuple)]
        if not left or len(scores) < len(left):
            assert result.score is None
        else:
            total = sum(weight for weight, _ in scores)
            mean = sum(weight * score for weight, score in scores) / total
            assert result.score == pytest.approx(mean)
