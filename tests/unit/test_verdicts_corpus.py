"""Every reply of the corpus is read as it must be."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit import verdict_corpus as corpus
from tests.unit import verdict_corpus_choices as choices
from tests.unit import verdict_corpus_objects as objects

from adjudge.verdicts import (
    Menu,
    UnreadableReply,
    Verdict,
    read_choice,
    read_fields,
    read_marks,
    read_ranking,
    read_score,
)

PAIR = Menu.pair()
CHOICES = [
    (Menu.pair(), choices.PAIRS),
    (Menu.pair(tie="tie"), choices.TIES),
    (Menu.of("A", "B", "C", "D"), choices.FOUR),
    (Menu.of("PRESENT", "NOT_PRESENT"), choices.PRESENCE),
    (Menu.of("yes", "no"), choices.YES_NO),
]
IDS = ["1", "2", "3"]


def outcome(read: Verdict | UnreadableReply) -> Any:
    return str(read.kind) if isinstance(read, UnreadableReply) else read.value


def arguments(case: tuple[Any, ...]) -> dict[str, Any]:
    return dict(case[2]) if len(case) > 2 else {}


def short(case: object) -> str | None:
    return repr(case)[:60] if isinstance(case, str) else None


def test_the_corpus_is_as_large_as_the_languages_it_covers() -> None:
    modules = (corpus, choices, objects)
    lists = [
        value for module in modules for value in vars(module).values() if isinstance(value, list)
    ]
    replies = {case[0] for cases in lists for case in cases}
    assert len(replies) >= 400
    assert sum(any("\u4e00" <= sign <= "\u9fff" for sign in reply) for reply in replies) >= 30


@pytest.mark.parametrize("case", corpus.SCORES, ids=lambda c: short(c[0]))
def test_scores(case: tuple[Any, ...]) -> None:
    read = read_score(case[0], **({"low": 1, "high": 5} | arguments(case)))
    assert outcome(read) == case[1]
    assert not isinstance(read, Verdict) or type(read.value) is type(case[1])


@pytest.mark.parametrize(
    ("menu", "case"), [(menu, case) for menu, cases in CHOICES for case in cases], ids=short
)
def test_choices(menu: Menu, case: tuple[Any, ...]) -> None:
    assert outcome(read_choice(case[0], menu, **arguments(case))) == case[1]


@pytest.mark.parametrize("case", objects.MARKS, ids=lambda c: short(c[0]))
def test_marks(case: tuple[Any, ...]) -> None:
    expected = case[1]
    if isinstance(expected, list):
        expected = dict(zip(IDS, expected, strict=False))
    read = outcome(read_marks(case[0], IDS, **arguments(case)))
    assert read == expected
    assert not isinstance(read, dict) or list(read) == list(expected)


@pytest.mark.parametrize("case", objects.RANKINGS, ids=lambda c: short(c[0]))
def test_rankings(case: tuple[Any, ...]) -> None:
    assert outcome(read_ranking(case[0], 3, **arguments(case))) == case[1]


@pytest.mark.parametrize("case", objects.FIELDS, ids=lambda c: short(c[0]))
def test_fields(case: tuple[Any, ...]) -> None:
    assert outcome(read_fields(case[0], **arguments(case))) == case[1]


@pytest.mark.parametrize("case", corpus.QUOTED_SCORES, ids=lambda c: short(c[0]))
def test_scores_beside_what_the_candidate_wrote(case: tuple[Any, ...]) -> None:
    reply, expected, candidate = case
    assert outcome(read_score(reply, low=1, high=5, quoted=[candidate])) == expected


@pytest.mark.parametrize("case", choices.QUOTED_PAIRS, ids=lambda c: short(c[0]))
def test_choices_beside_what_the_candidate_wrote(case: tuple[Any, ...]) -> None:
    reply, expected, candidate = case
    assert outcome(read_choice(reply, PAIR, quoted=["something else", candidate])) == expected


@pytest.mark.parametrize("case", corpus.SCORES, ids=lambda c: short(c[0]))
def test_no_refusal_quotes_the_reply(case: tuple[Any, ...]) -> None:
    read = read_score(case[0], **({"low": 1, "high": 5} | arguments(case)))
    if isinstance(read, UnreadableReply):
        assert read.why.isascii()
        assert not any(sign.isdigit() for sign in read.why)
