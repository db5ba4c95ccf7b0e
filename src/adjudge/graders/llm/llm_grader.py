"""``LLMGrader``: a question of the user's own wording."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import msgspec

from adjudge import verdicts
from adjudge.config import suggest_name
from adjudge.errors import ConfigError, ErrorKind, GradingFailure
from adjudge.graders.base import GraderAnswer, View
from adjudge.graders.llm.candidate_view import (
    TruncationMode,
    extract_query,
    get_group_name,
    missing_field_failure,
)
from adjudge.graders.llm.judge_grader import REPLY_FORM, JudgeGrader, parse_ending, resolve_template
from adjudge.graders.llm.reply_forms import FieldsForm, JudgeReplyForm, RankingForm, ScoreForm
from adjudge.judges.base import ChatModel, Reply
from adjudge.prompts import LanguageEnum, PromptTemplate
from adjudge.types import GraderMode, GraderRank, GraderScore, ScoreRange
from adjudge.verdicts import UnreadableReply, Verdict

ScoreFrom = str | Sequence[str] | Callable[[Mapping[str, Any]], float]
"""A key of the reply, several keys (their mean), or a function of the reply's object."""


class LLMGrader(JudgeGrader):
    """Asks a judge what a template says, and reads a score, a ranking or fields from the reply.

    Fields: those that the template names (``query`` is also ``prompt``). The judge answers in JSON
    where the template has ``{reply_form}``; the score is then the key ``score``. An object without
    a score is ``unparsable``. Thinking that never ended is the lowest score of the scale, or
    ``invalid_input`` without a scale; no judge is asked.

    Args:
        mode: ``pointwise``, or ``listwise``: the reply's ``ranking`` of a group.
        language: The language in which a reply form is described, ``en`` or ``zh``.
        description: A line for reports.
        template: Your wording: one text, a list of messages, or in Python a ``PromptTemplate``.
        structured_model: A JSON Schema (in Python also a pydantic class) that the reply must fit.
        callback: In Python: a function that makes a score of the whole reply.
        score_from: The key of the score, or several for their mean; in Python also a function of
            the object.
        score_range: The scale ``[low, high]``; a score outside is ``out_of_range``.
        trusted: Further fields of the template that are shown without a fence.
        variables: Values of your own for the template, without a fence.
        verdict: Without ``{reply_form}``: where the score is, ``{ line = "Score:" }`` or ``{ tag =
            "score" }``.

    >>> import asyncio
    >>> from adjudge.judges import ScriptedModel
    >>> judge = ScriptedModel('{"reason": "easy to follow", "score": 4}')
    >>> question = "From 1 to 5, how clear is this? {response} {reply_form}"
    >>> grader = LLMGrader(judge, template=question, score_range=(1, 5))
    >>> found = asyncio.run(grader.aevaluate(response="Water boils at 100 degrees."))
    >>> found.score, found.reason
    (4.0, 'easy to follow')
    """

    type_name = "llm"

    def __init__(
        self,
        model: ChatModel,
        name: str = "",
        mode: GraderMode = GraderMode.POINTWISE,
        language: LanguageEnum | str | None = None,
        description: str = "",
        template: Any = None,
        structured_model: Any = None,
        callback: Callable[[Reply], Any] | None = None,
        *,
        score_from: ScoreFrom | None = None,
        score_range: ScoreRange | None = None,
        trusted: Sequence[str] = (),
        view: View = "final",
        truncated: TruncationMode = "judge",
        variables: Mapping[str, Any] | None = None,
        verdict: Mapping[str, str] | None = None,
    ) -> None:
        self.mode = mode = GraderMode(mode)
        self.variables = dict(variables or {})
        if template is None:
            raise ConfigError(
                "template: is required. Write what the judge is asked, with {fields}."
            )
        self.template = resolve_template(template, "", (), *trusted, *self.variables)
        super().__init__(
            model,
            name,
            language=language or _first(self.template),
            view=view,
            truncated=truncated,
        )
        self.description = description or self.description
        self.score_range = score_range
        self.fingerprint = self.template.hash
        self._reads_messages = not self.template.fields.isdisjoint(("messages", "query"))
        self._model_class, schema = _structure(structured_model)
        self._score_from, self._callback = score_from, callback
        self._ending = parse_ending(verdict, self.template)
        if self._ending and (schema or score_from or callback or mode is GraderMode.LISTWISE):
            raise ConfigError(
                "verdict: is not allowed with score_from, callback, structured_model or listwise. "
                "Leave out verdict, or all of these."
            )
        self._form = self._chosen_form(schema)

    def _chosen_form(self, schema: Mapping[str, Any] | None) -> JudgeReplyForm:
        if schema is not None:
            return FieldsForm(schema)
        if isinstance(self._score_from, str):
            return FieldsForm.of([self._score_from])
        if self._score_from is not None or self._callback is not None:
            keys = () if callable(self._score_from) else self._score_from or ()
            return FieldsForm.of(keys)
        low, high = self.score_range or (None, None)
        return ScoreForm(low, high, integer=False, ending=self._ending)

    def check_fields(self, fields: Mapping[str, Any]) -> None:
        """Raise :class:`ConfigError` for a field of the template that a sample does not have."""
        there = {*fields, *self.variables, REPLY_FORM} - {"draw"}
        if there & {"prompt", "messages", "history"}:  # what `query` is made of
            there.add("query")
        for name in sorted(self.template.fields - there):
            raise ConfigError(
                f"template: no row has the field {{{name}}}{suggest_name(name, there)} (allowed: "
                f"{', '.join(sorted(there))}). Correct the template, or map a column to {name!r}."
            )

    async def aevaluate(self, draw: int = 0, **fields: Any) -> GraderAnswer:
        """The judge's answer about a sample's fields."""
        listwise = self.mode is GraderMode.LISTWISE
        shown = self._group(fields) if listwise else self._render_fields(fields)
        if shown is None:
            return self._unclosed()
        if "query" in self.template.fields:
            query = extract_query(shown)
            if query is not None or "prompt" in shown:  # a blank one is shown as `{prompt}` is
                shown["query"] = shown["prompt"] if query is None else query
        values = {**shown, **self.variables}
        for name in self.template.fields & values.keys():
            if values[name] is None:  # a null of a table with gaps is nothing to be judged
                raise missing_field_failure([name], shown)
        form = self._ranking(shown) if listwise else self._form
        try:
            told = await self._ask(
                self.template,
                values,
                form,
                draw=draw,
                group=get_group_name(fields),
                # What a reply means is the callback's to say, whatever its form.
                unread=None if self._callback is None else Verdict(value=""),
                interpret=self._answer,
            )
        except GradingFailure as failure:
            raise _with_hint(failure, form) from None
        answer = told.verdict.value
        if not isinstance(answer, GraderScore | GraderRank):  # a result of the callback's own
            return cast("GraderAnswer", answer)
        metadata = {**told.notes, **answer.metadata}
        return msgspec.structs.replace(answer, metadata=metadata, provenance=told.provenance)

    def _render_fields(self, fields: dict[str, Any]) -> dict[str, Any] | None:
        return self._showing.render(fields, self.language, reads_messages=self._reads_messages)

    def _group(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """A group's lists as a judge sees them: thinking out of each, what all share once."""
        shown = dict(fields)
        for name in ("response", "messages"):
            if isinstance(fields.get(name), list):
                ends = fields.get("finish_reason")
                reasons = ends if isinstance(ends, list) else [ends] * len(fields[name])
                seen = [
                    self._showing.render({name: one, "finish_reason": end}, self.language)
                    for one, end in zip(fields[name], reasons, strict=False)
                ]
                shown[name] = ["" if one is None else one[name] for one in seen]
        for name in ("query", "prompt"):
            if isinstance(shown.get(name), list) and len({str(v) for v in shown[name]}) == 1:
                shown[name] = shown[name][0]
        return shown

    def _ranking(self, fields: Mapping[str, Any]) -> JudgeReplyForm:
        sizes = {len(fields[name]) for name in self.template.fields & fields.keys()
                 if isinstance(fields[name], list)}  # fmt: skip
        if len(sizes) != 1:
            raise GradingFailure(
                ErrorKind.INVALID_INPUT, "a ranking needs list fields of one length in the template"
            )
        return RankingForm(sizes.pop())

    def _answer(self, verdict: Verdict, reply: Reply) -> Any:
        if self._callback is not None:
            return self._called_back(self._callback(reply))
        if self.mode is GraderMode.LISTWISE:
            return GraderRank(self.name, verdict.value, verdict.reason)
        extra = {k: v for k, v in verdict.fields.items() if k not in ("score", "reason")}
        metadata = {"fields": extra} if extra else {}
        return self._result(self._scored(verdict), verdict.reason, metadata, None)

    def _scored(self, verdict: Verdict) -> float:
        if isinstance(self._form, ScoreForm):
            return float(verdict.value)
        found = verdict.value
        if self._model_class is not None:
            found = _validated(self._model_class, found)
        if callable(self._score_from):
            return _number(self._score_from(found), "score_from")
        keys = [self._score_from] if isinstance(self._score_from, str) else self._score_from
        if keys is None:
            keys = ["score"]
        numbers = [_number(found.get(key), key) for key in keys]
        return _number(sum(number / len(numbers) for number in numbers), "score_from")

    def _called_back(self, answer: Any) -> Any:
        if isinstance(answer, Mapping):
            reason = str(answer.get("reason", ""))
            rest = {k: v for k, v in answer.items() if k not in ("score", "reason")}
            return GraderScore(self.name, _number(answer.get("score"), "score"), reason, rest)
        if isinstance(answer, int | float):
            score = _number(float(answer) if isinstance(answer, bool) else answer, "score")
            return GraderScore(self.name, score)
        return answer


def _with_hint(failure: GradingFailure, form: JudgeReplyForm) -> GradingFailure:
    """``failure``, with what to do where the replies are objects that have no score."""
    raw = failure.metadata.get("raw")
    if failure.kind is not ErrorKind.UNPARSABLE or not isinstance(form, ScoreForm) or not raw:
        return failure
    found = verdicts.read_fields(raw[-1])
    if isinstance(found, UnreadableReply) or "score" in found.value:
        return failure
    keys = ", ".join(sorted(map(str, found.value)))[:200]
    return GradingFailure(
        failure.kind,
        f"the reply has no 'score' but {keys}; name the keys that make the score in score_from",
        failure.metadata,
        provenance=failure.provenance,
    )


def _first(template: PromptTemplate) -> LanguageEnum:
    """The only language of a template, else English."""
    languages = [language for language in template.languages if language]
    return LanguageEnum(languages[0]) if len(languages) == 1 else LanguageEnum.EN


def _structure(given: Any) -> tuple[Any, Mapping[str, Any] | None]:
    """The pydantic class, if it is one, and the schema."""
    if given is None:
        return None, None
    if isinstance(given, Mapping):
        return None, given
    if isinstance(given, type) and hasattr(given, "model_json_schema"):
        return given, given.model_json_schema()
    raise ConfigError(
        f"structured_model: must be a pydantic class or a JSON Schema (found {given!r})"
    )


def _validated(model_class: Any, found: Any) -> Mapping[str, Any]:
    try:
        plain: Mapping[str, Any] = model_class.model_validate(found).model_dump()
    except ValueError as error:
        raise GradingFailure(
            ErrorKind.UNPARSABLE, f"the reply is no {model_class.__name__}", {"error": str(error)}
        ) from None
    return plain


def _number(value: Any, key: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise GradingFailure(
            ErrorKind.UNPARSABLE,
            f"the reply's {key!r} is no number; name the keys that make the score in score_from",
        )
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise GradingFailure(ErrorKind.OUT_OF_RANGE, f"the reply's {key!r} is not a finite number")
    return number
