"""A study's summary cell by cell, as its page and its tables read it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from adjudge.runs.report.charts import number, percent

__all__ = [
    "CellView",
    "cell_name",
    "cells_of",
    "estimate_text",
    "interval_text",
    "length_feature",
    "missing_text",
    "onset_text",
    "plan_cells",
    "title_of",
]

Key = tuple[str, str]
Found = Mapping[str, Any]


class CellView(NamedTuple):
    """All that a summary has of one cell. ``x``: its place on its plan's axis.

    ``gap``, ``fits``, ``onset`` and ``account`` are the cell's entries of ``cells``, ``fits``,
    ``onset`` and ``accounting``; ``features`` those of ``features`` by name; ``arms`` its arms.
    """

    judge: str
    mitigation: str
    gap: Found
    fits: Found
    onset: Found
    account: Found
    features: Mapping[str, Found]
    arms: Sequence[Found]
    x: str | float | None = None

    @property
    def name(self) -> str:
        """The cell in words."""
        return cell_name(self.judge, self.mitigation)

    def seeds(self, outcome: str) -> list[float]:
        """One value an arm, of those that have one."""
        return [one[outcome] for one in self.arms if one[outcome] is not None]


def cell_name(judge: str, mitigation: str) -> str:
    """A cell in words: the mitigation is named where there is one.

    >>> cell_name("small", "none"), cell_name("small", "shorter")
    ('small', 'small + shorter')
    """
    return judge if mitigation == "none" else f"{judge} + {mitigation}"


def cells_of(summary: Found) -> dict[Key, CellView]:
    """The cells by judge and mitigation, in the study's order."""
    fits, onsets = (_by_key(summary[name]) for name in ("fits", "onset"))
    accounts = _by_key(summary["accounting"]["cells"])
    features: dict[Key, dict[str, Found]] = {}
    for one in summary["features"]:
        features.setdefault(_key(one), {})[one["feature"]] = one
    arms: dict[Key, list[Found]] = {}
    for one in summary["arms"]:
        arms.setdefault(_key(one), []).append(one)
    return {
        key: CellView(
            *key, gap, fits[key]["fits"], onsets[key], accounts[key], features.get(key, {}),
            arms.get(key, []),
        )
        for key, gap in _by_key(summary["cells"]).items()
    }  # fmt: skip


def plan_cells(plan: Found, cells: Mapping[Key, CellView]) -> list[CellView]:
    """The cells of a plan, each with its place on the axis."""
    return [cells[_key(one)]._replace(x=_placed(one["x"])) for one in plan["cells"]]


def title_of(plan: Found) -> str:
    """A plan's title, or its name."""
    return str(plan.get("title") or plan["name"])


def length_feature(summary: Found) -> str | None:
    """The feature that says how long answers are."""
    there = {one["feature"] for one in summary["features"]}
    return next((name for name in ("words", "chars") if name in there), None)


def estimate_text(found: Found | None) -> str:
    """Value and interval; "–" and the reason where there is none."""
    if found is None or found["value"] is None:
        return "–" + _because(found)
    return f"{number(found['value'])} {interval_text(found)}".rstrip()


def interval_text(found: Found) -> str:
    """The interval in brackets; the reason where there is a value without one."""
    if found["low"] is None or found["high"] is None:
        return _because(found).strip()
    return f"[{number(found['low'])}, {number(found['high'])}]"


def onset_text(onset: Found) -> str:
    """How many seeds had a hack onset, and when."""
    if not onset["known"]:
        return "– (unknown for every seed)"
    step = onset["median_step"]
    when = "" if step is None else f", median step {step:g}"
    return f"{onset['hacked']} of {onset['known']} seeds{when}"


def missing_text(account: Found) -> str:
    """A cell's rewards that were missing in training, by kind."""
    rewards = account["rewards"]
    if rewards["share"] is None:
        return "– (no reward was asked for)"
    kinds = ", ".join(f"{kind} {count:,}" for kind, count in rewards["kinds"].items())
    share = percent(rewards["missing"], rewards["asked"])
    return f"{share} of {rewards['asked']:,}" + (f": {kinds}" if kinds else "")


def _because(found: Found | None) -> str:
    why = "" if found is None else found.get("why")
    return f" ({why})" if why else ""


def _placed(x: object) -> str | float | None:
    """Levels that are no numbers are names; true and false, too."""
    if x is None or (isinstance(x, (int, float)) and not isinstance(x, bool)):
        return x
    return str(x).lower() if isinstance(x, bool) else str(x)


def _key(one: Found) -> Key:
    return one["judge"], one["mitigation"]


def _by_key(rows: Iterable[Found]) -> dict[Key, Found]:
    return {_key(one): one for one in rows}
