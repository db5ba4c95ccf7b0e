"""SkyRL: an environment that is judged by a reward spec, and GRPO over the rewards that are there.

    make_reward("reward.toml", config=cfg)    # before validate_cfg, and in the Ray entry point

registers both, under ``environment.env_class=adjudge`` and
``trainer.algorithm.advantage_estimator=adjudge_grpo``. A missing reward is NaN: SkyRL ends the step
at ``None`` or an exception, and a loss mask of zeros leaves the reward in its group's mean. The
estimator leaves NaN out of mean and deviation and gives it the advantage 0; every other estimator
would spread it over the batch, so a run with another one is refused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from adjudge.engine.loop import run_blocking
from adjudge.rewards.formulas import group_step
from adjudge.rewards.spec import RewardSpec
from adjudge.stats import collect
from adjudge.trainers.adapter import Adapter, check_settings
from adjudge.trainers.scoring import ScorerResult

ENVIRONMENT, ESTIMATOR = "adjudge", "adjudge_grpo"

_SETTINGS: Mapping[str, tuple[Any, str]] = {
    "advantage_estimator": (ESTIMATOR, "others spread a missing reward, NaN, over the batch"),
    "dynamic_sampling.type": (None, "it drops a group with a missing reward"),
    "advantage_batch_normalize": (False, "it counts the 0 of a missing reward in the batch"),
}


def make_reward(
    spec: RewardSpec | Path | str | None = None, *, config: Any, **options: Any
) -> SkyRLReward:
    """Check SkyRL's ``config``, and register the environment and the estimator in this process.

    ``options`` are those of :class:`~adjudge.trainers.adapter.Adapter`. Raises
    :class:`~adjudge.errors.ConfigError` for a spec that compares the samples of a group, and for
    settings under which a missing reward would change other rows.
    """
    reward = SkyRLReward(spec, **options)
    check_settings(_SETTINGS, config.trainer.algorithm, "trainer.algorithm.{}".format)
    register(reward)
    return reward


def register(reward: SkyRLReward) -> None:
    """Make ``adjudge`` and ``adjudge_grpo`` known to SkyRL; a second call replaces the reward."""
    from skyrl.backends.skyrl_train.utils import ppo_utils  # noqa: PLC0415
    from skyrl_gym.envs import registration  # noqa: PLC0415

    registration.registry.pop(ENVIRONMENT, None)
    registration.register(ENVIRONMENT, judged_env_class(), {"reward": reward})
    if ESTIMATOR not in (estimators := ppo_utils.AdvantageEstimatorRegistry).list_available():
        estimators.register(ESTIMATOR, compute_present_grpo_advantage)


class SkyRLReward(Adapter):
    """A reward spec for environments of SkyRL-Gym; made by :func:`make_reward`."""

    trainer = "SkyRL"
    call_holds = "one sample"

    def judge(self, prompt: Any, completion: Any, /, **columns: Any) -> ScorerResult:
        """The one result of a rollout, whose ``score`` is ``None`` where it is missing.

        ``columns`` are an environment's ``extras``: their ``reward_spec.ground_truth`` is the
        reference, and the keys of their ``extra_info`` are fields. Raises what
        :meth:`Adapter.ascore` raises.
        """
        own = {**columns, **(columns.get("extra_info") or {})}
        if (truth := (columns.get("reward_spec") or {}).get("ground_truth")) is not None:
            own |= {"reference": truth, "ground_truth": truth}
        return run_blocking(self.ascore_one(prompt, completion, own))


@cache
def judged_env_class() -> type[Any]:
    """The environment's class; derive from it for turns of your own. Needs skyrl_gym."""
    from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput  # noqa: PLC0415

    class JudgedEnv(BaseTextEnv):  # type: ignore[misc]  # not installed for mypy
        """One turn, whose reward is the judge's; NaN where it is missing."""

        def __init__(self, reward: SkyRLReward, extras: Mapping[str, Any], **_: Any) -> None:
            super().__init__()
            self.reward, self.extras = reward, extras
            self.prompt: list[dict[str, Any]] = []
            self.parts: dict[str, float] = {}

        def init(self, prompt: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
            self.prompt = list(prompt)
            return prompt, {}

        def step(self, action: str) -> Any:
            answer = [{"role": "assistant", "content": action}]
            scored = self.reward.judge(self.prompt, answer, **self.extras)
            [result], self.parts = scored.results, self.reward.sample_metrics(scored)
            score = math.nan if result.score is None else result.score
            return BaseTextEnvStepOutput(
                observations=[], reward=score, done=True, metadata={"adjudge": result.details}
            )

        def get_metrics(self) -> dict[str, float]:
            return self.parts

    return JudgedEnv


def compute_present_grpo_advantage(
    token_level_rewards: Any,
    response_mask: Any,
    index: Sequence[Any],
    epsilon: float = 1e-6,
    grpo_norm_by_std: bool = True,
    **_: Any,
) -> tuple[Any, Any]:
    """SkyRL's ``adv_estimator``: GRPO of each group's present rewards, the missing ones 0.

    (r − mean)/(std + ``epsilon``) with n − 1, or r − mean; a lone reward gets 0. Gives tensors of
    ``response_mask``'s shape, twice.
    """
    scores = token_level_rewards.sum(dim=-1)
    groups = collect((group, row) for row, group in enumerate(index))
    advantages = scores.new_zeros(scores.shape)
    for rows in groups.values():
        values = scores[rows].tolist()  # of which group_step leaves out NaN
        step = group_step(values, "z_score" if grpo_norm_by_std else "centre", epsilon=epsilon)
        advantages[rows] = scores.new_tensor([value or 0.0 for value in step])
    made = advantages.unsqueeze(-1) * response_mask
    return made, made
