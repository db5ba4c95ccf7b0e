"""The language grader: the wanted language, short texts, and codes."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from adjudge.errors import Cause, ConfigError, ErrorKind, GradingFailure
from adjudge.graders.base import require_package
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


def test_probability_and_candidates() -> None:
    grader = LanguageGrader("en", candidates=["en", "de"], measure="probability")
    assert 0.9 < grader.evaluate(TEXTS["en"]).score <= 1.0
    assert 0.0 <= grader.evaluate(TEXTS["de"]).score < 0.1
    assert grader.evaluate(TEXTS["fr"]).metadata["found"] in ("en", "de")
    # Restricting one grader leaves the others whole.
    assert LanguageGrader("fr").evaluate(TEXTS["fr"]).score == 1.0


def test_regions_and_scripts_are_ignored() -> None:
    assert LanguageGrader("zh-Hans").evaluate(TEXTS["zh"]).score == 1.0
    assert LanguageGrader("EN_us").evaluate(TEXTS["en"]).score == 1.0


def test_a_configured_language_wins_over_the_row() -> None:
    assert LanguageGrader("en").evaluate(TEXTS["en"], "de").score == 1.0


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


def test_views() -> None:
    response = f"<think>{TEXTS['zh'] * 5}</think>{TEXTS['en']}"
    assert LanguageGrader("en").evaluate(response).score == 1.0
    assert LanguageGrader("zh", view="full").evaluate(response).score == 1.0
    unclosed = LanguageGrader("en").evaluate(f"<think>{TEXTS['en']}")
    assert (unclosed.score, unclosed.evaluable) == (0.0, True)


def test_only_the_start_of_a_long_text_is_read() -> None:
    assert LanguageGrader("en").evaluate(TEXTS["en"] * 200 + TEXTS["zh"] * 2000).score == 1.0
    assert LanguageGrader("en").evaluate(TEXTS["en"] * 10 + TEXTS["zh"] * 200).score == 0.0


@pytest.mark.parametrize("language", [None, "", "xx", "english", 3, ["en"], "zxx"])
def test_a_row_without_a_usable_code_is_no_judgement(language: Any) -> None:
    with pytest.raises(GradingFailure, match="language") as caught:
        LanguageGrader().evaluate(TEXTS["en"], language)
    assert caught.value.kind is ErrorKind.INVALID_INPUT


@pytest.mark.parametrize(
    "parameters",
    [
        {"language": "xx"},
        {"candidates": ["en"]},
        {"candidates": ["en", "xx"]},
        {"candidates": "en"},
        {"language": "fr", "candidates": ["en", "de"]},
        {"measure": "both"},
    ],
)
def test_wrong_parameters_are_named(parameters: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(parameters))):
        LanguageGrader(**parameters)


def test_pickled_and_used_from_threads() -> None:
    grader = pickle.loads(pickle.dumps(LanguageGrader(candidates=sorted(TEXTS))))
    jobs = list(TEXTS.items()) * 20
    with ThreadPoolExecutor(8) as threads:
        scores = list(threads.map(lambda job: grader.evaluate(job[1], job[0]).score, jobs))
    assert scores == [1.0] * len(jobs)
    assert len(pickle.dumps(grader)) < 2000


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    require_package.cache_clear()
    with pytest.raises(ConfigError, match=r"py3langid. Run: .*\[language\]"):
        LanguageGrader("en")


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
