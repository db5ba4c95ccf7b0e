"""``adjudge grade --dry-run``: what a run would ask, as tables."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import typer
from rich.table import Table

from adjudge.cli.consoles import clean, output, print_json
from adjudge.graders.registry import SHIPPED
from adjudge.rewards.built import check_machine
from adjudge.rewards.spec import RewardSpec
from adjudge.rollouts.rows import count_rows
from adjudge.runs.estimate import EPISODES, estimate, scenarios
from adjudge.runs.grading import GradingJob, first_samples

__all__ = ["print_estimate"]

_LOOKED_AT = 200


def print_estimate(job: GradingJob, *, as_json: bool) -> None:
    """Estimate from the first samples, and print per sample, per 1,000 episodes and in all."""
    check_machine(job.spec, _shipped(job.spec))
    rows = count_rows(job.paths)
    samples, groups = first_samples(job, _LOOKED_AT)
    asked = estimate(job.spec, samples, groups)
    unknown = {name: one.why for name, one in asked.items() if one.why}
    found = list(scenarios(job.spec, asked, len(samples))) if asked and not unknown else []
    if as_json:
        report = {
            "rows": rows,
            "looked_at": len(samples),
            "graders": {name: asdict(one) for name, one in asked.items()},
            "scenarios": found,
        }
        print_json(report)
        return
    console = output()
    if not asked:
        console.print("no grader asks a judge: nothing to estimate")
        return
    if unknown:
        for name, why in unknown.items():
            console.print(f"{clean(name)} cannot be asked about these samples: {clean(why)}")
        console.print("nothing is estimated without it")
        raise typer.Exit(2)
    console.print(
        f"{rows:,} samples, estimated from the first {len(samples):,}; output and cost are the "
        "most that max_tokens allows, without retries and prefix caches"
    )
    console.print(_scenarios(found, rows))
    for name, one in asked.items():
        per = one.calls / len(samples)
        console.print(f"[dim]{clean(name)} ({one.scope}): {per:.2f} calls a sample[/]")


def _shipped(spec: RewardSpec) -> dict[str, Any]:
    """The graders that are built; a user's own code is not run for an estimate."""
    judges = spec.build_judges()
    shipped = [entry for entry in spec.graders if entry.type in SHIPPED]
    return {entry.name: spec.build_grader(entry, judges) for entry in shipped}


def _scenarios(found: list[dict[str, Any]], rows: int) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("", overflow="fold")
    for heading in ("calls", "tokens in", "tokens out", "USD a sample",
                    f"USD per {EPISODES:,} episodes", "USD in all"):  # fmt: skip
        table.add_column(heading, justify="right")
    for row in found:
        table.add_row(
            clean(row["scenario"]),
            f"{row['calls']:.2f}",
            f"{row['input_tokens']:,.0f}",
            f"≤ {row['output_tokens']:,.0f}",
            *(_usd(row["cost_usd"], times) for times in (1, EPISODES, rows)),
        )
    return table


def _usd(cost: float | None, times: int) -> str:
    return "no price" if cost is None else f"≤ {cost * times:.4g}"
