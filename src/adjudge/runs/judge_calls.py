"""What a run would ask its judges: calls, tokens and money, with nothing sent."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from adjudge.engine.loop import run_blocking
from adjudge.errors import ErrorKind, GradingFailure
from adjudge.judges.base import ChatModel, Reply
from adjudge.judges.endpoint.limits import BURST_S
from adjudge.judges.endpoint.settings import CallPolicy, EndpointSettings, Price, estimate_tokens
from adjudge.judges.table import AddressedTable
from adjudge.rewards.function import SpecRewardFunction
from adjudge.rewards.spec import MissingSettings, RewardSettings, RewardSpec
from adjudge.runs.job import select_entries
from adjudge.types import GraderError, Sample


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
        cost = None if price is None else (reads * price.input + writes * price.output) / 1e6
        tokens = {judge: reads + writes}
        self.add_all(JudgeCallEstimate(self.scope, 1, reads, writes, cost, "", {judge: 1}, tokens))

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
        self._free = not model.has_server  # cassettes and scripts cost nothing

    async def achat(self, messages: Any, **asked: Any) -> Reply:
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
    # These graders only, every group drawn, and no outage outlasted.
    plain = RewardSettings(
        normalise=False,
        event_weight=spec.reward.event_weight,
        outcome_weight=spec.reward.outcome_weight,
    )
    missing = MissingSettings(max_missing=1.0, patience_s=0.0)
    kept = select_entries(spec, graders) or spec
    asking = kept.model_copy(update={"reward": plain, "missing": missing})
    function = SpecRewardFunction(asking, graders=graders, draws=draws)
    for judged in run_blocking(function.grade(samples, groups, step=0)):
        for name, result in judged.results():
            if isinstance(result, GraderError) and result.kind is not ErrorKind.NOT_SAMPLED:
                asked[name].why = asked[name].why or f"{result.kind}: {result.error}"
    for one in asked.values():
        one.why = "" if one.calls else one.why
    return {name: one for name, one in asked.items() if one.calls or one.why}


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
    so many times the time of one reply; the first round has 20 calls at most, each next
    one twice as many. ``least_s`` is what the table's own rates allow, ``None`` without one.
    """
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
        # Answered `width` at a time at first, then twice as many.
        rounds, left, width = 0, counted, min(CallPolicy().start_concurrency, most)
        while left > 0 and width < most:
            rounds, left, width = rounds + 1, left - width, min(2 * width, most)
        found[name] = {
            "calls": counted,
            "max_concurrency": most,
            "rounds": rounds + max(0, math.ceil(left / most)),
            "least_s": max(least, default=None),
        }
    return found
