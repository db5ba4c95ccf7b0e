"""Weights that change with the training step."""

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st
from tests.e2e.helpers.command import run_here
from tests.refusals import refuses
from tests.rows import read_jsonl
from tests.unit.helpers.reward_functions import FakeClock, build, samples, scored

import adjudge
from adjudge import FunctionGrader, GradingFailure, RewardSpec
from adjudge.engine.loop import run_blocking
from adjudge.errors import JudgeUnavailable
from adjudge.rewards.spec import WeightSchedule
from adjudge.service.spec_backend import SpecBackend
from adjudge.trainers.adapter import Adapter
from adjudge.trainers.scoring import Scorer

DOWN = {"from": 0.2, "to": 0.0, "steps": 300}


def spec(*weights: Any, **reward: Any) -> RewardSpec:
    graders = [
        {"name": f"g{i}", "type": "string_match", "weight": weight}
        for i, weight in enumerate(weights)
    ]
    return RewardSpec.from_dict({"graders": graders, "reward": reward})


@given(st.floats(0, 5), st.floats(0, 5), st.integers(1, 1000), st.integers(0, 3000))
def test_a_schedule_is_a_line_that_ends_flat(
    start: float, end: float, steps: int, step: int
) -> None:
    schedule = WeightSchedule.model_validate({"from": start, "to": end, "steps": steps})
    share = min(step / steps, 1.0)
    assert schedule.at(step) == pytest.approx((1 - share) * start + share * end, abs=1e-12)
    assert schedule.at(0) == start
    assert schedule.at(steps + step) == end


@given(st.integers(0, 400), st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1))
def test_a_step_is_rewarded_as_by_the_spec_with_its_numbers(
    step: int, scores: list[tuple[float, float]]
) -> None:
    def made(weight: Any) -> Any:
        graders = {name: FunctionGrader(lambda x: x, name, score_range=(0, 1)) for name in "ab"}
        mapper = {"b": {"weight": weight, "mapper": {"x": "y"}}}
        return build(graders, entries=mapper, reward={"group": "centre"})

    rows = samples(*({"x": x, "y": y} for x, y in scores))
    scheduled, fixed = made(DOWN), made(WeightSchedule.model_validate(DOWN).at(step))
    flat = [one for group in rows.values() for one in group]
    groups = [key for key, group in rows.items() for _ in group]
    judged = run_blocking(scheduled.grade(flat, groups, step=step))
    found = [one.score for one in scheduled.reward(judged, step=step)]
    assert found == [one.score for one in fixed.compute(rows)]


@pytest.mark.parametrize(
    ("weights", "key"),
    [
        (({"from": 0.2, "to": 0.0}, 1.0), "0.weight.steps"),
        (({**DOWN, "stepz": 1}, 1.0), "0.weight.stepz"),
        (({**DOWN, "steps": 0}, 1.0), "0.weight.steps"),
        (({**DOWN, "from": "high"}, 1.0), "0.weight.from"),
        (({**DOWN, "from": -0.2}, 1.0), "g0.weight"),
        (({**DOWN, "from": -1.0, "to": 1.0}, 1.0), "0.weight"),
        ((DOWN,), "g0.weight"),  # at step 300 no grader has a weight
        (("heavy", 1.0), "0.weight"),
    ],
)
def test_what_is_no_schedule_is_refused_by_its_key(weights: tuple[Any, ...], key: str) -> None:
    with refuses(f"spec.graders.{key}"):
        spec(*weights)


def test_points_need_a_positive_weight_at_every_step() -> None:
    graders = {"a": scored(), "b": scored()}
    entries: dict[str, dict[str, Any]] = {"a": {"weight": DOWN}, "b": {"weight": -1.0}}
    with refuses("spec.graders"):
        build(graders, entries=entries, reward={"aggregate": "points"})


def test_a_schedule_is_part_of_the_specs_hash_and_settings() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        one, other = spec(DOWN, 1.0), spec({**DOWN, "steps": 301}, 1.0)
        assert len({one.hash, other.hash, spec(0.2, 1.0).hash}) == 3
        assert one.model_dump(mode="json")["graders"][0]["weight"] == DOWN
    assert one.at_step(150).hash == spec(0.1, 1.0).hash
    assert spec(0.2, 1.0).at_step(7).schedules == {}


def test_calls_are_steps_where_nobody_says_one() -> None:
    entries = {"b": {"weight": {"from": 1.0, "to": 0.0, "steps": 2}, "mapper": {"s": "t"}}}
    function = build({"a": scored(), "b": scored()}, entries=entries)
    rows = samples({"s": 1.0, "t": 0.0})
    assert [function.compute(rows)[0].score for _ in range(4)] == [0.5, 1 / 1.5, 1.0, 1.0]
    judged = run_blocking(function.grade(rows["g0"], ["g0"]))
    with refuses("spec.graders.b.weight"):
        function.reward(judged)


def test_the_weight_of_a_step_is_logged() -> None:
    scorer = Scorer(spec({"from": 1.0, "to": 0.0, "steps": 4}, 1.0))
    [sample] = samples({"reference": "r"})["g0"]
    for step, weight in ((0, 1.0), (1, 0.75), (9, 0.0)):
        found = scorer.score([sample], ["g"], step=step)
        assert found.metrics["judge/g0_weight"] == weight
        assert found.rewards == [1.0]
    assert "judge/g1_weight" not in found.metrics


def test_a_grader_at_weight_0_makes_nothing_missing_and_no_outage() -> None:
    up = [True]

    def answers_once(s: float) -> float:
        if not up:
            raise GradingFailure("timeout", "down")
        return s

    made = build(
        {"a": FunctionGrader(answers_once, "a", score_range=(0, 1)), "b": scored()},
        entries={"a": {"weight": {"from": 1.0, "to": 0.0, "steps": 2}}},
        missing={"patience_s": 5.0},
        clock=FakeClock(),
    )
    rows = samples(*[{"s": 0.25}] * 40, group=40)["g0"]
    groups = ["g"] * 40
    run_blocking(made.grade(rows, groups, step=0))
    up.clear()
    judged = run_blocking(made.grade(rows, groups, step=2))
    assert [one.score for one in made.reward(judged, step=2)] == [0.25] * 40
    assert [one.score for one in made.reward(judged, step=1)] == [None] * 40
    with pytest.raises(JudgeUnavailable):
        run_blocking(made.grade(rows, groups, step=1))


# --- who knows of no step -----------------------------------------------------------------------


def test_grading_needs_the_step(tmp_path: Path) -> None:
    path, rollouts, out = (tmp_path / name for name in ("reward.toml", "rollouts.jsonl", "out"))
    path.write_text(
        '[[graders]]\nname = "a"\ntype = "string_match"\n'
        "weight = { from = 1.0, to = 0.0, steps = 4 }\n"
        '[[graders]]\nname = "b"\ntype = "string_match"\nmapper = { reference = "other" }\n'
    )
    rows = [{"prompt": "p", "response": "4", "reference": "4", "other": "5"}]
    rollouts.write_text("\n".join(map(json.dumps, rows)))
    refused = run_here("grade", rollouts, "--spec", path, "-o", out, folder=tmp_path)
    assert refused.returncode == 2
    assert "graders.a.weight" in refused.stderr
    assert "--step N" in refused.stderr
    assert not out.exists()
    done = run_here("grade", rollouts, "--spec", path, "-o", out, "--step", "2", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    [row] = read_jsonl(out / "rewards.jsonl")
    assert row["reward"] == pytest.approx(0.5 / 1.5)
    other = run_here("grade", rollouts, "--spec", path, "-o", out, "--step", "3", folder=tmp_path)
    assert other.returncode == 2  # another run: its weights are others
    assert adjudge.grade(rows, path, step=3, progress=False).rewards == [0.25 / 1.25]


def test_a_service_and_an_adapter_without_a_step_refuse() -> None:
    with refuses("spec.graders.g0.weight"):
        SpecBackend(spec(DOWN, 1.0))
    [sample] = samples({"reference": "r"})["g0"]
    with refuses("spec.graders.g0.weight"):
        Adapter(spec(DOWN, 1.0)).score([sample], ["g"])
    assert Adapter(spec(DOWN, 1.0)).score([sample], ["g"], step=0).rewards == [1.0]
