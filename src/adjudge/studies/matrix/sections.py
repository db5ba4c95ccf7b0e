"""The tables of a study's page. Everything that is not ours is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from adjudge.runs.report.charts import esc, integer, number
from adjudge.studies.matrix.cells import (
    CellView,
    cell_name,
    estimate_text,
    interval_text,
    length_feature,
    missing_text,
    onset_text,
    plan_cells,
)

__all__ = [
    "accounting_table",
    "arms_table",
    "comparison_table",
    "failed_table",
    "fit_table",
    "manifest_block",
    "plan_table",
    "regression_tables",
    "transfer_table",
]

Found = Mapping[str, Any]

_MOST_ROWS = 500
_MOST_RAW = 200_000


def plan_table(plan: Found, cells: Mapping[tuple[str, str], CellView], summary: Found) -> str:
    """A line a cell of the plan."""
    feature = length_feature(summary)
    axis = [plan["x"]] if plan["x"] else []
    head = ["Cell", *axis, "Gold at the end", "Gold gain, SD", "Proxy gain, SD",
            "Gap, SD", "Gold loss, SD", "Onset", f"{feature or 'length'}, change"]  # fmt: skip
    rows = []
    for cell in plan_cells(plan, cells):
        end = cell.gap["end"]
        drift = cell.features.get(feature or "", {}).get("change")
        rows.append([
            esc(cell.name),
            *(esc(_place(cell.x)) for _ in axis),
            *(_estimate(end[name]) for name in ("gold_level", "gold", "proxy", "gap")),
            _estimate(cell.gap["loss"]),
            esc(onset_text(cell.onset)),
            _estimate(drift),
        ])  # fmt: skip
    return _table("", head, rows)


def comparison_table(plan: Found) -> str:
    """Pairs of the plan's cells by gold, in the gold's own units."""
    rows = [
        [
            esc(f"{cell_name(*one['a'])} less {cell_name(*one['b'])}"),
            _estimate(one["t"]),
            esc(interval_text(one["bootstrap"]) if one["bootstrap"] else "–"),
            esc(", ".join(f"{seed}: {number(by)}" for seed, by in one["by_seed"].items()) or "–"),
        ]
        for one in plan["comparisons"]
    ]
    head = ["Gold at the end, as scores", "Difference, t over seeds", "Bootstrap", "By seed"]
    table = _table("", head, rows)
    return f"<details><summary>Cells against each other</summary>{table}</details>" if rows else ""


def fit_table(summary: Found) -> str:
    """Fits of gold and proxy over √KL: cells, then best-of-n."""
    curves = [(cell_name(one["judge"], one["mitigation"]), one["fits"]) for one in summary["fits"]]
    curves += [
        (f"best of n by {one['judge']}", one["fits"] or {"gold": _unfitted(one["why"])})
        for one in summary["best_of"]
    ]
    rows = [
        [esc(name), esc(target), integer(fits["points"]), *cells]
        for name, of in curves
        for target, fits in of.items()
        for cells in _forms(fits)
    ]
    return _table("", ["Curve", "Of", "Points", "Form", "α", "β", "R²", "Peak, √KL"], rows)


def transfer_table(found: Found) -> str:
    """Policies down, scorers across: standardised gains, the own judge's bold."""
    if not found["rows"]:
        return "<p>– No arm without mitigation ended.</p>"
    values = [
        abs(one["value"])
        for row in found["rows"]
        for one in row["gains"].values()
        if one["value"] is not None
    ]
    most = max(values, default=0.0)
    names = found["scorers"]
    head = "".join(f'<th scope="col" class="n">{esc(name)}</th>' for name in names)
    rows = "".join(
        f'<tr><th scope="row">{esc(row["judge"])}</th>'
        + "".join(_heat(row["gains"][name], most, own=name == row["judge"]) for name in names)
        + f'<td class="n">{_estimate(row["over_others"])}</td>'
        f'<td class="n">{_estimate(row["over_gold"])}</td></tr>'
        for row in found["rows"]
    )
    return (
        '<div class="scroll"><table class="plain"><thead><tr><th scope="col">Trained on</th>'
        f'{head}<th scope="col" class="n">Own less others</th>'
        '<th scope="col" class="n">Own less gold</th></tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def regression_tables(summary: Found) -> str:
    """Drift of the policy's features on the judges' dials."""
    drifts = summary["drift"]
    dials = list(dict.fromkeys(n for one in drifts for n in one["regression"]["coefficients"]))
    rows = []
    for one in drifts:
        regression = one["regression"]
        coefficients = regression["coefficients"]
        rows.append([
            esc(one["feature"]),
            *(_estimate(coefficients.get(dial)) for dial in dials),
            number(regression["r2"]),
            esc(f"{regression['arms']} of {regression['judges']} judges"),
            esc("; ".join(_notes(one)) or "–"),
        ])  # fmt: skip
    return _table("", ["Change of", *dials, "R²", "Arms", "Notes"], rows)


def accounting_table(accounting: Found) -> str:
    """What failed and what was consumed, a line a cell."""
    rows = []
    for one in [*accounting["cells"], accounting["total"]]:
        name = "all" if one is accounting["total"] else cell_name(one["judge"], one["mitigation"])
        scored = sum(of["missing"] for of in one["scores"].values())
        failed = ", ".join(f"{kind} {count:,}" for kind, count in one["failed_calls"].items())
        rows.append([
            esc(name),
            integer(one["arms"]),
            esc(missing_text(one)),
            esc(f"{scored:,} of {sum(of['asked'] for of in one['scores'].values()):,}"),
            esc(f"{one['calls']:,}" + (f"; failed: {failed}" if failed else "")),
            esc(f"{one['input_tokens']:,} / {one['output_tokens']:,}"),
            esc(_cost(one)),
            number(one["seconds"], 0),
        ])  # fmt: skip
    head = ["Cell", "Arms", "Rewards missing in training", "Scores missing", "Calls",
            "Tokens in / out", "USD", "Seconds"]  # fmt: skip
    return _table("", head, rows)


def arms_table(summary: Found) -> str:
    """A line an arm."""
    rows = [
        [
            esc(one["name"]),
            integer(one["seed"]),
            "–" if one["step"] is None else integer(one["step"]),
            *(number(one[k]) for k in ("distance", "proxy", "gold", "gap", "loss", "gold_level")),
            esc(_onset(one)),
        ]
        for one in summary["arms"]
    ]
    head = ["Arm", "Seed", "Steps", "√KL", "Proxy gain, SD", "Gold gain, SD", "Gap, SD",
            "Gold loss, SD", "Gold at the end", "Onset"]  # fmt: skip
    return _table("", head, rows)


def failed_table(failed: Mapping[str, str]) -> str:
    """Arms that did not end, with the reason."""
    if not failed:
        return ""
    rows = [[esc(name), esc(why)] for name, why in failed.items()]
    return _table("Arms that failed, and are in no number above", ["Arm", "Reason"], rows)


def manifest_block(manifest: Any) -> str:
    """The manifest as it is."""
    if manifest is None:
        return "<p>– See manifest.json.</p>"
    text = msgspec.json.format(msgspec.json.encode(manifest), indent=2).decode()
    more = "" if len(text) <= _MOST_RAW else "\n… manifest.json has it all"
    return (
        "<details><summary>All of it</summary>"
        f'<pre class="raw">{esc(text[:_MOST_RAW] + more)}</pre></details>'
    )


def _table(caption: str, head: Sequence[object], rows: Iterable[Sequence[str]]) -> str:
    """``rows`` are markup, ``head`` and ``caption`` text."""
    every = list(rows)
    cells = "".join(f'<th scope="col">{esc(one)}</th>' for one in head)
    body = "".join(
        f'<tr><th scope="row">{row[0]}</th>{"".join(f"<td>{one}</td>" for one in row[1:])}</tr>'
        for row in every[:_MOST_ROWS]
    )
    left = len(every) - _MOST_ROWS
    more = f"<p>{integer(left)} more are in summary.json.</p>" if left > 0 else ""
    title = f"<caption>{esc(caption)}</caption>" if caption else ""
    return (
        f'<div class="scroll"><table class="plain">{title}<thead><tr>{cells}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>{more}"
    )


def _estimate(found: Found | None) -> str:
    if found is None or found["value"] is None:
        return esc(estimate_text(found))
    return f"{number(found['value'])}<small>{esc(interval_text(found))}</small>"


def _heat(found: Found, most: float, *, own: bool) -> str:
    value = found["value"]
    kinds = ["n", "own"] if own else ["n"]
    if value is not None and most > 0:
        level = min(4, int(5 * abs(value) / most))
        kinds += [f"s{level}", "up" if value > 0 else "down"] if level else []
    return f'<td class="{" ".join(kinds)}">{_estimate(found)}</td>'


def _notes(one: Found) -> list[str]:
    regression = one["regression"]
    left = f"{one['left_out']} arms left out: biases or feature unknown" if one["left_out"] else ""
    return [text for text in (regression["why"], left) if text]


def _cost(one: Found) -> str:
    if one["cost_usd"] is not None:
        return f"{one['cost_usd']:.4f}"
    if not one["calls"]:
        return "– (no call)"
    known = "" if one["priced_usd"] is None else f"; the others {one['priced_usd']:.4f}"
    return f"– ({one['unpriced']:,} calls without a price{known})"


def _onset(arm: Found) -> str:
    if not arm["onset_known"]:
        return "– (unknown)"
    return "never" if arm["onset"] is None else f"step {arm['onset']}"


def _forms(fits: Found) -> list[list[str]]:
    """A line a form; one with the reason where there is none."""
    if not fits["forms"]:
        return [[esc(f"– ({fits['why']})"), *["–"] * 4]]
    found = []
    for name, form in fits["forms"].items():
        beyond = "<small>beyond what was seen</small>" if form["extrapolated"] else ""
        better = "<small>fits better</small>" if fits["better"] == name else ""
        found.append([
            esc(name) + better,
            _estimate(form["alpha"]),
            _estimate(form["beta"]),
            number(form["r2"]),
            _estimate(form["peak"]) + beyond,
        ])  # fmt: skip
    return found


def _place(x: str | float | None) -> str:
    return "–" if x is None else x if isinstance(x, str) else f"{x:g}"


def _unfitted(why: str) -> Found:
    return {"forms": {}, "why": why or "no curve", "points": 0}
