"""Samples of a group that meet at the service, one by one."""

import asyncio
from typing import Any
from unittest.mock import Mock

import pytest
from tests.unit.helpers.meeting import function, in_service, run_here, sample, settings

from adjudge.errors import ErrorKind, GradingFailure
from adjudge.service import rendezvous as module
from adjudge.service.rendezvous import Rendezvous
from adjudge.service.requests import RequestRefused
from adjudge.wire import GroupRequest, JudgeResponse


def meet(*requests: GroupRequest, made: Any = None, **given: Any) -> list[JudgeResponse]:
    async def main() -> list[JudgeResponse]:
        place = Rendezvous(made or function(), settings(**given))
        tasks = [asyncio.create_task(place.join(request)) for request in requests]
        answers = [await task for task in tasks]
        assert not place._open
        return answers

    found: list[JudgeResponse] = run_here(main())
    return found


def kind(response: JudgeResponse) -> ErrorKind | None:
    return None if response.error is None else response.error.kind


def group(response: JudgeResponse) -> Any:
    return (response.metadata or {}).get("group")


@in_service
async def test_pointwise_graders_are_asked_on_arrival_and_the_group_at_the_end() -> None:
    made = function(listwise=True, normalise=True)
    place = Rendezvous(made, settings())
    first = asyncio.create_task(place.join(sample("a", size=2)))
    await asyncio.sleep(10)
    assert made.graders["quality"].asked == 1
    assert made.graders["longest"].asked == []
    last = await place.join(sample("bb", size=2))
    assert made.graders["longest"].asked == [["a", "bb"]]
    assert (await first).score == pytest.approx(0.25)
    assert last.score == pytest.approx(0.75)


@in_service
async def test_a_sample_that_was_sent_may_still_be_aborted() -> None:
    made = function(group="centre")
    place = Rendezvous(made, settings())
    sent = asyncio.create_task(place.join(sample("a", 0.9, size=2, wait=100.0)))
    await asyncio.sleep(1)
    await place.join(sample("a", aborted=True, size=2))
    other = await place.join(sample("b", 0.4, size=2))
    assert other.score == 0.0
    assert group(other) == {"size": 2, "present": 1, "aborted": 1, "absent": 0}
    assert kind(await sent) is ErrorKind.CANCELLED
    assert asyncio.get_running_loop().time() < 2


def test_a_listwise_grader_that_fails_fails_the_group() -> None:
    answers = meet(
        sample("nobody", size=2), sample("b", size=2), made=function(listwise=True, normalise=True)
    )
    assert [kind(one) for one in answers] == [ErrorKind.UNPARSABLE] * 2
    assert answers[0].detailed_scores == {"quality": 0.5, "longest": None}


def test_a_panic_is_answered() -> None:
    made = function()
    made.reward = Mock(side_effect=BaseException("panic"))  # type: ignore[method-assign]
    with pytest.raises(BaseException, match="panic"):
        meet(sample("a", size=1), made=made)


def test_what_ranking_a_group_cost_is_said_once() -> None:
    answers = meet(
        *(sample(name, size=3) for name in ("a", "bb", "ccc")), made=function(listwise=True)
    )
    said = [one.metadata or {} for one in answers]
    assert sum(one.get("cost_usd", 0.0) for one in said) == pytest.approx(0.3)
    assert all(one["judges"] == ["ranker"] for one in said)


@pytest.mark.parametrize("where", ["alone", "together"])
@in_service
async def test_a_grader_that_hangs_is_cut_off(where: str) -> None:
    made = function(listwise=True, normalise=True, wait=1e6 if where == "together" else 0.0)
    place = Rendezvous(made, settings(deadline_s=60))
    wait = 1e6 if where == "alone" else 0.0
    answers = [
        asyncio.create_task(place.join(sample(name, size=2, wait=wait))) for name in ("a", "bb")
    ]
    assert [kind(await one) for one in answers] == [ErrorKind.TIMEOUT] * 2
    assert asyncio.get_running_loop().time() == pytest.approx(60)


@in_service
async def test_a_retry_finds_its_seat() -> None:
    made = function(group="centre")
    place = Rendezvous(made, settings())
    first = asyncio.create_task(place.join(sample("a", 0.0, size=2)))
    await asyncio.sleep(1)
    first.cancel()  # its connection broke
    again = asyncio.create_task(place.join(sample("a", 0.0, size=2)))
    both = asyncio.create_task(place.join(sample("a", 0.0, size=2)))
    other = await place.join(sample("b", 1.0, size=2))
    assert (other.score, (await again).score, (await both).score) == (0.5, -0.5, -0.5)
    late = await place.join(sample("a", 0.0, size=2))
    assert late.score == -0.5
    assert late is not await again  # each may add to its own
    assert made.graders["quality"].asked == 2


def place_of(said: dict[str, Any], **reward: Any) -> tuple[Rendezvous, Any]:
    """A rendezvous, and its listwise grader; a response's value is in ``said``."""

    def judge(response: str) -> float:
        value = said[response]
        if isinstance(value, str):
            raise GradingFailure(value, "the judge is away")
        return float(value)

    made = function(**reward)
    made.graders["quality"].func = judge
    return Rendezvous(made, settings()), made.graders.get("longest")


async def all_at(place: Rendezvous, *requests: GroupRequest) -> list[float | None]:
    tasks = [asyncio.create_task(place.join(request)) for request in requests]
    return [(await task).score for task in tasks]


A, B = sample("a", size=2), sample("b", size=2)


@pytest.mark.parametrize(
    ("before", "first", "comes", "again", "policy"),
    [
        ("timeout", None, [A, B], [-0.5, 0.5], "mask"),
        (1.0, 0.0, [A], [-0.5], "mask"),  # beside what is known of b
        (1.0, None, [A, B], [-0.5, 0.5], "drop_group"),
        ("unparsable", None, [A], [0.0], "mask"),
    ],
)
@in_service
async def test_a_failure_that_passes_is_judged_anew(
    before: Any, first: float | None, comes: list[GroupRequest], again: list[float], policy: str
) -> None:
    said: dict[str, Any] = {"a": "connection", "b": before}
    place, _ = place_of(said, group="centre", policy={"policy": policy})
    assert await all_at(place, A, B) == [None, first]
    said |= {"a": 0.0} if before == 1.0 else {"a": 0.0, "b": 1.0}
    assert await all_at(place, *comes) == again
    assert await all_at(place, *comes) == again  # remembered
    # What b was told stays; a failure that does not pass stays too.
    known = again[-1] if len(comes) == 2 else first
    assert await all_at(place, B) == [known]
    assert not place._open
    assert place._held_bytes == 0


@in_service
async def test_a_comparison_is_kept_where_a_sample_is_judged_anew() -> None:
    said: dict[str, Any] = {"a": "connection", "b": 0.5}
    place, longest = place_of(said, listwise=True, normalise=True)
    assert await all_at(place, A, B) == [None, 0.5]
    said["a"] = 0.5
    assert await all_at(place, A) == [0.5]
    assert longest.asked == [["a", "b"]]


def replayed(name: str, text: str) -> GroupRequest:
    return sample(name, size=2, completion=text, replays=True)


@pytest.mark.parametrize("when", ["open", "closed", "settled", "failed"])
@in_service
async def test_a_rollout_that_was_played_again_is_judged_by_its_last_text(when: str) -> None:
    said: dict[str, Any] = {"first": "connection" if when == "failed" else 0.0, "b": 1.0}
    said["second"] = 0.5
    place, _ = place_of(said, group="centre")
    first = asyncio.create_task(place.join(replayed("a", "first")))
    await asyncio.sleep(1)
    if when != "open":
        other = asyncio.create_task(place.join(replayed("b", "b")))
        await asyncio.sleep(0 if when == "closed" else 1)
    again = asyncio.create_task(place.join(replayed("a", "second")))
    if when == "open":
        await asyncio.sleep(1)
        other = asyncio.create_task(place.join(replayed("b", "b")))
    assert (await again).score == -0.25
    assert (await other).score == {"open": 0.25, "failed": 0.0}.get(when, 0.5)
    await first
    assert not place._open


@pytest.mark.parametrize(
    ("request_", "named"),
    [
        (sample("e", size=4), "already has its 4"),
        (sample("a", size=5), "the group has 4"),
        (sample("a", completion="other text"), "request_id"),
        (sample("", group="new"), "request_id"),
        (sample("x" * 300, group="new"), "request_id"),
        (sample("a", group=""), "group_id"),
        (sample("a", group="new", size=0), "group_size"),
        (sample("a", group="new", size=10_000), "group_size"),
        (sample("a", group="new", metadata={"run_id": 1}), "run_id"),
    ],
)
@pytest.mark.parametrize("settled", [False, True])
@in_service
async def test_what_contradicts_the_group_is_refused(
    request_: GroupRequest, named: str, settled: bool
) -> None:
    place = Rendezvous(function(), settings())
    wait = 0.0 if settled else 50.0
    tasks = [asyncio.create_task(place.join(sample(name, wait=wait))) for name in "abcd"]
    await asyncio.sleep(1)
    refused = await place.join(request_)
    assert kind(refused) is ErrorKind.INVALID_INPUT
    assert refused.error is not None
    assert named in refused.error.message
    assert [(await task).score for task in tasks] == [0.5] * 4


def test_runs_with_a_token_do_not_meet() -> None:
    answers = meet(
        *(sample("a", 0.0, size=1, metadata={"run_id": run}) for run in ("one", "two")),
        sample("a", 0.0, size=1),
    )
    assert [group(one)["present"] for one in answers] == [1, 1, 1]
    assert all(one.score == 0.0 for one in answers)


@in_service
async def test_open_groups_are_bounded() -> None:
    place = Rendezvous(function(), settings(queue_size=2))
    tasks = [asyncio.create_task(place.join(sample("a", size=2, group=g))) for g in ("g", "h")]
    await asyncio.sleep(1)
    with pytest.raises(RequestRefused, match="queue_size"):
        await place.join(sample("a", size=2, group="i"))
    for name in ("g", "h"):
        await place.join(sample("b", size=2, group=name))
    assert [(await task).score for task in tasks] == [0.5, 0.5]
    assert (await place.join(sample("a", size=1, group="i"))).score == 0.5


@in_service
async def test_texts_that_wait_are_bounded_also_of_those_who_went_away() -> None:
    place = Rendezvous(function(listwise=True), settings(max_body_mb=0.001))
    for number in range(15):
        request = sample(f"s{number}", size=20, completion="x" * 900)
        task = asyncio.create_task(place.join(request))
        await asyncio.sleep(1)
        task.cancel()
    late = sample("late", size=20, group="h", completion="x" * 900)
    with pytest.raises(RequestRefused, match="max_body_mb"):
        await place.join(late)
    assert len(place._open) == 1
    await asyncio.sleep(300)  # settled without the others, and its texts are gone
    assert not place._open
    first = asyncio.create_task(place.join(sample("a", size=2, group="h")))
    assert (await place.join(sample("bb", size=2, group="h"))).score is not None
    assert (await first).score is not None


@in_service
async def test_texts_that_no_grader_needs_any_more_take_no_room() -> None:
    place = Rendezvous(function(), settings(max_body_mb=0.001))
    names = [f"s{number}" for number in range(100)]
    tasks = []
    for name in names:
        request = sample(name, size=100, completion="x" * 800)
        tasks.append(asyncio.create_task(place.join(request)))
        await asyncio.sleep(0.1)
    assert [(await task).score for task in tasks] == [0.5] * 100


def test_old_answers_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_REMEMBERED", 3)

    async def main() -> int:
        made = function()
        place = Rendezvous(made, settings())
        for name in ("g", "h", "i", "j"):
            await place.join(sample("a", size=1, group=name))
        await place.join(sample("a", size=1, group="j"))
        await place.join(sample("a", size=1, group="g"))  # forgotten: judged again
        asked: int = made.graders["quality"].asked
        return asked

    assert run_here(main()) == 5


@in_service
async def test_a_fault_of_ours_reaches_everybody_who_waits() -> None:
    place = Rendezvous(function(), settings())
    broken = asyncio.create_task(place.join(sample("a", size=2)))
    place._judge_group = lambda *_: 1 / 0  # type: ignore[assignment, method-assign]
    with pytest.raises(ZeroDivisionError):
        await place.join(sample("b", size=2))
    with pytest.raises(ZeroDivisionError):
        await broken
    assert not place._open
