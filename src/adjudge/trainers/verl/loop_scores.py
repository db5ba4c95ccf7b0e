"""Rewards that the reward loop made one by one, as a batch again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from adjudge.rewards.samples import RewardResult
from adjudge.runs.distributions import quantile
from adjudge.trainers.verl.sources import bare_metrics

__all__ = ["loop_metrics", "loop_rewards"]

_CALLS = {"judge/latency_p50": 0.5, "judge/latency_p99": 0.99}


def loop_rewards(tensor: Any) -> tuple[list[float | None], Any]:
    """The rewards in ``rm_scores`` (NaN is missing), and a copy of the tensor to write into."""
    sums = tensor.sum(dim=-1)
    missing = sums.isnan().tolist()
    found = [None if gone else value for value, gone in zip(sums.tolist(), missing, strict=True)]
    return found, tensor.clone()


def loop_metrics(
    results: Sequence[RewardResult],
    groups: Sequence[str],
    lengths: Sequence[int],
    calls: Sequence[Mapping[str, float]],
) -> dict[str, float]:
    """A batch's metrics from its rows.

    ``calls`` are each row's own metrics: costs are summed, and quantiles of latency are taken over
    the rows' values. Lengths are in tokens here.
    """
    metrics = bare_metrics(results, groups, lengths)
    for name, q in _CALLS.items():
        found = quantile([row[name] for row in calls if name in row], q)
        if found is not None:
            metrics[name] = found
    costs = [row["judge/cost_usd"] for row in calls if "judge/cost_usd" in row]
    return {**metrics, "judge/cost_usd": sum(costs)} if costs else metrics
