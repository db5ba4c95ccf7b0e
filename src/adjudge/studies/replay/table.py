"""What a replay comes to: by recorded judge and source, and by item over its repeats."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import Any

import msgspec

from adjudge.studies.replay.dump import Dumped
from adjudge.studies.replay.parsing import Parsed

__all__ = ["Line", "arms", "ranges"]

_SAME = 1e-9


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """A dumped prompt with what was read: a verdict for each draw."""

    dumped: Dumped
    form: str
    verdicts: list[Parsed]

    @property
    def scores(self) -> list[float]:
        """Those that could be read."""
        return [one.score for one in self.verdicts if one.score is not None]

    @property
    def score(self) -> float | None:
        """Their mean; ``None`` where none could be read."""
        return fmean(self.scores) if self.scores else None

    @property
    def changed(self) -> bool | None:
        """Whether it differs from the recorded score; ``None`` where there are not both."""
        if self.score is None or self.dumped.recorded is None:
            return None
        return abs(self.score - self.dumped.recorded) > _SAME


def arms(lines: Iterable[Line]) -> list[dict[str, Any]]:
    """By the dump's judge and source: how many were read, of what kind the others are, and means.

    ``recorded`` and ``score`` are means over ``common``, the rows that have both; all means are
    ``None`` of nothing, and what could not be read is in none.
    """
    by_arm: dict[tuple[str, str], list[Line]] = defaultdict(list)
    for line in lines:
        by_arm[line.dumped.judge, line.dumped.source].append(line)
    return [
        {"judge": judge, "source": source, **_arm(own)} for (judge, source), own in by_arm.items()
    ]


def _arm(lines: Sequence[Line]) -> dict[str, Any]:
    verdicts = [one for line in lines for one in line.verdicts]
    common = [line for line in lines if line.changed is not None]
    return {
        "rows": len(lines),
        "verdicts": len(verdicts),
        "parsed": sum(one.score is not None for one in verdicts),
        "how": dict(Counter(one.how for one in verdicts if one.how)),
        "unparsable": dict(Counter(one.kind for one in verdicts if one.kind)),
        "mean_recorded": _mean([line.dumped.recorded for line in lines]),
        "mean_score": _mean([line.score for line in lines]),
        "common": {
            "rows": len(common),
            "recorded": _mean([line.dumped.recorded for line in common]),
            "score": _mean([line.score for line in common]),
            "changed": sum(line.changed is True for line in common),
        },
    }


def _mean(values: Iterable[float | None]) -> float | None:
    found = [value for value in values if value is not None]
    return fmean(found) if found else None


def ranges(lines: Iterable[Line], *, by_prompt: bool) -> list[dict[str, Any]]:
    """How far the scores of one item lie apart, by source: mean and largest range.

    An item's scores are those of its rows; with ``by_prompt`` each prompt counts once, since rows
    with the same prompt share its replies. Items with one score only have no range.
    """
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for line in lines:
        one = line.dumped
        own = found[one.source]
        if not by_prompt:
            own[one.item] += line.scores
        else:
            own.setdefault(f"{one.item} {one.sha[:8]}", line.scores)
    return [_ranges(source, items) for source, items in found.items()]


def _ranges(source: str, items: dict[str, list[float]]) -> dict[str, Any]:
    spans = {name: max(own) - min(own) for name, own in items.items() if len(own) > 1}
    widest = max(spans, key=lambda name: spans[name], default=None)
    return {
        "source": source,
        "items": len(items),
        "repeated": len(spans),
        "mean": _mean(spans.values()),
        "largest": None if widest is None else spans[widest],
        "item": widest,
        "by_item": spans,
    }
