"""The base of the shipped graders: one question, its prompt file, its scale and its fields."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, ClassVar

from adjudge.errors import GradingFailure
from adjudge.graders.llm.candidate import Showing, Truncated
from adjudge.graders.llm.forms import Form, ScoreForm
from adjudge.graders.llm.judged import REPLY_FORM, JudgeGrader, Told, group_in
from adjudge.graders.llm.material import Turns, asked, first_given, lacking, turns_of
from adjudge.graders.llm.texts import shipped_prompt
from adjudge.graders.view import View
from adjudge.judges.base import ChatModel
from adjudge.prompts import ChatMessage, LanguageEnum, PromptTemplate
from adjudge.types import GraderScore

__all__ = ["ShippedGrader", "Values", "prompt_with"]

Values = dict[str, Any]
"""What a judge is shown, by the prompt's field."""

_ALSO = {
    "reference": ("reference", "reference_response"),
    "tool_definitions": ("tool_definitions", "tools"),
}
_UNSAID = {
    "unclosed_think": "it never ended its thinking",
    "empty": "it says nothing",
}


class ShippedGrader(JudgeGrader):
    """A question that ships with its prompt; derive, name the fields, write :meth:`_material`.

    ``candidate`` is the field that is judged and shown last; those in ``needs`` must be there, of
    ``needs_any`` at least one, those in ``takes`` may be. A part of the prompt whose field a sample
    lacks is left out of it.

    A candidate whose thinking never ended (``unclosed_think`` in metadata) and one that says
    nothing (``empty``) have the lowest score, as the candidate's fault; no judge is asked.
    """

    score_range: tuple[float, float] = (1.0, 5.0)
    candidate: ClassVar[str] = "response"
    needs: ClassVar[tuple[str, ...]] = ()
    needs_any: ClassVar[tuple[str, ...]] = ()
    takes: ClassVar[tuple[str, ...]] = ()
    trusted: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self,
        model: ChatModel,
        name: str = "",
        language: LanguageEnum | str = LanguageEnum.EN,
        view: View = "final",
        truncated: Truncated = "judge",
    ) -> None:
        super().__init__(model, name, language=language)
        self._showing = Showing(view, truncated)
        self._score_form = ScoreForm(*self.score_range)
        self.fingerprint = shipped_prompt(self.type_name, *self.trusted).hash

    async def aevaluate(self, *, draw: int = 0, **fields: Any) -> GraderScore:
        """The judge's score of a sample's fields; the class says which, and what is raised."""
        values = self._material(fields)
        if isinstance(values, str):
            return self._unsaid(values)
        form = self._form(values)
        try:
            told = await self._ask(
                prompt_with(self.type_name, frozenset(values), self.trusted),
                values,
                form,
                draw=draw,
                group=group_in(fields),
            )
        except GradingFailure as failure:
            if "raw" in failure.metadata:
                failure.metadata.update(self._known(form))
            raise
        return self._scored(told)

    def _material(self, fields: Mapping[str, Any]) -> Values | str:
        """What the judge is shown; or ``unclosed_think`` or ``empty``, when that is nothing."""
        raise NotImplementedError

    def _form(self, values: Values) -> Form:  # noqa: ARG002  (some forms depend on the sample)
        """What the reply must look like."""
        return self._score_form

    def _known(self, form: Form) -> Mapping[str, Any]:  # noqa: ARG002  (the usual form holds nothing)
        """What replies without a verdict still tell; for the failure's metadata."""
        return {}

    def _scored(self, told: Told) -> GraderScore:
        return self._score(float(told.verdict.value), told, {})

    def _score(self, score: float, told: Told, metadata: Mapping[str, Any]) -> GraderScore:
        return GraderScore(
            self.name,
            score,
            told.verdict.reason,
            {**metadata, **told.notes},
            self.score_range,
            self.role,
            told.provenance,
        )

    def _unsaid(self, why: str) -> GraderScore:
        reason = f"no judge was asked: {_UNSAID[why]}"
        return self._candidate_fault(reason, **{why: True})

    def _turns(self, fields: Mapping[str, Any]) -> Turns:
        messages = fields.get("messages")
        return [] if messages is None else turns_of(messages)

    def _past(self, turns: Turns) -> Turns:
        """A conversation under the grader's view; a last turn still thinking is left out."""
        shown = self._showing.shown({"messages": turns}, self.language)
        return turns[:-1] if shown is None else list(shown["messages"])

    def _asked(self, fields: Mapping[str, Any], before: Turns) -> Any:
        """The query of a sample without one: the conversation ``before``, or the prompt."""
        history = fields.get("history")
        if isinstance(history, list) and history:
            before = turns_of(history)
        return asked(self._past(before)) or fields.get("prompt")

    def _given(self, fields: Mapping[str, Any]) -> Values:
        """The fields that this grader takes, under the names of its prompt."""
        found = {}
        for name in (*self.needs, *self.needs_any, *self.takes):
            value = first_given(fields, _ALSO.get(name) or (name,))
            if value is not None:
                found[name] = value
        return found

    def _require(self, values: Values, fields: Mapping[str, Any]) -> None:
        """Raise ``GradingFailure(invalid_input)`` for a field that is lacking."""
        for name in self.needs:
            if name not in values:
                raise lacking(_ALSO.get(name, (name,)), fields)
        if self.needs_any and not any(name in values for name in self.needs_any):
            raise lacking(self.needs_any, fields)


@cache
def prompt_with(name: str, fields: frozenset[str], trusted: tuple[str, ...] = ()) -> PromptTemplate:
    """A shipped prompt without the parts of its material whose field is none of ``fields``.

    Parts are parted by empty lines. Its hash is that of the whole prompt.
    """
    whole = shipped_prompt(name, *trusted)
    kept = frozenset((REPLY_FORM, *fields))
    fitted = PromptTemplate(
        {
            language: [_fitted(message, kept) for message in whole.to_messages(language)]
            for language in whole.languages
        },
        trusted=whole.trusted,
    )
    fitted.hash = whole.hash
    return fitted


def _fitted(message: ChatMessage, kept: frozenset[str]) -> ChatMessage:
    if message.role == "system" or not isinstance(message.content, str):
        return message
    parts = message.content.split("\n\n")
    return ChatMessage(
        message.role,
        "\n\n".join(p for p in parts if PromptTemplate([ChatMessage("user", p)]).fields <= kept),
    )
