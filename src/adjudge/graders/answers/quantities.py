"""Numbers in an answer, as people and models write them, with their units.

An answer is read as a whole, so everything in it is one of a few kinds of :class:`AnswerItem`.
Words that change nothing ("apples", "the total") are open and so not listed; those that do are
listed here. A number is what :mod:`adjudge.graders.answers.expressions` reads, with a scale word, a
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

from adjudge.graders.answers.expressions import MAX_EXPONENT, ExpressionTooLarge, read_value
from adjudge.graders.answers.finding import strip_wrappers
from adjudge.graders.answers.normal_text import to_latex


class ParsedNumber(NamedTuple):
    """An exact value, and where it stands.

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
    r"\\(?:text\w*|math(?:rm|bf|it|sf)|mbox|boxed|operatorname)\s*\{([^{}]*(?:\{[^{}]*\}[^{}]*)?)\}"
)
_QUOTIENT = re.compile(r"\\frac\s*\{\s*([A-Za-z]+)\s*\}\s*\{\s*([A-Za-z]+)(\^\d)?\s*\}")
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
    r"(?<![\d.,])(\d+),(?=\d\d?\s?(?:[€£]|EUR|[Ee]uros?\b|kr\b|zł|CHF|kg\b|km\b|cm\b|m\b))|(?<=€)(\d+),(?=\d\d\b)"
)
# A numeral that ends a sentence with an exclamation mark.
_EXCLAIMED = re.compile(r"(?<=[\d\s*_])!(?=[\"'”*]*(?:\s*\Z|\s*\n|\s+[A-Z]))")

# What stands at one place of the text, tried in the order of _next and _mark.
_LETTER = r"[A-Za-z\u00c0-\u024f\u0370-\u04ff]"
_SKIPPED = re.compile(  # <<2*3=6>> is a calculator note of GSM8K
    r"[\s(){}\[\]\"'“”‘’«»„$€£¥₹~#@!?¿¡;_`…•]|\\[^A-Za-z]|<<[^<>\n]{0,200}>>"
    r"|\\(?:left|right|q?quad|displaystyle)(?![A-Za-z])"
)
_VALUE = re.compile(
    r"[-+]*(?:[({[][-+({[ ]{0,10})?(?:\.?\d|\\(?:[dtc]?frac|sqrt|binom|pi)(?![A-Za-z]))", re.ASCII
)
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
    r"thousandth|millionth)s?|twice|double|triple|thrice|squared|cubed|factorial|root|negative|"
    r"minus|plus|times|inverse|reciprocal|power|none|neither|nothing|unknown|undefined|nan|inf|infinity|wrong|incorrect|false|hex|"
    r"(?:m|b|tr|quadr|quint)illi\w*|mil|mill|bil|mio|mrd|thou|grand|score|gross|myriad|"
    r"sin|cos|tan|cot|sec|csc|log|ln|exp|max|gcd|lcm|mod|lim|det"
)
_SMALL = re.compile(r"a|i|is|in|of|to|it|so|an|at|on|by|or|as|be|we|he|up|do|if|no|my|us|me")

# Counting words, scales and units.
_ONES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen "
    "fifteen sixteen seventeen eighteen nineteen"
)
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
_COUNTS = {word: value for value, word in enumerate(_ONES.split())}
_COUNTS |= {word: 10 * value for value, word in enumerate(_TENS.split(), 2)}
_SCALES = {"hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9}
_SCALES |= {"trillion": 10**12, "dozen": 12, "lakh": 10**5, "crore": 10**7}
_SHORT_SCALES = {"k": 10**3, "K": 10**3, "M": 10**6, "mn": 10**6, "mln": 10**6, "B": 10**9}
_SHORT_SCALES |= {"bn": 10**9, "tn": 10**12, "千": 10**3, "万": 10**4, "萬": 10**4}
_SHORT_SCALES |= {"亿": 10**8, "億": 10**8, "百": 100}
_COUNTED = "|".join([*_COUNTS, *_SCALES])
_PARTS = {"half": 2, "third": 3, "quarter": 4, "fourth": 4, "fifth": 5, "sixth": 6, "seventh": 7}
_PARTS |= {"halve": 2, "eighth": 8, "ninth": 9, "tenth": 10}
_COUNTING = re.compile(
    r"(?<!\w)(?P<less>(?:minus|negative)\s)?"
    rf"(?P<words>(?:(?:a|an|{_COUNTED})[-\s](?:and\s)?(?=(?:{_COUNTED})\b))*+(?:{_COUNTED})\b)",
    re.IGNORECASE,
)
_FRACTION_WORDS = re.compile(
    rf"(?:\sand\s|(?<!\w))(an?|{'|'.join(_COUNTS)})[-\s]({'|'.join(_PARTS)})s?\b(?!\s+(?:of|an?|the)\b)",
    re.IGNORECASE,
)
_SCALE = re.compile(rf"[-\s]*({'|'.join(_SCALES)})s?\b", re.IGNORECASE)
_MONEY_BEFORE = re.compile(r"([$€£¥₹])\s?\Z")
_SHORT_SCALE = re.compile(rf"({'|'.join(_SHORT_SCALES)})(?![A-Za-z0-9])")
_ORDINAL = re.compile(r"(?:\^\s*\{?\s*)?(?:st|nd|rd|th)(?![A-Za-z])")
_SPELLINGS = """mm millimeter millimetre|cm centimeter centimetre|m meter metre
|km kilometer kilometre|inch inches|ft foot feet|yd yard|mi mile|mg milligram|g gram gramme
|kg kilogram kilo|lb lbs pound|oz ounce|ml mL milliliter millilitre|L l liter litre|ms millisecond
|s sec second|min minute|h hr hrs hour|day|week|month|year yr yrs|Hz hertz|J joule|kJ kilojoule
|W watt|kW kilowatt|V volt|N newton|Pa pascal|mol mole|GB gigabyte|MB megabyte|kB KB kilobyte
|° degree deg|rad radian|$ dollar USD|€ euro EUR|£ GBP|¥ yen JPY|cent ¢|ha hectare|acre
|mi/h mph|km/h kph kmh|px pixel|dB decibel|eV|K kelvin|C coulomb|T tesla|F farad fahrenheit
|A amp ampere|H henry|Ω ohm|kΩ kilohm|Wb weber|lm lumen|lx lux|cd candela|bar|atm|cal calorie
|kcal kilocalorie|rpm|ppm|knot kn|u|Bq|Sv|Gy|S siemens|unit"""
_UNITS = {name: names.split()[0] for names in _SPELLINGS.split("|") for name in names.split()}
_METRIC = re.compile(r"[kMGTdcmµμnp](?:m|g|s|l|L|W|J|V|N|A|B|b|Pa|Hz|eV|mol|cal|F|C|K|T|H|Ω|Wb|Sv)")
_CAPITALS = frozenset(
    "KCTFAHSu"
)  # units only where LaTeX says so, beside numbers that letters multiply
_DEGREES = re.compile(r"\s*\^\s*\{?\s*\\circ\s*\}?|\s*degrees?\b")
_CELSIUS = re.compile(r"\s*([CF])(?:elsius|ahrenheit)?\b")
_UNIT = re.compile(
    r"\s*-?(square|cubic|sq)?\s*([kMmμµn]\s*Ω|[μµ]\s*[A-Za-z]+|[A-Za-z]+|Ω|[$€£¥₹¢])(?![\w(])",
    re.IGNORECASE,
)
_UNIT_POWER = re.compile(
    r"\s*\}*\s*(?:\^\s*\{?\s*(-?\d)\s*\}?|(squared|cubed)\b)|(?<=[a-z])([23])(?!\w)"
)
_UNIT_JOIN = re.compile(
    r"\s*(?:(/\s*(\(?)|per\b)|(\*|\\cdot(?![A-Za-z])))|(?=\s+(?:[A-Z]|[a-z]{1,3})\b)"
)
_POWERS = {"squared": 2, "square": 2, "sq": 2, "cubed": 3, "cubic": 3}


def find_affirmed_items(
    text: str, *, worded: bool = False, symbols: bool = False
) -> Iterator[AnswerItem]:
    """The items of ``text``, without those that are denied: "5, not 6" leaves 5.

    ``text`` as :func:`~adjudge.graders.answers.normal_text.to_latex` returns it. With ``worded``,
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
    if worded and (part := _FRACTION_WORDS.match(text, at)) is not None:
        return "value", ParsedNumber(_part(part), False, at, part[0]), part.end()
    if worded and (words := _COUNTING.match(text, at)) is not None:
        count, end = _counted(words["words"].lower()), words.end()
        if count is None:
            return "broken", None, end
        value = Fraction(count)
        if (part := _FRACTION_WORDS.match(text, end)) is not None and part[0][:1].isspace():
            value, end = value + _part(part), part.end()
        number = ParsedNumber(-value if words["less"] else value, False, at, text[at:end])
        return "value", number, end
    if (text[at] not in "+-" or before not in ("value", "name", "broken")) and _VALUE.match(
        text, at
    ):
        if (read := read_value(text, at)) is not None:
            number = ParsedNumber(read.number, read.percent, at, text[at : read.end].strip())
            number = number._replace(exact=read.exact, computed=not read.plain)
            return "value", number, read.end
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
    short = len(word) <= 2 and _SMALL.fullmatch(lower) is None and _known_unit(word) is None
    return "name" if short or word[0] == "\\" or not re.sub(r"['’]", "", word).isalpha() else "word"


def _measured(
    text: str, number: ParsedNumber, end: int, symbols: bool, money: bool
) -> tuple[ParsedNumber, int, str]:
    """``number`` with the scale and unit behind it, where they end, and its kind."""
    touching = text[end : end + 1]
    glued = touching.isalpha() and text[end - 1].isdigit()
    start, value = end, number.value
    while (scale := _SCALE.match(text, end)) and abs(value) < 10**MAX_EXPONENT:
        value, end = value * _SCALES[scale[1].lower()], scale.end()
    if (scale := _SHORT_SCALE.match(text, end)) is not None and not symbols:
        value, end = value * _SHORT_SCALES[scale[1]], scale.end()
    unit, after = _unit(text, end, money)
    if not (symbols and unit in _CAPITALS and "\\" not in text):
        end = after
    else:
        unit = ""
    if not unit and (sign := _MONEY_BEFORE.search(text, max(0, number.start - 4), number.start)):
        unit = _UNITS.get(sign[1], sign[1]) if sign[1] != "$" or money else ""
    if end == start and (ordinal := _ORDINAL.match(text, end)) is not None:
        end = ordinal.end()
    letter = symbols and len(unit) == 1
    unknown = glued and touching.isascii() and (end == start or letter)
    if unknown or _PART.match(text, end):
        broken = _BROKEN.match(text, start)
        return number, broken.end() if broken else end, "broken"
    return number._replace(value=value, unit=unit), end, "value"


def read_unit(text: str) -> str:
    """The unit that all of ``text`` is, such as ``m*s^-2``; empty for anything else.

    >>> read_unit("m/s^2") == read_unit("m s^{-2}") == "m*s^-2"
    True
    """
    text = _prepared(to_latex(text)).strip(" .")
    unit, end = _unit(text, 0, True)
    return unit if end and not text[end:].strip(" {}") else ""


def _unit(text: str, end: int, money: bool) -> tuple[str, int]:
    """The known unit behind a number, such as ``m/s^2``, and where it ends; empty without one."""
    if (degrees := _DEGREES.match(text, end)) is not None:
        scale = _CELSIUS.match(text, degrees.end())
        return ("°" + scale[1].upper(), scale.end()) if scale else ("°", degrees.end())
    powers: dict[str, int] = {}
    place, sign, grouped = end, 1, False
    while (word := _UNIT.match(text, place)) is not None:
        short = _known_unit(re.sub(r"\s", "", word[2]))
        if short is None or (short == "$" and word[2] == "$" and not money):
            break
        end = word.end()
        power = _UNIT_POWER.match(text, end)
        written = word[1] or (power and next(filter(None, power.groups()))) or "1"
        exponent = _POWERS.get(written.lower()) or int(written)
        powers[short] = powers.get(short, 0) + sign * exponent
        end = power.end() if power else end
        if grouped and text[end : end + 1] == ")":
            end, sign, grouped = end + 1, 1, False
        if (joined := _UNIT_JOIN.match(text, end)) is None:
            break
        if joined[1]:
            sign, grouped = -1, joined[2] == "("
        elif not grouped:
            sign = 1
        place = joined.end()
    names = [name + (f"^{power}" if power != 1 else "") for name, power in sorted(powers.items())]
    return "*".join(names), end


def _known_unit(word: str) -> str | None:
    lower = word.lower() if len(word) > 2 else word
    known = _UNITS.get(word) or _UNITS.get(lower) or _UNITS.get(lower.removesuffix("s"))
    return known or (word if _METRIC.fullmatch(word) else None)


def _part(match: re.Match[str]) -> Fraction:
    """What "three quarters" is."""
    return Fraction(_COUNTS.get(match[1].lower(), 1), _PARTS[match[2].lower()])


def _counted(words: str) -> int | None:
    """The number that counting words say; ``None`` for words that do not make one."""
    total, group, last, largest = 0, 0, 100, 10**15
    for word in re.split(r"[-\s]+(?:and\s+)?", words):
        scale = _SCALES.get(word.removesuffix("s"))
        if word in ("a", "an"):
            group, last = 1, 1
        elif scale == 100:
            group, last = (group or 1) * 100, 100
        elif scale is not None:
            if scale >= largest:
                return None
            total, group, last, largest = total + (group or 1) * scale, 0, 100, scale
        else:
            count = _COUNTS[word]
            if count >= last or (last < 100 and (last < 20 or count > 9)):
                return None
            group, last = group + count, count
    return total + group if words[:2] != "a " or total + group > 1 else None


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


def read_number(text: str, *, symbols: bool = False, prose: bool = False) -> ParsedNumber | None:
    r"""The one number that the whole of ``text`` gives; ``None`` without one.

    Around it may stand a name ("x = 5"), a computation ("2 + 3 = 5"), a unit, and words that do
    not change it. What follows the last "answer is" stands for the whole. With ``symbols`` a
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
        if not numbers:
            continue
        if kinds & {"name", "op"} or not all(_same(numbers[0], one) for one in numbers):
            return None
        values.append((relation, _merged(numbers)))
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


def _merged(numbers: list[ParsedNumber]) -> ParsedNumber:
    unit = next((one.unit for one in numbers if one.unit), "")
    return numbers[-1]._replace(unit=unit, percent=all(one.percent for one in numbers))
