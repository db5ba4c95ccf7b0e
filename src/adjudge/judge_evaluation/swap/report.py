"""The report of a swap study: numbers as text, and one HTML file.

The page has no script and no network; everything that is not ours (names of judges, files,
criteria) is escaped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from adjudge.runs.report.charts import escape_html, format_integer, format_number
from adjudge.runs.report.frame import Section, Tile, notes_section, render_page, render_tiles

__all__ = [
    "EXPLAINED_SHARES",
    "PAIR_NUMBERS",
    "format_calls",
    "format_interval",
    "format_missing_kinds",
    "format_value",
    "reading_notes",
    "render_swap_page",
]


PAIR_NUMBERS: Mapping[str, tuple[str, str]] = {
    "best_changes": ("best changes", "groups of which no sample is best for both"),
    "sign_flips": ("sign flips", "samples whose GRPO advantage changes its sign"),
    "within_kendall": ("τ-b within", "Kendall's, inside groups"),
    "within_spearman": ("ρ within", "Spearman's, inside groups"),
    "within_pearson": ("r within", "Pearson's, inside groups"),
    "advantage_pearson": ("r advantages", "Pearson's, of the GRPO advantages"),
    "best_differs": ("best differs", "groups whose sets of best samples differ, ties included"),
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


def reading_notes() -> list[str]:
    """How to read the numbers."""
    return list(_NOTES)


_NOTES = (
    (
        "Every pair is compared on the samples that both judged, advantages included: (r − "
        "mean)/std of a group's common samples. A reward that a judge failed to give is missing "
        "and is never a number."
    ),
    (
        "Intervals are 95 %, by bootstrap over groups; the samples of a group are not independent. "
        "Rank correlations over all samples are linearised for it; those inside groups are exact."
    ),
    (
        "R² is adjusted for the number of features, so chance is 0 and a little below 0 is chance. "
        "Advantages and features are standardised inside groups. What length explains may be "
        "quality that comes with length: it says what a policy will be paid for, not why."
    ),
    (
        "A judge that scores a group alike (flat) gives it no gradient; nothing can flip there. "
        "Best changes: no sample is best for both, so a tie never counts; best differs counts it."
    ),
)


_MATRICES = ("best_changes", "sign_flips", "within_kendall")
_STRIPS = ("best_changes", "sign_flips", "within_kendall", "advantage_pearson", "kendall", "kappa")
_MAX_SHOWN_CRITERIA = 20


def render_swap_page(summary: Mapping[str, Any]) -> str:
    """The whole page of a study's summary."""
    return render_page(
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
            notes_section(
                "".join(f"<p>{escape_html(text)}</p>" for text in reading_notes()), "How to read it"
            ),
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
        Tile("Samples", format_integer(summary["samples"]), f"{broken:,} broken rows", broken > 0),
        Tile("Groups", format_integer(summary["groups"]["count"]), ""),
        Tile("Judges", format_integer(len(judges)), f"{len(summary['pairs'])} pairs"),
        Tile("Most changes", changes, "of groups get another best sample"),
        Tile("No answer", format_integer(missing), "of samples × judges", missing > 0),
        Tile("USD", f"{sum(known):.4f}" if known else "–", "of priced judges"),
    )
    return render_tiles(found)


def _matrix(name: str, summary: Mapping[str, Any]) -> str:
    """A number for every two judges; a cell is the stronger tinted the less they agree."""
    names = [one["name"] for one in summary["judges"]]
    cells = {}
    for pair in summary["pairs"]:
        a, b = pair["judges"]
        cells[a, b] = cells[b, a] = pair[name]
    head = "".join(f'<th scope="col" class="n">{escape_html(one)}</th>' for one in names)
    rows = "".join(
        f'<tr><th scope="row">{escape_html(one)}</th>'
        + "".join(_cell(name, cells.get((one, other))) for other in names)
        + "</tr>"
        for one in names
    )
    heading, about = PAIR_NUMBERS[name]
    return (
        f'<div class="scroll"><table class="matrix"><caption><b>{escape_html(heading)}</b> '
        f"<small>{escape_html(about)}</small></caption><thead><tr><th></th>{head}</tr></thead>"
        f"<tbody>{rows}</tbody></table></div>"
    )


def _cell(name: str, found: Mapping[str, Any] | None) -> str:
    if found is None:
        return '<td class="n own">·</td>'
    number = found["value"]
    apart = 0.0 if number is None else number if name in _MATRICES[:2] else (1 - number) / 2
    level = min(4, int(5 * max(0.0, apart)))
    return (
        f'<td class="n level{level}">{escape_html(format_value(name, found))}'
        f"<small>{escape_html(format_interval(name, found))}</small></td>"
    )


def _pairs(pairs: Sequence[Mapping[str, Any]]) -> str:
    return "".join(_pair(one) for one in pairs)


def _pair(pair: Mapping[str, Any]) -> str:
    a, b = (escape_html(name) for name in pair["judges"])
    rows = "".join(
        f'<tr><th scope="row">{escape_html(heading)} <small>{escape_html(about)}</small></th>'
        f'<td class="n">{escape_html(format_value(name, pair[name]))}</td>'
        f'<td class="n">{escape_html(format_interval(name, pair[name]))}</td>'
        f'<td class="plot">{_strip(name, pair[name]) if name in _STRIPS else ""}</td></tr>'
        for name, (heading, about) in PAIR_NUMBERS.items()
    )
    common = f"{pair['common']:,} of {pair['samples']:,} samples judged by both, "
    common += f"{pair['groups']:,} of {pair['all_groups']:,} groups compared, {pair['flat']:,} flat"
    return (
        f"<details open><summary><b>{a}</b> and <b>{b}</b> "
        f"<small>{escape_html(common)}</small></summary>"
        '<div class="scroll"><table class="bars"><thead><tr><th scope="col">Number</th>'
        '<th scope="col" class="n">Value</th><th scope="col" class="n">95 %</th>'
        '<th scope="col" class="plot">From −1 to 1</th></tr></thead>'
        f"<tbody>{rows}</tbody></table></div></details>"
    )


def _strip(name: str, found: Mapping[str, Any]) -> str:
    """Value and interval between −1 and 1."""
    if found["value"] is None or found["low"] is None or found["high"] is None:
        return ""
    label = f"{PAIR_NUMBERS[name][0]}: {format_value(name, found)}, {format_interval(name, found)}"
    return (
        f'<svg class="strip" role="img" aria-label="{escape_html(label)}" width="100%" height="18">'
        '<line class="chance" x1="50%" x2="50%" y1="0" y2="18"/>'
        f'<line class="interval within" x1="{_strip_position(found["low"])}" '
        f'x2="{_strip_position(found["high"])}" '
        f'y1="9" y2="9"/><circle class="dot within" cx="{_strip_position(found["value"])}" cy="9" '
        'r="4"/></svg>'
    )


def _strip_position(place: float) -> str:
    return f"{50 + 48 * min(1.0, max(-1.0, place)):.2f}%"


def _judges(judges: Sequence[Mapping[str, Any]]) -> str:
    head = "".join(
        f'<th scope="col" class="n">{escape_html(heading)}<small>{escape_html(about)}</small></th>'
        for heading, about in EXPLAINED_SHARES.values()
    )
    rows = "".join(_judge(one) for one in judges)
    return (
        '<div class="scroll"><table class="judges"><thead><tr><th scope="col">Judge</th>'
        '<th scope="col" class="n">Judged</th><th scope="col" class="n">Mean, SD</th>'
        f'<th scope="col" class="n">Flat, tied best</th>{head}<th scope="col">Asked</th></tr>'
        f"</thead><tbody>{rows}</tbody></table></div>"
    )


def _judge(one: Mapping[str, Any]) -> str:
    lost = (
        f"{one['missing']:,} missing: {format_missing_kinds(one)}"
        if one["missing"]
        else "none missing"
    )
    shares = "".join(
        f'<td class="n">{escape_html(format_value(name, one["explained"][name]))}'
        f"<small>{escape_html(format_interval(name, one['explained'][name]))}</small></td>"
        for name in EXPLAINED_SHARES
    )
    models = ", ".join(one["calls"]["models"]) if one["calls"] else ""
    source = escape_html(_short_source(one["source"]))
    return (
        f'<tr><th scope="row"><b>{escape_html(one["name"])}</b><small>{source}</small></th>'
        f'<td class="n">{one["judged"]:,}<small>{escape_html(lost)}</small></td>'
        f'<td class="n">{format_number(one["mean"])}<small>{format_number(one["std"])}</small></td>'
        f'<td class="n">{one["flat_groups"]:,}<small>{one["tied_best"]:,}, of '
        f"{one['compared_groups']:,} groups</small></td>{shares}"
        f"<td>{escape_html(format_calls(one))}<small>{escape_html(models)}</small></td></tr>"
    )


def _short_source(paths: str) -> str:
    """Where a judge comes from, in short: the whole paths stand in ``summary.json``."""
    first, *more = paths.split(", ")
    short = "/".join(first.split("/")[-3:])
    return f"{short} and {len(more)} more" if more else short


def _criteria(pairs: Sequence[Mapping[str, Any]]) -> str:
    rows = "".join(
        f"<tr><td>{escape_html(' and '.join(pair['judges']))}</td>"
        f"<td>{escape_html(one['criterion']) or '<b>all</b>'}</td>"
        f'<td class="n">{escape_html(format_value("differs", one["differs"]))}'
        f"<small>{escape_html(format_interval('differs', one['differs']))}</small></td>"
        f'<td class="n">{100 * one["met_first"]:.1f} % / {100 * one["met_second"]:.1f} %</td>'
        f'<td class="n">{one["samples"]:,}</td></tr>'
        for pair in pairs
        for one in pair["criteria"][: _MAX_SHOWN_CRITERIA + 1]
    )
    most = max((len(pair["criteria"]) for pair in pairs), default=0)
    more = f"<p>The {_MAX_SHOWN_CRITERIA} worst of each two judges; summary.json has more.</p>"
    more = more if most > _MAX_SHOWN_CRITERIA + 1 else ""
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
