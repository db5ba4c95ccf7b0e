"""Whether a spec's graders can answer at all, and whether their judges still give rewards.

A grader that fails for one sample leaves that reward missing. One that has answered *nothing* since
the process started is another matter: a wrong model name, a template with an unknown field, a judge
that never keeps to the form. It would fail for every sample of the run, so the run stops before it
learns from the few rewards that are left. A grader that has answered may still lose its judge. Then
whoever asks waits for the judge, or stops at once where waiting cannot help:

==========================  ==========================================================  ==========
what a sample's reward       how many samples                                            what then
lacks because of a judge
==========================  ==========================================================  ==========
a failure that passes        more than ``max_missing`` of the call, or of the last 32   wait
                             samples where the call has fewer
any, but for refusals        whole calls in a row: 8 samples of 2 groups, or 32          wait
any                          whole calls in a row: 32 samples of 2 groups                wait
what cannot pass (`final`)   a whole call                                                stop
==========================  ==========================================================  ==========

A refusal is about the sample: its content, its length. A spent budget is :class:`.Scorer`'s to see.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import chain, islice
from typing import NamedTuple

from msgspec import structs

from adjudge.errors import LACKED, ConfigError, ErrorKind, Fields, GradingFailure
from adjudge.graders.base import GraderTraits, is_listwise
from adjudge.rewards.spec import RewardSpec
from adjudge.runner.journal import sample_key
from adjudge.runner.runner import WorkItem
from adjudge.types import (
    MISSING,
    GradedSample,
    GraderError,
    GraderResult,
    GraderScore,
    Sample,
    get_path,
)

_log = logging.getLogger("adjudge")

MIN_FAILED_SAMPLES = 16
"""Distinct samples that must all have failed before "every reply" is a fact: a policy can write one
answer that its judge replies to unreadably, and a group of a few that are much alike."""

_LEAST_WATCHED = 32
_LEAST_LOST = 8
"""Samples without a reward that a hard prompt and chance do not explain."""
_UNREADABLE_KINDS = frozenset(
    {ErrorKind.UNPARSABLE, ErrorKind.OUT_OF_RANGE, ErrorKind.TRUNCATED, ErrorKind.INCOMPLETE}
)
_SETUP_KINDS = frozenset({ErrorKind.INVALID_INPUT, ErrorKind.BUG})
_REFUSED_KINDS = frozenset({ErrorKind.REFUSED, ErrorKind.QUORUM, ErrorKind.TOO_LONG})


class _Loss(StrEnum):
    """What takes a reward away, the worst first; see the module for what comes of each."""

    PASSING = "a failure that passes"
    STARTING = "a failure that passes, of a judge that has never answered"
    FINAL = "a refusal of every request"
    UNREAD = "no verdict"
    REFUSED = "a refusal of this sample"
    SETUP = "the rows, the grader"
    OTHER = "something else"


_NOT_BY_JUDGES = frozenset({_Loss.STARTING, _Loss.SETUP, _Loss.OTHER})
"""What rules of the first step, or of :class:`.Scorer`, decide about."""


def _classify(error: GraderError) -> _Loss:
    """The one table of failures beside :func:`~adjudge.errors.is_passing` and ``is_final``."""
    if error.passing:
        return _Loss.PASSING
    if error.final:
        return _Loss.OTHER if error.kind is ErrorKind.BUDGET else _Loss.FINAL
    if error.kind in _UNREADABLE_KINDS:
        return _Loss.UNREAD
    by_server = "status" in error.metadata or error.suspect
    refused = error.kind is ErrorKind.INVALID_INPUT and by_server
    if refused or error.kind in _REFUSED_KINDS:
        return _Loss.REFUSED
    is_setup = error.kind in _SETUP_KINDS and not error.suspect
    return _Loss.SETUP if is_setup else _Loss.OTHER


class JudgeOutage(NamedTuple):
    """Judges give no rewards: why, how long to wait for them, what to say if that is too short.

    ``never_reached``: a judge that has not been there since the process started. ``lost``: nothing
    is left of the call, so failures that do not pass by themselves are asked again, too.
    """

    failure: GraderError
    patience_s: float
    ending: str
    never_reached: bool = False
    lost: bool = False

    @property
    def reason(self) -> str:
        """The failure in words."""
        return _describe(self.failure)


@dataclass(eq=False)
class WatchedCall:
    """A call's samples that were really asked: what took each one's reward, ``None`` for nothing.

    ``last`` has the last failure of each kind. ``questions`` are those that judges left open, by
    kind, and ``groups`` the groups that these are about. ``number``: how many calls were before.
    """

    number: int = 0
    losses: list[_Loss | None] = field(default_factory=list)
    last: dict[_Loss, GraderError] = field(default_factory=dict)
    questions: Counter[_Loss] = field(default_factory=Counter)
    groups: set[object] = field(default_factory=set)

    @property
    def is_lost(self) -> bool:
        """Whether no reward is left, for reasons of judges."""
        return None not in self.losses and not _NOT_BY_JUDGES.issuperset(self.losses)

    @property
    def window(self) -> int:
        """Of how many of the latest samples a share is taken."""
        return max(len(self.losses), _LEAST_WATCHED)


class JudgeWatch:
    """Watches a spec's graders, call after call; used on the engine's loop alone.

    Until a grader without which a reward is missing has answered once, it may stop the run; a spec
    with ``max_missing = 1.0`` goes on whatever is missing. The share of passing failures is always
    of the full window of max(call size, 32) samples, so a process that has asked fewer so far
    cannot be in an outage by a handful of them. A call of which nothing is missing is never an
    outage, whatever other calls are; calls may overlap, and one that got a reward later says that
    its judge works. ``startup_patience_s``: how long to wait for a judge that has never been
    reached, by default ``patience_s``. ``columns``: those of all samples, also in other calls,
    where that is known.
    """

    def __init__(
        self,
        spec: RewardSpec,
        graders: Mapping[str, object],
        startup_patience_s: float | None = None,
        columns: Collection[str] = (),
    ) -> None:
        self._where, self._graders, self._settings = spec.where, graders, spec.missing
        self._startup_patience_s = startup_patience_s
        watched = {one.name for one in spec.graders if one.name in spec.counting}
        self._unanswered = watched if spec.missing.max_missing < 1.0 else set[str]()
        self._traits = {name: GraderTraits.of(grader) for name, grader in graders.items()}
        self._unchecked = {one for one in self._unanswered if self._traits[one].check_fields}
        self._failed: dict[str, set[object]] = {name: set() for name in self._unanswered}
        self._columns = columns
        self._unapplied: dict[str, set[object]] = {name: set() for name in watched}
        self._calls: deque[WatchedCall] = deque()
        self._begun = 0

    # --- fields ---------------------------------------------------------------------------------

    def check_fields(self, items: Iterable[WorkItem]) -> None:
        """Before anything is asked: a prompt that can be rendered for none of ``items`` is wrong.

        Raises :class:`~adjudge.errors.ConfigError` with the field and the fields that there are.
        One that can be rendered is not looked at again.
        """
        problems: dict[str, Exception] = {}
        for item in items if self._unchecked else ():
            name = item.grader.name
            if name not in self._unchecked:
                continue
            try:
                item.grader.check_fields(item.fields)
            except (ConfigError, GradingFailure) as problem:
                problems.setdefault(name, problem)
                continue
            except Exception:  # noqa: BLE001, S110  (a user's mapper; asking says what is wrong)
                pass
            self._unchecked.discard(name)
            problems.pop(name, None)
            if not self._unchecked:
                return
        for name, found in problems.items():
            raise ConfigError(f"{self._where}: graders.{name}: {found}")

    def settle_lacked(self, graded: Sequence[GradedSample], samples: Sequence[Sample]) -> None:
        """Make samples without a grader's field ``not_applicable`` to it, in place.

        Not where the field may be misspelt: where no sample has such a column, not even a null in
        it. That stays ``invalid_input``.
        """
        rows: list[Fields] = []
        known: dict[str, bool] = {}
        draws = chain.from_iterable((one, *one.repeats) for one in graded)
        tables = (
            table
            for one in draws
            for table in (one.outcome, *(one.events if isinstance(one.events, list) else ()))
        )
        for table in tables:
            for name, result in table.items():
                if not isinstance(result, GraderError) or LACKED not in result.metadata:
                    continue
                rows = rows or [sample.fields() for sample in samples]
                for column in result.metadata[LACKED]:
                    if column not in known:
                        above = column.partition(".")[0] in self._columns
                        known[column] = above or any(
                            get_path(row, column) is not MISSING for row in rows
                        )
                if any(known[column] for column in result.metadata[LACKED]):
                    table[name] = structs.replace(result, kind=ErrorKind.NOT_APPLICABLE)
        self._report_unapplied(graded, samples)

    def _report_unapplied(self, graded: Sequence[GradedSample], samples: Sequence[Sample]) -> None:
        """Say once of a grader that had nothing to judge in any sample so far."""
        for at, name, result in _iter_results(graded, self._unapplied):
            if not isinstance(result, GraderError):
                del self._unapplied[name]
            elif result.kind is ErrorKind.NOT_APPLICABLE:
                seen = self._unapplied[name]
                seen.add(_sample_content(samples[at]))
                if len(seen) >= MIN_FAILED_SAMPLES:
                    del self._unapplied[name]
                    _log.warning(
                        "graders.%s: none of the first %d samples has its field (%s), so the "
                        "rewards are made without it. Correct its mapper if that is misspelt.",
                        name,
                        len(seen),
                        ", ".join(result.metadata[LACKED]),
                    )

    # --- answers --------------------------------------------------------------------------------

    def check_answers(self, graded: Sequence[GradedSample], samples: Sequence[Sample]) -> None:
        """After a call: raises :class:`~adjudge.errors.ConfigError` for one that cannot answer.

        That is one which has never answered and (a) was told that there is no such model or path,
        or (b) had no usable reply about :data:`MIN_FAILED_SAMPLES` distinct samples: unreadable
        ones, refused requests, rows without what it needs, or an exception. Nothing that passes by
        itself, and no failure of a local deadline, counts.
        """
        failures: dict[str, list[GraderError]] = {}
        for at, name, result in _iter_results(graded, self._unanswered):
            if _is_answer(result):
                self._unanswered.discard(name)
                failures.pop(name, None)
            elif isinstance(result, GraderError) and _is_permanent(result):
                failures.setdefault(name, []).append(result)
                self._failed[name].add(_sample_content(samples[at]))
        for name, errors in failures.items():
            if final := next((error for error in errors if error.final), None):
                model = self._traits[name].model
                urls = ", ".join(getattr(model, "base_urls", ()))
                raise ConfigError(
                    f"{self._where}: graders.{name}: the judge {getattr(model, 'model', '')!r}"
                    f"{' at ' * bool(urls)}{urls} has never answered: {final.error}. "
                    f"{_suggest_remedy(final)}"
                )
            if (count := len(self._failed[name])) >= MIN_FAILED_SAMPLES:
                raise ConfigError(
                    f"{self._where}: graders.{name}: no usable answer about any of the first "
                    f"{count:,} samples ({errors[0].kind}: {errors[0].error}). "
                    f"{_suggest_remedy(errors[0])}"
                )

    # --- outages --------------------------------------------------------------------------------

    def begin_call(self, asked: Sequence[GradedSample], counting: Collection[str]) -> WatchedCall:
        """Note samples that were asked once; ``counting`` are the graders that make rewards."""
        self._begun += 1
        call = WatchedCall(self._begun)
        self._calls.append(call)
        self.update(call, asked, counting)
        kept = sum(len(one.losses) for one in self._calls)
        longest = max(one.window for one in self._calls)
        while self._calls[0] is not call and kept - len(self._calls[0].losses) >= longest:
            kept -= len(self._calls.popleft().losses)
        return call

    def update(
        self, call: WatchedCall, asked: Sequence[GradedSample], counting: Collection[str]
    ) -> None:
        """Note what took the rewards of a call as of now."""
        call.losses, call.last = [], {}
        questions: dict[object, _Loss] = {}
        for place, one in enumerate(asked):
            results = [pair for pair in one.results() if pair[0] in counting]
            failed = [(name, error) for name, error in results if isinstance(error, GraderError)]
            found = {self._find_loss(name, error): (name, error) for name, error in failed}
            loss = next((loss for loss in _Loss if loss in found), None)
            if loss in (_Loss.SETUP, _Loss.OTHER) and len(failed) < len(results):
                loss = None  # its judge answered; a field that it lacks may be another task's
            call.losses.append(loss)
            if loss is not None:
                name, call.last[loss] = found[loss]
                questions[one.group if is_listwise(self._graders[name]) else place] = loss
        call.questions = Counter(questions.values())
        # Other calls may use the same names for other groups, but where each has one sample.
        call.groups = {one.group if len(asked) == 1 else (call.number, one.group) for one in asked}

    def lacks_verdict(self, grader: str, error: GraderError) -> bool:
        """Whether a judge may give the verdict that it did not give, when it works again."""
        return self._find_loss(grader, error) in (_Loss.UNREAD, _Loss.REFUSED)

    def _find_loss(self, name: str, error: GraderError) -> _Loss:
        """What a grader's failure is; until its judge has answered, other rules hold."""
        loss = _classify(error)
        if name in self._unanswered:
            return _Loss.STARTING if loss is _Loss.PASSING else _Loss.OTHER
        return _Loss.OTHER if self._traits[name].is_rule and loss is not _Loss.PASSING else loss

    def find_outage(self, graded: Sequence[GradedSample], call: WatchedCall) -> JudgeOutage | None:
        """Whether judges give no rewards, as of now, for this ``call`` of :meth:`begin_call`."""
        patience_s, share = self._settings.patience_s, self._settings.max_missing
        if (absent := self._find_unreachable(graded)) is not None:
            if self._startup_patience_s is not None:
                patience_s = self._startup_patience_s
            waited = f" for {patience_s:g} s" if patience_s else ""
            ending = f"{absent.name}: never reached its judge{waited}: {absent.error}"
            return JudgeOutage(absent, patience_s, ending, never_reached=True)
        if share >= 1.0 or not any(call.losses):
            return None
        if call.is_lost and (final := call.last.get(_Loss.FINAL)) is not None:
            ending = f"every request fails: {_describe(final)}. {_suggest_remedy(final)}"
            return JudgeOutage(final, 0.0, ending)
        failure = next(call.last[loss] for loss in _Loss if loss in call.last)
        if failure.passing and self._count_passing(call) > share * call.window:
            which = f"more than {share:.0%} of the"
        elif call.is_lost and (lost := self._count_lost(call)):
            which = f"all {lost} last"
        else:
            return None
        ending = (
            f"judges failed for {which} samples for {patience_s:g} s (last: {_describe(failure)}); "
            "nothing was learned from it"
        )
        return JudgeOutage(failure, patience_s, ending, lost=call.is_lost)

    def _count_passing(self, call: WatchedCall) -> int:
        latest = chain.from_iterable(reversed(one.losses) for one in reversed(self._calls))
        return sum(loss in (_Loss.PASSING, _Loss.STARTING) for loss in islice(latest, call.window))

    def _count_lost(self, call: WatchedCall) -> int:
        """How many questions of calls in a row, this one included, are open; 0: too few."""
        open_ones, groups, seen = Counter[_Loss](), set[object](), False
        for entry in reversed(self._calls):
            seen |= entry is call
            if entry.is_lost:
                open_ones += entry.questions
                groups |= entry.groups
            elif None in entry.losses:
                break
        total = sum(number for loss, number in open_ones.items() if loss not in _NOT_BY_JUDGES)
        sure = total - open_ones[_Loss.REFUSED]
        several = len(groups) > 1 and (sure >= _LEAST_LOST or total >= _LEAST_WATCHED)
        return total if seen and (several or sure >= _LEAST_WATCHED) else 0

    def _find_unreachable(self, graded: Sequence[GradedSample]) -> GraderError | None:
        """The failure of a grader that has never answered because nobody listens; else ``None``."""
        found: dict[str, GraderError] = {}
        listening: set[str] = set()
        for _, name, result in _iter_results(graded, self._unanswered):
            if isinstance(result, GraderError) and result.kind is ErrorKind.CONNECTION:
                found.setdefault(name, result)
            elif _is_answer(result) or (
                isinstance(result, GraderError)
                and result.kind not in (ErrorKind.NOT_SAMPLED, ErrorKind.NOT_APPLICABLE)
            ):
                listening.add(name)
        return next((error for name, error in found.items() if name not in listening), None)


def _describe(failure: GraderError) -> str:
    return f"{failure.name}: {failure.kind}: {failure.error.removeprefix(f'{failure.name}: ')}"


def _iter_results(
    graded: Sequence[GradedSample], names: Collection[str]
) -> Iterator[tuple[int, str, GraderResult]]:
    """What the graders with these names said, each with its sample's place."""
    for at, one in enumerate(graded if names else ()):
        for name, result in one.results():
            if name in names:
                yield at, name, result


def _is_answer(result: GraderResult) -> bool:
    """What a sample without anything to judge gets says nothing about the judge."""
    if isinstance(result, GraderScore):
        return result.cause is None
    return not isinstance(result, GraderError)


def _is_permanent(error: GraderError) -> bool:
    """Whether the next sample is as likely to get no answer: the form, the request, the rows."""
    loss = _classify(error)
    if loss is _Loss.REFUSED:
        return error.kind is ErrorKind.INVALID_INPUT
    return loss in (_Loss.FINAL, _Loss.UNREAD, _Loss.SETUP)


def _sample_content(sample: Sample) -> object:
    """What tells rollouts apart; equal ones are one observation, whatever their ids."""
    texts = {"prompt": sample.prompt, "response": sample.response, "messages": sample.messages}
    if not any(texts.values()):
        texts = sample.fields()
    return sample_key(texts) or sample.original_index


def _suggest_remedy(error: GraderError) -> str:
    loss = _classify(error)
    if loss is _Loss.FINAL and error.kind is not ErrorKind.UNSUPPORTED:
        return "Correct the `model` or `base_url` of the judge."
    if loss in (_Loss.FINAL, _Loss.REFUSED):
        return "Correct what is sent: `model`, sampling parameters and `features` of its judge."
    if loss is _Loss.SETUP:
        return (
            "Correct the rows, `mapper` or the grader; set [missing] max_missing = 1.0 where that "
            "many rewards may be missing."
        )
    return (
        "Ask for a form in the template (put {reply_form} there), or use a judge that keeps to "
        "it: `adjudge doctor SPEC` shows what the judge's server supports."
    )
