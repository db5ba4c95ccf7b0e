"""``python -m adjudge_lab.rl.verl.main_ppo …``: verl 0.6.1's ``main_ppo`` with a scaffold.

The command line of :mod:`adjudge.trainers.verl.main_ppo` and ``+adjudge.scaffold.…``; the trainer
has :class:`.scaffold_trainer.ScaffoldTrainerMixin`, too.
"""

from __future__ import annotations

from adjudge.trainers.verl.main_ppo import JudgeTaskRunnerMixin, main
from adjudge_lab.rl.verl.scaffold_trainer import build_scaffold_trainer


class ScaffoldTaskRunnerMixin(JudgeTaskRunnerMixin):
    """For a task runner of your own, as :class:`JudgeTaskRunnerMixin` is."""

    def trainer_class(self) -> type:
        """Verl's trainer with judges and the scaffold."""
        return build_scaffold_trainer()


if __name__ == "__main__":
    main(ScaffoldTaskRunnerMixin)
