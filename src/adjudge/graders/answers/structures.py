r"""What an answer is made of: values, names with values, lists, tuples, sets, intervals, relations.

:func:`read` takes the normal form of a whole answer apart; :func:`are_equal` compares two of them
by what they are: sets whatever their order, lists with their repeats, tuples in order, intervals as
sets of reals, equations up to a factor. Values are compared as
:mod:`~adjudge.graders.answers.expressions` does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any, NamedTuple

from adjudge.graders.answers import expressions
from adjudge.graders.answers.expressions import Values, are_close, evaluate, wide
from adjudge.graders.answers.normal_text import as_text
from adjudge.graders.answers.quantities import read_unit


class Structure(NamedTuple):
    """An answer, or a part of one.

    ``kind``: ``value`` (``parts``: its :class:`Values`), ``words``, ``equation`` (name, value),
    ``relation`` (an operator, the difference of its sides), ``named`` (pairs of name and value),
    ``list``, ``set``, ``tuple``, ``ratio``, ``matrix`` (rows), ``reals`` (disjoint intervals: low,
    is it closed, high, is it closed). ``text``: the value as written, a word, the brackets of a
    tuple, the name that a relation or a set of reals is about.
    """

    kind: str
    parts: tuple[Any, ...]
    text: str = ""
    unit: str = ""


_NESTED = r"(?P<open>\\begin\b|\\langle|\\\{|[(\[{])|(?P<close>\\end\b|\\rangle|\\\}|[)\]}])"
_LISTED = r"[,;]|\\word\{\s*(?:and|or|but)\s*\}|(?<![A-Za-z\\])(?:and|or)(?![A-Za-z])"
_SIGNS = {"<": ">", ">": "<", r"\le": r"\ge", r"\ge": r"\le", "=": "=", r"\ne": r"\ne"}
_RELATED = r"[=<>]|\\(?:le|ge|ne|in|approx)(?![A-Za-z])"
_UNITED = r"\\(?:cup|setminus)(?![A-Za-z])"
_BRACKETED = re.compile(r"(\(|\[|\\\{|\\langle)(.*)(\)|\]|\\\}|\\rangle)", re.DOTALL)
_BUILT = re.compile(
    r"\\\{\s*[A-Za-z]\s*(?:\\in\s*\\mathbb\s*\{R\}\s*)?(?:\\mid|\||:)(.*)\\\}", re.DOTALL
)
_MATRIX = re.compile(r"(.*)\\begin\{matrix\}(.*)\\end\{matrix\}[\s)\]]*", re.DOTALL)
_CASES = re.compile(r"(?:\\\{)?\s*\\begin\{cases\}(.*)\\end\{cases\}\s*", re.DOTALL)
_WORDS = re.compile(r"(?=.*[A-Za-z]{4})[A-Za-z][A-Za-z ,.'-]*+", re.DOTALL)
_SMALL = "in is of to it so an at on by or as be we he up do if no my us me go yes odd all one two"
_UNIT = re.compile(
    r"(?P<value>.*?[^\s\\])\s*(?P<unit>(?:\\frac\s*\{\s*)?\\word\{.*|(?<=[\s\d}])[A-Za-z]{2,}.*)",
    re.DOTALL,
)
_DECIMAL = re.compile(r"-?\d*\.(\d{3,})")
_PLUS_MINUS = re.compile(r"\\pm(?![A-Za-z])")
_TIME = re.compile(r"\d{1,2}(?:\s?:\s?\d\d){1,2}")


@lru_cache(maxsize=4096)
def read(text: str) -> Structure | None:
    r"""What all of an answer in normal form says; ``None`` where that is not understood.

    Raises :class:`~adjudge.graders.answers.expressions.ExpressionTooLarge`.
    """
    text = text.strip(" ,;?") if text.endswith("...") else text.strip(" .,;?")
    if re.search(r"[<>]|\\[lg]e\b", text):
        text = re.sub(r"\\l(or|and)\b", r"\\word{\1}", text)
    if (cases := _CASES.fullmatch(text)) is not None:
        rows = [row for row in cases[1].split(r"\\") if row.strip()]
        if any("&" in row.rstrip("& ") and "=" not in row for row in rows):
            cells = [_all(row.rstrip("& ").split("&")) for row in rows]
            return None if None in cells else Structure("matrix", tuple(cells), "cases")
        text = ", ".join(row.replace("&", " ").strip(" ,") for row in rows)
    elif "matrix}" not in text and r"\\" in text:
        rows = [row.replace("&", " ").strip() for row in text.split(r"\\")]
        text = ", ".join(row.strip(" ,") for row in rows if row).replace(", =", " =")
    text = text if "matrix}" in text else text.replace("&", " ")
    if (word := _word(text)) is not None:
        return Structure("words", (), word)
    parts = _split(text, _LISTED)
    if len(parts) > 1:
        return _listed(parts)
    sides = _split(text, _RELATED)
    if len(sides) > 1:
        return _related(sides)
    return _single(text) if text else None


def _word(text: str) -> str | None:
    """A text that is words: no product of letters."""
    inner = re.fullmatch(r"\\word\{([^{}]*)\}", text)
    if inner is not None:
        return None if read_unit(inner[1]) else as_text(text)
    short = text.isalpha() and text.isascii() and len(text) > 1
    product = len(text) < 4 and not set(text) - set("xyzuvw")
    if short and not product and (len(text) > 2 or not text.islower() or text in _SMALL.split()):
        return as_text(text)
    return as_text(text) if _WORDS.fullmatch(text) else None


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


def _all(texts: Sequence[str]) -> tuple[Structure, ...] | None:
    found = tuple(read(text) for text in texts)
    return None if None in found or not found else found  # type: ignore[return-value]


def _listed(parts: list[tuple[str, str]]) -> Structure | None:
    joined = "".join(separator for separator, _ in parts)
    items = _all([text for _, text in parts if text])
    if items is None:
        return None
    if len(items) == 1:
        return items[0]
    if (
        all(one.kind == "reals" and one.text for one in items)
        and len({one.text for one in items}) == 1
    ):
        intervals = [one.parts for one in items]
        both = _intersection(*intervals) if len(items) == 2 and "or" not in joined else None
        united = both if both else _union([one for several in intervals for one in several])
        return Structure("reals", tuple(united), items[0].text)
    if all(one.kind == "reals" and not one.text for one in items):
        return Structure("list", items)
    names = [one.text for one in items if one.kind == "equation"]
    if len(names) == len(items) and len(set(names)) == len(names):
        return Structure("named", tuple(sorted((one.text, one.parts[1]) for one in items)))
    if names and len(set(names)) == 1 and items[0].kind == "equation":
        items = tuple(one.parts[1] if one.kind == "equation" else one for one in items)
    flat = [inner for one in items for inner in (one.parts if one.text == r"\pm" else [one])]
    return Structure("list", tuple(flat))


def _related(sides: list[tuple[str, str]]) -> Structure | None:
    operators, texts = [one for one, _ in sides[1:]], [text for _, text in sides]
    if "" in texts:
        return None
    if operators[0] == r"\in" and len(sides) == 2 and re.fullmatch(r"\w", texts[0]):
        inner = read(texts[1])
        reals = _as_reals(inner) if inner else None
        if reals is not None:
            return Structure("reals", reals, texts[0])
        return _single(rf"{texts[0]} \in {texts[1]}")
    if r"\in" in operators:
        return _single(" ".join(part for side in sides for part in side).strip())
    if set(operators) <= {"=", r"\approx"}:
        return _equation(operators, texts)
    return _inequality(operators, texts)


def _equation(operators: list[str], texts: list[str]) -> Structure | None:
    name = _is_name(texts[0])
    if not name and len(texts) == 2 and _is_name(texts[1]) and operators == ["="]:
        texts, name = texts[::-1], True
    values = _all(texts[1:] if name else texts)
    if values is None:
        return None
    for operator, value in zip(operators[1 if name else 0 :], values[1:], strict=True):
        if operator == "=" and not are_equal(values[0], value):
            left = _all(texts)
            if (
                len(texts) > 2
                or left is None
                or not all(one.kind == "value" and len(one.parts[0].points) > 1 for one in left[:1])
            ):
                return None  # 3 + 4 = 6
            return _relation("=", *left)
        if operator != "=" and not _is_near(values[0], value):
            return None
    if not name:
        return values[-1] if operators[-1] == "=" else values[0]
    if len(texts) > 2:
        return Structure("equation", (texts[0], values[0]), as_text(texts[0]))
    if (names := re.fullmatch(r"\((.*)\)", texts[0])) is not None and values[0].kind == "tuple":
        keys = [as_text(one) for one in names[1].split(",")]
        if len(keys) == len(values[0].parts) and keys == sorted(keys):
            return Structure("named", tuple(zip(keys, values[0].parts, strict=True)))
        return None
    return Structure("equation", (texts[0], values[0]), as_text(texts[0]))


_NAME = re.compile(
    r"\((?:\s*\w\s*,)+\s*\w\s*\)|(?:[A-Za-z]|\\word\{[^{}]*\})(?:_\s?(?:\w|\{[^{}]*\})|'|\^\s*\{?\s*-1\s*\}?(?=\s*\())*\s*(?:\([^()=]*\))?"
    r"|[A-Z]{2,4}|[A-Za-z]{4,}[A-Za-z ]*|\|[^|=]+\||\\lim\s*_.*"
    r"|\\(?:sin|cos|tan|cot|sec|csc|log|ln|max|min|det)(?![A-Za-z])\s*(?:_\{?\w\}?)?\s*(?:\\?\w+|\([^()]*\)|\\angle\s*\w+|\{[^{}]*\}|[A-Za-z](?:\([^()]*\))?)"
    r"|\\(?:angle|triangle|overline|vec|hat|bar|Delta|mathbb\{\w\})\s*(?:\w+|\{[^{}]*\}|\\\w+)(?:\s*\([^()]*\))?"
    r"|\\(?:alpha|beta|gamma|theta|phi|varphi|lambda|omega|rho|mu|sigma|delta|epsilon|tau)(?:_\s?(?:\w|\{[^{}]*\}))?"
    r"|[α-ωΑ-Ω]|\\word\{[^{}]*\}.{0,20}",
    re.DOTALL,
)


def _is_name(text: str) -> bool:
    """Whether a value is given to it: ``x``, ``f(x)``, ``AB``, ``|z|``, ``\\sin\\theta``."""
    return _NAME.fullmatch(text) is not None and not re.fullmatch(r"e|i|\|[-\d.\s]*\|", text)


def _relation(operator: str, left: Structure, right: Structure) -> Structure | None:
    if left.kind != "value" or right.kind != "value":
        return None
    first, second = left.parts[0], right.parts[0]
    places = range(max(len(first.points), len(second.points)))
    points = tuple(wide(first.at(one)) - wide(second.at(one)) for one in places)
    if operator in (">", r"\ge"):
        operator, points = _SIGNS[operator], tuple(-one for one in points)
    ordered = first.ordered or second.ordered
    return Structure(
        "relation", (operator, Values(points, False, first.outside | second.outside, ordered))
    )


def _inequality(operators: list[str], texts: list[str]) -> Structure | None:
    """A bare name between bounds as a set of reals; anything else as a relation."""
    bare = [
        place for place, text in enumerate(texts) if re.fullmatch(r"[A-Za-z]|\\[a-z]+|\w_\w", text)
    ]
    bounds = _all(texts)
    if bounds is None or r"\approx" in operators:
        return None
    if len(bare) == 1 and "=" not in operators and len(texts) <= 3:
        low: Any = (-_infinity(), False)
        high: Any = (_infinity(), False)
        for place, operator in enumerate(operators):
            if bare[0] not in (place, place + 1):
                return None
            other = bounds[place if bare[0] == place + 1 else place + 1]
            bound = _real(other)
            if bound is None:
                break
            says = operator if bare[0] == place else _SIGNS[operator]
            if says == r"\ne":
                return Structure("reals", tuple(_without([(*low, *high)], bound)), texts[bare[0]])
            if says in ("<", r"\le"):
                high = (bound, says != "<")
            else:
                low = (bound, says != ">")
        else:
            return Structure("reals", ((low[0], low[1], high[0], high[1]),), texts[bare[0]])
    if len(texts) == 2:
        return _relation(operators[0], *bounds)
    return None


def _infinity() -> Any:
    return expressions.context().inf


def _real(one: Structure) -> Any:
    """A value that is one real number, infinity too."""
    if one.kind != "value" or len(one.parts[0].points) > 1:
        return None
    value = wide(one.parts[0].points[0])
    return value.real if value.imag == 0 else None


def _single(text: str) -> Structure | None:
    united = _split(text, _UNITED)
    if len(united) > 1:
        return _united(united) or _formula(text)
    if (built := _BUILT.fullmatch(text)) is not None:
        condition = read(built[1])
        return condition and (condition if condition.kind == "reals" else None)
    if (matrix := _MATRIX.fullmatch(text)) is not None:
        return _matrix(matrix[1].strip(), matrix[2])
    if text.startswith("]") and text.endswith("["):
        text = f"({text[1:-1]})"
    if _PLUS_MINUS.search(text):
        both = _all([_PLUS_MINUS.sub(sign, text) for sign in "+-"])
        return None if both is None else Structure("list", both, r"\pm")
    if (bracketed := _BRACKETED.fullmatch(text)) is not None:
        opening, inner, closing = bracketed.groups()
        parts = _split(inner, "[,;]")
        if opening == r"\{" and closing == r"\}":
            items = _all([one for _, one in parts]) if inner.strip() else ()
            return None if items is None else Structure("set", _flattened(items))
        if len(parts) > 1:
            items = _all([one for _, one in parts])
            brackets = ("[" if opening == "[" else "(") + ("]" if closing == "]" else ")")
            return None if items is None else Structure("tuple", items, brackets)
    ratio = _split(text, ":")
    if len(ratio) > 1:
        items = _all([one for _, one in ratio])
        return (
            None
            if items is None
            else Structure("ratio", items, text if _TIME.fullmatch(text) else "")
        )
    if text == r"\emptyset":
        return Structure("set", ())
    if text.replace(" ", "") == r"\mathbb{R}":
        return Structure("reals", ((-_infinity(), False, _infinity(), False),))
    return _formula(text)


def _flattened(items: tuple[Structure, ...]) -> tuple[Structure, ...]:
    return tuple(inner for one in items for inner in (one.parts if one.text == r"\pm" else [one]))


def _formula(text: str) -> Structure | None:
    unit = ""
    if (measured := _UNIT.fullmatch(text)) is not None:
        unit = read_unit(
            re.sub(
                r"\\word|[{}]",
                " ",
                re.sub(r"\\frac\s*\{(.*?)\}\s*\{(.*?)\}\s*", r"\1/\2", measured["unit"]),
            )
        )
        text = measured["value"] if unit else text
    values = evaluate(text)
    return None if values is None else Structure("value", (values,), text, unit)


def _matrix(factor: str, content: str) -> Structure | None:
    rows = [_all(row.split("&")) for row in content.split(r"\\") if row.strip()]
    scale = evaluate(factor) if factor not in ("", "(", "[") else None
    if None in rows or not rows or (scale is None and factor not in ("", "(", "[")):
        return None
    if scale is not None:
        rows = [tuple(_scaled(one, factor) for one in row) for row in rows if row]
    return Structure("matrix", tuple(rows))


def _scaled(one: Structure, factor: str) -> Structure | None:
    return _formula(f"({factor})({one.text})")


# Sets of reals.
Interval = tuple[Any, bool, Any, bool]


def _as_reals(one: Structure) -> tuple[Interval, ...] | None:
    if one.kind == "reals":
        return one.parts
    if one.kind == "set" and one.parts:
        points = [_real(item) for item in one.parts]
        return (
            None
            if None in points
            else tuple(_union([(point, True, point, True) for point in points]))
        )
    if one.kind != "tuple" or len(one.parts) != 2:
        return None
    low, high = map(_real, one.parts)
    if low is None or high is None or not low < high:
        return None
    return ((low, one.text[0] == "[", high, one.text[1] == "]"),)


def _united(parts: list[tuple[str, str]]) -> Structure | None:
    found: list[Interval] = []
    for operator, text in parts:
        one = read(text)
        reals = _as_reals(one) if one else None
        if reals is None:
            return None
        if operator == r"\setminus":
            if any(low != high for low, _, high, _ in reals):
                return None
            for point, *_ in reals:
                found = _without(found, point)
        else:
            found = _union([*found, *reals])
    return Structure("reals", tuple(found))


def _union(intervals: list[Interval]) -> list[Interval]:
    found: list[Interval] = []
    for low, closed, high, ends in sorted(intervals, key=lambda one: (one[0], not one[1])):
        if found and (low < found[-1][2] or (low == found[-1][2] and (closed or found[-1][3]))):
            before = found.pop()
            high, ends = max((before[2], before[3]), (high, ends))
            low, closed = before[:2]
        found.append((low, closed, high, ends))
    return found


def _intersection(first: Sequence[Interval], second: Sequence[Interval]) -> list[Interval]:
    found = []
    for one in first:
        for other in second:
            low, open_ = max((one[0], not one[1]), (other[0], not other[1]))
            high, ends = min((one[2], one[3]), (other[2], other[3]))
            if low < high or (low == high and ends and not open_):
                found.append((low, not open_, high, ends))
    return found


def _without(intervals: Sequence[Interval], point: Any) -> list[Interval]:
    infinity = _infinity()
    return _intersection(
        intervals, [(-infinity, False, point, False), (point, False, infinity, False)]
    )


# Comparison.
def are_equal(reference: Structure, answer: Structure) -> bool:
    """Whether two answers are one; a rounded decimal as the reference has a tolerance."""
    if (reference.kind == "equation") != (answer.kind == "equation") and "relation" not in (
        reference.kind,
        answer.kind,
    ):
        reference, answer = (
            one.parts[1] if one.kind == "equation" else one for one in (reference, answer)
        )
    if reference.unit and answer.unit and reference.unit != answer.unit:
        return False
    if "reals" in (reference.kind, answer.kind):
        first, second = _as_reals(reference), _as_reals(answer)
        named = reference.text and answer.text and {reference.kind, answer.kind} == {"reals"}
        if first is None or second is None or (named and reference.text != answer.text):
            return False
        return len(first) == len(second) and all(map(_same_interval, first, second))
    if reference.kind == "named" or answer.kind == "named":
        return _equal_named(reference, answer)
    compare = _COMPARED.get((reference.kind, answer.kind))
    return compare is not None and compare(reference, answer)


def _same_interval(first: Interval, second: Interval) -> bool:
    ends = zip(first[::2], second[::2], strict=True)
    return first[1::2] == second[1::2] and all(are_close(a, b) for a, b in ends)


def _equal_named(reference: Structure, answer: Structure) -> bool:
    both = reference.kind == answer.kind
    if both and [name for name, _ in reference.parts] != [name for name, _ in answer.parts]:
        return False
    if not both and {reference.kind, answer.kind} - {"named"} not in (
        {"tuple"},
        {"list"},
        {"matrix"},
    ):
        return False
    return _in_order(
        *(
            [value for _, value in one.parts] if one.kind == "named" else _items(one)
            for one in (reference, answer)
        )
    )


def _items(one: Structure) -> Sequence[Structure]:
    """The entries of a tuple, or of a matrix of one row or one column."""
    if one.kind != "matrix":
        return one.parts
    if len(one.parts) == 1:
        return one.parts[0]
    return [row[0] for row in one.parts] if all(len(row) == 1 for row in one.parts) else [one]


def _in_order(first: Sequence[Structure], second: Sequence[Structure]) -> bool:
    return len(first) == len(second) and all(map(_equal_parts, first, second))


def _equal_parts(first: Structure, second: Structure) -> bool:
    if first.kind == "words" and second.kind == "words":
        return first.text == second.text
    return are_equal(first, second)


def _equal_values(reference: Structure, answer: Structure) -> bool:
    wanted, said = reference.parts[0], answer.parts[0]
    if expressions.are_equal(wanted, said):
        return True
    places = _DECIMAL.fullmatch(reference.text)
    if places is None or _DECIMAL.fullmatch(answer.text) or len(said.points) > 1:
        return False
    value = said.points[0]
    if isinstance(value, Fraction) and 10**400 % value.denominator == 0:
        return False  # as exact as the reference
    gap = wide(value) - wide(wanted.points[0])
    return bool(abs(gap) <= 0.5 * 10.0 ** -len(places[1]))


def _is_near(first: Structure, second: Structure) -> bool:
    values = [_real(one) for one in (first, second)]
    return None not in values and bool(abs(values[0] - values[1]) <= abs(values[0]) / 100)


def _equal_lists(reference: Structure, answer: Structure) -> bool:
    wanted, said = list(reference.parts), list(answer.parts)
    if (
        all(one.kind == "words" or one.text.isalpha() for one in wanted)
        and reference.kind == "list"
    ):
        return _in_order(wanted, said)
    if "set" in (reference.kind, answer.kind):
        wanted, said = (_distinct(one) for one in (wanted, said))
    if len(wanted) != len(said):
        return False
    for one in wanted:
        place = next((at for at, other in enumerate(said) if _equal_parts(one, other)), None)
        if place is None:
            return False
        del said[place]
    return True


def _distinct(items: list[Structure]) -> list[Structure]:
    found: list[Structure] = []
    for one in items:
        if not any(_equal_parts(one, other) for other in found):
            found.append(one)
    return found


def _equal_tuples(reference: Structure, answer: Structure) -> bool:
    first, second = _items(reference), _items(answer)
    pair = len(first) == len(second) == 2 and reference.kind == answer.kind == "tuple"
    return not (pair and reference.text != answer.text) and _in_order(first, second)


def _equal_matrices(reference: Structure, answer: Structure) -> bool:
    return len(reference.parts) == len(answer.parts) and all(
        map(_in_order, reference.parts, answer.parts)
    )


def _equal_equations(reference: Structure, answer: Structure) -> bool:
    if reference.text == answer.text:
        return are_equal(reference.parts[1], answer.parts[1])
    sides = [
        _relation("=", _formula(one.parts[0]) or one, one.parts[1]) for one in (reference, answer)
    ]
    return None not in sides and _equal_relations(*sides)  # type: ignore[arg-type]


def _equal_relations(reference: Structure, answer: Structure) -> bool:
    """Whether the differences of the sides are one but for a factor, positive for an inequality."""
    first, second = (
        _relation("=", _formula(one.parts[0]) or one, one.parts[1])
        if one.kind == "equation"
        else one
        for one in (reference, answer)
    )
    if first is None or second is None or first.parts[0] != second.parts[0]:
        return False
    wanted, said = first.parts[1], second.parts[1]
    places = range(max(len(wanted.points), len(said.points)))
    if wanted.ordered or said.ordered or len(places) < 2:
        return False
    pairs = [(wanted.at(one), said.at(one)) for one in places]
    if any(not a or not b for a, b in pairs):
        return False
    ratio = pairs[0][0] / pairs[0][1]
    same = all(are_close(a, b * ratio) for a, b in pairs)
    return same and (first.parts[0] in ("=", r"\ne") or bool(ratio.imag == 0 and ratio.real > 0))


def _equal_ratios(reference: Structure, answer: Structure) -> bool:
    if reference.text or answer.text:  # a time
        return _in_order(reference.parts, answer.parts)
    wanted, said = (
        [
            "/".join(f"({one.text})" for one in (first, item))
            for first in one.parts[:1]
            for item in one.parts[1:]
        ]
        for one in (reference, answer)
    )
    if len(wanted) != len(said):
        return False
    pairs = [(evaluate(a), evaluate(b)) for a, b in zip(wanted, said, strict=True)]
    return all(a and b and expressions.are_equal(a, b) for a, b in pairs)


_COMPARED: dict[tuple[str, str], Callable[[Structure, Structure], bool]] = {
    ("value", "value"): _equal_values,
    ("words", "words"): lambda reference, answer: reference.text == answer.text,
    ("equation", "equation"): _equal_equations,
    ("equation", "relation"): _equal_relations,
    ("relation", "equation"): _equal_relations,
    ("relation", "relation"): _equal_relations,
    ("matrix", "matrix"): _equal_matrices,
    ("ratio", "ratio"): _equal_ratios,
    **{(one, other): _equal_lists for one in ("set", "list") for other in ("set", "list")},
    **{
        (one, other): _equal_tuples
        for one in ("tuple", "matrix")
        for other in ("tuple", "matrix")
        if one != other or one == "tuple"
    },
    ("tuple", "list"): _equal_tuples,
    ("list", "tuple"): _equal_tuples,
}
