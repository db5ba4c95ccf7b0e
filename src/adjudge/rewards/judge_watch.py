"""Whether a spec's graders can answer at all, and whether their judges are down.

A grader that fails for one sample leaves that reward missing. One that has answered *nothing* since
the process started is another matter: a wrong model name, a template with an unknown field, a judge
that never keeps to the form. It would fail for every sample of the run, so the run stops before it
learns from the few rewards that are left. And where most of the last samples are missing for
reasons that pass by themselves, the judges are down: whoever asks waits for them.
"""

from __future__ import annotations

import logging
import re
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from msgspec import structs

from adjudge.errors import LACKED, ConfigError, ErrorKind, GradingFailure
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
_UNREADABLE_KINDS = frozenset(
    {ErrorKind.UNPARSABLE, ErrorKind.OUT_OF_RANGE, ErrorKind.TRUNCATED, ErrorKind.INCOMPLETE}
)
_SETUP_KINDS = frozenset({ErrorKind.INVALID_INPUT, ErrorKind.BUG})
_TOO_LONG = re.compile(r"too (?:long|large|many)|context|maximum|exceed|token", re.IGNORECASE)
_NOT_FOUND_STATUSES = (404, 405, 410)
_REQUEST_STATUSES = (408, 409, 413, 425, 429)


class JudgeOutage(NamedTuple):
    """Judges are down: why, for how long to wait for them, and what to say if that is too short.

    ``never_reached``: a judge that has not been there since the process started.
    """

    reason: str
    patience_s: float
    ending: str
    never_reached: bool


class JudgeWatch:
    """Watches a spec's graders, call after call; used on the engine's loop alone.

    Until a grader without which a reward is missing has answered once, it may stop the run; a spec
    with ``max_missing = 1.0`` goes on whatever is missing. An outage: for passing kinds are missing
    more than ``max_missing`` of the last max(call size, 32) samples that were really asked. The
    share is always of the full window, so a process that has asked fewer so far cannot be in an
    outage by a handful of them. A call of which nothing is missing is never an outage, whatever
    other calls are; calls may overlap. ``startup_patience_s``: how long to wait for a judge that
    has never been reached, by default ``patience_s``. ``columns``: those of all samples, also in
    other calls, where that is known.
    """

    def __init__(
        self,
        spec: RewardSpec,
        graders: Mapping[str, Any],
        startup_patience_s: float | None = None,
        columns: Collection[str] = (),
    ) -> None:
        self._where, self._graders, self._settings = spec.where, graders, spec.missing
        self._startup_patience_s = startup_patience_s
        watched = {one.name for one in spec.graders if one.name in spec.counting}
        self._unanswered = watched if spec.missing.max_missing < 1.0 else set[str]()
        self._unchecked = {
            name for name in self._unanswered if hasattr(graders[name], "check_fields")
        }
        self._failed: dict[str, set[Any]] = {name: set() for name in self._unanswered}
        self._columns = columns
        self._unapplied: dict[str, set[Any]] = {name: set() for name in watched}
        self._calls: deque[list[bool]] = deque()

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
        rows: list[Mapping[str, Any]] = []
        known: dict[str, bool] = {}
        for table in _list_results(graded):
            for name, result in table.items():
                if not isinstance(result, GraderError) or LACKED not in result.metadata:
                    continue
                rows = rows or [sample.fields() for sample in samples]
                for column in result.metadata[LACKED]:
                    if column not in known:
                        above = column.partition(".")[0] in self._columns
                        known[column] = above or _is_column(column, rows)
                if any(known[column] for column in result.metadata[LACKED]):
                    table[name] = structs.replace(result, kind=ErrorKind.NOT_APPLICABLE)
        self._report_unapplied(graded, samples)

    def _report_unapplied(self, graded: Sequence[GradedSample], samples: Sequence[Sample]) -> None:
        """Say once of a grader that had nothing to judge in any sample so far."""
        for one, sample in zip(graded, samples, strict=True) if self._unapplied else ():
            for name, result in one.results():
                if name not in self._unapplied:
                    continue
                if not isinstance(result, GraderError):
                    del self._unapplied[name]
                elif result.kind is ErrorKind.NOT_APPLICABLE:
                    seen = self._unapplied[name]
                    seen.add(_sample_content(sample))
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
        if not self._unanswered:
            return
        failures: dict[str, list[GraderError]] = {}
        for one, sample in zip(graded, samples, strict=True):
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

    # --- outages --------------------------------------------------------------------------------

    def begin_call(self, missing: Sequence[bool]) -> list[bool]:
        """Note a call's samples (True: missing); the returned list may be updated in place."""
        call = list(missing)
        self._calls.append(call)
        kept = sum(map(len, self._calls))
        longest = max(_LEAST_WATCHED, *map(len, self._calls))
        while self._calls[0] is not call and kept - len(self._calls[0]) >= longest:
            kept -= len(self._calls.popleft())
        return call

    def find_outage(self, graded: Sequence[GradedSample], call: list[bool]) -> JudgeOutage | None:
        """Whether judges are down, as of now, for this ``call`` of :meth:`begin_call`."""
        settings, reason = self._settings, _last_reason(graded)
        if (absent := self._find_unreachable(graded)) is not None:
            patience_s = self._startup_patience_s
            patience_s = settings.patience_s if patience_s is None else patience_s
            waited = f" for {patience_s:g} s" if patience_s else ""
            ending = f"{absent.name}: never reached its judge{waited}: {absent.error}"
            return JudgeOutage(reason, patience_s, ending, never_reached=True)
        if not any(call) or self._count_missing(call) <= settings.max_missing * _window(call):
            return None
        ending = (
            f"judges failed for more than {settings.max_missing:.0%} of the samples "
            f"for {settings.patience_s:g} s (last: {reason}); nothing was learned from it"
        )
        return JudgeOutage(reason, settings.patience_s, ending, never_reached=False)

    def _count_missing(self, call: list[bool]) -> int:
        left, missing = _window(call), 0
        for entry in reversed(self._calls):
            recent = entry[-left:] if left < len(entry) else entry
            missing += sum(recent)
            left -= len(recent)
            if left <= 0:
                break
        return missing

    def _find_unreachable(self, graded: Sequence[GradedSample]) -> GraderError | None:
        """The failure of a grader that has never answered because nobody listens; else ``None``."""
        found: dict[str, GraderError] = {}
        listening: set[str] = set()
        for one in graded if self._unanswered else ():
            for name, result in one.results():
                if name not in self._unanswered:
                    continue
                if not isinstance(result, GraderError):
                    listening.add(name) if _is_answer(result) else None
                elif result.kind is ErrorKind.CONNECTION:
                    found.setdefault(name, result)
                elif result.kind not in (ErrorKind.NOT_SAMPLED, ErrorKind.NOT_APPLICABLE):
                    listening.add(name)
        return next((error for name, error in found.items() if name not in listening), None)


def _window(call: Sequence[bool]) -> int:
    return max(len(call), _LEAST_WATCHED)


def _list_results(graded: Iterable[GradedSample]) -> Iterator[dict[str, GraderResult]]:
    for one in graded:
        for draw in (one, *one.repeats):
            yield draw.outcome
            yield from () if isinstance(draw.events, GraderError) else draw.events


def _is_column(name: str, rows: Iterable[Mapping[str, Any]]) -> bool:
    return any(get_path(row, name) is not MISSING for row in rows)


def _last_reason(graded: Sequence[GradedSample]) -> str:
    for one in reversed(graded):
        for name, result in one.results():
            if isinstance(result, GraderError) and result.passing:
                return f"{name}: {result.kind}: {result.error}"
    return "no reason given"


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


def _sample_content(sample: Sample) -> Any:
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
