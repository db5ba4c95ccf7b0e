"""Checks of a graded run by its summary: what the numbers of ``summary.json`` warn of.

A finding that is ``low`` is a note: it is common in runs in which nothing is wrong. Pure Python:
grading asks these checks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from adjudge.checks.check import (
    Check,
    CheckResult,
    Finding,
    ask_checks,
    ask_of_each,
    list_found,
    make_result,
    not_applicable,
)
from adjudge.checks.missing import check_missing

CONSTANT_SAMPLES = 20
NOT_APPLICABLE_SHARE, SUSPECT_SHARE, NOISE_SHARE = 0.2, 0.1, 0.5

_WHOLE = "the reward"
_NOTHING = CheckResult(unit="share of samples")

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
        return _NOTHING
    named = ", ".join(f"{kind} {count:,}" for kind, count in kinds.items())
    what = "of the rewards are missing for reasons that the answers may have brought about"
    return make_result(f"{share:.0%} {what} ({named}).", share)


def _check_products(summary: Summary) -> CheckResult:
    if not (negative := (summary.get("reward") or {}).get("negative_products")):
        return _NOTHING
    sentence = f"env_reward is negative in {negative:,} of {summary['samples']:,} samples."
    return make_result(sentence, negative / summary["samples"], severity="medium")


def _check_spread(summary: Summary) -> CheckResult:
    if not (share := (summary.get("reward") or {}).get("zero_spread_frac")):
        return CheckResult(unit="share of groups")
    sentence = f"{share:.1%} of groups have the same reward throughout and teach nothing."
    return make_result(sentence, share, unit="share of groups", severity="low")


def _check_not_applicable(of: GraderNumbers) -> CheckResult:
    lacking = (of.facts.get("missing_by_kind") or {}).get("not_applicable", 0)
    share = ((of.facts.get("not_evaluable") or 0) + lacking) / max(1, _drawn(of.summary))
    if share < NOT_APPLICABLE_SHARE or not of.facts.get("weight"):
        return _NOTHING
    return make_result(f"{of.name} had nothing to judge in {share:.0%} of the samples.", share)


def _check_constant(of: GraderNumbers) -> CheckResult:
    facts = of.facts
    judged = (facts.get("scored") or 0) - (facts.get("not_evaluable") or 0)
    if facts.get("role") != "score" or not facts.get("weight") or judged < CONSTANT_SAMPLES:
        return not_applicable(f"no weight, or fewer than {CONSTANT_SAMPLES} scores")
    if facts.get("min") != facts.get("max") or facts.get("min") is None:
        return _NOTHING
    what = f"gave {facts['min']:g} to every sample, which tells no rollouts apart."
    return make_result(f"{of.name} {what}", 1.0, severity="medium")


def _check_unscaled(of: GraderNumbers) -> CheckResult:
    if not (beside := of.facts.get("unscaled_beside")):
        return _NOTHING
    what = "has no score_range: its scores count unscaled beside scores in [0, 1]"
    return make_result(f"{of.name} {what} ({', '.join(beside)}).", 1.0, severity="medium")


def _check_order(of: GraderNumbers) -> CheckResult:
    within, pooled = of.facts.get("concordance") or {}, of.facts.get("auc") or {}
    if within.get("value") is None:
        return not_applicable("the environment has no rewards that differ within groups")
    unit = "concordance within groups"
    if (pooled.get("low") or 0.0) <= 0.5 or (within.get("low") or 0.0) > 0.5:
        return CheckResult(unit=unit)
    where = f"over all samples, but inside groups ({within.get('pairs') or 0:,} pairs)"
    sentence = f"{of.name} follows the environment {where} that does not show."
    return make_result(sentence, within["value"], unit=unit, severity="low")


def _check_noise(of: GraderNumbers) -> CheckResult:
    if of.noise is None or of.noise["value"] is None:
        return not_applicable("it was asked once, or nothing differs within groups")
    share, low, high = (of.noise[key] for key in ("value", "low", "high"))
    unit, votes = "share of the variance within groups", of.noise["to_halve"]["votes"]
    if (share if low is None else low) <= NOISE_SHARE:
        return CheckResult(unit=unit)
    between = "" if low is None else f" (95 %: {low:.0%}-{high:.0%})"
    what = "of the variance inside groups is another each time it is asked."
    sentence = f"{of.name} has more noise than signal: {share:.0%}{between} {what}"
    advice = f"{votes} votes would halve it." if votes else "No number of votes would help."
    return make_result(sentence, share, unit=unit, advice=advice)


SUMMARY_CHECKS: tuple[Check[Summary], ...] = tuple(
    Check(name, title, title, run, otherwise, advice)
    for name, run, title, otherwise, advice in (
        ("suspects", _check_suspects, "failures that the answers may bring about",
         "A limit of tokens that is too low fails the same way.", "Read some of them."),
        ("missing_pattern",
         lambda summary: check_missing((summary.get("missing") or {}).get("by_property") or ()),
         "missing rewards that follow the answers",
         "Such answers may be harder to judge; the policy is then taught by the others.",
         "Read some. Raise the judge’s limit of tokens or its deadline where they exceed it."),
        ("negative_products", _check_products, "products that turn a judgement round", "",
         "Under combine_mode = 'multiply' a better judgement makes such a reward lower."),
        ("dead_groups", _check_spread, "groups of which all rewards are equal",
         "Prompts that are too easy or too hard, and rewards of few values, do this.", ""),
    )
)  # fmt: skip
GRADER_CHECKS: tuple[Check[GraderNumbers], ...] = tuple(
    Check(name, title, title, run, otherwise, advice)
    for name, run, title, otherwise, advice in (
        ("not_applicable", _check_not_applicable, "nothing to judge", "",
         "It is left out of a group with only such samples; in others its stated score counts."),
        ("constant", _check_constant, "one score for all samples",
         "Samples may all be as good as it can say.", "Read some of its reasons."),
        ("unscaled", _check_unscaled, "no score_range beside scaled scores", "",
         "Give score_range = [low, high] to scale them."),
        ("order", _check_order, "prompts told apart, and not answers", "",
         "Telling prompts apart also raises the pooled number, and a group baseline removes it."),
        ("noise", _check_noise, "more noise than signal", "", ""),
    )
)  # fmt: skip


def check_summary(summary: Summary) -> list[Finding]:
    """What the checks find in a run's ``summary.json``, or in a part of it, worst first."""
    noise = summary.get("noise") or {}
    facts = {**(summary.get("graders") or {}), _WHOLE: summary.get("reward") or {}}
    draws = {**(noise.get("graders") or {}), _WHOLE: noise.get("reward")}
    graders = {n: GraderNumbers(n, facts[n], draws.get(n), summary) for n in facts}
    of_run = [(check, summary) for check in SUMMARY_CHECKS]
    outcomes = ask_checks([*of_run, *ask_of_each(GRADER_CHECKS, graders)])
    return [found for _, found in list_found(outcomes)]


def list_warnings(summary: Summary) -> list[str]:
    """The findings that are no notes, each without its last full stop."""
    return [
        f"{one.sentence} {one.advice}".strip().removesuffix(".")
        for one in check_summary(summary)
        if one.severity != "low"
    ]
