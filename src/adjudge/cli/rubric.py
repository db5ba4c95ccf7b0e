"""``adjudge rubric``: checks of rubric files before a judge is paid to use them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console

from adjudge.checks.rubric_lint import SEVERITIES, LintFinding, lint, list_parts
from adjudge.cli.console import clean, output, print_json
from adjudge.cli.options import JsonSummary
from adjudge.datasets.files import read_rows
from adjudge.errors import ConfigError, GradingFailure, RolloutError
from adjudge.report.table import Table, styled
from adjudge.rubrics import AnyRubric, load_rubric, rubric_from
from adjudge.rubrics.rubric import Rubric
from adjudge.types import MISSING, get_path

_COLUMNS = ("rubrics", "rubric", "criteria", "checklist", "reward_model.rubrics")
_ROWS = (".jsonl", ".ndjson", ".parquet", ".pq")
_SNIPPET = 60
_MAX_SHOWN = 100
_KINDS = {"warning": "lost", "note": "small"}

_LintedRubric = tuple[str, AnyRubric, list[LintFinding]]


def lint_file(
    file: Annotated[
        Path,
        typer.Argument(
            help="A rubric (TOML or JSON), or rows with a rubric each (JSONL, Parquet)."
        ),
    ],
    column: Annotated[
        str | None,
        typer.Option(
            "--column",
            "-c",
            help="The column with the rubric; dots reach into nested columns [default: rubrics, "
            "rubric, criteria, checklist or reward_model.rubrics].",
        ),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit with code 1 for warnings.")
    ] = False,
    as_json: JsonSummary = False,
) -> None:
    """Find criteria that are easy to game, unclear, or counted twice.

    Example: adjudge rubric lint examples/rubric_rows.jsonl

    Reports compound, presence-only, unverifiable and overlapping criteria, points with the wrong
    sign, and rubrics too long for one call. The rules about wording are heuristics for English; a
    finding may be intended.

    Exit code: 1 warnings, with --strict; 2 the file cannot be read as a rubric.
    """
    try:
        places = [(where, rubric, lint(rubric)) for where, rubric in _rubrics(file, column)]
    except GradingFailure as error:
        raise ConfigError(str(error)) from None
    if as_json:
        print_json(_lint_report(file, places))
    else:
        _print(output(), file, places)
    if strict and any(one.severity == "warning" for *_, found in places for one in found):
        raise typer.Exit(1)


def _rubrics(file: Path, column: str | None) -> Iterator[tuple[str, AnyRubric]]:
    if file.suffix.lower() not in _ROWS:
        yield str(file), load_rubric(file)
        return
    for where, row in read_rows([file]):
        if isinstance(row, RolloutError):
            raise row
        yield where, _rubric_of_row(row, column, where)


def _rubric_of_row(row: dict[str, Any], column: str | None, where: str) -> Rubric:
    names = _COLUMNS if column is None else (column,)
    for name in names:
        value = get_path(row, name)
        if value is not MISSING and value is not None:
            return rubric_from(value, where=f"{where}: {name}")
    columns = ", ".join(sorted(map(str, row))[:20])
    raise ConfigError(
        f"{where}: has no column with a rubric (found {columns}; looked for: {', '.join(names)}). "
        "Name the column with --column."
    )


def _lint_report(file: Path, places: list[_LintedRubric]) -> dict[str, Any]:
    counts = Counter(finding.severity for *_, findings in places for finding in findings)
    return {
        "file": str(file),
        "rubrics": len(places),
        "criteria": sum(
            len(part.criteria) for _, rubric, _ in places for _, part in list_parts(rubric)
        ),
        **{f"{severity}s": counts[severity] for severity in SEVERITIES},
        "findings": [
            {"where": where, **msgspec.to_builtins(finding)}
            for where, _, findings in places
            for finding in findings
        ],
    }


def _print(console: Console, file: Path, places: list[_LintedRubric]) -> None:
    report = _lint_report(file, places)
    if report["findings"]:
        console.print(_finding_table(places))
        if (more := len(report["findings"]) - _MAX_SHOWN) > 0:
            console.print(f"[dim]… and {more:,} more (--json has all)[/]")
    counted = ", ".join(f"{report[f'{one}s']:,} {one}s" for one in SEVERITIES)
    rubrics = f" in {len(places):,} rubrics" if len(places) != 1 else ""
    console.print(f"{clean(file)}: {report['criteria']:,} criteria{rubrics}: {counted}")


def _finding_table(places: list[_LintedRubric]) -> Table:
    shown = [(w, r, f) for w, r, findings in places for f in findings]
    shown.sort(key=lambda one: SEVERITIES.index(one[2].severity))
    rows = []
    for where, rubric, one in shown[:_MAX_SHOWN]:
        row = f"{where.rpartition(':')[2]}: " if len(places) > 1 else ""
        label = row + _criterion_label(rubric, one)
        severity = styled(one.severity, _KINDS[one.severity])
        rows.append([severity, one.rule, label, one.message, one.suggestion])
    columns = ["severity", "rule", "criterion", "what", "remedy"]
    return Table(columns, rows, drop=("remedy", "rule"), keep=("criterion", "what"))


def _criterion_label(rubric: AnyRubric, finding: LintFinding) -> str:
    """The part of a bundle, the criterion's id and the start of its text."""
    if finding.criterion is None:
        return finding.part
    texts = {
        (name, criterion.id): criterion.text
        for name, part in list_parts(rubric)
        if isinstance(part, Rubric)
        for criterion in part.criteria
    }
    text = " ".join(texts[finding.part, finding.criterion].split())
    shown = f"{text[:_SNIPPET]}{'…' if len(text) > _SNIPPET else ''}"
    return f"{finding.part} {finding.criterion} {shown}".strip()
