"""A study's curves: proxy and gold over √KL, best-of-n, and drift over the steps."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from adjudge.report.page import format_number
from adjudge_lab.studies.charts import (
    COLOUR_COUNT,
    ChartPoint,
    ChartSeries,
    Drawing,
    xy_chart,
)
from adjudge_lab.studies.results import ArmResult, StudyResult, change_by_prompt, sort_checkpoints
from adjudge_lab.studies.summary_view import (
    CellView,
    cell_name,
)

_JsonObject = Mapping[str, Any]

_FIT_SAMPLES = 48
_AXES = ("√KL from the first policy, √nats", "gain, SDs of the first policy's answers")
_FORM_LABELS = {"bon": "d(α − β·d)", "rl": "d(α − β·log d)"}
_MAX_FEATURES = 6


def draw_kl_curves(
    result: StudyResult, cells: Mapping[tuple[str, str], CellView], units: _JsonObject
) -> list[Drawing]:
    """Proxy (dashed) and gold over √KL, a chart a cell: means over seeds by step, and fits."""
    found = []
    for key, arms in result.cells():
        series, marks = [], []
        for place, (target, scorer) in enumerate((("gold", result.gold), ("proxy", arms[0].judge))):
            unit = units.get(scorer)
            if unit is None:
                continue
            seeds = [spot for arm in arms for _, spot in _arm_curve(arm, scorer, unit)]
            kind = "line" if target == "gold" else "dashed"
            fits = cells[key].fits[target]
            series.append(ChartSeries(target, place, kind, list(_mean_curve(arms, scorer, unit))))
            series.append(ChartSeries("", place, "seed", seeds))
            series += _fit_series(target, place, fits)
            marks += _peak_marks(target, place, fits)
        drawing = xy_chart(cell_name(*key), _AXES, series, zero=True, marks=marks)
        found += [] if drawing is None else [drawing]
    return found


def draw_best_of(curves: Sequence[_JsonObject]) -> list[Drawing]:
    """The same of best-of-n, a chart a judge."""
    found = []
    for curve in curves:
        series, marks = [], []
        for place, (target, kind) in enumerate((("gold", "line"), ("proxy", "dashed"))):
            spots = [
                ChartPoint(row["distance"], one["value"], one["low"], one["high"],
                     f"n = {row['n']}: {format_number(one['value'])}")
                for row in curve["rows"]
                for one in [row[target]]
                if one["value"] is not None
            ]  # fmt: skip
            series.append(ChartSeries(target, place, kind, spots))
            fits = curve["fits"].get(target)
            if fits is not None:
                series += _fit_series(target, place, fits)
                marks += _peak_marks(target, place, fits)
        drawing = xy_chart(f"Best of n by {curve['judge']}", _AXES, series, zero=True, marks=marks)
        found += [] if drawing is None else [drawing]
    return found


def draw_drift(curves: Sequence[_JsonObject]) -> list[Drawing]:
    """Each feature over the steps, a line a cell, six a chart; the first six features."""
    names = list(dict.fromkeys(one["feature"] for one in curves))[:_MAX_FEATURES]
    found = []
    for name in names:
        own = [one for one in curves if one["feature"] == name]
        for start in range(0, len(own), COLOUR_COUNT):
            part = own[start : start + COLOUR_COUNT]
            more = f", cells {start + 1} to {start + len(part)}" if len(own) > COLOUR_COUNT else ""
            series = [
                ChartSeries(
                    cell_name(one["judge"], one["mitigation"]), place, "line", _feature_points(one)
                )
                for place, one in enumerate(part)
            ]
            drawing = xy_chart(f"{name} of an answer{more}", ("step", name), series)
            found += [] if drawing is None else [drawing]
    return found


def fitted_points(form: str, alpha: float, beta: float, largest: float) -> list[ChartPoint]:
    """A fitted form from 0 to ``largest``."""
    spots = [ChartPoint(0.0, 0.0)]
    for place in range(1, _FIT_SAMPLES + 1):
        d = largest * place / _FIT_SAMPLES
        y = d * (alpha - beta * (d if form == "bon" else math.log(d)))
        spots.append(ChartPoint(d, y))
    return spots


def _arm_curve(arm: ArmResult, scorer: str, unit: float) -> Iterator[tuple[int, ChartPoint]]:
    """Steps, and where the arm was then."""
    points = sort_checkpoints(arm)
    for point in points:
        moved = change_by_prompt(points[0], point, [scorer]) if points[0].step == 0 else {}
        if moved:
            gain = math.fsum(by for (by,) in moved.values()) / len(moved) / unit
            said = f"{arm.name}, step {point.step}: {format_number(gain)}"
            yield point.step, ChartPoint(point.distance, gain, tooltip=said)


def _mean_curve(arms: Sequence[ArmResult], scorer: str, unit: float) -> Iterator[ChartPoint]:
    """Means over the seeds that have a step, in the order of the steps."""
    by_step: dict[int, list[ChartPoint]] = {}
    for arm in arms:
        for step, spot in _arm_curve(arm, scorer, unit):
            by_step.setdefault(step, []).append(spot)
    for step, spots in sorted(by_step.items()):
        n = len(spots)
        distance = math.fsum(float(spot.x) for spot in spots) / n
        gain = math.fsum(spot.y for spot in spots) / n
        yield ChartPoint(distance, gain, tooltip=f"step {step}, {n} seeds: {format_number(gain)}")


def _better_fit(fits: _JsonObject) -> tuple[str, _JsonObject] | None:
    """The form that fits better, where it has numbers."""
    name = fits["better"] or next(iter(fits["forms"]), None)
    if name is None:
        return None
    form = fits["forms"][name]
    return None if form["alpha"]["value"] is None else (name, form)


def _fit_series(target: str, place: int, fits: _JsonObject) -> list[ChartSeries]:
    shown = _better_fit(fits)
    if shown is None or not fits["largest"]:
        return []
    name, form = shown
    line = fitted_points(name, form["alpha"]["value"], form["beta"]["value"], fits["largest"])
    return [ChartSeries(f"{target}: {_FORM_LABELS[name]}", place, "fit", line)]


def _peak_marks(target: str, place: int, fits: _JsonObject) -> list[tuple[float, int, str]]:
    """The peak of the fit, where it was seen."""
    shown = _better_fit(fits)
    if shown is None or shown[1]["peak"]["value"] is None or shown[1]["extrapolated"]:
        return []
    at = shown[1]["peak"]["value"]
    return [(at, place, f"{target} peak {format_number(at, 2)}")]


def _feature_points(curve: _JsonObject) -> list[ChartPoint]:
    return [
        ChartPoint(float(point["step"]), one["value"], one["low"], one["high"])
        for point in curve["points"]
        for one in [point["mean"]]
        if one["value"] is not None
    ]
