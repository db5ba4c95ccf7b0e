"""A reply made ready for reading, and the one rule for several verdicts in it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from adjudge.errors import ErrorKind
from adjudge.verdicts.base import TooManyError, Unread, Verdict
from adjudge.verdicts.json_text import Values, find_values, whole_object
from adjudge.verdicts.keys import first_under, tag_pattern
from adjudge.verdicts.plain import flat, plain, visible
from adjudge.verdicts.quoting import Quotes

__all__ = [
    "MOST_FOUND",
    "NO_VERDICT",
    "Found",
    "Reply",
    "read_reply",
    "reason_in",
    "settle",
    "truncated",
]

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
_FINAL = re.compile(
    r"(?:\b(?:final|overall|conclusion|ultimately)\b|最终|最后|总体|综上|结论)"
    r"[^\n.。!?{}<>]{0,40}\s{0,4}(?:```[a-z]{0,8})?\s{0,4}\Z",
    re.IGNORECASE,
)
_LOOSE_TAGS = ("answer", "result", "final_answer")
_MORE = re.compile(r"[.。!！;]\s|\n\s*\S")
_STRONG = re.compile(r"\b(?:final|overall|total|aggregate)\b|最终|总体|综合|总分", re.IGNORECASE)
_FENCE = re.compile(r"```[a-z]{0,12}\s*\Z", re.IGNORECASE)
# Words that make of what follows in their sentence an example, or somebody else's words.
_REPORTED = re.compile(
    r"\b(?:says?|said|claims?|contains?|includes?|reads|writes|wrote|tries|(?:ends|begins|starts)\swith|"
    r"asks?|wants|demands?|requests?|instructs?|tells?|insists?|quotes?|mentions?|pretends?|proposes?|suggests?|examples?|"
    r"instance|e\.g|such\sas|if|unless)\b|要求|声称|写道|例如|比如|如果",
    re.IGNORECASE,
)
_CLAUSE_END = re.compile(
    r"[.!?。！？;})\]>](?:\s|\Z)|[,，]\s|(?<![:：])\n\s*\n|\b(?:so|thus|hence|therefore)\s"
)
_AFTER = re.compile(
    # What may follow a verdict: an end, a reason.
    r"[\s*_`\"')\]|}$]{0,8}(?:\Z|[\n<\[{]|[.!?。！;；,，:：](?=[\s*_`\"')\]]|\Z)|[-(（。，；！](?!\s?[0-9])|"
    r"(?:because|since|as|given|due|based|with|over|on\sa)\b|因为|由于)",
    re.IGNORECASE,
)
_RETRACTED = re.compile(
    # Words behind a verdict that take it back, and refusals to judge.
    r"(?:^|[.!?;,…。！？；，:(\n—-])[\s*_]{0,4}(?:(?:but|and|or|so|well|no|oh),?\s){0,2}"
    r"(?:wait|hmm+|oops|hold\son|actually|correction|edit(?:ed)?|revised?|scratch\sthat|never\s?mind|"
    r"make\s(?:that|it)|sorry|apologies|i\smeant?|on\s(?:second|further|closer)\s\w{1,12}|on\sreflection|"
    r"after\sre\w{4,12}|(?:disregard|ignore)\s(?:the|this|that|my)|等一下|更正|抱歉|再想)(?![a-z])"
    r"|\bi(?:'ll|'d|\s(?:will|should|must|would|have\sto|need\sto))?\s(?:now\s)?"
    r"(?:change|revise|adjust|lower|raise|reduce|increase|downgrade|upgrade|correct|reconsider)d?\b"
    r"|\bi\s(?:cannot|can't|am\s(?:unable|not\sable)\sto|won't|refuse\sto)\s(?:\w{1,12}\s)?"
    r"(?:evaluate|rate|judge|assess|score|grade|decide|say|comply|provide|give)\b|我无法(?:评|判)",
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
        self._object = text.lstrip()[:1] == "{" and whole_object(text) is not None
        if self._object:
            self.text, self.thinking = plain(text), ""
            quoted = [one for one in quoted if text.strip() in one]
        else:
            self.text, self.thinking = visible(plain(text))
        self.cut = cut
        self._quotes = Quotes(quoted)

    @property
    def too_long(self) -> bool:
        """Whether it is too long to look for a verdict in; one JSON object never is."""
        return len(self.text) > _LONGEST and not self._object

    @cached_property
    def flat(self) -> str:
        """The text with plain signs, equally long."""
        return flat(self.text)

    @cached_property
    def values(self) -> Values:
        """The JSON objects and lists that are the judge's own: neither quoted nor an example."""
        found = find_values(self.text)
        own = [
            piece
            for piece in found.pieces
            if self.counts(piece.start, piece.end, rests=True)
            and (self._apart(piece.start) or self.stops(piece.end))
            and not self.reported(piece.start)
        ]
        return found._replace(pieces=own)

    @cached_property
    def prose(self) -> str:
        """``flat`` with JSON objects blanked out, equally long; empty where all is one object."""
        text = "" if self._object else self.flat
        for start, end, value in self.values.pieces if text else ():
            if isinstance(value, dict):
                text = text[:start] + " " * (end - start) + text[end:]
        return text

    @property
    def bare(self) -> bool:
        """Whether there is nothing but JSON objects."""
        return not self.prose.strip(" \n`")

    def counts(self, start: int, end: int, *, rests: bool = False) -> bool:
        """Whether what stands at ``start:end`` is the judge's own word, neither denied nor quoted.

        ``rests``: it is no word in a sentence (an object), so no negation before it is looked for.
        """
        return self.affirmed(start, rests=rests) and self.own(start, end)

    def is_own_mark(self, start: int, end: int) -> bool:
        """Whether the tag or brackets at ``start:end`` are the judge's own and no example."""
        return self.counts(start, end) and not self.reported(start)

    def affirmed(self, start: int, *, rests: bool = False) -> bool:
        """Whether what stands at ``start`` is neither denied nor in a Markdown quotation."""
        line = self.flat[self.flat.rfind("\n", 0, start) + 1 : start + 1]
        return line[:1] != ">" and (rests or _NEGATION.search(line[-61:-1]) is None)

    def stops(self, end: int) -> bool:
        """Whether what ends at ``end`` ends its sentence, or only a reason follows."""
        return _AFTER.match(self.flat, end) is not None

    def _apart(self, start: int) -> bool:
        """Whether what stands at ``start`` begins a line or follows a sentence or a colon."""
        before = _FENCE.sub("", self.flat[max(0, start - 60) : start]).rstrip(" \t*_`>|")
        return not before or before[-1] in "\n.!?:。！？：;)-"

    def reported(self, start: int) -> bool:
        """Whether the sentence before ``start`` calls what follows an example or another's."""
        before = _FENCE.sub("", self.flat[max(0, start - 160) : start])
        return _REPORTED.search(_CLAUSE_END.split(before)[-1]) is not None

    def retracted(self, end: int) -> bool:
        """Whether what follows ``end`` takes back what stands there, or refuses to judge."""
        return _RETRACTED.search(self.prose, end) is not None

    def own(self, start: int, end: int) -> bool:
        """Whether what stands at ``start:end`` is not quoted from the candidate."""
        return not self._quotes or self._quotes.own(self.text, start, end)

    def marked(
        self, keys: tuple[str, ...], tags: str, value_of: Callable[[Any], Any]
    ) -> Iterator[Found]:
        """What stands under JSON ``keys``, in ``tags`` (parted by ``|``) and in verdict brackets.

        A tag in the middle of a sentence is no verdict, but may contradict another. Brackets hold
        links and much else: they count only where ``value_of`` finds a value.
        """
        for piece in self.values.pieces:
            for value, fields in first_under(piece.value, keys):
                yield Found(piece.start, piece.end, value_of(value), "json", fields)
        if self.bare:
            return
        hits = [(hit, hit[2], "tag") for hit in tag_pattern(tags).finditer(self.prose)]
        for hit in _BRACKETS.finditer(self.prose):
            open_ended = hit.lastindex == 3 and self.cut and not self.prose[hit.end() :].strip()
            if not open_ended:
                hits.append((hit, hit[hit.lastindex or 0], "brackets"))
        for hit, content, form in hits:
            value = value_of(content)
            # Unasked, <answer>42</answer> is as likely the answer that is being judged.
            loose = form == "brackets" or hit[1].lower() in _LOOSE_TAGS
            if (value is not NO_VERDICT or not loose) and self.is_own_mark(*hit.span()):
                yield Found(*hit.span(), value if self.stops(hit.end()) else NO_VERDICT, form)

    def complete(self, start: int, end: int, *, firm: bool) -> bool:
        """Of a cut reply: whether what ends at ``end`` is whole, and no other can have followed."""
        if not self.cut:
            return True
        return _MORE.search(self.prose, end) is not None and (
            firm or not self.prose[:start].strip(" \n*_#")
        )

    def final(self, start: int, end: int | None = None) -> bool:
        """Whether words before ``start``, or from there to ``end``, call it the final verdict."""
        if _FINAL.search(self.flat, max(0, start - 90), start) is not None:
            return True
        return end is not None and _STRONG.search(self.flat, start, end) is not None

    def verdict(self, found: Found, value: Any) -> Verdict:
        """``value`` as the verdict, with the judge's reason: its own, or the words beside it."""
        before = self.text[: found.start].strip().rstrip("*_#`>").strip()
        around = before or self.text[found.end :].strip().lstrip("*_#`").strip()
        reason = reason_in(found.fields) or around
        return Verdict(value=value, reason=reason, form=found.form, fields=found.fields)


def settle(reply: Reply, found: Sequence[Found]) -> Found | Unread | None:
    """The one verdict of several; ``None`` for none.

    Verdicts that agree are one. Of different ones only the last in the reply can count, and only
    when words directly before it call it final ("Final verdict: …"), no other so called says
    something else, and all have one form; otherwise nobody can tell which one was meant.
    """
    if not found:
        return None
    if len(found) > MOST_FOUND:
        return Unread(why="too many verdicts in one reply")
    last = max(found, key=lambda one: one.start)
    if any(one.value is not last.value and one.value != last.value for one in found):
        finals = [one for one in found if _called_final(reply, one)]
        forms = {one.form for one in found}
        if len(forms) > 1 or last not in finals or any(o.value != last.value for o in finals):
            return Unread(why="several verdicts that differ")
    if last.value is NO_VERDICT:
        return Unread(why="the place for the verdict holds none")
    if reply.retracted(last.end):
        return Unread(why="words behind the verdict take it back")
    return last


def _called_final(reply: Reply, one: Found) -> bool:
    return reply.final(one.start, one.end if one.form == "phrase" else None)


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


def read_reply(reply: Reply, read: Callable[[Reply], Verdict | Unread]) -> Verdict | Unread:
    """``read(reply)``; no verdict in one that is too long or has too many places for it."""
    if reply.too_long:
        return Unread(why="the reply is too long to read")
    if reply.values.given_up:
        return Unread(why="too much JSON, or too much that is broken")
    try:
        return read(reply)
    except TooManyError:
        return Unread(why="too many places for a verdict in one reply")
