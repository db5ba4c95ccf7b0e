"""Conditions on a comparison of two runs, as ``adjudge diff --fail-if`` takes them.

A condition is ``METRIC OPERATOR NUMBER``. A metric is a name of :func:`list_metrics`; the ends of
an estimate's interval are metrics, too. A metric without a value fails its condition: no
condition is passed in silence.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from adjudge.config import check_allowed
from adjudge.errors import ConfigError
from adjudge.stats import Estimate
from adjudge.stats.estimates import NOTHING_VARIED

_OPERATORS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
              "==": operator.eq, "!=": operator.ne}  # fmt: skip
_CONDITION = re.compile(
    r"\s*([A-Za-z_][^<>=!]*?)\s*(<=|>=|==|!=|<|>)\s*"
    r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)\s*"
)
_RATIOS = {"cost_ratio": "cost_usd", "calls_ratio": "calls", "tokens_ratio": "tokens",
           "seconds_ratio": "seconds"}  # fmt: skip


class Condition(NamedTuple):
    """What ends ``adjudge diff`` with exit code 1 where it holds."""

    text: str
    name: str
    sign: str
    limit: float

    def check(self, metrics: Mapping[str, Estimate]) -> ConditionResult:
        """Whether it holds; it fails, too, where its metric has no value.

        Raises :class:`~adjudge.errors.ConfigError` for a name that is no metric.
        """
        check_allowed("--fail-if", self.name, metrics, "has an unknown metric")
        value = metrics[self.name].value
        if value is None or not math.isfinite(value):
            why = f"{self.name} has no value here: {metrics[self.name].why or 'not finite'}"
            return ConditionResult(self.text, failed=True, undefined=True, sentence=why)
        failed = _OPERATORS[self.sign](value, self.limit)
        said = f"{self.name} is {value:.4g}"
        return ConditionResult(self.text, failed=failed, undefined=False, sentence=said)


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
    if match is None or math.isinf(float(match[3])):
        raise ConfigError(
            f"--fail-if: must be METRIC OPERATOR NUMBER, such as 'missing > 0.05' (found "
            f"{text!r:.200}; operators: {', '.join(_OPERATORS)}; numbers up to 1.7e308). For 'or', "
            "repeat --fail-if."
        )
    return Condition(text.strip(), match[1], match[2], float(match[3]))


def list_metrics(summary: Mapping[str, Any]) -> dict[str, Estimate]:
    """What a condition may name, by name, from the summary of a comparison."""
    missing, samples, found = summary["missing"], summary["samples"], summary["advantages"]
    metrics = {
        "missing": Estimate(missing["b"]),
        "missing_a": Estimate(missing["a"]),
        "only_a": Estimate(samples["only_a"]),
        "only_b": Estimate(samples["only_b"]),
    }
    estimates: dict[str, Any] = {
        "missing_increase": missing["change"],
        "reward_change": summary["reward"]["change"],
        "sign_turns": found["sign_flips"],
        "best_changes": found["best_changes"],
        "tau": found["within_kendall"],
        "noise_share": _none("A and B do not have the same spec")
        if summary["noise"] is None
        else {"why": "no rewards differ inside groups", **summary["noise"]["reward"]},
    }
    for prefix, source in (("agreement", "environment"), ("label_agreement", "labels")):
        whole = summary["truth"].get(source)
        for side in ("a", "b", "change"):
            # Of pairs inside groups, and where there are none of all pairs.
            estimates[f"{prefix}_{side}"] = (
                _none(f"no sample that both runs rewarded has a value of {source}")
                if whole is None
                else whole["within" if whole["within"]["pairs"] else "pooled"][side]
            )
    for name, one in summary["graders"].items():
        if "only" not in one:
            for side, key in (("b", "missing"), ("a", "missing_a")):
                share = one[f"missing_{side}"] / samples["both"]
                metrics[f"graders.{name}.{key}"] = Estimate(share)
            estimates[f"graders.{name}.change"] = one["change"]
    for name, one in estimates.items():
        metrics[name] = Estimate(one["value"], why=one["why"])
        # Of two equal runs no difference is uncertain.
        certain = summary["identical"] and one["why"] == NOTHING_VARIED
        for end in ("low", "high"):
            value = one["value"] if certain and one[end] is None else one[end]
            metrics[f"{name}.{end}"] = Estimate(value, why=one["why"] or "there is no interval")
    for name, key in _RATIOS.items():
        a, b = summary["a"][key], summary["b"][key]
        known = bool(a) and b is not None
        unknown = f"{key} of A or B is not known or 0"
        metrics[name] = Estimate(b / a if known else None, why=unknown)
    return metrics


def _none(why: str) -> dict[str, Any]:
    return {"value": None, "low": None, "high": None, "why": why}
