"""Environments, the episodes that a policy plays in them, and tasks: where episodes begin.

An environment answers a policy's words with an observation. An episode, a policy and an environment
taking turns, is kept as chat messages. A task plays one from a seed; the rows of a dataset may
bring rubrics.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from pathlib import Path
from typing import Any, Protocol

from adjudge.datasets.files import read_rows
from adjudge.engine.loop import run_all
from adjudge.errors import ConfigError, ErrorKind, GradingFailure, RolloutError
from adjudge.intake.columns import find_reference
from adjudge.rubrics import Criterion, rubric_from
from adjudge.types import MISSING, GraderError, Message, get_path

Policy = Callable[[Sequence[Message]], "str | Awaitable[str]"]
"""From the messages so far to the next reply; plain or ``async``. May raise OutOfContext."""


class OutOfContext(Exception):
    """The conversation is longer than the policy can read: the episode ends without this reply."""


@dataclass(frozen=True)
class Step:
    """What one turn came to.

    ``reward`` is the turn's own, on the environment's scale; ``done`` ends the episode; ``info`` is
    plain data that is kept with the episode (the last turn's).
    """

    observation: str
    reward: float
    done: bool
    info: dict[str, Any] = field(default_factory=dict)


class Environment(Protocol):
    """One episode at a time; synchronous, and used by one episode only until it is done.

    ``name`` is for rollouts and reports; ``instructions`` tell a policy what it can say.
    """

    name: str
    instructions: str

    def reset(self, seed: int) -> str:
        """Begin an episode; the first observation. The same ``seed`` begins the same episode."""

    def step(self, reply: str) -> Step:
        """Do what ``reply`` says, a policy's hostile text.

        A reply that cannot be understood does nothing; the observation reports it.
        """


LARGEST_REWARD = 1e300
"""Of one turn, either way: sums over turns and weights stay finite numbers."""


@dataclass
class Episode:
    """One finished episode.

    ``messages`` start with the environment's instructions (system, if it has any) and first
    observation (user); then replies and observations alternate. ``rewards`` has one number per
    reply; empty where the task itself pays nothing. ``done`` is false where the turns, or what
    the policy can read, ran out first. ``achievements``: how many names each turn added to
    ``info["achievements"]``. ``columns``: what graders may ask for beside the rollout. ``error``
    says why an episode is not whole; it is then no rollout, and its reward is missing.
    """

    env_name: str
    seed: int
    messages: list[dict[str, Any]]
    rewards: list[float] = field(default_factory=list)
    done: bool = False
    info: dict[str, Any] = field(default_factory=dict)
    achievements: list[int] = field(default_factory=list)
    columns: dict[str, Any] = field(default_factory=dict)
    error: GraderError | None = None

    @property
    def env_return(self) -> float | None:
        """The sum of the environment's rewards; ``None`` where it pays none."""
        return math.fsum(self.rewards) if self.rewards else None

    def row(self) -> dict[str, Any]:
        """The episode as a row of a rollout file.

        ``messages``, ``group`` (episodes of one seed began alike), ``env_reward`` (the return),
        ``turn_rewards``, ``done`` and ``info``.
        """
        return {
            "messages": self.messages,
            "group": f"{self.env_name} {self.seed}",
            "env_reward": self.env_return,
            "turn_rewards": self.rewards,
            "done": self.done,
            "info": self.info,
        }


async def play(
    environment: Environment, policy: Policy, *, seed: int, max_turns: int = 20
) -> Episode:
    """One episode of at most ``max_turns`` replies.

    The environment computes in a thread, so others go on. What ``policy`` or the environment raises
    goes through: there is no half episode. A policy's
    :class:`~adjudge_lab.environments.OutOfContext` ends the episode where it is. Raises
    ``GradingFailure``: ``bug`` for a reward that is no finite number, ``invalid_input`` where the
    policy cannot even read the beginning.
    """
    opening = await asyncio.to_thread(environment.reset, seed)
    head = [{"role": "system", "content": environment.instructions}]
    episode = Episode(
        environment.name,
        seed,
        [*(head if environment.instructions else []), {"role": "user", "content": opening}],
    )
    unlocked = 0
    while not episode.done and len(episode.rewards) < max_turns:
        try:
            reply = await request_reply(policy, episode.messages)
        except OutOfContext:
            if not episode.rewards:
                raise prompt_too_long_error(f"{environment.name}, seed {seed}") from None
            break
        step = await asyncio.to_thread(environment.step, reply)
        episode.messages += [
            {"role": "assistant", "content": reply},
            {"role": "user", "content": step.observation},
        ]
        episode.rewards.append(_checked_reward(environment.name, step.reward))
        episode.done, episode.info = step.done, step.info
        found = count_achievements(step.info)
        episode.achievements.append(max(0, found - unlocked))
        unlocked = max(unlocked, found)
    return episode


def _checked_reward(name: str, reward: Any) -> float:
    """A turn's reward, NumPy's numbers as Python's; raises ``GradingFailure(bug)``."""
    is_number = isinstance(reward, Real) and not isinstance(reward, bool)
    if is_number and -LARGEST_REWARD <= reward <= LARGEST_REWARD:
        return float(reward)
    found = repr(reward) if isinstance(reward, float) else f"of type {type(reward).__name__}"
    raise GradingFailure(
        ErrorKind.BUG,
        f"environment {name}: a turn's reward is {found}, no finite number that can be added up "
        f"(at most {LARGEST_REWARD:g})",
    )


def environment_settings(
    make: Callable[..., Any], config: Mapping[str, Any]
) -> tuple[dict[str, Any], str | None, list[str]]:
    """``config`` as keyword arguments, its first key ``make`` does not take, and the keys it does.

    Tables have lists where environments take tuples.
    """
    known = inspect.signature(make).parameters
    takes_all = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in known.values())
    given = {key: tuple(one) if isinstance(one, list) else one for key, one in config.items()}
    unknown = next((key for key in given if key not in known and not takes_all), None)
    return given, unknown, list(known)


def prompt_too_long_error(what: str) -> GradingFailure:
    """A policy that was never able to speak has no answer, not an empty one."""
    return GradingFailure(
        ErrorKind.INVALID_INPUT, f"{what}: the first prompt is longer than the policy can read"
    )


def count_achievements(info: Mapping[str, Any]) -> int:
    """How many names ``info["achievements"]`` has; 0 where that is no collection of them."""
    names = info.get("achievements")
    return len(names) if isinstance(names, list | tuple | set | frozenset | dict) else 0


async def request_reply(policy: Policy, messages: list[dict[str, Any]]) -> str:
    """The policy's next reply, whether it is plain or ``async``."""
    said = policy(messages)
    return await said if inspect.isawaitable(said) else said


async def play_many(
    make: Callable[[], Environment],
    policy: Policy,
    seeds: Sequence[int],
    *,
    max_turns: int = 20,
    max_concurrent: int = 16,
    on_episode: Callable[[Episode], None] = lambda _: None,
) -> list[Episode]:
    """An episode per seed, in the order of ``seeds``, ``max_concurrent`` at a time.

    Each has an environment of its own from ``make``. ``on_episode`` hears of each as it ends, so
    that it can be judged while the others go on.
    """
    slots = asyncio.Semaphore(max_concurrent)
    found: dict[int, Episode] = {}

    async def one(place: int, seed: int) -> None:
        async with slots:
            found[place] = await play(make(), policy, seed=seed, max_turns=max_turns)
            on_episode(found[place])

    await run_all(one(place, seed) for place, seed in enumerate(seeds))
    return [found[place] for place in range(len(seeds))]


PaymentFunction = Callable[[Mapping[str, Any]], Awaitable[float | None]]
"""What a task pays for an answer, from the rollout's fields; ``None`` where that cannot be said."""


class Task(Protocol):
    """Something to be done, again and again, from numbered beginnings.

    ``size``: seeds go from 0 to ``size`` − 1; ``None``: any seed from 0 goes. The same seed is the
    same beginning, so rollouts of one seed can be compared.
    """

    name: str
    size: int | None

    async def play(self, seed: int, policy: Policy) -> Episode:
        """One episode; what goes wrong in the task itself is the episode's ``error``."""


class EnvironmentTask:
    """Episodes of an environment of one's own, or of one that ships.

    ``make`` gives a fresh environment; an episode has at most ``max_turns`` replies. What the
    environment raises goes through.
    """

    size: int | None = None

    def __init__(self, make: Callable[[], Environment], *, name: str, max_turns: int) -> None:
        self._make, self.name, self._max_turns = make, name, max_turns

    async def play(self, seed: int, policy: Policy) -> Episode:
        """One episode in an environment of its own."""
        environment = await asyncio.to_thread(self._make)
        return await play(environment, policy, seed=seed, max_turns=self._max_turns)


class DatasetTask:
    """Single turns: a row's prompt, one answer; the seed is the row's number.

    ``rows`` have ``prompt`` (a text, or chat messages) and any columns for graders. ``pay`` is what
    the task itself gives for an answer; without it ``rewards`` stay empty. A prompt that the policy
    cannot read is ``GradingFailure(invalid_input)``.
    """

    def __init__(
        self, rows: Sequence[Mapping[str, Any]], *, name: str, pay: PaymentFunction | None
    ) -> None:
        self._rows, self.name, self._pay = rows, name, pay
        self.size: int | None = len(rows)

    def begin(self, seed: int) -> Episode:
        """Row ``seed`` before anybody has said a word; :class:`ConfigError` for no such row."""
        if not 0 <= seed < len(self._rows):
            raise ConfigError(
                f"{self.name}: there is no row {seed} (it has {len(self._rows):,} rows, "
                "counted from 0)"
            )
        row = dict(self._rows[seed])
        prompt = row.pop("prompt")
        turns = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
        return Episode(self.name, seed, turns, columns=row)

    async def play(self, seed: int, policy: Policy) -> Episode:
        """One answer to row ``seed``."""
        episode = self.begin(seed)
        try:
            reply = await request_reply(policy, episode.messages)
        except OutOfContext:
            raise prompt_too_long_error(f"{self.name}, row {seed}") from None
        episode.messages.append({"role": "assistant", "content": reply})
        episode.done = True
        if self._pay is not None:
            prompt = self._rows[seed]["prompt"]
            said = {"prompt": prompt, "response": reply, "messages": episode.messages}
            fields = {**episode.columns, **said}
            paid = await self._pay(fields)
            episode.rewards = [] if paid is None else [paid]
        return episode


def read_dataset(path: Path) -> list[dict[str, Any]]:
    """The rows of a JSONL or Parquet file for :class:`DatasetTask`.

    ``reference`` is the column that it is in every door
    (:data:`~adjudge.intake.columns.REFERENCE_COLUMNS`). Raises
    :class:`~adjudge.errors.ConfigError` naming the row.
    """
    rows = [_checked_row(where, row) for where, row in read_rows([path])]
    if not rows:
        raise ConfigError(f"{path}: has no rows")
    return rows


def _checked_row(where: str, row: dict[str, Any] | RolloutError) -> dict[str, Any]:
    if isinstance(row, RolloutError):
        raise ConfigError(str(row))
    prompt = row.get("prompt")
    is_chat = isinstance(prompt, list) and all(
        isinstance(turn, Mapping) and isinstance(turn.get("role"), str) for turn in prompt
    )
    if not (prompt and (isinstance(prompt, str) or is_chat)):
        found = "no column 'prompt'" if prompt is None else f"a {type(prompt).__name__}"
        raise ConfigError(
            f"{where}: prompt: must be a text or chat messages (found {found}; columns: "
            f"{', '.join(sorted(row))})"
        )
    named = find_reference(row)
    return row if named is None else {**row, "reference": row[named]}


RUBRIC_COLUMNS = ("rubrics", "reward_model.rubrics", "extra_info.reward_model.rubrics")
"""Where a row may have its rubrics: our own column, and verl's Parquet files."""


def has_rubrics(row: Mapping[str, Any]) -> bool:
    """Whether one of :data:`RUBRIC_COLUMNS` has anything, be it readable or not.

    >>> has_rubrics({"rubrics": []}), has_rubrics({"reward_model": {"rubrics": ["Is kind"]}})
    (False, True)
    """
    return _find_rubrics(row) is not None


def read_row_rubrics(row: Mapping[str, Any]) -> tuple[Criterion, ...]:
    """The criteria of the first of :data:`RUBRIC_COLUMNS` that has any.

    Raises ``GradingFailure(invalid_input)`` where none has, or where they cannot be read.

    >>> row = {"rubrics": [{"criterion": "Is kind", "points": 2}]}
    >>> [one.worth for one in read_row_rubrics(row)]
    [2.0]
    """
    found = _find_rubrics(row)
    if found is None:
        looked = ", ".join(RUBRIC_COLUMNS)
        raise GradingFailure(ErrorKind.INVALID_INPUT, f"has no rubrics (looked for in {looked})")
    column, value = found
    return rubric_from(value, where=column).criteria


def _find_rubrics(row: Mapping[str, Any]) -> tuple[str, Any] | None:
    for column in RUBRIC_COLUMNS:
        value = get_path(row, column)
        if value is not MISSING and not _is_blank(value):
            return column, value
    return None


def _is_blank(value: Any) -> bool:
    return value is None or (isinstance(value, str | list | tuple | Mapping) and not value)


MAX_SEEDS = 100_000


_SEED_RANGE = re.compile(r"\s*(\d{1,10})\s*(?:-\s*(\d{1,10})\s*)?\Z")


def parse_seeds(text: str) -> list[int]:
    """The seeds that ``1-20`` or ``3,5,10-12`` names, in this order; raises ``ValueError``.

    >>> parse_seeds("3, 5, 10-12")
    [3, 5, 10, 11, 12]
    """
    seeds: list[int] = []
    for part in text.split(","):
        found = _SEED_RANGE.match(part)
        if found is None:
            raise ValueError(
                f"must be seeds such as 7, 1-20 or 3,5,10-12 (found {part.strip()[:40]!r})"
            )
        low, high = int(found[1]), int(found[2] or found[1])
        if low > high or high - low >= MAX_SEEDS:
            raise ValueError(
                f"a range of seeds must go up and have at most {MAX_SEEDS:,} seeds (found "
                f"{part.strip()!r})"
            )
        seeds += range(low, high + 1)
    if len(set(seeds)) < len(seeds):
        raise ValueError("each seed must be given once")
    return seeds
