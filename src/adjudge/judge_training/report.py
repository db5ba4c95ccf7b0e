"""A judge's training as one HTML file: what it learned from, curves, validation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from adjudge.judge_training.card import Card
from adjudge.judge_training.report_curves import curves, measures_shown
from adjudge.judge_training.scalar.calibration_report import calibration_html
from adjudge.runs.report.charts import esc, integer, number, percent
from adjudge.runs.report.frame import Section, Tile, framed, how_to_read, tiles

__all__ = ["summary_lines", "write_judge_report"]

Rows = Sequence[Mapping[str, float]]

_NOTES = """<p><b>Accuracy</b> is the share of pairs whose preferred side has the higher score; \
equal scores are not higher. <b>Margin</b> is the mean difference of the two scores.</p>
<p><b>Calibration error</b>: how far &sigma;(difference) as a probability is from the share that \
is right, in ten bins. <b>Length correlation</b>: of the differences of score and of tokens in \
pairs; a judge that pays for length has one that the data has not.</p>"""

_NOTES_WRITING = """<p><b>Accuracy</b> is the share of verdicts that are the label, and \
<b>mean error</b> the mean distance of rating and label (0 to 4): of replies that have a verdict. \
Those that have none are counted beside it, are no choice, and earn &minus;0.25.</p>
<p><b>Consistency</b>: of the verdicts on both orders of one comparison, the share that names the \
same answer; <b>right in both orders</b> also asks that it is the label's. Held-out verdicts are \
the judge's likeliest reply, those of training are drawn.</p>
<p><b>Best constant answer</b>: what a judge earns that always says the same. A reward means \
something only above it.</p>"""


def write_judge_report(path: Path, summary: Mapping[str, Any], rows: Rows, card: Card) -> None:
    """Write ``report.html`` of a run to ``path``, UTF-8.

    ``summary`` is the run's ``summary.json``, ``rows`` are those of ``metrics.jsonl``.
    """
    given = summary.get("baselines") or {}
    # How judges are asked decides what a constant answer earns: nothing is drawn without it.
    baselines = {part: given[part] for part in ("train", "val") if given.get(part)}
    html = framed(
        "Judge training report",
        _facts(summary),
        [
            _tiles(summary),
            Section(
                "curves", "Curves", f'<div class="curves">{curves(rows, baselines)}</div>', "Curves"
            ),
            Section("data", "What it learned from", _data(summary["data"]), "Data"),
            Section("validation", "On held-out rows", _validation(summary, card), "Validation"),
            how_to_read(_NOTES if card.kind == "scalar" else _NOTES_WRITING),
        ],
        styles=[("adjudge.training", "report.css")],
    )
    path.write_text(html, encoding="utf-8", newline="\n")


def summary_lines(summary: Mapping[str, Any]) -> list[str]:
    """What a terminal shows of a run's ``summary.json``."""
    first, last, data = summary["first"], summary["validation"], summary["data"]
    took = summary["seconds"]["total"]
    lines = [f"{summary['steps']} steps in {took:.0f} s, best {summary['best_step']}"]
    lines += [
        f"{key:<20}{number(first.get(key))} → {number(last[key])}"
        for _, key in measures_shown()
        if key in last
    ]
    if baseline := (summary.get("baselines") or {}).get("val"):
        always = f"always {baseline['best']}"
        lines.append(f"{'constant reward':<20}{number(baseline['best_reward'])} ({always})")
    if "bayes_accuracy" in last:
        lines.append(f"{'bayes_accuracy':<20}{number(last['bayes_accuracy'])}")
    for part in ("train_rows", "val_rows"):
        counts = data[part]
        lines.append(
            f"{part:<20}{integer(counts['rows'])}, {integer(counts['truncated'])} truncated, "
            f"{integer(counts['unusable'])} unusable"
        )
    if unreadable := data.get("unreadable", {}).get("rows"):
        lines.append(f"{'unreadable rows':<20}{integer(unreadable)}")
    return lines


def _facts(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    took = ", ".join(f"{name} {value:g} s" for name, value in summary["seconds"].items())
    weights = summary["weights"]
    trained = f"{integer(weights['trainable'])} of {integer(weights['parameters'])} weights"
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
        Tile(name, number(last[key], 3), f"from {number(first.get(key), 3)}")
        for name, key in measures_shown()
        if key in last
    ]
    if baseline := (summary.get("baselines") or {}).get("val"):
        always = f"always {baseline['best']}: what curves are held against"
        found.append(Tile("Best constant reward", number(baseline["best_reward"], 3), always))
    if "bayes_accuracy" in last:
        found.append(
            Tile("Bayes accuracy", number(last["bayes_accuracy"], 3), "no judge can expect more")
        )
    rows = data["train_rows"]
    cut = f"{integer(rows['truncated'])} truncated, {integer(rows['unusable'])} unusable"
    found.append(Tile("Training rows", integer(rows["rows"]), cut))
    found.append(Tile("Tokens per second", integer(summary["tokens_per_s"]), "padding not counted"))
    return tiles(found)


def _data(data: Mapping[str, Any]) -> str:
    parts = []
    for part, name in (("train", "Training"), ("val", "Held out")):
        counts = data[f"{part}_rows"]
        files = ", ".join(f"{one['file']} ({one['sha256'][:12]})" for one in data[part])
        source = files or ("made up by the dials" if data.get("synthetic") else "a share of these")
        parts.append(
            f"<p><b>{name}</b>: {integer(counts['rows'])} rows, {esc(source)}; "
            f"{integer(counts['truncated'])} truncated, {integer(counts['unusable'])} unusable.</p>"
        )
        parts += [f"<p>{esc(problem)}</p>" for problem in counts["problems"]]
    unreadable = data.get("unreadable", {"rows": 0, "problems": []})
    if unreadable["rows"]:
        parts.append(f"<p>{integer(unreadable['rows'])} rows could not be read:</p>")
        parts += [f"<p>{esc(problem)}</p>" for problem in unreadable["problems"]]
    for key, rows in (("duplicates", "rows"), ("val_duplicates", "held-out rows")):
        if duplicates := data.get(key):
            parts.append(
                f"<p>{integer(duplicates['rows'])} {rows} repeated another and were left out, "
                f"{integer(duplicates['contradicting'])} of them contradicting it.</p>"
            )
    if data.get("val_seen_in_training"):
        seen = integer(data["val_seen_in_training"])
        parts.append(f"<p><b>{seen} held-out rows were trained on</b>: too good to be true.</p>")
    return "".join(parts)


def _validation(summary: Mapping[str, Any], card: Card) -> str:
    subsets = summary["validation"].get("subsets", {})
    table = _subsets(subsets, writes=card.kind == "generative")
    if card.normalisation is None:
        return (table if subsets else "<p>See the curves.</p>") + _constants(summary)
    low, middle, high = (card.normalisation.scores[place] for place in (0, 10, 20))
    said = (
        f"{table}<p>Outputs on held-out answers go from {number(low)} to {number(high)}, median "
        f"{number(middle)}; the card has their quantiles, by which an output becomes a rank from 0 "
        "to 1.</p>"
    )
    return said if card.calibration is None else said + calibration_html(card.calibration)


def _subsets(subsets: Mapping[str, Mapping[str, Any]], *, writes: bool) -> str:
    """A row for each; a judge that ``writes`` may have given no verdict."""
    heads = ["Subset", *(("Questions", "No verdict") if writes else ("Pairs",)), "Accuracy"]
    body = ""
    for name, one in subsets.items():
        accuracy = percent(one["accuracy"]) if "accuracy" in one else "–"
        unread = [percent(one["unread"])] if writes else []
        cells = "".join(f"<td>{text}</td>" for text in (integer(one["rows"]), *unread, accuracy))
        body += f"<tr><td>{esc(name)}</td>{cells}</tr>"
    head = "".join(f'<th scope="col">{name}</th>' for name in heads)
    return (
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _constants(summary: Mapping[str, Any]) -> str:
    """What judges earn that look at no answer."""
    found = (summary.get("baselines") or {}).get("val")
    if not found:
        return ""
    each = ", ".join(f"{esc(name)} {number(value)}" for name, value in found["by_answer"].items())
    chosen = summary["validation"].get("chosen_by")
    best = f"<p>The best step is the one with the {esc(chosen)}.</p>" if chosen else ""
    return (
        f"<p>Always the same answer earns, on the held-out rows: {each}; drawing lots "
        f"{number(found['chance'])}.</p>{best}"
    )
