"""What a study's charts are made of: a drawing, and text that may stand in one.

Only numbers and escaped text enter the markup. Colours are classes of ``charts.css``, for light and
dark.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from typing import NamedTuple

from adjudge.runs.report.charts import esc

__all__ = [
    "WIDTH",
    "Drawing",
    "in_page",
    "plain",
    "short",
    "svg_file",
    "text_at",
    "tick_text",
    "title_text",
    "told",
]

WIDTH = 520
_LONGEST = 44


class Drawing(NamedTuple):
    """A chart: the inside of an SVG that is :data:`WIDTH` wide and ``height`` high."""

    title: str
    said: str
    body: str
    height: float


def in_page(drawing: Drawing) -> str:
    """``drawing`` as a figure of a page."""
    return (
        f'<figure class="drawn"><svg role="img" aria-label="{esc(drawing.said)}" width="100%" '
        f'viewBox="0 0 {WIDTH} {drawing.height:.0f}">{drawing.body}</svg></figure>'
    )


def svg_file(title: str, drawings: Sequence[Drawing]) -> str:
    """An SVG file with ``drawings`` below each other; it follows the reader's colour scheme."""
    parts, top = [], 30.0
    for one in drawings:
        parts.append(
            f'<svg y="{top:.0f}" width="{WIDTH}" height="{one.height:.0f}">{one.body}</svg>'
        )
        top += one.height + 14
    style = resources.files(__package__ or "").joinpath("charts.css").read_text(encoding="utf-8")
    said = "; ".join(one.said for one in drawings)
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top:.0f}" role="img" '
        f'aria-label="{esc(plain(f"{title}: {said}"))}"><style>{style}</style>'
        f'<text class="head" x="0" y="16">{short(title, 70)}</text>{"".join(parts)}</svg>\n'
    )
    return svg.encode("utf-8", "replace").decode()


def title_text(text: str) -> str:
    """A chart's title."""
    return f'<text class="title" x="0" y="14">{short(text, 72)}{told(text)}</text>'


def text_at(x: float, y: float, text: str, anchor: str) -> str:
    """A label, cut where it is long."""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{short(text, 70)}</text>'


def told(text: str) -> str:
    """What a mark says in whole when it is pointed at."""
    return f"<title>{esc(plain(text))}</title>"


def short(text: str, most: int = _LONGEST) -> str:
    """``text`` cut at ``most`` characters, escaped."""
    text = plain(text)
    return esc(text if len(text) <= most else text[: most - 1] + "…")


def plain(text: str) -> str:
    """``text`` without characters that XML has no place for."""
    return "".join(c if c.isprintable() else " " for c in text)


def tick_text(value: float) -> str:
    """A round number for an axis."""
    return f"{value:.4g}".replace("-", "−")
