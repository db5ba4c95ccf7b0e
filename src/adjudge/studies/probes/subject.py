"""The grader that is probed: what kind of answer it gives, and how one of our questions is put."""

from __future__ import annotations

import copy
import inspect
from typing import Any, Literal, NamedTuple

import msgspec

from adjudge.errors import ConfigError
from adjudge.graders.base import is_listwise
from adjudge.graders.llm.comparing import PairJudge
from adjudge.graders.llm.listwise import ListwiseGrader
from adjudge.graders.llm.multi import MultiJudge
from adjudge.graders.llm.pairwise import PairwiseGrader
from adjudge.graders.llm.rubric import RubricGrader
from adjudge.rollouts.mapping import MISSING, get_path
from adjudge.rubrics import Rubric
from adjudge.studies.probes.items import Item
from adjudge.types import finite_range

__all__ = ["Kind", "Question", "Subject", "reordered"]

Kind = Literal["scores", "compares", "ranks"]
"""One answer at a time, one against another, or a group at once."""


class Question(NamedTuple):
    """One question to the grader: about ``response``, against ``other`` where it compares.

    ``item``: the id of the item. ``reference``: what it is given as such. ``reordered``: with the
    criteria of its rubric in another order.
    """

    item: str
    response: str
    other: str = ""
    reference: str = ""
    reordered: bool = False
    draw: int = 0


class Subject:
    """A grader, seen as a judge to be probed.

    ``with_reference``: whether it is given the items' references; ``None``: where it takes one.
    """

    def __init__(self, grader: Any, *, with_reference: bool | None = None) -> None:
        self.grader = grader
        self.panel = isinstance(grader, MultiJudge)
        one = grader.members[0].grader if isinstance(grader, MultiJudge) else grader
        self.one = one
        self.kind: Kind = "scores"
        if is_listwise(grader):
            self.kind = "ranks"
        elif isinstance(one, PairwiseGrader):
            self.kind = "compares"
        self.takes_reference = _takes_reference(one)
        self.gives_reference = self.takes_reference if with_reference is None else with_reference
        own = isinstance(one, RubricGrader) and one.source.fixed is None
        self.rubric_field = one.source.field if own else ""

    @property
    def asks_both_orders(self) -> bool:
        """Whether one question already has both orders in it."""
        return isinstance(self.one, PairJudge) and self.one.orders == "both"

    @property
    def tells_orders(self) -> bool:
        """Whether its answers say which response was shown first, or the given order is it."""
        shuffles = isinstance(self.one, PairJudge) and self.kind == "ranks"
        return self.kind != "scores" and not shuffles and not self.panel

    @property
    def tells_places(self) -> bool:
        """Whether a ranking says in which order the responses were shown."""
        return isinstance(self.one, ListwiseGrader)

    @property
    def top(self) -> str:
        """The best score in words, for a text that asks for it."""
        bounds = finite_range(getattr(self.one, "score_range", None))
        return "10" if bounds is None else f"{bounds[1]:g}"

    @property
    def marks_criteria(self) -> bool:
        """Whether it marks criteria one by one, of which there are several."""
        if self.panel or not isinstance(self.one, RubricGrader):
            return False
        fixed = self.one.source.fixed
        if fixed is None:
            return True
        several = isinstance(fixed, Rubric) and len(fixed.criteria) > 1
        return several and isinstance(fixed, Rubric) and fixed.scheme != "implicit"

    def fields(self, item: Item, question: Question) -> dict[str, Any]:
        """The fields of one question, as the grader takes them."""
        if self.kind == "ranks":
            return self._group(item, question)
        fields = self._one(item, question.response)
        if question.reference:
            fields["reference"] = question.reference
        if self.kind == "compares":
            fields[self.one.against] = question.other
        if self.rubric_field:
            rubric = get_path(fields, self.rubric_field)
            rubric = _criteria(item) if rubric is MISSING else rubric
            turned = question.reordered and isinstance(rubric, list)
            fields[self.rubric_field] = rubric[::-1] if turned else rubric
        return fields

    def _one(self, item: Item, response: str) -> dict[str, Any]:
        asked = {"role": "user", "content": item.prompt}
        return {
            **item.fields,
            "prompt": item.prompt,
            "query": item.prompt,
            "response": response,
            "messages": [asked, {"role": "assistant", "content": response}],
        }

    def _group(self, item: Item, question: Question) -> dict[str, Any]:
        members = [self._one(item, text) for text in (question.response, question.other)]
        if question.reference:
            for member in members:
                member["reference"] = question.reference
        return {name: [member[name] for member in members] for name in members[0]}


def _takes_reference(grader: Any) -> bool:
    """Whether a grader asks for a reference by name: in its needs, its template, its signature."""
    if isinstance(grader, PairwiseGrader):
        return "reference" in grader.template.fields and grader.against != "reference"
    if "reference" in (*getattr(grader, "needs", ()), *getattr(grader, "needs_any", ())):
        return True
    template = getattr(grader, "template", None)
    if template is not None and "reference" in getattr(template, "fields", ()):
        return True
    function = getattr(grader, "evaluate", grader.aevaluate)
    try:
        return "reference" in inspect.signature(function).parameters
    except (TypeError, ValueError):  # a callable that does not tell
        return False


_CRITERIA = {
    "en": (
        "Says the same in substance as: {reference}",
        "Answers every part of the question",
        "Contains no false statement",
    ),
    "zh": ("实质内容与此一致：{reference}", "回答了问题的每个部分", "没有错误的陈述"),
}


def _criteria(item: Item) -> list[dict[str, Any]]:
    """A rubric for a grader that expects one of every sample, made of the item."""
    reference = item.reference or item.right
    return [
        {"id": f"c{number}", "criterion": text.format(reference=reference), "points": points}
        for number, (text, points) in enumerate(
            zip(_CRITERIA[item.language], (3, 1, 1), strict=True), start=1
        )
    ]


def reordered(grader: Any) -> Any:
    """The same rubric grader with the criteria of its own rubric from last to first."""
    fixed = grader.source.fixed
    if fixed is None:
        return grader
    if not isinstance(fixed, Rubric):
        raise ConfigError(f"grader {grader.name!r}: its criteria get one score, no marks")
    twin = copy.copy(grader)
    twin.source = copy.copy(grader.source)
    twin.source.fixed = msgspec.structs.replace(fixed, criteria=fixed.criteria[::-1])
    return twin
