"""Small SVG charts as strings, without a library.

Horizontal positions are percentages and heights are pixels, so a chart stretches with its
column while its text and marks keep their size. Colours are classes of ``page.css``. Only
numbers and text escaped by :func:`esc` enter the markup.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from typing import NamedTuple

from adjudge.runs.stats import Histogram

__all__ = [
    "ForestDot",
    "bar_chart",
    "escape_html",
    "forest_axis",
    "forest_strip",
    "format_integer",
    "format_number",
    "format_percent",
    "histogram_chart",
    "mirrored_chart",
]

PLOT_HEIGHT = 84
"""Height of a histogram's plot, px."""

_INSET = 2.0
"""Percent left free at both ends of a forest strip, so that marks at 0 and 1 are whole."""


def escape_html(text: object) -> str:
    """``text`` for HTML content and quoted attributes."""
    return html.escape(str(text))


def format_integer(value: float) -> str:
    """A whole number with thousands separators."""
    return f"{round(value):,}"


def format_number(value: float | None, digits: int = 3) -> str:
    """A number for reading: ``digits`` decimals, fewer for large ones; "–" for none."""
    if value is None or not math.isfinite(value):
        return "–"
    if abs(value) >= 1000:
        return f"{value:,.0f}".replace("-", "−")
    text = f"{value:.{1 if abs(value) >= 100 else digits}f}"
    if float(text) == 0 and value != 0:
        text = f"{value:.1e}"
    return text.replace("-", "−")


def format_percent(part: float, whole: float = 1.0) -> str:
    """``part`` of ``whole`` with a unit; "–" of nothing. Never rounds something to 0 % or 100 %."""
    if not whole:
        return "–"
    share = 100 * part / whole
    if 0 < share < 0.1:
        return "< 0.1\u202f%"
    if 99.9 < share < 100:
        return "> 99.9\u202f%"
    digits = 0 if share in (0, 100) else 1
    return f"{share:.{digits}f}\u202f%"


def bar_chart(share: float, label: str, *, track: bool = True) -> str:
    """A horizontal bar over ``share`` in [0, 1] of its cell; the ``track`` shows the whole."""
    width = 100 * min(1.0, max(0.0, share))
    rest = '<rect class="track" width="100%" height="10"/>' if track else ""
    return (
        f'<svg class="bar" role="img" aria-label="{escape_html(label)}" width="100%" height="10">'
        f'{rest}<rect class="fill" width="{width:.2f}%" height="10"/></svg>'
    )


class ForestDot(NamedTuple):
    """One estimate of a forest plot: in [0, 1], with its interval where there is one."""

    value: float | None
    low: float | None
    high: float | None
    kind: str


def _x_position(value: float) -> str:
    return f"{_INSET + (100 - 2 * _INSET) * value:.2f}%"


def forest_strip(dots: Sequence[ForestDot], label: str) -> str:
    """Dots with intervals on a 0-to-1 strip, one line each; ``kind`` is their class."""
    height = 16 * len(dots) + 8
    parts = [
        f'<line class="{"chance" if x == 0.5 else "grid"}" '
        f'x1="{_x_position(x)}" x2="{_x_position(x)}" y1="0" y2="{height}"/>'
        for x in (0.0, 0.25, 0.5, 0.75, 1.0)
    ]
    for line, dot in enumerate(dots):
        if dot.value is None:
            continue
        y = 12 + 16 * line
        if dot.low is not None and dot.high is not None:
            parts.append(
                f'<line class="interval {dot.kind}" '
                f'x1="{_x_position(dot.low)}" x2="{_x_position(dot.high)}" y1="{y}" y2="{y}"/>'
            )
        parts.append(
            f'<circle class="dot {dot.kind}" cx="{_x_position(dot.value)}" cy="{y}" r="4.5"/>'
        )
    return (
        f'<svg class="strip" role="img" aria-label="{escape_html(label)}" '
        f'width="100%" height="{height}">'
        f"{''.join(parts)}</svg>"
    )


def forest_axis() -> str:
    """The scale above the strips."""
    marks = ((0.0, "0", "start"), (0.5, "0.5 chance", "middle"), (1.0, "1", "end"))
    labels = "".join(
        f'<text x="{_x_position(x)}" y="12" text-anchor="{anchor}">{text}</text>'
        for x, text, anchor in marks
    )
    return f'<svg class="axis" aria-hidden="true" width="100%" height="16">{labels}</svg>'


def histogram_chart(hist: Histogram, label: str) -> str:
    """Counts as bars."""
    tallest = max(hist.counts) or 1
    base = PLOT_HEIGHT + 15
    parts = [
        _histogram_bar(hist, i, count / tallest * PLOT_HEIGHT, "one", base, up=True)
        for i, count in enumerate(hist.counts)
    ]
    parts.append(f'<text x="100%" y="9" text-anchor="end">peak {format_integer(tallest)}</text>')
    return _frame(parts, hist, base, label)


def mirrored_chart(up: Histogram, down: Histogram, names: tuple[str, str], label: str) -> str:
    """Two histograms over the same bins, back to back, each as shares of its own total."""
    totals = (sum(up.counts) or 1, sum(down.counts) or 1)
    tallest = max(max(up.counts) / totals[0], max(down.counts) / totals[1]) or 1.0
    plot = 2 * PLOT_HEIGHT // 3
    base = plot + 16
    parts = []
    for i in range(len(up.counts)):
        height = up.counts[i] / totals[0] / tallest * plot
        parts.append(_histogram_bar(up, i, height, "one", base, up=True))
        height = down.counts[i] / totals[1] / tallest * plot
        parts.append(_histogram_bar(down, i, height, "two", base, up=False))
    parts.append(f'<text class="one" x="0" y="9">{escape_html(names[0])} ↑</text>')
    parts.append(
        f'<text class="two" x="100%" y="9" text-anchor="end">{escape_html(names[1])} ↓</text>'
    )
    parts.append(f'<line class="base" x1="0" x2="100%" y1="{base}" y2="{base}"/>')
    return _frame(parts, up, base + plot, label)


def _histogram_bar(
    hist: Histogram, i: int, height: float, kind: str, base: int, *, up: bool
) -> str:
    if not hist.counts[i]:
        return ""
    edges = hist.bins.edges
    start, end = edges[i], edges[i + 1]
    span = edges[-1] - edges[0]
    x, width = 100 * (start - edges[0]) / span, 100 * (end - start) / span
    height = max(1.5, height)
    where = (
        format_number((start + end) / 2)
        if hist.bins.half is not None
        else f"{format_number(start)} to {format_number(end)}"
    )
    return (
        f'<rect class="{kind}" x="{x + width / 20:.2f}%" width="{width * 0.9:.2f}%" '
        f'y="{base - height if up else base:.1f}" height="{height:.1f}">'
        f"<title>{where}: {format_integer(hist.counts[i])}</title></rect>"
    )


def _frame(parts: Sequence[str], hist: Histogram, base: int, label: str) -> str:
    low, high = hist.bins.edges[0], hist.bins.edges[-1]
    if hist.bins.half is not None:
        low, high = low + hist.bins.half, high - hist.bins.half
    ticks = ((0, low, "start"), (50, (low + high) / 2, "middle"), (100, high, "end"))
    labels = "".join(
        f'<text x="{x}%" y="{base + 14}" text-anchor="{anchor}">{format_number(value)}</text>'
        for x, value, anchor in ticks
    )
    return (
        f'<svg class="hist" role="img" aria-label="{escape_html(label)}" '
        f'width="100%" height="{base + 16}">'
        f'{"".join(parts)}<line class="base" x1="0" x2="100%" y1="{base}" y2="{base}"/>'
        f"{labels}</svg>"
    )
