"""The transfer matrix: policies trained on one judge, scored by all the others and by the gold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import msgspec

from adjudge.studies.matrix.analysis.bootstrap import (
    NO_VALUE,
    Column,
    Columns,
    Estimate,
    Means,
    Resampling,
    mean_over_seeds,
)
from adjudge.studies.matrix.analysis.gaps import gap_columns
from adjudge.studies.matrix.analysis.scores import NO_UNIT, change, ends, scorers_of
from adjudge.studies.matrix.results import ArmResult, StudyResult

__all__ = ["Transfer", "TransferRow", "transfer"]

_NO_STEP_0 = "not scored at step 0 and at the end"


class TransferRow(msgspec.Struct, frozen=True, kw_only=True):
    """Policies trained on ``judge`` without mitigation, from step 0 to the last checkpoint.

    ``gains``: by scorer, in SDs of its scores of the first policy's answers. ``over_others``: the
    gain by the own judge less the mean gain by the judges ``others``; ``over_gold``: less the gold
    gain; each difference over the answers that both scored. Above 0: the judge sees a gain that
    others do not see.
    """

    judge: str
    seeds: list[int]
    gains: dict[str, Estimate]
    others: list[str]
    over_others: Estimate
    over_gold: Estimate


class Transfer(msgspec.Struct, frozen=True, kw_only=True):
    """Rows: judges that something was trained on; columns: ``scorers``, the gold last."""

    scorers: list[str]
    rows: list[TransferRow]


def transfer(result: StudyResult, units: Mapping[str, float], resampling: Resampling) -> Transfer:
    """The matrix of the cells without mitigation; intervals are over seeds and prompts."""
    rows = [
        _row(result, arms, units, resampling)
        for (_, mitigation), arms in result.cells()
        if mitigation == "none"
    ]
    return Transfer(scorers=scorers_of(result), rows=rows)


def _row(
    result: StudyResult,
    arms: Sequence[ArmResult],
    units: Mapping[str, float],
    resampling: Resampling,
) -> TransferRow:
    own, scorers = arms[0].proxy, scorers_of(result)
    columns: dict[int, list[Column]] = {}
    for arm in arms:
        both = ends(arm)
        if both is not None:
            gains = [_gain(change(*both, [name]), units.get(name)) for name in scorers]
            above = [gap_columns(*both, own, name, units)[2] for name in scorers]
            columns[arm.seed] = [*gains, *above]
    others = [
        place
        for place, name in enumerate(scorers[:-1])
        if name != own and any(of[len(scorers) + place] for of in columns.values())
    ]
    found = resampling.averages(columns, partial(_numbers, others=others, width=len(scorers)))
    why = {name: _NO_STEP_0 if name in units else NO_UNIT for name in scorers}
    return TransferRow(
        judge=own,
        seeds=_seeds(columns),
        gains={
            name: _or_why(one, why[name])
            for name, one in zip(scorers, found[: len(scorers)], strict=True)
        },
        others=[scorers[place] for place in others],
        over_others=_or_why(found[-2], NO_VALUE if others else "no other judge scored it"),
        over_gold=_or_why(found[-1], why[result.gold]),
    )


def _seeds(columns: Columns) -> list[int]:
    return sorted(seed for seed, of in columns.items() if any(of))


def _gain(moved: Mapping[str, tuple[float, ...]], unit: float | None) -> Column:
    return {} if unit is None else {prompt: by / unit for prompt, (by,) in moved.items()}


def _numbers(
    seeds: Sequence[tuple[int, Means]], *, others: Sequence[int], width: int
) -> list[float | None]:
    """Gains by all scorers; then what the own judge saw above the others, and above the gold."""
    means = mean_over_seeds(seeds, 2 * width)
    above = [one for place in others if (one := means[width + place]) is not None]
    complete = bool(above) and len(above) == len(others)
    return [*means[:width], sum(above) / len(above) if complete else None, means[-1]]


def _or_why(one: Estimate, why: str) -> Estimate:
    return Estimate(why=why) if one.value is None else one
