"""ms-swift's own code with adjudge as a reward function: judges that fail change nothing else."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed here; run `make test-trl`")
from tests.contract.plugins.scripted import (
    WAY,
    check_failures,
    find_source,
    make_spec,
    write_response,
)

from adjudge.errors import ConfigError
from adjudge.rewards import RewardSpec
from adjudge.trainers.ms_swift import make_reward
from adjudge_lab.conformance.checks import TrainerVerdict
from adjudge_lab.conformance.driver import Batch, Way
from adjudge_lab.conformance.drivers.ms_swift import MsSwiftDriver

SOURCE = "ms-swift-4.6.0"
_COMMON: dict[str, Any] = {"reward_funcs": ["adjudge"], "kl_in_reward": False, "beta": 0.1}


class PluggedSwift(MsSwiftDriver):
    """The driver, whose rewards ms-swift asks our class for; the answers are text."""

    ways: tuple[Way, ...] = WAY
    settings: tuple[str, ...] = ("grpo, none",)

    def __init__(self, checkout: Path, spec: RewardSpec, **options: Any) -> None:
        super().__init__(checkout)
        self._orm, self._options = make_reward(spec), options
        real = self._algorithm.compute_rewards_per_func
        self._algorithm.compute_rewards_per_func = self._ask_ours  # type: ignore[attr-defined]
        self._real = real

    def run_step(self, batch: Batch, way: str, setting: str) -> Any:
        self._batch = batch
        return super().run_step(batch, way, setting)

    def _ask_ours(self, _samples: Any, _functions: Any, plugins: Any, device: Any) -> Any:
        args = SimpleNamespace(
            **_COMMON,
            **{"scale_rewards": "none", "advantage_estimator": "grpo", **self._options},
            num_generations=len(self._batch.groups[0]),
        )
        samples: list[Any] = []
        for number, group in enumerate(self._batch.groups):
            for reward in group:
                row = {
                    "messages": [
                        {"role": "user", "content": f"p{number}"},
                        {"role": "assistant", "content": write_response(reward)},
                    ],
                    "prompt_id": f"prompt_{number}",
                    "request_id": f"chatcmpl-{len(samples)}",
                    "finish_reason": "stop",
                }
                samples.append(
                    SimpleNamespace(messages=row["messages"], to_reward_row=lambda row=row: row)
                )
        return self._real(samples, [self._orm(args=args)], plugins, device)


@pytest.fixture(autouse=True)
def no_patch(monkeypatch: pytest.MonkeyPatch) -> None:
    find_source(SOURCE)
    for name in [one for one in sys.modules if one.split(".")[0] == "swift"]:
        monkeypatch.delitem(sys.modules, name)


@pytest.mark.parametrize("step", ["none", "z_score", "rloo"])
def test_a_failed_judge_changes_nothing_but_the_size_of_the_step(step: str) -> None:
    spec = make_spec(reward={"group": step})
    found, failing = check_failures(PluggedSwift(find_source(SOURCE), spec))
    assert found.verdict is TrainerVerdict.UNBIASED
    assert failing <= {"normaliser", "divergence", "logged mean"}


def test_the_default_is_refused_before_training() -> None:
    driver = PluggedSwift(find_source(SOURCE), make_spec(), scale_rewards="group")
    with pytest.raises(ConfigError, match="counts a missing reward as 0.*--scale_rewards none"):
        check_failures(driver)
