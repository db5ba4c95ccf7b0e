"""Each of IFEval's 25 instruction types, case by case, and what its arguments may be."""

from __future__ import annotations

from typing import Any

import pytest

from adjudge.errors import ErrorKind, GradingFailure
from adjudge.graders.instructions.grader import INSTRUCTIONS, parse_instructions
from adjudge.graders.instructions.text_analysis import (
    LANGUAGES,
    capital_words,
    detect_language,
    sentence_count,
)

AT_LEAST, LESS = {"relation": "at least"}, {"relation": "less than"}
ENGLISH = "the river was calm in the morning and nobody was on the bridge"
GERMAN = "Der Fluss war am Morgen ruhig, und niemand stand auf der Brücke."

CASES: list[tuple[str, dict[str, Any], list[str], list[str]]] = [
    (
        "keywords:existence",
        {"keywords": ["Cat", "dog"]},
        ["a cat, a DOG", "Concatenate dogmas", "caT ſ dog"],
        ["a cat", "", "c a t dog"],
    ),
    (
        "keywords:frequency",
        {"keyword": " an ", "frequency": 2, **AT_LEAST},
        ["An banana", "anan", "AN … an"],
        ["an", ""],
    ),
    (
        "keywords:frequency",
        {"keyword": "a.b", "frequency": 1, **LESS},
        ["axb", ""],
        ["A.B", "1 a.b é"],
    ),
    (
        "keywords:forbidden_words",
        {"forbidden_words": ["free", "C++", "naïve"]},
        ["freedom", "unfree_", "naïveté", "c+"],
        ["Free.", "(FREE)", "so NAÏVE!", "C++a"],
    ),
    (
        "keywords:letter_frequency",
        {"letter": "E", "let_frequency": 2, "let_relation": "at least"},
        ["eE", "eel"],
        ["e", "é è", ""],
    ),
    (
        "keywords:letter_frequency",
        {"letter": "#", "let_frequency": 2, "let_relation": "less than"},
        ["#", "none"],
        ["##"],
    ),
    ("language:response_language", {"language": "de"}, [GERMAN, "12345 …"], [ENGLISH]),
    (
        "length_constraints:number_sentences",
        {"num_sentences": 2, **AT_LEAST},
        ["One. Two.", "Wait! What?"],
        ["One", "Dr. No", "1.5 litres."],
    ),
    (
        "length_constraints:number_paragraphs",
        {"num_paragraphs": 2},
        ["a\n***\nb", "***a***b***", "a *** b", "a***b\r\n***"],
        ["a", "a***b***c", "a*** ***b", "", "***"],
    ),
    (
        "length_constraints:number_words",
        {"num_words": 3, **LESS},
        ["two words", "don't", "snake_case 1", "1.5"],
        ["one two three", "can't stop", "1,000,000", "e\u0301 a b"],
    ),
    (
        "length_constraints:nth_paragraph_first_word",
        {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "Then"},
        ["a\n\nthen b", "a\n\n'\"THEN, b", "a\n\nThen's", "a\n\nthen\n\n  "],
        ["a\n\nso", "then\n\na", "a\n\n\n\nthen", "then", "a\r\n\r\nthen"],
    ),
    (
        "detectable_content:number_placeholders",
        {"num_placeholders": 2},
        ["[a] [b]", "[] []", "[[x] [y]]", "[a\n[b] [c]"],
        ["[a]", "[a\n] [b]", "[[[a]"],
    ),
    (
        "detectable_content:postscript",
        {"postscript_marker": "P.S."},
        ["Bye.\nP.S. more", "p. s. more", "x p.s.y"],
        ["PS: more", "P.P.S", "p.  s."],
    ),
    (
        "detectable_content:postscript",
        {"postscript_marker": "P.P.S"},
        ["P.P.S more", "p. p. s"],
        ["P.S. more", "PPS"],
    ),
    ("detectable_content:postscript", {"postscript_marker": "NB:"}, ["nb: x"], ["nb x"]),
    (
        "detectable_format:number_bullet_lists",
        {"num_bullets": 2},
        ["* a\n* b", "- a\n  * b", "\n\n \n*a\n--", "-a\n\t- b\ntext", "* a\r\n* b"],
        ["* a", "** a\n* b", "* a\n* b\n- c", "*\n* b", "a * b\n* c"],
    ),
    (
        "detectable_format:constrained_response",
        {},
        ["My answer is yes.", "Well. My answer is maybe. So."],
        ["my answer is yes.", "My answer is yes", "My answer is\nno."],
    ),
    (
        "detectable_format:number_highlighted_sections",
        {"num_highlights": 2},
        ["*a* *b*", "**a** **b**", "*a* and **b**"],
        ["*a*", "*a*b*", "** **", "*a\nb* *c*", "**a**", "* * * *"],
    ),
    (
        "detectable_format:multiple_sections",
        {"section_spliter": "Section", "num_sections": 2},
        ["Section 1\nSection 2", "Section1Section 2", "Section 1 Section 2 Section 3"],
        ["Section 1", "SECTION 1\nSECTION 2", "Section A\nSection B"],
    ),
    (
        "detectable_format:json_format",
        {},
        ['{"a": 1}', "```json\n[1]\n```", "```JSON 1```", "```\nnull\n```", "NaN"],
        ["", "{a: 1}", "So: {}", "```json\n{}\n``` done", "[" * 100_000],
    ),
    (
        "detectable_format:title",
        {},
        ["<<Title>>\ntext", "a <<b>> c", "<<<x>>>"],
        ["<<>>", "<< >>", "<a>", "<<a\nb>>", ">>a<<", "<<<>>>"],
    ),
    (
        "combination:two_responses",
        {},
        ["a\n******\nb", "******a******b******"],
        ["a", "a******a", "a ******  a", "a******b******c", "a****** ******b"],
    ),
    (
        "combination:repeat_prompt",
        {"prompt_to_repeat": " Say so. "},
        ["Say so. So.", "  SAY SO.\n\nSo."],
        ["So. Say so.", "Say, so."],
    ),
    (
        "startend:end_checker",
        {"end_phrase": "The End."},
        ["It was. the end.", '"The End."', "The End.\n\n"],
        ["The End. Really", "The End"],
    ),
    ("startend:quotation", {}, ['"a"', ' "a" "b" \n', '""'], ['"', "“a”", 'a"', ""]),
    (
        "change_case:capital_word_frequency",
        {"capital_frequency": 2, "capital_relation": "at least"},
        ["NASA and ESA", "NASA'S", "A-B, C", "CANNOT", "I AM"],
        ["NASA", "Nasa Esa", "COVID-19", "NASA's", "1 2"],
    ),
    (
        "change_case:english_capital",
        {},
        [ENGLISH.upper(), "\u2160 1"],
        [ENGLISH, GERMAN.upper(), "123"],
    ),
    (
        "change_case:english_lowercase",
        {},
        [ENGLISH, ENGLISH + " 1,000!"],
        [ENGLISH.capitalize(), GERMAN.lower(), "123"],
    ),
    ("punctuation:no_comma", {}, ["a; b", "一，二"], ["a, b", "1,000"]),
]


def test_every_type_is_here() -> None:
    assert {name for name, *_ in CASES} == set(INSTRUCTIONS)
    assert len(INSTRUCTIONS) == 25


@pytest.mark.parametrize(
    ("name", "kwargs", "followed", "missed"), CASES, ids=[name for name, *_ in CASES]
)
def test_cases(name: str, kwargs: dict[str, Any], followed: list[str], missed: list[str]) -> None:
    [(_, check)] = parse_instructions([name], [kwargs])
    assert [text for text in followed if not check(text)] == []
    assert [text for text in missed if check(text)] == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("He said “so.” Then he left.", 1),
        ('He said "so." Then he left.', 2),
        # The reference's tokens go on to the end of the next word, so its marks count here too.
        ("Wait... what?! No!!! Yes.", 4),
        ("Mr. and Mrs. J. Smith met in the U.S. in Jan. last year.", 1),
        ("1. First.\n2. second item.\n3. Third.", 5),
    ],
)
def test_sentences(text: str, expected: int) -> None:
    assert sentence_count(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("I, NASA (ESA): U.S. COVID-19!", 5),
        ("NASA's NASA'S", 3),
        ("CANNOT cannot CANnot", 3),
        ("**BOLD** `CODE` “X”", 3),
    ],
)
def test_capital_words(text: str, expected: int) -> None:
    assert capital_words(text) == expected


def test_languages() -> None:
    assert detect_language(ENGLISH) == "en"
    assert detect_language(GERMAN) == "de"
    assert detect_language("早上河水很平静，桥上没有人。") == "zh-cn"
    assert detect_language("朝の川は静かで、橋の上には誰もいませんでした。") == "ja"
    assert detect_language(f"{ENGLISH} https://beispiel.de/der-weg-nach-hause der@weg.de") == "en"
    assert detect_language("https://a.b/c 12") is None
    assert len(LANGUAGES) == 55


@pytest.mark.parametrize(
    ("ids", "kwargs", "message"),
    [
        (["punctuation:no_comma"], None, "kwargs must be a list of at most 1000, got NoneType"),
        (["punctuation:commas"], [{}], "unknown instruction 'punctuation:commas' (known: "),
        (["keywords:existence"], [{"keywords": None}], "keywords:existence: keywords is missing"),
        (
            ["length_constraints:number_words"],
            [{"num_words": 1, "relation": "at most"}],
            "relation must be 'less than' or 'at least', got str",
        ),
        (
            ["length_constraints:nth_paragraph_first_word"],
            [{"num_paragraphs": 2, "nth_paragraph": 3, "first_word": "a"}],
            "nth_paragraph must be at most num_paragraphs",
        ),
        (["startend:end_checker"], [{"end_phrase": " "}], "end_phrase must be text that is not"),
        (["language:response_language"], [{"language": "zh"}], "language must be one of af, ar"),
        (["keywords:existence"], [{"keywords": []}], "keywords must be a list of 1 to"),
        (["keywords:existence"], [{"keywords": [""]}], "keywords must be a list of 1 to"),
    ],
)
def test_refused_arguments(ids: Any, kwargs: Any, message: str) -> None:
    with pytest.raises(GradingFailure) as caught:
        parse_instructions(ids, kwargs)
    assert caught.value.kind is ErrorKind.INVALID_INPUT
    assert message in str(caught.value)


@pytest.mark.parametrize("name", [name for name in INSTRUCTIONS if INSTRUCTIONS[name].arguments])
def test_every_argument_is_required(name: str) -> None:
    with pytest.raises(GradingFailure) as caught:
        parse_instructions([name], [{}])
    assert str(caught.value).startswith(f"{name}: ")
    assert "is missing" in str(caught.value)
