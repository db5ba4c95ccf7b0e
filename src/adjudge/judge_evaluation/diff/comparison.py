"""How judges compare: agreement, and criteria marked differently."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from adjudge.stats import Estimate, z_scores
from adjudge.stats.agreement import PairedScores, estimate_kendall, estimate_within_agreement
from adjudge.stats.bootstrap import bootstrap_groups, ratio

_ROUNDING = 1e-9


class RewardAgreement(msgspec.Struct, frozen=True, kw_only=True):
    """Two judges on the samples that both judged; correlations are in [−1, 1], shares in [0, 1].

    ``common`` of ``samples`` were judged by both, in ``groups`` groups that can be compared (two
    such samples or more) of ``all_groups``. ``kendall`` is over all samples, as a judge of a test
    set is compared; ``within_kendall`` inside groups, pooled, which is all that GRPO sees.

    ``advantage_pearson``: of the GRPO advantages. ``best_changes``: groups of which no sample is
    best for both. ``sign_flips``: samples with advantages of opposite sign.
    """

    samples: int
    common: int
    groups: int
    all_groups: int
    kendall: Estimate
    within_kendall: Estimate
    advantage_pearson: Estimate
    best_changes: Estimate
    sign_flips: Estimate


def compare_rewards(
    a: Sequence[float | None], b: Sequence[float | None], members: Sequence[Sequence[int]]
) -> RewardAgreement:
    """Two judges' rewards compared; ``members`` has the places of each group's samples.

    A sample that one of them did not judge is left out on both sides: each group is compared on
    what both judged, advantages included. Intervals are by group.
    """
    pairs: list[PairedScores] = []
    for group in members:
        both = [(x, y) for at in group if (x := a[at]) is not None and (y := b[at]) is not None]
        if both:
            pairs.append(([x for x, _ in both], [y for _, y in both]))
    inside = [pair for pair in pairs if len(pair[0]) > 1]
    within = estimate_within_agreement(inside)
    return RewardAgreement(
        samples=len(a),
        common=sum(len(x) for x, _ in pairs),
        groups=len(inside),
        all_groups=len(members),
        kendall=estimate_kendall(pairs),
        within_kendall=within["kendall"],
        advantage_pearson=within["advantage_pearson"],
        **_changes(inside),
    )


def turns_sign(one: float, other: float) -> bool:
    """Whether one of two advantages is above 0 and the other below, by more than rounding."""
    return min(one, other) <= -_ROUNDING and max(one, other) >= _ROUNDING


def _changes(inside: Sequence[PairedScores]) -> dict[str, Estimate]:
    changes, flips = [], []
    for x, y in inside:
        changes.append((float(_best(x).isdisjoint(_best(y))), 1.0))
        flipped = sum(map(turns_sign, z_scores(x), z_scores(y)))
        flips.append((float(flipped), float(len(x))))
    return {
        name: bootstrap_groups(of, ratio, bounds=(0, 1))
        for name, of in (("best_changes", changes), ("sign_flips", flips))
    }


def _best(values: Sequence[float]) -> set[int]:
    best = max(values)
    return {place for place, value in enumerate(values) if value == best}


CriterionMarks = dict[str, float | None]
"""A rubric's marks of one sample: ``GRADER: CRITERION`` to true, false, a share, or null."""

_MarkPair = tuple[float | None, float | None]
_MAX_CRITERIA = 50
_MIN_CRITERION_GROUPS = 2


class CriterionDisagreement(msgspec.Struct, frozen=True, kw_only=True):
    """One criterion, or all together (an empty name), on the samples that both judges marked.

    ``differs``: the share marked differently, "does not apply" being a mark of its own.
    ``met_first``, ``met_second``: the share that each judge marked as met; what does not apply is
    not met.
    """

    criterion: str
    samples: int
    differs: Estimate
    met_first: float
    met_second: float


def compare_criteria(
    a: Sequence[CriterionMarks], b: Sequence[CriterionMarks], members: Sequence[Sequence[int]]
) -> list[CriterionDisagreement]:
    """All criteria together first, then each that two groups or more share, the worst first.

    Empty where one judge marked none. At most 50 criteria; of more, those marked most often.
    """
    if not (any(a) and any(b)):
        return []
    found: dict[str, list[list[_MarkPair]]] = {}
    for group in members:
        fresh: dict[str, list[_MarkPair]] = {}
        for place in group:
            for name in sorted(a[place].keys() & b[place].keys()):
                fresh.setdefault(name, []).append((a[place][name], b[place][name]))
        together = [mark for marks in fresh.values() for mark in marks]
        for name, marks in [*fresh.items(), *([("", together)] if together else [])]:
            found.setdefault(name, []).append(marks)
    if not found:
        return []
    whole = _criterion("", found.pop(""))
    shared = {name: of for name, of in found.items() if len(of) >= _MIN_CRITERION_GROUPS}
    often = sorted(shared.items(), key=lambda one: (-sum(map(len, one[1])), one[0]))
    each = [_criterion(name, of) for name, of in often[:_MAX_CRITERIA]]
    return [whole, *sorted(each, key=lambda one: -(one.differs.value or 0.0))]


def _criterion(name: str, groups: Sequence[Sequence[_MarkPair]]) -> CriterionDisagreement:
    rows = [(float(sum(x != y for x, y in marks)), float(len(marks))) for marks in groups]
    marks = [mark for group in groups for mark in group]
    return CriterionDisagreement(
        criterion=name,
        samples=len(marks),
        differs=bootstrap_groups(rows, ratio, bounds=(0, 1)),
        met_first=math.fsum(float(x or 0) for x, _ in marks) / len(marks),
        met_second=math.fsum(float(y or 0) for _, y in marks) / len(marks),
    )


def read_criterion_marks(details: Any) -> CriterionMarks:
    """The marks of criteria in a result's ``details``; a failed rubric's partial marks count too.

    >>> metadata = {"criteria": {"c1": {"met": True}}}
    >>> read_criterion_marks({"style": {"score": 1.0, "metadata": metadata}})
    {'style: c1': True}
    """
    marks: CriterionMarks = {}
    if not isinstance(details, Mapping):
        return marks
    for grader, detail in details.items():
        metadata = detail.get("metadata") if isinstance(detail, Mapping) else None
        criteria = metadata.get("criteria") if isinstance(metadata, Mapping) else None
        if not isinstance(criteria, Mapping):
            continue
        for name, mark in criteria.items():
            if isinstance(mark, Mapping) and isinstance(
                mark.get("met", ...), bool | int | float | None
            ):
                marks[f"{grader}: {name}"] = mark["met"]
    return marks
