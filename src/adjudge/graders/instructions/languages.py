"""The language of a response, and English in one case throughout.

A text in which no language can be seen at all (no letters, addresses only) follows, as it does in
the reference.
"""

from __future__ import annotations

from adjudge.graders.instructions.detection import detected

__all__ = ["english_capital", "english_lowercase", "response_language"]


def response_language(response: str, language: str) -> bool:
    """The whole response is in that language."""
    return detected(response) in (language, None)


def english_capital(response: str) -> bool:
    """English without a small letter, and with a capital."""
    return response.isupper() and detected(response) in ("en", None)


def english_lowercase(response: str) -> bool:
    """English without a capital, and with a small letter."""
    return response.islower() and detected(response) in ("en", None)
