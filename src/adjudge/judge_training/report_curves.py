"""The curves of a judge's training report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from adjudge.training.curves import Line, line_chart

__all__ = ["curves", "measures_shown"]

Rows = Sequence[Mapping[str, float]]


class _Chart(NamedTuple):
    """One measure; ``parts`` says where it is drawn, ``low`` and ``high`` its scale."""

    name: str
    key: str
    parts: str = "train val"
    low: float | None = None
    high: float | None = None


_CHARTS = (
    _Chart("Reward", "reward_mean"),
    _Chart("Loss", "loss", "val"),
    _Chart("Loss", "loss", "train"),
    _Chart("Accuracy", "accuracy", low=0.0, high=1.0),
    _Chart("Consistency over both orders", "consistency", low=0.0, high=1.0),
    _Chart("Right in both orders", "both_right", "val", low=0.0, high=1.0),
    _Chart("Mean error", "error", low=0.0),
    _Chart("Mean error, no verdict counted as 4", "error_or_unread", "val", low=0.0),
    _Chart("Replies without a verdict", "unread", low=0.0, high=1.0),
    _Chart("Verdicts for what stands first", "first_share", low=0.0, high=1.0),
    _Chart("Margin", "margin"),
    _Chart("Calibration error", "calibration_error", "val", low=0.0),
    _Chart("Length correlation", "length_corr", low=-1.0, high=1.0),
    _Chart("KL divergence", "kl_divergence", "train", low=0.0),
    _Chart("Policy loss", "policy_loss", "train"),
    _Chart("Reward, standard deviation", "reward_std", "train", low=0.0),
    _Chart("Prompts whose replies earn the same", "zero_std_frac", "train", low=0.0, high=1.0),
    _Chart("Entropy", "entropy", "train", low=0.0),
    _Chart("Tokens of a reply", "response_length", "train", low=0.0),
    _Chart("Replies cut at their limit", "clipped", "train", low=0.0, high=1.0),
    _Chart("Token accuracy", "token_accuracy", low=0.0, high=1.0),
    _Chart("Padding, share of tokens", "padding_frac", "train", low=0.0, high=1.0),
)
_PARTS = {"train": "training", "val": "held out"}


def curves(rows: Rows, baselines: Mapping[str, Any]) -> str:
    """Every measure that ``rows`` have, over the steps.

    ``baselines`` (``train``, ``val``) are what the best constant answer earns there: a line beside
    each reward.
    """
    if not rows:
        return "<p>No step was done.</p>"
    drawn = [
        _drawn(chart, part, rows, baselines.get(part))
        for chart in _CHARTS
        for part in chart.parts.split()
    ]
    steps = [round(row["step"]) for row in rows]
    rate = Line("rate", [row.get("lr") for row in rows])
    return "".join([*drawn, line_chart("Learning rate", [rate], steps, low=0.0)])


def _drawn(chart: _Chart, part: str, rows: Rows, baseline: Mapping[str, Any] | None) -> str:
    key = f"{part}/{chart.key}"
    there = [row for row in rows if part == "train" or key in row]
    if not any(key in row for row in there):
        return ""
    lines = [Line(chart.name, [row.get(key) for row in there])]
    if chart.key == "reward_mean" and baseline is not None:
        always = f"best constant answer: always {baseline['best']}"
        lines.append(Line(always, [baseline["best_reward"]] * len(there)))
    steps = [round(row["step"]) for row in there]
    title = f"{chart.name}, {_PARTS[part]}"
    return line_chart(title, lines, steps, low=chart.low, high=chart.high)


def measures_shown() -> tuple[tuple[str, str], ...]:
    """Names and keys of the measures that a summary shows, the most telling first."""
    return (
        ("Accuracy", "accuracy"),
        ("Consistency", "consistency"),
        ("Right in both orders", "both_right"),
        ("Mean error", "error"),
        ("No verdict", "unread"),
        ("Reward", "reward_mean"),
        ("Loss", "loss"),
        ("Margin", "margin"),
        ("Calibration error", "calibration_error"),
        ("Length correlation", "length_corr"),
    )
