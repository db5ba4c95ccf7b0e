"""Where the repaired checks of IFEval differ from the published ones, and where they must not."""

from __future__ import annotations

from typing import Any

import pytest

from adjudge.graders.instructions.grader import IFEvalGrader, RepairedIFEvalGrader

AT_LEAST, LESS = {"relation": "at least"}, {"relation": "less than"}
HIGHLIGHTS = "detectable_format:number_highlighted_sections"
TITLE = "detectable_format:title"
NTH = "length_constraints:nth_paragraph_first_word"
SECOND = {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "second"}
KEYWORD = "keywords:existence"
SENTENCES = "length_constraints:number_sentences"
WORDS = "length_constraints:number_words"
END = "startend:end_checker"
PLACES = "detectable_content:number_placeholders"
BULLETS = "detectable_format:number_bullet_lists"
PARAGRAPHS = "length_constraints:number_paragraphs"
SECTIONS = "detectable_format:multiple_sections"
POSTSCRIPT = "detectable_content:postscript"
P_S = {"postscript_marker": "P.S."}

# Response, whether it follows as published, whether as repaired.
CASES: list[tuple[str, dict[str, Any], list[tuple[str, int, int]]]] = [
    (HIGHLIGHTS, {"num_highlights": 1}, [("2*3*4 = 24", 1, 0), ("a * b * c", 1, 0)]),
    (HIGHLIGHTS, {"num_highlights": 1}, [("f(*args, **more)", 1, 0), ("これは*大事*です", 1, 1)]),
    (
        HIGHLIGHTS,
        {"num_highlights": 1},
        [("(**a b**)", 1, 1), ("***a***", 1, 1), ("x**2 y**2", 1, 0)],
    ),
    (HIGHLIGHTS, {"num_highlights": 2}, [("***a*** b", 1, 0), ("*a* **b**", 1, 1)]),
    (TITLE, {}, [("a << 2 and b >> 3", 1, 0), ("a<<2, b>>3", 1, 0), ("<< >>", 0, 0)]),
    (
        TITLE,
        {},
        [("# << My day >>\n\nx", 1, 1), ("Here: <<My day>> it is", 1, 1), ("<<**>>", 1, 0)],
    ),
    (
        KEYWORD,
        {"keywords": ["art"]},
        [("I start smart.", 1, 0), ("an **art**.", 1, 1), ("_art_", 1, 1)],
    ),
    (KEYWORD, {"keywords": ["日本", "AI"]}, [("これは日本のAIです", 1, 1)]),
    (KEYWORD, {"keywords": ["it's caf\u00e9"]}, [("It\u2019s\ncafe\u0301!", 0, 1)]),
    ("keywords:frequency", {"keyword": "an", "frequency": 2, **AT_LEAST}, [("banana", 1, 0)]),
    (
        "keywords:forbidden_words",
        {"forbidden_words": ["C++", "猫"]},
        [("C++ is", 1, 0), ("白猫だ", 1, 0)],
    ),
    (NTH, SECOND, [("\n\nOne.\n\nSecond one.", 0, 1), ("One.\n\n**Second** one.", 0, 1)]),
    (
        NTH,
        SECOND,
        [("One.\r\n \r\nSecond.", 0, 1), ("One.\n\nSeconds.", 0, 0), ("Second.\n\nOne", 0, 0)],
    ),
    (
        END,
        {"end_phrase": "Bye."},
        [("Hi. **Bye.**", 0, 1), ("Goodbye.", 1, 0), ("Bye.<|im_end|>", 0, 1)],
    ),
    (SENTENCES, {"num_sentences": 3, **AT_LEAST}, [("今日は晴れ。明日は雨！明後日は？", 0, 1)]),
    (
        SENTENCES,
        {"num_sentences": 2, **AT_LEAST},
        [("मैं यहाँ हूँ। तुम वहाँ हो।", 0, 1), ("One, two.", 0, 0)],
    ),
    (WORDS, {"num_words": 3, **LESS}, [("don't well-known", 0, 1), ("1,000 dogs", 0, 1)]),
    (WORDS, {"num_words": 5, **AT_LEAST}, [("今日は晴れ", 0, 1), ("_ _ _ _ _", 1, 0)]),
    (PARAGRAPHS, {"num_paragraphs": 2}, [("a\n***\nb", 1, 1), ("a ***b***", 1, 0)]),
    (
        PLACES,
        {"num_placeholders": 1},
        [("[name]", 1, 1), ("see [1], a[i], [ ]", 1, 0), ("[a b](x)", 1, 0)],
    ),
    (BULLETS, {"num_bullets": 1}, [("- a\n---", 0, 1), ("*a* b", 1, 0), ("-5 degrees", 1, 0)]),
    ("detectable_format:constrained_response", {}, [("My answer is yes. My answer is no.", 1, 0)]),
    ("detectable_format:constrained_response", {}, [("**My answer is no.**", 1, 1)]),
    (
        SECTIONS,
        {"section_spliter": "Section", "num_sections": 2},
        [("Section 1 Section 1", 1, 0), ("**Section 1**\na\n# SECTION 2\nb", 0, 1)],
    ),
    (
        POSTSCRIPT,
        P_S,
        [("An ad lib p.s. of it", 1, 0), ("Bye\n**P.S.** more", 1, 1), ("P.S.", 1, 0)],
    ),
    ("detectable_format:json_format", {}, [("5", 1, 0), ('```json\n{"a": 1}\n```', 1, 1)]),
    ("combination:two_responses", {}, [("Yes.\n******\nyes", 1, 0), ("Yes ****** No", 1, 1)]),
    (
        "combination:repeat_prompt",
        {"prompt_to_repeat": "Say it, Sam."},
        [("> *Say it,\nSam.* It.", 0, 1)],
    ),
    ("startend:quotation", {}, [("\u201cSo be it.\u201d", 0, 1), ('"So', 0, 0)]),
    ("punctuation:no_comma", {}, [("好，的", 1, 0), ("好的", 1, 1)]),
]


@pytest.mark.parametrize(("name", "kwargs", "rows"), CASES)
def test_published_and_repaired(
    name: str, kwargs: dict[str, Any], rows: list[tuple[str, int, int]]
) -> None:
    for response, *expected in rows:
        graders = IFEvalGrader(), RepairedIFEvalGrader()
        found = [one.evaluate(response, [name], [kwargs]).score for one in graders]
        assert found == expected, response


def test_languages() -> None:
    grader = RepairedIFEvalGrader()
    for text, code in (("他昨天去了上海。", "zh-tw"), ("東京は晴れ", "ja"), ("오늘은 비", "ko")):
        found = {
            wanted: grader.evaluate(text, ["language:response_language"], [{"language": wanted}])
            for wanted in ("zh-tw", "ja", "ko")
        }
        assert [wanted for wanted, result in found.items() if result.score] == [code]
    capitals = "YES, I AGREE WITH YOU."
    assert grader.evaluate(capitals, ["change_case:english_capital"], [{}]).score == 1
