"""The example of a task app as it is, with the real Crafter behind it."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("crafter", reason="not installed here; run `make test-environments`")

from adjudge.engine.loop import run_blocking
from adjudge.messages import split_events
from adjudge_lab.environments import Episode, TaskAppTask, fetch_rubrics

EXAMPLE = Path(__file__).parents[3] / "examples" / "task_app_crafter.py"
CONFIG = {"length": 60, "area": [32, 32]}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    env = {**os.environ, "PORT": "0", "ENVIRONMENT_API_KEY": ""}
    process = subprocess.Popen(
        [sys.executable, str(EXAMPLE)], env=env, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        found = re.match(r"task app at (\S+)", process.stdout.readline())
        assert found is not None
        yield found[1]
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.communicate()


async def played(url: str, seeds: Sequence[int], action: str) -> list[Episode]:
    task = TaskAppTask(url, env_name="crafter", env_config=CONFIG, max_turns=4)

    async def policy(messages: Sequence[Any]) -> str:
        return f"Turn {len(messages)}.\nActions: {action}"

    jobs = [asyncio.create_task(task.play(seed, policy)) for seed in seeds]
    await asyncio.wait(jobs)
    return [job.result() for job in jobs]


def ground(episode: Episode) -> str:
    seen: str = episode.messages[1]["content"]
    return re.sub(r"cow  |zombie  ", "grass", seen.split("Map")[1])


def test_episodes_of_crafter_over_http(url: str) -> None:
    episodes = run_blocking(played(url, [1, 1, 2, 3], "do, do, move_left, noop, do"))
    for episode in episodes:
        assert len(episode.rewards) == 4
        assert len(split_events(episode.messages)) == 4
        assert episode.messages[1]["content"].startswith("Step 1 of 60.")
        assert episode.info["steps"] == 1 + 4 * 5
        assert sum(episode.achievements) == len(episode.info["achievements"])
    assert ground(episodes[0]) == ground(episodes[1]) != ground(episodes[2])


def test_an_episode_of_crafter_ends_by_its_length(url: str) -> None:
    task = TaskAppTask(url, env_name="crafter", env_config=CONFIG, max_turns=100)
    episode = run_blocking(task.play(1, lambda _: "Actions: noop, noop, noop, noop, noop"))
    assert episode.done
    assert "The episode is over." in episode.messages[-1]["content"]


def test_its_rubrics_are_at_hand(url: str) -> None:
    rubric = run_blocking(fetch_rubrics(url)).global_rubric
    assert rubric is not None
    assert (rubric.id, rubric.score_range) == ("crafter/bundle@v1", (0.0, 1.0))
