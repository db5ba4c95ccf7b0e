"""What a trainer logs about a scored batch; the names are the same in every trainer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from adjudge.stats import group_spread, mean, mean_and_std, quantile, snap_ties, std
from adjudge.types import GradedSample, Provenance, RewardResult


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
    scores = [result.score for result in results]
    present = [score for score in scores if score is not None]
    groups = [one.group for one in judged]
    drawn = sum(one.sampled for one in judged)
    found: dict[str, float | None] = {
        "score_mean": mean(present),
        "score_std": std(present),
        "env_ratio": _env_ratio(judged, results),
        "missing_frac": (drawn - _count_present(judged, scores)) / drawn if drawn else None,
        "zero_std_frac": group_spread(scores, groups).zero_frac,
        "len_corr_group": group_length_correlation(scores, lengths, groups),
        **_missing_by_kind(judged, results, drawn),
        "suspect_frac": (sum(one.suspect for one in results) / drawn if drawn else 0.0) or None,
        **_call_metrics(collect_judge_calls(judged) if calls is None else calls),
        **_part_means(results),
    }
    return {f"judge/{name}": value for name, value in found.items() if value is not None}


def _count_present(judged: Sequence[GradedSample], scores: Sequence[float | None]) -> int:
    return sum(one.sampled and score is not None for one, score in zip(judged, scores, strict=True))


def _env_ratio(judged: Sequence[GradedSample], results: Sequence[RewardResult]) -> float | None:
    pairs = [
        (result.score, one.env_reward)
        for one, result in zip(judged, results, strict=True)
        if result.score is not None and one.env_reward is not None
    ]
    total = sum(env for _, env in pairs)
    return sum(score for score, _ in pairs) / total if total else None


def _missing_by_kind(
    judged: Sequence[GradedSample], results: Sequence[RewardResult], drawn: int
) -> dict[str, float]:
    counts: dict[str, int] = defaultdict(int)
    for one, result in zip(judged, results, strict=True):
        if one.sampled and result.missing is not None:
            counts[f"missing_frac/{result.missing.kind}"] += 1
    return {name: count / drawn for name, count in counts.items()}


def collect_judge_calls(judged: Sequence[GradedSample]) -> list[Provenance]:
    """The calls that a batch's results came from; one about a whole group is there once."""
    calls = {
        id(call): call
        for one in judged
        for _, result in one.results()
        if (call := result.provenance) is not None
    }
    return list(calls.values())


def _call_metrics(calls: Sequence[Provenance]) -> dict[str, float | None]:
    live = [p.latency_s for p in calls if p.source == "live" and p.latency_s is not None]
    paid = [usage for p in calls if (usage := p.paid) is not None]
    costs = [usage.cost_usd for usage in paid if usage.cost_usd is not None]
    return {
        "latency_p50": quantile(live, 0.5),
        "latency_p99": quantile(live, 0.99),
        "cost_usd": sum(costs) if costs else None,
    }


def _part_means(results: Sequence[RewardResult]) -> dict[str, float | None]:
    names = results[0].reward_info if results else {}
    parts = {}
    for name in names:
        values = [result.reward_info[name] for result in results]
        parts[f"{name}_mean"] = mean([value for value in values if value is not None])
    return parts


def group_length_correlation(
    scores: Sequence[float | None], lengths: Sequence[int], groups: Sequence[str]
) -> float | None:
    """Mean over groups of the Pearson correlation of reward and length; ``None`` without any.

    Inside groups, because a group-relative trainer sees nothing else. Groups in which one of the
    two does not vary have none.
    """
    members: dict[str, tuple[list[float], list[int]]] = {}
    for score, length, group in zip(scores, lengths, groups, strict=True):
        if score is not None:
            rewards, sizes = members.setdefault(group, ([], []))
            rewards.append(score)
            sizes.append(length)
    found = [one for pairs in members.values() if (one := _pearson(*pairs)) is not None]
    return mean(found)


def _pearson(xs: Sequence[float], ys: Sequence[float]) -> float | None:
    if len(xs) < 3:
        return None
    xs = snap_ties(xs)
    mean_x, std_x = mean_and_std(xs)
    mean_y, std_y = mean_and_std(ys)
    if std_x == 0 or std_y == 0:
        return None
    products = [(x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)]
    covariance = sum(products) / (len(xs) - 1)
    return max(-1.0, min(1.0, covariance / (std_x * std_y)))
