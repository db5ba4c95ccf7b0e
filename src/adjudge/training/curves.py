"""Line charts over training steps as SVG strings, without a library.

Lines live in a stretched view box, text outside it, so that a chart fits any column and its
lettering keeps its size. Colours are classes of ``report.css``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from adjudge.runs.report.charts import esc, number

__all__ = ["Line", "line_chart"]

_HEIGHT = 150
_MOST_POINTS = 600


class Line(NamedTuple):
    """A named curve: one value a step, ``None`` where there is none (a gap)."""

    name: str
    values: Sequence[float | None]


def line_chart(
    title: str,
    lines: Sequence[Line],
    steps: Sequence[int],
    *,
    low: float | None = None,
    high: float | None = None,
    marks: Sequence[int] = (),
) -> str:
    """A figure of up to three ``lines`` over ``steps``; ``marks`` are steps to point at.

    The vertical scale goes from ``low`` to ``high``, by default what the values need. Empty
    where no value is there.
    """
    present = [
        value
        for line in lines
        for value in line.values
        if value is not None and math.isfinite(value)
    ]
    if not present:
        return ""
    bottom = min(present) if low is None else low
    top = max(present) if high is None else high
    if top - bottom < 1e-9:
        top = bottom + 1.0
    scale = _Scale(steps[0], max(steps[-1], steps[0] + 1), bottom, top)
    drawn = "".join(_mark(scale, step) for step in marks)
    drawn += "".join(_polylines(scale, line, steps, place) for place, line in enumerate(lines))
    return (
        f"<figure><figcaption><b>{esc(title)}</b>{_keys(lines)}</figcaption>"
        f'<svg role="img" aria-label="{esc(_said(title, lines))}" width="100%" '
        f'height="{_HEIGHT + 18}">{_grid(bottom, top)}'
        f'<svg width="100%" height="{_HEIGHT}" viewBox="0 0 100 100" '
        f'preserveAspectRatio="none">{drawn}</svg>{_axis(steps)}</svg></figure>'
    )


class _Scale(NamedTuple):
    first: int
    last: int
    bottom: float
    top: float

    def x(self, step: int) -> float:
        return 100 * (step - self.first) / (self.last - self.first)

    def y(self, value: float) -> float:
        share = (value - self.bottom) / (self.top - self.bottom)
        return 100 * (1 - min(1.0, max(0.0, share)))


def _polylines(scale: _Scale, line: Line, steps: Sequence[int], place: int) -> str:
    """The line in pieces: it is broken where values are missing."""
    every = max(1, len(steps) // _MOST_POINTS)
    pieces: list[list[str]] = [[]]
    for index in range(0, len(steps), every):
        value = line.values[index]
        if value is None or not math.isfinite(value):
            pieces.append([])
            continue
        pieces[-1].append(f"{scale.x(steps[index]):.2f},{scale.y(value):.2f}")
    return "".join(
        f'<polyline class="s{place}" points="{" ".join(piece if len(piece) > 1 else piece * 2)}"/>'
        for piece in pieces
        if piece
    )


def _mark(scale: _Scale, step: int) -> str:
    x = scale.x(step)
    return f'<line class="mark" x1="{x:.2f}" x2="{x:.2f}" y1="0" y2="100"/>'


def _grid(bottom: float, top: float) -> str:
    parts = []
    for share in (0.0, 0.5, 1.0):
        y = _HEIGHT * (1 - share)
        text = number(bottom + share * (top - bottom), 2)
        parts.append(f'<line class="grid" x1="0" x2="100%" y1="{y:.0f}" y2="{y:.0f}"/>')
        parts.append(f'<text x="0" y="{y - 3 if share < 1 else y + 11:.0f}">{text}</text>')
    return "".join(parts)


def _axis(steps: Sequence[int]) -> str:
    y = _HEIGHT + 14
    return (
        f'<text x="0" y="{y}">step {steps[0]}</text>'
        f'<text x="100%" y="{y}" text-anchor="end">{steps[-1]}</text>'
    )


def _keys(lines: Sequence[Line]) -> str:
    if len(lines) < 2:
        return ""
    return "".join(
        f'<span><svg class="key" viewBox="0 0 22 8" aria-hidden="true"><polyline class="s{place}" '
        f'points="0,4 22,4"/></svg>{esc(line.name)}</span>'
        for place, line in enumerate(lines)
    )


def _said(title: str, lines: Sequence[Line]) -> str:
    """The chart in words: where each line starts and ends."""
    ends = []
    for line in lines:
        present = [value for value in line.values if value is not None]
        if present:
            ends.append(f"{line.name} from {number(present[0])} to {number(present[-1])}")
    return f"{title}: {'; '.join(ends)}"
