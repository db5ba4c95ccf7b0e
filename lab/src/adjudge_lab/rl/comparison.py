"""What a policy learned, on held-out prompts: after against before, and against fixed answers.

All comparisons are paired by prompt, and prompts are what is resampled.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from adjudge.files import iter_rows
from adjudge.stats import Estimate, mean
from adjudge.stats.estimates import bootstrap, ratio
from adjudge_lab.statistics import estimate_correlation

ALL_PROMPTS = "all"
"""The name of all held-out prompts together."""

BASELINES_FILE = "baselines.jsonl"

_MIN_PROMPTS = 3


class FixedScore(msgspec.Struct, frozen=True, kw_only=True):
    """A row of ``baselines.jsonl``: what the fixed answer ``name`` got on a held-out prompt.

    ``reward`` is ``None`` where it is missing.
    """

    name: str
    seed: int
    reward: float | None


class HeldOutScores(msgspec.Struct, frozen=True, kw_only=True):
    """The rewards of a run on one held-out prompt; what is missing is ``None``, or is not there.

    ``seed`` is the prompt's number and ``split`` its part of the data. ``report_before`` and
    ``report_after`` have the scores of the graders that only report, by name.
    """

    seed: int
    split: str = ALL_PROMPTS
    before: float | None = None
    after: float | None = None
    baselines: dict[str, float | None] = {}
    report_before: dict[str, float | None] = {}
    report_after: dict[str, float | None] = {}


class SplitComparison(msgspec.Struct, frozen=True, kw_only=True):
    """One split: ``prompts`` held-out prompts.

    ``before`` and ``after`` are mean rewards; ``gain`` is after − before; ``baselines`` has the
    mean reward of each fixed answer, ``above`` what the policy after training gets more.
    Differences are means over the prompts that have both numbers, with 95 % intervals.
    """

    split: str
    prompts: int
    before: float | None
    after: float | None
    gain: Estimate
    baselines: dict[str, float | None]
    above: dict[str, Estimate]


class ReportedGrader(msgspec.Struct, frozen=True, kw_only=True):
    """A grader that only reports, on ``n`` answers: mean scores before and after.

    ``agreement``: Spearman's ρ of its score and the reward, over the answers of both times, with an
    interval over prompts; ``missing``: the share of the answers without a score.
    """

    name: str
    n: int
    before: float | None
    after: float | None
    agreement: Estimate
    missing: float | None


class HeldOutComparison(msgspec.Struct, frozen=True, kw_only=True):
    """All splits, the whole first, and the graders that only report."""

    splits: list[SplitComparison]
    graders: list[ReportedGrader]


def read_held_out(folder: Path, split_column: str | None) -> list[HeldOutScores]:
    """The held-out prompts of the run in ``folder``: its first evaluation and its last.

    ``split_column`` names the column that holds a prompt's split. None where there are not two
    evaluations.
    """
    rows = list(iter_rows(folder / "evaluation_rollouts.jsonl", dict[str, Any]))
    steps = sorted({int(row["step"]) for row in rows})
    if len(steps) < 2:
        return []
    first = {row["seed"]: row for row in rows if row["step"] == steps[0]}
    last = {row["seed"]: row for row in rows if row["step"] == steps[-1]}
    fixed: dict[int, dict[str, float | None]] = {}
    for one in iter_rows(folder / BASELINES_FILE, FixedScore):
        fixed.setdefault(one.seed, {})[one.name] = one.reward
    return [
        HeldOutScores(
            seed=seed,
            split=ALL_PROMPTS
            if split_column is None
            else str(row["columns"].get(split_column, "other")),
            before=row["reward"],
            after=last[seed]["reward"] if seed in last else None,
            baselines=fixed.get(seed, {}),
            report_before=row.get("report") or {},
            report_after=last.get(seed, {}).get("report") or {},
        )
        for seed, row in first.items()
    ]


def compare_held_out(rows: Sequence[HeldOutScores]) -> HeldOutComparison:
    """The comparison over the held-out prompts of one run."""
    splits = sorted({one.split for one in rows} - {ALL_PROMPTS})
    parts = [(ALL_PROMPTS, rows)]
    parts += [(name, [one for one in rows if one.split == name]) for name in splits]
    names = list(dict.fromkeys(name for one in rows for name in one.report_before))
    return HeldOutComparison(
        splits=[_compare_split(name, part) for name, part in parts],
        graders=[_describe_grader(name, rows) for name in names],
    )


def _compare_split(name: str, rows: Sequence[HeldOutScores]) -> SplitComparison:
    fixed = list(dict.fromkeys(name for one in rows for name in one.baselines))
    return SplitComparison(
        split=name,
        prompts=len(rows),
        before=_mean_of(one.before for one in rows),
        after=_mean_of(one.after for one in rows),
        gain=paired_difference((one.after, one.before) for one in rows),
        baselines={key: _mean_of(one.baselines.get(key) for one in rows) for key in fixed},
        above={
            key: paired_difference((one.after, one.baselines.get(key)) for one in rows)
            for key in fixed
        },
    )


def paired_difference(rows: Iterable[tuple[float | None, float | None]]) -> Estimate:
    """The mean of first − second over the prompts that have both.

    The interval is an expanded percentile bootstrap over prompts
    (:func:`~adjudge.stats.estimates.bootstrap`).
    """
    both = [(a - b, 1.0) for a, b in rows if a is not None and b is not None]
    return msgspec.structs.replace(bootstrap(both, ratio), n=len(both))


def _describe_grader(name: str, rows: Sequence[HeldOutScores]) -> ReportedGrader:
    asked = [
        (one.seed, report[name], reward)
        for one in rows
        for report, reward in ((one.report_before, one.before), (one.report_after, one.after))
        if name in report
    ]
    both = [
        (seed, score, reward)
        for seed, score, reward in asked
        if score is not None and reward is not None
    ]
    return ReportedGrader(
        name=name,
        n=len(asked),
        before=_mean_of(one.report_before.get(name) for one in rows),
        after=_mean_of(one.report_after.get(name) for one in rows),
        agreement=_rank_correlation(both),
        missing=mean([float(score is None) for _, score, _ in asked]),
    )


def _rank_correlation(answers: Sequence[tuple[int, float, float]]) -> Estimate:
    """Of score and reward; an answer's first number is its prompt's."""
    if len({prompt for prompt, _, _ in answers}) < _MIN_PROMPTS:
        return Estimate(n=len(answers), why=f"fewer than {_MIN_PROMPTS} prompts")
    prompts, scores, rewards = zip(*answers, strict=True)
    if len(set(scores)) == 1 or len(set(rewards)) == 1:
        return Estimate(n=len(answers), why="one of the two does not vary")
    return estimate_correlation(scores, rewards, ranks=True, clusters=prompts)


def _mean_of(values: Iterable[float | None]) -> float | None:
    return mean([value for value in values if value is not None])
