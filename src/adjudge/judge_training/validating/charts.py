"""Charts of a validation as SVG strings: a score's interval, and a reliability diagram."""

from __future__ import annotations

from collections.abc import Sequence

from adjudge.runs.report.charts import esc, integer, number

__all__ = ["interval_strip", "reliability"]

_HEIGHT = 220
_INSET = 4.0
_TOP = 10


def interval_strip(value: float | None, low: float | None, high: float | None, label: str) -> str:
    """A score on a strip from 0 to 1 with its interval, where there is one."""
    parts = [
        f'<line class="grid" x1="{_across(x)}" x2="{_across(x)}" y1="0" y2="22"/>'
        for x in (0.0, 0.25, 0.5, 0.75, 1.0)
    ]
    if value is not None:
        if low is not None and high is not None:
            ends = f'x1="{_across(low)}" x2="{_across(high)}"'
            parts.append(f'<line class="interval within" {ends} y1="11" y2="11"/>')
        parts.append(f'<circle class="dot within" cx="{_across(value)}" cy="11" r="4.5"/>')
    return (
        f'<svg role="img" aria-label="{esc(label)}" width="100%" height="22">{"".join(parts)}</svg>'
    )


def reliability(title: str, bins: Sequence[Sequence[float]]) -> str:
    """How often a judge is right (up) where it is so sure (across, 0.5 to 1); empty without bins.

    ``bins``: pairs, mean confidence, accuracy. A calibrated judge lies on the diagonal; larger
    marks stand for more pairs.
    """
    if not bins:
        return ""
    most = max(count for count, _, _ in bins)
    marks = "".join(_mark(count, sure, right, most) for count, sure, right in bins)
    diagonal = (
        f'<line class="chance" x1="{_sure(0.5)}" x2="{_sure(1.0)}" y1="{_up(0.5)}" '
        f'y2="{_up(1.0)}"/>'
    )
    said = f"{title}: accuracy by confidence, {integer(sum(one[0] for one in bins))} pairs"
    return (
        f"<figure><figcaption><b>{esc(title)}</b></figcaption>"
        f'<svg role="img" aria-label="{esc(said)}" width="100%" height="{_HEIGHT + 36}">'
        f"{_grid()}{diagonal}{marks}</svg></figure>"
    )


def _mark(count: float, sure: float, right: float, most: float) -> str:
    radius = 3.5 + 5.5 * (count / most) ** 0.5
    told = f"{integer(count)} pairs: confidence {number(sure)}, right {number(right)}"
    return (
        f'<circle class="mark" cx="{_sure(sure)}" cy="{_up(right)}" r="{radius:.1f}">'
        f"<title>{esc(told)}</title></circle>"
    )


def _grid() -> str:
    parts = []
    for share in (0.0, 0.5, 1.0):
        parts.append(f'<line class="grid" x1="0" x2="100%" y1="{_up(share)}" y2="{_up(share)}"/>')
        parts.append(f'<text x="0" y="{float(_up(share)) - 3:.0f}">{share:g}</text>')
    for sure, anchor in ((0.5, "start"), (0.75, "middle"), (1.0, "end")):
        parts.append(
            f'<text x="{_sure(sure)}" y="{_HEIGHT + 14}" text-anchor="{anchor}">{sure:g}</text>'
        )
    parts.append(
        f'<text x="50%" y="{_HEIGHT + 30}" text-anchor="middle">confidence (across), right (up)'
        "</text>"
    )
    return "".join(parts)


def _across(value: float) -> str:
    inside = min(1.0, max(0.0, value))
    return f"{_INSET + (100 - 2 * _INSET) * inside:.2f}%"


def _sure(value: float) -> str:
    return _across((value - 0.5) * 2)


def _up(value: float) -> str:
    return f"{_TOP + (_HEIGHT - 2 * _TOP) * (1 - value):.1f}"
