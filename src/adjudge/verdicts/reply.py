"""Where a reply that has no form of ours gives its verdict: one JSON value, or one mark.

The JSON value is the whole reply or ends it. A mark (``[[A]]``, ``<score>4</score>``, ``Score: 4``)
ends it too, and no other mark says something else. No sentence is a verdict, and what the judged
text holds as well is nobody's: a refusal costs one more question, a wrong verdict a reward.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, lru_cache
from itertools import islice
from typing import Any, NamedTuple

from adjudge.errors import ErrorKind
from adjudge.intake.rendered import strip_end_tokens
from adjudge.text import separate_thinking
from adjudge.verdicts.notation import normalize_signs
from adjudge.verdicts.strict import (
    NumberScale,
    UnreadableReply,
    Verdict,
    extract_reason,
    fold_text,
    parse_json,
    strip_invisible,
)

MAX_MARKS = 200
"""More marks, or beginnings of JSON values, in one reply are no verdict."""

Texts = Sequence[str]
_ANY_SCALE = NumberScale()
ValueOf = Callable[[Any], Any]
"""The verdict that a JSON value or the text of a mark is; ``None`` for what is none."""

_NOUNS = (
    "verdict", "judgment", "judgement", "decision", "evaluation", "assessment", "conclusion",
    "result", "overall", "结论", "裁决", "评价",
)  # fmt: skip
_FILLERS = (
    "here", "is", "s", "so", "thus", "therefore", "hence", "my", "the", "our", "this", "final",
    "total", "json", "object", "最终", "我", "的", "为", "是", "因此", "所以", "综上", "综上所述",
)  # fmt: skip
_SEPARATOR = re.compile(r"[:=]|(?:\bis\b|[为是])(?!\s?[:=])", re.IGNORECASE)
_BRACKETS = re.compile(
    r"\[\[\s{0,4}(?P<brackets>[^\[\]\n]{0,40}?)\s{0,4}\]\]"
    r"|\\boxed\{(?:\\text\{)?(?P<boxed>[^{}\n]{0,40})\}{1,2}"
    r"|<\s?(?P<name>\w{2,20})(?P<more>\s[^<>\n]{0,60})?>\s{0,20}(?P<tag>[^<>]{0,80}?)\s{0,20}"
    r"<\s?/\s?(?P=name)\s?>"
    r"|\[\s?(?:result|verdict|score|rating)\s?\]\s{0,3}:?\s{0,3}(?P<result>[^\n\[\]]{1,40})$",
    re.IGNORECASE | re.MULTILINE,
)
# A judge speaks of these where the judged text has them.
_LOOSE = ("answer", "result", "final answer", "boxed")
_SENTENCE_END = re.compile(
    r"(?<=[.!?])[ \t]+(?=[A-Z\[<\\*(])|(?<=[。！？])[ \t]*(?=\S)|(?<=>)[ \t]*(?=<\w)"
)
_JSON_START = re.compile(r"(?:^|:\s?|[.!]\s)[ \t]*([{\[])", re.MULTILINE)
_EMPHASIS = " \t\n*_`#|$"
_CLOSING = _EMPHASIS + ".。!\"')\\"
_DONE = re.compile(
    # A sentence, a tag, an item of a list, "Clarity: 3/5"
    r"[.!?。！？)]$|</\w{1,20}>$|^\s*(?:[-*•#]|[0-9]{1,3}[.)]).*[^:\s]$|:\s?[*_]{0,2}[\w/.]{1,12}$"
)
_WORDS = re.compile(r"[^\W_]+")
_OPENING = re.compile(r"[\s*_`#]*\[\[([01])\]\][*_`]*\n\s*\n\s*(?![a-z])")
_TAKEN_BACK = re.compile(
    r"(?i)\b(?:wait|sorry|correction|actually|meant|second\sthought|reflection|disregard|ignore"
    r"|hmm+|oops|scratch|hold\son|mistaken?|inspection|reconsider\w*|zero"
    r"|(?:response|reply|answer)\s(?:asks|demand\w*|wants|requests|begs))\b"
    r"|更正|抱歉|不对|等等|其实(?!际)|重新|改为|应为|应该是|零分"
)
_BROKEN = re.compile(r"(?i)\b(?:however|fail|violat|broken|not\s(?:satisf|meet))|然而|不符合|违反")
_CITED = re.compile(r"(?m)\"[^\"\n]*\"|^\s*[0-9]{1,3}[.)]\s")
_PAIRED = re.compile(r"\"[^\"]*\"|\([^()]*\)|(?<!\w)'(?:[^'\n]|(?<=\w)'(?=\w))*'(?!\w)")
_UNPAIRED = re.compile(r"[\"(]|(?<!\w)'")
_SUPPOSED = re.compile(r"(?i)(?:\b(?:if|unless|were|would|could)\b|如果|若|假如)[^.!?。]{0,400}:")
_BETTER = re.compile(
    r"(?i)^(?:my\s|the\s)?(?:final\s)?(?:verdict|decision)\sis\s(?:that\s)?"
    r"|\sis\s(?:significantly\s|slightly\s|much\s)?better|:"
)
_LIST = r"(?m)(?:^|:\s?|[.!]\s)[ \t]*[{\[]\s*(?:[{\"]|[\w.-]+\s*,)[^\n]{0,80}"


class _Mark(NamedTuple):
    """A mark, whose statement begins at ``start``; ``alone``: that holds nothing else."""

    start: int
    end: int
    value: Any
    form: str
    alone: bool
    quoted: bool


class _Labels:
    """The words that lead over to a verdict."""

    def __init__(self, keys: Sequence[str], scale: NumberScale) -> None:
        low, high = ("(?!)" if end is None else re.escape(f"{end:g}") for end in scale[:2])
        self._scale = re.compile(rf"\(\s?(?:out\sof\s|{low}\s?(?:-|to)\s?)?{high}\s?\)")
        self.nouns = {key.casefold().replace("_", " ") for key in keys} | {*_NOUNS}
        self._noun, self._word = _words(self.nouns), _words(self.nouns | {*_FILLERS})
        self.in_json = re.compile(
            rf"[\"'](?:{self._noun.pattern})[\"']\s?:\s?[\"']?([^\"',}}\]\n]{{1,80}})",
            re.IGNORECASE,
        )
        """A verdict under its key, in an object that does not end the reply."""

    def lead_over(self, words: str) -> bool:
        """Whether ``words`` are nothing but such words."""
        rest = self._word.sub("", self._scale.sub("", words))
        return not rest.strip(_EMPHASIS + "\"',:=-()[]’")

    def name(self, words: str) -> str | None:
        """The noun for the verdict that ``words`` lead over to."""
        nouns = self._noun.findall(words)
        return nouns[-1] if nouns and self.lead_over(words) else None

    def announce(self, before: str) -> bool:
        """Whether a verdict on a line of its own may follow ``before``, or it is another's."""
        before = before.removesuffix("json").rstrip(_EMPHASIS)
        line = before[before.rfind("\n") + 1 :]
        return not line or _DONE.search(line) is not None or self.lead_over(line)


def _words(words: set[str]) -> re.Pattern[str]:
    spelled = [re.escape(word).replace(r"\ ", r"[\s_]") for word in sorted(words, key=len)[::-1]]
    plain = "|".join(word for word in spelled if word.isascii())
    others = "|".join(word for word in spelled if not word.isascii())
    return re.compile(rf"(?<![a-z])(?:{plain})(?![a-z])|{others}", re.IGNORECASE)


_labels = lru_cache(maxsize=64)(_Labels)


def takes_back(words: str, value: str, numbers: str = "") -> bool:
    """Whether ``words`` behind the verdict ``value`` may take it back, or give another number."""
    plain = _CITED.sub(" ", words)
    others = re.findall(rf"(?<![\w.-]){numbers or '[0-9]+'}(?![\w-])", plain)
    return any(one != value for one in others) or _TAKEN_BACK.search(plain) is not None


class ReplyText:
    """A judge's reply, made ready once. ``text``: what is visible of it, in plain signs.

    ``found``: the JSON value that it is or ends with; ``before``: the text before that.
    """

    def __init__(
        self, text: str, keys: Texts, quoted: Texts, *, cut: bool, scale: NumberScale = _ANY_SCALE
    ) -> None:
        self.labels, self.cut, self._binary = _labels(tuple(keys), scale), cut, scale.boolean
        self._candidates = [one for one in quoted if one]
        self.before, self.found = "", _decode(text := strip_end_tokens(text))
        if self.found is not None:  # its strings may hold anything, tags of thinking among it
            self.text, self._thinking = text, ""
            return
        text = strip_end_tokens(strip_invisible(text)).rstrip()
        shown, self._thinking = separate_thinking(text)
        if not text.endswith(shown.rstrip().rpartition("\n")[2]):
            shown = ""  # it thinks on behind what it says
        self.text = normalize_signs(shown.strip())
        if self.text.startswith("```") and self.text.endswith("```"):
            self.text = self.text[3:-3].partition("\n")[2].strip() or self.text
        end = shown.strip().removesuffix("```").rstrip()
        starts = islice(_JSON_START.finditer(normalize_signs(end)), MAX_MARKS)
        for at in (start.start(1) for start in starts) if end.endswith(("}", "]")) else ():
            if not cut and (value := _decode(end[at:])) is not None:
                self.before, self.found, self.text = end[:at].strip(), value, end
                break

    def is_quoted(self, mark: str) -> bool:
        """Whether the candidate's text holds ``mark``, too."""
        folded = fold_text(mark)
        return any(folded in text for text in self._folded)

    @cached_property
    def _folded(self) -> list[str]:
        return [fold_text(normalize_signs(text)) for text in self._candidates]

    def is_labelled(self, noun: str, value: str) -> bool:
        """Whether the candidate's text gives ``noun`` the same value, in whatever signs."""
        mark = " ".join(_WORDS.findall(f"{noun} {value}".casefold())[: len(noun.split()) + 1])
        return any(f" {mark} " in text for text in self._quoted_words)

    @cached_property
    def _quoted_words(self) -> list[str]:
        plain = (strip_invisible(normalize_signs(text)).casefold() for text in self._candidates)
        return [f" {' '.join(_WORDS.findall(text))} " for text in plain]

    def find_marks(self, text: str, value_of: ValueOf) -> Iterator[_Mark]:
        """All marks in ``text``."""
        for found in _BRACKETS.finditer(text):
            form = found.lastgroup or ""
            name = (found["name"] or form).lower().replace("_", " ")
            value = None if found["more"] else value_of(found[form])  # <score max="10">
            if (form == "tag" and name not in self.labels.nouns) or (
                value is None and name in _LOOSE
            ):
                continue
            line = text.rfind("\n", 0, found.start()) + 1
            ends = (end.end() for end in _SENTENCE_END.finditer(text, line, found.start() + 2))
            start = max((end for end in ends if end <= found.start()), default=line)
            alone = self.labels.lead_over(lead := text[start : found.start()])
            if not alone and value is not None:  # "Response A is better: [[A]]"
                alone = value_of(_BETTER.sub("", lead)) == value
            form = "tag" if form == "tag" else "brackets"
            yield _Mark(start, found.end(), value, form, alone, self.is_quoted(found[0]))
        for found in self.labels.in_json.finditer(text):
            if (value := value_of(found[1])) is not None:
                quoted = self.is_quoted(found[0])
                yield _Mark(found.start(), found.end(), value, "json", False, quoted)
        start = 0
        for line_text in text.split("\n"):
            at = start
            start += len(line_text) + 1
            for sentence in _SENTENCE_END.split(line_text):
                place = text.find(sentence, at)
                at = place + len(sentence)
                yield from self._labelled(sentence, place, value_of)

    def _labelled(self, sentence: str, at: int, value_of: ValueOf) -> Iterator[_Mark]:
        """The value behind a label, with which a sentence ends."""
        for sign in islice(_SEPARATOR.finditer(sentence), 8):
            written = sentence[sign.end() :].strip(_CLOSING)
            if not 0 < len(written) <= 80:
                continue
            if (noun := self.labels.name(sentence[: sign.start()])) is None:
                continue
            decoded = parse_json(written)
            value = value_of(written if decoded is None else decoded)
            if value is not None:
                quoted = self.is_labelled(noun, written)
                yield _Mark(at, at + len(sentence), value, "phrase", True, quoted)
                return

    def unreadable(self, why: str) -> UnreadableReply:
        """Why no verdict can be read."""
        if self.cut:
            return UnreadableReply(
                kind=ErrorKind.TRUNCATED, why="the reply was cut before a whole verdict"
            )
        if not self.text:
            why = "it ends with thinking" if self._thinking else "it is empty"
        return UnreadableReply(why=why)

    def read_json(self, value_of: ValueOf) -> Verdict | UnreadableReply | None:
        """The verdict that :attr:`found` holds; ``None`` without JSON at the end."""
        if self.found is None:
            return None
        fields = self.found if isinstance(self.found, dict) else {}
        start = re.search(r"[{\[]", self.text[len(self.before) :])
        end = max(self.text.rfind("}"), self.text.rfind("]")) + 1
        if start and self.is_quoted(self.text[len(self.before) + start.start() : end]):
            return self.unreadable("it only repeats the text that is judged")
        value = value_of(self.found)
        if value is None:
            return self.unreadable("the JSON holds no verdict")
        if not self.labels.announce(self.before):
            return self.unreadable("the JSON is announced as somebody else's words")
        same = [rf"[\"']{re.escape(key)}[\"']\s*:\s*[^,}}\n]{{0,80}}" for key in fields]
        others = (one[0] for key in (_LIST, *same) for one in re.finditer(key, self.before))
        if not all(map(self.is_quoted, others)):
            return self.unreadable("several JSON values")
        reason = extract_reason(fields) or self.before
        return Verdict(value=value, reason=reason, form="json", fields=fields)

    def read_ending_mark(self, value_of: ValueOf) -> Verdict | UnreadableReply:
        """The verdict of the one distinct mark with which the reply ends."""
        marks = list(islice(self.find_marks(self.text, value_of), MAX_MARKS + 1))
        if len(marks) > MAX_MARKS:
            return self.unreadable("too many marks in one reply")
        mark = self._opening(marks) or self._ending(marks) or self._bare(value_of)
        if mark is None:
            return self.unreadable(
                "a mark, but not at the end" if marks else "no verdict was found"
            )
        differ = any(one.value != mark.value for one in marks if not one.quoted)
        faults = (
            ("the text that is judged has the same verdict", mark.quoted),
            ("several verdicts that differ", differ),
            ("the place for the verdict holds none", mark.value is None),
            ("the verdict is inside a sentence", not mark.alone),
            ("the mark is announced as somebody else's words", self.is_announced(mark.start)),
        )
        for why, wrong in faults:
            if wrong:
                return self.unreadable(why)
        before = self.text[: mark.start].strip(_EMPHASIS)
        around = before or self.text[mark.end :].strip(_EMPHASIS)
        return Verdict(value=mark.value, reason=around, form=mark.form)

    def _opening(self, marks: list[_Mark]) -> _Mark | None:
        """``[[1]]`` on a line of its own before the reasons, as VerIF's judges write it."""
        found = _OPENING.match(self.text) if self._binary else None
        value, behind = (found[1], self.text[found.end() :]) if found else ("", "")
        broken = value == "1" and _BROKEN.search(behind)
        if not value or broken or takes_back(behind, value, "[01]"):
            return None
        return next((one for one in marks if one.start == 0), None)

    def _ending(self, marks: list[_Mark]) -> _Mark | None:
        at_end = (one for one in marks if not self.text[one.end :].strip(_CLOSING))
        return None if self.cut else next(at_end, None)

    def _bare(self, value_of: ValueOf) -> _Mark | None:
        """A value that is the whole reply, or the line below a label."""
        above, _, last = self.text.rstrip(_EMPHASIS).rpartition("\n")
        above = above.rstrip(_EMPHASIS)
        start = above.rfind("\n") + 1
        noun = self.labels.name(above[start:])
        value = value_of(last.strip()) if (noun or not above) and not self.cut else None
        if value is None:
            return None
        quoted = noun is not None and self.is_labelled(noun, last)
        return _Mark(start, len(self.text), value, "phrase" if noun else "bare", True, quoted)

    def is_announced(self, start: int) -> bool:
        """Whether what begins at ``start`` is quoted, or another's by the words above."""
        before = self.text[:start]
        line = before[before.rfind("\n") + 1 :]
        rest = self.text[start:]
        open_quote = any(_UNPAIRED.search(_PAIRED.sub("", one)) for one in (line, before and rest))
        if open_quote or _SUPPOSED.search(line) or before.count("```") % 2:
            return True
        return (line + rest)[:1] == ">" or not (line.strip() or self.labels.announce(before))


def _decode(text: str) -> Any:
    """``text`` as JSON; ``[[4]]`` is a mark and no list."""
    value = parse_json(text)
    return None if isinstance(value, list) and value and isinstance(value[0], list) else value


_WRAPPERS = frozenset({"verdict", "result", "evaluation", "judgment", "judgement", "assessment"})


def normalize_key(key: str) -> str:
    """``key`` without what judges vary: case, spaces, ``_``, ``-`` and emphasis.

    >>> normalize_key("**Final Score**") == normalize_key("final_score")
    True
    """
    return re.sub(r"[\s_*`:-]+", "", key[:100]).casefold()


def find_under_keys(value: Any, keys: Sequence[str], depth: int = 0) -> Iterator[Any]:
    """What stands under ``keys`` in an object, or in the one object that is its verdict."""
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if not isinstance(value, dict) or depth > 3:
        return
    wanted = {normalize_key(key) for key in keys}
    direct = [inner for key, inner in value.items() if normalize_key(key) in wanted]
    for inner in direct:
        yield from list(find_under_keys(inner, (*keys, "value"), depth + 1)) or [inner]
    if not direct:
        for key, inner in value.items():
            if normalize_key(key) in _WRAPPERS:
                yield from find_under_keys(inner, keys, depth + 1)
