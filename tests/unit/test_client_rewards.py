"""The reward system against a stand-in service: results, fallback, what earlier clients got wrong.

The numbers S1 to S17 are those of the defects of a published client of this kind.
"""

from __future__ import annotations

import logging
import pickle
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from tests.refusals import refuses
from tests.unit.helpers.stand_in_service import StandIn, score_of, stand_in

from adjudge.client import JudgeRewardResult, JudgeRewardSystem, create_judge_reward
from adjudge.errors import JudgeAuthError, JudgeUnavailable
from adjudge.wire import JudgeRequest, JudgeResponse

RIGHT = "so <answer>4</answer>"


@pytest.fixture
def service() -> Iterator[StandIn]:
    with stand_in() as running:
        yield running


@pytest.fixture(autouse=True)
def no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JUDGE_MODEL_API_KEY", raising=False)


def system(url: str, **config: Any) -> JudgeRewardSystem:
    return JudgeRewardSystem({"judge_url": url, "batch_timeout": 0.005, **config})


def quick(url: str, **config: Any) -> JudgeRewardSystem:
    """One that gives up soon, and may fall back."""
    return system(url, **{"max_retries": 0, "fallback_to_rule": True, **config})


def test_a_failed_item_of_a_batch_is_missing_and_never_a_number(service: StandIn) -> None:
    """S7."""

    def each(request: dict[str, Any]) -> dict[str, Any]:
        if "b" in request["completion"]:
            error = {"kind": "unparsable", "message": "no verdict in the reply"}
            return {"request_id": request["request_id"], "error": error}
        return score_of(request)

    service.each = each
    with system(service.url) as rewards:
        found = rewards.reward_batch(["p"] * 3, ["a", "bb", "ccc"])
        assert [one["reward"] for one in found] == [0.01, None, 0.03]
        assert (found[1]["source"], found[1]["error_kind"]) == ("none", "unparsable")
        assert found[1]["error"] == "no verdict in the reply"
        assert "error" not in found[0]


def test_metrics_have_every_key_from_the_start(service: StandIn) -> None:
    """S9."""
    with system(service.url) as rewards:
        before = rewards.get_metrics()
        rewards.reward("p", "x" * 55)
        rewards.reward_batch(["p"] * 4, ["x" * n for n in (10, 20, 20, 300)])
        after = rewards.get_metrics()
        assert before.keys() == after.keys()
        assert {
            "total_requests",
            "cache_hit_rate",
            "batch_processing_rate",
            "current_queue_size",
            "in_flight_requests",
            "errors",
            "circuit_breaker",
            "latency",
            "error_rate",
        } <= after.keys()
        assert after["circuit_breaker"].keys() == {"state", "failure_count", "last_failure_time"}
        assert (after["total_requests"], after["errors"], after["error_rate"]) == (5, 0, 0.0)
        assert after["batched_share"] == pytest.approx(3 / 4)
        assert after["latency"] > 0
        assert rewards.get_metrics()["current_queue_size"] == 0


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


def test_programming_errors_never_fall_back(service: StandIn) -> None:
    """S11."""

    class Wrong(JudgeRewardSystem):
        def _request_judge(self, request: JudgeRequest) -> JudgeResponse:
            return request.completion_text  # type: ignore[attr-defined,no-any-return]  # (the point)

    rewards = Wrong({"judge_url": service.url, "fallback_to_rule": True})
    with pytest.raises(AttributeError):
        rewards.reward("p", RIGHT, "4", "NUMBER")
    with pytest.raises(AttributeError):
        rewards.reward_batch(["p", "p"], [RIGHT, RIGHT], ["4", "4"], "NUMBER")
    rewards.close()


@pytest.mark.parametrize("completion", [None, ["c", "d"], b"c", 3], ids=repr)
def test_a_completion_that_is_no_text_is_that_items_error(
    service: StandIn, completion: Any
) -> None:
    with quick(service.url) as rewards:
        found = rewards.reward("p", completion, answer="4", answer_type="NUMBER")
        assert (found["reward"], found["source"]) == (None, "none")
        assert found["error_kind"] == "invalid_input"
        assert "completion" in found["error"]
        assert service.requests == []


def test_the_older_keyword_and_the_others(service: StandIn) -> None:
    with system(service.url) as rewards:
        assert rewards.reward(prompt="p", completions="ccc", answer=None)["reward"] == 0.03
        result = rewards.compute_reward(
            "p", "c", request_id="mine", images=["aGk="], metadata={"a": 1}, b=2
        )
        assert (result.score, result.request_id) == (0.01, "mine")
        assert service.requests[-1]["metadata"] == {"a": 1, "b": 2}
        assert service.requests[-1]["images"] == ["aGk="]
        kept = rewards.compute_reward(
            "p", "c", request_id="other", images=["aGk="], metadata={"a": 1}, b=2
        )
        assert (kept.cached, kept.request_id) == (True, "other")


def test_columns_must_be_of_one_length(service: StandIn) -> None:
    with system(service.url) as rewards:
        assert rewards.reward_batch([], []) == []
        with refuses("reward_batch.answers"):
            rewards.reward_batch(["p", "p"], ["a", "b"], ["x"])
        with refuses("reward_batch.completions"):
            rewards.reward_batch(["p", "p"], "ab")
        with refuses("reward_batch.prompts"):
            rewards.reward_batch("pq", ["a", "b"])
        found = rewards.reward_batch(["p", "p"], ["a", None], ["x", "y"], "ANY", level=[1, 2])  # type: ignore[list-item]  # (one that is missing)
        assert [one["reward"] for one in found] == [0.01, None]
        assert service.requests[0]["metadata"] == {"level": 1}


def test_it_pickles_as_configuration(service: StandIn) -> None:
    rewards = system(service.url, max_batch_size=3)
    rewards.reward("p", "c")
    copy = pickle.loads(pickle.dumps(rewards))
    assert copy.settings == rewards.settings
    assert copy.get_metrics()["total_requests"] == 0
    assert copy.reward("p", "c")["reward"] == 0.01
    copy.close()
    assert rewards.reward("p", "cc")["reward"] == 0.02
    rewards.close()


def test_debug_shows_timing_and_no_text(service: StandIn, caplog: pytest.LogCaptureFixture) -> None:
    with system(service.url) as rewards, caplog.at_level(logging.DEBUG, "JudgeReward"):
        rewards.reward("secret prompt", "secret completion", request_id="r-7")
    (record,) = caplog.records
    assert record.name == "JudgeReward"
    assert record.message.startswith("request r-7: judge in ")
    assert "secret" not in caplog.text


def test_create_judge_reward(service: StandIn) -> None:
    judge = create_judge_reward({"judge_url": service.url, "batch_timeout": 0.0})
    found = judge.compute_reward("p", "ccc", "4", "NUMBER")
    assert isinstance(found, JudgeRewardResult)
    assert (found.score, found.cached, found.error) == (0.03, False, None)
    judge.close()


def test_a_key_travels_and_a_missing_one_stops_before_sending(
    service: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_JUDGE_KEY", "k1")
    with system(service.url, api_key="${MY_JUDGE_KEY}") as rewards:
        rewards.reward("p", "c")
        assert service.keys == ["Bearer k1"]
    monkeypatch.delenv("MY_JUDGE_KEY")
    with system(service.url, api_key_env="MY_JUDGE_KEY") as rewards:
        found = rewards.reward("p", "c")
        assert found["error_kind"] == "auth"
        assert "MY_JUDGE_KEY is not set" in found["error"]
        assert len(service.posts) == 1


def test_a_script_ends_where_no_request_will_do_better(service: StandIn) -> None:
    error: dict[str, Any] = {
        "kind": "invalid_input",
        "message": "404: no such model",
        "final": True,
    }
    service.each = lambda request: {"request_id": request["request_id"], "error": error}
    with system(service.url) as rewards:
        for n in range(7):
            assert rewards.reward("p", f"c{n}")["error_kind"] == "invalid_input"
        with pytest.raises(JudgeUnavailable, match="no such model"):
            rewards.reward("p", "c")
    error["final"] = False  # of these samples alone
    with system(service.url) as rewards:
        assert {one["reward"] for one in rewards.reward_batch(["p"] * 64, ["c"] * 64)} == {None}
    error |= {"kind": "auth", "message": "wrong key"}
    with system(service.url) as rewards, pytest.raises(JudgeAuthError, match="wrong key"):
        rewards.reward_batch(["p"] * 8, [f"c{n}" for n in range(8)])
