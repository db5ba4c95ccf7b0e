"""SkyRL's plug-in without SkyRL: what graders see, how missing is said, what is refused."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.helpers.stand_in_modules import stand_in

import adjudge
from adjudge.errors import ConfigError
from adjudge.rewards import RewardSpec
from adjudge.trainers import skyrl

RIGHT: dict[str, Any] = {"graders": [{"name": "right", "type": "answer"}]}


class BaseTextEnv:
    """What the environment derives from."""


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """SkyRL's two registries, empty."""
    found: dict[str, Any] = {"environments": {}, "estimators": {}}

    def register_env(id: str, entry_point: Any, kwargs: Any) -> None:
        found["environments"][id] = SimpleNamespace(entry_point=entry_point, kwargs=kwargs)

    registry = SimpleNamespace(
        list_available=lambda: list(found["estimators"]), register=found["estimators"].__setitem__
    )
    modules: dict[str, dict[str, Any]] = {
        "skyrl_gym.envs.base_text_env": {"BaseTextEnv": BaseTextEnv, "BaseTextEnvStepOutput": dict},
        "skyrl_gym.envs.registration": {
            "register": register_env,
            "registry": found["environments"],
        },
        "skyrl.backends.skyrl_train.utils.ppo_utils": {"AdvantageEstimatorRegistry": registry},
    }
    stand_in(monkeypatch, modules)
    skyrl.judged_env_class.cache_clear()
    return found


def config(**algorithm: Any) -> Any:
    given = {"advantage_estimator": "adjudge_grpo", **algorithm}
    return SimpleNamespace(trainer=SimpleNamespace(algorithm=SimpleNamespace(**given)))


def test_environment_and_estimator_are_registered_once(registered: dict[str, Any]) -> None:
    for _ in range(2):
        reward = adjudge.make_reward(RewardSpec.from_dict(RIGHT), trainer="skyrl", config=config())
    assert registered["estimators"] == {"adjudge_grpo": skyrl.compute_present_grpo_advantage}
    assert registered["environments"]["adjudge"].kwargs == {"reward": reward}


def test_a_step_has_the_reward_or_nan(registered: dict[str, Any]) -> None:
    skyrl.make_reward(RewardSpec.from_dict(RIGHT), config=config())
    made = registered["environments"]["adjudge"]
    extras = {"reward_spec": {"method": "rule", "ground_truth": "4"}, "max_turns": 1}
    env = made.entry_point(extras=extras, env_config={}, **made.kwargs)
    assert env.init([{"role": "user", "content": "2 + 2?"}])[1] == {}
    found = env.step(r"\boxed{4}")
    assert (found["reward"], found["done"], found["observations"]) == (1.0, True, [])
    assert env.get_metrics()["judge/right_score"] == 1.0
    lost = made.entry_point(extras={}, env_config={}, **made.kwargs)  # no reference
    lost.init([{"role": "user", "content": "2 + 2?"}])
    found = lost.step(r"\boxed{4}")
    assert math.isnan(found["reward"])
    assert found["metadata"]["adjudge"]
    assert lost.get_metrics() == {"judge/missing_frac": 1.0}


def test_the_reference_and_the_fields_of_a_row() -> None:
    reward = skyrl.SkyRLReward(RewardSpec.from_dict(RIGHT))
    for beside in ({"answer": "5", "level": 2}, {"reference": "2 + 2 = 5"}, {"reference": None}):
        row = {"reward_spec": {"ground_truth": "4"}, "extra_info": beside}
        assert reward.judge("2 + 2?", r"\boxed{4}", **row).rewards == [1.0]
    mapped = {**RIGHT["graders"][0], "mapper": {"reference": "ground_truth"}}
    named = skyrl.SkyRLReward(RewardSpec.from_dict({"graders": [mapped]}))
    assert named.judge("2 + 2?", r"\boxed{4}", **row).rewards == [1.0]
    assert reward.judge(
        "2 + 2?", r"\boxed{5}", extra_info={"answer": "5"}, prompt="a column"
    ).rewards == [1.0]


@pytest.mark.parametrize(
    "algorithm",
    [
        {"advantage_estimator": "grpo"},
        {"advantage_batch_normalize": True},
        {"dynamic_sampling": SimpleNamespace(type="replace")},
    ],
)
def test_settings_under_which_a_missing_reward_counts_are_refused(
    registered: dict[str, Any], algorithm: dict[str, Any]
) -> None:
    [setting] = algorithm
    with pytest.raises(ConfigError, match=rf"trainer\.algorithm\.{setting}.*: must be .*, since"):
        skyrl.make_reward(RewardSpec.from_dict(RIGHT), config=config(**algorithm))
    assert registered == {"environments": {}, "estimators": {}}
