"""Similarity metrics against published definitions, and string matching."""

from __future__ import annotations

from typing import Any

import pytest
from tests.refusals import fails

from adjudge.errors import ErrorKind
from adjudge.graders.rules import similarity
from adjudge.graders.rules.similarity import SimilarityGrader, StringMatchGrader

METRICS = ("bleu", "chrf", "rouge_l", "edit", "f1", "jaccard")


@pytest.mark.parametrize(
    ("metric", "response", "reference", "score"),
    [
        # LCS "police the gunman" of 4 and 4 tokens (Lin 2004, section 3.1: S1 and S2, S1 and S3).
        ("rouge_l", "police kill the gunman", "police killed the gunman", 0.75),
        ("rouge_l", "今天天气", "今天很热", 0.5),
        ("edit", "kitten", "sitting", 1 - 3 / 7),
        # SQuAD: articles and punctuation go, multiplicity counts.
        ("f1", "The Eiffel Tower.", "an eiffel tower", 1.0),
        ("f1", "blue blue sky", "blue sea", 2 * 1 / (3 + 2)),
        ("f1", "the", "sea", 0.0),
        ("f1", "北京大学", "北京", 2 * 2 / (4 + 2)),
        # Scripts without spaces by character; a vowel or tone stands at its letter.
        ("rouge_l", "แมวดำ", "แมวขาว", 2 * 3 / (5 + 6)),
        ("jaccard", "ខ្មែរ", "ខ្មែ", 2 / 3),
        *((metric, "cafe\u0301 noir", "caf\u00e9 noir", 1.0) for metric in METRICS),
        ("edit", "yes<|im_end|>\n", "yes", 1.0),
        ("jaccard", "a b c", "b c d", 0.5),
        # Precisions 5/6, 3/5, 2/4 and 1/3, equal lengths.
        ("bleu", "the cat sat on the mat", "the cat sat on a mat", (1 / 12) ** 0.25),
        # Popović 2015 by hand: character 1- to 6-grams without white space, β = 2.
        ("chrf", "the cat sat on the mat", "the cat sat on a warm mat", 0.57841177),
    ],
)
def test_values(metric: Any, response: str, reference: str, score: float) -> None:
    result = SimilarityGrader(metric).evaluate(response, reference)
    assert result.score == pytest.approx(score)
    assert result.score_range == (0.0, 1.0)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize(
    ("response", "reference", "score"),
    [("", "word", 0.0), ("<skipped>", "<skipped>", 1.0)],
)
def test_edges_agree_between_metrics(
    metric: Any, response: str, reference: str, score: float
) -> None:
    assert SimilarityGrader(metric).evaluate(response, reference).score == score


@pytest.mark.parametrize("metric", METRICS)
def test_the_best_reference_counts(metric: Any) -> None:
    grader = SimilarityGrader(metric)
    several = grader.evaluate("red green blue", ["yellow", "red green", "grey"])
    assert several.score == grader.evaluate("red green blue", "red green").score > 0


def test_long_texts_are_cut_and_say_so() -> None:
    grader, longest = SimilarityGrader("edit"), "abcd" * 2500
    assert grader.evaluate(longest + "X", longest).metadata == {"cut": True}
    assert grader.evaluate(longest + "X", longest + "YY").score == 1.0
    assert grader.evaluate(longest, [longest, longest + "e"]).metadata == {"cut": True}
    assert grader.evaluate(longest, longest).metadata == {}


def test_sacrebleu_does_not_keep_every_text() -> None:
    grader = SimilarityGrader("bleu")
    for number in range(600):
        grader.evaluate(f"text number {number}", "some reference")
    tokenizer = similarity._sacrebleu_metric("bleu").tokenizer
    for cached in (tokenizer, tokenizer._post_tokenizer):
        method: Any = type(cached).__call__
        assert method.cache_info().currsize <= 258


@pytest.mark.parametrize(
    ("match", "response", "reference", "score"),
    [
        ("exact", " Paris\n", "Paris", 1.0),
        ("exact", "paris", "Paris", 0.0),
        ("prefix", "Paris, France", "Paris", 1.0),
        ("suffix", "In Paris", "Paris", 1.0),
        ("contains", "It is Paris, I think", "Paris", 1.0),
        ("overlap", "Green and RED", "red blue", 0.5),
        ("overlap", "", "red blue", 0.0),
        ("exact", "b", ["a", "b"], 1.0),
        ("exact", "cafe\u0301", "caf\u00e9", 1.0),
        ("contains", "le caf\u00e9 noir", ["the\u0301", "cafe\u0301"], 1.0),
        *(("exact", f"b{end}", "b", 1.0) for end in ("<|im_end|>", "</s>", "\n<end_of_turn>\n")),
        ("contains", "<think>b", "b", 0.0),
    ],
)
def test_string_match(match: Any, response: str, reference: Any, score: float) -> None:
    assert StringMatchGrader(match).evaluate(response, reference).score == score
    assert StringMatchGrader(ignore_case=True).evaluate("STRASSE", "straße").score == 1.0


@pytest.mark.parametrize("reference", ["", "  ", ["Paris", ""], None, 3, [], ["a", 3], {"a": "b"}])
@pytest.mark.parametrize("kind", [*METRICS, "exact", "prefix", "suffix", "contains", "overlap"])
def test_references_must_be_texts_that_are_not_empty(kind: Any, reference: Any) -> None:
    grader = SimilarityGrader(kind) if kind in METRICS else StringMatchGrader(kind)
    with fails(ErrorKind.INVALID_INPUT):
        grader.evaluate("Paris", reference)
