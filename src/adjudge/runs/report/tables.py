"""The tables of a graded run, for terminal, notebook and page: graders, noise, judge calls."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from adjudge.report.page import Element, Section, bold, paragraph, small
from adjudge.report.table import Column, Table, lost, numeric
from adjudge.runs.report.sections import forest_table
from adjudge.runs.summary import UNSCALED


def list_results(summary: Mapping[str, Any]) -> Iterator[Element | Table]:
    """What a terminal and a notebook show of a run, from its summary."""
    yield score_table(summary)
    missing = summary["missing"]
    if kinds := missing["by_kind"]:
        share = summary["reward"]["missing"] / summary["samples"]
        listed = ", ".join(f"{kind} {count}" for kind, count in kinds.items())
        count = lost(f"{summary['reward']['missing']} rewards missing")
        yield paragraph(count, f" ({share:.1%}): {listed}")
        for kind, message in missing["examples"].items():
            yield paragraph(small(f"  {kind}, first: {message}"))
    for warning in summary["warnings"]:
        yield paragraph(lost("warning: "), warning)
    yield from calls_tables(summary)
    if said := describe_calls(summary):
        yield paragraph(said)
    for name, grader in summary["graders"].items():
        if grader.get("unscaled"):
            yield paragraph(small(f"{name}: {UNSCALED}"))
    if noise := summary.get("noise"):
        yield noise_table(noise)
        yield paragraph(small(NOISE_NOTE))
    if summary["env_reward"]:
        yield forest_table(summary, drawn=False)
        yield paragraph(small(_FOREST_NOTE))


_FOREST_NOTE = (
    "AUC: over all pairs of samples. Within group: over pairs that answer the same prompt; a "
    "group-relative trainer (GRPO) sees only these. 0.5 is chance; 95 % intervals, clustered by "
    "group."
)


def score_table(summary: Mapping[str, Any]) -> Table:
    """Each grader's scores and the reward: mean, spread, what is missing."""
    samples, reward = summary["samples"], summary["reward"]
    headings = ("mean", "std", "std in group", "zero spread", "missing", "not evaluable")
    columns = [Column(heading, "n") for heading in headings]
    rows: list[list[object]] = [
        [
            name,
            f"{grader['weight']:g}" if grader["weight"] else "report",
            *_spread_cells(grader),
            *(_count_cell(grader[key], samples) for key in ("missing", "not_evaluable")),
        ]
        for name, grader in summary["graders"].items()
    ]
    if before := reward.get("before_step"):
        cells = [number_cell(before[key]) for key in ("mean", "std")]
        rows.append([f"before {before['step']}", "", *cells, "", "", "", ""])
    missing = _count_cell(reward["missing"], samples)
    rows.append([bold("reward"), "", *_spread_cells(reward), missing, ""])
    return Table(
        ["grader", Column("weight", "n"), *columns],
        rows,
        drop=("zero spread", "std in group", "std", "weight"),
        keep=("mean", "missing"),
    )


def _spread_cells(row: Mapping[str, Any]) -> tuple[str, str, str, str]:
    share = row["zero_spread_frac"]
    return (
        number_cell(row["mean"]),
        number_cell(row["std"]),
        number_cell(row["within_group_std"]),
        "–" if share is None else f"{share:.0%}",
    )


def number_cell(value: float | None) -> str:
    """A number as the tables have it."""
    return "–" if value is None else f"{value:.3f}".replace("-0.000", "0.000")


def _count_cell(count: int, total: int) -> Element | str:
    if not count:
        return "0"
    return lost(f"{count} ({count / total:.1%})")


# --- noise ----------------------------------------------------------------------------------------


def noise_table(noise: Mapping[str, Any]) -> Table:
    """Each grader's noise, how it orders pairs, and the votes that would halve it."""
    share, votes = "noise share", "votes to halve it"
    columns = ["asked again", *numeric(share), Column("95 %", "i"),
               *numeric("noise std", "pairs right", votes), Column("95 %", "i")]  # fmt: skip
    entries = [*noise["graders"].items(), (bold("reward"), noise["reward"])]
    rows: list[list[object]] = []
    for name, found in entries:
        if not found:
            rows.append([[name], "0", small("a rule"), "", "", "", ""])
            continue
        lost_draws = small(f" ({found['missing']:,} draws missing)") if found["missing"] else None
        rows.append([[name, lost_draws], *_noise_cells(found)])
    return Table(columns, rows, drop=("noise std", "pairs right"), keep=(share, votes))


def _noise_cells(found: Mapping[str, Any]) -> list[object]:
    if found["value"] is None:
        return ["–", small("nothing differs"), "", "", "", ""]
    low, high, halve = found["low"], found["high"], found["to_halve"]
    bounds = "" if low is None else f"{low:.1%}-{high:.1%}"
    ends = "" if low is None else f"{_votes_cell(halve['low'])}-{_votes_cell(halve['high'])}"
    return [
        f"{found['value']:.1%}",
        bounds,
        f"{found['noise_std']:.3f}",
        f"{found['pairs_right']:.0%}",
        _votes_cell(halve["votes"]),
        ends,
    ]


def _votes_cell(votes: int | None) -> str:
    return "∞" if votes is None else str(votes)


NOISE_NOTE = (
    "Noise share: how much of the variance inside groups, and so of the advantages, is the judge's "
    "own, another each time it is asked (95 % intervals, clustered by group). Pairs right: how "
    "often one draw puts the better of two samples first, were scores normal. Votes: so many times "
    "as many as now, averaged, if they are independent."
)


def noise_section(summary: Mapping[str, Any]) -> Section:
    """A page's part; empty for a run with one draw."""
    noise = summary.get("noise")
    content = [noise_table(noise), paragraph(small(NOISE_NOTE))] if noise else []
    return Section("noise", "Signal and noise", content, "Noise")


# --- judge calls ----------------------------------------------------------------------------------


def endpoint_name(entry: Mapping[str, Any]) -> str:
    """Models and address of an endpoint, as a heading."""
    urls = [url.partition("://")[2] for url in entry["base_urls"]]
    more = f" and {len(urls) - 1} more" if len(urls) > 1 else ""
    return f"{', '.join(entry['models'])} @ {urls[0]}{more}"


def _counter_rows(entry: Mapping[str, Any]) -> dict[str, str]:
    """What may be added up over invocations, as label and text; empty where it says nothing."""
    tokens = tokens_in, tokens_out = entry["input_tokens"], entry["output_tokens"]
    cached = f" ({entry['cached_tokens']:,} cached)" if entry["cached_tokens"] else ""
    return {
        "calls": f"{entry['calls']:,}",
        "answered": f"{entry['answered']:,}",
        "from the cache": _format_count(entry["cache_hits"]),
        "shared with an equal call": _format_count(entry["deduplicated"]),
        "failed": _format_counts(entry["failures"]),
        "sends": f"{entry['sends']:,}",
        "sends that failed": _format_counts(entry["send_failures"]),
        "sent again after a failure": _format_count(entry["retries"]),
        "sent again for silence": _format_count(entry["timeouts"]),
        "hedges": f"{entry['hedges']:,}, {entry['hedge_wins']:,} won" if entry["hedges"] else "",
        "tokens in / out": f"{tokens_in:,}{cached} / {tokens_out:,}" if any(tokens) else "",
        "cost": _format_cost(entry),
        "limit cut": _format_count(entry["limit_cuts"]),
        "circuit opened": _format_count(entry["circuit_opened"]),
    }


def _gauge_rows(entry: Mapping[str, Any]) -> dict[str, str]:
    """What is measured in one process."""
    quantiles = [entry["p50_s"], entry["p95_s"], entry["p99_s"]]
    return {
        "latency p50 / p95 / p99": ""
        if None in quantiles
        else " / ".join(f"{seconds:.3g}" for seconds in quantiles) + " s",
        "in flight: peak, limit now": f"{entry['peak_in_flight']:,}, {entry['limit']:,}",
        "longest loop lag": f"{entry['loop_lag_max_s'] * 1e3:.0f} ms",
        "scores": "; ".join(
            f"{found['route']}: {found['output']}, template: {found['template']}; "
            f"found by {found['probes']} of the calls"
            for found in entry.get("classifiers", {}).values()
        ),
    }


def calls_tables(summary: Mapping[str, Any]) -> list[Table]:
    """What each endpoint was asked; of a resumed run now, and in all invocations of its folder."""
    now = {endpoint_name(one): one for one in summary.get("endpoints") or []}
    spending = summary.get("spending") or {}
    if spending.get("invocations", 1) == 1:
        return [
            _calls_table(name, [""], [_counter_rows(one) | _gauge_rows(one)])
            for name, one in now.items()
        ]
    columns = ["this invocation", f"all {spending['invocations']:,}"]
    found = []
    for one in spending["endpoints"]:
        name = endpoint_name(one)
        ours = _counter_rows(now[name]) | _gauge_rows(now[name]) if name in now else {}
        found.append(_calls_table(name, columns, [ours, _counter_rows(one)]))
    return found


def _calls_table(name: str, columns: Sequence[str], values: Sequence[Mapping[str, str]]) -> Table:
    """An endpoint's numbers under its name; what failed is marked."""
    rows = [
        [label, *(lost(text) if label in _ALARMS and text else text for text in texts)]
        for label in dict.fromkeys(label for one in values for label in one)
        if any(texts := [one.get(label, "") for one in values])
    ]
    return Table(["", *numeric(*columns)], rows, caption=name, kind="metrics")


_ALARMS = ("failed", "circuit opened")


def describe_spending(summary: Mapping[str, Any]) -> str:
    """What a resumed run has cost in all, and what is left of a budget; empty for other runs."""
    found = summary.get("spending") or {}
    budget, count = found.get("budget_usd"), found.get("invocations", 1)
    if count == 1 and budget is None:
        return ""
    parts = []
    if count > 1:
        tokens = f"{found['input_tokens']:,} / {found['output_tokens']:,} tokens in / out"
        parts.append(f"all {count:,} invocations: {found['calls']:,} calls, {tokens}")
    if found["cost_usd"] is None:
        parts.append("cost unknown: no price")
    elif count > 1:
        before, now = found["earlier_usd"], found["this_invocation_usd"]
        parts.append(f"{found['cost_usd']:.4f} USD ({before:.4f} before, {now:.4f} now)")
    if budget is not None:
        parts.append(f"{found['left_usd']:.4f} USD of the budget of {budget:g} USD are left")
    if killed := found["killed"]:
        parts.append(f"{killed:,} earlier killed")
    return "; ".join(parts)


def describe_calls(summary: Mapping[str, Any]) -> str:
    """Why judges were asked, and what a resumed run has cost in all."""
    asks = summary.get("asks") or {}
    why = f"calls by reason: {_format_counts(asks)}" if asks.keys() - {"first", "draw"} else ""
    return "; ".join(filter(None, (why, describe_spending(summary))))


def judge_calls_section(summary: Mapping[str, Any]) -> Section:
    """A page's table per endpoint; empty for a run without judges."""
    tables = calls_tables(summary)
    note = describe_calls(summary)
    found = [Element("div", tables, class_="calls"), note and f"{note}."]
    return Section("calls", "Judge calls", found if tables else [])


def _format_count(number: int) -> str:
    return f"{number:,}" if number else ""


def _format_counts(kinds: Mapping[str, int]) -> str:
    return ", ".join(f"{kind} {count:,}" for kind, count in sorted(kinds.items()))


def _format_cost(entry: Mapping[str, Any]) -> str:
    if not entry["cost_usd"] and not entry["assumed_usd"]:
        return "unknown: no price" if entry["unpriced"] else ""
    notes = []
    if entry["assumed_usd"]:
        notes.append(f"{entry['assumed_usd']:.4f} of it assumed")
    if entry["unpriced"]:
        notes.append(f"{entry['unpriced']:,} replies without a price")
    return f"{entry['cost_usd']:.4f} USD" + (f" ({', '.join(notes)})" if notes else "")
