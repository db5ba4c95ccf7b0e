"""A spec's graders asked about a batch: once, again where it may help, and through an outage."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from adjudge.engine.clock import Clock, SystemClock
from adjudge.errors import JudgeUnavailable
from adjudge.graders.base import is_listwise
from adjudge.rewards.batch import Batch, Judged, Roster
from adjudge.rewards.missing import OutageWatch
from adjudge.rewards.samples import RewardSample
from adjudge.rewards.spec import RewardSpec
from adjudge.rewards.startup import StartupCheck
from adjudge.runner.journal import Journal
from adjudge.runner.progress import Tally
from adjudge.runner.question import GraderConfig
from adjudge.runner.runner import GradingRunner
from adjudge.types import GraderError, GraderResult, Role

__all__ = ["Panel"]

_log = logging.getLogger("adjudge")

_FIRST_WAIT_S = 1.0
_LONGEST_WAIT_S = 30.0
_SAY_EVERY_S = 0.9
_NOTE_CHARS = 120


class Panel:
    """The graders of a spec, and how they are asked.

    ``graders`` are the built objects by name. The same panel serves call after call; the outage
    watch looks back over calls. ``startup_patience_s``: how long to wait for a judge that has never
    been reached; by default ``patience_s`` of the spec.
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
        startup_patience_s: float | None = None,
    ) -> None:
        self._startup = StartupCheck(spec, graders)
        self._startup_patience_s = startup_patience_s
        self._clock = clock or SystemClock()
        self._settings = spec.missing
        self._watch = OutageWatch(spec.missing.max_missing)
        self._counting = spec.counting
        self._tally = tally
        self._said_at: float | None = None
        listwise = [entry.name for entry in spec.graders if is_listwise(graders[entry.name])]
        pointwise = [entry for entry in spec.graders if entry.name not in listwise]
        self._roster = Roster(
            outcome=[entry.name for entry in pointwise if entry.scope == "outcome"],
            event=[entry.name for entry in pointwise if entry.scope == "event"],
            group=listwise,
            roles={name: Role(getattr(g, "role", Role.SCORE)) for name, g in graders.items()},
        )
        self._runner = GradingRunner(
            {
                entry.name: GraderConfig(graders[entry.name], entry.mapper, entry.weight)
                for entry in spec.graders
            },
            spec.max_concurrency,
            show_progress=show_progress,
            journal=journal,
            tally=tally,
        )

    @property
    def needs_whole_groups(self) -> bool:
        """Whether a grader compares the samples of a group, so that all must come in one call."""
        return bool(self._roster.group)

    async def ask(
        self, samples: Sequence[RewardSample], groups: Sequence[str], sampled: Sequence[bool]
    ) -> list[Judged]:
        """One :class:`Judged` per sample, in order; runs on the engine loop.

        ``groups[i]`` names sample *i*'s group; only the ``sampled`` are asked about. Raises
        :class:`~adjudge.errors.JudgeUnavailable` after an outage of ``patience_s`` and
        :class:`~adjudge.errors.JudgeAuthError` when a provider refuses the key, a grader's
        :class:`~adjudge.errors.ConfigError`, and one for a grader that has never answered and
        cannot; see :class:`~adjudge.rewards.startup.StartupCheck`.
        """
        batch = Batch(samples, groups, sampled, self._roster, self._runner)
        self._startup.check_fields(batch.asks)
        await batch.ask()
        await self._ask_again(batch)
        judged = batch.judged()
        call = self._watch.begin(self._passing(judged))
        started, wait = self._clock.time(), _FIRST_WAIT_S
        while (unreachable := self._startup.unreachable(judged)) or self._watch.is_outage(call):
            absent = unreachable is not None
            patience = self._patience_s(unreachable)
            left = patience - (self._clock.time() - started)
            if left <= 0:
                raise JudgeUnavailable(self._unavailable(judged, unreachable, patience))
            self._say(judged, left)
            await self._clock.sleep(min(wait, left))
            wait = min(2 * wait, _LONGEST_WAIT_S)
            await self._ask_again(batch)
            judged = batch.judged()
            if absent and not self._startup.unreachable(judged):
                # It came up while the others of this round still failed at once.
                await self._ask_again(batch)
                judged = batch.judged()
            call[:] = self._passing(judged)
        if self._tally is not None:
            self._tally.note = ""
        if not self._startup.is_over:
            self._startup.check_answers(judged, samples)
        return judged

    def _patience_s(self, unreachable: GraderError | None) -> float:
        if unreachable is None or self._startup_patience_s is None:
            return self._settings.patience_s
        return self._startup_patience_s

    def _unavailable(
        self, judged: Sequence[Judged], unreachable: GraderError | None, patience_s: float
    ) -> str:
        """Why the run stops, the cause first."""
        if unreachable is not None:
            waited = f" for {patience_s:g} s" if patience_s else ""
            return f"{unreachable.name}: never reached its judge{waited}: {unreachable.error}"
        return (
            f"judges failed for more than {self._settings.max_missing:.0%} of the samples "
            f"for {patience_s:g} s (last: {_last_reason(judged)}); nothing was learned from it"
        )

    def _say(self, judged: Sequence[Judged], left: float) -> None:
        """Tell whoever watches that the run waits, and for what."""
        message = f"{_last_reason(judged)}; asking again for up to {left:.0f} s"
        if self._tally is not None:
            self._tally.note = message[:_NOTE_CHARS]
        # Many calls at once wait for the same judge: one of them says so.
        now = self._clock.time()
        if self._said_at is None or now - self._said_at >= _SAY_EVERY_S:
            self._said_at = now
            _log.warning("%s", message)

    async def _ask_again(self, batch: Batch) -> None:
        """Passing failures once more; a failed parse once with a new draw, and that once more."""
        await batch.ask_again(_passes)
        await batch.ask_again(_wants_redraw, draw=1)

    def _passing(self, judged: Sequence[Judged]) -> list[bool]:
        """Per sample that was really asked, whether it is missing for a reason that passes."""
        return [self._misses(one) for one in judged if one.asked]

    def _misses(self, one: Judged) -> bool:
        for name, result in one.results():  # mostly scores, so their type is looked at first
            if type(result) is GraderError and name in self._counting and result.passing:
                return True
        return False


def _passes(result: GraderResult) -> bool:
    return isinstance(result, GraderError) and result.passing


def _wants_redraw(result: GraderResult) -> bool:
    return isinstance(result, GraderError) and result.redrawable


def _last_reason(judged: Sequence[Judged]) -> str:
    for one in reversed(judged):
        for name, result in one.results():
            if _passes(result) and isinstance(result, GraderError):
                return f"{name}: {result.kind}: {result.error}"
    return "no reason given"
