r"""What an answer is made of: values, names with values, lists, tuples, sets, intervals, relations.

:func:`read` takes the normal form of a whole answer apart; :func:`match_structures` compares two of
them by what they are: sets whatever their order, lists with their repeats, tuples in order,
intervals as sets of reals, equations up to a factor, values as
:func:`evaluate` computes them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from adjudge.graders.answers.answer_text import comparable_text
from adjudge.graders.answers.numerals import ExpressionTooLarge, context, read_unit, wide
from adjudge.graders.answers.reader import Reader

_POINTS = 4
# Times the difference of two equal values is less than they are, whatever has cancelled.
_SAME = 10**45


class Values(NamedTuple):
    """What an expression is worth at each point; one value where it has no names.

    ``exact``: as above. ``outside``: the points that lie outside its real domain. ``ordered``: its
    factors may not change places, so it is equal only as text.
    """

    points: tuple[Any, ...]
    exact: bool
    outside: frozenset[int]
    ordered: bool

    def at(self, place: int) -> Any:
        """The value at a point, also of an expression without names."""
        return self.points[min(place, len(self.points) - 1)]


@lru_cache(maxsize=512)
def evaluate(text: str) -> Values | None:
    r"""The values of all of an expression in normal form; ``None`` for other text.

    Raises :class:`ExpressionTooLarge`.

    >>> have_equal_values(evaluate(r"x\cdot(x+1)"), evaluate("x^2+x"))
    True
    """
    points: list[Any] = []
    outside: set[int] = set()
    for point in range(_POINTS):
        reader = Reader(text, 0, point)
        try:
            points.append(reader.enclosed())
        except (ValueError, ArithmeticError, TypeError):
            return None
        if reader.skipped() < len(text):
            return None
        outside |= {point} if reader.outside else set()
        if not reader.names:
            break
    return Values(tuple(points), reader.exact, frozenset(outside), reader.ordered)


def have_equal_values(first: Values, second: Values) -> bool:
    """Whether two expressions have the same values, where both have real ones."""
    if first.ordered or second.ordered:
        return False
    places = set(range(max(len(first.points), len(second.points))))
    places = places - first.outside - second.outside or places
    exact = first.exact and second.exact
    return all(are_close(first.at(one), second.at(one), exact) for one in places)


def are_close(first: Any, second: Any, exact: bool = False) -> bool:
    """Whether two values agree to 45 digits; to all where they are exact."""
    if first == second or exact:
        return bool(first == second)
    first, second = wide(first), wide(second)
    finite = map(context().isfinite, (first, second))
    return all(finite) and bool(abs(first - second) * _SAME <= max(abs(first), abs(second)))


class Structure(NamedTuple):
    """An answer, or a part of one.

    ``kind``: ``value`` (``parts``: its :class:`Values`), ``words``, ``equation`` (the value),
    ``relation`` (the difference of its sides), ``named`` (pairs of name and value), ``list``,
    ``set``, ``tuple``, ``ratio``, ``matrix`` (rows as tuples), ``reals`` (disjoint intervals: low,
    is it open, high, is it closed). ``text``: the value as written, a word, the brackets of a
    tuple, the operator of a relation, the name that an equation or a set of reals is about.
    """

    kind: str
    parts: tuple[Any, ...]
    text: str = ""
    unit: str = ""


Interval = tuple[Any, bool, Any, bool]

_NESTED = r"(?P<open>\\begin\b|\\langle|\\\{|[(\[{])|(?P<close>\\end\b|\\rangle|\\\}|[)\]}])"
_COMMA = r"[,;]"
_LISTED = rf"{_COMMA}|\\word\{{\s*(?:and|or|but)\s*\}}|(?<![A-Za-z\\])(?:and|or)(?![A-Za-z])"
_RELATED = r"[=<>]|\\(?:le|ge|ne|in|approx)(?![A-Za-z])"
_UNITED = r"\\(?:cup|setminus)(?![A-Za-z])"
_REVERSED = {"<": ">", ">": "<", r"\le": r"\ge", r"\ge": r"\le"}
_BRACKETED = re.compile(r"(?s)(\(|\[|\\\{|\\langle|\])(.*)(\)|\]|\\\}|\\rangle|\[)")
_BUILT = re.compile(r"\\\{\s*[A-Za-z]\s*(?:\\in\s*\\mathbb\s*\{R\}\s*)?(?:\\mid|\||:)(.*)\\\}")
_MATRIX = re.compile(r"(?s)[(\[\s]*\\begin\{(matrix|cases)\}(.*)\\end\{\1\}[\s)\]]*")
_WORDS = re.compile(r"(?s)(?=.*[A-Za-z]{4})[A-Za-z][A-Za-z ,.'-]*+")
_SMALL = " in is of to it so an at on by or as be we he up do if no my us me go "
_NAME = re.compile(
    r"[A-Z]{2,4}|[A-Za-z]\s*\([\w, ]*\)|\\lim\s*_.*|\\word\{[^{}]*\}.{0,20}"
    r"|[A-Za-z]{3,}(?: [A-Za-z]{3,})*"
)
_BARE = re.compile(r"[A-Za-z]|\\[a-z]+|\w_\w")
_UNIT = re.compile(r"(?s)(.*?[^\s\\])\s*((?:\\frac\s*\{\s*)?\\word\{.*|(?<=[\s\d}])[A-Za-z]{2,}.*)")
_QUOTIENT = re.compile(r"\\frac\s*\{(.*?)\}\s*\{(.*?)\}")
_ORDERED = {"tuple", "list", "matrix"}
_MAX_PARTS = 200
_DECIMAL = re.compile(r"-?\d*\.(\d{3,})")


@lru_cache(maxsize=512)
def read(text: str) -> Structure | None:
    r"""What all of an answer in normal form says; ``None`` where that is not understood.

    Raises :class:`~adjudge.graders.answers.reader.ExpressionTooLarge`.
    """
    text = text.strip(" ,;?" if text.endswith("...") else " .,;?")
    matrix = _MATRIX.fullmatch(text)
    if matrix is not None and (matrix[1] == "matrix" or re.search(r"&(?!\s*=)", matrix[2])):
        cells = [_all(row.split("&")) for row in matrix[2].split(r"\\") if row.strip()]
        return None if None in cells or not cells else Structure("matrix", tuple(cells), matrix[1])
    if r"\begin{matrix}" not in text:
        rows = (matrix[2] if matrix else text).replace("&", " ").split(r"\\")
        text = ", ".join(row.strip(" ,") for row in rows if row.strip(" ,")).replace(", =", " =")
    if re.search(r"[<>]|\\[lg]e\b", text):
        text = re.sub(r"\\l(or|and)\b", r"\\word{\1}", text)
    if (word := _word(text)) is not None:
        return Structure("words", (), word)
    for separators, combine in ((_LISTED, _listed), (_RELATED, _related), (_UNITED, _united)):
        parts = _split(text, separators)
        if len(parts) > 1:
            return combine(parts)
    return _single(text) if text else None


def _word(text: str) -> str | None:
    """A text that is words: no product of letters, no unit."""
    if (inner := re.fullmatch(r"\\word\{([^{}]*)\}", text)) is not None:
        return None if read_unit(inner[1]) else comparable_text(text)
    if text.isalpha() and text.isascii() and 1 < len(text) < 4:
        product = len(text) == 2 and text.islower() and f" {text} " not in _SMALL
        return None if product or not set(text) - set("xyzuvw") else comparable_text(text)
    return comparable_text(text) if _WORDS.fullmatch(text) else None


def _split(text: str, separators: str) -> list[tuple[str, str]]:
    """The parts of ``text`` outside brackets, each with the separator before it."""
    found, depth, start, before = [], 0, 0, ""
    for token in _tokens(separators).finditer(text):
        depth += bool(token["open"]) - bool(token["close"])
        if depth == 0 and token["separator"]:
            found.append((before, text[start : token.start()].strip()))
            start, before = token.end(), token["separator"]
    return [*found, (before, text[start:].strip())]


@lru_cache
def _tokens(separators: str) -> re.Pattern[str]:
    return re.compile(rf"(?P<separator>{separators})|{_NESTED}|\\[A-Za-z]+|\\.")


def _all(texts: Iterable[str]) -> tuple[Structure, ...] | None:
    texts = list(texts)
    if len(texts) > _MAX_PARTS:
        raise ExpressionTooLarge
    found = tuple(map(read, texts))
    return None if None in found else found  # type: ignore[return-value]


def _listed(parts: list[tuple[str, str]]) -> Structure | None:
    items = _all(text for _, text in parts if text)
    if not items or len(items) == 1:
        return items[0] if items else None
    names = {one.text for one in items if one.kind in ("equation", "reals")}
    if all(one.kind == "reals" and one.text for one in items) and len(names) == 1:
        joined = re.sub(r"\W|word", "", "".join(sign for sign, _ in parts))
        both = [] if "or" in joined else _intersection(items[0].parts, items[1].parts)
        united = both or _union([one for item in items for one in item.parts])
        return Structure("reals", tuple(united), items[0].text)
    equations = [one.kind == "equation" for one in items]
    if all(equations) and len(names) == len(items):
        return Structure("named", tuple(sorted((one.text, one.parts[0]) for one in items)))
    if equations[0] and len(names) == 1:
        items = tuple(one.parts[0] if one.kind == "equation" else one for one in items)
    return Structure("list", _flat(items))


def _flat(items: Iterable[Structure]) -> tuple[Structure, ...]:
    return tuple(inner for one in items for inner in (one.parts if one.text == r"\pm" else [one]))


def _related(sides: list[tuple[str, str]]) -> Structure | None:  # noqa: PLR0911  (a kind each)
    signs, texts = [sign for sign, _ in sides[1:]], [text for _, text in sides]
    if r"\in" in signs:
        reals = (
            _as_reals(read(texts[-1])) if len(sides) == 2 and _BARE.fullmatch(texts[0]) else None
        )
        whole = " ".join(part for side in sides for part in side)
        return _value(whole) if reals is None else Structure("reals", reals, texts[0])
    if "" in texts or not set(signs) <= {"=", r"\approx"}:
        return None if "" in texts or r"\approx" in signs else _inequality(signs, texts)
    if not _is_name(texts[0]) and signs == ["="] and _is_name(texts[1]):
        texts.reverse()
    named = _is_name(texts[0])
    values = _all(texts[1:] if named else texts)
    if values is None:
        return None
    for sign, value in zip(signs[named:], values[1:], strict=True):
        if not (match_structures if sign == "=" else _is_near)(values[0], value):
            free = values[0].kind == "value" and len(values[0].parts[0].points) > 1
            return _relation("=", *values) if free and len(values) == 2 and sign == "=" else None
    if not named:
        return values[-1] if signs[-1] == "=" else values[0]
    names = re.fullmatch(r"\(([\w, ]*)\)", texts[0])
    if names is None:
        return Structure("equation", (values[0],), comparable_text(texts[0]))
    pairs = list(zip(names[1].replace(" ", "").split(","), values[0].parts, strict=False))
    return Structure("named", tuple(sorted(pairs))) if values[0].kind == "tuple" else None


def _is_name(text: str) -> bool:
    r"""Whether it may be given a value: ``f(x)``, ``AB``, ``|z|``, ``\sin\theta``, ``(x,y)``."""
    if _NAME.fullmatch(text) or re.fullmatch(r"\(\s*\w\s*(?:,\s*\w\s*)+\)", text):
        return True
    reader = Reader(text, 0, 0)
    try:
        reader.atom()
    except (ValueError, ArithmeticError, TypeError, ExpressionTooLarge):
        return False
    return reader.names and reader.skipped() == len(text) and not re.match(r"\\\w+\s*\^", text)


def _relation(sign: str, left: Structure, right: Structure) -> Structure | None:
    if left.kind != "value" or right.kind != "value":
        return None
    if sign in (">", r"\ge"):
        sign, left, right = _REVERSED[sign], right, left
    first, second = left.parts[0], right.parts[0]
    places = range(max(len(first.points), len(second.points)))
    gaps = tuple(wide(first.at(one)) - wide(second.at(one)) for one in places)
    outside, ordered = first.outside | second.outside, first.ordered or second.ordered
    return Structure("relation", (Values(gaps, False, outside, ordered),), sign)


def _as_relation(one: Structure) -> Structure | None:
    left = _value(one.text) if one.kind == "equation" else None
    return _relation("=", left, one.parts[0]) if left else one if one.kind == "relation" else None


def _inequality(signs: list[str], texts: list[str]) -> Structure | None:
    """A bare name between bounds as a set of reals, anything else as a relation."""
    sides = _all(texts)
    bare = [place for place, text in enumerate(texts) if _BARE.fullmatch(text)]
    if sides is None or len(sides) > 3:
        return None
    bounds = [_real(one) for one in sides]
    if len(bare) == 1 and bounds.count(None) == 1 and (len(sides) == 2 or bare == [1]):
        found = _everything()
        for place, sign in enumerate(signs):
            bound = bounds[place + (place + 1 != bare[0])] if bare[0] else bounds[1]
            says = sign if bare[0] == place else _REVERSED.get(sign, sign)
            low, high = (-context().inf, True), (context().inf, False)
            if says == r"\ne":
                found = _without(found, bound)
            elif says in ("<", r"\le"):
                found = _intersection(found, [(*low, bound, says != "<")])
            else:
                found = _intersection(found, [(bound, says == ">", *high)])
        return Structure("reals", tuple(found), texts[bare[0]])
    return _relation(signs[0], *sides) if len(sides) == 2 else None


def _single(text: str) -> Structure | None:
    if (built := _BUILT.fullmatch(text)) is not None:
        condition = read(built[1])
        return condition if condition and condition.kind == "reals" else None
    if re.search(r"\\pm(?![A-Za-z])", text):
        both = _all(re.sub(r"\\pm(?![A-Za-z])", sign, text) for sign in "+-")
        return None if both is None else Structure("list", both, r"\pm")
    if (bracketed := _BRACKETED.fullmatch(text)) is not None:
        opening, inner, closing = bracketed.groups()
        parts = [one for _, one in _split(inner, _COMMA)] if inner.strip() else []
        items = _all(parts) if len(parts) != 1 or opening == r"\{" else None
        if items is not None and (opening == r"\{") == (closing == r"\}"):
            closed = (opening == "[", closing == "]")
            kind, items = ("set", _flat(items)) if opening == r"\{" else ("tuple", items)
            return Structure(kind, items, str(closed))
    ratio = [one for _, one in _split(text, ":")]
    if len(ratio) > 1:
        items = _all(ratio)
        return None if items is None else Structure("ratio", items)
    if text == r"\emptyset":
        return Structure("set", ())
    return Structure("reals", tuple(_everything())) if text == r"\mathbb{R}" else _value(text)


def _value(text: str) -> Structure | None:
    unit = ""
    if (measured := _UNIT.fullmatch(text)) is not None:
        unit = read_unit(re.sub(r"\\word|[{}]", " ", _QUOTIENT.sub(r"\1/\2", measured[2])))
        text = measured[1] if unit else text
    values = evaluate(text)
    return None if values is None else Structure("value", (values,), text, unit)


# Sets of reals.
def _real(one: Structure) -> Any:
    """A value that is one real number, infinity too."""
    if one.kind != "value" or len(one.parts[0].points) > 1:
        return None
    value = wide(one.parts[0].points[0])
    return value.real if value.imag == 0 else None


def _everything() -> list[Interval]:
    return [(-context().inf, True, context().inf, False)]


def _as_reals(one: Structure | None) -> tuple[Interval, ...] | None:
    if one is None or one.kind == "reals":
        return one and one.parts
    ends: list[Any] = [_real(part) for part in one.parts if one.kind in ("set", "tuple")] or [None]
    if None in ends or (one.kind == "tuple" and (len(ends) != 2 or not ends[0] < ends[1])):
        return None
    if one.kind == "set":
        return tuple(_union([(point, False, point, True) for point in ends]))
    return ((ends[0], not one.text.startswith("(T"), ends[1], one.text.endswith("True)")),)


def _united(parts: list[tuple[str, str]]) -> Structure | None:
    found: list[Interval] = []
    for sign, text in parts:
        reals, less = _as_reals(read(text)), sign == r"\setminus"
        if reals is None or (less and any(low != high for low, _, high, _ in reals)):
            return _value(" ".join(part for one in parts for part in one).strip())
        found = found if less else _union([*found, *reals])
        for point, *_ in reals if less else ():
            found = _without(found, point)
    return Structure("reals", tuple(found))


def _union(intervals: list[Interval]) -> list[Interval]:
    found: list[Interval] = []
    for one in sorted(intervals):
        last = found[-1] if found else None
        if last and (one[0], one[1] and not last[3]) <= (last[2], False):
            found[-1] = (*last[:2], *max(last[2:], one[2:]))
        else:
            found.append(one)
    return found


def _intersection(first: Sequence[Interval], second: Sequence[Interval]) -> list[Interval]:
    pairs = [(max(a[:2], b[:2]), min(a[2:], b[2:])) for a in first for b in second]
    return [
        (*low, *high)
        for low, high in pairs
        if low[0] < high[0] or (low[0] == high[0] and not low[1] and high[1])
    ]


def _without(intervals: Sequence[Interval], point: Any) -> list[Interval]:
    infinity = context().inf
    rest = [(-infinity, True, point, False), (point, True, infinity, False)]
    return _intersection(intervals, rest)


# Comparison.
def match_structures(reference: Structure, answer: Structure) -> bool:  # noqa: PLR0911  (a kind each)
    """Whether two answers are one; a rounded decimal as the reference has a tolerance."""
    kinds = {reference.kind, answer.kind}
    if kinds == {"equation", "relation"} or (
        kinds == {"equation"} and reference.text != answer.text
    ):
        sides = [_as_relation(one) for one in (reference, answer)]
        return bool(sides[0] and sides[1]) and match_structures(*sides)  # type: ignore[arg-type]
    if "equation" in kinds:
        reference, answer = (
            one.parts[0] if one.kind == "equation" else one for one in (reference, answer)
        )
        kinds = {reference.kind, answer.kind}
    if reference.unit and answer.unit and reference.unit != answer.unit:
        return False
    if "reals" in kinds:
        first, second = _as_reals(reference), _as_reals(answer)
        about = {one.text for one in (reference, answer) if one.kind == "reals" and one.text}
        if first is None or second is None or len(first) != len(second) or len(about) > 1:
            return False
        return all(
            a[1::2] == b[1::2] and all(map(are_close, a[::2], b[::2]))
            for a, b in zip(first, second, strict=True)
        )
    if "named" in kinds:
        several = [one.parts for one in (reference, answer) if one.kind == "named"]
        same = [name for name, _ in several[0]] == [name for name, _ in several[-1]]
        return same and kinds <= {"named", *_ORDERED} and _in_order(reference, answer)
    if kinds == {"value"}:
        return _equal_values(reference, answer)
    if kinds <= {"set", "list"}:
        return _equal_lists(reference, answer)
    if kinds == {"relation"}:
        return reference.text == answer.text and _proportional(reference, answer)
    if kinds <= _ORDERED or kinds == {"ratio"}:
        pair = kinds == {"tuple"} and len(reference.parts) == 2
        return not (pair and reference.text != answer.text) and _in_order(reference, answer)
    return kinds == {"words"} and reference.text == answer.text


def _in_order(reference: Structure, answer: Structure) -> bool:
    first, second = _entries(reference), _entries(answer)
    return len(first) == len(second) and all(map(match_structures, first, second))


def _entries(one: Structure) -> Sequence[Structure]:
    """The parts in order; of a matrix its rows, and of one row or one column the entries."""
    if one.kind == "named":
        return [value for _, value in one.parts]
    if one.kind != "matrix":
        return one.parts
    if len(one.parts) == 1:
        return one.parts[0]  # type: ignore[no-any-return]
    column = all(len(row) == 1 for row in one.parts)
    return [row[0] if column else Structure("tuple", row) for row in one.parts]


def _equal_values(reference: Structure, answer: Structure) -> bool:
    wanted, said = reference.parts[0], answer.parts[0]
    places = _DECIMAL.fullmatch(reference.text)
    if have_equal_values(wanted, said) or places is None or len(said.points) > 1:
        return have_equal_values(wanted, said)
    value = said.points[0]
    if said.exact and 10**400 % value.denominator == 0:
        return False  # as exact as the reference
    return bool(abs(wide(value) - wide(wanted.points[0])) <= 0.5 * 10.0 ** -len(places[1]))


def _is_near(first: Structure, second: Structure) -> bool:
    values = [_real(one) for one in (first, second)]
    return None not in values and bool(abs(values[0] - values[1]) <= abs(values[0]) / 100)


def _equal_lists(reference: Structure, answer: Structure) -> bool:
    wanted, said = list(reference.parts), list(answer.parts)
    if reference.kind == "list" and all(one.text.isalpha() for one in wanted):
        return _in_order(reference, answer)
    if "set" in (reference.kind, answer.kind):
        return all(any(match_structures(one, other) for other in said) for one in wanted) and all(
            any(match_structures(one, other) for one in wanted) for other in said
        )
    for one in wanted:
        place = next((at for at, other in enumerate(said) if match_structures(one, other)), None)
        if place is None:
            return False
        del said[place]
    return not said


def _proportional(reference: Structure, answer: Structure) -> bool:
    """Whether the differences of the sides are one but for a factor, positive for an inequality."""
    wanted, said = reference.parts[0], answer.parts[0]
    places = range(max(len(wanted.points), len(said.points)))
    pairs = [(wanted.at(one), said.at(one)) for one in places]
    if wanted.ordered or said.ordered or len(pairs) < 2 or not all(a and b for a, b in pairs):
        return False
    ratio = pairs[0][0] / pairs[0][1]
    same = all(are_close(a, b * ratio) for a, b in pairs)
    return same and (reference.text in ("=", r"\ne") or (ratio.imag == 0 and ratio.real > 0))
