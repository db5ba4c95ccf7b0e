"""A grading run as one HTML page: no network, no library, charts without script.

What samples say is hostile. It is embedded as JSON only, in a data block whose markup characters
are escaped, and reaches the page through ``textContent``; a content security policy admits this
file's own style and script by hash and nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from adjudge.report.page import (
    Section,
    embed_json,
    notes_section,
    read_asset,
    render_page,
    render_prose,
)
from adjudge.runs.judge_calls import judge_calls_section
from adjudge.runs.report import sections

__all__ = ["ReportRow", "write_grading_report"]

_PACKAGE = "adjudge.runs.report"


class ReportRow(msgspec.Struct, frozen=True, kw_only=True):
    """One sample as the report shows it.

    ``scores``, ``notes`` and ``evaluable`` have one entry per grader in the order of the spec:
    the raw score (``None`` where it failed), the reason (or ``kind: message``), and whether there
    was anything to judge. ``length`` is the response's length in characters. ``prompt`` and
    ``response`` are snippets, cut by the caller. ``reward`` is ``None`` when missing, with
    ``missing_kind`` and ``missing_message`` saying why.
    """

    index: int
    group: str
    reward: float | None
    missing_kind: str | None = None
    missing_message: str | None = None
    env_reward: float | None = None
    length: int
    tool_calls: int
    scores: list[float | None]
    notes: list[str]
    evaluable: list[bool]
    prompt: str
    response: str


def write_grading_report(path: Path, summary: Mapping[str, Any], rows: Sequence[ReportRow]) -> None:
    """Write ``report.html`` of a run to ``path``, UTF-8, in one piece.

    ``summary`` is the run's ``summary.json``; its ``graders`` are in the order of the rows'
    scores. Parts that it lacks are left out of the page. Samples outnumber memory before they
    outnumber the page: the table holds 50,000 rows, of which one page at a time is drawn.
    """
    names = list(summary.get("graders") or {})
    for row in rows:
        if not len(names) == len(row.scores) == len(row.notes) == len(row.evaluable):
            raise ValueError(f"sample {row.index} has scores for other graders than the summary")
    html = render_page(
        "Grading report",
        sections.facts_list(summary),
        _sections(summary, names, rows),
        tiles=sections.summary_tiles(summary, sum(not all(row.evaluable) for row in rows)),
        styles=[(_PACKAGE, "grading.css")],
        script=read_asset(_PACKAGE, "page.js"),
        rows=embed_json(_columns(summary, names, rows)),
    )
    path.write_text(html, encoding="utf-8", newline="\n")


def _sections(
    summary: Mapping[str, Any], names: Sequence[str], rows: Sequence[ReportRow]
) -> list[Section]:
    groups = [row.group for row in rows]
    outcomes = [_finite(row.env_reward) for row in rows]
    reward = sections.ScoreSeries([_finite(row.reward) for row in rows], outcomes, groups)
    scores = [
        sections.ScoreSeries([_finite(row.scores[g]) for row in rows], outcomes, groups)
        for g in range(len(names))
    ]
    agreement = render_prose(
        _PACKAGE,
        "agreement.html",
        compared=bool(summary.get("env_reward")),
        findings=sections.findings_list(summary),
        forest=sections.forest_table(summary),
    )
    panels = sections.grader_panels(summary, reward, scores)
    return [
        Section("agreement", "What a GRPO group sees", agreement, "Agreement"),
        Section(
            "graders",
            "Reward and graders",
            render_prose(_PACKAGE, "graders.html", panels=panels),
            "Graders",
        ),
        Section("missing", "Missing rewards", sections.missing_tables(summary), "Missing"),
        judge_calls_section(summary),
        Section("samples", "Samples", render_prose(_PACKAGE, "samples.html"), "Samples"),
        notes_section(_PACKAGE, metrics=sections.metrics_table(summary)),
    ]


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
            {"where": str(b.get("where", "")), "message": str(b.get("message", ""))} for b in broken
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
