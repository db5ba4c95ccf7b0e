"""Rewards in verl's batches: columns, numbers in the place of missing ones, marks, advantages.

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
(:func:`impute_rewards`), and the row's ``uid`` is a :class:`MissingRewardUid`, equal to the uid it
was, by which ``adjudge_grpo`` (``algorithm.adv_estimator``) leaves the row out exactly.

A turn is a run of the policy's own tokens in verl's ``response_mask``. A reward stands on the
last valid token; with ``adjudge_grpo`` what an event adds to it stands on the last token of that
event's turn instead, and the rest where it was, so that each turn of a rollout has its own
advantage. The sum over a row stays the reward.
"""

from __future__ import annotations

import logging
import math
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import Any

import msgspec

from adjudge.engine.clock import LogLimiter
from adjudge.errors import ErrorKind, MissingRewardError
from adjudge.stats import mean, quantile
from adjudge.trainers.metrics import batch_metrics, fill_missing, group_means
from adjudge.trainers.scoring import ScorerResult
from adjudge.types import GradedSample, GraderError, RewardResult

_log = logging.getLogger("adjudge")

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


# --- marks, turns and the estimator ---------------------------------------------------------------

ADJUDGE_ESTIMATOR = "adjudge_grpo"
"""Leaves missing rewards out exactly."""

STOCK_ESTIMATOR = "grpo"
"""Gets the group's mean instead, which inflates the others by a logged factor."""


def find_caller_local(function: str, name: str) -> Any:
    """A variable of the nearest call of verl's ``function`` that we are inside of, or ``None``.

    For what verl has and does not hand over; each use says why nothing else gives it.
    """
    caller: FrameType | None = sys._getframe(1)  # noqa: SLF001  (verl passes no more)
    while caller is not None and caller.f_code.co_name != function:
        caller = caller.f_back
    return None if caller is None else caller.f_locals.get(name)


class MissingRewardUid(str):
    """A group's uid on a row whose reward is missing; groups with the others as ever.

    It is the one thing of a row that verl hands to an advantage estimator beside its numbers.
    """

    __slots__ = ()


class TurnReward(float):
    """A reward that remembers what each event adds to it; to anybody else the number that it is.

    It is how a reward actor tells a rollout worker, which alone knows the response mask.
    """

    __slots__ = ("events",)
    events: tuple[float, ...]

    def __new__(cls, value: float, events: Sequence[float]) -> TurnReward:
        """``value`` is the reward, and ``events`` add up to a part of it."""
        made = super().__new__(cls, value)
        made.events = tuple(events)
        return made

    def __reduce__(self) -> tuple[type[TurnReward], tuple[float, tuple[float, ...]]]:
        return type(self), (float(self), self.events)


def make_turn_reward(result: RewardResult) -> float | None:
    """The result's score, with its events where it has any."""
    if result.score is None or not result.event_rewards:
        return result.score
    return TurnReward(result.score, result.event_rewards)


_limiter = LogLimiter()


def place_turn_rewards(
    tensor: Any, last: Sequence[int], response_mask: Any, rewards: Sequence[float | None]
) -> None:
    """Spread ``rewards``, which stand on ``last`` of ``tensor``'s rows, over turns; in place.

    ``tensor`` and ``response_mask`` are ``[B, R]``. What has no events, or one turn, stays as it
    is; so does, with a warning, a reward whose events and turns are not equally many.
    """
    import torch  # noqa: PLC0415  (heavy)

    own = response_mask.bool()
    is_end = own & ~torch.nn.functional.pad(own[:, 1:], (0, 1))
    for row, reward in enumerate(rewards):
        if not isinstance(reward, TurnReward):
            continue
        ends, events = is_end[row].nonzero().flatten().tolist(), reward.events
        if len(ends) < 2:
            continue
        if len(events) == len(ends) and all(map(math.isfinite, events)):
            added = tensor.new_tensor(events)
            # Less what the turns get as the row rounds it, so that its sum is rounded once.
            tensor[row, last[row]] = reward - added.double().sum().item()
            tensor[row, ends] += added
        elif _limiter.count():
            _log.warning(
                "%d events do not fit a response of %d turns, or are no finite numbers. The turns "
                "of such a rollout share one advantage.", len(events), len(ends),
            )  # fmt: skip


_EPSILON = 1e-6  # verl's own


def adjudge_grpo(
    token_level_rewards: Any, response_mask: Any, index: Any, config: Any = None, **_: Any
) -> tuple[Any, Any]:
    """Advantages and returns (the same) ``[B, R]``, as stock ``grpo`` gives for what is there.

    (r − mean)/(std + 1e-6) inside each group of ``index``, std with n − 1; without the division
    under ``norm_adv_by_std_in_grpo=False`` (Dr. GRPO, arXiv 2503.20783). Rows that the reward
    manager marked as missing, or whose reward is NaN, count in no mean or std and get 0. So does a
    reward that is alone in its group: it has nobody to be compared with (stock ``grpo`` takes the
    bare reward there). Raises :class:`~adjudge.errors.MissingRewardError` when all rows are NaN.

    A turn is a run of ones in ``response_mask``. Rewards that stand before a rollout's last turn
    are not credited to what came after: turns then have advantages of their own, of what was still
    to come when each was played. In a group without such rewards, all turns have the rollout's.

    Where verl's V1 trainers call, rows may be outputs of one rollout. As in verl's own ``grpo`` the
    last stands for it in its group, and the others get its advantage.
    """
    # An estimator gets no keys of its rows, and only they say which rows are of one rollout.
    keys = find_caller_local("compute_advantage_for_multi_trajectories", "batch_keys")
    last = find_last_outputs(keys or ())
    if len(last) != len(index) or last == list(range(len(last))):
        spread = _leave_missing_out(token_level_rewards, response_mask, index, config)
        return spread, spread
    rows = sorted(set(last))
    found = _leave_missing_out(token_level_rewards[rows], response_mask[rows], index[rows], config)
    spread = response_mask.new_zeros(response_mask.shape, dtype=found.dtype)
    spread[rows] = found
    outputs = Counter(last)
    for row, final in enumerate(last):
        if outputs[final] > 1:
            first = response_mask[final].int().argmax()
            spread[row] = found[rows.index(final), first] * response_mask[row]
    return spread, spread


def find_last_outputs(keys: Sequence[str]) -> list[int]:
    """For each key ``{uid}_{session}_{output}``, the row of that rollout's last output."""
    final: dict[str, int] = {}
    for row, key in enumerate(keys):
        rollout, _, output = key.rpartition("_")
        if rollout not in final or int(keys[final[rollout]].rpartition("_")[2]) < int(output):
            final[rollout] = row
    return [final[key.rpartition("_")[0]] for key in keys]


def _leave_missing_out(rewards: Any, response_mask: Any, index: Any, config: Any) -> Any:
    import torch  # noqa: PLC0415  (heavy)

    divide = True if config is None else config.get("norm_adv_by_std_in_grpo", True)
    with torch.no_grad():
        scores = rewards.sum(dim=-1)
        turn, ahead = _rewards_to_go(rewards, response_mask)
        advantages = torch.zeros_like(ahead, dtype=scores.dtype)
        missing = scores.isnan()
        if missing.any() and bool((missing | ~response_mask.bool().any(dim=-1)).all()):
            raise MissingRewardError(  # rows without a token are a trainer's padding
                "not one reward of this batch is there; the logs of reward workers say why", []
            )
        groups: dict[Any, list[int]] = defaultdict(list)
        for row, (uid, gone) in enumerate(zip(index, missing.tolist(), strict=True)):
            if not (gone or isinstance(uid, MissingRewardUid)):
                groups[uid].append(row)
        for rows in groups.values():
            if len(rows) > 1:
                advantages[rows] = _group_advantages(scores[rows], ahead[rows], divide=divide)
        return advantages.gather(1, turn) * response_mask


def _rewards_to_go(rewards: Any, response_mask: Any) -> tuple[Any, Any]:
    """Each token's turn ``[B, R]``, and what is still to come at each turn ``[B, T]``, float64.

    What stands behind a turn, up to the next, is that turn's. A rollout of fewer turns, or none,
    has its last turn's number in all further places.
    """
    import torch  # noqa: PLC0415  (heavy)

    own = response_mask.bool()
    starts = own & ~torch.nn.functional.pad(own[:, :-1], (1, 0))
    turn = (starts.cumsum(dim=-1) - 1).clamp(min=0)
    last = (starts.sum(dim=-1) - 1).clamp(min=0)
    turns = int(last.max()) + 1 if len(last) else 1
    added = rewards.new_zeros(len(rewards), turns, dtype=torch.float64)
    added.scatter_add_(1, turn, rewards.double())
    past = torch.nn.functional.pad(added.cumsum(dim=-1)[:, :-1], (1, 0))
    ahead = added.sum(dim=-1, keepdim=True) - past
    places = torch.arange(turns, device=ahead.device)
    return turn, ahead.gather(1, torch.minimum(places, last.unsqueeze(-1)))


def _group_advantages(scores: Any, ahead: Any, *, divide: bool) -> Any:
    """Advantages ``[n, T]``, or ``[n, 1]`` for all turns where no reward came before the last."""
    import torch  # noqa: PLC0415  (heavy)

    if bool((ahead == ahead[:, :1]).all()):  # stock GRPO, to the bit
        centred = scores - torch.mean(scores)
        return (centred / (torch.std(scores) + _EPSILON) if divide else centred).unsqueeze(-1)
    centred = ahead - ahead.mean(dim=0)
    scale = ahead.std(dim=0).max() + _EPSILON if divide else 1.0
    return (centred / scale).to(scores.dtype)
