"""An evaluation as one HTML file: judges against the official score, seed by seed.

Scatter plots are SVG: across the official score, up a judge's. What policies and judges wrote is
escaped everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from adjudge.messages import content_text
from adjudge.runs.report import frame
from adjudge.runs.report.charts import escape_html, format_integer, format_number
from adjudge.runs.report.frame import Section, notes_section, render_page
from adjudge.types import mid_ranks
from adjudge_lab.evaluation.summary import (
    OFFICIAL_SCORE,
    REWARD_SCORE,
    grader_scores,
    official_scores,
)

__all__ = ["scatter_chart", "write_evaluation_report"]


ScatterPoint = tuple[float, float, int]
"""Official score, the grader's, and the seed."""

_HEIGHT = 210
_MAX_POINTS = 2_000
_INSET = 3.0


def scatter_chart(
    title: str, points: Sequence[Sequence[ScatterPoint]], names: Sequence[str]
) -> str:
    """A figure with one kind of mark a model; empty where no seed has both numbers.

    At most 2,000 marks a model are drawn, and the caption says so. Points that coincide are drawn
    more strongly. Each says its seed.
    """
    every = [point for own in points for point in own if math.isfinite(point[0] + point[1])]
    if not every:
        return ""
    across, up = (_axis_range([point[place] for point in every]) for place in (0, 1))
    marks = []
    for place, own in enumerate(points):
        for x, y, seed in own[:_MAX_POINTS]:
            if math.isfinite(x + y):
                marks.append(
                    _point_mark(_axis_share(x, across), _axis_share(y, up), place, seed, (x, y))
                )
    left = sum(max(0, len(own) - _MAX_POINTS) for own in points)
    more = f" {format_integer(left)} more are not drawn." if left else ""
    keys = ""
    if len(names) > 1:
        keys = "".join(
            f'<span class="key m{place}">{escape_html(name)}</span>'
            for place, name in enumerate(names)
        )
    said = f"{title} against the official score, {format_integer(len(every))} seeds"
    return (
        f"<figure><figcaption><b>{escape_html(title)}</b>{keys}<small>{more}</small></figcaption>"
        f'<svg role="img" aria-label="{escape_html(said)}" width="100%" height="{_HEIGHT + 34}">'
        f"{_chart_frame(across, up)}{''.join(marks)}</svg></figure>"
    )


def _axis_range(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    return (low, high) if low < high else (low - 0.5, high + 0.5)


def _axis_share(value: float, ends: tuple[float, float]) -> float:
    low, high = ends
    # Halves, as the width of the range may be no number.
    return min(1.0, max(0.0, (value / 2 - low / 2) / (high / 2 - low / 2)))


def _point_mark(x: float, y: float, model: int, seed: int, values: tuple[float, float]) -> str:
    left = _INSET + (100 - 2 * _INSET) * x
    top = 8 + (_HEIGHT - 16) * (1 - y)
    told = f"seed {seed}: official {format_number(values[0])}, judged {format_number(values[1])}"
    return (
        f'<circle class="m{model}" cx="{left:.2f}%" cy="{top:.1f}" r="4">'
        f"<title>{escape_html(told)}</title></circle>"
    )


def _chart_frame(across: tuple[float, float], up: tuple[float, float]) -> str:
    parts = []
    for share in (0.0, 0.5, 1.0):
        y = 8 + (_HEIGHT - 16) * (1 - share)
        x = _INSET + (100 - 2 * _INSET) * share
        anchor = ("start", "middle", "end")[round(share * 2)]
        parts.append(f'<line class="grid" x1="0" x2="100%" y1="{y:.0f}" y2="{y:.0f}"/>')
        parts.append(f'<line class="grid" x1="{x}%" x2="{x}%" y1="0" y2="{_HEIGHT}"/>')
        parts.append(
            f'<text x="0" y="{y - 3:.0f}">{format_number(_interpolate(up, share), 2)}</text>'
        )
        parts.append(
            f'<text x="{x}%" y="{_HEIGHT + 14}" text-anchor="{anchor}">'
            f"{format_number(_interpolate(across, share), 2)}</text>"
        )
    parts.append(f'<text x="50%" y="{_HEIGHT + 29}" text-anchor="middle">official score</text>')
    return "".join(parts)


def _interpolate(ends: tuple[float, float], share: float) -> float:
    return ends[0] * (1 - share) + ends[1] * share


_NOTES = """<p>The <b>official score</b> is what the environment paid, as it is: neither scaled \
nor clipped. A grader&rsquo;s <b>mean</b> is of its raw scores. <b>r</b> is Pearson&rsquo;s, \
<b>rho</b> Spearman&rsquo;s correlation with the official score over the seeds that have both. \
Where the environment&rsquo;s reward is a part of the reward, the two correlate for that reason \
alone.</p>
<p>Intervals are 95 % bootstrap intervals over seeds (expanded percentile). <b>p</b> is the \
smallest level at which the interval of the difference leaves 0 out. What a judge failed at is \
missing: it is counted by kind, and in no mean.</p>"""

_RowsByModel = Sequence[Sequence[Mapping[str, Any]]]

_MAX_ROWS = 1_000
_MAX_DISAGREEMENTS = 12
_MAX_TEXT = 1_500


def write_evaluation_report(path: Path, summary: Mapping[str, Any], rows: _RowsByModel) -> None:
    """Write ``report.html`` to ``path``, UTF-8; ``rows[i]`` are the episodes of model *i*."""
    judges = "".join(_judges_table(summary, model) for model in summary["models"])
    html = render_page(
        "Evaluation",
        _facts(summary),
        [
            _comparison(summary),
            Section("judges", "Judges against the official score", judges, "Judges"),
            Section("scatter", "Seed by seed", _scatters(summary, rows), "Scatter"),
            Section(
                "disagree", "Where they disagree", _disagreements(summary, rows), "Disagreements"
            ),
            Section("seeds", "All seeds", _seeds_table(summary, rows), "Seeds"),
            frame.judge_calls_html({"endpoints": summary.get("endpoints")}),
            notes_section(_NOTES),
        ],
        styles=[("adjudge_lab.evaluation", "page.css")],
    )
    path.write_text(html, encoding="utf-8", newline="\n")


def _facts(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    judge = summary["judge"] or "none was asked"
    if summary["combine_mode"]:
        judge += f", {summary['combine_mode']}"
    return [
        ("Policy", " against ".join(model["name"] for model in summary["models"])),
        ("Task", f"{summary['task']}, {format_integer(summary['seeds'])} seeds"),
        ("Judge", judge),
        ("When", f"{summary['created']} · adjudge {summary['adjudge']}"),
    ]


def _judges_table(summary: Mapping[str, Any], model: Mapping[str, Any]) -> str:
    """One model's table: official score, graders, reward."""
    rows = [_row("official score", "", model["official"], None, _missing(model, None))]
    weights = {grader["name"]: grader["weight"] for grader in summary["graders"]}
    for name, found in model["scores"].items():
        weight = "" if name not in weights else f"{weights[name]:g}" if weights[name] else "report"
        rows.append(_row(name, weight, found["mean"], found, _missing(model, found)))
    head = ("", "weight", "mean", "95 %", "r", "95 %", "rho", "95 %", "missing")
    return (
        f'<div class="scroll"><table class="judges"><caption>{escape_html(model["name"])}</caption>'
        f"<thead><tr>{''.join(f'<th scope=col>{one}</th>' for one in head)}</tr></thead>"
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _row(
    name: str,
    weight: str,
    mean: Mapping[str, Any],
    found: Mapping[str, Any] | None,
    missing: str,
) -> str:
    cells = [_cell(mean)]
    cells += [_cell(found[kind]) if found else _EMPTY_CELLS for kind in ("pearson", "spearman")]
    return (
        f'<tr><th scope="row">{escape_html(name)}</th><td class="n">{weight}</td>{"".join(cells)}'
        f"<td>{escape_html(missing)}</td></tr>"
    )


_EMPTY_CELLS = "<td></td><td></td>"


def _cell(estimate: Mapping[str, Any]) -> str:
    """Value and interval; the reason where one of them is not there."""
    if estimate["low"] is None:
        interval = escape_html(estimate["why"])
    else:
        interval = f"{format_number(estimate['low'])} to {format_number(estimate['high'])}"
    return f'<td class="n">{format_number(estimate["value"])}</td><td class="i">{interval}</td>'


def _missing(model: Mapping[str, Any], found: Mapping[str, Any] | None) -> str:
    kinds = [f"not played: {kind} {count:,}" for kind, count in model["not_played"].items()]
    if found is not None:
        kinds += [f"{kind} {count:,}" for kind, count in found["missing"].items()]
    elif model["no_official"]:
        kinds.append(f"not paid for {model['no_official']:,}")
    return ", ".join(kinds)


def _comparison(summary: Mapping[str, Any]) -> str:
    found = summary["comparison"]
    if found is None:
        return ""
    model, baseline = (one["name"] for one in summary["models"])
    body = "".join(_comparison_row(name, one) for name, one in found.items())
    head = (
        "",
        model,
        baseline,
        "difference",
        "95 %",
        "p",
        "wins",
        "ties",
        "losses",
        "seeds of both",
    )
    return (
        '<section id="comparison"><h2>The two compared, seed by seed</h2><div class="scroll">'
        '<table class="judges"><thead><tr>'
        f"{''.join(f'<th scope=col>{escape_html(h)}</th>' for h in head)}</tr></thead>"
        f"<tbody>{body}</tbody></table></div></section>"
    )


def _comparison_row(name: str, one: Mapping[str, Any]) -> str:
    label = "official score" if name == OFFICIAL_SCORE else name
    counts = (one["wins"], one["ties"], one["losses"], one["difference"]["n"])
    return (
        f'<tr><th scope="row">{escape_html(label)}</th>'
        f'<td class="n">{format_number(one["model"])}</td>'
        f'<td class="n">{format_number(one["baseline"])}</td>{_cell(one["difference"])}'
        f'<td class="n">{format_number(one["p"], 4)}</td>'
        f"{''.join(f'<td class=n>{format_integer(count)}</td>' for count in counts)}</tr>"
    )


def _scatters(summary: Mapping[str, Any], rows: _RowsByModel) -> str:
    charts = []
    for name in (grader["name"] for grader in summary["graders"]):
        points = [
            [
                (row["env_reward"], score, row["seed"])
                for row, score in zip(own, grader_scores(own, name).values(), strict=True)
                if row["env_reward"] is not None and score is not None
            ]
            for own in rows
        ]
        charts.append(scatter_chart(name, points, [model["name"] for model in summary["models"]]))
    drawn = "".join(charts)
    return f'<div class="scatters">{drawn}</div>' if drawn else "<p>No grader scored anything.</p>"


def _disagreements(summary: Mapping[str, Any], rows: _RowsByModel) -> str:
    """The seeds that the first grader with a weight places most unlike the official score."""
    names = [grader["name"] for grader in summary["graders"] if grader["weight"]]
    if not names:
        return "<p>There is nothing to compare.</p>"
    found = [
        (gap, model["name"], row)
        for model, own in zip(summary["models"], rows, strict=True)
        for gap, row in _gaps(own, names[0])
    ]
    found.sort(key=lambda one: (-abs(one[0]), one[1], one[2]["seed"]))
    shown = [one for one in found if abs(one[0]) >= 1][:_MAX_DISAGREEMENTS]
    if not shown:
        return f"<p>{escape_html(names[0])} and the official score place no seed unlike.</p>"
    body = "".join(_disagreement(names[0], *one) for one in shown)
    return (
        f"<p>Where {escape_html(names[0])} and the official score place a seed most unlike.</p>"
        '<div class="scroll"><table class="said"><thead><tr><th scope="col">Seed</th>'
        '<th scope="col">Asked and said last</th><th scope="col">Official and judges</th></tr>'
        f"</thead><tbody>{body}</tbody></table></div>"
    )


def _gaps(rows: Sequence[Mapping[str, Any]], name: str) -> list[tuple[float, Mapping[str, Any]]]:
    official, scores = official_scores(rows), grader_scores(rows, name)
    both = [
        (row, mine, theirs)
        for row in rows
        if (mine := scores[row["seed"]]) is not None
        and (theirs := official[row["seed"]]) is not None
    ]
    if len({mine for _, mine, _ in both}) < 2 or len({theirs for _, _, theirs in both}) < 2:
        return []  # nothing is placed where all are equal
    places = mid_ranks([mine for _, mine, _ in both])
    others = mid_ranks([theirs for _, _, theirs in both])
    return [(a - b, row) for a, b, (row, _, _) in zip(places, others, both, strict=True)]


def _disagreement(name: str, gap: float, model: str, row: Mapping[str, Any]) -> str:
    texts = [content_text(one.get("content")) for one in row["messages"]]
    said = [
        text
        for text, one in zip(texts, row["messages"], strict=True)
        if one.get("role") == "assistant"
    ]
    asked = next(
        (t for t, one in zip(texts, row["messages"], strict=True) if one.get("role") == "user"), ""
    )
    told = [f"official {format_number(row['env_reward'])}"]
    for key, detail in (row["details"] or {}).items():
        if isinstance(detail, Mapping):
            told.append(f"{key}: {_verdict(detail)}")
    higher = "higher" if gap > 0 else "lower"
    return (
        f"<tr><td>{row['seed']}<small>{escape_html(model)}</small></td>"
        f"<td><small>{escape_html(_shorten(asked))}</small>"
        f"<q>{escape_html(_shorten(said[-1] if said else ''))}</q></td>"
        f"<td><b>{escape_html(name)} places it {higher}</b>"
        f"<small>{escape_html(_shorten(chr(10).join(told)))}</small>"
        "</td></tr>"
    )


def _verdict(detail: Mapping[str, Any]) -> str:
    if "kind" in detail:
        return f"{detail['kind']}: {detail.get('error', '')}"
    return f"{format_number(detail.get('score', detail.get('rank')))} {detail.get('reason', '')}"


def _shorten(text: str) -> str:
    return text if len(text) <= _MAX_TEXT else text[:_MAX_TEXT] + " …"


def _seeds_table(summary: Mapping[str, Any], rows: _RowsByModel) -> str:
    models = summary["models"]
    names = list(models[0]["scores"])
    columns = ("official", *names, "turns")
    groups = "".join(
        f'<th scope="colgroup" colspan="{len(columns)}">{escape_html(model["name"])}</th>'
        for model in models
    )
    head = "".join(f"<th scope=col>{escape_html(one)}</th>" for _ in models for one in columns)
    body = "".join(
        f'<tr><th scope="row">{row[0]["seed"]}</th>'
        f"{''.join(_seed_cells(own, names) for own in row)}</tr>"
        for row in list(zip(*rows, strict=True))[:_MAX_ROWS]
    )
    left = summary["seeds"] - _MAX_ROWS
    more = f"<p>{format_integer(left)} more seeds are in episodes.jsonl.</p>" if left > 0 else ""
    return (
        f'<div class="scroll"><table class="seeds"><thead><tr><td></td>{groups}</tr>'
        f"<tr><th scope=col>seed</th>{head}</tr></thead><tbody>{body}</tbody></table></div>{more}"
    )


def _seed_cells(row: Mapping[str, Any], names: Sequence[str]) -> str:
    if row["error"] is not None:
        said = f"not played: {row['error']['kind']}: {row['error']['message']}"
        return f'<td class="gone" colspan="{len(names) + 2}">{escape_html(_shorten(said))}</td>'
    scores = [grader_scores([row], name)[row["seed"]] for name in names]
    cells = [format_number(value) for value in (row["env_reward"], *scores)]
    if names and names[-1] == REWARD_SCORE and row["missing"]:
        cells[-1] = escape_html(row["missing"]["kind"])
    return "".join(f"<td class=n>{cell}</td>" for cell in (*cells, format_integer(row["turns"])))
