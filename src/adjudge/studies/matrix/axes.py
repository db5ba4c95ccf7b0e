"""The axes of a study's charts: from values and named levels to places."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from adjudge.studies.matrix.drawing import short, tick_text, told

__all__ = ["LEFT", "RIGHT", "Across", "Level", "Scale"]

LEFT, RIGHT = 52.0, 506.0

Level = str | float


class Scale(NamedTuple):
    """From values to places: ``low`` at ``start``, ``high`` at ``end``."""

    low: float
    high: float
    start: float
    end: float

    @classmethod
    def over(cls, values: Sequence[float], start: float, end: float) -> Scale:
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


class Across:
    """The horizontal axis: numbers, or levels by name."""

    def __init__(self, found: Sequence[Level], *, joined: bool) -> None:
        self.levels = sorted({x for x in found if isinstance(x, str)})
        numbers = sorted({x for x in found if not isinstance(x, str) and math.isfinite(x)})
        if self.levels or not numbers:
            self.levels = list(dict.fromkeys(str(x) for x in found))
            numbers = [0.0, max(1.0, len(self.levels) - 1.0)]
        self.log = not (self.levels or joined) and numbers[0] > 0 and numbers[-1] >= 8 * numbers[0]
        self.own = [] if self.levels or joined or len(numbers) > 8 else numbers
        self.scale = Scale.over([self._placed(x) for x in numbers], LEFT, RIGHT)

    def _placed(self, x: float) -> float:
        return math.log(x) if self.log else x

    def at(self, x: Level) -> float:
        """The place of a number or of a level."""
        if self.levels:
            return self.scale.at(float(self.levels.index(str(x))))
        return self.scale.at(self._placed(float(x)))

    def grid(self, top: float, bottom: float) -> str:
        """Lines up and down, with their numbers or levels below."""
        ticks: Sequence[Level] = self.levels or self.own or self.scale.ticks()
        longest = max(6, 66 // max(1, len(ticks)))
        parts = []
        for one in ticks:
            x = self.at(one)
            name = one if isinstance(one, str) else tick_text(one)
            parts.append(
                f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{top:.1f}" y2="{bottom:.1f}"/>'
                f'<text x="{x:.1f}" y="{bottom + 15:.1f}" text-anchor="middle">'
                f"{short(name, longest)}{told(name)}</text>"
            )
        return "".join(parts)
