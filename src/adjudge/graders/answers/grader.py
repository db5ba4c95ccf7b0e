"""Is the final answer of a response the reference answer: the grader, in one order.

The answer is found as a text (:mod:`.answer_text`), read as its type says (:mod:`.choices`,
:mod:`.quantities`, :mod:`.structures`) and compared; maths by :mod:`.comparison`. A reference that
is not of the type raises ``GradingFailure(invalid_input)``; a text without an answer of the type is
a wrong answer.
"""

from __future__ import annotations

import contextlib
import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple, get_args

from rapidfuzz.distance import Levenshtein

from adjudge.errors import LACKED, CandidateLimitExceeded, ErrorKind, GradingFailure, InvalidInput
from adjudge.graders.answers.answer_text import (
    comparable_text,
    find_last_mark,
    find_last_marked,
    normalize,
    strip_wrappers,
)
from adjudge.graders.answers.choices import (
    Box,
    find_last_box,
    intersection_over_union,
    read_boolean,
    read_box,
    read_letter,
    read_letter_behind,
)
from adjudge.graders.answers.comparison import compare, find_last_expression
from adjudge.graders.answers.numerals import MAX_DIGITS, ExpressionTooLarge
from adjudge.graders.answers.quantities import (
    ParsedNumber,
    find_last_number,
    numbers_match,
    read_number,
)
from adjudge.graders.base import (
    NO_FINAL_TEXT,
    Between,
    ParametricRule,
    UnitNumber,
    check_parameter,
    final_response,
    is_nan,
    require_package,
)
from adjudge.text import replace_surrogates, shorten_text
from adjudge.types import GraderScore


class AnswerMatch(NamedTuple):
    """A score in [0, 1], the answer that was read (``None``: nothing found), how it was decided.

    ``decision``: ``equal_text``, ``equal_value``, ``equal_symbolic``, ``differs``, ``no_answer``
    or ``undecided``.
    """

    score: float
    answer: str | None
    decision: str
    reason: str = ""


def compare_number(
    text: str, marked: bool, reference: Any, rel_tol: float, abs_tol: float
) -> AnswerMatch:
    """1 when the number in ``text`` is within tolerance of any reference number.

    A ``marked`` answer must be one number as a whole; else the text may end on one.
    """
    references = [_reference_number(one) for one in _each(reference)]
    number = (
        read_number(text) if marked else read_number(text, prose=True) or find_last_number(text)
    )
    if number is None:
        return _nothing("number")
    equal = any(numbers_match(number, one, rel_tol, abs_tol) for one in references)
    return _decided(equal, number.text)


def compare_letter(text: str, reference: Any) -> AnswerMatch:
    """1 when the option letter in ``text`` is any of the reference letters."""
    letters = [
        read_letter(one) or raise_unusable_reference("an option letter", one)
        for one in _texts(reference)
    ]
    letter = read_letter(text)
    return _nothing("option letter") if letter is None else _decided(letter in letters, letter)


def compare_boolean(text: str, reference: Any) -> AnswerMatch:
    """1 when ``text`` says yes/true or no/false as the reference does."""
    wanted = read_boolean(reference) if isinstance(reference, str) else reference
    if not isinstance(wanted, bool):
        raise_unusable_reference("yes, no, true or false", reference)
    said = read_boolean(text)
    if said is None:
        return _nothing("yes, no, true or false")
    return _decided(said is wanted, "true" if said else "false")


def compare_box(text: str, reference: Any) -> AnswerMatch:
    """The best intersection over union of the box in ``text`` with any reference box."""
    boxes = _reference_boxes(reference)
    box = find_last_box(text)
    if box is None:
        return _nothing("box of four numbers")
    overlap = max(intersection_over_union(box, one) for one in boxes)
    return _alike(overlap, str(list(box)), f"intersection over union {overlap:.3g}")


def compare_recognised_text(text: str, reference: Any) -> AnswerMatch:
    """1 − edit distance / length of the longer text; 0 where that is below 0.5."""
    alike = partial(Levenshtein.normalized_similarity, text.strip(), score_cutoff=0.5)
    score = max(alike(one.strip()) for one in read_reference_texts(reference))
    return _alike(score, text, f"edit similarity {score:.3g}")


def _fold(text: str) -> str:
    return unicodedata.normalize("NFC", strip_wrappers(text)).strip().casefold()


def compare_text(text: str, reference: Any, write: Callable[[str], str]) -> AnswerMatch:
    """1 when ``write`` makes the same of ``text`` and of any reference."""
    wanted = set(map(write, read_reference_texts(reference)))
    return _decided(write(text) in wanted, text, "equal_text")


def compare_json(text: str, reference: Any) -> AnswerMatch:
    """1 when the JSON in ``text`` is the reference value (text is read as JSON)."""
    from adjudge.graders.rules.json_graders import JsonMatchGrader  # noqa: PLC0415  (JSON alone)
    from adjudge.graders.rules.json_validation import find_json_text  # noqa: PLC0415  (likewise)

    found = find_json_text(text)
    result = JsonMatchGrader().match(found or "", reference)
    return _nothing("JSON value") if found is None else _alike(result.score, found, result.reason)


COMPARATORS: dict[str, Callable[[str, Any], AnswerMatch]] = {
    "MULTIPLE_CHOICE": compare_letter,
    "BOOLEAN": compare_boolean,
    "BBOX": compare_box,
    "OCRTEXT": compare_recognised_text,
    "ANY": partial(compare_text, write=_fold),
    "EXACT": partial(compare_text, write=str.strip),
    "JSON": compare_json,
}
"""The types whose comparison has no parameters."""


def read_reference_texts(reference: Any) -> list[str]:
    r"""The references as texts; what ``<answer>`` or ``\boxed{}`` in one holds replaces it."""
    return [find_last_marked(one) or one for one in _texts(reference)]


def raise_unusable_reference(wanted: str, reference: Any) -> Any:
    """Raise ``GradingFailure(invalid_input)`` for a reference that is not ``wanted``."""
    found = f"{type(reference).__name__} {shorten_text(reference, 80)!r}"
    raise InvalidInput(f"the reference must be {wanted}, got {found}")


def _each(reference: Any) -> list[Any]:
    several = list(reference) if isinstance(reference, list | tuple) else [reference]
    return several or raise_unusable_reference("present", reference)


def _texts(reference: Any) -> list[str]:
    several = _each(reference)
    for one in several:
        if not isinstance(one, str | int | float) or not str(one).strip() or is_nan(one):
            raise_unusable_reference("text that is not empty", one)
    return [str(one) for one in several]


def _is_plain_number(reference: Any) -> bool:
    """Whether a reference is digits alone; ``007`` and ``5 cm`` are texts."""
    if not isinstance(reference, str):
        return isinstance(reference, int | float) and not isinstance(reference, bool)
    marked = find_last_marked(reference, hashes=True) or reference
    return len(marked) <= MAX_DIGITS and _PLAIN_NUMBER.fullmatch(marked) is not None


_PLAIN_NUMBER = re.compile(
    r"(?a)\s*[-+]?(?:(0|[1-9]\d{0,2}(,\d{3})+|[1-9]\d*)?(\.\d+)?(?<=\d)|[1-9]\d*/[1-9]\d*)\s*"
)


def _reference_number(reference: Any) -> ParsedNumber:
    number = None
    if isinstance(reference, str):
        text = find_last_marked(reference, hashes=True) or reference
        number = read_number(text) or find_last_number(text)
    elif type(reference) in (int, float) and abs(reference) < 10**MAX_DIGITS:  # NaN is not
        number = ParsedNumber(Fraction(repr(reference)), False, 0, repr(reference))
    return number or raise_unusable_reference("a number", reference)


def _reference_boxes(reference: Any) -> list[Box]:
    box = read_box(reference)
    boxes = [box] if box else [read_box(one) for one in _each(reference)]
    if any(one is None or one[2] <= one[0] or one[3] <= one[1] for one in boxes):
        raise_unusable_reference("[x1, y1, x2, y2] with x1 < x2 and y1 < y2", reference)
    return [one for one in boxes if one is not None]


def _decided(equal: bool, answer: str, decision: str = "equal_value") -> AnswerMatch:
    return AnswerMatch(float(equal), answer, decision if equal else "differs")


def _alike(score: float, answer: str, reason: str) -> AnswerMatch:
    return AnswerMatch(score, answer, "equal_value" if score == 1.0 else "differs", reason)


def _nothing(wanted: str) -> AnswerMatch:
    return AnswerMatch(0.0, None, "no_answer", f"no {wanted}")


# fmt: off
AnswerType = Literal[
    "auto", "NUMBER", "MATH_EXPRESSIONS", "MULTIPLE_CHOICE", "BOOLEAN", "OCRTEXT", "BBOX", "ANY",
    "EXACT", "REGEX", "JSON",
]
# fmt: on
_TYPES = frozenset(get_args(AnswerType)) - {"auto"}

_MATHS_OWNER = "answer with answer_type = 'MATH_EXPRESSIONS'"
_VERIFY = "adjudge.graders.answers.comparison:verify"
_SEARCH = "adjudge.graders.answers.choices:search_patterns"

# A final answer stands at the end: a mark is looked for in this many characters before it, and an
# answer without a mark in this many.
_SEARCHED_CHARS = 200_000
_CANDIDATE_CHARS = 20_000
# Types whose candidate is looked for near the end when nothing marks the answer.
_SOUGHT = frozenset({"NUMBER", "MATH_EXPRESSIONS", "MULTIPLE_CHOICE", "BOOLEAN", "BBOX"})
_HASHED = frozenset({"NUMBER", "MATH_EXPRESSIONS", "ANY"})
_MATHS_CHARS = 10_000
# Ordinary patterns take time with the square of the text: half a second for this many.
_PATTERN_CHARS = 10_000


@dataclass(eq=False, repr=False)
class AnswerGrader(ParametricRule):
    r"""1 when the final answer of the response is the reference answer, else 0 or the overlap.

    Fields: ``response``, ``reference`` (a list: any item will do, but not for BOOLEAN and JSON),
    and the row's ``answer_type`` under ``auto``. The answer is the last ``<answer>…</answer>`` or
    ``\boxed{…}``, or the number in a last line ``#### 42`` (NUMBER, MATH_EXPRESSIONS, ANY). Without
    one it is the last candidate of its type, with ``extracted = false`` in the metadata. No
    candidate, a mark that is cut off and an unclosed ``<think>`` are wrong: 0. A hedge ("5 or 6",
    "A/B", "yes and no") is wrong; "5, not 6" is 5.

    * NUMBER: |a − r| ≤ max(abs_tol, rel_tol·|r|), arithmetic exact to 1,000 digits. "50%" is 0.5 or
      50. Units are never converted: 5 cm equals 5, not 0.05 m.
    * MATH_EXPRESSIONS: the same text, else equal numbers, else equal part by part, else
      math-verify. A decimal reference of three or more places equals the fraction or root that it
      rounds. Needs the extra ``full``.
    * MULTIPLE_CHOICE: the same letter, from "(B)", "B." or "The answer is B".
    * BOOLEAN: yes/true or no/false, as whole words; "not true" is false.
    * OCRTEXT: 1 − edit distance / length of the longer text, 0 where below 0.5.
    * BBOX: intersection over union of [x1, y1, x2, y2].
    * ANY: equal text after trimming, whatever the case. EXACT: the case counts.
    * REGEX: ``pattern``, or the reference, is found in the answer.
    * JSON: the same value; order of keys is ignored, 1 equals 1.0.

    The last 200,000 characters are searched for a mark, the last 20,000 for a candidate. An answer
    that takes more than 1 s of processor time, and a mathematical or marked REGEX one of more than
    10,000 characters, scores 0 with ``cause = "candidate"``. Metadata: ``answer``, ``reference``,
    ``extracted``, ``answer_type`` and ``decision``: ``equal_text``, ``equal_value``,
    ``equal_symbolic``, ``differs``, ``no_answer`` or ``undecided`` (0: no step shows equality).

    Raises ``GradingFailure``: ``invalid_input`` for a reference that is missing or not of the type,
    ``unsupported`` for an unknown ``answer_type`` of a row, ``timeout`` where reference or
    comparison take too long.

    Args:
        answer_type: ``auto`` takes the row's; without one NUMBER for a reference of digits ("42",
            "3/4"), else ANY.
        rel_tol: Relative tolerance of NUMBER.
        abs_tol: Absolute tolerance of NUMBER.
        pattern: The regular expression of REGEX, such as ``(?i)paris``; empty: the reference.
    """

    type_name = "answer"
    score_range = (0.0, 1.0)

    _DEADLINE_S = 1.0  # of each part of a check in a worker process

    answer_type: AnswerType = "auto"
    rel_tol: UnitNumber = 0.0
    abs_tol: Annotated[float, Between(0.0, 1e300)] = 0.0
    pattern: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_parameter("pattern", self.pattern, re.Pattern[str])
        if self.answer_type == "MATH_EXPRESSIONS":
            require_package(_MATHS_OWNER, "math_verify")

    async def aevaluate(
        self, response: str, reference: Any = None, answer_type: str | None = None
    ) -> GraderScore:
        """Judge one response against its reference."""
        kind = self._kind(answer_type, reference)
        if reference is None and not (kind == "REGEX" and self.pattern):
            raise InvalidInput("the sample has no reference", {LACKED: ["reference"]})
        facts = {"reference": shorten_text(reference), "answer_type": kind}
        text = final_response(response)
        if text is None:
            match = AnswerMatch(0.0, None, "no_answer", NO_FINAL_TEXT)
            return self._found(match, False, facts, unclosed_think=True)
        mark = find_last_mark(text[-_SEARCHED_CHARS:], kind in _HASHED)
        marked = mark and mark.text.strip()
        if mark and kind == "MULTIPLE_CHOICE":
            behind = text[-_SEARCHED_CHARS:][mark.start + len(mark.text) :]
            marked = read_letter_behind(mark.text, behind) or marked
        if marked is None and kind in _SOUGHT:
            text = text[-_CANDIDATE_CHARS:]
        sought = text if marked is None else marked
        try:
            finding = await self._compare(kind, sought, marked is not None, reference)
        except CandidateLimitExceeded as excess:
            said = {"answer": shorten_text(sought), "extracted": marked is not None, **facts}
            return self._candidate_fault(str(excess), **said, decision="undecided")
        return self._found(finding, marked is not None, facts)

    def _kind(self, row_type: Any, reference: Any) -> str:
        if self.answer_type != "auto":
            return self.answer_type
        if row_type is None or is_nan(row_type):
            several = reference if isinstance(reference, list | tuple) else [reference]
            return "NUMBER" if several and all(map(_is_plain_number, several)) else "ANY"
        kind = row_type.strip().upper() if isinstance(row_type, str) else None
        if kind not in _TYPES:
            allowed = ", ".join(sorted(_TYPES))
            message = f"unknown answer_type {shorten_text(row_type, 40)!r} (allowed: {allowed})"
            raise GradingFailure(ErrorKind.UNSUPPORTED, message)
        return str(kind)

    async def _compare(self, kind: str, text: str, marked: bool, reference: Any) -> AnswerMatch:
        if kind == "NUMBER":
            return compare_number(text, marked, reference, self.rel_tol, self.abs_tol)
        if kind == "MATH_EXPRESSIONS":
            return await self._maths(text if marked else find_last_expression(text), reference)
        if kind == "REGEX":
            return await self._regex(text, marked, reference)
        return COMPARATORS[kind](text, reference)

    async def _maths(self, answer: str | None, reference: Any) -> AnswerMatch:
        references = read_reference_texts(reference)
        if not answer:
            return _nothing("expression")
        if len(answer) > _MATHS_CHARS:
            message = f"the answer is an expression of more than {_MATHS_CHARS} characters"
            raise CandidateLimitExceeded(ErrorKind.UNSUPPORTED, message)
        require_package(_MATHS_OWNER, "math_verify")  # a row may ask for it, unlike the spec
        try:
            found = {one: compare(answer, one) for one in references}
        except ExpressionTooLarge:
            message = "the answer is an expression that is too long or too large to compute"
            raise CandidateLimitExceeded(ErrorKind.UNSUPPORTED, message) from None
        decisions = [one.decision for one in found.values()]
        if equal := {"equal_text", "equal_value"} & set(decisions):
            return AnswerMatch(1.0, answer, min(equal))
        asked = [text for text, one in found.items() if one.decision is None]
        unread = [text for text, one in found.items() if not one.reference_kind]
        if asked:
            texts = {"answer": normalize(answer), "references": list(map(normalize, asked))}
            said = await self._in_process(_VERIFY, **texts)
            if said:
                return AnswerMatch(1.0, answer, "equal_symbolic")
            unread = [text for text in unread if said is None or text not in asked]
            decisions += ["undecided"] if said is None else []
        if unread:
            raise InvalidInput(
                f"the reference is not a mathematical expression: {unread[0][:100]!r}"
            )
        return AnswerMatch(0.0, answer, "undecided" if "undecided" in decisions else "differs")

    async def _regex(self, text: str, marked: bool, reference: Any) -> AnswerMatch:
        patterns = [self.pattern] if self.pattern else _texts(reference)
        start = max(0, len(text) - _PATTERN_CHARS)
        if marked and start:
            message = f"more than {_PATTERN_CHARS} characters are marked as the answer"
            raise CandidateLimitExceeded(ErrorKind.UNSUPPORTED, message)
        sought = {"patterns": patterns, "text": text, "start": start}
        found = await self._in_process(_SEARCH, **sought)
        if found is None:
            return AnswerMatch(0.0, text, "differs", "the pattern does not occur")
        reason = f"the pattern matches {shorten_text(found, 80)!r}"
        return AnswerMatch(1.0, text, "equal_text", reason)

    async def _in_process(self, function: str, **payload: Any) -> Any:
        # Most answers are compared here, so that no process is needed.
        from adjudge.engine.processes import get_pool  # noqa: PLC0415

        return await get_pool().call(
            function, replace_surrogates(payload), deadline_s=self._DEADLINE_S
        )

    def _found(
        self, finding: AnswerMatch, marked: bool, facts: dict[str, Any], **more: Any
    ) -> GraderScore:
        answer = None if finding.answer is None else shorten_text(finding.answer)
        extracted = marked and finding.answer is not None
        metadata = {"answer": answer, "extracted": extracted, "decision": finding.decision}
        metadata |= {**facts, **more}
        reason = f"{finding.decision}: {finding.reason}" if finding.reason else finding.decision
        return self._score(finding.score, reason, **metadata)


async def try_answer(reference: str, answer: str) -> dict[str, dict[str, Any]]:
    """How an answer compares with a reference: texts, readings, and the decision by each type."""
    said, wanted = (find_last_marked(one) or one for one in (answer, reference))
    texts = {
        "answer": comparable_text(normalize(said)),
        "reference": comparable_text(normalize(wanted)),
    }
    steps: dict[str, dict[str, Any]] = {"text": texts}
    with contextlib.suppress(ExpressionTooLarge):
        found = compare(said, wanted)
        steps["read as"] = {"answer": found.kind, "reference": found.reference_kind}
    for kind in ("NUMBER", "MATH_EXPRESSIONS", "MULTIPLE_CHOICE", "BOOLEAN", "ANY"):
        try:
            result = await AnswerGrader().aevaluate(f"<answer>{said}</answer>", reference, kind)
            read = {one: result.metadata[one] for one in ("answer", "decision")}
            steps[kind] = {**read, "score": result.score}
        except GradingFailure as failure:
            steps[kind] = {"answer": None, "decision": str(failure), "score": None}
    return steps
