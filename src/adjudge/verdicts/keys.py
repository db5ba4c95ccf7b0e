"""Where a verdict may stand by name: the keys of an object, and tags."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from adjudge.verdicts.json_text import CLASH

__all__ = ["WRAPPERS", "first_under", "same_key", "tag_pattern"]

WRAPPERS = frozenset({
    "verdict", "verdicts", "result", "results", "evaluation", "evaluations", "judgment",
    "judgments", "judgement", "judgements", "assessment", "output", "final", "finalverdict",
    "grading", "grades", "value", "label", "score", "scores", "rating", "choice", "marks",
    "criteria", "rubrics", "answers", "items", "评估", "结果", "评价", "裁决",
})  # fmt: skip
"""Names under which a judge puts its verdict; what "example" or "candidate" holds is another's."""
_DEEPEST = 4
_LONGEST_KEY = 100


@lru_cache(maxsize=1024)
def _same(key: str) -> str:
    return re.sub(r"[\s_*`:：-]+", "", key).casefold()


def same_key(key: str) -> str:
    """``key`` without what judges vary: case, spaces, ``_``, ``-`` and emphasis.

    >>> same_key("**Final Score**") == same_key("final_score")
    True
    """
    return _same(key) if len(key) <= _LONGEST_KEY else key


def first_under(
    value: Any, keys: tuple[str, ...], depth: int = 0
) -> Iterator[tuple[Any, dict[str, Any]]]:
    """``(value, object)`` for each of ``keys`` in an object; in its wrapper where it has none.

    A wrapper is the only entry of a list, or stands under one of :data:`WRAPPERS`. A key given
    twice with different values yields :data:`CLASH`, which is no verdict.
    """
    if depth > _DEEPEST:
        return
    if isinstance(value, list):
        if len(value) == 1:
            yield from first_under(value[0], keys, depth + 1)
        return
    if not isinstance(value, dict):
        return
    wanted = _folded(keys)
    direct = [(key, inner) for key, inner in value.items() if same_key(key) in wanted]
    for _, inner in direct:
        if isinstance(inner, dict):
            yield from _inner(inner, keys, depth)
        else:
            yield inner, without_clashes(value)
    if not direct:
        for key, inner in value.items():
            if same_key(key) in WRAPPERS:
                yield from first_under(inner, keys, depth + 1)


def _inner(value: dict[str, Any], keys: tuple[str, ...], depth: int) -> Iterator[Any]:
    """``{"score": {"value": 3}}`` and the like; an object without a verdict is no verdict."""
    found = list(first_under(value, (*keys, "value", "label"), depth + 1))
    yield from found or [(None, value)]


def without_clashes(value: Any) -> Any:
    """``value`` without the keys, at any depth, that are given twice with different values."""
    if isinstance(value, dict):
        return {k: without_clashes(inner) for k, inner in value.items() if inner is not CLASH}
    return [without_clashes(item) for item in value] if isinstance(value, list) else value


@lru_cache(maxsize=256)
def _folded(keys: tuple[str, ...]) -> frozenset[str]:
    return frozenset(map(same_key, keys))


@lru_cache(maxsize=256)
def tag_pattern(names: str) -> re.Pattern[str]:
    """``<name …>content</name>`` for names parted by ``|``; group 2 is the content."""
    named = "|".join(re.escape(name) for name in names.split("|"))
    return re.compile(
        rf"<\s?({named})(?:\s[^<>\n]{{0,60}})?>\s{{0,20}}([^<>]{{0,80}}?)\s{{0,20}}<\s?/\s?(?:\1)\s?>",
        re.IGNORECASE,
    )
