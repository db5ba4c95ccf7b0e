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

from adjudge.report.page import (
    Section,
    embed_json,
    notes_section,
    read_asset,
    read_script,
    render_page,
    render_prose,
)
from adjudge.runs.judge_calls import judge_calls_section
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


MAX_ROWS, MAX_CHARS = 20_000, 20_000_000


class ReportRows:
    """The samples of the page's table: the first 20,000, or 20 million characters of their texts.

    A browser takes seconds for a page of that size, and minutes for one of a million samples.
    """

    def __init__(self) -> None:
        self.rows: list[ReportRow] = []
        self._room = MAX_CHARS

    @property
    def has_room(self) -> bool:
        """Whether another sample goes in; once it does not, none does."""
        return self._room > 0 and len(self.rows) < MAX_ROWS

    def append(self, row: ReportRow) -> None:
        """Add the next sample."""
        self.rows.append(row)
        self._room -= len(row.prompt) + len(row.response) + sum(map(len, row.notes))


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
) -> None:
    """Write ``report.html`` of a run to ``path``, UTF-8, in one piece.

    ``summary`` is the run's ``summary.json``; its ``graders`` are in the order of the rows'
    scores. Parts that it lacks are left out of the page. ``rows``: the samples of the table, all or
    the first (:class:`ReportRows`), of which one page at a time is drawn; with fewer rows than
    samples, ``series`` has the numbers of all.
    """
    names = list(summary.get("graders") or {})
    for row in rows:
        if not len(names) == len(row.scores) == len(row.notes) == len(row.evaluable):
            raise ValueError(f"sample {row.index} has scores for other graders than the summary")
    series = series or ReportSeries.of_rows(rows, len(names))
    html = render_page(
        "Grading report",
        facts_list(summary, shown=len(rows)),
        _sections(summary, series),
        tiles=summary_tiles(summary, series.unevaluable),
        styles=[(_PACKAGE, "grading.css")],
        script=read_script(_PACKAGE, "page.js"),
        rows=embed_json(_columns(summary, names, rows)),
    )
    path.write_text(html, encoding="utf-8", newline="\n")


def _sections(summary: Mapping[str, Any], series: ReportSeries) -> list[Section]:
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
    panels = grader_panels(summary, reward, scores)
    return [
        Section("agreement", "What a GRPO group sees", agreement, "Agreement"),
        Section(
            "graders",
            "Reward and graders",
            render_prose(_PACKAGE, "graders.html", panels=panels),
            "Graders",
        ),
        Section("missing", "Missing rewards", missing_tables(summary), "Missing"),
        judge_calls_section(summary),
        Section("samples", "Samples", read_asset(_PACKAGE, "samples.html"), "Samples"),
        notes_section(_PACKAGE, metrics=metrics_table(summary)),
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
