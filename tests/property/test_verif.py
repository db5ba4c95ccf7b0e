"""VerIF's parts for any constraints and any text: the formula, the interval, no other exception."""

from typing import Any

from hypothesis import given, settings, strategies as st

from adjudge.errors import ErrorKind, GradingFailure
from adjudge.graders.verif import (
    parse_constraints,
)

texts = st.text(max_size=30)


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)


@given(
    anything | st.fixed_dictionaries({"checkers": anything, "functions": anything}), st.booleans()
)
@settings(max_examples=40)
def test_rows_are_read_or_refused(value: Any, runs: bool) -> None:
    kind = None
    try:
        found = parse_constraints(value, where="row", runs=runs)
    except GradingFailure as failure:
        kind = failure.kind
    assert kind is ErrorKind.INVALID_INPUT or found.soft or found.rules
