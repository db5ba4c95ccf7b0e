"""A grading run as one HTML page: no network, no library, charts without script.

What samples say is hostile. It is embedded as JSON only, in a data block whose markup characters
are escaped, and reaches the page through ``textContent``; a content security policy admits this
file's own style and script by hash and nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import msgspec

from adjudge.files import atomic_write
from adjudge.report.elements import format_integer
from adjudge.report.page import (
    SafeHtml,
    Section,
    embed_json,
    notes_section,
    read_asset,
    read_script,
    render_page,
    render_prose,
)
from adjudge.runs.judge_calls import judge_calls_section
from adjudge.runs.noise import noise_section
from adjudge.runs.report.rows import CHOICE, STORY_CHOICE, ReportRow, ReportRows, cut_text
from adjudge.runs.report.sections import (
    ScoreSeries,
    facts_list,
    findings_list,
    forest_table,
    grader_panels,
    metrics_table,
    missing_tables,
    summary_tiles,
)

__all__ = ["ReportRow", "ReportRows", "ReportSeries", "write_grading_report"]

_PACKAGE, _FRAME = "adjudge.runs.report", "adjudge.report"


class ReportSeries(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of all samples, from which the charts are drawn; one entry a sample each.

    ``scores``: a sequence a grader. ``unevaluable``: how many samples a grader had nothing to
    judge in.
    """

    reward: Sequence[float | None]
    scores: Sequence[Sequence[float | None]]
    outcomes: Sequence[float | None]
    groups: Sequence[Hashable]
    unevaluable: int

    @classmethod
    def of_rows(cls, rows: Sequence[ReportRow], graders: int) -> Self:
        """Those of a page that has all samples in its table."""
        return cls(
            reward=[_finite(row.reward) for row in rows],
            scores=[[_finite(row.scores[g]) for row in rows] for g in range(graders)],
            outcomes=[_finite(row.env_reward) for row in rows],
            groups=[row.group for row in rows],
            unevaluable=sum(not all(row.evaluable) for row in rows),
        )


def write_grading_report(
    path: Path,
    summary: Mapping[str, Any],
    rows: Sequence[ReportRow],
    series: ReportSeries | None = None,
    stories: Mapping[str, Any] | None = None,
) -> None:
    """Write ``report.html`` of a run to ``path``, UTF-8, in one piece.

    ``summary`` is the run's ``summary.json``; its ``graders`` are in the order of the rows'
    scores. Parts that it lacks are left out of the page. ``rows``: the samples of the table, all or
    those that :class:`ReportRows` chose, of which one page at a time is drawn; with fewer rows
    than samples, ``series`` has the numbers of all. ``stories`` are the samples in full.
    """
    names = list(summary.get("graders") or {})
    for row in rows:
        if not len(names) == len(row.scores) == len(row.notes) == len(row.evaluable):
            raise ValueError(f"sample {row.index} has scores for other graders than the summary")
    series = series or ReportSeries.of_rows(rows, len(names))
    html = render_page(
        "Grading report",
        facts_list(summary),
        _sections(summary, series, len(rows), stories or {}),
        tiles=summary_tiles(summary, series.unevaluable),
        styles=[(_FRAME, "sample.css"), (_PACKAGE, "grading.css")],
        script=read_script(_PACKAGE, "page.js", shared=("transcript", "verdicts", "sample")),
        rows=embed_json({**_columns(summary, names, rows), "stories": stories or {}}),
    )
    atomic_write(path, html.encode())


def _sections(
    summary: Mapping[str, Any], series: ReportSeries, shown: int, stories: Mapping[str, Any]
) -> list[Section]:
    reward, *scores = (
        ScoreSeries(values, series.outcomes, series.groups)
        for values in (series.reward, *series.scores)
    )
    agreement = render_prose(
        _PACKAGE,
        "agreement.html",
        compared=bool(summary.get("env_reward")),
        findings=findings_list(summary),
        forest=forest_table(summary),
    )
    return [
        Section("agreement", "What a GRPO group sees", agreement, "Agreement"),
        Section("graders", "Reward and graders", grader_panels(summary, reward, scores), "Graders"),
        Section("missing", "Missing rewards", missing_tables(summary), "Missing"),
        noise_section(summary),
        judge_calls_section(summary),
        Section("story", "", _in_full(summary, stories), "In full"),
        Section("samples", "Samples", _samples(summary, shown), "Samples"),
        notes_section(_PACKAGE, metrics=metrics_table(summary)),
    ]


def _in_full(summary: Mapping[str, Any], stories: Mapping[str, Any]) -> SafeHtml | None:
    """The place of the samples in full; nothing where the page has none."""
    if not (count := len(stories.get("samples") or ())):
        return None
    total = summary.get("samples") or 0
    choice = "all" if count >= total else STORY_CHOICE
    return render_prose(
        _PACKAGE,
        "stories.html",
        count=format_integer(count),
        total=format_integer(total),
        choice=choice,
    )


def _samples(summary: Mapping[str, Any], shown: int) -> list[SafeHtml | str]:
    """The table's place, after what is in it where that is not all."""
    table, total = read_asset(_PACKAGE, "samples.html"), summary.get("samples") or 0
    if shown >= total:
        return [table]
    of = f"{format_integer(shown)} of {format_integer(total)} samples are here: {CHOICE}"
    return [f"{of}. rewards.jsonl has all.", table]


def _columns(
    summary: Mapping[str, Any], names: Sequence[str], rows: Sequence[ReportRow]
) -> dict[str, Any]:
    """The rows column by column, repeated texts stored once."""
    counted = all(row.index == place for place, row in enumerate(rows))
    has_env = any(row.env_reward is not None for row in rows)
    broken = (summary.get("broken_rows") or {}).get("first") or []
    every = range(len(names))
    return {
        "count": len(rows),
        "total": max(len(rows), summary.get("samples") or 0),
        "graders": names,
        "index": None if counted else [row.index for row in rows],
        "group": _deduplicate_texts([row.group for row in rows]),
        "reward": [_six_digits(row.reward) for row in rows],
        "missing_kind": _deduplicate_texts([row.missing_kind or "" for row in rows]),
        "missing_message": _deduplicate_texts([row.missing_message or "" for row in rows]),
        "env_reward": [_six_digits(row.env_reward) for row in rows] if has_env else None,
        "length": [row.length for row in rows],
        "tool_calls": [row.tool_calls for row in rows],
        "scores": [[_six_digits(row.scores[g]) for row in rows] for g in every],
        "notes": [_deduplicate_texts([row.notes[g] for row in rows]) for g in every],
        "not_evaluable": [[i for i, row in enumerate(rows) if not row.evaluable[g]] for g in every],
        "prompt": _deduplicate_texts([row.prompt for row in rows]),
        "response": _deduplicate_texts([row.response for row in rows]),
        "broken": [
            {key: cut_text(str(one.get(key, ""))) for key in ("where", "message")} for one in broken
        ],
    }


def _deduplicate_texts(values: Sequence[str]) -> dict[str, Any]:
    """Distinct texts and one id a row; the plain list where hardly any text repeats."""
    ids: dict[str, int] = {}
    places = [ids.setdefault(value, len(ids)) for value in values]
    if len(ids) > 0.7 * len(values):
        return {"texts": list(values)}
    return {"texts": list(ids), "ids": places}


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _six_digits(value: float | None) -> float | None:
    """Six significant digits: the page shows three decimals, ``rewards.jsonl`` has them all."""
    return None if (finite := _finite(value)) is None else float(f"{finite:.6g}")
