"""Every reply of the corpus is read as it must be; what a verdict carries."""

from __future__ import annotations

import json
from collections.abc import Callable

import msgspec
import pytest
from tests.unit import verdict_corpus as corpus

from adjudge.verdicts import (
    UnreadableReply,
    Verdict,
    read_choice,
    read_fields,
    read_score,
)

Reader = Callable[..., "Verdict | UnreadableReply"]
TABLES: list[tuple[Reader, list[corpus.Case]]] = [
    (lambda text, **more: read_score(text, **{"low": 1, "high": 5, **more}), corpus.SCORES),
    *(
        (lambda text, labels=labels, **more: read_choice(text, labels, **more), cases)
        for labels, cases in corpus.CHOICES
    ),
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
    assert read.value == expected
    assert type(read.value) is type(expected)


def test_a_refusal_says_what_was_found() -> None:
    found = {
        text: read.why
        for text in ("Good.", "[[3]] [[4]]", "[[3]] it is", "I say [[3]]", "It says:\n[[3]]", "")
        if isinstance(read := read_score(text), UnreadableReply)
    }
    assert len(set(found.values())) == len(found) == 6


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
    assert verdict(read_score('Fine.\n{"score": 4, "n": 2}')).fields == {"score": 4, "n": 2}


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
