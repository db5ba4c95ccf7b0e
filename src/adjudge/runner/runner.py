"""Many graders over many samples, at a stated concurrency, on the process's one event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from adjudge.engine.loop import run_blocking, run_on_engine
from adjudge.engine.tasks import run_all
from adjudge.errors import ConfigError, ErrorKind
from adjudge.runner.journal import Journal, sample_key
from adjudge.runner.progress import Progress, Tally
from adjudge.runner.question import GraderConfig, Question
from adjudge.types import GraderError, GraderResult, GraderScore, Sample

__all__ = ["Aggregator", "Dataset", "GradingRunner", "RunnerResult"]

Dataset = Sequence[Mapping[str, Any] | Sample]
"""Items to grade: samples, or mappings of field names to values."""

RunnerResult = dict[str, list[GraderResult]]
"""Per grader (and aggregator) one result per item, in input order."""

Aggregator = Callable[[Mapping[str, GraderResult]], Any]
"""From one item's results by grader name to a result or a number."""

# Synchronous graders run on the loop itself; other work there (judge calls, progress, Ctrl-C)
# waits no longer than this.
_YIELD_AFTER_S = 0.005


# Question, the sample's fields, where its result goes (list, position), the sample's journal key.
_Ask = tuple[Question, Mapping[str, Any], list[GraderResult | None], int, str]


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


class GradingRunner:
    """Grades datasets: every grader on every item, ``max_concurrency`` asks in flight.

    ``grader_configs`` maps a name to a :class:`GraderConfig` (or just a grader). Results stay in
    input order, and whatever a grader does to one item concerns that item alone. With a
    ``journal``, answers found there are not asked again and new ones are written to it; with a
    ``tally``, results are counted there (a caller's progress bar) and no bar is shown.

    One runner serves any thread and any event loop, step after step, also after a fork: it holds
    configuration only, and all its work happens on the process's engine loop.
    """

    def __init__(
        self,
        grader_configs: Mapping[str, Any],
        max_concurrency: int = 32,
        aggregators: Mapping[str, Aggregator] | Sequence[Aggregator] | Aggregator | None = None,
        show_progress: bool = True,
        journal: Journal | None = None,
        tally: Tally | None = None,
    ) -> None:
        if not grader_configs:
            raise ConfigError("GradingRunner needs at least one grader")
        if max_concurrency < 1:
            raise ConfigError(f"max_concurrency must be at least 1, got {max_concurrency}")
        self.grader_configs = {
            name: GraderConfig.create(config) for name, config in grader_configs.items()
        }
        self.max_concurrency = max_concurrency
        self.aggregators = _named_aggregators(aggregators)
        if taken := self.aggregators.keys() & self.grader_configs.keys():
            raise ConfigError(f"aggregator and grader share a name: {', '.join(sorted(taken))}")
        self.show_progress = show_progress
        self.journal = journal
        self.tally = tally

    async def arun(
        self, dataset: Dataset, *, graders: Iterable[str] | None = None, draw: int = 0
    ) -> RunnerResult:
        """Grade one dataset; ``graders`` picks some by name, ``draw`` numbers a repeated ask.

        Raises nothing on a grader's behalf: what failed is a ``GraderError`` in its place.
        """
        [result] = await self.arun_multiple_datasets([dataset], graders=graders, draw=draw)
        return result

    async def arun_multiple_datasets(
        self, datasets: Sequence[Dataset], *, graders: Iterable[str] | None = None, draw: int = 0
    ) -> list[RunnerResult]:
        """Grade several datasets as one stream of work; one result per dataset, in order."""
        return await run_on_engine(self._grade(datasets, graders, draw))

    def run(
        self, dataset: Dataset, *, graders: Iterable[str] | None = None, draw: int = 0
    ) -> RunnerResult:
        """:meth:`arun` from ordinary code; not on the engine's own loop (``RuntimeError``)."""
        return run_blocking(self.arun(dataset, graders=graders, draw=draw))

    def run_multiple_datasets(
        self, datasets: Sequence[Dataset], *, graders: Iterable[str] | None = None, draw: int = 0
    ) -> list[RunnerResult]:
        """:meth:`arun_multiple_datasets` from ordinary code."""
        return run_blocking(self.arun_multiple_datasets(datasets, graders=graders, draw=draw))

    async def _grade(
        self, datasets: Sequence[Dataset], graders: Iterable[str] | None, draw: int
    ) -> list[RunnerResult]:
        questions = [
            Question(name, self.grader_configs[name])
            for name in (self.grader_configs if graders is None else graders)
        ]
        slots = [{q.name: _empty(len(dataset)) for q in questions} for dataset in datasets]
        total = len(questions) * sum(len(dataset) for dataset in datasets)
        tally = self.tally or Tally(total)
        asks = self._asks(datasets, slots, questions, draw, tally)
        with Progress(tally, show=self.show_progress and self.tally is None and total > 1):
            try:
                await self._work(asks, min(self.max_concurrency, total), draw, tally)
            finally:
                if self.journal is not None:
                    self.journal.flush()
        return [self._aggregated(_full(slot)) for slot in slots]

    def _asks(
        self,
        datasets: Sequence[Dataset],
        slots: list[dict[str, list[GraderResult | None]]],
        questions: list[Question],
        draw: int,
        tally: Tally,
    ) -> Iterator[_Ask]:
        """What is to be asked, lazily, in input order; what the journal knows is filled in."""
        for dataset, slot in zip(datasets, slots, strict=True):
            columns = [(question, slot[question.name]) for question in questions]
            for position, item in enumerate(dataset):
                fields = item.fields() if isinstance(item, Sample) else item
                key = "" if self.journal is None else sample_key(fields)
                for question, results in columns:
                    if self.journal is not None and (
                        known := self.journal.take(key, question.name, draw)
                    ):
                        results[position] = known
                        tally.done += 1
                        tally.resumed += 1
                    else:
                        yield question, fields, results, position, key

    async def _work(self, asks: Iterator[_Ask], workers: int, draw: int, tally: Tally) -> None:
        """A fixed number of workers pull from one iterator: no task and no lock per item."""
        breather = _Breather()
        await run_all(self._worker(asks, draw, tally, breather) for _ in range(workers))

    async def _worker(
        self, asks: Iterator[_Ask], draw: int, tally: Tally, breather: _Breather
    ) -> None:
        journal = self.journal
        clock = time.perf_counter
        for question, fields, results, position, key in asks:
            while clock() > breather.until:
                await breather.breathe()
            result = await question.ask(fields, draw)
            results[position] = result
            tally.done += 1
            if type(result) is GraderError:
                tally.failures[result.kind] += 1
            elif journal is not None:
                journal.put(key, question.name, draw, result)

    def _aggregated(self, results: RunnerResult) -> RunnerResult:
        """``results`` with one more column per aggregator; an aggregator's failure is a value."""
        if not self.aggregators:
            return results
        names = list(results)
        rows = [dict(zip(names, row, strict=True)) for row in zip(*results.values(), strict=True)]
        for name, aggregator in self.aggregators.items():
            results[name] = [_aggregate(name, aggregator, row) for row in rows]
        return results


def _empty(length: int) -> list[GraderResult | None]:
    return [None] * length


def _full(slot: dict[str, list[GraderResult | None]]) -> RunnerResult:
    """``slot`` with nothing left open: every item has exactly one result per grader."""
    for name, results in slot.items():
        if None in results:
            raise RuntimeError(f"grader {name!r} left item {results.index(None)} without a result")
    return slot  # type: ignore[return-value]  # just checked


def _named_aggregators(
    aggregators: Mapping[str, Aggregator] | Sequence[Aggregator] | Aggregator | None,
) -> dict[str, Aggregator]:
    if aggregators is None:
        return {}
    if isinstance(aggregators, Mapping):
        return dict(aggregators)
    several = [aggregators] if callable(aggregators) else list(aggregators)
    named: dict[str, Aggregator] = {}
    for aggregator in several:
        name = str(getattr(aggregator, "name", "") or getattr(aggregator, "__name__", "aggregate"))
        if name in named:
            raise ConfigError(f"two aggregators are called {name!r}; pass a dict of names instead")
        named[name] = aggregator
    return named


def _aggregate(name: str, aggregator: Aggregator, row: Mapping[str, GraderResult]) -> GraderResult:
    try:
        answer = aggregator(row)
    except Exception as error:  # noqa: BLE001  (its failure is that item's result)
        return GraderError(name, ErrorKind.BUG, f"{type(error).__name__}: {error}")
    if isinstance(answer, bool | int | float):
        with suppress(ValueError):
            return GraderScore(name, float(answer))
        return GraderError(name, ErrorKind.OUT_OF_RANGE, f"{answer!r} is not a finite number")
    if isinstance(answer, GraderResult):
        return answer
    return GraderError(name, ErrorKind.BUG, f"returned {type(answer).__name__}")
