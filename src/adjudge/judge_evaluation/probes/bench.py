"""The grader that is probed, and the bench: the questions of the probes and their answers.

Every probe is one function that is run twice over the same bench: first to plan, when every answer
is ``None`` and the questions are written down (equal ones once), then to measure. So what is
asked and what is measured cannot come apart.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any, Literal, NamedTuple, TypeVar

from adjudge.errors import ConfigError
from adjudge.graders.base import FunctionGrader, GraderTraits, RuleGrader, is_listwise
from adjudge.graders.llm.comparison import PairJudge, PairwiseGrader
from adjudge.graders.llm.judge_grader import LLMGrader
from adjudge.graders.llm.multi_judge import MultiJudge
from adjudge.graders.llm.numeric_scores import ExpectedScoreGrader
from adjudge.graders.llm.ranking import ListwiseGrader
from adjudge.graders.llm.rubric import RubricGrader
from adjudge.graders.llm.shipped_graders import ShippedGrader
from adjudge.intake.rollouts import make_sample
from adjudge.judge_evaluation.probes.items import ProbeItem, ProbeTopic
from adjudge.rubrics import Rubric
from adjudge.stats import mean_of_all
from adjudge.stats.estimates import ItemColumns
from adjudge.types import (
    MISSING,
    GraderError,
    GraderRank,
    GraderResult,
    GraderScore,
    finite_range,
    get_path,
)

AnswerKind = Literal["scores", "compares", "ranks"]
"""One answer at a time, one against another, or a group at once."""


class ProbeQuestion(NamedTuple):
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


class ProbedGrader:
    """A grader, seen as a judge to be probed.

    ``gives_reference``: whether it is given the items' references, where it takes one.
    """

    def __init__(self, grader: Any, *, gives_reference: bool = True) -> None:
        self.grader = grader
        self.panel = isinstance(grader, MultiJudge)
        one: Any = grader.members[0] if isinstance(grader, MultiJudge) else grader
        self.single_grader = one
        self.kind: AnswerKind = "scores"
        if is_listwise(grader):
            self.kind = "ranks"
        elif isinstance(one, PairwiseGrader):
            self.kind = "compares"
        self.gives_reference = gives_reference and _takes_reference(one)
        own = isinstance(one, RubricGrader) and one.fixed is None
        self.rubric_field = one.field if own else ""
        self.score_range = finite_range(GraderTraits.of(one).score_range)

    @property
    def asks_both_orders(self) -> bool:
        """Whether one question already has both orders in it."""
        return isinstance(self.single_grader, PairJudge) and self.single_grader.orders == "both"

    @property
    def tells_orders(self) -> bool:
        """Whether its answers say which response was shown first, or the given order is it."""
        shuffles = isinstance(self.single_grader, PairJudge) and self.kind == "ranks"
        return self.kind != "scores" and not shuffles and not self.panel

    @property
    def marks_criteria(self) -> bool:
        """Whether it marks criteria one by one, of which there are several."""
        if self.panel or not isinstance(self.single_grader, RubricGrader):
            return False
        fixed = self.single_grader.fixed
        if fixed is None:
            return True
        return isinstance(fixed, Rubric) and len(fixed.criteria) > 1

    def fields(self, item: ProbeItem, question: ProbeQuestion) -> dict[str, Any]:
        """The fields of one question, as the grader takes them."""
        texts = [question.response, *([question.other] if self.kind == "ranks" else [])]
        members = [self._one(item, text, question.reference) for text in texts]
        if self.kind == "ranks":
            return {name: [member[name] for member in members] for name in members[0]}
        [fields] = members
        if self.kind == "compares":
            fields[self.single_grader.against] = question.other
        if self.rubric_field:
            rubric = get_path(fields, self.rubric_field)
            rubric = _item_rubric(item) if rubric is MISSING else rubric
            turned = question.reordered and isinstance(rubric, list)
            fields[self.rubric_field] = rubric[::-1] if turned else rubric
        return fields

    def _one(self, item: ProbeItem, response: str, reference: str) -> dict[str, Any]:
        asked = [{"role": "user", "content": item.prompt}]
        answer = [{"role": "assistant", "content": response}]
        sample = make_sample(0, 0, asked, answer, {**item.fields, "query": item.prompt})
        return sample.fields() | ({"reference": reference} if reference else {})


def _takes_reference(grader: Any) -> bool:
    """Whether a grader asks for a reference by name: in its needs, its template, its signature."""
    match grader:
        case PairwiseGrader(against="reference"):
            return False
        case ShippedGrader():
            return "reference" in (*grader.needs, *grader.needs_any)
        case PairJudge() | ListwiseGrader() | LLMGrader() | ExpectedScoreGrader():
            return "reference" in grader.template.fields
    has_rule = isinstance(grader, RuleGrader | FunctionGrader)
    function = grader.evaluate if has_rule else grader.aevaluate
    return "reference" in inspect.signature(function).parameters


_CRITERIA = {
    "en": (
        "Says the same in substance as: {reference}",
        "Answers every part of the question",
        "Contains no false statement",
    ),
    "zh": ("实质内容与此一致：{reference}", "回答了问题的每个部分", "没有错误的陈述"),
}


def _item_rubric(item: ProbeItem) -> list[dict[str, Any]]:
    """A rubric for a grader that expects one of every sample, made of the item."""
    reference = item.reference or item.right
    return [
        {"id": f"c{number}", "criterion": text.format(reference=reference), "points": points}
        for number, (text, points) in enumerate(
            zip(_CRITERIA[item.language], (3, 1, 1), strict=True), start=1
        )
    ]


def reorder_criteria(grader: Any) -> Any:
    """The same rubric grader with the criteria of its own rubric from last to first."""
    fixed = grader.fixed
    if fixed is None:
        return grader
    if not isinstance(fixed, Rubric):
        raise ConfigError(
            f"grader {grader.name!r}: its criteria get one score together, and no mark each"
        )
    twin = copy.copy(grader)
    twin.fixed = dataclasses.replace(fixed, criteria=fixed.criteria[::-1])
    return twin


_T = TypeVar("_T")


def all_known(found: Iterable[_T | None]) -> list[_T] | None:
    """The answers, where none of them is missing."""
    answers = list(found)
    known = [one for one in answers if one is not None]
    return known if len(known) == len(answers) else None


class OrderedVerdict(NamedTuple):
    """One verdict on a pair in a known order: who stood first, and what the first of them got.

    ``given``: whether the pair was shown as it is named. ``score``: of the one named first, 1, 0.5
    or 0.
    """

    in_named_order: bool
    score: float


class ProbeBench:
    """Questions to one subject about some topics, and its answers once there are any.

    ``repeats``: how often the answers are asked for that repeatability is measured on, and that
    shifts are measured against. ``family``: that of the judge's model, as items name it.
    """

    def __init__(
        self,
        subject: ProbedGrader,
        topics: Sequence[ProbeTopic],
        *,
        repeats: int = 3,
        family: str = "",
    ) -> None:
        self.subject, self.topics = subject, topics
        self.items = [topic.item for topic in topics]
        self.repeats, self.family = repeats, family
        self.questions: dict[ProbeQuestion, None] = {}
        self.answers: Mapping[ProbeQuestion, GraderResult] | None = None
        self.looked_at: set[ProbeQuestion] = set()
        self.controls: set[tuple[str, str]] = set()
        self.failed: dict[ProbeQuestion, str] = {}
        self._by_id = {item.id: item for item in self.items}
        self._by_id |= {topic.twin.id: topic.twin for topic in topics if topic.twin is not None}
        self._cut: list[float | None] = []

    def reset_failures(self) -> None:
        """Forget what another probe looked at and found missing."""
        self.looked_at, self.failed, self._cut = set(), {}, []

    @property
    def control_questions(self) -> int:
        """How many of the questions are about a neutral control."""
        return sum(
            (one.item, one.response) in self.controls or (one.item, one.other) in self.controls
            for one in self.questions
        )

    def item_of(self, question: ProbeQuestion) -> ProbeItem:
        """The item that a question is about."""
        return self._by_id[question.item]

    def find_answer(self, question: ProbeQuestion) -> GraderResult | None:
        """The answer to a question; ``None`` when there is none, its kind kept in ``failed``."""
        if self.answers is None:
            self.questions[question] = None
            return None
        self.looked_at.add(question)
        found = self.answers.get(question)
        if isinstance(found, GraderError):
            self.failed[question] = str(found.kind)
            return None
        return found

    def reference(self, item: ProbeItem) -> str:
        """The reference that goes with every question about an item, if any does."""
        return (item.reference or item.right) if self.subject.gives_reference else ""

    # --- one answer at a time -------------------------------------------------------------------

    def score(
        self, item: ProbeItem, response: str, draw: int = 0, reference: str | None = None
    ) -> float | None:
        """The raw score of a response."""
        given = self.reference(item) if reference is None else reference
        found = self.find_answer(ProbeQuestion(item.id, response, reference=given, draw=draw))
        return found.score if isinstance(found, GraderScore) else None

    def repeated_scores(
        self, item: ProbeItem, response: str, draws: int | None = None
    ) -> list[float] | None:
        """The scores of a response over ``draws`` (all repeats); ``None`` where one is missing."""
        return all_known(self.score(item, response, at) for at in range(draws or self.repeats))

    def score_moments(self, item: ProbeItem) -> ItemColumns:
        """Sum, sum of squares and number of the first scores of an item's own answers."""
        answers = dict.fromkeys((item.right, item.middling, item.wrong))
        scores = [s for one in answers if (s := self.score(item, one)) is not None]
        return (sum(scores), sum(s * s for s in scores), float(len(scores)))

    # --- one answer against another -------------------------------------------------------------

    def prefers(self, item: ProbeItem, one: str, other: str, draw: int = 0) -> float | None:
        """How far ``one`` is preferred to ``other``, both orders taken together, in [−1, 1]."""
        if self.subject.kind == "ranks":
            given = self._pair(item, one, other, 2 * draw)
            turned = self._pair(item, other, one, 2 * draw + 1)
            found = [given, None if turned is None else -turned]
        elif self.subject.asks_both_orders:
            found = [self._pair(item, one, other, draw)]
        else:  # the next draw shows the other order
            found = [self._pair(item, one, other, 2 * draw + place) for place in (0, 1)]
        return mean_of_all(found)

    def _compare(self, item: ProbeItem, one: str, other: str, draw: int) -> GraderResult | None:
        question = ProbeQuestion(item.id, one, other, self.reference(item), draw=draw)
        return self.find_answer(question)

    def _pair(self, item: ProbeItem, one: str, other: str, draw: int) -> float | None:
        found = self._compare(item, one, other, draw)
        if isinstance(found, GraderScore):
            low, high = self.subject.score_range or (0.0, 1.0)
            return 2 * (found.score - low) / (high - low) - 1
        first, second = _pair_scores(found)
        return None if first is None or second is None else first - second

    def ordered_verdicts(
        self, item: ProbeItem, one: str, other: str
    ) -> list[OrderedVerdict] | None:
        """Verdicts on a pair in known orders, each order ``repeats`` times; ``None`` if any lacks.

        A ranking that draws its own order is asked as often, in whatever orders it draws.
        """
        found: list[OrderedVerdict] = []
        both = self.subject.asks_both_orders
        for draw in range(self.repeats if both else 2 * self.repeats):
            swapped = self.subject.kind == "ranks" and draw % 2 == 1
            pair = (other, one) if swapped else (one, other)
            found += self._in_order(self._compare(item, *pair, draw), swapped=swapped)
        return found if len(found) == 2 * self.repeats else None

    def _in_order(self, answer: GraderResult | None, *, swapped: bool) -> list[OrderedVerdict]:
        if isinstance(answer, GraderScore):
            verdicts = answer.metadata.get("verdicts", {})
            worth = {"win": 1.0, "tie": 0.5, "loss": 0.0}
            return [
                OrderedVerdict(order == "as_given", worth[one]) for order, one in verdicts.items()
            ]
        scores = _pair_scores(answer)
        shown = scores[swapped]
        if shown is None or not isinstance(answer, GraderRank):
            return []
        given = not swapped
        if isinstance(self.subject.single_grader, ListwiseGrader):  # it says where each stood
            first, second = answer.metadata.get("shown_as", (1, 2))
            given = (first < second) != swapped
        return [OrderedVerdict(given, shown)]

    # --- either ---------------------------------------------------------------------------------

    def preference(self, item: ProbeItem, one: str, other: str) -> float | None:
        """Whether one answer is put before another: 1, 0 for a tie, −1; or a share of these."""
        if self.subject.kind != "scores":
            return self.prefers(item, one, other)
        scores = all_known((self.score(item, one), self.score(item, other)))
        return None if scores is None else float(scores[0] > scores[1]) - (scores[0] < scores[1])

    def shift(self, item: ProbeItem, base: str, changed: str) -> float | None:
        """What a change does: the difference of scores, or how far it is preferred to the base."""
        if self.subject.kind != "scores":
            return self.prefers(item, changed, base)
        before, after = self.repeated_scores(item, base), self.score(item, changed)
        # Differences first: the mean of equal scores may be off by rounding, which is no shift.
        return None if before is None or after is None else fmean(after - one for one in before)

    def contrast(self, item: ProbeItem, control: str, changed: str) -> float | None:
        """What a change does beyond its length, against a control that is as long.

        Nobody else needs the control's answers, so what :meth:`shift` asks of the base is shared
        out: ``repeats // 2 + 1`` draws of either, which is less noise for as many questions.
        """
        self.controls.add((item.id, control))
        draws = self.repeats // 2 + 1
        if self.subject.kind != "scores":
            return mean_of_all(self.prefers(item, changed, control, draw) for draw in range(draws))
        before, after = (self.repeated_scores(item, one, draws) for one in (control, changed))
        if before is None or after is None:
            return None
        return fmean(one - other for one in after for other in before)

    def accepts(self, item: ProbeItem, response: str) -> bool | None:
        """Whether a response passes for right.

        Its score is nearer to that of the right answers than of the wrong ones; or, where answers
        are compared, it is preferred to the right one.
        """
        if self.subject.kind != "scores":
            found = self.prefers(item, response, item.right)
            return None if found is None else found > 0
        score, cut = self.score(item, response), self.acceptance_threshold()
        return None if score is None or cut is None else score >= cut

    def acceptance_threshold(self) -> float | None:
        """Half-way between the mean scores of right and wrong answers; ``None`` if not in order."""
        if not self._cut:
            right = [self.score(item, item.right) for item in self.items]
            wrong = [self.score(item, item.wrong) for item in self.items]
            high = [one for one in right if one is not None]
            low = [one for one in wrong if one is not None]
            apart = bool(high and low) and fmean(high) > fmean(low)
            self._cut = [(fmean(high) + fmean(low)) / 2 if apart else None]
        return self._cut[0]


def _pair_scores(answer: GraderResult | None) -> tuple[float | None, float | None]:
    """The scores of the two texts of a ranking."""
    scores = answer.as_scores() if isinstance(answer, GraderRank) else None
    return (None, None) if scores is None else (scores[0], scores[1])
