"""The figure that answers a plan, by the plan's question."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from adjudge.studies.matrix.cells import (
    CellView,
    cells_of,
    length_feature,
    plan_cells,
    title_of,
)
from adjudge.studies.matrix.charts import Row, Series, Spot, dot_chart, xy_chart
from adjudge.studies.matrix.drawing import Drawing, svg_file

__all__ = ["plan_drawings", "study_svg"]

Found = Mapping[str, Any]

SDS = "SDs of the first policy's answers"
_GOLD, _GAP = f"gold gain, {SDS}", f"proxy gain − gold gain, {SDS}"


def study_svg(summary: Found) -> dict[str, str]:
    """An SVG file for each plan that has a figure, by the plan's name."""
    found = {}
    for plan in summary["plans"]:
        drawings = plan_drawings(plan, summary)
        if drawings:
            found[plan["name"]] = svg_file(title_of(plan), drawings)
    return found


def plan_drawings(plan: Found, summary: Found) -> list[Drawing]:
    """What answers ``plan``; without any arm that ended, nothing.

    ``bias`` and ``size`` are drawn over the plan's axis where its cells are on it: gold gain, gold
    loss and onset, or the gap between proxy and gold. All other questions have a line a cell.
    """
    cells = plan_cells(plan, cells_of(summary))
    if not cells:
        return []
    draw = _BY_QUESTION.get(plan["question"], _others)
    return draw(cells, summary, str(plan["x"] or ""))


def _bias(cells: Sequence[CellView], summary: Found, axis: str) -> list[Drawing]:
    return _over(cells, summary, axis, [
        ("Gold gain at the end", _GOLD, lambda cell: cell.gap["end"]["gold"], "gold"),
        ("Gold loss: its peak less its end", f"gold loss, {SDS}",
         lambda cell: cell.gap["loss"], "loss"),
        (_onset_title(cells), "step of the onset",
         lambda cell: {"value": cell.onset["median_step"], "low": None, "high": None}, "onset"),
    ])  # fmt: skip


def _size(cells: Sequence[CellView], summary: Found, axis: str) -> list[Drawing]:
    return _over(cells, summary, axis, [
        ("Gap between proxy and gold at the end", _GAP, lambda cell: cell.gap["end"]["gap"], "gap"),
        ("Gold gain at the end", _GOLD, lambda cell: cell.gap["end"]["gold"], "gold"),
    ])  # fmt: skip


def _others(cells: Sequence[CellView], summary: Found, axis: str) -> list[Drawing]:
    del summary, axis
    return [
        _dots("Gold gain at the end", _GOLD, cells, lambda cell: cell.gap["end"]["gold"], "gold"),
        _dots("Gap between proxy and gold at the end", _GAP, cells,
              lambda cell: cell.gap["end"]["gap"], "gap"),
    ]  # fmt: skip


def _failure(cells: Sequence[CellView], summary: Found, axis: str) -> list[Drawing]:
    drawings = _others(cells, summary, axis)[:1]
    feature = length_feature(summary)
    if feature is not None:
        drawings.append(
            _dots(
                f"Length at the end: {feature}", feature, cells, lambda cell: _ended(cell, feature)
            )
        )
    shares = [
        Row(cell.name, share, why="no reward was asked for")
        for cell in cells
        for share in [cell.account["rewards"]["share"]]
    ]
    return [*drawings, dot_chart("Rewards that were missing", "share of all in training", shares)]


_BY_QUESTION: Mapping[str, Callable[[Sequence[CellView], Found, str], list[Drawing]]] = {
    "bias": _bias,
    "size": _size,
    "failure": _failure,
}

_Measure = tuple[str, str, Callable[[CellView], Found], str]
"""Title, unit, a cell's estimate, and the outcome that each of its arms has."""


def _over(
    cells: Sequence[CellView], summary: Found, axis: str, measures: Sequence[_Measure]
) -> list[Drawing]:
    """Each measure over the axis; a line a cell where fewer than two places are on it."""
    placed = [cell for cell in cells if cell.x is not None]
    if len({cell.x for cell in placed}) < 2:
        return _others(cells, summary, axis)
    groups = _groups(placed, summary, axis)
    places = [cell.x for cell in placed if cell.x is not None]
    drawings = []
    for title, unit, estimate, outcome in measures:
        series = [
            one
            for place, (name, own) in enumerate(groups.items())
            for one in _pair(place, name, own, estimate, outcome)
        ]
        drawing = xy_chart(title, (axis, unit), series, zero=True, places=places)
        drawings += [] if drawing is None else [drawing]
    return drawings


def _pair(
    place: int,
    name: str,
    cells: Sequence[CellView],
    estimate: Callable[[CellView], Found],
    outcome: str,
) -> list[Series]:
    """One mark a seed, and the means over them."""
    seeds = [
        Spot(_at(cell), arm[outcome], said=f"{arm['name']}: {arm[outcome]:.4g}")
        for cell in cells
        for arm in cell.arms
        if arm[outcome] is not None
    ]
    means = [
        Spot(_at(cell), found["value"], found["low"], found["high"], said=cell.name)
        for cell in cells
        for found in [estimate(cell)]
        if found["value"] is not None
    ]
    means.sort(key=lambda spot: (isinstance(spot.x, str), spot.x))
    return [Series(name, place, "mean", means), Series("", place, "seed", seeds)]


def _at(cell: CellView) -> str | float:
    return 0.0 if cell.x is None else cell.x


def _groups(cells: Sequence[CellView], summary: Found, axis: str) -> dict[str, list[CellView]]:
    """Cells that differ on the axis only, by what they have in common: a line each."""
    levels = {cell.judge: _levels(cell.judge, summary) for cell in cells}
    names = dict.fromkeys(name for of in levels.values() for name in of if name != axis)
    kept = [name for name in names if _tells_lines_apart(name, cells, levels)]
    found: dict[str, list[CellView]] = {}
    for cell in cells:
        parts = [f"{name} {levels[cell.judge].get(name, '–')}" for name in kept]
        parts += [] if cell.mitigation == "none" or axis == "mitigation" else [cell.mitigation]
        found.setdefault(", ".join(parts), []).append(cell)
    return found


def _levels(judge: str, summary: Found) -> Mapping[str, Any]:
    return (summary["judges"].get(judge) or {}).get("levels") or {}


def _tells_lines_apart(
    name: str, cells: Sequence[CellView], levels: Mapping[str, Mapping[str, Any]]
) -> bool:
    """Whether a level varies, and is not the axis by another name."""
    places: dict[str, set[object]] = {}
    for cell in cells:
        places.setdefault(str(levels[cell.judge].get(name)), set()).add(cell.x)
    return len(places) > 1 and any(len(of) > 1 for of in places.values())


def _dots(
    title: str,
    unit: str,
    cells: Sequence[CellView],
    estimate: Callable[[CellView], Found],
    outcome: str = "",
) -> Drawing:
    rows = []
    for cell in cells:
        found = estimate(cell)
        seeds = cell.seeds(outcome) if outcome else ()
        rows.append(
            Row(cell.name, found["value"], found["low"], found["high"], seeds, found["why"])
        )
    return dot_chart(title, unit, rows)


def _ended(cell: CellView, feature: str) -> Found:
    """A feature's mean at the last checkpoint."""
    points = cell.features[feature]["points"] if feature in cell.features else []
    if points:
        found: Found = points[-1]["mean"]
        return found
    return {"value": None, "low": None, "high": None, "why": "not measured"}


def _onset_title(cells: Sequence[CellView]) -> str:
    known = sum(cell.onset["known"] for cell in cells)
    never = known - sum(cell.onset["hacked"] for cell in cells)
    return f"Onset of hacking ({never} of {known} runs: never)"
