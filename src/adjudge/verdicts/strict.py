"""A reply's verdict or why it has none, and the reader of the form that a prompt asked for.

Of a form that was asked for nothing outside it is a verdict: the reply is the one JSON object, or
one block holds it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from adjudge.errors import ConfigError, ErrorKind, Fields, Metadata
from adjudge.text import SURROGATES, replace_surrogates, separate_thinking, strip_end_tokens


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The one verdict that a reply gives.

    ``value``: a number, a label, marks by item, a list of places or the object itself. ``reason``:
    the judge's own words for it, as far as the reply parts them. ``form``: the shape it was read
    from (``json``, ``tag``, ``brackets``, ``phrase``, ``bare``, ``ending``). ``fields``: the whole
    object where it was JSON.
    """

    value: Any
    reason: str = ""
    form: str = ""
    fields: Metadata = {}


class UnreadableReply(msgspec.Struct, frozen=True, kw_only=True):
    """No verdict: ``why`` in a few fixed words of ours, never a quotation of the reply.

    ``kind``: ``unparsable`` (none, several that differ, hedged, only quoted), ``out_of_range`` (one
    clear verdict outside the scale) or ``truncated`` (the reply was cut before one).
    """

    why: str
    kind: ErrorKind = ErrorKind.UNPARSABLE


Reading = Verdict | UnreadableReply
"""What a reply was read as."""


class NumberScale(NamedTuple):
    """What scores a reader takes: from ``low`` to ``high`` (``None``: open), whole ones only."""

    low: float | None = None
    high: float | None = None
    integer: bool = False

    @property
    def boolean(self) -> bool:
        """Whether it is 0 or 1, so that yes and no are scores."""
        return self.low == 0 and self.high == 1

    def holds(self, score: float) -> bool:
        """Whether ``score`` lies on the scale."""
        if self.integer and score != int(score):
            return False
        return (self.low is None or score >= self.low) and (self.high is None or score <= self.high)


_CONTROLS = "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]"
_CONTROL = re.compile(_CONTROLS)
_BETWEEN_DIGITS = re.compile(f"(?<=[0-9]){_CONTROLS}+(?=[0-9])")
_INVISIBLE = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f"
    "\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb"
    "\U000e0000-\U000e0fff]"
)
_HALF = re.compile(f"[{SURROGATES}]")
_PLAIN_ASCII = re.compile(r"[\t\n -~]*")

_WIDE, _HIGH = " " * 8, "\n" * 4
_RUN = re.compile(r"[ \t]{9,}|[ \t\n]{0,8}\n{4}[ \t\n]*")


def strip_invisible(text: str) -> str:
    """``text`` without invisible characters and halves of surrogate pairs; CRLF becomes LF.

    Long runs of white space become short ones, so that no pattern has to walk through them.
    """
    if not _PLAIN_ASCII.fullmatch(text):
        text = text.replace("\r\n", "\n").replace("\r", "\n")
        text = _HALF.sub("\ufffd", _INVISIBLE.sub("", text))
        text = _CONTROL.sub("", _BETWEEN_DIGITS.sub(" ", text))
    if _WIDE in text or _HIGH in text:
        text = _RUN.sub(lambda run: _HIGH if "\n" in run[0] else _WIDE, text)
    return text


MAX_REPLY_DEPTH = 48
"""Deepest nesting that is read."""

MAX_REPLY_DIGITS = 300


_FENCE = re.compile(r"```[A-Za-z0-9]{0,12}\s")


def parse_json(text: str) -> Metadata | list[object] | None:
    """The JSON object or list that ``text`` is and nothing else, in a code fence or not.

    ``None`` for anything else: a key twice in an object, more than :data:`MAX_REPLY_DEPTH` levels.
    """
    text = text.strip()
    if (fence := _FENCE.match(text)) is not None and text.endswith("```"):
        text = text[fence.end() : -3].strip()
    if text[:1] not in ("{", "["):
        return None
    try:
        value = _DECODER.decode(text)
        if "\\u" in text or not text.isascii():
            value = replace_surrogates(value)
    except (ValueError, RecursionError):
        return None
    deep = text.count("{") + text.count("[") > MAX_REPLY_DEPTH and _is_deep(value)
    return None if deep else value


def _is_deep(value: object) -> bool:
    level = [value]
    for _ in range(MAX_REPLY_DEPTH + 1):
        level = [
            child
            for node in level
            if isinstance(node, dict | list)
            for child in (node.values() if isinstance(node, dict) else node)
        ]
    return bool(level)


def _integer(digits: str) -> int | float:
    return int(digits) if len(digits) <= MAX_REPLY_DIGITS else math.inf


def _unique_pairs(pairs: list[tuple[str, object]]) -> dict[str, object]:
    made = dict(pairs)
    if len(made) < len(pairs):
        raise ValueError("a key twice")
    return made


_DECODER = json.JSONDecoder(object_pairs_hook=_unique_pairs, parse_int=_integer, strict=False)

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


CUT_REPLY = UnreadableReply(
    kind=ErrorKind.TRUNCATED, why="the reply was cut before a whole verdict"
)


def _unread(why: str, cut: bool) -> UnreadableReply:
    return CUT_REPLY if cut else UnreadableReply(why=why)


_REASON_KEYS = (
    "reason", "reasoning", "reasons", "rationale", "explanation", "justification", "analysis",
    "feedback", "comment", "evidence", "thought", "理由", "原因", "解释", "分析", "评语", "评价",
)  # fmt: skip


def extract_reason(fields: Metadata) -> str:
    """The judge's reason as an object gives it under one of the usual keys."""
    for key, value in fields.items():
        if isinstance(value, str) and key.strip().lower() in _REASON_KEYS:
            return value.strip()
    return ""


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
