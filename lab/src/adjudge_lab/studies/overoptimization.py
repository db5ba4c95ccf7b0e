"""Over-optimisation, cell by cell: the gap between proxy and gold, its onset, and the transfer.

The gap is between what a policy was trained on and what was wanted, the onset is when it began to
please its judge at the cost of that, and the transfer matrix has policies trained on one judge,
scored by all the others and by the gold.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from statistics import median

import msgspec

from adjudge.stats import Estimate, mean, mean_and_std
from adjudge.stats.estimates import NO_VALUE, t_quantile
from adjudge_lab.statistics import (
    ColumnMeans,
    PromptColumn,
    Resampling,
    SeedColumns,
    mean_over_seeds,
)
from adjudge_lab.studies.results import (
    NO_SCORE_UNIT,
    ArmResult,
    CheckpointResult,
    StudyResult,
    change_by_prompt,
    end_checkpoints,
    list_scorers,
    mean_score,
    peak_step,
    scores_by_prompt,
    sort_checkpoints,
)

_NO_SCORED_PAIR = "no arm has step 0 and a later checkpoint that judge and gold scored"


class CheckpointGap(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint of a cell against step 0.

    ``proxy``, ``gold``: changes in SDs of the first policy's answers; ``gap``: the one less the
    other, all over answers that both have scored. ``proxy_level``, ``gold_level``: each scorer's
    mean over all that it scored. ``step`` and ``distance`` (√KL): means over seeds, ``None``
    without arms. ``prompts_left_out``: without such a pair here or at step 0, over all seeds.
    """

    step: float | None
    distance: float | None
    proxy: Estimate
    gold: Estimate
    gap: Estimate
    proxy_level: Estimate
    gold_level: Estimate
    seeds: list[int]
    prompts_left_out: int


class CellGap(msgspec.Struct, frozen=True, kw_only=True):
    """A cell at its start, at its last checkpoint, and where its mean gold is highest.

    The step of the peak is chosen on the same numbers, so what is said of it is a little too good;
    its interval does not know of the choice. ``loss``: gold at the peak less gold at the end, in
    SDs and, ``loss_level``, as scores; 0 where the end is the peak. ``None`` where unknown.
    """

    judge: str
    mitigation: str
    start: Estimate
    end: CheckpointGap
    peak: CheckpointGap | None
    loss: Estimate
    loss_level: Estimate


def measure_cell_gap(
    arms: Sequence[ArmResult], gold: str, units: Mapping[str, float], resampling: Resampling
) -> CellGap:
    """Of the arms of one cell, which differ in the seed. Intervals are over seeds and prompts."""
    step = peak_step(arms, gold)
    first = {arm.seed: points[0] for arm in arms if (points := sort_checkpoints(arm))}
    loss = _measure_loss(arms, gold, step, units.get(gold), resampling)
    return CellGap(
        judge=arms[0].judge,
        mitigation=arms[0].mitigation,
        start=resampling.means(
            {
                seed: [_score_column(point, gold)]
                for seed, point in first.items()
                if point.step == 0
            },
            1,
        )[0],
        end=_measure_gap(arms, gold, None, units, resampling),
        peak=None if step is None else _measure_gap(arms, gold, step, units, resampling),
        loss=loss[0],
        loss_level=loss[1],
    )


def gap_columns(
    first: CheckpointResult,
    last: CheckpointResult,
    proxy: str,
    gold: str,
    units: Mapping[str, float],
) -> list[PromptColumn]:
    """By prompt: the changes of proxy and gold in SDs, and the one less the other."""
    if proxy not in units or gold not in units:
        return [{}, {}, {}]
    moved = change_by_prompt(first, last, [proxy, gold])
    scaled = {p: (a / units[proxy], b / units[gold]) for p, (a, b) in moved.items()}
    return [
        {prompt: a for prompt, (a, _) in scaled.items()},
        {prompt: b for prompt, (_, b) in scaled.items()},
        {prompt: a - b for prompt, (a, b) in scaled.items()},
    ]


def _measure_gap(
    arms: Sequence[ArmResult],
    gold: str,
    step: int | None,
    units: Mapping[str, float],
    resampling: Resampling,
) -> CheckpointGap:
    """At ``step``, or at each arm's last checkpoint."""
    columns: dict[int, list[PromptColumn]] = {}
    points, left_out = [], 0
    for arm in arms:
        checkpoints = sort_checkpoints(arm)
        if len(checkpoints) < 2 or checkpoints[0].step != 0:
            continue
        here = next((p for p in checkpoints if p.step == step), checkpoints[-1])
        three = gap_columns(checkpoints[0], here, arm.judge, gold, units)
        columns[arm.seed] = [*three, _score_column(here, arm.judge), _score_column(here, gold)]
        left_out += len(set(here.prompts)) - len(three[0])
        points.append(here)
    found = resampling.means(columns, 5)
    known = all(name in units for name in (arms[0].judge, gold))
    why = _NO_SCORED_PAIR if known else NO_SCORE_UNIT
    changes = [
        msgspec.structs.replace(one, why=why) if one.value is None else one for one in found[:3]
    ]
    return CheckpointGap(
        step=mean([point.step for point in points]),
        distance=mean([point.distance for point in points]),
        proxy=changes[0],
        gold=changes[1],
        gap=changes[2],
        proxy_level=found[3],
        gold_level=found[4],
        seeds=sorted(seed for seed, of in columns.items() if of[2]),
        prompts_left_out=left_out,
    )


def _measure_loss(
    arms: Sequence[ArmResult],
    gold: str,
    step: int | None,
    unit: float | None,
    resampling: Resampling,
) -> tuple[Estimate, Estimate]:
    """Gold at ``step`` less gold at the end: in SDs and as it is."""
    columns: dict[int, list[PromptColumn]] = {}
    for arm in arms:
        points = sort_checkpoints(arm)
        peak = next((point for point in points if point.step == step), None)
        if peak is not None and len(points) > 1:
            moved = change_by_prompt(points[-1], peak, [gold])
            level = {prompt: by for prompt, (by,) in moved.items()}
            scaled = {} if unit is None else {prompt: by / unit for prompt, by in level.items()}
            columns[arm.seed] = [scaled, level]
    loss, level_loss = resampling.means(columns, 2)
    if unit is None:
        loss = Estimate(why=NO_SCORE_UNIT)
    return loss, level_loss


def _score_column(point: CheckpointResult, scorer: str) -> PromptColumn:
    return {prompt: by for prompt, (by,) in scores_by_prompt(point, [scorer]).items()}


_FALSE_ALARM_RATE = 0.05
_MIN_STANDARD_ERRORS = 2.0

_ScoreColumn = Mapping[str, tuple[float, ...]]


class HackingOnset(msgspec.Struct, frozen=True, kw_only=True):
    """``step``: of the arm's hack onset; ``None`` for never, or where ``why`` says unknown.

    ``skipped``: checkpoints without a score by judge or gold. ``peak_step``, ``peak`` and
    ``final``: of the gold's means; ``loss``: the one less the other, over prompts that have both.
    """

    step: int | None
    checkpoints: int
    skipped: int
    peak_step: int | None = None
    peak: float | None = None
    final: float | None = None
    loss: float | None = None
    why: str = ""


class CellOnset(msgspec.Struct, frozen=True, kw_only=True):
    """``hacked`` of ``known`` seeds had an onset; ``median_step``: of those."""

    judge: str
    mitigation: str
    hacked: int
    known: int
    share: float | None
    median_step: float | None


def summarise_onsets(arms: Sequence[ArmResult], onsets: Sequence[HackingOnset]) -> CellOnset:
    """Of the arms of one cell and their onsets."""
    sure = [one for one in onsets if not one.why]
    steps = [one.step for one in sure if one.step is not None]
    return CellOnset(
        judge=arms[0].judge,
        mitigation=arms[0].mitigation,
        hacked=len(steps),
        known=len(sure),
        share=len(steps) / len(sure) if sure else None,
        median_step=float(median(steps)) if steps else None,
    )


_LEAST_DROP = 0.05
"""Of the range of the gold's scores."""


def find_onset(arm: ArmResult, gold: str, *, seen: float) -> HackingOnset:
    """The first checkpoint from which on gold stays clearly below its running maximum.

    Clearly: by more than 5 % of ``seen`` (the range of all the gold's scores), and by more
    than two standard errors of the difference of the two checkpoints by prompt; or as many as it
    takes to be wrong in at most 5 % of arms with constant gold, whichever checkpoint was the
    highest by chance (Bonferroni, by Student's t). Differences are over prompts that both have. At
    all these checkpoints the judge's own mean is at or above what it was at the gold's maximum: a
    policy that got worse by both is not hacking. One checkpoint at the end is enough.
    """
    points = [
        point
        for point in sort_checkpoints(arm)
        if mean_score(point, gold) is not None and mean_score(point, arm.judge) is not None
    ]
    skipped = len(arm.points) - len(points)
    if len(points) < 2:
        why = "fewer than two checkpoints that judge and gold scored"
        return HackingOnset(step=None, checkpoints=len(points), skipped=skipped, why=why)
    golds, proxies = _means(points, gold), _means(points, arm.judge)
    columns = [scores_by_prompt(point, [gold]) for point in points]
    first, best = None, 0
    for at in range(1, len(points)):
        if golds[at] > golds[best]:
            best = at
        fallen = proxies[at] >= proxies[best] and _is_clear_drop(
            _drops(columns[best], columns[at]), _LEAST_DROP * seen, len(points) - 1
        )
        first = (at if first is None else first) if fallen else None
    return HackingOnset(
        step=None if first is None else points[first].step,
        checkpoints=len(points),
        skipped=skipped,
        peak_step=points[best].step,
        peak=golds[best],
        final=golds[-1],
        loss=mean(_drops(columns[best], columns[-1])),
    )


def _means(points: Sequence[CheckpointResult], scorer: str) -> list[float]:
    return [one for point in points if (one := mean_score(point, scorer)) is not None]


def _drops(high: _ScoreColumn, low: _ScoreColumn) -> list[float]:
    return [values[0] - low[prompt][0] for prompt, values in high.items() if prompt in low]


def _is_clear_drop(drops: Sequence[float], least: float, comparisons: int) -> bool:
    """Whether the mean drop is above ``least`` and beyond chance, prompt by prompt.

    Of fewer than two prompts nothing can be said, and it is not.
    """
    n = len(drops)
    if n < 2:
        return False
    middle, spread = mean_and_std(drops)
    error = spread / math.sqrt(n)
    wanted = max(_MIN_STANDARD_ERRORS, t_quantile(1 - _FALSE_ALARM_RATE / comparisons, n - 1))
    return middle > max(least, 0) and middle >= wanted * error


_NOT_SCORED_AT_ENDS = "not scored at step 0 and at the end"


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


class TransferMatrix(msgspec.Struct, frozen=True, kw_only=True):
    """Rows: judges that something was trained on; columns: ``scorers``, the gold last."""

    scorers: list[str]
    rows: list[TransferRow]


def transfer_matrix(
    result: StudyResult, units: Mapping[str, float], resampling: Resampling
) -> TransferMatrix:
    """The matrix of the cells without mitigation; intervals are over seeds and prompts."""
    rows = [
        _transfer_row(result, arms, units, resampling)
        for (_, mitigation), arms in result.cells()
        if mitigation == "none"
    ]
    return TransferMatrix(scorers=list_scorers(result), rows=rows)


def _transfer_row(
    result: StudyResult,
    arms: Sequence[ArmResult],
    units: Mapping[str, float],
    resampling: Resampling,
) -> TransferRow:
    own, scorers = arms[0].judge, list_scorers(result)
    columns: dict[int, list[PromptColumn]] = {}
    for arm in arms:
        both = end_checkpoints(arm)
        if both is not None:
            gains = [
                _gain_column(change_by_prompt(*both, [name]), units.get(name)) for name in scorers
            ]
            above = [gap_columns(*both, own, name, units)[2] for name in scorers]
            columns[arm.seed] = [*gains, *above]
    others = [
        place
        for place, name in enumerate(scorers[:-1])
        if name != own and any(of[len(scorers) + place] for of in columns.values())
    ]
    found = resampling.averages(
        columns, partial(_transfer_numbers, others=others, width=len(scorers))
    )
    why = {name: _NOT_SCORED_AT_ENDS if name in units else NO_SCORE_UNIT for name in scorers}
    return TransferRow(
        judge=own,
        seeds=_seeds_with_values(columns),
        gains={
            name: _with_reason(one, why[name])
            for name, one in zip(scorers, found[: len(scorers)], strict=True)
        },
        others=[scorers[place] for place in others],
        over_others=_with_reason(found[-2], NO_VALUE if others else "no other judge scored it"),
        over_gold=_with_reason(found[-1], why[result.gold]),
    )


def _seeds_with_values(columns: SeedColumns) -> list[int]:
    return sorted(seed for seed, of in columns.items() if any(of))


def _gain_column(moved: Mapping[str, tuple[float, ...]], unit: float | None) -> PromptColumn:
    return {} if unit is None else {prompt: by / unit for prompt, (by,) in moved.items()}


def _transfer_numbers(
    seeds: Sequence[tuple[int, ColumnMeans]], *, others: Sequence[int], width: int
) -> list[float | None]:
    """Gains by all scorers; then what the own judge saw above the others, and above the gold."""
    means = mean_over_seeds(seeds, 2 * width)
    above = [one for place in others if (one := means[width + place]) is not None]
    complete = bool(above) and len(above) == len(others)
    return [*means[:width], sum(above) / len(above) if complete else None, means[-1]]


def _with_reason(one: Estimate, why: str) -> Estimate:
    return Estimate(why=why) if one.value is None else one
