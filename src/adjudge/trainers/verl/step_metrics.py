"""Judge metrics in the logger of verl 0.9.1's trainers.

verl logs no reward column of a training step by itself, and has no setting for it. So trainers get
a mixin, which :mod:`.main_ppo` adds. Metrics are made of a step's rows; rollouts that
are not in the step, because V1 ``sync`` takes an exception for a missing reward, are counted by
the reward actors, which are asked for their counts (:class:`RewardCounts`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from adjudge.stats import quantile
from adjudge.trainers.verl.batches import (
    MISSING_COLUMN,
    numpy_to_python,
    results_from_columns,
)
from adjudge.trainers.verl.reward_sources import compute_result_metrics, detect_channel
from adjudge.types import RewardResult

COUNTS_REQUEST = "adjudge_counts"
"""The key in ``meta_info`` of a batch that asks a reward actor for its counts."""

_JUDGED, _SUSPECT = "judged", "suspect"


class RewardCounts:
    """Rewards that one reward actor was asked for, and those that are missing, by kind."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def add(self, result: RewardResult) -> None:
        """Count one rollout."""
        self._counts[_JUDGED] += 1
        self._counts[_SUSPECT] += result.suspect
        if result.missing is not None:
            self._counts[str(result.missing.kind)] += 1

    def take(self) -> dict[str, int]:
        """The counts since the last time."""
        taken, self._counts = dict(self._counts), Counter()
        return taken


_LATENCY_QUANTILES = {"judge/latency_p50": 0.5, "judge/latency_p99": 0.99}


def compute_loop_metrics(
    results: Sequence[RewardResult],
    groups: Sequence[str],
    lengths: Sequence[int],
    calls: Sequence[Mapping[str, float]],
) -> dict[str, float]:
    """A batch's metrics from its rows.

    ``calls`` are each row's own metrics: costs are summed, and quantiles of latency are taken over
    the rows' values. Lengths are in tokens here.
    """
    metrics = compute_result_metrics(results, groups, lengths)
    for name, q in _LATENCY_QUANTILES.items():
        found = quantile([row[name] for row in calls if name in row], q)
        if found is not None:
            metrics[name] = found
    costs = [row["judge/cost_usd"] for row in calls if "judge/cost_usd" in row]
    return {**metrics, "judge/cost_usd": sum(costs)} if costs else metrics


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


def rows_metrics(
    infos: Sequence[Mapping[str, Any]],
    rewards: Sequence[float],
    groups: Sequence[str],
    lengths: Sequence[int],
) -> dict[str, float]:
    """The metrics of a step's rows, of which ``infos`` are the reward columns; NaN is missing.

    Nothing where the rewards are not from here.
    """
    if not infos or not all(MISSING_COLUMN in info for info in infos):
        return {}
    columns = {key: [info[key] for info in infos] for key in infos[0]}
    scores = [None if reward != reward else reward for reward in rewards]  # noqa: PLR0124  (NaN)
    results = results_from_columns(scores, columns)
    calls = [(result.details or {}).get("metrics") or {} for result in results]
    return compute_loop_metrics(results, groups, lengths, calls)


class JudgeMetricsMixin:
    """For a trainer of verl 0.9.1: ``class Trainer(JudgeMetricsMixin, PPOTrainerSync)``.

    A step's ``judge/…`` metrics go to the run's own logger. In V1 ``sync`` a validation's
    ``val-aux/judge/missing_frac`` does, too: its missing rewards are nowhere else.
    """

    config: Any
    reward_loop_manager: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._step_counts: Counter[str] = Counter()

    def _compute_metrics(self, batch: Any, metrics: dict[str, Any], *args: Any, **kw: Any) -> None:
        """The V1 trainers' metrics of a step."""
        super()._compute_metrics(batch, metrics, *args, **kw)  # type: ignore[misc]  # verl's
        metrics.update(_queued_metrics(batch))
        counts = self._step_counts + self._take_counts()
        self._step_counts = Counter()
        metrics.update(missing_metrics(counts))

    def _validate(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        self._step_counts += self._take_counts()
        found: dict[str, Any] = super()._validate(*args, **kwargs)  # type: ignore[misc]  # verl's
        missing = missing_metrics(self._take_counts())
        return {**found, **{f"val-aux/{name}": value for name, value in missing.items()}}

    def _update_actor(self, batch: Any, *args: Any, **kwargs: Any) -> Any:
        """The other trainers' update; what it returns is all that they log of it."""
        output = super()._update_actor(batch, *args, **kwargs)  # type: ignore[misc]  # verl's
        if hasattr(batch, "non_tensor_batch"):
            output.meta_info["metrics"].update(_batch_metrics(batch))
        return output

    def _take_counts(self) -> Counter[str]:
        """What reward actors counted since the last time, where only they can know."""
        if not detect_channel(self.config).absent:
            return Counter()
        import ray  # noqa: PLC0415  (verl's)
        from verl import DataProto  # noqa: PLC0415  (heavy)

        ask = DataProto(meta_info={COUNTS_REQUEST: True})
        workers = self.reward_loop_manager.reward_loop_workers
        answers = ray.get([worker.compute_score.remote(ask) for worker in workers])
        total: Counter[str] = Counter()
        for answer in answers:
            total.update(answer["reward_extra_info"])
        return total


def _queued_metrics(batch: Any) -> dict[str, float]:
    """Of the last output of each rollout in TransferQueue, padding left out."""
    import transfer_queue as tq  # type: ignore[import-not-found]  # noqa: PLC0415  (verl)

    last: dict[str, str] = {}
    for key, tag in zip(batch.keys, batch.tags, strict=True):
        if tag.get("is_padding"):
            continue
        rollout, _, place = key.rpartition("_")
        if int(place) >= int(last.get(rollout, key).rpartition("_")[2]):
            last[rollout] = key
    if not last:
        return {}
    fields = ["uid", "rm_scores", "extra_fields"]
    data = tq.kv_batch_get(
        keys=list(last.values()), partition_id=batch.partition_id, select_fields=fields
    )
    rows = list(data["rm_scores"].unbind())
    uids, extra = data.pop("uid").tolist(), data.pop("extra_fields").tolist()
    infos = [fields.get("reward_extra_info") or {} for fields in extra]
    return rows_metrics(infos, [float(row.sum()) for row in rows], uids, list(map(len, rows)))


def _batch_metrics(batch: Any) -> dict[str, float]:
    """Of a ``DataProto`` that has its rewards."""
    names = batch.meta_info.get("reward_extra_keys") or []
    columns = {
        name: [numpy_to_python(value) for value in batch.non_tensor_batch[name]] for name in names
    }
    scores = batch.batch["rm_scores"]
    infos = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    lengths = batch.batch["attention_mask"][:, -scores.shape[-1] :].sum(dim=-1).tolist()
    groups = [str(uid) for uid in batch.non_tensor_batch["uid"]]
    return rows_metrics(infos, scores.sum(dim=-1).tolist(), groups, lengths)


def make_metrics_trainer(trainer: type) -> type:
    """The trainer's class with the mixin."""
    return type(f"Judge{trainer.__name__}", (JudgeMetricsMixin, trainer), {})
