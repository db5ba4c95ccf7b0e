"""``RubricGrader``: a sample judged criterion by criterion, or by one score for all of them.

The rubric comes from a file, an id, the spec itself, or the sample.
Marks come in from several calls. Nothing of what they come to depends on the order in which the
calls end: a replay's end in another one.
"""

from __future__ import annotations

import dataclasses
import logging
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import Any, Literal, get_args

from adjudge.engine.loop import run_all
from adjudge.errors import (
    LACKED,
    Cause,
    ConfigError,
    ErrorKind,
    Fields,
    GradingFailure,
    InvalidInput,
    Metadata,
)
from adjudge.graders.llm.judge_grader import (
    EMPTY_REASONS,
    JudgeGrader,
    JudgeOutcome,
    get_group_name,
)
from adjudge.graders.llm.reply_forms import JudgeReplyForm, MarksForm, ScoreForm
from adjudge.graders.llm.rubric_question import (
    QuestionKind,
    RubricMaterial,
    RubricReader,
    ShowMode,
    ShownPart,
    build_criteria_fields,
    format_criteria,
    format_scale,
    load_rubric_template,
)
from adjudge.judges.asking import (
    RAW_LIMIT,
    asking,
    call_part,
    join_failures,
    sum_costs,
    sum_provenance,
)
from adjudge.rubrics import (
    AnyRubric,
    Criterion,
    GlobalRubric,
    Incomplete,
    Mark,
    NotEvaluable,
    Rubric,
    RubricBundle,
    RubricScore,
    find_bundle,
    load_rubric,
    parse_rubric,
    rubric_digest,
    rubric_from,
    score,
    score_range,
    subscores,
)
from adjudge.types import MISSING, GraderScore, Provenance, get_path
from adjudge.verdicts import Verdict

SingleRubric = Rubric | GlobalRubric
_MOST_RAW = 4


@lru_cache(maxsize=256)
def _marks_form(na_allowed: tuple[bool, ...]) -> MarksForm:
    """Built once for all criteria that look alike."""
    return MarksForm(na_allowed)


class RubricMarks:
    """Marks and reasons by criterion, and why a criterion has none yet.

    ``notes`` go into the metadata.
    """

    def __init__(self, rubric: Rubric, notes: Fields) -> None:
        self._rubric = rubric
        self.marks: dict[str, Mark] = {}
        self._reasons: dict[str, str] = {}
        self._failures: dict[str, GradingFailure] = {}
        self._provenances: list[Provenance] = []
        self._raw: dict[str, list[str]] = {}  # by the first criterion of the call
        self._ignored: set[str] = set()
        self._notes = dict(notes)

    def unmarked(self, criteria: Sequence[Criterion]) -> list[Criterion]:
        """Those of ``criteria`` without a mark."""
        return [criterion for criterion in criteria if criterion.id not in self.marks]

    def add_marks(self, criteria: Sequence[Criterion], told: JudgeOutcome) -> None:
        """Add a judge's marks of ``criteria``, which its reply numbers from 1."""
        reasons = told.verdict.fields.get("reasons", {})
        for number, criterion in enumerate(criteria, start=1):
            if str(number) in told.verdict.value:
                self.marks[criterion.id] = told.verdict.value[str(number)]
                self._reasons[criterion.id] = str(reasons.get(str(number), ""))
            else:
                self._failures[criterion.id] = GradingFailure(ErrorKind.INCOMPLETE, "")
        if self.unmarked(criteria):
            self._keep_raw(criteria, [told.reply.text])
        self._spent(told)

    def add_share(self, criterion: Criterion, told: JudgeOutcome) -> None:
        """The share met of one criterion."""
        self.marks[criterion.id] = float(told.verdict.value)
        self._reasons[criterion.id] = told.verdict.reason
        self._spent(told)

    def add_failure(self, criteria: Sequence[Criterion], failure: GradingFailure) -> None:
        """A call about ``criteria`` failed."""
        self._failures.update({criterion.id: failure for criterion in criteria})
        self._keep_raw(criteria, failure.metadata.get("raw", ()))
        if failure.provenance is not None:
            self._provenances.append(failure.provenance)

    def result(self, name: str) -> GraderScore:
        """The score, with the verdict and reason of every criterion.

        Raises ``GradingFailure``: ``incomplete`` (or the calls' own kind) with the interval that
        the score must lie in, ``invalid_input`` where no criterion applies.
        """
        outcome = score(self._rubric, self.marks)
        if not isinstance(outcome, RubricScore):
            raise self._failure(outcome)
        met = sum(mark is True for mark in self.marks.values())
        total = sum(mark is not None for mark in self.marks.values())
        metadata = {"criteria": self._criterion_marks(), "met": met, "total": total}
        metadata |= {"earned": outcome.earned, "possible": outcome.possible, **self._notes}
        outcomes = subscores(self._rubric, self.marks, "axis")
        if by_axis := {t: one.score for t, one in outcomes.items() if isinstance(one, RubricScore)}:
            metadata["subscores"] = by_axis
        reason = f"{met} of {total} criteria met"
        if outcome.vetoes:
            metadata["vetoes"] = list(outcome.vetoes)
            reason += f"; vetoed by {', '.join(outcome.vetoes)}"
        return GraderScore(
            name, outcome.score, reason, metadata, provenance=sum_provenance(self._provenances)
        )

    def _failure(self, outcome: Incomplete | NotEvaluable) -> GradingFailure:
        provenance = sum_costs(self._provenances)
        metadata: Metadata = {"criteria": self._criterion_marks(), **self._notes}
        if not outcome.missing:
            why = "nothing to judge: no criterion of positive points applies"
            kind = ErrorKind.INVALID_INPUT
            return GradingFailure(kind, why, metadata, provenance=provenance)
        # Not the call that ended first: a replay must say the same. An open circuit only follows.
        lost = [self._failures[name] for name in outcome.missing]
        lost.sort(key=lambda failure: failure.kind is ErrorKind.CIRCUIT_OPEN)
        kinds = Counter(str(failure.kind) for failure in lost)
        metadata |= {"missing": list(outcome.missing), "failures": dict(kinds)}
        where = ""
        if isinstance(outcome, Incomplete):
            metadata |= {"low": outcome.low, "high": outcome.high}
            if self.marks:  # else the interval is the whole range, and says nothing
                where = f": the score lies in [{outcome.low:.4g}, {outcome.high:.4g}]"
        if self._raw:
            raw = [self._raw.get(criterion.id, []) for criterion in self._rubric.criteria]
            metadata["raw"] = list(chain(*raw))[:_MOST_RAW]
        cause = next(filter(None, map(str, lost)), "")
        # One kind is the failure's own, which whoever shows the message shows beside it.
        causes = [*(kinds if not cause or len(kinds) > 1 else ()), *([cause] if cause else ())]
        message = (
            f"{len(outcome.missing)} of {len(self._rubric.criteria)} criteria have no verdict "
            f"({'; '.join(causes)}){where}"
        )
        failure = join_failures(lost, message, metadata, answered=[None] * bool(self.marks))
        failure.provenance = provenance
        return failure

    def _criterion_marks(self) -> Metadata:
        return {
            criterion.id: {"met": self.marks[criterion.id], "reason": self._reasons[criterion.id]}
            for criterion in self._rubric.criteria
            if criterion.id in self.marks
        }

    def _keep_raw(self, criteria: Sequence[Criterion], texts: Sequence[str]) -> None:
        if criteria and texts:
            kept = self._raw.setdefault(criteria[0].id, [])
            kept += [text[:RAW_LIMIT] for text in texts]

    def _spent(self, told: JudgeOutcome) -> None:
        self._provenances.append(told.provenance)
        if told.repaired:
            self._notes["repaired"] = True
        if ignored := self._ignored.union(told.notes.get("ignored", ())):
            self._ignored = ignored
            self._notes["ignored"] = sorted(ignored)


_Tell = Callable[..., Awaitable[JudgeOutcome]]
"""Puts one question about some criteria; see :meth:`RubricGrader._tell`."""


async def _fill(tell: _Tell, sheet: RubricMarks, criteria: Sequence[Criterion]) -> None:
    """Marks for ``criteria``, in one call; those left out are asked for once more, alone.

    What fails is noted on the sheet; ``auth`` alone is raised.
    """

    async def mark(criteria: Sequence[Criterion], *, last: bool = False) -> JudgeOutcome:
        form = _marks_form(tuple(criterion.na_allowed for criterion in criteria))
        told = await tell("rubric", criteria, form, last=last)
        sheet.add_marks(criteria, told)
        return told

    try:
        if criteria[0].scale == "bounded":
            form = ScoreForm(0.0, 1.0, integer=False)
            sheet.add_share(criteria[0], await tell("rubric_share", criteria, form))
            return
        told = await mark(criteria)
        if (left := sheet.unmarked(criteria)) and not told.repaired:
            with asking("left_out", 1):
                await mark(left, last=True)
    except GradingFailure as failure:
        if failure.kind is ErrorKind.AUTH:  # no other call will do better; a run must stop
            raise
        sheet.add_failure(sheet.unmarked(criteria), failure)


def _part_label(criteria: Sequence[Criterion | str], of: int) -> str:
    """Which criteria a call is about, where these are not all."""
    names = [one.id for one in criteria if isinstance(one, Criterion)]
    if not names or len(names) == of:
        return ""
    return f"criterion {names[0]}" if len(names) == 1 else f"criteria {names[0]} to {names[-1]}"


RubricPart = Literal["outcome", "events"]
AskMode = Literal["all", "chunks", "each"]
"""All criteria in one call, :data:`CHUNK_SIZE` per call, or one call per criterion."""

CHUNK_SIZE = 10

_log = logging.getLogger("adjudge.rubric")
_WORD = re.compile(r"[\w./:@+-]{1,80}")


@dataclass(eq=False, repr=False, kw_only=True)
class RubricGrader(JudgeGrader):
    """Has a judge mark each criterion of a rubric, and scores the marks.

    Fields: ``response`` or ``messages``, and what they answer; the rubric's column ``field``, where
    the spec gives no rubric; ``event`` with ``show = "event"``. A rubric with a scoring guide gets
    one score for all criteria.

    The score is that of the formula, never normalised: −3.29 stays −3.29 without ``clip``. The
    range is the rubric's own where it is fixed. Where samples bring their rubrics it is [0, 1] with
    ``clip``, else open below: then set ``clip = true`` or ``normalise = false``.

    Criteria that a reply leaves out are asked for once more. What then has no mark leaves the score
    missing: ``incomplete``, with ``low``, ``high``, the marks, ``missing`` and ``failures`` in the
    metadata. Where all calls failed for a temporary reason, the kind is theirs. An empty answer,
    and one with thinking that never ended, is marked like any other; where one score is asked for,
    it has the lowest and no judge is asked. Metadata: ``criteria`` (``met`` and ``reason`` by id),
    ``met``, ``total``, ``earned``, ``possible``, ``subscores``, ``vetoes``.

    Args:
        rubric: A file with the rubric, beside the spec.
        rubric_id: A name and version, such as ``crafter/bundle@v1``, looked up under
            ``rubric_dir``.
        rubric_dir: The folder of ``rubric_id``.
        criteria: The criteria themselves, in any shape of a rubric.
        part: Which rubric of a bundle: ``outcome`` or ``events``.
        field: The column with each sample's own rubric, a dotted path.
        clip: A negative score becomes 0; in place of the rubric's own.
        ask: ``all`` criteria in one call, ``chunks`` of 10, or ``each`` in its own.
        show: ``response``, ``trajectory`` (all messages) or ``event``; ``auto``: event, else
            trajectory with tool calls, else response.

    >>> import asyncio
    >>> from adjudge.judges import ScriptedModel
    >>> met = {"reason": "500 mg", "verdict": "MET"}
    >>> judge = ScriptedModel({"": {"1": met, "2": {"reason": "not said", "verdict": "UNMET"}}})
    >>> criteria = [
    ...     {"criterion": "Names a dose", "points": 3},
    ...     {"criterion": "Says when to call a doctor", "points": 1},
    ... ]
    >>> grader = RubricGrader(judge, criteria=criteria)
    >>> asyncio.run(grader.aevaluate(prompt="Headache?", response="Take 500 mg.")).score
    0.75
    """

    type_name = "rubric"

    rubric: Path | None = None
    rubric_id: str | None = None
    rubric_dir: Path = Path("rubrics")
    criteria: Any = None
    part: RubricPart = "outcome"
    field: str = "rubric"
    clip: bool = False
    ask: AskMode = "all"
    show: ShowMode = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.fixed = self._find_fixed()
        self.score_range = (0.0 if self.clip else None), 1.0  # what is sure of any
        if isinstance(self.fixed, GlobalRubric):
            self.score_range = self.fixed.score_range
        elif self.fixed is not None:
            self.score_range = score_range(self.fixed) or (None, 1.0)
        self.fingerprint = _fingerprint(self.fixed)

    def _find_fixed(self) -> SingleRubric | None:
        """The rubric of all samples, which the spec gives; ``None``: each sample brings its own."""
        given = {"rubric": self.rubric, "rubric_id": self.rubric_id, "criteria": self.criteria}
        named = [name for name, value in given.items() if value is not None]
        if len(named) > 1:
            raise ConfigError(
                f"{' and '.join(named)}: each is a rubric, and one is needed. Give one of them."
            )
        found, where = self.criteria, "criteria"
        if self.rubric is not None:
            found, where = load_rubric(self.rubric), str(self.rubric)
        elif self.rubric_id is not None:
            found = find_bundle(self.rubric_id, self.rubric_dir)
            where = f"rubric_id {self.rubric_id!r}"
        elif found is None:
            return None
        elif not isinstance(found, AnyRubric):
            found = parse_rubric(found, where=where)
        if isinstance(found, RubricBundle):
            found = found.for_outcome if self.part == "outcome" else found.events
        if found is None:
            other = "events" if self.part == "outcome" else "outcome"
            raise ConfigError(
                f"part: the bundle has no rubric for {self.part!r} (allowed: {other!r})"
            )
        return self._settle(found, where)

    def _settle(self, rubric: SingleRubric, where: str) -> SingleRubric:
        """``rubric`` under the grader's own settings."""
        if isinstance(rubric, GlobalRubric):
            if self.clip:
                raise ConfigError(f"{where}: has one score, so clip does not apply. Leave it out.")
            return rubric
        if self.clip:
            rubric = dataclasses.replace(rubric, clip=True)
        if score_range(rubric) is None:
            raise ConfigError(
                f"{where}: no criterion has positive points, so no score can be earned. Give one "
                "positive points."
            )
        return rubric

    def _read_own(self, fields: Fields) -> SingleRubric:
        """The sample's own rubric.

        Raises ``GradingFailure(invalid_input)`` where the sample has none, or one that cannot be
        used: broken, beyond the limits, or without anything to earn.
        """
        value = get_path(fields, self.field)
        if value is MISSING or value is None:
            raise InvalidInput(
                f"the sample has no rubric in {self.field!r}; name its column with `field`, or "
                "give the grader a rubric, a rubric_id or criteria",
                {LACKED: [self.field]},
            )
        own = rubric_from(value, where=self.field)
        try:
            return self._settle(own, self.field)
        except ConfigError as error:
            raise InvalidInput(str(error)) from None

    async def aevaluate(self, draw: int = 0, **fields: object) -> GraderScore:
        """The score of a sample's fields by its rubric."""
        rubric = self.fixed or self._read_own(fields)
        material = RubricReader(fields, self._showing).read(self.show)
        if material.unsaid and isinstance(rubric, GlobalRubric):
            metadata = {"cause": str(Cause.CANDIDATE), material.unsaid: True}
            why = EMPTY_REASONS[material.unsaid]
            return GraderScore(self.name, rubric.score_range[0], why, metadata)
        self._log_call(fields)
        tell = partial(self._tell, rubric, material, draw, get_group_name(fields))
        if isinstance(rubric, GlobalRubric):
            form = ScoreForm(*rubric.score_range, integer=False)
            scale = format_scale(rubric, self.language)
            told = await tell("rubric_score", rubric.criteria, form, scale=scale)
            score, reason = float(told.verdict.value), told.verdict.reason
            return GraderScore(self.name, score, reason, told.notes, provenance=told.provenance)
        sheet = RubricMarks(rubric, {material.unsaid: True} if material.unsaid else {})
        await run_all(_fill(tell, sheet, part) for part in self._parts(rubric))
        return sheet.result(self.name)

    async def _tell(
        self,
        rubric: SingleRubric,
        material: RubricMaterial,
        draw: int,
        group: str | None,
        asked: QuestionKind,
        criteria: Sequence[Criterion | str],
        form: JudgeReplyForm,
        *,
        last: bool = False,
        **values: object,
    ) -> JudgeOutcome:
        """One call about ``criteria``, by ``rubric`` of a sample that shows ``material``."""
        given = self.fixed is None  # the rubric came with the sample
        lines = format_criteria(rubric, criteria, self.language)
        shown = build_criteria_fields(lines, self.language, given=given)
        with call_part(_part_label(criteria, len(rubric.criteria))):
            return await self._ask(
                load_rubric_template(asked, material.shown, given=given),
                {**shown, **material.values, **values},
                form,
                draw=draw,
                group=group,
                # After the last ask what cannot be read leaves criteria unmarked.
                unread=Verdict(value={}) if last else None,
                last=last,
            )

    def _parts(self, rubric: Rubric) -> list[list[Criterion]]:
        """The criteria of each call."""
        marked = [one for one in rubric.criteria if one.scale == "binary"]
        size = {"all": len(marked), "chunks": CHUNK_SIZE, "each": 1}[self.ask]
        chunks = [marked[at : at + size] for at in range(0, len(marked), max(size, 1))]
        return chunks + [[one] for one in rubric.criteria if one.scale == "bounded"]

    def _log_call(self, fields: Fields) -> None:
        if _log.isEnabledFor(logging.INFO):
            policy = fields.get("policy", fields.get("policy_name"))
            _log.info(
                "[RUBRIC_CALL] policy=%s, provider=%s, model=%s",
                # A name and nothing else: what a sample holds could forge lines.
                policy if isinstance(policy, str) and _WORD.fullmatch(policy) else "unknown",
                self.model.preset or self.model.kind,
                self.model.model,
            )


def _fingerprint(rubric: SingleRubric | None) -> str:
    """Of the rubric and of every prompt text."""
    texts = [
        load_rubric_template(asked, shown, given=rubric is None).hash
        for asked in get_args(QuestionKind)
        for shown in get_args(ShownPart)
    ]
    own = "" if rubric is None else rubric_digest(rubric)
    return sha256("".join([*texts, own]).encode()).hexdigest()
