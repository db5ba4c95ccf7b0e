"""What predicts a missing reward: whether a policy can bring failures about by what it writes.

A judge's failure may depend on the answer: refusals, requests that are too long, replies that
cannot be read. Each such reward is missing, which a policy may prefer to a low one. So rates of
missing rewards are compared between answers with and without simple properties, inside groups,
where the prompt is the same. Pure Python, because the core has no numpy.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

import msgspec

__all__ = ["MissingPredictor", "MissingWatch", "properties_of"]

Z_LIMIT = 4.0
LEAST_MISSING = 5
LEAST_RATIO = 2.0

_JUDGING = ("score", "grade", "grading", "judg", "rating", "verdict", "rubric")
_HUGE_NUMBER = re.compile("[0-9]{12}")
_ENDS = 4_000
"""Characters at each end of an answer that are looked at: long ones must cost no more."""
_MARKUP = re.compile(r"</?[A-Za-z]")
_PROPERTIES: Mapping[str, Callable[[str], bool]] = {
    "empty": lambda text: not text.strip(),
    "code block": lambda text: "```" in text,
    "LaTeX": lambda text: "\\" in text or "$" in text,
    "JSON": lambda text: text.lstrip()[:1] in ("{", "["),
    "markup": lambda text: _MARKUP.search(text) is not None,
    "control token": lambda text: "<|" in text,
    "not ASCII": lambda text: not text.isascii(),
    "link": lambda text: "http" in text,
    "words about judging": lambda text: any(map(text.lower().__contains__, _JUDGING)),
    "huge number": lambda text: _HUGE_NUMBER.search(text) is not None,
}
_LONG, _SHORT = "longer than the median", "shorter than the median"


def properties_of(text: str) -> frozenset[str]:
    """The simple properties of an answer that are watched; its length is compared elsewhere.

    Of a long answer the beginning and the end are looked at.
    """
    if len(text) > 2 * _ENDS:
        text = f"{text[:_ENDS]}\n{text[-_ENDS:]}"
    return frozenset(name for name, has in _PROPERTIES.items() if has(text))


class MissingPredictor(msgspec.Struct, frozen=True, kw_only=True):
    """A property and the missing rewards of answers with and without it, where any is missing.

    ``z``: the Cochran-Mantel-Haenszel statistic over groups, with continuity correction.
    ``across_prompts``: samples that are alone in their groups were compared, too.
    """

    name: str
    n: int
    missing: int
    n_without: int
    missing_without: int
    z: float
    across_prompts: bool = False

    @property
    def predicts(self) -> bool:
        """Whether answers with the property go missing more often, beyond chance.

        ``Z_LIMIT`` of 4 leaves room for a dozen properties that are looked at again and again.
        """
        if self.missing < LEAST_MISSING or self.z < Z_LIMIT or not self.n_without:
            return False
        without = self.missing_without / self.n_without
        return self.missing / self.n >= LEAST_RATIO * without

    @property
    def sentence(self) -> str:
        """The finding in words."""
        share, other = self.missing / self.n, self.missing_without / self.n_without
        whose = "others" if self.across_prompts else "others to the same prompts"
        unless = ", unless their prompts are the reason" if self.across_prompts else ""
        return (
            f"answers with the property {self.name!r} have no reward in {share:.0%} of "
            f"{self.n:,}, {whose} in {other:.0%} of {self.n_without:,}: the policy may learn to "
            f"bring failures about{unless}"
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain data for a summary."""
        return {**msgspec.structs.asdict(self), "z": round(self.z, 2), "predicts": self.predicts}


class _Counts:
    """One property's counts so far, and the sums of the statistic."""

    def __init__(self) -> None:
        self.n = self.missing = self.n_without = self.missing_without = 0
        self.excess = self.variance = 0.0

    def add(self, n: int, having: int, missing: int, both: int) -> None:
        """A group of ``n``: ``having`` the property, ``missing`` a reward, ``both``."""
        self.n += having
        self.missing += both
        self.n_without += n - having
        self.missing_without += missing - both
        self.excess += both - having * missing / n
        self.variance += having * (n - having) * missing * (n - missing) / (n * n * (n - 1))

    @property
    def z(self) -> float:
        if self.variance <= 0:
            return 0.0
        return max(0.0, self.excess - 0.5) / math.sqrt(self.variance)


class MissingWatch:
    """Counts over any number of batches; the members of a group belong into one batch.

    Samples that are alone in their group are compared with each other. Groups without a missing
    reward, and those of which all are missing, tell nothing here.
    """

    def __init__(self) -> None:
        self._counts: dict[str, _Counts] = {}
        self._across_prompts = False

    def add(
        self,
        properties: Callable[[int], frozenset[str]],
        lengths: Sequence[float],
        groups: Sequence[str],
        missing: Sequence[bool],
    ) -> None:
        """A batch: length and group of each answer, and whether its reward is missing.

        ``properties`` of the answer at a place are asked for only where they are compared. The
        caller leaves out samples that were not asked for.
        """
        members: dict[str, list[int]] = {}
        for place, group in enumerate(groups):
            members.setdefault(group, []).append(place)
        alone = [places[0] for places in members.values() if len(places) == 1]
        strata = [places for places in members.values() if len(places) > 1] + [alone]
        self._across_prompts |= any(missing[place] for place in alone)
        for places in strata:
            lost = [missing[place] for place in places]
            if 0 < sum(lost) < len(places):
                self._add_stratum(
                    [properties(place) for place in places],
                    [lengths[place] for place in places],
                    lost,
                )

    def _add_stratum(
        self, properties: Sequence[frozenset[str]], lengths: Sequence[float], lost: Sequence[bool]
    ) -> None:
        middle = median(lengths)
        held = {name: [name in one for one in properties] for name in _PROPERTIES}
        held[_LONG] = [length > middle for length in lengths]
        held[_SHORT] = [length < middle for length in lengths]
        total = sum(lost)
        for name, having in held.items():
            both = sum(has and gone for has, gone in zip(having, lost, strict=True))
            counts = self._counts.setdefault(name, _Counts())
            counts.add(len(lost), sum(having), total, both)

    def table(self) -> list[MissingPredictor]:
        """Every property that any answer had, the strongest first."""
        found = [
            MissingPredictor(
                name=name,
                n=counts.n,
                missing=counts.missing,
                n_without=counts.n_without,
                missing_without=counts.missing_without,
                z=counts.z,
                across_prompts=self._across_prompts,
            )
            for name, counts in self._counts.items()
            if counts.n
        ]
        return sorted(found, key=lambda one: -one.z)

    def predictors(self) -> list[MissingPredictor]:
        """The properties that predict a missing reward, the strongest first."""
        return [one for one in self.table() if one.predicts]
