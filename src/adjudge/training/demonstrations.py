"""What a tiny policy imitates before it learns from rewards."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from itertools import islice
from typing import Any

from adjudge.engine.loop import run_blocking
from adjudge.environments.tasks import read_dataset
from adjudge.rewards.spec import RewardSpec
from adjudge.training.runfile import RunFile
from adjudge.training.runfile.tables import CAPITALS
from adjudge.training.scaffold.demonstrations import rubric_demonstrations
from adjudge.training.scaffold.rows import has_rubrics
from adjudge.training.task import demonstrations
from adjudge.training.tasks import build_task

__all__ = ["demonstrations_of"]

_ROWS, _EPISODES = 2400, 64

_REASONS = (
    "I look around.",
    "I go on, because resting gains nothing.",
    "I try what is in front of me, because it may be of use.",
)
_ACTIONS = ("do", "do", "do", "move_left", "move_right", "move_up", "place_plant", "noop")


def demonstrations_of(run: RunFile) -> list[dict[str, Any]]:
    """Rows ``{messages}`` for the run's task, the same for the same seed.

    For a question: right and wrong answers in three styles. For a dataset with rubrics: see
    :mod:`adjudge.training.scaffold.demonstrations`. For an environment: episodes of
    somebody who gives one of three reasons and acts at random, so that a policy learns to take
    part, and nothing of what is worth doing.
    """
    seed = run.training.seed
    if run.env_name == CAPITALS and run.services.task_url is None:
        rng = random.Random(seed)  # noqa: S311  (no secret)
        return list(islice(demonstrations(rng), _ROWS))
    if run.rollout.dataset is not None:
        data = read_dataset(run.folder / run.rollout.dataset)
        if all(has_rubrics(row) for row in data):
            rng = random.Random(seed)  # noqa: S311  (no secret)
            return list(islice(rubric_demonstrations(data, rng), _ROWS))
    return run_blocking(_played(run, seed))


async def _played(run: RunFile, seed: int) -> list[dict[str, Any]]:
    nobody = RewardSpec.from_dict({"graders": [{"name": "none", "type": "length"}]})
    task = build_task(run, nobody)
    rows = []
    for number in range(_EPISODES):
        rng = random.Random(f"demonstration {seed} {number}")  # noqa: S311  (no secret)

        def walk(_: Sequence[Any], rng: random.Random = rng) -> str:
            actions = rng.choices(_ACTIONS, k=rng.randint(1, 5))
            return f"{rng.choice(_REASONS)}\nActions: {', '.join(actions)}"

        episode = await task.play(rng.randrange(task.size or 2**31), walk)
        # An environment has the last word; of a dataset's row the answer is the last.
        rows.append({"messages": episode.messages[: -1 if task.size is None else None]})
        await asyncio.sleep(0)
    return rows
