"""The parts of the report that need no script: facts, tiles, charts and tables as HTML, sentences.

The sentences say what the agreement numbers of a run say. No text of a sample enters here; names,
kinds and paths do, escaped.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from adjudge.runs.report.charts import (
    ForestDot,
    bar_chart,
    escape_html,
    forest_axis,
    forest_strip,
    format_integer,
    format_number,
    format_percent,
    histogram_chart,
    mirrored_chart,
)
from adjudge.runs.stats import GroupSpread, bins_for, group_spread, histogram

__all__ = [
    "BASELINES",
    "ScoreSeries",
    "agreement_findings",
    "agreement_section",
    "facts_list",
    "format_concordance",
    "grader_panels",
    "metrics_section",
    "missing_section",
    "summary_tiles",
]


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


def agreement_findings(summary: Mapping[str, Any]) -> list[str]:
    """Sentences in HTML, the most consequential first; empty where nothing can be said."""
    return [
        *(f"Warning: {escape_html(warning)}." for warning in summary.get("warnings") or []),
        *_reward_finding(summary),
        *_order_inside_groups(summary),
        *_only_pooled(summary),
        *_against_baselines(summary),
        *_zero_spread_finding(summary),
        *_missing_finding(summary),
    ]


def _graders(summary: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Concordance within groups of each grader that has one."""
    found = {name: facts.get("concordance") for name, facts in summary.get("graders", {}).items()}
    return {name: c for name, c in found.items() if c and c.get("value") is not None}


def _verdict(agreement: Mapping[str, Any]) -> str:
    """``with`` or ``against`` the outcome, ``unclear`` if the interval holds 0.5 or is absent."""
    low, high = agreement.get("low"), agreement.get("high")
    if low is not None and low > 0.5:
        return "with"
    if high is not None and high < 0.5:
        return "against"
    return "unclear"


def _reward_finding(summary: Mapping[str, Any]) -> list[str]:
    found = (summary.get("reward") or {}).get("concordance")
    if not found or found.get("value") is None:
        return []
    verdict = {
        "with": "orders the samples of a group as the environment does",
        "against": "orders the samples of a group the wrong way round",
        "unclear": "is not told apart from chance inside groups",
    }[_verdict(found)]
    return [f"The reward {verdict}: {_estimate_phrase(found)}."]


def _order_inside_groups(summary: Mapping[str, Any]) -> list[str]:
    graders = _graders(summary)
    sorted_names = sorted(graders, key=lambda name: -graders[name]["value"])
    sentences = []
    for verdict, text in (
        ("with", "Graders that follow the environment inside groups"),
        ("against", "Graders that point the wrong way inside groups"),
        ("unclear", "Graders not told apart from chance inside groups"),
    ):
        chosen = [name for name in sorted_names if _verdict(graders[name]) == verdict]
        if chosen:
            # The table beside has all numbers; only those that say something are repeated.
            each = (
                _format_names(chosen) if verdict == "unclear" else _with_estimates(chosen, graders)
            )
            sentences.append(f"{text}: {each}.")
    return sentences


def _only_pooled(summary: Mapping[str, Any]) -> list[str]:
    graders = _graders(summary)
    names = [
        name
        for name, facts in summary.get("graders", {}).items()
        if name in graders
        and facts.get("auc")
        and _verdict(facts["auc"]) == "with"
        and _verdict(graders[name]) != "with"
    ]
    if not names:
        return []
    pairs = max(graders[name].get("pairs") or 0 for name in names)
    verb = "follows" if len(names) == 1 else "follow"
    sentence = (
        f"{_format_names(names)} {verb} the environment over all samples, but inside groups "
        f"({format_integer(pairs)} pairs) that does not show: telling prompts apart also raises "
        "the pooled number, and a group baseline removes it."
    )
    return [sentence]


def _against_baselines(summary: Mapping[str, Any]) -> list[str]:
    found = {
        label: ((summary.get("baselines") or {}).get(key) or {}).get("concordance")
        for key, label in BASELINES.items()
    }
    bases = {label: c for label, c in found.items() if c and c.get("value") is not None}
    if not bases:
        return []
    each = ", ".join(f"{label} {_estimate_phrase(c)}" for label, c in bases.items())
    strongest = max(abs(c["value"] - 0.5) for c in bases.values())
    behind = [n for n, c in _graders(summary).items() if abs(c["value"] - 0.5) <= strongest]
    tail = f" No further from chance than these: {_format_names(behind)}." if behind else ""
    return [f"Baselines inside groups: {each}.{tail}"]


def _zero_spread_finding(summary: Mapping[str, Any]) -> list[str]:
    share = (summary.get("reward") or {}).get("zero_spread_frac")
    if share is None:
        return []
    if share == 0:
        return ["Every group has some spread in its reward."]
    return [f"{format_percent(share)} of groups have the same reward throughout and teach nothing."]


def _missing_finding(summary: Mapping[str, Any]) -> list[str]:
    missing = (summary.get("reward") or {}).get("missing")
    if not missing:
        return []
    total = summary.get("samples") or 0
    sentence = (
        f"{format_integer(missing)} of {format_integer(total)} samples "
        f"({format_percent(missing, total)}) have no reward. They are left out of every "
        "number here, not counted as zero."
    )
    return [sentence]


def _with_estimates(names: list[str], graders: Mapping[str, Any]) -> str:
    return ", ".join(f"{_format_name(name)} {_estimate_phrase(graders[name])}" for name in names)


def _estimate_phrase(agreement: Mapping[str, Any]) -> str:
    return f'<span class="whole">{format_concordance(agreement)}</span>'


def _format_name(name: str) -> str:
    return f"<code>{escape_html(name)}</code>"


def _format_names(names: list[str]) -> str:
    return ", ".join(_format_name(name) for name in names)


class ScoreSeries(NamedTuple):
    """One number per sample with what its charts need; all sequences run over the same samples.

    ``outcomes`` are the environment's rewards, ``None`` where a sample has none.
    """

    values: Sequence[float | None]
    outcomes: Sequence[float | None]
    groups: Sequence[str]


# --- head ---------------------------------------------------------------------------------------


def facts_list(summary: Mapping[str, Any]) -> str:
    """What was graded with what, and when, as a definition list."""
    spec = summary.get("spec") or {}
    mapping = summary.get("map") or {}
    elapsed, rate = summary.get("elapsed_s"), summary.get("samples_per_s")
    version = f"adjudge {summary['adjudge']}" if summary.get("adjudge") else ""
    when = (summary.get("created"), _speed(elapsed, rate), version)
    entries = [
        ("Rollouts", _span_list(summary.get("inputs") or [])),
        ("Fields", _span_list([f"{ours} ← {theirs}" for ours, theirs in mapping.items()])),
        (
            "Reward spec",
            _span_list([x for x in (spec.get("path"), _short_digest(spec.get("hash"))) if x]),
        ),
        ("Groups", _group_source(summary.get("groups") or {})),
        ("Graded", _span_list([x for x in when if x])),
    ]
    return "".join(f"<div><dt>{name}</dt><dd>{text}</dd></div>" for name, text in entries if text)


def _span_list(items: Sequence[Any]) -> str:
    shown = [f"<span>{escape_html(item)}</span>" for item in items[:4]]
    if len(items) > 4:
        shown.append(f"<span>and {len(items) - 4} more</span>")
    return "".join(shown)


def _short_digest(digest: str | None) -> str:
    return str(digest or "")[:19]


def _speed(elapsed: float | None, rate: float | None) -> str:
    took = f"{format_number(elapsed, 1)} s" if elapsed is not None else ""
    return f"{took} · {format_integer(rate)} samples/s" if took and rate else took


def _group_source(groups: Mapping[str, Any]) -> str:
    source = groups.get("source")
    return {"column": "by their column", "equal prompts": "equal prompts form a group"}.get(
        str(source), escape_html(source or "")
    )


def summary_tiles(summary: Mapping[str, Any], not_evaluable: int) -> str:
    """The run in seven numbers."""
    total = summary.get("samples") or 0
    groups, reward = summary.get("groups") or {}, summary.get("reward") or {}
    broken = (summary.get("broken_rows") or {}).get("count") or 0
    zero, lost = reward.get("zero_spread_frac"), reward.get("missing") or 0
    return "".join(
        [
            _tile("Samples", format_integer(total), ""),
            _tile("Groups", format_integer(groups.get("count") or 0), _sizes(groups)),
            _tile("Reward, mean", format_number(reward.get("mean")), _std_note(reward, total)),
            _tile(
                "Zero-spread groups",
                format_percent(zero) if zero is not None else "–",
                "of the reward",
            ),
            _tile(
                "Reward missing", format_integer(lost), format_percent(lost, total), alarm=lost > 0
            ),
            _tile("Not evaluable", format_integer(not_evaluable), "by at least one grader"),
            _tile("Broken rows", format_integer(broken), "kept out", alarm=broken > 0),
        ]
    )


def _std_note(reward: Mapping[str, Any], total: int) -> str:
    """The standard deviation, and of how many samples where that is not all."""
    of = (
        ""
        if (present := reward.get("present", total)) == total
        else f", of {format_integer(present)}"
    )
    return f"std {format_number(reward.get('std'))}{of}"


def _tile(name: str, value: str, note: str, *, alarm: bool = False) -> str:
    kind = ' class="alarm"' if alarm else ""
    return f"<div{kind}><dt>{name}</dt><dd>{value}</dd><dd>{note or '&nbsp;'}</dd></div>"


def _sizes(groups: Mapping[str, Any]) -> str:
    low, high = groups.get("size_min"), groups.get("size_max")
    if low is None or high is None:
        return ""
    if low == high:
        return f"{format_integer(low)} samples each"
    middle = groups.get("size_median")
    note = f", median {format_number(middle, 1).removesuffix('.0')}" if middle is not None else ""
    return f"{format_integer(low)} to {format_integer(high)} samples{note}"


# --- agreement ----------------------------------------------------------------------------------


def agreement_section(summary: Mapping[str, Any]) -> str:
    """Sentences beside a forest plot of pooled AUC and within-group concordance."""
    said = "".join(f"<li>{sentence}</li>" for sentence in agreement_findings(summary))
    text = f'<ul class="findings">{said}</ul>' if said else ""
    if not summary.get("env_reward"):
        return (
            "<p>These rollouts carry no environment reward, so there is nothing to compare the "
            "graders with. Name its column with <code>--map env_reward=COLUMN</code> to see "
            f"which graders follow it.</p>{text}"
        )
    intro = (
        "<p>A group-relative trainer compares a sample only with the others of its group. "
        "<b>Within-group concordance</b> is how often, of two such samples, the one with the "
        "better environment reward scores higher. <b>Pooled AUC</b> asks the same of any two "
        "samples, so it also rewards telling easy prompts from hard ones.</p>"
    )
    return f'<div class="prose">{intro}{text}</div>{_forest(summary)}'


def _forest(summary: Mapping[str, Any]) -> str:
    # Long names may break after an underscore.
    graders = {
        f"<code>{escape_html(name).replace('_', '_<wbr>')}</code>": found
        for name, found in (summary.get("graders") or {}).items()
    }
    baselines = summary.get("baselines") or {}
    reward = summary.get("reward") or {}
    rows = [_forest_row("Reward", reward, "")] if reward.get("auc") else []
    rows += [_forest_row(label, found, "") for label, found in graders.items()]
    rows += [
        _forest_row(label, baselines[key], "baseline")
        for key, label in BASELINES.items()
        if baselines.get(key)
    ]
    return (
        '<table class="forest"><caption><span class="key within">within group</span> '
        '<span class="key pooled">pooled</span> with 95&nbsp;% intervals</caption>'
        '<thead><tr><th scope="col">Grader</th>'
        f'<th scope="col" class="plot">{forest_axis()}</th>'
        '<th scope="col" class="n">Within group</th><th scope="col" class="n">Pooled AUC</th>'
        f"</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    )


def _forest_row(label: str, found: Mapping[str, Any], kind: str) -> str:
    within, pooled = found.get("concordance") or {}, found.get("auc") or {}
    dots = [
        ForestDot(x.get("value"), x.get("low"), x.get("high"), name)
        for x, name in ((within, "within"), (pooled, "pooled"))
    ]
    spoken = f"within group {format_concordance(within)}, pooled {format_concordance(pooled)}"
    return (
        f'<tr class="{kind}"><th scope="row">{label}</th>'
        f'<td class="plot">{forest_strip(dots, spoken)}</td>'
        f'<td class="n within">{_estimate_cell(within)}</td>'
        f'<td class="n">{_estimate_cell(pooled)}</td></tr>'
    )


def _estimate_cell(found: Mapping[str, Any]) -> str:
    value, _, interval = format_concordance(found).partition(" ")
    pairs = found.get("pairs")
    tip = f' title="{format_integer(pairs)} pairs"' if pairs is not None else ""
    return f"<span{tip}><b>{value}</b> <small>{interval or '&nbsp;'}</small></span>"


# --- graders ------------------------------------------------------------------------------------


def grader_panels(
    summary: Mapping[str, Any], reward: ScoreSeries, scores: Sequence[ScoreSeries]
) -> str:
    """The reward, then each grader: its distribution and its spread inside groups."""
    total, found = summary.get("samples") or 0, summary.get("reward") or {}
    panels = [_panel("Reward", "what the trainer gets", _reward_facts(found, total), reward, None)]
    for (name, of), series in zip((summary.get("graders") or {}).items(), scores, strict=True):
        panels.append(
            _panel(
                f"<code>{escape_html(name)}</code>",
                _grader_description(of),
                _grader_facts(of, total),
                series,
                of.get("score_range"),
                of.get("missing_by_kind"),
            )
        )
    return "".join(panels)


def _grader_description(of: Mapping[str, Any]) -> str:
    parts = [escape_html(of.get(key)) for key in ("type", "role") if of.get(key)]
    if of.get("weight") is not None:
        parts.append(f"weight {of['weight']:g}")
    if of.get("score_range"):
        parts.append("range " + " to ".join(_bound(x) for x in of["score_range"]))
    return " · ".join(parts)


def _bound(x: float | None) -> str:
    return "∞" if x is None else f"{x:g}".replace("-", "−")


def _reward_facts(found: Mapping[str, Any], total: int) -> list[tuple[str, str]]:
    return [
        ("present", _share(found.get("present"), total)),
        ("missing", _share(found.get("missing"), total)),
        *_moments(found),
    ]


def _grader_facts(of: Mapping[str, Any], total: int) -> list[tuple[str, str]]:
    untrusted = of.get("untrusted")
    return [
        ("scored", _share(of.get("scored"), total)),
        ("missing", _share(of.get("missing"), total)),
        ("not evaluable", _share(of.get("not_evaluable"), total)),
        *([("untrusted", _share(untrusted, total))] if untrusted else []),
        *_moments(of),
    ]


def _share(count: int | None, total: int) -> str:
    if count is None:
        return "–"
    return f"{format_integer(count)} <small>{format_percent(count, total)}</small>"


def _moments(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    span = f"{format_number(found.get('min'))} to {format_number(found.get('max'))}"
    return [
        ("mean", format_number(found.get("mean"))),
        ("std", format_number(found.get("std"))),
        ("min to max", span),
        ("within-group std", format_number(found.get("within_group_std"))),
    ]


def _panel(
    title: str,
    what: str,
    rows: Sequence[tuple[str, str]],
    series: ScoreSeries,
    score_range: Sequence[float | None] | None,
    kinds: Mapping[str, int] | None = None,
) -> str:
    listed = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in rows)
    failed = ""
    if kinds:
        each = " · ".join(
            f"{escape_html(kind)} {format_integer(count)}" for kind, count in kinds.items()
        )
        failed = f'<p class="kinds">Missing by kind: {each}</p>'
    return (
        f'<section class="panel"><header><h3>{title}</h3><p>{what}</p></header>'
        f'<dl class="rows">{listed}</dl>'
        f"<figure>{_distribution(series, score_range)}</figure>"
        f"<figure>{_spread(group_spread(series.values, series.groups))}</figure>{failed}</section>"
    )


def _distribution(series: ScoreSeries, score_range: Sequence[float | None] | None) -> str:
    present = [x for x in series.values if x is not None]
    if not present:
        return "<figcaption>Distribution</figcaption><p>No value.</p>"
    bins = bins_for(present, *_axis(present, score_range))
    levels = sorted({x for x in series.outcomes if x is not None})
    if len(levels) != 2:
        chart = histogram_chart(histogram(present, bins), "distribution, samples per bin")
        return f"<figcaption>Distribution, samples</figcaption>{chart}"
    halves = [
        [x for x, y in zip(series.values, series.outcomes, strict=True) if y == z and x is not None]
        for z in levels
    ]
    names = (f"env reward {levels[1]:g}", f"env reward {levels[0]:g}")
    below, above = (histogram(half, bins) for half in halves)
    chart = mirrored_chart(above, below, names, "distribution by environment reward")
    return f"<figcaption>Distribution, share of each outcome</figcaption>{chart}"


def _axis(
    present: Sequence[float], score_range: Sequence[float | None] | None
) -> tuple[float, float]:
    """The grader's own finite ends where it has them; 0 to 1 for what lies inside it."""
    low, high = min(present), max(present)
    if low >= 0 and high <= 1:
        low, high = 0.0, 1.0
    ends = score_range or (None, None)
    return (low if ends[0] is None else ends[0], high if ends[1] is None else ends[1])


def _spread(spread: GroupSpread) -> str:
    caption = "<figcaption>Spread inside groups, std</figcaption>"
    share = spread.zero_frac
    if share is None:
        return f"{caption}<p>No group has two values.</p>"
    groups = len(spread.stds)
    text = (
        f'<p class="zero"><b>{format_percent(share)}</b> zero spread '
        f"<small>{format_integer(spread.zero)} of {format_integer(groups)} groups</small></p>"
        f"{bar_chart(share, 'share of groups without spread')}"
    )
    rest = sorted(spread.stds)[spread.zero :]
    if rest:
        bins = bins_for(rest, 0.0)
        text += histogram_chart(histogram(rest, bins), "std of the other groups, groups per bin")
    return caption + text


# --- missing ------------------------------------------------------------------------------------


def missing_section(summary: Mapping[str, Any]) -> str:
    """Missing rewards by kind, by response length and by environment reward."""
    found = summary.get("missing") or {}
    kinds = found.get("by_kind") or {}
    lost = sum(kinds.values())
    parts = [
        _bars(
            "By kind", ("kind", "missing"), [(escape_html(k), n, lost) for k, n in kinds.items()]
        ),
        _bars("By response length", ("characters", "missing"), _bins(found, "by_length_decile")),
        _bars("By environment reward", ("value", "missing"), _bins(found, "by_env_reward")),
        _bars("By property of the answer", ("property", "missing"), _properties(found)),
        _bars("By group", ("missing in it", "groups"), _groups_missing(found)),
    ]
    if not lost and not (summary.get("reward") or {}).get("missing"):
        return "<p>No reward is missing.</p>"
    return f'<div class="columns">{"".join(parts)}</div>'


def _properties(found: Mapping[str, Any]) -> list[tuple[str, int, int]]:
    """In groups where some but not all rewards are missing, the properties that any answer had."""
    return [
        (escape_html(one["name"]), one["missing"], one["n"])
        for one in found.get("by_property") or []
    ]


def _groups_missing(found: Mapping[str, Any]) -> list[tuple[str, int, int]]:
    counts = found.get("by_group") or {}
    return [(key, counts[key], sum(counts.values())) for key in ("all", "some") if counts.get(key)]


def _bins(found: Mapping[str, Any], key: str) -> list[tuple[str, int, int]]:
    return [(_edges(entry), entry["missing"], entry["n"]) for entry in found.get(key) or []]


def _edges(entry: Mapping[str, Any]) -> str:
    if "value" in entry:
        return _format_edge(entry["value"])
    return f"{_format_edge(entry['low'])} to {_format_edge(entry['high'])}"


def _format_edge(x: float) -> str:
    return format_integer(x) if math.isfinite(x) and x == round(x) else format_number(x)


def _bars(title: str, heads: tuple[str, str], rows: Sequence[tuple[str, int, int]]) -> str:
    """``rows``: label, count, of how many. Bars are relative to the largest share."""
    if not rows:
        return ""
    largest = max(count / whole for _, count, whole in rows if whole) or 1.0
    body = "".join(
        f'<tr><th scope="row">{label}</th><td class="n">{format_integer(count)} <small>of '
        f'{format_integer(whole)}</small></td><td class="n">{format_percent(count, whole)}</td>'
        f'<td class="plot">{_share_bar(count, whole, largest)}</td></tr>'
        for label, count, whole in rows
    )
    return (
        f'<table class="bars"><caption>{title}</caption><thead><tr>'
        f'<th scope="col">{heads[0]}</th><th scope="col" class="n">{heads[1]}</th>'
        f'<th scope="col" class="n">share</th><th></th></tr></thead><tbody>{body}</tbody></table>'
    )


def _share_bar(count: int, whole: int, largest: float) -> str:
    share = count / whole if whole else 0.0
    return bar_chart(share / largest, format_percent(count, whole), track=False)


def metrics_section(summary: Mapping[str, Any]) -> str:
    """The metrics that a trainer would log, folded away; empty without any."""
    found = summary.get("metrics") or {}
    if not found:
        return ""
    body = "".join(
        f'<tr><th scope="row"><code>{escape_html(name)}</code></th>'
        f'<td class="n">{_format_metric(value)}</td></tr>'
        for name, value in found.items()
    )
    return (
        "<details><summary>Metrics as a trainer logs them</summary>"
        f'<table class="metrics"><tbody>{body}</tbody></table></details>'
    )


def _format_metric(value: Any) -> str:
    return format_number(value, 4) if isinstance(value, int | float) else escape_html(value)
