"""Asking a judge one question and reading its verdict: what all graders with a judge share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, cast

import msgspec

from adjudge.errors import ConfigError, ErrorKind, GradingFailure
from adjudge.graders.base import BaseGrader, first_line
from adjudge.graders.llm.forms import Form, WordedForm, block_words, object_words
from adjudge.judges.base import ChatModel, Reply
from adjudge.prompts import LanguageEnum, PromptTemplate, Rendered
from adjudge.types import GraderMode, Provenance, Usage
from adjudge.verdicts import Unread, Verdict, read_object

__all__ = [
    "RAW_LIMIT",
    "REPAIR_DRAW",
    "REPLY_FORM",
    "JudgeGrader",
    "Told",
    "group_in",
    "summed",
]

REPLY_FORM = "reply_form"
"""The field of a template that says what the reply must look like; never a sample's."""

REPAIR_DRAW = 1_000_000
"""Added to a draw's number for its repair ask, so that the two never share a reply."""
RAW_LIMIT = 8_000
"""Characters of a reply that a failure keeps."""

_AGAIN = {
    LanguageEnum.EN: (
        "Your last reply to this question could not be used: {why}. Reply again with the verdict "
        "alone, in exactly the form asked for."
    ),
    LanguageEnum.ZH: "你上一次的回复无法使用（{why}）。请重新回复，只按要求的形式给出评判结论。",
}


class Told(msgspec.Struct, frozen=True):
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
        super().__init__(name or self.type_name, mode, description or first_line(type(self)))
        self.model = _checked(model)
        try:
            self.language = LanguageEnum(language)
        except ValueError:
            allowed = ", ".join(LanguageEnum)
            raise ConfigError(f"language: found {language!r} (allowed: {allowed})") from None

    def check_machine(self) -> None:
        """What the judge needs is here."""
        if (check := getattr(self.model, "check_machine", None)) is not None:
            check()

    async def _ask(
        self,
        template: PromptTemplate,
        values: Mapping[str, Any],
        form: Form,
        *,
        draw: int = 0,
        group: str | None = None,
        unread: Verdict | None = None,
    ) -> Told:
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
            words = object_words(form, self.language, as_schema=as_schema)
            values = {**values, REPLY_FORM: words}
        asked = template.render(
            values,
            self.language,
            key=self.model.fence_key,
            control_tokens=self.model.control_tokens,
        )
        block = f"verdict-{asked.seal}" if worded and not as_schema else None
        if block is not None:
            _append(asked.messages, block_words(form, self.language, block))
        schema = form.schema if as_schema else None
        reply = await self.model.achat(asked.messages, schema=schema, draw=draw, group=group)
        read_reply = partial(
            _read, form, asked=asked, ours=worded or as_schema, block=block, unread=unread
        )
        read = read_reply(reply)
        if isinstance(read, Verdict):
            return Told(read, _stamped(reply.provenance, template), reply)
        _append(asked.messages, _AGAIN[self.language].format(why=read.why))
        try:
            second = await self.model.achat(
                asked.messages, schema=schema, draw=draw + REPAIR_DRAW, group=group
            )
        except GradingFailure as failure:
            spent = [one for one in (reply.provenance, failure.provenance) if one is not None]
            failure.provenance = _stamped(summed(spent), template)
            failure.metadata.setdefault("raw", [reply.text[:RAW_LIMIT]])
            raise
        both = _stamped(summed([reply.provenance, second.provenance]), template)
        again = read_reply(second)
        if isinstance(again, Verdict):
            return Told(again, both, second, repaired=True)
        raw = [one.text[:RAW_LIMIT] for one in (reply, second)]
        raise GradingFailure(
            again.kind, f"no verdict in two replies: {again.why}", {"raw": raw}, provenance=both
        )


def group_in(fields: Mapping[str, Any]) -> str | None:
    """The name of a sample's group, whose calls stay on one replica; ``None`` without a name."""
    group = fields.get("group")
    return group if isinstance(group, str) else None


def _checked(model: Any) -> ChatModel:
    if not hasattr(model, "achat"):
        raise ConfigError(f"model: found {type(model).__name__}, must be a chat model with achat")
    checked: ChatModel = model
    return checked


def _append(messages: list[dict[str, Any]], words: str) -> None:
    """Put ``words`` at the end of the question, after all material."""
    content = messages[-1]["content"]
    if isinstance(content, str):
        messages[-1]["content"] = f"{content}\n\n{words}"
    else:
        messages[-1]["content"] = [*content, {"type": "text", "text": f"\n\n{words}"}]


def _read(
    form: Form,
    reply: Reply,
    *,
    asked: Rendered,
    ours: bool,
    block: str | None,
    unread: Verdict | None,
) -> Verdict | Unread:
    """The verdict in a reply; ``ours``: the form was asked for, as the schema or in ``block``."""
    cut = reply.finish_reason == "length"
    if not reply.text.strip():
        kind = ErrorKind.TRUNCATED if cut else ErrorKind.UNPARSABLE
        why = "it has only thinking and no verdict" if reply.reasoning else "it is empty"
        return Unread(why=why, kind=kind)
    if ours:
        found = read_object(reply.text, block=block, quoted=asked.untrusted, cut=cut)
        read = found if isinstance(found, Unread) else form.verdict_of(found)
    else:
        read = cast("WordedForm", form).read(reply.text, quoted=asked.untrusted, cut=cut)
    return unread if isinstance(read, Unread) and unread is not None else read


def _stamped(provenance: Provenance, template: PromptTemplate) -> Provenance:
    return msgspec.structs.replace(provenance, prompt_hash=template.hash)


def summed(several: Sequence[Provenance]) -> Provenance:
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
        source=_same([one.source for one in several]),
        model=_same([one.model for one in several]),
        prompt_hash=_same([one.prompt_hash for one in several]),
        usage=usage if usages else None,
        latency_s=sum(one.latency_s or 0.0 for one in several),
        attempts=sum(one.attempts or 0 for one in several),
        hedged=any(one.hedged for one in several),
    )


def _same(values: Sequence[str | None]) -> str | None:
    return values[0] if len(set(values)) == 1 else None
