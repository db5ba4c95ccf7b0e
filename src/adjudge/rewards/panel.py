"""A spec's graders asked about a batch: once, again where it may help, and through an outage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from adjudge.engine.clock import Clock, SystemClock
from adjudge.errors import (
    REDRAW_KINDS,
    ErrorKind,
    JudgeAuthError,
    JudgeUnavailable,
)
from adjudge.graders.base import is_listwise
from adjudge.rewards.batch import Batch, Judged
from adjudge.rewards.missing import OutageWatch
from adjudge.rewards.samples import RewardSample
from adjudge.rewards.spec import RewardSpec
from adjudge.runner.journal import Journal
from adjudge.runner.progress import Tally
from adjudge.runner.question import GraderConfig
from adjudge.runner.runner import GradingRunner
from adjudge.types import GraderError, GraderResult, Role

__all__ = ["Panel"]

_FIRST_WAIT_S = 1.0
_LONGEST_WAIT_S = 30.0


class Panel:
    """The graders of a spec, by how they are asked: per sample, per event, per group.

    ``graders`` are the built objects by name. The same panel serves call after call; the outage
    watch looks back over calls.
    """

    def __init__(
        self,
        spec: RewardSpec,
        graders: Mapping[str, Any],
        *,
        clock: Clock | None = None,
        journal: Journal | None = None,
        show_progress: bool = False,
        tally: Tally | None = None,
    ) -> None:
        self._clock = clock or SystemClock()
        self._settings = spec.missing
        self._watch = OutageWatch(spec.missing.max_missing)
        self._counting = {entry.name for entry in spec.graders if entry.weight != 0}
        self._roles = {name: Role(getattr(g, "role", Role.SCORE)) for name, g in graders.items()}
        configs: dict[str, dict[str, GraderConfig]] = {"outcome": {}, "event": {}, "group": {}}
        for entry in spec.graders:
            grader = graders[entry.name]
            configs["group" if is_listwise(grader) else entry.scope][entry.name] = GraderConfig(
                grader, entry.mapper, entry.weight
            )
        self._runners = {
            how: GradingRunner(
                chosen,
                spec.max_concurrency,
                show_progress=show_progress,
                journal=journal,
                tally=tally,
            )
            for how, chosen in configs.items()
            if chosen
        }

    @property
    def needs_whole_groups(self) -> bool:
        """Whether a grader compares the samples of a group, so that all must come in one call."""
        return "group" in self._runners

    async def ask(
        self, samples: Sequence[RewardSample], groups: Sequence[str], sampled: Sequence[bool]
    ) -> list[Judged]:
        """One :class:`Judged` per sample, in order; runs on the engine loop.

        ``groups[i]`` names sample *i*'s group; only the ``sampled`` are asked about. Raises
        :class:`JudgeUnavailable` after an outage of ``patience_s`` and :class:`JudgeAuthError`
        when a provider refuses the key.
        """
        batch = Batch(samples, groups, sampled, self._runners)
        await batch.ask()
        await batch.ask_again(_passes)
        await batch.ask_again(_wants_redraw, draw=1)
        judged = self._judged(batch)
        if self._watch.record(self._passing(judged)):
            judged = await self._outlast(batch, judged)
        return judged

    async def _outlast(self, batch: Batch, judged: list[Judged]) -> list[Judged]:
        """Keep asking until the outage is over or the patience is."""
        started, wait = self._clock.time(), _FIRST_WAIT_S
        while True:
            left = self._settings.patience_s - (self._clock.time() - started)
            if left <= 0:
                raise JudgeUnavailable(
                    f"judges failed for more than {self._settings.max_missing:.0%} of the samples "
                    f"for {self._settings.patience_s:g} s ({_last_reason(judged)}); "
                    "nothing was learned from it"
                )
            await self._clock.sleep(min(wait, left))
            wait = min(2 * wait, _LONGEST_WAIT_S)
            await batch.ask_again(_passes)
            judged = self._judged(batch)
            if not self._watch.replace_last(self._passing(judged)):
                return judged

    def _judged(self, batch: Batch) -> list[Judged]:
        judged = batch.judged(self._roles)
        for one in judged:
            for name, result in one.results():
                if isinstance(result, GraderError) and result.kind is ErrorKind.AUTH:
                    raise JudgeAuthError(f"{name}: {result.error}")
        return judged

    def _passing(self, judged: Sequence[Judged]) -> list[bool]:
        """Per asked sample, whether it is missing for a reason that passes."""
        return [
            any(name in self._counting and _passes(result) for name, result in one.results())
            for one in judged
            if one.sampled
        ]


def _passes(result: GraderResult) -> bool:
    return isinstance(result, GraderError) and result.passing


def _wants_redraw(result: GraderResult) -> bool:
    return isinstance(result, GraderError) and result.kind in REDRAW_KINDS


def _last_reason(judged: Sequence[Judged]) -> str:
    for one in reversed(judged):
        for name, result in one.results():
            if isinstance(result, GraderError) and result.passing:
                return f"last: {name}: {result.kind}: {result.error}"
    return "no reason given"
