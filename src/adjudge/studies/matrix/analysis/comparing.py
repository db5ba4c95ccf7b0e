"""Two cells against each other, seed by seed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec

from adjudge.errors import ConfigError
from adjudge.studies.matrix.analysis.bootstrap import (
    Column,
    Estimate,
    Resampling,
    mean_over_seeds,
    over_seeds,
)
from adjudge.studies.matrix.analysis.drift import features_of
from adjudge.studies.matrix.analysis.scores import of_point, ordered, scorers_of
from adjudge.studies.matrix.results import Point, StudyResult

__all__ = ["Comparison", "against", "all_pairs"]

Cell = tuple[str, str]
_MOST_CELLS = 8
_NO_SEED = "no seed in which both have it"


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """``a`` less ``b`` at their last checkpoints, in ``measure``'s own units.

    ``by_seed``: the differences; ``t``: their mean with Student's interval over seeds;
    ``bootstrap``: the same mean over resampled seeds and prompts, ``None`` for a feature, which is
    known by checkpoint only. Neither allows for how many pairs a study compares.
    """

    a: Cell
    b: Cell
    measure: str
    by_seed: dict[int, float]
    t: Estimate
    bootstrap: Estimate | None


def against(
    result: StudyResult,
    a: Cell,
    b: Cell,
    measure: str = "gold",
    resampling: Resampling | None = None,
) -> Comparison:
    """Compare two cells over the seeds that both have, and the prompts that both answered.

    ``measure``: ``gold``, a scorer's name or a feature's. Raises :class:`ConfigError` for a measure
    or a cell that the study does not have.
    """
    cells = dict(result.cells())
    for cell in (a, b):
        if cell not in cells:
            raise ConfigError(f"no arm of {cell}; there are {', '.join(map(str, cells))}")
    scorers = scorers_of(result)
    name = result.gold if measure == "gold" and measure not in scorers else measure
    if name not in scorers and name not in features_of(result):
        raise ConfigError(
            f"cannot compare cells by {measure!r}; choose 'gold', a scorer ({', '.join(scorers)}) "
            f"or a feature ({', '.join(features_of(result))})"
        )
    ends = [{arm.seed: ordered(arm)[-1] for arm in cells[cell] if arm.points} for cell in (a, b)]
    shared = {seed: (ends[0][seed], ends[1][seed]) for seed in ends[0] if seed in ends[1]}
    by_seed, booted = (_by_score if name in scorers else _by_feature)(
        shared, name, resampling or Resampling()
    )
    t = over_seeds(list(by_seed.values())) if by_seed else Estimate(why=_NO_SEED)
    return Comparison(a=a, b=b, measure=measure, by_seed=by_seed, t=t, bootstrap=booted)


def all_pairs(
    result: StudyResult, cells: Sequence[Cell], resampling: Resampling
) -> list[Comparison]:
    """Each cell less each one before it, by gold; of more than eight, each less the first."""
    few = len(cells) <= _MOST_CELLS
    return [
        against(result, cell, earlier, "gold", resampling)
        for place, cell in enumerate(cells)
        for earlier in (cells[:place] if few else cells[: min(place, 1)])
    ]


_Shared = Mapping[int, tuple[Point, Point]]


def _by_score(
    shared: _Shared, scorer: str, resampling: Resampling
) -> tuple[dict[int, float], Estimate | None]:
    columns: dict[int, list[Column]] = {}
    for seed, points in sorted(shared.items()):
        a, b = (of_point(point, [scorer]) for point in points)
        column = {prompt: a[prompt][0] - b[prompt][0] for prompt in a if prompt in b}
        if column:
            columns[seed] = [column]
    by_seed = {
        seed: math.fsum(column.values()) / len(column) for seed, (column,) in columns.items()
    }
    if not columns:
        return {}, Estimate(why=_NO_SEED)
    return by_seed, resampling.estimates(columns, lambda seeds: mean_over_seeds(seeds, 1))[0]


def _by_feature(
    shared: _Shared, feature: str, resampling: Resampling
) -> tuple[dict[int, float], Estimate | None]:
    del resampling
    found = {}
    for seed, points in sorted(shared.items()):
        a, b = (point.features.get(feature, math.nan) for point in points)
        if math.isfinite(a - b):
            found[seed] = a - b
    return found, None
