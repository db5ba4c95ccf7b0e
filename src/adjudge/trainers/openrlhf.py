"""OpenRLHF: a reward spec as its agent, which sees whole groups.

OpenRLHF takes a Python file. ``--train.agent_func_path agent.py``::

    import adjudge
    AgentExecutor = adjudge.make_reward("reward.toml", trainer="openrlhf", estimator="dr_grpo")

generates as OpenRLHF does, waits for the group's other answers and judges them together. A missing
reward becomes its group's mean, which the named estimators take off again. (An answer without
action tokens would leave the loss, too, but a step of such answers alone has a loss of NaN.)

OpenRLHF does not tell its rollout actors how it was started, so the file says the estimator once
more. Nothing here imports OpenRLHF before it is used.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from adjudge.errors import ConfigError
from adjudge.intake.rendered import ThinkTokens
from adjudge.rewards.spec import RewardSpec
from adjudge.stats import mean
from adjudge.trainers.adapter import Adapter

_ESTIMATORS = ("dr_grpo", "rloo")  # which do nothing with a reward but take a mean off


def make_reward(
    spec: RewardSpec | Path | str | None = None,
    *,
    estimator: str,
    columns: Mapping[str, str] | None = None,
) -> type:
    """The class ``AgentExecutor`` of the file that ``--train.agent_func_path`` names.

    ``estimator`` is what ``--algo.advantage.estimator`` says, ``dr_grpo`` or ``rloo``; others only
    under ``missing.policy = "raise"``. ``columns`` names the field ``label`` otherwise. Raises
    :class:`~adjudge.errors.ConfigError`.
    """
    from openrlhf.utils.agent import SingleTurnAgentExecutor  # noqa: PLC0415  (the trainer's)

    adapter = GroupExecution(spec, estimator, columns=columns)

    class AgentExecutor(SingleTurnAgentExecutor):  # type: ignore[misc]  # not installed for mypy
        async def execute(
            self, prompt: str, label: Any, sampling_params: Any, *given: Any, **more: Any
        ) -> Any:
            generated = super().execute(prompt, label, sampling_params, *given, **more)
            tokenizer = more["hf_tokenizer"] if "hf_tokenizer" in more else given[1]
            return await adapter.execute(prompt, label, sampling_params, tokenizer, generated)

    return AgentExecutor


@dataclass
class _Group:
    """The answers to one prompt while they are generated; ``params`` keeps its id from reuse."""

    params: Any
    size: int = 0
    outputs: list[dict[str, Any]] = field(default_factory=list)
    judged: asyncio.Event = field(default_factory=asyncio.Event)


class GroupExecution(Adapter):
    """Judges the answers to a prompt together, when the last one is generated."""

    trainer = "OpenRLHF"

    def __init__(
        self, spec: RewardSpec | Path | str | None, estimator: str, **options: Any
    ) -> None:
        super().__init__(spec, **options)
        if estimator not in _ESTIMATORS and self.spec.missing.policy != "raise":
            raise ConfigError(
                f"--algo.advantage.estimator: must be one of {', '.join(_ESTIMATORS)}, where a "
                f"missing reward can be left out (found {estimator!r}). In the place of "
                "'group_norm', use 'dr_grpo' and reward.group = 'z_score' in the spec."
            )
        if estimator not in _ESTIMATORS:
            self.check_drawn_groups(f"--algo.advantage.estimator {estimator}")
        self._stretches = estimator == "rloo"  # whose mean of the others counts the missing
        self._open: dict[int, _Group] = {}

    async def execute(
        self, prompt: str, label: Any, params: Any, tokenizer: Any, generating: Any
    ) -> dict[str, Any]:
        """One answer: OpenRLHF starts all of a group at once, with one object ``params``."""
        group = self._open.setdefault(id(params), _Group(params))
        group.size += 1
        await asyncio.sleep(0)  # all of the group are here
        output: dict[str, Any] = await generating  # what one of them raises ends the whole call
        group.outputs.append(output)
        if len(group.outputs) == group.size:
            del self._open[id(params)]
            await self._judge(group.outputs, prompt, label, tokenizer)
            group.judged.set()
        await group.judged.wait()
        return output

    async def _judge(
        self, outputs: Sequence[dict[str, Any]], prompt: str, label: Any, tokenizer: Any
    ) -> None:
        columns = {} if label is None else {"label": label, "reference": label}
        fields, think_tokens = self.select_fields(columns), ThinkTokens(tokenizer)
        samples = []
        for place, output in enumerate(outputs):
            [(start, end)] = output["action_ranges"]
            tokens = output["observation_tokens"][start:end]
            text = think_tokens.decode(tokens)
            ended = {"finish_reason": "length" if output["truncated"] else "stop"}
            samples.append(self.make_sample(place, place, prompt, text, fields | ended))
        scored = await self.ascore(samples, [self.name_group(samples[0])] * len(samples))
        results, rewards = scored.results, scored.rewards
        # What is logged, and what dynamic filtering compares with its range.
        scores = rewards
        if self.spec.reward.group != "none":
            scores = [result.reward_info.get("outcome") for result in results]
        n, m = len(results), sum(reward is not None for reward in rewards)
        stretch = m * (n - 1) / (n * (m - 1)) if self._stretches and 1 < m < n else 1.0
        centre, score = _mean_of_present(rewards), _mean_of_present(scores)
        if m < n:
            self.warn("a missing reward goes to OpenRLHF as the mean of its group, advantage 0")
        for place, output in enumerate(outputs):
            reward, own = rewards[place], scores[place]
            output["reward"] = centre if reward is None else centre + stretch * (reward - centre)
            output["scores"] = score if own is None else own
            output["extra_logs"] = {"judge/missing_frac": float(reward is None)}
            if m == 0:  # all are equal, so their advantages are 0; NaN is dropped by filtering
                output["reward"], output["scores"] = 0.0, math.nan


def _mean_of_present(values: Sequence[float | None]) -> float:
    found = mean([value for value in values if value is not None])
    return math.nan if found is None else found
