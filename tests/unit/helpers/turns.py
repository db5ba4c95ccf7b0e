"""Transcripts in prompts, without the tags that mark our words in them."""

import re

__all__ = ["unmarked"]

_MARK = re.compile(r"(\[[0-9]+|→)-[0-9a-f]{6}(?=[\] ])")


def unmarked(text: str) -> str:
    """``text`` with plain turn numbers and arrows."""
    return _MARK.sub(r"\1", text)
