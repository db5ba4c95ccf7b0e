"""Rubrics as data: criteria with signed points or weights; reading, scoring, checking them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from adjudge.rubrics.parsing import (
    AnyRubric,
    find_bundle,
    load_bundle,
    load_rubric,
    parse_rubric,
    rubric_from,
)
from adjudge.rubrics.rubric import (
    CATEGORY_WEIGHTS,
    Band,
    Category,
    Criterion,
    Example,
    GlobalRubric,
    Mark,
    Rubric,
    RubricBundle,
    rubric_digest,
)
from adjudge.rubrics.scoring import (
    Incomplete,
    NotEvaluable,
    Outcome,
    RubricScore,
    score,
    score_range,
    subscores,
)

if TYPE_CHECKING:
    from adjudge.rubrics.linting import LintFinding, lint

__all__ = [
    "CATEGORY_WEIGHTS",
    "AnyRubric",
    "Band",
    "Category",
    "Criterion",
    "Example",
    "GlobalRubric",
    "Incomplete",
    "LintFinding",
    "Mark",
    "NotEvaluable",
    "Outcome",
    "Rubric",
    "RubricBundle",
    "RubricScore",
    "find_bundle",
    "lint",
    "load_bundle",
    "load_rubric",
    "parse_rubric",
    "rubric_digest",
    "rubric_from",
    "score",
    "score_range",
    "subscores",
]


def __getattr__(name: str) -> Any:
    if name not in ("LintFinding", "lint"):
        raise AttributeError(f"module 'adjudge.rubrics' has no attribute {name!r}")
    from adjudge.rubrics import linting  # noqa: PLC0415  (many patterns, for few)

    return getattr(linting, name)
