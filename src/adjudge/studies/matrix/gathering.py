"""From the folder of a study whose arms are trained and scored to what they came to."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from adjudge.errors import ErrorKind, RunFolderError
from adjudge.studies.matrix.arms import Arm
from adjudge.studies.matrix.results import ArmResult, BestOf, Point, Scored, StudyResult
from adjudge.studies.matrix.scoring import Answer, Source, read_answers, read_scores
from adjudge.studies.swap.features import features_of
from adjudge.training.state import read_rows

__all__ = ["arm_source", "best_of_source", "gather_result"]

_OF_CURVES = ("reward", "length", "kl", "entropy", "judge/missing_frac", "judge/zero_std_frac")


class _Missing(msgspec.Struct):
    kind: str


class _Rollout(msgspec.Struct):
    missing: _Missing | None = None


def arm_source(folder: Path, arm: Arm) -> Source:
    """The answers of an arm's evaluations."""
    return Source(f"arms/{arm.name}", folder / "arms" / arm.name / "evaluation_rollouts.jsonl")


def best_of_source(folder: Path, seed: int) -> Source:
    """The many answers of a seed's first policy."""
    return Source(f"best_of_n/seed-{seed}", folder / "best_of_n" / f"seed-{seed}.jsonl")


def gather_result(
    folder: Path,
    arms: Sequence[Arm],
    judges: Mapping[str, dict[str, object]],
    gold: str,
    *,
    best_of_seeds: Iterable[int],
    failed: Mapping[str, str],
    unscored: Collection[str] = (),
) -> StudyResult:
    """Read what the arms, the scorers and the sampling left in ``folder``.

    ``judges`` are all scorers; what those of ``unscored`` have not said is missing. Raises
    :class:`~adjudge.errors.RunFolderError` where something else is not there.
    """
    scores = _Scores(folder, judges, unscored)
    return StudyResult(
        gold=gold,
        judges=dict(judges),
        arms=[_arm(folder, arm, scores) for arm in arms if arm.name not in failed],
        best_of=[_best_of(folder, seed, scores) for seed in best_of_seeds],
        failed=dict(failed),
    )


class _Scores:
    """What each scorer said."""

    def __init__(self, folder: Path, names: Iterable[str], unscored: Collection[str]) -> None:
        self._unscored = unscored
        self._said = {name: read_scores(folder / "scores" / f"{name}.jsonl") for name in names}

    def of(self, source: Source, step: int, answers: int) -> dict[str, Scored]:
        """By scorer."""
        found = {}
        for name, said in self._said.items():
            scored = said.get((source.name, step))
            if scored is None or len(scored.values) != answers:
                if name not in self._unscored:
                    raise RunFolderError(f"{source.path}: step {step} was not scored by {name}")
                kind = str(ErrorKind.CIRCUIT_OPEN)  # nobody was asked any more
                scored = Scored([None] * answers, {kind: answers})
            found[name] = scored
        return found


def _arm(folder: Path, arm: Arm, scores: _Scores) -> ArmResult:
    path = folder / "arms" / arm.name
    summary = msgspec.json.decode((path / "summary.json").read_bytes(), type=dict[str, Any])
    source = arm_source(folder, arm)
    rollouts = [
        msgspec.json.decode(line, type=_Rollout)
        for line in (path / "rollouts.jsonl").read_bytes().splitlines()
    ]
    kinds = Counter(one.missing.kind for one in rollouts if one.missing is not None)
    return ArmResult(
        name=arm.name,
        judge=arm.judge,
        mitigation=arm.mitigation,
        seed=arm.seed,
        levels=dict(arm.levels),
        bias=dict(arm.bias),
        points=[
            _point(source, step, answers, scores)
            for step, answers in sorted(read_answers(source).items())
        ],
        curves=_curves(read_rows(path / "metrics.jsonl")),
        missing=dict(kinds),
        rewards=len(rollouts),
        calls=summary["endpoints"],
        seconds=float(summary["seconds"]["total"]),
    )


def _point(source: Source, step: int, answers: Sequence[Answer], scores: _Scores) -> Point:
    kls = [one.row.get("kl") for one in answers]
    known = [float(kl) for kl in kls if kl is not None]
    if not known:
        raise RunFolderError(f"{source.path}: step {step} has no kl: not an arm of a study")
    return Point(
        step=step,
        kl=math.fsum(known) / len(known),
        scores=scores.of(source, step, len(answers)),
        prompts=[one.sample.prompt or "" for one in answers],
        features=_features([one.sample.response or "" for one in answers if one.error is None]),
        unanswered=sum(one.error is not None for one in answers),
    )


def _features(texts: Sequence[str]) -> dict[str, float]:
    """Means over the answers: characters, words, marks of format; of no answers there are none."""
    if not texts:
        return {}
    counts = [features_of(text) for text in texts]
    found = {
        "chars": [one.length for one in counts],
        "words": [len(text.split()) for text in texts],
        "markdown": [one.markdown for one in counts],
        "lists": [one.lists for one in counts],
    }
    return {name: math.fsum(values) / len(values) for name, values in found.items()}


def _curves(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[float | None]]:
    """What each step's row says; the means of graders under their own names."""
    names = {name: name for row in rows for name in row if name in _OF_CURVES}
    for row in rows:
        for name in row:
            if name.startswith("judge/") and name.endswith("_score_mean"):
                # A grader that is called as one of ours is not to take its place.
                names.setdefault(name.removeprefix("judge/").removesuffix("_score_mean"), name)
    return {ours: [row.get(theirs) for row in rows] for ours, theirs in names.items()}


def _best_of(folder: Path, seed: int, scores: _Scores) -> BestOf:
    source = best_of_source(folder, seed)
    (answers,) = read_answers(source).values()
    return BestOf(
        seed=seed,
        prompts=[one.sample.prompt or "" for one in answers],
        scores=scores.of(source, 0, len(answers)),
    )
