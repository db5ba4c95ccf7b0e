"""``python -m adjudge.trainers.verl.main_ppo …``: verl's ``main_ppo`` with judges.

The same command line as ``python -m verl.trainer.main_ppo``; ``adjudge`` and ``adjudge_grpo`` are
known, and the trainer is verl's with what it does not do with rewards by itself: in 0.6.1 log, dump
and validate them whole (:class:`JudgeTrainerMixin`), in 0.9.1 log them
(:class:`JudgeMetricsMixin`).

verl 0.9.1 logs no reward column of a training step, and has no setting for it. Metrics are made of
a step's rows; rollouts that are not in the step, because V1 ``sync`` takes an exception for a
missing reward, are counted by the reward actors, which are asked for their counts.
"""

from __future__ import annotations

import json
import math
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from adjudge.errors import AdjudgeError, JudgeAuthError, JudgeUnavailable
from adjudge.hosts import is_address
from adjudge.trainers.verl import check_verl_version, installed_verl
from adjudge.trainers.verl.reward_managers import COUNTS_REQUEST, JudgeRewardManager
from adjudge.trainers.verl.reward_sources import (
    VerlRun,
    check_estimator,
    check_scorer,
    make_checked_scorer,
    make_scorer,
)
from adjudge.trainers.verl.rewards import (
    DETAILS_COLUMN,
    METRICS_COLUMN,
    MISSING_COLUMN,
    MISSING_PARTS,
    find_caller_local,
    find_last_outputs,
    missing_metrics,
    read_loop_batch,
    read_loop_rows,
)

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

    make_checked_scorer(VerlRun(config), get_custom_reward_fn(config))


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
        if isinstance(self.reward_fn, JudgeRewardManager):
            check_estimator(VerlRun(self.config).estimator, self.reward_fn.source.spec)
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
        self, batch: Any, reward_fn: Any = None, return_dict: bool = False
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
            samples = self.reward_fn.reader.read(batch).samples
            self._dumped = [sample.messages for sample in samples]
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
        if all_details is not None:
            info[DETAILS_COLUMN] = all_details
        columns: dict[str, Sequence[Any] | None] = {
            "messages": messages if messages is not None else self._messages(n),
            "input": inputs,
            "output": outputs,
            "score": scores,
            "step": [self.global_steps] * n,
            "gts": gts,
            **{key: column for key, column in info.items() if key not in _COLUMNS_NOT_DUMPED},
        }
        kept = {key: col for key, col in columns.items() if col is not None and len(col) == n}
        rows = [
            _make_dumped_row({key: column[i] for key, column in kept.items()}) for i in range(n)
        ]
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


def _make_dumped_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row as JSON has it: NaN is null, and so is what stands in for a missing number."""
    plain = {name: one.item() if hasattr(one, "item") else one for name, one in row.items()}
    details = plain.get(DETAILS_COLUMN)
    if isinstance(details, str):
        details = plain[DETAILS_COLUMN] = json.loads(details)
    gone = details.pop(MISSING_PARTS, []) if isinstance(details, dict) else []
    if plain.get(MISSING_COLUMN) == 1.0:
        gone = [*gone, "score", "reward"]
    gone += [k for k, one in plain.items() if isinstance(one, float) and not math.isfinite(one)]
    return {name: None if name in gone else one for name, one in plain.items()}


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
            groups = [str(uid) for uid in batch.non_tensor_batch["uid"]]
            scored = read_loop_batch(batch, groups)
            output.meta_info["metrics"].update({} if scored is None else scored.metrics)
        return output

    def _take_counts(self) -> Counter[str]:
        """What reward actors counted since the last time, where only they can know."""
        if not VerlRun(self.config).is_absent:
            return Counter()
        import ray  # noqa: PLC0415  (verl's)
        from verl import DataProto  # noqa: PLC0415  (heavy)

        ask = DataProto(meta_info={COUNTS_REQUEST: True})
        workers = self.reward_loop_manager.reward_loop_workers
        answers = ray.get([worker.compute_score.remote(ask) for worker in workers])
        return sum((Counter(one["reward_extra_info"]) for one in answers), Counter())


def _queued_metrics(batch: Any) -> dict[str, float]:
    """Of the last output of each rollout in TransferQueue, padding left out."""
    import transfer_queue as tq  # type: ignore[import-not-found]  # noqa: PLC0415  (verl)

    pairs = zip(batch.keys, batch.tags, strict=True)
    keys = [key for key, tag in pairs if not tag.get("is_padding")]
    if not keys:
        return {}
    data = tq.kv_batch_get(
        keys=[keys[row] for row in sorted(set(find_last_outputs(keys)))],
        partition_id=batch.partition_id,
        select_fields=["uid", "rm_scores", "extra_fields"],
    )
    rows = list(data["rm_scores"].unbind())
    uids, extra = data.pop("uid").tolist(), data.pop("extra_fields").tolist()
    infos = [fields.get("reward_extra_info") or {} for fields in extra]
    if not all(MISSING_COLUMN in info for info in infos):
        return {}  # rewards that are not from here
    columns = {key: [info[key] for info in infos] for key in infos[0]}
    rewards = [float(row.sum()) for row in rows]
    return read_loop_rows(columns, rewards, uids, list(map(len, rows))).metrics


def make_judge_trainer() -> type:
    """The ``RayPPOTrainer`` of verl 0.6.1 with the mixin."""
    from verl.trainer.ppo.ray_trainer import RayPPOTrainer  # noqa: PLC0415  (heavy)

    return type("JudgeRayPPOTrainer", (JudgeTrainerMixin, RayPPOTrainer), {})


def make_metrics_trainer(trainer: type) -> type:
    """A trainer's class of verl 0.9.1 with the mixin."""
    return type(f"Judge{trainer.__name__}", (JudgeMetricsMixin, trainer), {})


class JudgeTaskRunnerMixin:
    """For a task runner of your own: ``class Runner(JudgeTaskRunnerMixin, TaskRunner)``."""

    def run(self, config: Any) -> None:
        """Train with the trainer that has the mixin; see verl's ``TaskRunner.run``."""
        from verl.trainer import main_ppo  # noqa: PLC0415  (heavy)

        from adjudge.trainers.verl import register  # noqa: PLC0415  (needs verl)

        if config.custom_reward_function.path is None:
            # verl loads this file wherever it looks a manager up: in Ray tasks and actors too.
            config.custom_reward_function.path = register.__file__
            config.custom_reward_function.name = "compute_score"
        # The one place where verl names its trainer class; this process is the run's own.
        main_ppo.RayPPOTrainer = self.trainer_class()
        super().run(config)  # type: ignore[misc]  # of the runner beside us

    def trainer_class(self) -> type:
        """The trainer that takes the place of verl's."""
        return make_judge_trainer()


class MetricsTaskRunnerMixin:
    """For a task runner of verl 0.9.1: its trainer logs ``judge/…``."""

    def run(self, config: Any) -> None:
        """Train with the trainer that has the mixin; see verl's task runners."""
        if config.trainer.use_v1:
            from verl.trainer.ppo.v1 import trainer_base  # noqa: PLC0415  (heavy)

            mode = config.trainer.v1.trainer_mode
            stock = trainer_base.get_trainer_cls(mode)
            # verl's own registry, in this process, which is the run's own.
            trainer_base.TRAINER_REGISTRY[mode] = make_metrics_trainer(stock)
        else:
            from verl.trainer import main_ppo_v0  # noqa: PLC0415  (heavy)

            main_ppo_v0.RayPPOTrainer = make_metrics_trainer(main_ppo_v0.RayPPOTrainer)
        super().run(config)  # type: ignore[misc]  # of the runner beside us


def main(mixin: type = JudgeTaskRunnerMixin) -> None:
    """Start Ray as verl does, and train; reads the command line.

    ``mixin``: what verl 0.6.1's task runner gets; that of 0.9.1 gets
    :class:`MetricsTaskRunnerMixin`.
    """
    import hydra  # noqa: PLC0415  (verl's)
    import ray  # noqa: PLC0415  (heavy)
    from verl.trainer import main_ppo  # noqa: PLC0415  (heavy)

    check_verl_version(installed_verl())
    old = find_spec("verl.trainer.main_ppo_v0") is None

    def train(config: Any) -> None:
        with ends_in_a_sentence():
            check_spec_file(config)
            if old:
                bases = (mixin, main_ppo.TaskRunner)
            else:
                _prepare(config)
                bases = metrics_runner_bases(use_v1=config.trainer.use_v1)
            runner = type("JudgeTaskRunner", bases, {})
            main_ppo.run_ppo(config, task_runner_class=ray.remote(num_cpus=1)(runner))

    folder = str(Path(main_ppo.__file__).with_name("config"))
    hydra.main(config_path=folder, config_name="ppo_trainer", version_base=None)(train)()


def metrics_runner_bases(*, use_v1: bool) -> tuple[type, type]:
    """The bases of verl 0.9.1's task runner with the mixin."""
    if use_v1:
        from verl.trainer.main_ppo import TaskRunnerV1 as Actor  # noqa: PLC0415  (heavy)
    else:
        from verl.trainer.main_ppo_v0 import TaskRunner as Actor  # noqa: PLC0415  (heavy)
    return MetricsTaskRunnerMixin, Actor.__ray_actor_class__


@contextmanager
def ends_in_a_sentence() -> Iterator[None]:
    """Say an error of ours as ``adjudge`` does, and end: Hydra and Ray would print their traces."""
    try:
        yield
    except AdjudgeError as error:  # from an actor it is one of Ray's, made of ours
        sys.stderr.write(f"adjudge: {getattr(error, 'cause', error)}\n")
        stopped = isinstance(error, JudgeUnavailable | JudgeAuthError)
        raise SystemExit(3 if stopped else 2) from None


def check_spec_file(config: Any) -> None:
    """Check the spec before Ray starts: verl itself builds reward managers after the models.

    Raises :class:`~adjudge.errors.ConfigError` where no run could use it. An address is not asked.
    """
    run = VerlRun(config)
    if run.spec is not None and not is_address(run.spec):
        check_scorer(run, make_scorer(run.spec, records=False), in_batches=run.in_batches)


def _prepare(config: Any) -> None:
    """What the ``main`` of verl 0.9.1 does before it trains."""
    from verl.trainer.ppo.utils import need_critic, need_reference_policy  # noqa: PLC0415
    from verl.utils.config import validate_config  # noqa: PLC0415
    from verl.utils.device import auto_set_device  # noqa: PLC0415

    auto_set_device(config)
    validate_config(
        config=config,
        use_reference_policy=need_reference_policy(config),
        use_critic=need_critic(config),
    )


if __name__ == "__main__":
    # Ray finds classes by the name of their module, which here is another.
    import_module("adjudge.trainers.verl.main_ppo").main()
