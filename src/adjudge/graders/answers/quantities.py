"""Numbers in an answer, as people and models write them, with their units.

An answer is read as a whole, so everything in it is one of a few kinds of :class:`AnswerItem`.
Words that change nothing ("apples", "the total") are open and so not listed; those that do are
listed here. A number is what :mod:`adjudge.graders.answers.reader` reads, with a scale word, a
unit and words around it that do not change it. Two different numbers are a hedge, and a hedge is no
number; so is one with something left over that may change it: "at least 5", "5x", "2024-05-14",
"x^2 = 4".
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from fractions import Fraction
from typing import NamedTuple

from adjudge.graders.answers.answer_text import strip_wrappers, to_latex
from adjudge.graders.answers.numerals import (
    ExpressionTooLarge,
    known_unit,
    scaled,
    unit_at,
    words_at,
)
from adjudge.graders.answers.reader import read_value


class ParsedNumber(NamedTuple):
    """An exact value, and where it begins.

    ``percent``: written with a percent sign, which ``value`` includes. ``unit``: a known unit of
    measure or currency in its short form; empty without one. ``exact``: false for irrational
    values, which are held to 60 digits. ``computed``: more than a numeral ("2 + 3").
    ``rounded``: the second value of "x ≈ y".
    """

    value: Fraction
    percent: bool
    start: int
    text: str
    unit: str = ""
    exact: bool = True
    computed: bool = False
    rounded: Fraction | None = None


class AnswerItem(NamedTuple):
    """One thing in an answer.

    ``kind`` is one of ``value`` (with ``number``); ``broken``, a numeral in something that is no
    number; ``name``, a symbol; ``op``, a sign that joins no two numbers; ``change``, what changes
    a number beside it; ``or``, ``join``, ``stop``, between numbers or clauses; ``=``, ``≈`` and
    ``so``, before a result; ``perhaps`` and ``word``, which change nothing.
    """

    kind: str
    number: ParsedNumber | None = None


# Markup and spoken signs, which are replaced before the items are looked for.
_SIGNED_MONEY = re.compile(r"([-+])(\\?[$€£¥₹])")
_LOOSE_SIGN = re.compile(r"\A(\s*)([-+])(\s+)(?=[\d.\\$])")
_EMPHASIS = re.compile(r"(?<![\w)*])(\*{1,3}|_{1,2}|`)(?=[^\s*_`])([^*_`]*)(?<!\s)\1(?![\w(*])")
_TEXT = re.compile(
    r"\\(?:text\w*|math(?:rm|bf|it|sf)|mbox|boxed|operatorname)\s*\{([^{}]*(?:\{[^{}]*\}[^{}]*)*)\}"
)
_QUOTIENT = re.compile(r"\\frac\s*\{\s*([A-Za-z]+)\s*\}\s*\{\s*([A-Za-z]+)\s*(\^\d)?\s*\}")
_SPOKEN = (
    (re.compile(r"\b(?:minus|negative)\s+(?=[\d.\\])", re.IGNORECASE), "-"),
    (re.compile(r"\bplus\s+(?=[\d.\\])", re.IGNORECASE), "+"),
    (re.compile(r"\b(?:times|multiplied by)\s+(?=[\d.\\])", re.IGNORECASE), "*"),
    (re.compile(r"\bdivided by\s+(?=[\d.\\])", re.IGNORECASE), "/"),
    (re.compile(r"(?<=\d)\sand\s(?=\d{1,3}/\d{1,3}(?![\d/.]))"), " "),
    (re.compile(r"\\mu(?![A-Za-z])\s?"), "μ"),
    (re.compile(r"\\Omega(?![A-Za-z])"), "Ω"),
)
_DECIMAL_COMMA = re.compile(
    r"(?<![\d.,])(\d+),(?=\d\d?\s*(?:[€£]|EUR|[Ee]uros?\b|kr\b|zł|CHF|kg\b|km\b|cm\b|m\b))|(?<=€)(\d+),(?=\d\d\b)"
)
# A numeral that ends a sentence with an exclamation mark.
_EXCLAIMED = re.compile(r"(?<=[\d\s*_])!++(?=[\"'”*]*(?:\s*\Z|\s*\n|\s+[A-Z]))")

# What stands at one place of the text, tried in the order of _next and _mark.
_LETTER = r"[A-Za-z\u00c0-\u024f\u0370-\u04ff]"
_SKIPPED = re.compile(  # <<2*3=6>> is a calculator note of GSM8K
    r"[\s(){}\[\]\"'“”‘’«»„$€£¥₹~#@!?¿¡;_`…•]|\\[^A-Za-z]|<<[^<>\n]{0,200}>>"
    r"|\\(?:left|right|q?quad|displaystyle)(?![A-Za-z])"
)
_VALUE = re.compile(
    r"(?a)[-+]*(?:[({[][-+({[ ]{0,10})?(?:\.?\d|\\(?:[dtc]?frac|sqrt|binom|pi)(?![A-Za-z]))"
)
_SIMPLE = re.compile(r"(?a)-?\d{1,150}(?:\.\d{1,150})?")
_LAST = re.compile(rf"{_SIMPLE.pattern}(?=\.?\s*\Z)")
# A numeral that goes on like this is part of a time, a name or a larger formula.
_PART = re.compile(r":\d|['’]\d|_[\w{]")
_BROKEN = re.compile(r"[-+({[]*(?:\\[A-Za-z]+|[\w.,:/^*{}'’+-])+")
_WORD = re.compile(
    rf"{_LETTER}(?:\([^()\n]{{0,40}}\)|(?:[0-9_]|{_LETTER}|['’](?={_LETTER}))*"
    r"(?:_?\{[^{}\n]{0,40}\})?(?:[-.]\d+)*)"
)
_PHRASE = re.compile(
    r"(?P<change>(?:more|less|fewer|greater|larger|smaller|higher|lower|other)\s+than\b"
    r"|(?:or|and)\s+(?:more|less|fewer|higher|lower|greater|above|below|up|over)\b"
    r"|(?:at\s+(?:least|most)|up\s+to|between|times\s+(?:as|more|less|larger|the|that))\b"
    r"|(?:over|under|above|below|beyond|nor)\s+(?=[\d$\\])"
    r"|(?:(?:square|cube|multiple|factor|divisor)s?\s+of|divisible\s+by)\s+(?=[\d$\\])"
    r"|\\(?:ne|neq|le|leq|ge|geq|pm|mp|lt|gt|pmod|bmod|cup|cap|in)(?![A-Za-z])|(?:<(?!<)|>|\||\^))"
    r"|(?P<rounded>(?:rounded\s+|correct\s+)?to\s+(?:the\s+nearest\s+[a-z]+"
    r"|[a-z0-9]+\s+(?:decimal|significant)\s+[a-z]+))"
    r"|(?P<not>(?:rather\s+than|instead\s+of|except(?:\s+for)?|no\s+longer)\b)"
    r"|(?P<same>=+>?|-+>|\\(?:to|implies|[Rr]ightarrow|iff)(?![A-Za-z])|[→⇒])"
    r"|(?P<so>:|(?:is|are|equals?|so|thus|hence|therefore|gives?|giving|makes?|making|yields?|"
    r"leaves?)\b)"
    r"|(?P<about>\\(?:approx|simeq?|cong)(?![A-Za-z]))"
    r"|(?P<or>\\(?:lor|vee)(?![A-Za-z])|\b(?:or(?!\s+so\b)|versus|vs)\b)"
    r"|(?P<perhaps>(?:maybe|perhaps|possibly|alternatively)\b)"
    r"|(?P<join>(?<=[A-Za-z.\d])\s?/\s?(?=[A-Za-z]{2})|\\land(?![A-Za-z])|(?:and|to)\b|&)"
    r"|(?P<stop>[.,;]|but\b|\s[-–—]+\s(?=[A-Za-z])|(?<=[\d\w])-(?=[A-Za-z]{3})|[–—](?!\s?\d))"
    r"|(?P<op>\\(?:times|cdot|div)(?![A-Za-z])|[-+*/–—])",
    re.IGNORECASE,
)
_PHRASE_KINDS = {"same": "=", "about": "≈", "rounded": "word"}
_COMMAND = re.compile(r"\\[A-Za-z]+")
_NOT = re.compile(r"not|never|cannot|\w*n['’]t")
# Words that make another number of the one beside them, or none.
_CHANGES = re.compile(
    r"hal(?:f|ves)|thirds?|(?:quarter|fourth|fifth|sixth|seventh|eighth|ninth|tenth|hundredth|"
    r"thousandth|millionth)s?|twice|doubled?|tripled?|halved|thrice|squared|cubed|negated|conjugate|factorial|root|negative|"
    r"minus|plus|times|inverse|reciprocal|power|none|neither|nothing|unknown|undefined|nan|inf|infinity|wrong|incorrect|false|hex|"
    r"(?:m|b|tr|quadr|quint)illi\w*|mil|mill|bil|mio|mrd|thou|grand|score|gross|myriad|"
    r"sin|cos|tan|cot|sec|csc|log|ln|exp|max|gcd|lcm|mod|lim|det"
)
_MONEY_BEFORE = re.compile(r"([$€£¥₹])\s?\Z")
_ORDINAL = re.compile(r"(?:\^\s*\{?\s*)?(?:st|nd|rd|th)(?![A-Za-z])")
# In maths, where letters are factors, these are units only beside LaTeX.
_CAPITALS = frozenset("KCTFAHSu")
_SMALL = re.compile(r"a|i|is|in|of|to|it|so|an|at|on|by|or|as|be|we|he|up|do|if|no|my|us|me")


def find_affirmed_items(
    text: str, *, worded: bool = False, symbols: bool = False
) -> Iterator[AnswerItem]:
    """The items of ``text``, without those that are denied: "5, not 6" leaves 5.

    ``text`` as :func:`~adjudge.graders.answers.answer_text.to_latex` returns it. With ``worded``,
    "twelve" is a number; with ``symbols``, a letter at a numeral is a factor, not a unit.
    """
    denied = pending = False
    for item in [*_items(_prepared(text), worded, symbols), AnswerItem("stop")]:
        if item.kind == "stop" and pending:  # "5 is not the answer" denies what stands before
            yield AnswerItem("change")
        if item.kind in ("not", "stop"):
            denied = pending = item.kind == "not"
        pending &= item.kind not in ("value", "broken")
        if not denied:
            yield item


def _prepared(text: str) -> str:
    """``text`` with plain signs for spoken ones and blanks for markup; of the same length."""
    text = _LOOSE_SIGN.sub(r"\1\3\2", _SIGNED_MONEY.sub(r"\2\1", text))
    text = _QUOTIENT.sub(_divided, _EMPHASIS.sub(_blanked, _TEXT.sub(_blanked, text)))
    for spoken, sign in _SPOKEN:
        text = spoken.sub(lambda match: sign.rjust(len(match[0])), text)  # noqa: B023
    return _DECIMAL_COMMA.sub(lambda match: match[0][:-1] + ".", text)


def _divided(match: re.Match[str]) -> str:
    return f"{match[1]}/{match[2]}{match[3] or ''}".rjust(len(match[0]))


def _blanked(match: re.Match[str]) -> str:
    inner = match.span(match.lastindex or 0)
    before, after = inner[0] - match.start(), match.end() - inner[1]
    return " " * before + match[match.lastindex or 0] + " " * after


def _items(text: str, worded: bool, symbols: bool) -> Iterator[AnswerItem]:
    money = text.count("$") % 2 == 1  # an even number of signs encloses formulas
    at, before = 0, "stop"
    while at < len(text):
        try:
            kind, number, end = _next(text, at, before, worded)
        except ExpressionTooLarge:
            yield AnswerItem("broken")
            return
        if number is not None:
            number, end, kind = _measured(text, number, end, symbols, money)
        if kind:
            before = kind
            yield AnswerItem(kind, number if kind == "value" else None)
        at = end


def _next(text: str, at: int, before: str, worded: bool) -> tuple[str, ParsedNumber | None, int]:
    """The kind of what stands at ``at`` (empty: nothing), its number, and its end."""
    if worded and (said := words_at(text, at)) is not None:
        value, end = said
        if value is None:
            return "broken", None, end
        return "value", ParsedNumber(value, False, at, text[at:end]), end
    if (text[at] not in "+-" or before not in ("value", "name", "broken")) and _VALUE.match(
        text, at
    ):
        if (last := _LAST.match(text, at)) is not None:  # as most answers: nothing to compute
            return "value", ParsedNumber(Fraction(last[0]), False, at, last[0]), last.end()
        if (read := read_value(text, at)) is not None:
            value, reader = read
            number = ParsedNumber(value, reader.percent, at, text[at : reader.at].strip())
            computed = reader.operators > 0
            return "value", number._replace(exact=reader.exact, computed=computed), reader.at
        if text[at] not in "+-([{" and (broken := _BROKEN.match(text, at)) is not None:
            return "broken", None, broken.end()
    return _mark(text, at)


def _mark(text: str, at: int) -> tuple[str, None, int]:
    """The kind and end of what is no number."""
    if (phrase := _PHRASE.match(text, at)) is not None:
        return _PHRASE_KINDS.get(str(phrase.lastgroup), str(phrase.lastgroup)), None, phrase.end()
    if (skipped := _SKIPPED.match(text, at)) is not None:
        return "", None, skipped.end()
    if (word := _WORD.match(text, at) or _COMMAND.match(text, at)) is not None:
        return _word_kind(word[0]), None, word.end()
    harmless = unicodedata.category(text[at])[0] in "LM" or unicodedata.category(text[at]) == "So"
    return "word" if harmless else "change", None, at + 1


def _word_kind(word: str) -> str:
    lower = word.lower()
    if _NOT.fullmatch(lower):
        return "not"
    if _CHANGES.fullmatch(lower.removeprefix("\\")):
        return "change"
    short = len(word) <= 2 and _SMALL.fullmatch(lower) is None and known_unit(word) is None
    return "name" if short or word[0] == "\\" or not re.sub(r"['’]", "", word).isalpha() else "word"


def _measured(
    text: str, number: ParsedNumber, end: int, symbols: bool, money: bool
) -> tuple[ParsedNumber, int, str]:
    """``number`` with the scale and unit behind it, where they end, and its kind."""
    touching, start = text[end : end + 1], end
    glued = touching.isalpha() and touching.isascii() and text[end - 1].isdigit()
    value, end = scaled(number.value, text, end, not symbols)
    unit, after = unit_at(text, end, money)
    if symbols and unit in _CAPITALS and "\\" not in text:
        unit, after = "", end
    end = after
    if not unit and (sign := _MONEY_BEFORE.search(text, max(0, number.start - 4), number.start)):
        unit = (known_unit(sign[1]) or sign[1]) if sign[1] != "$" or money else ""
    if end == start and (ordinal := _ORDINAL.match(text, end)) is not None:
        end = ordinal.end()
    if (glued and (end == start or (symbols and len(unit) == 1))) or _PART.match(text, end):
        broken = _BROKEN.match(text, start)
        return number, broken.end() if broken else end, "broken"
    return number._replace(value=value, unit=unit), end, "value"


_MAX_CHARS = 2_000  # of an answer that is read as a whole
_MAX_SENTENCE = 500  # of text without a marker
_SAME = Fraction(1, 10**40)  # relative; irrational values agree to more digits than this
_ROUNDED = Fraction(1, 100)  # relative; what "≈" may stand between
_CUE = re.compile(r"(?i)\banswer(?:\s+is\b|\**\s*[:=])[*:\s]*|####")
_MAX_CUES = 20
_SENTENCE = re.compile(r"(?:[^\n.!?]|[.!?](?!\s|\Z))++")
_BULLET = re.compile(r"\A(\s*)[-*•](\s)")
_DIGIT = re.compile(r"(?a)\d|\\(?:pi|sqrt)")


def read_number(text: str, *, symbols: bool = False, prose: bool = False) -> ParsedNumber | None:
    r"""The one number that the whole of ``text`` gives; ``None`` without one.

    The number may have a name ("x = 5"), a computation ("2 + 3 = 5"), a unit, and words that do
    not change it. What follows the last "answer is" counts for the whole. With ``symbols`` a
    letter that touches a numeral is a factor ("5k", "3m"), not a scale or a unit; in ``prose`` the
    last sign of "It is 5!" is no factorial.

    >>> read_number(r"$-\frac{3}{4}$").value
    Fraction(-3, 4)
    >>> read_number("about 1.5 million dollars").value
    Fraction(1500000, 1)
    >>> [read_number(text) for text in ("5 or 6", "5 to 6", "at least 5", "1 = 2")]
    [None, None, None, None]
    """
    text = text.strip()
    if _SIMPLE.fullmatch(text):
        return ParsedNumber(Fraction(text), False, 0, text)
    text = strip_wrappers(_EXCLAIMED.sub(".", text) if prose else text)
    if len(text) > _MAX_CHARS:
        return None
    numbers = [
        _one_number(list(find_affirmed_items(part, worded=True, symbols=symbols)), symbols)
        for part in _CUE.split(_EMPHASIS.sub(_blanked, to_latex(text)))[-_MAX_CUES:]
    ]
    last = numbers[-1]
    return last if last and all(one is None or _same(one, last) for one in numbers[1:]) else None


def find_last_number(text: str) -> ParsedNumber | None:
    """The number that a text without marker ends on; ``None`` without one.

    It is the first after the last "answer is", else the last of the last sentence that has any.
    A number that is denied ("not 6"), one of several joined ("5 or 6") and a part of something
    larger are no answer, and then nothing is read.

    >>> find_last_number("17 apples cost $1,234.50.").value
    Fraction(2469, 2)
    >>> find_last_number("The answer is 5, not 6.").value
    Fraction(5, 1)
    >>> find_last_number("5 or 6") is None, find_last_number("x14") is None
    (True, True)
    """
    text = _EXCLAIMED.sub(".", _EMPHASIS.sub(_blanked, to_latex(text)))
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


def numbers_match(
    answer: ParsedNumber, reference: ParsedNumber, rel_tol: float, abs_tol: float
) -> bool:
    """True when ``|answer − reference| ≤ max(abs_tol, rel_tol · |reference|)``.

    When only one of the two carries a percent sign, it may be meant or not: 50% matches 0.5 and 50.
    Two different units never match; a unit that only one of the two has is not compared.
    """
    if answer.unit and reference.unit and answer.unit != reference.unit:
        return False
    percents = [100 if one.percent else 1 for one in (answer, reference)]
    pairs = [
        (answer.value, reference.value),
        (answer.value if answer.rounded is None else answer.rounded, reference.value),
        (answer.value * percents[0], reference.value * percents[1]),
    ]
    rough = 0 if answer.exact and reference.exact else _SAME
    relative, absolute = max(Fraction(repr(rel_tol)), rough), Fraction(repr(abs_tol))
    return any(a == b or abs(a - b) <= max(absolute, relative * abs(b)) for a, b in pairs)


def _spoken(sentence: re.Match[str], *, first: bool) -> tuple[bool, ParsedNumber | None]:
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
    items = list(find_affirmed_items(_BULLET.sub(r"\1 \2", text)))
    places = [place for place, item in enumerate(items) if item.kind in ("value", "broken")]
    if not places:
        return False, None
    number = _one_number(items)
    if number is None:
        number = _unjoined(items, places, first)
    return True, number and number._replace(start=start + number.start)


def _unjoined(items: list[AnswerItem], places: list[int], first: bool) -> ParsedNumber | None:
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


def _one_number(items: list[AnswerItem], strict: bool = False) -> ParsedNumber | None:
    """The value of items that give one and nothing that may change it.

    ``strict``: "2 + 3 = 6" says nothing, else it says 6.
    """
    sides: list[tuple[str, list[AnswerItem]]] = [("=", [])]
    for item in items:
        if item.kind in ("=", "≈", "so"):
            sides.append((item.kind, []))
        else:
            sides[-1][1].append(item)
    values: list[tuple[str, ParsedNumber]] = []
    for relation, side in sides:
        kinds = _kinds(side)
        if kinds & {"change", "broken"}:
            return None
        numbers = [item.number for item in side if item.number is not None]
        if len(numbers) < 2 and "or" in kinds:
            return None
        if not numbers and not (strict and "op" in kinds):
            continue
        if kinds & {"name", "op"} or not all(_same(numbers[0], one) for one in numbers):
            return None
        unit = next((one.unit for one in numbers if one.unit), "")
        percent = all(one.percent for one in numbers)
        values.append((relation, numbers[-1]._replace(unit=unit, percent=percent)))
    return _chained(values, strict)


def _chained(values: list[tuple[str, ParsedNumber]], strict: bool) -> ParsedNumber | None:
    """The number that an equation of numbers says: all of them, or what a computation gives."""
    if not values:
        return None
    (_, number), *others = values
    computes = len(others) == 1 and number.computed and not others[0][1].computed
    if computes and others[0][0] != "≈" and not strict:
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


def _kinds(items: list[AnswerItem]) -> set[str]:
    return {item.kind for item in items}


def _same(first: ParsedNumber, second: ParsedNumber) -> bool:
    return numbers_match(first._replace(percent=False), second._replace(percent=False), 0.0, 0.0)
