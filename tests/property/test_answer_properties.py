"""What holds for every answer: it equals itself, and nothing that a policy writes can break it."""

from __future__ import annotations

import asyncio
import string
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from adjudge.errors import ErrorKind, GradingFailure
from adjudge.graders.answers.grader import AnswerGrader
from adjudge.types import GraderScore

SHARED_LOOP = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
FEW = settings(SHARED_LOOP, max_examples=20)


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


GRADER = AnswerGrader()


def grade(runner: asyncio.Runner, response: str, reference: Any, kind: str) -> GraderScore:
    return runner.run(GRADER.aevaluate(response, reference, kind))


def outcome_of(
    runner: asyncio.Runner, response: str, reference: Any, kind: str
) -> float | ErrorKind:
    try:
        return grade(runner, response, reference, kind).score
    except GradingFailure as failure:
        return failure.kind


numbers = st.one_of(
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.decimals(allow_nan=False, allow_infinity=False, places=3).map(str),
    st.tuples(st.integers(), st.integers(min_value=1)).map("{0[0]}/{0[1]}".format),
    st.integers(min_value=0).map("{:,}".format),
    st.integers(min_value=-100, max_value=100).map("{}%".format),
)
words = st.text(string.ascii_letters + string.digits + " é今,.", min_size=1).filter(str.strip)
wrapped = st.sampled_from(["{}", "<answer>{}</answer>", r"so \boxed{{{}}}.", "The answer is {}"])


hedges = st.sampled_from(
    [
        *["{} or {}", "{} to {}", "between {} and {}", "{}, {}", "{} and {}", "{} (or {})"],
        *["{}; {}", "{} = {}", "either {} or maybe {}", "{} vs {}", "{} → {}", "{}, {} or 7"],
    ]
)
marks = st.sampled_from(["<answer>{}</answer>", r"so \boxed{{{}}}.", "The answer is {}"])


@given(st.integers(-(10**9), 10**9), st.integers(-(10**9), 10**9), hedges, marks, st.booleans())
@SHARED_LOOP
def test_a_hedge_between_two_numbers_is_never_right(
    runner: asyncio.Runner, first: int, second: int, hedge: str, mark: str, want_first: bool
) -> None:
    if first != second:
        response = mark.format(hedge.format(first, second))
        assert grade(runner, response, first if want_first else second, "NUMBER").score == 0


@given(
    st.permutations(string.ascii_uppercase.replace("I", "")[:6]),
    st.integers(2, 5),
    st.sampled_from(["/", " or ", ", ", " and ", "|", ".", " ", "; ", ") or (", ""]),
    marks,
)
@SHARED_LOOP
def test_a_list_of_letters_is_never_right(
    runner: asyncio.Runner, letters: list[str], several: int, between: str, mark: str
) -> None:
    response = mark.format(between.join(letters[:several]))
    for letter in letters[:several]:
        assert grade(runner, response, letter, "MULTIPLE_CHOICE").score == 0


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(string.printable),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc"), inner, max_size=3),
    max_leaves=8,
).filter(lambda value: not isinstance(value, str))


@given(json_values)
@SHARED_LOOP
def test_a_json_value_equals_itself(runner: asyncio.Runner, value: Any) -> None:
    import json

    text = json.dumps(value, indent=1)
    reference = "null" if value is None else value
    assert grade(runner, text, reference, "JSON").score == 1
    if isinstance(value, list | dict):
        assert grade(runner, f"It is {text}, I think.", reference, "JSON").score == 1


terms = st.sampled_from(["x", "2y", r"\frac{a}{b}", r"\sqrt{x}", "x^2", r"\pi", "7"])


coordinates = st.floats(-1e6, 1e6, allow_subnormal=False)
sides = st.floats(1e-3, 1e6)
boxes = st.builds(lambda x, y, w, h: (x, y, x + w, y + h), coordinates, coordinates, sides, sides)


finite = st.floats(allow_nan=False, allow_infinity=False)


closed = st.just("<answer>{}</answer>")
ITSELF: dict[str, tuple[Any, Any]] = {
    "NUMBER": (wrapped, numbers),
    "MULTIPLE_CHOICE": (wrapped, st.sampled_from(string.ascii_uppercase)),
    **dict.fromkeys(("ANY", "EXACT", "OCRTEXT"), (closed | st.just("{}"), words)),
    "MATH_EXPRESSIONS": (closed, st.lists(terms, min_size=1, max_size=3).map(" + ".join)),
    "BBOX": (closed, boxes.map(list)),
}


@given(st.data())
@FEW
@pytest.mark.parametrize("kind", ITSELF)
def test_an_answer_equals_itself(runner: asyncio.Runner, kind: str, data: st.DataObject) -> None:
    wrappers, answers = ITSELF[kind]
    answer = data.draw(answers)
    assert grade(runner, data.draw(wrappers).format(answer), answer, kind).score == 1


SIGNS = r"""<answer> </answer> \boxed{ { } $ \ [ ] ( ) " - , 1 . / ^ % e9 A B. yes true x <think>
</think> ٣ ∞ \frac \sqrt ** [1,2,3,4] {"a":1}"""
TOKENS = [*SIGNS.split(), "not ", "\n", " ", "\ud800", "\x00"]
hostile = st.lists(st.sampled_from(TOKENS), max_size=30).map("".join) | st.text()
anything = st.one_of(hostile, st.none(), st.booleans(), finite, st.integers(), json_values)


@given(hostile, anything)
@settings(SHARED_LOOP, max_examples=100)
@pytest.mark.parametrize(
    "kind",
    ["NUMBER", "MULTIPLE_CHOICE", "BOOLEAN", "OCRTEXT", "BBOX", "ANY", "EXACT", "JSON", "auto"],
)
def test_whatever_comes_is_a_score_or_a_stated_failure(
    runner: asyncio.Runner, kind: str, response: str, reference: Any
) -> None:
    outcome = outcome_of(runner, response, reference, kind)
    if isinstance(outcome, ErrorKind):
        assert outcome in (ErrorKind.INVALID_INPUT, ErrorKind.UNSUPPORTED)
    else:
        assert 0 <= outcome <= 1


@given(hostile, hostile)
@FEW
@pytest.mark.parametrize("kind", ["MATH_EXPRESSIONS", "REGEX"])
def test_whatever_comes_to_a_process_too(
    runner: asyncio.Runner, kind: str, response: str, reference: str
) -> None:
    outcome = outcome_of(runner, response, reference, kind)
    if isinstance(outcome, ErrorKind):
        assert outcome in (ErrorKind.INVALID_INPUT, ErrorKind.TIMEOUT, ErrorKind.UNSUPPORTED)
    else:
        assert outcome in (0, 1)
