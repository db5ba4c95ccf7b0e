"""A study's two kinds of chart: values a line each, and points over a number or a level."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from adjudge.runs.report.charts import number
from adjudge.studies.matrix.axes import LEFT, RIGHT, Across, Level, Scale
from adjudge.studies.matrix.drawing import (
    WIDTH,
    Drawing,
    plain,
    short,
    text_at,
    tick_text,
    title_text,
    told,
)

__all__ = ["COLOURS", "Row", "Series", "Spot", "dot_chart", "xy_chart"]

COLOURS = 6
_PLOT = 190
_MOST_ROWS = 60
_MOST_SPOTS = 2_000
_DODGE = 7.0
_JOINED = ("line", "dashed", "fit")


class Spot(NamedTuple):
    """A point; ``low`` to ``high`` its interval, ``said`` what it tells when pointed at."""

    x: Level
    y: float
    low: float | None = None
    high: float | None = None
    said: str = ""


class Series(NamedTuple):
    """Points of one colour (``place`` from 0).

    ``kind``: ``line`` and ``dashed`` join the points, ``fit`` joins them thinly without marks,
    ``mean`` draws filled marks with intervals, joined, and ``seed`` open marks. ``name`` is in the
    key where it is not empty.
    """

    name: str
    place: int
    kind: str
    spots: Sequence[Spot]


class Row(NamedTuple):
    """A line of a dot chart: ``value`` with its interval, ``seeds`` one value a seed.

    Without a ``value`` the row says ``why``.
    """

    name: str
    value: float | None
    low: float | None = None
    high: float | None = None
    seeds: Sequence[float] = ()
    why: str = ""


def dot_chart(title: str, unit: str, rows: Sequence[Row], *, zero: bool = True) -> Drawing:
    """Values with intervals, a line each; ``zero`` keeps 0 on the scale and marks it.

    At most 60 rows are drawn, and the chart says so.
    """
    shown = rows[:_MOST_ROWS]
    present = [
        value
        for row in shown
        for value in (row.value, row.low, row.high, *row.seeds)
        if value is not None and math.isfinite(value)
    ]
    scale = Scale.over([*present, 0.0] if zero else present, 210.0, RIGHT)
    height = 22.0 * len(shown) + 28
    parts = [title_text(title)]
    for tick in scale.ticks():
        kind = "base" if tick == 0 and zero else "grid"
        x = scale.at(tick)
        parts.append(f'<line class="{kind}" x1="{x:.1f}" x2="{x:.1f}" y1="24" y2="{height:.1f}"/>')
        parts.append(text_at(x, height + 14, tick_text(tick), "middle"))
    parts += [_dot_row(row, scale, 40 + 22.0 * place) for place, row in enumerate(shown)]
    left = f"; {len(rows) - len(shown)} more are not drawn" if len(rows) > len(shown) else ""
    parts.append(text_at(RIGHT, height + 30, unit + left, "end"))
    said = "; ".join(f"{row.name} {number(row.value)}" for row in shown)
    return Drawing(title, plain(f"{title}, {unit}: {said}"), "".join(parts), height + 36)


def _dot_row(row: Row, scale: Scale, y: float) -> str:
    name = f'<text class="name" x="0" y="{y + 4:.1f}">{short(row.name, 34)}{told(row.name)}</text>'
    if row.value is None or not math.isfinite(row.value):
        return name + text_at(216, y + 4, "– " + row.why, "start")
    seeds = "".join(
        f'<circle class="seed c0" cx="{scale.at(value):.1f}" cy="{y:.1f}" r="3"/>'
        for value in row.seeds
        if math.isfinite(value)
    )
    ends = ""
    text = f"{row.name}: {number(row.value)}"
    if row.low is not None and row.high is not None:
        ends = (
            f'<line class="interval c0" x1="{scale.at(row.low):.1f}" x2="{scale.at(row.high):.1f}" '
            f'y1="{y:.1f}" y2="{y:.1f}"/>'
        )
        text += f", {number(row.low)} to {number(row.high)}"
    mean = f'<circle class="mean c0" cx="{scale.at(row.value):.1f}" cy="{y:.1f}" r="4.5">'
    return f"{name}{ends}{seeds}{mean}{told(text)}</circle>"


def xy_chart(
    title: str,
    names: tuple[str, str],
    series: Sequence[Series],
    *,
    zero: bool = False,
    places: Sequence[Level] = (),
    marks: Sequence[tuple[float, int, str]] = (),
) -> Drawing | None:
    """Series over a number or over named levels; ``None`` where no series has a point.

    ``names``: of the horizontal and the vertical axis; ``zero`` keeps 0 on the vertical one,
    ``places`` are on the horizontal one whether or not a point is there;
    ``marks``: vertical lines (where, place, what they are). Levels that span more than a factor of
    8 are spaced by their logarithms.
    """
    spots = [spot for one in series for spot in one.spots if math.isfinite(spot.y)]
    if not spots:
        return None
    key, top = _key(series, 34)
    bottom = top + _PLOT
    heights = [v for s in spots for v in (s.y, s.low, s.high) if v is not None and math.isfinite(v)]
    up = Scale.over([*heights, 0.0] if zero else heights, bottom, top)
    joined = any(one.kind in _JOINED for one in series)
    across = Across([*places, *(spot.x for spot in spots)], joined=joined)
    lines = 1 if joined else len({one.place for one in series})
    parts = [title_text(title), key, _up_grid(up), across.grid(top, bottom)]
    parts += [_mark(across.at(x), place, said, top, bottom) for x, place, said in marks]
    parts += [_series(one, across, up, lines) for one in series]
    parts.append(text_at((LEFT + RIGHT) / 2, bottom + 31, names[0], "middle"))
    parts.append(text_at(0, top - 8, names[1], "start"))
    said = f"{title}: {names[1]} over {names[0]}; " + "; ".join(_ends(one) for one in series)
    return Drawing(title, plain(said), "".join(parts), bottom + 38)


def _up_grid(up: Scale) -> str:
    return "".join(
        f'<line class="{"base" if tick == 0 else "grid"}" x1="{LEFT}" x2="{RIGHT}" '
        f'y1="{up.at(tick):.1f}" y2="{up.at(tick):.1f}"/>'
        + text_at(LEFT - 6, up.at(tick) + 4, tick_text(tick), "end")
        for tick in up.ticks()
    )


def _series(one: Series, across: Across, up: Scale, lines: int) -> str:
    colour = f"c{one.place % COLOURS}"
    # Side by side where several lines share a level.
    aside = _DODGE * (one.place - (lines - 1) / 2) if lines > 1 else 0.0
    spots = [spot for spot in one.spots[:_MOST_SPOTS] if math.isfinite(spot.y)]
    placed = [(across.at(spot.x) + aside, up.at(spot.y), spot) for spot in spots]
    parts = []
    if one.kind != "seed" and len(placed) > 1:
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in placed)
        parts.append(f'<polyline class="{one.kind} {colour}" points="{line}"/>')
    if one.kind != "fit":
        parts += [_spot(x, y, spot, up, f"{one.kind} {colour}") for x, y, spot in placed]
    return "".join(parts)


def _spot(x: float, y: float, spot: Spot, up: Scale, kind: str) -> str:
    ends = ""
    if spot.low is not None and spot.high is not None:
        ends = (
            f'<line class="interval {kind}" x1="{x:.1f}" x2="{x:.1f}" '
            f'y1="{up.at(spot.low):.1f}" y2="{up.at(spot.high):.1f}"/>'
        )
    radius = 4.5 if kind.startswith("mean") else 3
    return (
        f'{ends}<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="{radius}">'
        f"{told(spot.said or number(spot.y))}</circle>"
    )


def _mark(x: float, place: int, said: str, top: float, bottom: float) -> str:
    return (
        f'<line class="mark c{place % COLOURS}" x1="{x:.1f}" x2="{x:.1f}" y1="{top:.1f}" '
        f'y2="{bottom:.1f}">{told(said)}</line>' + text_at(x + 3, top + 11, said, "start")
    )


def _key(series: Sequence[Series], top: float) -> tuple[str, float]:
    """The key, two entries a line, and where the plot begins."""
    named = [one for one in series if one.name]
    parts = []
    for place, one in enumerate(named):
        x, y = (place % 2) * WIDTH / 2, top + 16 * (place // 2)
        colour, kind = f"c{one.place % COLOURS}", one.kind
        ends = f"{x:.0f},{y - 4:.0f} {x + 20:.0f},{y - 4:.0f}"
        sample = f'<polyline class="{kind} {colour}" points="{ends}"/>'
        if kind in ("mean", "seed"):
            sample = f'<circle class="{kind} {colour}" cx="{x + 10:.0f}" cy="{y - 4:.0f}" r="4"/>'
        parts.append(f'{sample}<text x="{x + 26:.0f}" y="{y:.0f}">{short(one.name)}</text>')
    return "".join(parts), top + 16 * math.ceil(len(named) / 2) + 10


def _ends(one: Series) -> str:
    """A series in words, where it starts and ends."""
    there = [spot.y for spot in one.spots if math.isfinite(spot.y)]
    return f"{one.name} from {number(there[0])} to {number(there[-1])}" if there else ""
