"""Probes that change the order in which things are shown: of two answers, of criteria."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations, product
from statistics import fmean

from adjudge.studies.probes.bench import Bench, Shown
from adjudge.studies.probes.intervals import Row
from adjudge.studies.probes.probe import SIGNED_SHARE, Measured, Probe, mean_shift, needs_repeats
from adjudge.studies.probes.subject import Question
from adjudge.types import GraderScore

__all__ = ["ORDERS"]


def _pairs(bench: Bench) -> list[list[Shown] | None]:
    """Verdicts on two answers of equal worth, by item: there position has most room."""
    return [bench.shown(item, item.right, item.reference) for item in bench.items]


def _position(bench: Bench) -> Measured:
    rows: list[Row] = []
    for found in _pairs(bench):
        if found is not None:
            toward_first = [(2 * s - 1) * (1 if given else -1) for given, s in found]
            rows.append((fmean(toward_first), 1.0))
    missing = len(bench.items) - len(rows)
    return Measured("net preference", rows, mean_shift, missing=missing, bounds=SIGNED_SHARE)


def _position_flips(bench: Bench) -> Measured:
    rows: list[Row] = []
    modal: list[float] = []
    for found in _pairs(bench):
        if found is None:
            continue
        orders = [[one.score for one in found if one.given is given] for given in (True, False)]
        modal += [max(map(scores.count, scores)) / len(scores) for scores in orders if scores]
        rows.append(_excess(orders))
    flips, stable = _share(rows, 0), fmean(modal) if modal else None
    parts = {"consistency": None if flips is None else 1 - flips, "repeat_stability": stable}
    return Measured(
        "share of verdicts",
        rows,
        difference_of_shares,
        missing=len(bench.items) - len(rows),
        parts=parts,
        bounds=SIGNED_SHARE,
    )


def _excess(ways: Sequence[Sequence[object]]) -> Row:
    """Differing pairs between two ways of asking and their number, then the same within a way."""
    between = list(product(*ways))
    within = [pair for way in ways for pair in combinations(way, 2)]
    return (_differing(between), float(len(between)), _differing(within), float(len(within)))


def _differing(pairs: Iterable[Sequence[object]]) -> float:
    return float(sum(one != other for one, other in pairs))


def difference_of_shares(sums: Sequence[float]) -> float | None:
    """Of columns ``(hits, trials, other hits, other trials)``: the difference of the two shares."""
    return sums[0] / sums[1] - sums[2] / sums[3] if sums[1] and sums[3] else None


def _share(rows: Sequence[Row], place: int) -> float | None:
    trials = sum(row[place + 1] for row in rows)
    return sum(row[place] for row in rows) / trials if trials else None


def _criterion_order(bench: Bench) -> Measured:
    rows: list[Row] = []
    for item in bench.items:
        orders: list[list[Mapping[str, object]]] = []
        for turned in (False, True):
            orders.append([])
            for draw in range(bench.repeats):
                marks = _marks(bench, Question(item.id, item.middling, "", bench.reference(item),
                                               turned, draw))  # fmt: skip
                if marks is not None:
                    orders[-1].append(marks)
        if all(len(order) == bench.repeats for order in orders):
            rows.append(_by_criterion(orders))
    parts = {"reordered": _share(rows, 0), "repeated": _share(rows, 2)}
    return Measured(
        "share of marks",
        rows,
        difference_of_shares,
        missing=len(bench.items) - len(rows),
        parts=parts,
        bounds=SIGNED_SHARE,
    )


def _by_criterion(orders: Sequence[Sequence[Mapping[str, object]]]) -> Row:
    shared = sorted(set.intersection(*(set(marks) for order in orders for marks in order)))
    found = [_excess([[marks[one] for marks in order] for order in orders]) for one in shared]
    columns = list(zip(*found, strict=True)) or [()] * 4
    return tuple(float(sum(column)) for column in columns)


def _marks(bench: Bench, question: Question) -> dict[str, object] | None:
    """What each criterion got, by its id."""
    found = bench.take(question)
    if not isinstance(found, GraderScore) or "criteria" not in found.metadata:
        return None
    return {name: told["met"] for name, told in found.metadata["criteria"].items()}


def _no_order(bench: Bench) -> str:
    if bench.subject.panel:
        return "a panel's answer does not tell its judges' verdicts; probe them one by one"
    if not bench.subject.tells_orders:
        return "a tournament does not tell its verdicts by order; probe the judge with 'pairwise'"
    if not all(item.reference for item in bench.items):
        return "needs items with a reference: a second right answer"
    return ""


def _no_criteria(bench: Bench) -> str:
    return "" if bench.subject.marks_criteria else "the grader marks no criteria of a rubric"


_BOTH_ORDERS = (
    "ask in both orders (orders = 'both', as by default), so that only a preference that survives "
    "the swap counts"
)

ORDERS = (
    Probe(
        "position",
        "two answers of equal worth are shown in both orders",
        "how far the one shown first is preferred (below 0: the one shown last)",
        _position,
        threshold=0.2,
        sided="both",
        kinds=("compares", "ranks"),
        hindrance=_no_order,
        remedy=_BOTH_ORDERS,
    ),
    Probe(
        "position_flips",
        "two answers of equal worth are shown in both orders, each of them repeatedly",
        "how much oftener two verdicts differ between the orders than within one",
        _position_flips,
        threshold=0.2,
        kinds=("compares", "ranks"),
        hindrance=lambda bench: _no_order(bench) or needs_repeats(bench),
        remedy=_BOTH_ORDERS,
    ),
    Probe(
        "criterion_order",
        "the criteria of the rubric are shown from last to first",
        "how much oftener two marks of a criterion differ between the orders than within one",
        _criterion_order,
        threshold=0.1,
        kinds=("scores",),
        hindrance=lambda bench: _no_criteria(bench) or needs_repeats(bench),
        remedy=("ask about each criterion by itself (ask = 'each')"),
    ),
)
