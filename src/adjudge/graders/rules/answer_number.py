r"""Numbers as people and models write them: one value read from an answer, or none.

A number is what :mod:`adjudge.graders.rules.arithmetic` reads, with a scale word, a unit and words
around it that do not change it. Two different numbers are a hedge, and a hedge is no number; so is
one with something left over that may change it: "at least 5", "5x", "2024-05-14", "x^2 = 4".
"""

from __future__ import annotations

import re
from fractions import Fraction

from adjudge.graders.rules.answer_items import Item, Number, affirmed_items
from adjudge.graders.rules.arithmetic import latex
from adjudge.graders.rules.extraction import plain

__all__ = ["Number", "last_number", "numbers_match", "read_number"]

_MAX_CHARS = 2_000  # of an answer that is read as a whole
_MAX_SENTENCE = 500  # of text without a marker
_SIMPLE = re.compile(r"-?\d{1,150}(?:\.\d{1,150})?", re.ASCII)
_SAME = Fraction(1, 10**40)  # relative; irrational values agree to more digits than this
_ROUNDED = Fraction(1, 100)  # relative; what "≈" may stand between
_CUE = re.compile(r"\banswer(?:\s+is\b|\**\s*[:=])[*:\s]*|####", re.IGNORECASE)
_MAX_CUES = 20
_SENTENCE = re.compile(r"(?:[^\n.!?]|[.!?](?!\s|\Z))++")
_BULLET = re.compile(r"\A(\s*)[-*•](\s)")
_DIGIT = re.compile(r"\d|\\(?:pi|sqrt)", re.ASCII)


def read_number(text: str, *, symbols: bool = False) -> Number | None:
    r"""The one number that the whole of ``text`` gives; ``None`` without one.

    Around it may stand a name ("x = 5"), a computation ("2 + 3 = 5"), a unit, and words that do
    not change it. What follows the last "answer is" stands for the whole. With ``symbols`` a
    letter that touches a numeral is a factor ("5k", "3m"), not a scale or a unit.

    >>> read_number(r"$-\frac{3}{4}$").value
    Fraction(-3, 4)
    >>> read_number("about 1.5 million dollars").value
    Fraction(1500000, 1)
    >>> [read_number(text) for text in ("5 or 6", "5 to 6", "at least 5", "1 = 2")]
    [None, None, None, None]
    """
    text = text.strip()
    if _SIMPLE.fullmatch(text):
        return Number(Fraction(text), False, 0, text)
    text = plain(text)
    if len(text) > _MAX_CHARS:
        return None
    numbers = [
        _one_number(list(affirmed_items(part, worded=True, symbols=symbols)))
        for part in _CUE.split(latex(text))[-_MAX_CUES:]
    ]
    last = numbers[-1]
    return last if last and all(one is None or _same(one, last) for one in numbers[1:]) else None


def last_number(text: str) -> Number | None:
    """The number that a text without marker ends on; ``None`` without one.

    It is the first after the last "answer is", else the last of the last sentence that has any.
    A number that is denied ("not 6"), one of several joined ("5 or 6") and a part of something
    larger are no answer, and then nothing is read.

    >>> last_number("17 apples cost $1,234.50.").value
    Fraction(2469, 2)
    >>> last_number("The answer is 5, not 6.").value
    Fraction(5, 1)
    >>> last_number("5 or 6") is None, last_number("x14") is None
    (True, True)
    """
    text = latex(text)
    cues = list(_CUE.finditer(text))[-_MAX_CUES:]
    for cue in reversed(cues):
        clause = _SENTENCE.match(text, cue.end())
        found, number = _spoken(clause, first=True) if clause else (False, None)
        if found:
            return number
    for sentence in reversed(list(_SENTENCE.finditer(text))):
        found, number = _spoken(sentence, first=False)
        if found:
            return number
    return None


def numbers_match(answer: Number, reference: Number, rel_tol: float, abs_tol: float) -> bool:
    """True when ``|answer − reference| ≤ max(abs_tol, rel_tol · |reference|)``.

    When only one of the two carries a percent sign, it may be meant or not: 50% matches 0.5 and 50.
    Two different units never match; a unit that only one of the two has is not compared.
    """
    if answer.unit and reference.unit and answer.unit != reference.unit:
        return False
    pairs = [(answer.value, reference.value)]
    if answer.rounded is not None:
        pairs.append((answer.rounded, reference.value))
    if answer.percent != reference.percent:
        scale = {True: 100, False: 1}
        pairs.append(
            (answer.value * scale[answer.percent], reference.value * scale[reference.percent])
        )
    rough = not (answer.exact and reference.exact)
    return any(_close(a, b, rel_tol, abs_tol, rough) for a, b in pairs)


def _close(
    answer: Fraction, reference: Fraction, rel_tol: float, abs_tol: float, rough: bool
) -> bool:
    if answer == reference:
        return True
    if rel_tol == abs_tol == 0.0 and not rough:
        return False
    relative = max(Fraction(repr(rel_tol)), _SAME if rough else 0)
    return abs(answer - reference) <= max(Fraction(repr(abs_tol)), relative * abs(reference))


def _spoken(sentence: re.Match[str], *, first: bool) -> tuple[bool, Number | None]:
    """Whether there is a number in a sentence, and the one that it says."""
    text, start = sentence[0], sentence.start()
    digits = [digit.start() for digit in _DIGIT.finditer(text)]
    if not digits:
        return False, None
    if not first and digits[-1] > _MAX_SENTENCE:
        cut = text.find(" ", digits[-1] - _MAX_SENTENCE, digits[-1])
        if cut < 0:  # no number is that long
            return True, None
        text, start = text[cut:], start + cut
    if len(text) > 2 * _MAX_SENTENCE:
        text = text[: 2 * _MAX_SENTENCE].rpartition(" ")[0]
    items = list(affirmed_items(_BULLET.sub(r"\1 \2", text)))
    places = [place for place, item in enumerate(items) if item.kind in ("value", "broken")]
    if not places:
        return False, None
    number = _one_number(items)
    if number is None:
        number = _unjoined(items, places, first)
    return True, number and number._replace(start=start + number.start)


def _unjoined(items: list[Item], places: list[int], first: bool) -> Number | None:
    """The first or last number among ``items``, unless it is one of several or part of more."""
    place = places[0 if first else -1]
    if _kinds(items[max(0, place - 1) : place + 2]) & {"broken", "op", "change", "or"}:
        return None
    if len(places) > 1:
        low, high = places[:2] if first else places[-2:]
        kinds = [item.kind for item in items[low + 1 : high]]
        listed = set(kinds[kinds[:1] == ["word"] :]) <= {"join", "stop"}  # "5 cm, 6"
        left = items[low].number
        numeral = left is not None and not left.computed and "op" not in _kinds(items[:low][-1:])
        if {"or", "perhaps"} & set(kinds) or listed or (numeral and set(kinds) <= {"=", "≈"}):
            return None
    return items[place].number


def _one_number(items: list[Item]) -> Number | None:
    """The value of items that give one and nothing that may change it."""
    sides: list[tuple[str, list[Item]]] = [("=", [])]
    for item in items:
        if item.kind in ("=", "≈", "so"):
            sides.append((item.kind, []))
        else:
            sides[-1][1].append(item)
    values: list[tuple[str, Number]] = []
    for relation, side in sides:
        kinds = _kinds(side)
        if kinds & {"change", "broken"}:
            return None
        numbers = [item.number for item in side if item.number is not None]
        if len(numbers) < 2 and "or" in kinds:
            return None
        if not numbers:
            continue
        if kinds & {"name", "op"} or not all(_same(numbers[0], one) for one in numbers):
            return None
        values.append((relation, _merged(numbers)))
    return _chained(values)


def _chained(values: list[tuple[str, Number]]) -> Number | None:
    """The number that an equation of numbers says: all of them, or what a computation gives."""
    if not values:
        return None
    (_, number), *others = values
    if len(others) == 1 and others[0][0] != "≈" and number.computed and not others[0][1].computed:
        return others[0][1]  # "2 + 3 = 6" says 6
    for relation, other in others:
        if relation != "≈" and not _same(number, other):
            return None
        if relation == "≈":
            if abs(number.value - other.value) > _ROUNDED * abs(number.value):
                return None
            number = number._replace(rounded=other.value)
        number = number._replace(unit=number.unit or other.unit)
    return number


def _kinds(items: list[Item]) -> set[str]:
    return {item.kind for item in items}


def _same(first: Number, second: Number) -> bool:
    return numbers_match(first._replace(percent=False), second._replace(percent=False), 0.0, 0.0)


def _merged(numbers: list[Number]) -> Number:
    unit = next((one.unit for one in numbers if one.unit), "")
    return numbers[-1]._replace(unit=unit, percent=all(one.percent for one in numbers))
