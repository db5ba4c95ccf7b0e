r"""The answer in a response, as text: where it stands and what it says.

Marked answers (the last ``<answer>`` or ``\boxed{}``), else a candidate for one; option letters and
yes or no as whole words; bounding boxes and how far two overlap; texts compared with OCR tolerance;
regular expressions. The last two run in killable processes, as a pattern may backtrack
for ever. All other functions are pure and take linear time: none of their patterns can backtrack
over more than it has just matched.

A text has one reading, never several: "A or B" is a hedge, which gives no answer. What a text
denies ("not A, but B") is none of its answers.
"""

from __future__ import annotations

import math
import re
from functools import lru_cache
from typing import Any, NamedTuple

from rapidfuzz.distance import Levenshtein

from adjudge.errors import ErrorKind, GradingFailure

SEARCHED_CHARS = 200_000
"""A final answer stands at the end: markers are looked for in this many characters before it,"""

CANDIDATE_CHARS = 20_000
"""and an answer without a marker in this many."""

_TAG = re.compile(r"<(/?)answer>", re.IGNORECASE | re.ASCII)
_HASHES = re.compile(r"\s*####\s*([-+]?\$?[\d.,]*\d%?)\.?", re.ASCII)
_TEX = re.compile(r"(\\(?:boxed|fbox)\s*+\{)|\\.|([{}])", re.DOTALL)
_JOINED_BOXES = re.compile(r"[\s$]*+(?:[,;/]|(?:\\text\{\s?)?(?:or|and)\b\s?\}?)[\s$]*+")
_MATH = re.compile(r"\$\$?|\\[\[\]()]|\\.", re.DOTALL)
_WRAPPED = re.compile(
    r"(?:\$\$(.*)\$\$|\$(.*)\$|\\\((.*)\\\)|\\\[(.*)\\\]|\*\*(.*)\*\*|`(.*)`"
    r"|\\(?:text|textbf|mathrm|mathbf|textit|mbox|boxed|fbox)\s*\{(.*)\}|\{(.*)\})",
    re.DOTALL,
)
_MAX_WRAPPERS = 5
_MATH_CLOSE = {"$": "$", "$$": "$$", r"\(": r"\)", r"\[": r"\]"}


class MarkedText(NamedTuple):
    """A stretch of a response: its text and where it begins."""

    start: int
    text: str


def find_last_marked(text: str, *, hashes: bool = False) -> str | None:
    r"""What the last ``<answer>…</answer>`` or ``\boxed{…}`` holds, whichever begins later.

    With ``hashes`` a last line ``#### 42`` marks its number, too, as in GSM8K. ``None`` without a
    closed marker. Tag names are read in any case; braces of a box balance, and ``\fbox`` counts as
    a box.

    >>> find_last_marked(r"<answer>1</answer> or rather <answer>so \boxed{\frac{3}{4}}</answer>")
    '\\frac{3}{4}'
    >>> find_last_marked("6 * 7 = 42\n#### 42", hashes=True)
    '42'
    """
    marks = (_last_tag(text), _last_box(text), _last_hashes(text) if hashes else None)
    found = [mark for mark in marks if mark is not None]
    return max(found).text.strip() if found else None


def _last_hashes(text: str) -> MarkedText | None:
    line = text.rstrip().rpartition("\n")[2]
    hashes = _HASHES.fullmatch(line)
    return None if hashes is None else MarkedText(len(text.rstrip()) - len(line), hashes[1])


def _last_tag(text: str) -> MarkedText | None:
    best, opened = None, -1
    for tag in _TAG.finditer(text):
        if not tag[1]:
            opened = tag.end()
        elif opened >= 0:
            best, opened = MarkedText(opened, text[opened : tag.start()]), -1
    return best


def _last_box(text: str) -> MarkedText | None:
    r"""The box that begins last among those that close; boxes left open do not hide others.

    Boxes that are joined ("\boxed{5} or \boxed{6}") are one answer, from the first to the last.
    """
    first = min((at for at in (text.find(r"\boxed"), text.find(r"\fbox")) if at >= 0), default=-1)
    if first < 0:
        return None
    opened: list[tuple[int, int]] = []  # where a group and its content begin; 0 for no box
    begun = start = end = 0
    joined = -1  # where the first of the boxes joined to the last one begins
    for token in _TEX.finditer(text, first):
        if token[1]:
            opened.append((token.start(), token.end()))
        elif token[2] == "{":
            opened.append((0, 0))
        elif token[2] and opened and (group := opened.pop())[1] > start:
            together = end and _JOINED_BOXES.fullmatch(text, end + 1, group[0])
            joined = (begun if joined < 0 else joined) if together else -1
            (begun, start), end = group, token.start()
    if joined >= 0:
        return MarkedText(start, text[joined : end + 1])
    return MarkedText(start, text[start:end]) if start else None


def find_last_math(text: str) -> MarkedText | None:
    r"""The last formula between ``$ $``, ``$$ $$``, ``\( \)`` or ``\[ \]``; ``None`` without one.

    >>> find_last_math(r"from \(x = 2\) follows $x^2 = 4$.")
    MarkedText(start=24, text='x^2 = 4')
    """
    best, closing, start = None, None, 0
    for token in _MATH.finditer(text):
        if closing is None:
            closing, start = _MATH_CLOSE.get(token[0]), token.end()
        elif token[0] == closing:
            content = text[start : token.start()].strip()
            best = MarkedText(start, content) if content else best
            closing = None
    return best


def strip_wrappers(text: str) -> str:
    r"""``text`` without the wrappers that enclose all of it: ``$…$``, ``\text{…}``, ``**…**``, ….

    >>> strip_wrappers(r"$\text{(B)}$ ")
    '(B)'
    """
    text = text.strip()
    for _ in range(_MAX_WRAPPERS):
        match = _WRAPPED.fullmatch(text)
        inner = next((group for group in match.groups() if group is not None), "") if match else ""
        if not match or not _balanced(inner):
            break
        text = inner.strip()
    return text


def _balanced(inner: str) -> bool:
    """False when a wrapper's ends belong to two different groups, as in ``{a} and {b}``."""
    if "$" in inner.replace(r"\$", "") or "**" in inner or "`" in inner:
        return False
    depth = 0
    for token in _TEX.finditer(inner):
        if token[1] or token[2] == "{":
            depth += 1
        elif token[2]:
            depth -= 1
            if depth < 0:
                return False
    return depth == 0


_WIDE = {0xFEE0 + code: code for code in range(0x21, 0x7F)}  # full-width forms
_OPEN = r"(?:[*_(\[{\"'`$]|\\(?:text|textbf|mathrm|mathbf|boxed)\{){0,4}"
_CUES = (
    r"\b(?:answer|option|choice|verdict)(?:\s(?:is|must\sbe|would\sbe|should\sbe)\s?:?|\s?:)\s?",
    r"\b(?:answer|option|choice|verdict|choose|pick|select|go(?:ing)?\swith)\s",
)
# Between two answers, these words leave open which of them is meant.
_BETWEEN = r"(?:or|and|to|nor|but|vs|versus|then|also|even|maybe|perhaps|possibly|either|both)"
_JOINED = re.compile(
    rf"(?:.*\b(?:or|no|wait|actually|correction|mean)\b)?[^\w?]*(?:\b{_BETWEEN}\b[^\w?]*)*+",
    re.DOTALL,
)
_JOINED_CHARS = 200

# A capital that is a word of its own; "I" and the article "A" are English, not options.
_AFTER_A = r"(?!\s(?!(?:or|and|because|since|as|not|but|rather|is|are|was)\b)[a-z])"
_CAPITAL = rf"(?:[B-HJ-Z]|[AI]{_AFTER_A})(?![\w'’-]|\.\w)"
_LETTER = re.compile(rf"(?<![\w'’.\\-])(?!I(?![)\]}}*])){_CAPITAL}")
# "B", "(b)", "B.": the letter and nothing else; "B) Paris", "(B): Paris", "B, because": a label.
_ALONE = re.compile(r"\W*([A-Za-z])\W*", re.ASCII)
_LABEL = re.compile(rf"{_OPEN}([A-Z])(?:[*_\]}}\"'`$]{{0,4}}(?:[).:](?![\w.])|(?=,))|[)\]}}*])")
_BRACKET = re.compile(r"(?<!\w)([A-Z])\)")
_LETTER_CUES = [re.compile(rf"(?i:{cue}){_OPEN}({_CAPITAL})") for cue in _CUES]
# Letters and nothing but what may stand between them.
_LIST = re.compile(rf"\W*[A-Za-z]\b\W*(?:(?:[A-Za-z]|{_BETWEEN})\b\W*)*\b[A-Za-z]\W*")
_SINGLE = re.compile(r"\b[A-Z]\b")
_OPTION_OF_TWO = re.compile(r"(?<=[).:])\s+(?:both\s)?[A-Z]\s(?:and|or)\s[A-Z]\W*\Z")
_GROUP = r"[A-Z](?![\w'’])(?:\W{1,3}(?:(?:or|nor|and)\W{1,3})?[A-Z](?![\w'’])){0,8}"
_DENIED = re.compile(
    r"\b(?i:(?:not|\w{1,8}n['’]t|never|neither|nor|except|excluding|rather\sthan|instead\sof)\s"
    rf"(?:(?:the|be|it|is|option|choice|answer)\s){{0,3}})\W{{0,4}}{_GROUP}"
    rf"|\b{_GROUP}\W{{0,3}}\s(?:is|are|was|were|seems?|looks?)\s(?:\w{{1,12}}ly\s)?"
    r"(?:wrong|incorrect|false|not|out|eliminated|impossible)\b"
)
_SENTENCE = re.compile(r"(?<=[.!?])\s|\n")

# "no" before a noun ("no doubt") denies the noun.
_WORD = r"(?<![\w'’])(?:(yes|true)|(false|no(?!\s\w)))(?![\w'’])"
_BOOLEAN = re.compile(_WORD, re.IGNORECASE)
_BOOLEAN_LABEL = re.compile(rf"\W{{0,8}}(?:\\\w{{1,10}}\{{)?{_WORD}", re.IGNORECASE)
_BOOLEAN_CUE = re.compile(rf"(?:{'|'.join(_CUES)}){_OPEN}(?:not\s)?{_WORD}", re.IGNORECASE)
_CLAUSE = re.compile(r"[.,;:!?\n]|\b(?:but|because|and)\b", re.IGNORECASE)
_NEGATION = re.compile(
    r"\b(?P<none>(?:no|without(?:\s(?:a|any))?|beyond(?:\sany)?)\sdoubt|not\sonly)\b"
    r"|\b(?:not|never|hardly|cannot|no\sway|impossible|doubt|\w{1,8}n['’]t)\b",
    re.IGNORECASE,
)
_LEANING = re.compile(
    r"\b(?:(?:partly|partially|half|sometimes)\s\Z|maybe|perhaps|possibly|not\ssure|unsure|depends)",
    re.IGNORECASE,
)
_CONDITION = re.compile(
    r"\W{0,4}(?:but\s|only\s){0,2}(?:if|unless|provided|depending)\b", re.IGNORECASE
)


def read_letter(text: str) -> str | None:
    """The option letter that ``text`` gives, in upper case; ``None`` without one.

    In this order: the whole text is a letter; it begins with a label ("B) Paris"); the last
    "answer is B"; the one capital letter that is a word of its own in the last sentence with any.
    Letters that are denied ("not A", "A is wrong") do not count; two that are joined ("A or B",
    "A/B") are a hedge, and so no answer.

    >>> [read_letter(text) for text in ("(b)", "B. Paris", "I say the answer is **C**.", "Banana")]
    ['B', 'B', 'C', None]
    >>> [read_letter(text) for text in ("A or B", "A/B/C/D", "not A, but B")]
    [None, None, 'B']
    """
    text = strip_wrappers(text.translate(_WIDE))
    if (alone := _ALONE.fullmatch(text)) is not None:
        return alone[1].upper()
    label = _LABEL.match(text)
    of_two = label and _OPTION_OF_TWO.match(text, label.end())
    if not of_two and _LIST.fullmatch(text) and len(set(_SINGLE.findall(text.upper()))) > 1:
        return None
    text = _DENIED.sub(lambda match: " " * len(match[0]), text)
    return _letter_in_sentences(text, label if len(set(_BRACKET.findall(text))) < 2 else None)


def _letter_in_sentences(text: str, label: re.Match[str] | None) -> str | None:
    letters = {match.start(): match[0] for match in _LETTER.finditer(text)}
    found = label
    if label is not None:  # what follows at once is the option's own text: "B. U.S. Senate"
        letters = {
            place: one for place, one in letters.items() if text[label.end() : place].strip()
        }
    for cue in _LETTER_CUES if found is None else ():
        for found in cue.finditer(text):  # noqa: B007  only the last one counts
            pass
        if found is not None:
            break
    if found is not None:
        hedge = _is_hedge(text, {**letters, found.start(1): found[1]}, found.start(1), found.end())
        return None if hedge else found[1]
    for sentence in reversed(_SENTENCE.split(text)):
        if one := set(_LETTER.findall(sentence)):
            return one.pop() if len(one) == 1 else None
    return None


def read_boolean(text: str) -> bool | None:
    """True for yes/true, False for no/false, as whole words; ``None`` without one.

    In this order: the text begins with the word ("Yes, because …"); the last "answer is no"; the
    last such word. A negation in its clause turns it over, and "no" before another word is not an
    answer. Two that are joined ("yes and no") are a hedge, and so no answer; so is one with a
    condition or a doubt ("yes, unless n is even", "maybe yes").

    >>> [read_boolean(text) for text in ("No.", "It is not true.", "I know none", "No doubt: yes")]
    [False, False, None, True]
    """
    text = strip_wrappers(text.translate(_WIDE))
    found = _BOOLEAN_LABEL.match(text)
    for pattern in (_BOOLEAN_CUE, _BOOLEAN) if found is None else ():
        for found in pattern.finditer(text):  # noqa: B007  only the last one counts
            pass
        if found is not None:
            break
    if found is None:
        return None
    start, end = found.span(1 if found[1] else 2)
    words = {word.start(): word[0].lower() for word in _BOOLEAN.finditer(text)}
    before = _CLAUSE.split(text[max(0, start - _JOINED_CHARS) : start])[-1]
    if _is_hedge(text, words, start, end) or _LEANING.search(before) or _CONDITION.match(text, end):
        return None
    denials = sum(not negation["none"] for negation in _NEGATION.finditer(before))
    return bool(found[1]) != bool(denials % 2)


def _is_hedge(text: str, answers: dict[int, str], start: int, end: int) -> bool:
    """Whether the answer at ``start`` is joined to another one before it, or behind ``end``."""
    answer = answers.get(start)
    before = [place for place in answers if place < start][-1:]
    after = [place for place in answers if place >= end][:1]
    between = [
        text[place + len(answers[place]) : start] for place in before if answers[place] != answer
    ]
    between += [text[end:place] for place in after if answers[place] != answer]
    return any(len(one) <= _JOINED_CHARS and _JOINED.fullmatch(one) for one in between)


Box = tuple[float, float, float, float]
"""Corners x1, y1, x2, y2."""

_NUMBER = r"[-+]?(?:\d++(?:\.\d*+)?+|\.\d++)(?:[eE][-+]?\d++)?+"
_NUMBERS = re.compile(rf"(?<![\w.]){_NUMBER}(?![\w.])", re.ASCII)
_BOX_PATTERN = re.compile(
    rf"[\[(]\s*+({_NUMBER})(?:\s*+[,;\s]\s*+)({_NUMBER})"
    rf"(?:\s*+[,;\s]\s*+|\s*+[)\]]\s*+,?\s*+[(\[]\s*+)"
    rf"({_NUMBER})(?:\s*+[,;\s]\s*+)({_NUMBER})\s*+[\])]",
    re.ASCII,
)


def find_last_box(text: str) -> Box | None:
    """The last box in ``text``: four bracketed numbers, or the four numbers that it has in all.

    >>> find_last_box('{"bbox_2d": [10, 20, 30.5, 4e1]}')
    (10.0, 20.0, 30.5, 40.0)
    >>> find_last_box("<box>(1,2),(3,4)</box>")
    (1.0, 2.0, 3.0, 4.0)
    >>> find_last_box("between 3 and 5") is None
    True
    """
    last = None
    for last in _BOX_PATTERN.finditer(text):  # noqa: B007  only the last one counts
        pass
    if last is not None:
        return _finite(list(last.groups()))
    return _finite(_NUMBERS.findall(text))


def read_box(reference: Any) -> Box | None:
    """A box given as four numbers, or as text that holds one; ``None`` for anything else."""
    if isinstance(reference, str):
        return find_last_box(reference)
    if not isinstance(reference, list | tuple):
        return None
    if any(isinstance(value, bool) or not isinstance(value, int | float) for value in reference):
        return None
    return _finite(reference)


def intersection_over_union(first: Box, second: Box) -> float:
    """Intersection over union of two boxes, in [0, 1]; 0 for a box without area.

    >>> intersection_over_union((0, 0, 2, 2), (1, 0, 3, 2))
    0.3333333333333333
    """
    # Scaled to at most 1, so that no product overflows.
    scale = max(map(abs, (*first, *second))) or 1.0
    ax1, ay1, ax2, ay2 = (value / scale for value in first)
    bx1, by1, bx2, by2 = (value / scale for value in second)
    if ax2 <= ax1 or ay2 <= ay1 or bx2 <= bx1 or by2 <= by1:
        return 0.0
    width, height = min(ax2, bx2) - max(ax1, bx1), min(ay2, by2) - max(ay1, by1)
    if width <= 0 or height <= 0:
        return 0.0
    shared = width * height
    union = (ax2 - ax1) * (ay2 - ay1) + (bx2 - bx1) * (by2 - by1) - shared
    return min(1.0, shared / union) if union > 0 else 0.0


def _finite(values: Any) -> Box | None:
    try:
        numbers = [float(value) for value in values]
    except OverflowError:  # an integer beyond the floats
        return None
    if len(numbers) != 4 or not all(map(math.isfinite, numbers)):
        return None
    return numbers[0], numbers[1], numbers[2], numbers[3]


def equal_ignoring_case(answer: str, reference: str) -> bool:
    """Equal after trimming, whatever the case.

    >>> equal_ignoring_case(" Paris", "PARIS"), equal_ignoring_case("14", "4")
    (True, False)
    """
    return answer.strip().casefold() == reference.strip().casefold()


def ocr_similarity(answer: str, reference: str) -> float:
    """1 − Levenshtein distance / length of the longer text; 0 where that is below 0.5.

    >>> ocr_similarity("Hall0 World", "Hello World"), ocr_similarity("xyz", "Hello")
    (0.8181818181818181, 0.0)
    """
    return Levenshtein.normalized_similarity(answer.strip(), reference.strip(), score_cutoff=0.5)


def best_ocr_similarity(payload: dict[str, Any]) -> float:
    """The best :func:`ocr_similarity` of ``answer`` with any of ``references``."""
    return max(ocr_similarity(payload["answer"], one) for one in payload["references"])


REGEX_FLAGS = {
    "a": re.ASCII,
    "i": re.IGNORECASE,
    "m": re.MULTILINE,
    "s": re.DOTALL,
    "x": re.VERBOSE,
}
"""The letters that a ``flags`` parameter may hold, as in ``(?aimsx)``."""


def search_patterns(payload: dict[str, Any]) -> str | None:
    """``{patterns, flags, text, start}`` to what the first pattern found matches, else ``None``.

    A match may not begin before ``start``; ``^`` still means the beginning of ``text``. A pattern
    that is not one raises ``GradingFailure(invalid_input)``.
    """
    patterns = [_usable(pattern, payload["flags"]) for pattern in payload["patterns"]]
    for pattern in patterns:
        if (match := pattern.search(payload["text"], payload["start"])) is not None:
            return match[0][:1000]
    return None


@lru_cache(maxsize=256)
def compile_pattern(pattern: str, flags: str = "") -> re.Pattern[str]:
    """``pattern`` with ``flags``; raises ``re.error``.

    >>> compile_pattern("paris", "i").search("in Paris") is not None
    True
    """
    return re.compile(pattern, sum(REGEX_FLAGS[letter] for letter in set(flags)))


def _usable(pattern: str, flags: str) -> re.Pattern[str]:
    try:
        return compile_pattern(pattern, flags)
    except (re.error, OverflowError) as error:
        message = f"the reference is not a pattern: {error}"
        raise GradingFailure(ErrorKind.INVALID_INPUT, message) from None
