"""The reward system against a stand-in service: results, batches, judges of one's own.

The numbers S1 to S17 are those of the defects of a published client of this kind.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.refusals import refuses
from tests.unit.helpers.stand_in_service import (
    StandIn,
    score_of,
    stand_in,
    system,
)

from adjudge.client import (
    BaseJudgeReward,
    JudgeRewardResult,
    JudgeRewardSystem,
    MultiCritiqueJudge,
    create_judge_reward,
)
from adjudge.engine.loop import run_blocking
from adjudge.errors import ConfigError
from adjudge.wire import JudgeRequest, JudgeResponse

NOBODY = "http://127.0.0.1:9"


def test_metrics_have_every_key_from_the_start(service: StandIn) -> None:
    """S9."""
    with system(service.url) as rewards:
        before = rewards.get_metrics()
        rewards.reward("p", "x" * 55)
        rewards.reward_batch(["p"] * 4, ["x" * n for n in (10, 20, 20, 300)])
        after = rewards.get_metrics()
    assert before.keys() == after.keys()
    assert {"batch_processing_rate", "in_flight_requests", "circuit_breaker"} <= after.keys()
    assert after["circuit_breaker"].keys() == {"state", "failure_count", "last_failure_time"}
    assert (after["total_requests"], after["errors"], after["error_rate"]) == (5, 0, 0.0)
    assert (after["cache_hit_rate"], after["current_queue_size"]) == (0.0, 0)
    assert after["batched_share"] == pytest.approx(3 / 4)
    assert after["latency"] > 0


def test_closing_is_clean_and_leaves_no_thread(service: StandIn) -> None:
    """S10."""
    system(service.url).reward("p", "c")  # the engine's own thread is there from now on
    before = threading.active_count()
    for _ in range(5):
        with system(service.url) as rewards:
            rewards.reward("p", "c")
        rewards.close()
        assert rewards.get_metrics()["total_requests"] == 1
        with pytest.raises(RuntimeError, match="closed"):
            rewards.reward("p", "other")
    assert threading.active_count() == before


def test_what_goes_along_with_a_completion(service: StandIn) -> None:
    with create_judge_reward({"judge_url": service.url}) as rewards:
        assert rewards.reward(prompt="p", completions="ccc", answer=None)["reward"] == 0.03
        both = rewards.reward("p", "c", completions="ccc")
        assert (both["reward"], both["error_kind"]) == (None, "invalid_input")
        more: dict[str, Any] = {"images": ["aGk="], "metadata": {"a": 1}, "b": 2}
        result = rewards.compute_reward("p", "c", request_id="mine", **more)
        assert isinstance(result, JudgeRewardResult)
        assert (result.score, result.request_id, result.error) == (0.01, "mine", None)
        assert service.requests[-1]["metadata"] == {"a": 1, "b": 2}
        assert service.requests[-1]["images"] == ["aGk="]
        kept = rewards.compute_reward("p", "c", request_id="other", **more)
        assert (kept.cached, kept.request_id) == (True, "other")


class Labelled(list[str]):
    """A column whose places are not its labels, as of a shuffled data frame."""

    def __getitem__(self, label: Any) -> Any:
        return super().__getitem__(-1 - label)


def test_columns_are_of_one_length_and_read_by_place_and_not_by_label(service: StandIn) -> None:
    columns: list[tuple[str, Any]] = [
        ("answers", (["p", "p"], ["a", "b"], ["x"])),
        ("completions", (["p", "p"], "ab")),
        ("prompts", ("pq", ["a", "b"])),
    ]
    with system(service.url) as rewards:
        assert rewards.reward_batch([], []) == []
        for name, given in columns:
            with refuses(f"reward_batch.{name}"):
                rewards.reward_batch(*given)
        with refuses("reward_batch.answer"):  # of a reward; the list has a name of its own
            rewards.reward_batch(["p"], ["a"], answer=["x"])
        prompts: Any = Labelled(["p", "q"])
        completions: Any = Labelled(["a", "bbb"])
        found = rewards.reward_batch(prompts, completions, ["4", "5"], "ANY", level=[1, 2])
        assert [one["reward"] for one in found] == [0.01, 0.03]
        said = [(one["prompt"], one["completion"], one["answer"]) for one in service.requests]
        assert said == [("p", "a", "4"), ("q", "bbb", "5")]
        assert service.requests[0]["metadata"] == {"level": 1}


def test_a_client_serves_two_loops_a_forked_child_and_a_copy(service: StandIn) -> None:
    rewards = JudgeRewardSystem({"judge_url": service.url, "use_cache": False})

    def child(sent: Any) -> None:
        sent.send(rewards.reward("p", "ccc")["reward"])

    for n in (1, 2):
        assert asyncio.run(rewards.areward("p", "c" * n))["reward"] == n / 100
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=child, args=(theirs,))
    process.start()
    assert ours.poll(20)
    assert ours.recv() == 0.03
    process.join(20)
    with pickle.loads(pickle.dumps(rewards)) as copy:
        assert (copy.settings, copy.get_metrics()["total_requests"]) == (rewards.settings, 0)
        assert copy.reward("p", "cccc")["reward"] == 0.04
    rewards.close()


def test_debug_shows_timing_and_no_text(service: StandIn, caplog: pytest.LogCaptureFixture) -> None:
    with system(service.url) as rewards, caplog.at_level(logging.DEBUG, "JudgeReward"):
        rewards.reward("secret prompt", "secret completion", request_id="r-7")
    (record,) = caplog.records
    assert record.name == "JudgeReward"
    assert record.message.startswith("request r-7: judge in ")
    assert "secret" not in caplog.text


def test_who_stops_waiting_gets_no_number_and_the_next_gets_its_own(service: StandIn) -> None:
    async def leave() -> float:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(rewards.areward("p", "c"), 0.1)
        service.delay = 0
        reward: float = (await rewards.areward("p", "cc"))["reward"]
        return reward

    service.delay = 0.5
    rewards = JudgeRewardSystem({"judge_url": service.url, "batch_timeout": 0.0})
    assert asyncio.run(leave()) == 0.02
    assert rewards.get_metrics()["failures"] == {"cancelled": 1}
    rewards.close()


def test_who_changes_a_reward_does_not_change_the_next(service: StandIn) -> None:
    service.each = lambda r: {**score_of(r), "detailed_scores": {"a": 1}}
    with system(service.url) as rewards:
        twice = rewards.reward_batch(["p"] * 2, ["c"] * 2)
        twice[0]["detailed_scores"]["a"] = 9
        assert twice[1]["detailed_scores"] == {"a": 1}
        assert rewards.reward("p", "c")["detailed_scores"] == {"a": 1}


def test_eight_threads_share_batches(service: StandIn) -> None:
    with system(service.url) as rewards, ThreadPoolExecutor(8) as threads:
        found = threads.map(lambda n: rewards.reward("p", "x" * n)["reward"], range(24))
        assert list(found) == [n / 100 for n in range(24)]
    assert len(service.posts) < 24


# ── judges of one's own ──────────────────────────────────────────────────────────────────────


class Halved(BaseJudgeReward):
    """Asks the service, but for what it knows, and changes what it is given."""

    def _request_judge(self, request: JudgeRequest) -> JudgeResponse:
        if request.completion == "known":
            return JudgeResponse(score=0.5)
        response = super()._request_judge(request)
        assert response.score is not None
        response.score /= 2
        return response


def test_an_override_sees_each_request_and_never_changes_the_kept_one(service: StandIn) -> None:
    judge = Halved({"judge_url": service.url, "batch_timeout": 0.0, "max_concurrent_requests": 4})
    found = judge.compute_reward("p", "xxxx", "4")
    assert (found.score, found.explanation, found.source) == (0.02, "4 characters", "judge")
    many = judge.reward_batch(["p"] * 9, ["known", *("x" * n for n in range(8))])
    assert [one["reward"] for one in many] == [0.5, *(n / 200 for n in range(8))]
    assert [judge.reward("p", "x" * 8)["reward"] for _ in range(2)] == [0.04] * 2
    assert asyncio.run(judge.areward("p", "known"))["reward"] == 0.5
    judge.close()


@pytest.mark.parametrize(
    ("returned", "score"),
    [
        ({"score": 1, "explanation": "e"}, 1.0),
        ({"error": {"kind": "refused", "message": "no"}}, None),
        ({"score": None}, None),
        (0.5, TypeError),
        (None, TypeError),
    ],
    ids=repr,
)
def test_what_an_override_may_return(returned: Any, score: Any) -> None:
    class Own(BaseJudgeReward):
        def _request_judge(self, request: JudgeRequest) -> JudgeResponse:
            found: JudgeResponse = returned
            return found

    judge = Own({"judge_url": NOBODY})
    if score is TypeError:
        with pytest.raises(TypeError, match="must return a JudgeResponse"):
            judge.compute_reward("p", "c")
    else:
        assert judge.compute_reward("p", "c").score == score


@pytest.mark.parametrize("raised", [StopIteration(), KeyboardInterrupt(), SystemExit()], ids=repr)
def test_whatever_an_override_raises_ends_its_own_call_alone(service: StandIn, raised: Any) -> None:
    class Raising(BaseJudgeReward):
        def _request_judge(self, request: JudgeRequest) -> JudgeResponse:
            raise raised

    service.delay = 0.3
    with system(service.url) as rewards, ThreadPoolExecutor() as threads:
        other = threads.submit(rewards.reward, "p", "cc")
        with pytest.raises((RuntimeError, SystemExit)):
            Raising({"judge_url": NOBODY}).reward("p", "c")
        assert other.result(10)["reward"] == 0.02


@pytest.mark.parametrize("made", [Halved, JudgeRewardSystem])
def test_one_call_has_scores_of_one_judge(service: StandIn, made: type[BaseJudgeReward]) -> None:
    """Kept ones, and those that came before the judge was replaced."""

    def each(request: dict[str, Any]) -> dict[str, Any]:
        late = request["completion"].startswith("late")
        scale = judge["scale"] = 100 if late else judge["scale"]
        score = scale * int(request["completion"][-1])
        return {**score_of(request), "score": score, "metadata": {"model_version": f"v{scale}"}}

    service.each, judge = each, {"scale": 2}
    with made({"judge_url": service.url, "max_batch_size": 2}) as rewards:
        by = rewards.reward("p", "1")["reward"] / 2
        found = rewards.reward_batch(["p"] * 4, ["1", "2", "3", "late 4"])
        said = [(one["reward"] / by, one["cached"]) for one in found]
        assert said == [(100, False), (200, False), (300, False), (400, False)]
        assert rewards.reward("p", "1")["cached"]
        counted = rewards.get_metrics()
        assert [counted[n] for n in ("total_requests", "scored", "cache_hits")] == [6, 6, 1]


@pytest.mark.parametrize("made", [Halved, JudgeRewardSystem])
def test_the_blocking_form_on_our_own_loop_is_refused_and_does_not_hang(
    service: StandIn, made: type[BaseJudgeReward]
) -> None:
    async def inside() -> None:
        made({"judge_url": service.url}).reward("p", "c")

    with pytest.raises(RuntimeError, match="await the asynchronous twin"):
        run_blocking(asyncio.wait_for(inside(), 10))


def test_several_judges_and_their_mean(service: StandIn) -> None:
    """S16: typed scores, the documented signature, and no mean over fewer judges."""
    with stand_in(each=lambda r: {**score_of(r), "score": 0.5}) as other:
        config = {"batch_timeout": 0.001, "max_retries": 0}
        both = MultiCritiqueJudge([service.url, other.url], config=config)
        found = both.score("p", "x" * 10, "4")
        assert found["score"] == pytest.approx(0.3)
        assert found["scores"] == [0.1, 0.5]
        other.whole = lambda path, requests: (500, {})
        found = both.score("p", "x" * 11, "4")
        assert (found["score"], found["scores"]) == (None, [0.11, None])
        assert "1 of 2 judges answered, 2 are needed" in found["explanation"]
        assert other.url in found["explanation"]
        both.close()


@pytest.mark.parametrize(
    ("judges", "more"),
    [
        (NOBODY, {}),
        ([], {}),
        ([NOBODY], {"reduce": "max"}),
        ([NOBODY], {"config": {"fallback_to_rule": 1}}),
    ],
)
def test_several_judges_need_a_list_a_known_way_and_no_rule(judges: Any, more: Any) -> None:
    with pytest.raises(ConfigError):
        MultiCritiqueJudge(judges, **more)


# ── a script written for an older reward system: only its import was replaced ────────────────────

SCRIPT = """
import os
RewardSystem = JudgeRewardSystem  # was: from reward.reward_system import RewardSystem

config = {"reward": {"type": "judge_model", "config": {
    "judge_url": "${JUDGE_MODEL_URL}", "api_key": "${JUDGE_MODEL_API_KEY}",
    "use_cache": True, "cache_size": 5000, "max_batch_size": 16, "batch_timeout": 0.005,
    "max_concurrent_requests": 32, "timeout": 30.0, "fallback_to_rule": True, "max_retries": 3,
}}}
reward_system = RewardSystem(config.get("reward", {}).get("config", {}))

reward_scores, printed = [], []
for global_step, batch in enumerate(batches):
    for item in batch:
        result = reward_system.reward(item["prompt"], item["completion"], item["answer"])
        reward_scores.append(result["reward"])
        assert result["source"] in ("judge", "rule_fallback")
    if global_step % 100 == 0:
        metrics = reward_system.get_metrics()
        printed.append(f"Circuit: {metrics['circuit_breaker']['state']}")
        for name in ("current_queue_size", "cache_hit_rate", "latency", "error_rate"):
            printed.append(f"{name}: {metrics[name]}")
"""


def test_just_replace_the_import(service: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_MODEL_URL", service.url)
    monkeypatch.delenv("JUDGE_MODEL_API_KEY", raising=False)
    batches = [
        [{"prompt": "p", "completion": "x" * (s + i), "answer": "4"} for i in range(4)]
        for s in range(3)
    ]
    names: dict[str, Any] = {"JudgeRewardSystem": JudgeRewardSystem, "batches": batches}
    exec(SCRIPT, names)
    assert names["reward_scores"] == [(s + i) / 100 for s in range(3) for i in range(4)]
    assert "Circuit: CLOSED" in names["printed"]
    counted = names["reward_system"].get_metrics()
    assert (counted["total_requests"], counted["cache_hits"]) == (12, 6)
    names["reward_system"].close()
