"""The report of a judge's training: one HTML file, and the terminal's summary.

It has what the judge learned from, the curves, the validation, and calibration: probabilities
against shares, before and after.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from adjudge.graders.llm.trained_judge_card import JudgeCard
from adjudge.report.charts import ChartLine, line_chart, reliability_diagram
from adjudge.report.page import (
    Element,
    Section,
    Tile,
    bold,
    format_integer,
    format_number,
    format_percent,
    notes_section,
    paragraph,
    render_page,
)
from adjudge.report.table import Table, numeric
from adjudge.stats.predictions import ScoreCalibration
from adjudge_lab.rl.report import curve_grid

_MetricRows = Sequence[Mapping[str, float]]


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
    _Chart("Verdicts for the answer shown first", "first_share", low=0.0, high=1.0),
    _Chart("Margin", "margin"),
    _Chart("Calibration error", "calibration_error", "val", low=0.0),
    _Chart("Length correlation", "length_corr", low=-1.0, high=1.0),
    _Chart("KL divergence", "kl_divergence", "train", low=0.0),
    _Chart("Policy loss", "policy_loss", "train"),
    _Chart("Reward, standard deviation", "reward_std", "train", low=0.0),
    _Chart("Prompts with equal rewards", "zero_std_frac", "train", low=0.0, high=1.0),
    _Chart("Entropy", "entropy", "train", low=0.0),
    _Chart("Tokens of a reply", "response_length", "train", low=0.0),
    _Chart("Replies cut at their limit", "clipped", "train", low=0.0, high=1.0),
    _Chart("Token accuracy", "token_accuracy", low=0.0, high=1.0),
    _Chart("Padding, share of tokens", "padding_frac", "train", low=0.0, high=1.0),
)
_PARTS = {"train": "training", "val": "held out"}


def metric_charts(rows: _MetricRows, baselines: Mapping[str, Any]) -> Element | str:
    """Every measure that ``rows`` have, over the steps.

    ``baselines`` (``train``, ``val``) are what the best constant answer earns there: a line beside
    each reward.
    """
    if not rows:
        return "No step was done."
    drawn = [
        _draw_chart(chart, part, rows, baselines.get(part))
        for chart in _CHARTS
        for part in chart.parts.split()
    ]
    steps = [round(row["step"]) for row in rows]
    rate = ChartLine("rate", [row.get("lr") for row in rows])
    return curve_grid([*drawn, line_chart("Learning rate", [rate], steps, low=0.0)])


def _draw_chart(
    chart: _Chart, part: str, rows: _MetricRows, baseline: Mapping[str, Any] | None
) -> Element | None:
    key = f"{part}/{chart.key}"
    there = [row for row in rows if part == "train" or key in row]
    if not any(key in row for row in there):
        return None
    lines = [ChartLine(chart.name, [row.get(key) for row in there])]
    if chart.key == "reward_mean" and baseline is not None:
        always = f"best constant answer: always {baseline['best']}"
        lines.append(ChartLine(always, [baseline["best_reward"]] * len(there)))
    steps = [round(row["step"]) for row in there]
    title = f"{chart.name}, {_PARTS[part]}"
    return line_chart(title, lines, steps, low=chart.low, high=chart.high)


_SUMMARY_MEASURES = {
    "Accuracy": "accuracy",
    "Consistency": "consistency",
    "Right in both orders": "both_right",
    "Mean error": "error",
    "No verdict": "unread",
    "Reward": "reward_mean",
    "Loss": "loss",
    "Margin": "margin",
    "Calibration error": "calibration_error",
    "Length correlation": "length_corr",
}
"""Names and keys of the measures that a summary shows, the most telling first."""


def calibration_blocks(calibration: ScoreCalibration) -> list[object]:
    """What a report's validation section says of a scalar judge's calibration."""
    found = (
        ("As they are", calibration.as_is),
        ("By temperature", calibration.with_temperature),
        ("Isotonic", calibration.with_isotonic),
    )
    measured = [(name, one) for name, one in found if one is not None]
    rows = [[name, *map(format_number, (x.error, x.brier, x.log_loss))] for name, x in measured]
    fitted = ""
    if calibration.temperature is not None:
        fitted = (
            f"Temperature {format_number(calibration.temperature)}: σ(difference / temperature) is "
            "the probability that the higher output is right."
        )
    diagrams = [
        reliability_diagram(name, [(bin_.pairs, bin_.said, bin_.right) for bin_ in one.bins])
        for name, one in measured
    ]
    return [
        Element("h3", "Calibration"),
        (
            f"{format_integer(calibration.pairs)} held-out pairs about "
            f"{format_integer(calibration.prompts)} prompts. What was fitted is measured by five "
            "folds, each by a fit to the other four. Charts: the share that was right, by the "
            "probability said; on the broken line both are equal, and a dot is larger for more "
            "pairs."
        ),
        Table(["Probabilities", *numeric("Calibration error", "Brier score", "Log loss")], rows),
        fitted,
        *(
            f"No {name.replace('with_', 'measure of ')}: {why}."
            for name, why in calibration.missing.items()
        ),
        curve_grid(diagrams),
    ]


def write_judge_report(
    path: Path, summary: Mapping[str, Any], rows: _MetricRows, card: JudgeCard
) -> None:
    """Write ``report.html`` of a run to ``path``, UTF-8.

    ``summary`` is the run's ``summary.json``, ``rows`` are those of ``metrics.jsonl``.
    """
    given = summary.get("baselines") or {}
    # How judges are asked decides what a constant answer earns: nothing is drawn without it.
    baselines = {part: given[part] for part in ("train", "val") if given.get(part)}
    html = render_page(
        "Judge training report",
        _facts(summary),
        [
            Section("curves", "Curves", metric_charts(rows, baselines), "Curves"),
            Section("data", "What it learned from", _data(summary["data"]), "Data"),
            Section("validation", "On held-out rows", _validation(summary, card), "Validation"),
            notes_section("adjudge_lab.judge_training", scalar=card.kind == "scalar"),
        ],
        tiles=_tiles(summary),
    )
    path.write_text(html, encoding="utf-8", newline="\n")


def judge_summary_lines(summary: Mapping[str, Any]) -> list[str]:
    """What a terminal shows of a run's ``summary.json``."""
    first, last, data = summary["first"], summary["validation"], summary["data"]
    took = summary["seconds"]["total"]
    lines = [f"{summary['steps']} steps in {took:.0f} s, best {summary['best_step']}"]
    lines += [
        f"{key:<20}{format_number(first.get(key))} → {format_number(last[key])}"
        for key in _SUMMARY_MEASURES.values()
        if key in last
    ]
    if baseline := (summary.get("baselines") or {}).get("val"):
        always = f"always {baseline['best']}"
        lines.append(f"{'constant reward':<20}{format_number(baseline['best_reward'])} ({always})")
    if "bayes_accuracy" in last:
        lines.append(f"{'bayes_accuracy':<20}{format_number(last['bayes_accuracy'])}")
    for part in ("train_rows", "val_rows"):
        counts = data[part]
        lines.append(
            f"{part:<20}{format_integer(counts['rows'])}, {format_integer(counts['truncated'])} "
            f"truncated, {format_integer(counts['unusable'])} unusable"
        )
    if unreadable := data.get("unreadable", {}).get("rows"):
        lines.append(f"{'unreadable rows':<20}{format_integer(unreadable)}")
    return lines


def _facts(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    took = ", ".join(f"{name} {value:g} s" for name, value in summary["seconds"].items())
    weights = summary["weights"]
    trained = (
        f"{format_integer(weights['trainable'])} of {format_integer(weights['parameters'])} weights"
    )
    overrides = ", ".join(f"{name}={value}" for name, value in summary["overrides"].items())
    return [
        ("Judge", f"{summary['label']} · seed {summary['seed']}"),
        ("Trained", f"{summary['base']} by {summary['method'].replace('_', ' ')}, {trained}"),
        (
            "Steps",
            f"{summary['steps']} of {summary['batch_size']} rows; best {summary['best_step']}",
        ),
        ("Took", took),
        ("When", f"{summary['created']} · adjudge {summary['adjudge']}"),
        *([("From the environment", overrides)] if overrides else []),
        *(("Not done", note) for note in summary["not_done"]),
    ]


def _tiles(summary: Mapping[str, Any]) -> list[Tile]:
    first, last, data = summary["first"], summary["validation"], summary["data"]
    found = [
        Tile(name, format_number(last[key], 3), f"from {format_number(first.get(key), 3)}")
        for name, key in _SUMMARY_MEASURES.items()
        if key in last
    ]
    if baseline := (summary.get("baselines") or {}).get("val"):
        always = f"always {baseline['best']}: what curves are held against"
        found.append(
            Tile("Best constant reward", format_number(baseline["best_reward"], 3), always)
        )
    if "bayes_accuracy" in last:
        found.append(
            Tile(
                "Bayes accuracy",
                format_number(last["bayes_accuracy"], 3),
                "no judge can expect more",
            )
        )
    rows = data["train_rows"]
    cut = (
        f"{format_integer(rows['truncated'])} truncated, {format_integer(rows['unusable'])} "
        "unusable"
    )
    found.append(Tile("Training rows", format_integer(rows["rows"]), cut))
    found.append(
        Tile("Tokens per second", format_integer(summary["tokens_per_s"]), "padding not counted")
    )
    return found


def _data(data: Mapping[str, Any]) -> list[object]:
    parts: list[object] = []
    for part, name in (("train", "Training"), ("val", "Held out")):
        counts = data[f"{part}_rows"]
        files = ", ".join(f"{one['file']} ({one['sha256'][:12]})" for one in data[part])
        source = files or ("made up by the dials" if data.get("synthetic") else "a share of these")
        usable = (
            f": {format_integer(counts['rows'])} rows, {source}; "
            f"{format_integer(counts['truncated'])} truncated, "
            f"{format_integer(counts['unusable'])} unusable."
        )
        parts += [paragraph(bold(name), usable), *counts["problems"]]
    unreadable = data.get("unreadable", {"rows": 0, "problems": []})
    if unreadable["rows"]:
        parts.append(f"{format_integer(unreadable['rows'])} rows could not be read:")
        parts += unreadable["problems"]
    for key, rows in (("duplicates", "rows"), ("val_duplicates", "held-out rows")):
        if duplicates := data.get(key):
            parts.append(
                f"{format_integer(duplicates['rows'])} {rows} repeated another and were left out, "
                f"{format_integer(duplicates['contradicting'])} of them contradicting it."
            )
    if data.get("val_seen_in_training"):
        seen = f"{format_integer(data['val_seen_in_training'])} held-out rows were trained on"
        parts.append(paragraph(bold(seen), ": too good to be true."))
    return parts


def _validation(summary: Mapping[str, Any], card: JudgeCard) -> list[object]:
    subsets = summary["validation"].get("subsets", {})
    table = _subset_table(subsets, writes=card.kind == "generative")
    if card.normalisation is None:
        return [table or "See the curves.", *_constant_baselines(summary)]
    low, middle, high = (card.normalisation.scores[place] for place in (0, 10, 20))
    outputs = (
        f"Outputs on held-out answers go from {format_number(low)} to {format_number(high)}, "
        f"median {format_number(middle)}; the card has their quantiles, by which an output becomes "
        "a rank from 0 to 1."
    )
    calibration = card.calibration
    return [table, outputs, *(calibration_blocks(calibration) if calibration is not None else ())]


def _subset_table(subsets: Mapping[str, Mapping[str, Any]], *, writes: bool) -> Table:
    """A row for each; a judge that ``writes`` may have given no verdict."""
    heads = ["Questions", "No verdict", "Accuracy"] if writes else ["Pairs", "Accuracy"]
    rows = [
        [
            name,
            format_integer(one["rows"]),
            *([format_percent(one["unread"])] if writes else ()),
            format_percent(one["accuracy"]) if "accuracy" in one else "–",
        ]
        for name, one in subsets.items()
    ]
    return Table(["Subset", *numeric(*heads)], rows)


def _constant_baselines(summary: Mapping[str, Any]) -> list[str]:
    """What judges earn that look at no answer."""
    found = (summary.get("baselines") or {}).get("val")
    if not found:
        return []
    each = ", ".join(f"{name} {format_number(value)}" for name, value in found["by_answer"].items())
    chosen = summary["validation"].get("chosen_by")
    return [
        (
            f"Always the same answer earns, on the held-out rows: {each}; drawing lots "
            f"{format_number(found['chance'])}."
        ),
        f"The best step is the one with the {chosen}." if chosen else "",
    ]
