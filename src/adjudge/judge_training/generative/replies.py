"""A judge's reply while it is being trained: thinking, then one verdict, in exactly one form.

The form is ``<think>…</think>`` followed by ``<score>N</score>`` (an integer from 0 to 4) or
``<better>A</better>`` / ``<better>B</better>``. A policy finds every way to what it is rewarded
for, so these readers guess nothing: where :mod:`adjudge.verdicts` makes the best of what a judge
wrote, here a reply has the form, sign by sign, or it has no verdict.

- Thinking comes first, once, and closes. It may be empty: nothing is paid for reasons as such.
- After it stands one verdict, and only blanks, tabs and line ends stand beside it.
- Tags are in lower case and without blanks; the verdict is one ASCII digit or one capital letter
  (``tie`` in lower case, where ties are offered). Invisible characters, full-width digits,
  decimals, signs and words are another form.
- No tag of the form stands inside the thinking, also not quoted, in another case or with invisible
  characters in it: some reader could take it for the verdict, or for where the thinking ends.

Every accepted reply should be read alike once the judge serves, by
:func:`adjudge.verdicts.read_score` and :func:`adjudge.verdicts.read_choice`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from adjudge.errors import ConfigError, ErrorKind
from adjudge.judge_training.data.rows import LABELS, RATINGS
from adjudge.verdicts import Unread, Verdict
from adjudge.verdicts.plain import plain

__all__ = ["LONGEST", "PREFERENCES", "TIE", "Fault", "read_preference", "read_rating"]

LONGEST = 256 * 1024
"""Longest reply that is read, in characters; some 64,000 tokens of English."""

PREFERENCES = LABELS[:2]
"""What a pairwise judge answers: the better of two."""

TIE = LABELS[2]
"""What it answers besides, where the data has ties."""


class Fault(StrEnum):
    """Why a reply has no verdict, in words of ours; :attr:`Unread.why` is one of these."""

    TOO_LONG = "the reply is too long"
    NO_THINKING = "the reply does not begin with <think>"
    UNCLOSED = "the thinking never closes"
    THINKING_TWICE = "thinking inside the thinking, or once more after it"
    VERDICT_INSIDE = "a verdict's tag inside the thinking"
    NO_VERDICT = "no verdict follows the thinking"
    SEVERAL = "more than one verdict"
    BESIDE = "text beside the verdict"
    VALUE = "a verdict that is not offered"
    FORM = "a verdict in another form"


_OPEN, _CLOSE = "<think>", "</think>"
_BLANKS = " \t\r\n"
# Every spelling that some reader may take for a tag of the form. Bounded, so linear.
_TAG = re.compile(
    r"<\s{0,4}(?P<close>/?)\s{0,4}"
    r"(?:(?P<think>think|thinking|thought|thoughts|reasoning)|(?P<verdict>score|better))(?![\w-])",
    re.IGNORECASE,
)
_INTEGER = re.compile(r"-?[0-9]{1,9}")
_RATING_OF: Mapping[str, Any] = MappingProxyType({str(rating): rating for rating in RATINGS})
_PREFERENCE_OF: Mapping[str, Any] = MappingProxyType({one: one for one in PREFERENCES})
_OR_TIE: Mapping[str, Any] = MappingProxyType({one: one for one in (*PREFERENCES, TIE)})


def read_rating(reply: str, *, opened: bool = False, cut: bool = False) -> Verdict | Unread:
    r"""The rating that a pointwise judge's reply gives; its form is this module's.

    ``opened``: the chat template has already written ``<think>``, so the reply begins inside the
    thinking. ``cut``: the reply ended at its length limit; what is missing then is ``truncated``.
    Tokens that end a turn must be gone from ``reply``.

    Returns a :class:`~adjudge.verdicts.Verdict` with an integer from 0 to 4 and the thinking as
    reason; else an :class:`~adjudge.verdicts.Unread` whose ``why`` is a :class:`Fault`. One pass;
    replies over :data:`LONGEST` are not read. Raises :class:`~adjudge.errors.ConfigError` for what
    is no text.

    >>> read_rating("<think>Right, but curt.</think>\n<score>3</score>").value
    3
    >>> read_rating("<think>Right, but curt.</think>\nScore: 3").why
    <Fault.NO_VERDICT: 'no verdict follows the thinking'>
    """
    return _read(reply, "score", _RATING_OF, opened=opened, cut=cut)


def read_preference(
    reply: str, *, ties: bool = False, opened: bool = False, cut: bool = False
) -> Verdict | Unread:
    """The better of two that a pairwise judge's reply names: ``A``, ``B``, or ``tie`` if ``ties``.

    ``ties``: the prompt offers a tie, because the data has some. Otherwise as :func:`read_rating`.

    >>> read_preference("<think>A is right.</think><better>A</better>").value
    'A'
    >>> read_preference("<think>A is right.</think><better>Answer A</better>").why
    <Fault.VALUE: 'a verdict that is not offered'>
    """
    return _read(reply, "better", _OR_TIE if ties else _PREFERENCE_OF, opened=opened, cut=cut)


def _read(
    reply: str, tag: str, offered: Mapping[str, Any], *, opened: bool, cut: bool
) -> Verdict | Unread:
    if not isinstance(reply, str):
        raise ConfigError(
            f"reply: found a {type(reply).__name__}, must be text: the content of the judge's "
            "message, not the message"
        )
    found = _parted(reply, opened=opened)
    if isinstance(found, Fault):
        return _unread(found, cut=cut)
    thinking, rest = found
    value = offered.get(_content(rest, tag) or "")
    if value is None:
        return _unread(_fault_in(rest, tag, offered), cut=cut, content=_content(rest, tag))
    return Verdict(value=value, reason=thinking.strip(), form="tag")


def _parted(reply: str, *, opened: bool) -> tuple[str, str] | Fault:
    """The thinking, and what follows it."""
    if len(reply) > LONGEST:
        return Fault.TOO_LONG
    text = reply.strip(_BLANKS)
    if not opened and not text.startswith(_OPEN):
        return Fault.NO_THINKING
    start = 0 if opened else len(_OPEN)
    end = text.find(_CLOSE, start)
    if end < 0:
        return Fault.UNCLOSED
    thinking = text[start:end]
    inside = _TAG.search(plain(thinking))
    if inside is not None:
        return Fault.THINKING_TWICE if inside["think"] else Fault.VERDICT_INSIDE
    return thinking, text[end + len(_CLOSE) :].lstrip(_BLANKS)


def _content(rest: str, tag: str) -> str | None:
    """What stands in the one element that ``rest`` is; ``None`` where it is more, or another."""
    opening, closing = f"<{tag}>", f"</{tag}>"
    if not (rest.startswith(opening) and rest.endswith(closing)):
        return None
    content = rest[len(opening) : -len(closing)]
    return None if "<" in content else content


def _fault_in(rest: str, tag: str, offered: Collection[str]) -> Fault:
    """What is wrong with ``rest``, which follows the thinking and is no verdict."""
    openings = 0
    for mark in _TAG.finditer(plain(rest)):
        if mark["think"]:
            return Fault.THINKING_TWICE
        openings += not mark["close"]
    if openings != 1:
        return Fault.SEVERAL if openings else Fault.NO_VERDICT
    if _content(rest, tag) is not None:
        return Fault.VALUE
    whole = any(f"<{tag}>{one}</{tag}>" in rest for one in offered)
    return Fault.BESIDE if whole else Fault.FORM


def _unread(fault: Fault, *, cut: bool, content: str | None = None) -> Unread:
    kind = ErrorKind.UNPARSABLE
    if cut and fault in (Fault.UNCLOSED, Fault.NO_VERDICT, Fault.FORM):
        kind = ErrorKind.TRUNCATED
    elif content is not None and _INTEGER.fullmatch(content):
        kind = ErrorKind.OUT_OF_RANGE
    return Unread(why=fault, kind=kind)
