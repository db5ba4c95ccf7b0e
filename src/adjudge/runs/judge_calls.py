"""What a run's judges were asked, and what a run would ask and cost.

After a run: what each grader's replies came to, and each endpoint's table in words. Before it:
calls, tokens and money, with nothing sent.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from adjudge.engine.loop import run_blocking
from adjudge.errors import ErrorKind, GradingFailure
from adjudge.judges.base import ChatModel, Reply
from adjudge.judges.endpoint.settings import EndpointSettings
from adjudge.judges.table import AddressedTable
from adjudge.report.elements import Element
from adjudge.report.page import Section
from adjudge.report.table import Table, lost, numeric
from adjudge.rewards.function import SpecRewardFunction
from adjudge.rewards.spec import MissingSettings, RewardSettings, RewardSpec
from adjudge.types import GraderError, GraderResult, Sample

if TYPE_CHECKING:
    from adjudge.judges.endpoint.settings import Price


class GraderCallTotals:
    """Where one grader's results came from, gathered result by result."""

    def __init__(self) -> None:
        self._sources: Counter[str] = Counter()
        self._models: Counter[str] = Counter()
        self._input_tokens = self._output_tokens = self._hedge_wins = 0
        self._costs = array("d")

    def add(self, result: GraderResult) -> None:
        """Count one result; it is none of a judge's without ``provenance``."""
        where = result.provenance
        if where is None:
            return
        self._sources[where.source or "unknown"] += 1
        self._models[where.model or "unknown"] += 1
        self._hedge_wins += where.hedged
        if where.paid is not None:
            self._input_tokens += where.paid.input_tokens
            self._output_tokens += where.paid.output_tokens
            if where.paid.cost_usd is not None:
                self._costs.append(where.paid.cost_usd)

    def summarise(self) -> dict[str, Any] | None:
        """Plain data; ``None`` when no judge was asked."""
        if not self._sources:
            return None
        return {
            "sources": dict(self._sources.most_common()),
            "models": dict(self._models.most_common()),
            "input_tokens": self._input_tokens,
            "output_tokens": self._output_tokens,
            "cost_usd": sum(self._costs) if self._costs else None,
            "hedge_wins": self._hedge_wins,
        }


def endpoint_name(entry: Mapping[str, Any]) -> str:
    """Models and address of an endpoint, as a heading."""
    urls = [url.partition("://")[2] for url in entry["base_urls"]]
    more = f" and {len(urls) - 1} more" if len(urls) > 1 else ""
    return f"{', '.join(entry['models'])} @ {urls[0]}{more}"


def _counter_rows(entry: Mapping[str, Any]) -> dict[str, str]:
    """What may be added up over invocations, as label and text; empty where it says nothing."""
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
        "hedges": _format_hedges(entry),
        "tokens in / out": _format_tokens(entry),
        "cost": _format_cost(entry),
        "limit cut": _format_count(entry["limit_cuts"]),
        "circuit opened": _format_count(entry["circuit_opened"]),
    }


def _gauge_rows(entry: Mapping[str, Any]) -> dict[str, str]:
    """What is measured in one process."""
    return {
        "latency p50 / p95 / p99": _format_latency(entry),
        "in flight: peak, limit now": f"{entry['peak_in_flight']:,}, {entry['limit']:,}",
        "longest loop lag": f"{entry['loop_lag_max_s'] * 1e3:.0f} ms",
        "scores": "; ".join(
            f"{found['route']}: {found['output']}, template: {found['template']}; "
            f"found by {found['probes']} of the calls"
            for found in entry.get("classifiers", {}).values()
        ),
    }


class EndpointTable(NamedTuple):
    """An endpoint's calls: a row is a label and a text for each of ``columns``."""

    name: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


def endpoint_tables(summary: Mapping[str, Any]) -> list[EndpointTable]:
    """What each endpoint was asked; of a resumed run now, and in all invocations of its folder."""
    now = {endpoint_name(one): one for one in summary.get("endpoints") or []}
    spending = summary.get("spending") or {}
    if spending.get("invocations", 1) == 1:
        return [
            EndpointTable(name, [""], _filled_rows([_counter_rows(one) | _gauge_rows(one)]))
            for name, one in now.items()
        ]
    columns = ["this invocation", f"all {spending['invocations']:,}"]
    found = []
    for one in spending["endpoints"]:
        name = endpoint_name(one)
        ours = _counter_rows(now[name]) | _gauge_rows(now[name]) if name in now else {}
        found.append(EndpointTable(name, columns, _filled_rows([ours, _counter_rows(one)])))
    return found


def _filled_rows(columns: Sequence[Mapping[str, str]]) -> list[list[str]]:
    labels = dict.fromkeys(label for one in columns for label in one)
    rows = [[label, *(one.get(label, "") for one in columns)] for label in labels]
    return [row for row in rows if any(row[1:])]


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


def calls_table(found: EndpointTable) -> Table:
    """An endpoint's numbers under its name; what failed is marked."""
    rows = [
        [label, *(lost(text) if label in ("failed", "circuit opened") and text else text
                  for text in texts)]
        for label, *texts in found.rows
    ]  # fmt: skip
    return Table([found.name, *found.columns], rows)


def judge_calls_section(summary: Mapping[str, Any]) -> Section:
    """A page's table per endpoint; empty for a run without judges."""
    tables = [
        Table(["", *numeric(*one.columns)], one.rows, caption=one.name, kind="metrics")
        for one in endpoint_tables(summary)
    ]
    note = describe_calls(summary)
    found = [Element("div", tables, class_="calls"), note and f"{note}."]
    return Section("calls", "Judge calls", found if tables else [])


def _format_count(number: int) -> str:
    return f"{number:,}" if number else ""


def _format_counts(kinds: Mapping[str, int]) -> str:
    return ", ".join(f"{kind} {count:,}" for kind, count in sorted(kinds.items()))


def _format_hedges(entry: Mapping[str, Any]) -> str:
    return f"{entry['hedges']:,}, {entry['hedge_wins']:,} won" if entry["hedges"] else ""


def _format_tokens(entry: Mapping[str, Any]) -> str:
    if not entry["input_tokens"] and not entry["output_tokens"]:
        return ""
    cached = f" ({entry['cached_tokens']:,} cached)" if entry["cached_tokens"] else ""
    return f"{entry['input_tokens']:,}{cached} / {entry['output_tokens']:,}"


def _format_cost(entry: Mapping[str, Any]) -> str:
    if not entry["cost_usd"] and not entry["assumed_usd"]:
        return "unknown: no price" if entry["unpriced"] else ""
    notes = []
    if entry["assumed_usd"]:
        notes.append(f"{entry['assumed_usd']:.4f} of it assumed")
    if entry["unpriced"]:
        notes.append(f"{entry['unpriced']:,} replies without a price")
    return f"{entry['cost_usd']:.4f} USD" + (f" ({', '.join(notes)})" if notes else "")


def _format_latency(entry: Mapping[str, Any]) -> str:
    quantiles = [entry["p50_s"], entry["p95_s"], entry["p99_s"]]
    if None in quantiles:
        return ""
    return " / ".join(f"{seconds:.3g}" for seconds in quantiles) + " s"


COST_UNIT_EPISODES = 1_000


@dataclass
class JudgeCallEstimate:
    """Calls of one grader over the samples looked at: ``output_tokens`` are the most allowed.

    ``cost_usd`` is ``None`` without a price; it assumes replies of full length and no cache. Where
    nothing could be asked, ``why`` says so, and the rest is not known, not 0. ``judge_calls`` and
    ``judge_tokens`` are the calls and all their tokens, in and out, by judge.
    """

    scope: str
    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float | None = 0.0
    why: str = ""
    judge_calls: dict[str, int] = field(default_factory=dict)
    judge_tokens: dict[str, int] = field(default_factory=dict)

    def add(self, judge: str, reads: int, writes: int, price: Price | None) -> None:
        """One call was asked for."""
        self.calls += 1
        _count(self.judge_calls, {judge: 1})
        _count(self.judge_tokens, {judge: reads + writes})
        self.input_tokens += reads
        self.output_tokens += writes
        if price is None:
            self.cost_usd = None
        elif self.cost_usd is not None:
            self.cost_usd += (reads * price.input + writes * price.output) / 1e6

    def add_all(self, other: JudgeCallEstimate, times: float = 1.0) -> None:
        """What ``other`` counted was asked for, so many times."""
        self.calls += round(other.calls * times)
        self.input_tokens += round(other.input_tokens * times)
        self.output_tokens += round(other.output_tokens * times)
        _count(self.judge_calls, other.judge_calls, times)
        _count(self.judge_tokens, other.judge_tokens, times)
        self.why = self.why or other.why
        if other.cost_usd is None:
            self.cost_usd = None
        elif self.cost_usd is not None:
            self.cost_usd += other.cost_usd * times


def _count(total: dict[str, int], more: Mapping[str, int], times: float = 1.0) -> None:
    for name, number in more.items():
        total[name] = total.get(name, 0) + round(number * times)


class _CallMeter(ChatModel):
    """Stands in for a judge: counts what it is asked and says nothing."""

    kind = "scripted"

    def __init__(self, name: str, model: ChatModel, asked: JudgeCallEstimate) -> None:
        self._name = name
        self.model, self.features = model.model, model.features
        self._asked = asked
        self._sampling = model.sampling
        self._price: Price | None = getattr(model, "price", None)
        # Cassettes and scripts cost nothing.
        self._free = not model.has_server

    async def achat(self, messages: Any, **asked: Any) -> Reply:
        from adjudge.judges.endpoint.settings import (  # noqa: PLC0415  (a dry run's alone)
            Price,
            estimate_tokens,
        )

        sampling = {**self._sampling, **asked}
        price = Price(input=0.0, output=0.0) if self._free else self._price
        self._asked.add(self._name, *estimate_tokens(messages, sampling), price)
        raise GradingFailure(ErrorKind.NOT_SAMPLED, "a dry run asks nobody")


def build_call_meters(
    judges: Mapping[str, ChatModel], asked: JudgeCallEstimate
) -> dict[str, ChatModel]:
    """Stand-ins for ``judges``, which count in ``asked`` what they are asked, and say nothing."""
    return {name: _CallMeter(name, judge, asked) for name, judge in judges.items()}


def estimate_calls(
    spec: RewardSpec, samples: Sequence[Sample], groups: Sequence[str], draws: int = 1
) -> dict[str, JudgeCallEstimate]:
    """What each grader would ask its judge about ``samples``; graders without one are left out.

    First asks of each draw only: what is asked again after a failure comes on top.
    """
    judges = spec.build_judges()
    asked: dict[str, JudgeCallEstimate] = {}
    graders = {}
    for entry in spec.graders:
        if not spec.asks_judge(entry):  # the user's own code is not run to count calls
            continue
        asked[entry.name] = JudgeCallEstimate(entry.scope)
        meters = build_call_meters(judges, asked[entry.name])
        graders[entry.name] = spec.build_grader(entry, meters)
    if not graders:
        return {}
    function = SpecRewardFunction(_with_graders_only(spec, graders), graders=graders, draws=draws)
    for judged in run_blocking(function.grade(samples, groups, step=0)):
        for name, result in judged.results():
            if isinstance(result, GraderError) and result.kind is not ErrorKind.NOT_SAMPLED:
                asked[name].why = asked[name].why or f"{result.kind}: {result.error}"
    for one in asked.values():
        one.why = "" if one.calls else one.why
    return {name: one for name, one in asked.items() if one.calls or one.why}


def _with_graders_only(spec: RewardSpec, graders: Mapping[str, Any]) -> RewardSpec:
    """The spec with these graders only, every group drawn, and no outage outlasted."""
    return spec.model_copy(
        update={
            "graders": [entry for entry in spec.graders if entry.name in graders],
            "reward": RewardSettings(
                normalise=False,
                event_weight=spec.reward.event_weight,
                outcome_weight=spec.reward.outcome_weight,
            ),
            "missing": MissingSettings(max_missing=1.0, patience_s=0.0),
        }
    )


def scale_estimates(
    spec: RewardSpec, asked: Mapping[str, JudgeCallEstimate], samples: int, rows: int
) -> dict[str, JudgeCallEstimate]:
    """What ``asked`` of so many samples comes to for ``rows`` rows."""
    found = {name: JudgeCallEstimate(one.scope) for name, one in asked.items()}
    for name, one in asked.items():
        found[name].add_all(one, rows / samples * spec.reward.sample_rate)
    return found


def estimate_run_calls(
    spec: RewardSpec, samples: Sequence[Sample], groups: Sequence[str], rows: int
) -> JudgeCallEstimate:
    """What ``spec`` would ask its judges about ``rows`` rows; ``samples`` are the first of them."""
    found = JudgeCallEstimate("outcome")
    asked = estimate_calls(spec, samples, groups)
    for one in scale_estimates(spec, asked, len(samples), rows).values():
        found.add_all(one)
    return found


def estimate_times(
    spec: RewardSpec, asked: Mapping[str, JudgeCallEstimate]
) -> dict[str, dict[str, Any]]:
    """How long each judge behind a server takes for what is ``asked``, where nothing fails.

    ``max_concurrency`` is the smaller of the spec's and the endpoint's. ``rounds``: the run takes
    so many times the time of one reply; the first round has ``start_concurrency`` calls, each next
    one twice as many. ``least_s`` is what the table's own rates allow, ``None`` without one.
    """
    from adjudge.judges.endpoint.limits import BURST_S  # noqa: PLC0415  (a dry run's alone)

    calls: dict[str, int] = {}
    tokens: dict[str, int] = {}
    for one in asked.values():
        _count(calls, one.judge_calls)
        _count(tokens, one.judge_tokens)
    found = {}
    for name, table in spec.judges.items():
        if name not in calls or not isinstance(table, AddressedTable):
            continue
        limits = table.endpoint or EndpointSettings()
        counted = calls[name]
        rates = {
            "requests_per_minute": (counted, limits.requests_per_minute),
            "tokens_per_minute": (tokens[name], limits.tokens_per_minute),
        }
        least = [
            max(0.0, 60 * many / rate - BURST_S)
            for many, rate in rates.values()
            if rate is not None
        ]
        most = min(spec.max_concurrency, limits.max_concurrency)
        found[name] = {
            "calls": counted,
            "max_concurrency": most,
            "rounds": _count_rounds(counted, min(limits.start_concurrency, most), most),
            "least_s": max(least, default=None),
        }
    return found


def _count_rounds(calls: float, width: int, most: int) -> int:
    """Rounds in which ``calls`` are answered, ``width`` at a time at first, then twice as many."""
    rounds = 0
    while calls > 0 and width < most:
        rounds, calls, width = rounds + 1, calls - width, min(2 * width, most)
    return rounds + max(0, math.ceil(calls / most))
