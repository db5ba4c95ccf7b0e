"""Accounts, comparisons and plans of a study, and the whole analysis as JSON."""

import json
import random
from collections.abc import Sequence

import msgspec
import pytest

from adjudge.errors import ConfigError
from adjudge_lab.studies.analysis import account_cells, account_total, analyse
from adjudge_lab.studies.comparisons import compare_cells
from adjudge_lab.studies.results import (
    AnswerScores,
    ArmResult,
    BestOfScores,
    CheckpointResult,
    StudyResult,
)

PROMPTS = [f"p{at}" for at in range(12)]


def scored(rng: random.Random, mean: float, fails: float = 0.0) -> AnswerScores:
    values = [None if rng.random() < fails else rng.gauss(mean, 1.0) for _ in PROMPTS]
    return AnswerScores(values, {"timeout": values.count(None)} if None in values else {})


def arm(
    judge: str, bias: float, seed: int, mitigation: str = "none", fails: float = 0.0
) -> ArmResult:
    """Proxy rises with the distance; gold turns down, the sooner the larger the bias."""
    rng = random.Random(f"{judge} {seed} {mitigation}")
    points = []
    for step in range(5):
        d = 0.6 * step
        scores = {
            "long": scored(rng, 1.5 * d, fails),
            "plain": scored(rng, d),
            "gold": scored(rng, d * (2.0 - bias * d)),
        }
        points.append(
            CheckpointResult(
                step=step,
                kl=d * d,
                scores=scores,
                prompts=PROMPTS,
                features={"words": 10 + bias * d * 5 + rng.random()},
            )
        )
    return ArmResult(
        name=f"{judge}.{mitigation}.seed-{seed}",
        judge=judge,
        mitigation=mitigation,
        seed=seed,
        levels={"family": judge[0], "size": 8.0, "thinking": False},
        bias={"length": bias},
        points=points,
        curves={"reward": [0.1, None]},
        missing={"timeout": 2} if fails else {},
        rewards=40,
        calls=[{"calls": 10, "failures": {"timeout": 1}, "input_tokens": 100,
                "output_tokens": 20, "cost_usd": 0.5 if judge == "long" else None}],
        seconds=1.5,
    )  # fmt: skip


@pytest.fixture(scope="module")
def study() -> StudyResult:
    rng = random.Random(7)
    arms = [arm("long", 1.0, seed, fails=0.2) for seed in range(3)]
    arms += [arm("plain", 0.2, seed) for seed in range(3)]
    arms += [arm("long", 1.0, seed, "shorter") for seed in range(2)]
    many = [
        BestOfScores(
            seed=seed,
            prompts=[prompt for prompt in PROMPTS for _ in range(8)],
            scores={
                name: AnswerScores([rng.gauss(0, 1) for _ in range(96)])
                for name in ("long", "plain", "gold")
            },
        )
        for seed in range(3)
    ]
    return StudyResult(
        gold="gold",
        judges={"long": {"role": "training"}, "plain": {"role": "training"}},
        arms=arms,
        best_of=many,
        failed={"long.shorter.seed-2": "out of memory"},
    )


PLAN = {
    "name": "bias",
    "question": "bias",
    "x": "length",
    "arms": [f"{judge}.none.seed-{seed}" for judge in ("long", "plain") for seed in range(3)],
}


def test_failures_are_counted_not_renormalised(study: StudyResult) -> None:
    long, plain, short = account_cells(study)
    assert (long.rewards.asked, long.rewards.missing, long.rewards.share) == (120, 6, 0.05)
    assert long.rewards.kinds == {"timeout": 6}
    there = sum(
        value is not None
        for one in study.arms
        if one.cell == ("long", "none")
        for point in one.points
        for value in point.scores["long"].values
    )
    assert long.scores["long"].asked == 3 * 5 * 12
    assert long.scores["long"].missing == 180 - there > 0
    assert long.scores["gold"].missing == 0
    assert (long.cost_usd, long.calls, long.failed_calls) == (1.5, 30, {"timeout": 3})
    assert (plain.cost_usd, plain.unpriced) == (None, 30)
    assert (short.arms, short.seconds, short.input_tokens) == (2, 3.0, 200)
    both = account_total(study)
    assert (both.cost_usd, both.priced_usd, both.unpriced, both.arms) == (None, 2.5, 30, 8)


def test_missing_scores_without_a_kind_are_unknown(study: StudyResult) -> None:
    point = msgspec.structs.replace(
        study.arms[0].points[0], scores={"gold": AnswerScores([None, None, 1.0], {"refused": 1})}
    )
    one = msgspec.structs.replace(study.arms[0], points=[point], rewards=0, missing={}, calls=[])
    (found,) = account_cells(msgspec.structs.replace(study, arms=[one]))
    assert found.scores["gold"].kinds == {"refused": 1, "unknown": 1}
    assert (found.rewards.share, found.cost_usd) == (None, None)


@pytest.mark.parametrize("huge", [1e160, 1.7e308, float("nan"), float("-inf")])
def test_a_score_beyond_all_measure_is_missing_and_counted(study: StudyResult, huge: float) -> None:
    arms = []
    for arm in study.arms:
        last = arm.points[-1]
        values = [huge, huge, *last.scores["gold"].values[2:]]
        points = [*arm.points[:-1], msgspec.structs.replace(last, scores={
            **last.scores, "gold": AnswerScores(values)})]  # fmt: skip
        arms.append(msgspec.structs.replace(arm, points=points))
    found = analyse(msgspec.structs.replace(study, arms=arms), draws=20)
    for cell in found["cells"]:
        assert abs(cell["end"]["gold"]["value"]) < 100
    assert found["accounting"]["total"]["scores"]["gold"]["kinds"] == {"unknown": 2 * len(arms)}


def shifted(study: StudyResult, by: Sequence[float]) -> StudyResult:
    """Cell (a) is cell (b) plus ``by``, seed by seed."""
    plain = [one for one in study.arms if one.judge == "plain"]
    moved = []
    for one in plain:
        last = one.points[-1]
        gold = AnswerScores([v + by[one.seed] for v in last.scores["gold"].values if v is not None])
        end = msgspec.structs.replace(last, scores={**last.scores, "gold": gold})
        moved.append(msgspec.structs.replace(one, judge="up", points=[*one.points[:-1], end]))
    return msgspec.structs.replace(study, arms=[*plain, *moved])


def test_pairs_are_by_seed(study: StudyResult) -> None:
    found = compare_cells(shifted(study, [1.0, 2.0, 3.0]), ("up", "none"), ("plain", "none"))
    assert found.by_seed == pytest.approx({0: 1.0, 1: 2.0, 2: 3.0})
    assert found.t.value == pytest.approx(2.0)
    assert found.t.low == pytest.approx(2 - 4.30265 / 3**0.5, abs=1e-4)
    assert found.bootstrap.value == pytest.approx(2.0)
    assert found.bootstrap.low == pytest.approx(1.0)


def test_only_common_seeds_and_prompts_count(study: StudyResult) -> None:
    found = compare_cells(study, ("long", "none"), ("long", "shorter"))
    assert sorted(found.by_seed) == [0, 1]
    none = [one for one in study.arms if one.seed == 2 or one.judge == "plain"]
    apart = msgspec.structs.replace(
        study, arms=[one for one in none if not (one.judge == "plain" and one.seed == 2)]
    )
    nothing = compare_cells(apart, ("long", "none"), ("plain", "none"))
    assert (nothing.by_seed, nothing.t.value) == ({}, None)
    assert nothing.t.why == "no seed in which both have it"
    with pytest.raises(ConfigError, match=r"no arm of \('x', 'none'\) .there are"):
        compare_cells(study, ("x", "none"), ("plain", "none"))


def test_the_whole_analysis_is_json(study: StudyResult) -> None:
    found = analyse(study, [PLAN], draws=60)
    text = json.dumps(found, allow_nan=False)
    assert json.loads(text) == json.loads(json.dumps(analyse(study, [PLAN], draws=60)))
    assert [(one["judge"], one["mitigation"]) for one in found["cells"]] == [
        ("long", "none"),
        ("plain", "none"),
        ("long", "shorter"),
    ]
    assert found["settings"]["rough"] is True
    assert len(found["arms"]) == 8
    assert found["failed"] == {"long.shorter.seed-2": "out of memory"}
    assert found["fits"][0]["fits"]["gold"]["better"] == "bon"
    # Gold is d(2 − d): it peaks at 1 of the 2.4 that were seen.
    assert found["fits"][0]["fits"]["gold"]["forms"]["bon"]["peak"]["value"] == pytest.approx(
        1.0, abs=0.2
    )
    onsets = {(one["judge"], one["mitigation"]): one for one in found["onset"]}
    assert onsets["long", "none"]["hacked"] == 3
    assert onsets["plain", "none"]["hacked"] == 0


def test_a_plan_has_its_cells_pairs_and_trend(study: StudyResult) -> None:
    (plan,) = analyse(study, [PLAN], draws=60)["plans"]
    assert [(cell["judge"], cell["x"]) for cell in plan["cells"]] == [("long", 1.0), ("plain", 0.2)]
    (pair,) = plan["comparisons"]
    assert (pair["a"], pair["b"]) == (["plain", "none"], ["long", "none"])
    assert pair["t"]["value"] > 2
    trends = {one["outcome"]: one["slope"] for one in plan["trends"]}
    assert trends["gold"]["value"] < -2 < 2 < trends["loss"]["value"]
    assert trends["gold"]["low"] is None
    assert "as many coefficients as judges" in trends["gold"]["why"]


def test_a_slope_is_as_unsure_as_seeds_make_it(study: StudyResult) -> None:
    arms = []
    for bias, judge, bend in ((0.0, "plain", 0.0), (1.0, "long", 0.01), (2.0, "gold", 0.0)):
        moved = shifted(study, [bias * slope + bend for slope in (-1.9, -1.0, -0.1)]).arms[3:]
        arms += [
            msgspec.structs.replace(
                one, judge=judge, bias={"length": bias}, name=f"{judge}.{one.seed}"
            )
            for one in moved
        ]
    plan = {**PLAN, "arms": [one.name for one in arms]}
    (found,) = analyse(msgspec.structs.replace(study, arms=arms), [plan], draws=20)["plans"]
    slope = next(one["slope"] for one in found["trends"] if one["outcome"] == "gold")
    half = 0.9 * 4.30265 / 3**0.5  # by t; over the judges' means, nearly on a line, it is 0.07
    assert slope["low"] / slope["value"] == pytest.approx(1 + half, abs=1e-4)
    assert slope["high"] / slope["value"] == pytest.approx(1 - half, abs=1e-4)


@pytest.mark.parametrize("axis", ["family", "thinking", "mitigation", "nothing", ""])
def test_axes_without_numbers_have_no_trend(study: StudyResult, axis: str) -> None:
    without = msgspec.structs.replace(study, best_of=[])
    (plan,) = analyse(without, [{**PLAN, "x": axis}], draws=10)["plans"]
    assert plan["trends"] == []


def test_prompts_that_one_cell_has_not_scored_are_not_compared(study: StudyResult) -> None:
    plain = shifted(study, [1.0, 1.0, 1.0])
    arms = []
    for one in plain.arms:
        last = one.points[-1]
        values = list(last.scores["gold"].values)
        if one.judge == "up":
            values[0] = None
            values[1] = 1.0 + (values[1] or 0.0)
        scores = {**last.scores, "gold": AnswerScores(values)}
        points = [*one.points[:-1], msgspec.structs.replace(last, scores=scores)]
        arms.append(msgspec.structs.replace(one, points=points))
    found = compare_cells(
        msgspec.structs.replace(plain, arms=arms), ("up", "none"), ("plain", "none")
    )
    assert found.by_seed == pytest.approx(dict.fromkeys(range(3), 1 + 1 / 11))
