"""Which criteria of a rubric two judges mark differently."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import islice

import msgspec

from adjudge.studies.swap.estimates import Estimate, estimate, ratio
from adjudge.studies.swap.sheet import Marks

__all__ = ["CriterionDisagreement", "criteria_disagreement"]

_Two = tuple[float | None, float | None]
_MOST = 50
_FEWEST_GROUPS = 2


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


def criteria_disagreement(
    a: Sequence[Marks], b: Sequence[Marks], members: Sequence[Sequence[int]], *, seed: int = 0
) -> list[CriterionDisagreement]:
    """All criteria together first, then each that two groups or more share, the worst first.

    Empty where one judge marked none. At most 50 criteria; of more, those marked most often.
    """
    if not (any(a) and any(b)):
        return []
    found: dict[str, list[list[_Two]]] = {}
    for group in members:
        fresh: dict[str, list[_Two]] = {}
        for place in group:
            for name in a[place].keys() & b[place].keys():
                fresh.setdefault(name, []).append((a[place][name], b[place][name]))
        for name, marks in fresh.items():
            found.setdefault(name, []).append(marks)
        if fresh:
            together = [mark for _, marks in sorted(fresh.items()) for mark in marks]
            found.setdefault("", []).append(together)
    whole = found.pop("", None)
    if whole is None:
        return []
    shared = {name: of for name, of in found.items() if len(of) >= _FEWEST_GROUPS}
    often = sorted(shared.items(), key=lambda one: (-sum(map(len, one[1])), one[0]))
    each = [_criterion(name, of, seed) for name, of in islice(often, _MOST)]
    each.sort(key=lambda one: -(one.differs.value or 0.0))
    return [_criterion("", whole, seed), *each]


def _criterion(name: str, groups: Sequence[Sequence[_Two]], seed: int) -> CriterionDisagreement:
    rows = [(float(sum(x != y for x, y in marks)), float(len(marks))) for marks in groups]
    marks = [mark for group in groups for mark in group]
    return CriterionDisagreement(
        criterion=name,
        samples=len(marks),
        differs=estimate(rows, ratio, bounds=(0, 1), seed=seed),
        met_first=math.fsum(float(x or 0) for x, _ in marks) / len(marks),
        met_second=math.fsum(float(y or 0) for _, y in marks) / len(marks),
    )
