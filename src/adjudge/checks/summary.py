"""Checks of a graded run by its numbers: what predicts missing rewards, what a summary warns of.

A judge's failure may depend on the answer: refusals, requests that are too long, replies that
cannot be read. Each such reward is missing, which a policy may prefer to a low one. So rates of
missing rewards are compared between answers with and without simple properties, inside groups,
where the prompt is the same.

A finding that is ``low`` is a note: it is common in runs in which nothing is wrong. Pure Python,
because the core has no numpy: grading asks these checks.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

import msgspec

from adjudge.checks.check import (
    CheckResult,
    Finding,
    ask_checks,
    ask_of_each,
    list_found,
    make_checks,
    make_result,
    need,
    not_applicable,
    share_text,
)
from adjudge.stats import collect
from adjudge.text import encode_exactly

MIN_MISSING, MIN_RATIO, Z_LIMIT = 5, 2.0, 4.0
"""``Z_LIMIT`` leaves room for a dozen properties that a training looks at again and again."""

_JUDGING = ("score", "grade", "grading", "judg", "rating", "verdict", "rubric")
_HUGE_NUMBER = 12
"""Digits in a row."""
_AS_ZERO = bytes(ord("0") if chr(code) in "0123456789" else code for code in range(256))
_ENDS = 4_000
"""Characters at each end of an answer that are looked at: long ones must cost no more."""


def _has_huge_number(text: str) -> bool:
    """``[0-9]{12}``, which as a regular expression took half of all that is done to a sample."""
    return b"0" * _HUGE_NUMBER in encode_exactly(text).translate(_AS_ZERO)


_MARKUP = re.compile(r"</?[A-Za-z]")
ANSWER_PROPERTIES: Mapping[str, Callable[[str], bool]] = {
    "empty": lambda text: not text.strip(),
    "code block": lambda text: "```" in text,
    "LaTeX": lambda text: "\\" in text or "$" in text,
    "JSON": lambda text: text.lstrip()[:1] in ("{", "["),
    "markup": lambda text: _MARKUP.search(text) is not None,
    "control token": lambda text: "<|" in text,
    "not ASCII": lambda text: not text.isascii(),
    "link": lambda text: "http" in text,
    "words about judging": lambda text: any(map(text.lower().__contains__, _JUDGING)),
    "huge number": _has_huge_number,
}
_LONG, _SHORT = "longer than the median", "shorter than the median"


def answer_properties(text: str) -> frozenset[str]:
    """The simple properties of an answer that are compared; its length is compared elsewhere.

    Of a long answer the beginning and the end are looked at.
    """
    if len(text) > 2 * _ENDS:
        text = f"{text[:_ENDS]}\n{text[-_ENDS:]}"
    return frozenset(name for name, has in ANSWER_PROPERTIES.items() if has(text))


class PropertyCounts(msgspec.Struct, kw_only=True):
    """The missing rewards of answers with and without a property, in groups that miss some.

    ``across_prompts``: samples that are alone in their groups were compared, too.
    """

    name: str
    n: int = 0
    missing: int = 0
    n_without: int = 0
    missing_without: int = 0
    across_prompts: bool = False
    excess: float = 0.0
    variance: float = 0.0

    def add(self, having: Sequence[bool], lost: Sequence[bool]) -> None:
        """A group: which of its answers have the property, and which have no reward."""
        n, has, missing = len(lost), sum(having), sum(lost)
        both = sum(one and gone for one, gone in zip(having, lost, strict=True))
        self.n += has
        self.missing += both
        self.n_without += n - has
        self.missing_without += missing - both
        self.excess += both - has * missing / n
        self.variance += has * (n - has) * missing * (n - missing) / (n * n * (n - 1))

    @property
    def z(self) -> float:
        """The Cochran-Mantel-Haenszel statistic over groups, with continuity correction."""
        return max(0.0, self.excess - 0.5) / math.sqrt(self.variance) if self.variance > 0 else 0.0

    @property
    def predicts(self) -> bool:
        """Whether answers with the property go missing more often, beyond chance."""
        if self.missing < MIN_MISSING or self.z < Z_LIMIT or not self.n_without:
            return False
        return self.missing / self.n >= MIN_RATIO * self.missing_without / self.n_without

    def as_dict(self) -> dict[str, Any]:
        """Plain data for a summary."""
        counts = {key: getattr(self, key) for key in self.__struct_fields__[:6]}
        return {**counts, "z": round(self.z, 2), "predicts": self.predicts}


class MissingCounts:
    """Counts over any number of batches; the members of a group belong into one batch.

    Samples that are alone in their group are compared with each other. Groups without a missing
    reward, and those of which all are missing, tell nothing here.
    """

    def __init__(self) -> None:
        self._counts: dict[str, PropertyCounts] = {}
        self._across_prompts = False

    def add(
        self,
        properties: Callable[[int], frozenset[str]],
        lengths: Sequence[float],
        groups: Sequence[Hashable],
        missing: Sequence[bool],
    ) -> None:
        """A batch: length and group of each answer, and whether its reward is missing.

        ``properties`` of the answer at a place are asked for only where they are compared. The
        caller leaves out samples that were not asked for.
        """
        members = collect((group, place) for place, group in enumerate(groups))
        alone = [places[0] for places in members.values() if len(places) == 1]
        self._across_prompts |= any(missing[place] for place in alone)
        for places in [*(places for places in members.values() if len(places) > 1), alone]:
            lost = [missing[place] for place in places]
            if not 0 < sum(lost) < len(places):
                continue
            found = [properties(place) for place in places]
            sizes = [lengths[place] for place in places]
            middle = median(sizes)
            held = {name: [name in one for one in found] for name in ANSWER_PROPERTIES}
            held[_LONG] = [size > middle for size in sizes]
            held[_SHORT] = [size < middle for size in sizes]
            for name, having in held.items():
                self._counts.setdefault(name, PropertyCounts(name=name)).add(having, lost)

    def table(self) -> list[PropertyCounts]:
        """Every property that any answer had, the strongest first."""
        for one in self._counts.values():
            one.across_prompts = self._across_prompts
        return sorted((one for one in self._counts.values() if one.n), key=lambda one: -one.z)


def check_missing(table: Sequence[Mapping[str, Any]]) -> CheckResult:
    """Whether a property predicts missing rewards; ``table``: :meth:`PropertyCounts.as_dict` each.

    The p value is that of the strongest, times the number of properties.
    """
    if not table:
        return not_applicable("no group has some of its rewards missing and others not")
    unit = "share of the answers with the property"
    p_value = min(1.0, len(table) * math.erfc(table[0]["z"] / math.sqrt(2)) / 2)
    found = [one for one in table if one["predicts"]]
    if not found:
        return CheckResult(p_value=p_value, unit=unit)
    first, *more = found
    share, other = first["missing"] / first["n"], first["missing_without"] / first["n_without"]
    whose = "others" if first["across_prompts"] else "others to the same prompts"
    unless = ", unless their prompts are the reason" if first["across_prompts"] else ""
    also = ", ".join(repr(one["name"]) for one in more)
    sentence = (
        f"Answers with the property {first['name']!r} have no reward in {share:.0%} of "
        f"{first['n']:,}, {whose} in {other:.0%} of {first['n_without']:,}"
        f"{f' (also: {also})' if also else ''}: the policy may learn to bring failures "
        f"about{unless}."
    )
    return make_result(sentence, share, unit=unit, p_value=p_value, affected=first["missing"])


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
    sentence = f"{share_text(share)} of groups have the same reward throughout and teach nothing."
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
    counts = facts.get("role") == "score" and facts.get("weight") and judged >= CONSTANT_SAMPLES
    need(counts, f"no weight, or fewer than {CONSTANT_SAMPLES} scores")
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
    none = "the environment has no rewards that differ within groups"
    need(within.get("value") is not None, none)
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


SUMMARY_CHECKS = make_checks(
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
)  # fmt: skip
GRADER_CHECKS = make_checks(
    ("not_applicable", _check_not_applicable, "nothing to judge", "",
     "It is left out of a group with only such samples; in others its stated score counts."),
    ("constant", _check_constant, "one score for all samples",
     "Samples may all be as good as it can say.", "Read some of its reasons."),
    ("unscaled", _check_unscaled, "no score_range beside scaled scores", "",
     "Give score_range = [low, high] to scale them."),
    ("order", _check_order, "prompts told apart, and not answers", "",
     "Telling prompts apart also raises the pooled number, and a group baseline removes it."),
    ("noise", _check_noise, "more noise than signal", "", ""),
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
