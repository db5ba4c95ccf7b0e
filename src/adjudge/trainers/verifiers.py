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

import os
from collections.abc import Callable, Coroutine
from functools import lru_cache
from pathlib import Path
from typing import Any

import verifiers.v1 as vf
from verifiers.v1.dialects.chat import message_to_wire

from adjudge.errors import ConfigError, GradingFailure
from adjudge.rewards.spec import RewardSpec
from adjudge.trainers.scoring import SPEC_VARIABLE, Scorer, ScorerResult
from adjudge.types import RewardResult, RewardSample, Usage

__all__ = ["AdjudgeJudge", "AdjudgeJudgeConfig", "make_reward", "reward", "to_verifiers_usage"]

_REFERENCES = ("reference", "ground_truth", "answer", "solution")
_ROLLOUT_FIELDS = {"prompt", "response", "messages", "finish_reason", "env_reward"}


class AdjudgeJudgeConfig(vf.JudgeConfig):  # type: ignore[misc]  # not installed for mypy
    """``spec``: the reward spec's file, else ``ADJUDGE_SPEC`` names it.

    ``reference_field``: the task's field that graders get as ``reference``; without it the first
    there is of ``reference``, ``ground_truth``, ``answer``, ``solution``. ``name`` and ``weight``
    as in every judge; ``model``, ``sampling`` and addresses are the spec's and not read here.
    """

    id: vf.ID = "adjudge"
    spec: Path | None = None
    reference_field: str = ""


class AdjudgeJudge(vf.Judge[float, AdjudgeJudgeConfig]):  # type: ignore[misc]  # as above
    """Scores a finished rollout by a reward spec.

    Parts of the reward are metrics of the trace, ``NAME/PART``; each grader's score and reason
    stand in ``trace.info["adjudge"][NAME]``; what live calls consumed is one entry of
    ``trace.extra_usage``, also where the reward is missing. Raises
    :class:`~adjudge.errors.GradingFailure` where the reward is missing, and what
    :meth:`Scorer.ascore` raises.
    """

    def __init__(self, config: AdjudgeJudgeConfig | None = None) -> None:
        super().__init__(config)
        self._scorer = _scorer(str(self.config.spec or os.environ.get(SPEC_VARIABLE, "")))

    async def score(self, task: vf.TaskData, trace: vf.Trace) -> float:
        """The reward of one rollout."""
        sample = _sample(task, trace, self.config.reference_field)
        return _record_reward(
            await self._scorer.ascore([sample], [trace.id]), trace, self.reward_name
        )


def make_reward(
    spec: RewardSpec | Path | str | None = None,
    *,
    name: str = "adjudge",
    reference_field: str = "",
) -> Callable[[vf.TaskData, vf.Trace], Coroutine[Any, Any, float]]:
    """A function like :func:`reward` with a spec of its own; ``name`` opens its metrics' names.

    Raises :class:`~adjudge.errors.ConfigError` for a spec that compares rollouts.
    """
    scorer = _check_scorer(Scorer(spec))

    async def scored(task: vf.TaskData, trace: vf.Trace) -> float:
        sample = _sample(task, trace, reference_field)
        return _record_reward(await scorer.ascore([sample], [trace.id]), trace, name)

    scored.__name__ = scored.__qualname__ = name
    return scored


async def reward(task: vf.TaskData, trace: vf.Trace) -> float:
    """The reward of one rollout, as :class:`AdjudgeJudge`; ``ADJUDGE_SPEC`` names the spec."""
    scored = await _scorer(os.environ.get(SPEC_VARIABLE, "")).ascore(
        [_sample(task, trace, "")], [trace.id]
    )
    return _record_reward(scored, trace, "adjudge")


@lru_cache(maxsize=16)
def _scorer(spec: str) -> Scorer:
    """One scorer per spec and process: verifiers builds a new judge for every rollout."""
    return _check_scorer(Scorer(spec))


def _check_scorer(scorer: Scorer) -> Scorer:
    """``scorer``, where its spec needs one rollout at a time."""
    where = scorer.spec.where
    if needs := scorer.compares_groups:
        raise ConfigError(
            f"{where}: {needs} needs whole groups, but verifiers scores each rollout alone. Leave "
            "it out, or let the trainer's advantage compare the group."
        )
    if scorer.spec.reward.combine_mode != "replace":
        raise ConfigError(
            f"{where}: reward.combine_mode: must be 'replace', since verifiers adds rewards itself "
            f"(found {scorer.spec.reward.combine_mode!r}). Set 'replace', and weight the judge."
        )
    if scorer.spec.reward.sample_rate < 1:
        raise ConfigError(
            f"{where}: reward.sample_rate: must be 1, since it leaves whole groups out and "
            f"verifiers scores each rollout alone (found {scorer.spec.reward.sample_rate:g})"
        )
    return scorer


def _sample(task: vf.TaskData, trace: vf.Trace, reference_field: str) -> RewardSample:
    """The final branch as messages, the last reply as response, the task's own fields as extras."""
    data: dict[str, Any] = task.model_dump(mode="json", exclude_none=True)
    extra = {name: value for name, value in data.items() if name not in _ROLLOUT_FIELDS}
    if reference_field and reference_field not in data:
        raise ConfigError(
            f"reference_field: the task has no such field (found {reference_field!r}; "
            f"allowed: {', '.join(data)})"
        )
    named = (reference_field,) if reference_field else _REFERENCES
    if (reference := next((data[name] for name in named if name in data), None)) is not None:
        extra["reference"] = reference
    extra["finish_reason"] = "length" if trace.is_truncated else "stop"
    messages = [message_to_wire(message) for message in trace.messages]
    return RewardSample(0, 0, task.prompt_text or None, trace.last_reply, messages, extra)


def to_verifiers_usage(usage: Usage) -> vf.Usage:
    """Tokens and money in verifiers' form, whose ``prompt_tokens`` leave out what was cached."""
    return vf.Usage(
        prompt_tokens=usage.input_tokens - usage.cached_tokens,
        completion_tokens=usage.output_tokens,
        cached_input_tokens=usage.cached_tokens or None,
        cost=usage.cost_usd,
    )


def _record_reward(scored: ScorerResult, trace: vf.Trace, name: str) -> float:
    """The reward, with its parts written to the trace; raises where it is missing."""
    result: RewardResult = scored.results[0]
    parts = {f"{name}/{part}": value for part, value in result.reward_info.items()}
    trace.record_metrics({part: value for part, value in parts.items() if value is not None})
    if (cost := scored.metrics.get("judge/cost_usd")) is not None:
        trace.record_metric("judge/cost_usd", cost)
    trace.info.setdefault("adjudge", {})[name] = result.details
    if scored.usage is not None:
        trace.extra_usage.append(to_verifiers_usage(scored.usage))
    if result.score is None:
        missing = result.missing
        if missing is None:
            raise GradingFailure("bug", "no reward, and no reason why")
        raise GradingFailure(missing.kind, f"no reward: {missing.kind}: {missing.error}")
    return result.score
