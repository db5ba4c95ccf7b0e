"""A chain as one HTML file: stages, judges, how they did unseen, what a policy made of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from adjudge.judge_training.validating.summary import contamination_line
from adjudge.runs.report.charts import esc, integer, number, percent
from adjudge.runs.report.frame import Section, Tile, framed, how_to_read, tiles
from adjudge.training.curves import Line, line_chart

__all__ = ["write_chain_report"]

Told = Mapping[str, Any]

_NOTES = """<p><b>Accuracy</b> is the share of pairs whose better side scores higher. The <b>Bayes \
rate</b> is what a judge could expect that knows everything but the chance in the labels. \
Intervals hold 95 % of 2,000 resamples of the pairs.</p>
<p><b>Calibration error</b>: how far &sigma;(difference) as a probability is from the share that \
is right, in ten bins. <b>Prefers the longer</b>: of pairs of different length; without a bias \
it is the share in which the longer is better.</p>
<p><b>The judge</b> is what the policy was trained on; a <b>gold</b> it never sees. Where the \
judge climbs and a gold does not follow, the policy has found what the judge gets wrong.</p>
<p><b>Ordered as by</b> a gold: of two answers to one question whose golds differ, the share in \
which the reward says the same, equal rewards half. A judge that is good on made-up pairs need \
not be on what a policy says, and less so on what it says in the end.</p>"""


def write_chain_report(
    path: Path, summary: Told, curves: Mapping[str, Sequence[Mapping[str, float]]]
) -> None:
    """Write ``report.html`` of a chain to ``path``, UTF-8.

    ``summary`` is the chain's ``summary.json``, ``curves`` the rows of ``metrics.jsonl`` of each
    stage that trained a policy.
    """
    stages = summary["stages"]
    of = {kind: [one for one in stages if one["kind"] == kind] for kind in _EMPTY}
    seen = "".join(map(_check, of["evaluate"])) or _EMPTY["evaluate"]
    policies = "".join(_policy(one, curves.get(one["name"], [])) for one in of["run"])
    html = framed(
        summary["label"],
        _facts(summary),
        [
            tiles(_tiles(stages)),
            Section(
                "stages",
                "Stages",
                _table(
                    ("Stage", "What", "Builds on", "Seconds", "Its own page"), map(_row, stages)
                ),
                "Stages",
            ),
            Section(
                "judges", "Judges", "".join(map(_judge, of["judge"])) or _EMPTY["judge"], "Judges"
            ),
            Section("unseen", "On unseen pairs", seen, "On unseen pairs"),
            Section("policy", "What a policy did with it", policies or _EMPTY["run"], "The policy"),
            how_to_read(_NOTES),
        ],
        styles=[("adjudge.training", "report.css"), (__package__ or "", "page.css")],
    )
    path.write_text(html, encoding="utf-8", newline="\n")


_EMPTY = {
    "judge": "<p>The chain trained no judge.</p>",
    "evaluate": "<p>The chain has no such stage.</p>",
    "run": "<p>The chain trained no policy.</p>",
}


def _facts(summary: Told) -> list[tuple[str, str]]:
    return [
        ("Stages", f"{len(summary['stages'])} in {summary['seconds']['total']:g} s"),
        ("Seed", f"{summary['seed']} added to each stage's"),
        ("When", f"{summary['created']} · adjudge {summary['adjudge']}"),
    ]


def _tiles(stages: Sequence[Told]) -> list[Tile]:
    tiles = []
    for one in stages:
        name = one["name"]
        if one["kind"] == "judge" and "accuracy" in one["validation"]:
            start = number(one["first"].get("accuracy"))
            tiles.append(
                Tile(f"Accuracy, {name}", number(one["validation"]["accuracy"]), f"from {start}")
            )
        elif one["kind"] == "evaluate":
            overall = one["overall"]
            tiles.append(
                Tile(f"Unseen, {name}", number(overall["accuracy_of_answered"]), _span(overall))
            )
        elif one["kind"] == "run":
            before, after = _ends(one)
            tiles += [
                Tile(key.capitalize(), number(after[key]), f"from {number(before.get(key))}")
                for key in after
                if key != "reward"
            ]
    return tiles


def _span(overall: Told) -> str:
    low, high = overall["interval"]["low"], overall["interval"]["high"]
    return "no interval" if low is None else f"95 %: {number(low)} to {number(high)}"


def _table(heads: Sequence[str], rows: Any) -> str:
    head = "".join(f'<th scope="col">{name}</th>' for name in heads)
    return (
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _cells(*cells: str) -> str:
    return f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


_WHAT = {"evaluate": "evaluation of {benchmark}", "run": "policy on {env_name}"}


def _row(one: Told) -> str:
    what = _WHAT.get(one["kind"], "training by {method}").format_map(one).replace("_", " ")
    page = one["report"]
    link = f'<a href="{esc(page)}">{esc(page)}</a>' if page else "this one"
    after = ", ".join(one["after"]) or "–"
    return _cells(esc(one["name"]), esc(what), esc(after), number(one["seconds"], 1), link)


_QUALITIES = (
    ("Accuracy", "accuracy"), ("Loss", "loss"), ("Margin", "margin"),
    ("Calibration error", "calibration_error"), ("Length correlation", "length_corr"),
)  # fmt: skip


def _judge(one: Told) -> str:
    first, last = one["first"], one["validation"]
    rows = [
        _cells(name, number(first.get(key)), number(last[key]))
        for name, key in _QUALITIES
        if key in last
    ]
    if "bayes_accuracy" in last:
        rows.append(_cells("Bayes rate", "", number(last["bayes_accuracy"])))
    dials = "".join(
        f"; {esc(name.replace('_', ' '))} {esc(value)}"
        for name, value in (one["synthetic"] or {}).items()
        if value and name != "n"
    )
    return (
        f"<h3>{esc(one['name'])}: {esc(one['method'].replace('_', ' '))}</h3>"
        f"<p>{integer(one['steps'])} steps on {integer(one['rows'])} rows{dials}; the best is that "
        f"of step {integer(one['best_step'])}.</p>"
        + _table(("On held-out rows", "Before", "After"), rows)
    )


def _check(one: Told) -> str:
    overall = one["overall"]
    rows = [_subset("all", overall)]
    if len(one["subsets"]) > 1:
        rows += [_subset(name, part) for name, part in one["subsets"].items()]
    parts = [f"<h3>{esc(one['name'])}: {esc(one['benchmark'])}</h3>"]
    asked = "through adjudge serve" if one["served"] else "in this process"
    said = f"{integer(overall['items'])} items, asked {asked}"
    if one.get("left_out"):
        said += f"; {integer(one['left_out'])} more were in the training data and are left out"
    if one["unusable"]:
        said += f"; {integer(one['unusable'])} rows could not be used"
    if one.get("bayes_accuracy") is not None:
        said += f"; Bayes rate {number(one['bayes_accuracy'])}"
    parts.append(f"<p>{said}.</p>{_seen(one)}")
    parts.append(_table(("Subset", "Items", "Missing", "Accuracy", "Interval"), rows))
    return "".join(parts) + _calibration(one["calibration"]) + _lengths(one["lengths"])


def _seen(one: Told) -> str:
    """That the judge was trained on some of the items; of files that it was compared with them."""
    if not (found := one.get("contamination")):
        return ""
    if line := contamination_line(one["judge"], found, one["overall"]["items"]):
        return f"<p><b>{esc(line)}</b></p>"
    return f"<p>Contamination: {esc('; '.join(found['notes']))}.</p>"


def _subset(name: str, part: Told) -> str:
    gone = integer(part["missing"])
    kinds = ", ".join(f"{kind} {count}" for kind, count in part["failures"].items())
    return _cells(
        esc(name), integer(part["items"]), f"{gone} {esc(kinds)}".strip(),
        number(part["accuracy_of_answered"]), _span(part),
    )  # fmt: skip


def _calibration(found: Told | None) -> str:
    if not found or found["ece"] is None:
        return ""
    rows = [_cells(integer(n), percent(sure), percent(right)) for n, sure, right in found["bins"]]
    loss = "∞" if found.get("ruled_out") else number(found["log_loss"])
    return (
        f"<p>Calibration error {number(found['ece'])}, Brier score {number(found['brier'])} (0.25 "
        f"knows nothing), log loss {loss}.</p>"
        + _table(("Pairs", "How sure the judge was", "How often it was right"), rows)
    )


def _lengths(found: Told | None) -> str:
    if not found or found["prefers_longer"] is None or found["better_is_longer"] is None:
        return ""
    return (
        f"<p>It prefers the longer answer in {percent(found['prefers_longer'])}; the longer is the "
        f"better one in {percent(found['better_is_longer'])}.</p>"
    )


def _ends(one: Told) -> tuple[dict[str, float | None], dict[str, float | None]]:
    held = one["held_out"]
    return held.get("before", {}), held.get("after", {})


def _policy(one: Told, rows: Sequence[Mapping[str, float]]) -> str:
    before, after = _ends(one)
    names = [name for name in after if name != "reward"]
    means = _table(
        ("Held-out answers, mean", "Before", "After"),
        [_cells(esc(name), number(before.get(name)), number(after[name])) for name in names],
    )
    length = f"{number(one['first']['length'], 1)} to {number(one['last']['length'], 1)}"
    asked = one["judge"] or "nobody"
    reward = f"the reward is what {esc(asked)} says"
    size = f"{integer(one['steps'])} steps of {integer(one['batch_size'])} answers"
    parts = [
        f"<h3>{esc(one['name'])}</h3>",
        f"<p>{size}; {reward}. Answers went from {length} tokens.</p>",
        means,
        _agreement(one["agreement"]),
        _alarms(one["alarms"]),
    ]
    return "".join(parts) + _curves(one, rows)


def _agreement(found: Told) -> str:
    rows = [
        _cells(
            esc(gold),
            *(f"{number(end['share'])} of {integer(end['pairs'])}" for end in ends),
        )
        for gold, ends in found.items()
    ]
    if not rows:
        return ""
    heads = ("Its own answers ordered as by", "First tenth of the steps", "Last tenth")
    return _table(heads, rows)


def _alarms(alarms: Sequence[Told]) -> str:
    if not alarms:
        return "<p>The sentinel saw nothing.</p>"
    return f'<ul class="alarms">{"".join(map(_alarm, alarms))}</ul>'


def _alarm(one: Told) -> str:
    kind = ' class="note"' if one["note"] else ""
    rule = esc(one["rule"].replace("_", " "))
    return f"<li{kind}><b>Step {integer(one['step'])}, {rule}</b>: {esc(one['seen'])}.</li>"


def _curves(one: Told, rows: Sequence[Mapping[str, float]]) -> str:
    if not rows:
        return ""
    steps = [round(row["step"]) for row in rows]

    def line(name: str, key: str) -> Line:
        return Line(name, [row.get(key) for row in rows])

    gold = one["gold"]
    both = [line("judge", "judge/outcome_mean")]
    if gold is not None:
        both.append(line(gold, f"judge/{gold}_score_mean"))
    others = [g["name"] for g in one["graders"] if not g["weight"] and g["name"] != gold]
    charts = [
        line_chart("Judge and gold", both, steps, low=0.0, high=1.0),
        *(
            line_chart(f"Score of {name}", [line(name, f"judge/{name}_score_mean")], steps)
            for name in others
        ),
        line_chart("Length, tokens", [line("length", "length")], steps, low=0.0),
        line_chart("Judge's spread", [line("spread", "judge/score_std")], steps, low=0.0),
    ]
    return f'<div class="curves">{"".join(charts)}</div>'
