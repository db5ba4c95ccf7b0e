"""The run file of ``adjudge train``: one TOML file that says what is trained against which judge.

Here it is data alone; ``runfile_checks`` loads and checks one, ``rewards`` makes its reward spec.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field

from adjudge.config_tables import ConfigFile
from adjudge.rubrics.parsing import RUBRIC_SUFFIXES
from adjudge_lab.rl.runfile_tables import (
    CAPITALS_ENV,
    MOCK_BASE_URL,
    TASK_APP_NAME,
    TINY_BASE,
    AlgorithmTable,
    ComputeTable,
    EvaluationTable,
    LoggingTable,
    RolloutTable,
    RunJudgeTable,
    RunModelTable,
    SentinelTable,
    ServicesTable,
    TopologyTable,
    TrainingTable,
)

_TINY_BYTES = 32 << 20
"""Weights under this many bytes learn at the tiny model's rate: a later stage's own, say."""


class RunFile(ConfigFile):
    """A whole run file; :func:`adjudge_lab.rl.runfile_checks.load_run_file` reads one.

    Without ``[[graders]]`` the rubric of ``[judge] rubric_id`` judges episodes, and turns where
    ``event_weight`` is not 0.
    """

    unnamed: ClassVar[str] = "run file"

    version: Literal[1] = 1
    kind: Literal["rl"] = "rl"
    backend: Literal["trl", "verl"] = "trl"
    algorithm: AlgorithmTable = AlgorithmTable()
    services: ServicesTable = ServicesTable()
    model: RunModelTable
    compute: ComputeTable = ComputeTable()
    topology: TopologyTable = TopologyTable()
    graders: list[dict[str, Any]] = Field(default=[])
    judge: RunJudgeTable = RunJudgeTable(enabled=False)
    rollout: RolloutTable = RolloutTable()
    training: TrainingTable = TrainingTable()
    evaluation: EvaluationTable = EvaluationTable()
    logging: LoggingTable = LoggingTable()
    sentinel: SentinelTable = SentinelTable()

    def with_seed(self, seed: int) -> RunFile:
        """The same run from another seed."""
        training = TrainingTable.model_validate({**self.training.model_dump(), "seed": seed})
        return self.model_copy(update={"training": training})

    @property
    def env_name(self) -> str:
        """The task's name: the environment's, or the dataset's file."""
        dataset = self.rollout.dataset
        unnamed = CAPITALS_ENV if self.services.task_url is None else TASK_APP_NAME
        return self.rollout.env_name or (Path(dataset).stem if dataset else unnamed)

    @property
    def is_multi_turn(self) -> bool:
        """Whether episodes may have several turns."""
        if self.services.task_url is not None:
            return True
        return self.rollout.dataset is None and self.env_name != CAPITALS_ENV

    @property
    def learning_rate(self) -> float:
        """As the file says, else what suits its model."""
        if self.training.learning_rate is not None:
            return self.training.learning_rate
        return 5e-4 if self._is_tiny else 1e-6

    @property
    def _is_tiny(self) -> bool:
        """Whether the policy is the tiny one, or a folder of weights that are as small."""
        weights = self.folder / self.model.base / "model.safetensors"
        small = weights.is_file() and weights.stat().st_size < _TINY_BYTES
        return self.model.base == TINY_BASE or small

    @property
    def starts_mock(self) -> bool:
        """Whether the run starts its own judge."""
        return self.judge.enabled and self.judge.base_url == MOCK_BASE_URL

    @property
    def judge_cards(self) -> list[Path]:
        """The cards of the trained judges that ``judge.folder`` names, of those that are there."""
        judge = self.judge
        cards = [self.folder / folder / "judge.json" for folder in judge.folders]
        return [card for card in cards if judge.enabled and card.is_file()]

    @property
    def lacks_trained_judge(self) -> bool:
        """Whether a trained judge is named that is not there (yet)."""
        return self.judge.enabled and len(self.judge_cards) < len(self.judge.folders)

    @property
    def rubric_file(self) -> Path | None:
        """Where the rubric of ``rubric_id`` stands, if it does; a task app may have it instead."""
        judge = self.judge
        if judge.rubric_id is None:
            return None
        folder = self.folder / judge.rubric_dir
        found = (folder / f"{judge.rubric_id}{suffix}" for suffix in RUBRIC_SUFFIXES)
        return next((path for path in found if path.is_file()), None)
