"""The base of graders that ask a judge: the prompt, one question with one repair ask, several asks.

The question has the shipped wording or one of the user's own. Shipped prompts are files beside
their graders, ``prompts/NAME.en.txt`` and ``prompts/NAME.zh.txt``, in two parts that a line
``=====`` parts: what is the same for every sample (the system message: task, criteria, scale,
``{reply_form}``), and the material. That order, static text first and the candidate last, is what
prefix caches hit on.

Of several asks at once each may fail; their failures come to one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from functools import cache, partial
from importlib import resources
from typing import Any, ClassVar, TypeVar, cast

import msgspec

from adjudge.engine.loop import run_all
from adjudge.errors import (
    PASSING_KINDS,
    REDRAW_KINDS,
    ConfigError,
    ErrorKind,
    GradingFailure,
    is_passing,
)
from adjudge.graders.base import BaseGrader, docstring_summary
from adjudge.graders.llm.judge_input import (
    conversation_query,
    first_present,
    is_blank,
    missing_field_failure,
    read_turns,
    split_question,
)
from adjudge.graders.llm.reply_forms import (
    FreeTextForm,
    JudgeReplyForm,
    describe_block,
    describe_object,
)
from adjudge.judges.base import ChatModel, Reply
from adjudge.prompts import ChatMessage, LanguageEnum, PromptTemplate, RenderedPrompt
from adjudge.types import GraderMode, Provenance, Usage
from adjudge.verdicts import Ending, UnreadableReply, Verdict, read_object

_PART = "\n=====\n"
_OURS = ("reply_form",)


@cache
def load_shipped_prompt(name: str, *trusted: str) -> PromptTemplate:
    """The template of a shipped grader, in both languages; ``trusted`` fields are not fenced."""
    messages = {language: _messages(name, language) for language in LanguageEnum}
    return PromptTemplate(messages, trusted=(*_OURS, *trusted))


def _messages(name: str, language: LanguageEnum) -> list[ChatMessage]:
    file = resources.files("adjudge.graders.llm").joinpath(f"prompts/{name}.{language}.txt")
    static, _, material = file.read_text(encoding="utf-8").partition(_PART)
    return [ChatMessage("system", static.strip()), ChatMessage("user", material.strip())]


REPLY_FORM = "reply_form"
"""The field of a template that says what the reply must look like; never a sample's."""

REPAIR_DRAW = 1_000_000
"""Added to a draw's number for its repair ask, so that the two never share a reply."""
RAW_LIMIT = 8_000
"""Characters of a reply that a failure keeps."""

_REPAIR_REQUEST = {
    LanguageEnum.EN: (
        "Your last reply to this question could not be used: {why}. Reply again with the verdict "
        "alone, in exactly the form asked for."
    ),
    LanguageEnum.ZH: "你上一次的回复无法使用（{why}）。请重新回复，只按要求的形式给出评判结论。",
}


class JudgeOutcome(msgspec.Struct, frozen=True):
    """What a judge told: its verdict, and where that came from (repair asks included)."""

    verdict: Verdict
    provenance: Provenance
    reply: Reply
    repaired: bool = False

    @property
    def notes(self) -> dict[str, Any]:
        """What a result's metadata should say about the telling; usually nothing."""
        notes: dict[str, Any] = {"repaired": True} if self.repaired else {}
        if self.reply.ignored:
            ignored = [name for name in self.reply.ignored if name != "usage"]
            if ignored:
                notes["ignored"] = ignored
        return notes


class JudgeGrader(BaseGrader):
    """A grader that asks a judge; derive, and write ``aevaluate`` with :meth:`_ask`.

    ``model`` is any :class:`~adjudge.judges.ChatModel`; a spec passes the one that ``judge`` names.
    ``language``: ``en`` or ``zh``, of the prompt. A call that fails, and a reply that has no single
    readable verdict also after one repair ask, is ``GradingFailure``: there is no default.
    """

    type_name: ClassVar[str] = ""

    def __init__(
        self,
        model: ChatModel,
        name: str = "",
        *,
        mode: GraderMode = GraderMode.POINTWISE,
        description: str = "",
        language: LanguageEnum | str = LanguageEnum.EN,
    ) -> None:
        super().__init__(name or self.type_name, mode, description or docstring_summary(type(self)))
        self.model = _check_model(model)
        try:
            self.language = LanguageEnum(language)
        except ValueError:
            allowed = ", ".join(LanguageEnum)
            raise ConfigError(
                f"language: is not allowed (found {language!r}; allowed: {allowed})"
            ) from None

    def check_machine(self) -> None:
        """What the judge needs is here."""
        if (check := getattr(self.model, "check_machine", None)) is not None:
            check()

    async def _ask(
        self,
        template: PromptTemplate,
        values: Mapping[str, Any],
        form: JudgeReplyForm,
        *,
        draw: int = 0,
        group: str | None = None,
        unread: Verdict | None = None,
    ) -> JudgeOutcome:
        """Ask about ``values`` and read the verdict in ``form``; one repair ask.

        Where the template has the field ``reply_form``, what the reply must look like is put
        there, and nothing outside that form is a verdict; else its author has worded that himself,
        nothing is added, and the reply is read as ``form`` reads free text. ``unread``: what a
        reply with text but without a verdict counts as, instead of a repair ask. Raises
        ``GradingFailure``: the call's own, or ``unparsable``, ``out_of_range`` and ``truncated``
        with the replies' raw text in ``metadata["raw"]``.
        """
        worded = REPLY_FORM in template.fields
        as_schema = "schema" in self.model.features and (worded or form.imposed)
        if worded:
            words = describe_object(form, self.language, as_schema=as_schema)
            values = {**values, REPLY_FORM: words}
        asked = template.render(
            values,
            self.language,
            key=self.model.fence_key,
            control_tokens=self.model.control_tokens,
        )
        block = f"verdict-{asked.seal}" if worded and not as_schema else None
        if block is not None:
            _append_to_question(asked.messages, describe_block(form, self.language, block))
        schema = form.schema if as_schema else None
        reply = await self.model.achat(asked.messages, schema=schema, draw=draw, group=group)
        read_reply = partial(
            _read_verdict, form, asked=asked, ours=worded or as_schema, block=block, unread=unread
        )
        read = read_reply(reply)
        if isinstance(read, Verdict):
            return JudgeOutcome(read, _with_prompt_hash(reply.provenance, template), reply)
        _append_to_question(asked.messages, _REPAIR_REQUEST[self.language].format(why=read.why))
        try:
            second = await self.model.achat(
                asked.messages, schema=schema, draw=draw + REPAIR_DRAW, group=group
            )
        except GradingFailure as failure:
            spent = [one for one in (reply.provenance, failure.provenance) if one is not None]
            failure.provenance = _with_prompt_hash(sum_provenance(spent), template)
            failure.metadata.setdefault("raw", [reply.text[:RAW_LIMIT]])
            raise
        both = _with_prompt_hash(sum_provenance([reply.provenance, second.provenance]), template)
        again = read_reply(second)
        if isinstance(again, Verdict):
            return JudgeOutcome(again, both, second, repaired=True)
        raw = [one.text[:RAW_LIMIT] for one in (reply, second)]
        raise GradingFailure(
            again.kind, f"no verdict in two replies: {again.why}", {"raw": raw}, provenance=both
        )


def get_group_name(fields: Mapping[str, Any]) -> str | None:
    """The name of a sample's group, whose calls stay on one replica; ``None`` without a name."""
    group = fields.get("group")
    return group if isinstance(group, str) else None


def _check_model(model: Any) -> ChatModel:
    if not hasattr(model, "achat"):
        raise ConfigError(f"model: must be a chat model with achat (found {type(model).__name__})")
    checked: ChatModel = model
    return checked


def _append_to_question(messages: list[dict[str, Any]], words: str) -> None:
    """Put ``words`` at the end of the question, after all material."""
    content = messages[-1]["content"]
    if isinstance(content, str):
        messages[-1]["content"] = f"{content}\n\n{words}"
    else:
        messages[-1]["content"] = [*content, {"type": "text", "text": f"\n\n{words}"}]


def _read_verdict(
    form: JudgeReplyForm,
    reply: Reply,
    *,
    asked: RenderedPrompt,
    ours: bool,
    block: str | None,
    unread: Verdict | None,
) -> Verdict | UnreadableReply:
    """The verdict in a reply; ``ours``: the form was asked for, as the schema or in ``block``."""
    cut = reply.finish_reason == "length"
    if not reply.text.strip():
        kind = ErrorKind.TRUNCATED if cut else ErrorKind.UNPARSABLE
        why = "it has only thinking and no verdict" if reply.reasoning else "it is empty"
        return UnreadableReply(why=why, kind=kind)
    if ours:
        found = read_object(reply.text, block=block, quoted=asked.untrusted, cut=cut)
        read = found if isinstance(found, UnreadableReply) else form.verdict_of(found)
    else:
        read = cast("FreeTextForm", form).read(reply.text, quoted=asked.untrusted, cut=cut)
    return unread if isinstance(read, UnreadableReply) and unread is not None else read


def _with_prompt_hash(provenance: Provenance, template: PromptTemplate) -> Provenance:
    return msgspec.structs.replace(provenance, prompt_hash=template.hash)


def sum_provenance(several: Sequence[Provenance]) -> Provenance:
    """The provenance of an answer that took several calls: tokens, money, sends and time added.

    Facts that differ between the calls are ``None``; so is the cost where one has no price. Kept
    replies cost nothing beside live ones.
    """
    paid = [one.paid for one in several if one.paid is not None]
    usages = paid or [one.usage for one in several if one.usage is not None]
    costs = [usage.cost_usd for usage in usages if usage.cost_usd is not None]
    usage = Usage(
        input_tokens=sum(one.input_tokens for one in usages),
        output_tokens=sum(one.output_tokens for one in usages),
        cached_tokens=sum(one.cached_tokens for one in usages),
        cost_usd=sum(costs) if len(costs) == len(usages) else None,
    )
    return Provenance(
        source=_common_value([one.source for one in several]),
        model=_common_value([one.model for one in several]),
        prompt_hash=_common_value([one.prompt_hash for one in several]),
        usage=usage if usages else None,
        latency_s=sum(one.latency_s or 0.0 for one in several),
        attempts=sum(one.attempts or 0 for one in several),
        hedged=any(one.hedged for one in several),
    )


def _common_value(values: Sequence[str | None]) -> str | None:
    return values[0] if len(set(values)) == 1 else None


_T = TypeVar("_T")


async def ask_all(asks: Iterable[Callable[[], Awaitable[_T]]]) -> list[_T | GradingFailure]:
    """Await all at once, in order; a failure stands in its ask's place and cancels no other.

    ``auth`` alone is raised, and cancels: with a refused key no other ask does better.
    """
    asks = list(asks)
    done: dict[int, _T | GradingFailure] = {}

    async def one(place: int, ask: Callable[[], Awaitable[_T]]) -> None:
        try:
            done[place] = await ask()
        except GradingFailure as failure:
            if failure.kind is ErrorKind.AUTH:
                raise
            done[place] = failure

    await run_all(one(place, ask) for place, ask in enumerate(asks))
    return [done[place] for place in range(len(asks))]


def join_failures(
    failures: Sequence[GradingFailure],
    message: str,
    metadata: Mapping[str, Any],
    *,
    answered: Sequence[Provenance | None] = (),
    otherwise: ErrorKind = ErrorKind.INCOMPLETE,
) -> GradingFailure:
    """One failure for an answer whose parts failed; ``answered``: where its other parts came from.

    Its kind: the first one's where all failed in ways that pass by themselves, so that the run asks
    again; where nothing was answered, the kind that all share; else ``otherwise``, marked
    ``redraw`` where a fresh draw may cure it. ``suspect`` where any was. What was spent is summed.
    """
    kinds = [failure.kind for failure in failures]
    shared = not answered and len(set(kinds)) == 1
    kind = kinds[0] if shared or all(map(_is_passing_failure, failures)) else otherwise
    metadata = {**metadata, "suspect": any(failure.suspect for failure in failures)}
    if _are_failures_redrawable(failures):
        metadata["redraw"] = True
    if shared and "status" in failures[0].metadata:
        metadata["status"] = failures[0].metadata["status"]
    return GradingFailure(kind, message, metadata, provenance=sum_costs(answered, failures))


def are_redrawable(kinds: Iterable[ErrorKind]) -> bool:
    """Whether parts that failed in these ways may all answer when they are asked anew."""
    kinds = set(kinds)
    return bool(kinds & REDRAW_KINDS) and kinds <= PASSING_KINDS | REDRAW_KINDS


def _are_failures_redrawable(failures: Sequence[GradingFailure]) -> bool:
    drawn = [failure for failure in failures if is_redrawable(failure)]
    rest = [failure for failure in failures if not is_redrawable(failure)]
    return bool(drawn) and all(map(_is_passing_failure, rest))


def is_redrawable(failure: GradingFailure) -> bool:
    """Whether a fresh draw may cure a part that failed."""
    return failure.kind in REDRAW_KINDS or bool(failure.metadata.get("redraw"))


def sum_costs(
    answered: Iterable[Provenance | None], failures: Iterable[GradingFailure] = ()
) -> Provenance | None:
    """The sum of what answers and failures cost; ``None`` where nothing is known of it."""
    known = [one for one in (*answered, *(f.provenance for f in failures)) if one is not None]
    return sum_provenance(known) if known else None


def describe_failure(failure: GradingFailure) -> dict[str, Any]:
    """What a result's metadata keeps of a part that failed: kind, message, the raw replies."""
    note: dict[str, Any] = {"kind": str(failure.kind), "error": str(failure)}
    if "raw" in failure.metadata:
        note["raw"] = failure.metadata["raw"]
    return note


def _is_passing_failure(failure: GradingFailure) -> bool:
    return is_passing(failure.kind, failure.metadata)


TemplateInput = Any
"""A :class:`~adjudge.prompts.PromptTemplate`, its messages, one text; ``None``: the shipped one."""


def resolve_template(
    given: TemplateInput, shipped: str, needs: Collection[str], *trusted: str
) -> PromptTemplate:
    """``given``, else the prompt file ``shipped``; ``trusted`` fields are not fenced.

    Raises :class:`ConfigError` for a template without one of the fields that it ``needs``.
    """
    if given is None:
        return load_shipped_prompt(shipped, *trusted)
    ours = {REPLY_FORM, *trusted}
    if isinstance(given, PromptTemplate):
        template = PromptTemplate(given.messages, trusted=given.trusted | ours)
    else:
        messages = [ChatMessage("user", given)] if isinstance(given, str) else given
        template = PromptTemplate(messages, trusted=ours)
    if template.exposed:
        raise ConfigError(
            "template: a system message has fields of the sample (found: "
            f"{', '.join(sorted(template.exposed))}). Move them to the user's message."
        )
    for field in needs:
        if field not in template.fields:
            raise ConfigError(
                f"template: lacks the field {{{field}}}, which the judge must see. Add it."
            )
    return template


def parse_ending(verdict: Any, template: PromptTemplate) -> Ending | None:
    """Where ``template``'s own words put the verdict, as its author declares.

    Raises :class:`ConfigError` for what is no declaration, and beside ``{reply_form}``, which says
    it already.
    """
    ending = Ending.of(verdict)
    if ending is not None and REPLY_FORM in template.fields:
        raise ConfigError(
            "verdict: the template has {reply_form}, which says where the verdict stands. "
            "Leave out one of the two."
        )
    return ending


def extract_query(fields: Mapping[str, Any]) -> Any:
    """What a response answers: ``query``, else the conversation before it, else ``prompt``."""
    if not is_blank(fields.get("query")):
        return fields["query"]
    if "event" in fields and "history" in fields:  # an event: what comes later is not known yet
        return (
            conversation_query(read_turns(fields["history"]))
            if fields["history"]
            else fields.get("prompt")
        )
    if not is_blank(fields.get("messages")):
        turns = read_turns(fields["messages"])
        before, _ = split_question(turns, fields.get("response"))
        if (conversation := conversation_query(turns[:before])) is not None:
            return conversation
    return first_present(fields, ("prompt",))


def add_query(fields: Mapping[str, Any], template: PromptTemplate) -> dict[str, Any]:
    """``fields`` with ``query`` filled in (:func:`extract_query`).

    Raises ``GradingFailure(invalid_input)`` where the template asks for it and there is none.
    """
    values = {**fields, "query": extract_query(fields)}
    if values["query"] is None:
        del values["query"]
        if "query" in template.fields:
            raise missing_field_failure(("query", "messages", "prompt"), fields)
    return values
