"""``python -m adjudge.trainers.verl.main_ppo …``: verl's ``main_ppo`` with judges.

The same command line as ``python -m verl.trainer.main_ppo``; ``adjudge`` and ``adjudge_grpo`` are
known, and the trainer is verl's with :class:`.trainer.JudgeTrainerMixin`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from adjudge.trainers.verl.trainer import make_judge_trainer


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


def main(runner: type | None = None) -> None:
    """Start Ray as verl does, and train; reads the command line.

    ``runner``: the class that trains, by default :func:`make_task_runner`'s.
    """
    import hydra  # noqa: PLC0415  (verl's)
    import ray  # noqa: PLC0415  (heavy)
    from verl.trainer import main_ppo  # noqa: PLC0415  (heavy)

    def train(config: Any) -> None:
        main_ppo.run_ppo(
            config, task_runner_class=ray.remote(num_cpus=1)(runner or make_task_runner())
        )

    folder = str(Path(main_ppo.__file__).with_name("config"))
    hydra.main(config_path=folder, config_name="ppo_trainer", version_base=None)(train)()


if __name__ == "__main__":
    main()
