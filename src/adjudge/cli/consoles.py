"""Where the command line prints, and how other people's text is made safe to print."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape

__all__ = ["clean", "errors", "output"]


def output() -> Console:
    """Standard output; numbers uncoloured, no ``:100:`` turned into an emoji."""
    return Console(highlight=False, emoji=False)


def errors() -> Console:
    """Standard error; lines are never broken, so that paths can be copied."""
    return Console(stderr=True, soft_wrap=True, highlight=False, emoji=False)


def clean(text: object) -> str:
    """``text`` without control characters (terminal escapes, line breaks) or markup of its own."""
    shown = "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in str(text))
    return escape(shown)
