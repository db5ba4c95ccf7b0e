"""AReaL's own workflow, groups, advantages and loss with our workflow: a failed judge leaves."""

from __future__ import annotations

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

from adjudge.errors import ConfigError
from adjudge.trainers import areal
from adjudge_lab.conformance.checks import TrainerVerdict
from adjudge_lab.conformance.driver import Batch, Way
from adjudge_lab.conformance.drivers.areal import ARealDriver
from adjudge_lab.conformance.source import stand_in

SIZES = [4, 8]


class PluggedAReaL(ARealDriver):
    """AReaL's driver with ``AdjudgeWorkflow``, on the classes that the driver takes from AReaL."""

    ways: tuple[Way, ...] = WAY

    def __init__(self, folder: str) -> None:
        super().__init__(find_source(folder))
        take = self._scope
        self.seen: list[dict[str, float]] = []
        tracker = SimpleNamespace(scalar=lambda **named: self.seen.append(named))
        stand_in("areal", workflow_context=take["workflow_context"])
        stand_in("areal.utils", stats_tracker=SimpleNamespace(get=lambda _: tracker))
        stand_in("areal.utils.data", Normalization=take["Normalization"])
        stand_in("areal.workflow.rlvr", RLVRWorkflow=take["RLVRWorkflow"])
        areal.workflow_class.cache_clear()

    def _build_workflow(self, group: Any, model: Any, way: str, start: int) -> Any:
        torch = self._torch

        class Tokenizer:
            """Its text is the answer that the first token names."""

            def decode(self, tokens: list[int], *, skip_special_tokens: bool = False) -> str:
                return write_response(group[tokens[0]]) if skip_special_tokens else "p"

        class PlacedWorkflow(areal.workflow_class()):  # type: ignore[misc]
            async def arun_episode(self, engine: Any, data: Any) -> Any:
                episode = await super().arun_episode(engine, data)
                if episode is None:
                    return None
                place = start + int(episode["input_ids"][0, 1])
                return {**episode, "place": torch.tensor([place])}

        return PlacedWorkflow(model, Tokenizer(), False, lambda *_: [1], spec=make_spec())


@pytest.fixture(scope="module")
def driver() -> PluggedAReaL:
    return PluggedAReaL("areal-cbff54d")


def test_a_failed_judge_changes_nothing_for_the_others(driver: PluggedAReaL) -> None:
    found, failing = check_failures(driver)
    assert found.verdict is TrainerVerdict.EXACT, found
    # not seen: AReaL has no filter of its own, and one setting normalises over the batch
    assert failing == {"dynamic sampling", "other groups"}


@pytest.mark.parametrize("size", SIZES)
def test_areals_own_advantages_where_nothing_is_missing(driver: PluggedAReaL, size: int) -> None:
    base = ARealDriver(find_source("areal-cbff54d"))
    check_own_advantages(driver, base, base.ways[0].name, size)


def test_the_share_of_missing_rewards_is_logged(driver: PluggedAReaL) -> None:
    driver.seen.clear()
    batch = Batch(groups=((1.0, 0.0, None, 0.5),), lengths=((3,) * 4,))
    driver.run_step(batch, WAY[0].name, "group")
    assert sum(one["judge/missing_frac"] for one in driver.seen) / len(driver.seen) == 0.25


def test_a_release_with_groups_of_a_fixed_size_is_refused() -> None:
    old = PluggedAReaL("areal-1.0.4")
    batch = Batch(groups=((1.0, 0.0),), lengths=((3, 3),))
    with pytest.raises(ConfigError, match="normalises groups of a fixed size"):
        old.run_step(batch, WAY[0].name, "group")
