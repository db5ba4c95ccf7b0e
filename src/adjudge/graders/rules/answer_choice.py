"""Option letters and yes/no answers as whole words, read from a marked answer or from free text.

One reading of a text, never several: "A or B" is B, so hedging earns no more than answering B.
"""

from __future__ import annotations

import re

from adjudge.graders.rules.extraction import plain

__all__ = ["read_boolean", "read_letter"]

_CUE = r"\b(?:answer|option|choice|verdict)(?:\s(?:is|must\sbe|would\sbe|should\sbe))?\s?:?\s?"
_OPEN = r"(?:[*_(\[{\"'`$]|\\(?:text|textbf|mathrm|mathbf|boxed)\{){0,4}"

# "B", "(b)", "B.": the letter and nothing else; "B) Paris", "(B): Paris", "B, because": a label.
_LETTER_ALONE = re.compile(r"\W*([A-Za-z])\W*", re.ASCII)
_LETTER_LABEL = re.compile(rf"{_OPEN}([A-Z])(?:[*_\]}}\"'`$]{{0,4}}[).:,]|[)\]}}*])")
_LETTER_CUE = re.compile(rf"(?i:{_CUE}){_OPEN}([A-Z])(?![\w'’]|\s[a-z])")
# A letter that is a word of its own; "I" and the article "A" are English, not options.
_LETTER_WORD = re.compile(
    r"(?<![\w'’.\\-])(?:(?<=[(\[*{])[AI](?=[)\]*}])|A(?![\w'’-]|\s[a-z])|[B-HJ-Z](?![\w'’-]))"
)

_WORD = r"(yes|no|true|false)"
_BOOLEAN_LABEL = re.compile(
    rf"\W{{0,8}}(?:\\\w{{1,10}}\{{)?{_WORD}(?![\w'’])(?!\s\w)", re.IGNORECASE
)
_BOOLEAN_CUE = re.compile(rf"{_CUE}{_OPEN}(not\s)?{_WORD}(?![\w'’])", re.IGNORECASE)
# "no" before a noun ("no doubt") denies the noun; "not true" and "isn't true" are false.
_BOOLEAN_WORD = re.compile(
    r"(?<![\w'’])((?:not|never|hardly|\w{1,8}n['’]t)\s)?(?<![\w'’])"
    r"(?:(yes|true|false)(?![\w'’])|(no)(?![\w'’]|\s\w))",
    re.IGNORECASE,
)
_TRUE = frozenset({"yes", "true"})


def read_letter(text: str) -> str | None:
    """The option letter that ``text`` gives, in upper case; ``None`` without one.

    In this order: the whole text is a letter; it begins with a label ("B) Paris"); the last
    "answer is B"; the last capital letter that is a word of its own.

    >>> [read_letter(text) for text in ("(b)", "B. Paris", "I say the answer is **C**.", "Banana")]
    ['B', 'B', 'C', None]
    """
    text = plain(text)
    for pattern in (_LETTER_ALONE.fullmatch, _LETTER_LABEL.match):
        if (match := pattern(text)) is not None:
            return match[1].upper()
    last = None
    for last in _LETTER_CUE.finditer(text):  # noqa: B007  only the last one counts
        pass
    if last is not None:
        return last[1]
    for last in _LETTER_WORD.finditer(text):  # noqa: B007
        pass
    return last[0] if last is not None else None


def read_boolean(text: str) -> bool | None:
    """True for yes/true, False for no/false, as whole words; ``None`` without one.

    In this order: the text begins with the word ("Yes, because …"); the last "answer is no"; the
    last such word. A negation turns it over, and "no" before another word is not an answer.

    >>> [read_boolean(text) for text in ("No.", "It is not true.", "I know none", "No doubt: yes")]
    [False, False, None, True]
    """
    text = plain(text)
    if (label := _BOOLEAN_LABEL.match(text)) is not None:
        return bool(label[1]) and label[1].lower() in _TRUE
    last = None
    for last in _BOOLEAN_CUE.finditer(text):  # noqa: B007
        pass
    if last is not None:
        return (last[2].lower() in _TRUE) != bool(last[1])
    for last in _BOOLEAN_WORD.finditer(text):  # noqa: B007
        pass
    if last is None:
        return None
    return ((last[2] or last[3]).lower() in _TRUE) != bool(last[1])
