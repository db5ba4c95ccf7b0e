"""The summary of an evaluation: the official score, each grader against it, two policies compared.

Means and correlations over seeds have bootstrap intervals. The seeds are what is resampled: they
are independent of each other, their scores are not. Intervals are expanded percentile intervals
(Hesterberg, The American Statistician 69 (2015), §4.1.2): the percentiles are moved out so that for
normal data they agree with Student's t, without which a bootstrap of few seeds is too narrow.
Everything is drawn from a fixed seed, in the order of the seeds' numbers: the same scores give the
same interval, whatever order they came in.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from adjudge.rewards.spec import RewardSpec
from adjudge.stats import Estimate, mean, mean_and_std
from adjudge.stats.estimates import (
    DEFAULT_RESAMPLES,
    bootstrap_p_value,
    expanded_tail,
    percentile_interval,
    resample_statistics,
)
from adjudge_lab.evaluation.targets import PolicyTarget
from adjudge_lab.rl.rewards import name_judge
from adjudge_lab.rl.runfile import RunFile
from adjudge_lab.statistics import estimate_correlation

SeedScores = Mapping[int, float | None]
"""A number a seed; ``None`` is missing and counts nowhere."""

_MIN_SEEDS = 3
_SMALLEST_FLOAT = 1e-322  # half of less is nothing
_LARGEST_FLOAT = sys.float_info.max
_ROUNDING = 1e-12
"""Sums of the same rewards in another order differ by less."""


class SeedComparison(msgspec.Struct, frozen=True, kw_only=True):
    """A policy against a baseline on the same seeds; ``difference`` is its gain, seed by seed.

    ``model`` and ``baseline`` are their means over the ``difference.n`` seeds that both have. ``p``
    is the smallest level at which the bootstrap interval leaves 0 out (two-sided); ``None`` where
    there is no interval. ``wins``, ``ties`` and ``losses`` are the policy's. Seeds that only one
    has, or neither, are counted in ``only_model``, ``only_baseline`` and ``neither``, and nowhere
    else.
    """

    model: float | None
    baseline: float | None
    difference: Estimate
    p: float | None
    wins: int
    ties: int
    losses: int
    only_model: int
    only_baseline: int
    neither: int


def estimate_mean(scores: SeedScores, *, seed: int = 0) -> Estimate:
    """The mean of the scores that are there.

    No interval below 3 of them, nor where they are all equal.

    >>> estimate_mean({1: 0.0, 2: 1.0, 3: None})
    Estimate(value=0.5, low=None, high=None, n=2, why='fewer than 3 seeds')
    """
    values = [value for _, value in sorted(scores.items()) if value is not None]
    return _mean_with_interval(values, _resampled_means(values, seed))


def compare_seed_scores(
    model: SeedScores, baseline: SeedScores, *, seed: int = 0
) -> SeedComparison:
    """A policy against a baseline by paired bootstrap, over the seeds that both have.

    >>> compare_seed_scores({1: 1.0, 2: 0.5, 4: 1.0}, {1: 0.0, 2: 0.5, 3: 1.0}).wins
    1
    """
    seeds = sorted(model.keys() | baseline.keys())
    pairs = [(model.get(one), baseline.get(one)) for one in seeds]
    both = [(a, b) for a, b in pairs if a is not None and b is not None]
    differences = [_difference(a, b) for a, b in both]
    means = _resampled_means(differences, seed)
    difference = _mean_with_interval(differences, means, "all differences are equal")
    return SeedComparison(
        model=_exact_mean([a for a, _ in both]),
        baseline=_exact_mean([b for _, b in both]),
        difference=difference,
        p=None if difference.low is None else bootstrap_p_value(means, len(differences)),
        wins=sum(d > 0 for d in differences),
        ties=sum(d == 0 for d in differences),
        losses=sum(d < 0 for d in differences),
        only_model=sum(a is not None and b is None for a, b in pairs),
        only_baseline=sum(a is None and b is not None for a, b in pairs),
        neither=sum(a is None and b is None for a, b in pairs),
    )


def estimate_seed_correlation(
    scores: SeedScores, official: SeedScores, *, ranks: bool = False
) -> Estimate:
    """Pearson's r over the seeds that have both numbers; with ``ranks`` Spearman's rho.

    ``None`` below 3 of them, and where one of the two does not vary. No interval where all points
    lie on a line, and where more than 5 % of the resamples have no r. Ties are at mid-rank, and
    resamples are ranked anew.

    >>> estimate_seed_correlation({1: 1.0, 2: 2.0, 3: 3.0}, {1: 2.0, 2: 4.0, 3: 6.0}).value
    1.0
    """
    pairs = [
        (x, y)
        for one, x in sorted(scores.items())
        if x is not None and (y := official.get(one)) is not None
    ]
    n = len(pairs)
    if n < _MIN_SEEDS:
        return Estimate(n=n, why=f"fewer than {_MIN_SEEDS} seeds")
    columns = list(zip(*pairs, strict=True))
    for column, which in zip(columns, ("the score", "the official score"), strict=True):
        if not _difference(max(column), min(column)):
            return Estimate(n=n, why=f"{which} does not vary")
    return estimate_correlation(*columns, ranks=ranks, seed=0)


def _mean_with_interval(
    values: Sequence[float], means: Sequence[float], equal: str = "all seeds score the same"
) -> Estimate:
    n = len(values)
    if n < _MIN_SEEDS:
        return Estimate(_exact_mean(values), n=n, why=f"fewer than {_MIN_SEEDS} seeds")
    if min(values) == max(values):
        return Estimate(values[0], n=n, why=equal)
    if not all(map(math.isfinite, means)):
        return Estimate(_exact_mean(values), n=n, why="the scores are too large to add")
    found = percentile_interval(means, _exact_mean(values), tail=expanded_tail(n))
    return msgspec.structs.replace(found, n=n)


def _difference(one: float, other: float) -> float:
    """``one`` less ``other``; 0 where only rounding tells them apart."""
    if math.isclose(one, other, rel_tol=_ROUNDING, abs_tol=_SMALLEST_FLOAT):
        return 0.0
    return max(-_LARGEST_FLOAT, min(_LARGEST_FLOAT, one - other))


def _exact_mean(values: Sequence[float]) -> float | None:
    """The mean, however large the values; ``None`` of none."""
    return mean_and_std(values)[0] if values else None


def _resampled_means(values: Sequence[float], seed: int) -> list[float]:
    n = len(values)
    if n < _MIN_SEEDS:
        return []
    rows = [(value,) for value in values]
    return resample_statistics([rows], lambda sums: sums[0] / n, resamples=_resamples(n), seed=seed)


def _resamples(n: int) -> int:
    """10,000, fewer where that would draw more than two million seeds, at least 2,000."""
    return max(DEFAULT_RESAMPLES, min(10_000, 2_000_000 // n))


OFFICIAL_SCORE = "official"
REWARD_SCORE = "reward"
_ENVIRONMENT = "environment"

_EpisodeRows = Sequence[Mapping[str, Any]]


def summarise_evaluation(
    run: RunFile,
    spec: RewardSpec,
    targets: Sequence[PolicyTarget],
    rows: Sequence[_EpisodeRows],
    spent: Sequence[Mapping[str, int]],
    *,
    judged: bool,
) -> dict[str, Any]:
    """The summary as plain data; ``rows[i]`` are those of ``targets[i]``, one a seed.

    ``scores`` of a model has its graders and, where judges were asked, the reward. A second model
    is the baseline that the first is compared with.
    """
    own = list_judging_graders(run, spec)
    names = [*own, REWARD_SCORE] if judged else own
    models = [
        _model_entry(target, found, names, used)
        for target, found, used in zip(targets, rows, spent, strict=True)
    ]
    asks = {entry.name: spec.asks_judge(entry) for entry in spec.graders}
    weights = {entry.name: entry.weight_at(run.training.steps) for entry in spec.graders}
    return {
        "task": run.env_name,
        "seeds": len(rows[0]),
        "judges": judged,
        "judge": name_judge(run) if judged else None,
        "combine_mode": run.judge.combine_mode if judged else None,
        "graders": [
            {"name": name, "weight": weights[name], "asks_judge": asks[name]} for name in own
        ],
        "models": models,
        "comparison": _compare_models(rows, names) if len(rows) == 2 else None,
    }


def list_judging_graders(run: RunFile, spec: RewardSpec) -> list[str]:
    """The graders that say something of their own: not those that are the official score."""
    official = {run.rollout.env_grader, None if run.judge.enabled else _ENVIRONMENT}
    return [entry.name for entry in spec.graders if entry.name not in official]


def official_scores(rows: _EpisodeRows) -> SeedScores:
    """The official score of each seed."""
    return {row["seed"]: row["env_reward"] for row in rows}


def grader_scores(rows: _EpisodeRows, name: str) -> SeedScores:
    """A grader's raw score of each seed, or the reward."""
    if name == REWARD_SCORE:
        return {row["seed"]: row["reward"] for row in rows}
    return {row["seed"]: row["reward_info"].get(f"{name}_score") for row in rows}


def _model_entry(
    target: PolicyTarget, rows: _EpisodeRows, names: Sequence[str], spent: Mapping[str, int]
) -> dict[str, Any]:
    official = official_scores(rows)
    whole = [row for row in rows if row["error"] is None]
    return {
        "name": target.name,
        "kind": target.kind,
        "place": target.identity,
        "official": msgspec.to_builtins(estimate_mean(official)),
        "not_played": _count_kinds(row["error"]["kind"] for row in rows if row["error"]),
        "no_official": sum(row["env_reward"] is None for row in whole),
        "turns": mean([float(row["turns"]) for row in whole]),
        "scores": {name: _grader_entry(rows, name, official) for name in names},
        "policy": dict(spent),
        "judges": _judge_usage(rows),
    }


def _grader_entry(rows: _EpisodeRows, name: str, official: SeedScores) -> dict[str, Any]:
    """A grader's mean, and how it goes with the official score; missing by kind."""
    scores = grader_scores(rows, name)
    gone = (
        _failure_kind(row, name)
        for row in rows
        if row["error"] is None and scores[row["seed"]] is None
    )
    return {
        "mean": msgspec.to_builtins(estimate_mean(scores)),
        "pearson": msgspec.to_builtins(estimate_seed_correlation(scores, official)),
        "spearman": msgspec.to_builtins(estimate_seed_correlation(scores, official, ranks=True)),
        "missing": _count_kinds(gone),
    }


def _failure_kind(row: Mapping[str, Any], name: str) -> str:
    """The kind of failure because of which a whole episode has no score of this name."""
    if name == REWARD_SCORE:
        missing = row["missing"]
        return str(missing["kind"]) if missing else "unknown"
    details = row["details"] or {}
    if name in details:
        return str(details[name].get("kind", "unknown"))
    events = details.get("events", {})
    turns = [events] if isinstance(events, Mapping) else [turn.get(name, {}) for turn in events]
    return next((str(turn["kind"]) for turn in turns if "kind" in turn), "unknown")


def _compare_models(rows: Sequence[_EpisodeRows], names: Sequence[str]) -> dict[str, Any]:
    """The first policy against the second, by official score, grader and reward."""
    model, baseline = rows
    found = {OFFICIAL_SCORE: compare_seed_scores(official_scores(model), official_scores(baseline))}
    for name in names:
        found[name] = compare_seed_scores(grader_scores(model, name), grader_scores(baseline, name))
    return {name: msgspec.to_builtins(one) for name, one in found.items()}


def _count_kinds(kinds: Any) -> dict[str, int]:
    return dict(Counter(kinds).most_common())


def _judge_usage(rows: _EpisodeRows) -> dict[str, Any]:
    """What the judges' replies consumed; a cost where any of them has one."""
    used = [row["usage"] for row in rows if row["usage"]]
    costs = [one["cost_usd"] for one in used if one.get("cost_usd") is not None]
    return {
        "input_tokens": sum(one["input_tokens"] for one in used),
        "output_tokens": sum(one["output_tokens"] for one in used),
        "cost_usd": sum(costs) if costs else None,
    }
