"""Answers that are no maths: option letters, yes or no, boxes, texts, JSON, patterns.

A text has one letter, or one yes or no, never several: "A or B" is a hedge, which gives no answer.
What a text denies ("not A, but B") is not an answer. These patterns take linear time. A search for
a user's pattern runs in a killable process: it may take for ever. Last come the comparisons of
these types.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from rapidfuzz.distance import Levenshtein

from adjudge.errors import InvalidInput
from adjudge.graders.answers.answer_text import (
    AnswerMatch,
    list_each,
    list_texts,
    raise_unusable_reference,
    read_reference_texts,
    strip_wrappers,
)

_WIDE = {0xFEE0 + code: code for code in range(0x21, 0x7F)}  # full-width forms
_OPEN = r"(?:[*_(\[{\"'`$]|\\(?:text|textbf|mathrm|mathbf|boxed)\{){0,4}"
# Chinese words around letters, as the English rules read them.
_CHINESE = re.findall(
    r"([^/=]+)=([^/]+)",
    "，=; /；=; /。=. /、=, /：=: /或者= or /或= or /和= and /与= and /及= and /而不是= not "
    "/不是= not /而非= not /不选= not /不能选= not /排除= not /因为= because /由于= because "
    "/不对= is wrong /不正确= is wrong /错误= is wrong /有误= is wrong /不成立= is wrong "
    "/不符= is wrong /错= is wrong /答案应为= answer: /答案应是= answer: /答案为= answer: "
    "/答案是= answer: /答案= answer: /故选= answer: /应选= answer: /选择= answer: "
    "/选项= option /选= answer: /项= /都= /均= /全= /是= is ",
)
_CHINESE_LETTER = re.compile(
    r"(?<=[\u4e00-\u9fff])(?=[A-Z](?![A-Za-z]))|(?<=[A-Z])(?=[\u4e00-\u9fff])"
)
_IS_WRONG = re.compile(r"\s+(?:is\s+)+wrong")
_CUES = (
    r"\b(?:answer|option|choice|verdict)(?:\s(?:is|must\sbe|would\sbe|should\sbe)\s?:?|\s?:)[*_]{0,3}\s?",
    r"\b(?:answer|option|choice|verdict|choose|pick|select|go(?:ing)?\swith)\s",
)
# Between two answers, these words leave open which of them is meant.
_BETWEEN = r"(?:or|and|to|nor|but|vs|versus|then|also|even|maybe|perhaps|possibly|either|both)"
_JOINED = re.compile(
    rf"(?s)(?:.*\b(?:or|no|wait|actually|correction|mean)\b)?[^\w?]*(?:\b{_BETWEEN}\b[^\w?]*)*+"
)
_JOINED_CHARS = 200

# A capital that is a word of its own; "I" and the article "A" are English, not options.
_AFTER_A = r"(?!\s(?!(?:or|and|because|since|as|not|but|rather|is|are|was)\b)[a-z])"
_CAPITAL = rf"(?:[B-HJ-Z]|[AI]{_AFTER_A})(?![\w'’-]|\.\w)"
_LETTER = re.compile(rf"(?<![\w'’.\\-])(?!I(?![)\]}}*])){_CAPITAL}")
# "B", "(b)", "B.": the letter and nothing else; "B) Paris", "(B): Paris", "B, because": a label.
_ALONE = re.compile(r"(?a)\W*([A-Za-z])\W*")
_LABEL = re.compile(
    rf"{_OPEN}([A-Z])(?:[*_\]}}\"'`$]{{0,4}}(?:[).:](?![\w.])|(?=,|\s*\n|\s(?:because|since|[-–—])\b|\s[-–—]\s))|[)\]}}*])"
)
# A small letter is an option where it stands alone behind a cue, or as a label.
_SMALL_LABEL = re.compile(rf"\A{_OPEN}[a-h](?=[).:](?:\s|\Z))")
_SMALL_CUES = [
    re.compile(
        rf"(?i:{cue}){_OPEN}([a-h])(?=[)\]}}*_\"'`$]{{0,4}}(?:[.,;!]?\s*(?:\Z|\n)|\.\s+[A-Z]|\)|,?\s(?:because|since|as|not)\b))"
    )
    for cue in _CUES
]
_BRACKET = re.compile(r"(?<!\w)([A-Z])\)")
_LETTER_CUES = [re.compile(rf"(?i:{cue}){_OPEN}({_CAPITAL})") for cue in _CUES]
# Letters and nothing but what may stand between them.
_LIST = re.compile(rf"\W*[A-Za-z]\b\W*(?:(?:[A-Za-z]|{_BETWEEN})\b\W*)*\b[A-Za-z]\W*")
_SINGLE = re.compile(r"\b[A-Z]\b")
_OPTION_OF_TWO = re.compile(r"(?<=[).:])\s+(?:both\s)?[A-Z]\s(?:and|or)\s[A-Z]\W*\Z")
_GROUP = r"[A-Z](?![\w'’])(?:[^\w.!?;:\n]{1,3}(?:(?:or|nor|and)\W{1,3})?[A-Z](?![\w'’])){0,8}"
_DENIED = re.compile(
    r"\b(?i:(?:not|\w{1,8}n['’]t|never|neither|nor|except|excluding|rather\sthan|instead\sof)\s"
    rf"(?:(?:the|be|it|is|option|choice|answer)\s){{0,3}})\W{{0,4}}{_GROUP}"
    rf"|\b{_GROUP}\W{{0,3}}(?:\soption)?\s(?:is|are|was|were|seems?|looks?)\s(?:\w{{1,12}}ly\s)?"
    r"(?:wrong|incorrect|false|not|out|eliminated|impossible)\b"
)
_SENTENCE = re.compile(r"(?<=[.!?])\s|\n")

# "no" before a noun ("no doubt") denies the noun.
_WORD = r"(?<![\w'’])(?:(yes|true)|(false|no(?!\s\w)))(?![\w'’])"
_BOOLEAN = re.compile(_WORD, re.IGNORECASE)
# What is said beside the statement: a reason, a concession, another statement.
_ASIDE = re.compile(
    rf"({_WORD}[^.!?\n]{{0,200}}?)\b(?:because|since|although|(?:even\s)?though|while|whereas)\b"
    r"(?:(?!\b(?:so|thus|hence|therefore|answer|but)\b)[^.!?\n])*"
    r"|(?<=[.!?;]\s)((?:the|its)\s(?:converse|inverse|contrapositive|opposite|negation|reverse)\b)[^.!?\n]*",
    re.IGNORECASE,
)
_BOOLEAN_LABEL = re.compile(rf"(?i)\W{{0,8}}(?:\\\w{{1,10}}\{{)?{_WORD}")
_BOOLEAN_CUE = re.compile(rf"(?i)(?:{'|'.join(_CUES)}){_OPEN}(?:not\s)?{_WORD}")
_CLAUSE = re.compile(r"(?i)[.,;:!?\n]|\b(?:but|because|and)\b")
_NEGATION = re.compile(
    r"\b(?P<none>(?:no|without(?:\s(?:a|any))?|beyond(?:\sany)?)\sdoubt|not\sonly)\b"
    r"|\b(?:not|never|hardly|cannot|no\sway|impossible|doubt|\w{1,8}n['’]t)\b",
    re.IGNORECASE,
)
_LEANING = re.compile(
    r"(?i)\b(?:(?:partly|partially|half|sometimes)\s\Z|maybe|perhaps|possibly|not\ssure|unsure|depends)"
)
_CONDITION = re.compile(r"(?i)\W{0,4}(?:but\s|only\s){0,2}(?:if|unless|provided|depending)\b")


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
    text = _capitalized(strip_wrappers(_in_english(text).translate(_WIDE)))
    if (alone := _ALONE.fullmatch(text)) is not None:
        return alone[1].upper()
    label = _LABEL.match(text)
    of_two = label and _OPTION_OF_TWO.match(text, label.end())
    if not of_two and _LIST.fullmatch(text) and len(set(_SINGLE.findall(text.upper()))) > 1:
        return None
    text = _DENIED.sub(lambda match: " " * len(match[0]), text)
    label = label if label and text[label.start(1)] == label[1] else None
    return _letter_in_sentences(text, label if len(set(_BRACKET.findall(text))) < 2 else None)


def read_letter_behind(mark: str, text: str) -> str | None:
    """The letter of an "Answer: B" in ``text`` behind a mark that holds no option letter."""
    lettered = re.search(r"(?<![A-Za-z\\])[A-J](?![A-Za-z])", mark)
    cued = any(cue.search(_capitalized(text)) for cue in _LETTER_CUES[:1])
    return read_letter(text) if cued and not lettered else None


def _in_english(text: str) -> str:
    if not re.search(r"[\u4e00-\u9fff]", text):
        return text
    for word, english in _CHINESE:
        text = text.replace(word, english)
    return _IS_WRONG.sub(" is wrong", _CHINESE_LETTER.sub(" ", text))


def _capitalized(text: str) -> str:
    for pattern in (_SMALL_LABEL, *_SMALL_CUES):
        text = pattern.sub(lambda match: match[0][:-1] + match[0][-1].upper(), text)
    return text


def _letter_in_sentences(text: str, label: re.Match[str] | None) -> str | None:
    letters = {match.start(): match[0] for match in _LETTER.finditer(text)}
    found = label or _last_match(_LETTER_CUES, text)
    if label is not None:  # what follows at once is the option's own text: "B. U.S. Senate"
        letters = {
            place: one for place, one in letters.items() if text[label.end() : place].strip()
        }
    if found is not None:
        hedge = _is_hedge(text, {**letters, found.start(1): found[1]}, found.start(1), found.end())
        return None if hedge else found[1]
    for sentence in reversed(_SENTENCE.split(text)):
        if one := set(_LETTER.findall(sentence)):
            return one.pop() if len(one) == 1 else None
    return None


def _last_match(patterns: Iterable[re.Pattern[str]], text: str) -> re.Match[str] | None:
    """The last match of the first pattern that has any."""
    last = (match for one in patterns for match in deque(one.finditer(text), maxlen=1))
    return next(last, None)


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
    if found is None:
        stated = _ASIDE.sub(lambda match: (match[1] or "").ljust(len(match[0])), text)
        text = stated if _BOOLEAN.search(stated) else text
        found = _last_match((_BOOLEAN_CUE, _BOOLEAN), text)
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
    last = _last_match((_BOX_PATTERN,), text)
    return _finite(last.groups() if last else _NUMBERS.findall(text))


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


def search_patterns(payload: dict[str, Any]) -> str | None:
    """``{patterns, text, start}`` to what the first pattern found matches, else ``None``.

    A match may not begin before ``start``; ``^`` still means the beginning of ``text``. A pattern
    that is not one raises ``GradingFailure(invalid_input)``.
    """
    try:
        patterns = list(map(re.compile, payload["patterns"]))
    except (re.error, OverflowError) as error:
        raise InvalidInput(f"the reference is not a pattern: {error}") from None
    for pattern in patterns:
        if (match := pattern.search(payload["text"], payload["start"])) is not None:
            return str(match[0][:1000])
    return None


def compare_letter(text: str, reference: Any) -> AnswerMatch:
    """1 when the option letter in ``text`` is any of the reference letters."""
    letters = [
        read_letter(one) or raise_unusable_reference("an option letter", one)
        for one in list_texts(reference)
    ]
    letter = read_letter(text)
    return (
        AnswerMatch.miss("option letter")
        if letter is None
        else AnswerMatch.decide(letter in letters, letter)
    )


def compare_boolean(text: str, reference: Any) -> AnswerMatch:
    """1 when ``text`` says yes/true or no/false as the reference does."""
    wanted = read_boolean(reference) if isinstance(reference, str) else reference
    if not isinstance(wanted, bool):
        raise_unusable_reference("yes, no, true or false", reference)
    said = read_boolean(text)
    if said is None:
        return AnswerMatch.miss("yes, no, true or false")
    return AnswerMatch.decide(said is wanted, "true" if said else "false")


def compare_box(text: str, reference: Any) -> AnswerMatch:
    """The best intersection over union of the box in ``text`` with any reference box."""
    boxes = _reference_boxes(reference)
    box = find_last_box(text)
    if box is None:
        return AnswerMatch.miss("box of four numbers")
    overlap = max(intersection_over_union(box, one) for one in boxes)
    return AnswerMatch.rate(overlap, str(list(box)), f"intersection over union {overlap:.3g}")


def compare_recognised_text(text: str, reference: Any) -> AnswerMatch:
    """1 − edit distance / length of the longer text; 0 where that is below 0.5."""
    alike = partial(Levenshtein.normalized_similarity, text.strip(), score_cutoff=0.5)
    score = max(alike(one.strip()) for one in read_reference_texts(reference))
    return AnswerMatch.rate(score, text, f"edit similarity {score:.3g}")


def _fold(text: str) -> str:
    return unicodedata.normalize("NFC", strip_wrappers(text)).strip().casefold()


def compare_text(text: str, reference: Any, write: Callable[[str], str]) -> AnswerMatch:
    """1 when ``write`` makes the same of ``text`` and of any reference."""
    wanted = set(map(write, read_reference_texts(reference)))
    return AnswerMatch.decide(write(text) in wanted, text, "equal_text")


def compare_json(text: str, reference: Any) -> AnswerMatch:
    """1 when the JSON in ``text`` is the reference value (text is read as JSON)."""
    from adjudge.graders.rules.json_graders import JsonMatchGrader  # noqa: PLC0415  (JSON alone)
    from adjudge.graders.rules.json_validation import find_json_text  # noqa: PLC0415  (likewise)

    found = find_json_text(text)
    result = JsonMatchGrader().match(found or "", reference)
    return (
        AnswerMatch.miss("JSON value")
        if found is None
        else AnswerMatch.rate(result.score, found, result.reason)
    )


COMPARATORS: dict[str, Callable[[str, Any], AnswerMatch]] = {
    "MULTIPLE_CHOICE": compare_letter,
    "BOOLEAN": compare_boolean,
    "BBOX": compare_box,
    "OCRTEXT": compare_recognised_text,
    "ANY": partial(compare_text, write=_fold),
    "EXACT": partial(compare_text, write=str.strip),
    "JSON": compare_json,
}
"""The types whose comparison has no parameters."""


def _reference_boxes(reference: Any) -> list[Box]:
    box = read_box(reference)
    boxes = [box] if box else [read_box(one) for one in list_each(reference)]
    if any(one is None or one[2] <= one[0] or one[3] <= one[1] for one in boxes):
        raise_unusable_reference("[x1, y1, x2, y2] with x1 < x2 and y1 < y2", reference)
    return [one for one in boxes if one is not None]
