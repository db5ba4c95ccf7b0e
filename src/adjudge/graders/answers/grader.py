"""Is the final answer of a response the reference answer: the grader, in one order.

The answer is found as a text (:mod:`.answer_text`), read as its type says (:mod:`.choices`,
:mod:`.quantities`, :mod:`.structures`) and compared; maths by :mod:`.comparison`. A reference that
is not of the type raises ``GradingFailure(invalid_input)``; a text without an answer of the type is
a wrong answer.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Any, Literal, get_args

from pydantic import Field

from adjudge.config_tables import check_setting
from adjudge.errors import LACKED, CandidateLimitExceeded, ErrorKind, GradingFailure, InvalidInput
from adjudge.graders.answers.answer_text import (
    AnswerMatch,
    comparable_text,
    find_last_mark,
    find_last_marked,
    list_each,
    list_texts,
    normalize,
    raise_unusable_reference,
    read_reference_texts,
)
from adjudge.graders.answers.numerals import MAX_DIGITS, ExpressionTooLarge
from adjudge.graders.answers.quantities import (
    ParsedNumber,
    find_last_number,
    numbers_match,
    read_number,
)
from adjudge.graders.base import (
    NO_FINAL_TEXT,
    ParametricRule,
    final_response,
    is_nan,
    require_package,
)
from adjudge.text import replace_surrogates, shorten_text
from adjudge.types import GraderScore


def compare_number(
    text: str, marked: bool, reference: Any, rel_tol: float, abs_tol: float
) -> AnswerMatch:
    """1 when the number in ``text`` is within tolerance of any reference number.

    A ``marked`` answer must be one number as a whole; else the text may end on one.
    """
    references = [_reference_number(one) for one in list_each(reference)]
    number = (
        read_number(text) if marked else read_number(text, prose=True) or find_last_number(text)
    )
    if number is None:
        return AnswerMatch.miss("number")
    equal = any(numbers_match(number, one, rel_tol, abs_tol) for one in references)
    return AnswerMatch.decide(equal, number.text)


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
    rel_tol: Annotated[float, Field(ge=0, le=1)] = 0.0
    abs_tol: Annotated[float, Field(ge=0, le=1e300)] = 0.0
    pattern: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_setting(re.Pattern[str], self.pattern, "pattern")
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
            from adjudge.graders.answers import choices  # noqa: PLC0415  (numbers need none)

            behind = text[-_SEARCHED_CHARS:][mark.start + len(mark.text) :]
            marked = choices.read_letter_behind(mark.text, behind) or marked
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
            return await self._maths(text, marked, reference)
        if kind == "REGEX":
            return await self._regex(text, marked, reference)
        from adjudge.graders.answers.choices import COMPARATORS  # noqa: PLC0415  (likewise)

        return COMPARATORS[kind](text, reference)

    async def _maths(self, text: str, marked: bool, reference: Any) -> AnswerMatch:
        from adjudge.graders.answers import comparison  # noqa: PLC0415  (maths alone)

        answer = text if marked else comparison.find_last_expression(text)
        references = read_reference_texts(reference)
        if not answer:
            return AnswerMatch.miss("expression")
        if len(answer) > _MATHS_CHARS:
            message = f"the answer is an expression of more than {_MATHS_CHARS} characters"
            raise CandidateLimitExceeded(ErrorKind.UNSUPPORTED, message)
        require_package(_MATHS_OWNER, "math_verify")  # a row may ask for it, unlike the spec
        try:
            found = {one: comparison.compare(answer, one) for one in references}
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
        patterns = [self.pattern] if self.pattern else list_texts(reference)
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
    from adjudge.graders.answers.comparison import compare  # noqa: PLC0415  (maths alone)

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
