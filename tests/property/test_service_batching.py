"""The batcher under random arrivals, cancellations and faults: nothing lost, doubled or swapped."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from hypothesis import given, strategies as st
from tests.unit.helpers.virtual_time import run_virtual

from adjudge.errors import ErrorKind
from adjudge.service import ServiceSettings
from adjudge.service.backend import Backend
from adjudge.service.queue import BackendQueue
from adjudge.service.requests import RequestRefused
from adjudge.wire import JudgeRequest, JudgeResponse

WORDS = ("fine", "fine", "fine", "poison", "nan", "slow")


class Caller(NamedTuple):
    at: float
    words: list[str]
    leaves_after: float | None


class Random(Backend):
    name, version = "random", "1"

    def __init__(self, one_by_one: bool, limit: int) -> None:
        self.one_by_one = one_by_one
        self.answered: Counter[str] = Counter()
        self.limit = limit
        self.at_once = 0

    async def score(self, requests: Sequence[JudgeRequest]) -> list[JudgeResponse]:
        assert 1 <= len(requests) <= (1 if self.one_by_one else self.limit)
        self.at_once += 1
        assert self.at_once <= (self.limit if self.one_by_one else 1)
        try:
            words = {one.completion for one in requests}
            await asyncio.sleep(3.0 if "slow" in words else 0.25)
            if "poison" in words:
                raise KeyError("poison")
        finally:
            self.at_once -= 1
        for one in requests:
            assert one.request_id is not None
            self.answered[one.request_id] += 1
        return [
            JudgeResponse(float("nan") if one.completion == "nan" else float(one.prompt or "nan"))
            for one in requests
        ]


callers = st.builds(
    Caller,
    st.floats(0, 5),
    st.lists(st.sampled_from(WORDS), min_size=1, max_size=5),
    st.none() | st.floats(0, 4),
)


@given(
    st.lists(callers, min_size=1, max_size=20),
    st.booleans(),
    st.integers(1, 4),
    st.sampled_from([0.0, 0.1, 1.0]),
    st.sampled_from([2, 10, 1000]),
    st.sampled_from([1.0, 4.0, 600.0]),
)
def test_every_request_has_exactly_its_own_answer(
    callers: list[Caller], one_by_one: bool, size: int, patience: float, queue: int, deadline: float
) -> None:
    backend = Random(one_by_one, size)
    chosen = ServiceSettings(
        max_batch_size=size, concurrency=size, batch_timeout=patience, queue_size=queue,
        deadline_s=deadline,
    )  # fmt: skip

    async def call(batcher: BackendQueue, number: int, caller: Caller) -> None:
        await asyncio.sleep(caller.at)
        prompts = [f"{number}{place}" for place in range(len(caller.words))]
        requests = [
            JudgeRequest(prompt, word, request_id=prompt)
            for prompt, word in zip(prompts, caller.words, strict=True)
        ]
        began = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(caller.leaves_after):
                answers = await batcher.score(requests)
        except TimeoutError:
            return
        except RequestRefused:
            return
        assert asyncio.get_running_loop().time() <= began + deadline + 1e-3
        assert [one.request_id for one in answers] == prompts
        for request, answer in zip(requests, answers, strict=True):
            assert (answer.score is None) != (answer.error is None)
            if answer.error is None:
                assert request.completion in {"fine", "slow"}
                assert answer.score == float(request.prompt or "nan")
            elif answer.error.kind is not ErrorKind.TIMEOUT:
                expected = {"poison": ErrorKind.BUG, "nan": ErrorKind.OUT_OF_RANGE}
                assert answer.error.kind is expected[request.completion]

    async def run() -> None:
        batcher = BackendQueue(backend, chosen, lambda size: None)
        async with asyncio.TaskGroup() as group:
            for number, caller in enumerate(callers):
                group.create_task(call(batcher, number, caller))
        await asyncio.sleep(10)
        assert (batcher.queue.waiting, batcher.judging, backend.at_once) == (0, 0, 0)

    run_virtual(run())
    assert all(times == 1 for times in backend.answered.values())
