"""How long a reply the verdict reader reads, and what becomes of longer ones."""

from __future__ import annotations

import json

import msgspec
import pytest

from adjudge.errors import ErrorKind
from adjudge.text import separate_thinking
from adjudge.verdicts import (
    Menu,
    UnreadableReply,
    Verdict,
    read_choice,
    read_fields,
    read_marks,
    read_score,
)

LIMIT = 64 * 1024
LONG = "The answer is short and right, I think. " * 3_000
TOO_LONG = UnreadableReply(why="the reply is too long to read")
TOO_MUCH = UnreadableReply(why="too much JSON, or too much that is broken")


@pytest.mark.parametrize("verdict", ["Score: 4", '{"score": 4}', "[[4]]", "<score>4</score>"])
def test_a_reply_beyond_the_limit_is_not_read(verdict: str) -> None:
    assert read_score(f"{LONG}\n{verdict}", low=1, high=5) == TOO_LONG


def test_a_reply_at_the_limit_is_read() -> None:
    text = LONG[: LIMIT - 9].rsplit(".", 1)[0] + ".\nScore: 4"
    read = read_score(text, low=1, high=5)
    assert isinstance(read, Verdict)
    assert read.value == 4


def test_what_is_hidden_as_thinking_does_not_count_towards_the_limit() -> None:
    read = read_score(f"<think>{LONG}</think>Score: 4", low=1, high=5)
    assert isinstance(read, Verdict)


@pytest.mark.parametrize("mark", ['"', "'", "`", "“", "”", "「"])
def test_thinking_may_end_in_a_quotation(mark: str) -> None:
    assert separate_thinking(f"<think>He said {mark}</think>\n[[3]]") == (
        "[[3]]",
        f"He said {mark}",
    )
    spoken_of = f"<think>I write {mark}</think>{mark} at the end: [[2]]</think>[[3]]"
    if mark in "\"'`":
        assert separate_thinking(spoken_of)[0] == "[[3]]"


def test_one_object_is_read_at_any_length() -> None:
    text = json.dumps({"reason": LONG, "steps": [{"n": n} for n in range(1_000)], "score": 4})
    read = read_score(text, low=1, high=5)
    assert isinstance(read, Verdict)
    assert read.value == 4
    assert read.reason == LONG.strip()


def test_a_long_object_without_a_verdict_has_none() -> None:
    assert read_score(json.dumps({"text": LONG + "Score: 4"}), low=1, high=5) == UnreadableReply(
        why="no verdict was found"
    )


def test_a_long_object_that_is_too_deep_is_given_up() -> None:
    text = '{"score": 4, "a": ' + "[" * 60 + "]" * 60 + json.dumps({"b": LONG})[1:].join([", ", ""])
    assert read_score(text, low=1, high=5) == TOO_LONG


def test_a_reply_full_of_objects_is_given_up() -> None:
    assert read_fields('{"a": 1}\n' * 401) == TOO_MUCH
    assert isinstance(read_fields('{"a": 1}\n' * 400, ["b"]), UnreadableReply)


def test_a_reply_full_of_sentences_is_given_up() -> None:
    read = read_choice("A is ok. " * 5_000, Menu.pair())
    assert read == UnreadableReply(why="too many places for a verdict in one reply")


def test_a_reply_that_repeats_the_candidate_too_often_is_given_up() -> None:
    places = " ".join(f"[[{n}]]" for n in range(1_500))
    read = read_score(places + "\n[[4]]", low=1, high=5, quoted=["x" * 100_000 + places])
    assert read == UnreadableReply(why="too many places for a verdict in one reply")


def test_notation_in_braces_costs_no_verdict() -> None:
    text = r"We have $\frac{a}{b}$ and $x_{n}$. " * 1_500 + '\n{"score": 4}'
    assert isinstance(read_score(text, low=1, high=5), Verdict)


@pytest.mark.parametrize(
    "text", ['{"score": 4, "reason": "a\\ud800b"}', '{"score": 4, "reason": "a\\ud800b",}']
)
def test_halves_of_surrogate_pairs_are_replaced_in_every_string(text: str) -> None:
    read = read_score(text, low=1, high=5)
    assert isinstance(read, Verdict)
    assert read.reason == "a\ufffdb"
    msgspec.json.encode(read)  # what a journal does


def test_surrogates_are_replaced_in_keys_and_lists_and_pairs_are_kept() -> None:
    text = '{"\\ud800": [{"b": "\\udfff"}], "c": "\\ud83d\\ude00"}'
    read = read_fields(text)
    assert isinstance(read, Verdict)
    assert read.value == {"\ufffd": [{"b": "\ufffd"}], "c": "\U0001f600"}


def test_keys_that_become_equal_clash() -> None:
    read = read_score('{"\\ud800": 1, "\\ud801": 2, "score": 3}', low=1, high=5)
    assert isinstance(read, Verdict)
    assert read.fields == {"score": 3}


@pytest.mark.parametrize("number", ["NaN", "1e999", "9" * 320, "-Infinity"])
def test_a_number_that_is_none_is_no_score_and_no_mark(number: str) -> None:
    score = read_score(f'{{"score": {number}}}', low=1, high=5, integer=True)
    assert isinstance(score, UnreadableReply)
    assert score.kind is ErrorKind.UNPARSABLE
    assert isinstance(read_marks(f'{{"1": {number}}}', ["1"]), UnreadableReply)
