"""The form of a response: its tags, its length, repeated n-grams and its language."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.refusals import fails, refuses

from adjudge.errors import Cause, ErrorKind
from adjudge.graders.answers.grader import AnswerGrader
from adjudge.graders.rules.redundancy import ActionLoopDetectionGrader
from adjudge.graders.rules.response_form import (
    LanguageGrader,
    LengthPenaltyGrader,
    NgramRepetitionPenaltyGrader,
    ReasoningFormatGrader,
    ReasoningToolCallFormatGrader,
    SoftOverlongPunishmentGrader,
)
from adjudge.types import Role


@pytest.mark.parametrize(
    ("cls", "parameter", "value"),
    [
        (LengthPenaltyGrader, "max_length", 5),
        (LengthPenaltyGrader, "penalty_rate", float("nan")),
        (LengthPenaltyGrader, "unit", "tokens"),
        (NgramRepetitionPenaltyGrader, "n", 101),
        (LanguageGrader, "language", "xx"),
        *((ReasoningFormatGrader, "tags", one) for one in ([], ["<think>"], [3], "think")),
        *((SoftOverlongPunishmentGrader, "cache_length", one) for one in (0, 20481, 2.5)),
        *((ActionLoopDetectionGrader, "similarity_threshold", one) for one in (1.1, "1", None)),
        *((AnswerGrader, "pattern", one) for one in ("(", 5)),
        (AnswerGrader, "abs_tol", float("inf")),
    ],
)
def test_a_wrong_parameter_is_named(cls: Any, parameter: str, value: Any) -> None:
    with refuses(parameter):
        cls(**{parameter: value})


# Tags


GOOD = "<think>2+2</think><answer>4</answer>"


@pytest.mark.parametrize(
    ("response", "score", "reason"),
    [
        (GOOD, 1.0, "all tags in place"),
        (f"{GOOD}<|im_end|>\n", 1.0, "all tags in place"),
        ("<think></think><answer>4</answer>", 1.0, "all tags in place"),
        ("<think></think><answer></answer>", 0.0, "<answer> is empty"),
        ("<think>2+2</think><answer> \u200b\n</answer>", 0.0, "<answer> is empty"),
        ("", 0.0, "no <think>"),
        ("<think>2+2</think> so 4", 0.0, "no <answer>"),
        (f"Well: {GOOD}", 0.0, "<think> does not come next"),
        (f"{GOOD} Done.", 0.0, "text after the last tag"),
        ("<think>a</think> so <answer>4</answer>", 0.0, "<answer> does not come next"),
        ("<think>a<answer>4</answer></think>", 0.0, "<answer> does not come next"),
        (f"{GOOD}{GOOD}", 0.0, "<think> stands there 2 times"),
    ],
)
def test_tag_form(response: str, score: float, reason: str) -> None:
    result = ReasoningFormatGrader().evaluate(response)
    assert (result.score, result.reason) == (score, reason)


def test_other_tags() -> None:
    grader = ReasoningFormatGrader(tags=["plan", "code", "check"])
    assert grader.evaluate("<plan>p</plan><code>c</code><check>k</check>").score == 1.0


@pytest.mark.parametrize("grader", [ReasoningFormatGrader(), ReasoningToolCallFormatGrader()])
def test_a_response_that_is_not_text_cannot_be_judged(grader: ReasoningFormatGrader) -> None:
    with fails(ErrorKind.INVALID_INPUT, "response must be text, got list"):
        grader.evaluate(["text"])  # type: ignore[arg-type]  # hostile row


def call(body: object) -> str:
    text = body if isinstance(body, str) else json.dumps(body)
    return f"<tool_call>{text}</tool_call>"


CALL = call({"name": "search", "arguments": {"q": "x"}})


@pytest.mark.parametrize(
    ("response", "score", "reason"),
    [
        (GOOD, 1.0, "an answer"),
        ("<think>a</think><answer> </answer>", 0.0, "<answer> is empty"),
        (f"<think>a</think>{CALL}", 1.0, "1 tool calls"),
        (f" <think>a</think>\n{CALL}\n{CALL} ", 1.0, "2 tool calls"),
        ("<think>a</think>" + call({"name": "f", "arguments": '{"q": 1}'}), 1.0, "1 tool calls"),
        (CALL, 0.0, "does not start with a closed <think>"),
        ("<think>a</think>free text", 0.0, "no closed <answer> or <tool_call>"),
        (f"<think>a</think>{CALL}<answer>4</answer>", 0.0, "text after </tool_call>"),
        (f"<think>a</think><answer>4</answer>{CALL}", 0.0, "text after </answer>"),
        (f"<think>a</think>{CALL} and {CALL}", 0.0, "text outside <tool_call>"),
        (f"<think>{CALL}</think><answer>4</answer>", 0.0, "a tag inside <think>"),
        ("<think>a</think><answer><answer>4</answer>", 0.0, "a tag inside <answer>"),
        (
            f"<think>a</think>{CALL}" + call("{nope"),
            0.0,
            "tool call 2: Expecting property name enclosed in double quotes at character 1",
        ),
        (
            "<think>a</think>" + call({"name": "f"}),
            0.0,
            "tool call 1: not an object with name and arguments",
        ),
        (
            "<think>a</think>" + call({"name": "", "arguments": {}}),
            0.0,
            "tool call 1: name is not a text",
        ),
        (
            "<think>a</think>" + call({"name": "f", "arguments": [1]}),
            0.0,
            "tool call 1: arguments are not an object",
        ),
        (
            "<think>a</think>" + call('{"name": "f", "arguments": {"x": NaN}}'),
            0.0,
            "tool call 1: NaN is not JSON",
        ),
    ],
)
def test_tool_call_form(response: str, score: float, reason: str) -> None:
    result = ReasoningToolCallFormatGrader().evaluate(response)
    assert (result.score, result.reason) == (score, reason)
    assert f"{result.metadata['tool_calls']} tool calls" == reason or "tool calls" not in reason


# Lengths


@pytest.mark.parametrize(
    ("length", "penalty"),
    [(0, -0.1), (9, -0.01), (10, 0.0), (1000, 0.0), (1001, -0.01), (3000, -20.0)],
)
def test_the_penalty_has_no_floor(length: int, penalty: float) -> None:
    result = LengthPenaltyGrader().evaluate("x" * length)
    assert result.score == pytest.approx(penalty)
    assert (result.role, result.score_range, result.metadata) == (
        Role.PENALTY,
        (None, 0.0),
        {"length": length},
    )


def test_a_length_in_words() -> None:
    grader = LengthPenaltyGrader(unit="words")
    assert grader.evaluate("<think>one</think> two 三四").metadata == {"length": 6}


@pytest.mark.parametrize(
    ("tokens", "penalty"),
    # The paper's numbers: nothing up to 16,384 tokens, -1 from 20,480 on.
    [(0, 0.0), (16_384, 0.0), (17_408, -0.25), (18_432, -0.5), (20_480, -1.0), (10**400, -1.0)],
)
def test_soft_overlong_follows_the_equation(tokens: int, penalty: float) -> None:
    result = SoftOverlongPunishmentGrader().evaluate(response_length=tokens)
    assert result.score == penalty
    assert (result.role, result.score_range) == (Role.PENALTY, (-1.0, 0.0))
    assert str(SoftOverlongPunishmentGrader().evaluate(response_length=3).score) == "0.0"


def test_soft_overlong_in_other_units() -> None:
    chars = SoftOverlongPunishmentGrader(max_length=10, cache_length=4, unit="chars")
    assert chars.evaluate("<think>x").score == -0.5
    in_words = SoftOverlongPunishmentGrader(max_length=3, cache_length=2, unit="words")
    assert in_words.evaluate("two words").score == -0.5
    assert SoftOverlongPunishmentGrader().evaluate(response_length=18_432.0).score == -0.5


@pytest.mark.parametrize("tokens", [None, "12", -1, True, 1.5, float("nan"), [12]])
def test_tokens_need_a_token_count(tokens: Any) -> None:
    with fails(ErrorKind.INVALID_INPUT, "response_length"):
        SoftOverlongPunishmentGrader().evaluate("text", tokens)


# Repeated n-grams


def test_hard_penalty_starts_at_the_threshold() -> None:
    # "a b c" five times: 13 trigrams, 3 of them distinct.
    result = NgramRepetitionPenaltyGrader().evaluate("a b c " * 5)
    assert result.metadata == {"rate": pytest.approx(10 / 13), "ngrams": 13}
    assert result.score == pytest.approx(-(10 / 13 - 0.3))
    assert (result.role, result.score_range) == (Role.PENALTY, (-0.7, 0.0))
    # 4 trigrams, 3 distinct: 0.25 lies below the threshold.
    assert NgramRepetitionPenaltyGrader().evaluate("a b c a b c").score == 0.0


@pytest.mark.parametrize(
    ("text", "ngrams", "rate"),
    [
        ("今天今天今天", 4, 0.5),
        ("<think>a b c</think>d e f", 11, 0.0),
        ("ดีมากดีมากดีมาก", 10, 0.6),
        ("Yes YES yes yes", 2, 0.5),
        ("😀😀😀😀", 2, 0.5),
    ],
)
def test_tokens(text: str, ngrams: int, rate: float) -> None:
    metadata = NgramRepetitionPenaltyGrader().evaluate(text).metadata
    assert metadata == {"rate": pytest.approx(rate), "ngrams": ngrams}


# Languages


TEXTS = {
    "en": "The river was calm in the morning, and nobody was on the bridge.",
    "de": "Der Fluss war am Morgen ruhig, und niemand stand auf der Brücke.",
    "fr": "La rivière était calme ce matin, et personne n'était sur le pont.",
    "zh": "早上河水很平静，桥上没有人，只有几只鸟在唱歌。",
    "ja": "朝の川は静かで、橋の上には誰もいませんでした。",
    "ru": "Утром река была спокойной, и на мосту никого не было.",
}


@pytest.mark.parametrize("language", TEXTS)
def test_ordinary_sentences(language: str) -> None:
    grader = LanguageGrader()
    for code, text in TEXTS.items():
        result = grader.evaluate(text, language)
        assert result.score == float(code == language)
        assert result.metadata["found"] == code
        assert result.evaluable


def test_a_configured_language_wins_over_the_row_and_the_thinking() -> None:
    assert LanguageGrader("en").evaluate(f"<think>{TEXTS['de']}</think>{TEXTS['en']}", "de").score
    assert LanguageGrader("en").evaluate(f"<think>{TEXTS['en']}").score == 0.0
    for code, language in (("zh-Hans", "zh"), ("EN_us", "en")):  # regions are ignored
        assert LanguageGrader(code).evaluate(TEXTS[language]).score == 1.0


REPEATS, ENGLISH, CHINESE = (
    NgramRepetitionPenaltyGrader(),
    LanguageGrader("en"),
    LanguageGrader("zh"),
)
NO_LANGUAGE = [
    "42",
    "😀" * 50,
    "....",
    "?!",
    "𐎠𐎡" * 10,
    "c" * 50,
    "f " * 50,
    "{}",
    "<b>7</b>",
    "\\boxed{7}",
]


@pytest.mark.parametrize(
    ("grader", "score", "texts"),
    [
        (REPEATS, 0.0, ["", "one two", " \n"]),
        (ENGLISH, 1.0, ["Paris", "x = 1 + 2", "B", "<answer>Paris</answer>"]),
        (ENGLISH, 0.0, NO_LANGUAGE),
        (CHINESE, 0.0, NO_LANGUAGE),
    ],
)
def test_too_little_text_is_nothing_to_judge(grader: Any, score: float, texts: list[str]) -> None:
    found = [grader.evaluate(text) for text in texts]
    assert [(one.score, one.evaluable) for one in found] == [(score, False)] * len(texts)


@pytest.mark.parametrize("text", ["", " \n\t", "\u200b", "<answer></answer>", "```python\n```"])
def test_a_response_that_says_nothing_is_the_candidates_fault(text: str) -> None:
    result = LanguageGrader("en").evaluate(text)
    assert (result.score, result.cause) == (0.0, Cause.CANDIDATE)


@pytest.mark.parametrize("language", [None, "", "xx", "english", 3, ["en"], "zxx"])
def test_a_row_without_a_usable_code_is_no_judgement(language: Any) -> None:
    with fails(ErrorKind.INVALID_INPUT, "language"):
        LanguageGrader().evaluate(TEXTS["en"], language)


@pytest.mark.parametrize(
    ("text", "wanted", "score"),
    [
        ("答案是四十二，因为六乘七等于四十二。", "zh", 1.0),
        ("佢哋今日唔返學，因為落大雨。", "zh", 1.0),
        ("答案是四十二，因为六乘七等于四十二。", "wuu", 0.0),
        ("Madrid es la capital.", "es", 1.0),
        ("Madrid es la capital.", "oc", 0.0),
        ("Lo gat dormís dins l'ostal.", "oc", 1.0),
        ("Eg veit ikkje kva eg skal seie.", "no", 1.0),
    ],
)
def test_parts_of_a_language_and_small_relatives(text: str, wanted: str, score: float) -> None:
    assert LanguageGrader().evaluate(text, wanted).score == score
