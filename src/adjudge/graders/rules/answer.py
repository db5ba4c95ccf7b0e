"""Is the final answer of a response the reference answer."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Literal, get_args

from adjudge.engine.processes import CandidateLimitExceeded, get_pool
from adjudge.errors import ConfigError, ErrorKind, GradingFailure
from adjudge.graders.base import RuleGrader
from adjudge.graders.rules.answer_compare import (
    COMPARE,
    Finding,
    compare_number,
    numeric_verdict,
    reference_texts,
    unusable,
)
from adjudge.graders.rules.answer_number import last_number, read_number
from adjudge.graders.rules.answer_text import best_ocr_similarity
from adjudge.graders.rules.arithmetic import latex
from adjudge.graders.rules.extraction import (
    CANDIDATE_CHARS,
    SEARCHED_CHARS,
    last_marked,
    last_math,
    plain,
)
from adjudge.graders.rules.params import chosen, needs, number
from adjudge.graders.rules.regex_check import FLAGS, compiled
from adjudge.graders.rules.text import NO_FINAL_TEXT, seen_text, shown
from adjudge.graders.view import View
from adjudge.types import GraderScore

__all__ = ["AnswerGrader", "AnswerType"]

AnswerType = Literal[
    "auto",
    "NUMBER",
    "MATH_EXPRESSIONS",
    "MULTIPLE_CHOICE",
    "BOOLEAN",
    "OCRTEXT",
    "BBOX",
    "ANY",
    "EXACT",
    "REGEX",
    "JSON",
]
_TYPES = frozenset(get_args(AnswerType)) - {"auto"}

_MATHS_OWNER = "answer with answer_type = 'MATH_EXPRESSIONS'"
_VERIFY = "adjudge.graders.rules.math_check:verify"
_SEARCH = "adjudge.graders.rules.regex_check:search"
_OCR = "adjudge.graders.rules.answer_text:best_ocr_similarity"

# Types whose candidate is looked for near the end when nothing marks the answer.
_SOUGHT = frozenset({"NUMBER", "MATH_EXPRESSIONS", "MULTIPLE_CHOICE", "BOOLEAN", "BBOX"})
# Beyond this many character pairs (some 10 ms) an edit distance leaves the event loop.
_OCR_PAIRS = 1_000_000_000
# A short text without words is an expression as it stands: "x + 3", not its last number.
_PROSE = re.compile(r"(?<![\\A-Za-z])(?!(?:sqrt|sinh|cosh|tanh|arc[a-z]{3})\b)[A-Za-z]{4,}|\n|: ")
_EXPRESSION_CHARS = 200
_MATHS_CHARS = 10_000
# Ordinary patterns take time with the square of the text: half a second for this many.
_PATTERN_CHARS = 10_000
# Before a formula: it is not the answer, or only one of several.
_DENIED = re.compile(r"(?:\b(?:not|nor|or|versus|vs|rather than|instead of)|n['’]t)\W*\Z")
_DENIED_CHARS = 20


class AnswerGrader(RuleGrader):
    r"""1 when the final answer of the response is the reference answer, else 0 or the overlap.

    Range [0, 1]. Fields: ``response`` (text), ``reference``, and ``answer_type`` of the row where
    the parameter is ``auto``. The answer is what the last ``<answer>…</answer>`` or ``\boxed{…}``
    holds, whichever begins later. Without one it is the last candidate of its type in the text,
    and metadata has ``extracted = false``. No candidate, or an unclosed ``<think>`` under
    ``view = "final"`` (metadata ``unclosed_think = true``), is a wrong answer: 0.

    ``answer_type``: ``auto`` (default) takes the row's, and ``ANY`` where the row has none. With a
    list as ``reference``, any of its items will do (not for BOOLEAN and JSON). A marker in a text
    reference is read as in a response. A hedge is a wrong answer to every one of its parts: "5 or
    6", "5 to 6", "A/B", "yes and no"; "5, not 6" is 5.

    * NUMBER: numerically equal, |a − r| ≤ max(abs_tol, rel_tol·|r|). A marked answer must be one
      number as a whole. Arithmetic is computed exactly (``2^{10}``, "10!", ``\sqrt{16}``, ½, "2+3
      = 5"), to 1,000 digits and exponents of 5,000; scale words are multiplied in ("1.5 million",
      "5k"); number words, units, and words that change nothing may stand around it. "at least 5"
      and "5x" are no numbers; "50%" is 0.5 or 50. Two different units are not equal and none is
      converted: 5 cm is 5, but not 5 m and not 0.05 m.
    * MATH_EXPRESSIONS: equal by ``math-verify`` in a process that is killed after ``deadline_s``.
      Numbers are read as for NUMBER and compared at once; 50% is 0.5 and not 50; a letter at a
      numeral is a factor ("5k"). An equation stands for its right side where its left side is a
      name or equals it; ``1=2=3`` stands for nothing. Needs ``adjudge[rules]``.
    * MULTIPLE_CHOICE: the same letter, from "(B)", "B.", "The answer is B" or "B, not A".
    * BOOLEAN: yes/true or no/false, as whole words; "not true" is false.
    * OCRTEXT: 1 − edit distance / length of the longer text, 0 where below 0.5; best reference.
    * BBOX: intersection over union of [x1, y1, x2, y2].
    * ANY: equal after trimming, whatever the case. EXACT: the case counts.
    * REGEX: ``pattern``, or the reference where it is empty, is found in the answer (``re.search``
      in a process that is killed after ``deadline_s``). ``flags``: letters out of ``aimsx``. In a
      longer text without marker the pattern must begin in the last 10,000 characters.
    * JSON: the same value; the order of keys does not count, 1 equals 1.0.

    ``view``: ``final`` (default) or ``full``. ``rel_tol``, ``abs_tol`` (0): for NUMBER only.
    ``deadline_s`` (2): processor seconds in a process for each part of a check: the reference, the
    answer, the comparison. On a busy machine that may be ten times as long. An answer that alone
    takes longer, or a mathematical or marked REGEX one of more than 10,000 characters, is wrong: 0,
    with ``cause = "candidate"`` in metadata.
    The last 200,000 characters are searched for a marker, the last 20,000 for a candidate.

    Raises ``ConfigError``; ``GradingFailure``: ``invalid_input`` for a reference that is missing
    or not of the type and for a response that is not text, ``unsupported`` for an unknown
    ``answer_type`` in a row, ``timeout`` when reference or comparison run past the deadline.
    Metadata: ``answer`` and ``reference`` (cut to 200 characters), ``extracted``, ``answer_type``.
    Source of the types: the rule rewards of vision-RL judge services, their substring readings
    corrected.
    """

    type_name = "answer"
    score_range = (0.0, 1.0)

    def __init__(
        self,
        answer_type: AnswerType = "auto",
        view: View = "final",
        rel_tol: float = 0.0,
        abs_tol: float = 0.0,
        deadline_s: float = 2.0,
        pattern: str = "",
        flags: str = "",
        *,
        name: str = "",
    ) -> None:
        super().__init__(name)
        chosen(self.type_name, "answer_type", answer_type, AnswerType)
        chosen(self.type_name, "view", view, View)
        number(self.type_name, "rel_tol", rel_tol, 0.0, 1.0)
        number(self.type_name, "abs_tol", abs_tol, 0.0, 1e300)
        number(self.type_name, "deadline_s", deadline_s, 0.01, 600.0)
        _check_pattern(self.type_name, pattern, flags)
        if answer_type == "MATH_EXPRESSIONS":
            needs(_MATHS_OWNER, "math_verify")
        self.answer_type = answer_type
        self.view: View = view
        self.rel_tol = rel_tol
        self.abs_tol = abs_tol
        self.deadline_s = deadline_s
        self.pattern = pattern
        self.flags = flags

    async def aevaluate(
        self, response: str, reference: Any = None, answer_type: str | None = None
    ) -> GraderScore:
        """Judge one response against its reference."""
        kind = self._kind(answer_type)
        if reference is None and not (kind == "REGEX" and self.pattern):
            raise GradingFailure(ErrorKind.INVALID_INPUT, "the sample has no reference")
        facts = {"reference": shown(reference), "answer_type": kind}
        text = seen_text(response, self.view)
        if text is None:
            return self._found(Finding(0.0, None, NO_FINAL_TEXT), False, facts, unclosed_think=True)
        marked = last_marked(text[-SEARCHED_CHARS:])
        if marked is None and kind in _SOUGHT:
            text = text[-CANDIDATE_CHARS:]
        sought = text if marked is None else marked
        try:
            finding = await self._compare(kind, sought, marked is not None, reference)
        except CandidateLimitExceeded as excess:
            said = {"answer": shown(sought), "extracted": marked is not None, **facts}
            return self._candidate_fault(str(excess), **said)
        return self._found(finding, marked is not None, facts)

    def _kind(self, row_type: Any) -> str:
        if self.answer_type != "auto":
            return self.answer_type
        if row_type is None:
            return "ANY"
        kind = row_type.strip().upper() if isinstance(row_type, str) else None
        if kind not in _TYPES:
            allowed = ", ".join(sorted(_TYPES))
            message = f"unknown answer_type {shown(row_type, 40)!r} (allowed: {allowed})"
            raise GradingFailure(ErrorKind.UNSUPPORTED, message)
        return str(kind)

    async def _compare(self, kind: str, text: str, marked: bool, reference: Any) -> Finding:
        if kind == "NUMBER":
            return compare_number(text, marked, reference, self.rel_tol, self.abs_tol)
        if kind == "MATH_EXPRESSIONS":
            return await self._maths(text if marked else _last_expression(text), reference)
        if kind == "OCRTEXT":
            return await self._ocr(text, reference)
        if kind == "REGEX":
            return await self._regex(text, marked, reference)
        return COMPARE[kind](text, reference)

    async def _maths(self, answer: str | None, reference: Any) -> Finding:
        references = reference_texts(reference)
        if not answer:
            return Finding(0.0, None, "no answer found: no expression")
        if len(answer) > _MATHS_CHARS:
            message = f"the answer is an expression of more than {_MATHS_CHARS} characters"
            raise CandidateLimitExceeded(ErrorKind.UNSUPPORTED, message)
        equal = numeric_verdict(answer, references)
        if equal is None:
            needs(_MATHS_OWNER, "math_verify")  # a row may ask for it, where the spec does not
            verdict = await self._in_process(_VERIFY, answer=answer, references=references)
            if not verdict["parsed"]:
                return Finding(0.0, answer, "the answer is not a mathematical expression")
            equal = verdict["correct"]
        return Finding(float(equal), answer, "equal" if equal else "differs")

    async def _ocr(self, text: str, reference: Any) -> Finding:
        references = reference_texts(reference)
        payload = {"answer": text, "references": references}
        if len(text) * max(map(len, references)) > _OCR_PAIRS:
            score = await self._in_process(_OCR, **payload)
        else:
            score = best_ocr_similarity(payload)
        return Finding(score, text, f"edit similarity {score:.3g}")

    async def _regex(self, text: str, marked: bool, reference: Any) -> Finding:
        patterns = [self.pattern] if self.pattern else _patterns(reference)
        start = max(0, len(text) - _PATTERN_CHARS)
        if marked and start:
            message = f"more than {_PATTERN_CHARS} characters are marked as the answer"
            raise CandidateLimitExceeded(ErrorKind.UNSUPPORTED, message)
        sought = {"patterns": patterns, "flags": self.flags, "text": text, "start": start}
        found = await self._in_process(_SEARCH, **sought)
        if found is None:
            return Finding(0.0, text, "the pattern does not occur")
        return Finding(1.0, text, f"the pattern matches {shown(found, 80)!r}")

    async def _in_process(self, function: str, **payload: Any) -> Any:
        return await get_pool().call(function, _unicode(payload), deadline_s=self.deadline_s)

    def _found(
        self, finding: Finding, marked: bool, facts: dict[str, Any], **more: Any
    ) -> GraderScore:
        answer = None if finding.answer is None else shown(finding.answer)
        extracted = marked and finding.answer is not None
        metadata = {"answer": answer, "extracted": extracted, **facts, **more}
        return self._score(finding.score, finding.reason, **metadata)


def _last_expression(text: str) -> str | None:
    """The expression in a text without marker: all of it, its last formula or its last number."""
    text = latex(plain(text))
    if len(text) <= _EXPRESSION_CHARS and not _PROSE.search(text):
        return text
    formula, digits = last_math(text), last_number(text)
    if formula is not None and read_number(formula.text, symbols=True) is None:
        if _DENIED.search(text, max(0, formula.start - _DENIED_CHARS), formula.start):
            return None
        if digits is None or formula.start + len(formula.text) > digits.start:
            return formula.text
    return digits.text if digits else None


def _patterns(reference: Any) -> list[str]:
    patterns = reference if isinstance(reference, Sequence) else [reference]
    patterns = [patterns] if isinstance(patterns, str) else list(patterns)
    if not patterns or not all(isinstance(one, str) and one for one in patterns):
        unusable("a pattern", reference)
    return patterns


def _unicode(value: Any) -> Any:
    """Lone surrogates, which no encoding can carry, as question marks."""
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "replace").decode()
    if isinstance(value, list):
        return [_unicode(item) for item in value]
    if isinstance(value, dict):
        return {key: _unicode(item) for key, item in value.items()}
    return value


def _check_pattern(owner: str, pattern: Any, flags: Any) -> None:
    if not isinstance(flags, str) or not set(flags) <= set(FLAGS):
        raise ConfigError(f"{owner}: flags must be letters out of 'aimsx', got {flags!r}")
    if not isinstance(pattern, str):
        raise ConfigError(f"{owner}: pattern must be text, got {pattern!r}")
    try:
        compiled(pattern, flags)
    except (re.error, OverflowError) as error:
        raise ConfigError(f"{owner}: pattern {pattern!r} is not one: {error}") from None
