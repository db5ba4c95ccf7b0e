"""One function per answer type that needs no process: a response's text against a reference.

Each takes the text in which the answer stands and the reference of the sample, and returns a
:class:`Finding`. A reference that is not of the type raises ``GradingFailure(invalid_input)``; a
text without an answer of the type is a wrong answer, and the finding says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import Any, NamedTuple

from adjudge.errors import ErrorKind, GradingFailure
from adjudge.graders.rules.answer_box import Box, iou, last_box, read_box
from adjudge.graders.rules.answer_choice import read_boolean, read_letter
from adjudge.graders.rules.answer_items import Number
from adjudge.graders.rules.answer_number import last_number, numbers_match, read_number
from adjudge.graders.rules.answer_text import find_json, same_text
from adjudge.graders.rules.arithmetic import MAX_DIGITS
from adjudge.graders.rules.extraction import last_marked, plain
from adjudge.graders.rules.json_match import JsonMatchGrader
from adjudge.graders.rules.text import shown

__all__ = ["COMPARE", "Finding", "compare_number", "numeric_verdict", "reference_texts", "unusable"]


class Finding(NamedTuple):
    """A score in [0, 1], the answer that was read (``None``: nothing found) and a reason."""

    score: float
    answer: str | None
    reason: str


_MATHS_DIGITS = 1e-5
_json_match = JsonMatchGrader(view="full")


def compare_number(
    text: str, marked: bool, reference: Any, rel_tol: float, abs_tol: float
) -> Finding:
    """1 when the number in ``text`` is within tolerance of any reference number.

    A ``marked`` answer must be one number as a whole; else the text may end on one.
    """
    references = [_reference_number(one) for one in _each(reference)]
    number = read_number(text) or (None if marked else last_number(text))
    if number is None:
        return _nothing("number")
    equal = any(numbers_match(number, one, rel_tol, abs_tol) for one in references)
    return _equality(equal, number.text)


def compare_letter(text: str, reference: Any) -> Finding:
    """1 when the option letter in ``text`` is any of the reference letters."""
    letters = [read_letter(one) or unusable("an option letter", one) for one in _texts(reference)]
    letter = read_letter(text)
    return _nothing("option letter") if letter is None else _equality(letter in letters, letter)


def compare_boolean(text: str, reference: Any) -> Finding:
    """1 when ``text`` says yes/true or no/false as the reference does."""
    wanted = read_boolean(reference) if isinstance(reference, str) else reference
    if not isinstance(wanted, bool):
        unusable("yes, no, true or false", reference)
    said = read_boolean(text)
    if said is None:
        return _nothing("yes, no, true or false")
    return _equality(said is wanted, "true" if said else "false")


def compare_box(text: str, reference: Any) -> Finding:
    """The best intersection over union of the box in ``text`` with any reference box."""
    boxes = _reference_boxes(reference)
    box = last_box(text)
    if box is None:
        return _nothing("box of four numbers")
    overlap = max(iou(box, one) for one in boxes)
    return Finding(overlap, str(list(box)), f"intersection over union {overlap:.3g}")


def compare_any(text: str, reference: Any) -> Finding:
    """1 when ``text`` equals any reference; case, white space around and LaTeX wrappers aside."""
    wanted = reference_texts(reference)
    equal = any(same_text(text, one) or same_text(plain(text), plain(one)) for one in wanted)
    return _equality(equal, text)


def compare_exact(text: str, reference: Any) -> Finding:
    """1 when ``text`` equals any reference, surrounding white space aside."""
    wanted = [one.strip() for one in reference_texts(reference)]
    return _equality(text.strip() in wanted, text)


def compare_json(text: str, reference: Any) -> Finding:
    """1 when the JSON in ``text`` is the reference value (text is read as JSON)."""
    found = find_json(text)
    result = _json_match.evaluate(found or "", reference)
    return _nothing("JSON value") if found is None else Finding(result.score, found, result.reason)


COMPARE: dict[str, Callable[[str, Any], Finding]] = {
    "MULTIPLE_CHOICE": compare_letter,
    "BOOLEAN": compare_boolean,
    "BBOX": compare_box,
    "ANY": compare_any,
    "EXACT": compare_exact,
    "JSON": compare_json,
}
"""The types whose comparison has no parameters."""


def numeric_verdict(answer: str, references: list[str]) -> bool | None:
    """Whether numbers are equal, for maths; ``None`` where more than arithmetic is needed.

    Here 5% is 0.05 and never 5. Numbers closer than 0.00001 that differ are left to the symbolic
    check, which rounds; so are two equations, which may have two names on the left.
    """
    number = _maths_number(answer)
    if number is None:
        return None
    others = [one for one in references if not ("=" in one and "=" in answer)]
    known = [one for one in map(_maths_number, others) if one is not None]
    if any(numbers_match(number, one, 0.0, 0.0) for one in known):
        return True
    close = any(numbers_match(number, one, 0.0, _MATHS_DIGITS) for one in known)
    return None if close or len(known) < len(references) else False


def _maths_number(text: str) -> Number | None:
    number = read_number(text, symbols=True)
    return number and number._replace(percent=False)


def reference_texts(reference: Any) -> list[str]:
    r"""The references as texts; what ``<answer>`` or ``\boxed{}`` in one holds stands for it."""
    return [last_marked(one) or one for one in _texts(reference)]


def unusable(wanted: str, reference: Any) -> Any:
    """Raise ``GradingFailure(invalid_input)`` for a reference that is not ``wanted``."""
    found = f"{type(reference).__name__} {shown(reference, 80)!r}"
    raise GradingFailure(ErrorKind.INVALID_INPUT, f"the reference must be {wanted}, got {found}")


def _each(reference: Any) -> list[Any]:
    several = list(reference) if isinstance(reference, list | tuple) else [reference]
    return several or unusable("present", reference)


def _texts(reference: Any) -> list[str]:
    several = _each(reference)
    for one in several:
        if not isinstance(one, str | int | float) or not str(one).strip():
            unusable("text that is not empty", one)
    return [str(one) for one in several]


def _reference_number(reference: Any) -> Number:
    number = None
    if isinstance(reference, str):
        text = last_marked(reference) or reference
        number = read_number(text) or last_number(text)
    elif isinstance(reference, int | float) and not isinstance(reference, bool):
        number = _given_number(reference)
    return number or unusable("a number", reference)


def _given_number(given: float) -> Number | None:
    """A number of the row's own; ``None`` for what no answer can be read as."""
    if not -(10**MAX_DIGITS) < given < 10**MAX_DIGITS:  # NaN is not either
        return None
    return Number(Fraction(repr(given)), False, 0, repr(given))


def _reference_boxes(reference: Any) -> list[Box]:
    box = read_box(reference)
    several: Iterable[Any] = [box] if box else _each(reference)
    boxes = [one if isinstance(one, tuple) and box else read_box(one) for one in several]
    for one in boxes:
        if one is None or one[2] <= one[0] or one[3] <= one[1]:
            unusable("[x1, y1, x2, y2] with x1 < x2 and y1 < y2", reference)
    return [one for one in boxes if one is not None]


def _equality(equal: bool, answer: str) -> Finding:
    return Finding(float(equal), answer, "equal" if equal else "differs")


def _nothing(wanted: str) -> Finding:
    return Finding(0.0, None, f"no answer found: no {wanted}")
