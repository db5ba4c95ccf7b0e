"""A fixed number of workers that pull asks from one iterator: no task and no lock per item."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from adjudge.engine.tasks import run_all
from adjudge.errors import ErrorKind, JudgeAuthError
from adjudge.runner.journal import Journal
from adjudge.runner.progress import Tally
from adjudge.runner.question import Question
from adjudge.types import GraderError, GraderResult

__all__ = ["Slot", "Work", "run_asks"]

# Synchronous graders run on the loop itself; other work there (judge calls, progress, Ctrl-C)
# waits no longer than this.
_YIELD_AFTER_S = 0.005

Slot = tuple[Question, Mapping[str, Any], int, list[GraderResult | None], int, str | None]
"""Question, a sample's fields, the draw, where the result goes (list, place), the journal's key."""


class Work(NamedTuple):
    """What the workers of one run share; ``stop_on_auth``: a refused key ends the run."""

    journal: Journal | None
    tally: Tally
    stop_on_auth: bool = False


async def run_asks(asks: Iterator[Slot], workers: int, work: Work) -> None:
    """Ask everything, ``workers`` at a time; raises ``JudgeAuthError`` where that is asked for."""
    breather = _Breather()
    try:
        await run_all(_worker(asks, work, breather) for _ in range(workers))
    finally:
        if work.journal is not None:
            work.journal.flush()


async def _worker(asks: Iterator[Slot], work: Work, breather: _Breather) -> None:
    journal, tally, stop_on_auth = work
    clock = time.perf_counter
    for question, fields, draw, results, place, key in asks:
        while clock() > breather.until:
            await breather.breathe()
        result = await question.ask(fields, draw)
        results[place] = result
        tally.done += 1
        if type(result) is GraderError:
            tally.failures[result.kind] += 1
            if stop_on_auth and result.kind is ErrorKind.AUTH:
                raise JudgeAuthError(f"{question.name}: {result.error}")
        elif journal is not None and key is not None:
            journal.put(key, question.name, draw, result)


class _Breather:
    """Lets the loop's other work have a turn, however many workers there are.

    Workers that each yielded by themselves would run one after the other within one turn of the
    loop; here all of them wait for the same turn to pass.
    """

    def __init__(self) -> None:
        self.until = time.perf_counter() + _YIELD_AFTER_S
        self._turn: asyncio.Future[None] | None = None

    async def breathe(self) -> None:
        if self._turn is None:
            loop = asyncio.get_running_loop()
            self._turn = loop.create_future()
            loop.call_soon(self._go_on)
        await self._turn

    def _go_on(self) -> None:
        turn, self._turn = self._turn, None
        self.until = time.perf_counter() + _YIELD_AFTER_S
        if turn is not None and not turn.done():
            turn.set_result(None)
