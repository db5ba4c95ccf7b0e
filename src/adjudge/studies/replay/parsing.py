"""A judge's reply read in one of three ways: strictly, anywhere, or strictly and then anywhere."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from adjudge.errors import ErrorKind
from adjudge.rubrics import Incomplete, Rubric, Scored, score
from adjudge.verdicts import Unread, read_mark, read_marks, read_score
from adjudge.verdicts.json_text import find_values, whole_object
from adjudge.verdicts.plain import visible

__all__ = ["FORMS", "PARSES", "Form", "Parse", "Parsed", "form_of", "parse_reply"]

Parse = Literal["strict", "anywhere", "either"]
PARSES: tuple[Parse, ...] = ("strict", "anywhere", "either")
FORMS = ("marks", "brackets", "score")

_WORDS = {"PRESENT": True, "NOT_PRESENT": False}
_LEADING = re.compile(r"\[\[\s?([01])\s?\]\]|([01])\Z")
_BRACKETS = re.compile(r"\[\[\s{0,4}([^\[\]\n]{1,20}?)\s{0,4}\]\]")
_NUMBER = re.compile(r"[-+]?[0-9]{1,15}(?:\.[0-9]{1,15})?\Z")


class Form(msgspec.Struct, frozen=True, kw_only=True):
    """What a reply is expected to say.

    ``marks``: ``{"1": "PRESENT", "2": "NOT_PRESENT"}``, scored by ``rubric``; ``brackets``:
    ``[[1]]`` or ``[[0]]``; ``score``: ``{"score": …}`` or a number in ``low``..``high``.
    """

    name: str
    rubric: Rubric | None = None
    low: float | None = None
    high: float | None = None


class Parsed(msgspec.Struct, frozen=True, kw_only=True):
    """What was read: ``score``, and ``how``; or ``None``, the ``kind`` of failure, and ``why``.

    ``low`` and ``high``: what the score of an incomplete reply lies between.
    """

    score: float | None = None
    how: str = ""
    kind: str = ""
    why: str = ""
    low: float | None = None
    high: float | None = None


def form_of(
    prompt: str, rubric: Rubric | None, *, name: str | None = None, scale: Any = (None, None)
) -> Form:
    """The form that a prompt asks for, or the one called ``name``; marks need a rubric.

    Without a name: marks where there is a rubric, brackets where the prompt speaks of ``[[1]]``.
    """
    if name is None:
        name = "marks" if rubric else "brackets" if "[[1]]" in prompt else "score"
    return Form(name=name, rubric=rubric, low=scale[0], high=scale[1])


def parse_reply(text: str, form: Form, parse: Parse, *, cut: bool = False) -> Parsed:
    """Read ``text``, thinking left out; raises nothing.

    ``strict``: the verdict is the whole reply (marks: one object, fenced or not, with every number
    once and only the words PRESENT and NOT_PRESENT; a score: one object or one number), or begins
    it (brackets). ``anywhere``: the first complete object of marks, the first ``[[0]]`` or
    ``[[1]]``; for scores, and marks written otherwise, the readers that graders use. ``either``:
    strictly, else anywhere. ``cut``: the reply ran into its length limit.

    >>> parse_reply("Well: [[1]]", Form(name="brackets"), "strict").kind
    'unparsable'
    >>> parse_reply("Well: [[1]]", Form(name="brackets"), "either").score
    1.0
    """
    shown, thought = visible(text)
    if not shown.strip():
        kind = ErrorKind.TRUNCATED if thought or cut else ErrorKind.UNPARSABLE
        return _failed(kind, "nothing but thinking" if thought else "an empty reply")
    if form.name == "marks" and form.rubric is None:
        return _failed(ErrorKind.INVALID_INPUT, "no rubric, in the row or in the prompt")
    if parse != "anywhere":
        found = _STRICT[form.name](shown.strip(), form)
        if found is not None or parse == "strict":
            return found or _failed(ErrorKind.UNPARSABLE, "not in the form asked for")
    return _ANYWHERE[form.name](shown, form, cut)


def _failed(kind: ErrorKind, why: str) -> Parsed:
    return Parsed(kind=kind.value, why=why)


def _by_number(rubric: Rubric) -> dict[str, str]:
    """Ids of criteria by the numbers that a prompt gives them."""
    return {str(n): one.id for n, one in enumerate(rubric.criteria, 1)}


def _scored(form: Form, marks: Mapping[str, Any], how: str) -> Parsed:
    rubric = form.rubric
    assert rubric is not None  # noqa: S101  (parse_reply has looked)
    names = _by_number(rubric)
    outcome = score(rubric, {names[n]: mark for n, mark in marks.items() if mark is not None})
    if isinstance(outcome, Scored):
        return Parsed(score=outcome.score, how=how)
    if isinstance(outcome, Incomplete):
        why = f"{len(outcome.missing)} of {len(names)} criteria have no mark"
        return Parsed(kind=ErrorKind.INCOMPLETE.value, why=why, low=outcome.low, high=outcome.high)
    return _failed(ErrorKind.INVALID_INPUT, "the rubric has no positive points")


def _strict_marks(text: str, form: Form) -> Parsed | None:
    piece, rubric = whole_object(text), form.rubric
    if piece is None or rubric is None or piece.value.keys() != _by_number(rubric).keys():
        return None
    words = list(piece.value.values())
    if not all(isinstance(word, str) and word in _WORDS for word in words):
        return None
    return _scored(form, {n: _WORDS[word] for n, word in piece.value.items()}, "strict")


def _any_marks(text: str, form: Form, cut: bool) -> Parsed:
    assert form.rubric is not None  # noqa: S101  (parse_reply has looked)
    numbers = list(_by_number(form.rubric))
    for piece in find_values(text).pieces:
        if isinstance(piece.value, dict) and (marks := _complete(piece.value, numbers)) is not None:
            return _scored(form, marks, "anywhere")
    found = read_marks(text, numbers, cut=cut)
    if isinstance(found, Unread):
        return _failed(found.kind, found.why)
    return _scored(form, found.value, "anywhere")


def _complete(value: Mapping[str, Any], numbers: list[str]) -> dict[str, bool] | None:
    if any(number not in value for number in numbers):
        return None
    try:
        marks = {number: read_mark(value[number]) for number in numbers}
    except ValueError:
        return None
    return None if None in marks.values() else {n: bool(mark) for n, mark in marks.items()}


def _strict_brackets(text: str, _: Form) -> Parsed | None:
    found = _LEADING.match(text)
    return None if found is None else Parsed(score=float(found[1] or found[2]), how="strict")


def _any_brackets(text: str, _: Form, cut: bool) -> Parsed:
    others = 0
    for found in _BRACKETS.finditer(text):
        if found[1] in ("0", "1"):
            return Parsed(score=float(found[1]), how="anywhere")
        others += 1
    if others:
        return _failed(ErrorKind.OUT_OF_RANGE, "brackets, but neither [[0]] nor [[1]]")
    return _failed(ErrorKind.TRUNCATED if cut else ErrorKind.UNPARSABLE, "no [[0]] and no [[1]]")


def _strict_score(text: str, form: Form) -> Parsed | None:
    piece = whole_object(text)
    value = piece.value.get("score") if piece is not None else None
    if piece is None and _NUMBER.match(text):
        value = float(text)
    if not isinstance(value, int | float) or isinstance(value, bool) or not _within(value, form):
        return None
    return Parsed(score=float(value), how="strict")


def _within(value: float, form: Form) -> bool:
    # A NaN is within nothing.
    return abs(value) <= 1e15 and not (
        (form.low is not None and value < form.low) or (form.high is not None and value > form.high)
    )


def _any_score(text: str, form: Form, cut: bool) -> Parsed:
    found = read_score(text, low=form.low, high=form.high, cut=cut)
    if isinstance(found, Unread):
        return _failed(found.kind, found.why)
    return Parsed(score=float(found.value), how="anywhere")


_STRICT = {"marks": _strict_marks, "brackets": _strict_brackets, "score": _strict_score}
_ANYWHERE = {"marks": _any_marks, "brackets": _any_brackets, "score": _any_score}
