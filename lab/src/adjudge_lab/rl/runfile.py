"""The run file of ``adjudge train``: one TOML file that says what is trained against which judge.

Here it is data alone, one class a table; ``runfile_checks`` loads and checks one, ``rewards`` makes
its reward spec.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import ConfigDict, Field, field_validator, model_validator

from adjudge.config_tables import ConfigFile, ConfigTable
from adjudge.judges.models.model_files import MODEL_FILES
from adjudge.judges.presets import PRESETS
from adjudge.mock.behaviours import MockSettings
from adjudge.rewards.spec import CombineMode, JudgedReward
from adjudge.rubrics import RUBRIC_SUFFIXES
from adjudge_lab.environments.tasks import MAX_SEEDS, parse_seeds

CAPITALS_ENV = "capitals"
"""The built-in task: name a country's capital."""

SHIPPED_ENVIRONMENTS = {
    CAPITALS_ENV: "adjudge_lab.rl.tiny:CapitalsTask",
    "crafter": "adjudge_lab.environments.crafter:CrafterEnvironment",
}
"""What ``rollout.env_name`` may be, beside an environment of the user's own or of a package."""

MOCK_BASE_URL = "mock"
"""``base_url = "mock"``: the run starts ``adjudge mock`` itself and asks that."""

TASK_APP_NAME = "task app"
"""What a task app's environment is called here where the file does not name it."""

TINY_BASE = "tiny"
"""``base = "tiny"``: a small model made on the spot."""

UNREACHABLE_URL = "http://127.0.0.1:9/v1"
"""An address to build judges with that are not asked."""

_MOCK_LISTS = ("keywords", "latency", "fail")


class AlgorithmTable(ConfigTable):
    """``[algorithm]``: ``grpo`` clips each token's ratio, ``gspo`` that of the whole sequence.

    ``adv_estimator``: ``adjudge_grpo`` gives each turn the advantage of what came from it on;
    ``grpo`` the same number to all turns of a rollout. Without event rewards they are one.
    """

    type: Literal["online"] = "online"
    method: Literal["policy_gradient"] = "policy_gradient"
    variety: Literal["grpo", "gspo"] = "grpo"
    adv_estimator: Literal["adjudge_grpo", "grpo"] = "adjudge_grpo"


class ServicesTable(ConfigTable):
    """``[services]``.

    ``task_url``: a task app that plays episodes (``POST /rollout``); its key, where it wants one,
    is in the environment variable ``task_key_env``. An app on another machine asks the policy at
    ``policy_url``, which must lead to ``policy_host`` and ``policy_port`` here.
    ``judge_url = "serve"`` puts ``adjudge serve`` between run and judge: the run starts it with its
    graders that ask the judge; rules stay here.
    """

    task_url: str | None = None
    task_key_env: str = "ENVIRONMENT_API_KEY"
    policy_host: str = "127.0.0.1"
    policy_port: int = Field(default=0, ge=0, lt=65536)
    policy_url: str | None = None
    judge_url: Literal["serve"] | None = None

    @field_validator("task_url")
    @classmethod
    def _an_address(cls, url: str | None) -> str | None:
        if url is not None and not re.match(r"https?://[^\s/@]+(/[^\s@]*)?\Z", url):
            raise ValueError("must be http://HOST or https://HOST, without a user name or password")
        return url


class RunModelTable(ConfigTable):
    """``[model]``: ``base`` is a folder or a name on the hub; ``tiny`` is built on the spot.

    It may also be a GGUF file, or a name that ``adjudge models fetch`` knows (``smollm2``).
    ``label`` is for reports and folders. ``custom_chat_template``: a Jinja file beside the run
    file, in place of the model's own template.
    """

    base: str
    label: str = ""
    custom_chat_template: str | None = None

    @model_validator(mode="after")
    def _has_one(self) -> RunModelTable:
        if self.base == TINY_BASE and self.custom_chat_template is not None:
            raise ValueError(
                f"base = {TINY_BASE!r} has its own chat template. Leave custom_chat_template out."
            )
        return self


class ComputeTable(ConfigTable):
    """``[compute]``: the machine that is meant; a run uses what it finds and says if it differs."""

    gpu_type: str | None = None
    gpu_count: int | None = Field(default=None, ge=0)


class TopologyTable(ConfigTable):
    """``[topology]``: which share of the GPUs generates, trains, and holds the reference model."""

    type: Literal["single_node", "single_node_split"] = "single_node"
    gpus_for_vllm: int | None = Field(default=None, ge=0)
    gpus_for_training: int | None = Field(default=None, ge=0)
    gpus_for_ref: int | None = Field(default=None, ge=0)


PanelAggregate = Literal["weighted_mean", "min"]
"""How the graders of a run file, or the members of a panel, become one number."""


class MockTable(ConfigTable):
    """``[judge.mock]``: the settings of ``adjudge mock`` when the run starts it."""

    behaviour: str = "rubric"
    keywords: list[str] = Field(default=[])
    latency: list[str] = Field(default=[])
    fail: list[str] = Field(default=[])
    seed: int | None = None

    def settings(self) -> MockSettings:
        """These settings; raises :class:`ConfigError` in the words of ``adjudge mock``."""
        table = self.model_dump()
        return MockSettings(**table | {name: tuple(table[name]) for name in _MOCK_LISTS})


_JUDGE_KEYS = ("model", "base_url", "api_key_env", "price")


class RunJudgeTable(JudgedReward):
    """``[judge]``: who judges by what, and how the judge's part J and the environment combine.

    It takes what a table ``[judges.NAME]`` of a reward spec takes, read by the same reader, with
    ``temperature`` 0 for a server where none is given. ``budget_usd``: the most that the judge may
    cost in the run's folder.

    ``weighted_sum`` is env + ``judge_scale``·J, ``multiply`` env·``judge_scale``·J, ``replace``
    ``judge_scale``·J, with J = ``event_weight``·E + ``outcome_weight``·O; E is the sum over turns,
    or their mean by ``event_reduce``. Several graders are one number by ``aggregate``,
    missing if one is missing. ``rubric_id`` is looked up in the folder ``rubric_dir`` beside the
    run file, else asked of the task app. ``folder`` is that of a judge that ``adjudge train`` made,
    or a list of them, a panel; it says what is asked, so that ``model`` and the like are left out.
    Where all graders are rules, J is theirs and there is no judge to name. ``enabled = false``:
    no judge is asked, and the environment's reward is the reward.
    """

    model_config = ConfigDict(extra="allow")

    enabled: bool = True
    folder: str | list[str] | None = None
    type: str = "openai"
    model: str = ""
    base_url: str | list[str] | None = None
    api_key_env: str | None = None
    rubric_id: str | None = None
    rubric_dir: str = "rubrics"
    aggregate: PanelAggregate = "weighted_mean"
    combine_mode: CombineMode = "weighted_sum"
    price: dict[str, float] | None = None
    budget_usd: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    mock: MockTable | None = None

    @property
    def has_server(self) -> bool:
        """Whether the judge's calls go to a server."""
        return self.type in PRESETS

    def judge_table(self) -> dict[str, Any]:
        """What is set of the keys that a spec's ``[judges.NAME]`` has."""
        names = [name for name in _JUDGE_KEYS if getattr(self, name)]
        return {"type": self.type, **self.model_dump(include={*names, *(self.model_extra or ())})}

    @property
    def endpoint(self) -> dict[str, Any]:
        """What the file says of the way to the judge; a table, or its reader complains."""
        said = (self.model_extra or {}).get("endpoint")
        return said if isinstance(said, dict) else {}

    @property
    def base_urls(self) -> list[str]:
        """The addresses of the file, if it names any."""
        url = self.base_url
        return [] if url is None else [url] if isinstance(url, str) else url

    @field_validator("folder")
    @classmethod
    def _of_somebody(cls, folder: str | list[str] | None) -> str | list[str] | None:
        if isinstance(folder, list) and (not folder or len(set(folder)) < len(folder)):
            raise ValueError("a list must name at least one folder, and each folder once")
        return folder

    @property
    def folders(self) -> list[str]:
        """The folders of trained judges, several for a panel."""
        if self.folder is None:
            return []
        return [self.folder] if isinstance(self.folder, str) else list(self.folder)


class ScaffoldTable(ConfigTable):
    """``[rollout.scaffold]``: in training the policy is shown some of its row's rubrics.

    RuscaRL (arXiv 2508.16949), by its own names less the prefix ``graded_system_prompt_``.
    ``rule``: ``linear`` and ``binary`` share out inside a group only; ``step_…`` multiply that
    share, by ``group_decay_type``, with one that falls over the run.

    The trained prompt is the one without rubrics, unless ``participate_training``. ``correction``:
    ``truncated_is`` weighs each token by min(π(token | without) / π(token | shown),
    ``correction_cap``); ``none`` is RuscaRL as published: its gradient has no correction.
    """

    rule: Literal["linear", "binary", "step_linear", "step_power", "step_sigmoid"] = "step_sigmoid"
    group_decay_type: Literal["linear", "binary"] = "linear"
    full_reveal_count: int = Field(default=1, ge=0)
    step_power_n: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    step_sigmoid_start_point: float = Field(default=0.3, ge=0, le=1)
    step_sigmoid_steepness: float = Field(default=10.0, gt=0, allow_inf_nan=False)
    add_base_when_zero: bool = False
    include_evaluation_warning: bool = True
    participate_training: bool = False
    correction: Literal["truncated_is", "none"] = "truncated_is"
    correction_cap: float = Field(default=2.0, gt=0, allow_inf_nan=False)


class RolloutTable(ConfigTable):
    """``[rollout]``: the task, and how it is played.

    ``env_name``: ``capitals``, ``crafter``, a class of yours as ``module:Class``, or what a task
    app calls it; ``env_config`` goes to it. ``dataset``: a file of single-turn prompts instead;
    ``env_grader`` names a grader (a rule of weight 0); its score is then the environment's
    reward. ``max_turns``: replies per episode; ``max_tokens``: tokens per reply.
    ``episodes_per_batch``: episodes played side by side (by default as many as are wanted), of
    which ``max_concurrent_rollouts`` at most. ``policy_name``: how a task app knows the policy.
    ``scaffold``: for a dataset with rubrics.
    """

    env_name: str | None = None
    env_config: dict[str, Any] = Field(default={})
    dataset: str | None = None
    env_grader: str | None = None
    max_turns: int = Field(default=20, ge=1, le=10_000)
    max_tokens: int = Field(default=512, ge=4)
    temperature: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    episodes_per_batch: int | None = Field(default=None, ge=1)
    max_concurrent_rollouts: int = Field(default=256, ge=1)
    policy_name: str = "adjudge"
    scaffold: ScaffoldTable | None = None

    @model_validator(mode="after")
    def _one_task(self) -> RolloutTable:
        if self.dataset is not None and self.env_name is not None:
            raise ValueError("env_name and dataset cannot be used together. Give one of them.")
        if self.env_grader is not None and self.dataset is None:
            raise ValueError(
                "env_grader can only be used with a dataset, because an environment gives its own "
                "reward. Leave env_grader out."
            )
        return self


class TrainingTable(ConfigTable):
    """``[training]``.

    ``batch_size``: rollouts generated at a time, in groups of ``group_size`` from one beginning;
    ``gradient_accumulation_steps`` such batches make one update of the policy, one iteration.
    ``trained_layers``: only the last so many layers of the model learn; all else stays as it is.
    ``warm_start_iterations``: steps of supervised fine-tuning before, 32 demonstrated answers or 8
    longer ones each (``base = "tiny"`` only, which otherwise cannot say anything).
    ``learning_rate`` is 5e-4 by default for ``base = "tiny"`` and weights as small, and 1e-6, the
    trainers' own, for any other model.

    ``async_semaphore_max``: questions to the judge in flight; ``judge_timeout_s``: after which one
    that has no answer is missing. Each rollout is judged as it ends. With
    ``pipeline_async_enabled`` the next batch is generated while this one is judged: the policy is
    then one update older than what is trained on, and the ratio is to what it was.

    ``step_rewards_enabled``: the environment's reward of a turn belongs to that turn (and what led
    to it), not to the whole rollout; it is then ``step_rewards_beta`` · reward +
    ``step_rewards_indicator_lambda`` if the turn brought a new achievement.
    """

    num_epochs: int = Field(default=1, ge=1)
    iterations_per_epoch: int = Field(default=70, ge=1)
    warm_start_iterations: int = Field(default=160, ge=0)
    batch_size: int = Field(default=64, ge=2)
    group_size: int = Field(default=8, ge=2)
    gradient_accumulation_steps: int = Field(default=1, ge=1)
    learning_rate: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    trained_layers: int | None = Field(default=None, ge=1)
    pipeline_async_enabled: bool = False
    async_semaphore_max: int = Field(default=16, ge=1)
    judge_timeout_s: float = Field(default=30.0, gt=0, allow_inf_nan=False)
    step_rewards_enabled: bool = False
    step_rewards_mode: Literal["off", "decision_stepwise"] = "decision_stepwise"
    step_rewards_beta: float = Field(default=1.0, allow_inf_nan=False)
    step_rewards_indicator_lambda: float = Field(default=0.0, allow_inf_nan=False)
    save_every_n_iters: int = Field(default=10, ge=1)
    seed: int = Field(default=0, ge=0, lt=2**32)

    @property
    def steps(self) -> int:
        """Policy updates in all."""
        return self.num_epochs * self.iterations_per_epoch

    @property
    def rollouts_per_step(self) -> int:
        """Rollouts behind one update."""
        return self.batch_size * self.gradient_accumulation_steps

    @property
    def stepwise(self) -> bool:
        """Whether the environment's rewards belong to turns."""
        return self.step_rewards_enabled and self.step_rewards_mode == "decision_stepwise"


class EvaluationTable(ConfigTable):
    """``[evaluation]``: held-out episodes before and after, and every ``every_n_iters`` steps.

    ``seeds``: their beginnings, a list or ``"1-20"``, never trained on; by default the first
    ``instances``. With both, the first ``instances`` of ``seeds``. ``kl``: how far the policy is
    from what it was before the first update, too, for which a second copy of it is held.

    Of a dataset: ``split`` is the column by which held-out prompts are reported apart;
    ``baselines`` are columns with an answer that the policy is compared with. ``report_spec``: a
    reward spec; its graders judge the first ``report_instances`` held-out answers (by default
    all). Their scores are reported, and never trained on.
    """

    instances: int | None = Field(default=None, ge=1, le=MAX_SEEDS)
    every_n_iters: int = Field(default=0, ge=0)
    seeds: list[int] | None = None
    kl: bool = False
    split: str | None = None
    baselines: list[str] = Field(default=[])
    report_spec: str | None = None
    report_instances: int | None = Field(default=None, ge=1)

    @field_validator("seeds", mode="before")
    @classmethod
    def _numbers(cls, seeds: Any) -> Any:
        found = parse_seeds(seeds) if isinstance(seeds, str) else seeds
        if not isinstance(found, list) or any(type(seed) is not int for seed in found):
            raise ValueError('must be a list of whole numbers, or text such as "1-20"')
        if not found or min(found) < 0 or len(set(found)) < len(found):
            raise ValueError("must be one or more different whole numbers from 0")
        return found

    @property
    def held_out(self) -> list[int]:
        """The seeds that are evaluated."""
        found = range(self.instances or 16) if self.seeds is None else self.seeds
        return list(found[: self.instances])


class LoggingTable(ConfigTable):
    """``[logging]``: where metrics go beside the run's own files.

    ``auto`` is Trackio where it is installed, else nowhere; ``module:Class`` a sink of one's own.
    """

    to: str = "auto"


class SentinelTable(ConfigTable):
    """``[sentinel]``: what to do on an alarm, and the grader of weight 0 that is the gold."""

    action: Literal["warn", "stop"] = "warn"
    gold: str | None = None


_TINY_BYTES = 32 << 20
"""Weights under this many bytes learn at the tiny model's rate: a later stage's own, say."""


class RunFile(ConfigFile):
    """A whole run file; :func:`adjudge_lab.rl.runfile_checks.load_run_file` reads one.

    Without ``[[graders]]`` the rubric of ``[judge] rubric_id`` judges episodes, and turns where
    ``event_weight`` is not 0. ``[verl]``: settings of verl by verl's own names, tables within
    tables or dotted; ``[trl]``: fields of TRL's ``GRPOConfig``.
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
    verl: dict[str, Any] = Field(default={})
    trl: dict[str, Any] = Field(default={})

    def with_seed(self, seed: int) -> RunFile:
        """The same run from another seed."""
        training = TrainingTable.model_validate({**self.training.model_dump(), "seed": seed})
        return self.model_copy(update={"training": training})

    def with_budget(self, dollars: float) -> RunFile:
        """The same run with another ``judge.budget_usd``."""
        judge = self.judge.model_copy(update={"budget_usd": dollars})
        return self.model_copy(update={"judge": judge})

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
    def scheduled_weights(self) -> dict[str, Any]:
        """The weights of graders that are schedules over training steps, by grader."""
        weights = {str(one.get("name")): one.get("weight") for one in self.graders}
        return {name: weight for name, weight in weights.items() if isinstance(weight, dict)}

    @property
    def learning_rate(self) -> float:
        """As the file says, else what suits its model."""
        if self.training.learning_rate is not None:
            return self.training.learning_rate
        return 5e-4 if self.is_tiny else 1e-6

    @property
    def is_tiny(self) -> bool:
        """Whether the policy is the tiny one, or a folder of weights that are as small."""
        weights = self.folder / self.model.base / "model.safetensors"
        small = weights.is_file() and weights.stat().st_size < _TINY_BYTES
        return self.model.base == TINY_BASE or small

    @property
    def is_gguf(self) -> bool:
        """Whether the model's weights are those of a GGUF file, fetched or the user's own."""
        base = self.model.base
        known = base in MODEL_FILES or base.lower().endswith(".gguf")
        return known and not (self.folder / base).is_dir()

    @property
    def report_spec_file(self) -> Path | None:
        """The reward spec of the graders that only report."""
        name = self.evaluation.report_spec
        return None if name is None else self.folder / name

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
        """The rubric's file by ``rubric_id``, if it exists; else a task app may have the rubric."""
        judge = self.judge
        if judge.rubric_id is None:
            return None
        folder = self.folder / judge.rubric_dir
        found = (folder / f"{judge.rubric_id}{suffix}" for suffix in RUBRIC_SUFFIXES)
        return next((path for path in found if path.is_file()), None)
