"""What predicts a missing reward: properties of the answers, compared inside groups.

A judge's failure may depend on the answer: refusals, requests that are too long, replies that
cannot be read. Each such reward is missing, which a policy may prefer to a low one. So rates of
missing rewards are compared between answers with and without simple properties, inside groups,
where the prompt is the same. Pure Python, because the core has no numpy.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from statistics import median
from typing import Any

import msgspec

from adjudge.checks.check import CheckResult, make_result, not_applicable
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
        members: dict[Hashable, list[int]] = {}
        for place, group in enumerate(groups):
            members.setdefault(group, []).append(place)
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
