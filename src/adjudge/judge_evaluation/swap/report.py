"""The page of a swap study, with the tables that the terminal shows, too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from adjudge.report.elements import (
    Element,
    bold,
    format_integer,
    format_number,
    format_range,
    small,
)
from adjudge.report.page import Section, Tile, notes_section, render_page
from adjudge.report.table import Column, Table, lost, numeric

_PAIR_NUMBERS: Mapping[str, tuple[str, str]] = {
    "best_changes": ("best changes", "share of groups of which no sample is best for both"),
    "sign_flips": ("sign flips", "share of samples of which the advantage changes its sign"),
    "within_kendall": ("τ-b within", "Kendall's, inside groups"),
    "kendall": ("τ-b", "Kendall's, over all samples"),
}
"""Each number of a pair: its heading, and what it is."""

_MAX_CRITERIA = 20


def pair_table(pairs: Sequence[Mapping[str, Any]]) -> Table:
    """What changes from one judge to another."""
    columns: list[object] = ["judges"]
    for heading, _ in _PAIR_NUMBERS.values():
        columns += [*numeric(heading), Column("95 %", "i")]
    rows = []
    for pair in pairs:
        page = f"pairs/{'-'.join(pair['judges'])}.html"
        cells: list[object] = [Element("a", " and ".join(pair["judges"]), href=page)]
        for name in _PAIR_NUMBERS:
            one = pair["advantages"][name]
            ends = format_range(one["low"], one["high"], one["why"])
            cells += [format_number(one["value"]), ends]
        rows.append([*cells, format_integer(pair["advantages"]["common"])])
    about = "; ".join(": ".join(said) for said in _PAIR_NUMBERS.values())
    return Table([*columns, *numeric("common")], rows, caption=small(about), drop=("common",))


def judge_table(judges: Sequence[Mapping[str, Any]]) -> Table:
    """What each judge says, and what it costs."""
    columns = [
        "judge", *numeric("judged"), Column("missing", "w"), *numeric("mean", "SD", "flat groups"),
        *numeric("calls", "USD"),
    ]  # fmt: skip
    rows = []
    for one in judges:
        kinds = ", ".join(f"{kind} {count:,}" for kind, count in one["missing"].items())
        flat = f"{one['flat_groups']:,} of {one['compared_groups']:,}"
        calls = "–" if one["calls"] is None else format_integer(one["calls"])
        rows.append(
            [
                one["name"],
                format_integer(one["judged"]),
                lost(kinds) if kinds else "0",
                *map(format_number, (one["mean"], one["std"])),
                flat,
                calls,
                format_number(one["cost_usd"], 4),
            ]
        )
    return Table(columns, rows, keep=("mean", "missing"))


def _criteria_table(pairs: Sequence[Mapping[str, Any]]) -> Table:
    """Criteria that two judges mark differently, the worst first."""
    rows = []
    for pair in pairs:
        for one in pair["criteria"][: _MAX_CRITERIA + 1]:
            differs = one["differs"]
            rows.append(
                [
                    " and ".join(pair["judges"]),
                    one["criterion"] or bold("all"),
                    format_number(differs["value"]),
                    format_range(differs["low"], differs["high"], differs["why"]),
                    f"{format_number(one['met_first'])} / {format_number(one['met_second'])}",
                    format_integer(one["samples"]),
                ]
            )
    columns = ["judges", Column("criterion", "w"), *numeric("marked differently"),
               Column("95 %", "i"), *numeric("met", "marks")]  # fmt: skip
    return Table(columns, rows)


def render_swap_page(summary: Mapping[str, Any]) -> str:
    """The whole page of a study's summary."""
    pairs, judges = summary["pairs"], summary["judges"]
    shares = [pair["advantages"]["best_changes"]["value"] for pair in pairs]
    most = max((share for share in shares if share is not None), default=None)
    missing = sum(sum(one["missing"].values()) for one in judges)
    return render_page(
        f"Judge swap: {len(judges)} judges on the same rollouts",
        [
            ("Rollouts", summary["rollouts"]),
            ("Intervals", f"95 %, by group (from 8 groups on), seed {summary['seed']}"),
            ("When", f"{summary['created']} · adjudge {summary['adjudge']}"),
        ],
        [
            Section("swap", "What changes when the judge is swapped", [pair_table(pairs)], "Swap"),
            Section("judges", "Judges", [judge_table(judges)], "Judges"),
            Section("criteria", "Criteria", [_criteria_table(pairs)], "Criteria"),
            notes_section(__package__ or "", link="How to read it"),
        ],
        tiles=[
            Tile("Samples", format_integer(judges[0]["samples"]), ""),
            Tile("Judges", format_integer(len(judges)), f"{len(pairs)} pairs"),
            Tile("Most changes", format_number(most), "of groups get another best sample"),
            Tile("No answer", format_integer(missing), "of samples × judges", missing > 0),
        ],
    )
