"""The shapes in which the field writes rubrics, recognised by their keys.

========================================================  ========================================
``[{"criterion", "points", "tags"}, …]``                  HealthBench: signed points
``[{"title", "description", "weight"}, …]``               Rubrics as Rewards: "Pitfall Criteria: …"
``["a sentence", …]``                                     a checklist, every weight 1
``{"criteria": […], "id", "version", "goal_text", …}``    a rubric with a name and settings
``{"criteria": ["…"], "scoring_guide": {"0.9-1.0": …}}``  one score with a scoring guide
``{"global_rubric": …, "outcome": …, "events": …}``       a bundle
========================================================  ========================================
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from adjudge.errors import ConfigError, ErrorKind, GradingFailure
from adjudge.rubrics.bundle import GlobalRubric, RubricBundle
from adjudge.rubrics.criterion import Criterion, kind_of
from adjudge.rubrics.fields import (
    category_of,
    check_keys,
    either,
    flag,
    made,
    scheme_of,
    table,
    tags_of,
    text_of,
    written,
)
from adjudge.rubrics.rubric import MAX_CRITERIA, Rubric

__all__ = ["AnyRubric", "parse_rubric", "rubric_from"]

AnyRubric = Rubric | GlobalRubric | RubricBundle

_LISTS = ("criteria", "rubrics", "rubric", "checklist")
_NAMES = ("id", "version", "description", "goal_text")
_RUBRIC = (*_LISTS, *_NAMES, "scheme", "aggregation", "clip", "veto_score", "essential_gate")
_GLOBAL = (*_LISTS, *_NAMES, "scoring_guide")
_PARTS = ("global_rubric", "outcome", "events", "event")
_TEXTS = ("criterion", "text", "description")
_CRITERION = (
    *_TEXTS, "id", "title", "points", "weight", "category", "required", "veto", "na_allowed",
    "scale", "tags",
)  # fmt: skip
_MAX_COLUMN = 4_000_000


def parse_rubric(data: Any, *, where: str = "rubric", strict: bool = True) -> AnyRubric:
    """Data of any of the shapes above as the rubric that it is.

    ``where`` opens every complaint. ``strict``: a key that no shape has is an error; otherwise it
    is passed over, because data sets carry columns of their own. ``null`` is the same as absent.
    Raises :class:`ConfigError` that names the key, what was found and what is allowed.

    >>> parse_rubric([{"criterion": "Names a dose", "points": 5}]).criteria[0].worth
    5.0
    """
    return _Parser(strict).whole(data, where)


def rubric_from(value: Any, *, where: str = "rubric") -> Rubric:
    """The rubric in a sample's own column: hostile data, so limits hold and nothing is assumed.

    ``value`` is a list of criteria or a rubric with settings, or either as JSON text; at most 200
    criteria of at most 4,000 characters. Raises ``GradingFailure(invalid_input)``.

    >>> len(rubric_from(["Names a dose", "Says when to call a doctor"]).criteria)
    2
    """
    try:
        rubric = parse_rubric(_decoded(value, where), where=where, strict=False)
    except ConfigError as error:
        raise GradingFailure(ErrorKind.INVALID_INPUT, str(error)) from None
    if isinstance(rubric, Rubric):
        return rubric
    raise GradingFailure(
        ErrorKind.INVALID_INPUT,
        f"{where}: a sample's own rubric is a list of criteria, not a bundle or a scoring guide",
    )


def _decoded(value: Any, where: str) -> Any:
    if not isinstance(value, str):
        return value
    if len(value) > _MAX_COLUMN:
        raise ConfigError(f"{where}: has {len(value):,} characters, at most {_MAX_COLUMN:,} go")
    try:
        return msgspec.json.decode(value)
    except (ValueError, RecursionError):
        raise ConfigError(
            f"{where}: is a text of {len(value):,} characters that is not JSON; "
            "a list of criteria is needed"
        ) from None


class _Parser:
    """Reads shapes; ``strict`` says what an unknown key is."""

    def __init__(self, strict: bool) -> None:
        self._strict = strict

    def whole(self, data: Any, where: str) -> AnyRubric:
        if isinstance(data, list | tuple):
            return self._rubric({"criteria": data}, where)
        found = table(data, where)
        if any(key in found for key in _PARTS):
            return self._bundle(found, where)
        return self._part(found, where)

    def _bundle(self, found: dict[str, Any], where: str) -> RubricBundle:
        # Some files name the whole bundle; each rubric has its own id, which is the one kept.
        self._check(found, (*_PARTS, "id", "version", "description"), where)
        events = either(found, "events", "event", where)
        given = found.get("global_rubric")
        inside = f"{where}: global_rubric"
        return RubricBundle(
            None if given is None else self._global(table(given, inside), inside),
            self._optional(found.get("outcome"), f"{where}: outcome"),
            self._optional(events, f"{where}: events"),
        )

    def _optional(self, data: Any, where: str) -> Rubric | GlobalRubric | None:
        if isinstance(data, list | tuple):
            return self._rubric({"criteria": data}, where)
        return None if data is None else self._part(table(data, where), where)

    def _part(self, found: dict[str, Any], where: str) -> Rubric | GlobalRubric:
        if "scoring_guide" in found:
            return self._global(found, where)
        return self._rubric(found, where)

    def _global(self, found: dict[str, Any], where: str) -> GlobalRubric:
        self._check(found, _GLOBAL, where)
        criteria = _list_in(found, where)
        if any(isinstance(one, Mapping) for one in criteria):
            raise ConfigError(
                f"{where}: with a scoring guide one score is given to all criteria, so they are "
                "plain texts; leave the guide out to have each of them judged"
            )
        guide = found.get("scoring_guide", {})
        if isinstance(guide, Mapping):
            guide = {written(key): text for key, text in guide.items()}
        names = _names(found, where)
        return made(where, lambda: GlobalRubric(criteria=criteria, scoring_guide=guide, **names))

    def _rubric(self, found: dict[str, Any], where: str) -> Rubric:
        self._check(found, _RUBRIC, where)
        given = _list_in(found, where)
        criteria = tuple(
            self._criterion(one, f"{where}: criterion {place}")
            for place, one in enumerate(given, start=1)
        )
        settings: dict[str, Any] = {
            **_names(found, where),
            "scheme": scheme_of(found, where),
            "clip": flag(found, "clip", where),
            "essential_gate": flag(found, "essential_gate", where),
        }
        if "veto_score" in found:
            settings["veto_score"] = found["veto_score"]
        return made(where, lambda: Rubric(criteria, **settings))

    def _criterion(self, data: Any, where: str) -> Criterion:
        found = {"criterion": data} if isinstance(data, str) else table(data, where)
        name = written(found.get("id", ""))
        if isinstance(name, str) and 1 <= len(name) <= 64:
            where = f"{where} ({name!r})"
        self._check(found, _CRITERION, where)
        texts = [key for key in _TEXTS if key in found]
        if len(texts) != 1:
            listed = " and ".join(texts) or "none"
            raise ConfigError(f"{where}: needs one of {', '.join(_TEXTS)} (found: {listed})")
        category, text = category_of(found, text_of(found[texts[0]], texts[0], where), where)
        scale: Any = found.get("scale", "binary")
        tags = tags_of(found.get("tags"), where)
        if "title" in found:
            tags.setdefault("title", text_of(found["title"], "title", where))
        return made(
            where,
            lambda: Criterion(
                text,
                name,
                either(found, "points", "weight", where),
                category,
                veto=flag(found, "veto", where),
                na_allowed=flag(found, "na_allowed", where),
                scale=scale,
                tags=tags,
            ),
        )

    def _check(self, found: dict[str, Any], allowed: tuple[str, ...], where: str) -> None:
        if self._strict:
            check_keys(found, allowed, where)


def _list_in(found: dict[str, Any], where: str) -> tuple[Any, ...]:
    keys = [key for key in _LISTS if key in found]
    if len(keys) != 1:
        listed = " and ".join(keys) or "none"
        raise ConfigError(f"{where}: needs one list of criteria, in criteria (found: {listed})")
    criteria = found[keys[0]]
    if not isinstance(criteria, list | tuple):
        raise ConfigError(f"{where}: {keys[0]}: must be a list, not {kind_of(criteria)}")
    if len(criteria) > MAX_CRITERIA:
        raise ConfigError(f"{where}: has {len(criteria):,} criteria, at most {MAX_CRITERIA} go")
    return tuple(criteria)


def _names(found: dict[str, Any], where: str) -> dict[str, str]:
    return {
        "id": text_of(written(found.get("id")), "id", where),
        "version": text_of(written(found.get("version")), "version", where),
        "description": text_of(
            either(found, "description", "goal_text", where), "description", where
        ),
    }
