"""Episodes of a small environment: turns, groups, rows, and what goes wrong."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from adjudge.errors import ConfigError, ErrorKind, GradingFailure
from adjudge.rollouts.samples import sample_from_row
from adjudge_lab.environments import DatasetTask, Episode, OutOfContext, Step, play, play_many


class Counting:
    """Done when the policy has said as many words as the seed; each word is worth 1."""

    name = "counting"
    instructions = "Say words."

    def reset(self, seed: int) -> str:
        if seed < 0:
            raise ValueError("no such episode")
        self.left = seed
        return f"{seed} to go"

    def step(self, reply: str) -> Step:
        words = len(reply.split())
        self.left -= words
        return Step(f"{self.left} to go", float(words), self.left <= 0, {"left": self.left})


def two_words(messages: Sequence[Any]) -> str:
    return f"word {len(messages)}"


def test_a_policy_may_be_async_and_episodes_stay_in_order() -> None:
    heard: list[Episode] = []

    async def policy(messages: Sequence[Any]) -> str:
        await asyncio.sleep(0)
        return two_words(messages)

    played = asyncio.run(
        play_many(Counting, policy, [9, 1, 9, 3], max_concurrent=2, on_episode=heard.append)
    )
    assert [episode.seed for episode in played] == [9, 1, 9, 3]
    assert sorted(episode.seed for episode in heard) == [1, 3, 9, 9]
    groups = [episode.row()["group"] for episode in played]
    assert groups == ["counting 9", "counting 1", "counting 9", "counting 3"]


def test_what_the_environment_raises_is_no_half_episode() -> None:
    with pytest.raises(ValueError, match="no such episode"):
        asyncio.run(play_many(Counting, two_words, [1, -1]))


def test_a_policy_that_cannot_read_the_first_prompt_has_said_nothing() -> None:
    """An empty answer would be judged, and trained on."""

    def reads(most: int) -> Any:
        def policy(messages: Sequence[Any]) -> str:
            if len(messages) > most:
                raise OutOfContext
            return "a word"

        return policy

    rows = DatasetTask([{"prompt": "q"}], name="rows", pay=None)
    for cannot in (play(Counting(), reads(1), seed=9), rows.play(0, reads(0))):
        with pytest.raises(GradingFailure, match="longer than the policy can read") as caught:
            asyncio.run(cannot)
        assert caught.value.kind is ErrorKind.INVALID_INPUT
    assert asyncio.run(play(Counting(), reads(3), seed=9)).rewards == [2.0]


@pytest.mark.parametrize("seed", [2, -1])
def test_a_dataset_has_only_its_rows(seed: int) -> None:
    rows = DatasetTask([{"prompt": "q"}, {"prompt": "r"}], name="rows", pay=None)
    with pytest.raises(ConfigError, match=rf"no row {seed} \(it has 2"):
        asyncio.run(rows.play(seed, two_words))


@pytest.mark.parametrize("reward", [float("nan"), float("inf"), 1e308, 10**400, True, None, "1"])
def test_a_reward_that_cannot_be_added_up_is_no_reward(reward: Any) -> None:
    class Odd(Counting):
        def step(self, reply: str) -> Step:
            return Step("go on", reward, False)

    with pytest.raises(GradingFailure) as caught:
        asyncio.run(play(Odd(), two_words, seed=1))
    assert caught.value.kind is ErrorKind.BUG
    assert "counting" in str(caught.value)


def test_rows_are_rollouts() -> None:
    row = asyncio.run(play(Counting(), two_words, seed=3)).row()
    sample = sample_from_row(row, 0)
    assert sample.env_reward == 4.0
    assert sample.group == "counting 3"
    assert sample.messages == row["messages"]
