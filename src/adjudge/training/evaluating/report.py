"""An evaluation as one HTML file: judges against the official score, seed by seed.

What policies and judges said is escaped wherever it stands.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from adjudge.rollouts.messages import content_text
from adjudge.runs.report import calls
from adjudge.runs.report.charts import esc, integer, number
from adjudge.runs.report.frame import Section, framed, how_to_read
from adjudge.training.evaluating.charts import scatter
from adjudge.training.evaluating.summary import OFFICIAL, REWARD, official_of, score_of
from adjudge.types import mid_ranks

__all__ = ["write_eval_report"]

_NOTES = """<p>The <b>official score</b> is what the environment paid, as it is: neither scaled \
nor clipped. A grader&rsquo;s <b>mean</b> is of its raw scores. <b>r</b> is Pearson&rsquo;s, \
<b>rho</b> Spearman&rsquo;s correlation with the official score over the seeds that have both. \
Where the environment&rsquo;s reward is a part of the reward, the two correlate for that reason \
alone.</p>
<p>Intervals are 95 % bootstrap intervals over seeds (expanded percentile). <b>p</b> is the \
smallest level at which the interval of the difference leaves 0 out. What a judge failed at is \
missing: it is counted by kind, and in no mean.</p>"""

Rows = Sequence[Sequence[Mapping[str, Any]]]

_MOST_ROWS = 1_000
_MOST_SHOWN = 12
_MOST_TEXT = 1_500


def write_eval_report(path: Path, summary: Mapping[str, Any], rows: Rows) -> None:
    """Write ``report.html`` to ``path``, UTF-8; ``rows[i]`` are the episodes of model *i*."""
    judges = "".join(_judges(summary, model) for model in summary["models"])
    html = framed(
        "Evaluation",
        _facts(summary),
        [
            _comparison(summary),
            Section("judges", "Judges against the official score", judges, "Judges"),
            Section("scatter", "Seed by seed", _scatters(summary, rows), "Scatter"),
            Section(
                "disagree", "Where they disagree", _disagreements(summary, rows), "Disagreements"
            ),
            Section("seeds", "All seeds", _seeds(summary, rows), "Seeds"),
            calls.section({"endpoints": summary.get("endpoints")}),
            how_to_read(_NOTES),
        ],
        styles=[("adjudge.training.evaluating", "page.css")],
    )
    path.write_text(html, encoding="utf-8", newline="\n")


def _facts(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    judge = summary["judge"] or "none was asked"
    if summary["combine_mode"]:
        judge += f", {summary['combine_mode']}"
    return [
        ("Policy", " against ".join(model["name"] for model in summary["models"])),
        ("Task", f"{summary['task']}, {integer(summary['seeds'])} seeds"),
        ("Judge", judge),
        ("When", f"{summary['created']} · adjudge {summary['adjudge']}"),
    ]


def _judges(summary: Mapping[str, Any], model: Mapping[str, Any]) -> str:
    """One model's table: official score, graders, reward."""
    rows = [_row("official score", "", model["official"], None, _missing(model, None))]
    weights = {grader["name"]: grader["weight"] for grader in summary["graders"]}
    for name, found in model["scores"].items():
        weight = "" if name not in weights else f"{weights[name]:g}" if weights[name] else "report"
        rows.append(_row(name, weight, found["mean"], found, _missing(model, found)))
    head = ("", "weight", "mean", "95 %", "r", "95 %", "rho", "95 %", "missing")
    return (
        f'<div class="scroll"><table class="judges"><caption>{esc(model["name"])}</caption><thead>'
        f"<tr>{''.join(f'<th scope=col>{one}</th>' for one in head)}</tr></thead>"
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
    cells += [_cell(found[kind]) if found else _CELLS for kind in ("pearson", "spearman")]
    return (
        f'<tr><th scope="row">{esc(name)}</th><td class="n">{weight}</td>{"".join(cells)}'
        f"<td>{esc(missing)}</td></tr>"
    )


_CELLS = "<td></td><td></td>"


def _cell(estimate: Mapping[str, Any]) -> str:
    """Value and interval; the reason where one of them is not there."""
    if estimate["low"] is None:
        interval = esc(estimate["why"])
    else:
        interval = f"{number(estimate['low'])} to {number(estimate['high'])}"
    return f'<td class="n">{number(estimate["value"])}</td><td class="i">{interval}</td>'


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
    body = "".join(_compared(name, one) for name, one in found.items())
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
        f'<table class="judges"><thead><tr>{"".join(f"<th scope=col>{esc(h)}</th>" for h in head)}'
        f"</tr></thead><tbody>{body}</tbody></table></div></section>"
    )


def _compared(name: str, one: Mapping[str, Any]) -> str:
    label = "official score" if name == OFFICIAL else name
    counts = (one["wins"], one["ties"], one["losses"], one["difference"]["n"])
    return (
        f'<tr><th scope="row">{esc(label)}</th><td class="n">{number(one["model"])}</td>'
        f'<td class="n">{number(one["baseline"])}</td>{_cell(one["difference"])}'
        f'<td class="n">{number(one["p"], 4)}</td>'
        f"{''.join(f'<td class=n>{integer(count)}</td>' for count in counts)}</tr>"
    )


def _scatters(summary: Mapping[str, Any], rows: Rows) -> str:
    charts = []
    for name in (grader["name"] for grader in summary["graders"]):
        points = [
            [
                (row["env_reward"], score, row["seed"])
                for row, score in zip(own, score_of(own, name).values(), strict=True)
                if row["env_reward"] is not None and score is not None
            ]
            for own in rows
        ]
        charts.append(scatter(name, points, [model["name"] for model in summary["models"]]))
    drawn = "".join(charts)
    return f'<div class="scatters">{drawn}</div>' if drawn else "<p>No grader scored anything.</p>"


def _disagreements(summary: Mapping[str, Any], rows: Rows) -> str:
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
    shown = [one for one in found if abs(one[0]) >= 1][:_MOST_SHOWN]
    if not shown:
        return f"<p>{esc(names[0])} and the official score place no seed unlike.</p>"
    body = "".join(_disagreement(names[0], *one) for one in shown)
    return (
        f"<p>Where {esc(names[0])} and the official score place a seed most unlike.</p>"
        '<div class="scroll"><table class="said"><thead><tr><th scope="col">Seed</th>'
        '<th scope="col">Asked and said last</th><th scope="col">Official and judges</th></tr>'
        f"</thead><tbody>{body}</tbody></table></div>"
    )


def _gaps(rows: Sequence[Mapping[str, Any]], name: str) -> list[tuple[float, Mapping[str, Any]]]:
    official, scores = official_of(rows), score_of(rows, name)
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
    told = [f"official {number(row['env_reward'])}"]
    for key, detail in (row["details"] or {}).items():
        if isinstance(detail, Mapping):
            told.append(f"{key}: {_verdict(detail)}")
    higher = "higher" if gap > 0 else "lower"
    return (
        f"<tr><td>{row['seed']}<small>{esc(model)}</small></td>"
        f"<td><small>{esc(_cut(asked))}</small><q>{esc(_cut(said[-1] if said else ''))}</q></td>"
        f"<td><b>{esc(name)} places it {higher}</b><small>{esc(_cut(chr(10).join(told)))}</small>"
        "</td></tr>"
    )


def _verdict(detail: Mapping[str, Any]) -> str:
    if "kind" in detail:
        return f"{detail['kind']}: {detail.get('error', '')}"
    return f"{number(detail.get('score', detail.get('rank')))} {detail.get('reason', '')}"


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_TEXT else text[:_MOST_TEXT] + " …"


def _seeds(summary: Mapping[str, Any], rows: Rows) -> str:
    models = summary["models"]
    names = list(models[0]["scores"])
    columns = ("official", *names, "turns")
    groups = "".join(
        f'<th scope="colgroup" colspan="{len(columns)}">{esc(model["name"])}</th>'
        for model in models
    )
    head = "".join(f"<th scope=col>{esc(one)}</th>" for _ in models for one in columns)
    body = "".join(
        f'<tr><th scope="row">{row[0]["seed"]}</th>'
        f"{''.join(_seed_cells(own, names) for own in row)}</tr>"
        for row in list(zip(*rows, strict=True))[:_MOST_ROWS]
    )
    left = summary["seeds"] - _MOST_ROWS
    more = f"<p>{integer(left)} more seeds are in episodes.jsonl.</p>" if left > 0 else ""
    return (
        f'<div class="scroll"><table class="seeds"><thead><tr><td></td>{groups}</tr>'
        f"<tr><th scope=col>seed</th>{head}</tr></thead><tbody>{body}</tbody></table></div>{more}"
    )


def _seed_cells(row: Mapping[str, Any], names: Sequence[str]) -> str:
    if row["error"] is not None:
        said = f"not played: {row['error']['kind']}: {row['error']['message']}"
        return f'<td class="gone" colspan="{len(names) + 2}">{esc(_cut(said))}</td>'
    scores = [score_of([row], name)[row["seed"]] for name in names]
    cells = [number(value) for value in (row["env_reward"], *scores)]
    if names and names[-1] == REWARD and row["missing"]:
        cells[-1] = esc(row["missing"]["kind"])
    return "".join(f"<td class=n>{cell}</td>" for cell in (*cells, integer(row["turns"])))
