"""Answers compared as text, and where JSON stands in one."""

from __future__ import annotations

from typing import Any

from rapidfuzz.distance import Levenshtein

from adjudge.graders.rules.extraction import last_json
from adjudge.graders.rules.json_check import NotJson, decode

__all__ = ["best_ocr_similarity", "find_json", "ocr_similarity", "same_text"]


def same_text(answer: str, reference: str) -> bool:
    """Equal after trimming, whatever the case.

    >>> same_text(" Paris", "PARIS"), same_text("14", "4")
    (True, False)
    """
    return answer.strip().casefold() == reference.strip().casefold()


def ocr_similarity(answer: str, reference: str) -> float:
    """1 − Levenshtein distance / length of the longer text; 0 where that is below 0.5.

    >>> ocr_similarity("Hall0 World", "Hello World"), ocr_similarity("xyz", "Hello")
    (0.8181818181818181, 0.0)
    """
    return Levenshtein.normalized_similarity(answer.strip(), reference.strip(), score_cutoff=0.5)


def best_ocr_similarity(payload: dict[str, Any]) -> float:
    """The best :func:`ocr_similarity` of ``answer`` with any of ``references``."""
    return max(ocr_similarity(payload["answer"], one) for one in payload["references"])


def find_json(text: str) -> str | None:
    """All of ``text`` when it is JSON, else its last ``{…}`` or ``[…]``; ``None`` without one.

    >>> find_json("17"), find_json('It is {"a": 1}.'), find_json("seventeen")
    ('17', '{"a": 1}', None)
    """
    text = text.strip()
    try:
        decode(text)
    except NotJson:
        return last_json(text)
    return text
