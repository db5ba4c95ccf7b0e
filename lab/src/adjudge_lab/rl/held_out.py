"""A policy on held-out episodes: played, judged, and how far it is from its first state.

An episode's divergence KL(π ‖ π₀) is Σ log π(t) / π₀(t) over the tokens that the policy drew, in
expectation. Computed here is, at each of these tokens, the expectation over what could have been
drawn there, the KL of the two next-token distributions given what came before:

    Σₜ Σᵥ π(v | <t) · log(π(v | <t) / π₀(v | <t)).

The mean over episodes is the same, the variance is no larger, and no term is below 0 (the
Rao-Blackwellised estimator of Amini, Vieira and Cotterell, arXiv 2504.10637).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from adjudge.trainers.scoring import Scorer
from adjudge.types import GraderError, Usage
from adjudge_lab.environments import Episode, Task
from adjudge_lab.rl.episodes import OpenLanes, Player, episode_to_sample, play_episodes
from adjudge_lab.rl.rollouts import RolloutTokens


@dataclass
class EvaluatedEpisode:
    """One episode and what was said of it.

    ``reward`` is ``None`` where it is missing, and ``missing`` says why; both are ``None``
    without a judge. An episode with an ``error`` is no rollout: it has neither official score
    nor reward. ``usage``: what the judges' calls about it consumed, ``None`` if unknown.
    ``report``: the scores of graders that only report, ``None`` where one is missing.
    ``kl``: how far the policy is from its first state, in nats, where that is asked for;
    ``tokens``: how many it wrote, where it is of this process.
    """

    episode: Episode
    reward: float | None = None
    missing: GraderError | None = None
    reward_info: dict[str, float | None] = field(default_factory=dict)
    details: dict[str, Any] | None = None
    usage: Usage | None = None
    report: dict[str, float | None] = field(default_factory=dict)
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
        """The official score: the environment's return; ``None`` where it is missing."""
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
            **({"report": self.report} if self.report else {}),
            "turns": self.turns,
            "kl": self.kl,
        }

    def rollout_row(self, step: int, index: int) -> dict[str, Any]:
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
            **({"report": self.report} if self.report else {}),
            "tokens": self.tokens,
            "kl": self.kl,
        }


def evaluate_policy(
    task: Task,
    seeds: Sequence[int],
    player: Player,
    scorer: Scorer | None,
    *,
    most: int,
    step: int | None = None,
    on_episode: Callable[[EvaluatedEpisode], None] = lambda _: None,
) -> list[EvaluatedEpisode]:
    """An episode from each of ``seeds``, in their order, at most ``most`` at a time.

    Each is judged as it ends, while the others go on; where graders compare the episodes of a seed,
    all at the end. Without a ``scorer`` nothing is judged. ``step`` is the scorer's. ``on_episode``
    hears of each as its judgement is in, on the engine's loop.

    Raises what scoring raises: :class:`~adjudge.errors.JudgeUnavailable`,
    :class:`~adjudge.errors.JudgeAuthError`, :class:`~adjudge.errors.ConfigError`.
    """
    if not seeds:
        return []
    at_once = scorer is None or scorer.compares_groups is None
    found: dict[int, EvaluatedEpisode] = {}

    async def judge(places: Sequence[int], episodes: Sequence[Episode]) -> None:
        judged = await judge_episodes(scorer, episodes, step=step)
        for place, one in zip(places, judged, strict=True):
            found[place] = one
            on_episode(one)

    async def job(lanes: OpenLanes) -> None:
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
) -> list[EvaluatedEpisode]:
    """What ``scorer`` says of ``episodes``, in their order; those of one seed are a group.

    An episode with an error is missing for that reason, and no judge is asked about it.
    """
    if scorer is None:
        return [EvaluatedEpisode(episode, missing=episode.error) for episode in episodes]
    whole = [place for place, episode in enumerate(episodes) if episode.error is None]
    sizes: dict[str, int] = {}
    samples, groups = [], []
    for place in whole:
        episode = episodes[place]
        group = f"{episode.env_name} {episode.seed}"
        index = sizes[group] = sizes.get(group, -1) + 1
        samples.append(episode_to_sample(episode, place, index))
        groups.append(group)
    found: dict[int, EvaluatedEpisode] = {}
    if samples:
        whole_groups = scorer.compares_groups is not None  # else each is judged as it ends
        scored = await scorer.ascore(samples, groups, step=step, whole_groups=whole_groups)
        for result in scored.results:
            place = result.original_index
            # Usage is the whole call's; it is known for each where episodes are judged one by one.
            usage = scored.usage if place == whole[0] else None
            found[place] = EvaluatedEpisode(
                episodes[place],
                result.score,
                result.missing,
                result.reward_info,
                result.details,
                usage,
            )
    info = dict.fromkeys(scorer.info_keys)
    return [
        found.get(place)
        or EvaluatedEpisode(episode, None, episode.error, dict(info), {"source": "none"})
        for place, episode in enumerate(episodes)
    ]


async def add_report(
    scorer: Scorer, found: Sequence[EvaluatedEpisode], *, step: int | None = None
) -> None:
    """Let the graders of ``scorer`` judge what was evaluated, beside its reward.

    Each grader's score, on its own scale, goes to ``report`` and its verdict to ``details``; a
    grader that fails has ``None``. An episode with an error is not judged. Raises as
    :func:`judge_episodes`.
    """
    judged = await judge_episodes(scorer, [one.episode for one in found], step=step)
    for one, said in zip(found, judged, strict=True):
        for name, detail in (said.details or {}).items():
            if isinstance(detail, dict):
                one.report[name] = detail.get("score")
                one.details = {**(one.details or {}), name: detail}


_MAX_TEXT = 2000


class AnswerSample(msgspec.Struct, frozen=True, kw_only=True):
    """One answer: ``when`` it was given (``before`` or ``after``) and its verdicts.

    ``reward`` is ``None`` where it is missing, and ``missing`` says why. ``verdicts`` has a
    grader's score and reason, or its failure, under its name.
    """

    when: str
    prompt: str
    response: str
    reference: str
    reward: float | None
    missing: str | None
    verdicts: dict[str, str]


def build_answer_sample(one: EvaluatedEpisode, when: str) -> AnswerSample:
    """An evaluated episode as reports show it: its last reply, and all verdicts."""
    episode, missing = one.episode, one.missing
    sample = episode_to_sample(episode, 0, 0)
    verdicts = {
        name: _verdict_text(detail)
        for name, detail in (one.details or {}).items()
        if isinstance(detail, dict)
    }
    return AnswerSample(
        when=when,
        prompt=(sample.prompt or "")[:_MAX_TEXT],
        response=(sample.response or "")[:_MAX_TEXT],
        reference=str(episode.columns.get("reference", ""))[:_MAX_TEXT],
        reward=one.reward,
        missing=None if missing is None else f"{missing.kind}: {missing.error}"[:_MAX_TEXT],
        verdicts=verdicts,
    )


def _verdict_text(detail: Mapping[str, Any]) -> str:
    if "kind" in detail:
        return f"{detail['kind']}: {detail['error']}"[:_MAX_TEXT]
    value = detail.get("score", detail.get("rank"))
    return f"{value:g} {detail['reason']}".strip()[:_MAX_TEXT]


_MOST_TOKENS = 1 << 14
"""How many tokens are read together: the models remember something of each."""

_MOST_LOGITS = 1 << 26
"""How many numbers of one model's logits are held at a time: 256 MiB in float32."""


def compute_divergences(
    policy: Any, reference: Any, said: Sequence[RolloutTokens], *, most_logits: int = _MOST_LOGITS
) -> list[float | None]:
    """The estimate for each of ``said``, in nats; ``None`` where the policy drew nothing.

    ``policy`` and ``reference`` are causal language models of transformers over one vocabulary. The
    distributions are those of temperature 1, whatever temperature the tokens were drawn at; at
    another the estimate is one about what was said rather than about what π would say. Memory is
    that of the models' caches and ``most_logits`` numbers a model. Sequences are read together and
    piece by piece; how they are cut changes nothing but rounding.
    """
    import torch  # noqa: PLC0415

    found: list[float | None] = [None] * len(said)
    was_training = policy.training, reference.training
    policy.eval()
    reference.eval()
    try:
        with torch.no_grad():
            for places in _length_batches(said):
                rows = _estimate_batch(
                    policy, reference, [said[place] for place in places], most_logits
                )
                for place, value in zip(places, rows, strict=True):
                    found[place] = value
    finally:
        policy.train(was_training[0])
        reference.train(was_training[1])
    return found


def _length_batches(said: Sequence[RolloutTokens]) -> Iterator[list[int]]:
    """Places of texts of about one length, of those in which the policy drew something."""
    sizes = {
        place: len(one.prompt) + len(one.completion)
        for place, one in enumerate(said)
        if any(turn >= 0 for turn in one.turns)
    }
    batch: list[int] = []
    for place in sorted(sizes, key=lambda place: sizes[place]):
        if batch and (len(batch) + 1) * sizes[place] > _MOST_TOKENS:
            yield batch
            batch = []
        batch.append(place)
    if batch:
        yield batch


def _estimate_batch(
    policy: Any, reference: Any, said: Sequence[RolloutTokens], most_logits: int
) -> list[float]:
    """The estimates for episodes that are read together."""
    import torch  # noqa: PLC0415

    texts = [[*one.prompt, *one.completion] for one in said]
    width = max(map(len, texts))
    # Nobody reads what is right of a text, so it may be any token.
    ids = torch.tensor([text + [0] * (width - len(text)) for text in texts])
    counts = torch.zeros((len(said), width), dtype=torch.bool)  # by the token that comes before
    for row, one in enumerate(said):
        for place, turn in enumerate(one.turns, start=len(one.prompt) - 1):
            counts[row, place] = turn >= 0
    vocabulary = int(policy.config.get_text_config().vocab_size)
    step = max(1, most_logits // (len(said) * vocabulary))
    total = torch.zeros(len(said), dtype=torch.float64)
    pieces = zip(
        _chunked_logits(policy, ids, step), _chunked_logits(reference, ids, step), strict=True
    )
    for number, (own, other) in enumerate(pieces):
        wanted = counts[:, number * step : (number + 1) * step]
        rows = wanted.nonzero()[:, 0]
        values = _kl(own[wanted.to(own.device)], other[wanted.to(other.device)].to(own.device))
        total.index_add_(0, rows, values.double().cpu())
    return [float(value) for value in total]


def _chunked_logits(model: Any, ids: Any, step: int) -> Iterator[Any]:
    """What ``model`` says after each token, ``step`` of them at a time; it remembers the others."""
    import torch  # noqa: PLC0415

    ids = ids.to(model.device)
    # A trainer puts 16 bits around the policy's own forward, and their rounding would be a distance
    # from the reference.
    read = getattr(model, "_original_forward", model)
    cache = None
    for start in range(0, ids.shape[1], step):
        piece = ids[:, start : start + step]
        seen = torch.ones((len(ids), start + piece.shape[1]), dtype=torch.long, device=ids.device)
        said = read(piece, attention_mask=seen, past_key_values=cache, use_cache=True)
        cache = said.past_key_values
        yield said.logits


def _kl(own: Any, other: Any) -> Any:
    """KL between rows of logits; what ``own`` never says counts 0."""
    import torch  # noqa: PLC0415

    own, other = own.float().log_softmax(-1), other.float().log_softmax(-1)
    chance = own.exp()
    return torch.where(chance > 0, chance * (own - other), 0.0).sum(-1)
