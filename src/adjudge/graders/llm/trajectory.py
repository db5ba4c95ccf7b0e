"""A whole trajectory before a judge: as one, and rated step by step.

The reply that rates every step is checked against the steps there are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from adjudge.errors import ErrorKind, Fields, Metadata
from adjudge.graders.llm.judge_grader import EmptyReason, JudgeOutcome
from adjudge.graders.llm.question import (
    Transcript,
    count_opening_turns,
    find_answer_turn,
    is_blank,
    missing_field_failure,
    turn_content,
)
from adjudge.graders.llm.reply_forms import JudgeReplyForm, build_object_schema
from adjudge.graders.llm.shipped_graders import PromptValues, ShippedGrader
from adjudge.prompts import LanguageEnum
from adjudge.types import GraderScore
from adjudge.verdicts import NumberScale, Reading, UnreadableReply, Verdict, extract_reason
from adjudge.verdicts.strict import find_key_fault, parse_number

DIMENSIONS = ("contribution", "relevance", "accuracy", "efficiency")
"""What each step is rated on."""

RATING_RANGE = (1, 5)

_SCALE = NumberScale(*RATING_RANGE, integer=True)
_ANY = NumberScale(integer=True)
_LISTED = 40
_RESOLVED = 0.8


class RatedStep(NamedTuple):
    """A step by the number of its turn, its four ratings (whole numbers from 1 to 5), and why."""

    step: int
    ratings: dict[str, int]
    reason: str


_RATING = {"type": "integer", "enum": list(range(RATING_RANGE[0], RATING_RANGE[1] + 1))}
_WORDS = {
    LanguageEnum.EN: (
        "<your view of the whole trajectory, in a few sentences>",
        "<number of the turn>",
        "<why, in one sentence>",
        "<integer from 1 to 5>",
        "one object for each step",
    ),
    LanguageEnum.ZH: (
        "<对整个轨迹的简要看法>",
        "<该轮的编号>",
        "<一句话理由>",
        "<1 到 5 之间的整数>",
        "每个步骤一个对象",
    ),
}


class StepForm(JudgeReplyForm):
    """``{"reason", "steps": [{"step", "reason", "contribution", …}, …]}``, each step once.

    One object serves one question: ``rated`` has those of the last reply's steps that exist, occur
    once and have all four ratings. When a reply rates steps that do not exist, its numbering
    cannot be trusted, and ``rated`` is empty.
    """

    def __init__(self, steps: Sequence[int]) -> None:
        self.steps = list(steps)
        self.rated: list[RatedStep] = []
        # A small model goes on to steps that there are not, until its reply is cut.
        step = {
            "step": {"type": "integer", "enum": self.steps},
            "reason": {"type": "string"},
            **dict.fromkeys(DIMENSIONS, _RATING),
        }
        count = len(self.steps)
        rated = {"type": "array", "minItems": count, "maxItems": count}
        self.schema = build_object_schema(
            {"reason": {"type": "string"}, "steps": {**rated, "items": build_object_schema(step)}}
        )

    def example(self, language: LanguageEnum) -> str:
        """See :class:`~adjudge.graders.llm.reply_forms.JudgeReplyForm`."""
        whole, number, reason, rating, each = _WORDS[language]
        rated = ", ".join(f'"{name}": {rating}' for name in DIMENSIONS)
        step = f'{{"step": {number}, "reason": "{reason}", {rated}}}'
        return f'{{"reason": "{whole}", "steps": [{step}, … <{each}>]}}'

    def verdict_of(self, found: Metadata) -> Reading:
        """The :class:`RatedStep` of all steps as ``value``, in order.

        ``incomplete`` when steps are missing, rated twice or do not exist, or lack a rating;
        ``out_of_range`` when all that is wrong are ratings outside 1 to 5.
        """
        self.rated = []
        if (wrong := find_key_fault(found, "steps")) is not None:
            return wrong
        given = _numbered(found["steps"])
        if given is None:
            return UnreadableReply(
                why="its 'steps' is no list of objects with the number of a step each"
            )
        times = Counter(number for number, _ in given)
        if times.keys() - set(self.steps):
            why = "it rates steps that do not exist; the steps are: " + _listed(self.steps)
            return UnreadableReply(why=why, kind=ErrorKind.INCOMPLETE)
        outside = self._rate({number: one for number, one in given if times[number] == 1})
        complaint = self._complaint([number for number in times if times[number] > 1], outside)
        return complaint or Verdict(
            value=self.rated, reason=extract_reason(found), form="json", fields=found
        )

    def find_missing(self) -> list[int]:
        """The steps that have no ratings."""
        rated = {one.step for one in self.rated}
        return [step for step in self.steps if step not in rated]

    def _rate(self, given: Mapping[int, Fields]) -> list[int]:
        """Fill ``rated``; the steps that have all ratings, but some outside the scale."""
        outside = []
        for step in self.steps:
            if step not in given:
                continue
            found = {name: parse_number(given[step].get(name), _SCALE) for name in DIMENSIONS}
            ratings = {
                n: int(one) for n, one in found.items() if not isinstance(one, UnreadableReply)
            }
            kinds = {one.kind for one in found.values() if isinstance(one, UnreadableReply)}
            if ErrorKind.UNPARSABLE in kinds:
                continue
            if not kinds:
                reason = given[step].get("reason")
                self.rated.append(RatedStep(step, ratings, reason if type(reason) is str else ""))
            else:
                outside.append(step)
        return outside

    def _complaint(self, twice: list[int], outside: list[int]) -> UnreadableReply | None:
        if twice:
            why = "these steps are rated more than once: " + _listed(sorted(twice))
            return UnreadableReply(why=why, kind=ErrorKind.INCOMPLETE)
        missing = self.find_missing()
        if missing and missing == outside:
            why = "ratings that are no whole number from 1 to 5, in steps: " + _listed(missing)
            return UnreadableReply(why=why, kind=ErrorKind.OUT_OF_RANGE)
        if missing:
            why = "these steps lack a rating: " + _listed(missing)
            return UnreadableReply(why=why, kind=ErrorKind.INCOMPLETE)
        return None


def _numbered(steps: object) -> list[tuple[int, Fields]] | None:
    """The objects of a list with their step's number; ``None`` for anything else."""
    if not isinstance(steps, list):
        return None
    numbered = []
    for one in steps:
        number = parse_number(one.get("step"), _ANY) if isinstance(one, Mapping) else None
        if not isinstance(number, float):
            return None
        numbered.append((int(number), one))
    return numbered


def _listed(steps: Sequence[int]) -> str:
    return ", ".join(map(str, steps[:_LISTED])) + ", …" * (len(steps) > _LISTED)


_EN, _ZH = LanguageEnum.EN, LanguageEnum.ZH
_TURNS = {
    _EN: "The transcript has {turns} turns, numbered from 0 to {last}.",
    _ZH: "该记录共有 {turns} 轮，编号从 0 到 {last}。",
}
_CUT = {
    _EN: " It ends where it reached its length limit.",
    _ZH: "记录在达到长度上限处中断。",
}
_STEPS = {
    _EN: " The steps to rate, by the numbers of their turns ({steps} in all): {places}.",
    _ZH: "需要评分的步骤（按轮编号，共 {steps} 个）：{places}。",
}


class _TrajectoryGrader(ShippedGrader):
    """A trajectory, shown whole as numbered turns."""

    candidate = "messages"
    takes = ("query", "context", "reference", "tool_definitions")
    trusted = ("frame",)

    def _material(self, fields: Fields) -> PromptValues | EmptyReason:
        if fields.get("messages") is None:
            raise missing_field_failure(("messages",), fields)
        turns = self._turns(fields)
        if count_opening_turns(turns) == len(turns):
            raise missing_field_failure(("messages with a turn of the assistant",), fields)
        finish = fields.get("finish_reason")
        shown = self._showing.render({"messages": turns, "finish_reason": finish})
        if shown is None:
            return "unclosed_think"
        values = self._prompt_values(fields)
        if "query" not in values and all(turn["role"] != "user" for turn in turns):
            values |= {} if is_blank(fields.get("prompt")) else {"query": fields["prompt"]}
        steps = _steps(turns, shown["messages"])
        frame = self._frame(len(turns), steps, cut=finish == "length")
        return {**values, "frame": frame, "messages": shown["messages"]} if steps else "empty"

    def _frame(self, turns: int, steps: Sequence[int], *, cut: bool) -> str:  # noqa: ARG002  (not all rate steps)
        """What is said about the transcript in our own words."""
        words = _TURNS[self.language].format(turns=turns, last=turns - 1)
        return words + (_CUT[self.language] if cut else "")


class TrajectoryAccuracyGrader(_TrajectoryGrader):
    """Does the trajectory lead to its goal sensibly: 1 (no), 2 (with flaws) or 3 (yes).

    Fields: ``messages``; optional ``query`` (the task, where the messages do not hold it; else
    ``prompt``), ``context``, ``reference``, ``tool_definitions`` (or ``tools``). The transcript is
    shown whole. Messages without an assistant's turn are ``invalid_input``.
    """

    type_name = "trajectory_accuracy"
    score_range = (1.0, 3.0)


@dataclass(eq=False, repr=False, kw_only=True)
class TrajectoryComprehensiveGrader(_TrajectoryGrader):
    """Rates every step on contribution, relevance, accuracy and efficiency; their mean, 0 to 1.

    Fields: ``messages``; optional ``query`` (the task, where the messages do not hold it; else
    ``prompt``), ``context``, ``reference``, ``tool_definitions`` (or ``tools``). The transcript is
    shown whole. A step is a turn of the assistant with tool calls; without any, its last turn with
    text is the one step. The judge gives each step four whole numbers from 1 to 5::

        score = mean over the four dimensions of the mean over the steps, as (x − 1) / 4

    Source: ``TrajectoryComprehensiveGrader`` of py-openjudge 0.2.4; here the rated steps must be
    the steps that there are. Steps that are missing, rated twice or do not exist, after one repair
    too, are ``incomplete``; the metadata has ``low``, ``high``, ``step_ratings`` and ``missing``.
    Metadata: ``is_resolved`` (from 0.8 on), ``dimensions``, ``step_evaluations``, ``step_ratings``.
    """

    type_name = "trajectory_comprehensive"
    score_range = (0.0, 1.0)

    def _frame(self, turns: int, steps: Sequence[int], *, cut: bool) -> str:
        places = ", ".join(map(str, steps))
        words = _STEPS[self.language].format(steps=len(steps), places=places)
        return super()._frame(turns, steps, cut=cut) + words

    def _form(self, values: PromptValues) -> JudgeReplyForm:
        return StepForm(_steps(values["messages"], values["messages"]))

    def _scored(self, told: JudgeOutcome) -> GraderScore:
        rated: list[RatedStep] = told.verdict.value
        score = _score(rated)
        metadata = {
            "is_resolved": score >= _RESOLVED,
            "dimensions": {
                name: _share(sum(one.ratings[name] for one in rated), len(rated))
                for name in DIMENSIONS
            },
            "step_evaluations": [
                {
                    "step": one.step,
                    **{name: _share(rating, 1) for name, rating in one.ratings.items()},
                    "reason": one.reason,
                }
                for one in rated
            ],
            "step_ratings": _as_rated(rated),
        }
        return self._score(score, told, metadata)

    def _failure_metadata(self, form: JudgeReplyForm) -> Fields:
        if not isinstance(form, StepForm):
            return {}
        missing = form.find_missing()
        low, high = (
            _score(
                form.rated + [RatedStep(n, dict.fromkeys(DIMENSIONS, rating), "") for n in missing]
            )
            for rating in RATING_RANGE
        )
        ratings = _as_rated(form.rated)
        return {"low": low, "high": high, "step_ratings": ratings, "missing": missing}


def _steps(turns: Transcript, shown: Transcript) -> list[int]:
    """The places of the turns that are steps; none when the assistant neither acts nor speaks."""
    acts = [
        place
        for place, turn in enumerate(turns)
        if turn["role"] == "assistant" and turn.get("tool_calls")
    ]
    place = find_answer_turn(shown)
    return acts or ([] if place is None or is_blank(turn_content(shown[place])) else [place])


def _score(rated: Sequence[RatedStep]) -> float:
    # All steps have as many ratings, so the mean of the four means is the mean of all.
    total = sum(sum(one.ratings.values()) for one in rated)
    return _share(total, len(DIMENSIONS) * len(rated))


def _share(total: int, ratings: int) -> float:
    """The mean of ratings from 1 to 5 as a number from 0 to 1.

    One division of whole numbers, so that 4.2 of 5 is exactly the threshold 0.8.
    """
    low, high = RATING_RANGE
    return (total - low * ratings) / ((high - low) * ratings)


def _as_rated(rated: Sequence[RatedStep]) -> list[dict[str, int]]:
    return [{"step": one.step, **one.ratings} for one in rated]
