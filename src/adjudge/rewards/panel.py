"""A spec's graders asked about a batch: once, again where it may help, and through an outage.

A grader that fails for one sample leaves that reward missing. One that has answered *nothing* since
the process started is another matter: a wrong model name, a template with an unknown field, a judge
that never keeps to the form. It would fail for every sample of the run, so the run stops in its
first step, before it learns from the few rewards that are left.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from adjudge.engine.clock import Clock, SystemClock
from adjudge.errors import ConfigError, ErrorKind, GradingFailure, JudgeUnavailable
from adjudge.graders.base import is_listwise
from adjudge.rewards.batch import GradedSample, GraderNames, GradingBatch
from adjudge.rewards.groups import OutageWatch
from adjudge.rewards.spec import RewardSpec
from adjudge.runner.binding import ArgumentBinding, GraderConfig
from adjudge.runner.journal import Journal, sample_key
from adjudge.runner.runner import GradingRequest, GradingRunner, Tally
from adjudge.types import GraderError, GraderResult, GraderScore, RewardSample, Role

MIN_FAILED_SAMPLES = 16
"""Distinct samples that must all have failed before "every reply" is a fact: a policy can write one
answer that its judge replies to unreadably, and a group of a few that are much alike."""

_UNREADABLE_KINDS = frozenset(
    {ErrorKind.UNPARSABLE, ErrorKind.OUT_OF_RANGE, ErrorKind.TRUNCATED, ErrorKind.INCOMPLETE}
)
_SETUP_KINDS = frozenset({ErrorKind.INVALID_INPUT, ErrorKind.BUG})
_TOO_LONG = re.compile(r"too (?:long|large|many)|context|maximum|exceed|token", re.IGNORECASE)
_NOT_FOUND_STATUSES = (404, 405, 410)
_REQUEST_STATUSES = (408, 409, 413, 425, 429)


class StartupCheck:
    """Watches a spec's graders until each has answered once; then it costs nothing.

    Watched are the graders without which a reward is missing. A spec with ``max_missing = 1.0``
    goes on whatever is missing, so nothing is watched. Used on the engine's loop alone.
    """

    def __init__(self, spec: RewardSpec, graders: Mapping[str, Any]) -> None:
        self._where, self._graders = spec.where, graders
        watched = [one for one in spec.graders if one.name in spec.counting]
        if spec.missing.max_missing >= 1.0:
            watched = []
        self._unanswered = {one.name for one in watched}
        self._bindings = {
            one.name: (graders[one.name], ArgumentBinding(one.name, graders[one.name], one.mapper))
            for one in watched
            if hasattr(graders[one.name], "check_fields")
        }
        self._failed: dict[str, set[Any]] = {name: set() for name in self._unanswered}

    @property
    def is_over(self) -> bool:
        """Whether every grader has answered."""
        return not self._unanswered

    def check_fields(self, asks: Iterable[GradingRequest]) -> None:
        """Before anything is asked: a prompt that can be rendered for none of ``asks`` is wrong.

        Raises :class:`~adjudge.errors.ConfigError` with the field and the fields that there are.
        One that can be rendered is not looked at again.
        """
        if not self._bindings:
            return
        problems: dict[str, Exception] = {}
        for name, fields, _ in asks:
            if name not in self._bindings:
                continue
            grader, binding = self._bindings[name]
            try:
                grader.check_fields(binding.arguments(fields, 0))
            except (ConfigError, GradingFailure) as problem:
                problems.setdefault(name, problem)
                continue
            except Exception:  # noqa: BLE001, S110  (a user's mapper; asking says what is wrong)
                pass
            del self._bindings[name]
            problems.pop(name, None)
            if not self._bindings:
                return
        for name, found in problems.items():
            raise ConfigError(f"{self._where}: graders.{name}: {found}")

    def check_answers(
        self, judged: Sequence[GradedSample], samples: Sequence[RewardSample]
    ) -> None:
        """After a call: raises :class:`~adjudge.errors.ConfigError` for one that cannot answer.

        That is one which has never answered and (a) was told that there is no such model or path,
        or (b) had no usable reply about :data:`MIN_FAILED_SAMPLES` distinct samples: unreadable
        ones, refused requests, rows without what it needs, or an exception. Nothing that passes by
        itself, and no failure of a local deadline, counts.
        """
        failures: dict[str, list[GraderError]] = {}
        for one, sample in zip(judged, samples, strict=True):
            for name, result in one.results():
                if name not in self._unanswered:
                    continue
                if _is_answer(result):
                    self._unanswered.discard(name)
                    failures.pop(name, None)
                elif isinstance(result, GraderError) and _is_permanent(result):
                    failures.setdefault(name, []).append(result)
                    self._failed[name].add(_sample_content(sample))
        for name, errors in failures.items():
            if final := next(filter(_is_not_found, errors), None):
                raise ConfigError(
                    f"{self._where}: graders.{name}: {_describe_judge(self._graders[name])} has "
                    f"never answered: {final.error}. "
                    "Correct the `model` or `base_url` of the judge."
                )
            if (count := len(self._failed[name])) >= MIN_FAILED_SAMPLES:
                raise ConfigError(
                    f"{self._where}: graders.{name}: no usable answer about any of the first "
                    f"{count:,} samples ({errors[0].kind}: {errors[0].error}). "
                    f"{_suggest_remedy(errors)}"
                )

    def unreachable(self, judged: Sequence[GradedSample]) -> GraderError | None:
        """The failure of a grader that has never answered because nobody listens; else ``None``."""
        found: dict[str, GraderError] = {}
        listening: set[str] = set()
        for one in judged if self._unanswered else ():
            for name, result in one.results():
                if name not in self._unanswered:
                    continue
                if not isinstance(result, GraderError):
                    listening.add(name) if _is_answer(result) else None
                elif result.kind is ErrorKind.CONNECTION:
                    found.setdefault(name, result)
                elif result.kind is not ErrorKind.NOT_SAMPLED:
                    listening.add(name)
        return next((error for name, error in found.items() if name not in listening), None)


def _is_answer(result: GraderResult) -> bool:
    """What a sample without anything to judge gets says nothing about the judge."""
    if isinstance(result, GraderScore):
        return result.cause is None
    return not isinstance(result, GraderError)


def _is_permanent(error: GraderError) -> bool:
    """Whether the next sample is as likely to get no answer: the form, the request, the rows."""
    if error.kind in _UNREADABLE_KINDS or _is_refused_request(error):
        return True
    return error.kind in _SETUP_KINDS and not error.suspect


def _is_refused_request(error: GraderError) -> bool:
    status = error.metadata.get("status")
    if error.passing or error.kind in (ErrorKind.REFUSED, ErrorKind.BUDGET):
        return False
    if error.suspect and _TOO_LONG.search(error.error):
        return False  # many answers may be too long for the judge
    return isinstance(status, int) and 300 <= status < 500 and status not in _REQUEST_STATUSES


def _is_not_found(error: GraderError) -> bool:
    status = error.metadata.get("status")
    return isinstance(status, int) and (300 <= status < 400 or status in _NOT_FOUND_STATUSES)


def _sample_content(sample: RewardSample) -> Any:
    """What tells rollouts apart; equal ones are one observation, whatever their ids."""
    texts = {"prompt": sample.prompt, "response": sample.response, "messages": sample.messages}
    if not any(texts.values()):
        texts = sample.fields()
    return sample_key(texts) or sample.original_index


def _describe_judge(grader: Any) -> str:
    """A grader's judge as its user knows it."""
    model = getattr(grader, "model", None)
    urls = ", ".join(getattr(model, "base_urls", ()))
    return f"the judge {getattr(model, 'model', '')!r}{' at ' * bool(urls)}{urls}"


def _suggest_remedy(errors: Sequence[GraderError]) -> str:
    if _is_refused_request(errors[0]):
        return "Correct what is sent: `model`, sampling parameters and `features` of its judge."
    if errors[0].kind in _SETUP_KINDS:
        return (
            "Correct the rows, `mapper` or the grader; set [missing] max_missing = 1.0 where that "
            "many rewards may be missing."
        )
    return (
        "Ask for a form in the template ({reply_form} stands for it), or use a judge that keeps to "
        "it: `adjudge doctor SPEC` shows what the judge's server supports."
    )


_log = logging.getLogger("adjudge")

_FIRST_WAIT_S = 1.0
_LONGEST_WAIT_S = 30.0
_REPORT_EVERY_S = 0.9
_NOTE_CHARS = 120


class GraderPanel:
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
        self._reported_at: float | None = None
        listwise = [entry.name for entry in spec.graders if is_listwise(graders[entry.name])]
        pointwise = [entry for entry in spec.graders if entry.name not in listwise]
        self._roster = GraderNames(
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
    ) -> list[GradedSample]:
        """One :class:`GradedSample` per sample, in order; runs on the engine loop.

        ``groups[i]`` names sample *i*'s group; only the ``sampled`` are asked about. Raises
        :class:`~adjudge.errors.JudgeUnavailable` after an outage of ``patience_s`` and
        :class:`~adjudge.errors.JudgeAuthError` when a provider refuses the key, a grader's
        :class:`~adjudge.errors.ConfigError`, and one for a grader that has never answered and
        cannot; see :class:`~adjudge.rewards.panel.StartupCheck`.
        """
        batch = GradingBatch(samples, groups, sampled, self._roster, self._runner)
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
            self._report_wait(judged, left)
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
        self, judged: Sequence[GradedSample], unreachable: GraderError | None, patience_s: float
    ) -> str:
        """Why the run stops, the cause first."""
        if unreachable is not None:
            waited = f" for {patience_s:g} s" if patience_s else ""
            return f"{unreachable.name}: never reached its judge{waited}: {unreachable.error}"
        return (
            f"judges failed for more than {self._settings.max_missing:.0%} of the samples "
            f"for {patience_s:g} s (last: {_last_reason(judged)}); nothing was learned from it"
        )

    def _report_wait(self, judged: Sequence[GradedSample], left: float) -> None:
        """Tell whoever watches that the run waits, and for what."""
        message = f"{_last_reason(judged)}. Asking again for up to {left:.0f} s."
        if self._tally is not None:
            self._tally.note = message[:_NOTE_CHARS]
        # Many calls at once wait for the same judge: one of them says so.
        now = self._clock.time()
        if self._reported_at is None or now - self._reported_at >= _REPORT_EVERY_S:
            self._reported_at = now
            _log.warning("%s", message)

    async def _ask_again(self, batch: GradingBatch) -> None:
        """Passing failures once more; a failed parse once with a new draw, and that once more."""
        await batch.ask_again(_is_passing_error)
        await batch.ask_again(_wants_redraw, draw=1)

    def _passing(self, judged: Sequence[GradedSample]) -> list[bool]:
        """Per sample that was really asked, whether it is missing for a reason that passes."""
        return [self._misses(one) for one in judged if one.asked]

    def _misses(self, one: GradedSample) -> bool:
        for name, result in one.results():  # mostly scores, so their type is looked at first
            if type(result) is GraderError and name in self._counting and result.passing:
                return True
        return False


def _is_passing_error(result: GraderResult) -> bool:
    return isinstance(result, GraderError) and result.passing


def _wants_redraw(result: GraderResult) -> bool:
    return isinstance(result, GraderError) and result.redrawable


def _last_reason(judged: Sequence[GradedSample]) -> str:
    for one in reversed(judged):
        for name, result in one.results():
            if _is_passing_error(result) and isinstance(result, GraderError):
                return f"{name}: {result.kind}: {result.error}"
    return "no reason given"
