"""Judges of one's own: an overridden request, and several judges at once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from tests.unit.helpers.stand_in_service import StandIn, score_of, stand_in

from adjudge.client import BaseJudgeReward, MultiCritiqueJudge
from adjudge.errors import ConfigError, ErrorKind, GradingFailure
from adjudge.wire import JudgeRequest, JudgeResponse

NOBODY = "http://127.0.0.1:9"
RIGHT = "so <answer>4</answer>"


@pytest.fixture
def service() -> Iterator[StandIn]:
    with stand_in() as running:
        yield running


def test_an_override_sees_each_request_and_may_ask_the_service(service: StandIn) -> None:
    seen: list[str] = []

    class MyCustomJudge(BaseJudgeReward):
        def _request_judge(self, request: JudgeRequest) -> JudgeResponse:
            seen.append(request.completion)
            if request.completion == "known":
                return JudgeResponse(score=0.5)
            response = super()._request_judge(request)
            assert response.score is not None
            return JudgeResponse(score=response.score / 2, explanation="halved")

    judge = MyCustomJudge({"judge_url": service.url, "max_concurrent_requests": 4})
    found = judge.compute_reward("p", "xxxx", "4")
    assert (found.score, found.explanation, found.source) == (0.02, "halved", "judge")
    many = judge.reward_batch(["p"] * 9, ["known", *("x" * n for n in range(8))])
    assert [one["reward"] for one in many] == [0.5, *(n / 200 for n in range(8))]
    assert asyncio.run(judge.areward("p", "known"))["reward"] == 0.5
    assert len(seen) == 11
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
    judge.close()


def test_an_override_that_fails_is_missing_or_falls_back() -> None:
    class Down(BaseJudgeReward):
        def _request_judge(self, request: JudgeRequest) -> JudgeResponse:
            raise GradingFailure(ErrorKind.CONNECTION, "my backend is away")

    assert Down({"judge_url": NOBODY}).compute_reward("p", RIGHT, "4").score is None
    falls = Down({"judge_url": NOBODY, "fallback_to_rule": True})
    found = falls.compute_reward("p", RIGHT, "4", "NUMBER")
    assert (found.score, found.source) == (1.0, "rule_fallback")


def test_several_judges_and_their_mean(service: StandIn) -> None:
    """S16: typed scores, the documented signature, and no mean over fewer judges."""
    with stand_in(each=lambda r: {**score_of(r), "score": 0.5}) as other:
        both = MultiCritiqueJudge([service.url, other.url], config={"batch_timeout": 0.001})
        found = both.score("p", "x" * 10, "4")
        assert found["score"] == pytest.approx(0.3)
        assert found["scores"] == [0.1, 0.5]
        both.close()
        other.whole = lambda path, requests: (500, {})
        config = {"batch_timeout": 0.001, "max_retries": 0}
        strict = MultiCritiqueJudge([service.url, other.url], config=config)
        found = strict.score("p", "x" * 10, "4")
        assert found["score"] is None
        assert "1 of 2 judges answered, 2 are needed" in found["explanation"]
        assert other.url in found["explanation"]
        strict.close()


def test_several_judges_need_a_list_a_known_way_and_no_rule() -> None:
    for judges, more in (
        (NOBODY, {}),
        ([NOBODY], {"reduce": "max"}),
        ([NOBODY], {"config": {"fallback_to_rule": True}}),
    ):
        with pytest.raises(ConfigError):
            MultiCritiqueJudge(judges, **more)
