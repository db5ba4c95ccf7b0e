"""What a run file says of rewards before there is a rubric's file, a key, or a single episode."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from adjudge.environments import Episode
from adjudge.environments.tasks import DatasetTask, read_dataset
from adjudge.graders.base import is_listwise
from adjudge.judges.budget import BYTES_PER_TOKEN
from adjudge.rewards.built import check_machine
from adjudge.rewards.samples import RewardSample
from adjudge.rewards.spec import RewardSpec
from adjudge.rubrics import GlobalRubric, RubricBundle
from adjudge.rubrics.load import find_bundle
from adjudge.training.runfile import RunFile
from adjudge.training.runfile.tables import NOWHERE
from adjudge.training.samples import sample_of
from adjudge.training.task import CapitalsTask

__all__ = [
    "INSTRUCTION_TOKENS",
    "OBSERVATION_TOKENS",
    "STAND_IN",
    "check_run_machine",
    "foreseen_samples",
    "foreseen_spec",
    "group_grader",
    "is_stand_in",
    "rubric_of",
    "single_turn_task",
]

OBSERVATION_TOKENS = 200
INSTRUCTION_TOKENS = 400
"""Assumed of an environment that is not asked: what it says each turn, and once at the start."""

STAND_IN = RubricBundle(
    global_rubric=GlobalRubric(
        criteria=tuple("a criterion of about a dozen words " for _ in "12345")
    )
)
"""For a rubric that is not there yet: judged by one call, as a rubric with a guide is."""

_LOOKED_AT = 10


def rubric_of(run: RunFile) -> RubricBundle | None:
    """The rubric of ``rubric_id`` where its file is there, else a stand-in; ``None`` without one.

    Raises :class:`~adjudge.errors.ConfigError` for a file that is no rubric.
    """
    judge = run.judge
    if not judge.enabled or judge.rubric_id is None:
        return None
    if run.rubric_file is None:
        return STAND_IN
    return find_bundle(judge.rubric_id, run.folder / judge.rubric_dir)


def foreseen_spec(run: RunFile) -> RewardSpec:
    """The reward spec of the run; nobody listens at its judge's address.

    Raises :class:`~adjudge.errors.ConfigError`.
    """
    return run.reward_spec(NOWHERE if run.starts_mock else None, rubric=rubric_of(run))


def single_turn_task(run: RunFile) -> DatasetTask | CapitalsTask:
    """The task of a run without environment; a dataset's rows pay nothing here.

    Raises :class:`~adjudge.errors.ConfigError` where the dataset cannot be read.
    """
    dataset = run.rollout.dataset
    if dataset is None:
        return CapitalsTask()
    return DatasetTask(read_dataset(run.folder / dataset), name=run.env_name, pay=None)


def group_grader(spec: RewardSpec) -> str | None:
    """The first grader that compares the rollouts of a group, if one does."""
    graders = spec.build_graders()
    return next((name for name, grader in graders.items() if is_listwise(grader)), None)


def check_run_machine(run: RunFile) -> None:
    """Raise :class:`~adjudge.errors.ConfigError` for what this machine lacks to judge the run."""
    spec = foreseen_spec(run)
    check_machine(spec, spec.build_graders())


def foreseen_samples(
    run: RunFile, spec: RewardSpec, task: DatasetTask | CapitalsTask | None
) -> tuple[list[RewardSample], list[str]]:
    """Rollouts of full length and their groups: an upper bound of what is judged.

    Groups are whole where ``spec`` compares them, else one rollout stands for each. Prompts are
    those of ``task``; without one they have the sizes assumed above. Replies take all of
    ``max_tokens``, episodes all of ``max_turns``.
    """
    if task is None:
        episodes = [_full_episode(run)]
    else:
        episodes = [task.begin(seed) for seed in range(min(task.size or _LOOKED_AT, _LOOKED_AT))]
        for episode in episodes:
            episode.messages.append(_said("assistant", run.rollout.max_tokens))
    samples: list[RewardSample] = []
    groups: list[str] = []
    members = 1 if group_grader(spec) is None else run.training.group_size
    for number, episode in enumerate(episodes):
        for member in range(members):
            samples.append(sample_of(_varied(episode, member), len(samples), member))
            groups.append(str(number))
    return samples, groups


def _varied(episode: Episode, member: int) -> Episode:
    """The episode with words of its own: graders that compare do not ask about equals."""
    if not member:
        return episode
    turns = [
        {**turn, "content": f"{member} {turn['content']}"} if turn["role"] == "assistant" else turn
        for turn in episode.messages
    ]
    return replace(episode, messages=turns)


def is_stand_in(criteria: Any) -> bool:
    """Whether a grader's ``criteria`` are those of :data:`STAND_IN`."""
    return bool(criteria == msgspec.to_builtins(STAND_IN))


def _full_episode(run: RunFile) -> Episode:
    turns = [_said("system", INSTRUCTION_TOKENS), _said("user", OBSERVATION_TOKENS)]
    for _ in range(run.rollout.max_turns if run.is_multi_turn else 1):
        turns += [_said("assistant", run.rollout.max_tokens), _said("user", OBSERVATION_TOKENS)]
    return Episode(run.env_name, 0, turns[: None if run.is_multi_turn else -1])


def _said(role: str, tokens: int) -> dict[str, Any]:
    return {
        "role": role,
        "content": ("word " * (tokens * BYTES_PER_TOKEN))[: tokens * BYTES_PER_TOKEN],
    }
