"""What judges would be asked and cost, printed in place of asking them: ``--dry-run``."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated

import msgspec
import typer

from adjudge.cli.console import clean, errors, output, print_json
from adjudge.report.elements import bold
from adjudge.report.table import Table, numeric
from adjudge.runs.judge_calls import JudgeCallEstimate

DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run",
        help="Estimate calls, tokens and cost, and stop.",
    ),
]


def print_call_estimates(
    found: Mapping[str, JudgeCallEstimate],
    *,
    as_json: bool,
    of: str = "judge",
    facts: Mapping[str, object] = MappingProxyType({}),
) -> None:
    """A row for each judge, or what else ``of`` says, and their sum; ``facts`` are for ``--json``.

    Exit code 2 where a judge cannot be asked.
    """
    in_all = JudgeCallEstimate("outcome")
    for one in found.values():
        in_all.add_all(one)
    if as_json:
        print_json(
            {
                **facts,
                "graders" if of == "grader" else "judges": {
                    name: msgspec.to_builtins(one) for name, one in found.items()
                },
                "in_all": msgspec.to_builtins(in_all),
            }
        )
    else:
        rows: list[list[object]] = [[name, *_cells(one)] for name, one in found.items()]
        if len(rows) > 1:
            rows.append([bold("in all"), *_cells(in_all)])
        columns = [of, *numeric("calls", "tokens in", "tokens out", "USD")]
        console = output()
        console.print(Table(columns, rows, keep=("calls", "USD")))
        console.print(
            "[dim]Nobody was asked. Tokens out and cost are upper bounds by max_tokens, without "
            "retries, caches and what a run folder already has.[/]"
        )
    if in_all.why:
        for name, one in found.items():
            if one.why:
                errors().print(f"{clean(name)} cannot ask about these: {clean(one.why)}")
        raise typer.Exit(2)


def _cells(one: JudgeCallEstimate) -> list[str]:
    cost = "no price" if one.cost_usd is None else f"≤ {one.cost_usd:,.4g}"
    cost = cost if one.calls else "0"
    return [f"{one.calls:,}", f"{one.input_tokens:,}", f"≤ {one.output_tokens:,}", cost]
