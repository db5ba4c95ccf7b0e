"""A study's curves: proxy and gold over √KL, best-of-n, and drift over the steps."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from adjudge.runs.report.charts import number
from adjudge.studies.matrix.analysis.scores import change, ordered
from adjudge.studies.matrix.cells import CellView, cell_name
from adjudge.studies.matrix.charts import COLOURS, Series, Spot, xy_chart
from adjudge.studies.matrix.drawing import Drawing
from adjudge.studies.matrix.results import ArmResult, StudyResult

__all__ = ["best_of_drawings", "drift_drawings", "fit_line", "kl_drawings"]

Found = Mapping[str, Any]

_SAMPLES = 48
_AXES = ("√KL from the first policy, √nats", "gain, SDs of the first policy's answers")
_FORMS = {"bon": "d(α − β·d)", "rl": "d(α − β·log d)"}
_DRAWN_FEATURES = 6


def kl_drawings(
    result: StudyResult, cells: Mapping[tuple[str, str], CellView], units: Found
) -> list[Drawing]:
    """Proxy (dashed) and gold over √KL, a chart a cell: means over seeds by step, and fits."""
    found = []
    for key, arms in result.cells():
        series, marks = [], []
        for place, (target, scorer) in enumerate((("gold", result.gold), ("proxy", arms[0].proxy))):
            unit = units.get(scorer)
            if unit is None:
                continue
            seeds = [spot for arm in arms for _, spot in _arm_curve(arm, scorer, unit)]
            kind = "line" if target == "gold" else "dashed"
            fits = cells[key].fits[target]
            series.append(Series(target, place, kind, list(_mean_curve(arms, scorer, unit))))
            series.append(Series("", place, "seed", seeds))
            series += _fit_series(target, place, fits)
            marks += _peaks(target, place, fits)
        drawing = xy_chart(cell_name(*key), _AXES, series, zero=True, marks=marks)
        found += [] if drawing is None else [drawing]
    return found


def best_of_drawings(curves: Sequence[Found]) -> list[Drawing]:
    """The same of best-of-n, a chart a judge."""
    found = []
    for curve in curves:
        series, marks = [], []
        for place, (target, kind) in enumerate((("gold", "line"), ("proxy", "dashed"))):
            spots = [
                Spot(row["distance"], one["value"], one["low"], one["high"],
                     f"n = {row['n']}: {number(one['value'])}")
                for row in curve["rows"]
                for one in [row[target]]
                if one["value"] is not None
            ]  # fmt: skip
            series.append(Series(target, place, kind, spots))
            fits = curve["fits"].get(target)
            if fits is not None:
                series += _fit_series(target, place, fits)
                marks += _peaks(target, place, fits)
        drawing = xy_chart(f"Best of n by {curve['judge']}", _AXES, series, zero=True, marks=marks)
        found += [] if drawing is None else [drawing]
    return found


def drift_drawings(curves: Sequence[Found]) -> list[Drawing]:
    """Each feature over the steps, a line a cell, six a chart; the first six features."""
    names = list(dict.fromkeys(one["feature"] for one in curves))[:_DRAWN_FEATURES]
    found = []
    for name in names:
        own = [one for one in curves if one["feature"] == name]
        for start in range(0, len(own), COLOURS):
            part = own[start : start + COLOURS]
            more = f", cells {start + 1} to {start + len(part)}" if len(own) > COLOURS else ""
            series = [
                Series(cell_name(one["judge"], one["mitigation"]), place, "line", _spots(one))
                for place, one in enumerate(part)
            ]
            drawing = xy_chart(f"{name} of an answer{more}", ("step", name), series)
            found += [] if drawing is None else [drawing]
    return found


def fit_line(form: str, alpha: float, beta: float, largest: float) -> list[Spot]:
    """A fitted form from 0 to ``largest``."""
    spots = [Spot(0.0, 0.0)]
    for place in range(1, _SAMPLES + 1):
        d = largest * place / _SAMPLES
        y = d * (alpha - beta * (d if form == "bon" else math.log(d)))
        spots.append(Spot(d, y))
    return spots


def _arm_curve(arm: ArmResult, scorer: str, unit: float) -> Iterator[tuple[int, Spot]]:
    """Steps, and where the arm was then."""
    points = ordered(arm)
    for point in points:
        moved = change(points[0], point, [scorer]) if points[0].step == 0 else {}
        if moved:
            gain = math.fsum(by for (by,) in moved.values()) / len(moved) / unit
            said = f"{arm.name}, step {point.step}: {number(gain)}"
            yield point.step, Spot(point.distance, gain, said=said)


def _mean_curve(arms: Sequence[ArmResult], scorer: str, unit: float) -> Iterator[Spot]:
    """Means over the seeds that have a step, in the order of the steps."""
    by_step: dict[int, list[Spot]] = {}
    for arm in arms:
        for step, spot in _arm_curve(arm, scorer, unit):
            by_step.setdefault(step, []).append(spot)
    for step, spots in sorted(by_step.items()):
        n = len(spots)
        distance = math.fsum(float(spot.x) for spot in spots) / n
        gain = math.fsum(spot.y for spot in spots) / n
        yield Spot(distance, gain, said=f"step {step}, {n} seeds: {number(gain)}")


def _shown_form(fits: Found) -> tuple[str, Found] | None:
    """The form that fits better, where it has numbers."""
    name = fits["better"] or next(iter(fits["forms"]), None)
    if name is None:
        return None
    form = fits["forms"][name]
    return None if form["alpha"]["value"] is None else (name, form)


def _fit_series(target: str, place: int, fits: Found) -> list[Series]:
    shown = _shown_form(fits)
    if shown is None or not fits["largest"]:
        return []
    name, form = shown
    line = fit_line(name, form["alpha"]["value"], form["beta"]["value"], fits["largest"])
    return [Series(f"{target}: {_FORMS[name]}", place, "fit", line)]


def _peaks(target: str, place: int, fits: Found) -> list[tuple[float, int, str]]:
    """The peak of the fit, where it was seen."""
    shown = _shown_form(fits)
    if shown is None or shown[1]["peak"]["value"] is None or shown[1]["extrapolated"]:
        return []
    at = shown[1]["peak"]["value"]
    return [(at, place, f"{target} peak {number(at, 2)}")]


def _spots(curve: Found) -> list[Spot]:
    return [
        Spot(float(point["step"]), one["value"], one["low"], one["high"])
        for point in curve["points"]
        for one in [point["mean"]]
        if one["value"] is not None
    ]
