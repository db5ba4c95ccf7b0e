"""The report's section on judge calls; empty for a run without judges."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from adjudge.runs.calls import endpoint_name, endpoint_rows, hedge_note
from adjudge.runs.report.charts import esc

__all__ = ["section"]


def section(summary: Mapping[str, Any]) -> str:
    """One table per endpoint, and what hedge winners did to the scores."""
    endpoints = summary.get("endpoints") or []
    graders = summary.get("graders") or {}
    notes = [
        hedge_note(name, grader["judge"]) for name, grader in graders.items() if grader.get("judge")
    ]
    if not endpoints:
        return ""
    tables = "".join(map(_table, endpoints))
    said = "".join(f"<p>{esc(note)}.</p>" for note in notes if note)
    title = "<h2>Judge calls</h2>"
    return f'<section id="calls">{title}<div class="calls">{tables}</div>{said}</section>'


def _table(endpoint: Mapping[str, Any]) -> str:
    rows = "".join(
        f'<tr><th scope="row">{esc(label)}</th><td class="n">{esc(text)}</td></tr>'
        for label, text in endpoint_rows(endpoint)
    )
    return (
        f'<table class="metrics"><caption>{esc(endpoint_name(endpoint))}</caption>'
        f"<tbody>{rows}</tbody></table>"
    )
