"""What the arms of a study came to, as its analysis and its report read them."""

from __future__ import annotations

import math
from collections.abc import Iterator

import msgspec

__all__ = ["ArmResult", "BestOf", "Level", "Point", "Scored", "StudyResult"]

Level = str | float | bool
"""A level of a factor, as the study file declares it."""


class Scored(msgspec.Struct, frozen=True):
    """What one scorer said of a checkpoint's answers.

    ``values``: a score an answer, in the answers' order, ``None`` where it is missing; ``missing``
    counts these by kind.
    """

    values: list[float | None]
    missing: dict[str, int] = {}

    @property
    def mean(self) -> float | None:
        """Of the answers that have a score; ``None`` without one."""
        there = [value for value in self.values if value is not None]
        return math.fsum(there) / len(there) if there else None


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint: the held-out answers of the policy after ``step`` updates.

    ``kl``: from the policy to the one the arm began with, in nats an answer, an estimate that may
    fall below 0 by chance. ``scores``: by scorer, all judges of the study and its gold. ``prompts``
    tells which answers are to the same prompt. ``features``: means over the answers (``chars``,
    ``words``, ``markdown``, …). ``unanswered``: episodes that failed, in no mean of these.
    """

    step: int
    kl: float
    scores: dict[str, Scored]
    prompts: list[str]
    features: dict[str, float]
    unanswered: int = 0

    @property
    def distance(self) -> float:
        """√KL, 0 where the estimate is below 0."""
        return math.sqrt(max(self.kl, 0.0))

    def mean(self, scorer: str) -> float | None:
        """The mean score of ``scorer``; ``None`` where it said nothing."""
        found = self.scores.get(scorer)
        return None if found is None else found.mean


class ArmResult(msgspec.Struct, frozen=True, kw_only=True):
    """One training run: against ``judge``, with ``mitigation``, from ``seed``.

    ``levels``: what the study file declares of the judge (family, size, …) and ``mitigation``;
    ``bias``: the judge's dials, by name, where they are known. ``points``: from step 0 on.
    ``curves``: numbers of each training step by metric, ``None`` where a step has none; the
    trainer's reward is ``reward``, a grader's mean is under its name. ``calls``: the judge's calls
    as ``summary.json`` of a run has them; ``missing``: rewards that were missing in training, by
    kind; ``rewards``: how many rollouts there were. ``seconds``: what it took.
    """

    name: str
    judge: str
    mitigation: str
    seed: int
    levels: dict[str, Level]
    bias: dict[str, float]
    points: list[Point]
    curves: dict[str, list[float | None]]
    missing: dict[str, int]
    rewards: int
    calls: list[dict[str, object]]
    seconds: float

    @property
    def proxy(self) -> str:
        """The scorer that this arm was trained on, without the mitigation."""
        return self.judge

    @property
    def cell(self) -> tuple[str, str]:
        """What arms of different seeds have in common."""
        return self.judge, self.mitigation


class BestOf(msgspec.Struct, frozen=True, kw_only=True):
    """Many answers of one seed's first policy to each prompt, scored by everybody.

    ``prompts``: the prompt of each answer; ``scores``: by scorer, a score an answer.
    """

    seed: int
    prompts: list[str]
    scores: dict[str, Scored]


class StudyResult(msgspec.Struct, frozen=True, kw_only=True):
    """All that a study measured. ``gold``: the scorer that says what is really wanted.

    ``judges``: name to its levels, bias and role: ``training``, ``held_out`` (never trained on) or
    ``gold``. ``failed``: arms that did not end, with the reason.
    """

    gold: str
    judges: dict[str, dict[str, object]]
    arms: list[ArmResult]
    best_of: list[BestOf]
    failed: dict[str, str] = {}

    def cells(self) -> Iterator[tuple[tuple[str, str], list[ArmResult]]]:
        """Arms that differ in nothing but the seed, in the order of their first."""
        found: dict[tuple[str, str], list[ArmResult]] = {}
        for arm in self.arms:
            found.setdefault(arm.cell, []).append(arm)
        yield from found.items()
