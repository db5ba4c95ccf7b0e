"""IFEval's checks on arbitrary text: total, equal to plain statements of them, linear in time."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from adjudge.graders.instructions import checks, text_analysis
from adjudge.graders.instructions.grader import (
    InstructionCheck,
    follows,
    iter_readings,
    parse_instructions,
)
from adjudge.graders.instructions.text_analysis import (
    capital_words,
    detect_language,
    sentence_count,
)

pytestmark = pytest.mark.slow  # many examples

ARGUMENTS: dict[str, dict[str, Any]] = {
    "keywords:existence": {"keywords": ["Dr", "é"]},
    "keywords:frequency": {"keyword": "a", "frequency": 2, "relation": "less than"},
    "keywords:forbidden_words": {"forbidden_words": ["a", "…"]},
    "keywords:letter_frequency": {"letter": "!", "let_frequency": 1, "let_relation": "at least"},
    "language:response_language": {"language": "de"},
    "length_constraints:number_sentences": {"num_sentences": 2, "relation": "at least"},
    "length_constraints:number_paragraphs": {"num_paragraphs": 2},
    "length_constraints:number_words": {"num_words": 3, "relation": "at least"},
    "length_constraints:nth_paragraph_first_word": {
        "num_paragraphs": 2,
        "nth_paragraph": 1,
        "first_word": "dr",
    },
    "detectable_content:number_placeholders": {"num_placeholders": 1},
    "detectable_content:postscript": {"postscript_marker": "P.S."},
    "detectable_format:number_bullet_lists": {"num_bullets": 1},
    "detectable_format:constrained_response": {},
    "detectable_format:number_highlighted_sections": {"num_highlights": 1},
    "detectable_format:multiple_sections": {"section_spliter": "Section", "num_sections": 1},
    "detectable_format:json_format": {},
    "detectable_format:title": {},
    "combination:two_responses": {},
    "combination:repeat_prompt": {"prompt_to_repeat": "Say so."},
    "startend:end_checker": {"end_phrase": "Peace!"},
    "startend:quotation": {},
    "change_case:capital_word_frequency": {
        "capital_frequency": 1,
        "capital_relation": "at least",
    },
    "change_case:english_capital": {},
    "change_case:english_lowercase": {},
    "punctuation:no_comma": {},
}
CHECKS = parse_instructions(list(ARGUMENTS), list(ARGUMENTS.values()))
ALL = [check for _, check in CHECKS]

FRAGMENTS = [
    *("*", "**", "***", "******", "-", "--", "\n", "\n\n", "\r\n", " ", "\t", "\u2028", "\u3000"),
    *("[", "]", "<<", ">>", "<", ">", '"', "'", "(", ")", "```json", "```", "{", "}", "1", "1,000"),
    *(".", "...", "!", "?", ",", ":", "P.S.", "p. s", "Section", "Section 1", "Say so.", "Peace!"),
    *(
        "Dr.",
        "U.S.",
        "B.",
        "NASA's",
        "DON'T",
        "CANNOT",
        "a",
        "The",
        "the",
        "É",
        "é",
        "ſ",
        "İ",
        "今",
    ),
    *("My answer is yes.", "\x00", "\ud800", "😀"),
]
texts = st.lists(
    st.one_of(
        st.sampled_from(FRAGMENTS), st.text(st.characters(exclude_categories=()), max_size=4)
    ),
    max_size=14,
).map("".join)
numbers = st.integers(0, 4)


@given(texts)
def test_every_check_answers_every_text(text: str) -> None:
    for _, check in CHECKS:
        assert check(text) in (True, False)


@given(texts)
def test_what_is_followed_strictly_is_followed_loosely(text: str) -> None:
    strict, loose = follows(text, ALL, "strict"), follows(text, ALL, "loose")
    assert all(b >= a for a, b in zip(strict, loose, strict=True))


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


@given(texts, numbers)
def test_bullets_as_stated(text: str, number: int) -> None:
    found = re.findall(r"^\s*\*[^\*].*$", text, re.MULTILINE)
    found += re.findall(r"^\s*-.*$", text, re.MULTILINE)
    assert checks.bullet_lists(text, number) == (len(found) == number)


@given(texts, numbers)
def test_placeholders_as_stated(text: str, number: int) -> None:
    assert checks.placeholders(text, number) == (len(re.findall(r"\[.*?\]", text)) >= number)


@given(texts)
def test_titles_as_stated(text: str) -> None:
    found = re.findall(r"<<[^\n]+>>", text)
    assert checks.title(text) == any(one.lstrip("<").rstrip(">").strip() for one in found)


@given(texts, numbers)
def test_paragraphs_as_stated(text: str, number: int) -> None:
    parts = re.split(r"\s?\*\*\*\s?", text)
    count = len(parts)
    for place, part in enumerate(parts):
        if not part.strip():
            if place not in (0, len(parts) - 1):
                count = -1
                break
            count -= 1
    assert checks.number_paragraphs(text, number) == (count == number)


@given(texts, st.sampled_from(["P.S.", "P.P.S"]))
def test_postscripts_as_stated(text: str, marker: str) -> None:
    pattern = {"P.S.": r"\s*p\.\s?s\..*$", "P.P.S": r"\s*p\.\s?p\.\s?s.*$"}[marker]
    stated = bool(re.findall(pattern, text.lower(), re.MULTILINE))
    assert checks.postscript(text, marker) == stated


@given(texts, numbers)
def test_highlights_as_stated(text: str, number: int) -> None:
    found = [one for one in re.findall(r"\*[^\n\*]*\*", text) if one.strip("*").strip()]
    doubles = re.findall(r"\*\*[^\n\*]*\*\*", text)
    count = len(found) + sum(bool(one[2:-2].strip()) for one in doubles)
    assert checks.highlighted_sections(text, number) == (count >= number)


@given(texts, numbers, st.booleans())
def test_words_as_stated(text: str, number: int, at_least: bool) -> None:
    count = len(re.findall(r"\w+", text))
    assert checks.number_words(text, number, at_least) == ((count >= number) is at_least)


@given(texts, st.sampled_from(["a", "the", "S", "dr.", "section 1", "é"]), numbers)
def test_keywords_as_stated(text: str, keyword: str, number: int) -> None:
    literal = re.escape(keyword)
    count = len(re.findall(literal, text, re.IGNORECASE))
    assert checks.keyword_existence(text, (keyword,)) == bool(count)
    assert checks.keyword_frequency(text, keyword, number, True) == (count >= number)
    alone = re.search(rf"\b{literal}\b", text, re.IGNORECASE)
    assert checks.forbidden_words(text, (keyword,)) == (alone is None)


@given(st.lists(st.sampled_from(["One thing.", "Is it?", "Go on!", "(So it is.)"]), max_size=9))
def test_plain_sentences_are_counted(sentences: list[str]) -> None:
    assert sentence_count(" ".join(sentences)) == len(sentences)
    assert sentence_count("\n".join(sentences)) == len(sentences)


@given(st.lists(st.sampled_from(["NASA", "A-B", "word", "Word", "X.", "(USA),", "12"]), max_size=9))
def test_plain_words_in_capitals_are_counted(chunks: list[str]) -> None:
    assert capital_words(" ".join(chunks)) == sum(chunk.isupper() for chunk in chunks)


@given(texts)
@settings(max_examples=50)
def test_detection_repeats_itself(text: str) -> None:
    found = detect_language(text)
    text_analysis._answer_for_words.cache_clear()
    assert detect_language(text) == found


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


HOSTILE = [
    *("*", "**", "***", "* ", "-", "- ", "[", "]", "<<", ">>", "<", '"', "'", "(", ")", "{", "```"),
    *(".", ". ", "..", "!", ",", ":", "\n", " ", "\r\n", "p.", "p. ", "s", "Section ", "Section 1"),
    *(
        "a",
        "A",
        "A'",
        "'S ",
        "é",
        "İ",
        "今",
        "_",
        "1",
        "a.b@",
        "http://",
        "@",
        "A\u2019",
        "Dr",
        "\x00",
    ),
]


def seconds(call: Callable[[], object]) -> float:
    """CPU time of one call, the best of three."""
    best = float("inf")
    for _ in range(3):
        start = time.process_time()
        call()
        best = min(best, time.process_time() - start)
    return best


def loosely(text: str, check: InstructionCheck) -> object:
    text_analysis._answer_for_words.cache_clear()
    return follows(text, [check], "loose")


@pytest.mark.parametrize(("name", "check"), CHECKS, ids=list(ARGUMENTS))
def test_time_grows_with_the_length_not_its_square(name: str, check: InstructionCheck) -> None:
    for unit in HOSTILE:
        for frame in ("{}", "X {}.\nX"):
            short, long = (frame.replace("{}", unit * (n // len(unit))) for n in (1_500, 24_000))
            taken = seconds(lambda text=short: loosely(text, check))  # type: ignore[misc]
            # 16 times the length: linear takes 16 times as long, quadratic 256.
            ratio = seconds(lambda text=long: loosely(text, check)) / max(taken, 1e-4)  # type: ignore[misc]
            assert ratio < 100, (unit, frame)
