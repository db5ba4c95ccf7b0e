"""Many graders over many samples, at a stated concurrency, on the process's one event loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from adjudge.engine.loop import run_blocking, run_on_engine
from adjudge.errors import ConfigError
from adjudge.runner.answers import settled
from adjudge.runner.journal import Journal, sample_key
from adjudge.runner.progress import Progress, Tally
from adjudge.runner.question import GraderConfig, Question
from adjudge.runner.workers import Slot, Work, run_asks
from adjudge.types import GraderResult, Sample

__all__ = ["Aggregator", "Ask", "Dataset", "GradingRunner", "RunnerResult"]

Dataset = Sequence[Mapping[str, Any] | Sample]
"""Items to grade: samples, or mappings of field names to values."""

RunnerResult = dict[str, list[GraderResult]]
"""Per grader (and aggregator) one result per item, in input order."""

Aggregator = Callable[[Mapping[str, GraderResult]], Any]
"""From one item's results by grader name to a result or a number."""


class Ask(NamedTuple):
    """One question to one grader: the grader's name, an item's fields, the number of the draw."""

    grader: str
    fields: Mapping[str, Any]
    draw: int = 0


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

    async def arun(self, dataset: Dataset) -> RunnerResult:
        """Grade one dataset.

        What failed is a ``GraderError`` in its place. Only :class:`~adjudge.errors.ConfigError`
        goes through, as it is, and stops the run: what the user wrote (an endpoint's settings,
        say) is as wrong for every other item.
        """
        [result] = await self.arun_multiple_datasets([dataset])
        return result

    async def arun_multiple_datasets(self, datasets: Sequence[Dataset]) -> list[RunnerResult]:
        """Grade several datasets as one stream of work; one result per dataset, in order.

        Raises what :meth:`arun` raises.
        """
        return await run_on_engine(self._grade(datasets))

    async def aask(self, asks: Sequence[Ask]) -> tuple[list[GraderResult], list[bool]]:
        """Ask single questions; one result each, in order, and whether it was asked at all.

        What the journal knew was not asked. Raises :class:`~adjudge.errors.JudgeAuthError` as soon
        as a provider refuses the key, and :class:`~adjudge.errors.ConfigError` as soon as a grader
        does: every further call would fail too.
        """
        return await run_on_engine(self._ask(asks))

    def run(self, dataset: Dataset) -> RunnerResult:
        """:meth:`arun` from ordinary code; not on the engine's own loop (``RuntimeError``)."""
        return run_blocking(self.arun(dataset))

    def run_multiple_datasets(self, datasets: Sequence[Dataset]) -> list[RunnerResult]:
        """:meth:`arun_multiple_datasets` from ordinary code."""
        return run_blocking(self.arun_multiple_datasets(datasets))

    def _questions(self) -> list[Question]:
        return [Question(name, config) for name, config in self.grader_configs.items()]

    async def _grade(self, datasets: Sequence[Dataset]) -> list[RunnerResult]:
        questions = self._questions()
        slots = [{q.name: _empty(len(dataset)) for q in questions} for dataset in datasets]
        total = len(questions) * sum(len(dataset) for dataset in datasets)
        tally = self.tally or Tally(total)
        asks = self._slots(datasets, slots, questions, tally)
        with Progress(tally, show=self.show_progress and self.tally is None and total > 1):
            await run_asks(asks, min(self.max_concurrency, total), Work(self.journal, tally))
        return [self._aggregated(_full(slot)) for slot in slots]

    def _slots(
        self,
        datasets: Sequence[Dataset],
        slots: list[dict[str, list[GraderResult | None]]],
        questions: list[Question],
        tally: Tally,
    ) -> Iterator[Slot]:
        """What is to be asked, lazily, in input order; what the journal knows is filled in."""
        for dataset, slot in zip(datasets, slots, strict=True):
            columns = [(question, slot[question.name]) for question in questions]
            for place, item in enumerate(dataset):
                fields = item.fields() if isinstance(item, Sample) else item
                key = None if self.journal is None else _key(item, fields)
                for question, results in columns:
                    if key is None or not self._known(question, key, 0, results, place, tally):
                        yield question, fields, 0, results, place, key

    async def _ask(self, asks: Sequence[Ask]) -> tuple[list[GraderResult], list[bool]]:
        questions = {question.name: question for question in self._questions()}
        results = _empty(len(asks))
        asked = [True] * len(asks)
        tally = self.tally or Tally(len(asks))

        def slots() -> Iterator[Slot]:
            last: Mapping[str, Any] | None = None
            key: str | None = None
            for place, (name, fields, draw) in enumerate(asks):
                question = questions[name]
                if self.journal is not None and fields is not last:
                    key, last = sample_key(fields), fields
                if key is not None and self._known(question, key, draw, results, place, tally):
                    asked[place] = False
                else:
                    yield question, fields, draw, results, place, key

        work = Work(self.journal, tally, stop_on_auth=True)
        with Progress(tally, show=self.show_progress and self.tally is None and len(asks) > 1):
            await run_asks(slots(), min(self.max_concurrency, len(asks)), work)
        return _full({"": results})[""], asked

    def _known(
        self,
        question: Question,
        key: str,
        draw: int,
        results: list[GraderResult | None],
        place: int,
        tally: Tally,
    ) -> bool:
        """Fill in what the journal knows of one question, if it does."""
        known = self.journal.take(key, question.name, draw) if self.journal is not None else None
        if known is None:
            return False
        results[place] = known
        tally.done += 1
        tally.resumed += 1
        return True

    def _aggregated(self, results: RunnerResult) -> RunnerResult:
        """``results`` with one more column per aggregator; an aggregator's failure is a value."""
        if not self.aggregators:
            return results
        names = list(results)
        rows = [dict(zip(names, row, strict=True)) for row in zip(*results.values(), strict=True)]
        for name, aggregator in self.aggregators.items():
            results[name] = [settled(name, aggregator, row) for row in rows]
        return results


def _key(item: Mapping[str, Any] | Sample, fields: Mapping[str, Any]) -> str | None:
    """The journal's key; a sample's place among the rows is no part of what it says."""
    if isinstance(item, Sample):
        fields = {name: value for name, value in fields.items() if name != "index"}
    return sample_key(fields)


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
