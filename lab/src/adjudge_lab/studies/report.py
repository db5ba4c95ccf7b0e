"""A study's report, one HTML file: the figures of its plans by their questions, and its curves.

Curves: proxy and gold over √KL, best-of-n, and drift over the steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from adjudge.report.page import (
    Element,
    Section,
    Tile,
    bold,
    format_integer,
    format_number,
    paragraph,
    render_page,
)
from adjudge_lab.studies import summary_view
from adjudge_lab.studies.charts import (
    ChartPoint,
    ChartSeries,
    DotRow,
    Drawing,
    dot_chart,
    draw_figure,
    svg_document,
    xy_chart,
)
from adjudge_lab.studies.curves import draw_best_of, draw_drift, draw_kl_curves
from adjudge_lab.studies.results import StudyResult
from adjudge_lab.studies.summary_view import (
    CellView,
    cell_views,
    length_feature,
    list_limits,
    pilot_note,
    plan_answer,
    plan_cells,
    plan_question,
    plan_title,
)

_JsonObject = Mapping[str, Any]

_GAIN_UNIT = "SDs of the first policy's answers"
_Measure = tuple[str, str, Callable[[CellView], _JsonObject], str]
"""Title, unit, a cell's estimate, and the outcome that each of its arms has."""

_GOLD_MEASURE: _Measure = (
    "Gold gain at the end", f"gold gain, {_GAIN_UNIT}", lambda cell: cell.gap["end"]["gold"], "gold"
)  # fmt: skip
_GAP_MEASURE: _Measure = (
    "Gap between proxy and gold at the end", f"proxy gain − gold gain, {_GAIN_UNIT}",
    lambda cell: cell.gap["end"]["gap"], "gap",
)  # fmt: skip


def render_plan_figures(summary: _JsonObject) -> dict[str, str]:
    """An SVG file for each plan that has a figure, by the plan's name."""
    found = {}
    for plan in summary["plans"]:
        drawings = draw_plan(plan, summary)
        if drawings:
            found[plan["name"]] = svg_document(plan_title(plan), drawings)
    return found


def draw_plan(plan: _JsonObject, summary: _JsonObject) -> list[Drawing]:
    """What answers ``plan``; without any arm that ended, nothing.

    ``bias`` and ``size`` are drawn over the plan's axis where its cells are on it: gold gain, gold
    loss and onset, or the gap between proxy and gold. All other questions have a line a cell.
    """
    cells = plan_cells(plan, cell_views(summary))
    if not cells:
        return []
    draw = _DRAW_BY_QUESTION.get(plan["question"], _draw_cells)
    return draw(cells, summary, str(plan["x"] or ""))


def _draw_bias(cells: Sequence[CellView], summary: _JsonObject, axis: str) -> list[Drawing]:
    return _draw_over_axis(cells, summary, axis, [
        _GOLD_MEASURE,
        ("Gold loss: its peak less its end", f"gold loss, {_GAIN_UNIT}",
         lambda cell: cell.gap["loss"], "loss"),
        (_onset_title(cells), "step of the onset",
         lambda cell: {"value": cell.onset["median_step"], "low": None, "high": None}, "onset"),
    ])  # fmt: skip


def _draw_size(cells: Sequence[CellView], summary: _JsonObject, axis: str) -> list[Drawing]:
    return _draw_over_axis(cells, summary, axis, [_GAP_MEASURE, _GOLD_MEASURE])


def _draw_cells(cells: Sequence[CellView], summary: _JsonObject, axis: str) -> list[Drawing]:
    del summary, axis
    return [_dot_chart_of(cells, *measure) for measure in (_GOLD_MEASURE, _GAP_MEASURE)]


def _draw_failure(cells: Sequence[CellView], summary: _JsonObject, axis: str) -> list[Drawing]:
    drawings = _draw_cells(cells, summary, axis)[:1]
    feature = length_feature(summary)
    if feature is not None:
        title = f"Length at the end: {feature}"
        drawings.append(_dot_chart_of(cells, title, feature, lambda c: _final_feature(c, feature)))
    shares = [
        DotRow(cell.name, share, why="no reward was asked for")
        for cell in cells
        for share in [cell.account["rewards"]["share"]]
    ]
    return [*drawings, dot_chart("Rewards that were missing", "share of all in training", shares)]


_DRAW_BY_QUESTION: Mapping[str, Callable[[Sequence[CellView], _JsonObject, str], list[Drawing]]] = {
    "bias": _draw_bias,
    "size": _draw_size,
    "failure": _draw_failure,
}


def _draw_over_axis(
    cells: Sequence[CellView], summary: _JsonObject, axis: str, measures: Sequence[_Measure]
) -> list[Drawing]:
    """Each measure over the axis; a line a cell where fewer than two places are on it."""
    placed = [cell for cell in cells if cell.x is not None]
    if len({cell.x for cell in placed}) < 2:
        return _draw_cells(cells, summary, axis)
    groups = _group_by_levels(placed, summary, axis)
    places = [cell.x for cell in placed if cell.x is not None]
    drawings = []
    for title, unit, estimate, outcome in measures:
        series = [
            one
            for place, (name, own) in enumerate(groups.items())
            for one in _seed_and_mean_series(place, name, own, estimate, outcome)
        ]
        drawing = xy_chart(title, (axis, unit), series, zero=True, places=places)
        drawings += [] if drawing is None else [drawing]
    return drawings


def _seed_and_mean_series(
    place: int,
    name: str,
    cells: Sequence[CellView],
    estimate: Callable[[CellView], _JsonObject],
    outcome: str,
) -> list[ChartSeries]:
    """One mark a seed, and the means over them."""
    seeds = [
        ChartPoint(_axis_place(cell), arm[outcome], tooltip=f"{arm['name']}: {arm[outcome]:.4g}")
        for cell in cells
        for arm in cell.arms
        if arm[outcome] is not None
    ]
    means = [
        ChartPoint(
            _axis_place(cell), found["value"], found["low"], found["high"], tooltip=cell.name
        )
        for cell in cells
        for found in [estimate(cell)]
        if found["value"] is not None
    ]
    means.sort(key=lambda spot: (isinstance(spot.x, str), spot.x))
    return [ChartSeries(name, place, "mean", means), ChartSeries("", place, "seed", seeds)]


def _axis_place(cell: CellView) -> str | float:
    return 0.0 if cell.x is None else cell.x


def _group_by_levels(
    cells: Sequence[CellView], summary: _JsonObject, axis: str
) -> dict[str, list[CellView]]:
    """Cells that differ on the axis only, by what they have in common: a line each."""
    levels = {cell.judge: _judge_levels(cell.judge, summary) for cell in cells}
    names = dict.fromkeys(name for of in levels.values() for name in of if name != axis)
    kept = [name for name in names if _separates_series(name, cells, levels)]
    found: dict[str, list[CellView]] = {}
    for cell in cells:
        parts = [f"{name} {levels[cell.judge].get(name, '–')}" for name in kept]
        parts += [] if cell.mitigation == "none" or axis == "mitigation" else [cell.mitigation]
        found.setdefault(", ".join(parts), []).append(cell)
    return found


def _judge_levels(judge: str, summary: _JsonObject) -> Mapping[str, Any]:
    return (summary["judges"].get(judge) or {}).get("levels") or {}


def _separates_series(
    name: str, cells: Sequence[CellView], levels: Mapping[str, Mapping[str, Any]]
) -> bool:
    """Whether a level varies, and is not the axis by another name."""
    places: dict[str, set[object]] = {}
    for cell in cells:
        places.setdefault(str(levels[cell.judge].get(name)), set()).add(cell.x)
    return len(places) > 1 and any(len(of) > 1 for of in places.values())


def _dot_chart_of(
    cells: Sequence[CellView],
    title: str,
    unit: str,
    estimate: Callable[[CellView], _JsonObject],
    outcome: str = "",
) -> Drawing:
    rows = []
    for cell in cells:
        found = estimate(cell)
        seeds = cell.seeds(outcome) if outcome else ()
        rows.append(
            DotRow(cell.name, found["value"], found["low"], found["high"], seeds, found["why"])
        )
    return dot_chart(title, unit, rows)


def _final_feature(cell: CellView, feature: str) -> _JsonObject:
    """A feature's mean at the last checkpoint."""
    points = cell.features[feature]["points"] if feature in cell.features else []
    if points:
        found: _JsonObject = points[-1]["mean"]
        return found
    return {"value": None, "low": None, "high": None, "why": "not measured"}


def _onset_title(cells: Sequence[CellView]) -> str:
    known = sum(cell.onset["known"] for cell in cells)
    never = known - sum(cell.onset["hacked"] for cell in cells)
    return f"Onset of hacking ({never} of {known} runs: never)"


_CellViews = Mapping[tuple[str, str], CellView]

_MAX_DRAWINGS = 48

_CURVES_NOTE = (
    "Gold solid, proxy dashed: what the policy was trained on. Both are gains from the first "
    "policy, in SDs of its answers; the mean over seeds at each checkpoint, and a ring a seed. "
    "Thin: the form of Gao et al. (2022) that fits better. A dotted line: its peak, where that was "
    "seen."
)
_BEST_OF_NOTE = (
    "The best of n answers of the first policy by each judge, with the exact expectation over all "
    "subsets; no training."
)
_TRANSFER_NOTE = (
    "Gains in SDs of the first policy's answers, with 95 % intervals. Bold: by the judge that was "
    "trained on. Own less others, and less gold: the gain that only the own judge sees."
)
_FITS_NOTE = "bon: d(α − β·d). rl: d(α − β·log d). d is √KL."
_ACCOUNTS_NOTE = (
    "A reward that is missing is no number and is left out of the update; nothing is renormalised."
)


def write_figures(folder: Path, summary: _JsonObject, result: StudyResult) -> None:
    """Write the page's figures as SVG files: one a plan, ``over-kl.svg`` and ``best-of-n.svg``."""
    over = draw_kl_curves(result, cell_views(summary), summary["units"])[:_MAX_DRAWINGS]
    best = draw_best_of(summary["best_of"])[:_MAX_DRAWINGS]
    files = render_plan_figures(summary)
    if over:
        files[_free_name("over-kl", files)] = svg_document("Proxy and gold over √KL", over)
    if best:
        files[_free_name("best-of-n", files)] = svg_document("Best of n", best)
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / f"{name}.svg").write_text(text, encoding="utf-8")


def _free_name(name: str, taken: Iterable[str]) -> str:
    """``name``, or one like it where a plan is called so."""
    lower = {one.lower() for one in taken}
    while name in lower:
        name = f"all-{name}"
    return name


def write_study_report(path: Path, summary: _JsonObject, result: StudyResult) -> None:
    """Write ``report.html`` to ``path``, UTF-8.

    ``summary``: what :func:`~adjudge_lab.studies.analysis.analyse` found, each of its ``plans``
    with its ``title`` and ``note``; and ``label``, ``pilot``, ``seeds``, ``tiny`` (whether the
    policy is a toy), ``manifest``, ``warnings`` and ``seconds``, as far as they are known.
    """
    path.write_bytes(render_study_page(summary, result).encode())


def render_study_page(summary: _JsonObject, result: StudyResult) -> str:
    """The whole page."""
    cells = cell_views(summary)
    stamp = pilot_note(summary)
    return render_page(
        summary.get("label") or "Study",
        _facts(summary),
        _sections(summary, result, cells),
        tiles=_tiles(summary),
        above=Element("p", stamp, class_="pilot", role="note") if stamp else None,
        styles=[(__package__ or "", "page.css"), (__package__ or "", "charts.css")],
    )


def _sections(summary: _JsonObject, result: StudyResult, cells: _CellViews) -> Iterable[Section]:
    limits = Element("ul", [Element("li", text) for text in list_limits(summary)])
    curves = _drawings(_CURVES_NOTE, draw_kl_curves(result, cells, summary["units"]))
    plans = [block for plan in summary["plans"] for block in _plan_blocks(plan, cells, summary)]
    fits = _note(_FITS_NOTE), summary_view.fit_table(summary)
    transfer = _note(_TRANSFER_NOTE), summary_view.transfer_table(summary["transfer"])
    account = _note(_ACCOUNTS_NOTE), summary_view.accounting_table(summary["accounting"])
    arms = summary_view.arms_table(summary), summary_view.failed_table(summary["failed"])
    manifest = summary_view.manifest_block(summary.get("manifest"))
    parts: list[tuple[str, str, object, str]] = [
        ("answers", "What was asked, and what came out", _answers(summary), "Answers"),
        ("limits", "What does not follow", Element("div", limits, class_="limits"), "Limits"),
        ("plans", "Plans", plans, "Plans"),
        ("curves", "Proxy and gold against √KL", curves, "Curves"),
        ("best", "Best of n", _drawings(_BEST_OF_NOTE, draw_best_of(summary["best_of"])), ""),
        ("fits", "Fits of the curves", fits, ""),
        ("transfer", "Transfer: trained on one judge, scored by all", transfer, "Transfer"),
        ("drift", "Drift", _drawings("", draw_drift(summary["features"])), "Drift"),
        ("accounting", "Failures and cost", account, "Failures and cost"),
        ("arms", "Arms", arms, "Arms"),
        ("manifest", "Manifest", manifest, ""),
    ]
    return (Section(*part) for part in parts)


def _facts(summary: _JsonObject) -> list[tuple[str, str]]:
    settings = summary["settings"]
    resampled = "prompts" if len(settings["seeds"]) == 1 else "seeds and prompts"
    held_out = [name for name, one in summary["judges"].items() if one.get("role") == "held_out"]
    return [
        ("Gold", summary["gold"]),
        ("Held-out judges", ", ".join(held_out) or "–"),
        ("Seeds", ", ".join(map(str, settings["seeds"])) or "–"),
        ("Intervals", f"95 %, {resampled} resampled {settings['draws']:,} times"),
        ("When", " · ".join(_created_by(summary)) or "–"),
    ]


def _created_by(summary: _JsonObject) -> Iterable[str]:
    if summary.get("created"):
        yield str(summary["created"])
    if summary.get("adjudge"):
        yield f"adjudge {summary['adjudge']}"


def _tiles(summary: _JsonObject) -> list[Tile]:
    total, failed = summary["accounting"]["total"], len(summary["failed"])
    missing = total["rewards"]["missing"]
    judges = [name for name in summary["judges"] if name != summary["gold"]]
    seconds = summary.get("seconds")
    whole = seconds.get("total") if isinstance(seconds, Mapping) else seconds
    cost = "–" if total["cost_usd"] is None else f"{total['cost_usd']:.4f}"
    return [
        Tile("Arms", format_integer(len(summary["arms"])), f"of {len(summary['cells'])} cells"),
        Tile("Failed", format_integer(failed), "arms, left out" if failed else "none", failed > 0),
        Tile("Judges", format_integer(len(judges)), "score every checkpoint"),
        Tile(
            "No reward", format_integer(missing), f"of {total['rewards']['asked']:,}", missing > 0
        ),
        Tile("USD", cost, "" if total["calls"] else "no call was made"),
        Tile("Minutes", "–" if whole is None else format_number(whole / 60, 1), ""),
    ]


def _answers(summary: _JsonObject) -> list[Element]:
    lines = [
        [
            Element("dt", plan_title(plan)),
            Element("dd", plan_question(plan), " ", bold(plan_answer(plan, summary))),
        ]
        for plan in summary["plans"]
    ]
    warnings = [Element("li", text) for text in summary.get("warnings") or []]
    listed = [Element("ul", warnings, class_="warnings")] if warnings else []
    return [Element("dl", lines, class_="answers"), *listed]


def _plan_blocks(plan: _JsonObject, cells: _CellViews, summary: _JsonObject) -> list[object]:
    return [
        Element("h3", plan_title(plan)),
        _note(plan.get("note") or ""),
        *_drawings("", draw_plan(plan, summary)),
        summary_view.plan_table(plan, cells, summary),
        summary_view.comparison_table(plan),
    ]


def _note(text: str) -> Element | None:
    return paragraph(text, class_="note") if text else None


def _drawings(note: str, drawings: list[Drawing]) -> list[object]:
    if not drawings:
        return [_note(note), "– Nothing to draw: no checkpoint has the scores for it."]
    left = len(drawings) - _MAX_DRAWINGS
    figures = [draw_figure(one) for one in drawings[:_MAX_DRAWINGS]]
    more = f"{format_integer(left)} more are not drawn." if left > 0 else ""
    return [_note(note), Element("div", figures, class_="drawings"), more]
