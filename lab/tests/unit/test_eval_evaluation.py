"""Episodes played, judged as they end, and what becomes of those that fail."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from adjudge import RewardSpec
from adjudge.engine.loop import run_blocking
from adjudge.errors import ConfigError, ErrorKind, GradingFailure
from adjudge.graders.base import BaseGrader
from adjudge.trainers.scoring import Scorer
from adjudge.types import GraderError, GraderScore
from adjudge_lab.environments import DatasetTask, EnvironmentTask, Episode, Policy, Step
from adjudge_lab.rl.held_out import EvaluatedEpisode, evaluate_policy, judge_episodes


class Counting:
    """Pays a reply's length; what is said to seed 3 breaks it."""

    name, instructions = "counting", "Say something."

    def reset(self, seed: int) -> str:
        self._seed, self._turns = seed, 0
        return f"seed {seed}"

    def step(self, reply: str) -> Step:
        if self._seed == 3:
            raise RuntimeError("a broken environment")
        self._turns += 1
        return Step("go on", float(len(reply)), self._turns == 2, {})


class Here:
    """A player that answers by itself."""

    def __init__(self, said: Callable[[str], str]) -> None:
        self._said = said

    def run(self, job: Callable[[Any], Coroutine[Any, Any, Any]]) -> Any:
        return run_blocking(job(lambda count: [self] * count))

    def policy(self, place: int) -> Policy:
        return lambda messages: self._said(str(messages[-1]["content"]))

    def close(self) -> None:
        pass


class LastWord(BaseGrader):
    """The length of the response; fails for "bad"."""

    score_range = (0.0, 100.0)

    async def aevaluate(self, response: str, **_: Any) -> GraderScore:
        if response == "bad":
            raise GradingFailure(ErrorKind.UNPARSABLE, "not a verdict")
        return GraderScore(name="last", score=float(len(response)))


class Refuses(BaseGrader):
    async def aevaluate(self, **_: Any) -> GraderScore:
        raise ConfigError("nobody can be asked")


def spec(grader: str = "LastWord") -> RewardSpec:
    kind = f"{__name__}:{grader}"
    return RewardSpec.from_dict(
        {"graders": [{"name": "last", "type": kind}], "reward": {"normalise": False}}
    )


def task(**_: Any) -> EnvironmentTask:
    return EnvironmentTask(Counting, name="counting", max_turns=5)


def test_each_seed_has_its_official_score_and_its_judgement() -> None:
    heard: list[EvaluatedEpisode] = []
    found = evaluate_policy(
        task(), [5, 3, 1], Here(lambda _: "abc"), Scorer(spec()), most=2, on_episode=heard.append
    )
    assert [one.seed for one in found] == [5, 3, 1]
    assert [one.env_reward for one in found] == [6.0, None, 6.0]
    assert [one.reward for one in found] == [3.0, None, 3.0]
    assert [one.turns for one in found] == [2, 0, 2]
    assert sorted(one.seed for one in heard) == [1, 3, 5]
    broken = found[1]
    assert broken.missing is broken.error
    assert broken.error is not None
    assert broken.error.kind is ErrorKind.BUG
    assert broken.reward_info.keys() == found[0].reward_info.keys()
    assert set(broken.reward_info.values()) == {None}


def test_a_judge_that_fails_leaves_the_official_score_alone() -> None:
    (one,) = evaluate_policy(task(), [1], Here(lambda _: "bad"), Scorer(spec()), most=1)
    assert (one.env_reward, one.reward) == (6.0, None)
    assert one.missing is not None
    assert one.missing.kind is ErrorKind.UNPARSABLE
    assert one.row(7) == {
        "step": 7,
        "seed": 1,
        "env_reward": 6.0,
        "reward": None,
        "missing": {"kind": "unparsable", "message": one.missing.error},
        "reward_info": one.reward_info,
        "turns": 2,
        "kl": None,
    }


def test_nobody_judges_without_a_scorer() -> None:
    (one,) = evaluate_policy(task(), [1], Here(lambda _: "x"), None, most=1)
    assert (one.env_reward, one.reward, one.missing) == (2.0, None, None)
    assert evaluate_policy(task(), [], Here(lambda _: "x"), None, most=1) == []


def test_what_a_judge_raises_ends_the_evaluation() -> None:
    with pytest.raises(ConfigError, match="nobody can be asked"):
        evaluate_policy(task(), [1, 2], Here(lambda _: "x"), Scorer(spec("Refuses")), most=1)


def test_episodes_are_judged_while_others_are_played() -> None:
    judged, order = asyncio.Event(), []

    class Waits(DatasetTask):
        async def play(self, seed: int, policy: Policy) -> Episode:
            if seed == 1:
                await asyncio.wait_for(judged.wait(), 20)  # played only once 0 has been judged
            return await super().play(seed, policy)

    def heard(one: EvaluatedEpisode) -> None:
        order.append(one.seed)
        judged.set()

    rows = [{"prompt": "a"}, {"prompt": "b"}]
    waits = Waits(rows, name="two", pay=None)
    found = evaluate_policy(
        waits, [0, 1], Here(lambda _: "x"), Scorer(spec()), most=2, on_episode=heard
    )
    assert order == [0, 1]
    assert [one.reward for one in found] == [1.0, 1.0]


def test_a_seed_is_a_group_where_graders_compare() -> None:
    ranked = RewardSpec.from_dict(
        {
            "graders": [{"name": "last", "type": f"{__name__}:LastWord"}],
            "reward": {"normalise": False, "group": "centre"},
        }
    )
    said = iter(["a", "abc", "abcd"])
    rows = [{"prompt": "a"}, {"prompt": "b"}]
    found = evaluate_policy(
        DatasetTask(rows, name="two", pay=None),
        [0, 0, 1],
        Here(lambda _: next(said)),
        Scorer(ranked),
        most=1,
    )
    assert [one.reward for one in found] == [-1.0, 1.0, 0.0]


def test_an_episode_that_is_not_whole_is_shown_to_nobody() -> None:
    gone = Episode("x", 1, [], error=GraderError("rollout", ErrorKind.TIMEOUT, "late"))
    (one,) = run_blocking(judge_episodes(Scorer(spec()), [gone]))
    assert one.missing is gone.error
    assert one.details == {"source": "none"}
