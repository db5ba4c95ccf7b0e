"""A reward spec as a judge of verifiers 0.4 (the ``verifiers.v1`` interface).

As a plug-in, where the config names a module that exports one judge::

    # my_judge.py
    from adjudge.trainers.verifiers import AdjudgeJudge
    __all__ = ["AdjudgeJudge"]

    judges = [{ id = "my_judge", spec = "reward.toml" }]

or as a plugged reward, ``quality = make_reward("reward.toml")`` in a module of one's own and
``fn = "my_module:quality"``; or without such a module, with the spec in ``ADJUDGE_SPEC``::

    rewards = { quality = { fn = "adjudge.trainers.verifiers:reward" } }

A missing reward is raised, which is the missing channel of verifiers: the rollout gets an error and
no score, and its own retry rules may run it again.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Unpack

import verifiers.v1 as vf
from verifiers.v1.dialects.chat import message_to_wire

from adjudge.rewards.spec import RewardSpec
from adjudge.trainers.adapter import (
    DEFAULT_NAME,
    Adapter,
    AdapterOptions,
    make_missing_failure,
    share_adapter,
)
from adjudge.types import Sample, Usage

__all__ = ["AdjudgeJudge", "AdjudgeJudgeConfig", "make_reward", "reward", "to_verifiers_usage"]


class AdjudgeJudgeConfig(vf.JudgeConfig):  # type: ignore[misc]  # not installed for mypy
    """``spec``: the reward spec's file, else ``ADJUDGE_SPEC`` names it.

    ``columns`` names the task's field of what graders see (``{"reference": "target"}``), as in
    :class:`~adjudge.trainers.adapter.Adapter`. ``name`` and ``weight`` as in every judge;
    ``model``, ``sampling`` and addresses are the spec's and not read here.
    """

    id: vf.ID = "adjudge"
    spec: Path | None = None
    columns: dict[str, str] | None = None


class AdjudgeJudge(vf.Judge[float, AdjudgeJudgeConfig]):  # type: ignore[misc]  # as above
    """Scores a finished rollout by a reward spec.

    Parts of the reward are metrics of the trace, ``NAME/PART``; each grader's score and reason
    stand in ``trace.info["adjudge"][NAME]``; what live calls consumed is one entry of
    ``trace.extra_usage``, also where the reward is missing. Raises
    :class:`~adjudge.errors.GradingFailure` where the reward is missing, and what
    :meth:`Adapter.ascore` raises.
    """

    def __init__(self, config: AdjudgeJudgeConfig | None = None) -> None:
        super().__init__(config)
        self._adapter = share_adapter(
            _VerifiersAdapter, self.config.spec, columns=self.config.columns
        )

    async def score(self, task: vf.TaskData, trace: vf.Trace) -> float:
        """The reward of one rollout."""
        return await self._adapter.reward(task, trace, self.reward_name)


def make_reward(
    spec: RewardSpec | Path | str | None = None, **options: Unpack[AdapterOptions]
) -> Callable[[vf.TaskData, vf.Trace], Coroutine[Any, Any, float]]:
    """A function like :func:`reward` with a spec of its own; ``name`` opens its metrics' names.

    ``options`` are those of :class:`~adjudge.trainers.adapter.Adapter`.

    Raises :class:`~adjudge.errors.ConfigError` for a spec that compares rollouts.
    """
    adapter = _VerifiersAdapter(spec, **options)

    async def scored(task: vf.TaskData, trace: vf.Trace) -> float:
        return await adapter.reward(task, trace, adapter.name)

    scored.__name__ = scored.__qualname__ = adapter.name
    return scored


async def reward(task: vf.TaskData, trace: vf.Trace) -> float:
    """The reward of one rollout, as :class:`AdjudgeJudge`; ``ADJUDGE_SPEC`` names the spec."""
    return await share_adapter(_VerifiersAdapter).reward(task, trace, DEFAULT_NAME)


class _VerifiersAdapter(Adapter):
    trainer = "verifiers"
    call_holds = "one sample"

    def __init__(self, spec: RewardSpec | Path | str | None, **options: Any) -> None:
        super().__init__(spec, **options)
        self.check_replaces()

    async def reward(self, task: vf.TaskData, trace: vf.Trace, name: str) -> float:
        sample = self._sample(task, trace)
        # Nothing here compares rollouts; who reads a recorded run does, and those of one task.
        group = next((f"task {one}" for one in (task.idx, task.id) if one is not None), None)
        scored = await self.ascore([sample], [self.name_group(sample, group)])
        [result] = scored.results
        parts = {f"{name}/{part}": value for part, value in result.reward_info.items()}
        trace.record_metrics({part: value for part, value in parts.items() if value is not None})
        if (cost := scored.metrics.get("judge/cost_usd")) is not None:
            trace.record_metric("judge/cost_usd", cost)
        trace.info.setdefault("adjudge", {})[name] = result.details
        if scored.usage is not None:
            trace.extra_usage.append(to_verifiers_usage(scored.usage))
        if result.score is None:
            raise make_missing_failure(result)
        return result.score

    def _sample(self, task: vf.TaskData, trace: vf.Trace) -> Sample:
        """The final branch as messages, the last reply as response, the task's own fields."""
        data: dict[str, Any] = task.model_dump(mode="json", exclude_none=True)
        data.pop("env_reward", None)  # verifiers adds the environment's rewards itself
        extra = self.select_fields(data)
        extra["finish_reason"] = "length" if trace.is_truncated else "stop"
        nodes = trace.branches[-1].nodes if trace.branches else []
        messages = [message_to_wire(node.message) for node in nodes]
        # A prompt may have turns of the assistant, which nobody sampled.
        start = next((place for place, node in enumerate(nodes) if node.sampled), len(nodes))
        sample = self.make_sample(0, 0, messages[:start], messages[start:], extra)
        if sample.prompt is None:
            sample.prompt = task.prompt_text or None
        if trace.root_reply is not None:
            sample.response = trace.root_reply.strip()
        return sample


def to_verifiers_usage(usage: Usage) -> vf.Usage:
    """Tokens and money in verifiers' form, whose ``prompt_tokens`` leave out what was cached."""
    return vf.Usage(
        prompt_tokens=usage.input_tokens - usage.cached_tokens,
        completion_tokens=usage.output_tokens,
        cached_input_tokens=usage.cached_tokens or None,
        cost=usage.cost_usd,
    )
