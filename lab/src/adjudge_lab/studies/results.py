"""The results of a study's arms: scores by checkpoint and by prompt, and the tidy table.

Scores come as changes from the first policy on, with the unit they are counted in. The tidy table
has a row per checkpoint, scorer and measure.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, TypeGuard

import msgspec

from adjudge.files import atomic_write
from adjudge.text import encode_json

FactorLevel = str | float | bool
"""A level of a factor, as the study file declares it."""


class AnswerScores(msgspec.Struct, frozen=True):
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


class CheckpointResult(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint: the held-out answers of the policy after ``step`` updates.

    ``kl``: from the policy to the one the arm began with, in nats an answer, an estimate that may
    fall below 0 by chance. ``scores``: by scorer, all judges of the study and its gold. ``prompts``
    tells which answers are to the same prompt. ``features``: means over the answers (``chars``,
    ``words``, ``markdown``, …). ``unanswered``: episodes that failed, in no mean of these.
    """

    step: int
    kl: float
    scores: dict[str, AnswerScores]
    prompts: list[str]
    features: dict[str, float]
    unanswered: int = 0

    @property
    def distance(self) -> float:
        """√KL, 0 where the estimate is below 0."""
        return math.sqrt(max(self.kl, 0.0))


class ArmResult(msgspec.Struct, frozen=True, kw_only=True):
    """One training run: against ``judge`` (the proxy), with ``mitigation``, from ``seed``.

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
    levels: dict[str, FactorLevel]
    bias: dict[str, float]
    points: list[CheckpointResult]
    curves: dict[str, list[float | None]]
    missing: dict[str, int]
    rewards: int
    calls: list[dict[str, Any]]
    seconds: float

    @property
    def cell(self) -> tuple[str, str]:
        """What arms of different seeds have in common."""
        return self.judge, self.mitigation


class BestOfScores(msgspec.Struct, frozen=True, kw_only=True):
    """Many answers of one seed's first policy to each prompt, scored by everybody.

    ``prompts``: the prompt of each answer; ``scores``: by scorer, a score an answer.
    """

    seed: int
    prompts: list[str]
    scores: dict[str, AnswerScores]


class StudyResult(msgspec.Struct, frozen=True, kw_only=True):
    """All that a study measured. ``gold``: the scorer that says what is really wanted.

    ``judges``: name to its levels, bias and role: ``training``, ``held_out`` (never trained on) or
    ``gold``. ``failed``: arms that did not end, with the reason.
    """

    gold: str
    judges: dict[str, dict[str, object]]
    arms: list[ArmResult]
    best_of: list[BestOfScores]
    failed: dict[str, str] = {}

    def cells(self) -> Iterator[tuple[tuple[str, str], list[ArmResult]]]:
        """Arms that differ in nothing but the seed, in the order of their first."""
        found: dict[tuple[str, str], list[ArmResult]] = {}
        for arm in self.arms:
            found.setdefault(arm.cell, []).append(arm)
        yield from found.items()


NO_SCORE_UNIT = "the first policy's answers do not differ in it"

_MAX_SCORE_SIZE = 1e100


def is_known(value: float | None) -> TypeGuard[float]:
    """Whether a score is there and a number to reckon with.

    What is not finite, or beyond 1e100 in size (its square has no place), is missing, as ``None``.
    """
    return value is not None and abs(value) <= _MAX_SCORE_SIZE  # no NaN is


def mean_score(point: CheckpointResult, scorer: str) -> float | None:
    """The mean over the answers with a known score; ``None`` without such an answer."""
    found = point.scores.get(scorer)
    values = [] if found is None else [value for value in found.values if is_known(value)]
    return math.fsum(values) / len(values) if values else None


def mean_by_prompt(
    prompts: Sequence[str], columns: Sequence[Sequence[float | None]]
) -> dict[str, tuple[float, ...]]:
    """The mean of each column by prompt, over the answers that have a value in all of them."""
    found: dict[str, list[tuple[float, ...]]] = {}
    for prompt, row in zip(prompts, zip(*columns, strict=True), strict=True):
        there = [value for value in row if is_known(value)]
        if len(there) == len(row):
            found.setdefault(prompt, []).append(tuple(there))
    return {
        prompt: tuple(math.fsum(of) / len(rows) for of in zip(*rows, strict=True))
        for prompt, rows in found.items()
    }


def scores_by_prompt(
    point: CheckpointResult, scorers: Sequence[str]
) -> dict[str, tuple[float, ...]]:
    """Means by prompt of several scorers over the answers that all of them scored."""
    found = [point.scores.get(name) for name in scorers]
    there = [one.values for one in found if one is not None]
    return mean_by_prompt(point.prompts, there) if len(there) == len(found) else {}


def change_by_prompt(
    first: CheckpointResult, last: CheckpointResult, scorers: Sequence[str]
) -> dict[str, tuple[float, ...]]:
    """By prompt, ``last`` less ``first`` for each scorer; prompts that either lacks are left out.

    With several scorers only answers that all of them scored count, in both checkpoints.
    """
    before, after = scores_by_prompt(first, scorers), scores_by_prompt(last, scorers)
    return {
        prompt: tuple(new - old for new, old in zip(values, before[prompt], strict=True))
        for prompt, values in after.items()
        if prompt in before
    }


def sort_checkpoints(arm: ArmResult) -> list[CheckpointResult]:
    """The arm's checkpoints by step."""
    return sorted(arm.points, key=lambda point: point.step)


def end_checkpoints(arm: ArmResult) -> tuple[CheckpointResult, CheckpointResult] | None:
    """The checkpoint at step 0 and the last one; ``None`` where either was not measured."""
    points = sort_checkpoints(arm)
    if len(points) < 2 or points[0].step != 0:
        return None
    return points[0], points[-1]


def peak_step(arms: Sequence[ArmResult], scorer: str) -> int | None:
    """The step with the highest mean over arms, of those at which all arms have one.

    The first of equals. A maximum of noisy numbers is a little too high on average.
    """
    means: dict[int, list[float]] = {}
    for arm in arms:
        for point in arm.points:
            mean = mean_score(point, scorer)
            if mean is not None:
                means.setdefault(point.step, []).append(mean)
    shared = {step: math.fsum(of) for step, of in means.items() if len(of) == len(arms)}
    return min(shared, key=lambda step: (-shared[step], step)) if shared else None


def list_scorers(result: StudyResult) -> list[str]:
    """All judges in the study's order, the gold last."""
    return [name for name in result.judges if name != result.gold] + [result.gold]


def observed_score_range(result: StudyResult, scorer: str) -> float:
    """Highest less lowest score that ``scorer`` gave to any checkpoint's answer; 0 without one."""
    values = [
        value
        for arm in result.arms
        for point in arm.points
        if (scored := point.scores.get(scorer)) is not None
        for value in scored.values
        if is_known(value)
    ]
    return max(values) - min(values) if values else 0.0


def score_units(result: StudyResult) -> dict[str, float]:
    """By scorer, the SD of its scores over the first policies' answers, pooled within seeds.

    Of the many answers of ``best_of`` where a seed has them, else of the first arm of the seed
    that has two scores at step 0. A scorer that does not vary there, or said nothing, has none.
    """
    found = {}
    for name in list_scorers(result):
        squares = freedom = largest = 0.0
        for values in _first_policy_scores(result, name):
            middle = math.fsum(values) / len(values)
            squares += math.fsum((value - middle) ** 2 for value in values)
            freedom += len(values) - 1
            largest = max(largest, *map(abs, values))
        if freedom and squares > (1e-12 * largest) ** 2 * freedom:
            found[name] = math.sqrt(squares / freedom)
    return found


def _first_policy_scores(result: StudyResult, scorer: str) -> Iterator[list[float]]:
    """The scores of each seed's first policy, two at least."""
    many = {one.seed: one.scores for one in result.best_of}
    seeds = sorted({*many, *(arm.seed for arm in result.arms)})
    for seed in seeds:
        sources: list[Mapping[str, AnswerScores]] = [many[seed]] if seed in many else []
        for arm in result.arms:
            if arm.seed == seed:
                sources += [point.scores for point in arm.points if point.step == 0]
        said = (scores[scorer].values for scores in sources if scorer in scores)
        known = ([value for value in values if is_known(value)] for values in said)
        yield from islice((values for values in known if len(values) > 1), 1)


def iter_study_rows(result: StudyResult) -> Iterator[dict[str, Any]]:
    """Arm by arm and step by step: ``score`` of every scorer, then each feature.

    ``levels`` is JSON. ``role``: ``proxy`` (what the arm was trained on), ``member`` (part of it,
    where that is a panel), ``gold``, or ``held_out``: any judge that this arm was not trained on.
    ``value`` is null where no answer has a score; ``missing`` counts the answers without one.
    """
    for arm in result.arms:
        levels = msgspec.json.encode(arm.levels, order="sorted").decode()
        same = {
            "arm": arm.name,
            "judge": arm.judge,
            "mitigation": arm.mitigation,
            "levels": levels,
            "seed": arm.seed,
        }
        for point in arm.points:
            for row in _checkpoint_rows(point, _scorer_roles(arm, result)):
                yield {**same, "step": point.step, "kl": point.kl, **row}


def _scorer_roles(arm: ArmResult, result: StudyResult) -> dict[str, str]:
    """Of the scorers that are not held out from ``arm``."""
    members = msgspec.convert(result.judges.get(arm.judge, {}).get("members", []), list[str])
    return {**dict.fromkeys(members, "member"), arm.judge: "proxy", result.gold: "gold"}


def _checkpoint_rows(
    point: CheckpointResult, roles: Mapping[str, str]
) -> Iterator[Mapping[str, Any]]:
    answers = len(point.prompts)
    for scorer, scored in point.scores.items():
        yield {
            "measure": "score",
            "scorer": scorer,
            "role": roles.get(scorer, "held_out"),
            "value": scored.mean,
            "answers": answers,
            "missing": sum(value is None for value in scored.values),
        }
    for feature, value in point.features.items():
        yield {
            "measure": feature,
            "scorer": None,
            "role": None,
            "value": value,
            "answers": answers,
            "missing": point.unanswered,
        }


def write_study_rows(folder: Path, result: StudyResult) -> Path:
    """Write ``tidy.jsonl``; the path written. Readers see the old file or the new one."""
    rows = (encode_json(row) + b"\n" for row in iter_study_rows(result))
    return atomic_write(folder / "tidy.jsonl", rows)
