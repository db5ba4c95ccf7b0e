"""What verl's trainer does not do with rewards by itself: log, dump and validate them whole."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from adjudge.trainers.verl.advantage import (
    check_estimator,
    configured_estimator,
    find_caller_local,
    raises_on_missing,
)
from adjudge.trainers.verl.batches import (
    DETAILS_COLUMN,
    METRICS_COLUMN,
    MISSING_COLUMN,
    MISSING_PARTS,
)
from adjudge.trainers.verl.reward_managers import JudgeRewardManager
from adjudge.trainers.verl.reward_sources import make_checked_scorer

_COLUMNS_NOT_DUMPED = {METRICS_COLUMN, "uid"}


def check_before_workers() -> None:
    """Refuse in the trainer's process what the workers would refuse later, and register names.

    verl 0.9.1 looks our class up where the trainer starts, but makes managers only in actors, whose
    errors V1 counts as failed rollouts. Outside of verl nothing is done.
    """
    # verl asks a module for a name, and hands over nothing.
    config = find_caller_local("resolve_reward_manager_cls", "config")
    if config is None:
        return
    from verl.trainer.ppo.reward import get_custom_reward_fn  # noqa: PLC0415  (heavy)

    from adjudge.trainers.verl import register  # noqa: F401, PLC0415  (needs verl)

    make_checked_scorer(config, get_custom_reward_fn(config))


class JudgeTrainerMixin:
    """For a trainer of your own: ``class Trainer(JudgeTrainerMixin, RayPPOTrainer)``.

    Judge metrics go into the run's own logger (``judge/…``, ``val-aux/judge/…``), dumps get
    messages and details, and estimators that cannot leave a missing reward out are refused at the
    start. Everything that the trainer does by itself stays as it is.
    """

    config: Any
    reward_fn: Any
    val_reward_fn: Any
    global_steps: int
    actor_rollout_wg: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        spec = getattr(getattr(self.reward_fn, "source", None), "spec", None)
        if isinstance(self.reward_fn, JudgeRewardManager) and not (
            spec and raises_on_missing(spec)
        ):
            check_estimator(configured_estimator(self.config), spec)
        self._dumped: list[Any] | None = None

    def init_workers(self) -> None:
        """Also puts a step's judge metrics among the actor's, which verl logs."""
        super().init_workers()  # type: ignore[misc]  # of the trainer beside us
        update = self.actor_rollout_wg.update_actor

        def update_and_report(batch: Any) -> Any:
            output = update(batch)
            for metrics in batch.non_tensor_batch.get(METRICS_COLUMN, ()):
                output.meta_info["metrics"].update(metrics)
            return output

        self.actor_rollout_wg.update_actor = update_and_report

    def _compute_or_extract_reward(
        self,
        batch: Any,
        reward_fn: Any = None,
        return_dict: bool = False,
    ) -> Any:
        """Rewards of a batch; those already there (``rm_scores``) are not computed again.

        With ``return_dict`` the manager's dict, else ``(reward_tensor, reward_extra_info)``.
        """
        reward_fn = reward_fn or self.reward_fn
        scored = "rm_scores" in batch.batch.keys()  # noqa: SIM118  (a TensorDict)
        if scored and not isinstance(reward_fn, JudgeRewardManager):
            names = batch.meta_info.get("reward_extra_keys", [])
            extra = {name: batch.non_tensor_batch[name] for name in names}
            found = {"reward_tensor": batch.batch["rm_scores"], "reward_extra_info": extra}
        else:
            found = reward_fn(batch, return_dict=True)
        return found if return_dict else (found["reward_tensor"], found["reward_extra_info"])

    def _validate(self) -> dict[str, Any]:
        """Validation metrics of verl, and the judge's as ``val-aux/judge/…``."""
        manager = self.val_reward_fn
        if not isinstance(manager, JudgeRewardManager):
            return dict(super()._validate())  # type: ignore[misc]  # of the trainer beside us
        manager.collected = []
        try:
            found = super()._validate()  # type: ignore[misc]  # of the trainer beside us
            judged = _weighted_means(manager.collected)
        finally:
            manager.collected = None
        return {**found, **{f"val-aux/{name}": value for name, value in judged.items()}}

    def _log_rollout_data(self, batch: Any, *args: Any, **kwargs: Any) -> None:
        """The dump of a training batch, with the messages that graders saw."""
        if isinstance(self.reward_fn, JudgeRewardManager):
            self._dumped = [sample.messages for sample in self.reward_fn.samples(batch)]
        try:
            super()._log_rollout_data(batch, *args, **kwargs)  # type: ignore[misc]  # as above
        finally:
            self._dumped = None

    def _dump_generations(
        self,
        messages: Sequence[Any] | None = None,
        inputs: Sequence[str] = (),
        outputs: Sequence[str] = (),
        scores: Sequence[float] = (),
        reward_extra_infos_dict: Mapping[str, Sequence[Any]] | None = None,
        dump_path: Path | str = ".",
        all_details: Sequence[Any] | None = None,
        gts: Sequence[Any] | None = None,
    ) -> None:
        """Write ``{global_steps}.jsonl``, one object per rollout.

        ``messages``, ``input``, ``output``, ``score``, ``step``, every key of reward info,
        ``details``, and ``gts`` where verl hands it over. What is missing is null, stand-ins
        included. Called by keyword by verl.
        """
        n = len(inputs)
        info = dict(reward_extra_infos_dict or {})
        details = all_details if all_details is not None else info.pop(DETAILS_COLUMN, None)
        info.pop(DETAILS_COLUMN, None)
        columns: dict[str, Sequence[Any] | None] = {
            "messages": messages if messages is not None else self._messages(n),
            "input": inputs,
            "output": outputs,
            "score": scores,
            "step": [self.global_steps] * n,
            "gts": gts,
            **{key: column for key, column in info.items() if key not in _COLUMNS_NOT_DUMPED},
            DETAILS_COLUMN: None if details is None else [_parse_details(one) for one in details],
        }
        kept = {key: col for key, col in columns.items() if col is not None and len(col) == n}
        rows = [{key: _to_json(column[i]) for key, column in kept.items()} for i in range(n)]
        for row in rows:
            _restore_missing(row)
        folder = Path(dump_path)
        folder.mkdir(parents=True, exist_ok=True)
        lines = "".join(json.dumps(row, ensure_ascii=False, default=str) + "\n" for row in rows)
        path = folder / f"{self.global_steps}.jsonl"
        path.write_text(lines, encoding="utf-8", errors="surrogatepass")

    def _messages(self, n: int) -> Sequence[Any]:
        """The conversations of what is being dumped, as far as they are known."""
        if self._dumped is not None:
            return self._dumped
        collected = getattr(self.val_reward_fn, "collected", None) or []
        found = [sample.messages for samples, _ in collected for sample in samples]
        return found if len(found) == n else [None] * n


def _restore_missing(row: dict[str, Any]) -> None:
    details = row.get(DETAILS_COLUMN)
    gone = details.pop(MISSING_PARTS, []) if isinstance(details, dict) else []
    if row.get(MISSING_COLUMN) == 1.0:
        gone = [*gone, "score", "reward"]
    for name in gone:
        if name in row:
            row[name] = None


def _weighted_means(
    collected: Sequence[tuple[Sequence[Any], Mapping[str, float]]],
) -> dict[str, float]:
    """Metrics of several batches as one, weighted by their samples."""
    sums: dict[str, list[float]] = {}
    for samples, metrics in collected:
        for name, value in metrics.items():
            entry = sums.setdefault(name, [0.0, 0.0])
            entry[0] += value * len(samples)
            entry[1] += len(samples)
    return {name: total / weight for name, (total, weight) in sums.items() if weight}


def _parse_details(details: Any) -> Any:
    return json.loads(details) if isinstance(details, str) else details


def _to_json(value: Any) -> Any:
    """A value that JSON has; NaN is null."""
    item = value.item() if hasattr(value, "item") else value
    return None if isinstance(item, float) and not math.isfinite(item) else item


def make_judge_trainer() -> type:
    """The ``RayPPOTrainer`` of verl with the mixin."""
    from verl.trainer.ppo.ray_trainer import RayPPOTrainer  # noqa: PLC0415  (heavy)

    return type("JudgeRayPPOTrainer", (JudgeTrainerMixin, RayPPOTrainer), {})
