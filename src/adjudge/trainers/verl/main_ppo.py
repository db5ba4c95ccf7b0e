"""``python -m adjudge.trainers.verl.main_ppo …``: verl's ``main_ppo`` with judges.

The same command line as ``python -m verl.trainer.main_ppo``; ``adjudge`` and ``adjudge_grpo`` are
known, and the trainer is verl's with :class:`.trainer.JudgeTrainerMixin` (0.6.1) or
:class:`.step_metrics.JudgeMetricsMixin` (0.9.1).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from adjudge.errors import AdjudgeError, JudgeAuthError, JudgeUnavailable
from adjudge.hosts import is_address
from adjudge.trainers.scoring import SPEC_VARIABLE, Scorer
from adjudge.trainers.verl.advantage import check_estimator, configured_estimator, raises_on_missing
from adjudge.trainers.verl.reward_sources import (
    MissingRewardChannel,
    check_scorer,
    configured_spec,
    detect_channel,
    refuse_verl_schedules,
)
from adjudge.trainers.verl.step_metrics import make_metrics_trainer
from adjudge.trainers.verl.trainer import make_judge_trainer
from adjudge.trainers.verl.versions import check_verl_version, installed_verl


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


def make_task_runner(mixin: type = JudgeTaskRunnerMixin) -> type:
    """Verl's ``TaskRunner`` with the mixin."""
    from verl.trainer.main_ppo import TaskRunner  # noqa: PLC0415  (heavy)

    return type("JudgeTaskRunner", (mixin, TaskRunner), {})


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


def make_metrics_runner(*, use_v1: bool) -> type:
    """The task runner of verl 0.9.1 with the mixin."""
    if use_v1:
        from verl.trainer.main_ppo import TaskRunnerV1 as Actor  # noqa: PLC0415  (heavy)
    else:
        from verl.trainer.main_ppo_v0 import TaskRunner as Actor  # noqa: PLC0415  (heavy)
    return type("JudgeTaskRunner", (MetricsTaskRunnerMixin, Actor.__ray_actor_class__), {})


def main(runner: type | None = None) -> None:
    """Start Ray as verl does, and train; reads the command line.

    ``runner``: the class that trains, by default :func:`make_task_runner`'s, or in 0.9.1
    :func:`make_metrics_runner`'s.
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
                made = runner or make_task_runner()
            else:
                _prepare(config)
                made = runner or make_metrics_runner(use_v1=config.trainer.use_v1)
            main_ppo.run_ppo(config, task_runner_class=ray.remote(num_cpus=1)(made))

    folder = str(Path(main_ppo.__file__).with_name("config"))
    hydra.main(config_path=folder, config_name="ppo_trainer", version_base=None)(train)()


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
    spec = configured_spec(config) or os.environ.get(SPEC_VARIABLE)
    if not spec or is_address(str(spec)):
        return
    scorer = Scorer(str(spec))
    scorer.spec.refuse_undrawn()
    rollout = (config.get("actor_rollout_ref") or {}).get("rollout") or {}
    old = detect_channel(config) is MissingRewardChannel.LOOP_061
    if not old or rollout.get("mode") == "async":
        check_scorer(config, scorer)
        return
    refuse_verl_schedules(scorer.spec)
    if not raises_on_missing(scorer.spec):
        check_estimator(configured_estimator(config), scorer.spec)


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
    main()
