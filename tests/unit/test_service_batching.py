"""The queue before a backend, in virtual time."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, cast

import pytest
from tests.unit.helpers.virtual_time import run_virtual

from adjudge.errors import ErrorKind
from adjudge.service import ServiceSettings
from adjudge.service.backend import Backend
from adjudge.service.queue import BackendQueue, FairSlots
from adjudge.service.requests import RequestRefused
from adjudge.wire import JudgeRequest, JudgeResponse

Score = Callable[[Sequence[JudgeRequest]], Awaitable[list[JudgeResponse]]]


class Scripted(Backend):
    name, version = "scripted", "1"

    def __init__(self, score: Score, one_by_one: bool = False) -> None:
        self.one_by_one = one_by_one
        self.calls: list[tuple[float, list[str]]] = []
        self.sizes: list[int] = []
        self._score = score

    async def score(self, requests: Sequence[JudgeRequest]) -> list[JudgeResponse]:
        now = asyncio.get_running_loop().time()
        self.calls.append((round(now, 6), [one.completion for one in requests]))
        said = await self._score(requests)
        cast("list[JudgeRequest]", requests).clear()  # it may do as it likes with its list
        return said


def taking(seconds: float) -> Score:
    async def score(requests: Sequence[JudgeRequest]) -> list[JudgeResponse]:
        await asyncio.sleep(seconds)
        return [JudgeResponse(float(len(one.completion))) for one in requests]

    return score


def asked(*completions: str) -> list[JudgeRequest]:
    return [JudgeRequest("p", one, request_id=one) for one in completions]


def batching(
    backend: Scripted, work: Callable[[BackendQueue], Coroutine[Any, Any, Any]], **settings: Any
) -> Any:
    async def run() -> Any:
        batcher = BackendQueue(backend, ServiceSettings(**settings), backend.sizes.append)
        found = await work(batcher)
        await asyncio.sleep(0)
        assert (batcher.queue.waiting, batcher.judging) == (0, 0)
        return found

    return run_virtual(run())


def answered(backend: Scripted, names: Sequence[str], **settings: Any) -> list[Any]:
    """The answers to requests that came together."""
    return list(batching(backend, lambda batcher: batcher.score(asked(*names)), **settings))


def test_a_batch_closes_when_its_oldest_has_waited() -> None:
    async def work(batcher: BackendQueue) -> None:
        async with asyncio.TaskGroup() as group:
            for name in ("a", "b", "c"):
                group.create_task(batcher.score(asked(name)))
                await asyncio.sleep(0.4)

    backend = Scripted(taking(0.0))
    batching(backend, work, batch_timeout=1.0, max_batch_size=8)
    assert backend.calls == [(1.0, ["a", "b", "c"])]


def test_a_full_batch_does_not_wait_and_batches_follow_each_other() -> None:
    backend = Scripted(taking(3.0))
    answers = answered(backend, "abcde", batch_timeout=1.0, max_batch_size=2)
    # The last has waited longer than its patience while the others were judged.
    assert backend.calls == [(0.0, ["a", "b"]), (3.0, ["c", "d"]), (6.0, ["e"])]
    assert [one.request_id for one in answers] == list("abcde")


def test_one_by_one_nothing_waits_for_others() -> None:
    backend = Scripted(taking(1.0), one_by_one=True)
    answered(backend, "abcde", concurrency=3, batch_timeout=9.0)
    assert [when for when, _ in backend.calls] == [0.0, 0.0, 0.0, 1.0, 1.0]
    backend.max_concurrency = 1
    answered(backend, "ab", concurrency=3)
    assert [when for when, _ in backend.calls[5:]] == [0.0, 1.0]


def test_the_deadline_counts_from_the_arrival_and_keeps_what_is_there() -> None:
    async def score(requests: Sequence[JudgeRequest]) -> list[JudgeResponse]:
        await asyncio.sleep(1.0 if requests[0].completion == "quick" else 100.0)
        return [JudgeResponse(1.0)] * len(requests)

    async def work(batcher: BackendQueue) -> list[JudgeResponse]:
        loop = asyncio.get_running_loop()
        answers = await batcher.score(asked("quick", "slow", "never begun"))
        assert loop.time() == pytest.approx(5.0)
        return answers

    backend = Scripted(score, one_by_one=True)
    quick, slow, unbegun = batching(backend, work, deadline_s=5.0, concurrency=1)
    assert quick.score == 1.0
    for one in (slow, unbegun):
        assert one.score is None
        assert one.error.kind is ErrorKind.TIMEOUT
    assert [names for _, names in backend.calls] == [["quick"], ["slow"]]


@pytest.mark.parametrize("idle", [0.0, 3600.0])
def test_a_full_queue_refuses_and_tells_when_there_is_room(idle: float) -> None:
    """Hours in which nobody asked say nothing about how fast the queue moves."""

    async def work(batcher: BackendQueue) -> RequestRefused:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(idle)
        first = loop.create_task(batcher.score(asked(*"x" * 30)))
        await asyncio.sleep(10.5)  # one a second: ten are done, one is being judged
        assert batcher.queue.waiting == 19
        with pytest.raises(RequestRefused) as caught:
            await batcher.score(asked("y", "z"))
        await first
        return caught.value

    backend = Scripted(taking(1.0), one_by_one=True)
    full = batching(backend, work, concurrency=1, queue_size=20)
    assert full.kind is ErrorKind.RATE_LIMITED
    assert 16 <= full.retry_after <= 22


def test_a_batch_longer_than_the_queue_gets_in_when_nothing_waits() -> None:
    assert len(answered(Scripted(taking(0.0)), "abcd", queue_size=2)) == 4


def test_one_who_leaves_does_not_cut_off_the_cleanup_of_another() -> None:
    cleaned: list[str] = []

    async def score(requests: Sequence[JudgeRequest]) -> list[JudgeResponse]:
        try:
            await asyncio.sleep(60.0)
        finally:
            await asyncio.sleep(1.0)
            cleaned.append(requests[0].completion)
        return []

    async def work(batcher: BackendQueue) -> None:
        loop = asyncio.get_running_loop()
        leaving = [loop.create_task(batcher.score(asked(name))) for name in "abcd"]
        await asyncio.sleep(0.5)
        for one in leaving:
            one.cancel()
            await asyncio.sleep(0.1)
        await asyncio.sleep(5.0)

    batching(Scripted(score, one_by_one=True), work)
    assert sorted(cleaned) == list("abcd")


def test_a_backend_that_swallows_its_cancellation_gets_the_next_batch_all_the_same() -> None:
    async def score(requests: Sequence[JudgeRequest]) -> list[JudgeResponse]:
        if requests[0].completion == "leaves":
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(50.0)
        elif requests[0].completion == "breaks":
            raise asyncio.CancelledError  # the backend's own doing
        return [JudgeResponse(1.0) for _ in requests]

    async def work(batcher: BackendQueue) -> list[JudgeResponse]:
        loop = asyncio.get_running_loop()
        leaving = loop.create_task(batcher.score(asked("leaves")))
        await asyncio.sleep(1.0)
        rest = [loop.create_task(batcher.score(asked(name))) for name in ("breaks", "stays")]
        leaving.cancel()
        return [(await one)[0] for one in rest]

    broken, judged = batching(Scripted(score), work, max_batch_size=1)
    assert broken.error.kind == ErrorKind.BUG
    assert judged.score == 1.0


def test_the_rest_of_the_loop_has_its_turn_between_batches() -> None:
    async def score(requests: Sequence[JudgeRequest]) -> list[JudgeResponse]:
        time.sleep(0.002)  # noqa: ASYNC251  (never awaits)
        return [JudgeResponse(1.0) for _ in requests]

    async def work(batcher: BackendQueue) -> int:
        asking = asyncio.get_running_loop().create_task(batcher.score(asked(*"abcdefgh")))
        turns = 0
        while not asking.done():
            turns += 1
            await asyncio.sleep(0)
        return turns

    assert batching(Scripted(score), work, max_batch_size=1) >= 8


@pytest.mark.parametrize(
    "raised", [ValueError, SystemExit, asyncio.CancelledError, GeneratorExit, BaseException]
)
def test_the_poison_is_found_in_few_calls(
    raised: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    names = [f"{number}" for number in range(64)]

    async def score(requests: Sequence[JudgeRequest]) -> list[JudgeResponse]:
        if any(one.completion in ("17", "40") for one in requests):
            raise raised("secret text")
        return [JudgeResponse(1.0)] * len(requests)

    backend = Scripted(score)
    with caplog.at_level(logging.ERROR, "adjudge.service"):
        answers = answered(backend, names, max_batch_size=64)
    for name, one in zip(names, answers, strict=True):
        if name in {"17", "40"}:
            assert one.error.kind is ErrorKind.BUG
            assert one.score is None
        else:
            assert one.score == 1.0
    assert len(backend.calls) <= 2 * 2 * 7
    assert backend.sizes == [64]  # judgements that were begun, however often they were asked for
    assert "secret text" not in caplog.text + str(answers)
    assert [raised.__name__ in one.message for one in caplog.records] == [True]


@pytest.mark.parametrize("returned", [None, [], [0.5], [JudgeResponse(1.0)] * 2])
def test_what_is_no_answer_is_a_bug(returned: Any) -> None:
    async def score(requests: Sequence[JudgeRequest]) -> list[JudgeResponse]:
        return returned  # type: ignore[no-any-return]

    [answer] = answered(Scripted(score), "a")
    assert answer.score is None
    assert answer.error.kind is ErrorKind.BUG
    assert answer.metadata["model_version"] == "1"


@pytest.mark.parametrize("one_by_one", [True, False])
def test_who_floods_waits_for_itself_alone(one_by_one: bool) -> None:
    """One client fills the queue and asks on; the other, with a few requests, is served at once."""

    async def flood(batcher: BackendQueue) -> int:
        refused = 0
        while True:
            try:
                await batcher.score(asked(*["flood"] * 8), "flooder")
            except RequestRefused as full:
                refused += 1
                await asyncio.sleep(full.retry_after or 1.0)

    async def work(batcher: BackendQueue) -> tuple[float, int]:
        loop = asyncio.get_running_loop()
        floods = [loop.create_task(flood(batcher)) for _ in range(40)]
        await asyncio.sleep(5.0)
        waiting = batcher.queue.share("flooder").waiting
        began = loop.time()
        for _ in range(10):
            answers = await batcher.score(asked("a", "b"), "polite")
            assert [one.score for one in answers] == [1.0, 1.0]
        took = loop.time() - began
        polite = batcher.queue.share("polite")
        assert (polite.begun, polite.waiting) == (20, 0)
        assert polite.wait_s / polite.begun <= 3.0
        for one in floods:
            one.cancel()
        await asyncio.wait(floods)
        return took, waiting

    took, waiting = batching(
        Scripted(taking(1.0), one_by_one), work, concurrency=2, max_batch_size=2, queue_size=100
    )
    assert waiting > 90  # two a second: in one line, each pair would wait for fifty seconds
    assert took <= 40.0


def test_weights_are_parts_of_the_work_and_of_the_places() -> None:
    async def work(batcher: BackendQueue) -> None:
        loop = asyncio.get_running_loop()
        asking = [loop.create_task(batcher.score(asked(*[name] * 40), name)) for name in ("A", "B")]
        await asyncio.sleep(0.5)
        assert [batcher.queue.places(batcher.queue.share(name)) for name in "AB"] == [75, 25]
        await asyncio.wait(asking)

    backend = Scripted(taking(1.0))
    batching(backend, work, client=("A=3", "B"), max_batch_size=1, queue_size=100)
    first = [name for _, [name] in backend.calls[:40]]
    assert 29 <= first.count("A") <= 31


def test_runs_that_somebody_invents_do_not_grow_the_queue_without_end() -> None:
    async def work(batcher: BackendQueue) -> int:
        loop = asyncio.get_running_loop()
        asking = [loop.create_task(batcher.score(asked("x"), f"run {n}")) for n in range(1000)]
        await asyncio.sleep(0.1)
        waiting, clients = batcher.queue.waiting, len(batcher.queue.shares)
        batcher.stop()
        await asyncio.wait(asking)
        assert clients <= 65
        return waiting

    assert batching(Scripted(taking(1.0)), work, max_batch_size=1, queue_size=20) < 100


def test_slots_go_by_turns_and_none_is_lost_with_those_who_leave() -> None:
    async def run() -> list[str]:
        slots, began = FairSlots(2), list[str]()

        async def work(name: str) -> None:
            async with slots.hold(name[0]):
                began.append(name)
                await asyncio.sleep(1)

        loop = asyncio.get_running_loop()
        tasks = [loop.create_task(work(name)) for name in ("a1", "a2", "a3", "a4", "a5", "b1")]
        await asyncio.sleep(0.5)
        tasks[0].cancel()  # holds a slot
        tasks[2].cancel()  # waits for one
        await asyncio.wait(tasks)
        assert loop.time() == 2.5
        return began

    assert run_virtual(run()) == ["a1", "a2", "b1", "a4", "a5"]
