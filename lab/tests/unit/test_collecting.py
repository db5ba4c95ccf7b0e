"""A step's rollouts: played, judged as they end, settled; the policy is a stand-in."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest

from adjudge import GraderRank, GraderScore
from adjudge.engine.loop import run_blocking
from adjudge.errors import ErrorKind, GradingFailure, RolloutError
from adjudge.graders.base import BaseGrader
from adjudge.rewards.spec import RewardSpec
from adjudge.trainers.scoring import Scorer
from adjudge.types import GraderMode
from adjudge_lab.environments import Episode, Policy
from adjudge_lab.rl.collector import RolloutCollector
from adjudge_lab.rl.rollouts import RolloutStore, ScoredRollouts
from adjudge_lab.rl.runfile_checks import resolve_run_file

SIZE, PER_STEP = 4, 8
ASKED: list[Any] = []


class Said:
    """One reply of two tokens."""

    prompt = (1, 2)
    completion = (3, 4)
    logprobs = (-0.5, -0.25)
    turns = (0, 0)
    replies = 1


class Player:
    """Says its place in the step, and how often it was told to begin its draws anew."""

    end = 4

    def __init__(self) -> None:
        self.conversations: dict[int, Any] = {}
        self.names: list[str] = []
        self.runs = 0

    def reseed(self, name: str) -> None:
        self.names.append(name)

    def run(self, job: Callable[[Any], Coroutine[Any, Any, Any]]) -> Any:
        self.runs += 1
        self.conversations = {}
        return run_blocking(job(lambda count: [self] * count))

    def policy(self, place: int) -> Policy:
        async def speak(_: Sequence[Any]) -> str:
            await asyncio.sleep((PER_STEP - place) / 1000)  # the last are ready first
            self.conversations[place] = Said()
            return f"reply {place}"

        return speak

    def close(self) -> None:
        pass


class Questions:
    """A task without an end of beginnings; the episode of a reply in ``broken`` is none."""

    name = "questions"
    size: int | None = None

    def __init__(self, broken: Sequence[str] = ()) -> None:
        self.broken = broken

    async def play(self, seed: int, policy: Policy) -> Episode:
        messages: list[dict[str, Any]] = [{"role": "user", "content": f"question {seed}"}]
        reply = policy(messages)
        text = reply if isinstance(reply, str) else await reply
        if text in self.broken:
            raise GradingFailure(ErrorKind.CONNECTION, "the app is gone")
        messages.append({"role": "assistant", "content": text})
        return Episode(self.name, seed, messages, [float(text[-1])], done=True)


class Place(BaseGrader):
    """Scores a reply by its number; remembers what it was asked."""

    def __init__(self) -> None:
        super().__init__("place", GraderMode.POINTWISE, "")
        self.score_range = (0.0, 10.0)

    async def aevaluate(self, response: str, rollout: str) -> GraderScore:
        ASKED.append(rollout)
        if response == "reply 5":
            raise GradingFailure(ErrorKind.UNPARSABLE, "no verdict")
        return GraderScore("place", float(response[-1]))


class Longest(BaseGrader):
    """Compares the replies of a group."""

    def __init__(self) -> None:
        super().__init__("longest", GraderMode.LISTWISE, "")

    async def aevaluate(self, response: list[str]) -> Any:
        ASKED.append(tuple(response))
        order = sorted(response)
        return GraderRank("longest", [order.index(one) + 1 for one in response])


@pytest.fixture(autouse=True)
def _nobody_asked() -> None:
    ASKED.clear()


def collector(
    *,
    task: Any = None,
    grader: str = "Place",
    store: RolloutStore | None = None,
    seed: int = 0,
    **reward: Any,
) -> tuple[RolloutCollector, Player]:
    run = resolve_run_file(
        {
            "model": {"base": "tiny"},
            "rollout": {"env_name": "crafter", "episodes_per_batch": 8},
            "training": {
                "iterations_per_epoch": 6, "batch_size": PER_STEP, "group_size": SIZE, "seed": seed,
            },
            "evaluation": {"seeds": "0-3"},
        }
    )  # fmt: skip
    spec = RewardSpec.from_dict(
        {"graders": [{"name": "place", "type": f"{__name__}:{grader}"}], "reward": reward}
    )
    player = Player()
    given: Any = player
    return RolloutCollector(run, task or Questions(), Scorer(spec), given, store=store), player


def step(one: RolloutCollector, number: int = 1) -> ScoredRollouts:
    return one.score_batch(one.generate(number, number - 1))


def rewards(settled: ScoredRollouts) -> list[float | None]:
    return [result.score for result in settled.results]


def test_rollouts_stand_at_their_places_in_groups_of_one_beginning() -> None:
    one, player = collector()
    settled = step(one, 2)
    rows = settled.rows()
    assert [row["index"] for row in rows] == list(range(PER_STEP))
    assert [row["group"] for row in rows] == ["2/0"] * SIZE + ["2/1"] * SIZE
    assert [row["messages"][1]["content"] for row in rows] == [f"reply {n}" for n in range(8)]
    for start in (0, SIZE):
        assert len({row["seed"] for row in rows[start : start + SIZE]}) == 1
    assert rows[0]["seed"] != rows[SIZE]["seed"]
    assert rewards(settled) == [0.0, 0.1, 0.2, 0.3, 0.4, None, 0.6, 0.7]
    assert {row["policy_version"] for row in rows} == {1}
    assert player.names == ["step 2"]
    assert sorted(ASKED) == sorted([f"2/{n // SIZE}/{n % SIZE}" for n in range(8)] + ["2/1/1"])


def test_a_failed_judge_is_missing_and_no_part_of_its_group() -> None:
    one, _ = collector()
    settled = step(one)
    row = settled.rows()[5]
    assert (row["reward"], row["advantage"]) == (None, None)
    assert row["missing"]["kind"] == "unparsable"
    others = [settled.advantages[place] for place in (4, 6, 7)]
    assert sum(value[0] for value in others if value) == pytest.approx(0, abs=1e-9)
    assert settled.metrics["judge/missing_frac/unparsable"] == 1 / PER_STEP
    assert settled.metrics["mean_return"] == pytest.approx(sum(range(8)) / 70 - 5 / 70)


def test_a_failed_episode_is_missing_with_its_kind_and_nobody_is_asked_about_it() -> None:
    one, _ = collector(task=Questions(["reply 2", "reply 5"]))
    settled = step(one)
    assert rewards(settled) == [0.0, 0.1, None, 0.3, 0.4, None, 0.6, 0.7]
    row = settled.rows()[2]
    assert row["missing"] == {"kind": "connection", "message": "the app is gone"}
    assert row["details"] == {"source": "none"}
    assert row["reward_info"].keys() == settled.rows()[0]["reward_info"].keys()
    assert set(row["reward_info"].values()) == {None}
    assert settled.metrics["rollout/failed_frac"] == 0.25
    assert settled.metrics["rollout/failed_frac/connection"] == 0.25
    assert len(ASKED) == 6
    tokens = settled.batch.rollouts[2].tokens
    assert (tokens.prompt, tokens.completion, tokens.turns) == ([4], [4], [0])


def test_a_step_of_which_nothing_can_be_played_ends_the_run(tmp_path: Path) -> None:
    store = RolloutStore(tmp_path)
    one, _ = collector(task=Questions([f"reply {n}" for n in range(PER_STEP)]), store=store)
    with pytest.raises(RolloutError, match="none of the 8 episodes .* connection: the app is gone"):
        one.generate(1, 0)
    assert store.load(1) is None  # it is played when the run is taken up again


def test_a_group_with_a_failed_episode_is_compared_without_it() -> None:
    one, _ = collector(grader="Longest", task=Questions(["reply 1"]))
    settled = step(one)
    assert ("reply 0", "reply 2", "reply 3") in ASKED
    assert rewards(settled)[:SIZE] == [1.0, None, 0.5, 0.0]


def test_sample_rate_draws_groups_the_same_for_the_same_step() -> None:
    drawing: dict[str, Any] = {"sample_rate": 0.5, "seed": 1, "combine_mode": "weighted_sum"}
    one, _ = collector(**drawing)
    drawn = []
    for number in range(1, 7):
        ASKED.clear()
        settled = step(one, number)
        groups = {rollout.rsplit("/", 1)[0] for rollout in ASKED}
        drawn.append(groups)
        rows = [row for row in settled.rows() if row["group"] not in groups]
        assert [row["reward"] for row in rows] == [row["env_reward"] for row in rows]
        metrics = settled.metrics
        assert metrics["judge/drawn_frac"] == len(groups) / 2
        there = [result.score for result in settled.results if result.score is not None]
        assert metrics["rollouts/mean_return"] == len(there) >= len(rows)
        assert metrics["mean_return"] == pytest.approx(sum(there) / len(there))
    assert 0 < sum(map(len, drawn)) < 12
    other, _ = collector(**drawing)
    ASKED.clear()
    step(other, 4)  # as after a resume: not the first that is asked
    assert {rollout.rsplit("/", 1)[0] for rollout in ASKED} == drawn[3]


def test_steps_begin_where_no_other_does_and_never_at_a_held_out_seed() -> None:
    one, _ = collector()
    begun = [row["seed"] for number in (1, 2, 3) for row in step(one, number).rows()[::SIZE]]
    assert len(set(begun)) == 6
    assert not set(begun) & {0, 1, 2, 3}
    again, _ = collector()
    assert [row["seed"] for row in step(again, 3).rows()[::SIZE]] == begun[4:]


def test_kept_rollouts_are_not_played_and_what_was_said_is_not_asked_again(tmp_path: Path) -> None:
    """Failures included: they were paid for, and the policy may have learned without them."""
    one, player = collector(store=RolloutStore(tmp_path))
    first = step(one)
    ASKED.clear()
    other, idle = collector(store=RolloutStore(tmp_path))
    again = other.score_batch(other.generate(1, 99))
    assert (player.runs, idle.runs) == (1, 0)
    assert ASKED == []
    assert again.rows() == first.rows()
    times = ("generate_s", "judge_wait_s")
    known, found = (
        {name: value for name, value in settled.metrics.items() if name not in times}
        for settled in (first, again)
    )
    assert found == known
    (tmp_path / "step-000001.judged.jsonl").unlink()
    assert step(collector(store=RolloutStore(tmp_path))[0]).rows() == first.rows()
    assert len(ASKED) == PER_STEP + 1


def test_a_group_is_asked_again_where_not_all_was_said(tmp_path: Path) -> None:
    store = RolloutStore(tmp_path)
    first = step(collector(grader="Longest", store=store)[0])
    path = tmp_path / "step-000001.judged.jsonl"
    path.write_bytes(path.read_bytes().splitlines(keepends=True)[0])
    ASKED.clear()
    again = step(collector(grader="Longest", store=store)[0])
    assert len(ASKED) == 1
    assert again.rows() == first.rows()


def test_the_lag_is_what_the_policy_is_behind() -> None:
    one, _ = collector()
    assert one.score_batch(one.generate(3, 1)).metrics["lag"] == 1.0
    assert one.score_batch(one.generate(4, 3)).metrics["lag"] == 0.0


def test_what_ends_the_run_comes_out_of_settling(monkeypatch: pytest.MonkeyPatch) -> None:
    from adjudge.errors import ConfigError

    async def refused(*_: Any, **__: Any) -> Any:
        raise ConfigError("no such key")

    monkeypatch.setattr(Place, "aevaluate", refused)
    one, _ = collector()
    batch = one.generate(1, 0)
    with pytest.raises(ConfigError, match="no such key"):
        one.score_batch(batch)
