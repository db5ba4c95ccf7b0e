"""The card as Markdown, for a pull request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from adjudge.studies.probes.card import Finding
from adjudge.studies.probes.words import (
    about_many,
    effect_text,
    interval_text,
    limit_text,
    note,
    verdict_line,
)

__all__ = ["markdown"]

_MARKS = {"pass": "pass", "fail": "**FAIL**", "uncertain": "uncertain", "not applicable": "–"}


def markdown(card: Mapping[str, Any], findings: Sequence[Finding]) -> str:
    """A heading, a table of the probes, and how to read it."""
    grader = card["grader"]
    judges = ", ".join(grader["models"]) or "no judge"
    lines = [
        f"# Probes of `{_cell(grader['name'])}`",
        "",
        (
            f"{_cell(judges)}: {verdict_line(card)}. {card['topics']} topics, "
            f"{card['questions']:,} questions, {card['missing']['count']:,} without an answer."
        ),
        "",
        "| probe | verdict | effect | interval | allowed | unit | items | note |",
        "|---|---|---:|---:|---:|---|---:|---|",
    ]
    for one in findings:
        allowed = "" if one.verdict == "not applicable" else limit_text(one)
        cells = (one.probe, _MARKS[one.verdict], effect_text(one), interval_text(one), allowed,
                 one.unit, one.n or "", note(one))  # fmt: skip
        lines.append("| " + " | ".join(_cell(str(cell)) for cell in cells) + " |")
    lines += ["", about_many(card), ""]
    lines += [f"- `{one.probe}`: {one.what}; {one.measures}." for one in findings]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    """Text of others without line ends, markup of tables or HTML."""
    plain = "".join(c if c.isprintable() else " " for c in text)
    return plain.replace("|", "\\|").replace("<", "&lt;").replace("`", "'")
