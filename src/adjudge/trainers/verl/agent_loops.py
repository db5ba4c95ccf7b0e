"""Rollouts of verl 0.9.1 that know more of rewards than verl's own.

Those of the V1 trainers tell a judge service that compares groups their group's size and when they
fail, with ``adjudge_grpo`` they put what events add to a reward on the turns that earned it, and
they bring graders the conversations of verl's tool loop. verl takes the class by
``+actor_rollout_ref.rollout.agent.agent_loop_manager_class``; otherwise it is verl's own.

verl's ``ToolAgentLoop`` keeps its messages to itself. :class:`JudgeToolAgentLoop` is the same loop
and puts them, and the tools' definitions, into ``extra_fields["extras"]`` of its output: the one
key that verl keeps in every batch, whichever loops made its rollouts. Reward actors get it in
``tool_extra_fields``. :class:`JudgeAgentLoopManager` takes it in place of verl's ``tool_agent``.
Elsewhere a file does, ``actor_rollout_ref.rollout.agent.agent_loop_config_path``::

    - name: tool_agent
      _target_: adjudge.trainers.verl.JudgeToolAgentLoop
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from adjudge.errors import GradingFailure, JudgeAuthError
from adjudge.intake.parts import tool_call
from adjudge.text import THINK_TAGS
from adjudge.trainers.verl.batches import MASK_COLUMN
from adjudge.trainers.verl.reward_sources import (
    GROUP_SIZE_COLUMN,
    VerlRun,
    make_group_service,
    read_group_member,
)
from adjudge.trainers.verl.rewards import ADJUDGE_ESTIMATOR, TurnReward, place_turn_rewards

_log = logging.getLogger("adjudge")
_Manager: Any = object
_Worker: Any = object
_Output: Any = object
_Loop: Any = object
_registry: dict[str, Any] = {}
if find_spec("verl") is not None:  # tools that read documentation import every module
    from verl.experimental.agent_loop.agent_loop import AgentLoopOutput, _agent_loop_registry
    from verl.experimental.agent_loop.tool_agent_loop import ToolAgentLoop
    from verl.trainer.ppo.v1 import AgentLoopManagerTQ, AgentLoopWorkerTQ

    _Output, _registry, _Loop = AgentLoopOutput, _agent_loop_registry, ToolAgentLoop
    _Manager, _Worker = AgentLoopManagerTQ, AgentLoopWorkerTQ.__ray_actor_class__


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
            row, mask = found["rm_scores"].unsqueeze(0), found["response_mask"].unsqueeze(0)
            place_turn_rewards(row, [row.shape[1] - 1], mask, [reward])
        return found


class JudgeAgentLoopWorker(_Worker):
    """verl's own, in an actor like it, with a word to the judge service before and after."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        stock = f"{_Loop.__module__}.{_Loop.__qualname__}"
        if _registry.get("tool_agent", {}).get("_target_") == stock:  # and not the user's own
            _registry["tool_agent"] = {"_target_": "adjudge.trainers.verl.JudgeToolAgentLoop"}
        run = VerlRun(self.config)
        self._groups = make_group_service(run)
        self._by_turn = run.estimator == ADJUDGE_ESTIMATOR

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


class JudgeToolAgentLoop(_Loop):
    """verl's tool loop, whose outputs carry ``messages`` and ``tools``.

    Messages are those that verl kept: the policy's turns with their calls, results as the policy
    saw them. A turn that verl does not write down, because the rollout ended with it at a limit of
    length or turns, is added, as far as it is trained on. Special tokens and images are left out.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._agent_data: Any = None
        self._last_turn: list[dict[str, Any]] = []

    async def run(self, sampling_params: dict[str, Any], **columns: Any) -> Any:
        """One rollout; see verl's ``ToolAgentLoop.run``."""
        output = await super().run(sampling_params, **columns)
        if self._agent_data is not None:
            opening = len(columns["raw_prompt"])
            kept = [*self._agent_data.messages, *self._last_turn]
            given = output.extra_fields.get("extras")
            output.extra_fields["extras"] = {
                **(given if isinstance(given, dict) else {}),
                "messages": plain_messages(kept, opening, self.tokenizer.all_special_tokens),
                "tools": getattr(self._agent_data, "_active_tool_schemas", self.tool_schemas),
            }
        return output

    async def _handle_generating_state(self, agent_data: Any, *args: Any, **kwargs: Any) -> Any:
        written = len(agent_data.messages)
        state = await super()._handle_generating_state(agent_data, *args, **kwargs)
        self._agent_data = agent_data
        self._last_turn = (
            [] if len(agent_data.messages) > written else [await self._unwritten_turn(agent_data)]
        )
        return state

    async def _unwritten_turn(self, agent_data: Any) -> dict[str, Any]:
        """The message of a rollout's last tokens, read as verl reads those of other turns."""
        beyond = max(0, len(agent_data.response_mask) - self.response_length)
        ids = agent_data.response_ids[: max(0, len(agent_data.response_ids) - beyond)]
        active: Any = getattr(agent_data, "_active_tools", self.tools)
        schemas = [tool.tool_schema for tool in active.values()]
        turn = copy.copy(agent_data)  # verl goes on with its own
        content, turn.tool_calls = await self.tool_parser.extract_tool_calls(ids, schemas)
        message: dict[str, Any] = self._build_assistant_message(content, turn)
        return message


def plain_messages(
    messages: Sequence[dict[str, Any]], opening: int, special_tokens: Sequence[str]
) -> list[dict[str, Any]]:
    """The messages as graders take them: text, and calls as in OpenAI's format.

    The first ``opening`` are the prompt's. Of the policy's, ``special_tokens`` are cut out, which
    verl leaves in; calls without an id get ``call_0``, …, and their results, which stand in the
    same order, likewise.
    """
    found, waiting, count = [], list[str](), 0
    cut = [token for token in special_tokens if token not in THINK_TAGS]  # where the answer begins
    for place, message in enumerate(messages):
        content = message.get("content")
        if isinstance(content, list):  # verl carries images and videos beside the messages
            content = [_without_media(part) if isinstance(part, dict) else part for part in content]
        plain = {**message, "content": content}
        if place >= opening and plain["role"] == "assistant":
            if isinstance(content, str):
                for token in cut:
                    content = content.replace(token, "")
                plain["content"] = content.strip()
            calls = message.get("tool_calls") or ()
            waiting = [call.get("id") or f"call_{count + i}" for i, call in enumerate(calls)]
            count += len(calls)
            if calls:
                plain["tool_calls"] = [
                    tool_call(name, call["function"]["name"], call["function"].get("arguments"))
                    for name, call in zip(waiting, calls, strict=True)
                ]
        elif place >= opening and plain["role"] == "tool" and waiting:
            plain.setdefault("tool_call_id", waiting.pop(0))
        found.append(plain)
    return found


def _without_media(part: dict[str, Any]) -> dict[str, Any]:
    found = {key: value for key, value in part.items() if key in ("type", "text")}
    return found or dict.fromkeys(part, "")  # its keys say what it was
