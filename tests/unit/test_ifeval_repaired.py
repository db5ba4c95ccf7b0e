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
CHOICE, REPEAT = "detectable_format:constrained_response", "combination:repeat_prompt"
TWO = {"section_spliter": "Section", "num_sections": 2}
P_S = {"postscript_marker": "P.S."}

# Responses, each with whether it follows as published and as repaired: 10 is followed, then not.
ROWS: list[tuple[str, dict[str, Any], dict[str, str]]] = [
    (HIGHLIGHTS, {"num_highlights": 1}, {"2*3*4": "10", "a * b * c": "10", "f(*a, **b)": "10"}),
    (
        HIGHLIGHTS,
        {"num_highlights": 1},
        {"(**a b**)": "11", "x**2 y**2": "10", "これは*大事*です": "11"},
    ),
    (HIGHLIGHTS, {"num_highlights": 2}, {"***a*** b": "10", "*a* **b**": "11"}),
    (TITLE, {}, {"a << 2 and b >> 3": "10", "a<<2, b>>3": "10", "<< >>": "00", "<<**>>": "10"}),
    (TITLE, {}, {"# << My day >>\n\nx": "11", "Here: <<My day>> it is": "11"}),
    (KEYWORD, {"keywords": ["art"]}, {"I start smart.": "10", "an **art**.": "11", "_art_": "11"}),
    (KEYWORD, {"keywords": ["日本", "AI"]}, {"これは日本のAIです": "11"}),
    (KEYWORD, {"keywords": ["it's caf\u00e9"]}, {"It\u2019s\ncafe\u0301!": "01"}),
    ("keywords:frequency", {"keyword": "an", "frequency": 2, **AT_LEAST}, {"banana": "10"}),
    (
        "keywords:forbidden_words",
        {"forbidden_words": ["C++", "猫"]},
        {"C++ is": "10", "白猫だ": "10"},
    ),
    (NTH, SECOND, {"\n\nOne.\n\nSecond one.": "01", "One.\n\n**Second** one.": "01"}),
    (NTH, SECOND, {"One.\r\n \r\nSecond.": "01", "One.\n\nSeconds.": "00", "Second.\n\nOne": "00"}),
    (END, {"end_phrase": "Bye."}, {"Hi. **Bye.**": "01", "Goodbye.": "10", "Bye.<|im_end|>": "01"}),
    (SENTENCES, {"num_sentences": 3, **AT_LEAST}, {"今日は晴れ。明日は雨！明後日は？": "01"}),
    (SENTENCES, {"num_sentences": 2, **AT_LEAST}, {"मैं हूँ। तुम हो।": "01", "One, two.": "00"}),
    (WORDS, {"num_words": 3, **LESS}, {"don't well-known": "01", "1,000 dogs": "01"}),
    (WORDS, {"num_words": 5, **AT_LEAST}, {"今日は晴れ": "01", "_ _ _ _ _": "10"}),
    (PARAGRAPHS, {"num_paragraphs": 2}, {"a\n***\nb": "11", "a ***b***": "10"}),
    (PLACES, {"num_placeholders": 1}, {"[name]": "11", "[1], a[i], [ ]": "10", "[a b](x)": "10"}),
    (BULLETS, {"num_bullets": 1}, {"- a\n---": "01", "*a* b": "10", "-5 degrees": "10"}),
    (CHOICE, {}, {"My answer is yes. My answer is no.": "10", "**My answer is no.**": "11"}),
    (SECTIONS, TWO, {"Section 1 Section 1": "10", "**Section 1**\na\n# SECTION 2\nb": "01"}),
    (POSTSCRIPT, P_S, {"An ad lib p.s. of it": "10", "Bye\n**P.S.** more": "11", "P.S.": "10"}),
    ("detectable_format:json_format", {}, {"5": "10", '```json\n{"a": 1}\n```': "11"}),
    ("combination:two_responses", {}, {"Yes.\n******\nyes": "10", "Yes ****** No": "11"}),
    (REPEAT, {"prompt_to_repeat": "Say it, Sam."}, {"> *Say it,\nSam.* It.": "01"}),
    ("startend:quotation", {}, {"\u201cSo be it.\u201d": "01", '"So': "00"}),
    ("punctuation:no_comma", {}, {"好，的": "10", "好的": "11"}),
]


@pytest.mark.parametrize(("name", "kwargs", "rows"), ROWS)
def test_published_and_repaired(name: str, kwargs: dict[str, Any], rows: dict[str, str]) -> None:
    for response, expected in rows.items():
        graders = IFEvalGrader(), RepairedIFEvalGrader()
        found = [one.evaluate(response, [name], [kwargs]).score for one in graders]
        assert found == [*map(float, expected)], response


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
