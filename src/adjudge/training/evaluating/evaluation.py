"""A policy on numbered episodes: what the environment pays for each, and what the judges say."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from adjudge.environments import Episode, Task
from adjudge.rewards.samples import RewardResult
from adjudge.trainers.scoring import Scorer
from adjudge.training.playing import Lanes, Player, play_episodes
from adjudge.training.samples import sample_of
from adjudge.types import GraderError, Usage

__all__ = ["Evaluated", "evaluate", "judge_episodes"]


@dataclass
class Evaluated:
    """One episode and what was said of it.

    ``reward`` is ``None`` where it is missing, and ``missing`` says why; both are ``None`` where
    nobody was to judge. An episode with an ``error`` is no rollout: it has neither official score
    nor reward. ``usage``: what the judges' calls about it consumed, ``None`` where nobody says.
    ``kl``: how far the policy is from its first state, in nats, where that is asked for;
    ``tokens``: how many it wrote, where it is of this process.
    """

    episode: Episode
    reward: float | None = None
    missing: GraderError | None = None
    reward_info: dict[str, float | None] = field(default_factory=dict)
    details: dict[str, Any] | None = None
    usage: Usage | None = None
    kl: float | None = None
    tokens: int | None = None

    @property
    def seed(self) -> int:
        """The episode's beginning."""
        return self.episode.seed

    @property
    def error(self) -> GraderError | None:
        """Why the episode is not whole."""
        return self.episode.error

    @property
    def env_reward(self) -> float | None:
        """The official score: the environment's return; ``None`` where there is none."""
        return None if self.error is not None else self.episode.env_return

    @property
    def turns(self) -> int:
        """How often the policy spoke (examples in the prompt count too)."""
        return sum(message.get("role") == "assistant" for message in self.episode.messages)

    @property
    def group(self) -> str:
        """What episodes of one beginning have in common."""
        return f"{self.episode.env_name} {self.seed}"

    def row(self, step: int | None = None) -> dict[str, Any]:
        """The row of ``evaluation.jsonl``."""
        missing = self.missing
        return {
            "step": step,
            "seed": self.seed,
            "env_reward": self.env_reward,
            "reward": self.reward,
            "missing": missing and {"kind": str(missing.kind), "message": missing.error},
            "reward_info": self.reward_info,
            "turns": self.turns,
            "kl": self.kl,
        }

    def whole_row(self, step: int, index: int) -> dict[str, Any]:
        """The row of ``evaluation_rollouts.jsonl``, with what was said and what it was about."""
        row = self.row(step)
        return {
            "step": step,
            "index": index,
            "group": self.group,
            "seed": self.seed,
            "messages": self.episode.messages,
            "columns": self.episode.columns,
            "reward": row["reward"],
            "missing": row["missing"],
            "env_reward": row["env_reward"],
            "turn_rewards": self.episode.rewards,
            "reward_info": self.reward_info,
            "details": self.details,
            "tokens": self.tokens,
            "kl": self.kl,
        }


def evaluate(
    task: Task,
    seeds: Sequence[int],
    player: Player,
    scorer: Scorer | None,
    *,
    most: int,
    step: int | None = None,
    on_episode: Callable[[Evaluated], None] = lambda _: None,
) -> list[Evaluated]:
    """An episode from each of ``seeds``, in their order, at most ``most`` at a time.

    Each is judged as it ends, while the others go on; where graders compare the episodes of a seed,
    all at the end. Without a ``scorer`` nobody judges. ``step`` is the scorer's. ``on_episode``
    hears of each as its judgement is in, on the engine's loop.

    Raises what scoring raises: :class:`~adjudge.errors.JudgeUnavailable`,
    :class:`~adjudge.errors.JudgeAuthError`, :class:`~adjudge.errors.ConfigError`.
    """
    if not seeds:
        return []
    at_once = scorer is None or scorer.compares_groups is None
    found: dict[int, Evaluated] = {}

    async def judge(places: Sequence[int], episodes: Sequence[Episode]) -> None:
        judged = await judge_episodes(scorer, episodes, step=step)
        for place, one in zip(places, judged, strict=True):
            found[place] = one
            on_episode(one)

    async def job(lanes: Lanes) -> None:
        try:
            async with asyncio.TaskGroup() as judging:

                def ended(place: int, episode: Episode) -> None:
                    if at_once:
                        judging.create_task(judge([place], [episode]))

                episodes = await play_episodes(task, seeds, lanes, most=most, on_episode=ended)
                if not at_once:
                    await judge(range(len(seeds)), episodes)
        except BaseExceptionGroup as several:
            raise several.exceptions[0] from None

    player.run(job)
    return [found[place] for place in range(len(seeds))]


async def judge_episodes(
    scorer: Scorer | None, episodes: Sequence[Episode], *, step: int | None = None
) -> list[Evaluated]:
    """What ``scorer`` says of ``episodes``, in their order; those of one seed are a group.

    An episode with an error is missing for that reason, and nobody is asked about it.
    """
    if scorer is None:
        return [Evaluated(episode, missing=episode.error) for episode in episodes]
    whole = [place for place, episode in enumerate(episodes) if episode.error is None]
    sizes: dict[str, int] = {}
    samples, groups = [], []
    for place in whole:
        episode = episodes[place]
        group = f"{episode.env_name} {episode.seed}"
        index = sizes[group] = sizes.get(group, -1) + 1
        samples.append(sample_of(episode, place, index))
        groups.append(group)
    found: dict[int, Evaluated] = {}
    if samples:
        scored = await scorer.ascore(samples, groups, step=step)
        for result in scored.results:
            place = result.original_index
            # Usage is the whole call's; it is told apart where episodes are judged one by one.
            usage = scored.usage if place == whole[0] else None
            found[place] = _evaluated(episodes[place], result, usage)
    info = dict.fromkeys(scorer.info_keys)
    return [
        found.get(place) or Evaluated(episode, None, episode.error, dict(info), {"source": "none"})
        for place, episode in enumerate(episodes)
    ]


def _evaluated(episode: Episode, result: RewardResult, usage: Usage | None) -> Evaluated:
    return Evaluated(
        episode, result.score, result.missing, result.reward_info, result.details, usage
    )
