"""From plans to cells: which judge is trained on with which mitigation, and for which plans."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from adjudge.config import nearest
from adjudge.studies.matrix.tables import GIVEN, NONE, LevelValue, Plan, same_level

if TYPE_CHECKING:
    from adjudge.studies.matrix.file import StudyFile

__all__ = ["Cell", "cells_of", "judges_of"]

_MOST_CELLS = 10_000
Combination = dict[str, LevelValue]


@dataclass(frozen=True)
class Cell:
    """Arms that differ in nothing but the seed; ``given`` names the run file that it is."""

    judge: str
    mitigation: str
    plans: tuple[str, ...]
    given: str | None = None


def cells_of(study: StudyFile) -> list[Cell]:
    """The cells of all plans in their order, each once, then the given arms.

    Raises :class:`~adjudge.errors.ConfigError` naming plan and combination.
    """
    found: dict[tuple[str, str], list[str]] = {}
    for plan in study.plans:
        for judge, mitigation in _planned(study, plan):
            found.setdefault((judge, mitigation), []).append(plan.name)
    cells = [Cell(judge, mitigation, tuple(plans)) for (judge, mitigation), plans in found.items()]
    given = [
        Cell(one.judge, one.mitigation, (GIVEN,), name) for name, one in study.given_arms.items()
    ]
    return [*cells, *given]


def judges_of(study: StudyFile, plan: Plan) -> list[str]:
    """The judges that a plan trains on."""
    return list(dict.fromkeys(judge for judge, _ in _planned(study, plan)))


def _planned(study: StudyFile, plan: Plan) -> Iterator[tuple[str, str]]:
    _check_names(study, plan)
    factors = plan.factors
    if (number := math.prod(map(len, factors.values()))) > _MOST_CELLS:
        study.refuse(f"plans.{plan.name}", f"crosses {number:,} cells ({_MOST_CELLS:,} at most)")
    crossed = [
        dict(zip(factors, values, strict=True)) for values in itertools.product(*factors.values())
    ]
    for one in plan.skip:
        if not any(_holds(one, combination) for combination in crossed):
            study.refuse(f"plans.{plan.name}.skip", f"no combination of the plan has {_said(one)}")
    kept = [one for one in crossed if not any(_holds(part, one) for part in plan.skip)]
    if not kept:
        study.refuse(f"plans.{plan.name}.skip", "leaves nothing of the plan")
    for combination in kept:
        yield _judge(study, plan, combination), str(combination["mitigation"])


def _judge(study: StudyFile, plan: Plan, combination: Combination) -> str:
    """The one judge that a combination is about."""
    if plan.judge is not None:
        return str(combination["judge"])
    wanted = {factor: combination[factor] for factor in plan.levels}
    fitting = [name for name, judge in study.judges.items() if _holds(wanted, judge.levels)]
    found = [name for name in fitting if not study.judges[name].held_out]
    if len(found) != 1:
        study.refuse(f"plans.{plan.name}", _why(study, wanted, fitting, found))
    return found[0]


def _why(study: StudyFile, wanted: Combination, fitting: list[str], found: list[str]) -> str:
    """What is wrong with a combination that ``found`` not one judge of those ``fitting``."""
    if found:
        names = ", ".join(map(repr, found))
        return (
            f"{len(found)} judges have {_said(wanted)} ({names}); list another level in which they "
            "differ, or name them in judge"
        )
    if fitting:
        return f"{fitting[0]!r} has {_said(wanted)}, but is held out (held_out = true)"
    return (
        f"no judge with {_said(wanted)}{_closest(study, wanted)}; add one under [judges], or list "
        "it in skip"
    )


def _closest(study: StudyFile, wanted: Combination) -> str:
    """What there is that differs from ``wanted`` in the fewest levels."""
    shared = {
        name: sum(_holds({factor: value}, judge.levels) for factor, value in wanted.items())
        for name, judge in study.judges.items()
        if not judge.held_out
    }
    if not shared or not max(shared.values()):
        return ""
    name = max(shared, key=lambda one: shared[one])
    there = {
        factor: study.judges[name].levels[factor]
        for factor in wanted
        if factor in study.judges[name].levels
    }
    return f" (nearest: {name!r} with {_said(there)})"


def _check_names(study: StudyFile, plan: Plan) -> None:
    """That a plan names what there is."""
    key = f"plans.{plan.name}"
    for name in plan.judge or []:
        if name not in study.judges:
            study.refuse(f"{key}.judge", _unknown("judge", name, list(study.judges)))
        if study.judges[name].held_out:
            study.refuse(
                f"{key}.judge", f"{name!r} is held out (held_out = true): it is never trained on"
            )
    for name in plan.mitigation:
        if name != NONE and name not in study.mitigations:
            study.refuse(
                f"{key}.mitigation", _unknown("mitigation", name, [NONE, *study.mitigations])
            )
    known = sorted({factor for judge in study.judges.values() for factor in judge.levels})
    for factor in plan.levels:
        if factor not in known:
            keys = [*known, *Plan.model_fields]
            said = ", ".join(known) or "none"
            study.refuse(
                f"{key}.{factor}",
                f"no judge has a level of this name{nearest(factor, keys)} (levels: {said})",
            )
    for one in plan.skip:
        if not one or (other := [factor for factor in one if factor not in plan.factors]):
            said = f"{other[0]!r} is not listed by this plan" if one else "an entry is empty"
            study.refuse(f"{key}.skip", f"{said} (it lists {', '.join(plan.factors)})")


def _unknown(what: str, name: str, known: list[str]) -> str:
    there = ", ".join(known) or "none"
    return f"no {what} is called {name!r}{nearest(name, known)} (there are: {there})"


def _holds(part: Mapping[str, LevelValue], whole: Mapping[str, LevelValue]) -> bool:
    """Whether all of ``part`` is in ``whole``."""
    return all(key in whole and same_level(value, whole[key]) for key, value in part.items())


def _said(levels: Mapping[str, LevelValue]) -> str:
    return ", ".join(f"{factor} = {_value(value)}" for factor, value in levels.items())


def _value(value: LevelValue) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)
