"""A reply made ready for reading, and the one rule for several verdicts in it."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from adjudge.errors import ErrorKind
from adjudge.verdicts.base import TooManyError, Unread, Verdict
from adjudge.verdicts.json_text import Values, find_values, whole_object
from adjudge.verdicts.plain import flat, plain, visible
from adjudge.verdicts.quoting import Quotes

__all__ = [
    "MOST_FOUND",
    "NO_VERDICT",
    "Found",
    "Reply",
    "is_object",
    "read_blocks",
    "reason_in",
    "settle",
    "truncated",
]

_object = msgspec.json.Decoder(dict[str, msgspec.Raw])

NO_VERDICT: Any = object()
"""The value of a place for a verdict that holds none: ``<score>good</score>``."""

MOST_FOUND = 200
"""More verdicts in one reply are no verdict."""

_LONGEST = 64 * 1024
"""Longest reply, in characters, in which a verdict is looked for; strict JSON may be longer."""

_BRACKETS = re.compile(
    # [[B]], \\boxed{B}, [RESULT] B
    r"\[\[\s{0,4}([^\[\]\n]{0,40}?)\s{0,4}\]\]|\\boxed\{(?:\\text\{)?([^{}\n]{0,40})\}"
    r"|\[\s?(?:result|verdict|score|rating|final\sanswer)\s?\]\s{0,3}:?\s{0,3}([^\n\[\]]{1,40})$",
    re.IGNORECASE | re.MULTILINE,
)
_QUOTATION = re.compile(r"^>[^\n]*", re.MULTILINE)
_TAG = re.compile(r"<\s?(?P<close>/\s?)?(?P<name>[^\s<>/]+)\s?>")
_FINAL = re.compile(
    r"(?:\b(?:final|overall|conclusion|verdict|therefore|ultimately)\b|最终|最后|总体|综上|结论|因此)"
    r"[^\n.。!?]{0,40}\s{0,4}(?:```[a-z]{0,8})?\s{0,4}\Z",
    re.IGNORECASE,
)
_NEGATION = re.compile(
    r"(?:\b(?:not|never|neither|nor|without|than|instead\s+of|isn't|wasn't|doesn't|don't|didn't|"
    r"wouldn't|cannot|can't)|不是|并非|不选|不应|而非|不给)[\s\"'*_`(]{0,4}"
    r"(?:(?:a|an|the|be|is|deserve|choose|pick|say|give|select|it|worth)[\s\"'*_`(]{1,4}){0,3}\Z",
    re.IGNORECASE,
)
_REASON_KEYS = (
    "reason", "reasoning", "reasons", "rationale", "explanation", "justification", "analysis",
    "feedback", "comment", "evidence", "thought", "理由", "原因", "解释", "分析", "评语", "评价",
)  # fmt: skip


def is_object(text: str) -> bool:
    """Whether ``text`` is strictly one JSON object, white space around it aside."""
    bare = text.strip()
    if not (bare.startswith("{") and bare.endswith("}")):
        return False
    try:
        _object.decode(bare)
    except (msgspec.MsgspecError, RecursionError, UnicodeEncodeError):
        return False
    return True


class Found(NamedTuple):
    """One verdict at ``text[start:end]`` of a reply; ``value`` may be :data:`NO_VERDICT`."""

    start: int
    end: int
    value: Any
    form: str
    fields: dict[str, Any] = {}  # noqa: RUF012  never changed


class Reply:
    """A judge's reply, made ready once for all readers. ``text``: what is visible of it.

    A reply that is one JSON object and nothing else is the judge's own word, unless the candidate
    wrote that very object: what it quotes stands in strings, so neither thinking nor quotations
    are looked for.
    """

    def __init__(self, text: str, quoted: Sequence[str] = (), *, cut: bool = False) -> None:
        self._object = is_object(text)
        if self._object:
            self.text, self.thinking = plain(text), ""
            quoted = [one for one in quoted if text.strip() in one]
        else:
            self.text, self.thinking = visible(plain(text))
        self.cut = cut
        self._quoted = quoted
        # By hand: a cached_property takes a lock before Python 3.12, which is most of a short read.
        self._flat: str | None = None
        self._quotes: Quotes | None = None
        self._values: Values | None = None
        self._prose: str | None = None
        self._reworked: dict[Callable[[str], str], str] = {}
        self._quotations: tuple[list[int], list[int]] | None = None

    @property
    def too_long(self) -> bool:
        """Whether it is too long to look for a verdict in; one JSON object never is."""
        return len(self.text) > _LONGEST and not self._object

    @property
    def flat(self) -> str:
        """The text with plain signs, equally long."""
        if self._flat is None:
            self._flat = flat(self.text)
        return self._flat

    @property
    def values(self) -> Values:
        """The JSON objects and lists outside quotations."""
        if self._values is None:
            if "{" not in self.text and "[" not in self.text:
                self._values = Values([])
            else:
                found = self._found()
                own = [p for p in found.pieces if self.counts(p.start, p.end, rests=True)]
                self._values = found._replace(pieces=own)
        return self._values

    def _found(self) -> Values:
        if len(self.text) <= _LONGEST:
            return find_values(self.text)
        piece = whole_object(self.text)
        return Values([], given_up=True) if piece is None else Values([piece])

    @property
    def prose(self) -> str:
        """``flat`` with JSON objects blanked out, equally long; empty where all is one object."""
        if self._prose is None:
            self._prose = "" if self._object else self._without_objects()
        return self._prose

    def reworked(self, make: Callable[[str], str]) -> str:
        """``make(prose)``, made once."""
        if make not in self._reworked:
            self._reworked[make] = make(self.prose)
        return self._reworked[make]

    @property
    def bare(self) -> bool:
        """Whether there is nothing but JSON objects."""
        return not self.prose.strip(" \n`")

    def _without_objects(self) -> str:
        parts: list[str] = []
        at = 0
        for start, end, value in self.values.pieces:
            if isinstance(value, dict):
                parts += [self.flat[at:start], " " * (end - start)]
                at = end
        return "".join([*parts, self.flat[at:]]) if parts else self.flat

    def counts(self, start: int, end: int, *, rests: bool = False) -> bool:
        """Whether what stands at ``start:end`` is the judge's own word, neither denied nor quoted.

        ``rests``: it is no word in a sentence (an object), so no negation before it is looked for.
        """
        return self.affirmed(start, rests=rests) and self.own(start, end)

    def affirmed(self, start: int, *, rests: bool = False) -> bool:
        """Whether what stands at ``start`` is neither denied nor in a Markdown quotation."""
        if self._in_quotation(start):
            return False
        if rests:
            return True
        near = self.flat[max(0, start - 60) : start]
        return _NEGATION.search(near[near.rfind("\n") + 1 :]) is None

    def _in_quotation(self, start: int) -> bool:
        """Whether the line of ``start`` begins with ``>``."""
        if ">" not in self.flat:
            return False
        if self._quotations is None:
            spans = [found.span() for found in _QUOTATION.finditer(self.flat)]
            self._quotations = [begin for begin, _ in spans], [end for _, end in spans]
        begins, ends = self._quotations
        place = bisect_right(begins, start) - 1
        return place >= 0 and start <= ends[place]

    def own(self, start: int, end: int) -> bool:
        """Whether what stands at ``start:end`` is not quoted from the candidate."""
        if not self._quoted:
            return True
        if self._quotes is None:
            self._quotes = Quotes(self._quoted)
        return self._quotes.own(self.text, start, end)

    def bracketed(self) -> Iterator[tuple[int, int, str]]:
        """``(start, end, content)`` of what stands in verdict brackets and is the judge's own."""
        for hit in _BRACKETS.finditer(self.prose):
            open_ended = hit.lastindex == 3 and self.cut and not self.prose[hit.end() :].strip()
            if not open_ended and self.counts(*hit.span()):
                yield *hit.span(), hit[hit.lastindex or 0]

    def final(self, start: int) -> bool:
        """Whether words directly before ``start`` call what follows the final verdict."""
        return _FINAL.search(self.flat, max(0, start - 90), start) is not None

    def around(self, found: Found) -> str:
        """The judge's words beside a verdict: those before it, else those after it."""
        before = self.text[: found.start].strip().rstrip("*_#`>").strip()
        return before or self.text[found.end :].strip().lstrip("*_#`").strip()


def settle(reply: Reply, found: Sequence[Found]) -> Found | Unread | None:
    """The one verdict of several; ``None`` for none.

    Verdicts that agree are one. Of different ones only the last in the reply can count, and only
    when words directly before it call it final ("Final verdict: …") and no other so called says
    something else; otherwise nobody can tell which one was meant.
    """
    if not found:
        return None
    if len(found) > MOST_FOUND:
        return Unread(why="too many verdicts in one reply")
    last = max(found, key=lambda one: one.start)
    if any(one.value is not last.value and one.value != last.value for one in found):
        finals = [one for one in found if reply.final(one.start)]
        if last not in finals or any(one.value != last.value for one in finals):
            return Unread(why="several verdicts that differ")
    if last.value is NO_VERDICT:
        return Unread(why="the place for the verdict holds none")
    return last


def truncated(reply: Reply) -> Unread:
    """What it means that nothing was found in ``reply``."""
    if reply.cut:
        return Unread(kind=ErrorKind.TRUNCATED, why="the reply was cut before a whole verdict")
    if not reply.text.strip():
        why = "there is only thinking" if reply.thinking else "the reply is empty"
        return Unread(why=why)
    return Unread(why="no verdict was found")


def reason_in(fields: dict[str, Any]) -> str:
    """The judge's reason as an object gives it under one of the usual keys."""
    for key, value in fields.items():
        if isinstance(value, str) and key.strip().lower() in _REASON_KEYS:
            return value.strip()
    return ""


Read = Callable[[Reply], "Verdict | Unread"]


def read_blocks(reply: Reply, block: str | None, read: Read) -> Verdict | Unread:
    """``read`` applied inside the tagged blocks called ``block``, to the whole reply without any.

    Several blocks must say the same; one that does not close is no verdict. Neither is there one in
    a reply, or a block, that is too long or gives too many.
    """
    if not block or block not in reply.text:
        return _read(reply, read)
    tags = [tag for tag in _TAG.finditer(reply.text) if tag["name"] == block]
    starts = [place for place, tag in enumerate(tags) if not tag["close"]]
    if not starts:
        return _read(reply, read)
    if len(starts) > MOST_FOUND:
        return Unread(why="too many verdict blocks")
    verdicts: list[Verdict] = []
    for place in starts:
        inner = _inside(reply.text, tags[place : place + 2])
        one = _open_block(reply) if inner is None else _read(Reply(inner), read)
        if isinstance(one, Unread):
            return one
        verdicts.append(one)
    first = verdicts[0]
    if any(other.value != first.value for other in verdicts):
        return Unread(why="several verdict blocks that differ")
    reason = first.reason or reply.text[: tags[starts[0]].start()].strip()
    return Verdict(value=first.value, reason=reason, form="block", fields=first.fields)


def _read(reply: Reply, read: Read) -> Verdict | Unread:
    if reply.too_long:
        return Unread(why="the reply is too long to read")
    try:
        return read(reply)
    except TooManyError:
        return Unread(why="too many places for a verdict in one reply")


def _inside(text: str, tags: Sequence[re.Match[str]]) -> str | None:
    """What stands between an opening tag and the tag after it; ``None`` when that is no closing."""
    if len(tags) < 2 or not tags[1]["close"]:
        return None
    return text[tags[0].end() : tags[1].start()]


def _open_block(reply: Reply) -> Unread:
    if reply.cut:
        return Unread(kind=ErrorKind.TRUNCATED, why="the reply was cut inside its verdict block")
    return Unread(why="a verdict block does not close")
