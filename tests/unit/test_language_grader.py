"""The language grader: the wanted language, short texts, and codes."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.refusals import refuses

from adjudge.errors import Cause, ErrorKind, GradingFailure
from adjudge.graders.rules.response_form import LanguageGrader

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


def test_regions_and_scripts_are_ignored() -> None:
    assert LanguageGrader("zh-Hans").evaluate(TEXTS["zh"]).score == 1.0
    assert LanguageGrader("EN_us").evaluate(TEXTS["en"]).score == 1.0


def test_a_configured_language_wins_over_the_row_and_the_thinking() -> None:
    assert LanguageGrader("en").evaluate(f"<think>{TEXTS['de']}</think>{TEXTS['en']}", "de").score
    assert LanguageGrader("en").evaluate(f"<think>{TEXTS['en']}").score == 0.0
    with refuses("language"):
        LanguageGrader("xx")


@pytest.mark.parametrize("text", ["Paris", "x = 1 + 2", "B", "<answer>Paris</answer>"])
def test_short_texts_are_nothing_to_judge(text: str) -> None:
    result = LanguageGrader("en").evaluate(text)
    assert (result.score, result.evaluable) == (1.0, False)


@pytest.mark.parametrize(
    "text",
    ["42", "😀" * 50, "....", "?!", "𐎠𐎡" * 10, "c" * 50, "f " * 50, "{}", "<b>7</b>", "\\boxed{7}"],
)
def test_texts_without_language_gain_nothing(text: str) -> None:
    for language in ("en", "zh"):
        result = LanguageGrader(language).evaluate(text)
        assert (result.score, result.evaluable) == (0.0, False)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " \n\t",
        "\x00" * 50,
        "\u200b",
        "<think>Well, I see it now.</think>",
        "<answer></answer>",
        "```python\n```",
    ],
)
def test_a_response_that_says_nothing_is_the_candidates_fault(text: str) -> None:
    result = LanguageGrader("en").evaluate(text)
    assert (result.score, result.cause) == (0.0, Cause.CANDIDATE)


@pytest.mark.parametrize("language", [None, "", "xx", "english", 3, ["en"], "zxx"])
def test_a_row_without_a_usable_code_is_no_judgement(language: Any) -> None:
    with pytest.raises(GradingFailure, match="language") as caught:
        LanguageGrader().evaluate(TEXTS["en"], language)
    assert caught.value.kind is ErrorKind.INVALID_INPUT


def test_pickled_and_used_from_threads() -> None:
    grader = pickle.loads(pickle.dumps(LanguageGrader()))
    jobs = list(TEXTS.items()) * 20
    with ThreadPoolExecutor(8) as threads:
        scores = list(threads.map(lambda job: grader.evaluate(job[1], job[0]).score, jobs))
    assert scores == [1.0] * len(jobs)
    assert len(pickle.dumps(grader)) < 2000


@pytest.mark.parametrize(
    ("text", "wanted", "score"),
    [
        ("答案是四十二，因为六乘七等于四十二。", "zh", 1.0),
        ("佢哋今日唔返學，因為落大雨。", "zh", 1.0),
        ("佢哋今日唔返學，因為落大雨。", "yue", 1.0),
        ("答案是四十二，因为六乘七等于四十二。", "wuu", 0.0),
        ("Madrid es la capital.", "es", 1.0),
        ("Madrid es la capital.", "oc", 0.0),
        ("Lo gat dormís dins l'ostal.", "oc", 1.0),
        ("Lisboa é a capital.", "pt", 1.0),
        ("Eg veit ikkje kva eg skal seie.", "no", 1.0),
    ],
)
def test_parts_of_a_language_and_small_relatives(text: str, wanted: str, score: float) -> None:
    assert LanguageGrader().evaluate(text, wanted).score == score
