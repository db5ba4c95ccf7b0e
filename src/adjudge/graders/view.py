"""What a grader sees of a response: all of it, or what stands after the thinking."""

from __future__ import annotations

from typing import Literal

from adjudge.rollouts.messages import content_text

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
