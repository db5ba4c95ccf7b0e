"""The study as one HTML file: no script, no network.

A content security policy admits this file's own style by hash and nothing else. Everything that is
not ours (names of judges, files, criteria) is escaped.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

from adjudge.runs.report.charts import esc, integer, number
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

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'sha256-{hash}'; \
base-uri 'none'; form-action 'none'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
<title>Judge swap</title>
<style>{style}</style>
</head>
<body>
<header class="page">
<h1>Judge swap: {count} judges on the same rollouts</h1>
<nav aria-label="Sections"><a href="#swap">Swap</a><a href="#pairs">Pairs</a>\
<a href="#judges">Judges</a><a href="#criteria">Criteria</a>\
<a href="#notes">How to read it</a></nav>
<dl class="facts">{facts}</dl>
</header>
<main>
<dl class="tiles">{tiles}</dl>
<section id="swap"><h2>What changes when the judge is swapped</h2>{matrices}</section>
<section id="pairs"><h2>Pairs of judges</h2>{pairs}</section>
<section id="judges"><h2>What each judge pays for</h2>{judges}</section>
<section id="criteria"><h2>Criteria</h2>{criteria}</section>
<section id="notes"><h2>How to read the numbers</h2>{notes}</section>
</main>
</body>
</html>
"""


def page(summary: Mapping[str, Any]) -> str:
    """The whole page of a study's summary."""
    style = _asset("adjudge.runs.report", "page.css") + _asset(__package__ or "", "page.css")
    html = _PAGE.format(
        style=style,
        hash=base64.b64encode(hashlib.sha256(style.encode()).digest()).decode(),
        count=len(summary["judges"]),
        facts=_facts(summary),
        tiles=_tiles(summary),
        matrices="".join(_matrix(name, summary) for name in _MATRICES),
        pairs=_pairs(summary["pairs"]),
        judges=_judges(summary["judges"]),
        criteria=_criteria(summary["pairs"]),
        notes="".join(f"<p>{esc(text)}</p>" for text in notes()),
    )
    return html.encode("utf-8", "replace").decode()


def _asset(package: str, name: str) -> str:
    text = resources.files(package).joinpath(name).read_text(encoding="utf-8")
    # The browser hashes after its own newline normalisation.
    return text.replace("\r\n", "\n")


def _facts(summary: Mapping[str, Any]) -> str:
    inputs = [f"{one['path']} ({one['shape']})" for one in summary["inputs"]]
    more = f" and {len(inputs) - 3} more" if len(inputs) > 3 else ""
    groups = summary["groups"]
    sizes = f"{groups['size_min']}–{groups['size_max']} samples, median {groups['size_median']}"
    entries = (
        ("Rollouts", ", ".join(inputs[:3]) + more),
        ("Groups", f"by {summary['grouped_by']}: {sizes}"),
        ("Intervals", f"95 %, bootstrap by group, seed {summary['seed']}"),
        ("When", f"{summary['created']} · adjudge {summary['adjudge']}"),
    )
    return "".join(
        f"<div><dt>{name}</dt><dd><span>{esc(text)}</span></dd></div>" for name, text in entries
    )


def _tiles(summary: Mapping[str, Any]) -> str:
    judges, broken = summary["judges"], summary["broken_rows"]["count"]
    missing = sum(one["missing"] for one in judges)
    costs = [one["calls"]["cost_usd"] for one in judges if one["calls"]]
    known = [cost for cost in costs if cost is not None]
    shares = [pair["best_changes"]["value"] for pair in summary["pairs"]]
    worst = max((share for share in shares if share is not None), default=None)
    changes = "–" if worst is None else f"{100 * worst:.1f} %"
    tiles = (
        ("Samples", integer(summary["samples"]), f"{broken:,} broken rows", broken > 0),
        ("Groups", integer(summary["groups"]["count"]), "", False),
        ("Judges", integer(len(judges)), f"{len(summary['pairs'])} pairs", False),
        ("Most changes", changes, "of groups get another best sample", False),
        ("No answer", integer(missing), "of samples × judges", missing > 0),
        ("USD", f"{sum(known):.4f}" if known else "–", "of priced judges", False),
    )
    return "".join(
        f"<div{' class=alarm' if alarm else ''}><dt>{name}</dt><dd>{found}</dd>"
        f"<dd>{esc(said)}</dd></div>"
        for name, found, said, alarm in tiles
    )


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
    if not rows:
        return "<p>No two of the judges mark the criteria of the same rubric.</p>"
    return (
        '<div class="scroll"><table class="judges"><thead><tr><th scope="col">Judges</th>'
        '<th scope="col">Criterion</th><th scope="col" class="n">Marked differently</th>'
        '<th scope="col" class="n">Met</th><th scope="col" class="n">Marks</th></tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )
