"""A reply made ready for lenient reading, and the one rule for several verdicts in it.

Some of its verdicts are only quoted from the text that is being judged. A reply that is one JSON
object is read by its fields.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from typing import Any, NamedTuple

from adjudge.errors import ErrorKind
from adjudge.text import separate_thinking
from adjudge.verdicts.json_text import (
    JsonValues,
    find_json_values,
    find_under_keys,
    has_duplicate_keys,
    tag_pattern,
)
from adjudge.verdicts.notation import normalize_signs, normalize_text
from adjudge.verdicts.strict import (
    UnreadableReply,
    Verdict,
    extract_reason,
    read_single_object,
    strip_invisible,
)

_SHORT = 40
"""Longest verdict, folded, that a judge and a candidate write alike by chance."""
_REACH = 12
"""Characters beside a verdict that show a quotation going on; fewer than 8 show nothing."""
_LOOK = 400
_PER_PLACE = 20_000
_WORK = 40_000_000
_MOST_SEARCHES = 100
"""Work in characters searched: what a place costs, how much is done, searches always granted."""

_MARKS = " \t\n*_`#\"'~-"
_WITHOUT_MARKS = str.maketrans("", "", _MARKS)
_ENDS = ".!?。！？)）"
_OPEN_FENCE = re.compile(r"```[A-Za-z0-9]{0,12}\s*\Z")
# How a judge leads over to its verdict.
_OWN_WORD = re.compile(
    r"(?:(?:\b(?:verdict|score|rating|grade|result|judge?ment|decision|choice|winner|conclusion|json|"
    r"evaluation|preference|overall|final|(?:final|my)\sanswer|therefore|thus|hence|so|finally)\b|结论|"
    r"评分|得分|分数|判断|裁决|选择|结果|评价|最终|因此|所以|综上)[^\w\n]*)+\Z",
    re.IGNORECASE,
)
_STOPS = re.compile(r"[*_`\"' \t]{0,8}(?:[\n.,;:!。，；！]|\Z|because\b|since\b|as\b)")


class TooManyMatchesError(Exception):
    """A reply has too many places to read; in this package it becomes ``UnreadableReply``.

    Passing over the rest of them could leave the wrong verdict.
    """


class Quotes:
    """The candidate's texts, for telling a judge's own verdict from one that it repeats.

    A verdict that stands in none of ``quoted`` (white space, case and typographic signs aside) is
    the judge's. One that does is the judge's only when all of this holds:

    * it is short (at most 40 characters): ``<score>3</score>`` or ``Output (b) is better`` may well
      stand in both; an object with a sentence in it was copied;
    * it is the first or the last thing in the reply, on a line of its own or beside the end of a
      sentence: there a judge puts its verdict, whereas a quotation is spoken of;
    * what precedes it does not announce a quotation: no colon, unless a word for the verdict itself
      stands before it ("Final verdict:"), and no opening quotation mark;
    * it does not go on in the candidate's words: the 12 characters beside it, words such as
      "therefore" left out, do not stand beside it in the candidate's text as well.

    So an echo that the judge writes beside its own verdict does not count, an echo without one
    leaves nothing, and an honest verdict after the reasoning counts although the candidate has
    written every possible verdict into its answer.

    Each different verdict is looked for once. When a reply has so many that looking would take more
    than a small part of a second, :class:`TooManyMatchesError` is raised, since passing over the
    rest could leave the wrong one.
    """

    def __init__(self, quoted: Sequence[str]) -> None:
        self._texts = [normalize_text(text) for text in quoted if text]
        self._size = sum(map(len, self._texts))
        self._work = _WORK + _MOST_SEARCHES * self._size
        self._stands: dict[str, bool] = {}
        self._unmarked: list[str] | None = None

    def __bool__(self) -> bool:
        return bool(self._texts)

    def is_own(self, text: str, start: int, end: int) -> bool:
        """Whether ``text[start:end]`` is the judge's own, by the rule above."""
        self._spend(_PER_PLACE)
        verdict = normalize_text(text[start:end])
        if not self._quoted(verdict):
            return True
        if len(verdict) > _SHORT:
            return False
        near = text[max(0, start - _LOOK) : start]
        before = _OPEN_FENCE.sub("", near).rstrip(_MARKS) or text[: start - len(near)].rstrip(
            _MARKS
        )
        after = text[end:].strip(_MARKS + ".。")
        if not before:
            return _STOPS.match(text, end) is not None and not self._goes_on(verdict, after=after)
        if after or not _begins_anew(near, before):
            return False
        return not self._goes_on(verdict, before=_OWN_WORD.sub("", before[-_LOOK:]))

    def _quoted(self, verdict: str) -> bool:
        if (known := self._stands.get(verdict)) is None:
            self._spend(self._size)
            known = any(verdict in candidate for candidate in self._texts)
            self._stands[verdict] = known
        return known

    def _spend(self, work: int) -> None:
        self._work -= work
        if self._work < 0:
            raise TooManyMatchesError

    def _goes_on(self, verdict: str, *, before: str = "", after: str = "") -> bool:
        before = normalize_text(before).translate(_WITHOUT_MARKS)[-_REACH:]
        after = normalize_text(after[:_LOOK]).translate(_WITHOUT_MARKS)[:_REACH]
        if len(before + after) < _REACH * 2 // 3:
            return False
        # The marks between a verdict and its neighbour are the judge's to choose: look without.
        words = before + verdict.translate(_WITHOUT_MARKS) + after
        if self._unmarked is None:
            self._unmarked = [candidate.translate(_WITHOUT_MARKS) for candidate in self._texts]
        self._spend(self._size)
        return any(words in candidate for candidate in self._unmarked)


def _begins_anew(near: str, before: str) -> bool:
    """Whether a verdict begins on a line of its own, or after a sentence or a word for it."""
    named = _OWN_WORD.search(before[-_LOOK:]) is not None
    if before[-1] == ":":  # a quotation that was opened on this line is nobody's verdict
        line = before[-_LOOK:].rpartition("\n")[2]
        return named and not line.count('"') % 2 and line.count("“") <= line.count("”")
    between = near[len(near.rstrip(_MARKS)) :]
    return not between.count('"') % 2 and ("\n" in between or before[-1] in _ENDS or named)


NO_VERDICT: Any = object()
"""The value of a place for a verdict that holds none: ``<score>good</score>``."""

MAX_MATCHES = 200
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


class VerdictMatch(NamedTuple):
    """One verdict at ``text[start:end]`` of a reply; ``value`` may be :data:`NO_VERDICT`."""

    start: int
    end: int
    value: Any
    form: str
    fields: dict[str, Any] = {}  # noqa: RUF012  never changed


class ReplyText:
    """A judge's reply, made ready once for all readers. ``text``: what is visible of it.

    A reply that is one JSON object and nothing else is the judge's own word, unless the candidate
    wrote that very object: what it quotes stands in strings, so neither thinking nor quotations
    are looked for.
    """

    def __init__(self, text: str, quoted: Sequence[str] = (), *, cut: bool = False) -> None:
        self._object = text.lstrip()[:1] == "{" and read_single_object(text) is not None
        if self._object:
            self.text, self.thinking = strip_invisible(text), ""
            quoted = [one for one in quoted if text.strip() in one]
        else:
            self.text, self.thinking = separate_thinking(strip_invisible(text))
        self.cut = cut
        self._quotes = Quotes(quoted)

    @property
    def too_long(self) -> bool:
        """Whether it is too long to look for a verdict in; one JSON object never is."""
        return len(self.text) > _LONGEST and not self._object

    @cached_property
    def normalized(self) -> str:
        """The text with plain signs, equally long."""
        return normalize_signs(self.text)

    @cached_property
    def json_values(self) -> JsonValues:
        """The JSON objects and lists that are the judge's own: neither quoted nor an example."""
        found = find_json_values(self.text)
        own = [
            piece
            for piece in found.pieces
            if self.is_own_statement(piece.start, piece.end, rests=True)
            and (self._starts_statement(piece.start) or self.ends_statement(piece.end))
            and not self.is_reported(piece.start)
        ]
        return found._replace(pieces=own)

    @cached_property
    def prose(self) -> str:
        """``flat`` with JSON objects blanked out, equally long; empty where all is one object."""
        text = "" if self._object else self.normalized
        for start, end, value in self.json_values.pieces if text else ():
            if isinstance(value, dict):
                text = text[:start] + " " * (end - start) + text[end:]
        return text

    @property
    def is_only_json(self) -> bool:
        """Whether there is nothing but JSON objects."""
        return not self.prose.strip(" \n`")

    def is_own_statement(self, start: int, end: int, *, rests: bool = False) -> bool:
        """Whether what stands at ``start:end`` is the judge's own word, neither denied nor quoted.

        ``rests``: it is no word in a sentence (an object), so no negation before it is looked for.
        """
        return self.is_affirmed(start, rests=rests) and self.is_own_text(start, end)

    def is_own_mark(self, start: int, end: int) -> bool:
        """Whether the tag or brackets at ``start:end`` are the judge's own and no example."""
        return self.is_own_statement(start, end) and not self.is_reported(start)

    def is_affirmed(self, start: int, *, rests: bool = False) -> bool:
        """Whether what stands at ``start`` is neither denied nor in a Markdown quotation."""
        line = self.normalized[self.normalized.rfind("\n", 0, start) + 1 : start + 1]
        return line[:1] != ">" and (rests or _NEGATION.search(line[-61:-1]) is None)

    def ends_statement(self, end: int) -> bool:
        """Whether what ends at ``end`` ends its sentence, or only a reason follows."""
        return _AFTER.match(self.normalized, end) is not None

    def _starts_statement(self, start: int) -> bool:
        """Whether what stands at ``start`` begins a line or follows a sentence or a colon."""
        before = _FENCE.sub("", self.normalized[max(0, start - 60) : start]).rstrip(" \t*_`>|")
        return not before or before[-1] in "\n.!?:。！？：;)-"

    def is_reported(self, start: int) -> bool:
        """Whether the sentence before ``start`` calls what follows an example or another's."""
        before = _FENCE.sub("", self.normalized[max(0, start - 160) : start])
        return _REPORTED.search(_CLAUSE_END.split(before)[-1]) is not None

    def is_retracted(self, end: int) -> bool:
        """Whether what follows ``end`` takes back what stands there, or refuses to judge."""
        return _RETRACTED.search(self.prose, end) is not None

    def is_own_text(self, start: int, end: int) -> bool:
        """Whether what stands at ``start:end`` is not quoted from the candidate."""
        return not self._quotes or self._quotes.is_own(self.text, start, end)

    def find_keyed_verdicts(
        self, keys: tuple[str, ...], tags: str, value_of: Callable[[Any], Any]
    ) -> Iterator[VerdictMatch]:
        """What stands under JSON ``keys``, in ``tags`` (parted by ``|``) and in verdict brackets.

        A tag in the middle of a sentence is no verdict, but may contradict another. Brackets hold
        links and much else: they count only where ``value_of`` finds a value.
        """
        for piece in self.json_values.pieces:
            for value, fields in find_under_keys(piece.value, keys):
                yield VerdictMatch(piece.start, piece.end, value_of(value), "json", fields)
        if self.is_only_json:
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
                yield VerdictMatch(
                    *hit.span(), value if self.ends_statement(hit.end()) else NO_VERDICT, form
                )

    def is_complete(self, start: int, end: int, *, firm: bool) -> bool:
        """Of a cut reply: whether what ends at ``end`` is whole, and no other can have followed."""
        if not self.cut:
            return True
        return _MORE.search(self.prose, end) is not None and (
            firm or not self.prose[:start].strip(" \n*_#")
        )

    def is_called_final(self, start: int, end: int | None = None) -> bool:
        """Whether words before ``start``, or from there to ``end``, call it the final verdict."""
        if _FINAL.search(self.normalized, max(0, start - 90), start) is not None:
            return True
        return end is not None and _STRONG.search(self.normalized, start, end) is not None

    def make_verdict(self, found: VerdictMatch, value: Any) -> Verdict:
        """``value`` as the verdict, with the judge's reason: its own, or the words beside it."""
        before = self.text[: found.start].strip().rstrip("*_#`>").strip()
        around = before or self.text[found.end :].strip().lstrip("*_#`").strip()
        reason = extract_reason(found.fields) or around
        return Verdict(value=value, reason=reason, form=found.form, fields=found.fields)


def select_verdict(
    reply: ReplyText, found: Sequence[VerdictMatch]
) -> VerdictMatch | UnreadableReply | None:
    """The one verdict of several; ``None`` for none.

    Verdicts that agree are one. Of different ones only the last in the reply can count, and only
    when words directly before it call it final ("Final verdict: …"), no other so called says
    something else, and all have one form; otherwise nobody can tell which one was meant.
    """
    if not found:
        return None
    if len(found) > MAX_MATCHES:
        return UnreadableReply(why="too many verdicts in one reply")
    last = max(found, key=lambda one: one.start)
    if any(one.value is not last.value and one.value != last.value for one in found):
        finals = [one for one in found if _called_final(reply, one)]
        forms = {one.form for one in found}
        if len(forms) > 1 or last not in finals or any(o.value != last.value for o in finals):
            return UnreadableReply(why="several verdicts that differ")
    if last.value is NO_VERDICT:
        return UnreadableReply(why="the place for the verdict holds none")
    if reply.is_retracted(last.end):
        return UnreadableReply(why="words behind the verdict take it back")
    return last


def _called_final(reply: ReplyText, one: VerdictMatch) -> bool:
    return reply.is_called_final(one.start, one.end if one.form == "phrase" else None)


def missing_verdict(reply: ReplyText) -> UnreadableReply:
    """What it means that nothing was found in ``reply``."""
    if reply.cut:
        return UnreadableReply(
            kind=ErrorKind.TRUNCATED, why="the reply was cut before a whole verdict"
        )
    if not reply.text.strip():
        why = "there is only thinking" if reply.thinking else "the reply is empty"
        return UnreadableReply(why=why)
    return UnreadableReply(why="no verdict was found")


def apply_reader(
    reply: ReplyText, read: Callable[[ReplyText], Verdict | UnreadableReply]
) -> Verdict | UnreadableReply:
    """``read(reply)``; no verdict in one that is too long or has too many places for it."""
    if reply.too_long:
        return UnreadableReply(why="the reply is too long to read")
    if reply.json_values.given_up:
        return UnreadableReply(why="too much JSON, or too much that is broken")
    try:
        return read(reply)
    except TooManyMatchesError:
        return UnreadableReply(why="too many places for a verdict in one reply")


def read_fields(
    text: str,
    required: Sequence[str] = (),
    *,
    quoted: Sequence[str] = (),
    cut: bool = False,
) -> Verdict | UnreadableReply:
    """The one JSON object that a reply gives, with all ``required`` keys.

    Objects without them are passed over when there is one with them. Several objects must be equal,
    or the last one be called final. An object, at any depth, with a key that has two different
    values is none. ``quoted`` and ``cut``: as for :func:`~adjudge.verdicts.read_score`.

    Returns a :class:`Verdict` whose ``value`` is the object (keys are strings; values as JSON has
    them, ``nan`` and ``inf`` included where the judge wrote such); else an
    :class:`UnreadableReply`. Raises nothing.

    >>> read_fields("Sure: {'steps': [1, 2], 'ok': True,}", ["steps"]).value
    {'steps': [1, 2], 'ok': True}
    """
    return apply_reader(
        ReplyText(text, quoted, cut=cut), partial(_read_object_fields, required=required)
    )


def _read_object_fields(reply: ReplyText, required: Sequence[str]) -> Verdict | UnreadableReply:
    objects: list[tuple[int, int, dict[str, Any]]] = [
        (start, end, value)
        for start, end, value in reply.json_values.pieces
        if isinstance(value, dict)
    ]
    having = [one for one in objects if all(key in one[2] for key in required)]
    if objects and not having:
        return UnreadableReply(why="the object lacks a key that was asked for")
    settled = select_verdict(
        reply, [VerdictMatch(start, end, value, "json") for start, end, value in having]
    )
    if settled is None:
        return missing_verdict(reply)
    if isinstance(settled, UnreadableReply):
        return settled
    if has_duplicate_keys(settled.value):
        return UnreadableReply(why="a key has two different values")
    value = settled.value
    return Verdict(value=value, reason=extract_reason(value), form="json", fields=value)
