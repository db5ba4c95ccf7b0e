"""The parts of the report that need no script: facts, tiles, charts and tables as HTML.

No text of a sample enters here; names, kinds and paths do, escaped.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from adjudge.runs.distributions import GroupSpread, bins_for, group_spread, histogram
from adjudge.runs.report.charts import (
    Dot,
    bar,
    esc,
    forest_axis,
    forest_strip,
    histogram_chart,
    integer,
    mirrored_chart,
    number,
    percent,
)
from adjudge.runs.report.reading import BASELINES, findings, interval_text

__all__ = ["Series", "facts", "grader_panels", "metrics", "missing", "reading", "tiles"]


class Series(NamedTuple):
    """One number per sample with what its charts need; all sequences run over the same samples.

    ``outcomes`` are the environment's rewards, ``None`` where a sample has none.
    """

    values: Sequence[float | None]
    outcomes: Sequence[float | None]
    groups: Sequence[str]


# --- head ---------------------------------------------------------------------------------------


def facts(summary: Mapping[str, Any]) -> str:
    """What was graded with what, and when, as a definition list."""
    spec = summary.get("spec") or {}
    mapping = summary.get("map") or {}
    elapsed, rate = summary.get("elapsed_s"), summary.get("samples_per_s")
    version = f"adjudge {summary['adjudge']}" if summary.get("adjudge") else ""
    when = (summary.get("created"), _speed(elapsed, rate), version)
    entries = [
        ("Rollouts", _lines(summary.get("inputs") or [])),
        ("Fields", _lines([f"{ours} ← {theirs}" for ours, theirs in mapping.items()])),
        ("Reward spec", _lines([x for x in (spec.get("path"), _short(spec.get("hash"))) if x])),
        ("Groups", _group_source(summary.get("groups") or {})),
        ("Graded", _lines([x for x in when if x])),
    ]
    return "".join(f"<div><dt>{name}</dt><dd>{text}</dd></div>" for name, text in entries if text)


def _lines(items: Sequence[Any]) -> str:
    shown = [f"<span>{esc(item)}</span>" for item in items[:4]]
    if len(items) > 4:
        shown.append(f"<span>and {len(items) - 4} more</span>")
    return "".join(shown)


def _short(digest: str | None) -> str:
    return str(digest or "")[:19]


def _speed(elapsed: float | None, rate: float | None) -> str:
    took = f"{number(elapsed, 1)} s" if elapsed is not None else ""
    return f"{took} · {integer(rate)} samples/s" if took and rate else took


def _group_source(groups: Mapping[str, Any]) -> str:
    source = groups.get("source")
    return {"column": "by their column", "equal prompts": "equal prompts form a group"}.get(
        str(source), esc(source or "")
    )


def tiles(summary: Mapping[str, Any], not_evaluable: int) -> str:
    """The run in seven numbers."""
    total = summary.get("samples") or 0
    groups, reward = summary.get("groups") or {}, summary.get("reward") or {}
    broken = (summary.get("broken_rows") or {}).get("count") or 0
    zero, lost = reward.get("zero_spread_frac"), reward.get("missing") or 0
    return "".join(
        [
            _tile("Samples", integer(total), ""),
            _tile("Groups", integer(groups.get("count") or 0), _sizes(groups)),
            _tile("Reward, mean", number(reward.get("mean")), f"std {number(reward.get('std'))}"),
            _tile(
                "Zero-spread groups", percent(zero) if zero is not None else "–", "of the reward"
            ),
            _tile("Reward missing", integer(lost), percent(lost, total), alarm=lost > 0),
            _tile("Not evaluable", integer(not_evaluable), "by at least one grader"),
            _tile("Broken rows", integer(broken), "kept out", alarm=broken > 0),
        ]
    )


def _tile(name: str, value: str, note: str, *, alarm: bool = False) -> str:
    kind = ' class="alarm"' if alarm else ""
    return f"<div{kind}><dt>{name}</dt><dd>{value}</dd><dd>{note or '&nbsp;'}</dd></div>"


def _sizes(groups: Mapping[str, Any]) -> str:
    low, high = groups.get("size_min"), groups.get("size_max")
    if low is None or high is None:
        return ""
    if low == high:
        return f"{integer(low)} samples each"
    middle = groups.get("size_median")
    note = f", median {number(middle, 1).removesuffix('.0')}" if middle is not None else ""
    return f"{integer(low)} to {integer(high)} samples{note}"


# --- agreement ----------------------------------------------------------------------------------


def reading(summary: Mapping[str, Any]) -> str:
    """Sentences beside a forest plot of pooled AUC and within-group concordance."""
    said = "".join(f"<li>{sentence}</li>" for sentence in findings(summary))
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
        f"<code>{esc(name).replace('_', '_<wbr>')}</code>": found
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
        Dot(x.get("value"), x.get("low"), x.get("high"), name)
        for x, name in ((within, "within"), (pooled, "pooled"))
    ]
    spoken = f"within group {interval_text(within)}, pooled {interval_text(pooled)}"
    return (
        f'<tr class="{kind}"><th scope="row">{label}</th>'
        f'<td class="plot">{forest_strip(dots, spoken)}</td>'
        f'<td class="n within">{_estimate(within)}</td><td class="n">{_estimate(pooled)}</td></tr>'
    )


def _estimate(found: Mapping[str, Any]) -> str:
    value, _, interval = interval_text(found).partition(" ")
    pairs = found.get("pairs")
    tip = f' title="{integer(pairs)} pairs"' if pairs is not None else ""
    return f"<span{tip}><b>{value}</b> <small>{interval or '&nbsp;'}</small></span>"


# --- graders ------------------------------------------------------------------------------------


def grader_panels(summary: Mapping[str, Any], reward: Series, scores: Sequence[Series]) -> str:
    """The reward, then each grader: its distribution and its spread inside groups."""
    total, found = summary.get("samples") or 0, summary.get("reward") or {}
    panels = [_panel("Reward", "what the trainer gets", _reward_facts(found, total), reward, None)]
    for (name, of), series in zip((summary.get("graders") or {}).items(), scores, strict=True):
        panels.append(
            _panel(
                f"<code>{esc(name)}</code>",
                _what(of),
                _grader_facts(of, total),
                series,
                of.get("score_range"),
                of.get("missing_by_kind"),
            )
        )
    return "".join(panels)


def _what(of: Mapping[str, Any]) -> str:
    parts = [esc(of.get(key)) for key in ("type", "role") if of.get(key)]
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
    return f"{integer(count)} <small>{percent(count, total)}</small>"


def _moments(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    span = f"{number(found.get('min'))} to {number(found.get('max'))}"
    return [
        ("mean", number(found.get("mean"))),
        ("std", number(found.get("std"))),
        ("min to max", span),
        ("within-group std", number(found.get("within_group_std"))),
    ]


def _panel(
    title: str,
    what: str,
    rows: Sequence[tuple[str, str]],
    series: Series,
    score_range: Sequence[float | None] | None,
    kinds: Mapping[str, int] | None = None,
) -> str:
    listed = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in rows)
    failed = ""
    if kinds:
        each = " · ".join(f"{esc(kind)} {integer(count)}" for kind, count in kinds.items())
        failed = f'<p class="kinds">Missing by kind: {each}</p>'
    return (
        f'<section class="panel"><header><h3>{title}</h3><p>{what}</p></header>'
        f'<dl class="rows">{listed}</dl>'
        f"<figure>{_distribution(series, score_range)}</figure>"
        f"<figure>{_spread(group_spread(series.values, series.groups))}</figure>{failed}</section>"
    )


def _distribution(series: Series, score_range: Sequence[float | None] | None) -> str:
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
        f'<p class="zero"><b>{percent(share)}</b> zero spread '
        f"<small>{integer(spread.zero)} of {integer(groups)} groups</small></p>"
        f"{bar(share, 'share of groups without spread')}"
    )
    rest = sorted(spread.stds)[spread.zero :]
    if rest:
        bins = bins_for(rest, 0.0)
        text += histogram_chart(histogram(rest, bins), "std of the other groups, groups per bin")
    return caption + text


# --- missing ------------------------------------------------------------------------------------


def missing(summary: Mapping[str, Any]) -> str:
    """Missing rewards by kind, by response length and by environment reward."""
    found = summary.get("missing") or {}
    kinds = found.get("by_kind") or {}
    lost = sum(kinds.values())
    parts = [
        _bars("By kind", ("kind", "missing"), [(esc(k), n, lost) for k, n in kinds.items()]),
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
    return [(esc(one["name"]), one["missing"], one["n"]) for one in found.get("by_property") or []]


def _groups_missing(found: Mapping[str, Any]) -> list[tuple[str, int, int]]:
    counts = found.get("by_group") or {}
    return [(key, counts[key], sum(counts.values())) for key in ("all", "some") if counts.get(key)]


def _bins(found: Mapping[str, Any], key: str) -> list[tuple[str, int, int]]:
    return [(_edges(entry), entry["missing"], entry["n"]) for entry in found.get(key) or []]


def _edges(entry: Mapping[str, Any]) -> str:
    if "value" in entry:
        return _plain(entry["value"])
    return f"{_plain(entry['low'])} to {_plain(entry['high'])}"


def _plain(x: float) -> str:
    return integer(x) if math.isfinite(x) and x == round(x) else number(x)


def _bars(title: str, heads: tuple[str, str], rows: Sequence[tuple[str, int, int]]) -> str:
    """``rows``: label, count, of how many. Bars are relative to the largest share."""
    if not rows:
        return ""
    largest = max(count / whole for _, count, whole in rows if whole) or 1.0
    body = "".join(
        f'<tr><th scope="row">{label}</th><td class="n">{integer(count)} <small>of '
        f'{integer(whole)}</small></td><td class="n">{percent(count, whole)}</td>'
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
    return bar(share / largest, percent(count, whole), track=False)


def metrics(summary: Mapping[str, Any]) -> str:
    """The metrics that a trainer would log, folded away; empty without any."""
    found = summary.get("metrics") or {}
    if not found:
        return ""
    body = "".join(
        f'<tr><th scope="row"><code>{esc(name)}</code></th><td class="n">{_metric(value)}</td></tr>'
        for name, value in found.items()
    )
    return (
        "<details><summary>Metrics as a trainer logs them</summary>"
        f'<table class="metrics"><tbody>{body}</tbody></table></details>'
    )


def _metric(value: Any) -> str:
    return number(value, 4) if isinstance(value, int | float) else esc(value)
