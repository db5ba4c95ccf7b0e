"""SkyRL's own gym, rewards, advantages and loss with our environment and estimator."""

from __future__ import annotations

import math
import sys
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed here; run `make test-plugins`")
from tests.contract.plugins.scripted import (
    WAY,
    check_failures,
    check_own_advantages,
    find_source,
    make_spec,
    write_response,
)

from adjudge.trainers import skyrl
from adjudge_lab.conformance.checks import TrainerVerdict
from adjudge_lab.conformance.driver import Batch, StepResult, Way
from adjudge_lab.conformance.drivers.skyrl import SkyRLDriver
from adjudge_lab.conformance.source import stand_in

SOURCE = find_source("skyrl-a956457")
sys.path.insert(0, str(SOURCE / "skyrl-gym"))
pytest.importorskip("skyrl_gym")


def make_config(**algorithm: Any) -> Any:
    """What is checked of SkyRL's config, with our estimator."""
    given = {
        "advantage_estimator": "adjudge_grpo",
        "advantage_batch_normalize": False,
        "dynamic_sampling": SimpleNamespace(type=None),
        **algorithm,
    }
    return SimpleNamespace(trainer=SimpleNamespace(algorithm=SimpleNamespace(**given)))


class PluggedSkyRL(SkyRLDriver):
    """SkyRL's driver: rewards of our environment in its gym, advantages of our estimator."""

    ways: tuple[Way, ...] = WAY
    settings: tuple[str, ...] = ("grpo, token mean", "grpo, no std, by length")

    def __init__(self) -> None:
        super().__init__(SOURCE)
        known = self._maths["AdvantageEstimatorRegistry"]
        registry = SimpleNamespace(
            list_available=lambda: list(known), register=known.__setitem__, get=known.get
        )
        stand_in("skyrl.backends.skyrl_train.utils.ppo_utils", AdvantageEstimatorRegistry=registry)
        skyrl.make_reward(make_spec(), config=make_config())
        import skyrl_gym

        self._gym = skyrl_gym

    def run_step(self, batch: Batch, way: str, setting: str) -> StepResult:
        judged = [tuple(self._judge(reward) for reward in group) for group in batch.groups]
        told = Batch(groups=tuple(judged), lengths=batch.lengths, kl=batch.kl)
        return super().run_step(told, "NaN", setting)

    def _judge(self, reward: float | None) -> float | None:
        """What the environment's step gives; the driver makes NaN of ``None`` again."""
        env = self._gym.make("adjudge", env_config={}, extras={"data_source": "d"})
        prompt, _ = env.init([{"role": "user", "content": "p"}])
        found = env.step(write_response(reward))
        assert prompt[0]["content"] == "p"
        assert found["done"]
        return None if math.isnan(found["reward"]) else found["reward"]

    def _make_trainer(self, batch: Batch, setting: str) -> Any:
        made = super()._make_trainer(batch, setting)
        made.cfg.algorithm.advantage_estimator = skyrl.ESTIMATOR
        return made


@pytest.fixture(scope="module")
def driver() -> PluggedSkyRL:
    return PluggedSkyRL()


def test_a_failed_judge_changes_nothing_but_the_size_of_the_step(driver: PluggedSkyRL) -> None:
    found, failing = check_failures(driver)
    assert found.verdict is TrainerVerdict.UNBIASED
    assert failing == {"normaliser", "divergence", "logged mean", "dynamic sampling"}


@pytest.mark.parametrize("size", [4, 8])
def test_skyrls_own_advantages_where_nothing_is_missing(driver: PluggedSkyRL, size: int) -> None:
    base = SkyRLDriver(SOURCE)
    check_own_advantages(driver, base, base.ways[0].name, size)


def test_metrics_of_the_environment_are_aggregated_by_skyrl(driver: PluggedSkyRL) -> None:
    from skyrl_gym.metrics import aggregate_for_environment

    assert driver.name == "SkyRL"
    found = []
    for reward in (1.0, None):
        env = driver._gym.make("adjudge", env_config={}, extras={})
        env.init([{"role": "user", "content": "p"}])
        env.step(write_response(reward))
        found.append(env.get_metrics())
    means = aggregate_for_environment("adjudge", found)
    assert means["judge/missing_frac"] == 0.5
    assert means["judge/quality_score"] == 1.0
