"""Small SVG charts, without a library and without a script.

Horizontal positions are percentages and heights are pixels, so a chart stretches with its column
while its text and marks keep their size. Colours are classes of ``page.css``. Each chart says in
``aria-label`` what it shows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from adjudge.report.page import Element, bold, format_integer, format_number, small
from adjudge.stats import Bins, Estimate, collect

_BAR_HEIGHT = 84
_LINE_HEIGHT = 150
_SQUARE_HEIGHT = 210
_INSET = 2.0
"""Percent left free at both ends of a strip, so that marks at its ends are whole."""
_MAX_LINE_POINTS = 600
_MAX_SCATTER_POINTS = 2_000


def svg_line(
    kind: str, x1: object, y1: object, x2: object, y2: object, *content: object
) -> Element:
    """A line; numbers are pixels."""
    return Element("line", *content, class_=kind, x1=x1, x2=x2, y1=y1, y2=y2)


def svg_text(x: object, y: object, text: object, anchor: str = "", kind: str = "") -> Element:
    """Text that starts at ``x``, or has its ``middle`` or ``end`` there."""
    return Element("text", text, class_=kind, x=x, y=y, text_anchor=anchor)


def svg_tooltip(text: str) -> Element:
    """What a mark says when it is pointed at."""
    return Element("title", text)


def _svg(label: str, height: float, *content: object, kind: str = "") -> Element:
    return Element(
        "svg", *content, class_=kind, role="img", aria_label=label, width="100%", height=height
    )


def _figure(title: str, chart: Element, *beside: object) -> Element:
    return Element("figure", Element("figcaption", bold(title), *beside), chart)


def _tick(value: float, span: float, digits: int = 3) -> str:
    """A number on an axis that is ``span`` long; what rounding leaves of 0 is 0."""
    return format_number(0.0 if abs(value) < 1e-9 * span else value, digits)


def _percent(value: float) -> str:
    return f"{value:.2f}%"


def _across(share: float) -> str:
    """A place on a strip, of a share from 0 to 1."""
    return _percent(_INSET + (100 - 2 * _INSET) * min(1.0, max(0.0, share)))


# --- bars and strips ----------------------------------------------------------------------------


def bar_chart(share: float, label: str, *, track: bool = True) -> Element:
    """A horizontal bar over ``share`` in [0, 1] of its cell; the ``track`` shows the whole."""
    width = _percent(100 * min(1.0, max(0.0, share)))
    rest = Element("rect", class_="track", width="100%", height=10) if track else None
    return _svg(label, 10, rest, Element("rect", class_="fill", width=width, height=10), kind="bar")


def forest_strip(estimates: Mapping[str, Estimate], label: str) -> Element:
    """Estimates in [0, 1] with intervals on a strip, a line each; chance is marked at 0.5.

    ``estimates``: by the class of their marks.
    """
    height = 16 * len(estimates) + 8
    grid = [
        svg_line("chance" if x == 0.5 else "grid", _across(x), 0, _across(x), height)
        for x in (0.0, 0.25, 0.5, 0.75, 1.0)
    ]
    marks = [
        _strip_marks(one, 12 + 16 * place, kind)
        for place, (kind, one) in enumerate(estimates.items())
    ]
    return _svg(label, height, grid, marks, kind="strip")


def _strip_marks(one: Estimate, y: int, kind: str = "within") -> list[Element]:
    """A mark, and its interval; in shares of the strip."""
    if one.value is None:
        return []
    dot = Element("circle", class_=f"dot {kind}", cx=_across(one.value), cy=y, r=4.5)
    if one.low is None or one.high is None:
        return [dot]
    return [svg_line(f"interval {kind}", _across(one.low), y, _across(one.high), y), dot]


def forest_axis() -> Element:
    """The scale above the strips."""
    labels = [
        svg_text(_across(x), 12, text, anchor)
        for x, text, anchor in (
            (0.0, "0", "start"),
            (0.5, "0.5 chance", "middle"),
            (1.0, "1", "end"),
        )
    ]
    return Element("svg", labels, class_="axis", aria_hidden="true", width="100%", height=16)


def signed_strip(
    one: Estimate, label: str, span: float = 1.0, allowed: tuple[float, float] | None = None
) -> Element | None:
    """An estimate with its interval between −``span`` and ``span``; ``None`` without an estimate.

    What lies beyond stands at the edge. ``allowed`` is a band behind it.
    """
    if one.value is None:
        return None
    value, low, high = (
        None if x is None else (x / span + 1) / 2 for x in (one.value, one.low, one.high)
    )
    band = None
    if allowed is not None:
        left, right = (50 + (50 - _INSET) * x / span for x in allowed)
        band = Element(
            "rect", class_="allowed", x=_percent(left), width=_percent(right - left), y=2, height=20
        )
    marks = _strip_marks(Estimate(value, low, high), 12)
    return _svg(label, 24, band, svg_line("chance", "50%", 0, "50%", 24), marks, kind="strip")


# --- histograms ---------------------------------------------------------------------------------


def histogram_chart(counts: Sequence[int], bins: Bins, label: str) -> Element:
    """Counts as bars."""
    tallest = max(counts) or 1
    base, half = _BAR_HEIGHT + 15, bins.half or 0.0
    low, high = bins.edges[0] + half, bins.edges[-1] - half
    bars = [
        _histogram_bar(count, bins, i, count / tallest, base)
        for i, count in enumerate(counts)
        if count
    ]
    peak = svg_text("100%", 9, f"peak {format_integer(tallest)}", "end")
    ticks = (("0%", low, "start"), ("50%", (low + high) / 2, "middle"), ("100%", high, "end"))
    labels = [svg_text(x, base + 14, _tick(value, high - low), at) for x, value, at in ticks]
    floor = svg_line("base", 0, base, "100%", base)
    return _svg(label, base + 16, bars, peak, floor, labels, kind="hist")


def _histogram_bar(count: int, bins: Bins, i: int, share: float, base: int) -> Element:
    first, start, end, last = bins.edges[0], bins.edges[i], bins.edges[i + 1], bins.edges[-1]
    x, width = (100 * by / (last - first) for by in (start - first, end - start))
    height = max(1.5, share * _BAR_HEIGHT)
    span = last - first
    where = f"{_tick(start, span)} to {_tick(end, span)}"
    if bins.half is not None:
        where = _tick((start + end) / 2, span)
    return Element(
        "rect", svg_tooltip(f"{where}: {format_integer(count)}"), class_="one",
        x=_percent(x + width / 20), width=_percent(width * 0.9),
        y=round(base - height, 1), height=round(height, 1),
    )  # fmt: skip


# --- lines over steps ---------------------------------------------------------------------------


class ChartLine(NamedTuple):
    """A named curve: one value a step, ``None`` where there is none (a gap)."""

    name: str
    values: Sequence[float | None]


def merge_equal_lines(lines: Sequence[ChartLine]) -> list[ChartLine]:
    """``lines`` that have values, with those of the same values as one that has all their names."""
    present = (line for line in lines if any(value is not None for value in line.values))
    names = collect((tuple(line.values), line.name) for line in present)
    return [ChartLine(" = ".join(named), values) for values, named in names.items()]


def line_chart(
    title: str,
    lines: Sequence[ChartLine],
    steps: Sequence[float | None],
    *,
    low: float | None = None,
    high: float | None = None,
    marks: Sequence[float] = (),
    followed: bool = False,
) -> Element | None:
    """A figure of up to six ``lines`` over ``steps``; ``marks`` are steps to point at.

    The vertical scale shows all values, and ``low`` and ``high`` where they are given. ``None``
    where no value is there. The lines live in a stretched view box, the numbers beside it.
    ``followed``: with the places where a script shows the values of one step.
    """
    known = [step for step in steps if step is not None]
    present = [x for line in lines for x in line.values if x is not None and math.isfinite(x)]
    if not present or not known:
        return None
    bottom, top = (
        end(present if one is None else [*present, one]) for end, one in ((min, low), (max, high))
    )
    if top - bottom < 1e-9:
        top = bottom + 1.0
    first, width = known[0], max(known[-1] - known[0], 1)
    drawn: list[object] = [
        svg_line("mark", x, 0, x, 100)
        for x in (100 * (step - first) / width for step in marks)
        if 0 <= x <= 100
    ]
    lines = merge_equal_lines(lines)
    for place, line in enumerate(lines):
        spots = [
            None if step is None or value is None or not math.isfinite(value)
            else (100 * (step - first) / width, 100 * (1 - _share(value, bottom, top)))
            for step, value in zip(steps, line.values, strict=False)
        ]  # fmt: skip
        drawn += _polylines(spots, f"s{place}")
    if followed:
        drawn.append(Element("line", class_="cursor", y1=0, y2=100, visibility="hidden"))
    plot = Element(
        "svg", drawn, width="100%", height=_LINE_HEIGHT, viewBox="0 0 100 100",
        preserveAspectRatio="none",
    )  # fmt: skip
    heights = [(share, _LINE_HEIGHT * (1 - share)) for share in (0.0, 0.5, 1.0)]
    digits = 2 if top - bottom >= 0.1 else 4
    numbers = [
        (y, _tick(bottom + share * (top - bottom), top - bottom, digits)) for share, y in heights
    ]
    grid = [svg_line("grid", 0, y, "100%", y) for _, y in heights]
    ends = [
        svg_text(0, _LINE_HEIGHT + 14, f"step {format_integer(first)}"),
        svg_text("100%", _LINE_HEIGHT + 14, format_integer(known[-1]), "end"),
    ]
    keys = [_line_key(line, place, len(lines) > 1, followed) for place, line in enumerate(lines)]
    chart = _svg(_describe_lines(title, lines), _LINE_HEIGHT + 18, grid, plot, ends, kind="plot")
    shown = keys if followed or len(lines) > 1 else None
    return _figure(title, _beside_scale(numbers, chart), shown and Element("ul", shown))


def _beside_scale(numbers: Sequence[tuple[float, str]], chart: Element) -> Element:
    """``chart`` with the numbers of its vertical scale on its left: curves go anywhere in it."""
    texts = [svg_text("100%", y + 4, number, "end") for y, number in numbers]
    height = chart.attributes["height"]
    scale = Element("svg", texts, class_="scale", aria_hidden="true", height=height)
    return Element("div", scale, chart, class_="chart")


def _share(value: float, low: float, high: float) -> float:
    """Where ``value`` is between ``low`` and ``high``, from 0 to 1."""
    # Halves, as the width of the range may be no number.
    return min(1.0, max(0.0, (value / 2 - low / 2) / (high / 2 - low / 2)))


def _polylines(spots: Sequence[tuple[float, float] | None], kind: str) -> list[Element]:
    """The line in pieces: it is broken where values are missing."""
    pieces: list[list[str]] = [[]]
    for spot in spots[:: max(1, len(spots) // _MAX_LINE_POINTS)]:
        if spot is None:
            pieces.append([])
        else:
            pieces[-1].append(f"{spot[0]:.2f},{spot[1]:.2f}")
    return [
        Element("polyline", class_=kind, points=" ".join(piece if len(piece) > 1 else piece * 2))
        for piece in pieces
        if piece
    ]


def _line_key(line: ChartLine, place: int, several: bool, followed: bool) -> Element:
    sample = Element("polyline", class_=f"s{place}", points="0,4 22,4")
    sign = Element("svg", sample, class_="key", viewBox="0 0 22 8", aria_hidden="true")
    value = Element("output") if followed else None
    return Element("li", sign if several else None, line.name, value)


def _describe_lines(title: str, lines: Sequence[ChartLine]) -> str:
    """The chart in words: where each line starts and ends."""
    ends = []
    for line in lines:
        present = [value for value in line.values if value is not None]
        if present:
            first, last = format_number(present[0]), format_number(present[-1])
            ends.append(f"{line.name} from {first} to {last}")
    return f"{title}: {'; '.join(ends)}"


# --- squares ------------------------------------------------------------------------------------


def reliability_diagram(title: str, bins: Sequence[tuple[float, float, float]]) -> Element | None:
    """How often a judge is right (up) where it is so sure (across, 0.5 to 1).

    ``bins``: pairs, mean confidence, share that was right; ``None`` without any.
    A calibrated judge lies on the diagonal; larger marks stand for more pairs.
    """
    if not bins:
        return None
    most = max(pairs for pairs, _, _ in bins)
    marks = [
        _square_mark(
            (sure - 0.5) * 2, right, "mark", 3.5 + 5.5 * (pairs / most) ** 0.5,
            f"{format_integer(pairs)} pairs: confidence {format_number(sure)}, right "
            f"{format_number(right)}",
        )
        for pairs, sure, right in bins
    ]  # fmt: skip
    said = f"{title}: accuracy by confidence, {format_integer(sum(one[0] for one in bins))} pairs"
    diagonal = svg_line("chance", _across(0.0), _up(0.5), _across(1.0), _up(1.0))
    names = (("0.5", "0.75", "1"), ("0", "0.5", "1"), "confidence (across), right (up)")
    return _figure(title, _square(said, *names, diagonal, marks))


ScatterPoint = tuple[float, float, int]
"""Official score, the grader's, and the seed."""


def scatter_chart(
    title: str, points: Sequence[Sequence[ScatterPoint]], names: Sequence[str]
) -> Element | None:
    """A figure with one kind of mark a model; ``None`` where no seed has both numbers.

    At most 2,000 marks a model are drawn, and the caption says so. Points that coincide are drawn
    more strongly. Each says its seed.
    """
    every = [point for own in points for point in own if math.isfinite(point[0] + point[1])]
    if not every:
        return None
    across, up = (_axis_range([point[place] for point in every]) for place in (0, 1))
    marks = [
        _square_mark(
            _share(x, *across), _share(y, *up), f"m{place}", 4,
            f"seed {seed}: official {format_number(x)}, judged {format_number(y)}",
        )
        for place, own in enumerate(points)
        for x, y, seed in own[:_MAX_SCATTER_POINTS]
        if math.isfinite(x + y)
    ]  # fmt: skip
    left = sum(max(0, len(own) - _MAX_SCATTER_POINTS) for own in points)
    more = f" {format_integer(left)} more are not drawn." if left else ""
    keys = [Element("span", name, class_=f"key m{place}") for place, name in enumerate(names)]
    said = f"{title} against the official score, {format_integer(len(every))} seeds"
    chart = _square(said, _ticks(*across), _ticks(*up), "official score", marks)
    return _figure(title, chart, keys if len(names) > 1 else None, small(more))


def _axis_range(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    return (low, high) if low < high else (low - 0.5, high + 0.5)


def _ticks(low: float, high: float) -> list[str]:
    return [_tick(low * (1 - share) + high * share, high - low, 2) for share in (0.0, 0.5, 1.0)]


def _up(share: float) -> float:
    return 10 + (_SQUARE_HEIGHT - 20) * (1 - share)


def _square_mark(x: float, y: float, kind: str, radius: float, text: str) -> Element:
    return Element(
        "circle", svg_tooltip(text), class_=kind, cx=_across(x), cy=_up(y), r=round(radius, 1)
    )


def _square(
    label: str, across: Sequence[str], up: Sequence[str], name: str, *content: object
) -> Element:
    """Three grid lines each way with their numbers, and what is across below them."""
    parts, numbers = [], []
    for share, below, beside, anchor in zip(
        (0.0, 0.5, 1.0), across, up, ("start", "middle", "end"), strict=True
    ):
        x, y = _across(share), _up(share)
        numbers.append((y, beside))
        parts += [
            svg_line("grid", 0, y, "100%", y),
            svg_line("grid", x, 0, x, _SQUARE_HEIGHT),
            svg_text(x, _SQUARE_HEIGHT + 14, below, anchor),
        ]
    parts.append(svg_text("50%", _SQUARE_HEIGHT + 30, name, "middle"))
    chart = _svg(label, _SQUARE_HEIGHT + 36, parts, content, kind="plot")
    return _beside_scale(numbers, chart)
