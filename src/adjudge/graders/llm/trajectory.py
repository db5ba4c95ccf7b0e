"""A whole trajectory before a judge: as one, and step by step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from adjudge.graders.llm.candidate import Truncated
from adjudge.graders.llm.forms import Form
from adjudge.graders.llm.judged import Told
from adjudge.graders.llm.material import Turns, answer_place, blank, lacking, lines, opening, said
from adjudge.graders.llm.shipped import ShippedGrader, Values
from adjudge.graders.llm.step_form import DIMENSIONS, RATING_RANGE, RatedStep, StepForm
from adjudge.graders.rules.params import number
from adjudge.graders.view import View
from adjudge.judges.base import ChatModel
from adjudge.prompts import LanguageEnum
from adjudge.types import GraderScore

__all__ = ["TrajectoryAccuracyGrader", "TrajectoryComprehensiveGrader"]

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

    def _material(self, fields: Mapping[str, Any]) -> Values | str:
        if fields.get("messages") is None:
            raise lacking(("messages",), fields)
        turns = self._turns(fields)
        if opening(turns) == len(turns):
            raise lacking(("messages with a turn of the assistant",), fields)
        finish = fields.get("finish_reason")
        shown = self._showing.shown({"messages": turns, "finish_reason": finish}, self.language)
        if shown is None:
            return "unclosed_think"
        values = self._given(fields)
        if "query" not in values and all(turn["role"] != "user" for turn in turns):
            values |= {} if blank(fields.get("prompt")) else {"query": fields["prompt"]}
        if "tool_definitions" in values:
            values["tool_definitions"] = lines(values["tool_definitions"])
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
    ``prompt``), ``context``, ``reference`` and ``tool_definitions`` (or ``tools``). The transcript
    is shown whole. A trajectory that never ended its thinking, and one in which the assistant
    neither says nor does anything, are 1, the candidate's fault, and no judge is asked.
    Raises ``GradingFailure``: ``invalid_input`` for messages that are none or have no assistant's
    turn, and whatever asking a judge raises.
    """

    type_name = "trajectory_accuracy"
    score_range = (1.0, 3.0)


class TrajectoryComprehensiveGrader(_TrajectoryGrader):
    """Rates every step on contribution, relevance, accuracy and efficiency; their mean, 0 to 1.

    A step is a turn of the assistant with tool calls; in a trajectory without any, the last turn in
    which the assistant says something is the one step. The judge gives each step four whole numbers
    from 1 to 5, and the score is ::

        mean over the four dimensions of the mean over the steps, as (x − 1) / 4

    Source: the py-openjudge 0.2.4 definition (``TrajectoryComprehensiveGrader``), with two
    differences: the steps that the judge rated must be the steps that there are, and trajectories
    without tool calls can be judged.

    Fields: ``messages``; optional ``query`` (the task, where the messages do not hold it; else
    ``prompt``), ``context``, ``reference`` and ``tool_definitions`` (or ``tools``). The transcript
    is shown whole, however long. A trajectory that never ended its thinking, and one in which the
    assistant neither says nor does anything, are 0, the candidate's fault, and no judge is
    asked.

    ``resolved_threshold`` (default 0.8, from 0 to 1): the score from which ``is_resolved`` is true.

    Metadata: ``is_resolved``; ``dimensions`` (mean of each, 0 to 1); ``step_evaluations`` (by step:
    its turn's number in ``messages`` from 0, the four from 0 to 1, ``reason``); ``step_ratings``
    (the four as rated, 1 to 5).

    Raises ``GradingFailure``: ``invalid_input`` for messages that are none or have no assistant's
    turn; whatever asking a judge raises; ``incomplete`` when, also after one repair ask, steps are
    missing, rated twice or do not exist. The metadata of a reply that was no use has the interval
    from ``low`` to ``high`` that the score must lie in, the ``step_ratings`` that could be read
    and the steps in ``missing``.
    """

    type_name = "trajectory_comprehensive"
    score_range = (0.0, 1.0)

    def __init__(
        self,
        model: ChatModel,
        language: LanguageEnum | str = LanguageEnum.EN,
        resolved_threshold: float = 0.8,
        name: str = "",
        view: View = "final",
        truncated: Truncated = "judge",
    ) -> None:
        super().__init__(model, name, language, view, truncated)
        number(self.type_name, "resolved_threshold", resolved_threshold, 0, 1)
        self.resolved_threshold = float(resolved_threshold)

    def _frame(self, turns: int, steps: Sequence[int], *, cut: bool) -> str:
        places = ", ".join(map(str, steps))
        words = _STEPS[self.language].format(steps=len(steps), places=places)
        return super()._frame(turns, steps, cut=cut) + words

    def _form(self, values: Values) -> Form:
        return StepForm(_steps(values["messages"], values["messages"]))

    def _scored(self, told: Told) -> GraderScore:
        rated: list[RatedStep] = told.verdict.value
        score = _score(rated)
        metadata = {
            "is_resolved": score >= self.resolved_threshold,
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

    def _known(self, form: Form) -> Mapping[str, Any]:
        if not isinstance(form, StepForm):
            return {}
        read = {one.step for one in form.rated}
        missing = [step for step in form.steps if step not in read]
        low, high = (
            _score([*form.rated, *(_all(step, rating) for step in missing)])
            for rating in RATING_RANGE
        )
        ratings = _as_rated(form.rated)
        return {"low": low, "high": high, "step_ratings": ratings, "missing": missing}


def _steps(turns: Turns, shown: Turns) -> list[int]:
    """The places of the turns that are steps; none when the assistant neither acts nor speaks."""
    acts = [
        place
        for place, turn in enumerate(turns)
        if turn["role"] == "assistant" and turn.get("tool_calls")
    ]
    place = answer_place(shown)
    return acts or ([] if place is None or blank(said(shown[place])) else [place])


def _score(rated: Sequence[RatedStep]) -> float:
    # All steps have as many ratings, so the mean of the four means is the mean of all.
    return _share(sum(one.total for one in rated), len(DIMENSIONS) * len(rated))


def _share(total: int, ratings: int) -> float:
    """The mean of ratings from 1 to 5 as a number from 0 to 1.

    One division of whole numbers, so that 4.2 of 5 is exactly the threshold 0.8.
    """
    low, high = RATING_RANGE
    return (total - low * ratings) / ((high - low) * ratings)


def _all(step: int, rating: int) -> RatedStep:
    return RatedStep(step, dict.fromkeys(DIMENSIONS, rating), "")


def _as_rated(rated: Sequence[RatedStep]) -> list[dict[str, int]]:
    return [{"step": one.step, **one.ratings} for one in rated]
