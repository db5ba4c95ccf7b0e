"""The report of a swap study: numbers as text, and one HTML file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from adjudge.report.charts import PlottedInterval, signed_strip
from adjudge.report.elements import Element, Fragment, bold, format_integer, format_number, small
from adjudge.report.page import Section, Tile, notes_section, render_page
from adjudge.report.table import Column, Table, numeric

PAIR_NUMBERS: Mapping[str, tuple[str, str]] = {
    "best_changes": ("best changes", "groups of which no sample is best for both"),
    "sign_flips": ("sign flips", "samples where the GRPO advantage changes its sign"),
    "within_kendall": ("τ-b within", "Kendall's, inside groups"),
    "within_spearman": ("ρ within", "Spearman's, inside groups"),
    "within_pearson": ("r within", "Pearson's, inside groups"),
    "advantage_pearson": ("r advantages", "Pearson's, of the GRPO advantages"),
    "best_differs": ("best differs", "groups with different sets of best samples, ties included"),
    "sign_differs": ("sign differs", "the sign of the advantage, 0 being a third one"),
    "kendall": ("τ-b", "Kendall's, over all samples"),
    "spearman": ("ρ", "Spearman's, over all samples"),
    "pearson": ("r", "Pearson's, over all samples"),
    "kappa": ("κ quadratic", "over all samples, where both scales are discrete"),
}
"""Each number of a pair: its heading, and what it is."""

EXPLAINED_SHARES: Mapping[str, tuple[str, str]] = {
    "length": ("length", "R² of the advantage on length"),
    "format": ("format", "R² on Markdown, lists and code together"),
    "both": ("both", "R² on length and format together"),
    "format_beyond_length": ("format beyond length", "R² on both less that on length"),
    "length_r": ("r with length", "correlation with length, with its sign"),
}
"""Each share of a judge's advantage variance: its heading, and what it is."""

_SHARE_NAMES = ("best_changes", "best_differs", "sign_flips", "sign_differs", "differs")


def format_value(name: str, found: Mapping[str, Any]) -> str:
    """An estimate's number: shares in percent."""
    number = found["value"]
    if number is None:
        return "–"
    return _format_number(name, number)


def format_interval(name: str, found: Mapping[str, Any]) -> str:
    """Its interval."""
    if found["low"] is None or found["high"] is None:
        return ""
    return f"{_format_number(name, found['low'])}…{_format_number(name, found['high'])}".replace(
        " %…", "…"
    )


def _format_number(name: str, number: float) -> str:
    if name in _SHARE_NAMES:
        return f"{100 * number:.1f} %"
    return f"{number:.3f}".replace("-", "−")


def format_missing_kinds(judge: Mapping[str, Any]) -> str:
    """What is missing of a judge, by kind."""
    return ", ".join(f"{kind} {count:,}" for kind, count in judge["missing_by_kind"].items())


def format_calls(judge: Mapping[str, Any]) -> str:
    """What it took to ask a judge."""
    calls = judge["calls"]
    if calls is None:
        return str(judge["kind"])
    said = [f"{calls['calls']:,} calls"]
    if calls["resumed_results"]:
        said.append(f"{calls['resumed_results']:,} results from before")
    if calls["cost_usd"] is not None:
        said.append(f"{calls['cost_usd']:.4f} USD")
    elif calls["result_tokens"]:
        said.append(f"{calls['result_tokens']:,} tokens")
    return ", ".join(said)


_MATRICES = ("best_changes", "sign_flips", "within_kendall")
_STRIPS = ("best_changes", "sign_flips", "within_kendall", "advantage_pearson", "kendall", "kappa")
_MAX_SHOWN_CRITERIA = 20


def render_swap_page(summary: Mapping[str, Any]) -> str:
    """The whole page of a study's summary."""
    pairs, judges = summary["pairs"], summary["judges"]
    return render_page(
        f"Judge swap: {len(judges)} judges on the same rollouts",
        _facts(summary),
        [
            Section(
                "swap",
                "What changes when the judge is swapped",
                [_matrix(name, summary) for name in _MATRICES],
                "Swap",
            ),
            Section("pairs", "Pairs of judges", map(_pair, pairs), "Pairs"),
            Section("judges", "What each judge pays for", _judge_table(judges), "Judges"),
            Section("criteria", "Criteria", _criteria(pairs), "Criteria"),
            notes_section(__package__ or "", link="How to read it"),
        ],
        tiles=_tiles(summary),
    )


def _facts(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    inputs = [f"{one['path']} ({one['shape']})" for one in summary["inputs"]]
    more = f" and {len(inputs) - 3} more" if len(inputs) > 3 else ""
    groups = summary["groups"]
    sizes = f"{groups['size_min']}–{groups['size_max']} samples, median {groups['size_median']}"
    return [
        ("Rollouts", ", ".join(inputs[:3]) + more),
        ("Groups", f"by {summary['grouped_by']}: {sizes}"),
        ("Intervals", f"95 %, bootstrap by group (from 8 groups on), seed {summary['seed']}"),
        ("When", f"{summary['created']} · adjudge {summary['adjudge']}"),
    ]


def _tiles(summary: Mapping[str, Any]) -> list[Tile]:
    judges, broken = summary["judges"], summary["broken_rows"]["count"]
    missing = sum(one["missing"] for one in judges)
    costs = [one["calls"]["cost_usd"] for one in judges if one["calls"]]
    known = [cost for cost in costs if cost is not None]
    shares = [pair["best_changes"]["value"] for pair in summary["pairs"]]
    worst = max((share for share in shares if share is not None), default=None)
    changes = "–" if worst is None else f"{100 * worst:.1f} %"
    return [
        Tile("Samples", format_integer(summary["samples"]), f"{broken:,} broken rows", broken > 0),
        Tile("Groups", format_integer(summary["groups"]["count"]), ""),
        Tile("Judges", format_integer(len(judges)), f"{len(summary['pairs'])} pairs"),
        Tile("Most changes", changes, "of groups get another best sample"),
        Tile("No answer", format_integer(missing), "of samples × judges", missing > 0),
        Tile("USD", f"{sum(known):.4f}" if known else "–", "of priced judges"),
    ]


def _matrix(name: str, summary: Mapping[str, Any]) -> Table:
    """A number for every two judges; a cell is the stronger tinted the less they agree."""
    names = [one["name"] for one in summary["judges"]]
    cells = {}
    for pair in summary["pairs"]:
        a, b = pair["judges"]
        cells[a, b] = cells[b, a] = pair[name]
    rows = [[one, *(_cell(name, cells.get((one, other))) for other in names)] for one in names]
    heading, about = PAIR_NUMBERS[name]
    return Table(["", *numeric(*names)], rows, caption=[heading, small(" ", about)])


def _cell(name: str, found: Mapping[str, Any] | None) -> Element:
    if found is None:
        return Element("td", "·", class_="n soft")
    number = found["value"]
    apart = 0.0 if number is None else number if name in _MATRICES[:2] else (1 - number) / 2
    level = min(4, int(5 * max(0.0, apart)))
    return Element("td", _estimate(name, found), class_=f"n down level{level}")


def _estimate(name: str, found: Mapping[str, Any]) -> Fragment:
    return Fragment(format_value(name, found), small(format_interval(name, found)))


def _pair(pair: Mapping[str, Any]) -> Element:
    a, b = pair["judges"]
    common = f"{pair['common']:,} of {pair['samples']:,} samples judged by both, "
    common += f"{pair['groups']:,} of {pair['all_groups']:,} groups compared, {pair['flat']:,} flat"
    rows = [
        [
            [heading, small(about)],
            format_value(name, pair[name]),
            format_interval(name, pair[name]),
            _strip(name, pair[name]) if name in _STRIPS else "",
        ]
        for name, (heading, about) in PAIR_NUMBERS.items()
    ]
    table = Table(
        ["Number", *numeric("Value", "95 %"), Column("From −1 to 1", "plot")], rows, kind="data"
    )
    named = Element("summary", bold(a), " and ", bold(b), " ", small(common))
    return Element("details", named, table, open="open")


def _strip(name: str, found: Mapping[str, Any]) -> Element | None:
    """Value and interval between −1 and 1."""
    label = f"{PAIR_NUMBERS[name][0]}: {format_value(name, found)}, {format_interval(name, found)}"
    return signed_strip(PlottedInterval(found["value"], found["low"], found["high"]), label)


def _judge_table(judges: Sequence[Mapping[str, Any]]) -> Table:
    shares = [[heading, small(about)] for heading, about in EXPLAINED_SHARES.values()]
    columns = numeric("Judged", "Mean, SD", "Flat, tied best", *shares)
    return Table(["Judge", *columns, Column("Asked", "w")], map(_judge_row, judges))


def _judge_row(one: Mapping[str, Any]) -> list[object]:
    lost = f"{one['missing']:,} missing: {format_missing_kinds(one)}"
    tied = f"{one['tied_best']:,}, of {one['compared_groups']:,} groups"
    return [
        [bold(one["name"]), small(_short_source(one["source"]))],
        [f"{one['judged']:,}", small(lost if one["missing"] else "none missing")],
        [format_number(one["mean"]), small(format_number(one["std"]))],
        [f"{one['flat_groups']:,}", small(tied)],
        *(_estimate(name, one["explained"][name]) for name in EXPLAINED_SHARES),
        [format_calls(one), small(", ".join(one["calls"]["models"]) if one["calls"] else "")],
    ]


def _short_source(paths: str) -> str:
    """Where a judge comes from, in short: the whole paths stand in ``summary.json``."""
    first, *more = paths.split(", ")
    short = "/".join(first.split("/")[-3:])
    return f"{short} and {len(more)} more" if more else short


def _criteria(pairs: Sequence[Mapping[str, Any]]) -> list[object]:
    rows = [
        [
            " and ".join(pair["judges"]),
            one["criterion"] or bold("all"),
            _estimate("differs", one["differs"]),
            f"{100 * one['met_first']:.1f} % / {100 * one['met_second']:.1f} %",
            f"{one['samples']:,}",
        ]
        for pair in pairs
        for one in pair["criteria"][: _MAX_SHOWN_CRITERIA + 1]
    ]
    if not rows:
        return [
            (
                "No two of the judges mark criteria of the same name, which is that of the grader "
                "and that of the criterion."
            )
        ]
    most = max(len(pair["criteria"]) for pair in pairs)
    more = f"The {_MAX_SHOWN_CRITERIA} worst of each two judges; summary.json has more."
    columns = ["Judges", "Criterion", *numeric("Marked differently", "Met", "Marks")]
    return [Table(columns, rows), more if most > _MAX_SHOWN_CRITERIA + 1 else ""]
