"""What makes a rubric easy to satisfy without being good, or impossible to satisfy.

The exploits that policies find in rubrics are known (arXiv 2605.12474): parts of compound
criteria, words that are present without being right, vague topics. ``lint`` looks for the wording
that allows them, and for arithmetic that cannot work.
"""

from __future__ import annotations

import itertools
import operator
import re
from collections.abc import Iterator
from typing import Literal, get_args

import msgspec

from adjudge.rubrics.bundle import Band, GlobalRubric, RubricBundle
from adjudge.rubrics.criterion import Criterion
from adjudge.rubrics.lint_patterns import NEGATION
from adjudge.rubrics.lint_text import ADVICE, check_wording, negated, stripped
from adjudge.rubrics.parse import AnyRubric
from adjudge.rubrics.rubric import Rubric

__all__ = ["SEVERITIES", "Finding", "Severity", "lint", "parts_of"]

Severity = Literal["error", "warning", "note"]
SEVERITIES = get_args(Severity)

_ONE_CALL = 20
"""Criteria that one call should ask for; rubrics of RaR (arXiv 2507.17746) have 7 to 20."""
_ALIKE = 0.8
_PREAMBLE = 100
_WORD = re.compile(r"[^\W_]+")
_STOP = re.compile(
    "an?|the|of|to|in|on|for|and|or|with|by|from|as|at|is|are|be|its?|this|that|should|must|does|do|"
    "not|response|answer|assistant|model|output"
)


class Finding(msgspec.Struct, frozen=True):
    """One thing that ``lint`` found.

    ``criterion``: the id of the criterion, ``None`` for the rubric as a whole. ``part``: which
    rubric of a bundle it is about. ``severity``:
    ``error`` cannot work, ``warning`` is likely to be exploited or
    misjudged, ``note`` may be meant.
    """

    rule: str
    criterion: str | None
    severity: Severity
    message: str
    suggestion: str
    part: str = ""


def lint(rubric: AnyRubric) -> list[Finding]:
    """Findings, the worst first, then in the order of the criteria; of a bundle, each part's.

    Reads the rubric only. The wording rules are heuristics for English and Chinese.

    >>> [f.rule for f in lint(Rubric(("Explains the cause and recommends a dose",)))]
    ['compound']
    """
    found = [
        msgspec.structs.replace(finding, part=name)
        for name, part in parts_of(rubric)
        for finding in _findings(part)
    ]
    return sorted(found, key=lambda finding: SEVERITIES.index(finding.severity))


def parts_of(rubric: AnyRubric) -> list[tuple[str, Rubric | GlobalRubric]]:
    """The rubrics of a bundle with their names; a rubric alone has the name ``""``."""
    if not isinstance(rubric, RubricBundle):
        return [("", rubric)]
    named = [(name, getattr(rubric, name)) for name in ("global_rubric", "outcome", "events")]
    return [(name, part) for name, part in named if part is not None]


def _findings(rubric: Rubric | GlobalRubric) -> Iterator[Finding]:
    if isinstance(rubric, GlobalRubric):
        yield from _guide(rubric)
        return
    yield from _arithmetic(rubric)
    for criterion in rubric.criteria:
        for rule, severity, message in check_wording(criterion):
            yield Finding(rule, criterion.id, _severity(severity), message, ADVICE[rule])
    yield from _overlaps(rubric)


def _severity(name: str) -> Severity:
    return "error" if name == "error" else "warning" if name == "warning" else "note"


def _arithmetic(rubric: Rubric) -> Iterator[Finding]:
    if rubric.scheme != "implicit" and not any(c.worth > 0 for c in rubric.criteria):
        yield Finding(
            "unreachable",
            None,
            "error",
            "no criterion has positive points, so there is no score at all",
            "give what a good response does positive points",
        )
    counting = sum(criterion.worth != 0 for criterion in rubric.criteria)
    if counting > _ONE_CALL:
        yield Finding(
            "too_many",
            None,
            "note",
            f"has {counting} criteria; a judge that answers all in one call skips some",
            f"ask in chunks of at most {_ONE_CALL}",
        )


def _overlaps(rubric: Rubric) -> Iterator[Finding]:
    """Pairs of criteria that ask nearly the same; each criterion is reported once."""
    read = [(c, _words(c.text), negated(stripped(c.text))) for c in rubric.criteria]
    for place, (later, words, inverted) in enumerate(read):
        for earlier, others, other_inverted in read[:place]:
            if _alike(words, others) and _still_alike(later.text, earlier.text):
                yield _overlap(earlier, later, same_sense=inverted == other_inverted)
                break


def _overlap(earlier: Criterion, later: Criterion, *, same_sense: bool) -> Finding:
    opposed = earlier.is_fault != later.is_fault
    other = f"criterion {earlier.id!r}"
    if opposed and same_sense:
        return Finding(
            "unreachable",
            later.id,
            "error",
            f"says the same as {other} with points of the opposite sign: no response reaches 1",
            "keep one of them",
        )
    if opposed:
        return Finding(
            "overlap",
            later.id,
            "note",
            f"is {other} turned round: the same thing earns points and, missing, costs points",
            "keep one, with the points of both",
        )
    if same_sense:
        return Finding(
            "overlap",
            later.id,
            "warning",
            f"asks nearly the same as {other}, which counts it twice",
            "keep one, with the points of both",
        )
    return Finding(
        "unreachable",
        later.id,
        "warning",
        f"seems to contradict {other}: one of them is never met",
        "keep the one that is meant",
    )


def _words(text: str) -> frozenset[str]:
    """The words and pairs of Chinese characters that carry meaning, without a leading negation."""
    words: set[str] = set()
    for word in _WORD.findall(NEGATION.sub("", " ".join(text.lower().split()))):
        if word.isascii():
            words.add(word if len(word) < 4 else word.removesuffix("s"))
        else:
            words.update(word[i : i + 2] for i in range(max(1, len(word) - 1)))
    return frozenset(word for word in words if not _STOP.fullmatch(word))


def _alike(words: frozenset[str], others: frozenset[str]) -> bool:
    shared = len(words & others)
    if shared < 3 and words != others:
        return False
    differing = words ^ others
    if any(word.isdigit() for word in differing):
        return False  # another dose is another criterion
    return bool(shared) and shared >= _ALIKE * (shared + len(differing))


def _still_alike(text: str, other: str) -> bool:
    """Whether two texts stay alike without the preamble that they share."""
    shared = sum(1 for _ in itertools.takewhile(operator.truth, map(operator.eq, text, other)))
    if shared < _PREAMBLE:
        return True
    rest, other_rest = _words(text[shared:]), _words(other[shared:])
    return len(rest | other_rest) < 3 or _alike(rest, other_rest)


def _guide(rubric: GlobalRubric) -> Iterator[Finding]:
    bands = rubric.bands
    if not bands:
        yield Finding(
            "guide",
            None,
            "note",
            "one score without a scoring guide: each judge has a scale of its own",
            "say in scoring_guide what ranges of scores mean",
        )
        return
    step = _step(bands)
    for lower, upper in itertools.pairwise(bands):
        gap = upper.low - lower.high
        between = f"{lower.low:g}-{lower.high:g} and {upper.low:g}-{upper.high:g}"
        if gap > step + 1e-9:
            yield Finding("guide", None, "warning", f"a gap between {between}", "close it")
        elif gap < 0:
            yield Finding(
                "guide", None, "warning", f"{between} overlap", "let them meet at one end"
            )
    low, high = rubric.score_range
    if low >= 0 and high < 1:
        yield Finding(
            "unreachable",
            None,
            "warning",
            f"the guide ends at {high:g}: no response reaches 1",
            "let the best range end at 1",
        )


def _step(bands: list[Band]) -> float:
    """How far apart neighbours may be: 3-4 follows 1-2, and 0.90 follows 0.89, unless some meet."""
    if any(upper.low == lower.high for lower, upper in itertools.pairwise(bands)):
        return 0.0
    whole = all(number.is_integer() for band in bands for number in (band.low, band.high))
    return 1.0 if whole else 0.01
