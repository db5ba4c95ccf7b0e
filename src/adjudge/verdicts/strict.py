"""The verdict in the form that a prompt asked for, or at the place that its author declared.

Of a form that was asked for nothing outside it is a verdict: the reply is the one JSON object, or
one block holds it. A declared place is a line or a tag (:class:`Ending`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from adjudge.errors import ConfigError, ErrorKind, Fields, Metadata
from adjudge.text import separate_thinking, strip_end_tokens
from adjudge.verdicts import (
    AROUND,
    CUT_REPLY,
    EMPHASIS,
    SIGNS,
    FreeReply,
    NumberScale,
    UnreadableReply,
    parse_json,
    strip_invisible,
    takes_back,
)

_PLAIN_NUMBER = re.compile(r"-?[0-9]{1,15}(?:\.[0-9]{1,15})?")
_LINE = re.compile(r"(?=.*\S).{1,60}")
_LARGEST = 1e300
_flat = msgspec.json.Decoder(Metadata)
_TAG_NAME = re.compile(r"[A-Za-z][\w-]{0,59}")


def read_object(
    text: str, *, block: str | None = None, quoted: Sequence[str] = (), cut: bool = False
) -> Metadata | UnreadableReply:
    r"""The one JSON object that a reply is, or that its tagged ``block`` holds.

    Without ``block`` the reply must be the object and nothing else; with it the block must stand
    there once and hold the object and nothing else. White space, a code fence around the object,
    thinking tags before it and a control token that ends the reply (``<|im_end|>``) are allowed. An
    object that has a key twice is none, and neither is one that ``quoted`` (the candidate's texts)
    holds as it stands.

    Returns the object, or an :class:`UnreadableReply`: ``truncated`` where ``cut`` says that the
    reply ran into its length limit, else ``unparsable``. Raises nothing.

    >>> read_object('```json\n{"score": 4}\n```')
    {'score': 4}
    >>> read_object('I would say {"score": 4}').why
    'it is not one JSON object and nothing else'
    """
    text = strip_end_tokens(text)
    body: str | UnreadableReply = text
    found = _object(text) if block is None else None
    if found is None:
        plain = strip_invisible(text)
        shown, thinking = separate_thinking(plain)
        if not shown.strip():
            return _unread("there is only thinking" if thinking else "it is empty", cut)
        if block is None and not plain.rstrip().endswith(shown.strip()):
            return _unread("it thinks on after the object", cut)
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


def _object(text: str) -> Metadata | None:
    """``text`` as one JSON object in which no key stands twice."""
    if "[" not in text and "\\u" not in text:
        try:  # the usual reply, quickly: it has as many colons as keys
            flat = _flat.decode(text)
        except (msgspec.MsgspecError, RecursionError, UnicodeEncodeError):
            flat = {}
        if flat and text.count(":") == len(flat):
            return flat
    found = parse_json(text)
    return found if isinstance(found, dict) else None


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
    return CUT_REPLY if cut else UnreadableReply(why=why)


def find_key_fault(found: Fields, wanted: str) -> UnreadableReply | None:
    """Why ``found`` is not an object of the key ``wanted`` and perhaps a reason."""
    if wanted not in found:
        return UnreadableReply(why="the object lacks a key that was asked for")
    if len(found) > 1 and any(key not in (wanted, "reason") for key in found):
        return UnreadableReply(why="the object has a key that was not asked for")
    return None


def parse_number(value: object, scale: NumberScale) -> float | UnreadableReply:
    """A JSON number, or one written in quotation marks, on ``scale``."""
    if isinstance(value, str) and _PLAIN_NUMBER.fullmatch(value):
        value = float(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return UnreadableReply(why="the place for the verdict holds no number")
    if not -_LARGEST < value < _LARGEST or not scale.holds(value):  # NaN is in no range
        return UnreadableReply(kind=ErrorKind.OUT_OF_RANGE, why="a number outside the scale")
    return float(value)


def places_in(value: object, n: int) -> list[int] | None:
    """A JSON list of ``n`` places from 1, the best; ``None`` for anything else.

    >>> places_in([3, 1, 1], 3), places_in([2, 3, 4], 3), places_in([1, "2"], 2)
    ([3, 1, 1], None, None)
    """
    if not isinstance(value, list) or not all(type(place) is int for place in value):
        return None
    allowed, different = {1}, set[int]()
    for number, place in enumerate(sorted(value), 1):
        if place not in allowed:
            return None
        different.add(place)
        allowed = {place, number + 1, len(different) + 1}
    return value if len(value) == n else None


class Ending(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a template's own words put the verdict: one of the two.

    ``line``: the words with which the verdict's line begins (``"Score:"``); the rest of the line is
    the verdict. ``tag``: the name of the tag that holds it (``<score>4</score>``).
    """

    line: str = ""
    tag: str = ""

    @classmethod
    def of(cls, given: object) -> Ending | None:
        """The ending that an option ``verdict`` describes; raises :class:`ConfigError`."""
        if given is None or isinstance(given, Ending):
            return given
        try:
            ending = msgspec.convert(given, cls)
        except msgspec.ValidationError:
            ending = cls()  # none of the two: refused below, with what is allowed
        line, tag = _LINE.fullmatch(ending.line), _TAG_NAME.fullmatch(ending.tag)
        if (ending.line and not line) or (ending.tag and not tag) or bool(line) == bool(tag):
            raise ConfigError(
                "verdict: must give the beginning of the verdict's line, up to 60 characters, or "
                f"the name of its tag (found {given!r}; "
                'allowed: { line = "Score:" }, { tag = "score" })'
            )
        return ending


def read_ending(
    text: str, ending: Ending, *, quoted: Sequence[str] = (), cut: bool = False
) -> str | UnreadableReply:
    r"""The text that stands at the place that ``ending`` declares; several must say the same.

    The place is the first or the last line, or a tag with which the reply begins or ends. Emphasis
    is left out, thinking is not searched. A place that one of ``quoted`` (the candidate's texts)
    has, too, does not count. Returns an :class:`UnreadableReply` without exactly one such text;
    raises nothing.

    >>> read_ending("Right, but short.\n**Score:** 4/5", Ending(line="Score:"))
    '4/5'
    """
    words = ending.tag or ending.line.translate(SIGNS).translate(EMPHASIS).strip(": ")
    reply = FreeReply(text, (words,), quoted, cut)
    place = re.escape(words)
    pattern = (
        rf"<{place}>([^<]{{0,400}})</{place}>"
        if ending.tag
        else rf"^[ \t*_`#]*{place}[ \t*_`]*:?(?![^\W_])(.*)$"
    )
    found = list(re.finditer(pattern, reply.text, re.MULTILINE | re.IGNORECASE * (not ending.tag)))
    if ending.tag and len(found) != reply.text.count(f"<{words}>"):
        found = []
    if cut and not ending.tag and found and found[-1].end() == len(reply.text):
        found.pop()
    own = [one for one in found if not reply.is_quoted(one[0])]
    if not own:
        return reply.refuse("the place declared for the verdict is not there, or is quoted")
    values = {one[1].translate(EMPHASIS).strip(" \t\n_") for one in own}
    if len(values) > 1:
        return UnreadableReply(why="several verdicts that differ")
    (value,) = values
    behind = reply.text[own[-1].end() :].strip(AROUND)
    opens = not reply.text[: own[0].start()].strip(AROUND) and not behind[:1].islower()
    if opens and not takes_back(behind, value):
        return value
    if behind or reply.is_announced(own[-1].start()):
        return UnreadableReply(why="the verdict neither begins nor ends the reply")
    return value
