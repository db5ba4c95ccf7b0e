"""``LLMGrader``: a question of the user's own wording."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from adjudge import verdicts
from adjudge.config import suggest_name
from adjudge.errors import ConfigError, ErrorKind, GradingFailure
from adjudge.graders.llm.candidate_view import (
    extract_query,
    get_group_name,
    missing_field_failure,
)
from adjudge.graders.llm.judge_grader import (
    REPLY_FORM,
    JudgeGrader,
    TemplateInput,
    parse_ending,
    resolve_template,
)
from adjudge.graders.llm.reply_forms import KeysForm, ScoreForm
from adjudge.prompts import LanguageEnum, PromptTemplate
from adjudge.types import GraderMode, GraderScore, ScoreRange
from adjudge.verdicts import UnreadableReply


@dataclass(eq=False, repr=False, kw_only=True)
class LLMGrader(JudgeGrader):
    """Asks a judge what a template says, and reads a score from the reply.

    Fields: those that the template names (``query`` is also ``prompt``). The judge answers in JSON
    where the template has ``{reply_form}``; the score is then the key ``score``. An object without
    a score is ``unparsable``. Thinking that never ended is the lowest score of the scale, or
    ``invalid_input`` without a scale; no judge is asked.

    Args:
        mode: ``pointwise``; ``listwise`` graders rank.
        description: A line for reports.
        language: The language in which a reply form is described, ``en`` or ``zh``.
        template: Your wording: one text, a list of messages, or in Python a ``PromptTemplate``.
        score_from: The key of the score, or several for their mean.
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

    mode: GraderMode = GraderMode.POINTWISE
    description: str = ""
    language: LanguageEnum | Any = None
    template: TemplateInput = None
    score_from: str | Sequence[str] | None = None
    score_range: ScoreRange | None = None
    trusted: Sequence[str] = ()
    variables: Mapping[str, Any] = field(default_factory=dict)
    verdict: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        if GraderMode(self.mode) is not GraderMode.POINTWISE:
            raise ConfigError("mode: must be pointwise. Rank a group with type = 'listwise'.")
        if self.template is None:
            raise ConfigError(
                "template: is required. Write what the judge is asked, with {fields}."
            )
        self.template = resolve_template(self.template, "", (), *self.trusted, *self.variables)
        self.language = self.language or _first(self.template)
        description = self.description
        super().__post_init__()
        self.description = description or self.description
        self.fingerprint = self.template.hash
        self._reads_messages = not self.template.fields.isdisjoint(("messages", "query"))
        ending = parse_ending(self.verdict, self.template)
        if ending and self.score_from:
            raise ConfigError("verdict: is not allowed with score_from. Leave out one of the two.")
        low, high = self.score_range or (None, None)
        keys = [self.score_from] if isinstance(self.score_from, str) else self.score_from
        self._form = KeysForm(keys) if keys else ScoreForm(low, high, integer=False, ending=ending)

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

    async def aevaluate(self, draw: int = 0, **fields: Any) -> GraderScore:
        """The judge's answer about a sample's fields."""
        shown = self._showing.render(fields, reads_messages=self._reads_messages)
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
        try:
            told = await self._ask(
                self.template, values, self._form, draw=draw, group=get_group_name(fields)
            )
        except GradingFailure as failure:
            raise _with_hint(failure, self._form) from None
        found = told.verdict
        extra = {k: v for k, v in found.fields.items() if k not in ("score", "reason")}
        metadata = {**told.notes, **({"fields": extra} if extra else {})}
        return self._result(float(found.value), found.reason, metadata, told.provenance)


def _with_hint(failure: GradingFailure, form: KeysForm | ScoreForm) -> GradingFailure:
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
