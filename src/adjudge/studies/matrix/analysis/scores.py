"""Scores by prompt, changes from the first policy on, and the unit they are counted in."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeGuard

from adjudge.studies.matrix.results import ArmResult, Point, Scored, StudyResult

__all__ = [
    "NO_UNIT",
    "by_prompt",
    "change",
    "ends",
    "known",
    "mean_of",
    "of_point",
    "ordered",
    "peak_step",
    "scorers_of",
    "seen_range",
    "units",
]

NO_UNIT = "the first policy's answers do not differ in it"

_LARGEST = 1e100


def known(value: float | None) -> TypeGuard[float]:
    """Whether a score is there and a number to reckon with.

    What is not finite, or beyond 1e100 in size (its square has no place), is missing, as ``None``.
    """
    return value is not None and abs(value) <= _LARGEST  # no NaN is


def mean_of(point: Point, scorer: str) -> float | None:
    """The mean over the answers with a known score; ``None`` where there is none."""
    found = point.scores.get(scorer)
    values = [] if found is None else [value for value in found.values if known(value)]
    return math.fsum(values) / len(values) if values else None


def by_prompt(
    prompts: Sequence[str], columns: Sequence[Sequence[float | None]]
) -> dict[str, tuple[float, ...]]:
    """The mean of each column by prompt, over the answers that have a value in all of them."""
    found: dict[str, list[tuple[float, ...]]] = {}
    for prompt, row in zip(prompts, zip(*columns, strict=True), strict=True):
        there = [value for value in row if known(value)]
        if len(there) == len(row):
            found.setdefault(prompt, []).append(tuple(there))
    return {
        prompt: tuple(math.fsum(of) / len(rows) for of in zip(*rows, strict=True))
        for prompt, rows in found.items()
    }


def of_point(point: Point, scorers: Sequence[str]) -> dict[str, tuple[float, ...]]:
    """Means by prompt of several scorers over the answers that all of them scored."""
    found = [point.scores.get(name) for name in scorers]
    there = [one.values for one in found if one is not None]
    return by_prompt(point.prompts, there) if len(there) == len(found) else {}


def change(first: Point, last: Point, scorers: Sequence[str]) -> dict[str, tuple[float, ...]]:
    """By prompt, ``last`` less ``first`` for each scorer; prompts that either lacks are left out.

    With several scorers only answers that all of them scored count, in both checkpoints.
    """
    before, after = of_point(first, scorers), of_point(last, scorers)
    return {
        prompt: tuple(new - old for new, old in zip(values, before[prompt], strict=True))
        for prompt, values in after.items()
        if prompt in before
    }


def ordered(arm: ArmResult) -> list[Point]:
    """The arm's checkpoints by step."""
    return sorted(arm.points, key=lambda point: point.step)


def ends(arm: ArmResult) -> tuple[Point, Point] | None:
    """The checkpoint at step 0 and the last one; ``None`` where either was not measured."""
    points = ordered(arm)
    if len(points) < 2 or points[0].step != 0:
        return None
    return points[0], points[-1]


def peak_step(arms: Sequence[ArmResult], scorer: str) -> int | None:
    """The step with the highest mean over arms, of those at which all arms have one.

    The first of equals. A maximum of noisy numbers is a little too high on average.
    """
    means: dict[int, list[float]] = {}
    for arm in arms:
        for point in arm.points:
            mean = mean_of(point, scorer)
            if mean is not None:
                means.setdefault(point.step, []).append(mean)
    shared = {step: math.fsum(of) for step, of in means.items() if len(of) == len(arms)}
    return min(shared, key=lambda step: (-shared[step], step)) if shared else None


def scorers_of(result: StudyResult) -> list[str]:
    """All judges in the study's order, the gold last."""
    return [name for name in result.judges if name != result.gold] + [result.gold]


def seen_range(result: StudyResult, scorer: str) -> float:
    """Highest less lowest score that ``scorer`` gave to any checkpoint's answer; 0 without one."""
    values = [
        value
        for arm in result.arms
        for point in arm.points
        if (scored := point.scores.get(scorer)) is not None
        for value in scored.values
        if known(value)
    ]
    return max(values) - min(values) if values else 0.0


def units(result: StudyResult) -> dict[str, float]:
    """By scorer, the SD of its scores over the first policies' answers, pooled within seeds.

    Of the many answers of ``best_of`` where a seed has them, else of the first arm of the seed
    that has two scores at step 0. A scorer that does not vary there, or said nothing, has none.
    """
    found = {}
    for name in scorers_of(result):
        squares = freedom = 0.0
        for values in _first_answers(result, name):
            middle = math.fsum(values) / len(values)
            squares += math.fsum((value - middle) ** 2 for value in values)
            freedom += len(values) - 1
        largest = max((abs(v) for of in _first_answers(result, name) for v in of), default=0.0)
        if freedom and squares > (1e-12 * largest) ** 2 * freedom:
            found[name] = math.sqrt(squares / freedom)
    return found


def _first_answers(result: StudyResult, scorer: str) -> Iterator[list[float]]:
    """The scores of each seed's first policy, two at least."""
    many = {one.seed: one.scores for one in result.best_of}
    seeds = sorted({*many, *(arm.seed for arm in result.arms)})
    for seed in seeds:
        sources: list[Mapping[str, Scored]] = [many[seed]] if seed in many else []
        for arm in result.arms:
            if arm.seed == seed:
                sources += [point.scores for point in arm.points if point.step == 0]
        values = next(_long_enough(sources, scorer), None)
        if values is not None:
            yield values


def _long_enough(sources: Iterable[Mapping[str, Scored]], scorer: str) -> Iterator[list[float]]:
    for scores in sources:
        if scorer in scores:
            values = [value for value in scores[scorer].values if known(value)]
            if len(values) > 1:
                yield values
