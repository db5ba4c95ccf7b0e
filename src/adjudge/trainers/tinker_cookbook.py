"""tinker-cookbook: environments whose steps are judged by a reward spec.

    reward = make_reward("reward.toml")

    # in EnvGroupBuilder.make_envs, or as ProblemGroupBuilder's env_thunk
    env = reward.make_env(renderer, question, answer="4")

    config = train.Config(..., rollout_error_tolerance=reward.rollout_strategy())

A missing reward is raised in the environment's step, since nothing else is exact: ``None`` and NaN
of ``compute_group_rewards`` cost the whole group, or spread in it. What then happens is the
``rollout_error_tolerance`` of ``train.Config``. :meth:`TinkerReward.rollout_strategy` leaves the
rollout out of its group. By default (``False``) the run ends at the first missing reward; with
``True`` the rollout is played again and then its whole group is dropped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from adjudge.intake.rendered import opens_thinking
from adjudge.text import THINK_CLOSE, THINK_OPEN
from adjudge.trainers.adapter import Adapter, make_missing_failure

Messages = list[dict[str, Any]]


class TinkerReward(Adapter):
    """A reward spec for tinker-cookbook; pickled with the environments that hold it.

    Its options are those of :class:`~adjudge.trainers.adapter.Adapter`. Raises
    :class:`~adjudge.errors.ConfigError` for a spec that compares the samples of a group, which one
    step does not see.
    """

    trainer = "tinker-cookbook"
    call_holds = "one sample"

    def make_env(
        self, renderer: Any, question: str, /, *, prefix: Sequence[Any] = (), **columns: Any
    ) -> JudgedEnv:
        """An environment of one turn: ``question`` after the messages ``prefix``, then a reward.

        ``columns`` are the dataset row's, as graders get them.
        """
        messages = [*prefix, {"role": "user", "content": question}]
        return JudgedEnv(self, renderer, messages, columns)

    def rollout_strategy(self) -> Any:
        """``rollout_error_tolerance``: a missing reward leaves its group, which keeps the others.

        A group of which fewer than two are left is dropped.
        """
        from tinker_cookbook.rl.rollout_strategy import MinViableGroup  # noqa: PLC0415

        return MinViableGroup(min_successful=2, max_retries=0)

    async def judge(
        self,
        prompt: str | Messages,
        completion: str | Messages,
        /,
        *,
        finish_reason: str = "stop",
        **columns: Any,
    ) -> tuple[float, dict[str, float]]:
        """The reward of one rollout and its metrics, for the last step of an ``Env`` of one's own.

        Let what it raises leave ``step``. Raises :class:`~adjudge.errors.GradingFailure` where the
        reward is missing, and what :meth:`Adapter.ascore` raises.
        """
        scored = await self.ascore_one(prompt, completion, columns, finish_reason=finish_reason)
        [result] = scored.results
        if result.score is None:
            raise make_missing_failure(result)
        metrics = self.sample_metrics(scored)
        del metrics[f"{self.metric_prefix}missing_frac"]  # those that are missing are not logged
        return result.score, metrics


make_reward = TinkerReward
"""The adapter by its name: ``adjudge.make_reward("reward.toml", trainer="tinker-cookbook")``."""


@dataclass
class JudgedEnv:
    """tinker-cookbook's ``Env``: one turn, whose step returns the judge's reward or raises.

    Has ``Env``'s two methods and does not derive from it, so that this module needs no trainer.
    """

    reward: TinkerReward
    renderer: Any
    messages: Messages
    columns: Mapping[str, Any] = field(default_factory=dict)

    async def initial_observation(self) -> tuple[Any, Any]:
        """The prompt's tokens, and where to stop."""
        prompt = self.renderer.build_generation_prompt(self.messages)
        return prompt, self.renderer.get_stop_sequences()

    async def step(self, action: list[int], *, extra: Mapping[str, Any] | None = None) -> Any:
        """The answer's ``StepResult``; raises what :meth:`TinkerReward.judge` raises."""
        import tinker  # noqa: PLC0415
        from tinker_cookbook.rl.types import StepResult  # noqa: PLC0415

        answer = self.renderer.to_openai_message(self.renderer.parse_response(action)[0])
        decode = self.renderer.tokenizer.decode
        if THINK_CLOSE not in decode(action):
            # Renderers give back the <think> that they wrote into the prompt only where it ends.
            prompt = self.renderer.build_generation_prompt(self.messages)
            if opens_thinking(decode(prompt.chunks[-1].tokens)):
                answer["content"] = THINK_OPEN + answer["content"]
        fields = {**self.columns, "finish_reason": (extra or {}).get("stop_reason", "stop")}
        score, metrics = await self.reward.judge(self.messages, [answer], **fields)
        return StepResult(
            reward=score,
            episode_done=True,
            next_observation=tinker.ModelInput.from_ints([]),
            next_stop_condition=self.renderer.get_stop_sequences(),
            metrics=metrics,
        )
