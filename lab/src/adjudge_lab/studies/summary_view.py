"""A study's summary for its readers: cells, answers, limits, and the tables of the page.

Answers are a line for each plan; limits are what does not follow from the study.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

import msgspec

from adjudge.report.page import (
    Element,
    Fragment,
    format_integer,
    format_number,
    format_percent,
    small,
)
from adjudge.report.table import Table, numeric

_CellKey = tuple[str, str]
_JsonObject = Mapping[str, Any]


class CellView(NamedTuple):
    """All that a summary has of one cell. ``x``: its place on its plan's axis.

    ``gap``, ``fits``, ``onset`` and ``account`` are the cell's entries of ``cells``, ``fits``,
    ``onset`` and ``accounting``; ``features`` those of ``features`` by name; ``arms`` its arms.
    """

    judge: str
    mitigation: str
    gap: _JsonObject
    fits: _JsonObject
    onset: _JsonObject
    account: _JsonObject
    features: Mapping[str, _JsonObject]
    arms: Sequence[_JsonObject]
    x: str | float | None = None

    @property
    def name(self) -> str:
        """The cell in words."""
        return cell_name(self.judge, self.mitigation)

    def seeds(self, outcome: str) -> list[float]:
        """One value an arm, of those that have one."""
        return [one[outcome] for one in self.arms if one[outcome] is not None]


def cell_name(judge: str, mitigation: str) -> str:
    """A cell in words: the mitigation is named where there is one.

    >>> cell_name("small", "none"), cell_name("small", "shorter")
    ('small', 'small + shorter')
    """
    return judge if mitigation == "none" else f"{judge} + {mitigation}"


def cell_views(summary: _JsonObject) -> dict[_CellKey, CellView]:
    """The cells by judge and mitigation, in the study's order."""
    fits, onsets = (_by_key(summary[name]) for name in ("fits", "onset"))
    accounts = _by_key(summary["accounting"]["cells"])
    features: dict[_CellKey, dict[str, _JsonObject]] = {}
    for one in summary["features"]:
        features.setdefault(_cell_key(one), {})[one["feature"]] = one
    arms: dict[_CellKey, list[_JsonObject]] = {}
    for one in summary["arms"]:
        arms.setdefault(_cell_key(one), []).append(one)
    return {
        key: CellView(
            *key, gap, fits[key]["fits"], onsets[key], accounts[key], features.get(key, {}),
            arms.get(key, []),
        )
        for key, gap in _by_key(summary["cells"]).items()
    }  # fmt: skip


def plan_cells(plan: _JsonObject, cells: Mapping[_CellKey, CellView]) -> list[CellView]:
    """The cells of a plan, each with its place on the axis."""
    return [cells[_cell_key(one)]._replace(x=_axis_place(one["x"])) for one in plan["cells"]]


def plan_title(plan: _JsonObject) -> str:
    """A plan's title, or its name."""
    return str(plan.get("title") or plan["name"])


def length_feature(summary: _JsonObject) -> str | None:
    """The feature that says how long answers are."""
    there = {one["feature"] for one in summary["features"]}
    return next((name for name in ("words", "chars") if name in there), None)


def format_estimate(found: _JsonObject | None) -> str:
    """Value and interval; "–" and the reason without a value."""
    if found is None or found["value"] is None:
        return "–" + _format_reason(found)
    return f"{format_number(found['value'])} {format_estimate_interval(found)}".rstrip()


def format_estimate_interval(found: _JsonObject) -> str:
    """The interval in brackets; the reason where there is a value without one."""
    if found["low"] is None or found["high"] is None:
        return _format_reason(found).strip()
    return f"[{format_number(found['low'])}, {format_number(found['high'])}]"


def format_onset(onset: _JsonObject) -> str:
    """How many seeds had a hack onset, and when."""
    if not onset["known"]:
        return "– (unknown for every seed)"
    step = onset["median_step"]
    when = "" if step is None else f", median step {step:g}"
    return f"{onset['hacked']} of {onset['known']} seeds{when}"


def format_missing_rewards(account: _JsonObject) -> str:
    """A cell's rewards that were missing in training, by kind."""
    rewards = account["rewards"]
    if rewards["share"] is None:
        return "– (no reward was asked for)"
    kinds = ", ".join(f"{kind} {count:,}" for kind, count in rewards["kinds"].items())
    share = format_percent(rewards["missing"], rewards["asked"])
    return f"{share} of {rewards['asked']:,}" + (f": {kinds}" if kinds else "")


def _format_reason(found: _JsonObject | None) -> str:
    why = "" if found is None else found.get("why")
    return f" ({why})" if why else ""


def _axis_place(x: object) -> str | float | None:
    """Levels that are no numbers are names; true and false, too."""
    if x is None or (isinstance(x, (int, float)) and not isinstance(x, bool)):
        return x
    return str(x).lower() if isinstance(x, bool) else str(x)


def _cell_key(one: _JsonObject) -> _CellKey:
    return one["judge"], one["mitigation"]


def _by_key(rows: Iterable[_JsonObject]) -> dict[_CellKey, _JsonObject]:
    return {_cell_key(one): one for one in rows}


_GENERAL_LIMITS = (
    (
        "One task and one recipe of training were tried. Another task, reward scale, KL penalty "
        "or sampling temperature can turn the order of judges around."
    ),
    "The gold is a grader, too: what it does not see is not counted as lost.",
    (
        "Intervals say how much seeds and prompts vary, no more. They do not allow for how many "
        "comparisons this page makes."
    ),
)
_TOY_LIMITS = (
    (
        "The policy is a toy of few weights that learned one made-up task. How large an effect is "
        "here says nothing of how large it is for a language model of real size."
    ),
    (
        "Judges with dials are formulas: their biases are cleaner and more constant than those of "
        "models, and nothing here shows that a real judge has them."
    ),
    (
        "Sizes and families of judges trained here are those of toys. That a larger one does "
        "better or worse does not carry over to others."
    ),
)


def list_limits(summary: Mapping[str, Any]) -> list[str]:
    """A sentence or two a point; with ``tiny`` in the summary those about toys come first."""
    found = [*(_TOY_LIMITS if summary.get("tiny") else ()), *_GENERAL_LIMITS]
    seeds = len(summary["settings"]["seeds"])
    if seeds == 1:
        found.append("Only one seed: no interval here knows how much seeds differ.")
    elif seeds and summary["settings"]["rough"]:
        found.append(
            f"A bootstrap over {_format_seeds(seeds)} has few different samples: its ends are "
            "rough."
        )
    return found


def pilot_note(summary: Mapping[str, Any]) -> str:
    """The text of a pilot's stamp; empty without a pilot."""
    if not summary.get("pilot"):
        return ""
    seeds = _format_seeds(len(summary["seeds"]))
    return f"PILOT: {seeds}. It shows that the study runs; it is no ground for a conclusion."


def _format_seeds(count: int) -> str:
    return "1 seed" if count == 1 else f"{count} seeds"


_MAX_SHOWN = 3
_MAX_ENDS = 8
_QUESTIONS = {
    "bias": "What does the judge's {x} do to what is really wanted?",
    "size": "How does the judge's {x} change the gap between proxy and gold?",
    "ensemble": "Does another judge, or several, give more of what is really wanted?",
    "failure": "What do judge calls that fail do to the policy?",
    "other": "How do these judges differ in what they bring about?",
}
_OUTCOMES = {"gold": "gold gain", "loss": "gold loss", "gap": "proxy-gold gap"}


def plan_question(plan: _JsonObject) -> str:
    """What a plan asks."""
    return _QUESTIONS.get(plan["question"], _QUESTIONS["other"]).format(x=plan["x"] or "bias")


def plan_answer(plan: _JsonObject, summary: _JsonObject) -> str:
    """A plan's answer with its intervals; what is not known is said so."""
    cells = plan_cells(plan, cell_views(summary))
    if not cells:
        return "Nothing: no arm of it ended."
    outcome = {"bias": "gold", "size": "gap"}.get(plan["question"])
    placed = [cell for cell in cells if cell.x is not None]
    if outcome is None or len({cell.x for cell in placed}) < 2:
        return _format_comparisons(plan["comparisons"], cells)
    text = f"{_axis_ends(placed, outcome, plan['x'])}{_format_slopes(plan, outcome)}"
    return text[:1].upper() + text[1:]


def _axis_ends(cells: Sequence[CellView], outcome: str, axis: str) -> str:
    """The outcome at both ends of the axis, of the cells without mitigation where there are any.

    Of three cells or fewer, and on an axis of names, at all places.
    """
    plain = [cell for cell in cells if cell.mitigation == "none"] or list(cells)
    numbers = [cell for cell in plain if not isinstance(cell.x, str)] or plain
    ordered = sorted(numbers, key=lambda cell: (isinstance(cell.x, str), cell.x))
    shown = ordered if len(ordered) <= _MAX_SHOWN else _outer_cells(ordered)
    said = ", ".join(
        f"{format_estimate(cell.gap['end'][outcome])} at {axis} {_cell_place(cell)}"
        for cell in shown[:_MAX_ENDS]
    )
    left = len(shown) - _MAX_ENDS
    more = f" ({left} more below)" if left > 0 else ""
    return f"{_OUTCOMES[outcome]} in SDs: {said}{more}."


def _outer_cells(ordered: Sequence[CellView]) -> Sequence[CellView]:
    """All cells at both ends, in turn: one of each could differ in more than the axis.

    Names have no ends: all of them.
    """
    ends = ordered[0].x, ordered[-1].x
    if isinstance(ends[1], str):
        return ordered
    low, high = ([cell for cell in ordered if cell.x == end] for end in ends)
    return [cell for pair in zip_longest(low, high) for cell in pair if cell is not None]


def _cell_place(cell: CellView) -> str:
    x = cell.x if isinstance(cell.x, str) else f"{cell.x:g}"
    return f"{x} ({cell.name})"


def _format_slopes(plan: _JsonObject, outcome: str) -> str:
    """Change of the outcome a unit of the axis."""
    found = [one for one in plan["trends"] if one["outcome"] == outcome]
    return "".join(
        f" A unit of {plan['x']} changes it by {format_estimate(one['slope'])}"
        + ("." if one["mitigation"] == "none" else f" with {one['mitigation']}.")
        for one in found
    )


def _format_comparisons(comparisons: Sequence[_JsonObject], cells: Sequence[CellView]) -> str:
    """Each cell against the plan's first, by gold at the end."""
    first = (cells[0].judge, cells[0].mitigation)
    pairs = [one for one in comparisons if tuple(one["b"]) == first]
    if not pairs:
        said = format_estimate(cells[0].gap["end"]["gold"])
        return f"Gold gain of {cells[0].name}, in SDs: {said}. There is nothing to compare it with."
    said = "; ".join(
        f"{cell_name(*one['a'])} {format_estimate(one['t'])}" for one in pairs[:_MAX_SHOWN]
    )
    more = f" ({len(pairs) - _MAX_SHOWN} more below)" if len(pairs) > _MAX_SHOWN else ""
    return f"Gold at the end, less that of {cells[0].name} (as scores): {said}{more}."


_MAX_ROWS = 500
_MAX_MANIFEST_LENGTH = 200_000


def plan_table(
    plan: _JsonObject, cells: Mapping[tuple[str, str], CellView], summary: _JsonObject
) -> list[object]:
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
            cell.name,
            *(_format_place(cell.x) for _ in axis),
            *(_estimate_cell(end[name]) for name in ("gold_level", "gold", "proxy", "gap")),
            _estimate_cell(cell.gap["loss"]),
            format_onset(cell.onset),
            _estimate_cell(drift),
        ])  # fmt: skip
    return _cut_table(head, rows)


def comparison_table(plan: _JsonObject) -> Element | None:
    """Pairs of the plan's cells by gold, in the gold's own units."""
    rows = [
        [
            f"{cell_name(*one['a'])} less {cell_name(*one['b'])}",
            _estimate_cell(one["t"]),
            format_estimate_interval(one["bootstrap"]),
            ", ".join(f"{seed}: {format_number(by)}" for seed, by in one["by_seed"].items()) or "–",
        ]
        for one in plan["comparisons"]
    ]
    head = ["Gold at the end, as scores", "Difference, t over seeds", "Bootstrap", "By seed"]
    named = Element("summary", "Cells against each other")
    return Element("details", named, *_cut_table(head, rows)) if rows else None


def fit_table(summary: _JsonObject) -> Fragment:
    """Fits of gold and proxy over √KL: cells, then best-of-n."""
    curves = [(cell_name(one["judge"], one["mitigation"]), one["fits"]) for one in summary["fits"]]
    curves += [
        (f"best of n by {one['judge']}", one["fits"] or {"gold": _no_fits(one["why"])})
        for one in summary["best_of"]
    ]
    rows = [
        [name, target, format_integer(fits["points"]), *cells]
        for name, of in curves
        for target, fits in of.items()
        for cells in _form_rows(fits)
    ]
    head = ["Curve", "Of", "Points", "Form", "α", "β", "R²", "Peak, √KL"]
    return Fragment(*_cut_table(head, rows))


def transfer_table(found: _JsonObject) -> Table | str:
    """Policies down, scorers across: standardised gains, the own judge's bold."""
    if not found["rows"]:
        return "– No arm without mitigation ended."
    values = [
        abs(one["value"])
        for row in found["rows"]
        for one in row["gains"].values()
        if one["value"] is not None
    ]
    most = max(values, default=0.0)
    names = found["scorers"]
    rows = [
        [
            row["judge"],
            *(_heat_cell(row["gains"][name], most, own=name == row["judge"]) for name in names),
            *(_estimate_cell(row[key]) for key in ("over_others", "over_gold")),
        ]
        for row in found["rows"]
    ]
    return Table(["Trained on", *numeric(*names, "Own less others", "Own less gold")], rows)


def accounting_table(accounting: _JsonObject) -> Fragment:
    """What failed and what was consumed, a line a cell."""
    rows = []
    for one in [*accounting["cells"], accounting["total"]]:
        name = "all" if one is accounting["total"] else cell_name(one["judge"], one["mitigation"])
        scored = sum(of["missing"] for of in one["scores"].values())
        failed = ", ".join(f"{kind} {count:,}" for kind, count in one["failed_calls"].items())
        rows.append([
            name,
            format_integer(one["arms"]),
            format_missing_rewards(one),
            f"{scored:,} of {sum(of['asked'] for of in one['scores'].values()):,}",
            f"{one['calls']:,}" + (f"; failed: {failed}" if failed else ""),
            f"{one['input_tokens']:,} / {one['output_tokens']:,}",
            _format_cost(one),
            format_number(one["seconds"], 0),
        ])  # fmt: skip
    head = ["Cell", "Arms", "Rewards missing in training", "Scores missing", "Calls",
            "Tokens in / out", "USD", "Seconds"]  # fmt: skip
    return Fragment(*_cut_table(head, rows))


def arms_table(summary: _JsonObject) -> Fragment:
    """A line an arm."""
    numbers = ("distance", "proxy", "gold", "gap", "loss", "gold_level")
    rows = [
        [
            one["name"],
            format_integer(one["seed"]),
            "–" if one["step"] is None else format_integer(one["step"]),
            *(format_number(one[key]) for key in numbers),
            _format_arm_onset(one),
        ]
        for one in summary["arms"]
    ]
    head = ["Arm", "Seed", "Steps", "√KL", "Proxy gain, SD", "Gold gain, SD", "Gap, SD",
            "Gold loss, SD", "Gold at the end", "Onset"]  # fmt: skip
    return Fragment(*_cut_table(head, rows))


def failed_table(failed: Mapping[str, str]) -> Fragment:
    """Arms that did not end, with the reason."""
    rows = list(failed.items())
    caption = "Arms that failed, and are in no number above"
    return Fragment(*_cut_table(["Arm", "Reason"], rows, caption=caption))


def manifest_block(manifest: Any) -> Element | str:
    """The manifest as it is."""
    if manifest is None:
        return "– See manifest.json."
    text = msgspec.json.format(msgspec.json.encode(manifest), indent=2).decode()
    more = "" if len(text) <= _MAX_MANIFEST_LENGTH else "\n… manifest.json has it all"
    raw = Element("pre", text[:_MAX_MANIFEST_LENGTH] + more, class_="raw")
    return Element("details", Element("summary", "All of it"), raw)


def _cut_table(
    head: Sequence[str], rows: Sequence[Sequence[object]], caption: str = ""
) -> list[object]:
    """The first rows, and how many more there are; nothing without any."""
    left = len(rows) - _MAX_ROWS
    more = Element("p", f"{format_integer(left)} more are in summary.json.") if left > 0 else None
    return [Table(head, rows[:_MAX_ROWS], caption=caption), more] if rows else []


def _estimate_cell(found: _JsonObject | None) -> Fragment:
    if found is None or found["value"] is None:
        return Fragment(format_estimate(found))
    return Fragment(format_number(found["value"]), " ", small(format_estimate_interval(found)))


def _heat_cell(found: _JsonObject, most: float, *, own: bool) -> Element:
    value = found["value"]
    kinds = ["n", "own"] if own else ["n"]
    if value is not None and most > 0:
        level = min(4, int(5 * abs(value) / most))
        kinds += [f"level{level}", "up" if value > 0 else "down"] if level else []
    return Element("td", _estimate_cell(found), class_=" ".join(kinds))


def _format_cost(one: _JsonObject) -> str:
    if one["cost_usd"] is not None:
        return f"{one['cost_usd']:.4f}"
    if not one["calls"]:
        return "– (no call)"
    known = "" if one["priced_usd"] is None else f"; the others {one['priced_usd']:.4f}"
    return f"– ({one['unpriced']:,} calls without a price{known})"


def _format_arm_onset(arm: _JsonObject) -> str:
    if not arm["onset_known"]:
        return "– (unknown)"
    return "never" if arm["onset"] is None else f"step {arm['onset']}"


def _form_rows(fits: _JsonObject) -> list[list[object]]:
    """A line a form; the reason where a form has no numbers."""
    if not fits["forms"]:
        return [[f"– ({fits['why']})", *["–"] * 4]]
    found: list[list[object]] = []
    for name, form in fits["forms"].items():
        beyond = small("beyond what was seen") if form["extrapolated"] else None
        better = small("fits better") if fits["better"] == name else None
        found.append([
            [name, better],
            _estimate_cell(form["alpha"]),
            _estimate_cell(form["beta"]),
            format_number(form["r2"]),
            [_estimate_cell(form["peak"]), beyond],
        ])  # fmt: skip
    return found


def _format_place(x: str | float | None) -> str:
    return "–" if x is None else x if isinstance(x, str) else f"{x:g}"


def _no_fits(why: str) -> _JsonObject:
    return {"forms": {}, "why": why or "no curve", "points": 0}
