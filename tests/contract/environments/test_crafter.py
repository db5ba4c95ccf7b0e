"""The real Crafter in words, and its episodes judged by event, by outcome and by both."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest

pytest.importorskip("crafter", reason="not installed here; run `make test-environments`")

from adjudge import RewardSpec, SpecRewardFunction
from adjudge.rewards import RewardSample
from adjudge_lab.environments import CrafterEnvironment, Episode, play_many

ACTIONS = ["move_left", "move_right", "move_up", "move_down", "do", "do", "do", "do"]
SPEC: dict[str, Any] = {
    "graders": [
        {
            "name": "turn",
            "type": "llm",
            "scope": "event",
            "template": "Was this turn of use?\n{response}\n{reply_form}",
            "score_range": [0.0, 1.0],
        },
        {
            "name": "episode",
            "type": "llm",
            "template": "How did it go?\n{messages}\n{reply_form}",
            "score_range": [0.0, 1.0],
        },
    ],
    "judges": {
        "main": {
            "type": "scripted",
            "script": {
                "How did it go": '{"score": 0.8}',
                "GIVE-NO-VERDICT": "I would rather not.",
                "Actions: do": '{"score": 1.0}',
                "": '{"score": 0.25}',
            },
        }
    },
}


def world() -> CrafterEnvironment:
    return CrafterEnvironment(length=60, area=(32, 32))


def walker(seed: int = 0) -> Callable[[Sequence[Any]], str]:
    chance = random.Random(seed)
    return lambda _: "I look around.\nActions: " + ", ".join(chance.choices(ACTIONS, k=5))


@pytest.fixture(scope="module")
def episodes() -> list[Episode]:
    return asyncio.run(play_many(world, walker(), [1, 1, 2, 3], max_turns=8, max_concurrent=2))


def test_episodes_from_one_beginning_are_a_group(episodes: list[Episode]) -> None:
    groups = [episode.row()["group"] for episode in episodes]
    assert groups == ["crafter 1", "crafter 1", "crafter 2", "crafter 3"]


def rewards(episodes: Sequence[Episode], **reward: Any) -> list[float | None]:
    spec = RewardSpec.from_dict({**SPEC, "reward": {"combine_mode": "weighted_sum", **reward}})
    samples = [
        RewardSample(place, 0, None, None, one.messages, {"env_reward": one.env_return})
        for place, one in enumerate(episodes)
    ]
    groups = {str(place): [sample] for place, sample in enumerate(samples)}
    return [result.score for result in SpecRewardFunction(spec).compute(groups)]


def turns(episode: Episode) -> list[float]:
    """What the scripted judge says of each turn."""
    said = [one["content"] for one in episode.messages if one["role"] == "assistant"]
    return [1.0 if "Actions: do" in one else 0.25 for one in said]


def test_observations_are_words_and_steps_are_counted(episodes: list[Episode]) -> None:
    first = episodes[0]
    opening = first.messages[1]["content"]
    assert opening.startswith("Step 1 of 60. You: health 9, food 9, drink 9, energy 9.")
    assert "You face: " in opening
    assert sum("@" in line for line in opening.splitlines()[-7:]) == 1
    assert first.info["steps"] == 1 + 8 * 5
    assert len(first.rewards) == 8


def test_the_same_seed_is_the_same_world(episodes: list[Episode]) -> None:
    def ground(episode: Episode) -> str:
        seen: str = episode.messages[1]["content"]
        return seen.split("Map")[1].replace("cow  ", "grass")

    assert ground(episodes[0]) == ground(episodes[1])
    assert ground(episodes[0]) != ground(episodes[2])


def test_achievements_are_rewarded_and_said() -> None:
    """Sapling by sapling: grass gives one in ten times."""
    said_always = "Actions: do, do, do, do, do"
    (episode,) = asyncio.run(play_many(world, lambda _: said_always, [5], max_turns=11))
    found = [place for place, one in enumerate(episode.rewards) if one >= 0.9]
    said = [one["content"] for one in episode.messages[3::2]]
    for place in found:
        assert "Achievement: " in said[place]
    assert len(found) == len(episode.info["achievements"])


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        ("", "no action"),
        ("Actions: fly", "'fly' is no action"),
        ("Actions: do, do, do, do, do, do", "6 actions; at most 5 go"),
        ("do\nthen I think about it at length", "is no action"),
        ("Actions: do; __import__('os')", "is no action"),
        ("x" * 100_000, "is no action"),
    ],
)
def test_what_is_not_understood_does_nothing(reply: str, why: str) -> None:
    environment = world()
    environment.reset(1)
    step = environment.step(reply)
    assert why in step.observation.splitlines()[0]
    assert (step.reward, step.done, step.info["steps"]) == (0.0, False, 1)


def test_the_last_line_counts() -> None:
    environment = world()
    environment.reset(1)
    step = environment.step("I could sleep.\nAction: move_left, noop")
    assert step.info["steps"] == 3


def test_an_episode_ends_with_its_length() -> None:
    (episode,) = asyncio.run(play_many(world, walker(), [1], max_turns=100))
    assert episode.done
    assert episode.info["steps"] <= 60
    assert "The episode is over." in episode.messages[-1]["content"]


@pytest.mark.parametrize(("event", "outcome"), [(1.0, 0.0), (0.0, 1.0), (0.5, 1.0)])
@pytest.mark.parametrize("mode", ["weighted_sum", "multiply", "replace"])
def test_combine_modes_by_hand(
    episodes: list[Episode], mode: str, event: float, outcome: float
) -> None:
    given = {"event_weight": event, "outcome_weight": outcome, "judge_scale": 5.0}
    found = rewards(episodes, combine_mode=mode, **given)
    for episode, reward in zip(episodes, found, strict=True):
        judged = 5.0 * (event * math.fsum(turns(episode)) + outcome * 0.8)
        env = episode.env_return
        assert env is not None
        if mode == "multiply" and env < 0:
            assert reward is None
            continue
        wanted = {"weighted_sum": env + judged, "multiply": env * judged, "replace": judged}[mode]
        assert reward == pytest.approx(wanted)


def test_one_failed_event_leaves_its_episode_alone_without_a_reward(
    episodes: list[Episode],
) -> None:
    spoiled = [
        {**one, "content": f"{one['content']} GIVE-NO-VERDICT"} if place == 6 else one
        for place, one in enumerate(episodes[1].messages)
    ]
    broken = Episode("crafter", 1, spoiled, episodes[1].rewards)
    whole = rewards(episodes, event_weight=1.0)
    found = rewards([episodes[0], broken, *episodes[2:]], event_weight=1.0)
    assert found[1] is None
    assert [found[0], *found[2:]] == [whole[0], *whole[2:]]
    assert None not in rewards([episodes[0], broken], event_weight=0.0)
