"""The report of a judge's training: one HTML file, and the terminal's summary.

It has what the judge learned from, the curves, the validation, and calibration: probabilities
against shares, before and after.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from adjudge.graders.llm.calibration import Reliability, ScoreCalibration
from adjudge.graders.llm.trained_judge_card import JudgeCard
from adjudge.runs.report.charts import escape_html, format_integer, format_number, format_percent
from adjudge.runs.report.frame import Section, Tile, notes_section, render_page, render_tiles
from adjudge_lab.rl.report import ChartLine, line_chart

__all__ = [
    "calibration_html",
    "judge_summary_lines",
    "metric_charts",
    "reliability_chart",
    "summary_measures",
    "write_judge_report",
]


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


def metric_charts(rows: _MetricRows, baselines: Mapping[str, Any]) -> str:
    """Every measure that ``rows`` have, over the steps.

    ``baselines`` (``train``, ``val``) are what the best constant answer earns there: a line beside
    each reward.
    """
    if not rows:
        return "<p>No step was done.</p>"
    drawn = [
        _draw_chart(chart, part, rows, baselines.get(part))
        for chart in _CHARTS
        for part in chart.parts.split()
    ]
    steps = [round(row["step"]) for row in rows]
    rate = ChartLine("rate", [row.get("lr") for row in rows])
    return "".join([*drawn, line_chart("Learning rate", [rate], steps, low=0.0)])


def _draw_chart(
    chart: _Chart, part: str, rows: _MetricRows, baseline: Mapping[str, Any] | None
) -> str:
    key = f"{part}/{chart.key}"
    there = [row for row in rows if part == "train" or key in row]
    if not any(key in row for row in there):
        return ""
    lines = [ChartLine(chart.name, [row.get(key) for row in there])]
    if chart.key == "reward_mean" and baseline is not None:
        always = f"best constant answer: always {baseline['best']}"
        lines.append(ChartLine(always, [baseline["best_reward"]] * len(there)))
    steps = [round(row["step"]) for row in there]
    title = f"{chart.name}, {_PARTS[part]}"
    return line_chart(title, lines, steps, low=chart.low, high=chart.high)


def summary_measures() -> tuple[tuple[str, str], ...]:
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


_PLOT, _PAD, _FOOT = 180, 8, 18


def calibration_html(calibration: ScoreCalibration) -> str:
    """What a report's validation section says of a scalar judge's calibration."""
    rows = "".join(
        f"<tr><td>{name}</td><td>{format_number(one.error)}</td><td>{format_number(one.brier)}</td>"
        f"<td>{format_number(one.log_loss)}</td></tr>"
        for name, one in _measured_reliabilities(calibration)
    )
    head = "".join(
        f'<th scope="col">{name}</th>'
        for name in ("Probabilities", "Calibration error", "Brier score", "Log loss")
    )
    fitted = ""
    if calibration.temperature is not None:
        fitted = (
            f"<p>Temperature {format_number(calibration.temperature)}: &sigma;(difference / "
            "temperature) "
            "is the probability that the higher output is right.</p>"
        )
    missing = [
        f"<p>No {escape_html(name.replace('with_', 'measure of '))}: {escape_html(why)}.</p>"
        for name, why in calibration.missing.items()
    ]
    charts = "".join(
        reliability_chart(one, name) for name, one in _measured_reliabilities(calibration)
    )
    return (
        f"<h3>Calibration</h3><p>{format_integer(calibration.pairs)} held-out pairs about "
        f"{format_integer(calibration.prompts)} prompts. What was fitted is measured by five "
        "folds, each "
        "by a fit to the other four. Charts: the share that was right, by the probability said; on "
        "the broken line both are equal, and a dot is larger for more pairs.</p>"
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'
        f'</div>{fitted}{"".join(missing)}<div class="columns">{charts}</div>'
    )


def reliability_chart(measured: Reliability, name: str) -> str:
    """The share that was right (0 to 1) over the probability said (0.5 to 1).

    On the broken line both are equal; a dot is a bin of pairs, larger for more of them.
    """
    most = max(one.pairs for one in measured.bins)
    dots = "".join(
        f'<circle class="dot within" cx="{_plot_x(one.said)}" cy="{_plot_y(one.right):.1f}" '
        f'r="{1.5 + 4.5 * math.sqrt(one.pairs / most):.1f}">'
        f"<title>said {format_number(one.said)}, right {format_number(one.right)}: "
        f"{format_integer(one.pairs)} pairs"
        "</title></circle>"
        for one in measured.bins
    )
    grid = "".join(
        f'<line class="grid" x1="0" x2="100%" y1="{_plot_y(t):.1f}" y2="{_plot_y(t):.1f}"/>'
        f'<text x="0" y="{_plot_y(t) - 3:.1f}">{t:g}</text>'
        for t in (0.0, 0.5, 1.0)
    )
    grid += "".join(
        f'<text x="{_plot_x(t)}" y="{_PLOT + 2 * _PAD + 12}" text-anchor="middle">{t:g}</text>'
        for t in (0.5, 0.75, 1.0)
    )
    label = (
        f"{name}: share that is right by probability, calibration error "
        f"{format_number(measured.error)}"
    )
    return (
        f"<figure><figcaption><b>{escape_html(name)}</b></figcaption>"
        f'<svg role="img" aria-label="{escape_html(label)}" width="100%" '
        f'height="{_PLOT + 2 * _PAD + _FOOT}">{grid}<line class="chance" x1="{_plot_x(0.5)}" '
        f'y1="{_plot_y(0.5):.1f}" x2="{_plot_x(1.0)}" '
        f'y2="{_plot_y(1.0):.1f}"/>{dots}</svg></figure>'
    )


def _measured_reliabilities(calibration: ScoreCalibration) -> list[tuple[str, Reliability]]:
    found = (
        ("As they are", calibration.as_is),
        ("By temperature", calibration.with_temperature),
        ("Isotonic", calibration.with_isotonic),
    )
    return [(name, one) for name, one in found if one is not None]


def _plot_x(probability: float) -> str:
    return f"{10 + 84 * (probability - 0.5) * 2:.2f}%"


def _plot_y(share: float) -> float:
    return _PAD + _PLOT * (1 - share)


_SCALAR_NOTES = """\
<p><b>Accuracy</b> is the share of pairs whose preferred side has the higher score; \
equal scores are not higher. <b>Margin</b> is the mean difference of the two scores.</p>
<p><b>Calibration error</b>: how far &sigma;(difference) as a probability is from the share that \
is right, in ten bins. <b>Length correlation</b>: of the differences of score and of tokens in \
pairs; a judge that pays for length has one that the data has not.</p>"""

_GENERATIVE_NOTES = """<p><b>Accuracy</b> is the share of verdicts that are the label, and \
<b>mean error</b> the mean distance of rating and label (0 to 4): of replies that have a verdict. \
Those that have none are counted beside it, are no choice, and earn &minus;0.25.</p>
<p><b>Consistency</b>: of the verdicts on both orders of one comparison, the share that names the \
same answer; <b>right in both orders</b> also asks that it is the label's. Held-out verdicts are \
the judge's likeliest reply, those of training are drawn.</p>
<p><b>Best constant answer</b>: what a judge earns that always says the same. A reward means \
something only above it.</p>"""


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
            _tiles(summary),
            Section(
                "curves",
                "Curves",
                f'<div class="curves">{metric_charts(rows, baselines)}</div>',
                "Curves",
            ),
            Section("data", "What it learned from", _data(summary["data"]), "Data"),
            Section("validation", "On held-out rows", _validation(summary, card), "Validation"),
            notes_section(_SCALAR_NOTES if card.kind == "scalar" else _GENERATIVE_NOTES),
        ],
        styles=[("adjudge_lab.rl", "report.css")],
    )
    path.write_text(html, encoding="utf-8", newline="\n")


def judge_summary_lines(summary: Mapping[str, Any]) -> list[str]:
    """What a terminal shows of a run's ``summary.json``."""
    first, last, data = summary["first"], summary["validation"], summary["data"]
    took = summary["seconds"]["total"]
    lines = [f"{summary['steps']} steps in {took:.0f} s, best {summary['best_step']}"]
    lines += [
        f"{key:<20}{format_number(first.get(key))} → {format_number(last[key])}"
        for _, key in summary_measures()
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
            "truncated, "
            f"{format_integer(counts['unusable'])} unusable"
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


def _tiles(summary: Mapping[str, Any]) -> str:
    first, last, data = summary["first"], summary["validation"], summary["data"]
    found = [
        Tile(name, format_number(last[key], 3), f"from {format_number(first.get(key), 3)}")
        for name, key in summary_measures()
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
    return render_tiles(found)


def _data(data: Mapping[str, Any]) -> str:
    parts = []
    for part, name in (("train", "Training"), ("val", "Held out")):
        counts = data[f"{part}_rows"]
        files = ", ".join(f"{one['file']} ({one['sha256'][:12]})" for one in data[part])
        source = files or ("made up by the dials" if data.get("synthetic") else "a share of these")
        parts.append(
            f"<p><b>{name}</b>: {format_integer(counts['rows'])} rows, {escape_html(source)}; "
            f"{format_integer(counts['truncated'])} truncated, "
            f"{format_integer(counts['unusable'])} unusable.</p>"
        )
        parts += [f"<p>{escape_html(problem)}</p>" for problem in counts["problems"]]
    unreadable = data.get("unreadable", {"rows": 0, "problems": []})
    if unreadable["rows"]:
        parts.append(f"<p>{format_integer(unreadable['rows'])} rows could not be read:</p>")
        parts += [f"<p>{escape_html(problem)}</p>" for problem in unreadable["problems"]]
    for key, rows in (("duplicates", "rows"), ("val_duplicates", "held-out rows")):
        if duplicates := data.get(key):
            parts.append(
                f"<p>{format_integer(duplicates['rows'])} {rows} repeated another and were left "
                "out, "
                f"{format_integer(duplicates['contradicting'])} of them contradicting it.</p>"
            )
    if data.get("val_seen_in_training"):
        seen = format_integer(data["val_seen_in_training"])
        parts.append(f"<p><b>{seen} held-out rows were trained on</b>: too good to be true.</p>")
    return "".join(parts)


def _validation(summary: Mapping[str, Any], card: JudgeCard) -> str:
    subsets = summary["validation"].get("subsets", {})
    table = _subsets(subsets, writes=card.kind == "generative")
    if card.normalisation is None:
        return (table if subsets else "<p>See the curves.</p>") + _constant_baselines(summary)
    low, middle, high = (card.normalisation.scores[place] for place in (0, 10, 20))
    said = (
        f"{table}<p>Outputs on held-out answers go from {format_number(low)} to "
        f"{format_number(high)}, median "
        f"{format_number(middle)}; the card has their quantiles, by which an output becomes a rank "
        "from 0 "
        "to 1.</p>"
    )
    return said if card.calibration is None else said + calibration_html(card.calibration)


def _subsets(subsets: Mapping[str, Mapping[str, Any]], *, writes: bool) -> str:
    """A row for each; a judge that ``writes`` may have given no verdict."""
    heads = ["Subset", *(("Questions", "No verdict") if writes else ("Pairs",)), "Accuracy"]
    body = ""
    for name, one in subsets.items():
        accuracy = format_percent(one["accuracy"]) if "accuracy" in one else "–"
        unread = [format_percent(one["unread"])] if writes else []
        cells = "".join(
            f"<td>{text}</td>" for text in (format_integer(one["rows"]), *unread, accuracy)
        )
        body += f"<tr><td>{escape_html(name)}</td>{cells}</tr>"
    head = "".join(f'<th scope="col">{name}</th>' for name in heads)
    return (
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _constant_baselines(summary: Mapping[str, Any]) -> str:
    """What judges earn that look at no answer."""
    found = (summary.get("baselines") or {}).get("val")
    if not found:
        return ""
    each = ", ".join(
        f"{escape_html(name)} {format_number(value)}" for name, value in found["by_answer"].items()
    )
    chosen = summary["validation"].get("chosen_by")
    best = f"<p>The best step is the one with the {escape_html(chosen)}.</p>" if chosen else ""
    return (
        f"<p>Always the same answer earns, on the held-out rows: {each}; drawing lots "
        f"{format_number(found['chance'])}.</p>{best}"
    )
