"""What adapters compute and log about a scored batch, and where a trainer is.

The names of metrics are the same in every trainer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from operator import mul
from typing import TypeVar

from adjudge.stats import (
    collect,
    group_spread,
    mean,
    mean_and_std,
    quantile,
    snap_ties,
    std,
    z_scores,
)
from adjudge.types import GradedSample, Provenance, RewardResult, Sample

GroupKey = TypeVar("GroupKey", bound=Hashable)


@dataclass(frozen=True)
class TrainerProgress:
    """Where a trainer is when it asks for rewards; ``None`` is not known.

    ``step`` is its own count, ``policy_version`` the number of updates behind the policy that wrote
    the answers; ``evaluating``: they are not trained on.
    """

    step: int | None = None
    policy_version: int | None = None
    evaluating: bool = False


@dataclass(frozen=True)
class RecordedCall:
    """One call of a trainer with its rewards; ``whole_groups`` as for :meth:`.Scorer.ascore`."""

    samples: Sequence[Sample]
    judged: Sequence[GradedSample]
    results: Sequence[RewardResult]
    metrics: Mapping[str, float]
    progress: TrainerProgress
    whole_groups: bool = True


def group_means(
    values: Sequence[float | None], groups: Sequence[GroupKey]
) -> dict[GroupKey, float]:
    """The mean of each group's present values; a group without any has none."""
    pairs = zip(groups, values, strict=True)
    present = collect((group, value) for group, value in pairs if value is not None)
    return {group: mean_and_std(found)[0] for group, found in present.items()}


def fill_missing(values: Sequence[float | None], groups: Sequence[Hashable]) -> list[float | None]:
    """The values with their group's mean in the place of missing ones, where the group has one."""
    means = group_means(values, groups)
    pairs = zip(values, groups, strict=True)
    return [means.get(group) if value is None else value for value, group in pairs]


# --- what a trainer logs about a scored batch -----------------------------------------------------


def batch_metrics(
    judged: Sequence[GradedSample],
    results: Sequence[RewardResult],
    lengths: Sequence[int],
    calls: Sequence[Provenance] | None = None,
) -> dict[str, float]:
    """The metrics of one batch by name; what could not be computed is absent, never 0.

    ``calls`` are those behind the results (:func:`collect_judge_calls`) where they are known
    already.

    ``judge/score_mean`` and ``score_std`` of the rewards there are, ``judge/env_ratio`` (mean
    reward over mean environment reward), ``judge/missing_frac`` of the samples that were drawn,
    and the same by kind (``judge/missing_frac/timeout``), ``judge/suspect_frac`` of those with
    a failure that the answer may have brought about (missing, or the minimum by
    ``missing.suspect``),
    ``judge/zero_std_frac`` of the groups,
    ``judge/len_corr_group`` (mean Pearson correlation with length inside groups),
    ``judge/latency_p50`` and ``latency_p99`` in seconds, ``judge/cost_usd``,
    ``judge/NAME_mean`` of each part. (:class:`~adjudge.trainers.scoring.Scorer` adds
    ``judge/missing_predictors``, how many properties of answers predict a missing reward, and
    ``judge/NAME_weight`` of each weight that is a schedule.)
    """
    pairs = [*zip(judged, results, strict=True)]
    drawn = [result for one, result in pairs if one.sampled]
    lost, suspects = [one.score is None for one in drawn], sum(one.suspect for one in results)
    scores, groups = [one.score for one in results], [one.group for one in judged]
    present = [score for score in scores if score is not None]
    beside = [
        (score, env)
        for one, result in pairs
        if (score := result.score) is not None and (env := one.env_reward) is not None
    ]
    total = sum(env for _, env in beside)
    kinds = Counter(f"missing_frac/{one.missing.kind}" for one in drawn if one.missing is not None)
    calls = collect_judge_calls(judged) if calls is None else calls
    live = [p.latency_s for p in calls if p.source == "live" and p.latency_s is not None]
    paid = [usage for p in calls if (usage := p.paid) is not None]
    costs = [usage.cost_usd for usage in paid if usage.cost_usd is not None]
    found: dict[str, float | None] = {
        "score_mean": mean(present),
        "score_std": std(present),
        "env_ratio": sum(score for score, _ in beside) / total if total else None,
        "missing_frac": sum(lost) / len(lost) if lost else None,
        "zero_std_frac": group_spread(scores, groups).zero_frac,
        "len_corr_group": group_length_correlation(scores, lengths, groups),
        **{kind: count / len(drawn) for kind, count in kinds.items()},
        "suspect_frac": suspects / len(drawn) if drawn and suspects else None,
        "latency_p50": quantile(live, 0.5),
        "latency_p99": quantile(live, 0.99),
        "cost_usd": sum(costs) if costs else None,
    }
    for name in results[0].reward_info if results else ():
        parts = [result.reward_info[name] for result in results]
        found[f"{name}_mean"] = mean([part for part in parts if part is not None])
    return {f"judge/{name}": value for name, value in found.items() if value is not None}


def collect_judge_calls(judged: Sequence[GradedSample]) -> list[Provenance]:
    """The calls that a batch's results came from; one about a whole group is there once."""
    calls = {
        id(call): call
        for one in judged
        for _, result in one.results()
        if (call := result.provenance) is not None
    }
    return list(calls.values())


def group_length_correlation(
    scores: Sequence[float | None], lengths: Sequence[int], groups: Sequence[str]
) -> float | None:
    """Mean over groups of the Pearson correlation of reward and length; ``None`` without any.

    Inside groups, because a group-relative trainer sees nothing else. Groups in which one of the
    two does not vary have none.
    """
    rows = zip(groups, scores, lengths, strict=True)
    members = collect((group, (one, length)) for group, one, length in rows if one is not None)
    found = []
    for pairs in members.values():
        rewards = z_scores(snap_ties([reward for reward, _ in pairs]))
        sizes = z_scores([size for _, size in pairs])
        if len(pairs) > 2 and any(rewards) and any(sizes):
            pearson = sum(map(mul, rewards, sizes)) / (len(pairs) - 1)
            found.append(max(-1.0, min(1.0, pearson)))
    return mean(found)
