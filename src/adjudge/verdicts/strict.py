"""Reading the form that a prompt asked for: nothing outside it is a verdict."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from adjudge.errors import ConfigError, ErrorKind
from adjudge.text import separate_thinking
from adjudge.verdicts.base import NumberScale, UnreadableReply, strip_invisible
from adjudge.verdicts.json_text import read_single_object

_PLAIN_NUMBER = re.compile(r"-?[0-9]{1,15}(?:\.[0-9]{1,15})?")
_EMPHASIS = str.maketrans("", "", "*`#")
_LONGEST_LINE = 60
_LARGEST = 1e300
_flat = msgspec.json.Decoder(dict[str, Any])
_TAG_NAME = re.compile(r"[A-Za-z][\w-]{0,59}")


def read_object(
    text: str, *, block: str | None = None, quoted: Sequence[str] = (), cut: bool = False
) -> dict[str, Any] | UnreadableReply:
    r"""The one JSON object that a reply is, or that its tagged ``block`` holds.

    Without ``block`` the reply must be the object and nothing else; with it the block must stand
    there once and hold the object and nothing else. White space, a code fence around the object and
    thinking tags before it are allowed. An object that has a key twice is none, and neither
    is one that ``quoted`` (the candidate's texts) holds as it stands.

    Returns the object, or an :class:`UnreadableReply`: ``truncated`` where ``cut`` says that the
    reply ran into its length limit, else ``unparsable``. Raises nothing.

    >>> read_object('```json\n{"score": 4}\n```')
    {'score': 4}
    >>> read_object('I would say {"score": 4}').why
    'it is not one JSON object and nothing else'
    """
    body: str | UnreadableReply = text
    found = _object(text) if block is None else None
    if found is None:
        shown, thinking = separate_thinking(strip_invisible(text))
        if not shown.strip():
            return _unread("there is only thinking" if thinking else "it is empty", cut)
        body = shown if block is None else _inside(shown, block, cut)
        if isinstance(body, UnreadableReply):
            return body
        found = _object(body)
    if found is None:
        where = "it" if block is None else "the verdict block"
        return _unread(f"{where} is not one JSON object and nothing else", cut and block is None)
    if block is None and any(str(body).strip() in one for one in quoted):
        return UnreadableReply(why="it only repeats the text that is judged")
    return found


def _object(text: str) -> dict[str, Any] | None:
    """``text`` as one JSON object in which no key stands twice."""
    if "[" not in text and "\\u" not in text:
        try:  # the usual reply, quickly: it has as many colons as keys
            flat = _flat.decode(text)
        except (msgspec.MsgspecError, RecursionError, UnicodeEncodeError):
            flat = {}
        if flat and text.count(":") == len(flat):
            return flat
    piece = read_single_object(text, unique=True)
    return None if piece is None else piece.value


def _inside(text: str, block: str, cut: bool) -> str | UnreadableReply:
    """What stands in the one block."""
    opening, closing = f"<{block}>", f"</{block}>"
    if opening not in text:
        return _unread("it has no verdict block", cut)
    if text.count(opening) > 1:
        return UnreadableReply(why="it has more than one verdict block")
    inside, found, _ = text.partition(opening)[2].partition(closing)
    return inside if found else _unread("its verdict block does not close", cut)


def _unread(why: str, cut: bool) -> UnreadableReply:
    if cut:
        return UnreadableReply(
            kind=ErrorKind.TRUNCATED, why="the reply was cut before a whole verdict"
        )
    return UnreadableReply(why=why)


def find_key_fault(found: Mapping[str, Any], wanted: str) -> UnreadableReply | None:
    """Why ``found`` is not an object of the key ``wanted`` and perhaps a reason."""
    if wanted not in found:
        return UnreadableReply(why="the object lacks a key that was asked for")
    if len(found) > 1 and any(key not in (wanted, "reason") for key in found):
        return UnreadableReply(why="the object has a key that was not asked for")
    return None


def parse_number(value: Any, scale: NumberScale) -> float | UnreadableReply:
    """A JSON number, or one written in quotation marks, on ``scale``."""
    if isinstance(value, str) and _PLAIN_NUMBER.fullmatch(value):
        value = float(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return UnreadableReply(why="the place for the verdict holds no number")
    if not -_LARGEST < value < _LARGEST or not scale.holds(value):  # NaN is in no range
        return UnreadableReply(kind=ErrorKind.OUT_OF_RANGE, why="a number outside the scale")
    return float(value)


class Ending(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a template's own words put the verdict: one of the two.

    ``line``: the words with which the verdict's line begins (``"Score:"``); the rest of the line is
    the verdict. ``tag``: the name of the tag that holds it (``<score>4</score>``).
    """

    line: str = ""
    tag: str = ""

    @classmethod
    def of(cls, given: Any) -> Ending | None:
        """The ending that an option ``verdict`` describes; raises :class:`ConfigError`."""
        if given is None or isinstance(given, Ending):
            return given
        try:
            ending = msgspec.convert(given, cls)
        except msgspec.ValidationError:
            ending = cls()  # none of the two: refused below, with what is allowed
        if bool(ending.line.strip()) == bool(ending.tag):
            raise ConfigError(
                f"verdict: must give the beginning of the verdict's line or its tag "
                f"(found {given!r}; "
                'allowed: { line = "Score:" }, { tag = "score" })'
            )
        if len(ending.line) > _LONGEST_LINE or "\n" in ending.line:
            raise ConfigError(
                f"verdict: line must be one line of at most {_LONGEST_LINE} characters"
            )
        if ending.tag and not _TAG_NAME.fullmatch(ending.tag):
            raise ConfigError(f"verdict: tag must be a name without <> (found {ending.tag!r})")
        return ending


def read_ending(text: str, ending: Ending, *, cut: bool = False) -> str | UnreadableReply:
    r"""The text that stands at the place that ``ending`` declares; several must say the same.

    Emphasis is left out, thinking is not searched. Returns an :class:`UnreadableReply` without
    exactly one such text; raises nothing.

    >>> read_ending("Right, but short.\n**Score:** 4/5", Ending(line="Score:"))
    '4/5'
    """
    shown, _ = separate_thinking(strip_invisible(text))
    found = _tagged(shown, ending.tag) if ending.tag else _after(shown, ending.line, cut)
    if not found:
        return _unread("the place declared for the verdict is not there", cut)
    if len(set(found)) > 1:
        return UnreadableReply(why="several verdicts that differ")
    return found[0]


def _tagged(text: str, tag: str) -> list[str]:
    found = re.findall(rf"<{re.escape(tag)}>([^<]{{0,400}})</{re.escape(tag)}>", text)
    return [_bare(one) for one in found] if len(found) == text.count(f"<{tag}>") else []


def _after(text: str, beginning: str, cut: bool) -> list[str]:
    beginning = _bare(beginning).casefold()
    lines = [_bare(line) for line in text.split("\n")[: -1 if cut else None]]
    return [_bare(one[len(beginning) :]) for one in lines if one.casefold().startswith(beginning)]


def _bare(text: str) -> str:
    return text.translate(_EMPHASIS).strip(" \t\n_")
