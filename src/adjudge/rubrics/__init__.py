"""Rubrics as data: criteria with signed points or weights; reading, scoring, checking them."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from adjudge.rubrics.bundle import Band, GlobalRubric, RubricBundle
    from adjudge.rubrics.criterion import CATEGORY_WEIGHTS, Category, Criterion, Mark
    from adjudge.rubrics.linting import Finding, lint
    from adjudge.rubrics.load import find_bundle, load_bundle, load_rubric
    from adjudge.rubrics.parse import AnyRubric, parse_rubric, rubric_from
    from adjudge.rubrics.rubric import Rubric, digest
    from adjudge.rubrics.scoring import (
        Incomplete,
        NotEvaluable,
        Outcome,
        Scored,
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
    "Finding",
    "GlobalRubric",
    "Incomplete",
    "Mark",
    "NotEvaluable",
    "Outcome",
    "Rubric",
    "RubricBundle",
    "Scored",
    "digest",
    "find_bundle",
    "lint",
    "load_bundle",
    "load_rubric",
    "parse_rubric",
    "rubric_from",
    "score",
    "score_range",
    "subscores",
]

_HOME = {
    "bundle": ("Band", "GlobalRubric", "RubricBundle"),
    "criterion": ("CATEGORY_WEIGHTS", "Category", "Criterion", "Mark"),
    "linting": ("Finding", "lint"),
    "load": ("find_bundle", "load_bundle", "load_rubric"),
    "parse": ("AnyRubric", "parse_rubric", "rubric_from"),
    "rubric": ("Rubric", "digest"),
    "scoring": (
        "Incomplete", "NotEvaluable", "Outcome", "Scored", "score", "score_range", "subscores",
    ),
}  # fmt: skip
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'adjudge.rubrics' has no attribute {name!r}")
    value = getattr(import_module(f"adjudge.rubrics.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value
