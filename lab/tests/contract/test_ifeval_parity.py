"""IFEval's labels on recorded responses, against those that the published checkers gave.

The data stays outside the project: set ``ADJUDGE_DATA`` to the folder that has ``ifeval/``
(541 prompts, the responses of GPT-4 and Llama-3.1-8B-Instruct, and for the latter the labels of
the published code with its trained sentence splitter and unseeded language detection).
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.recorded import find_recorded

from adjudge.graders.ifeval import ReadingMode, list_arguments
from adjudge_lab.evaluation.ifeval.scoring import IfevalRow, JudgedResponses, judge_responses
from adjudge_lab.evaluation.responses import PromptResponse

pytestmark = pytest.mark.needs

# The published checker draws a random letter for these two ("#" and "!"), so no label is right.
RANDOM = frozenset({1122, 1129})

MISMATCHES: dict[ReadingMode, dict[tuple[int, str], str]] = {
    "strict": {
        (1813, "change_case:english_capital"): "unseeded detection on text in capitals",
        (279, "change_case:english_lowercase"): "unseeded detection on a poem of short lines",
    },
    "loose": {
        (1813, "change_case:english_capital"): "unseeded detection on text in capitals",
        (3617, "change_case:english_capital"): "unseeded detection on three names in capitals",
    },
}
"""Recorded as not followed; with seed 0 the same library says English, and so do we."""


def rows(name: str) -> list[dict[str, Any]]:
    path = find_recorded(f"ifeval/{name}")
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


@pytest.fixture(scope="module")
def prompts() -> list[dict[str, Any]]:
    return rows("input_data.jsonl")


def judge(prompts: list[dict[str, Any]], responses: list[dict[str, Any]]) -> JudgedResponses:
    given = [
        PromptResponse(place=row["prompt"], sample=0, text=row["response"], line=line)
        for line, row in enumerate(responses)
    ]
    return judge_responses(prompts, given, by="prompt")


def judged_rows(found: JudgedResponses) -> list[IfevalRow]:
    return [row for samples in found.rows.values() for row in samples.values()]


def counts(found: JudgedResponses, reading: ReadingMode) -> tuple[int, int, int, int]:
    """Prompts and instructions that are followed, each with how many there are."""
    labels = [row.labels[reading] for row in judged_rows(found)]
    return sum(map(all, labels)), len(labels), sum(map(sum, labels)), sum(map(len, labels))


@pytest.fixture(scope="module")
def llama(prompts: list[dict[str, Any]]) -> JudgedResponses:
    return judge(prompts, rows("responses_llama31_8b.jsonl"))


def without_random(prompts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in prompts if row["key"] not in RANDOM]


@pytest.mark.parametrize("reading", ["strict", "loose"])
def test_labels_of_llama(llama: JudgedResponses, reading: ReadingMode) -> None:
    recorded = {row["prompt"]: row for row in rows(f"recorded_{reading}_llama31_8b.jsonl")}
    assert len(judged_rows(llama)) == 541
    differ, labels = set(), 0
    for row in judged_rows(llama):
        theirs = recorded[row.prompt]
        assert theirs["instruction_id_list"] == row.instruction_id_list
        if row.key in RANDOM:
            continue
        pairs = zip(row.labels[reading], theirs["follow_instruction_list"], strict=True)
        for name, (ours, their) in zip(row.instruction_id_list, pairs, strict=True):
            labels += 1
            if ours != their:
                differ.add((row.key, name))
    assert (labels, differ) == (830, set(MISMATCHES[reading]))


def test_accuracies_of_llama(prompts: list[dict[str, Any]]) -> None:
    found = judge(without_random(prompts), rows("responses_llama31_8b.jsonl"))
    # Recorded: 385 and 661, 406 and 691; each mismatch adds an instruction, some a prompt too.
    assert counts(found, "strict") == (386, 539, 663, 830)
    assert counts(found, "loose") == (407, 539, 693, 830)


def test_accuracies_of_gpt4(prompts: list[dict[str, Any]]) -> None:
    """Those of the published code with seed 0, the two prompts with a random letter left out.

    One prompt was reworded after the responses were made (key 2785: it asked for "at least one"
    placeholder, not for three), so its response is joined by hand here.
    """
    responses = rows("responses_gpt4.jsonl")
    found = judge(prompts, responses)
    assert found.without_response == [2785]
    [stray] = found.strays
    [reworded] = [row for row in prompts if row["key"] == 2785]
    responses[stray]["prompt"] = reworded["prompt"]
    found = judge(without_random(prompts), responses)
    assert counts(found, "strict") == (415, 539, 694, 830)
    assert counts(found, "loose") == (429, 539, 711, 830)
    assert not found.failures


def test_published_arguments_are_plain_words(prompts: list[dict[str, Any]]) -> None:
    """Where the published code reads a pattern we read text, and here both are the same."""
    special = set("\\.^$*+?{}[]|()")
    asked = 0
    for row in prompts:
        for name, kwargs in zip(row["instruction_id_list"], row["kwargs"], strict=True):
            asked += 1
            words = [kwargs.get("keyword", ""), kwargs.get("section_spliter", "")]
            words += kwargs.get("keywords", []) + kwargs.get("forbidden_words", [])
            assert not special & set("".join(words))
            assert kwargs.get("postscript_marker") in (None, "P.S.", "P.P.S")
            assert set(kwargs) <= set(list_arguments(name))
    assert asked == 834
