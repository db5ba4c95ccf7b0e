"""The answers and scores that a study's folder holds, and its results gathered from them.

Answers are read by step; results are gathered once arms are trained and scored.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from adjudge.errors import ErrorKind, RunFolderError
from adjudge.files import iter_lines, iter_rows
from adjudge.intake.rollouts import first_turn, read_conversation
from adjudge.types import Sample
from adjudge_lab.studies.cells import Arm
from adjudge_lab.studies.parametric_judge import compute_features
from adjudge_lab.studies.results import (
    AnswerScores,
    ArmResult,
    BestOfScores,
    CheckpointResult,
    StudyResult,
)

_NOT_CONTENT = frozenset({"rollout", "prompt", "response", "messages", "finish_reason"})


class AnswerSource(NamedTuple):
    """Answers in a file: ``name`` is what scores call them by."""

    name: str
    path: Path


class SampledAnswer(NamedTuple):
    """One answer: its step, the seed of its prompt, its row, and why it is missing."""

    step: int
    seed: int
    sample: Sample
    error: str | None
    row: Mapping[str, Any]


class ScoresLine(msgspec.Struct):
    """One arm's scores of one answer file's step."""

    source: str
    step: int
    values: list[float | None]
    missing: dict[str, int]
    answers: str = ""  # what was scored, by its content


class ScoresHeader(msgspec.Struct):
    """The first line of a scores file: the spec that gave them."""

    spec: str


def read_answers_by_step(source: AnswerSource) -> dict[int, list[SampledAnswer]]:
    """The answers of a file by step, in the order of its rows."""
    found: dict[int, list[SampledAnswer]] = {}
    for row in iter_rows(source.path, dict[str, Any]):
        answer = _parse_answer(row)
        found.setdefault(answer.step, []).append(answer)
    return found


def read_scores_by_step(path: Path) -> dict[tuple[str, int], AnswerScores]:
    """What a judge said, by source and step."""
    return {
        (line.source, line.step): AnswerScores(line.values, line.missing)
        for line in read_score_lines(path, None)
    }


def _parse_answer(row: Mapping[str, Any]) -> SampledAnswer:
    missing, columns = row.get("error"), row.get("columns") or {}
    if not row["messages"]:  # an episode that failed; an evaluation says why under "missing"
        missing = missing or (row.get("missing") or {}).get("kind") or str(ErrorKind.BUG)
    shown = read_conversation(row["messages"], first_turn(row["messages"]))
    extra = {name: own for name, own in columns.items() if name not in _NOT_CONTENT}
    sample = Sample(0, 0, shown.prompt, shown.response or "", row["messages"], extra)
    return SampledAnswer(int(row["step"]), int(row["seed"]), sample, missing, row)


def read_score_lines(path: Path, spec: str | None) -> Iterator[ScoresLine]:
    """The whole lines of a scores file; what was torn or damaged is scored again."""
    head = next(iter_lines(path), None)
    if (
        head is not None
        and spec is not None
        and msgspec.json.decode(head[1], type=ScoresHeader).spec != spec
    ):
        raise RunFolderError(
            f"{path}: holds scores of another reward than the study's now. Delete it to score all "
            "answers again."
        )
    return iter_rows(path, ScoresLine, first=2, damaged=[])


_CURVE_METRICS = ("reward", "length", "kl", "entropy", "judge/missing_frac", "judge/zero_std_frac")


class _MissingReward(msgspec.Struct):
    kind: str


class _RolloutRow(msgspec.Struct):
    missing: _MissingReward | None = None


def arm_source(folder: Path, arm: Arm) -> AnswerSource:
    """The answers of an arm's evaluations."""
    return AnswerSource(
        f"arms/{arm.name}", folder / "arms" / arm.name / "evaluation_rollouts.jsonl"
    )


def best_of_source(folder: Path, seed: int) -> AnswerSource:
    """The many answers of a seed's first policy."""
    return AnswerSource(f"best_of_n/seed-{seed}", folder / "best_of_n" / f"seed-{seed}.jsonl")


def gather_study_result(
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
    scores = _ScoresByScorer(folder, judges, unscored)
    return StudyResult(
        gold=gold,
        judges=dict(judges),
        arms=[_gather_arm(folder, arm, scores) for arm in arms if arm.name not in failed],
        best_of=[_gather_best_of(folder, seed, scores) for seed in best_of_seeds],
        failed=dict(failed),
    )


class _ScoresByScorer:
    """What each scorer said."""

    def __init__(self, folder: Path, names: Iterable[str], unscored: Collection[str]) -> None:
        self._unscored = unscored
        self._said = {
            name: read_scores_by_step(folder / "scores" / f"{name}.jsonl") for name in names
        }

    def of(self, source: AnswerSource, step: int, answers: int) -> dict[str, AnswerScores]:
        """By scorer."""
        found = {}
        for name, said in self._said.items():
            scored = said.get((source.name, step))
            if scored is None or len(scored.values) != answers:
                if name not in self._unscored:
                    raise RunFolderError(f"{source.path}: step {step} was not scored by {name}")
                kind = str(ErrorKind.CIRCUIT_OPEN)  # nobody was asked any more
                scored = AnswerScores([None] * answers, {kind: answers})
            found[name] = scored
        return found


def _gather_arm(folder: Path, arm: Arm, scores: _ScoresByScorer) -> ArmResult:
    path = folder / "arms" / arm.name
    summary = msgspec.json.decode((path / "summary.json").read_bytes(), type=dict[str, Any])
    source = arm_source(folder, arm)
    rollouts = [
        msgspec.json.decode(line, type=_RolloutRow)
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
            _gather_checkpoint(source, step, answers, scores)
            for step, answers in sorted(read_answers_by_step(source).items())
        ],
        curves=_training_curves(list(iter_rows(path / "metrics.jsonl", dict[str, Any]))),
        missing=dict(kinds),
        rewards=len(rollouts),
        calls=summary["spending"]["endpoints"],  # of all invocations
        seconds=float(summary["seconds"]["total"]),
    )


def _gather_checkpoint(
    source: AnswerSource, step: int, answers: Sequence[SampledAnswer], scores: _ScoresByScorer
) -> CheckpointResult:
    kls = [one.row.get("kl") for one in answers]
    known = [float(kl) for kl in kls if kl is not None]
    if not known:
        raise RunFolderError(
            f"{source.path}: step {step} has no kl, so it is not an arm of a study"
        )
    return CheckpointResult(
        step=step,
        kl=math.fsum(known) / len(known),
        scores=scores.of(source, step, len(answers)),
        prompts=[one.sample.prompt or "" for one in answers],
        features=_mean_features(
            [one.sample.response or "" for one in answers if one.error is None]
        ),
        unanswered=sum(one.error is not None for one in answers),
    )


def _mean_features(texts: Sequence[str]) -> dict[str, float]:
    """Means over the answers: characters, words, marks of format; of no answers there are none."""
    if not texts:
        return {}
    counts = [compute_features(text) for text in texts]
    found = {
        "chars": [one.length for one in counts],
        "words": [len(text.split()) for text in texts],
        "markdown": [one.markdown for one in counts],
        "lists": [one.lists for one in counts],
    }
    return {name: math.fsum(values) / len(values) for name, values in found.items()}


def _training_curves(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[float | None]]:
    """What each step's row says; the means of graders under their own names."""
    names = {name: name for row in rows for name in row if name in _CURVE_METRICS}
    for row in rows:
        for name in row:
            if name.startswith("judge/") and name.endswith("_score_mean"):
                # A grader that is called as one of ours is not to take its place.
                names.setdefault(name.removeprefix("judge/").removesuffix("_score_mean"), name)
    return {ours: [row.get(theirs) for row in rows] for ours, theirs in names.items()}


def _gather_best_of(folder: Path, seed: int, scores: _ScoresByScorer) -> BestOfScores:
    source = best_of_source(folder, seed)
    (answers,) = read_answers_by_step(source).values()
    return BestOfScores(
        seed=seed,
        prompts=[one.sample.prompt or "" for one in answers],
        scores=scores.of(source, 0, len(answers)),
    )
