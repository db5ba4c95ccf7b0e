"""Prompt texts in files beside their graders: ``prompts/NAME.en.txt`` and ``prompts/NAME.zh.txt``.

A file has two parts, parted by a line ``=====``: what is the same for every sample (the system
message: task, criteria, scale, ``{reply_form}``), and the material. That order, static text first
and the candidate last, is what prefix caches hit on.
"""

from __future__ import annotations

from functools import cache
from importlib import resources

from adjudge.prompts import ChatMessage, LanguageEnum, PromptTemplate

__all__ = ["shipped_prompt"]

_PART = "\n=====\n"
_OURS = ("reply_form",)


@cache
def shipped_prompt(name: str, *trusted: str) -> PromptTemplate:
    """The template of a shipped grader, in both languages; ``trusted`` fields are not fenced."""
    messages = {language: _messages(name, language) for language in LanguageEnum}
    return PromptTemplate(messages, trusted=(*_OURS, *trusted))


def _messages(name: str, language: LanguageEnum) -> list[ChatMessage]:
    file = resources.files("adjudge.graders.llm").joinpath(f"prompts/{name}.{language}.txt")
    static, _, material = file.read_text(encoding="utf-8").partition(_PART)
    return [ChatMessage("system", static.strip()), ChatMessage("user", material.strip())]
