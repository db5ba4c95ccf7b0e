"""A validation of judges as tables that a person can read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from adjudge.cli.consoles import clean
from adjudge.judge_training.validating.run import ValidationJob
from adjudge.judge_training.validating.summary import contamination_line

__all__ = ["contaminated_lines", "print_validation"]

_DASH = "–"
_MOST_PROBLEMS = 5

Entry = Mapping[str, Any]


def contaminated_lines(summary: Entry) -> list[str]:
    """A line for each judge that has seen items of the benchmark."""
    items = summary["benchmark"]["items"]
    lines = [
        contamination_line(one["name"], one["contamination"], items) for one in summary["judges"]
    ]
    return [line for line in lines if line]


def print_validation(console: Console, job: ValidationJob) -> None:
    """Contamination first, then scores, subsets, orders, calibration, lengths, comparisons."""
    summary = job.summary
    about, judges = summary["benchmark"], summary["judges"]
    for line in contaminated_lines(summary):
        console.print(f"[bold red]{clean(line)}[/]", soft_wrap=True)
    if about["local"]:
        console.print("[yellow]Self-made items of the shape alone: no score of the benchmark.[/]")
    console.print(
        f"[bold]{clean(about['title'])}[/]: {about['items']:,} items, "
        f"{len(about['subsets'])} subsets  ·  {summary['seconds']:.1f} s"
    )
    for judge in judges:
        console.print(_scores(judge))
    for table in (_orders(judges), _calibration(judges), _lengths(judges), _compared(summary)):
        if table.row_count:
            console.print(table)
    for judge in judges:
        if judge["why"]:
            console.print(f"[yellow]{clean(judge['name'])}: {clean(judge['why'])}[/]")
        for kind, message in judge["first_failures"].items():
            said = f"{judge['name']}: the first {kind}: {message}"
            console.print(f"[yellow]{clean(said)}[/]", soft_wrap=True)
        console.print(f"[dim]{clean(_seen(judge))}[/]", soft_wrap=True)
    for line in about["unusable"]["first"][:_MOST_PROBLEMS]:
        console.print(f"[yellow]unusable[/] {clean(line)}", soft_wrap=True)
    console.print(
        f"[dim]overall: {clean(about['official'])}; 95 % bootstrap intervals over items; what "
        "failed is missing: least/most is the score if all of it were wrong, or right; own is what "
        "the benchmark's own script would say.[/]"
    )
    console.print(f"\n[bold]{clean(job.folder)}/[/]  judgements.jsonl  summary.json  report.html")


def _table(title: str, headings: Sequence[str]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", title_justify="left")
    table.title, table.title_style = (clean(title), "bold") if title else (None, "")
    table.add_column("", overflow="fold")
    for heading in headings:
        whole = heading != "missing"
        table.add_column(clean(heading), justify="right", overflow="fold", no_wrap=whole)
    return table


def _scores(judge: Entry) -> Table:
    """One judge overall and by subset."""
    pairs = judge["mode"] == "pairwise"
    headings = ["score", "95 %", "items", "missing", "least/most", "own"]
    table = _table(f"{judge['name']} ({judge['mode']})", headings + ["agrees"] * pairs)
    table.add_row("[bold]overall[/]", *_row(judge["overall"], pairs=pairs))
    if len(judge["subsets"]) > 1 or judge["why"]:
        for name, one in judge["subsets"].items():
            table.add_row(clean(name), *_row(one, pairs=pairs))
    return table


def _row(one: Entry, *, pairs: bool) -> list[str]:
    low, high, least = one["low"], one["high"], one["at_least"]
    interval = _DASH if low is None else f"{low:.3f} to {high:.3f}"
    bounds = "" if least is None or not one["missing"] else f"{least:.3f}/{one['at_most']:.3f}"
    kinds = ", ".join(f"{kind} {count:,}" for kind, count in one["failures"].items())
    gone = f"[yellow]{clean(kinds)}[/]" if kinds else "0"
    cells = [_n(one["score"], 4), interval, f"{one['items']:,}", gone, bounds, _n(one["own"], 4)]
    return [*cells, _n(one["orders"]["consistency"])] if pairs else cells


def _orders(judges: Sequence[Entry]) -> Table:
    headings = ("given", "swapped", "both", "equal", "kappa", "1st/2nd", "p", "ties")
    table = _table("right in both orders, and named by position in both", headings)
    for judge in judges:
        one = judge["overall"]["orders"]
        if one is not None and judge["mode"] == "pairwise":
            table.add_row(
                clean(judge["name"]),
                *(f"{one[key]:,}" for key in ("right_as_given", "right_swapped", "both_right")),
                f"{one['agreeing']:,}",
                _n(one["kappa"], 4),
                f"{one['primacy']:,}/{one['recency']:,}",
                _n(one["position_p"], 4),
                f"{one['ties']:,}",
            )
    return table


def _calibration(judges: Sequence[Entry]) -> Table:
    headings = ("read as", "pairs", "error", "Brier", "log loss")
    table = _table("calibration", headings)
    for judge in judges:
        rows = [(judge["name"], judge["scale"], judge["calibration"])]
        if own := judge["calibrated"]:
            rows.append((f"{judge['name']}, by its card", own["by"], own))
        for name, scale, one in rows:
            if one:
                loss = "∞" if one["ruled_out"] else _n(one["log_loss"])
                numbers = [_n(one["ece"]), _n(one["brier"]), loss]
                table.add_row(clean(name), scale, f"{one['pairs']:,}", *numbers)
    return table


def _lengths(judges: Sequence[Entry]) -> Table:
    headings = ("r", "rho", "picks it", "is better", "right if so", "if not")
    keys = ("pearson", "spearman", "prefers_longer", "better_is_longer", "accuracy_longer",
            "accuracy_shorter")  # fmt: skip
    table = _table("the longer answer", headings)
    for judge in judges:
        if one := judge["lengths"]:
            table.add_row(clean(judge["name"]), *(_n(one[key]) for key in keys))
    return table


def _compared(summary: Entry) -> Table:
    headings = ("difference", "95 %", "p", "only right", "McNemar p", "items")
    table = _table("compared on what both answered", headings)
    for one in summary["compared"]:
        low, high = one["interval"]["low"], one["interval"]["high"]
        table.add_row(
            clean(f"{one['a']} - {one['b']}"),
            _n(one["difference"]),
            _DASH if low is None else f"{low:.3f} to {high:.3f}",
            _n(one["p"], 4),
            f"{one['only_a_right']:,}/{one['only_b_right']:,}",
            _n(one["mcnemar_p"], 4),
            f"{one['items']:,}",
        )
    return table


def _seen(judge: Entry) -> str:
    one = judge["contamination"]
    notes = "; ".join(one["notes"])
    if one["compared"] == "nothing":
        return f"{judge['name']}: not checked for contamination: {notes}"
    parts = {"ids": " (only ids were compared)", "rows in part": " (of the files still there)"}
    only = parts.get(one["compared"], "")
    return f"{judge['name']}: {one['seen']:,} items seen in training{only}; {notes}"


def _n(value: float | None, digits: int = 3) -> str:
    if value is None:
        return _DASH
    text = f"{value:.{digits}f}"
    return text if value == 0 or float(text) else f"{value:.1e}"  # no p is 0.0000
