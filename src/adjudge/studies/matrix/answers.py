"""What a study came to, plan by plan, in a line each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

from adjudge.studies.matrix.cells import (
    CellView,
    cell_name,
    cells_of,
    estimate_text,
    plan_cells,
)

__all__ = ["answer", "question_text"]

Found = Mapping[str, Any]

_MOST = 3
_MOST_ENDS = 8
_QUESTIONS = {
    "bias": "What does the judge's {x} do to what is really wanted?",
    "size": "How does the judge's {x} change the gap between proxy and gold?",
    "ensemble": "Does another judge, or several, give more of what is really wanted?",
    "failure": "What do judge calls that fail do to the policy?",
    "other": "How do these judges differ in what they bring about?",
}
_OUTCOMES = {"gold": "gold gain", "loss": "gold loss", "gap": "proxy-gold gap"}


def question_text(plan: Found) -> str:
    """What a plan asks."""
    return _QUESTIONS.get(plan["question"], _QUESTIONS["other"]).format(x=plan["x"] or "bias")


def answer(plan: Found, summary: Found) -> str:
    """A plan's answer with its intervals; what is not known is said so."""
    cells = plan_cells(plan, cells_of(summary))
    if not cells:
        return "Nothing: no arm of it ended."
    outcome = {"bias": "gold", "size": "gap"}.get(plan["question"])
    placed = [cell for cell in cells if cell.x is not None]
    if outcome is None or len({cell.x for cell in placed}) < 2:
        return _compared(plan["comparisons"], cells)
    text = f"{_ends(placed, outcome, plan['x'])}{_slopes(plan, outcome)}"
    return text[:1].upper() + text[1:]


def _ends(cells: Sequence[CellView], outcome: str, axis: str) -> str:
    """The outcome at both ends of the axis, of the cells without mitigation where there are any.

    Of three cells or fewer, and on an axis of names, at all places.
    """
    plain = [cell for cell in cells if cell.mitigation == "none"] or list(cells)
    numbers = [cell for cell in plain if not isinstance(cell.x, str)] or plain
    ordered = sorted(numbers, key=lambda cell: (isinstance(cell.x, str), cell.x))
    shown = ordered if len(ordered) <= _MOST else _outer(ordered)
    said = ", ".join(
        f"{estimate_text(cell.gap['end'][outcome])} at {axis} {_place(cell)}"
        for cell in shown[:_MOST_ENDS]
    )
    left = len(shown) - _MOST_ENDS
    more = f" ({left} more below)" if left > 0 else ""
    return f"{_OUTCOMES[outcome]} in SDs: {said}{more}."


def _outer(ordered: Sequence[CellView]) -> Sequence[CellView]:
    """All cells at both ends, in turn: one of each could differ in more than the axis.

    Names have no ends: all of them.
    """
    ends = ordered[0].x, ordered[-1].x
    if isinstance(ends[1], str):
        return ordered
    low, high = ([cell for cell in ordered if cell.x == end] for end in ends)
    return [cell for pair in zip_longest(low, high) for cell in pair if cell is not None]


def _place(cell: CellView) -> str:
    x = cell.x if isinstance(cell.x, str) else f"{cell.x:g}"
    return f"{x} ({cell.name})"


def _slopes(plan: Found, outcome: str) -> str:
    """Change of the outcome a unit of the axis."""
    found = [one for one in plan["trends"] if one["outcome"] == outcome]
    return "".join(
        f" A unit of {plan['x']} changes it by {estimate_text(one['slope'])}"
        + ("." if one["mitigation"] == "none" else f" with {one['mitigation']}.")
        for one in found
    )


def _compared(comparisons: Sequence[Found], cells: Sequence[CellView]) -> str:
    """Each cell against the plan's first, by gold at the end."""
    first = (cells[0].judge, cells[0].mitigation)
    pairs = [one for one in comparisons if tuple(one["b"]) == first]
    if not pairs:
        said = estimate_text(cells[0].gap["end"]["gold"])
        return f"Gold gain of {cells[0].name}, in SDs: {said}. There is nothing to compare it with."
    said = "; ".join(f"{cell_name(*one['a'])} {estimate_text(one['t'])}" for one in pairs[:_MOST])
    more = f" ({len(pairs) - _MOST} more below)" if len(pairs) > _MOST else ""
    return f"Gold at the end, less that of {cells[0].name} (as scores): {said}{more}."
