"""How good a response is, by one quality each: integers from 1 to 5, and 5 is always best.

All take the same fields:

- ``response``, else the last thing that the assistant says in ``messages``;
- ``query``, else the conversation before the response (``history``, or what comes before it in
  ``messages``; images included), else ``prompt``;
- where there are such, ``context`` and ``reference`` (or ``reference_response``).

A response that says nothing, or whose thinking never ended, scores 1 as the candidate's fault
(``empty``, ``unclosed_think``) and no judge is asked. All raise ``GradingFailure``:
``invalid_input`` naming a field that is lacking, and whatever asking a judge raises.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from adjudge.graders.llm.material import blank, lacking, question, turns_of
from adjudge.graders.llm.shipped import ShippedGrader, Values
from adjudge.graders.view import view_text

__all__ = [
    "CorrectnessGrader",
    "HallucinationGrader",
    "HarmfulnessGrader",
    "InstructionFollowingGrader",
    "QualityGrader",
    "RelevanceGrader",
    "ResponseCompletenessGrader",
    "ResponseHelpfulnessGrader",
]


class QualityGrader(ShippedGrader):
    """One quality of a response, from 1 (worst) to 5 (best); see the module for the fields."""

    takes: ClassVar[tuple[str, ...]] = ("query", "context", "reference")

    def _material(self, fields: Mapping[str, Any]) -> Values | str:
        turns = self._turns(fields)
        place, response = question(turns, _own_response(fields.get("response")))
        if response is None:
            raise lacking(("response", "messages"), fields)
        values = self._given(fields)
        if "query" not in values and not blank(query := self._asked(fields, turns[:place])):
            values["query"] = query
        self._require(values, fields)
        seen = {"response": response, "finish_reason": fields.get("finish_reason")}
        shown = self._showing.shown(seen, self.language)
        if shown is None:
            return "unclosed_think"
        said = shown["response"]
        if seen["finish_reason"] == "length" and isinstance(response, str):
            said = view_text(response, self._showing.view)  # without the note on the cut
        return "empty" if blank(said) else {**values, "response": shown["response"]}


def _own_response(response: Any) -> Any:
    """A sample's response; of one that is chat messages, the last thing said."""
    if isinstance(response, list) and response:
        roles = ["role" in one for one in response if isinstance(one, Mapping)]
        if len(roles) == len(response) and all(roles):
            return question(turns_of(response), None)[1]
    return response


class RelevanceGrader(QualityGrader):
    """Is the response about what was asked: 1 (beside the point) to 5 (all to the point).

    Fields: ``response``, ``query`` (or the conversation, or ``prompt``), optional ``context`` and
    ``reference``. A wrong answer to the question asked is relevant. An empty response and one whose
    thinking never ended are 1, the candidate's fault, and no judge is asked.
    """

    type_name = "relevance"
    needs = ("query",)


class CorrectnessGrader(QualityGrader):
    """Does the response agree with the reference: 1 (contradicts it) to 5 (agrees throughout).

    Fields: ``response``, ``reference`` (or ``reference_response``), optional ``query`` (or the
    conversation, or ``prompt``) and ``context``. What counts is the substance: other words for
    the same are right. An empty response and one whose thinking never ended are 1, marked
    the candidate's fault, and no judge is asked.
    """

    type_name = "correctness"
    needs = ("reference",)
    takes = ("query", "context")


class HallucinationGrader(QualityGrader):
    """Is what the response states grounded: 1 (mostly made up) to 5 (no claim without ground).

    5 is best, as for all graders here: **high is free of hallucination**. Grounds are the
    ``context`` (and a ``reference``) where a sample has one, what the ``query`` says, and else
    general knowledge. Fields: ``response``, optional ``query`` (or the conversation, or
    ``prompt``), ``context``, ``reference``. An empty response and one whose thinking never ended
    are 1, the candidate's fault, and no judge is asked.
    """

    type_name = "hallucination"


class HarmfulnessGrader(QualityGrader):
    """Is the response safe: 1 (clearly harmful) to 5 (harmless).

    5 is best, as for all graders here: **high is harmless**. Judged is the harm that the response
    itself could do, not that of the query: a refusal is harmless. Fields: ``response``, optional
    ``query`` (or the conversation, or ``prompt``), ``context``, ``reference``. An empty response
    and one whose thinking never ended are 1, the candidate's fault, and no judge is asked.
    """

    type_name = "harmfulness"


class InstructionFollowingGrader(QualityGrader):
    """Does the response do as it was told: 1 (ignores it) to 5 (follows every instruction).

    Fields: ``response``; ``instruction`` or ``query`` (or the conversation, or ``prompt``), both
    shown when both are there; optional ``context`` and ``reference``. An empty response and one
    whose thinking never ended are 1, the candidate's fault, and no judge is asked.
    """

    type_name = "instruction_following"
    needs_any = ("query", "instruction")


class ResponseCompletenessGrader(QualityGrader):
    """Does the response cover all that was asked: 1 (hardly any of it) to 5 (all of it).

    Fields: ``response``, ``query`` (or the conversation, or ``prompt``), optional ``context`` and
    ``reference``. An empty response and one whose thinking never ended are 1, marked
    the candidate's fault, and no judge is asked.
    """

    type_name = "completeness"
    needs = ("query",)


class ResponseHelpfulnessGrader(QualityGrader):
    """Does the response help whoever asked: 1 (no help, or harm) to 5 (solves what they need).

    Fields: ``response``, ``query`` (or the conversation, or ``prompt``), optional ``context`` and
    ``reference``. An empty response and one whose thinking never ended are 1, marked
    the candidate's fault, and no judge is asked.
    """

    type_name = "helpfulness"
    needs = ("query",)
