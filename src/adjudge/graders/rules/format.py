"""Does a response keep the tags that it was asked for."""

from __future__ import annotations

from typing import Any

from adjudge.errors import ConfigError
from adjudge.graders.base import RuleGrader
from adjudge.graders.rules.json_check import NotJson, decode
from adjudge.graders.rules.params import flag, tag_name
from adjudge.graders.rules.text import text_of
from adjudge.types import GraderScore

__all__ = ["ReasoningFormatGrader", "ReasoningToolCallFormatGrader"]


class ReasoningFormatGrader(RuleGrader):
    """1 when the response is the wanted tagged blocks in order, else 0.

    Range [0, 1]. Field: ``response`` (text, read as written, thinking included). An empty
    response scores 0. Time is linear in the length of the response.

    ``tags``: the blocks in their order, by default ``["think", "answer"]``, so
    ``<think>…</think><answer>…</answer>``.
    ``strict`` (default true): every opening and closing tag stands there exactly once, in order
    and without nesting, with nothing but white space before, between and behind the blocks.
    Otherwise each tag must only be opened and closed after that, anywhere: the py-openjudge 0.2.4
    definition (``ReasoningFormatGrader``).
    ``allow_empty`` (default true): blocks may hold nothing but white space.
    ``prompt_opens`` (default false): the chat template already wrote the first opening tag, so
    the response starts inside that block; writing the tag again is then a fault under ``strict``.

    Raises ``ConfigError`` for tags that are not distinct bare names, and
    ``GradingFailure(invalid_input)`` for a response that is not text.

    >>> ReasoningFormatGrader().evaluate("<think>2+2</think><answer>4</answer>").score
    1.0
    >>> ReasoningFormatGrader().evaluate("<think>2+2</think> so 4").reason
    'no <answer>'
    """

    type_name = "reasoning_format"
    score_range = (0.0, 1.0)

    def __init__(
        self,
        tags: list[str] | None = None,
        strict: bool = True,
        allow_empty: bool = True,
        prompt_opens: bool = False,
        *,
        name: str = "",
    ) -> None:
        super().__init__(name)
        self.tags = ["think", "answer"] if tags is None else tags
        self.strict = strict
        self.allow_empty = allow_empty
        self.prompt_opens = prompt_opens
        for parameter in ("strict", "allow_empty", "prompt_opens"):
            flag(self.type_name, parameter, getattr(self, parameter))
        _check_tags(self.type_name, self.tags)

    def evaluate(self, response: str) -> GraderScore:
        """Judge one response."""
        text = text_of(response)
        if self.prompt_opens:
            text = f"<{self.tags[0]}>{text}"
        fault = self._strict_fault(text) if self.strict else self._loose_fault(text)
        return self._score(0.0 if fault else 1.0, fault or "all tags in place")

    def _strict_fault(self, text: str) -> str:
        """The first departure from the strict form, or ''."""
        end = 0
        for tag in self.tags:
            fault = _count_fault(text, tag)
            if fault:
                return fault
            start = text.find(f"<{tag}>")
            close = text.find(f"</{tag}>")
            if start < end or close < start:
                return f"<{tag}> is out of order"
            if text[end:start].strip():
                return f"text before <{tag}>"
            if self._lacks_content(text[start + len(tag) + 2 : close]):
                return f"<{tag}> is empty"
            end = close + len(tag) + 3
        return "text after the last tag" if text[end:].strip() else ""

    def _loose_fault(self, text: str) -> str:
        """The first tag without an opening and a closing behind it, or ''."""
        for tag in self.tags:
            start = text.find(f"<{tag}>")
            if start < 0:
                return f"no <{tag}>"
            close = text.find(f"</{tag}>", start)
            if close < 0:
                return f"<{tag}> is not closed"
            if self._lacks_content(text[start + len(tag) + 2 : close]):
                return f"<{tag}> is empty"
        return ""

    def _lacks_content(self, block: str) -> bool:
        return not self.allow_empty and not block.strip()


class ReasoningToolCallFormatGrader(RuleGrader):
    """1 when the response is thinking and then either an answer or valid tool calls, else 0.

    Range [0, 1]. Field: ``response`` (text, read as written, thinking included). An empty
    response scores 0. Time is linear in the length of the response.

    The form is ``<think>…</think>`` followed by one ``<answer>…</answer>`` or by one or more
    ``<tool_call>…</tool_call>``, with only white space around and between, and no such tag inside
    the thinking or the answer. A call is a JSON object with ``name`` (text that is not empty)
    and ``arguments`` (an object, or a string that holds one, as in the OpenAI format). Source:
    the py-openjudge 0.2.4 definition (``ReasoningToolCallFormatGrader``), which leaves the types
    of the two members open.

    ``think_tag``, ``answer_tag``, ``tool_call_tag``: the names of the tags.
    ``prompt_opens`` (default false): the chat template already wrote the opening thinking tag.

    Raises ``ConfigError`` for tags that are not distinct bare names, and
    ``GradingFailure(invalid_input)`` for a response that is not text. Metadata: ``tool_calls``,
    the number of valid calls read.

    >>> grader = ReasoningToolCallFormatGrader()
    >>> call = '<tool_call>{"name": "search", "arguments": {"q": "x"}}</tool_call>'
    >>> grader.evaluate(f"<think>look it up</think>{call}").score
    1.0
    """

    type_name = "reasoning_tool_call_format"
    score_range = (0.0, 1.0)

    def __init__(
        self,
        think_tag: str = "think",
        answer_tag: str = "answer",
        tool_call_tag: str = "tool_call",
        prompt_opens: bool = False,
        *,
        name: str = "",
    ) -> None:
        super().__init__(name)
        flag(self.type_name, "prompt_opens", prompt_opens)
        tags = [think_tag, answer_tag, tool_call_tag]
        _check_tags(self.type_name, tags)
        self.think_tag, self.answer_tag, self.tool_call_tag = tags
        self.prompt_opens = prompt_opens
        self._marks = [mark for tag in tags for mark in (f"<{tag}>", f"</{tag}>")]

    def evaluate(self, response: str) -> GraderScore:
        """Judge one response."""
        text = text_of(response)
        if self.prompt_opens:
            text = f"<{self.think_tag}>{text}"
        fault, calls = self._read(text.strip())
        if fault:
            return self._score(0.0, fault, tool_calls=calls)
        return self._score(1.0, f"{calls} tool calls" if calls else "an answer", tool_calls=calls)

    def _read(self, text: str) -> tuple[str, int]:
        """What is wrong with the response ('' for nothing), and the number of its calls."""
        thinking, rest = _take(text, self.think_tag)
        if thinking is None:
            return f"does not start with a closed <{self.think_tag}>", 0
        if self._has_tag(thinking):
            return f"a tag inside <{self.think_tag}>", 0
        answer, after = _take(rest, self.answer_tag)
        if answer is None:
            return self._read_calls(rest)
        if self._has_tag(answer):
            return f"a tag inside <{self.answer_tag}>", 0
        return (f"text after </{self.answer_tag}>" if after else ""), 0

    def _read_calls(self, text: str) -> tuple[str, int]:
        opening, closing = f"<{self.tool_call_tag}>", f"</{self.tool_call_tag}>"
        *blocks, last = text.split(closing)
        for calls, block in enumerate(blocks):
            body = block.lstrip()
            if not body.startswith(opening):
                return f"text outside <{self.tool_call_tag}>", calls
            fault = _call_fault(body[len(opening) :])
            if fault:
                return f"tool call {calls + 1}: {fault}", calls
        if not blocks:
            return f"no closed <{self.answer_tag}> or <{self.tool_call_tag}>", 0
        return (f"text after </{self.tool_call_tag}>" if last.strip() else ""), len(blocks)

    def _has_tag(self, block: str) -> bool:
        return any(mark in block for mark in self._marks)


def _check_tags(owner: str, tags: Any) -> None:
    if not isinstance(tags, list) or not tags:
        raise ConfigError(f"{owner}: tags must be a list of tag names, got {tags!r}")
    for tag in tags:
        tag_name(owner, "each tag", tag)
    if len(set(tags)) < len(tags):
        raise ConfigError(f"{owner}: tags must differ from each other, got {tags!r}")


def _count_fault(text: str, tag: str) -> str:
    for mark in (f"<{tag}>", f"</{tag}>"):
        count = text.count(mark)
        if count != 1:
            return f"{mark} stands there {count} times" if count else f"no {mark}"
    return ""


def _take(text: str, tag: str) -> tuple[str | None, str]:
    """The content of the block that ``text`` starts with, or ``None``, and what follows it."""
    opening, closing = f"<{tag}>", f"</{tag}>"
    close = text.find(closing) if text.startswith(opening) else -1
    if close < 0:
        return None, text
    return text[len(opening) : close], text[close + len(closing) :].strip()


def _call_fault(body: str) -> str:
    try:
        call = decode(body)
        if not isinstance(call, dict) or not {"name", "arguments"} <= call.keys():
            return "not an object with name and arguments"
        arguments = call["arguments"]
        if isinstance(arguments, str):
            arguments = decode(arguments)
    except NotJson as fault:
        return str(fault)
    if not isinstance(call["name"], str) or not call["name"]:
        return "name is not a text"
    return "" if isinstance(arguments, dict) else "arguments are not an object"
