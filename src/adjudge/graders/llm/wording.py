"""The question that a grader asks: the shipped wording, or one of the user's own."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from adjudge.errors import ConfigError
from adjudge.graders.llm.judged import REPLY_FORM
from adjudge.graders.llm.material import asked, blank, first_given, lacking, question, turns_of
from adjudge.graders.llm.texts import shipped_prompt
from adjudge.prompts import ChatMessage, PromptTemplate
from adjudge.verdicts import Ending

__all__ = ["Template", "chosen_template", "ending_of", "query_of", "with_query"]

Template = Any
"""A :class:`~adjudge.prompts.PromptTemplate`, its messages, one text; ``None``: the shipped one."""


def chosen_template(
    given: Template, shipped: str, needs: Collection[str], *trusted: str
) -> PromptTemplate:
    """``given``, else the prompt file ``shipped``; ``trusted`` fields are not fenced.

    Raises :class:`ConfigError` for a template without one of the fields that it ``needs``.
    """
    if given is None:
        return shipped_prompt(shipped, *trusted)
    ours = {REPLY_FORM, *trusted}
    if isinstance(given, PromptTemplate):
        template = PromptTemplate(given.messages, trusted=given.trusted | ours)
    else:
        messages = [ChatMessage("user", given)] if isinstance(given, str) else given
        template = PromptTemplate(messages, trusted=ours)
    if template.exposed:
        raise ConfigError(
            f"template: {', '.join(sorted(template.exposed))} in a system message: a sample's "
            "text belongs in the user's"
        )
    for field in needs:
        if field not in template.fields:
            raise ConfigError(
                f"template: lacks the field {{{field}}}, without which it asks nothing"
            )
    return template


def ending_of(verdict: Any, template: PromptTemplate) -> Ending | None:
    """Where ``template``'s own words put the verdict, as its author declares.

    Raises :class:`ConfigError` for what is no declaration, and beside ``{reply_form}``, which says
    it already.
    """
    ending = Ending.of(verdict)
    if ending is not None and REPLY_FORM in template.fields:
        raise ConfigError(
            "verdict: the template has {reply_form}, which says where the verdict stands; "
            "leave out one of the two"
        )
    return ending


def query_of(fields: Mapping[str, Any]) -> Any:
    """What a response answers: ``query``, else the conversation before it, else ``prompt``."""
    if not blank(fields.get("query")):
        return fields["query"]
    if "event" in fields and "history" in fields:  # an event: what comes later is not known yet
        return asked(turns_of(fields["history"])) if fields["history"] else fields.get("prompt")
    if not blank(fields.get("messages")):
        turns = turns_of(fields["messages"])
        before, _ = question(turns, fields.get("response"))
        if (conversation := asked(turns[:before])) is not None:
            return conversation
    return first_given(fields, ("prompt",))


def with_query(fields: Mapping[str, Any], template: PromptTemplate) -> dict[str, Any]:
    """``fields`` with ``query`` filled in (:func:`query_of`).

    Raises ``GradingFailure(invalid_input)`` where the template asks for it and there is none.
    """
    values = {**fields, "query": query_of(fields)}
    if values["query"] is None:
        del values["query"]
        if "query" in template.fields:
            raise lacking(("query", "messages", "prompt"), fields)
    return values
