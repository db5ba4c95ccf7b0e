"""ms-swift's form of a reward function without ms-swift: rows in, rewards out, settings refused."""

import asyncio
from statistics import mean
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, strategies as st
from tests.refusals import refuses
from tests.unit.test_trl_reward import ANSWER, SPEC, spec

from adjudge import make_reward
from adjudge.trainers.metrics import fill_missing
from adjudge.trainers.ms_swift import AdjudgeORM

EXACT: dict[str, Any] = {
    "scale_rewards": "none",
    "advantage_estimator": "grpo",
    "kl_in_reward": False,
    "beta": 0.04,
    "reward_funcs": ["adjudge"],
    "num_generations": 4,
}


def judge(texts: list[str], of: dict[str, Any] = SPEC, *, args: Any = None, **more: Any) -> Any:
    orm = make_reward(spec(of), trainer="ms-swift")(args=SimpleNamespace(**(args or EXACT)))
    rows: dict[str, Any] = {
        "messages": [
            [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": text}]
            for text in texts
        ],
        "prompt_id": [f"prompt_{place // 4}" for place in range(len(texts))],
        "request_id": [str(place) for place in range(len(texts))],
        "finish_reason": ["stop"] * len(texts),
        "trainer_state": None,
        **more,
    }
    return asyncio.run(orm(texts, **rows))


def test_a_missing_reward_is_its_groups_mean_and_a_group_without_any_that_of_all() -> None:
    first, second = ["a", "poor", "fail", "poor"], ["fail"] * 4
    of_group = mean([0.5, 0.1, 0.1])
    assert judge(first) == pytest.approx([0.5, 0.1, of_group, 0.1])
    of_all = mean([0.5, 0.1, of_group, 0.1])
    assert judge([*first, *second])[4:] == pytest.approx([of_all] * 4)
    assert judge(second) == [None] * 4


@given(
    st.lists(st.none() | st.floats(-5, 5), min_size=2, max_size=12).filter(
        lambda rewards: any(one is not None for one in rewards)
    )
)
def test_the_mean_in_a_missing_place_moves_no_advantage(rewards: list[float | None]) -> None:
    """Where the trainer only centres: each reward less the mean of its group."""
    filled = fill_missing(rewards, ["0"] * len(rewards))
    present = [one for one in rewards if one is not None]
    numbers = [one for one in filled if one is not None]
    assert len(numbers) == len(rewards)
    assert mean(numbers) == pytest.approx(mean(present), abs=1e-9)
    for before, after in zip(rewards, numbers, strict=True):
        assert after == pytest.approx(mean(present) if before is None else before, abs=1e-9)


def test_finished_z_scores() -> None:
    rewards = judge(["a", "fail", "poor", "fail"], {**SPEC, "reward": {"group": "z_score"}})
    assert rewards == pytest.approx([0.5**0.5, 0, -(0.5**0.5), 0])


@pytest.mark.parametrize(
    "wrong",
    [
        {"scale_rewards": "group"},
        {"scale_rewards": "batch"},
        {"scale_rewards": "gdpo"},
        {"advantage_estimator": "rloo"},
        {"kl_in_reward": True},
        {"loss_type": "real"},
        {"reward_funcs": ["adjudge", "format"]},
        {"use_gym_env": True},
    ],
)
def test_settings_under_which_a_missing_reward_counts(wrong: dict[str, Any]) -> None:
    with refuses("spec.missing.policy"):
        judge(["a"] * 4, args={**EXACT, **wrong})
    complete = {**SPEC, "missing": {"policy": "raise"}}
    assert judge(["a"] * 4, complete, args={**EXACT, **wrong}) == [0.5] * 4


def test_a_fallback_stands_for_its_whole_group() -> None:
    graders = [*SPEC["graders"], {**ANSWER["graders"][0], "weight": 0.0}]
    filled = {**SPEC, "graders": graders, "missing": {"policy": "fallback", "fallback": "right"}}
    texts = ["a", "poor", "fail", "b"]
    assert judge(texts, filled, answer=["a"] * 4) == [1.0, 0.0, 0.0, 0.0]


def test_nothing_is_known_without_arguments(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    (path := tmp_path / "reward.toml").write_text(
        '[[graders]]\nname = "right"\ntype = "string_match"\n'
    )
    monkeypatch.setenv("ADJUDGE_SPEC", str(path))
    with refuses("missing.policy"):
        AdjudgeORM()


def test_groups_that_straddle_processes() -> None:
    prompts = ["prompt_0", "prompt_0", "prompt_1", "prompt_1"]
    with refuses("spec.missing.policy"):
        judge(["a"] * 4, prompt_id=prompts)
    with refuses("spec"):
        judge(["a"] * 4, {**SPEC, "reward": {"group": "centre"}}, prompt_id=prompts)
    with refuses("spec.missing.policy"):
        judge(["a"] * 4, request_id=["0", "0", "1", "2"])


def test_an_evaluation_has_groups_of_its_own_size() -> None:
    args = {**EXACT, "num_generations_eval": 1}
    assert judge(["a", "fail"], args=args, prompt_id=["p", "q"]) == [0.5, 0.5]
