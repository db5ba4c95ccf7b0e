"""``RubricGrader``: a sample judged criterion by criterion, or by one score for all of them."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

from adjudge.engine.tasks import run_all
from adjudge.errors import Cause, ConfigError
from adjudge.graders.llm.candidate import Showing, Truncated
from adjudge.graders.llm.judged import JudgeGrader, group_in
from adjudge.graders.llm.rubric_asking import Asking
from adjudge.graders.llm.rubric_material import Show, Shown, material_of
from adjudge.graders.llm.rubric_prompt import Asked, rubric_template
from adjudge.graders.llm.rubric_sheet import Sheet
from adjudge.graders.llm.rubric_source import OneRubric, Part, RubricSource, one_of
from adjudge.graders.view import View
from adjudge.judges.base import ChatModel
from adjudge.prompts import LanguageEnum
from adjudge.rubrics import Criterion, GlobalRubric, Rubric, digest
from adjudge.rubrics.rubric import Scheme
from adjudge.types import GraderScore

__all__ = ["Ask", "RubricGrader"]

Ask = Literal["all", "chunks", "each"]
"""All criteria in one call, ``chunk_size`` per call, or one call per criterion."""

_log = logging.getLogger("adjudge.rubric")
_WORD = re.compile(r"[\w./:@+-]{1,80}")
_UNSAID = {
    "empty": "the response is empty",
    "unclosed_think": "the response never ended its thinking",
}


class RubricGrader(JudgeGrader):
    """Has a judge mark each criterion of a rubric, and scores the marks.

    The rubric is one of ``rubric`` (a file), ``rubric_id`` (``crafter/bundle@v1``, looked up under
    ``rubric_dir``) or ``criteria`` (in place: any shape that :func:`adjudge.rubrics.parse_rubric`
    reads, or a rubric object); without any, each sample brings its own in its column ``field``
    (a dotted path), as hostile data within limits. ``part``: which rubric of a bundle. ``scheme``
    and ``clip`` take the place of the rubric's own: see :class:`adjudge.rubrics.Rubric`. A rubric
    with a scoring guide, and ``scheme = "implicit"``, get one score for all criteria, on the
    guide's scale or from 0 to 1.

    ``ask``: ``all`` criteria in one call, ``chunks`` of ``chunk_size``, or ``each`` by itself; the
    calls of a sample run at the same time. Criteria on the ``bounded`` scale always have a call of
    their own. ``show``: the judge sees the ``response`` and what it answers, the ``trajectory``
    (all messages), or an ``event``; ``auto`` takes the event where there is one, the trajectory
    where messages hold tool calls, else the response. ``axis``: the tag by which sub-scores are
    reported.

    ``score``: by :func:`adjudge.rubrics.score`, never normalised; −3.29 stays −3.29 without
    ``clip``. ``score_range`` is the rubric's exact range where it is fixed. Where samples bring
    their own it is [0, 1] with ``clip`` or a scheme other than ``points``, else open below, so that
    a spec that averages needs ``clip = true`` or ``normalise = false``. ``metadata``: ``criteria``
    (id → ``met``: true, false, a share, null for not applicable; ``reason``), ``met``, ``total``,
    ``earned``, ``possible``, ``subscores``, ``vetoes``.

    Criteria that a reply leaves out are asked for once more, alone. What then has no mark leaves
    the score missing: ``incomplete`` with the interval [``low``, ``high``] that it must lie in, the
    marks there are, ``missing`` ids and ``failures`` by kind in the metadata; or the calls' own
    kind where all of them failed in a way that passes, so that a run asks again, or where nothing
    was told at all. No criterion that applies is ``invalid_input``.

    About an answer that is empty, or whose thinking never ended, the judge is asked criterion by
    criterion as about any other, since silence may fail what a rubric takes points for
    (``metadata`` says ``empty`` or ``unclosed_think``). Where one score is asked for, such an
    answer has the lowest, unasked.
    """

    type_name = "rubric"

    def __init__(
        self,
        model: ChatModel,
        rubric: Path | None = None,
        rubric_id: str | None = None,
        rubric_dir: Path = Path("rubrics"),
        criteria: Any = None,
        part: Part = "outcome",
        field: str = "rubric",
        scheme: Scheme = "auto",
        clip: bool = False,
        ask: Ask = "all",
        chunk_size: int = 10,
        show: Show = "auto",
        axis: str = "axis",
        language: LanguageEnum | str = LanguageEnum.EN,
        view: View = "final",
        truncated: Truncated = "judge",
        name: str = "",
    ) -> None:
        super().__init__(model, name, language=language)
        self.source = RubricSource(
            rubric, rubric_id, rubric_dir, criteria, part, field, scheme, clip
        )
        self.ask: Ask = one_of("ask", ask, ("all", "chunks", "each"))
        self.show: Show = one_of("show", show, ("auto", "response", "trajectory", "event"))
        if chunk_size < 1:
            raise ConfigError(f"chunk_size: found {chunk_size}, must be at least 1")
        self.chunk_size, self.axis = chunk_size, axis
        self.score_range = self.source.score_range
        self.fingerprint = _fingerprint(self.source.fixed)
        self._showing = Showing(view, truncated)

    async def aevaluate(self, draw: int = 0, **fields: Any) -> GraderScore:
        """The score of a sample's fields by its rubric."""
        rubric = self.source.of(fields)
        material = material_of(fields, self.show, self._showing, self.language)
        marked = rubric if isinstance(rubric, Rubric) and rubric.scheme != "implicit" else None
        if material.unsaid and marked is None:
            return self._unsaid(rubric, material.unsaid)
        self._log_call(fields)
        asking = Asking(
            self._ask,
            rubric,
            material,
            self.language,
            given=self.source.fixed is None,
            draw=draw,
            group=group_in(fields),
        )
        if marked is None:
            told = await asking.one_score()
            score, reason = float(told.verdict.value), told.verdict.reason
            return GraderScore(self.name, score, reason, told.notes, provenance=told.provenance)
        sheet = Sheet(marked, {material.unsaid: True} if material.unsaid else {})
        await run_all(asking.fill(sheet, part) for part in self._parts(marked))
        return sheet.result(self.name, self.axis)

    def _parts(self, rubric: Rubric) -> list[list[Criterion]]:
        """The criteria of each call."""
        marked = [one for one in rubric.criteria if one.scale == "binary"]
        size = {"all": len(marked), "chunks": self.chunk_size, "each": 1}[self.ask]
        chunks = [marked[at : at + size] for at in range(0, len(marked), max(size, 1))]
        return chunks + [[one] for one in rubric.criteria if one.scale == "bounded"]

    def _unsaid(self, rubric: OneRubric, why: str) -> GraderScore:
        low = rubric.score_range[0] if isinstance(rubric, GlobalRubric) else 0.0
        metadata = {"cause": str(Cause.CANDIDATE), why: True}
        return GraderScore(self.name, low, _UNSAID[why], metadata)

    def _log_call(self, fields: Mapping[str, Any]) -> None:
        if _log.isEnabledFor(logging.INFO):
            policy = fields.get("policy", fields.get("policy_name"))
            _log.info(
                "[RUBRIC_CALL] policy=%s, provider=%s, model=%s",
                # A name and nothing else: what a sample holds could forge lines.
                policy if isinstance(policy, str) and _WORD.fullmatch(policy) else "unknown",
                getattr(self.model, "preset", self.model.kind),
                self.model.model,
            )


def _fingerprint(rubric: OneRubric | None) -> str:
    """Of the rubric and of every prompt text."""
    asked: tuple[Asked, ...] = ("rubric", "rubric_score", "rubric_share")
    shown: tuple[Shown, ...] = ("response", "trajectory", "event")
    given = rubric is None
    texts = [rubric_template(a, s, given=given).hash for a in asked for s in shown]
    return sha256("".join([*texts, "" if rubric is None else digest(rubric)]).encode()).hexdigest()
