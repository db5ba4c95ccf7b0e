"""slime's and miles' own code with adjudge in their hooks: judges that fail change nothing else."""

from __future__ import annotations

import asyncio
import importlib
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed here; run `make test-trl`")
from tests.contract.plugins.scripted import (
    WAY,
    check_failures,
    check_own_advantages,
    find_source,
    make_spec,
    write_response,
)

from adjudge.trainers import slime
from adjudge_lab.conformance.checks import TrainerVerdict
from adjudge_lab.conformance.driver import Batch
from adjudge_lab.conformance.drivers.slime import MilesDriver, SlimeDriver
from adjudge_lab.conformance.source import TrainerSource

OWN = "adjudge.trainers.slime"
SOURCES = {"slime": "slime-624b824", "miles": "miles-31f1ca9"}


class PluggedSlime(SlimeDriver):
    """slime's driver, with adjudge's functions loaded by the trainer's own code."""

    ways = WAY
    group_rm = False

    def __init__(self, checkout: Any) -> None:
        super().__init__(checkout)
        package = self._package
        scope: dict[str, Any] = {"importlib": importlib, "cache": lambda function: function}
        scope["function_registry"] = {}  # miles: what its own tests put there
        source = TrainerSource(package, package, checkout)
        source.load_names("utils/misc.py", ["load_function"], scope)
        scope |= {"Sample": self._scope["Sample"], "is_multi_lora_enabled": lambda _: False}
        names = ["_resolve_reward_config"] if package == "miles" else []
        names += ["async_rm", "batched_async_rm"]
        source.load_names("rollout/rm_hub/__init__.py", names, scope)
        self._hooks = scope
        self._scope["check_reward_nonzero_std"] = lambda args, samples: SimpleNamespace(
            keep=scope["load_function"](args.dynamic_sampling_filter_path)(args, samples)
        )

    def _arguments(self, batch: Batch, setting: str) -> Any:
        args = super()._arguments(batch, setting)
        args.custom_rm_path, args.group_rm, args.rm_type = (
            "plugged_slime.judge",
            self.group_rm,
            None,
        )
        args.custom_reward_post_process_path = f"{OWN}.normalize_rewards"
        args.dynamic_sampling_filter_path = f"{OWN}.check_reward_nonzero_std"
        self._args = args
        return args

    def _make_samples(self, batch: Batch, way: str) -> list[Any]:
        complete = Batch(
            groups=tuple((0.0,) * len(group) for group in batch.groups), lengths=batch.lengths
        )
        samples: list[Any] = super()._make_samples(complete, way)
        rewards = [reward for group in batch.groups for reward in group]
        for sample, reward in zip(samples, rewards, strict=True):
            sample.prompt, sample.response, sample.reward = "p", write_response(reward), None
        asyncio.run(self._judge(samples, len(batch.groups[0])))
        return samples

    async def _judge(self, samples: list[Any], size: int) -> None:
        if self.group_rm:
            for start in range(0, len(samples), size):
                group = samples[start : start + size]
                rewards = await self._hooks["batched_async_rm"](self._args, group)
                for sample, reward in zip(group, rewards, strict=True):
                    sample.reward = reward
        else:
            for sample in samples:
                sample.reward = await self._hooks["async_rm"](self._args, sample)

    def _convert(self, args: Any, samples: list[Any]) -> dict[str, Any]:
        hook = self._hooks["load_function"](args.custom_reward_post_process_path)
        manager: Any = SimpleNamespace(
            args=args,
            custom_reward_post_process_func=hook,
            custom_convert_samples_to_train_data_func=None,
            _post_process_rewards=lambda given: self._scope["_post_process_rewards"](
                manager, given
            ),
        )
        made: dict[str, Any] = self._scope["_convert_samples_to_train_data"](manager, samples)
        return made


class PluggedMiles(PluggedSlime, MilesDriver):
    """The same of miles."""

    def _convert(self, args: Any, samples: list[Any]) -> dict[str, Any]:
        hook = self._hooks["load_function"](args.custom_reward_post_process_path)
        made: dict[str, Any] = self._scope["convert_samples_to_train_data"](
            args, samples, {}, None, hook
        )
        return made


@pytest.fixture(params=["slime", "miles"])
def driver(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    module = ModuleType("plugged_slime")
    module.judge = slime.make_reward(make_spec())  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "plugged_slime", module)
    made = PluggedSlime if request.param == "slime" else PluggedMiles
    return made(find_source(SOURCES[request.param]))


@pytest.mark.parametrize("whole", [False, True], ids=["sample", "group"])
def test_a_failed_judge_changes_nothing_but_the_size_of_the_step(driver: Any, whole: bool) -> None:
    driver.group_rm = whole
    found, failing = check_failures(driver)
    assert found.verdict is TrainerVerdict.UNBIASED
    assert failing == {"normaliser"}


@pytest.mark.parametrize("size", [4, 8])
def test_the_trainers_own_advantages_where_nothing_is_missing(driver: Any, size: int) -> None:
    base = (SlimeDriver if driver.name == "slime" else MilesDriver)(
        find_source(SOURCES[driver.name])
    )
    check_own_advantages(driver, base, base.ways[0].name, size)
