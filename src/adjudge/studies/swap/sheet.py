"""What a study keeps: a line per sample, and what each judge made of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from adjudge.rewards.groups import group_step
from adjudge.studies.swap.features import Features

__all__ = ["Judgements", "Line", "Marks", "Sheet", "marks_of"]

Marks = dict[str, float | None]
"""A rubric's marks of one sample: ``GRADER: CRITERION`` to true, false, a share, or null."""


@dataclass(frozen=True, slots=True)
class Line:
    """A sample without its texts.

    ``pair`` names one side of a benchmark's pair, with a digest of what was shown there.
    """

    index: int
    group: str
    step: int | None
    env_reward: float | None
    features: Features
    pair: tuple[str, str, str] | None = None
    digest: str = ""


@dataclass
class Judgements:
    """One judge's rewards, in the order of the samples.

    ``rewards``: a number, or ``None``; then ``kinds`` says which kind of failure. ``marks``: what a
    rubric grader said of each criterion, where there is one. ``calls``: what it cost to ask.
    """

    name: str
    kind: str
    source: str
    rewards: list[float | None]
    kinds: list[str | None]
    marks: list[Marks] = field(default_factory=list)
    calls: Mapping[str, Any] | None = None

    @property
    def missing(self) -> dict[str, int]:
        """How many rewards are missing, by kind of failure."""
        return dict(Counter(kind for kind in self.kinds if kind is not None).most_common())


@dataclass
class Sheet:
    """The samples of a study, and the judges' word on them."""

    lines: list[Line]
    judges: list[Judgements] = field(default_factory=list)

    @property
    def members(self) -> list[list[int]]:
        """The places of each group's samples, groups in the order of their first sample."""
        found: dict[str, list[int]] = {}
        for place, line in enumerate(self.lines):
            found.setdefault(line.group, []).append(place)
        return list(found.values())

    @property
    def pairs(self) -> list[tuple[Judgements, Judgements]]:
        """Every two judges, once."""
        return [(a, b) for at, a in enumerate(self.judges) for b in self.judges[at + 1 :]]

    def snap_ties(self) -> None:
        """Make rewards of a judge equal that differ, inside a group, by rounding alone."""
        for judge in self.judges:
            for group in self.members:
                rewards = group_step([judge.rewards[at] for at in group], "none")
                for at, reward in zip(group, rewards, strict=True):
                    judge.rewards[at] = reward


def marks_of(details: Any, graders: Sequence[str] | None = None) -> Marks:
    """The marks of criteria in a result's ``details``; a failed rubric's partial marks count too.

    >>> marks_of({"style": {"score": 1.0, "metadata": {"criteria": {"c1": {"met": True}}}}})
    {'style: c1': True}
    """
    marks: Marks = {}
    if not isinstance(details, Mapping):
        return marks
    for grader, detail in details.items():
        if graders is not None and grader not in graders:
            continue
        metadata = detail.get("metadata") if isinstance(detail, Mapping) else None
        criteria = metadata.get("criteria") if isinstance(metadata, Mapping) else None
        if not isinstance(criteria, Mapping):
            continue
        for name, mark in criteria.items():
            if isinstance(mark, Mapping) and isinstance(
                mark.get("met", ...), bool | int | float | None
            ):
                marks[f"{grader}: {name}"] = mark["met"]
    return marks
