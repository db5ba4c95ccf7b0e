"""Rubrics as data: criteria with signed points or weights; reading and scoring them."""

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

__all__ = [
    "CATEGORY_WEIGHTS",
    "AnyRubric",
    "Category",
    "Criterion",
    "Example",
    "GlobalRubric",
    "Incomplete",
    "Mark",
    "NotEvaluable",
    "Outcome",
    "Rubric",
    "RubricBundle",
    "RubricScore",
    "find_bundle",
    "load_bundle",
    "load_rubric",
    "parse_rubric",
    "rubric_digest",
    "rubric_from",
    "score",
    "score_range",
    "subscores",
]
