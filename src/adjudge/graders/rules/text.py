"""How text graders read a sample: the text in view, its references, its words."""

from __future__ import annotations

import re
from typing import Any, Literal

from adjudge.errors import ErrorKind, GradingFailure
from adjudge.graders.view import View, view_text

__all__ = [
    "NO_FINAL_TEXT",
    "chunks",
    "part_of",
    "references",
    "seen_text",
    "shown",
    "text_of",
    "words",
]

NO_FINAL_TEXT = "no final text: <think> was never closed"

# Han with its extensions, kana, and the ideographic iteration mark: scripts without spaces.
_CJK = "\u3005-\u3007\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
# Combining marks are not \w in ``re``, so without them Indic and South-East Asian words would
# fall to pieces; the block 0590-109F holds nearly all of these marks.
_MARKS = "\u0300-\u036f\u0590-\u060b\u060d-\u061a\u061c-\u061e\u0620-\u0963\u0966-\u109f"
_WORD = f"[{_CJK}]|(?:[^\\W{_CJK}]++|[{_MARKS}]++)++"
_WORDS = re.compile(_WORD)
_CHUNKS = re.compile(f"[{_CJK}]|[^\\s{_CJK}]+")
_WORDS_AND_SIGNS = re.compile(f"{_WORD}|[^\\w\\s]")


def text_of(response: Any) -> str:
    """``response`` as text; anything but a string is ``GradingFailure(invalid_input)``."""
    if not isinstance(response, str):
        raise GradingFailure(
            ErrorKind.INVALID_INPUT, f"response must be text, got {type(response).__name__}"
        )
    return response


def seen_text(response: Any, view: View) -> str | None:
    """What a grader sees of ``response``; ``None`` when ``final`` finds an unclosed ``<think>``."""
    return view_text(text_of(response), view)


def references(reference: Any) -> list[str]:
    """The reference texts of a sample: one string, or a list of strings that is not empty.

    Anything else is ``GradingFailure(invalid_input)``.
    """
    if isinstance(reference, str):
        return [reference]
    if isinstance(reference, list) and reference and all(isinstance(r, str) for r in reference):
        return reference
    raise GradingFailure(
        ErrorKind.INVALID_INPUT,
        f"reference must be text or a list of texts, got {type(reference).__name__}",
    )


def words(text: str, *, signs: bool = False) -> list[str]:
    """The lower-cased words of ``text``, in order and in linear time.

    A word is a run of letters, digits, underscores and combining marks; a Chinese character or
    kana is a word by itself. With ``signs`` every other visible character is a token too.

    >>> words("It's 今天, ok!")
    ['it', 's', '今', '天', 'ok']
    >>> words("ok!!", signs=True)
    ['ok', '!', '!']
    """
    pattern = _WORDS_AND_SIGNS if signs else _WORDS
    return pattern.findall(text.lower())


def chunks(text: str) -> list[str]:
    """What white space separates in ``text``, with Chinese characters and kana one by one.

    >>> chunks("U.S.A. 今天")
    ['U.S.A.', '今', '天']
    """
    return _CHUNKS.findall(text)


def part_of(response: str, part: Literal["full", "final", "thought"]) -> str:
    """All of a response, what stands after its thinking, or the thinking; '' where there is none.

    Thinking is what ``<think>…</think>`` holds, blocks joined by a line break. An unclosed
    ``<think>`` reaches to the end; a ``</think>`` that nothing opened closes thinking that the
    chat template opened.
    """
    if part == "full":
        return response
    if part == "final":
        return view_text(response, "final") or ""
    first, *others = response.split("</think>")
    blocks = [_after_opening(piece) for piece in others]
    opened = "<think>" in first or not others
    return "\n".join(filter(None, [_after_opening(first) if opened else first, *blocks]))


def _after_opening(piece: str) -> str:
    return piece.partition("<think>")[2]


def shown(text: Any, limit: int = 200) -> str:
    """Text of unknown length and content, cut and made encodable, for a reason or message."""
    whole = str(text)
    cut = whole if len(whole) <= limit else whole[:limit] + "…"
    return cut.encode("utf-8", "replace").decode("utf-8")
