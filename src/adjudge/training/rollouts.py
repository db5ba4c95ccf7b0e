"""The rollouts of one step: played, judged, and what each came to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from adjudge.engine.loop import Job
from adjudge.environments import Episode
from adjudge.rewards.batch import Judged
from adjudge.rewards.samples import RewardResult, RewardSample
from adjudge.training.conversation import Conversation
from adjudge.training.scaffold.hook import Revealed

__all__ = ["Batch", "Rollout", "Settled", "Tokens"]


class Tokens(msgspec.Struct):
    """What the policy read and wrote in one rollout; see :class:`.conversation.Conversation`.

    ``read``: what it read instead of ``prompt``, where it was drawn with a scaffold and is trained
    without; ``logprobs`` are those of drawing.
    """

    prompt: list[int]
    completion: list[int]
    logprobs: list[float]
    turns: list[int]
    read: list[int] | None = None

    @classmethod
    def of(cls, said: Conversation | None, end: int) -> Tokens:
        """The conversation's; a rollout without a reply has one end token of no consequence."""
        if said is None or not said.replies:
            return cls([end], [end], [0.0], [0])
        last = max(place for place, turn in enumerate(said.turns) if turn >= 0) + 1
        return cls(said.prompt, said.completion[:last], said.logprobs[:last], said.turns[:last])

    @property
    def own(self) -> int:
        """How many the policy wrote."""
        return sum(turn >= 0 for turn in self.turns)


@dataclass
class Rollout:
    """An episode at its place in the step; ``group`` names those that began alike.

    ``scaffold``: what it was shown of its rubrics, where a scaffold is on.
    """

    place: int
    group: str
    episode: Episode
    tokens: Tokens
    sample: RewardSample | None = None
    judged: Judged | None = None
    scaffold: Revealed | None = None


@dataclass
class Batch:
    """The rollouts of ``step``, drawn from the policy after ``version`` updates.

    ``judging`` are the questions on their way.
    """

    step: int
    version: int
    rollouts: list[Rollout] = field(default_factory=list)
    judging: list[Job] = field(default_factory=list)
    generate_s: float = 0.0


@dataclass
class Settled:
    """What a batch came to, in the order of its rollouts.

    ``turn_rewards``: what each turn adds to the reward, ``None`` where it is not tied to turns.
    ``advantages``: one a turn, or one for all; ``None`` where the reward is missing.
    """

    batch: Batch
    results: list[RewardResult]
    turn_rewards: list[list[float] | None]
    advantages: list[list[float] | None]
    metrics: dict[str, float]

    def rows(self) -> list[dict[str, Any]]:
        """The rollouts as ``rollouts.jsonl`` has them."""
        return [self._row(place) for place in range(len(self.results))]

    def _row(self, place: int) -> dict[str, Any]:
        rollout, result = self.batch.rollouts[place], self.results[place]
        episode, advantages = rollout.episode, self.advantages[place]
        missing = result.missing
        single = advantages is None or len(advantages) == 1
        shown = rollout.scaffold
        return {
            "step": self.batch.step,
            "index": place,
            "group": rollout.group,
            "seed": episode.seed,
            "policy_version": self.batch.version,
            "messages": episode.messages,
            "reward": result.score,
            "missing": missing and {"kind": str(missing.kind), "message": missing.error},
            "env_reward": episode.env_return,
            "turn_rewards": episode.rewards,
            "advantage": advantages[0] if advantages else None,
            "turn_advantages": None if single else advantages,
            "reward_info": result.reward_info,
            "details": result.details,
            "tokens": rollout.tokens.own,
            **({} if shown is None else {"scaffold": msgspec.to_builtins(shown)}),
        }
