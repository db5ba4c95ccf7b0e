"""A grading run as one HTML page: no network, no library, charts without script.

What samples say is hostile. It is embedded as JSON only, in a data block whose markup characters
are escaped, and reaches the page through ``textContent``; a content security policy admits this
file's own style and script by hash and nothing else.

Some samples stand in full beside the table, with transcript, verdicts and what the judges were
shown: those that a reader would look for.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from heapq import nlargest, nsmallest
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

from adjudge.errors import AdjudgeError
from adjudge.files import atomic_write
from adjudge.report.page import (
    SafeHtml,
    Section,
    embed_json,
    format_integer,
    notes_section,
    read_asset,
    read_script,
    render_page,
    render_prose,
)
from adjudge.runs.report.sections import (
    facts_list,
    findings_list,
    forest_table,
    grader_panels,
    missing_tables,
    summary_tiles,
)
from adjudge.runs.report.tables import judge_calls_section, noise_section
from adjudge.runs.rows import CHOICE, GradedRow, RowTexts, cut_text
from adjudge.runs.sample_index import RolloutIndex
from adjudge.runs.samples import RunSamples, describe_sample, list_disagreements
from adjudge.runs.summary import GradingTotals

_PACKAGE, _FRAME = "adjudge.runs.report", "adjudge.report"
MAX_STORIES = 60
MAX_STORY_BYTES = 1_300_000
"""What the samples in full may take in the page."""
_FULL_EXTREMES, _FULL_EACH_KIND = 8, 4
STORY_CHOICE = (
    f"the worst disagreements, {_FULL_EACH_KIND} of each kind of missing reward, the "
    f"{_FULL_EXTREMES} lowest and the {_FULL_EXTREMES} highest rewards; of these, "
    f"{MAX_STORIES} or as many as fit into {MAX_STORY_BYTES / 1e6:.1f} MB"
)


def write_grading_report(
    path: Path,
    summary: Mapping[str, Any],
    rows: Sequence[GradedRow],
    series: GradingTotals,
    stories: Mapping[str, Any] | None = None,
) -> None:
    """Write ``report.html`` of a run to ``path``, UTF-8, in one piece.

    ``summary`` is the run's ``summary.json``; its ``graders`` are in the order of the rows'
    scores. Parts that it lacks are left out of the page. ``rows``: the samples of the table, all or
    those that :class:`.ReportRows` chose, of which one page at a time is drawn; ``series`` has the
    numbers of all. ``stories`` are the samples in full.
    """
    names = list(summary.get("graders") or {})
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
    summary: Mapping[str, Any],
    series: GradingTotals,
    shown: int,
    stories: Mapping[str, Any],
) -> list[Section]:
    agreement = render_prose(
        _PACKAGE,
        "agreement.html",
        compared=bool(summary.get("env_reward")),
        findings=findings_list(summary),
        forest=forest_table(summary),
    )
    count, total = len(stories.get("samples") or ()), summary.get("samples") or 0
    in_full = render_prose(
        _PACKAGE,
        "stories.html",
        count=format_integer(count),
        total=format_integer(total),
        choice="all" if count >= total else STORY_CHOICE,
    )
    return [
        Section("agreement", "What a GRPO group sees", agreement, "Agreement"),
        Section("graders", "Reward and graders", grader_panels(summary, series), "Graders"),
        Section("missing", "Missing rewards", missing_tables(summary), "Missing"),
        noise_section(summary),
        judge_calls_section(summary),
        Section("story", "", count and in_full, "In full"),
        Section("samples", "Samples", _samples(summary, shown), "Samples"),
        notes_section(_PACKAGE),
    ]


def _samples(summary: Mapping[str, Any], shown: int) -> list[SafeHtml | str]:
    """The table's place, after what is in it where that is not all."""
    table, total = read_asset(_PACKAGE, "samples.html"), summary.get("samples") or 0
    if shown >= total:
        return [table]
    of = f"{format_integer(shown)} of {format_integer(total)} samples are here: {CHOICE}"
    return [f"{of}. rewards.jsonl has all.", table]


def _columns(
    summary: Mapping[str, Any], names: Sequence[str], rows: Sequence[GradedRow]
) -> dict[str, Any]:
    """The rows column by column, repeated texts stored once."""
    counted = all(row.index == place for place, row in enumerate(rows))
    has_env = any(row.env_reward is not None for row in rows)
    broken = (summary.get("broken_rows") or {}).get("first") or []
    texts = [RowTexts.of(row, names) for row in rows]
    return {
        "count": len(rows),
        "total": max(len(rows), summary.get("samples") or 0),
        "graders": names,
        "index": None if counted else [row.index for row in rows],
        "group": _deduplicate_texts([row.group for row in texts]),
        "reward": [_six_digits(row.reward) for row in rows],
        "missing_kind": _deduplicate_texts([row.missing_kind for row in texts]),
        "missing_message": _deduplicate_texts([row.missing_message for row in texts]),
        "env_reward": [_six_digits(row.env_reward) for row in rows] if has_env else None,
        "length": [row.length for row in rows],
        "tool_calls": [row.tool_calls for row in rows],
        "scores": [[_six_digits(row.scores.get(name)) for row in rows] for name in names],
        "notes": [
            _deduplicate_texts([row.notes[place] for row in texts]) for place in range(len(names))
        ],
        "not_evaluable": [
            [place for place, row in enumerate(rows) if not row.is_evaluable(name)]
            for name in names
        ],
        "prompt": _deduplicate_texts([row.prompt for row in texts]),
        "response": _deduplicate_texts([row.response for row in texts]),
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


def _six_digits(value: float | None) -> float | None:
    """Six significant digits: the page shows three decimals, ``rewards.jsonl`` has them all."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.6g}")


# --- samples in full ------------------------------------------------------------------------------


def choose_stories(run: RunSamples) -> dict[str, Any]:
    """What the page of a finished grading run has of its samples in full.

    ``samples`` by link, as the live page gets them; ``disagreements``: the worst.
    """
    worst = list_disagreements(run)
    left, samples = MAX_STORY_BYTES, dict[str, Any]()
    for row in _choose_rows(run.rollouts, [one["row"] for one in worst["worst"]]):
        if len(samples) == MAX_STORIES:
            break
        try:
            found = describe_sample(run, row)
        except AdjudgeError:  # the folder's transcripts are damaged; the page goes without
            continue
        size = len(embed_json({"": found}).encode())
        if found is not None and size <= left:
            left -= size
            samples[found["link"]] = found
    return {"disagreements": worst, "samples": samples}


def _choose_rows(rollouts: RolloutIndex, worst: Sequence[int]) -> Iterator[int]:
    """Rows of each sort in turns, each once; the first is the worst disagreement."""
    kinds: dict[int, list[int]] = {}
    for row, failed in enumerate(rollouts.failed):
        of_kind = kinds.setdefault(rollouts.kind_of[row], []) if failed else []
        if failed and len(of_kind) < _FULL_EACH_KIND:
            of_kind.append(row)
    present = [row for row, value in enumerate(rollouts.reward) if not math.isnan(value)]
    low, high = (
        end(_FULL_EXTREMES, present, rollouts.reward.__getitem__) for end in (nsmallest, nlargest)
    )
    turns = zip_longest(worst, *kinds.values(), low, high)
    rest = range(min(len(rollouts), MAX_STORIES))
    chosen = chain((row for turn in turns for row in turn if row is not None), rest)
    yield from dict.fromkeys(chosen)
