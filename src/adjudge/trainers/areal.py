"""AReaL: ``RLVRWorkflow`` with a reward spec in the place of a reward function.

    trainer.train(
        workflow="adjudge.trainers.areal.AdjudgeWorkflow",
        workflow_kwargs={"spec": "reward.toml", "gconfig": config.gconfig,
                         "tokenizer": config.tokenizer_path},
    )

A missing reward makes the episode ``None``, which AReaL leaves out of its group. Everything else
is wrong there: a reward function that raises costs the whole group, one that is slower than 15
seconds is silently 0, NaN spreads, and a row with a loss mask of zeros counts in its group's mean.
The judge is asked in the rollout's own process, without AReaL's pool and its 15 seconds.

AReaL 1.0.4 and before cuts its batch into groups of a fixed size, so that a group that lost a
member shifts all groups after it. It is refused.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from adjudge.errors import ConfigError, Fields
from adjudge.intake.rendered import ThinkTokens, opens_thinking
from adjudge.rewards.spec import RewardSpec
from adjudge.trainers.adapter import Adapter, share_adapter
from adjudge.trainers.scoring import ScorerResult


class _MissingReward(Exception):
    """Leaves AReaL's own code between the reward and the episode."""


class _ArealAdapter(Adapter):
    trainer = "AReaL"
    call_holds = "one sample"

    async def judge(self, prompt: str, response: str, row: Fields, group: object) -> ScorerResult:
        if isinstance(messages := row.get("messages"), list):
            answer = [{"role": "assistant", "content": response}]
            thinks = opens_thinking(prompt)
            return await self.ascore_one(messages, answer, row, group, thinks=thinks)
        return await self.ascore_one(prompt, response, row, group)


def make_reward(spec: RewardSpec | Path | str | None = None, **options: Any) -> Any:
    """An ``AdjudgeWorkflow``: ``options`` are those of AReaL's ``RLVRWorkflow``.

    Beside them ``columns`` names the row's column of a field, and ``record`` a folder that the run
    is recorded in.

    Raises :class:`~adjudge.errors.ConfigError` for a spec that compares the samples of a group, and
    for a version of AReaL in which a group that lost a member is wrong.
    """
    return workflow_class()(spec=spec, **options)


def __getattr__(name: str) -> Any:
    """``AdjudgeWorkflow``: made when it is asked for, since its base is AReaL's."""
    if name == "AdjudgeWorkflow":
        return workflow_class()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@cache
def workflow_class() -> type[Any]:
    """``AdjudgeWorkflow``, a ``RolloutWorkflow`` of AReaL; derive from it for turns of your own."""
    from areal import workflow_context  # noqa: PLC0415
    from areal.utils import stats_tracker  # noqa: PLC0415
    from areal.workflow.rlvr import RLVRWorkflow  # noqa: PLC0415

    class AdjudgeWorkflow(RLVRWorkflow):  # type: ignore[misc]  # not installed for mypy
        """One turn, judged by ``spec``; the episode is ``None`` where the reward is missing."""

        def __init__(
            self,
            *args: Any,
            spec: RewardSpec | Path | str | None = None,
            columns: Mapping[str, str] | None = None,
            record: str | None = None,
            **options: Any,
        ) -> None:
            _check_version()
            super().__init__("adjudge", *args, **options)  # a name: a function gets a pool
            self.adapter = share_adapter(_ArealAdapter, spec, columns=columns, record=record)
            self.reward_fn = self.async_reward_fn = self._judge

        async def arun_episode(self, engine: Any, data: dict[str, Any]) -> Any:
            try:
                return await super().arun_episode(engine, data)
            except _MissingReward:
                return None

        async def _judge(
            self, prompt: str, _: str, __: list[int], completion_ids: list[int], /, **row: Any
        ) -> float:
            answer = ThinkTokens(self.tokenizer).decode(completion_ids)
            scored = await self.adapter.judge(prompt, answer, row, workflow_context.get().task_id)
            tracker = stats_tracker.get(workflow_context.stat_scope())
            tracker.scalar(**self.adapter.sample_metrics(scored))
            [result] = scored.results
            if result.score is None:
                raise _MissingReward
            return result.score

    AdjudgeWorkflow.__qualname__ = "AdjudgeWorkflow"
    return AdjudgeWorkflow


def _check_version() -> None:
    from areal.utils.data import Normalization  # noqa: PLC0415

    if "group_sizes" not in inspect.signature(Normalization.__call__).parameters:
        raise ConfigError(
            "AReaL: this version normalises groups of a fixed size, so that a group with a missing "
            "reward shifts all groups after it (found: Normalization without group_sizes). Use "
            "AReaL's main branch of July 2026 or later, which has its pull request 1454."
        )
