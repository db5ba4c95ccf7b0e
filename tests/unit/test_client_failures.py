"""What becomes of a judge that fails: missing with a kind, or a rule's score where wanted."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from tests.unit.helpers.stand_in_service import (
    StandIn,
    score_of,
    system,
)

from adjudge.client import JudgeRewardSystem
from adjudge.errors import ErrorKind, GradingFailure, JudgeAuthError, JudgeUnavailable
from adjudge.wire import JudgeRequest, JudgeResponse

NOBODY = "http://127.0.0.1:9"
RIGHT = "so <answer>4</answer>"


def quick(url: str, **config: Any) -> JudgeRewardSystem:
    """One that gives up soon, and may fall back."""
    return system(url, **{"max_retries": 0, "fallback_to_rule": True, **config})


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.name == "JudgeReward"]


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
        service.whole = lambda path, requests: (200, {"error": {"kind": "budget", "message": "m"}})
        found = rewards.reward_batch(["p"] * 2, ["d", "dd"])
        assert [(one["reward"], one["error_kind"]) for one in found] == [(None, "budget")] * 2


@pytest.mark.parametrize("completion", [None, ["c", "d"], b"c", 3], ids=repr)
def test_a_completion_that_is_no_text_is_that_items_error(
    service: StandIn, completion: Any
) -> None:
    with quick(service.url) as rewards:
        found = rewards.reward_batch(["p", "p"], [completion, "c"], ["4", "4"], "NUMBER")
        assert [one["reward"] for one in found] == [None, 0.01]
        assert (found[0]["source"], found[0]["error_kind"]) == ("none", "invalid_input")
        assert "completion" in found[0]["error"]
        assert rewards.get_metrics()["failures"] == {"invalid_input": 1}


def test_a_missing_key_stops_before_sending(service: StandIn) -> None:
    with system(service.url, api_key_env="NO_SUCH_KEY") as rewards:
        found = rewards.reward("p", "c")
        assert found["error_kind"] == "auth"
        assert "NO_SUCH_KEY is not set" in found["error"]
        assert service.posts == []


def test_a_script_ends_where_no_request_will_do_better(
    service: StandIn, caplog: pytest.LogCaptureFixture
) -> None:
    error: dict[str, Any] = {"kind": "invalid_input", "message": "no such model", "final": True}
    service.each = lambda request: {"request_id": request["request_id"], "error": error}
    with system(service.url) as rewards:
        for n in range(7):
            assert rewards.reward("p", f"c{n}")["error_kind"] == "invalid_input"
        with pytest.raises(JudgeUnavailable, match="no such model"):
            rewards.reward("p", "c")
    error["final"] = False  # of these samples alone
    with system(service.url) as rewards:
        assert {one["reward"] for one in rewards.reward_batch(["p"] * 64, ["c"] * 64)} == {None}
    assert said(caplog)[-1] == "the reward is missing (invalid_input, 64 ×): no such model"
    error |= {"kind": "auth", "message": "wrong key"}
    with system(service.url) as rewards, pytest.raises(JudgeAuthError, match="wrong key"):
        rewards.reward_batch(["p"] * 8, [f"c{n}" for n in range(8)])


# ── a rule in the judge's place ──────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("kind", "config", "posts"),
    [
        ("connection", {}, 0),
        ("server_error", {"max_retries": 1}, 4),
        ("circuit_open", {"circuit_breaker_threshold": 1}, 1),
        ("timeout", {"timeout": 0.3}, 2),
    ],
)
def test_a_rule_replaces_a_judge_that_cannot_be_had(
    service: StandIn, caplog: pytest.LogCaptureFixture, kind: str, config: Any, posts: int
) -> None:
    """The seeds' four cases: away, failing after retries, given up, late."""
    service.whole = lambda path, requests: (500, {"detail": "out of memory"})
    service.delay = 2.0 if kind == "timeout" else 0.0
    with quick(NOBODY if kind == "connection" else service.url, **config) as rewards:
        if kind == "circuit_open":
            assert rewards.reward("p", "first", "4", "JUDGE")["reward"] is None  # which has no rule
            caplog.clear()
        with caplog.at_level(logging.WARNING, "JudgeReward"):
            right = rewards.reward("p", RIGHT, "4", "NUMBER")
            wrong = rewards.reward("p", "so <answer>5</answer>", "4", "NUMBER")
        assert (right["reward"], wrong["reward"]) == (1.0, 0.0)
        assert right["source"] == wrong["source"] == "rule_fallback"
        assert (right["error_kind"], len(service.posts)) == (kind, posts)
        assert rewards.get_metrics()["fallbacks"] == 2
    (message,) = said(caplog)  # once for the outage
    assert message.startswith("a rule gives the score")
    assert RIGHT not in caplog.text


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


def test_an_override_that_fails_falls_back_and_one_that_is_wrong_is_raised() -> None:
    """S11."""

    class Down(JudgeRewardSystem):
        def _request_judge(self, request: JudgeRequest) -> JudgeResponse:
            if request.completion == RIGHT:
                raise GradingFailure(ErrorKind.CONNECTION, "my backend is away")
            return request.completion_text  # type: ignore[attr-defined,no-any-return]  # (the point)

    assert Down({"judge_url": NOBODY}).compute_reward("p", RIGHT, "4").score is None
    falls = Down({"judge_url": NOBODY, "fallback_to_rule": True})
    found = falls.compute_reward("p", RIGHT, "4", "NUMBER")
    assert (found.score, found.source) == (1.0, "rule_fallback")
    with pytest.raises(AttributeError):
        falls.reward_batch(["p", "p"], ["c", "d"], ["4", "4"], "NUMBER")
