"""The parts of a grading report: findings, tiles, graders and missing rewards."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from adjudge.checks.summary import check_summary
from adjudge.report.charts import (
    bar_chart,
    forest_axis,
    forest_strip,
    histogram_chart,
)
from adjudge.report.page import (
    Element,
    Fragment,
    Tile,
    bold,
    code,
    format_integer,
    format_number,
    format_percent,
    format_sample_rate,
    paragraph,
    small,
)
from adjudge.report.table import Column, Table, numeric
from adjudge.runs.summary import UNSCALED, GradingTotals
from adjudge.stats import Estimate, GroupSpread, bins_for, group_spread, histogram

# No text of a sample enters here.

BASELINES = {"response_length": "response length", "tool_calls": "number of tool calls"}
"""Baselines of a summary, and how they read: what a grader must beat to earn its place."""


def format_concordance(agreement: Mapping[str, Any] | None) -> str:
    """``0.712 [0.650, 0.770]``, without the bracket where there is no interval."""
    if not agreement or agreement.get("value") is None:
        return "–"
    low, high = agreement.get("low"), agreement.get("high")
    if low is None or high is None:
        return format_number(agreement["value"])
    return f"{format_number(agreement['value'])} [{format_number(low)}, {format_number(high)}]"


def findings_list(summary: Mapping[str, Any]) -> Element | None:
    """Who follows the environment inside groups, and what the checks of the summary found."""
    named = {**(summary.get("graders") or {}), "reward": summary.get("reward") or {}}
    known = {name: of["concordance"] for name, of in named.items() if of.get("concordance")}
    follow = [name for name, one in known.items() if (one.get("low") or 0.0) > 0.5]
    against = [name for name, one in known.items() if (one.get("high") or 1.0) < 0.5]
    unclear = [name for name in known if name not in (*follow, *against)]
    said: list[object] = []
    for names, text in (
        (follow, "Follow the environment inside groups"),
        (against, "Point the wrong way inside groups"),
        (unclear, "Not told apart from chance inside groups"),
    ):
        listed = [
            [", " * (at > 0), code(name), f" {format_concordance(known[name])}"]
            for at, name in enumerate(sorted(names, key=lambda name: -known[name]["value"]))
        ]
        said += [[f"{text}: ", *listed]] if listed else []
    for one in check_summary(summary):
        begin = "" if one.severity == "low" else "Warning: "
        said.append([f"{begin}{one.sentence} {one.advice} ", small(one.otherwise)])
    return Element("ul", [Element("li", one) for one in said], class_="findings") if said else None


def facts_list(summary: Mapping[str, Any]) -> list[tuple[str, list[str]]]:
    """What was graded with what, and when: names, and their lines."""
    spec = summary.get("spec") or {}
    mapping = summary.get("map") or {}
    source = (summary.get("groups") or {}).get("source")
    sources = {
        "column": "by their column",
        "equal prompts": "equal prompts form a group",
        "equal prompts of a step": "equal prompts of a step form a group",
    }
    version = f"adjudge {summary['adjudge']}" if summary.get("adjudge") else ""
    elapsed, rate = summary.get("elapsed_s"), summary.get("samples_per_s")
    took = "" if elapsed is None else f"{format_number(elapsed, 1 if elapsed >= 1 else 3)} s"
    speed = f"{took} · {format_sample_rate(rate)}" if took and rate else took
    entries: dict[str, Sequence[object]] = {
        "Rollouts": summary.get("inputs") or [],
        "Fields": [f"{ours} ← {theirs}" for ours, theirs in mapping.items()],
        "Reward spec": [spec.get("path"), str(spec.get("hash") or "")[:19]],
        "Groups": [sources.get(str(source), source)],
        "Graded": [summary.get("created"), speed, version],
    }
    found = []
    for name, several in entries.items():
        lines = [str(line) for line in several if line]
        more = [f"and {len(lines) - 4} more"] if len(lines) > 4 else []
        found.append((name, [*lines[:4], *more]))
    return found


def summary_tiles(summary: Mapping[str, Any], not_evaluable: int) -> list[Tile]:
    """The run in seven numbers."""
    total = summary.get("samples") or 0
    groups, reward = summary.get("groups") or {}, summary.get("reward") or {}
    broken = (summary.get("broken_rows") or {}).get("count") or 0
    zero, lost = reward.get("zero_spread_frac"), reward.get("missing") or 0
    spread = format_percent(zero) if zero is not None else "–"
    present = reward.get("present", total)
    of = "" if present == total else f", of {format_integer(present)}"
    # After a group step the mean is 0, or nearly, whatever the samples are worth.
    before = reward.get("before_step")
    shown = before or reward
    std_note = f"std {format_number(shown.get('std'))}{of}"
    if before:
        std_note += f", before {before['step']}"
    return [
        Tile("Samples", format_integer(total), ""),
        Tile("Groups", format_integer(groups.get("count") or 0), _sizes(groups)),
        Tile("Reward, mean", format_number(shown.get("mean")), std_note),
        Tile("Zero-spread groups", spread, "of the reward"),
        Tile("Reward missing", format_integer(lost), format_percent(lost, total), alarm=lost > 0),
        Tile("Not evaluable", format_integer(not_evaluable), "by at least one grader"),
        Tile("Broken rows", format_integer(broken), "kept out", alarm=broken > 0),
    ]


def _sizes(groups: Mapping[str, Any]) -> str:
    low, high = groups.get("size_min"), groups.get("size_max")
    if low is None or high is None:
        return ""
    if low == high:
        return f"{format_integer(low)} samples each"
    middle = groups.get("size_median")
    note = f", median {format_number(middle, 1).removesuffix('.0')}" if middle is not None else ""
    return f"{format_integer(low)} to {format_integer(high)} samples{note}"


def forest_table(summary: Mapping[str, Any], *, drawn: bool = True) -> Table:
    """Pooled AUC and within-group concordance of the reward, the graders and the baselines.

    Where the environment's reward has more than two values, the pooled number is a concordance.
    ``drawn``: whether the intervals are, which the caption then explains.
    """
    kind = "AUC" if (summary.get("env_reward") or {}).get("binary", True) else "concordance"
    reward, baselines = summary.get("reward") or {}, summary.get("baselines") or {}
    found: list[tuple[object, Mapping[str, Any]]] = (
        [("Reward", reward)] if reward.get("auc") else []
    )
    found += [(code(name), of) for name, of in (summary.get("graders") or {}).items()]
    found += [
        (Element("span", label, class_="soft"), baselines[key])
        for key, label in BASELINES.items()
        if baselines.get(key)
    ]
    keys = [
        Element("span", f"{what} ", class_=f"key {name}")
        for what, name in (("within group", "within"), ("pooled", "pooled"))
    ]
    rows: list[list[object]] = []
    for label, of in found:
        within, pooled = of.get("concordance") or {}, of.get("auc") or {}
        estimates = {
            name: Estimate(x.get("value"), x.get("low"), x.get("high"))
            for name, x in (("within", within), ("pooled", pooled))
        }
        said = f"within group {format_concordance(within)}, pooled {format_concordance(pooled)}"
        cells = map(_estimate_cell, (within, pooled))
        rows.append([label, forest_strip(estimates, said), *cells])
    return Table(
        [
            "Grader",
            Column(forest_axis(), "plot"),
            Column("Within group", "n within"),
            *numeric(f"Pooled {kind}"),
        ],
        rows,
        caption=[keys, "with 95\u00a0% intervals"] if drawn else "Against the environment's reward",
        kind="forest",
        keep=("Within group",),
    )


def _estimate_cell(found: Mapping[str, Any]) -> Element:
    value, _, interval = format_concordance(found).partition(" ")
    pairs = found.get("pairs")
    tip = None if pairs is None else f"{format_integer(pairs)} pairs"
    return Element("span", bold(value), " ", small(interval), title=tip)


def grader_panels(summary: Mapping[str, Any], series: GradingTotals) -> list[Element]:
    """The reward, then each grader: its distribution and its spread inside groups."""
    total, found = summary.get("samples") or 0, summary.get("reward") or {}
    what = "what the trainer gets"
    counts = ["present", "missing"]
    panels = [_panel("Reward", what, counts, found, total, series.reward, series)]
    graders = (summary.get("graders") or {}).items()
    for (name, of), scores in zip(graders, series.scores, strict=True):
        counts = ["scored", "missing", "not evaluable", *["untrusted"] * bool(of.get("untrusted"))]
        what = _grader_description(of)
        panels.append(_panel(code(name), what, counts, of, total, scores, series))
    return panels


def _grader_description(of: Mapping[str, Any]) -> str:
    parts = [str(of[key]) for key in ("type", "role") if of.get(key)]
    if of.get("weight") is not None:
        parts.append(f"weight {of['weight']:g}")
    if of.get("score_range"):
        parts.append("range " + " to ".join(_bound(x) for x in of["score_range"]))
    if of.get("unscaled"):
        parts.append(UNSCALED)
    return " · ".join(parts)


def _bound(x: float | None) -> str:
    return "∞" if x is None else f"{x:g}".replace("-", "−")


def _panel(
    title: object,
    what: str,
    counts: Sequence[str],
    found: Mapping[str, Any],
    total: int,
    values: Sequence[float | None],
    series: GradingTotals,
) -> Element:
    span = f"{format_number(found.get('min'))} to {format_number(found.get('max'))}"
    facts: list[tuple[str, object]] = []
    for name in counts:
        count = found.get(name.replace(" ", "_"))
        share: object = "–"
        if count is not None:
            share = [f"{format_integer(count)} ", small(format_percent(count, total))]
        facts.append((name, share))
    facts += [
        ("mean", format_number(found.get("mean"))),
        ("std", format_number(found.get("std"))),
        ("min to max", span),
        ("within-group std", format_number(found.get("within_group_std"))),
    ]
    kinds = found.get("missing_by_kind") or {}
    each = " · ".join(f"{kind} {format_integer(count)}" for kind, count in kinds.items())
    lines = [Element("div", Element("dt", name), Element("dd", value)) for name, value in facts]
    chart_title, chart = _distribution(values, series.outcomes, found.get("score_range"))
    spread = list(_spread(group_spread(values, series.groups)))
    return Element(
        "section",
        Element("header", Element("h3", title), paragraph(what)),
        Element("dl", lines, class_="rows"),
        Element("figure", Element("figcaption", chart_title), chart),
        Element("figure", Element("figcaption", "Spread inside groups, std"), spread),
        paragraph(f"Missing by kind: {each}", class_="kinds") if each else None,
        class_="panel",
    )


def _distribution(
    values: Sequence[float | None],
    outcomes: Sequence[float | None],
    score_range: Sequence[float | None] | None,
) -> tuple[str, Element]:
    """A chart of all values and its title; by outcome where there are two of them."""
    present = [x for x in values if x is not None]
    if not present:
        return "Distribution", paragraph("No value.")
    bins = bins_for(present, *_axis(present, score_range))
    levels = sorted({x for x in outcomes if x is not None})
    if len(levels) != 2:
        counts = histogram(present, bins).counts
        chart = histogram_chart(counts, bins, "distribution, samples per bin")
        return "Distribution, samples", chart
    charts: list[Element] = []
    for level in reversed(levels):
        part = [x for x, y in zip(values, outcomes, strict=True) if y == level and x is not None]
        name = f"environment’s reward {level:g}"
        chart = histogram_chart(histogram(part, bins).counts, bins, f"distribution, {name}")
        charts += [small(name), chart]
    return "Distribution, samples by environment’s reward", Fragment(*charts)


def _axis(
    present: Sequence[float], score_range: Sequence[float | None] | None
) -> tuple[float, float]:
    """The grader's own finite ends where it has them; 0 to 1 for what lies inside it."""
    low, high = min(present), max(present)
    if low >= 0 and high <= 1:
        low, high = 0.0, 1.0
    ends = score_range or (None, None)
    return (low if ends[0] is None else ends[0], high if ends[1] is None else ends[1])


def _spread(spread: GroupSpread) -> Iterator[Element]:
    share, groups = spread.zero_frac, len(spread.stds)
    if share is None:
        yield paragraph("No group has two values.")
        return
    of = small(f"{format_integer(spread.zero)} of {format_integer(groups)} groups")
    yield paragraph(bold(format_percent(share)), " zero spread ", of, class_="zero")
    yield bar_chart(share, "share of groups without spread")
    rest = sorted(spread.stds)[spread.zero :]
    if rest:
        bins = bins_for(rest, 0.0)
        label = "std of the other groups, groups per bin"
        yield histogram_chart(histogram(rest, bins).counts, bins, label)


def missing_tables(summary: Mapping[str, Any]) -> Element | str:
    """Missing rewards by kind, by response length and by environment reward."""
    found = summary.get("missing") or {}
    kinds, groups = found.get("by_kind") or {}, found.get("by_group") or {}
    lost = sum(kinds.values())
    if not lost and not (summary.get("reward") or {}).get("missing"):
        return "No reward is missing."
    partly = [
        (key, groups[key], sum(groups.values())) for key in ("all", "some") if groups.get(key)
    ]
    # In groups where some but not all rewards are missing, the properties that any answer had.
    properties = [(x["name"], x["missing"], x["n"]) for x in found.get("by_property") or []]
    tables = (
        _bars("By kind", "kind", "missing", [(kind, n, lost) for kind, n in kinds.items()]),
        _bars("By response length", "characters", "missing", _bins(found, "by_length_decile")),
        _bars("By environment reward", "value", "missing", _bins(found, "by_env_reward")),
        _bars("By property of the answer", "property", "missing", properties),
        _bars("By group", "missing in it", "groups", partly),
    )
    return Element("div", [table for table in tables if table], class_="columns")


def _bins(found: Mapping[str, Any], key: str) -> list[tuple[str, int, int]]:
    """The bins of a summary: a value or its ends, how many are missing, of how many."""
    rows = []
    for entry in found.get(key) or []:
        ends = [entry["value"]] if "value" in entry else [entry["low"], entry["high"]]
        rows.append((" to ".join(map(_format_edge, ends)), entry["missing"], entry["n"]))
    return rows


def _format_edge(x: float) -> str:
    return format_integer(x) if math.isfinite(x) and x == round(x) else format_number(x)


def _bars(title: str, what: str, counted: str, rows: Sequence[tuple[str, int, int]]) -> Table:
    """``rows``: label, count, of how many. Bars are relative to the largest share."""
    largest = max((count / whole for _, count, whole in rows if whole), default=0.0) or 1.0
    return Table(
        [what, *numeric(counted, "share"), Column("", "plot")],
        [
            [
                label,
                [format_integer(count), " ", small("of ", format_integer(whole))],
                format_percent(count, whole),
                bar_chart(
                    (count / whole if whole else 0.0) / largest,
                    format_percent(count, whole),
                    track=False,
                ),
            ]
            for label, count, whole in rows
        ],
        caption=title,
        kind="bars",
    )
