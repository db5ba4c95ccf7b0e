"""Stops a run in its first step where a grader cannot answer at all.

A grader that fails for one sample leaves that reward missing. One that has answered *nothing* since
the process started is another matter: a wrong model name, a template with an unknown field, a judge
that never keeps to the form. It would fail for every sample of the run, so the run stops before it
learns from the few rewards that are left.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from adjudge.errors import ConfigError, ErrorKind, GradingFailure
from adjudge.rewards.spec import RewardSpec
from adjudge.runner.journal import sample_key
from adjudge.runner.runner import WorkItem
from adjudge.types import GradedSample, GraderError, GraderResult, GraderScore, Sample

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
        self._unchecked = {
            name for name in self._unanswered if hasattr(graders[name], "check_fields")
        }
        self._failed: dict[str, set[Any]] = {name: set() for name in self._unanswered}

    @property
    def is_over(self) -> bool:
        """Whether every grader has answered."""
        return not self._unanswered

    def check_fields(self, items: Iterable[WorkItem]) -> None:
        """Before anything is asked: a prompt that can be rendered for none of ``items`` is wrong.

        Raises :class:`~adjudge.errors.ConfigError` with the field and the fields that there are.
        One that can be rendered is not looked at again.
        """
        problems: dict[str, Exception] = {}
        for grader, fields, *_ in items if self._unchecked else ():
            if grader.name not in self._unchecked:
                continue
            try:
                grader.check_fields(fields)
            except (ConfigError, GradingFailure) as problem:
                problems.setdefault(grader.name, problem)
                continue
            except Exception:  # noqa: BLE001, S110  (a user's mapper; asking says what is wrong)
                pass
            self._unchecked.discard(grader.name)
            problems.pop(grader.name, None)
            if not self._unchecked:
                return
        for name, found in problems.items():
            raise ConfigError(f"{self._where}: graders.{name}: {found}")

    def check_answers(self, graded: Sequence[GradedSample], samples: Sequence[Sample]) -> None:
        """After a call: raises :class:`~adjudge.errors.ConfigError` for one that cannot answer.

        That is one which has never answered and (a) was told that there is no such model or path,
        or (b) had no usable reply about :data:`MIN_FAILED_SAMPLES` distinct samples: unreadable
        ones, refused requests, rows without what it needs, or an exception. Nothing that passes by
        itself, and no failure of a local deadline, counts.
        """
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

    def unreachable(self, graded: Sequence[GradedSample]) -> GraderError | None:
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
