"""An evaluation as one HTML file: judges against the official score, seed by seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from adjudge.messages import content_text
from adjudge.report.charts import scatter_chart
from adjudge.report.page import (
    Element,
    Section,
    bold,
    format_integer,
    format_number,
    format_range,
    notes_section,
    quote,
    render_page,
    small,
)
from adjudge.report.table import Column, Table, numeric
from adjudge.runs.report.tables import judge_calls_section
from adjudge.stats import mid_ranks
from adjudge_lab.evaluation.summary import (
    OFFICIAL_SCORE,
    REWARD_SCORE,
    grader_scores,
    official_scores,
)

_RowsByModel = Sequence[Sequence[Mapping[str, Any]]]

_MAX_ROWS = 1_000
_MAX_DISAGREEMENTS = 12
_MAX_TEXT = 1_500


def write_evaluation_report(path: Path, summary: Mapping[str, Any], rows: _RowsByModel) -> None:
    """Write ``report.html`` to ``path``, UTF-8; ``rows[i]`` are the episodes of model *i*."""
    judges = [judges_table(summary, model) for model in summary["models"]]
    parts: list[tuple[str, str, object, str]] = [
        ("comparison", "The two compared, seed by seed", policy_difference_table(summary), ""),
        ("judges", "Judges against the official score", judges, "Judges"),
        ("scatter", "Seed by seed", _scatters(summary, rows), "Scatter"),
        ("disagree", "Where they disagree", _disagreements(summary, rows), "Disagreements"),
        ("seeds", "All seeds", seeds_table(summary, rows), "Seeds"),
    ]
    html = render_page(
        "Evaluation",
        _facts(summary),
        [
            *(Section(*one) for one in parts),
            judge_calls_section({key: summary.get(key) for key in ("endpoints", "spending")}),
            notes_section(__package__ or ""),
        ],
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


def judges_table(summary: Mapping[str, Any], model: Mapping[str, Any]) -> Table:
    """One model's table: official score, graders, reward."""
    rows = [
        ["official score", "", *_estimate_cells(model["official"]), "", "", "", "",
         missing_text(model, None) or "0"]
    ]  # fmt: skip
    weights = {grader["name"]: grader["weight"] for grader in summary["graders"]}
    for name, found in model["scores"].items():
        weight = "" if name not in weights else f"{weights[name]:g}" if weights[name] else "report"
        kinds = ("mean", "pearson", "spearman")
        cells = [cell for kind in kinds for cell in _estimate_cells(found[kind])]
        rows.append([name, weight, *cells, missing_text(model, found) or "0"])
    interval = Column("95 %", "i")
    columns = [*numeric("weight", "mean"), interval, *numeric("r"), interval, *numeric("rho"),
               interval, Column("missing")]  # fmt: skip
    return Table(
        ["", *columns], rows, caption=model["name"], drop=("weight",), keep=("mean", "missing")
    )


def _estimate_cells(estimate: Mapping[str, Any]) -> list[str]:
    """Value and interval; the reason where one of them is not there."""
    interval = format_range(estimate["low"], estimate["high"], estimate["why"])
    return [format_number(estimate["value"]), interval]


def missing_text(model: Mapping[str, Any], found: Mapping[str, Any] | None) -> str:
    """What a model's score ``found`` lacks, by kind; of ``None``, the official score."""
    kinds = [f"not played: {kind} {count:,}" for kind, count in model["not_played"].items()]
    if found is not None:
        kinds += [f"{kind} {count:,}" for kind, count in found["missing"].items()]
    elif model["no_official"]:
        kinds.append(f"not paid for {model['no_official']:,}")
    return ", ".join(kinds)


def policy_difference_table(summary: Mapping[str, Any]) -> Table | None:
    """The second policy against the first, on the seeds of both."""
    if summary["comparison"] is None:
        return None
    model, baseline = (one["name"] for one in summary["models"])
    rows = [
        [
            "official score" if name == OFFICIAL_SCORE else name,
            *map(format_number, (one["model"], one["baseline"])),
            *_estimate_cells(one["difference"]),
            format_number(one["p"], 4),
            f"{one['wins']}/{one['ties']}/{one['losses']}",
            format_integer(one["difference"]["n"]),
        ]
        for name, one in summary["comparison"].items()
    ]
    columns = [*numeric("mean", "its mean", "difference"), Column("95 %", "i"),
               *numeric("p", "wins/ties/losses", "seeds of both")]  # fmt: skip
    caption = f"{model} against {baseline}"
    drop = ("seeds of both", "wins/ties/losses", "its mean", "mean")
    return Table(["", *columns], rows, caption=caption, drop=drop, keep=("difference",))


def _scatters(summary: Mapping[str, Any], rows: _RowsByModel) -> Element | str:
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
    drawn = [one for one in charts if one is not None]
    return Element("div", drawn, class_="curves") if drawn else "No grader scored anything."


def _disagreements(summary: Mapping[str, Any], rows: _RowsByModel) -> list[object]:
    """The seeds that the first grader with a weight places most unlike the official score."""
    names = [grader["name"] for grader in summary["graders"] if grader["weight"]]
    if not names:
        return ["There is nothing to compare."]
    found = [
        (gap, model["name"], row)
        for model, own in zip(summary["models"], rows, strict=True)
        for gap, row in _gaps(own, names[0])
    ]
    found.sort(key=lambda one: (-abs(one[0]), one[1], one[2]["seed"]))
    chosen = [one for one in found if abs(one[0]) >= 1][:_MAX_DISAGREEMENTS]
    if not chosen:
        return [f"{names[0]} and the official score place no seed unlike."]
    columns = ["Seed", "Asked and said last", "Official and judges"]
    table = Table(columns, [_disagreement(names[0], *one) for one in chosen], kind="said")
    return [f"Where {names[0]} and the official score place a seed most unlike.", table]


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


def _disagreement(name: str, gap: float, model: str, row: Mapping[str, Any]) -> list[object]:
    texts = [content_text(one.get("content")) for one in row["messages"]]
    said = [
        text
        for text, one in zip(texts, row["messages"], strict=True)
        if one.get("role") == "assistant"
    ]
    asked = next(
        (t for t, one in zip(texts, row["messages"], strict=True) if one.get("role") == "user"), ""
    )
    notes = [f"official {format_number(row['env_reward'])}"]
    for key, detail in (row["details"] or {}).items():
        if isinstance(detail, Mapping):
            notes.append(f"{key}: {_verdict(detail)}")
    higher = "higher" if gap > 0 else "lower"
    return [
        [row["seed"], small(model)],
        [small(_shorten(asked)), quote(_shorten(said[-1] if said else ""))],
        [bold(f"{name} places it {higher}"), small(_shorten("\n".join(notes)))],
    ]


def _verdict(detail: Mapping[str, Any]) -> str:
    if "kind" in detail:
        return f"{detail['kind']}: {detail.get('error', '')}"
    return f"{format_number(detail.get('score', detail.get('rank')))} {detail.get('reason', '')}"


def _shorten(text: str) -> str:
    return text if len(text) <= _MAX_TEXT else text[:_MAX_TEXT] + " …"


def seeds_table(
    summary: Mapping[str, Any], rows: _RowsByModel, most: int = _MAX_ROWS
) -> list[object]:
    """A row a seed: of each model the official score, its scores and the turns."""
    models = summary["models"]
    names = list(models[0]["scores"])
    marks = [f" {place}" if len(models) > 1 else "" for place in range(1, len(models) + 1)]
    caption = "; ".join(
        f"{mark.strip()}: {one['name']}" for mark, one in zip(marks, models, strict=True) if mark
    )
    columns = numeric(
        *(f"{name}{mark}" for mark in marks for name in ("official", *names, "turns"))
    )
    body = [
        [own[0]["seed"], *(cell for row in own for cell in _seed_cells(row, names))]
        for own in list(zip(*rows, strict=True))[:most]
    ]
    left = summary["seeds"] - most
    more = f"{format_integer(left)} more seeds are in episodes.jsonl." if left > 0 else ""
    return [Table(["seed", *columns], body, caption=caption), more]


def _seed_cells(row: Mapping[str, Any], names: Sequence[str]) -> list[object]:
    if row["error"] is not None:
        text = _shorten(f"not played: {row['error']['kind']}: {row['error']['message']}")
        return [Element("td", text, class_="lost", colspan=len(names) + 2)]
    scores = [grader_scores([row], name)[row["seed"]] for name in names]
    cells = [format_number(value) for value in (row["env_reward"], *scores)]
    if names and names[-1] == REWARD_SCORE and row["missing"]:
        cells[-1] = row["missing"]["kind"]
    return [Element("td", cell, class_="n") for cell in (*cells, format_integer(row["turns"]))]
