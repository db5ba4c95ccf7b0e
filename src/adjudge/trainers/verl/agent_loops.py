"""Rollouts of verl 0.9.1's V1 trainers that know more of rewards than verl's own.

They tell a judge service that compares groups their group's size and when they fail, with
``adjudge_grpo`` they put what events add to a reward on the turns that earned it, and they bring
graders the conversations of verl's tool loop. verl takes the class by
``+actor_rollout_ref.rollout.agent.agent_loop_manager_class``; otherwise it is verl's own.
"""

from __future__ import annotations

import logging
from importlib.util import find_spec
from typing import Any

from adjudge.errors import GradingFailure, JudgeAuthError
from adjudge.trainers.verl.advantage import (
    ADJUDGE_ESTIMATOR,
    TurnReward,
    TurnRewardPlacer,
    configured_estimator,
    find_turn_ends,
)
from adjudge.trainers.verl.batches import MASK_COLUMN
from adjudge.trainers.verl.reward_sources import (
    GROUP_SIZE_COLUMN,
    make_group_service,
    read_group_member,
)

_log = logging.getLogger("adjudge")
_Manager: Any = object
_Worker: Any = object
_Output: Any = object
_registry: dict[str, Any] = {}
if find_spec("verl") is not None:  # tools that read documentation import every module
    from verl.experimental.agent_loop.agent_loop import AgentLoopOutput, _agent_loop_registry
    from verl.experimental.agent_loop.tool_agent_loop import ToolAgentLoop
    from verl.trainer.ppo.v1 import AgentLoopManagerTQ, AgentLoopWorkerTQ

    _Output, _registry = AgentLoopOutput, _agent_loop_registry
    _Manager, _Worker = AgentLoopManagerTQ, AgentLoopWorkerTQ.__ray_actor_class__


_placer = TurnRewardPlacer()


class TurnOutput(_Output):
    """verl's output of a rollout, whose ``rm_scores`` have events' rewards on their turns."""

    @classmethod
    def of(cls, output: Any) -> Any:
        """The same output, all that it holds included."""
        return cls.model_construct(_fields_set=set(output.model_fields_set), **dict(output))

    def as_dict(self) -> dict[str, Any]:
        """What verl puts into its queue; without padding, so the last token is the last valid."""
        reward = self.reward_score
        found: dict[str, Any] = super().as_dict()
        if "rm_scores" in found:
            row, mask = found["rm_scores"], found["response_mask"]
            [ends] = find_turn_ends(mask.unsqueeze(0))
            _placer.place(row, len(row) - 1, ends, reward)
        return found


def _replace_tool_loop() -> None:
    """Put our tool loop where verl's own is; one that the user's file names stays."""
    stock = f"{ToolAgentLoop.__module__}.{ToolAgentLoop.__qualname__}"
    if _registry.get("tool_agent", {}).get("_target_") == stock:
        _registry["tool_agent"] = {"_target_": "adjudge.trainers.verl.JudgeToolAgentLoop"}


class JudgeAgentLoopWorker(_Worker):
    """verl's own, in an actor like it, with a word to the judge service before and after."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        _replace_tool_loop()
        self._groups = make_group_service(self.config)
        self._by_turn = configured_estimator(self.config) == ADJUDGE_ESTIMATOR

    async def _compute_score(self, outputs: list[Any], kwargs: dict[str, Any]) -> None:
        """Also lets a rollout of one output have its rewards on turns; of several, none has."""
        [last] = outputs[-1:]
        mask = {MASK_COLUMN: list(last.response_mask)} if len(outputs) == 1 else {}
        await super()._compute_score(outputs, {**kwargs, **mask})
        if self._by_turn and len(outputs) == 1 and isinstance(last.reward_score, TurnReward):
            outputs[0] = TurnOutput.of(last)

    async def _run_prompt(
        self, prompt: dict[str, Any], sampling_params: Any, trajectory: Any, trace: bool = False
    ) -> None:
        if self._groups is not None:
            rollout = self.config.actor_rollout_ref.rollout
            usual = rollout.val_kwargs.n if trajectory["validate"] else rollout.n
            prompt = {**prompt, GROUP_SIZE_COLUMN: int(prompt.get("__rollout_n__", usual))}
        await super()._run_prompt(prompt, sampling_params, trajectory=trajectory, trace=trace)

    async def _run_agent_loop(self, sampling_params: Any, trajectory: Any, **columns: Any) -> Any:
        try:
            return await super()._run_agent_loop(sampling_params, trajectory, **columns)
        except (GradingFailure, JudgeAuthError):  # the reward manager's: the service has seen it
            raise
        except Exception:
            await self._never(columns)
            raise

    async def _agent_loop_postprocess(self, output: Any, validate: Any, **columns: Any) -> Any:
        outputs = output if isinstance(output, list) else [output]
        if not outputs or outputs[-1].reward_score is not None:  # verl will not ask for its reward
            await self._never(columns)
        return await super()._agent_loop_postprocess(output, validate, **columns)

    async def _never(self, columns: dict[str, Any]) -> None:
        if self._groups is None:
            return
        try:
            await self._groups.announce(read_group_member(columns, 0))
        except GradingFailure as failure:  # the group's timeout will do
            _log.warning("a failed rollout could not be reported: %s", failure)


class JudgeAgentLoopManager(_Manager):
    """verl's manager of rollouts with workers that know of turns and tell the service of groups.

    Each rollout carries its group's size, so that ``val_kwargs.n`` may differ from ``rollout.n``,
    and ``__rollout_n__`` from both; one that fails, comes back empty or brings a reward of its own
    is announced, so that the others of its group do not wait for it.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        import ray  # noqa: PLC0415  (verl's)

        super().__init__(*args, **kwargs)
        self.agent_loop_workers_class = ray.remote(JudgeAgentLoopWorker)
