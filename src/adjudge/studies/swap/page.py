"""The study as one HTML file: no script, no network.

Everything that is not ours (names of judges, files, criteria) is escaped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from adjudge.runs.report.charts import esc, integer, number
from adjudge.runs.report.frame import Section, Tile, framed, how_to_read, tiles
from adjudge.studies.swap.words import (
    PAIR_NUMBERS,
    SHARES,
    calls_line,
    interval,
    missing_line,
    notes,
    value,
)

__all__ = ["page"]

_MATRICES = ("best_changes", "sign_flips", "within_kendall")
_STRIPS = ("best_changes", "sign_flips", "within_kendall", "advantage_pearson", "kendall", "kappa")
_MOST_CRITERIA = 20


def page(summary: Mapping[str, Any]) -> str:
    """The whole page of a study's summary."""
    return framed(
        f"Judge swap: {len(summary['judges'])} judges on the same rollouts",
        _facts(summary),
        [
            _tiles(summary),
            Section(
                "swap",
                "What changes when the judge is swapped",
                "".join(_matrix(name, summary) for name in _MATRICES),
                "Swap",
            ),
            Section("pairs", "Pairs of judges", _pairs(summary["pairs"]), "Pairs"),
            Section("judges", "What each judge pays for", _judges(summary["judges"]), "Judges"),
            Section("criteria", "Criteria", _criteria(summary["pairs"]), "Criteria"),
            how_to_read("".join(f"<p>{esc(text)}</p>" for text in notes()), "How to read it"),
        ],
        styles=[(__package__ or "", "page.css")],
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


def _tiles(summary: Mapping[str, Any]) -> str:
    judges, broken = summary["judges"], summary["broken_rows"]["count"]
    missing = sum(one["missing"] for one in judges)
    costs = [one["calls"]["cost_usd"] for one in judges if one["calls"]]
    known = [cost for cost in costs if cost is not None]
    shares = [pair["best_changes"]["value"] for pair in summary["pairs"]]
    worst = max((share for share in shares if share is not None), default=None)
    changes = "–" if worst is None else f"{100 * worst:.1f} %"
    found = (
        Tile("Samples", integer(summary["samples"]), f"{broken:,} broken rows", broken > 0),
        Tile("Groups", integer(summary["groups"]["count"]), ""),
        Tile("Judges", integer(len(judges)), f"{len(summary['pairs'])} pairs"),
        Tile("Most changes", changes, "of groups get another best sample"),
        Tile("No answer", integer(missing), "of samples × judges", missing > 0),
        Tile("USD", f"{sum(known):.4f}" if known else "–", "of priced judges"),
    )
    return tiles(found)


def _matrix(name: str, summary: Mapping[str, Any]) -> str:
    """A number for every two judges; a cell is the stronger tinted the less they agree."""
    names = [one["name"] for one in summary["judges"]]
    cells = {}
    for pair in summary["pairs"]:
        a, b = pair["judges"]
        cells[a, b] = cells[b, a] = pair[name]
    head = "".join(f'<th scope="col" class="n">{esc(one)}</th>' for one in names)
    rows = "".join(
        f'<tr><th scope="row">{esc(one)}</th>'
        + "".join(_cell(name, cells.get((one, other))) for other in names)
        + "</tr>"
        for one in names
    )
    heading, about = PAIR_NUMBERS[name]
    return (
        f'<div class="scroll"><table class="matrix"><caption><b>{esc(heading)}</b> '
        f"<small>{esc(about)}</small></caption><thead><tr><th></th>{head}</tr></thead>"
        f"<tbody>{rows}</tbody></table></div>"
    )


def _cell(name: str, found: Mapping[str, Any] | None) -> str:
    if found is None:
        return '<td class="n own">·</td>'
    number = found["value"]
    apart = 0.0 if number is None else number if name in _MATRICES[:2] else (1 - number) / 2
    level = min(4, int(5 * max(0.0, apart)))
    return (
        f'<td class="n level{level}">{esc(value(name, found))}'
        f"<small>{esc(interval(name, found))}</small></td>"
    )


def _pairs(pairs: Sequence[Mapping[str, Any]]) -> str:
    return "".join(_pair(one) for one in pairs)


def _pair(pair: Mapping[str, Any]) -> str:
    a, b = (esc(name) for name in pair["judges"])
    rows = "".join(
        f'<tr><th scope="row">{esc(heading)} <small>{esc(about)}</small></th>'
        f'<td class="n">{esc(value(name, pair[name]))}</td>'
        f'<td class="n">{esc(interval(name, pair[name]))}</td>'
        f'<td class="plot">{_strip(name, pair[name]) if name in _STRIPS else ""}</td></tr>'
        for name, (heading, about) in PAIR_NUMBERS.items()
    )
    common = f"{pair['common']:,} of {pair['samples']:,} samples judged by both, "
    common += f"{pair['groups']:,} of {pair['all_groups']:,} groups compared, {pair['flat']:,} flat"
    return (
        f"<details open><summary><b>{a}</b> and <b>{b}</b> <small>{esc(common)}</small></summary>"
        '<div class="scroll"><table class="bars"><thead><tr><th scope="col">Number</th>'
        '<th scope="col" class="n">Value</th><th scope="col" class="n">95 %</th>'
        '<th scope="col" class="plot">From −1 to 1</th></tr></thead>'
        f"<tbody>{rows}</tbody></table></div></details>"
    )


def _strip(name: str, found: Mapping[str, Any]) -> str:
    """Value and interval between −1 and 1."""
    if found["value"] is None or found["low"] is None or found["high"] is None:
        return ""
    label = f"{PAIR_NUMBERS[name][0]}: {value(name, found)}, {interval(name, found)}"
    return (
        f'<svg class="strip" role="img" aria-label="{esc(label)}" width="100%" height="18">'
        '<line class="chance" x1="50%" x2="50%" y1="0" y2="18"/>'
        f'<line class="interval within" x1="{_at(found["low"])}" x2="{_at(found["high"])}" '
        f'y1="9" y2="9"/><circle class="dot within" cx="{_at(found["value"])}" cy="9" r="4"/></svg>'
    )


def _at(place: float) -> str:
    return f"{50 + 48 * min(1.0, max(-1.0, place)):.2f}%"


def _judges(judges: Sequence[Mapping[str, Any]]) -> str:
    head = "".join(
        f'<th scope="col" class="n">{esc(heading)}<small>{esc(about)}</small></th>'
        for heading, about in SHARES.values()
    )
    rows = "".join(_judge(one) for one in judges)
    return (
        '<div class="scroll"><table class="judges"><thead><tr><th scope="col">Judge</th>'
        '<th scope="col" class="n">Judged</th><th scope="col" class="n">Mean, SD</th>'
        f'<th scope="col" class="n">Flat, tied best</th>{head}<th scope="col">Asked</th></tr>'
        f"</thead><tbody>{rows}</tbody></table></div>"
    )


def _judge(one: Mapping[str, Any]) -> str:
    lost = f"{one['missing']:,} missing: {missing_line(one)}" if one["missing"] else "none missing"
    shares = "".join(
        f'<td class="n">{esc(value(name, one["explained"][name]))}'
        f"<small>{esc(interval(name, one['explained'][name]))}</small></td>"
        for name in SHARES
    )
    models = ", ".join(one["calls"]["models"]) if one["calls"] else ""
    source = esc(_source(one["source"]))
    return (
        f'<tr><th scope="row"><b>{esc(one["name"])}</b><small>{source}</small></th>'
        f'<td class="n">{one["judged"]:,}<small>{esc(lost)}</small></td>'
        f'<td class="n">{number(one["mean"])}<small>{number(one["std"])}</small></td>'
        f'<td class="n">{one["flat_groups"]:,}<small>{one["tied_best"]:,}, of '
        f"{one['compared_groups']:,} groups</small></td>{shares}"
        f"<td>{esc(calls_line(one))}<small>{esc(models)}</small></td></tr>"
    )


def _source(paths: str) -> str:
    """Where a judge comes from, in short: the whole paths stand in ``summary.json``."""
    first, *more = paths.split(", ")
    short = "/".join(first.split("/")[-3:])
    return f"{short} and {len(more)} more" if more else short


def _criteria(pairs: Sequence[Mapping[str, Any]]) -> str:
    rows = "".join(
        f"<tr><td>{esc(' and '.join(pair['judges']))}</td>"
        f"<td>{esc(one['criterion']) or '<b>all</b>'}</td>"
        f'<td class="n">{esc(value("differs", one["differs"]))}'
        f"<small>{esc(interval('differs', one['differs']))}</small></td>"
        f'<td class="n">{100 * one["met_first"]:.1f} % / {100 * one["met_second"]:.1f} %</td>'
        f'<td class="n">{one["samples"]:,}</td></tr>'
        for pair in pairs
        for one in pair["criteria"][: _MOST_CRITERIA + 1]
    )
    most = max((len(pair["criteria"]) for pair in pairs), default=0)
    more = f"<p>The {_MOST_CRITERIA} worst of each two judges; summary.json has more.</p>"
    more = more if most > _MOST_CRITERIA + 1 else ""
    if not rows:
        return (
            "<p>No two of the judges mark criteria of the same name, which is that of the grader "
            "and that of the criterion.</p>"
        )
    return (
        '<div class="scroll"><table class="judges"><thead><tr><th scope="col">Judges</th>'
        '<th scope="col">Criterion</th><th scope="col" class="n">Marked differently</th>'
        '<th scope="col" class="n">Met</th><th scope="col" class="n">Marks</th></tr></thead>'
        f"<tbody>{rows}</tbody></table></div>{more}"
    )
