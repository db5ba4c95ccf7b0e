"""The rollouts of one step: played, judged, stored for a resumed run, and credited turn by turn.

Credit says which turn a reward belongs to, and what that makes of a group's advantages.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from adjudge.engine.loop import Job
from adjudge.errors import REDRAW_KINDS, ErrorKind, GradingFailure
from adjudge.files import (
    UNENCODABLE,
    JsonlLog,
    atomic_write,
    encode_checked_line,
    iter_rows,
    warn_damaged_lines,
)
from adjudge.runner.journal import Journal
from adjudge.stats import mean, mean_and_std
from adjudge.types import GradedSample, GraderResult, Provenance, RewardResult, Sample
from adjudge_lab.environments import Episode
from adjudge_lab.rl.local_player import TokenConversation
from adjudge_lab.rl.runfile import RunFile
from adjudge_lab.rl.scaffold import RevealedRubrics


class RolloutTokens(msgspec.Struct):
    """What the policy read and wrote in one rollout; see :class:`.local_player.TokenConversation`.

    ``read``: what it read instead of ``prompt``, where it was drawn with a scaffold and is trained
    without; ``logprobs`` are those of drawing.
    """

    prompt: list[int]
    completion: list[int]
    logprobs: list[float]
    turns: list[int]
    read: list[int] | None = None

    @classmethod
    def of(cls, said: TokenConversation | None, end: int) -> RolloutTokens:
        """The conversation's; a rollout without a reply has one end token of no consequence."""
        if said is None or not said.replies:
            return cls([end], [end], [0.0], [0])
        last = max(place for place, turn in enumerate(said.turns) if turn >= 0) + 1
        return cls(said.prompt, said.completion[:last], said.logprobs[:last], said.turns[:last])

    @property
    def written_count(self) -> int:
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
    tokens: RolloutTokens
    sample: Sample | None = None
    judged: GradedSample | None = None
    scaffold: RevealedRubrics | None = None


@dataclass
class RolloutBatch:
    """The rollouts of ``step``, drawn from the policy after ``version`` updates.

    ``judging`` are the questions on their way.
    """

    step: int
    version: int
    rollouts: list[Rollout] = field(default_factory=list)
    judging: list[Job] = field(default_factory=list)
    generate_s: float = 0.0


@dataclass
class ScoredRollouts:
    """What a batch came to, in the order of its rollouts.

    ``turn_rewards``: what each turn adds to the reward, ``None`` where it is not tied to turns.
    ``advantages``: one a turn, or one for all; ``None`` where the reward is missing.
    """

    batch: RolloutBatch
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
            "tokens": rollout.tokens.written_count,
            **({} if shown is None else {"scaffold": msgspec.to_builtins(shown)}),
        }


class _StoredStep(msgspec.Struct):
    """``rollouts`` as they were played: not judged yet."""

    version: int
    rollouts: list[Rollout]


class _StoredJudgements(msgspec.Struct):
    """What one call of the graders came to; ``keys`` name the samples."""

    keys: list[str]
    judged: list[GradedSample]

    def __post_init__(self) -> None:
        if len(self.keys) != len(self.judged):
            raise ValueError("a key is there for each judgement")


_step_decoder = msgspec.msgpack.Decoder(_StoredStep)


class FlushedJournal(Journal):
    """A journal that hands each answer to the operating system before it reads the next reply.

    A training run is killed without notice, and its judges' answers are few beside what they cost.
    A reply of no use was paid for, too: that there is no verdict in it is written down as well.
    """

    keeps = REDRAW_KINDS

    def put(self, sample: str, grader: str, draw: int, result: GraderResult) -> None:
        """As :meth:`Journal.put`, at once."""
        super().put(sample, grader, draw, result)
        self.flush()


class RolloutStore:
    """Steps that were played before their policy is saved: their rollouts and judgements.

    Two files a step in ``folder``. What was said of a rollout is kept with its failures: they were
    paid for, too, and the policy has perhaps learned from what they left.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def save(self, batch: RolloutBatch) -> None:
        """Keep a step's rollouts, before anything is learned from them."""
        rollouts = [replace(one, sample=None, judged=None) for one in batch.rollouts]
        kept = _StoredStep(batch.version, rollouts)
        atomic_write(self._path(batch.step), msgspec.msgpack.encode(kept, enc_hook=str))

    def load(self, step: int) -> tuple[int, list[Rollout]] | None:
        """The policy's version and the rollouts of ``step``, if they were played."""
        try:
            kept = _step_decoder.decode(self._path(step).read_bytes())
        except (FileNotFoundError, msgspec.MsgspecError):
            return None
        return kept.version, kept.rollouts

    def append_judgements(
        self, step: int, keys: Sequence[str | None], judged: Sequence[GradedSample]
    ) -> None:
        """Keep what one call of the graders said; ``keys`` are the samples', by content.

        A sample without a key, or a result that JSON cannot hold, is asked about again.
        """
        named = [key for key in keys if key is not None]
        if len(named) < len(keys):
            return
        try:
            line = encode_checked_line(_StoredJudgements(named, list(judged)))
        except UNENCODABLE:
            return
        JsonlLog(self._judgements_path(step)).append_lines(line)

    def load_judgements(self, step: int) -> dict[str, GradedSample]:
        """What was said of the samples of ``step`` before an interruption, by their keys."""
        path = self._judgements_path(step)
        found: dict[str, GradedSample] = {}
        damaged: list[int] = []
        for call in iter_rows(path, _StoredJudgements, checked=True, damaged=damaged):
            _share_provenance(call.judged)
            found.update(zip(call.keys, call.judged, strict=True))
        warn_damaged_lines(path, damaged, "Its samples are judged again.")
        return found

    def forget(self, until: int) -> None:
        """Drop steps up to ``until``: the policy that learned from them is saved."""
        for path in self._folder.glob("*step-*"):
            number = path.name.lstrip(".").removeprefix("step-").split(".")[0]
            if number.isdecimal() and int(number) <= until:
                path.unlink(missing_ok=True)

    def _path(self, step: int) -> Path:
        return self._folder / f"step-{step:06}.msgpack"

    def _judgements_path(self, step: int) -> Path:
        return self._folder / f"step-{step:06}.judged.jsonl"


def _share_provenance(judged: Sequence[GradedSample]) -> None:
    """Make the provenance of a call about a whole group one object again: that is how it counts."""
    known: dict[bytes, Provenance] = {}
    for one in judged:
        parts = [one.outcome, *(one.events if isinstance(one.events, list) else ())]
        for part in parts:
            for name, result in part.items():
                if result.provenance is not None and result.provenance.source == "live":
                    key = msgspec.json.encode(result.provenance)
                    same = known.setdefault(key, result.provenance)
                    part[name] = msgspec.structs.replace(result, provenance=same)


_EPSILON = 1e-4  # TRL's own


def compute_turn_shares(run: RunFile, rollout: Rollout, result: RewardResult) -> list[float] | None:
    """What each turn of ``rollout`` adds to its reward; ``None`` where nothing is tied to turns.

    Event rewards belong to their turns; so does the environment's reward under
    ``step_rewards_enabled``, where it is added and not multiplied.
    """
    replies = max(rollout.tokens.turns) + 1
    if result.score is None or run.algorithm.adv_estimator != "adjudge_grpo":
        return None
    shares = [0.0] * replies
    tied = False
    # Assistant's turns that the prompt began with are events as well, before the policy's own.
    events = (result.event_rewards or [])[-replies:]
    if len(events) == replies:
        tied, shares = True, list(events)
    added = not run.judge.enabled or run.judge.combine_mode == "weighted_sum"
    own = rollout.episode.rewards
    if run.training.stepwise and added and len(own) == replies:
        tied = True
        shares = [share + paid for share, paid in zip(shares, own, strict=True)]
    return shares if tied else None


def compute_group_advantages(
    rewards: Sequence[float | None],
    shares: Sequence[list[float] | None],
    groups: Sequence[str],
) -> list[list[float] | None]:
    """Advantages inside each group, in the order of the rollouts; see :func:`turn_advantages`."""
    members: dict[str, list[int]] = {}
    for place, group in enumerate(groups):
        members.setdefault(group, []).append(place)
    found: list[list[float] | None] = [None] * len(rewards)
    for places in members.values():
        advantages = turn_advantages(
            [rewards[place] for place in places],
            [shares[place] for place in places],
            epsilon=_EPSILON,
        )
        for place, advantage in zip(places, advantages, strict=True):
            found[place] = advantage
    return found


def turn_advantages(
    rewards: Sequence[float | None],
    turns: Sequence[Sequence[float] | None],
    *,
    divide: bool = True,
    epsilon: float = 1e-6,
) -> list[list[float] | None]:
    """One group's advantages, one for each turn of each rollout.

    ``rewards[i]`` is rollout *i*'s whole reward, ``None`` where missing; ``turns[i]`` is what each
    of its turns adds to that reward (e_ij), ``None`` or empty where the reward is not tied to
    turns. A turn answers for what was still to come when it was played:

        G_it = reward_i − Σ_{j<t} e_ij      A_it = (G_it − mean_i G_it) / (s + epsilon)

    Means and deviations (n − 1) are over the rollouts that have a reward; one that ended before
    turn *t* counts there with its last turn. *s* is the largest of the turns' std_i G_it, so no
    advantage exceeds (n − 1)/√n: rollouts of equal reward may well differ in what was to come
    after their first turn, and to divide that by the rewards' deviation would be to divide by
    nothing. Without ``divide`` an advantage is G_it − mean_i G_it.

    A list is as long as the rollout's ``turns``; of length 1, for all its turns, where they are
    ``None`` or empty; ``None`` where the reward is missing. Where no turn adds anything, or each
    rollout has one turn, this is GRPO's (r − mean)/(std + epsilon) to the last bit. Where all that
    are compared are equal, and for a rollout alone in its group, it is 0. Raises
    ``GradingFailure(invalid_input)`` for lists of different lengths and numbers that are not
    finite.

    Both earn 1, the first in its first turn; only the second is still to earn something then:

    >>> first, second = turn_advantages([1.0, 1.0], [[1.0, 0.0], [0.0, 1.0]], divide=False)
    >>> first, second
    ([0.0, -0.5], [0.0, 0.5])
    """
    if len(rewards) != len(turns):
        raise GradingFailure(
            ErrorKind.INVALID_INPUT,
            f"{len(rewards)} rewards and the turns of {len(turns)} rollouts; there must be as many",
        )
    ahead = [
        _returns_to_go(place, reward, turns[place] or ())
        for place, reward in enumerate(rewards)
        if reward is not None
    ]
    if not ahead:
        return [None] * len(rewards)
    centred: list[list[float]] = [[] for _ in ahead]
    widest = 0.0
    for turn in range(max(map(len, ahead))):
        column = [values[min(turn, len(values) - 1)] for values in ahead]
        mean, std = mean_and_std(column)
        if not math.isfinite(std):
            raise GradingFailure(
                ErrorKind.INVALID_INPUT, "the rewards of a group are too far apart to be compared"
            )
        widest = max(widest, std)
        for values, value, mine in zip(ahead, column, centred, strict=True):
            if turn < len(values):
                mine.append(value - mean if std else 0.0)
    if divide:
        centred = [[value / (widest + epsilon) for value in mine] for mine in centred]
    present = iter(centred)
    return [None if reward is None else next(present) for reward in rewards]


def _returns_to_go(place: int, reward: float, turns: Sequence[float]) -> list[float]:
    """G_it of one rollout, for each of its turns; there is always a first."""
    ahead = [reward]
    for added in turns[:-1]:
        ahead.append(ahead[-1] - added)
    if not all(map(math.isfinite, (*turns, *ahead))):
        raise GradingFailure(
            ErrorKind.INVALID_INPUT,
            f"rollout {place} of the group: its reward, what its turns add to it and their "
            "differences must be finite numbers",
        )
    return ahead


def group_variances(
    rewards: Sequence[float | None], env: Sequence[float | None], group_size: int
) -> dict[str, float]:
    """Mean within-group variance of the environment's reward and of the judge's part of the sum.

    Only samples with both count; a group of fewer than two has none.

    >>> group_variances([1.0, 3.0], [0.0, 1.0], 2)
    {'judge/env_group_var': 0.5, 'judge/part_group_var': 0.5}
    """
    env_vars, part_vars = [], []
    for start in range(0, len(rewards), group_size):
        pairs = [
            (reward - paid, paid)
            for place in range(start, min(start + group_size, len(rewards)))
            if (reward := rewards[place]) is not None and (paid := env[place]) is not None
        ]
        if len(pairs) > 1:
            part_vars.append(_variance([part for part, _ in pairs]))
            env_vars.append(_variance([own for _, own in pairs]))
    found = {"judge/env_group_var": mean(env_vars), "judge/part_group_var": mean(part_vars)}
    return {name: value for name, value in found.items() if value is not None}


def _variance(values: Sequence[float]) -> float:
    middle = sum(values) / len(values)
    return sum((value - middle) ** 2 for value in values) / (len(values) - 1)
