"""Reply text to verdict, or why there is none: pure, total, and never a guess.

What a prompt asked for or its author declared is read by :mod:`adjudge.verdicts.strict`. Here are
the readers of replies whose form a template's author worded himself. Read is

* the JSON object that the reply is, or that its last lines are;
* the one mark that is the last line: ``[[A]]``, ``<score>4</score>``, ``Score: 4``;
* the value that is the whole reply.

No sentence is a verdict, and neither is a mark that the judged text has, too: a refusal costs one
more question, a wrong verdict a reward.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any, NamedTuple

import msgspec

from adjudge.errors import ErrorKind, Metadata
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


CUT_REPLY = UnreadableReply(
    kind=ErrorKind.TRUNCATED, why="the reply was cut before a whole verdict"
)

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


SIGNS = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)} | str.maketrans(
    "“”„‟«»「」『』‘’‚‛′【〖〔】〗〕−⁄∶\u3000\xa0\u202f\u2009",
    '""""""""""\'\'\'\'\'[[[]]]-/:    ',
)
EMPHASIS = str.maketrans("", "", "*`#")
_BLANK = " \t\n*_`#"
AROUND = f"{_BLANK}.。!"
_MOST_MARKS = 200

_NUMBER = r"[-+]?(?:[0-9]{1,15}(?:\.[0-9]{1,15})?|\.[0-9]{1,15})"
_SCORE = re.compile(
    rf"(?P<number>{_NUMBER})\s?(?:points?|stars?|分)?"
    rf"(?:\s?(?:/|out\sof)\s?(?P<scale>{_NUMBER})\s?(?:points?|stars?|分)?)?",
    re.IGNORECASE,
)
_YES, _NO = ("true", "yes", "是"), ("false", "no", "否")
_TIE = ("tie", "c")
_LABEL = re.compile(
    r"(?:the\s)?(?:(?:answer|response|output|assistant|candidate|model|回答|回复|答案)\s?)?"
    r"[(\[]?(\w{1,40})[)\]]?",
    re.IGNORECASE,
)
_LEADING_WORDS = (
    r"(?:here|so|thus|therefore|my|the|final|overall|total|response|object|json|is"
    r"|最终|我的|综上|为|是|[ ,，]){0,12}"
)
_VERDICT_WORDS = (
    "verdict", "judgment", "judgement", "decision", "evaluation", "assessment", "conclusion",
    "result", "结论", "裁决", "评价",
)  # fmt: skip
_SCORE_WORDS = ("score", "rating", "grade", "评分", "得分", "分数", "打分")
_SCALE_KEY = re.compile(r"(?i)\"[\w\s]*(?:scale|range|max|out[\s_]of)[\w\s]*\"\s*:")
CHOICE_KEYS = (
    "verdict", "better", "winner", "choice", "answer", "preference", "preferred", "label",
    "decision", "final_verdict", "final_answer", "better_response", "选择", "结论", "答案",
)  # fmt: skip
_TAKEN_BACK = re.compile(
    r"(?i)\b(?:wait|sorry|correction|actually|meant|second\sthought|reflection|disregard|ignore"
    r"|hmm+|oops|scratch|hold\son|mistaken?|inspection|reconsider\w*|zero"
    r"|(?:response|reply|answer)\s(?:asks|demand\w*|wants|requests|begs))\b"
    r"|更正|抱歉|不对|等等|其实(?!际)|重新|改为|应为|应该是|零分"
)
_BROKEN = re.compile(r"(?i)\b(?:however|fail|violat|broken|not\s(?:satisf|meet))|然而|不符合|违反")
_CITED = re.compile(r"(?m)\"[^\"\n]*\"|^\s*[0-9]{1,3}[.)]\s")

_DONE = re.compile(r"[.!?。！？)>\]0-9]$|^\s*[-*•].*[^:\s]$")
"""A line that leads over to nothing: a sentence, an item of a list."""

ValueOf = Callable[[object], object]
"""The verdict that a JSON value or the words of a mark are; ``None`` for what is none."""


class _Mark(NamedTuple):
    """A mark in a text, from ``start`` to ``end``; ``form`` is that of a :class:`Verdict`."""

    text: str
    words: str
    form: str
    start: int
    end: int


class FreeReply:
    """What a reply shows: its ``text`` without thinking, in plain signs.

    ``fault``: why nothing of it can be a verdict.
    """

    def __init__(self, text: str, nouns: Iterable[str], quoted: Sequence[str], cut: bool) -> None:
        self.cut, self._quoted = cut, [_folded(one) for one in quoted if one]
        spelled = "|".join(re.escape(one).replace("_", r"[\s_]") for one in sorted(nouns, key=len))
        self.label = re.compile(rf"{_LEADING_WORDS}(?:{spelled}){_LEADING_WORDS}", re.IGNORECASE)
        self._marks = re.compile(
            r"(?P<brackets>\[\[\s*(?P<b>[^\[\]\n]{0,40}?)\s*\]\]|\\boxed\{(?P<x>[^{}\n]{0,40})\})"
            rf"|(?P<tag><({spelled})>\s*(?P<t>[^<>]{{0,80}}?)\s*</(?:{spelled})>)"
            rf"|(?P<phrase>(?:^|(?<=[.!?。\n]))[ \t*_`#]*{_LEADING_WORDS}(?:{spelled})[ \t*_`]*"
            rf"[:=][ \t*_`]*(?P<p>[^\n]{{1,80}}?)[ \t*_`.。!]*$)"
            rf"|(?P<json>\"(?:{spelled})\"\s*:\s*\"?(?P<j>[^\",}}\]\n]{{1,80}}))",
            re.IGNORECASE | re.MULTILINE,
        )
        plain = strip_end_tokens(strip_invisible(strip_end_tokens(text))).rstrip()
        shown, thinking = separate_thinking(plain)
        goes_on = not plain.endswith(shown.rstrip().rpartition("\n")[2])
        self.text = "" if goes_on else shown.strip().translate(SIGNS)
        self.fault = ""
        if not self.text:
            self.fault = "it ends with thinking" if thinking else "it is empty"

    def refuse(self, why: str) -> UnreadableReply:
        """No verdict, for the one reason that the reply was cut, or this one."""
        return CUT_REPLY if self.cut else UnreadableReply(why=self.fault or why)

    def is_quoted(self, text: str) -> bool:
        """Whether the judged text has it, too, in whatever signs."""
        folded = _folded(text)
        words = re.compile(re.escape(folded) + r"(?!\w)" * folded[-1:].isalnum())
        return any(words.search(one) for one in self._quoted)

    def is_announced(self, start: int) -> bool:
        """Whether what begins at ``start`` is quoted, or the line above says whose it is."""
        before = self.text[:start].rstrip(_BLANK)
        last = before.rpartition("\n")[2]
        own = not last or _DONE.search(last) or self.label.fullmatch(last.strip(" \t*_`#:"))
        return not own or self.text[:start].count("```") % 2 == 1 or before.count('"') % 2 == 1

    def is_alone(self, mark: _Mark) -> bool:
        """Whether nothing but words that lead over to a verdict stands before it on its line."""
        lead = self.text[: mark.start].rpartition("\n")[2]
        if mark.form != "phrase":  # a mark of its own may follow a sentence
            lead = re.split(r"[.!?。>]\s*", lead)[-1]
        lead = lead.strip(" \t*_`#:")
        return not lead or self.label.fullmatch(lead) is not None

    def find_marks(self) -> list[_Mark]:
        """All marks of the reply, with keys of objects."""
        found = []
        for one in islice(self._marks.finditer(self.text), _MOST_MARKS + 1):
            form = next(name for name in ("brackets", "tag", "phrase", "json") if one[name])
            words = next(one[name] for name in "bxtpj" if one[name] is not None)
            form = "brackets" if words.startswith("[[") else form
            found.append(_Mark(one[0], words, form, one.start(), one.end()))
        return found


def _folded(text: str) -> str:
    """``text`` for comparing: words and brackets in one case, whatever stands between them."""
    plain = strip_invisible(text).translate(SIGNS).casefold()
    return re.sub(r" ?([\[\]<>{}]) ?", r"\1", re.sub(r"[^\w\[\]<>{}]+", " ", plain)).strip()


def _read(reply: FreeReply, whole: str, value_of: ValueOf, keys: Sequence[str]) -> Reading:
    """The verdict in JSON, else that of a mark or of the whole reply."""

    def under_keys(found: Metadata) -> object:
        values = [value_of(found[key]) for key in found if key.casefold().replace(" ", "_") in keys]
        return values[0] if values and all(one == values[0] for one in values) else None

    if (read := _read_json(reply, whole, under_keys)) is not None:
        return read
    marks = reply.find_marks()
    if len(marks) > _MOST_MARKS:
        return reply.refuse("too many marks in one reply")
    if not marks and not reply.cut and (value := value_of(reply.text)) is not None:
        return Verdict(value=value, form="bare")
    if not marks or reply.cut:
        return reply.refuse("no verdict was found")
    if reply.text[marks[-1].end :].strip(AROUND):
        return reply.refuse("a mark, but not at the end")
    return _distinct(reply, marks, marks[-1], value_of)


def _distinct(reply: FreeReply, marks: Sequence[_Mark], mark: _Mark, value_of: ValueOf) -> Reading:
    """The verdict of ``mark``, if no other says something else and it is the judge's own."""
    value = value_of(mark.words)
    others = [value_of(one.words) for one in marks if not reply.is_quoted(one.text)]
    faults = {
        "the text that is judged has the same verdict": reply.is_quoted(mark.text),
        "the place for the verdict holds none": value is None,
        "several verdicts that differ": any(one != value for one in others),
        "the verdict is inside a sentence": not reply.is_alone(mark),
        "the mark is announced as somebody else's words": reply.is_announced(mark.start),
    }
    if why := next((why for why, wrong in faults.items() if wrong), ""):
        return reply.refuse(why)
    around = reply.text[: mark.start].strip(_BLANK) or reply.text[mark.end :].strip(_BLANK)
    return Verdict(value=value, reason=around, form=mark.form)


def _read_json(
    reply: FreeReply, whole: str, value_of: Callable[[Metadata], object]
) -> Reading | None:
    """The verdict in the object that the reply is or ends with; ``None`` without one."""
    text, start = strip_end_tokens(whole), 0
    found = parse_json(text)
    if not isinstance(found, dict):
        text = reply.text.removesuffix("```").rstrip()
        opening = re.search(r"^[ \t]*\{", text, re.MULTILINE)
        if opening is None or not text.endswith("}"):
            return None
        start = opening.start()
        found = parse_json(text[start:])
    if not isinstance(found, dict):
        return reply.refuse("its JSON is not one whole object")
    value = value_of(found)
    before = text[:start].removesuffix("```json\n").removesuffix("```\n")
    above = reply.find_marks() if start else []
    marks = (one.text for one in above if one.end <= start)
    own = text[text.index("{", start) : text.rindex("}") + 1]
    faults = {
        "it only repeats the text that is judged": reply.is_quoted(own),
        "the JSON holds no verdict": value is None,
        "the JSON is announced as somebody else's words": reply.is_announced(len(before)),
        "several verdicts": not all(map(reply.is_quoted, marks)),
    }
    if why := next((why for why, wrong in faults.items() if wrong), ""):
        return UnreadableReply(why=why)
    reason = extract_reason(found) or before.strip(_BLANK)
    return Verdict(value=value, reason=reason, form="json", fields=found)


def takes_back(behind: str, value: str) -> bool:
    """Whether prose below the verdict ``value`` speaks against it, or has another number."""
    plain = _CITED.sub(" ", behind)
    others = re.findall(r"(?<![\w.-])[01](?![\w-])" if value in "01" else r"[0-9]+", plain)
    differs = any(one != value for one in others) or (value == "1" and _BROKEN.search(behind))
    return bool(differs or _TAKEN_BACK.search(plain))


def read_score(
    text: str,
    *,
    low: float | None = None,
    high: float | None = None,
    integer: bool = False,
    quoted: Sequence[str] = (),
    cut: bool = False,
) -> Reading:
    r"""The one score that a judge's reply gives, where no form of ours was asked for.

    Read are JSON with the key ``score`` or ``rating``, and the one mark that is the last line:
    ``[[3]]``, ``<score>3</score>``, ``Final score: 3/5``, or the number that is the whole reply.
    With ``low, high = 0, 1`` yes, no and booleans are scores, and ``[[1]]`` or ``[[0]]`` may be
    the first line instead, as VerIF's judges write it.

    ``quoted``: the candidate's texts. ``cut``: the reply ran into its length limit.

    Returns a :class:`Verdict` whose ``value`` lies from ``low`` to ``high`` (an ``int`` with
    ``integer``); else an :class:`UnreadableReply`. Raises nothing.

    >>> read_score("Right, but curt.\nScore: 3/5", low=1, high=5).value
    3.0
    >>> read_score("[[3]]\n[[4]]", low=1, high=5).why
    'several verdicts that differ'
    """
    scale = NumberScale(low, high, integer)
    keys = (*_SCORE_WORDS, "final_score", "overall_score")
    reply = FreeReply(text, (*keys, *_VERDICT_WORDS), quoted, cut)
    marks = reply.find_marks() if scale.boolean else []
    first, _, behind = reply.text.partition("\n")
    opens = marks and marks[0].words in ("0", "1") and first.strip(AROUND) == marks[0].text
    below = re.match(r"\s*\n\s*(?![a-z])\S", behind)
    if opens and below and not takes_back(behind, marks[0].words):
        return _distinct(reply, marks, marks[0], lambda words: parse_score(words, scale))
    read = _read(reply, text, lambda value: parse_score(value, scale), keys)
    if isinstance(read, UnreadableReply):
        return read
    if read.form == "json" and _SCALE_KEY.search(reply.text):
        return reply.refuse("the JSON names a scale of its own")
    if not scale.holds(read.value):
        return UnreadableReply(kind=ErrorKind.OUT_OF_RANGE, why="a score outside the scale")
    return msgspec.structs.replace(read, value=int(read.value)) if integer else read


def parse_score(value: object, scale: NumberScale) -> float | None:
    """A JSON value, or the words of a mark, as a score; ``None`` for what is no finite number.

    >>> [parse_score(v, NumberScale(1, 5)) for v in (3, "3/5", "4/10", True, "four", float("nan"))]
    [3.0, 3.0, None, None, None, None]
    """
    if isinstance(value, bool):
        return float(value) if scale.boolean else None
    if isinstance(value, int | float):
        return float(value) if abs(value) < 1e300 else None  # NaN is below nothing
    if not isinstance(value, str):
        return None
    text = value[:80].translate(SIGNS).translate(EMPHASIS).strip(" \t\n_.。![]()\"'")
    if (found := _SCORE.fullmatch(text)) is not None:
        same = found["scale"] is None or float(found["scale"]) == scale.high
        return float(found["number"]) if same else None
    word = text.casefold()
    return float(word in _YES) if scale.boolean and word in (*_YES, *_NO) else None


def read_choice(
    text: str, labels: Sequence[str], *, quoted: Sequence[str] = (), cut: bool = False
) -> Reading:
    r"""The one of ``labels`` that a judge's reply chooses, where no form of ours was asked for.

    The places, ``quoted`` and ``cut`` are those of :func:`read_score`: ``[[A]]``,
    ``<verdict>A</verdict>``, ``Final verdict: Output (b)``.

    >>> read_choice("A is curt. So is B.\nMy verdict: Response B", ["A", "B"]).value
    'B'
    """
    reply = FreeReply(text, (*CHOICE_KEYS, *_VERDICT_WORDS), quoted, cut)
    return _read(reply, text, lambda value: find_label(value, labels), CHOICE_KEYS)


def find_label(words: object, labels: Sequence[str]) -> str | None:
    """The label that ``words`` are, alone or with a noun before it; ``C`` is a tie where one is.

    >>> [find_label(words, ["A", "B", "tie"]) for words in ("Output (b)", "**A**", "[[C]]", "A or")]
    ['B', 'A', 'tie', None]
    """
    if isinstance(words, bool) or not isinstance(words, str | int):
        return None
    names = {label.casefold(): label for label in labels}
    if "tie" in names:
        names |= dict.fromkeys(_TIE, names["tie"])
    plain = str(words)[:80].translate(SIGNS).translate(EMPHASIS).strip(" \t\n_.。![]\"'")
    found = _LABEL.fullmatch(plain)
    return None if found is None else names.get(found[1].casefold())


def read_fields(
    text: str, required: Sequence[str] = (), *, quoted: Sequence[str] = (), cut: bool = False
) -> Reading:
    r"""The JSON object that a reply is or ends with, with all ``required`` keys.

    ``quoted`` and ``cut``: as for :func:`read_score`. Returns a :class:`Verdict` whose ``value`` is
    the object; else an :class:`UnreadableReply`. Raises nothing.

    >>> read_fields('Here is my verdict:\n{"steps": [1, 2], "ok": true}', ["steps"]).value
    {'steps': [1, 2], 'ok': True}
    """
    reply = FreeReply(text, (*required, *_VERDICT_WORDS), quoted, cut)
    read = _read_json(
        reply, text, lambda found: found if all(key in found for key in required) else None
    )
    return read or reply.refuse("no verdict was found")
