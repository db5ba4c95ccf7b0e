"""What must never become another sample's number, a changed one, or a wait without end."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
from collections.abc import Iterator
from typing import Any

import pytest
from tests.unit.helpers.meeting import run_here, sample
from tests.unit.helpers.stand_in_service import StandIn, stand_in

from adjudge.client import BaseJudgeReward, JudgeRewardSystem
from adjudge.client.rendezvous import GroupClient
from adjudge.engine.loop import run_blocking
from adjudge.errors import ErrorKind, GradingFailure
from adjudge.judges.base import HttpRequest, HttpResponse
from adjudge.wire import JudgeRequest, JudgeResponse


@pytest.fixture
def service() -> Iterator[StandIn]:
    with stand_in() as running:
        yield running


class Halved(BaseJudgeReward):
    def _request_judge(self, request: JudgeRequest) -> JudgeResponse:
        response = super()._request_judge(request)
        assert response.score is not None
        response.score /= 2
        return response


class Labelled:
    """A column whose places are not its labels, as of a shuffled data frame."""

    def __init__(self, *values: str) -> None:
        self._values = values

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __getitem__(self, label: int) -> str:
        return self._values[-1 - label]


def test_who_changes_a_response_does_not_change_the_kept_one(service: StandIn) -> None:
    with Halved({"judge_url": service.url, "batch_timeout": 0.0}) as rewards:
        assert [rewards.reward("p", "x" * 8)["reward"] for _ in range(3)] == [0.04] * 3
        assert [one["reward"] for one in rewards.reward_batch(["p"] * 4, ["xx"] * 4)] == [0.01] * 4


def test_who_changes_a_reward_does_not_change_the_next(service: StandIn) -> None:
    service.each = lambda r: {
        "score": 1,
        "request_id": r["request_id"],
        "detailed_scores": {"a": 1},
    }
    with JudgeRewardSystem({"judge_url": service.url, "batch_timeout": 0.0}) as rewards:
        twice = rewards.reward_batch(["p"] * 2, ["c"] * 2)
        twice[0]["detailed_scores"]["a"] = 9
        assert twice[1]["detailed_scores"] == {"a": 1}
        assert rewards.reward("p", "c")["detailed_scores"] == {"a": 1}


def test_columns_are_read_by_place_and_not_by_label(service: StandIn) -> None:
    with JudgeRewardSystem({"judge_url": service.url}) as rewards:
        found = rewards.reward_batch(Labelled("p", "q"), Labelled("a", "bbb"), ["4", "5"])  # type: ignore[arg-type]
        assert [one["reward"] for one in found] == [0.01, 0.03]
        said = {(one["prompt"], one["completion"], one["answer"]) for one in service.requests}
        assert said == {("p", "a", "4"), ("q", "bbb", "5")}


@pytest.mark.parametrize("made", [Halved, JudgeRewardSystem])
def test_the_blocking_form_on_our_own_loop_is_refused_and_does_not_hang(
    service: StandIn, made: type[BaseJudgeReward]
) -> None:
    async def inside() -> None:
        made({"judge_url": service.url}).reward("p", "c")

    with pytest.raises(RuntimeError, match="await the asynchronous twin"):
        run_blocking(asyncio.wait_for(inside(), 10))


def test_who_waits_when_the_client_is_closed_gets_no_number_and_later_ones_an_error(
    service: StandIn,
) -> None:
    async def both() -> Any:
        rewards = JudgeRewardSystem({"judge_url": service.url})
        asked = asyncio.ensure_future(rewards.areward("p", "c"))
        await asyncio.sleep(0)
        await rewards.aclose()
        with pytest.raises(RuntimeError, match="closed"):
            await rewards.areward("p", "c")
        return await asked

    found = run_blocking(both())
    assert (found["reward"], found["error_kind"]) == (None, "cancelled")
    assert service.posts == []


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (200, {"metadata": {"group": "g"}}),
        (200, {"score": None, "metadata": {"group": "g"}}),
        (200, {"score": 0.5, "request_id": "another", "metadata": {"group": "g"}}),
        (500, {"score": 0.5, "request_id": "a", "metadata": {"group": "g"}}),
        (200, {"score": 0.5, "request_id": "a"}),
        (200, {"detail": "gateway"}),
    ],
)
def test_an_answer_without_a_group_members_own_score_is_a_failure(status: int, body: Any) -> None:
    class Line:
        async def post(self, base_url: str, request: HttpRequest) -> HttpResponse:
            return HttpResponse(status=status, headers={}, body=json.dumps(body).encode())

        async def aclose(self) -> None:
            pass

    async def check() -> None:
        client = GroupClient("http://judge:1", transport=Line())
        with pytest.raises(GradingFailure) as caught:
            await client.judge(sample("a", 0.5, size=1))
        assert caught.value.kind is ErrorKind.SERVER_ERROR

    run_here(check())


def test_an_error_in_a_200_is_missing_with_its_kind(service: StandIn) -> None:
    said = {"error": {"kind": "rate_limited", "message": "the account's limit"}}
    service.whole = lambda path, requests: (200, said)
    with JudgeRewardSystem({"judge_url": service.url, "max_retries": 0}) as rewards:
        assert rewards.reward("p", "c")["error_kind"] == "rate_limited"
        found = rewards.reward_batch(["p"] * 2, ["a", "bb"])
        assert [(one["reward"], one["error_kind"]) for one in found] == [(None, "rate_limited")] * 2


def test_a_client_serves_two_loops_and_a_forked_child(service: StandIn) -> None:
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
    rewards.close()


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
