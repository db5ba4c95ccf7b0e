"""The marks of one sample as they come in from several calls, and what they come to.

Nothing of it depends on the order in which the calls end: a replay's end in another one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any

from adjudge.errors import PASSING_KINDS, ErrorKind, GradingFailure
from adjudge.graders.llm.forms import MarksForm
from adjudge.graders.llm.judged import RAW_LIMIT, Told, summed
from adjudge.graders.llm.several import redrawable
from adjudge.rubrics import Criterion, Incomplete, Mark, Rubric, Scored, score, subscores
from adjudge.types import GraderScore, Provenance

__all__ = ["Sheet", "marks_form"]

_MOST_RAW = 4


def marks_form(criteria: Sequence[Criterion]) -> MarksForm:
    """Marks of ``criteria`` by their number, ``N/A`` only where one allows it."""
    return _form(tuple(criterion.na_allowed for criterion in criteria))


@lru_cache(maxsize=256)
def _form(na_allowed: tuple[bool, ...]) -> MarksForm:
    """Built once for all criteria that look alike."""
    numbers = [str(number) for number in range(1, len(na_allowed) + 1)]
    return MarksForm(numbers, na=[n for n, na in zip(numbers, na_allowed, strict=True) if na])


class Sheet:
    """Marks and reasons by criterion, and why a criterion has none yet.

    ``notes`` go into the metadata.
    """

    def __init__(self, rubric: Rubric, notes: Mapping[str, Any]) -> None:
        self._rubric = rubric
        self.marks: dict[str, Mark] = {}
        self._reasons: dict[str, str] = {}
        self._lost: dict[str, tuple[ErrorKind, bool]] = {}
        self._failures: dict[str, GradingFailure] = {}
        self._provenances: list[Provenance] = []
        self._raw: dict[str, list[str]] = {}  # by the first criterion of the call
        self._ignored: set[str] = set()
        self._repaired = False
        self._given = dict(notes)

    def open(self, criteria: Sequence[Criterion]) -> list[Criterion]:
        """Those of ``criteria`` without a mark."""
        return [criterion for criterion in criteria if criterion.id not in self.marks]

    def take(self, criteria: Sequence[Criterion], told: Told) -> None:
        """The marks that a judge told of ``criteria``, which its reply numbers from 1."""
        reasons = told.verdict.fields.get("reasons", {})
        for number, criterion in enumerate(criteria, start=1):
            mark = told.verdict.value.get(str(number), _NO_MARK)
            if mark is _NO_MARK:
                self._lost[criterion.id] = (ErrorKind.INCOMPLETE, True)
                self._failures.pop(criterion.id, None)
                continue
            self.marks[criterion.id] = mark
            self._reasons[criterion.id] = str(reasons.get(str(number), ""))
        if self.open(criteria):
            self._keep_raw(criteria, [told.reply.text])
        self._spent(told)

    def take_share(self, criterion: Criterion, told: Told) -> None:
        """The share met of one criterion."""
        self.marks[criterion.id] = float(told.verdict.value)
        self._reasons[criterion.id] = told.verdict.reason
        self._spent(told)

    def fail(self, criteria: Sequence[Criterion], failure: GradingFailure) -> None:
        """A call about ``criteria`` failed."""
        lost = (failure.kind, failure.suspect)
        self._lost.update({criterion.id: lost for criterion in criteria})
        self._failures.update({criterion.id: failure for criterion in criteria})
        self._keep_raw(criteria, failure.metadata.get("raw", ()))
        if failure.provenance is not None:
            self._provenances.append(failure.provenance)

    def result(self, name: str, axis: str) -> GraderScore:
        """The score, with the verdict and reason of every criterion.

        Raises ``GradingFailure``: ``incomplete`` (or the calls' own kind) with the interval that
        the score must lie in, ``invalid_input`` where no criterion applies.
        """
        outcome = score(self._rubric, self.marks)
        if not isinstance(outcome, Scored):
            raise self._failure(outcome)
        met = sum(mark is True for mark in self.marks.values())
        total = sum(mark is not None for mark in self.marks.values())
        metadata = {
            "criteria": self._told(),
            "met": met,
            "total": total,
            "earned": outcome.earned,
            "possible": outcome.possible,
            **self._notes(),
        }
        if by_axis := self._by(axis):
            metadata["subscores"] = by_axis
        reason = f"{met} of {total} criteria met"
        if outcome.vetoes:
            metadata["vetoes"] = list(outcome.vetoes)
            reason += f"; vetoed by {', '.join(outcome.vetoes)}"
        return GraderScore(
            name, outcome.score, reason, metadata, provenance=summed(self._provenances)
        )

    def _failure(self, outcome: Any) -> GradingFailure:
        provenance = summed(self._provenances) if self._provenances else None
        metadata: dict[str, Any] = {"criteria": self._told(), **self._notes()}
        if not outcome.missing:
            return GradingFailure(
                ErrorKind.INVALID_INPUT,
                "nothing to judge: no criterion of positive points applies",
                metadata,
                provenance=provenance,
            )
        kinds = Counter(str(self._lost[name][0]) for name in outcome.missing)
        metadata |= {"missing": list(outcome.missing), "failures": dict(kinds)}
        where = ""
        if isinstance(outcome, Incomplete):
            metadata |= {"low": outcome.low, "high": outcome.high}
            if self.marks:  # else the interval is the whole range, and says nothing
                where = f": the score lies in [{outcome.low:.4g}, {outcome.high:.4g}]"
        if redrawable(map(ErrorKind, kinds)):
            metadata["redraw"] = True
        metadata["suspect"] = any(self._lost[name][1] for name in outcome.missing)
        if self._raw:
            raw = [self._raw.get(criterion.id, []) for criterion in self._rubric.criteria]
            metadata["raw"] = list(chain(*raw))[:_MOST_RAW]
        cause = self._cause(outcome.missing)
        if cause is not None and "status" in cause.metadata:
            metadata["status"] = cause.metadata["status"]
        # One kind is the failure's own, which whoever shows the message shows beside it.
        why = [*(kinds if cause is None or len(kinds) > 1 else ()), *([str(cause)] * bool(cause))]
        message = (
            f"{len(outcome.missing)} of {len(self._rubric.criteria)} criteria have no verdict "
            f"({'; '.join(why)}){where}"
        )
        return GradingFailure(self._kind(kinds), message, metadata, provenance=provenance)

    def _kind(self, kinds: Mapping[str, int]) -> ErrorKind:
        """What the failures come to: a kind that passes makes the run ask again."""
        found = sorted(map(ErrorKind, kinds), key=_is_consequence)
        if all(kind in PASSING_KINDS for kind in found) or (not self.marks and len(found) == 1):
            return found[0]
        return ErrorKind.INCOMPLETE

    def _cause(self, missing: Sequence[str]) -> GradingFailure | None:
        """The failure of the first missing criterion; an open circuit only follows from others.

        Not the call that ended first: a replay must say the same.
        """
        found = [self._failures[name] for name in missing if name in self._failures]
        return min(found, key=lambda failure: _is_consequence(failure.kind), default=None)

    def _told(self) -> dict[str, Any]:
        return {
            criterion.id: {"met": self.marks[criterion.id], "reason": self._reasons[criterion.id]}
            for criterion in self._rubric.criteria
            if criterion.id in self.marks
        }

    def _by(self, axis: str) -> dict[str, float]:
        outcomes = subscores(self._rubric, self.marks, axis)
        return {tag: one.score for tag, one in outcomes.items() if isinstance(one, Scored)}

    def _notes(self) -> dict[str, Any]:
        notes = {**self._given, **({"repaired": True} if self._repaired else {})}
        return notes | ({"ignored": sorted(self._ignored)} if self._ignored else {})

    def _keep_raw(self, criteria: Sequence[Criterion], texts: Sequence[str]) -> None:
        if criteria and texts:
            kept = self._raw.setdefault(criteria[0].id, [])
            kept += [text[:RAW_LIMIT] for text in texts]

    def _spent(self, told: Told) -> None:
        self._provenances.append(told.provenance)
        self._repaired = self._repaired or told.repaired
        self._ignored.update(told.notes.get("ignored", ()))


_NO_MARK: Any = object()


def _is_consequence(kind: ErrorKind) -> bool:
    return kind is ErrorKind.CIRCUIT_OPEN
