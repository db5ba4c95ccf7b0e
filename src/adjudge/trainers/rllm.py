"""rLLM: a reward spec as the evaluator of an agent flow.

    AgentTrainer(agent_flow=flow, evaluator=make_reward("reward.toml"), …)

A missing reward empties the episode, which rLLM then leaves out of its group. A reward of ``None``
ends the run, NaN spreads in the group, and an evaluator that raises has the rollout played again
three times and then, by default, ends the run. Workflows (``workflow_class``) ask no evaluator;
there a judge that raises is silently the sum of the steps' rewards, 0.0, so nothing is offered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from adjudge.engine.loop import run_blocking
from adjudge.trainers.adapter import Adapter
from adjudge.trainers.scoring import ScorerResult


class AdjudgeEvaluator(Adapter):
    """rLLM's ``Evaluator``; serves the engine's threads, and can be pickled.

    Judges the last step of the last trajectory that has no reward of its own. ``prompt``,
    ``messages`` and ``response`` are those of its ``chat_completions``, else the task's instruction
    and its ``model_response``; the task's ``metadata`` are the columns. Raises
    :class:`~adjudge.errors.ConfigError` for a spec that compares the samples of a group.
    """

    trainer = "rLLM"
    call_holds = "one sample"

    def evaluate(self, task: Any, episode: Any) -> Any:
        """``EvalOutput`` with the reward; where it is missing, the episode loses its trajectories.

        A trajectory to which the flow gave a reward keeps it and stays. The graders' scores are
        ``signals``. Raises what :meth:`Adapter.ascore` raises.
        """
        from rllm.eval.types import EvalOutput, Signal  # noqa: PLC0415

        judged = [one for one in episode.trajectories if one.reward is None and one.steps]
        if not judged:  # a flow that made nothing, or rewards of its own: nobody reads this one
            return EvalOutput(reward=0.0, is_correct=False)
        group = str(episode.id).rpartition(":")[0]  # of task and number
        scored = run_blocking(self._ascore(task, judged[-1].steps, group))
        [result] = scored.results
        named = self.sample_metrics(scored).items()
        signals = [Signal(name=name, value=value) for name, value in named]
        if result.score is None:
            episode.trajectories[:] = [
                one for one in episode.trajectories if one.reward is not None
            ]
            # Read by nobody, for the episode is empty.
            return EvalOutput(reward=0.0, is_correct=False, signals=signals)  # adjudge: meant
        return EvalOutput(reward=result.score, is_correct=result.score > 0, signals=signals)

    async def _ascore(self, task: Any, steps: Sequence[Any], group: str) -> ScorerResult:
        """The last step, before which other steps may have spoken."""
        step = steps[-1]
        columns: Mapping[str, Any] = getattr(task, "metadata", None) or {}
        reason = getattr(step.model_output, "finish_reason", None)
        ended = {} if reason is None else {"finish_reason": reason}
        chat = step.chat_completions
        if len(chat) > 1 and chat[-1].get("role") == "assistant":
            prompt = list(steps[0].chat_completions[:-1])
            if not prompt or chat[: len(prompt)] != prompt:  # another conversation
                prompt = list(chat[:-1])
            answer = list(chat[len(prompt) :])
        else:
            prompt, answer = task.instruction, step.model_response
        return await self.ascore_one(prompt, answer, columns, group, **ended)


make_reward = AdjudgeEvaluator
"""The adapter by its name: ``adjudge.make_reward("reward.toml", trainer="rllm")``."""
