"""The base of graders that ask a judge, and the one with a question of the user's own wording.

Of the response that a judge is shown, thinking is stripped or not, and a cut is said
(:class:`CandidateView`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import lru_cache
from typing import Any, ClassVar, Literal, NamedTuple

from msgspec import Struct, structs

from adjudge import verdicts
from adjudge.config import check_allowed, suggest_name
from adjudge.errors import ASKED_AGAIN, ConfigError, ErrorKind, Fields, GradingFailure, Metadata
from adjudge.graders.base import BaseGrader, View, check_parameters, docstring_summary, view_text
from adjudge.graders.llm.question import (
    REPLY_FORM,
    TemplateInput,
    extract_query,
    final_messages,
    is_blank,
    missing_field_failure,
    parse_ending,
    resolve_template,
)
from adjudge.graders.llm.reply_forms import (
    JudgeReplyForm,
    KeysForm,
    ScoreForm,
    describe_block,
    describe_object,
)
from adjudge.judges.asking import ASK_ONCE, AskPolicy, sum_provenance
from adjudge.judges.base import ChatModel, Reply
from adjudge.prompts import LanguageEnum, PromptTemplate, RenderedPrompt
from adjudge.text import final_text
from adjudge.types import GraderMode, GraderScore, Provenance, ScoreRange
from adjudge.verdicts import Reading, UnreadableReply, Verdict
from adjudge.verdicts.strict import read_object

TruncationMode = Literal["judge", "mask"]
"""``judge``: a response that hit its length limit is judged, and the judge is told. ``mask``: it is
``GraderError(invalid_input)``, so the reward is missing."""

EmptyReason = Literal["", "empty", "unclosed_think"]
"""Why a candidate says nothing; empty where it says something."""

EMPTY_REASONS: Mapping[EmptyReason, str] = {
    "empty": "what is judged says nothing",
    "unclosed_think": "what is judged never ended its thinking",
}

_CUT = {
    LanguageEnum.EN: "\n[The response ends here because it reached its length limit.]",
    LanguageEnum.ZH: "\n[回复在此处因达到长度上限而被截断。]",
}


class CandidateView(NamedTuple):
    """How rollouts are shown: ``view``, ``truncated`` and language of a grader with a judge."""

    view: View = "final"
    truncated: TruncationMode = "judge"
    language: LanguageEnum = LanguageEnum.EN

    def render(self, fields: Fields, *, reads_messages: bool = True) -> Metadata | None:
        """``fields`` as a judge sees them; ``None`` when thinking never ended, so nothing was said.

        ``response`` and the assistant's turns in ``messages`` lose their thinking under ``final``.
        A sample with the ``finish_reason`` ``length`` was cut: the response gets a note, or
        ``GradingFailure(invalid_input)`` under ``mask``. Without ``reads_messages`` the question
        shows no ``messages``, so beside a response they are left as they are.
        """
        seen = dict(fields)
        cut = fields.get("finish_reason") == "length"
        if cut and self.truncated == "mask":
            raise GradingFailure(ErrorKind.INVALID_INPUT, "the rollout was cut at its length limit")
        if self.view == "final":
            response, messages = seen.get("response"), seen.get("messages")
            if isinstance(response, str):
                seen["response"] = stripped = final_text(response)
                if stripped is None:
                    return None
            if isinstance(messages, list) and (reads_messages or response is None):
                seen["messages"], unended = final_messages(messages)
                if unended and response is None:  # else that decides, being what is judged
                    return None
        if cut and isinstance(seen.get("response"), str):
            seen["response"] += _CUT[self.language]
        return seen

    def find_unsaid(self, response: object) -> EmptyReason:
        """Why ``response`` says nothing, whatever note a cut adds to it."""
        said = view_text(response, self.view) if isinstance(response, str) else response
        if said is None and response is not None:
            return "unclosed_think"
        return "empty" if is_blank(said) else ""


_REPAIR_REQUEST = {
    LanguageEnum.EN: (
        "Your last reply to this question could not be used: {why}. Reply again with the verdict "
        "alone, in exactly the form asked for."
    ),
    LanguageEnum.ZH: "你上一次的回复无法使用（{why}）。请重新回复，只按要求的形式给出评判结论。",
}


class JudgeOutcome(Struct, frozen=True):
    """A judge's verdict, and where it came from (further asks included).

    ``replies``: how many it took.
    """

    verdict: Verdict
    provenance: Provenance
    reply: Reply
    replies: int = 1

    @property
    def repaired(self) -> bool:
        """Whether a reply before this one had no verdict."""
        return self.replies > 1

    @property
    def notes(self) -> Metadata:
        """What a result's metadata should say about the telling; usually nothing."""
        notes: Metadata = {"repaired": True} if self.repaired else {}
        if ignored := [name for name in self.reply.ignored if name != "usage"]:
            notes["ignored"] = ignored
        return notes


@dataclass(eq=False, repr=False)
class JudgeGrader(BaseGrader):
    """A grader that asks a judge; derive a dataclass, and write ``aevaluate`` with :meth:`_ask`.

    ``model`` is any :class:`~adjudge.judges.ChatModel`; a spec passes the one that ``judge`` names.
    ``language``: ``en`` or ``zh``, of the prompt. The fields are the parameters: flags, the words
    of a ``Literal`` and ``Annotated`` values are checked; what else must hold is checked in
    ``__post_init__``. A call that fails, and a reply that has no single readable verdict also
    after the further asks of :class:`~adjudge.judges.asking.AskPolicy`, is
    ``GradingFailure``: there is no default.
    """

    type_name: ClassVar[str] = ""
    mode = GraderMode.POINTWISE
    policy: ClassVar[AskPolicy] = AskPolicy()
    asks_again: ClassVar[bool] = True
    """It asks again itself what could not be read, so a run does not."""

    model: ChatModel
    name: str = ""
    _: KW_ONLY
    language: LanguageEnum | Any = LanguageEnum.EN  # a text when given, a LanguageEnum after
    view: View = "final"
    truncated: TruncationMode = "judge"

    def __post_init__(self) -> None:
        super().__init__(self.name or self.type_name, self.mode, docstring_summary(type(self)))
        if not hasattr(self.model, "achat"):
            found = type(self.model).__name__
            raise ConfigError(f"model: must be a chat model with achat (found {found})")
        check_allowed("language", self.language, list(LanguageEnum), "is not allowed")
        self.language = LanguageEnum(self.language)
        self._showing = CandidateView(self.view, self.truncated, self.language)
        check_parameters(self)

    def check_machine(self) -> None:
        """What the judge needs is here."""
        self.model.check_machine()

    def _result(
        self, score: float, reason: str, metadata: Metadata, provenance: Provenance | None
    ) -> GraderScore:
        """A score with the grader's range and role."""
        return GraderScore(
            self.name, score, reason, metadata, self.score_range, self.role, provenance
        )

    def _unsaid(self, why: EmptyReason) -> GraderScore:
        """The lowest score, for a candidate that says nothing; no judge is asked."""
        return self._candidate_fault(EMPTY_REASONS[why], **{why: True})

    async def _ask(
        self,
        template: PromptTemplate,
        values: Fields,
        form: JudgeReplyForm,
        *,
        draw: int = 0,
        group: str | None = None,
        unread: Verdict | None = None,
        last: bool = False,
    ) -> JudgeOutcome:
        """Ask about ``values`` and read the verdict in ``form``; again, but for the ``last`` ask.

        Where the template has the field ``reply_form``, what the reply must look like is put
        there, and nothing outside that form is a verdict; else its author has worded that himself,
        nothing is added, and the reply is read as ``form`` reads free text. ``unread``: what a
        reply with text but without a verdict counts as, instead of being asked again. Raises
        ``GradingFailure``: the call's own, or ``unparsable``, ``out_of_range`` and ``truncated``
        with the replies' raw text in ``metadata["raw"]``.
        """
        worded = REPLY_FORM in template.fields
        as_schema = worded and "schema" in self.model.features
        if worded:
            words = describe_object(form, self.language, as_schema=as_schema)
            values = {**values, REPLY_FORM: words}
        asked = self._render(template, values)
        block = f"verdict-{asked.seal}" if worded and not as_schema else None
        if block is not None:
            asked.messages[-1] = _append_words(
                asked.messages[-1], describe_block(form, self.language, block)
            )
        schema = form.schema if as_schema else None

        async def put(problem: str | None) -> Reply:
            messages = list(asked.messages)
            if problem is not None:
                words = _REPAIR_REQUEST[self.language].format(why=problem)
                messages[-1] = _append_words(messages[-1], words)
            return await self.model.achat(messages, schema=schema, draw=draw, group=group)

        def read(reply: Reply) -> Verdict:
            found = self._read_reply(form, reply, asked, ours=worded, block=block)
            if isinstance(found, UnreadableReply):
                if unread is None or not reply.text.strip():
                    raise GradingFailure(found.kind, found.why)
                return unread
            return found

        return await self._put_question(put, read, template, last=last)

    def _render(self, template: PromptTemplate, values: Fields) -> RenderedPrompt:
        key, control_tokens = self.model.fence_key, self.model.control_tokens
        return template.render(values, self.language, key=key, control_tokens=control_tokens)

    def _read_reply(
        self,
        form: JudgeReplyForm,
        reply: Reply,
        asked: RenderedPrompt,
        *,
        ours: bool,
        block: str | None,
    ) -> Reading:
        """The verdict in a reply; ``ours``: the form was asked for, as schema or in ``block``."""
        cut = reply.finish_reason == "length"
        text = reply.text
        if not text.strip():
            kind = ErrorKind.TRUNCATED if cut else ErrorKind.UNPARSABLE
            why = "it has only thinking and no verdict" if reply.reasoning else "it is empty"
            return UnreadableReply(why=why, kind=kind)
        if not ours:
            return form.read(text, quoted=asked.untrusted, cut=cut)
        found = read_object(text, block=block, quoted=asked.untrusted, cut=cut)
        read = found if isinstance(found, UnreadableReply) else form.verdict_of(found)
        if isinstance(read, UnreadableReply) and form.takes_brackets:
            marked = form.read(text, quoted=asked.untrusted, cut=cut)
            return marked if isinstance(marked, Verdict) and marked.form == "brackets" else read
        return read

    async def _put_question(
        self,
        put: Callable[[str | None], Awaitable[Reply]],
        read: Callable[[Reply], Verdict],
        template: PromptTemplate,
        *,
        last: bool = False,
    ) -> JudgeOutcome:
        """What :meth:`AskPolicy.ask` comes to, with the hash of the question's ``template``."""
        try:
            verdict, reply, spent = await (ASK_ONCE if last else self.policy).ask(put, read)
        except GradingFailure as failure:
            if failure.provenance is not None:
                failure.provenance = structs.replace(failure.provenance, prompt_hash=template.hash)
            raise
        source = spent[0] if len(spent) == 1 else sum_provenance(spent)
        source = structs.replace(source, prompt_hash=template.hash)
        return JudgeOutcome(verdict, source, reply, len(spent))


def get_group_name(fields: Fields) -> str | None:
    """The name of a sample's group, to keep its calls on one replica; ``None`` without a name."""
    group = fields.get("group")
    return group if isinstance(group, str) else None


def _append_words(message: Metadata, words: str) -> Metadata:
    """The question's last message with ``words`` after all material."""
    content = message["content"]
    if isinstance(content, str):
        return {**message, "content": f"{content}\n\n{words}"}
    return {**message, "content": [*content, {"type": "text", "text": f"\n\n{words}"}]}


async def ask_judge(
    model: ChatModel,
    template: PromptTemplate | str,
    fields: Fields,
    form: JudgeReplyForm,
    *,
    language: LanguageEnum | str = LanguageEnum.EN,
    draw: int = 0,
    group: str | None = None,
) -> JudgeOutcome:
    """Ask a judge one question from a grader of your own.

    Args:
        model: the judge that the grader's constructor gets as ``model``.
        template: the question, with ``{fields}``, and ``{reply_form}`` for how to reply.
        fields: a value for each field of the template; each goes into a fence.
        form: what the reply must be: :class:`ScoreForm` (a number on a scale) or
            :class:`FieldsForm` (an object with the keys of a JSON Schema).
        language: that of a template with several, and of the words about the form.
        draw: the grader's own parameter ``draw``, so that draws and votes are calls of their own.
        group: the sample's field ``group``: calls of a group go to one replica.

    Returns:
        What the judge said: ``verdict.value``, ``verdict.reason`` and ``provenance``.

    Raises:
        GradingFailure: ``unparsable``, ``out_of_range`` or ``truncated`` where two replies have no
            verdict in the form; the call's own failure; ``invalid_input`` for an absent field.
        ConfigError: the template lacks ``{reply_form}`` or shows a field in a system message.
    """
    asker = JudgeGrader(model, "ask_judge", language=language)
    try:
        return await asker._ask(  # noqa: SLF001  (the same class's, from outside a grader)
            _own_template(template), fields, form, draw=draw, group=group
        )
    except GradingFailure as failure:
        failure.metadata[ASKED_AGAIN] = True
        raise


@lru_cache(maxsize=64)
def _own_template(given: PromptTemplate | str) -> PromptTemplate:
    return resolve_template(given, needs=(REPLY_FORM,))


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
    verdict: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        if GraderMode(self.mode) is not GraderMode.POINTWISE:
            raise ConfigError("mode: must be pointwise. Rank a group with type = 'listwise'.")
        if self.template is None:
            raise ConfigError(
                "template: is required. Write what the judge is asked, with {fields}."
            )
        self.template = resolve_template(self.template)
        languages = [language for language in self.template.messages if language]
        only = languages[0] if len(languages) == 1 else LanguageEnum.EN
        self.language = self.language or only
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

    def check_fields(self, fields: Fields) -> None:
        """Raise :class:`ConfigError` for a field of the template that a sample does not have."""
        there = {*fields, REPLY_FORM} - {"draw"}
        if there & {"prompt", "messages", "history"}:  # what `query` is made of
            there.add("query")
        for name in sorted(self.template.fields - there):
            raise ConfigError(
                f"template: no row has the field {{{name}}}{suggest_name(name, there)} (allowed: "
                f"{', '.join(sorted(there))}). Correct the template, or map a column to {name!r}."
            )

    async def aevaluate(self, draw: int = 0, **fields: object) -> GraderScore:
        """The judge's answer about a sample's fields."""
        shown = self._showing.render(fields, reads_messages=self._reads_messages)
        if shown is None:
            return self._unsaid("unclosed_think")
        if "query" in self.template.fields:
            query = extract_query(shown)
            if query is not None or "prompt" in shown:  # a blank one is shown as `{prompt}` is
                shown["query"] = shown["prompt"] if query is None else query
        for name in self.template.fields & shown.keys():
            if shown[name] is None:  # a null of a table with gaps is nothing to be judged
                raise missing_field_failure([name], shown)
        try:
            told = await self._ask(
                self.template, shown, self._form, draw=draw, group=get_group_name(fields)
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
