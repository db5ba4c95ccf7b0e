"""The calls that a rubric grader makes about one sample."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from adjudge.errors import REDRAW_KINDS, ErrorKind, GradingFailure
from adjudge.graders.llm.forms import Form, ScoreForm
from adjudge.graders.llm.judged import REPAIR_DRAW, Told
from adjudge.graders.llm.rubric_material import Material
from adjudge.graders.llm.rubric_prompt import (
    Asked,
    criteria_lines,
    criteria_values,
    rubric_template,
    scale_lines,
)
from adjudge.graders.llm.rubric_sheet import Sheet, marks_form
from adjudge.prompts import LanguageEnum
from adjudge.rubrics import Criterion, GlobalRubric, Rubric
from adjudge.verdicts import Verdict

__all__ = ["Asking"]


class Asking:
    """Asks about one sample, by one rubric.

    ``ask`` is the grader's own way to put a question; ``given``: the rubric came with the sample.
    """

    def __init__(
        self,
        ask: Callable[..., Awaitable[Told]],
        rubric: Rubric | GlobalRubric,
        material: Material,
        language: LanguageEnum,
        *,
        given: bool,
        draw: int,
        group: str | None,
    ) -> None:
        self._ask, self._rubric, self._material = ask, rubric, material
        self._language, self._given, self._draw, self._group = language, given, draw, group

    async def one_score(self) -> Told:
        """One score for all criteria; raises ``GradingFailure`` without it."""
        rubric = self._rubric
        low, high = rubric.score_range if isinstance(rubric, GlobalRubric) else (0.0, 1.0)
        return await self._tell(
            "rubric_score",
            rubric.criteria,
            ScoreForm(low, high, integer=False),
            scale=scale_lines(rubric, self._language),
        )

    async def fill(self, sheet: Sheet, criteria: Sequence[Criterion]) -> None:
        """Marks for ``criteria``, in one call; those left out are asked for once more, alone.

        What fails is noted on the sheet; ``auth`` alone is raised.
        """
        try:
            if criteria[0].scale == "bounded":
                await self._share(sheet, criteria[0])
            elif await self._marks(sheet, criteria) and (left := sheet.open(criteria)):
                await self._marks(sheet, left, last=True)
        except GradingFailure as failure:
            if failure.kind is ErrorKind.AUTH:  # no other call will do better; a run must stop
                raise
            sheet.fail(sheet.open(criteria), failure)

    async def _share(self, sheet: Sheet, criterion: Criterion) -> None:
        form = ScoreForm(0.0, 1.0, integer=False)
        sheet.take_share(criterion, await self._tell("rubric_share", [criterion], form))

    async def _marks(
        self, sheet: Sheet, criteria: Sequence[Criterion], *, last: bool = False
    ) -> bool:
        """Ask once; whether what is still open may be asked for once more."""
        try:
            told = await self._tell("rubric", criteria, marks_form(criteria), last=last)
        except GradingFailure as failure:
            # Raw replies mean that it has been asked again already; other kinds stay as they are.
            if last or failure.kind not in REDRAW_KINDS or "raw" in failure.metadata:
                raise
            sheet.fail(criteria, failure)
            return True
        sheet.take(criteria, told)
        return not told.repaired

    async def _tell(
        self,
        asked: Asked,
        criteria: Sequence[Criterion | str],
        form: Form,
        *,
        last: bool = False,
        **values: Any,
    ) -> Told:
        weighed = asked == "rubric_score"
        lines = criteria_lines(self._rubric, criteria, self._language, weighed=weighed)
        return await self._ask(
            rubric_template(asked, self._material.shown, given=self._given),
            {
                **criteria_values(lines, self._language, given=self._given),
                **self._material.values,
                **values,
            },
            form,
            draw=self._draw + (REPAIR_DRAW if last else 0),
            group=self._group,
            # The last ask is not repaired: an unreadable reply leaves its criteria without a mark.
            unread=Verdict(value={}) if last else None,
        )
