"""Rows that repeat another: equal words, whatever their case, spaces and order of answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import TypeVar

from adjudge.datasets.rows import (
    ChatMessages,
    DatasetRow,
    Demonstration,
    Preference,
    Rating,
    render_transcript,
    split_answers,
)
from adjudge.prompts import clean_text
from adjudge.text import split_words

_T = TypeVar("_T", bound=DatasetRow)


def drop_repeated_rows(rows: Sequence[_T]) -> tuple[list[_T], dict[str, int]]:
    """The first of equal rows; how many were left out, and how many of these contradict it."""
    kept: dict[bytes, _T] = {}
    contradicting = 0
    for row in rows:
        prompt, answers = split_answers(row)
        key = _digest(_words(prompt), *sorted(map(_words, answers)))
        contradicting += _label(kept.setdefault(key, row)) != _label(row)
    return list(kept.values()), {"rows": len(rows) - len(kept), "contradicting": contradicting}


def rows_seen_in(train: Sequence[DatasetRow], rows: Sequence[DatasetRow]) -> set[int]:
    """The places of the ``rows`` of which ``train`` has the prompt with one of the answers."""
    seen = {digest for row in train for digest in _prompts_with_answer(row)}
    return {
        place for place, row in enumerate(rows) if not seen.isdisjoint(_prompts_with_answer(row))
    }


def _prompts_with_answer(row: DatasetRow) -> Iterator[bytes]:
    prompt, answers = split_answers(row)
    asked = _words(prompt)
    return (_digest(asked, _words(answer)) for answer in answers)


def _words(messages: ChatMessages) -> str:
    return " ".join(split_words(clean_text(render_transcript(messages)), signs=True))


def _digest(*parts: str) -> bytes:
    # Words and signs hold no white space, so the joined text cuts in one way only.
    return blake2b("\n".join(parts).encode(), digest_size=16).digest()


def _label(row: DatasetRow) -> object:
    """What a row says about its answers, whatever their order."""
    if isinstance(row, Demonstration):
        return None
    if isinstance(row, Rating):
        return row.label
    if isinstance(row, Preference):
        return _words(split_answers(row)[1][0])
    better = {"A": row.a, "B": row.b, "tie": None}[row.label]
    return better and _words([{"role": "assistant", "content": better}])
