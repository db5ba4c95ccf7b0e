"""What verl gets of rewards beside the numbers that it trains on, and what its steps log of it.

``reward_extra_info`` is what verl may know about rewards:

=======================  ======================================================================
``GRADER_score``, …      every key of ``reward_info``, always the same; NaN where a part is missing
``reward_missing``       1.0 where the reward is missing, else 0.0
``details``              per row: each grader's score and reason, ``missing`` with kind and error
``judge_metrics``        in training: the batch's metrics in the first row, nothing in the others
``uid``                  in training: the rows' own, marked where the reward is missing
=======================  ======================================================================

verl's validation takes the mean of every column that is not text, and None is an error there. So
in validation missing numbers have stand-ins that leave those means as they are
(:func:`impute_for_validation`), and ``details`` is JSON text, in which ``missing_parts`` names the
row's stand-ins.

A reward loop's rows (:func:`loop_row`) have None where a part is missing, and ``details`` as JSON
text with the metrics of the row's judge calls. verl 0.9.1, which never says whether it validates,
passes over both; verl 0.6.1 hands them to the batch manager, which makes the columns above of them.

verl has no missing reward, and one NaN makes a whole group's advantages NaN. So a whole batch's
missing reward is written as a number that moves nothing, the mean of the group's others
(:func:`impute_rewards`), with a mark on the row's uid (:mod:`.advantage`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from adjudge.errors import ErrorKind
from adjudge.stats import mean, quantile
from adjudge.trainers.scoring import ScorerResult, batch_metrics, fill_missing, group_means
from adjudge.types import GradedSample, GraderError, RewardResult

MISSING_COLUMN, DETAILS_COLUMN, METRICS_COLUMN = "reward_missing", "details", "judge_metrics"
MISSING_PARTS = "missing_parts"
_COSTS, _LATENCIES = "judge/cost_usd", {"judge/latency_p50": 0.5, "judge/latency_p99": 0.99}


def plain_details(result: RewardResult, **more: Any) -> dict[str, Any]:
    """A result's details and ``more`` as plain JSON data; ``missing`` says why there is no reward.

    ``imputed`` are the failures for which it has a grader's minimum.
    """
    details = {**(result.details or {}), **more}
    if result.score is None:
        missing = result.missing or GraderError("reward", ErrorKind.BUG, "no score and no reason")
        details["missing"] = _describe_failure(missing)
    if result.imputed:
        details["imputed"] = list(map(_describe_failure, result.imputed))
    try:
        plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(details, enc_hook=str))
    except (TypeError, ValueError, RecursionError, OverflowError):  # a grader's odd metadata
        kept = ("source", "missing", "imputed", *more)
        plain = {key: details[key] for key in kept if key in details}
    return plain


def _describe_failure(error: GraderError) -> dict[str, Any]:
    return {"kind": str(error.kind), "error": error.error, "suspect": error.suspect}


def _read_failure(said: Mapping[str, Any]) -> GraderError:
    return GraderError("reward", said["kind"], said["error"], {"suspect": said.get("suspect")})


def details_text(result: RewardResult, **more: Any) -> str:
    """:func:`plain_details` as JSON text, which verl's validation passes over."""
    return msgspec.json.encode(plain_details(result, **more)).decode()


def loop_row(
    result: RewardResult, keys: Sequence[str], metrics: Mapping[str, float]
) -> dict[str, Any]:
    """One row of all columns, for a reward loop.

    Of ``metrics``, those of the row's judge calls are in ``details``; the others are its columns'.
    """
    calls = {name: metrics[name] for name in (*_LATENCIES, _COSTS) if name in metrics}
    return {
        **{key: result.reward_info.get(key) for key in keys},
        MISSING_COLUMN: float(result.score is None),
        DETAILS_COLUMN: details_text(result, **({"metrics": calls} if calls else {})),
    }


def read_loop_rows(
    columns: Mapping[str, Sequence[Any]],
    rewards: Sequence[float],
    groups: Sequence[str],
    lengths: Sequence[int],
) -> ScorerResult:
    """The results that a reward loop made row by row, and their metrics.

    ``columns`` are those of :func:`loop_row`; a reward of NaN is missing. Costs are summed,
    quantiles of latency are taken over the rows' values, and lengths are in tokens.
    """
    results, calls = [], []
    for place, reward in enumerate(rewards):
        own = {name: column[place] for name, column in columns.items() if name != MISSING_COLUMN}
        details = msgspec.json.decode(str(own.pop(DETAILS_COLUMN, "{}")))  # perhaps numpy's text
        said = details.pop("missing", None) or {"kind": ErrorKind.BUG, "error": "no reason given"}
        score = None if math.isnan(reward) else reward
        calls.append(details.pop("metrics", {}))
        imputed = list(map(_read_failure, details.pop("imputed", ())))
        missing = _read_failure(said) if score is None else None
        info = {key: None if part is None else float(part) for key, part in own.items()}
        results.append(RewardResult(place, 0, score, info, details, missing, None, imputed))
    metrics = compute_result_metrics(results, groups, lengths)
    for name, q in _LATENCIES.items():
        found = quantile([row[name] for row in calls if name in row], q)
        metrics |= {} if found is None else {name: found}
    costs = [row[_COSTS] for row in calls if _COSTS in row]
    return ScorerResult(results, metrics | ({_COSTS: sum(costs)} if costs else {}))


def read_loop_batch(data: Any, groups: Sequence[str]) -> ScorerResult | None:
    """:func:`read_loop_rows` of a ``DataProto``; ``None`` where its rewards are not from here."""
    names = data.meta_info.get("reward_extra_keys") or []
    if MISSING_COLUMN not in names:
        return None
    scores = data.batch["rm_scores"]
    lengths = data.batch["attention_mask"][:, -scores.shape[-1] :].sum(dim=-1).tolist()
    columns = {name: data.non_tensor_batch[name] for name in names}
    return read_loop_rows(columns, scores.sum(dim=-1).tolist(), groups, lengths)


def compute_result_metrics(
    results: Sequence[RewardResult], groups: Sequence[str], lengths: Sequence[int]
) -> dict[str, float]:
    """:func:`~adjudge.trainers.scoring.batch_metrics` where only results are known."""
    judged = [
        GradedSample(
            r.original_index, r.group_index, group, r.reward_info.get("env_reward"), {}, []
        )
        for r, group in zip(results, groups, strict=True)
    ]
    return batch_metrics(judged, results, lengths)


_JUDGED, _SUSPECT = "judged", "suspect"


def count_reward(result: RewardResult) -> Counter[str]:
    """One rollout that a reward actor was asked for, and why its reward is missing, if it is."""
    counts = Counter({_JUDGED: 1, _SUSPECT: int(result.suspect)})
    if result.missing is not None:
        counts[str(result.missing.kind)] += 1
    return counts


def missing_metrics(counts: Mapping[str, int]) -> dict[str, float]:
    """``judge/missing_frac``, also by kind, and ``suspect_frac``; nothing if nothing was judged."""
    judged = counts.get(_JUDGED, 0)
    if not judged:
        return {}
    kinds = {kind: count for kind, count in counts.items() if kind not in (_JUDGED, _SUSPECT)}
    by_kind = {f"judge/missing_frac/{kind}": count / judged for kind, count in kinds.items()}
    if suspects := counts.get(_SUSPECT):
        by_kind["judge/suspect_frac"] = suspects / judged
    return {"judge/missing_frac": sum(kinds.values()) / judged, **by_kind}


# --- numbers in the place of missing ones ---------------------------------------------------------


def impute_rewards(
    rewards: Sequence[float | None], groups: Sequence[str]
) -> tuple[list[float], dict[str, float]]:
    """A missing reward becomes its group's mean; without any, the batch's; without any, 0.

    In each case all rows of such a group that the estimator is to leave out get advantage 0. Beside
    the rewards is, by group, what z-scores of rows without this mean are multiplied by:
    √((n−1)/(m−1)) for m rewards of n. Groups with m < 2 teach nothing and have no factor.
    """
    overall = mean([reward for reward in rewards if reward is not None]) or 0.0
    filled = [overall if one is None else one for one in fill_missing(rewards, groups)]
    sizes = Counter(groups)
    present = Counter(
        one for one, reward in zip(groups, rewards, strict=True) if reward is not None
    )
    factors = {
        group: math.sqrt((sizes[group] - 1) / (m - 1)) for group, m in present.items() if m > 1
    }
    return filled, factors


def impute_for_validation(
    values: Sequence[float | None], groups: Sequence[str], sources: Sequence[str]
) -> list[float]:
    """Values with which verl's validation means are those of the values that are there.

    verl averages over a prompt's answers, then over the prompts of a data source. A missing value
    becomes its prompt's mean; where a prompt has none, the mean over its source's prompts. A
    source without any value gets NaN, which verl can log.
    """
    prompts = list(zip(sources, groups, strict=True))
    of_prompt = group_means(values, prompts)
    of_source = group_means(list(of_prompt.values()), [source for source, _ in of_prompt])
    filled = fill_missing(values, prompts)
    return [
        of_source.get(source, math.nan) if value is None else value
        for value, source in zip(filled, sources, strict=True)
    ]


def object_column(values: Sequence[Any]) -> Any:
    """A column of a batch as verl has it, whose values stay the objects that they are."""
    import numpy as np  # noqa: PLC0415  (verl's)

    return np.array(values, dtype=object)
