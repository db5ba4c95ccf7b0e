"""The base of graders that ask a judge: what it is shown of a sample, and one question.

Of a sample it is shown fields by name, or read out of the messages; of the response, thinking is
stripped or not, and a cut is said. A question that gets no verdict is asked again.

The question has the shipped wording or one of the user's own. Shipped prompts are files beside
their graders, ``prompts/NAME.en.txt`` and ``prompts/NAME.zh.txt``, in two parts that a line
``=====`` parts: what is the same for every sample (the system message: task, criteria, scale,
``{reply_form}``), and the material. That order, static text first and the candidate last, is what
prefix caches hit on.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cache, lru_cache
from importlib import resources
from typing import Any, ClassVar, Literal, NamedTuple, cast

import msgspec

from adjudge.config import check_allowed
from adjudge.errors import ASKED_AGAIN, LACKED, ConfigError, ErrorKind, GradingFailure
from adjudge.graders.base import BaseGrader, View, check_parameters, docstring_summary, is_nan
from adjudge.graders.llm.asking import ASK_ONCE, AskPolicy, sum_provenance
from adjudge.graders.llm.reply_forms import (
    FreeTextForm,
    JudgeReplyForm,
    MarkedScoreForm,
    describe_block,
    describe_object,
)
from adjudge.judges.base import ChatModel, Reply
from adjudge.messages import content_text
from adjudge.prompts import ChatMessage, LanguageEnum, PromptTemplate, RenderedPrompt
from adjudge.prompts.template import render_value
from adjudge.text import final_text
from adjudge.types import GraderMode, GraderScore, Provenance
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


TruncationMode = Literal["judge", "mask"]
"""``judge``: a response that hit its length limit is judged, and the judge is told. ``mask``: it is
``GraderError(invalid_input)``, so the reward is missing."""

_CUT = {
    LanguageEnum.EN: "\n[The response ends here because it reached its length limit.]",
    LanguageEnum.ZH: "\n[回复在此处因达到长度上限而被截断。]",
}


class CandidateView(NamedTuple):
    """How rollouts are shown: ``view`` and ``truncated`` of a grader with a judge."""

    view: View = "final"
    truncated: TruncationMode = "judge"

    def render(
        self,
        fields: Mapping[str, Any],
        language: LanguageEnum = LanguageEnum.EN,
        *,
        reads_messages: bool = True,
    ) -> dict[str, Any] | None:
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
            if (response := seen.get("response")) is not None:
                seen["response"] = stripped = _final(response)
                if stripped is None:
                    return None
            needed = reads_messages or response is None
            if needed and (messages := seen.get("messages")) is not None:
                seen["messages"], unended = _final_messages(messages)
                if unended and response is None:  # else that decides, being what is judged
                    return None
        if cut and isinstance(seen.get("response"), str):
            seen["response"] += _CUT[language]
        return seen


def _final(response: Any) -> Any:
    return final_text(response) if isinstance(response, str) else response


def _final_messages(messages: Any) -> tuple[Any, bool]:
    """The messages with the assistant's thinking taken out, and whether the last never ended it."""
    if not isinstance(messages, list):
        return messages, False
    shown = []
    unended = False
    last = len(messages) - 1
    for place, message in enumerate(messages):
        if not isinstance(message, Mapping) or message.get("role") != "assistant":
            shown.append(message)
            continue
        content = message.get("content")
        if isinstance(content, list) and any(map(_is_image, content)):
            shown.append(message)
            continue
        text = final_text(content_text(content))
        unended |= text is None and place == last and not message.get("tool_calls")
        shown.append({**message, "content": text or ""})
    return shown, unended


def _is_image(part: Any) -> bool:
    return isinstance(part, Mapping) and not isinstance(part.get("text"), str)


Transcript = list[dict[str, Any]]
"""Chat messages, one object with a role each."""


def read_turns(messages: Any) -> Transcript:
    """Chat messages as a transcript shows them: one object with a role each.

    ``{"message": …}`` is unwrapped and the former ``function_call`` becomes a tool call. Raises
    ``GradingFailure(invalid_input)`` for what is no list of messages, or an empty one.

    >>> read_turns([{"message": {"role": "user", "content": "Hello"}}])
    [{'role': 'user', 'content': 'Hello'}]
    """
    if not isinstance(messages, list | tuple) or not messages:
        found = "empty" if isinstance(messages, list | tuple) else type(messages).__name__
        raise _invalid(f"messages is {found}, must be a list of chat messages")
    return [_turn(message, place) for place, message in enumerate(messages)]


def _turn(message: Any, place: int) -> dict[str, Any]:
    inner = message.get("message", message) if isinstance(message, Mapping) else None
    if not isinstance(inner, Mapping) or not isinstance(inner.get("role"), str):
        raise _invalid(f"messages[{place}] is no object with a role")
    turn = dict(inner)
    if turn["role"] == "assistant" and isinstance(turn.get("content"), Mapping):
        turn["content"] = "".join(str(piece) for piece in render_value(turn["content"]))
    calls, legacy = turn.get("tool_calls"), turn.pop("function_call", None)
    if calls is not None and not isinstance(calls, list):
        raise _invalid(f"messages[{place}].tool_calls is {type(calls).__name__}, must be a list")
    if not calls and legacy is not None:
        turn["tool_calls"] = [legacy]
    return turn


def find_answer_turn(turns: Sequence[Mapping[str, Any]]) -> int | None:
    """The place of the last assistant turn that says something; ``None`` without one."""
    for place in range(len(turns) - 1, -1, -1):
        if turns[place]["role"] == "assistant" and not is_blank(turn_content(turns[place])):
            return place
    return None


def turn_content(turn: Mapping[str, Any]) -> Any:
    """The text of a turn, or its parts where some are no text."""
    content = turn.get("content")
    if isinstance(content, list) and any(map(_is_image, content)):
        return content
    return content_text(content)


def split_question(turns: Transcript, response: Any) -> tuple[int, Any]:
    """How many turns come before ``response`` (``None``: the last thing said), and the response.

    A response of the sample's own that is not the last thing said follows the conversation. If the
    conversation ends with an assistant's turn, it replaces that turn. A trajectory in which the
    assistant says nothing has the response ``""``; without an assistant's turn it is ``None``.
    """
    place = find_answer_turn(turns)
    if response is None:
        if place is None:
            acted = any(turn["role"] == "assistant" for turn in turns)
            return len(turns), "" if acted else None
        return place, turn_content(turns[place])
    same = (
        place is not None and isinstance(response, str) and turn_content(turns[place]) == response
    )
    if place is not None and (same or place == len(turns) - 1):
        return place, response
    return len(turns), response


def conversation_query(turns: Transcript) -> Any:
    """A conversation as a query: one user's turn alone is its content; ``None`` without any."""
    if len(turns) == 1 and turns[0]["role"] == "user":
        return turn_content(turns[0])
    return turns if any(turn["role"] == "user" for turn in turns) else None


def count_opening_turns(turns: Transcript) -> int:
    """How many turns come before the assistant's first."""
    for place, turn in enumerate(turns):
        if turn["role"] == "assistant":
            return place
    return len(turns)


def is_blank(value: Any) -> bool:
    """Whether there is nothing to show: null, NaN, white space, an object or list without more."""
    if isinstance(value, str):
        return not value or value.isspace()
    if isinstance(value, list | tuple):
        return all(map(is_blank, value))
    return value is None or is_nan(value) or (isinstance(value, dict) and not value)


def first_present(fields: Mapping[str, Any], names: Sequence[str]) -> Any:
    """The first of several fields that has something to show, else ``None``."""
    for name in names:
        value = fields.get(name)
        if value is not None and not is_blank(value):
            return value
    return None


def join_lines(value: Any) -> Any:
    """A list of tool definitions or calls with one JSON object per line; text as it is."""
    if not isinstance(value, list | tuple):
        return value
    return "\n".join(str(piece) for item in value for piece in render_value(item))


def missing_field_failure(names: Sequence[str], fields: Mapping[str, Any]) -> GradingFailure:
    """The failure of a sample that has none of the fields ``names``."""
    has = ", ".join(sorted(map(str, fields))[:20])
    wanted = " or ".join(repr(name) for name in names)
    return _invalid(f"the sample has no field {wanted} (it has: {has})", {LACKED: list(names)})


def _invalid(message: str, metadata: dict[str, Any] | None = None) -> GradingFailure:
    return GradingFailure(ErrorKind.INVALID_INPUT, message, metadata)


REPLY_FORM = "reply_form"
"""The field of a template that says what the reply must look like; never a sample's."""

_REPAIR_REQUEST = {
    LanguageEnum.EN: (
        "Your last reply to this question could not be used: {why}. Reply again with the verdict "
        "alone, in exactly the form asked for."
    ),
    LanguageEnum.ZH: "你上一次的回复无法使用（{why}）。请重新回复，只按要求的形式给出评判结论。",
}


class JudgeOutcome(msgspec.Struct, frozen=True):
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
    def notes(self) -> dict[str, Any]:
        """What a result's metadata should say about the telling; usually nothing."""
        notes: dict[str, Any] = {"repaired": True} if self.repaired else {}
        if self.reply.ignored:
            ignored = [name for name in self.reply.ignored if name != "usage"]
            if ignored:
                notes["ignored"] = ignored
        return notes


@dataclass(eq=False, repr=False)
class JudgeGrader(BaseGrader):
    """A grader that asks a judge; derive a dataclass, and write ``aevaluate`` with :meth:`_ask`.

    ``model`` is any :class:`~adjudge.judges.ChatModel`; a spec passes the one that ``judge`` names.
    ``language``: ``en`` or ``zh``, of the prompt. The fields are the parameters: flags, the words
    of a ``Literal`` and numbers with ``Between`` are checked; what else must hold is checked in
    ``__post_init__``. A call that fails, and a reply that has no single readable verdict also
    after the further asks of :class:`~adjudge.graders.llm.asking.AskPolicy`, is
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
        self._showing = CandidateView(self.view, self.truncated)
        check_parameters(self)

    def check_machine(self) -> None:
        """What the judge needs is here."""
        self.model.check_machine()

    def _result(
        self, score: float, reason: str, metadata: dict[str, Any], provenance: Provenance | None
    ) -> GraderScore:
        """A score with the grader's range and role."""
        return GraderScore(
            self.name, score, reason, metadata, self.score_range, self.role, provenance
        )

    def _unclosed(self) -> GraderScore:
        """The lowest score, for a response that is nothing but thinking."""
        return self._candidate_fault("the response never ended its thinking", unclosed_think=True)

    async def _ask(
        self,
        template: PromptTemplate,
        values: Mapping[str, Any],
        form: JudgeReplyForm,
        *,
        draw: int = 0,
        group: str | None = None,
        unread: Verdict | None = None,
        interpret: Callable[[Verdict, Reply], Any] | None = None,
        last: bool = False,
    ) -> JudgeOutcome:
        """Ask about ``values`` and read the verdict in ``form``; again, but for the ``last`` ask.

        Where the template has the field ``reply_form``, what the reply must look like is put
        there, and nothing outside that form is a verdict; else its author has worded that himself,
        nothing is added, and the reply is read as ``form`` reads free text. ``unread``: what a
        reply with text but without a verdict counts as, instead of being asked again.
        ``interpret`` takes the verdict's value; what it refuses is asked again, too. Raises
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
            found = self._read_reply(form, reply, asked, ours=worded or as_schema, block=block)
            if isinstance(found, UnreadableReply):
                if unread is None or not reply.text.strip():
                    raise GradingFailure(found.kind, found.why)
                found = unread
            if interpret is None:
                return found
            return msgspec.structs.replace(found, value=interpret(found, reply))

        return await self._put_question(put, read, template, last=last)

    def _read_reply(
        self,
        form: JudgeReplyForm,
        reply: Reply,
        asked: RenderedPrompt,
        *,
        ours: bool,
        block: str | None,
    ) -> Verdict | UnreadableReply:
        """The verdict in a reply; ``ours``: the form was asked for, as schema or in ``block``."""
        cut = reply.finish_reason == "length"
        text = reply.text
        if not text.strip():
            kind = ErrorKind.TRUNCATED if cut else ErrorKind.UNPARSABLE
            why = "it has only thinking and no verdict" if reply.reasoning else "it is empty"
            return UnreadableReply(why=why, kind=kind)
        if not ours:
            return cast("FreeTextForm", form).read(text, quoted=asked.untrusted, cut=cut)
        found = read_object(text, block=block, quoted=asked.untrusted, cut=cut)
        read = found if isinstance(found, UnreadableReply) else form.verdict_of(found)
        if isinstance(read, UnreadableReply) and isinstance(form, MarkedScoreForm):
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
                failure.provenance = _with_prompt_hash(failure.provenance, template)
            raise
        source = spent[0] if len(spent) == 1 else sum_provenance(spent)
        return JudgeOutcome(verdict, _with_prompt_hash(source, template), reply, len(spent))


def require_text_field(fields: Mapping[str, Any], name: str, who: str = "") -> str:
    """The text in a field; ``GradingFailure(invalid_input)`` where it is absent or no text."""
    value = fields.get(name)
    if isinstance(value, str):
        return value
    found = "is absent" if value is None else f"is a {type(value).__name__}"
    lacked = {LACKED: [name]} if value is None else {}
    if who:
        raise _invalid(f"{who} needs text in {name!r}, which {found}", lacked)
    raise _invalid(f"{name!r} {found}, must be text", lacked)


def get_group_name(fields: Mapping[str, Any]) -> str | None:
    """The name of a sample's group, to keep its calls on one replica; ``None`` without a name."""
    group = fields.get("group")
    return group if isinstance(group, str) else None


def _append_words(message: dict[str, Any], words: str) -> dict[str, Any]:
    """The question's last message with ``words`` after all material."""
    content = message["content"]
    if isinstance(content, str):
        return {**message, "content": f"{content}\n\n{words}"}
    return {**message, "content": [*content, {"type": "text", "text": f"\n\n{words}"}]}


def _with_prompt_hash(provenance: Provenance, template: PromptTemplate) -> Provenance:
    return msgspec.structs.replace(provenance, prompt_hash=template.hash)


TemplateInput = Any
"""A :class:`~adjudge.prompts.PromptTemplate`, its messages, one text; ``None``: the shipped one."""


def build_template(given: TemplateInput, *trusted: str) -> PromptTemplate:
    """An author's own template; ``trusted`` fields, and the reply's form, are not fenced."""
    ours = {REPLY_FORM, *trusted}
    if isinstance(given, PromptTemplate):
        return PromptTemplate(given.messages, trusted=given.trusted | ours)
    messages = [ChatMessage("user", given)] if isinstance(given, str) else given
    return PromptTemplate(messages, trusted=ours)


def resolve_template(
    given: TemplateInput, shipped: str, needs: Collection[str], *trusted: str
) -> PromptTemplate:
    """``given``, else the prompt file ``shipped``; ``trusted`` fields are not fenced.

    Raises :class:`ConfigError` for a template without one of the fields that it ``needs``.
    """
    if given is None:
        return load_shipped_prompt(shipped, *trusted)
    template = build_template(given, *trusted)
    if template.exposed:
        raise ConfigError(
            "template: a system message has fields of the sample (found: "
            f"{', '.join(sorted(template.exposed))}). Move them to the user's message, or name "
            "them in trusted."
        )
    for field in needs:
        if field not in template.fields:
            raise ConfigError(
                f"template: lacks the field {{{field}}}, which the judge must see. Add it."
            )
    return template


async def ask_judge(
    model: ChatModel,
    template: PromptTemplate | str,
    fields: Mapping[str, Any],
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
    return resolve_template(given, "", (REPLY_FORM,))


def parse_ending(verdict: Any, template: PromptTemplate) -> Ending | None:
    """Where ``template``'s own words put the verdict, as its author declares.

    Raises :class:`ConfigError` for what is no declaration, and beside ``{reply_form}``, which says
    it already.
    """
    ending = Ending.of(verdict)
    if ending is not None and REPLY_FORM in template.fields:
        raise ConfigError(
            "verdict: the template has {reply_form}, which asks for the verdict. "
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

    Raises ``GradingFailure(invalid_input)`` where the template needs ``query`` and it is missing.
    """
    values = {**fields, "query": extract_query(fields)}
    if values["query"] is None:
        del values["query"]
        if "query" in template.fields:
            raise missing_field_failure(("query", "messages", "prompt"), fields)
    return values
