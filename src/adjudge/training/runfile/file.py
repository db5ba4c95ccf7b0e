"""The run file of ``adjudge train``: one TOML file that says what is trained against which judge.

The reward is asked through an ordinary reward spec, made from ``[[graders]]`` and ``[judge]``.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal, NoReturn

import msgspec
from pydantic import BaseModel, ConfigDict, PrivateAttr

from adjudge.config import load_toml, validate
from adjudge.errors import ConfigError
from adjudge.graders.registry import grader_class, parameters
from adjudge.judges.presets import PRESETS
from adjudge.rewards.spec import RewardSpec
from adjudge.rubrics import RubricBundle, load_bundle
from adjudge.rubrics.load import SUFFIXES
from adjudge.service.settings import KEY_VARIABLE
from adjudge.training.runfile.checks import check_run
from adjudge.training.runfile.tables import (
    CAPITALS,
    MOCK,
    TASK_APP,
    TINY,
    Algorithm,
    Compute,
    Evaluation,
    JudgeTable,
    Logging,
    Model,
    Rollout,
    SentinelTable,
    Services,
    Topology,
    Training,
)
from adjudge.training.runfile.trained import trained_judge

__all__ = ["RunFile"]

_OF_REWARD = (
    "event_weight", "outcome_weight", "event_reduce", "aggregate", "beta", "combine_mode",
    "judge_scale", "negative_env", "sample_rate", "unjudged",
)  # fmt: skip


_TINY_BYTES = 32 << 20
"""Weights under this many bytes learn at the tiny model's rate: a later stage's own, say."""


class RunFile(BaseModel):
    """A whole run file; :meth:`load` reads one.

    Without ``[[graders]]`` the rubric of ``[judge] rubric_id`` judges episodes, and turns where
    ``event_weight`` is not 0.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    version: Literal[1] = 1
    kind: Literal["rl"] = "rl"
    backend: Literal["trl", "verl"] = "trl"
    algorithm: Algorithm = Algorithm()
    services: Services = Services()
    model: Model
    compute: Compute = Compute()
    topology: Topology = Topology()
    graders: list[dict[str, Any]] = []
    judge: JudgeTable = JudgeTable(enabled=False)
    rollout: Rollout = Rollout()
    training: Training = Training()
    evaluation: Evaluation = Evaluation()
    logging: Logging = Logging()
    sentinel: SentinelTable = SentinelTable()

    _where: str = PrivateAttr(default="run file")
    _folder: Path | None = PrivateAttr(default=None)

    @classmethod
    def load(cls, path: Path | str) -> RunFile:
        """The run in ``path``; raises :class:`ConfigError` naming file, key and remedy.

        The ``config.toml`` of a run folder is read as if it still stood where it came from.
        """
        path = Path(path)
        return cls.from_dict(load_toml(path), where=str(path), folder=_beside(path))

    @classmethod
    def from_dict(
        cls, data: dict[str, Any], *, where: str = "run file", folder: Path | None = None
    ) -> RunFile:
        """A run from plain data; ``where`` opens every complaint."""
        run = validate(cls, data, where)
        run._where, run._folder = where, folder  # noqa: SLF001  (a private attribute of its own)
        check_run(run)
        return run

    def with_seed(self, seed: int) -> RunFile:
        """The same run from another seed."""
        training = Training.model_validate({**self.training.model_dump(), "seed": seed})
        return self.model_copy(update={"training": training})

    @property
    def where(self) -> str:
        """The file the run came from, for messages."""
        return self._where

    @property
    def folder(self) -> Path:
        """What the file's relative paths start from."""
        return self._folder or Path()

    @property
    def env_name(self) -> str:
        """The task's name: the environment's, or the dataset's file."""
        dataset = self.rollout.dataset
        unnamed = CAPITALS if self.services.task_url is None else TASK_APP
        return self.rollout.env_name or (Path(dataset).stem if dataset else unnamed)

    @property
    def is_multi_turn(self) -> bool:
        """Whether episodes may have several turns."""
        if self.services.task_url is not None:
            return True
        return self.rollout.dataset is None and self.env_name != CAPITALS

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
        return self.model.base == TINY or small

    @property
    def starts_mock(self) -> bool:
        """Whether the run starts its own judge."""
        return self.judge.enabled and self.judge.base_url == MOCK

    @property
    def judge_key_env(self) -> str | None:
        """The variable with the judge's key; ``None`` where none is needed."""
        judge, preset = self.judge, PRESETS.get(self.judge.type)
        if not judge.enabled or self.starts_mock or judge.folders or self.is_ruled:
            return None
        if judge.api_key_env is None and preset is not None and preset.needs_key:
            return preset.key_env
        return judge.api_key_env

    @property
    def judge_name(self) -> str | None:
        """What the judge is called in reports; ``None`` without one."""
        judge = self.judge
        if not judge.enabled:
            return None
        if judge.folders:
            return ", ".join(Path(folder).name for folder in judge.folders)
        return "rules" if self.is_ruled else judge.model

    @property
    def is_ruled(self) -> bool:
        """Whether rules alone make the judge's part, so that nobody is asked and none is named."""
        judge = self.judge
        if not judge.enabled or judge.folders or judge.model or judge.rubric_id is not None:
            return False
        return bool(self.graders) and not self._judged(self.graders)

    @property
    def judge_cards(self) -> list[Path]:
        """The cards of the trained judges that ``judge.folder`` names, of those that are there."""
        judge = self.judge
        cards = [self.folder / folder / "judge.json" for folder in judge.folders]
        return [card for card in cards if judge.enabled and card.is_file()]

    @property
    def awaits_judge(self) -> bool:
        """Whether a trained judge is named that is not there (yet)."""
        return self.judge.enabled and len(self.judge_cards) < len(self.judge.folders)

    @property
    def rubric_file(self) -> Path | None:
        """Where the rubric of ``rubric_id`` stands, if it does; a task app may have it instead."""
        judge = self.judge
        if judge.rubric_id is None:
            return None
        folder = self.folder / judge.rubric_dir
        found = (folder / f"{judge.rubric_id}{suffix}" for suffix in SUFFIXES)
        return next((path for path in found if path.is_file()), None)

    def reward_spec(
        self,
        base_url: str | None = None,
        service_url: str | None = None,
        rubric: RubricBundle | None = None,
    ) -> RewardSpec:
        """The reward spec of the run, its judge at ``base_url`` (default: the file's).

        With ``service_url`` what :meth:`served` holds is asked there. ``rubric`` is what a task
        app has under ``rubric_id``. Raises :class:`ConfigError`.
        """
        if not self.judge.enabled:
            return self._without_judge()
        training = self.training
        graders = self._graders(rubric)
        spec: dict[str, Any] = {
            "graders": graders,
            "judges": self._judges(base_url),
            "reward": {
                **{name: getattr(self.judge, name) for name in _OF_REWARD},
                "seed": training.seed,
            },
            "max_concurrency": training.async_semaphore_max,
        }
        if service_url is not None:
            judged = self._judged(graders)
            spec["graders"] = [
                self._served_grader(judged, service_url),
                *(one for one in graders if one not in judged),
            ]
            del spec["judges"]
        return self._spec(spec)

    def served(
        self, base_url: str | None = None, rubric: RubricBundle | None = None
    ) -> dict[str, Any]:
        """The reward spec, as plain data, of the judge service that ``[services]`` asks for."""
        return {
            "graders": self._judged(self._graders(rubric)),
            "judges": self._judges(base_url),
            "reward": {"aggregate": self.judge.aggregate, "beta": self.judge.beta},
            "max_concurrency": self.training.async_semaphore_max,
        }

    def _spec(self, data: dict[str, Any]) -> RewardSpec:
        try:
            return RewardSpec.from_dict(data, where=self._where, folder=self._folder)
        except ConfigError as error:  # the file has one judge, in a table of this name
            theirs, ours = f"{self._where}: judges.judge", f"{self._where}: judge."
            lines = (
                ours + line.removeprefix(theirs).lstrip(".: ") if line.startswith(theirs) else line
                for line in str(error).split("\n")
            )
            raise ConfigError("\n".join(lines)) from None

    def _without_judge(self) -> RewardSpec:
        """The environment's reward alone, with the rules that are only watched."""
        watched = [one for one in self.graders if one not in self._judged(self.graders)]
        env = {"name": "environment", "type": "adjudge.training.judging:EnvironmentReward"}
        return self._spec(
            {
                "graders": [env, *({**one, "weight": 0.0} for one in watched)],
                "reward": {"normalise": False, "seed": self.training.seed},
            }
        )

    def _graders(self, rubric: RubricBundle | None) -> list[dict[str, Any]]:
        """The file's graders, and those that its rubric makes."""
        judge = self.judge
        if judge.enabled and judge.folders:
            return [*trained_judge(self)["graders"], *self.graders]
        if judge.rubric_id is None:
            return self.graders
        source: dict[str, Any] = {
            "rubric_id": judge.rubric_id,
            "rubric_dir": judge.rubric_dir,
        }
        if self.rubric_file is None and rubric is not None:
            source = {"criteria": msgspec.to_builtins(rubric)}
        made = []
        if judge.outcome_weight:
            show = "trajectory" if self.is_multi_turn else "auto"
            made.append({"name": "rubric", "type": "rubric", "show": show, **source})
        if judge.event_weight:
            known = rubric if self.rubric_file is None else load_bundle(self.rubric_file)
            part = "events" if known is not None and known.events is not None else "outcome"
            made.append(
                {
                    "name": "rubric_event", "type": "rubric", "scope": "event", "show": "event",
                    "part": part, **source,
                }
            )  # fmt: skip
        return [*made, *self.graders]

    def _served_grader(self, judged: list[dict[str, Any]], url: str) -> dict[str, Any]:
        training = self.training
        served = {
            "name": judged[0]["name"] if len(judged) == 1 else "judged",
            "type": "adjudge.training.served:ServedJudge",
            "url": url,
            "timeout": training.judge_timeout_s,
            "max_concurrent_requests": training.async_semaphore_max,
            "weight": sum(float(one.get("weight", 1.0)) for one in judged),
        }
        if any(one.get("essential") for one in judged):
            served["essential"] = True
        if os.environ.get(KEY_VARIABLE):  # then the service asks for it
            served["api_key_env"] = KEY_VARIABLE
        return served

    def _judged(self, graders: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Those of ``graders`` that ask the judge."""
        return [one for one in graders if self.asks_judge(one)]

    def asks_judge(self, grader: dict[str, Any]) -> bool:
        """Whether an entry of ``[[graders]]`` asks the judge; raises :class:`ConfigError`."""
        given = str(grader.get("type", ""))
        try:
            return any(p.is_judge for p in parameters(grader_class(given, self._folder)))
        except ConfigError as error:
            raise ConfigError(f"{self._where}: graders.{grader.get('name')}: {error}") from None

    def _judges(self, base_url: str | None) -> dict[str, Any]:
        if self.judge.folders:
            judges: dict[str, Any] = trained_judge(self)["judges"]
            return judges
        if self.is_ruled:
            return {}
        return {"judge": self._judge_at(base_url)}

    def _judge_at(self, base_url: str | None) -> dict[str, Any]:
        judge, most = self.judge, self.training.async_semaphore_max
        table: dict[str, Any] = {
            "type": judge.type,
            "model": judge.model,
            "base_url": base_url or judge.base_url,
            "api_key_env": judge.api_key_env,
            "price": judge.price,
        }
        table = {key: value for key, value in table.items() if value is not None}
        table["endpoint"] = {
            "deadline_s": self.training.judge_timeout_s,
            "max_concurrency": most,
            "start_concurrency": min(20, most),
            "min_concurrency": min(4, most),
        }
        return table

    def refuse(self, key: str, message: str) -> NoReturn:
        """Raise :class:`ConfigError` about one key of the file."""
        raise ConfigError(f"{self._where}: {key}: {message}")


def _beside(path: Path) -> Path:
    """The folder that a run file's relative paths start from."""
    if path.name == "config.toml":
        try:
            facts = msgspec.json.decode(path.with_name("run.json").read_bytes(), type=_Facts)
        except (OSError, msgspec.MsgspecError):
            return path.parent
        return Path(facts.beside)
    return path.parent


class _Facts(msgspec.Struct):
    beside: str
