"""Conditions on a comparison of two runs, as ``adjudge diff --fail-if`` takes them.

    CONDITION  ::= NAME OPERATOR NUMBER
    OPERATOR   ::= "<" | "<=" | ">" | ">=" | "==" | "!="

A name is one of :data:`METRICS`, or of a grader ``graders.NAME.`` with one of
:data:`GRADER_METRICS`; where that is an estimate, ``NAME.low`` and ``NAME.high`` are the ends of
its interval. A metric without a value fails its condition: it is never passed in silence.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any, NamedTuple

import msgspec

from adjudge.config import suggest_name
from adjudge.errors import ConfigError
from adjudge.stats.estimates import NOTHING_VARIED

_OPTION = "--fail-if"
_OPERATORS: Mapping[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}
_CONDITION = re.compile(
    r"\s*([A-Za-z_][\w.-]*)\s*(<=|>=|==|!=|<|>)\s*"
    r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)\s*"
)
_ENDS = ("low", "high")


class MetricValue(NamedTuple):
    """A number of a comparison, or why there is none; an estimate's with the ends it has."""

    value: float | None
    why: str = ""
    low: float | None = None
    high: float | None = None


class Metric(NamedTuple):
    """Where a comparison has what a condition names."""

    read: Callable[[Mapping[str, Any]], MetricValue]
    is_estimate: bool = False


def _number(*keys: str) -> Callable[[Mapping[str, Any]], MetricValue]:
    def read(summary: Mapping[str, Any]) -> MetricValue:
        return MetricValue(float(reduce(operator.getitem, keys, summary)))  # type: ignore[arg-type]

    return read


def _estimate(*keys: str) -> Callable[[Mapping[str, Any]], MetricValue]:
    def read(summary: Mapping[str, Any]) -> MetricValue:
        found: Any = reduce(operator.getitem, keys, summary)
        return MetricValue(found["value"], found["why"], found["low"], found["high"])

    return read


def _truth(source: str, what: str) -> Callable[[Mapping[str, Any]], MetricValue]:
    """Of pairs inside groups, and where there are none of all pairs."""

    def read(summary: Mapping[str, Any]) -> MetricValue:
        whole = summary["truth"].get(source)
        if whole is None:
            none = {
                "environment": "no sample that both runs rewarded has an environment reward",
                "labels": "no sample that both runs rewarded has a label",
            }
            return MetricValue(None, none[source])
        found = whole["within" if whole["within"]["pairs"] else "pooled"][what]
        return MetricValue(found["value"], found["why"], found["low"], found["high"])

    return read


def _noise(summary: Mapping[str, Any]) -> MetricValue:
    if summary["noise"] is None:
        return MetricValue(None, "A and B do not have the same spec")
    found = summary["noise"]["reward"]
    why = "" if found["value"] is not None else "no rewards differ inside groups"
    return MetricValue(found["value"], why, found["low"], found["high"])


def _times(key: str) -> Callable[[Mapping[str, Any]], MetricValue]:
    def read(summary: Mapping[str, Any]) -> MetricValue:
        a, b = summary["a"][key], summary["b"][key]
        if a is None or b is None:
            return MetricValue(None, f"{key} of {'A' if a is None else 'B'} is not known")
        return MetricValue(b / a) if a else MetricValue(None, f"{key} of A is 0")

    return read


METRICS: Mapping[str, Metric] = {
    "missing": Metric(_number("missing", "b")),
    "missing_a": Metric(_number("missing", "a")),
    "missing_increase": Metric(_estimate("missing", "change"), True),
    "only_a": Metric(_number("samples", "only_a")),
    "only_b": Metric(_number("samples", "only_b")),
    "reward_change": Metric(_estimate("reward", "change"), True),
    "sign_turns": Metric(_estimate("advantages", "sign_flips"), True),
    "best_changes": Metric(_estimate("advantages", "best_changes"), True),
    "tau": Metric(_estimate("advantages", "within_kendall"), True),
    "noise_share": Metric(_noise, True),
    "agreement_a": Metric(_truth("environment", "a"), True),
    "agreement_b": Metric(_truth("environment", "b"), True),
    "agreement_change": Metric(_truth("environment", "change"), True),
    "label_agreement_a": Metric(_truth("labels", "a"), True),
    "label_agreement_b": Metric(_truth("labels", "b"), True),
    "label_agreement_change": Metric(_truth("labels", "change"), True),
    "cost_ratio": Metric(_times("cost_usd")),
    "calls_ratio": Metric(_times("calls")),
    "tokens_ratio": Metric(_times("tokens")),
    "seconds_ratio": Metric(_times("seconds")),
}
"""What a condition may name."""


GRADER_METRICS: Mapping[str, Metric] = {
    "missing": Metric(_number("b")),
    "missing_a": Metric(_number("a")),
    "change": Metric(_estimate("change"), True),
}
"""What a condition may name of one grader, as ``graders.NAME.change``; read from its summary."""

_GRADER = re.compile(rf"graders\.(.+)\.({'|'.join(GRADER_METRICS)})")


class Condition(NamedTuple):
    """What ends ``adjudge diff`` with exit code 1 where it holds: ``NAME OPERATOR NUMBER``.

    ``end`` is ``low`` or ``high``, or empty for the value itself.
    """

    text: str
    name: str
    end: str
    sign: str
    limit: float

    def check(self, summary: Mapping[str, Any]) -> ConditionResult:
        """Whether it holds; it fails, too, where its metric has no value."""
        name = self.name + (f".{self.end}" if self.end else "")
        found = self.read(summary)
        if found.value is None:
            why = f"{name} has no value here: {found.why}"
            return ConditionResult(self.text, failed=True, undefined=True, sentence=why)
        holds = _OPERATORS[self.sign](found.value, self.limit)
        said = f"{name} is {found.value:.4g}"
        return ConditionResult(self.text, failed=holds, undefined=False, sentence=said)

    def read(self, summary: Mapping[str, Any]) -> MetricValue:
        """The number that is compared."""
        found = self._read_metric(summary)
        if found.value is not None and not math.isfinite(found.value):
            return MetricValue(None, "it is not finite")
        if not self.end or found.value is None:
            return found
        end = found.low if self.end == "low" else found.high
        if end is None and summary["identical"] and found.why == NOTHING_VARIED:
            end = found.value  # of two equal runs no difference is uncertain
        return MetricValue(end, found.why or "there is no interval")

    def _read_metric(self, summary: Mapping[str, Any]) -> MetricValue:
        of_grader = _GRADER.fullmatch(self.name)
        if of_grader is None:
            return METRICS[self.name].read(summary)
        name, metric = of_grader.groups()
        grader = summary["graders"].get(name)
        if grader is None or "only" in grader:
            known = [one for one, of in summary["graders"].items() if "only" not in of]
            return MetricValue(
                None, f"{name!r} is no grader of both runs (allowed: {', '.join(known) or 'none'})"
            )
        shares = {side: grader[f"missing_{side}"] / summary["samples"]["both"] for side in "ab"}
        return GRADER_METRICS[metric].read({**grader, **shares})


class ConditionResult(msgspec.Struct, frozen=True):
    """What became of a condition; ``undefined``: its metric had no value, so it failed."""

    condition: str
    failed: bool
    undefined: bool
    sentence: str


def parse_condition(text: str) -> Condition:
    """The condition that ``text`` says; raises :class:`ConfigError`.

    >>> parse_condition("sign_turns.low > 0.1").limit
    0.1
    """
    match = _CONDITION.fullmatch(text)
    if match is None:
        raise ConfigError(
            f"{_OPTION} {text!r:.200}: must be NAME OPERATOR NUMBER, such as 'missing > 0.05' "
            f"(operators: {', '.join(_OPERATORS)}). For 'or', repeat {_OPTION}."
        )
    name, sign, number = match.groups()
    limit = float(number)
    if math.isinf(limit):
        raise ConfigError(
            f"{_OPTION} {text!r:.200}: the number is too large (found {number:.40}; allowed: up to "
            "1.7e308). Nothing is above it, so the condition could not be checked."
        )
    return Condition(text.strip(), *_split_name(text, name), sign, limit)


def _split_name(text: str, said: str) -> tuple[str, str]:
    name, _, end = said.rpartition(".")
    if end not in _ENDS:
        name, end = said, ""
    of_grader = _GRADER.fullmatch(name)
    metric = GRADER_METRICS[of_grader[2]] if of_grader else METRICS.get(name)
    if metric is None or (end and not metric.is_estimate):
        allowed = list_metric_names()
        raise ConfigError(
            f"{_OPTION} {text!r:.200}: has an unknown name{suggest_name(said, allowed)} "
            f"(found {said!r:.80}; allowed: {', '.join(METRICS)}, graders.NAME."
            f"{', graders.NAME.'.join(GRADER_METRICS)}; estimates have .low and .high)"
        )
    return name, end


def list_metric_names() -> list[str]:
    """All names that a condition may have, ends of intervals included."""
    return [
        full
        for name, metric in METRICS.items()
        for full in (name, *(f"{name}.{end}" for end in _ENDS if metric.is_estimate))
    ]
