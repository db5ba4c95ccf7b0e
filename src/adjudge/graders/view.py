"""What a grader sees of a response: all of it, or what stands after the thinking."""

from __future__ import annotations

from typing import Any, Literal

__all__ = ["View", "content_text", "final_text", "view_text"]

View = Literal["final", "full"]
"""``final``: thinking stripped. ``full``: the response as the policy wrote it."""

_OPEN, _CLOSE = "<think>", "</think>"


def final_text(response: str) -> str | None:
    """What stands after the last ``</think>``; ``None`` when a ``<think>`` was never closed.

    An unclosed ``<think>`` means that the policy never got to an answer. A response without
    thinking is its own final text.
    """
    close = response.rfind(_CLOSE)
    rest = response if close < 0 else response[close + len(_CLOSE) :]
    return None if _OPEN in rest else rest


def view_text(response: str, view: View) -> str | None:
    """``response`` under ``view``; ``None`` as in :func:`final_text`."""
    return response if view == "full" else final_text(response)


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
