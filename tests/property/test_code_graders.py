"""Code graders on any text: total, and true to what was written."""

import io
from typing import Any

from hypothesis import given, strategies as st

from adjudge.errors import ErrorKind, GradingFailure
from adjudge.graders.code.cases import parse_cases
from adjudge.graders.code.tester import Handle, Session
from adjudge.graders.code.values import PLAIN_TYPES, decode_tree, dumps, encode_tree, loads

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
json_values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)
code = st.text(alphabet="()[]{}:=+-*,.'\"\\\n\t ab1#@f", max_size=60)

TEST_PIECES = (
    *("assert ", "f(3)", " == ", "9", " is ", "x", "\n", "lambda: 0", "(", ")", ", ", "import sys"),
    *("sys.stdin", "class A(f): pass", "def check(c): ", "try: f()\nexcept E: pass", "isinstance"),
)


statements = code | st.lists(st.sampled_from(TEST_PIECES)).map("".join)


@given(json_values | st.lists(statements, min_size=1, max_size=1))
def test_reading_test_cases_fails_in_one_way_only(value: Any) -> None:
    kind = None
    try:
        assert parse_cases(value, "f")
    except GradingFailure as failure:
        kind = failure.kind
    assert kind in (None, ErrorKind.INVALID_INPUT, ErrorKind.UNSUPPORTED)


plain = st.recursive(
    scalars | st.binary() | st.complex_numbers() | st.builds(range, st.integers(), st.integers()),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(scalars, inner, max_size=3)
        | st.sets(scalars | st.tuples(scalars), max_size=3)
        | st.frozensets(scalars, max_size=3)
    ),
    max_leaves=12,
)


def _alive(value: object) -> Any:
    raise TypeError(f"not plain: {value!r}")


@given(plain)
def test_plain_values_arrive_as_they_were(value: Any) -> None:
    arrived = decode_tree(loads(dumps(encode_tree(value, live=_alive))))
    assert repr(_ordered(arrived)) == repr(_ordered(value))


def _ordered(value: Any) -> Any:
    """Comparable by its text: types and the order of dicts matter, that of sets does not."""
    if isinstance(value, set | frozenset):
        return (type(value), sorted(map(repr, map(_ordered, value))))
    if isinstance(value, list | tuple):
        return (type(value), [_ordered(item) for item in value])
    if isinstance(value, dict):
        return [(_ordered(key), _ordered(item)) for key, item in value.items()]
    return value


reply_trees = st.recursive(
    scalars,
    lambda inner: st.tuples(
        st.sampled_from(
            ["list", "dict", "set", "int", "range", "plus", "live", "complex", "bytes", "new"]
        ),
        st.integers(0, 2) | inner,
        inner,
        inner,
    ).map(list),
    max_leaves=8,
)


@given(reply_trees, reply_trees, st.sampled_from(["value", "error"]), st.lists(st.text() | scalars))
def test_replies_of_any_shape_are_values_or_refused(
    tree: Any, after: Any, said: str, more: list[Any]
) -> None:
    session = Session(io.BytesIO(), 0, 0)
    line = dumps([0, said, tree, after, *more]).encode() + b"\n"
    mine: list[int] = [1]
    try:
        raised, value = session.read(line, ["do", "call"], (None, [mine], {}))
    except Exception:  # noqa: BLE001
        return
    assert isinstance(raised, BaseException) == (said == "error")
    kind = type(value)
    standard = kind.__module__ in ("collections", "datetime", "decimal", "fractions")
    assert standard or kind in (*PLAIN_TYPES, Handle) or kind.__mro__[1] in PLAIN_TYPES
    assert type(mine) is list
