"""Reading chat messages as people really write them."""

from __future__ import annotations

from typing import Any

__all__ = ["content_text"]


def content_text(content: Any) -> str:
    """The text of a message's ``content``: a string, null, or a list of content parts.

    Parts that are not text (images, audio) contribute nothing.
    """
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(_part_text(part) for part in content)
    return str(content)


def _part_text(part: Any) -> str:
    if isinstance(part, str):
        return part
    text = part.get("text") if isinstance(part, dict) else None
    return text if isinstance(text, str) else ""
