"""The charts of a study as SVG: values a line each, and points over a number or a level.

They have places of their own, not those of a column, as each is also a file. Axes turn values and
named levels into places. Colours are classes of ``charts.css``, for light and dark.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from adjudge.report.charts import svg_line, svg_text
from adjudge.report.page import Element, Fragment, format_number, read_asset
from adjudge.text import replace_surrogates

CHART_WIDTH = 520
_MAX_LABEL_LENGTH = 44


class Drawing(NamedTuple):
    """A chart: the inside of an SVG that is :data:`CHART_WIDTH` wide and ``height`` high."""

    title: str
    description: str
    body: Fragment
    height: float


def draw_figure(drawing: Drawing) -> Element:
    """``drawing`` as a figure of a page."""
    chart = Element(
        "svg", drawing.body, role="img", aria_label=drawing.description, width="100%",
        viewBox=f"0 0 {CHART_WIDTH} {drawing.height:.0f}",
    )  # fmt: skip
    return Element("figure", chart, class_="drawn")


def svg_document(title: str, drawings: Sequence[Drawing]) -> str:
    """An SVG file with ``drawings`` below each other; it follows the reader's colour scheme."""
    parts, top = [], 30.0
    for one in drawings:
        height = round(one.height)
        parts.append(Element("svg", one.body, y=round(top), width=CHART_WIDTH, height=height))
        top += one.height + 14
    described = printable_text(f"{title}: {'; '.join(one.description for one in drawings)}")
    svg = Element(
        "svg",
        Element("style", read_asset(__package__ or "", "charts.css")),
        svg_text(0, 16, _shorten(title, 70), kind="head"),
        parts,
        xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 {CHART_WIDTH} {top:.0f}", role="img",
        aria_label=described,
    )  # fmt: skip
    return replace_surrogates(f"{svg}\n")


def _title(text: str) -> Element:
    """A chart's title."""
    return svg_text(0, 14, [_shorten(text, 72), _tooltip(text)], kind="title")


def _label(x: float, y: float, text: str, anchor: str) -> Element:
    return svg_text(x, y, _shorten(text, 70), anchor)


def _tooltip(text: str) -> Element:
    """What a mark says in whole when it is pointed at."""
    return Element("title", printable_text(text))


def _shorten(text: str, most: int = _MAX_LABEL_LENGTH) -> str:
    text = printable_text(text)
    return text if len(text) <= most else text[: most - 1] + "…"


def printable_text(text: str) -> str:
    """``text`` without characters that XML has no place for."""
    return "".join(c if c.isprintable() else " " for c in text)


def format_tick(value: float) -> str:
    """A round number for an axis."""
    return f"{value:.4g}".replace("-", "−")


PLOT_LEFT, PLOT_RIGHT = 52.0, 506.0

AxisLevel = str | float


class AxisScale(NamedTuple):
    """From values to places: ``low`` at ``start``, ``high`` at ``end``."""

    low: float
    high: float
    start: float
    end: float

    @classmethod
    def over(cls, values: Sequence[float], start: float, end: float) -> AxisScale:
        """A scale that shows all ``values``, with some room at both ends."""
        low, high = (min(values), max(values)) if values else (0.0, 1.0)
        if not low < high:
            half = abs(low) / 4 or 0.5
            low, high = low - half, high + half
        # Halves, as the width of the range may be no number.
        room = (high / 2 - low / 2) * 0.1
        return cls(low - room, high + room, start, end)

    def at(self, value: float) -> float:
        """The place of ``value``; of one beyond the scale, its end."""
        share = (value / 2 - self.low / 2) / (self.high / 2 - self.low / 2)
        return self.start + (self.end - self.start) * min(1.0, max(0.0, share))

    def ticks(self) -> list[float]:
        """Three to seven round numbers."""
        width = self.high - self.low
        if not (math.isfinite(width) and width > 0):
            return []
        unit = 10.0 ** math.floor(math.log10(width / 4))
        step = next((unit * by for by in (1, 2, 5) if width / (unit * by) <= 6), 10 * unit)
        if not step or abs(self.low / step) > 1e9:
            return []
        first, last = math.ceil(self.low / step), math.floor(self.high / step)
        return [place * step for place in range(first, last + 1)]


class HorizontalAxis:
    """The horizontal axis: numbers, or levels by name."""

    def __init__(self, found: Sequence[AxisLevel], *, joined: bool) -> None:
        self.levels = sorted({x for x in found if isinstance(x, str)})
        numbers = sorted({x for x in found if not isinstance(x, str) and math.isfinite(x)})
        if self.levels or not numbers:
            self.levels = list(dict.fromkeys(str(x) for x in found))
            numbers = [0.0, max(1.0, len(self.levels) - 1.0)]
        self.log = not (self.levels or joined) and numbers[0] > 0 and numbers[-1] >= 8 * numbers[0]
        self.own = [] if self.levels or joined or len(numbers) > 8 else numbers
        self.scale = AxisScale.over([self._placed(x) for x in numbers], PLOT_LEFT, PLOT_RIGHT)

    def _placed(self, x: float) -> float:
        return math.log(x) if self.log else x

    def at(self, x: AxisLevel) -> float:
        """The place of a number or of a level."""
        if self.levels:
            return self.scale.at(float(self.levels.index(str(x))))
        return self.scale.at(self._placed(float(x)))

    def grid(self, top: float, bottom: float) -> list[Element]:
        """Lines up and down, with their numbers or levels below."""
        ticks: Sequence[AxisLevel] = self.levels or self.own or self.scale.ticks()
        longest = max(6, 66 // max(1, len(ticks)))
        parts = []
        for one in ticks:
            x, name = self.at(one), one if isinstance(one, str) else format_tick(one)
            text = [_shorten(name, longest), _tooltip(name)]
            parts.append(svg_line("grid", x, top, x, bottom))
            parts.append(svg_text(x, bottom + 15, text, "middle"))
        return parts


COLOUR_COUNT = 6
_PLOT_HEIGHT = 190
_MAX_ROWS = 60
_MAX_POINTS = 2_000
_GROUP_OFFSET = 7.0
_JOINED_KINDS = ("line", "dashed", "fit")


class ChartPoint(NamedTuple):
    """A point; ``low`` to ``high`` its interval, ``said`` what it tells when pointed at."""

    x: AxisLevel
    y: float
    low: float | None = None
    high: float | None = None
    tooltip: str = ""


class ChartSeries(NamedTuple):
    """Points of one colour (``place`` from 0).

    ``kind``: ``line`` and ``dashed`` join the points, ``fit`` joins them thinly without marks,
    ``mean`` draws filled marks with intervals, joined, and ``seed`` open marks. ``name`` is in the
    key where it is not empty.
    """

    name: str
    place: int
    kind: str
    spots: Sequence[ChartPoint]


class DotRow(NamedTuple):
    """A line of a dot chart: ``value`` with its interval, ``seeds`` one value a seed.

    Without a ``value`` the row says ``why``.
    """

    name: str
    value: float | None
    low: float | None = None
    high: float | None = None
    seeds: Sequence[float] = ()
    why: str = ""


def dot_chart(title: str, unit: str, rows: Sequence[DotRow]) -> Drawing:
    """Values with intervals, a line each; 0 is on the scale and marked.

    At most 60 rows are drawn; the chart notes it.
    """
    shown = rows[:_MAX_ROWS]
    present = [
        value
        for row in shown
        for value in (row.value, row.low, row.high, *row.seeds)
        if value is not None and math.isfinite(value)
    ]
    scale = AxisScale.over([*present, 0.0], 210.0, PLOT_RIGHT)
    height = 22.0 * len(shown) + 28
    parts: list[object] = [_title(title)]
    for tick in scale.ticks():
        x = scale.at(tick)
        parts.append(svg_line("base" if tick == 0 else "grid", x, 24, x, height))
        parts.append(_label(x, height + 14, format_tick(tick), "middle"))
    parts += [_dot_row(row, scale, 40 + 22.0 * place) for place, row in enumerate(shown)]
    left = f"; {len(rows) - len(shown)} more are not drawn" if len(rows) > len(shown) else ""
    parts.append(_label(PLOT_RIGHT, height + 30, unit + left, "end"))
    values = "; ".join(f"{row.name} {format_number(row.value)}" for row in shown)
    return Drawing(
        title, printable_text(f"{title}, {unit}: {values}"), Fragment(parts), height + 36
    )


def _dot_row(row: DotRow, scale: AxisScale, y: float) -> list[object]:
    name = svg_text(0, y + 4, [_shorten(row.name, 34), _tooltip(row.name)], kind="name")
    if row.value is None or not math.isfinite(row.value):
        why = [_shorten("– " + row.why, 48), _tooltip(row.why)]
        return [name, svg_text(216, y + 4, why)]
    seeds = [
        Element("circle", class_="seed c0", cx=scale.at(value), cy=y, r=3)
        for value in row.seeds
        if math.isfinite(value)
    ]
    ends = None
    text = f"{row.name}: {format_number(row.value)}"
    if row.low is not None and row.high is not None:
        ends = svg_line("interval c0", scale.at(row.low), y, scale.at(row.high), y)
        text += f", {format_number(row.low)} to {format_number(row.high)}"
    mean = Element("circle", _tooltip(text), class_="mean c0", cx=scale.at(row.value), cy=y, r=4.5)
    return [name, ends, seeds, mean]


def xy_chart(
    title: str,
    names: tuple[str, str],
    series: Sequence[ChartSeries],
    *,
    zero: bool = False,
    places: Sequence[AxisLevel] = (),
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
    key, top = _draw_legend(series, 34)
    bottom = top + _PLOT_HEIGHT
    heights = [v for s in spots for v in (s.y, s.low, s.high) if v is not None and math.isfinite(v)]
    up = AxisScale.over([*heights, 0.0] if zero else heights, bottom, top)
    joined = any(one.kind in _JOINED_KINDS for one in series)
    across = HorizontalAxis([*places, *(spot.x for spot in spots)], joined=joined)
    lines = 1 if joined else len({one.place for one in series})
    parts: list[object] = [_title(title), key, _horizontal_grid(up), across.grid(top, bottom)]
    parts += [_draw_mark(across.at(x), place, text, top, bottom) for x, place, text in marks]
    parts += [_draw_series(one, across, up, lines) for one in series]
    parts.append(_label((PLOT_LEFT + PLOT_RIGHT) / 2, bottom + 31, names[0], "middle"))
    parts.append(_label(0, top - 8, names[1], "start"))
    described = "; ".join(_describe_series(one) for one in series)
    text = printable_text(f"{title}: {names[1]} over {names[0]}; {described}")
    return Drawing(title, text, Fragment(parts), bottom + 38)


def _horizontal_grid(up: AxisScale) -> list[Element]:
    parts = []
    for tick in up.ticks():
        kind, y = "base" if tick == 0 else "grid", up.at(tick)
        parts.append(svg_line(kind, PLOT_LEFT, y, PLOT_RIGHT, y))
        parts.append(_label(PLOT_LEFT - 6, y + 4, format_tick(tick), "end"))
    return parts


def _draw_series(
    one: ChartSeries, across: HorizontalAxis, up: AxisScale, lines: int
) -> list[object]:
    colour = f"c{one.place % COLOUR_COUNT}"
    # Side by side where several lines share a level.
    aside = _GROUP_OFFSET * (one.place - (lines - 1) / 2) if lines > 1 else 0.0
    spots = [spot for spot in one.spots[:_MAX_POINTS] if math.isfinite(spot.y)]
    placed = [(across.at(spot.x) + aside, up.at(spot.y), spot) for spot in spots]
    parts: list[object] = []
    if one.kind != "seed" and len(placed) > 1:
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in placed)
        parts.append(Element("polyline", class_=f"{one.kind} {colour}", points=line))
    if one.kind != "fit":
        parts += [_draw_point(x, y, spot, up, f"{one.kind} {colour}") for x, y, spot in placed]
    return parts


def _draw_point(x: float, y: float, spot: ChartPoint, up: AxisScale, kind: str) -> list[object]:
    ends = None
    if spot.low is not None and spot.high is not None:
        ends = svg_line(f"interval {kind}", x, up.at(spot.low), x, up.at(spot.high))
    radius = 4.5 if kind.startswith("mean") else 3
    text = _tooltip(spot.tooltip or format_number(spot.y))
    return [ends, Element("circle", text, class_=kind, cx=x, cy=y, r=radius)]


def _draw_mark(x: float, place: int, text: str, top: float, bottom: float) -> list[Element]:
    line = svg_line(f"mark c{place % COLOUR_COUNT}", x, top, x, bottom, _tooltip(text))
    return [line, _label(x + 3, top + 11, text, "start")]


def _draw_legend(series: Sequence[ChartSeries], top: float) -> tuple[list[Element], float]:
    """The key, two entries a line, and where the plot begins."""
    named = [one for one in series if one.name]
    parts = []
    for place, one in enumerate(named):
        x, y = (place % 2) * CHART_WIDTH / 2, top + 16 * (place // 2)
        kind = f"{one.kind} c{one.place % COLOUR_COUNT}"
        if one.kind in ("mean", "seed"):
            parts.append(Element("circle", class_=kind, cx=x + 10, cy=y - 4, r=4))
        else:
            ends = f"{x:.0f},{y - 4:.0f} {x + 20:.0f},{y - 4:.0f}"
            parts.append(Element("polyline", class_=kind, points=ends))
        parts.append(svg_text(x + 26, y, [_shorten(one.name, 36), _tooltip(one.name)]))
    return parts, top + 16 * math.ceil(len(named) / 2) + 10


def _describe_series(one: ChartSeries) -> str:
    """A series in words, where it starts and ends."""
    there = [spot.y for spot in one.spots if math.isfinite(spot.y)]
    return (
        f"{one.name} from {format_number(there[0])} to {format_number(there[-1])}" if there else ""
    )
