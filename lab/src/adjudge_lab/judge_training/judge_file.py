"""The training file of a judge (``kind = "judge"``): its tables, defaults by method, and checks.

One TOML file says how a judge is made. :class:`JudgeJob` is such a file with a folder to train it
into.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, PrivateAttr, field_validator, model_validator

from adjudge.config_tables import ConfigFile, ConfigTable
from adjudge.datasets.sources import is_on_hub, resolve_data_file
from adjudge.errors import ConfigError
from adjudge_lab.rl.trainer_settings import MODEL_OPTIONS, check_model_options
from adjudge_lab.synthetic import SyntheticSettings

Truncation = Literal["right", "left", "error"]


MethodName = Literal["sft", "bradley_terry", "grpo"]

TINY_MODEL = "tiny"
"""``path = "tiny"``: a small model made on the spot."""

_DefaultTables = dict[str, Any]

METHOD_DEFAULTS: Mapping[str, _DefaultTables] = {
    "sft": {
        "model": {"path": "./models/Qwen3-14B"},
        "data": {"train_batch_size": 96, "micro_batch_size": 12, "truncation": "right"},
        "optim": {
            "lr": 1e-5, "weight_decay": 0.01, "warmup_steps_ratio": 0.1, "clip_grad": 1.0,
        },
        "trainer": {"total_epochs": 1, "sp_size": 8},
    },
    "bradley_terry": {
        "model": {"path": "./models/Qwen3-8B"},
        # A scalar judge reads its score off the end, and is shown the end of what is too long.
        "data": {"train_batch_size": 256, "micro_batch_size": 1, "truncation": "left"},
        "optim": {
            "lr": 2e-6, "weight_decay": 0.001, "warmup_steps_ratio": 0.03, "clip_grad": 2.0,
        },
        "trainer": {"total_epochs": 3, "strategy": "fsdp2"},
    },
    "grpo": {
        "mode": "pointwise",
        "model": {"path": "Qwen/Qwen3-8B"},
        "data": {"train_batch_size": 96, "micro_batch_size": 8, "truncation": "left"},
        "optim": {
            "lr": 1e-6, "weight_decay": 0.01, "warmup_steps_ratio": 0.0, "clip_grad": 1.0,
            "lr_scheduler": "constant",
        },
        "trainer": {"total_epochs": 1, "n_gpus_per_node": 8},
    },
}  # fmt: skip
"""By method; keys that are the same for all are defaults of the tables."""

JUDGE_VARIABLES: Mapping[str, tuple[str, str, type]] = {
    "MODEL_PATH": ("model", "path", str),
    "TRAIN_BATCH_SIZE": ("data", "train_batch_size", int),
    "MICRO_BATCH_SIZE": ("data", "micro_batch_size", int),
    "MAX_LENGTH": ("data", "max_length", int),
    "SP_SIZE": ("trainer", "sp_size", int),
    "TOTAL_EPOCHS": ("trainer", "total_epochs", int),
    "LR": ("optim", "lr", float),
    "STRATEGY": ("trainer", "strategy", str),
    "N_GPUS_PER_NODE": ("trainer", "n_gpus_per_node", int),
    "RAY_ADDRESS": ("grpo", "ray_address", str),
    "ROLLOUT_N": ("grpo", "rollout_n", int),
    "KL_LOSS_COEF": ("grpo", "kl_loss_coef", float),
}
"""Environment variables that come before the file: table, key, and what their text must be."""


def with_defaults(data: Mapping[str, Any]) -> dict[str, Any]:
    """``data`` over the defaults of its method; what is no table is left for validation."""
    method = data.get("method")
    merged = dict(data)
    for name, value in METHOD_DEFAULTS.get(str(method), {}).items():
        given = data.get(name)
        if isinstance(value, Mapping):
            if given is None or isinstance(given, Mapping):
                merged[name] = {**value, **(given or {})}
        elif given is None:
            merged[name] = value
    return merged


class TinyModelTable(ConfigTable):
    """``[model.tiny]``: how large the model is that ``path = "tiny"`` builds.

    ``hidden``: its width; ``layers``: one layer cannot look up what an earlier token said.
    """

    hidden: int = Field(default=64, ge=8, le=4096, multiple_of=8)
    layers: int = Field(default=2, ge=1, le=64)


class ModelTable(ConfigTable):
    """``[model]``: ``path`` is a folder (beside the file or not) or a name on the hub.

    ``tiny`` is built on the spot, of the size in the table ``tiny``. ``label`` is for reports and
    the card.
    """

    path: str = TINY_MODEL
    label: str = ""
    tiny: TinyModelTable | None = None

    @model_validator(mode="after")
    def _built_here(self) -> Self:
        if self.tiny is not None and self.path != TINY_MODEL:
            raise ValueError(
                f"tiny describes a model to build, but path = {self.path!r} names an existing "
                f"model. Leave tiny out, or set path = {TINY_MODEL!r}."
            )
        return self

    @property
    def size(self) -> TinyModelTable:
        """The size of the model that is built on the spot."""
        return self.tiny or TinyModelTable()


class MultiturnTable(ConfigTable):
    """``[data.multiturn]``: the column that holds the conversations of SFT."""

    enable: Literal[True] = True
    messages_key: str = "messages"


class DataTable(ConfigTable):
    """``[data]``: what is learned from, and how much of it at a time.

    ``train``, ``val``: files (Parquet, JSONL), relative to the training file, or data sets of the
    hub (``hf:OWNER/NAME#SPLIT``); without ``val`` a
    share ``val_fraction`` of the prompts in ``train`` is held out. ``train_batch_size``: rows
    behind one update; ``micro_batch_size``: rows that one device computes at once. In GRPO the
    first counts prompts (a comparison has two, one for each order) and the second replies.

    ``max_length``: tokens of a conversation; of longer ones ``truncation`` keeps the beginning
    (``right`` cuts the end), the end (``left``), or nothing (``error``). A question to a judge is
    never cut: what is longer is unusable. ``allow_unusable``: the share of rows that may be
    unusable before the run is refused. ``use_margin``: Bradley-Terry subtracts the rows' margins.
    """

    train: list[str] = Field(default=[])
    val: list[str] = Field(default=[])
    synthetic: SyntheticSettings | None = None
    val_fraction: float = Field(default=0.1, gt=0, lt=1)
    train_batch_size: int = Field(default=96, ge=1)
    micro_batch_size: int = Field(default=1, ge=1)
    max_length: int = Field(default=4096, ge=2)
    truncation: Truncation = "right"
    multiturn: MultiturnTable = MultiturnTable()
    allow_unusable: float = Field(default=0.0, ge=0, le=1)
    use_margin: bool = False

    @field_validator("train", "val", mode="before")
    @classmethod
    def _one_file(cls, files: Any) -> Any:
        return [files] if isinstance(files, str) else files


class OptimTable(ConfigTable):
    """``[optim]``: AdamW. ``warmup_steps_ratio``: the share of steps in which the rate rises.

    ``lr_scheduler``: what follows; ``wsd`` holds the rate and lets it fall over the last tenth.
    """

    lr: float = Field(default=1e-5, gt=0, allow_inf_nan=False)
    weight_decay: float = Field(default=0.01, ge=0, allow_inf_nan=False)
    warmup_steps_ratio: float = Field(default=0.03, ge=0, lt=1)
    clip_grad: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    lr_scheduler: Literal["cosine", "wsd", "constant", "linear"] = "cosine"


class TrainerTable(ConfigTable):
    """``[trainer]``: epochs, machine, memory.

    ``eval_every``: steps between validations, each of which saves a checkpoint; 0: ten times in the
    run. ``strategy``, ``n_gpus_per_node``, ``sp_size`` (sequence parallelism) and the offloads are
    for several GPUs; what a run does not do of it, it says. ``enable_gradient_checkpointing``
    computes activations twice instead of keeping them.
    """

    total_epochs: int = Field(default=1, ge=1)
    strategy: Literal["fsdp", "fsdp2"] = "fsdp2"
    n_gpus_per_node: int | None = Field(default=None, ge=1)
    sp_size: int = Field(default=1, ge=1)
    cpu_offload: bool = False
    param_offload: bool = False
    enable_gradient_checkpointing: bool = False
    eval_every: int = Field(default=0, ge=0)
    seed: int = Field(default=0, ge=0, lt=2**32)


class LoraTable(ConfigTable):
    """``[lora]``: train low-rank adapters (and a scalar judge's output) instead of all weights.

    The adapters are merged into the model that the run leaves.
    """

    rank: int = Field(default=16, ge=1)
    alpha: float = Field(default=32.0, gt=0, allow_inf_nan=False)


class GrpoTable(ConfigTable):
    """``[grpo]``: replies per prompt, the weight of the KL term, and Ray's dashboard (verl).

    ``max_response_length``: tokens of a reply; a longer one is cut off and has no verdict.
    ``temperature``: that of the replies learned from; validation draws the likeliest.
    """

    rollout_n: int = Field(default=4, ge=2)
    kl_loss_coef: float = Field(default=0.001, ge=0, allow_inf_nan=False)
    max_response_length: int = Field(default=1024, ge=8)
    temperature: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    ray_address: str = "http://127.0.0.1:8265"


class JudgeFile(ConfigFile):
    """A whole training file; :meth:`load` reads one.

    Keys that the file leaves out have the defaults of its ``method``. ``mode`` says how a judge
    that writes is asked; SFT without one imitates conversations as they are. ``[trl]``: fields of
    the method's configuration class in TRL.
    """

    unnamed: ClassVar[str] = "training file"

    version: Literal[1] = 1
    kind: Literal["judge"] = "judge"
    method: MethodName
    mode: Literal["pointwise", "pairwise"] | None = None
    backend: Literal["trl", "verl"] = "trl"
    model: ModelTable = ModelTable()
    data: DataTable = DataTable()
    optim: OptimTable = OptimTable()
    trainer: TrainerTable = TrainerTable()
    lora: LoraTable | None = None
    grpo: GrpoTable = GrpoTable()
    trl: dict[str, Any] = Field(default={})

    _overrides: dict[str, str] = PrivateAttr(default_factory=dict)

    @classmethod
    def from_dict(
        cls,
        data: Mapping[str, Any],
        *,
        where: str = "",
        folder: Path | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> Self:
        """A run from plain data; ``where`` opens every complaint.

        Variables of ``environ`` (the process's own) come before the file; ``overrides`` has those
        that did. Raises :class:`ConfigError`.
        """
        filled, overrides = _apply_environment(
            data, os.environ if environ is None else environ, where or cls.unnamed
        )
        try:
            judge = cls.read_tables(with_defaults(filled), where, folder)
            judge._overrides = overrides  # noqa: SLF001  (its own)  # noqa: SLF001  (its own)
            _check_file(judge, data)
        except ConfigError as error:
            raise ConfigError(f"{error}{_blame_environment(overrides, str(error))}") from None
        return judge

    def with_seed(self, seed: int) -> JudgeFile:
        """The same run from another seed."""
        trainer = TrainerTable.model_validate({**self.trainer.model_dump(), "seed": seed})
        return self.model_copy(update={"trainer": trainer})

    @property
    def overrides(self) -> dict[str, str]:
        """Environment variables that came before the file, with their texts."""
        return dict(self._overrides)

    @property
    def base(self) -> str:
        """The model to begin with: a folder, a name on the hub, or ``tiny``."""
        beside = self.folder / self.model.path
        is_beside = self.model.path != TINY_MODEL and beside.is_dir()
        return str(beside) if is_beside else self.model.path

    @property
    def needs_hub(self) -> bool:
        """Whether model or data are named, not lying here."""
        names = [*self.data.train, *self.data.val]
        return self.is_named_model or any(map(is_on_hub, names))

    @property
    def is_named_model(self) -> bool:
        """Whether the model is the hub's, not a folder here."""
        return self.model.path != TINY_MODEL and not Path(self.base).is_dir()

    @property
    def is_scalar(self) -> bool:
        """Whether the judge has one output (else it writes)."""
        return self.method == "bradley_terry"

    def files(self, names: list[str]) -> list[Path]:
        """Data files: those beside the training file by their places, fetched ones in the cache."""
        return [resolve_data_file(name, self.folder) for name in names]


def _apply_environment(
    data: Mapping[str, Any], environ: Mapping[str, str], where: str
) -> tuple[dict[str, Any], dict[str, str]]:
    """``data`` under what the environment says, and which variables did say something."""
    filled, overrides = dict(data), {}
    for variable, (table, key, kind) in JUDGE_VARIABLES.items():
        text = environ.get(variable, "").strip()
        if not text or (table == "grpo" and data.get("method") != "grpo"):
            continue
        try:
            value = kind(text)
        except ValueError:
            wanted = "a whole number" if kind is int else "a number"
            raise ConfigError(
                f"{where}: environment variable {variable}: must be {wanted} (found "
                f"{text[:40]!r}). Correct or unset it: it overrides {table}.{key} of the file."
            ) from None
        given = filled.get(table, {})
        if not isinstance(given, Mapping):
            continue  # validation says so
        filled[table] = {**given, key: value}
        overrides[variable] = text
    return filled, overrides


def _blame_environment(overrides: Mapping[str, str], complaint: str) -> str:
    """Which variables a complaint may be about: no file has their values."""
    tables = {name: JUDGE_VARIABLES[name][0] for name in overrides}
    names = [name for name, table in tables.items() if f" {table}" in complaint]
    if not names:
        return ""
    return f"\n(set by the environment, which overrides the file: {', '.join(names)})"


def _check_file(judge: JudgeFile, given: Mapping[str, Any]) -> None:
    """Raise :class:`ConfigError` for the first thing that does not fit; no file is read."""
    data = judge.data
    if data.synthetic is None and not data.train:
        judge.refuse("data.train", "is required. Give files, or a table [data.synthetic].")
    if data.synthetic is not None and (data.train or data.val):
        judge.refuse(
            "data.synthetic", "cannot be combined with files (train, val). Give one of the two."
        )
    _check_dials(judge)
    _check_batches(judge)
    if judge.trl and judge.backend != "trl":
        judge.refuse("trl", f"is for backend = 'trl' (found {judge.backend!r}). Leave it out.")
    check_model_options(judge.trl, judge.where)
    if judge.trl.get(MODEL_OPTIONS) and judge.model.path == TINY_MODEL:
        judge.refuse(f"trl.{MODEL_OPTIONS}", f"path = {TINY_MODEL!r} is built, not loaded")
    if judge.mode is not None and judge.is_scalar:
        judge.refuse(
            "mode",
            f"is only for generative judges, not for method = {judge.method!r}. Leave it out.",
        )
    if "grpo" in given and judge.method != "grpo":
        judge.refuse("grpo", f"is only for method = 'grpo' (found {judge.method!r}). Leave it out.")
    if "@" in judge.grpo.ray_address:
        judge.refuse(
            "grpo.ray_address",
            "(or RAY_ADDRESS) has a name or password in it, which the run's files would show. Give "
            "it by --ray.",
        )
    if data.use_margin and judge.method != "bradley_terry":
        judge.refuse("data.use_margin", "is only for method = 'bradley_terry'. Leave it out.")


def _check_dials(judge: JudgeFile) -> None:
    """That no dial of ``[data.synthetic]`` is turned that would turn nothing."""
    made = judge.data.synthetic
    if made is None:
        return
    for name in ("ties", "position_bias"):
        if getattr(made, name) and judge.mode != "pairwise":
            judge.refuse(f"data.synthetic.{name}", "is only for mode = 'pairwise'. Leave it out.")
    if judge.method == "sft" and judge.mode is None:
        for name in ("length_bias", "family_offset", "elsewhere"):
            if getattr(made, name):
                judge.refuse(
                    f"data.synthetic.{name}",
                    "has no effect here, because demonstrations have no labels. Leave it out.",
                )


def _check_batches(judge: JudgeFile) -> None:
    """That whole micro batches make a batch, and in GRPO whole comparisons, too."""
    size, micro = judge.data.train_batch_size, judge.data.micro_batch_size
    if judge.method != "grpo":
        if size % micro:
            judge.refuse(
                "data.train_batch_size",
                f"must be a multiple of micro_batch_size = {micro} (found {size})",
            )
        return
    if judge.mode == "pairwise" and size % 2:
        judge.refuse(
            "data.train_batch_size",
            f"must be even, because a comparison is two prompts, one for each order (found {size})",
        )
    replies = size * judge.grpo.rollout_n
    if replies % micro:
        judge.refuse(
            "data.micro_batch_size",
            f"must divide train_batch_size × grpo.rollout_n = {replies} (found {micro})",
        )


MetricRow = dict[str, float]
"""One step's metrics by name; what could not be computed is absent."""


@dataclass
class JudgeJob:
    """A judge's training file and a folder to train it into.

    ``on_progress(stage, done, total)`` hears of each step, ``on_row`` of its metrics, ``on_resume``
    of the step after which an interrupted training goes on. ``summary`` is what :func:`run_judge`
    found, the content of ``summary.json``.
    """

    judge: JudgeFile
    source: Path
    folder: Path
    on_progress: Callable[[str, int, int], None] = lambda *_: None
    on_row: Callable[[int, MetricRow], None] = lambda *_: None
    on_resume: Callable[[int], None] = lambda _: None
    summary: dict[str, Any] = field(default_factory=dict)


def validation_metrics(rows: Sequence[Mapping[str, float]], step: int) -> dict[str, float]:
    """What the validation after ``step`` said; nothing where there was none."""
    row = next((row for row in rows if row["step"] == step), {})
    return {k.removeprefix("val/"): v for k, v in row.items() if k.startswith("val/")}


def best_step_metrics(rows: Sequence[MetricRow], step: int, judge: JudgeFile) -> dict[str, Any]:
    """The validation metrics of ``step``, the step of the kept model.

    Raises :class:`~adjudge.errors.ConfigError` where the loss is missing.
    """
    found = validation_metrics(rows, step)
    if "loss" not in found:
        judge.refuse("optim.lr", "the validation loss became NaN. Lower the learning rate.")
    return found
