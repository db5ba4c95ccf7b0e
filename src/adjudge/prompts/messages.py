"""The pieces that prompts are written with."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

__all__ = ["ChatMessage", "LanguageEnum"]


class LanguageEnum(StrEnum):
    """The language that a judge is asked in."""

    EN = "en"
    ZH = "zh"


class ChatMessage(msgspec.Struct, frozen=True):
    """One message of a prompt: ``content`` is text with ``{fields}``, or a list of content parts.

    Parts are those of the OpenAI chat format; text parts may hold fields too.
    """

    role: str
    content: str | list[dict[str, Any]]
    name: str = ""
