"""Rubrics as data: criteria with signed points or weights; reading, scoring, checking them."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from adjudge.rubrics.linting import LintFinding, lint
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

__all__ = [
    "CATEGORY_WEIGHTS",
    "AnyRubric",
    "Band",
    "Category",
    "Criterion",
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

_HOME = {
    "linting": ("LintFinding", "lint"),
    "parsing": (
        "AnyRubric", "find_bundle", "load_bundle", "load_rubric", "parse_rubric", "rubric_from",
    ),
    "rubric": (
        "CATEGORY_WEIGHTS", "Band", "Category", "Criterion", "GlobalRubric", "Mark", "Rubric",
        "RubricBundle", "rubric_digest",
    ),
    "scoring": (
        "Incomplete", "NotEvaluable", "Outcome", "RubricScore", "score", "score_range",
        "subscores",
    ),
}  # fmt: skip
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'adjudge.rubrics' has no attribute {name!r}")
    value = getattr(import_module(f"adjudge.rubrics.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value
