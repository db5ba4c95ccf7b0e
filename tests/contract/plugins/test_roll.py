"""ROLL's own rollout loop, normalisation and loss with adjudge as its reward worker."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator
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

from adjudge.trainers import roll
from adjudge_lab.conformance.checks import TrainerVerdict
from adjudge_lab.conformance.driver import Batch, StepResult, Way
from adjudge_lab.conformance.drivers.roll import ROLLDriver
from adjudge_lab.conformance.source import Scope

_LOOP = "distributed/scheduler/user_defined_rollout_loop.py"
_DROPS: dict[str, Any] = {"adv_estimator": "grpo", "norm_mean_type": "group"}
_FILLS: dict[str, Any] = {"adv_estimator": "reinforce", "norm_mean_type": "group"}


class PluggedRoll(ROLLDriver):
    """The driver, whose rewards have gone through ROLL's loop with ours on top."""

    ways: tuple[Way, ...] = WAY
    settings: tuple[str, ...] = ("reinforce, group mean",)

    def __init__(self, checkout: Path) -> None:
        super().__init__(checkout)
        self._adapter = roll.RollAdapter(make_spec())
        scope: Scope = {"asyncio": asyncio, "copy": SimpleNamespace(deepcopy=lambda one: one)}
        scope |= {"math": math, "torch": self._torch, "response_filter": lambda *_: True}
        scope |= {"RolloutContext": object, "DataProto": object, "Optional": Any, "List": list}
        scope |= {"is_report_data_finished": lambda _: True, "RLVRConfig": object}
        scope["postprocess_output_data"] = lambda request, *_: request
        scope["expand_requests"] = lambda data, **_: data
        scope["get_tracer"] = lambda _: SimpleNamespace(
            start_as_current_span=lambda _: contextlib.nullcontext()
        )
        scope["logger"] = SimpleNamespace(debug=lambda *_: None)
        self._source.load_names(_LOOP, ["query_filter", "UserDefinedRolloutLoop"], scope)
        loop = roll.derive_loop(scope["UserDefinedRolloutLoop"], scope["query_filter"])
        self._loop = loop()

    def run_step(self, batch: Batch, way: str, setting: str) -> StepResult:
        rolled = [self.roll_out(group, _FILLS) for group in batch.groups]
        kept = tuple(group for group in rolled if group is not None)
        if not kept:
            raise RuntimeError("every prompt is dropped, so the step waits for others")
        lengths = tuple(
            row for row, group in zip(batch.lengths, rolled, strict=True) if group is not None
        )
        made = super().run_step(Batch(groups=kept, lengths=lengths, kl=batch.kl), "NaN", setting)
        advantages, gradients = iter(made.advantages), iter(made.gradients or [])
        filters = iter(made.kept or [])
        nothing: list[float | None] = [None] * len(batch.groups[0])
        return StepResult(
            advantages=[nothing if one is None else next(advantages) for one in rolled],
            gradients=[nothing if one is None else next(gradients) for one in rolled],
            reward_mean=made.reward_mean,
            kept=[one is not None and bool(next(filters)) for one in rolled],
        )

    def roll_out(
        self, rewards: tuple[float | None, ...], settings: dict[str, Any]
    ) -> tuple[float, ...] | None:
        """The rewards of one prompt's responses after the loop; ``None`` where it is dropped."""
        torch = self._torch

        class Row(SimpleNamespace):
            def union(self, other: Any) -> None:
                self.batch |= other

            def __getitem__(self, _: Any) -> Any:
                batch = {key: one for key, one in self.batch.items() if torch.is_tensor(one)}
                return SimpleNamespace(batch=batch, non_tensor_batch=self.non_tensor_batch)

        def make_row(reward: float | None) -> Any:
            meta: dict[str, Any] = {"generation_config": {"num_return_sequences": 1}}
            columns = {"domain": ["d"], "ground_truth": ["4"], "text": [write_response(reward)]}
            batch = type("Columns", (dict,), {"batch_size": (1,)})()
            return Row(batch=batch, meta_info=meta, non_tensor_batch=columns)

        async def compute_rewards(req: Any, domain: str) -> dict[str, Any]:
            columns = req.non_tensor_batch
            made = self._adapter.score_rows(["p"], columns["text"], {"domain": [domain]})
            req.meta_info["metrics"] = {}
            return {key: torch.tensor(made) for key in ("response_level_rewards", "scores")}

        async def generate(**_: Any) -> object:
            return object()

        @contextlib.asynccontextmanager
        async def do_generate_and_reward(**_: Any) -> AsyncIterator[None]:
            yield

        filtering = SimpleNamespace(type="no_filter")
        config = SimpleNamespace(
            **{"norm_std_type": None, "whiten_advantages": False, **settings},
            rewards={"d": SimpleNamespace(query_filter_config=filtering)},
        )
        context = SimpleNamespace(
            meta_info={"generation_config": {"num_return_sequences": len(rewards)}},
            is_num_return_sequences_expand=True,
            get_request_data=lambda **_: ([make_row(reward) for reward in rewards], "d"),
            do_generate_and_reward=do_generate_and_reward,
            generate=generate,
            compute_rewards=compute_rewards,
            is_val=False,
            pipeline_config=config,
            prompt_id=0,
            sequence_length=9,
        )
        found = asyncio.run(self._loop.process_new_prompt(context))
        if found is None:
            return None
        return tuple(float(one.batch["response_level_rewards"][0]) for one in found)


@pytest.fixture(scope="module")
def driver() -> PluggedRoll:
    return PluggedRoll(find_source("roll-8eb27cc"))


def test_where_only_the_mean_is_taken_off_nothing_else_changes(driver: PluggedRoll) -> None:
    found, failing = check_failures(driver)
    assert found.verdict is TrainerVerdict.UNBIASED
    assert failing == {"normaliser", "divergence"}


@pytest.mark.parametrize("rewards", [(1.0, 0.0, 0.5, None), (None, 0.5) * 4, (None,) * 4])
def test_elsewhere_the_prompt_is_dropped(
    driver: PluggedRoll, rewards: tuple[float | None, ...]
) -> None:
    assert driver.roll_out(rewards, _DROPS) is None
    assert driver.roll_out(rewards, {**_FILLS, "norm_std_type": "group"}) is None
    assert driver.roll_out(rewards, {**_FILLS, "whiten_advantages": True}) is None
    complete = tuple(0.25 if one is None else one for one in rewards)
    assert driver.roll_out(complete, _DROPS) == complete
