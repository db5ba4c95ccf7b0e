"""Parts of what an agent does: its choice of tools, a plan, a reflection, its memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from adjudge.graders.llm.material import blank, lacking, lines, opening
from adjudge.graders.llm.shipped import ShippedGrader, Values
from adjudge.graders.view import view_text
from adjudge.prompts import LanguageEnum

__all__ = [
    "MemoryGrader",
    "PlanFeasibilityGrader",
    "ReflectionAccuracyGrader",
    "ToolSelectionGrader",
]

_NO_CALL = {
    LanguageEnum.EN: "(no tool was called)",
    LanguageEnum.ZH: "（没有调用任何工具）",
}


class ToolSelectionGrader(ShippedGrader):
    """Did the agent choose the right tools: 1 (wrong or none) to 5 (just those needed).

    Fields: ``tool_definitions`` (or ``tools``); ``tool_calls``, else the assistant's turns in
    ``messages``; ``query``, else what comes before these turns, else ``prompt``; optional
    ``context``. An empty ``tool_calls`` is a choice too and is judged. Arguments do not count. A
    trajectory that never ended its thinking is 1, the candidate's fault, and no judge is
    asked. Raises ``GradingFailure``: ``invalid_input`` naming a field that is lacking, and whatever
    asking a judge raises.
    """

    type_name = "tool_selection"
    candidate = "tool_calls"
    needs = ("tool_definitions", "query")
    takes = ("context",)

    def _material(self, fields: Mapping[str, Any]) -> Values | str:
        turns = self._turns(fields)
        first = opening(turns)
        values = self._given(fields)
        if "query" not in values and not blank(query := self._asked(fields, turns[:first])):
            values["query"] = query
        self._require(values, fields)
        finish = fields.get("finish_reason")
        shown = self._showing.shown({"messages": turns, "finish_reason": finish}, self.language)
        calls = fields.get("tool_calls")
        if calls is None:
            if first == len(turns):
                raise lacking(("tool_calls", "messages"), fields)
            if shown is None:
                return "unclosed_think"
            calls = shown["messages"][first:]
        else:
            calls = _NO_CALL[self.language] if blank(calls) else lines(calls)
        return {
            **values,
            "tool_definitions": lines(values["tool_definitions"]),
            "tool_calls": calls,
        }


class _PartGrader(ShippedGrader):
    """One part of an agent's work, given in a field of its own: 1 (it holds) or 0 (it does not)."""

    score_range = (0.0, 1.0)

    def _material(self, fields: Mapping[str, Any]) -> Values | str:
        values = self._given(fields)
        turns = self._turns(fields)
        if "history" in self.needs_any and "history" not in values and turns:
            values["history"] = self._past(turns)
        part = fields.get(self.candidate)
        if part is None:
            raise lacking((self.candidate,), fields)
        self._require(values, fields)
        self._showing.shown({"finish_reason": fields.get("finish_reason")})  # may be masked
        said = view_text(part, self._showing.view) if isinstance(part, str) else part
        if said is None:
            return "unclosed_think"
        return "empty" if blank(said) else {**values, self.candidate: said}


class PlanFeasibilityGrader(_PartGrader):
    """Can the plan be carried out as it stands: 1 or 0.

    Fields: ``plan``; optional ``query``, ``context``, ``observation``, ``memory``, ``history`` and
    ``tool_definitions`` (or ``tools``). A plan is not taken from messages: where the response is
    the plan, map it (``mapper = { plan = "response" }``). An empty plan and one whose thinking
    never ended are 0, the candidate's fault, and no judge is asked. Raises
    ``GradingFailure``: ``invalid_input`` naming a field that is lacking, and whatever asking a
    judge raises.
    """

    type_name = "plan_feasibility"
    candidate = "plan"
    takes = ("query", "context", "tool_definitions", "history", "observation", "memory")

    def _material(self, fields: Mapping[str, Any]) -> Values | str:
        values = super()._material(fields)
        if isinstance(values, dict) and "tool_definitions" in values:
            values["tool_definitions"] = lines(values["tool_definitions"])
        return values


class ReflectionAccuracyGrader(_PartGrader):
    """Does the reflection say truly what happened: 1 or 0.

    Fields: ``reflection``; ``observation`` or ``history`` (else ``messages``), both shown when both
    are there; optional ``query``, ``context`` and ``action``. An empty reflection and one whose
    thinking never ended are 0, the candidate's fault, and no judge is asked. Raises
    ``GradingFailure``: ``invalid_input`` naming a field that is lacking, and whatever asking a
    judge raises.
    """

    type_name = "reflection"
    candidate = "reflection"
    needs_any = ("observation", "history")
    takes = ("query", "context", "action")


class MemoryGrader(_PartGrader):
    """Is the memory true to what was observed, and does it keep what the task needs: 1 or 0.

    Fields: ``memory``; ``observation`` or ``history`` (else ``messages``), both shown when both are
    there; optional ``query``, ``context`` and ``plan``. An empty memory and one whose thinking
    never ended are 0, the candidate's fault, and no judge is asked. Raises
    ``GradingFailure``: ``invalid_input`` naming a field that is lacking, and whatever asking a
    judge raises.
    """

    type_name = "memory"
    candidate = "memory"
    needs_any = ("observation", "history")
    takes = ("query", "context", "plan")
