"""The episodes of a run: its task, its seeds, the players that speak for the policy.

Episodes are played side by side; one that ended becomes the sample that its reward is computed for.
"""

from __future__ import annotations

import logging
import random
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

from adjudge.engine.loop import run_all, run_blocking
from adjudge.errors import ConfigError, ErrorKind, GradingFailure, JudgeAuthError
from adjudge.extensions import load_extension
from adjudge.graders.base import is_listwise
from adjudge.intake.rollouts import first_turn, read_conversation
from adjudge.judges.endpoint.settings import BYTES_PER_TOKEN
from adjudge.rewards.spec import RewardSpec
from adjudge.runner.runner import GradingRunner
from adjudge.types import GraderError, GraderScore, Sample
from adjudge_lab.environments import (
    Environment,
    EnvironmentTask,
    Episode,
    Policy,
    Task,
)
from adjudge_lab.environments.tasks import (
    DatasetTask,
    PaymentFunction,
    environment_settings,
    read_dataset,
)
from adjudge_lab.rl.runfile import CAPITALS_ENV, SHIPPED_ENVIRONMENTS, RunFile
from adjudge_lab.rl.tiny import CapitalsTask

_ROLLOUT_COLUMNS = frozenset({"prompt", "response", "messages", "finish_reason"})


def episode_to_sample(episode: Episode, place: int, group_index: int) -> Sample:
    """What graders see of ``episode``, at ``place`` in its batch, ``group_index`` in its group.

    ``prompt`` is the last message of the user before the policy's first, ``None`` without one;
    ``response`` the policy's last turn, empty where it called a tool or said nothing. ``extra`` has
    the episode's columns, except those that are about the rollout itself, and ``env_reward``, its
    return (``None`` where the environment pays none).
    """
    opening = first_turn(episode.messages)
    shown = read_conversation(episode.messages, opening)
    columns = {name: own for name, own in episode.columns.items() if name not in _ROLLOUT_COLUMNS}
    return Sample(
        place,
        group_index,
        shown.prompt,
        shown.response or "",
        episode.messages,
        {**columns, "env_reward": episode.env_return},
        opening_turns=opening,
    )


_log = logging.getLogger("adjudge")

_T = TypeVar("_T")


class Lane(Protocol):
    """Where episodes are played one after the other; closed when no more will come."""

    def policy(self, place: int) -> Policy:
        """Who speaks in the episode at ``place``."""

    def close(self) -> None:
        """No more episodes."""


OpenLanes = Callable[[int], Sequence[Lane]]
"""Opens so many lanes at once."""


class Player(Protocol):
    """Who speaks for the policy: a model in this process, or an endpoint."""

    def run(self, job: Callable[[OpenLanes], Coroutine[Any, Any, _T]]) -> _T:
        """Run ``job`` on the engine's loop, answering in the lanes that it opens."""


class LoopPlayer(ABC):
    """A player that answers on the engine's loop itself, in each of its lanes."""

    def run(self, job: Callable[[OpenLanes], Coroutine[Any, Any, _T]]) -> _T:
        """Run ``job``; every lane is this player."""
        return run_blocking(job(lambda count: [self] * count))

    @abstractmethod
    def policy(self, place: int) -> Policy:
        """Who speaks in the episode at ``place``."""

    def close(self) -> None:  # noqa: B027  (not abstract: it is done)
        """Nothing to be put away."""


class FixedAnswers(LoopPlayer):
    """Gives ``answers[place]`` in the episode at ``place``, whatever it is asked."""

    def __init__(self, answers: Sequence[str]) -> None:
        self._answers = answers

    def policy(self, place: int) -> Policy:
        """The answer of ``place``."""
        return lambda _: self._answers[place]


async def play_episodes(
    task: Task,
    seeds: Sequence[int],
    lanes: OpenLanes,
    *,
    most: int,
    on_episode: Callable[[int, Episode], None] = lambda *_: None,
) -> list[Episode]:
    """An episode per seed, in the order of ``seeds``, at most ``most`` at a time.

    ``on_episode(place, episode)`` hears of each as it ends. What goes wrong in one is its
    ``error``: the failure's kind, ``bug`` where a task of one's own raised.
    """
    waiting = iter(enumerate(seeds))
    found: dict[int, Episode] = {}

    async def work(lane: Lane) -> None:
        try:
            for place, seed in waiting:
                found[place] = await _play_episode(task, seed, lane.policy(place))
                on_episode(place, found[place])
        finally:
            lane.close()

    await run_all(map(work, lanes(min(most, len(seeds)))))
    return [found[place] for place in range(len(seeds))]


async def _play_episode(task: Task, seed: int, policy: Policy) -> Episode:
    try:
        return await task.play(seed, policy)
    except (ConfigError, JudgeAuthError):  # the next episode would fail in the same way
        raise
    except GradingFailure as failure:
        error = GraderError("rollout", failure.kind, str(failure))
    except Exception as problem:  # noqa: BLE001  (whatever an environment of the user's raises)
        # What it says may quote the policy: a log gets the kind of error and its place only.
        place = traceback.extract_tb(problem.__traceback__)[-1]
        said = f"{type(problem).__name__} in {Path(place.filename).name}:{place.lineno}"
        _log.warning("an episode of %s (seed %d) failed: %s", task.name, seed, said)
        error = GraderError("rollout", ErrorKind.BUG, said)
    return Episode(task.name, seed, [], error=error)


def apply_stepwise_rewards(episode: Episode, beta: float, indicator: float) -> None:
    """Rewards by decision: each turn's is ``beta`` · its own, + ``indicator`` for something new.

    "Something new" is an achievement that the episode had not unlocked before.
    """
    new = [*episode.achievements, *([0] * len(episode.rewards))]
    episode.rewards = [
        beta * own + indicator * (found > 0)
        for own, found in zip(episode.rewards, new, strict=False)
    ]


def build_task(run: RunFile, spec: RewardSpec) -> Task:
    """The task of ``run``; ``spec`` has the grader that pays for a dataset.

    Raises :class:`~adjudge.errors.ConfigError`.
    """
    rollout = run.rollout
    if run.services.task_url is not None:
        services = run.services
        from adjudge_lab.environments.gateway import PolicyGateway  # noqa: PLC0415  (HTTP)
        from adjudge_lab.environments.task_client import TaskAppTask  # noqa: PLC0415

        return TaskAppTask(
            services.task_url or "",
            gateway=PolicyGateway(
                host=services.policy_host,
                port=services.policy_port,
                advertise=services.policy_url,
            ),
            key_env=services.task_key_env,
            env_name=rollout.env_name,
            env_config=rollout.env_config,
            policy_name=rollout.policy_name,
            max_turns=rollout.max_turns,
        )
    if rollout.dataset is not None:
        path = run.folder / rollout.dataset
        return DatasetTask(read_dataset(path), name=run.env_name, pay=_build_payment(run, spec))
    if run.env_name == CAPITALS_ENV:
        return CapitalsTask()
    kind, config = _environment_class(run)
    _make_environment(run, kind, config)  # complains now, not in the first episode
    return EnvironmentTask(
        lambda: _make_environment(run, kind, config), name=run.env_name, max_turns=rollout.max_turns
    )


def draw_training_seeds(task: Task, held_out: Collection[int], seed: int) -> Iterator[int]:
    """Endless beginnings to train on, the same for the same ``seed``; never a held-out one.

    Of a dataset every row comes once before any comes again. Raises
    :class:`~adjudge.errors.ConfigError` where nothing is left to train on.
    """
    rng = random.Random(f"beginnings {seed}")  # noqa: S311  (no secret)
    kept = set(held_out)
    if task.size is None:
        while True:
            drawn = rng.randrange(2**31)
            if drawn not in kept:
                yield drawn
    rows = [row for row in range(task.size) if row not in kept]
    if not rows:
        raise ConfigError(
            f"{task.name}: all {task.size} rows are held out by [evaluation], so none is left "
            "for training. Hold out fewer rows."
        )
    while True:
        rng.shuffle(rows)
        yield from rows


def _build_payment(run: RunFile, spec: RewardSpec) -> PaymentFunction | None:
    name = run.rollout.env_grader
    if name is None:
        return None
    entry = next(one for one in spec.graders if one.name == name)
    runner = GradingRunner({name: spec.build_grader(entry, {})}, show_progress=False)

    async def pay(fields: Mapping[str, Any]) -> float | None:
        (result,) = (await runner.arun([dict(fields)]))[name]
        return result.score if isinstance(result, GraderScore) else None

    return pay


def find_environment_problem(run: RunFile) -> str | None:
    """Why the environment of ``run`` cannot be made, as far as is known without making it."""
    try:
        _environment_class(run)
    except ConfigError as error:
        return str(error).removeprefix(f"{run.where}: ")
    return None


def _environment_class(run: RunFile) -> tuple[Any, dict[str, Any]]:
    kind = load_extension(
        "adjudge.environments",
        run.env_name,
        where=f"{run.where}: rollout.env_name",
        folder=run.folder,
        shipped=SHIPPED_ENVIRONMENTS,
    )
    if not callable(kind):
        run.refuse(
            "rollout.env_name",
            f"must be a class with reset and step (found {run.env_name!r}, of type "
            f"{type(kind).__name__})",
        )
    return kind, _environment_config(run, kind)


def _environment_config(run: RunFile, kind: Any) -> dict[str, Any]:
    """What ``env_config`` gives the environment."""
    config, unknown, known = environment_settings(kind, run.rollout.env_config)
    if unknown is not None:
        run.refuse(
            f"rollout.env_config.{unknown}",
            f"{run.env_name} has no such setting (allowed: {', '.join(known) or 'none'})",
        )
    return config


def _make_environment(run: RunFile, kind: Any, config: dict[str, Any]) -> Environment:
    try:
        made: Environment = kind(**config)
    except TypeError as error:
        run.refuse("rollout.env_config", f"{run.env_name}: {error}")
    return made


OBSERVATION_TOKENS = 200


INSTRUCTION_TOKENS = 400
"""Assumed of an environment that is not asked: what it says each turn, and once at the start."""


_MAX_EPISODES = 10


def find_group_grader(spec: RewardSpec) -> str | None:
    """The first grader that compares the rollouts of a group, if one does."""
    return next((name for name, one in spec.build_graders().items() if is_listwise(one)), None)


def dry_run_samples(
    run: RunFile,
    spec: RewardSpec,
    task: DatasetTask | CapitalsTask | None,
    most: int = _MAX_EPISODES,
) -> tuple[list[Sample], list[str]]:
    """Rollouts of full length and their groups: an upper bound of what is judged.

    Groups are whole where ``spec`` compares them, else one rollout represents each. Prompts are
    those of ``task``; without one they have the sizes assumed above. Replies take all of
    ``max_tokens``, episodes all of ``max_turns``. ``most``: how many prompts.
    """
    if task is None:
        episodes = [_longest_episode(run)]
    else:
        episodes = [task.begin(seed) for seed in range(min(task.size or most, most))]
        for episode in episodes:
            episode.messages.append(_filler_message("assistant", run.rollout.max_tokens))
    samples: list[Sample] = []
    groups: list[str] = []
    members = 1 if find_group_grader(spec) is None else run.training.group_size
    for number, episode in enumerate(episodes):
        for member in range(members):
            samples.append(episode_to_sample(_vary_replies(episode, member), len(samples), member))
            groups.append(str(number))
    return samples, groups


def _vary_replies(episode: Episode, member: int) -> Episode:
    """The episode with words of its own: graders that compare do not ask about equals."""
    if not member:
        return episode
    turns = [
        {**turn, "content": f"{member} {turn['content']}"} if turn["role"] == "assistant" else turn
        for turn in episode.messages
    ]
    return replace(episode, messages=turns)


def _longest_episode(run: RunFile) -> Episode:
    turns = [
        _filler_message("system", INSTRUCTION_TOKENS),
        _filler_message("user", OBSERVATION_TOKENS),
    ]
    for _ in range(run.rollout.max_turns if run.is_multi_turn else 1):
        turns += [
            _filler_message("assistant", run.rollout.max_tokens),
            _filler_message("user", OBSERVATION_TOKENS),
        ]
    return Episode(run.env_name, 0, turns[: None if run.is_multi_turn else -1])


def _filler_message(role: str, tokens: int) -> dict[str, Any]:
    return {
        "role": role,
        "content": ("word " * (tokens * BYTES_PER_TOKEN))[: tokens * BYTES_PER_TOKEN],
    }


class TaggedTask:
    """A task with episodes that say when they were played: equal words are separate questions."""

    def __init__(self, task: Task, tag: str) -> None:
        self._task, self._tag = task, tag
        self.name, self.size = task.name, task.size

    async def play(self, seed: int, policy: Policy) -> Episode:
        """Play the task, and write the tag in the episode's columns."""
        episode = await self._task.play(seed, policy)
        episode.columns["rollout"] = f"{self._tag}/{seed}"
        return episode
