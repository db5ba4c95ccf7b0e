"""Checks of a graded run by its summary: what the numbers of ``summary.json`` warn of.

A finding that is ``low`` is a note: it is common in runs in which nothing is wrong. Pure Python:
grading asks these checks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from adjudge.checks.check import (
    Check,
    CheckOutcome,
    CheckResult,
    Finding,
    list_found,
    make_result,
    not_applicable,
    run_checks,
)
from adjudge.checks.missing import check_missing

CONSTANT_SAMPLES = 20
NOT_APPLICABLE_SHARE, SUSPECT_SHARE, DEAD_SHARE, NOISE_SHARE = 0.2, 0.1, 0.5, 0.5

BASELINES = {"response_length": "response length", "tool_calls": "number of tool calls"}
"""Baselines of a summary, and how they read: what a grader must beat to earn its place."""

REWARD = "the reward"
_OF_SAMPLES, _CONCORDANCE = "share of samples", "concordance within groups"

Summary = Mapping[str, Any]


class GraderNumbers(NamedTuple):
    """What a summary says of one grader, or of the reward; ``noise`` of several draws."""

    name: str
    facts: Mapping[str, Any]
    noise: Mapping[str, Any] | None
    summary: Summary


def _drawn(summary: Summary) -> int:
    return (summary.get("samples") or 0) - ((summary.get("reward") or {}).get("not_sampled") or 0)


def _check_suspects(summary: Summary) -> CheckResult:
    kinds = (summary.get("missing") or {}).get("suspect_by_kind") or {}
    share = sum(kinds.values()) / max(1, _drawn(summary))
    if share < SUSPECT_SHARE:
        return CheckResult(unit=_OF_SAMPLES)
    named = ", ".join(f"{kind} {count:,}" for kind, count in kinds.items())
    return make_result(
        f"{share:.0%} of the rewards are missing for reasons that the answers may have brought "
        f"about ({named}).",
        share,
        _OF_SAMPLES,
        otherwise="A limit of tokens that is too low fails the same way.",
        advice="Read some of them.",
    )


def _check_pattern(summary: Summary) -> CheckResult:
    return check_missing((summary.get("missing") or {}).get("by_property") or ())


def _check_products(summary: Summary) -> CheckResult:
    negative = (summary.get("reward") or {}).get("negative_products")
    if not negative:
        return CheckResult(unit=_OF_SAMPLES)
    return make_result(
        f"env_reward is negative in {negative:,} of {summary['samples']:,} samples. Under "
        "combine_mode = 'multiply' a better judgement makes such a reward lower.",
        negative / summary["samples"],
        _OF_SAMPLES,
        severity="medium",
    )


def _check_spread(summary: Summary) -> CheckResult:
    share = (summary.get("reward") or {}).get("zero_spread_frac")
    if not share:
        return CheckResult(unit="share of groups")
    return make_result(
        f"{share:.1%} of groups have the same reward throughout and teach nothing.",
        share,
        "share of groups",
        severity="medium" if share > DEAD_SHARE else "low",
        otherwise="Prompts that are too easy or too hard, and rewards of few values, do this.",
    )


def _check_not_applicable(of: GraderNumbers) -> CheckResult:
    lacking = (of.facts.get("missing_by_kind") or {}).get("not_applicable", 0)
    share = ((of.facts.get("not_evaluable") or 0) + lacking) / max(1, _drawn(of.summary))
    if share < NOT_APPLICABLE_SHARE or not of.facts.get("weight"):
        return CheckResult(unit=_OF_SAMPLES)
    return make_result(
        f"{of.name} had nothing to judge in {share:.0%} of the samples.",
        share,
        _OF_SAMPLES,
        advice="In a group of which that is all it is left out; in others its stated score counts, "
        "and a sample without its field has no reward.",
    )


def _check_constant(of: GraderNumbers) -> CheckResult:
    facts = of.facts
    judged = (facts.get("scored") or 0) - (facts.get("not_evaluable") or 0)
    if facts.get("role") != "score" or not facts.get("weight") or judged < CONSTANT_SAMPLES:
        return not_applicable(f"no weight, or fewer than {CONSTANT_SAMPLES} scores")
    if facts.get("min") != facts.get("max") or facts.get("min") is None:
        return CheckResult(unit=_OF_SAMPLES)
    return make_result(
        f"{of.name} gave {facts['min']:g} to every sample, which tells no rollouts apart.",
        1.0,
        _OF_SAMPLES,
        severity="medium",
        otherwise="Samples may all be as good as it can say.",
        advice="Read some of its reasons.",
    )


def _check_unscaled(of: GraderNumbers) -> CheckResult:
    if not (beside := of.facts.get("unscaled_beside")):
        return CheckResult(unit=_OF_SAMPLES)
    return make_result(
        f"{of.name} has no score_range: its scores count unscaled beside scores in [0, 1] "
        f"({', '.join(beside)}).",
        1.0,
        _OF_SAMPLES,
        severity="medium",
        advice="Give score_range = [low, high] to scale them.",
    )


def _check_order(of: GraderNumbers) -> CheckResult:
    """Against the environment within groups; else what only seems to follow it."""
    within, pooled = _known(of.facts.get("concordance")), _known(of.facts.get("auc"))
    if within is None:
        return not_applicable("the environment has no rewards that differ within groups")
    value, low = within["value"], within.get("low")
    if low is not None and value < 0.5:
        return make_result(
            f"{of.name} orders the samples of a group the wrong way round: "
            f"{format_concordance(within)}.",
            value,
            _CONCORDANCE,
            p_value=find_chance(value, low, within["high"]),
            severity="medium",
            otherwise="It may judge what the environment does not pay, such as brevity.",
            advice="See whether its scale or its weight has the wrong sign.",
        )
    bases = of.summary.get("baselines") or {}
    known = {key: _known((bases.get(key) or {}).get("concordance")) for key in BASELINES}
    apart = {key: abs(one["value"] - 0.5) for key, one in known.items() if one}
    best = max(apart, key=lambda key: apart[key], default="")
    if pooled and (pooled.get("low") or 0) > 0.5 and not (low and low > 0.5):
        sentence = (
            f"{of.name} follows the environment over all samples, but inside groups "
            f"({within.get('pairs') or 0:,} pairs) that does not show: telling prompts apart also "
            "raises the pooled number, and a group baseline removes it."
        )
    elif of.name != REWARD and best and abs(value - 0.5) <= apart[best]:
        sentence = f"Inside groups, {of.name} is no further from chance than the {BASELINES[best]}."
    else:
        return CheckResult(unit=_CONCORDANCE)
    return make_result(sentence, value, _CONCORDANCE, severity="low")


def _known(agreement: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    return agreement if agreement and agreement.get("value") is not None else None


def find_chance(value: float, low: float, high: float) -> float:
    """The two-sided p value of a concordance, by its 95 % interval, where the true one is ½.

    The interval is symmetric on the logit scale; at 0 its upper bound is the rule of three.
    """
    if value <= 0:
        return float(min(1.0, 2 * 0.5 ** (math.log(0.05) / math.log1p(-high))))
    low, value, high = (math.log(one / (1 - one)) for one in (low, value, high))
    return math.erfc(abs(value) * 2 * 1.96 / (high - low) / math.sqrt(2))


def format_concordance(agreement: Mapping[str, Any] | None) -> str:
    """``0.712 [0.650, 0.770]``, without the bracket where there is no interval."""
    if not agreement or agreement.get("value") is None:
        return "–"
    low, high = agreement.get("low"), agreement.get("high")
    bracket = "" if low is None or high is None else f" [{low:.3f}, {high:.3f}]"
    return f"{agreement['value']:.3f}{bracket}"


def _check_noise(of: GraderNumbers) -> CheckResult:
    if of.noise is None or of.noise["value"] is None:
        return not_applicable("it was asked once, or nothing differs within groups")
    share, low, high = (of.noise[key] for key in ("value", "low", "high"))
    unit, votes = "share of the variance within groups", of.noise["to_halve"]["votes"]
    if (share if low is None else low) <= NOISE_SHARE:
        return CheckResult(unit=unit)
    between = "" if low is None else f" (95 %: {low:.0%}-{high:.0%})"
    return make_result(
        f"{of.name} has more noise than signal: {share:.0%}{between} of the variance inside groups "
        "is another each time it is asked.",
        share,
        unit,
        advice=f"{votes} votes would halve it." if votes else "No number of votes would help.",
    )


def _check_draws(of: GraderNumbers) -> CheckResult:
    if of.noise is None or not of.noise["missing"]:
        return CheckResult()
    return make_result(
        f"{of.name}: {of.noise['missing']:,} of its draws are missing, and were left out of its "
        "noise share.",
        of.noise["missing"] / max(1, of.noise["samples"] * of.noise["draws"]),
        "share of draws",
        severity="medium",
    )


SUMMARY_CHECKS = tuple(
    Check(name=name, title=title, looks_for=looks_for, run=run)
    for name, title, looks_for, run in (
        ("suspects", "Failures that answers may bring about",
         f"such failures in {SUSPECT_SHARE:.0%} or more of the rewards", _check_suspects),
        ("missing_pattern", "Missing rewards that follow the answers",
         "properties of answers that predict a missing reward", _check_pattern),
        ("negative_products", "Products that turn a judgement round",
         "negative rewards of the environment as a factor", _check_products),
        ("dead_groups", "Groups without spread", "groups with equal rewards", _check_spread),
    )
)  # fmt: skip

GRADER_CHECKS = tuple(
    Check(name=name, title=title, looks_for=looks_for, run=run)
    for name, title, looks_for, run in (
        ("not_applicable", "Nothing to judge",
         f"nothing to judge in {NOT_APPLICABLE_SHARE:.0%} of the samples", _check_not_applicable),
        ("constant", "One score for all samples",
         f"{CONSTANT_SAMPLES} or more scores that are equal", _check_constant),
        ("unscaled", "Scores without a range", "no score_range beside scaled scores",
         _check_unscaled),
        ("order", "Scores that do not follow the environment",
         "a concordance below 0.5, or no better than a baseline", _check_order),
        ("noise", "More noise than signal",
         f"noise above {NOISE_SHARE:.0%} of the variance within groups", _check_noise),
        ("draws", "Missing draws", "draws without a score", _check_draws),
    )
)  # fmt: skip


def check_summary(summary: Summary) -> list[CheckOutcome]:
    """What the checks say of a run's ``summary.json``, or of a part of it."""
    noise = summary.get("noise") or {}
    of_graders = noise.get("graders") or {}
    numbers = {
        name: GraderNumbers(name, facts, of_graders.get(name), summary)
        for name, facts in (summary.get("graders") or {}).items()
    }
    reward = GraderNumbers(REWARD, summary.get("reward") or {}, noise.get("reward"), summary)
    return [
        *run_checks(SUMMARY_CHECKS, {"": summary}),
        *run_checks(GRADER_CHECKS, {**numbers, REWARD: reward}),
    ]


def list_findings(summary: Summary) -> list[Finding]:
    """What the checks found in a summary, those of the whole run first."""
    return [found for _, found in list_found(check_summary(summary))]


def list_warnings(summary: Summary) -> list[str]:
    """The findings that are no notes, each without its last full stop."""
    return [
        f"{one.sentence} {one.advice}".strip().removesuffix(".")
        for one in list_findings(summary)
        if one.severity != "low"
    ]
