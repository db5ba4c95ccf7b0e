"""What a menu understands, what it refuses, and what a verdict carries besides its value."""

from __future__ import annotations

import pytest

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

PAIR = Menu.pair()


def verdict(read: Verdict | UnreadableReply) -> Verdict:
    assert isinstance(read, Verdict), read
    return read


def test_labels_may_be_called_anything() -> None:
    menu = Menu.pair("first", "second", tie="draw")
    assert menu.labels == ("first", "second")
    assert verdict(read_choice("Response A is better.", menu)).value == "first"
    assert verdict(read_choice('{"winner": "2"}', menu)).value == "second"
    assert verdict(read_choice("[[C]]", menu)).value == "draw"


def test_names_and_nouns_of_ones_own() -> None:
    menu = Menu({"left": ["L"], "right": ["R"]}, nouns=["poem"])
    assert verdict(read_choice("Poem L is better.", menu)).value == "left"
    assert verdict(read_choice("Therefore, R is better.", menu)).value == "right"
    assert isinstance(read_choice("Answer L is worse", Menu.of("good", "bad")), UnreadableReply)


def test_equal_menus_are_one() -> None:
    assert Menu.pair() == PAIR
    assert len({Menu.pair(), PAIR, Menu.pair(tie="tie")}) == 2


def test_labels_of_letters_or_digits_are_compared() -> None:
    assert PAIR.compared
    assert Menu.of("A", "B", "C").compared
    assert Menu.of("1", "0").compared
    assert not Menu.of("yes", "no").compared
    assert PAIR.other("A") == "B"
    assert Menu.of("A", "B", "C").other("A") is None


@pytest.mark.parametrize(
    ("names", "named"),
    [
        ({}, "1 to 64"),
        ({str(number): [] for number in range(65)}, "1 to 64"),
        ({"yes": ["y"], "no": ["Y"]}, "'y'"),
        ({"yes": ["  "]}, "empty"),
        ({"yes": "y"}, "must be a list"),
    ],
)
def test_a_menu_that_cannot_be_told_apart_is_refused(
    names: dict[str, list[str]], named: str
) -> None:
    with pytest.raises(ConfigError, match=named):
        Menu(names)


@pytest.mark.parametrize("value", ["maybe", 2, 0.5, None, [], "not really present", "x" * 500])
def test_what_is_no_mark_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="no mark"):
        read_mark(value)


def test_the_reason_is_the_judges_own() -> None:
    assert verdict(read_score('{"reason": "short", "score": 4}')).reason == "short"
    assert verdict(read_score("It is short.\n\n**<score>4</score>**")).reason == "It is short."
    assert verdict(read_score("[[4]]\n\nIt is short.")).reason == "It is short."
    assert verdict(read_choice("B", PAIR)).reason == ""
    marks = '{"1": {"met": true, "reason": "there"}, "2": {"met": false, "explanation": "gone"}}'
    assert verdict(read_marks(marks, ["1", "2"])).fields["reasons"] == {"1": "there", "2": "gone"}
    assert verdict(read_ranking('{"rank": [1, 2], "reason": "x"}', 2)).reason == "x"


def test_the_form_and_the_object_travel_along() -> None:
    found = verdict(read_score('So: {"score": 4, "n": 2}'))
    assert (found.form, found.fields, found.reason) == ("json", {"score": 4, "n": 2}, "So:")
    forms = {
        '{"score": 4}': "json",
        "<score>4</score>": "tag",
        "[[4]]": "brackets",
        "Score: 4": "phrase",
        "4": "bare",
    }
    assert {text: verdict(read_score(text)).form for text in forms} == forms


def test_marks_that_say_nothing_are_absent_and_contradictions_spoil_the_reply() -> None:
    assert verdict(read_marks('{"1": "yes", "2": "maybe"}', ["1", "2"])).value == {"1": True}
    contradicted = read_marks('{"1": "yes", "3": "no"} {"3": "yes"}', ["1", "2", "3"])
    assert contradicted == UnreadableReply(why="the marks contradict each other")


def test_ids_may_be_names() -> None:
    read = read_marks('{"tone": "met", "Sources": "not met", "length": 1}', ["tone", "sources"])
    assert verdict(read).value == {"tone": True, "sources": False}
    listed = read_marks('[{"criterion": "tone", "met": "yes"}]', ["tone", "sources"])
    assert verdict(listed).value == {"tone": True}


def test_a_single_criterion_needs_no_id() -> None:
    read = verdict(read_marks('{"explanation": "there", "criteria_met": true}', ["1"]))
    assert (read.value, read.fields["reasons"]) == ({"1": True}, {"1": "there"})


def test_numbers_that_python_cannot_read_quickly_are_no_verdict() -> None:
    digits = "9" * 10_000
    assert isinstance(read_score(f'{{"score": {digits}}}'), UnreadableReply)
    assert isinstance(read_score(f"Score: {digits}"), UnreadableReply)
    assert isinstance(read_fields(f'{{"score": {digits}}}'), Verdict)
    assert isinstance(read_ranking(f"[{digits}, 1]", 2), UnreadableReply)


def test_too_many_verdicts_are_none() -> None:
    assert isinstance(read_score("<score>3</score>\n" * 201), UnreadableReply)
    assert verdict(read_score("<score>3</score>\n" * 200)).value == 3.0
