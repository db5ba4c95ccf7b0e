"""IFEval's checks on arbitrary text: total, equal to plain statements of them, linear in time."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings, strategies as st

from adjudge.graders.ifeval import (
    InstructionCheck,
    follows,
    iter_readings,
    parse_instructions,
)
from adjudge.graders.ifeval_checks import detect_language

pytestmark = pytest.mark.slow  # many examples

TABLE = Path(__file__).parents[1] / "data" / "ifeval_cases.json"
ARGUMENTS: dict[str, dict[str, Any]] = {
    case["name"]: case["kwargs"] for case in json.loads(TABLE.read_text("utf-8"))["published"]
}
CHECKS = parse_instructions(list(ARGUMENTS), list(ARGUMENTS.values()))
REPAIRED = parse_instructions(list(ARGUMENTS), list(ARGUMENTS.values()), repaired=True)
ALL = [check for _, check in CHECKS]

SIGNS = """* ** *** ****** - -- [ ] << >> < > " ' ( ) ```json ``` { } 1 1,000 . ... ! ? , :
P.S. Section Peace! Dr. U.S. B. NASA's DON'T CANNOT a The the É é ſ İ 今 😀"""
FRAGMENTS = [*SIGNS.split(), "\n", "\n\n", "\r\n", " ", "\t", "\u2028", "\u3000", "p. s"]
FRAGMENTS += ["Section 1", "Say so.", "My answer is yes.", "\x00", "\ud800"]
texts = st.lists(
    st.one_of(
        st.sampled_from(FRAGMENTS), st.text(st.characters(exclude_categories=()), max_size=4)
    ),
    max_size=14,
).map("".join)


@given(texts)
def test_every_check_answers_every_text(text: str) -> None:
    for _, check in CHECKS + REPAIRED:
        assert check(text) in (True, False)


@given(texts)
def test_loose_is_any_of_the_eight_readings(text: str) -> None:
    lines = text.split("\n")
    shorter = ["\n".join(part).strip() for part in (lines[1:], lines[:-1], lines[1:-1])]
    eight = [text, *shorter]
    eight += [one.replace("*", "") for one in eight]
    assert set(iter_readings(text)) == set(eight)
    expected = [any(one.strip() and check(one) for one in eight) for check in ALL]
    assert follows(text, ALL, "loose") == expected


# The patterns by which these are commonly stated; some take quadratic time, so only short texts.


@given(
    st.lists(
        st.sampled_from([*FRAGMENTS, "the river ", "der Fluss ", "река ", "ắ", "ộ ", "عَ", "ไทย "]),
        max_size=30,
    )
)
@example(["the river река ", "ṯẖ " * 8])
@settings(max_examples=100)
def test_detection_is_that_of_the_seeded_library(parts: list[str]) -> None:
    library = pytest.importorskip("langdetect")
    library.DetectorFactory.seed = 0
    text = "".join(parts)
    try:
        expected = library.detect(text)
    except library.LangDetectException:
        expected = None
    assert detect_language(text) == expected


REPEATED = """* ** *** - [ ] << >> < " ' ( ) { ``` . .. ! , : p. s a A A' é İ 今 _ 1 a.b@
http:// @ A’ Dr"""
HOSTILE = [*REPEATED.split(), "* ", "- ", ". ", "\n", " ", "\r\n", "p. ", "Section ", "Section 1"]
HOSTILE += ["'S ", "\x00"]


def seconds(call: Callable[[], object]) -> float:
    """CPU time of one call, the best of three."""
    best = float("inf")
    for _ in range(3):
        start = time.process_time()
        call()
        best = min(best, time.process_time() - start)
    return best


def loosely(text: str, check: InstructionCheck) -> object:
    detect_language.cache_clear()
    return follows(text, [check], "loose")


@pytest.mark.parametrize(("name", "check"), CHECKS + REPAIRED)
def test_time_grows_with_the_length_not_its_square(name: str, check: InstructionCheck) -> None:
    for unit in HOSTILE:
        for frame in ("{}", "X {}.\nX"):
            short, long = (frame.replace("{}", unit * (n // len(unit))) for n in (1_500, 24_000))
            taken = seconds(lambda text=short: loosely(text, check))  # type: ignore[misc]
            # 16 times the length: linear takes 16 times as long, quadratic 256.
            ratio = seconds(lambda text=long: loosely(text, check)) / max(taken, 1e-4)  # type: ignore[misc]
            assert ratio < 100, (unit, frame)
