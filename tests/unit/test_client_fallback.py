"""When a rule stands in for the judge: four cases, only if it was asked for, and nothing else."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from tests.unit.helpers.stand_in_service import StandIn, stand_in

from adjudge.client import JudgeRewardSystem

NOBODY = "http://127.0.0.1:9"
RIGHT = "so <answer>4</answer>"


@pytest.fixture
def service() -> Iterator[StandIn]:
    with stand_in() as running:
        yield running


def quick(url: str, **config: Any) -> JudgeRewardSystem:
    """One that gives up soon, and may fall back."""
    given = {"batch_timeout": 0.005, "max_retries": 0, "fallback_to_rule": True, **config}
    return JudgeRewardSystem({"judge_url": url, **given})


def by_rule(rewards: JudgeRewardSystem, caplog: pytest.LogCaptureFixture) -> dict[str, Any]:
    """The results for a right and a wrong completion, both by the rule."""
    with caplog.at_level(logging.WARNING, "JudgeReward"):
        right = rewards.reward("p", RIGHT, "4", "NUMBER")
        wrong = rewards.reward("p", "so <answer>5</answer>", "4", "NUMBER")
    assert (right["reward"], wrong["reward"]) == (1.0, 0.0)
    assert right["source"] == wrong["source"] == "rule_fallback"
    assert right["error"]
    assert rewards.get_metrics()["fallbacks"] == 2
    assert "a rule gives the score" in caplog.text
    assert RIGHT not in caplog.text
    rewards.close()
    return right


def test_fallback_1_the_server_is_unavailable(caplog: pytest.LogCaptureFixture) -> None:
    assert by_rule(quick(NOBODY), caplog)["error_kind"] == "connection"
    assert len(said(caplog)) == 1  # once for the outage


def test_fallback_2_requests_fail_after_retries(
    service: StandIn, caplog: pytest.LogCaptureFixture
) -> None:
    service.whole = lambda path, requests: (500, {"detail": "out of memory"})
    assert by_rule(quick(service.url, max_retries=1), caplog)["error_kind"] == "server_error"
    assert len(service.posts) == 4


def test_fallback_3_the_breaker_is_open_at_once(
    service: StandIn, caplog: pytest.LogCaptureFixture
) -> None:
    service.whole = lambda path, requests: (500, {})
    rewards = quick(service.url, circuit_breaker_threshold=1)
    rewards.reward("p", "first", "4", "JUDGE")  # which has no rule
    sent = len(service.posts)
    assert by_rule(rewards, caplog)["error_kind"] == "circuit_open"
    assert len(service.posts) == sent


def test_fallback_4_the_request_times_out(caplog: pytest.LogCaptureFixture) -> None:
    with stand_in(delay=5.0) as service:
        assert by_rule(quick(service.url, timeout=0.3), caplog)["error_kind"] == "timeout"


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.name == "JudgeReward"]


@pytest.mark.parametrize("fallback", [True, False])
def test_failures_of_a_kind_are_logged_once_for_a_while(
    service: StandIn, caplog: pytest.LogCaptureFixture, fallback: bool
) -> None:
    rewards = quick(service.url, fallback_to_rule=fallback, use_cache=False, max_batch_size=1)
    service.whole = lambda path, requests: (500, {})
    for _ in range(2):
        rewards.reward_batch(["p"] * 3, [RIGHT] * 3, ["4"] * 3)
    (message,) = said(caplog)
    assert message.startswith("a rule gives" if fallback else "the reward is missing")
    assert message.count(service.url) == 1
    rewards.close()


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (401, {"error": {"kind": "auth", "message": "wrong key"}}, "auth"),
        (422, {"error": {"kind": "invalid_input", "message": "prompt"}}, "invalid_input"),
        (404, {"detail": "Not Found"}, "invalid_input"),
        (503, {"error": {"kind": "unparsable", "message": "no verdict"}}, "unparsable"),
        (503, {"error": {"kind": "refused", "message": "no"}}, "refused"),
    ],
)
def test_nothing_else_falls_back(service: StandIn, status: int, body: Any, kind: str) -> None:
    service.whole = lambda path, requests: (status, body)
    with quick(service.url) as rewards:
        found = rewards.reward("p", RIGHT, "4", "NUMBER")
        assert (found["reward"], found["source"], found["error_kind"]) == (None, "none", kind)
        assert rewards.get_metrics()["fallbacks"] == 0


@pytest.mark.parametrize(
    ("completion", "answer", "answer_type", "reward"),
    [
        ("<answer>14</answer>", "4", "NUMBER", 0.0),
        ("<answer>(B)</answer>", "B", "MULTIPLE_CHOICE", 1.0),
        ("<answer>not true</answer>", "yes", "BOOLEAN", 0.0),
        ("<answer>Paris</answer>", "paris", None, 1.0),
        ("<answer>a, b</answer>", ["a", "b"], "ANY", 0.0),
        ("<answer>b</answer>", ["a", "b"], "ANY", 1.0),
        ("<answer>b</answer>", {"a": "b"}, "ANY", None),
        ("<answer>Paris</answer>", "paris", " exact", 0.0),
        (RIGHT, "4", "JUDGE", None),
        (RIGHT, "4", "SVG_CODE", None),
        (RIGHT, None, "NUMBER", None),
    ],
)
def test_rules_by_answer_type(
    completion: str, answer: Any, answer_type: str | None, reward: float | None
) -> None:
    with quick(NOBODY) as rewards:
        found = rewards.reward("p", completion, answer, answer_type)
        assert found["reward"] == reward
        assert found["source"] == ("none" if reward is None else "rule_fallback")
        assert ("the rule gives no score" in found["error"]) == (reward is None)
