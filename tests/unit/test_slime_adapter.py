"""The hooks of slime and miles without the trainers: what is read, missing and refused."""

import asyncio
import math
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, strategies as st
from tests.refusals import refuses
from tests.unit.test_trl_reward import ANSWER, SPEC, spec

from adjudge import make_reward
from adjudge.errors import ConfigError, MissingRewardError
from adjudge.trainers import slime

OWN = "adjudge.trainers.slime"


class Status(Enum):
    COMPLETED = "completed"
    TRUNCATED = "truncated"
    ABORTED = "aborted"
    FAILED = "failed"


@dataclass
class Sample:
    """The attributes of both trainers' samples that the adapter reads and sets."""

    response: str = "a"
    reward: float | None = None
    group_index: int | None = 0
    rollout_id: int | None = None
    prompt: Any = "p"
    label: str | None = None
    metadata: dict[str, Any] | None = field(default_factory=dict)
    status: Status = Status.COMPLETED
    remove_sample: bool = False

    def get_reward_value(self, _args: Any) -> float | None:
        return self.reward


def arguments(**more: Any) -> SimpleNamespace:
    return SimpleNamespace(
        **{
            "group_rm": False,
            "custom_reward_post_process_path": f"{OWN}.normalize_rewards",
            "advantage_estimator": "grpo",
            "rewards_normalization": True,
            "grpo_std_normalization": True,
            **more,
        }
    )


def judge(given: Any, of: dict[str, Any] = SPEC, *, columns: Any = None, **more: Any) -> Any:
    args = arguments(group_rm=isinstance(given, list), **more)
    return asyncio.run(slime.make_reward(spec(of), columns=columns)(args, given))


def judged_group(*rewards: float | None, **more: Any) -> list[Sample]:
    return [Sample(reward=math.nan if one is None else one, **more) for one in rewards]


def test_one_sample_and_a_group() -> None:
    assert judge(Sample("poor")) == 0.1
    group = [Sample("poor"), Sample("fail"), Sample("a")]
    rewards = judge(group)
    assert rewards[::2] == [0.1, 0.5]
    assert math.isnan(rewards[1])
    assert [one.remove_sample for one in group] == [False, True, False]
    assert group[1].metadata is not None
    assert "unparsable" in str(group[1].metadata["adjudge"])


def test_a_rollout_that_did_not_end_has_no_reward() -> None:
    """And it has no say in what its group is compared with; it may go on later."""
    unended = [Sample(status=status) for status in (Status.ABORTED, Status.FAILED)]
    group = [Sample(label="a"), *unended, Sample("b", label="a")]
    right, *lost, wrong = judge(group, ANSWER)
    assert (right, wrong) == (1.0, 0.0)
    assert all(map(math.isnan, lost))
    assert not any(one.remove_sample for one in group)
    assert "has no response" in str(group[1].metadata)
    assert math.isnan(judge(Sample(status=Status.ABORTED), ANSWER))
    with pytest.raises(MissingRewardError):
        judge(group, {**ANSWER, "missing": {"policy": "raise"}})
    assert judge([]) == []


def test_by_name_and_by_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (path := tmp_path / "reward.toml").write_text(
        '[[graders]]\nname = "right"\ntype = "string_match"\n'
    )
    sample = Sample("4", label="4")
    for trainer in ("slime", "miles"):
        assert asyncio.run(make_reward(path, trainer=trainer)(arguments(), sample)) == 1.0
    monkeypatch.setenv("ADJUDGE_SPEC", str(path))
    assert asyncio.run(slime.reward(arguments(), sample)) == 1.0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"custom_reward_post_process_path": None},
            r"--custom-reward-post-process-path: must be adjudge\.trainers\.slime\.normalize_rewar",
        ),
        (
            {"dynamic_sampling_filter_path": "slime.rollout.hub.check_reward_nonzero_std"},
            "--dynamic-sampling-filter-path: must be .* the trainer's own drops every group",
        ),
        ({"custom_convert_samples_to_train_data_path": "a.b"}, "must be unset, since it replaces"),
        ({"reward_key": "score"}, r"--reward-key: must be unset.*found 'score'"),
    ],
)
def test_settings_under_which_a_missing_reward_counts(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        judge(Sample(), **settings)


def test_a_spec_that_compares_needs_a_whole_group() -> None:
    centred = {**ANSWER, "reward": {"group": "centre"}}
    with refuses("spec"):
        judge(Sample("4", label="4"), centred)
    group = [Sample("4", label="4"), Sample("5", label="4")]
    assert judge(group, centred) == [0.5, -0.5]


def test_a_schedule_is_refused_before_a_judge_is_asked() -> None:
    """The trainer's calls name no step, and what a judge said would be thrown away."""
    [grader] = ANSWER["graders"]
    scheduled = {**grader, "weight": {"from": 1.0, "to": 0.5, "steps": 10}}
    reward = slime.make_reward(spec({**ANSWER, "graders": [scheduled]}))
    sample = Sample("4", label="4")
    with pytest.raises(ConfigError, match=r"weight: .* slime .*Give the grader a number"):
        asyncio.run(reward(arguments(), sample))
    assert sample.metadata == {}


def test_several_samples_of_one_rollout_are_not_judged_apart() -> None:
    with refuses("--custom-generate-function-path"):
        asyncio.run(slime.make_reward(spec())(arguments(), [Sample(), Sample()]))


@given(
    st.lists(st.one_of(st.none(), st.sampled_from([0.0, 0.25, 1.0])), min_size=1, max_size=8),
    st.sampled_from(["grpo", "gspo", "reinforce_plus_plus_baseline", "ppo"]),
    st.booleans(),
)
def test_the_present_are_normalised_as_if_alone(
    rewards: list[float | None], estimator: str, divides: bool
) -> None:
    args = arguments(advantage_estimator=estimator, grpo_std_normalization=divides)
    samples = [*judged_group(*rewards), *judged_group(1.0, 0.0, group_index=1)]
    logged, trained = slime.normalize_rewards(args, samples)
    alone = [one for one in rewards if one is not None]
    _, want = slime.normalize_rewards(args, [*judged_group(*alone)])
    present = [place for place, one in enumerate(rewards) if one is not None]
    assert [trained[place] for place in present] == want
    for place, (sample, value) in enumerate(zip(samples, trained, strict=True)):
        missing = place < len(rewards) and rewards[place] is None
        assert sample.remove_sample is missing
        assert value == 0 or not missing
    both = [*alone, 1.0, 0.0]
    assert sum(logged) / len(logged) == pytest.approx(sum(both) / len(both))


def test_a_rollout_of_several_samples_counts_once() -> None:
    rollouts = [(1.0, 1), (1.0, 1), (1.0, 1), (0.0, 2)]
    samples = [Sample(reward=reward, rollout_id=rollout) for reward, rollout in rollouts]
    args = arguments(grpo_std_normalization=False)
    assert slime.normalize_rewards(args, samples)[1] == [0.5, 0.5, 0.5, -0.5]
    samples[0].reward = 0.5
    with pytest.raises(ConfigError, match="one rollout have different rewards"):
        slime.normalize_rewards(args, samples)
    with pytest.raises(ConfigError, match="has no group_index"):
        slime.normalize_rewards(args, judged_group(1.0, group_index=None))


def test_dynamic_sampling_looks_at_the_present() -> None:
    keep = slime.check_reward_nonzero_std
    assert keep(arguments(), judged_group(1.0, None, 0.0))
    assert not keep(arguments(), judged_group(1.0, None, 1.0))
    assert not keep(arguments(), judged_group(None, 1.0))
    assert keep(arguments(), [judged_group(1.0), judged_group(0.0)])


def test_metrics_of_a_step() -> None:
    logs: dict[str, Any] = {"custom_rollout_log_function_path": f"{OWN}.log_metrics"}
    judge([Sample("poor"), Sample("fail")], **logs)
    judge(Sample("a", group_index=1), **logs)
    judge(Sample("poor", group_index=None), **logs)  # of an evaluation
    extra: dict[str, Any] = {"rollout/dynamic": 1}
    again: dict[str, Any] = {}
    assert slime.log_metrics(3, None, [], extra, 1.0) is False
    assert extra["judge/missing_frac"] == pytest.approx(1 / 3)
    assert extra["judge/score_mean"] == pytest.approx(0.3)
    assert slime.log_metrics(4, None, [], again, 1.0) is False
    assert again == {}
