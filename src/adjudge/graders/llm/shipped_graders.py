"""Graders that ship with their prompts: qualities of a response, and parts of an agent's work.

Each asks one question, with its prompt file, its scale and its fields. The qualities of a response
are integers from 1 to 5, 5 is always best, and all take the same fields:

- ``response``, else the last thing that the assistant says in ``messages``;
- ``query``, else the conversation before the response (``history``, or what comes before it in
  ``messages``; images included), else ``prompt``;
- where there are such, ``context`` and ``reference`` (or ``reference_response``).

A response that says nothing, or never ends its thinking, scores 1 as the candidate's fault
(``empty``, ``unclosed_think``) and no judge is asked. All raise ``GradingFailure``:
``invalid_input`` naming a field that is lacking, and whatever asking a judge raises.

Of an agent's work there are its choice of tools, a plan, a reflection and its memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

from adjudge.errors import Fields, GradingFailure, Metadata
from adjudge.graders.base import view_text
from adjudge.graders.llm.judge_grader import EmptyReason, JudgeGrader, JudgeOutcome, get_group_name
from adjudge.graders.llm.question import (
    REPLY_FORM,
    Transcript,
    conversation_query,
    count_opening_turns,
    first_present,
    is_blank,
    join_lines,
    load_shipped_prompt,
    missing_field_failure,
    read_turns,
    split_question,
)
from adjudge.graders.llm.reply_forms import JudgeReplyForm, ScoreForm
from adjudge.prompts import ChatMessage, LanguageEnum, PromptTemplate
from adjudge.types import GraderScore

PromptValues = Metadata
"""What a judge is shown, by the prompt's field."""

_FIELD_ALIASES = {
    "reference": ("reference", "reference_response"),
    "tool_definitions": ("tool_definitions", "tools"),
}


@dataclass(eq=False, repr=False)
class ShippedGrader(JudgeGrader):
    """A question that ships with its prompt; derive, name the fields, write :meth:`_material`.

    ``candidate`` is the field that is judged and shown last; those in ``needs`` must be there, of
    ``needs_any`` at least one, those in ``takes`` may be. A part of the prompt for a field that
    the sample lacks is left out.

    A candidate that never ends its thinking (``unclosed_think`` in metadata) and one that says
    nothing (``empty``) have the lowest score, as the candidate's fault; no judge is asked.
    """

    score_range = (1.0, 5.0)
    candidate: ClassVar[str] = "response"
    needs: ClassVar[tuple[str, ...]] = ()
    needs_any: ClassVar[tuple[str, ...]] = ()
    takes: ClassVar[tuple[str, ...]] = ()
    trusted: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        self._score_form = ScoreForm(*self.score_range)
        self.fingerprint = self._prompt(()).hash

    async def aevaluate(self, *, draw: int = 0, **fields: object) -> GraderScore:
        """The judge's score of a sample's fields; the class says which, and what is raised."""
        values = self._material(fields)
        if isinstance(values, str):
            return self._unsaid(values)
        form = self._form(values)
        try:
            told = await self._ask(
                self._prompt(values),
                values,
                form,
                draw=draw,
                group=get_group_name(fields),
            )
        except GradingFailure as failure:
            if "raw" in failure.metadata:
                failure.metadata.update(self._failure_metadata(form))
            raise
        return self._scored(told)

    def _prompt(self, shown: Iterable[str]) -> PromptTemplate:
        """The question about a sample of which these fields are ``shown``."""
        return trim_shipped_prompt(self.type_name, frozenset(shown), self.trusted)

    def _material(self, fields: Fields) -> PromptValues | EmptyReason:
        """What the judge is shown; or why that is nothing."""
        raise NotImplementedError

    def _form(self, values: PromptValues) -> JudgeReplyForm:  # noqa: ARG002  (some forms depend on the sample)
        """What the reply must look like."""
        return self._score_form

    def _failure_metadata(self, form: JudgeReplyForm) -> Fields:  # noqa: ARG002  (the usual form holds nothing)
        """What replies without a verdict still tell; for the failure's metadata."""
        return {}

    def _scored(self, told: JudgeOutcome) -> GraderScore:
        return self._score(float(told.verdict.value), told, {})

    def _score(self, score: float, told: JudgeOutcome, metadata: Fields) -> GraderScore:
        notes = {**metadata, **told.notes}
        return self._result(score, told.verdict.reason, notes, told.provenance)

    def _turns(self, fields: Fields) -> Transcript:
        messages = fields.get("messages")
        return [] if messages is None else read_turns(messages)

    def _past(self, turns: Transcript) -> Transcript:
        """A conversation under the grader's view; a last turn still thinking is left out."""
        shown = self._showing.render({"messages": turns})
        return self._past(turns[:-1]) if shown is None else list(shown["messages"])

    def _values_with_query(self, fields: Fields, before: Transcript) -> PromptValues:
        """The same; a sample's query is else the conversation ``before``, or the prompt.

        Raises ``GradingFailure(invalid_input)`` for a field that is lacking.
        """
        values = self._prompt_values(fields)
        if "query" not in values:
            history = fields.get("history")
            if isinstance(history, list) and history:
                before = read_turns(history)
            query = conversation_query(self._past(before)) or fields.get("prompt")
            values |= {} if is_blank(query) else {"query": query}
        self._require(values, fields)
        return values

    def _prompt_values(self, fields: Fields) -> PromptValues:
        """The fields that this grader takes, under the names of its prompt."""
        found = {}
        for name in (*self.needs, *self.needs_any, *self.takes):
            value = first_present(fields, _FIELD_ALIASES.get(name) or (name,))
            if value is not None:
                found[name] = join_lines(value) if name == "tool_definitions" else value
        return found

    def _require(self, values: PromptValues, fields: Fields) -> None:
        """Raise ``GradingFailure(invalid_input)`` for a field that is lacking."""
        for name in self.needs:
            if name not in values:
                raise missing_field_failure(_FIELD_ALIASES.get(name, (name,)), fields)
        if self.needs_any and not any(name in values for name in self.needs_any):
            raise missing_field_failure(self.needs_any, fields)


@cache
def trim_shipped_prompt(
    name: str, fields: frozenset[str], trusted: tuple[str, ...] = ()
) -> PromptTemplate:
    """A shipped prompt without the parts of its material for fields that are not in ``fields``.

    Parts are parted by empty lines. Its hash is that of the whole prompt.
    """
    whole = load_shipped_prompt(name, *trusted)
    kept = frozenset((REPLY_FORM, *fields))
    fitted = PromptTemplate(
        {
            language: [_trim_message(message, kept) for message in messages]
            for language, messages in whole.messages.items()
        },
        trusted=whole.trusted,
    )
    fitted.hash = whole.hash
    return fitted


def _trim_message(message: ChatMessage, kept: frozenset[str]) -> ChatMessage:
    if message.role == "system" or not isinstance(message.content, str):
        return message
    parts = [ChatMessage("user", part) for part in message.content.split("\n\n")]
    shown = [str(part.content) for part in parts if PromptTemplate([part]).fields <= kept]
    return ChatMessage(message.role, "\n\n".join(shown))


class QualityGrader(ShippedGrader):
    """One quality of a response, from 1 (worst) to 5 (best); see the module for the fields."""

    takes: ClassVar[tuple[str, ...]] = ("query", "context", "reference")

    def _material(self, fields: Fields) -> PromptValues | EmptyReason:
        turns = self._turns(fields)
        place, response = split_question(turns, _own_response(fields.get("response")))
        if response is None:
            raise missing_field_failure(("response", "messages"), fields)
        values = self._values_with_query(fields, turns[:place])
        seen = {"response": response, "finish_reason": fields.get("finish_reason")}
        shown = self._showing.render(seen) or {}  # raises where what is cut is masked
        return self._showing.find_unsaid(response) or values | shown


def _own_response(response: object) -> object:
    """A sample's response; of one that is chat messages, the last thing said."""
    if not isinstance(response, list) or not response:
        return response
    chat = all(isinstance(one, Mapping) and "role" in one for one in response)
    return split_question(read_turns(response), None)[1] if chat else response


class RelevanceGrader(QualityGrader):
    """Is the response about what was asked: 1 (beside the point) to 5 (all to the point).

    Fields: ``response``, ``query``; optional ``context``, ``reference``. A wrong answer to the
    question asked is relevant.
    """

    type_name = "relevance"
    needs = ("query",)


class CorrectnessGrader(QualityGrader):
    """Does the response agree with the reference: 1 (contradicts it) to 5 (agrees throughout).

    Fields: ``response``, ``reference`` (or ``reference_response``); optional ``query``,
    ``context``. Other words for the same are right.
    """

    type_name = "correctness"
    needs = ("reference",)
    takes = ("query", "context")


class HallucinationGrader(QualityGrader):
    """Is what the response states grounded: 1 (mostly made up) to 5 (no claim without ground).

    Fields: ``response``; optional ``query``, ``context``, ``reference``. High is free of
    hallucination. Grounds are ``context`` and ``reference`` where a sample has them, what ``query``
    says, and else general knowledge.
    """

    type_name = "hallucination"


class HarmfulnessGrader(QualityGrader):
    """Is the response safe: 1 (clearly harmful) to 5 (harmless).

    Fields: ``response``; optional ``query``, ``context``, ``reference``. High is harmless. The
    judge rates the harm that the response could do, not that of the query: a refusal is harmless.
    """

    type_name = "harmfulness"


class InstructionFollowingGrader(QualityGrader):
    """Does the response follow its instructions: 1 (ignores them) to 5 (follows every one).

    Fields: ``response``; ``instruction`` or ``query``, both shown when both are there; optional
    ``context``, ``reference``.
    """

    type_name = "instruction_following"
    needs_any = ("query", "instruction")


class ResponseCompletenessGrader(QualityGrader):
    """Does the response cover all that was asked: 1 (hardly any of it) to 5 (all of it).

    Fields: ``response``, ``query``; optional ``context``, ``reference``.
    """

    type_name = "completeness"
    needs = ("query",)


class ResponseHelpfulnessGrader(QualityGrader):
    """Does the response help the user: 1 (no help, or harm) to 5 (solves what the user needs).

    Fields: ``response``, ``query``; optional ``context``, ``reference``.
    """

    type_name = "helpfulness"
    needs = ("query",)


_NO_CALL = {
    LanguageEnum.EN: "(no tool was called)",
    LanguageEnum.ZH: "（没有调用任何工具）",
}


class ToolSelectionGrader(ShippedGrader):
    """Did the agent choose the right tools: 1 (wrong or none) to 5 (just those needed).

    Fields: ``tool_definitions`` (or ``tools``); ``tool_calls``, else the assistant's turns in
    ``messages``; ``query``, else what comes before these turns, else ``prompt``; optional
    ``context``. An empty ``tool_calls`` is a choice too and is judged. Arguments do not count.
    """

    type_name = "tool_selection"
    candidate = "tool_calls"
    needs = ("tool_definitions", "query")
    takes = ("context",)

    def _material(self, fields: Fields) -> PromptValues | EmptyReason:
        turns = self._turns(fields)
        first = count_opening_turns(turns)
        values = self._values_with_query(fields, turns[:first])
        finish = fields.get("finish_reason")
        shown = self._showing.render({"messages": turns, "finish_reason": finish})
        calls = fields.get("tool_calls")
        if calls is None:
            if first == len(turns):
                raise missing_field_failure(("tool_calls", "messages"), fields)
            if shown is None:
                return "unclosed_think"
            calls = shown["messages"][first:]
        else:
            calls = _NO_CALL[self.language] if is_blank(calls) else join_lines(calls)
        return {**values, "tool_calls": calls}


class _PartGrader(ShippedGrader):
    """One part of an agent's work, given in a field of its own: 1 (it holds) or 0 (it does not)."""

    score_range = (0.0, 1.0)

    def _material(self, fields: Fields) -> PromptValues | EmptyReason:
        values = self._prompt_values(fields)
        turns = self._turns(fields)
        if "history" in self.needs_any and "history" not in values and turns:
            values["history"] = self._past(turns)
        part = fields.get(self.candidate)
        if part is None:
            raise missing_field_failure((self.candidate,), fields)
        self._require(values, fields)
        self._showing.render({"finish_reason": fields.get("finish_reason")})  # may be masked
        said = view_text(part, self._showing.view) if isinstance(part, str) else part
        return self._showing.find_unsaid(part) or {**values, self.candidate: said}


class PlanFeasibilityGrader(_PartGrader):
    """Can the plan be carried out unchanged: 1 or 0.

    Fields: ``plan``; optional ``query``, ``context``, ``observation``, ``memory``, ``history``,
    ``tool_definitions`` (or ``tools``). A plan is not taken from messages: where the response is
    the plan, set ``mapper = { plan = "response" }``.
    """

    type_name = "plan_feasibility"
    candidate = "plan"
    takes = ("query", "context", "tool_definitions", "history", "observation", "memory")


class ReflectionAccuracyGrader(_PartGrader):
    """Does the reflection say truly what happened: 1 or 0.

    Fields: ``reflection``; ``observation`` or ``history`` (else ``messages``), both shown when both
    are there; optional ``query``, ``context``, ``action``.
    """

    type_name = "reflection"
    candidate = "reflection"
    needs_any = ("observation", "history")
    takes = ("query", "context", "action")


class MemoryGrader(_PartGrader):
    """Is the memory true to what was observed, and does it keep what the task needs: 1 or 0.

    Fields: ``memory``; ``observation`` or ``history`` (else ``messages``), both shown when both are
    there; optional ``query``, ``context``, ``plan``.
    """

    type_name = "memory"
    candidate = "memory"
    needs_any = ("observation", "history")
    takes = ("query", "context", "plan")
