"""Every reply of the corpus is read as it must be; what a menu is; what a verdict carries."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from tests.unit import verdict_corpus as corpus

from adjudge.errors import ConfigError
from adjudge.verdicts import (
    Menu,
    UnreadableReply,
    Verdict,
    read_choice,
    read_fields,
    read_mark,
    read_marks,
    read_ranking,
    read_score,
)

IDS = ["1", "2", "3"]
Reader = Callable[..., "Verdict | UnreadableReply"]
TABLES: list[tuple[Reader, list[corpus.Case]]] = [
    (lambda text, **more: read_score(text, **{"low": 1, "high": 5, **more}), corpus.SCORES),
    *(
        (lambda text, menu=menu, **more: read_choice(text, menu, **more), cases)
        for menu, cases in corpus.CHOICES
    ),
    (lambda text, **more: read_marks(text, IDS, **more), corpus.MARKS),
    (lambda text, **more: read_ranking(text, 3, **more), corpus.RANKINGS),
    (read_fields, corpus.FIELDS),
]


def verdict(read: Verdict | UnreadableReply) -> Verdict:
    assert isinstance(read, Verdict), read
    return read


@pytest.mark.parametrize(
    ("reader", "case"),
    [(reader, case) for reader, cases in TABLES for case in cases],
    ids=lambda one: repr(one[0])[:60] if isinstance(one, tuple) else "",
)
def test_the_corpus(reader: Reader, case: corpus.Case) -> None:
    reply, expected, *more = case
    read = reader(reply, **(more[0] if more else {}))
    if isinstance(read, UnreadableReply):
        assert str(read.kind) == expected, read
        assert read.why.isascii()
        assert not any(sign.isdigit() for sign in read.why)  # never a quotation
        return
    if isinstance(read.value, dict) and isinstance(expected, list):
        expected = dict(zip(IDS, expected, strict=True))
    assert read.value == expected
    assert type(read.value) is type(expected)


def test_a_refusal_says_what_was_found() -> None:
    found = {
        text: read.why
        for text in ("Good.", "[[3]] [[4]]", "[[3]] it is", "I say [[3]]", "It says:\n[[3]]", "")
        if isinstance(read := read_score(text), UnreadableReply)
    }
    assert len(set(found.values())) == len(found) == 6


def test_names_and_nouns_of_ones_own() -> None:
    menu = Menu({"left": ["L"], "right": ["R"]}, nouns=["poem"])
    assert verdict(read_choice("Verdict: Poem L", menu)).value == "left"
    named = Menu.pair("first", "second", tie="draw")
    assert verdict(read_choice('{"winner": "2"}', named)).value == "second"
    assert verdict(read_choice("[[C]]", named)).value == "draw"
    assert len({Menu.pair(), Menu.pair(), Menu.pair(tie="tie")}) == 2


@pytest.mark.parametrize(
    "names", [{}, dict.fromkeys(map(str, range(65)), ()), {"yes": ["y"], "no": ["Y"]},
              {"yes": ["  "]}, {"yes": "y"}],
)  # fmt: skip
def test_a_menu_that_cannot_be_told_apart_is_refused(names: Any) -> None:
    with pytest.raises(ConfigError):
        Menu(names)


@pytest.mark.parametrize("value", ["maybe", 2, 0.5, None, [], "not really present", "x" * 500])
def test_what_is_no_mark_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="no mark"):
        read_mark(value)


def test_the_reason_the_form_and_the_object_travel_along() -> None:
    for text, (form, reason) in {
        '{"reason": "short", "score": 4}': ("json", "short"),
        "It is short.\n\n**<score>4</score>**": ("tag", "It is short."),
        "It is short. [[4]]": ("brackets", "It is short."),
        "It is short.\nScore: 4": ("phrase", "It is short."),
        "4": ("bare", ""),
    }.items():
        found = verdict(read_score(text))
        assert (found.form, found.reason) == (form, reason)
    assert verdict(read_score('Fine. {"score": 4, "n": 2}')).fields == {"score": 4, "n": 2}
    marks = '{"1": {"met": true, "reason": "there"}, "2": {"met": false, "explanation": "gone"}}'
    assert verdict(read_marks(marks, ["1", "2"])).fields["reasons"] == {"1": "there", "2": "gone"}


def test_ids_may_be_names_and_one_criterion_needs_none() -> None:
    read = read_marks('{"tone": "met", "Sources": "not met", "length": 1}', ["tone", "sources"])
    assert verdict(read).value == {"tone": True, "sources": False}
    assert verdict(read_marks('{"explanation": "x", "criteria_met": true}', ["1"])).value == {
        "1": True
    }


def test_long_and_strange_replies() -> None:
    long = "The answer is short and right, I think. " * 3_000
    whole = json.dumps({"reason": long, "steps": [{"n": n} for n in range(1_000)], "score": 4})
    assert verdict(read_score(whole)).reason == long.strip()
    assert verdict(read_score(f"{long}\nScore: 4")).value == 4.0
    assert isinstance(read_score("<score>3</score>\n" * 201), UnreadableReply)
    assert isinstance(read_score('{"score": 4, "a": ' + "[" * 60 + "]" * 60 + "}"), UnreadableReply)
    assert isinstance(read_score(f'{{"score": {"9" * 10_000}}}'), UnreadableReply)
    halves = verdict(read_score('{"score": 4, "reason": "a\\ud800b \\ud83d\\ude00"}'))
    assert halves.reason == "a?b \U0001f600"
    msgspec.json.encode(halves)  # what a journal does
