"""What a validation came to, as plain data for ``summary.json``, tables and the report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from adjudge.judge_training.benchmarks.compare import JudgesCompared
from adjudge.judge_training.benchmarks.items import Benchmark
from adjudge.judge_training.benchmarks.pairs import Orders
from adjudge.judge_training.benchmarks.report import BenchmarkReport, SubsetReport
from adjudge.judge_training.validating.contamination import Contamination
from adjudge.judge_training.validating.materials import Material

__all__ = [
    "OFFICIAL",
    "compared_entry",
    "contamination_entry",
    "contamination_line",
    "judge_entry",
    "material_entry",
]

OFFICIAL = {
    "rewardbench2": "unweighted mean of six subsets: best of 4, and the Ties score",
    "llmbar": "unweighted mean of the subsets: accuracy averaged over both orders",
    "judgebench": "pairs with more right than wrong verdicts over both orders",
    "preference": "accuracy over both orders, a tie is half",
}
"""What the overall score is, by kind of benchmark."""

_MOST_PROBLEMS = 20


def material_entry(material: Material) -> dict[str, Any]:
    """What was asked about."""
    benchmark = material.benchmark
    counts = dict.fromkeys(benchmark.subsets, 0)
    for item in benchmark.items:
        counts[item.subset] += 1
    problems = benchmark.problems
    return {
        "kind": benchmark.kind,
        "title": benchmark.title or benchmark.kind,
        "official": OFFICIAL[benchmark.kind],
        "local": material.local,
        "files": material.files,
        "items": len(benchmark.items),
        "subsets": counts,
        "unusable": {
            "rows": len(problems),
            "first": [f"{one.where}: {one.reason}" for one in problems[:_MOST_PROBLEMS]],
        },
    }


def judge_entry(report: BenchmarkReport, benchmark: Benchmark, **facts: Any) -> dict[str, Any]:
    """One judge: its score, by subset, and what else is known of it; ``facts`` come first."""
    subsets = {name: _cell(one, benchmark) for name, one in report.subsets.items()}
    overall = _cell(report.overall, benchmark)
    if benchmark.kind == "llmbar":
        own = [one["own"] for one in subsets.values() if one["own"] is not None]
        overall["own"] = sum(own) / len(own) if len(own) == len(subsets) else None
    return {
        "name": report.judge,
        **facts,
        "overall": overall,
        "why": report.why,
        "subsets": subsets,
        "margins": msgspec.to_builtins(report.margins),
        "calibration": msgspec.to_builtins(report.calibration),
        "lengths": msgspec.to_builtins(report.lengths),
    }


def compared_entry(one: JudgesCompared) -> dict[str, Any]:
    """Two judges on what both answered."""
    found: dict[str, Any] = msgspec.to_builtins(one)
    return found


def contamination_line(name: str, found: Mapping[str, Any], items: int) -> str:
    """``CONTAMINATED: …`` for a judge that has seen items; empty for one that has not."""
    seen = sum(found["items"].values())
    if not seen:
        return ""
    subsets = ", ".join(f"{subset} {count:,}" for subset, count in found["items"].items())
    return f"CONTAMINATED: {name} was trained on {seen:,} of {items:,} items ({subsets})"


def contamination_entry(found: Contamination) -> dict[str, Any]:
    """What a judge has seen of the items."""
    return {**msgspec.to_builtins(found), "seen": found.seen}


def _cell(one: SubsetReport, benchmark: Benchmark) -> dict[str, Any]:
    """A score beside its interval, its bounds, and what is missing by kind."""
    share = one.share
    return {
        "score": share.accuracy_of_answered,
        "low": one.interval.low,
        "high": one.interval.high,
        "why": one.interval.why,
        "at_least": share.low,
        "at_most": share.high,
        "items": share.items,
        "answered": share.answered,
        "missing": share.missing,
        "failures": dict(one.failures),
        "own": _own(one, benchmark),
        "orders": None if one.orders is None else _orders(one.orders, one.kappa),
    }


def _own(one: SubsetReport, benchmark: Benchmark) -> float | None:
    """What the benchmark's own script would print, failures counted as it counts them."""
    if benchmark.kind == "rewardbench2":
        return one.script
    if one.orders is None or benchmark.kind == "preference":
        return None
    if benchmark.kind == "judgebench":
        return one.orders.two_order_score
    return one.orders.averaged_accuracy


def _orders(orders: Orders, kappa: float | None) -> dict[str, Any]:
    counts: dict[str, Any] = msgspec.to_builtins(orders)
    return {
        **counts,
        "agreeing": orders.agreeing,
        "consistency": orders.consistency,
        "position_p": orders.position_p,
        "kappa": kappa,
    }
