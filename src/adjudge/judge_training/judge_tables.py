"""The tables of a judge's training file, and what each method takes where the file says nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from adjudge.judge_training.data.lengths import Truncation
from adjudge.judge_training.data.synthetic import SyntheticSettings

__all__ = [
    "DEFAULTS",
    "METHODS",
    "TINY",
    "VARIABLES",
    "Data",
    "Grpo",
    "Lora",
    "Method",
    "ModelTable",
    "Multiturn",
    "Optim",
    "Synthetic",
    "TinyTable",
    "TrainerTable",
    "with_defaults",
]

Method = Literal["sft", "bradley_terry", "grpo"]
METHODS: tuple[Method, ...] = ("sft", "bradley_terry", "grpo")

TINY = "tiny"
"""``path = "tiny"``: a small model made on the spot."""

_Tables = dict[str, Any]

DEFAULTS: Mapping[str, _Tables] = {
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

VARIABLES: Mapping[str, tuple[str, str, type]] = {
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
    for name, value in DEFAULTS.get(str(method), {}).items():
        given = data.get(name)
        if isinstance(value, Mapping):
            if given is None or isinstance(given, Mapping):
                merged[name] = {**value, **(given or {})}
        elif given is None:
            merged[name] = value
    return merged


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class TinyTable(_Table):
    """``[model.tiny]``: how large the model is that ``path = "tiny"`` builds.

    ``hidden``: its width; ``layers``: one layer cannot look up what an earlier token said.
    """

    hidden: int = Field(default=64, ge=8, le=4096, multiple_of=8)
    layers: int = Field(default=2, ge=1, le=64)


class ModelTable(_Table):
    """``[model]``: ``path`` is a folder (beside the file or not) or a name on the hub.

    ``tiny`` is built on the spot, of the size in the table ``tiny``. ``label`` is for reports and
    the card.
    """

    path: str = TINY
    label: str = ""
    tiny: TinyTable | None = None

    @model_validator(mode="after")
    def _built_here(self) -> Self:
        if self.tiny is not None and self.path != TINY:
            raise ValueError(
                f"tiny says how a model is built, and path = {self.path!r} is one that there is; "
                f"leave tiny out, or set path = {TINY!r}"
            )
        return self

    @property
    def size(self) -> TinyTable:
        """The size of the model that is built on the spot."""
        return self.tiny or TinyTable()


class Synthetic(_Table):
    """``[data.synthetic]``: the dials of :class:`SyntheticSettings`, instead of files.

    ``ties`` and ``position_bias`` are for comparisons (``mode = "pairwise"``).
    """

    n: int = Field(ge=2, le=1_000_000)
    seed: int = Field(default=0, ge=0)
    noise: float = Field(default=0.0, ge=0, le=0.5)
    length_bias: float = Field(default=0.0, ge=0, le=1)
    family_offset: float = Field(default=0.0, ge=-8, le=8)
    families: list[str] = []
    ties: float = Field(default=0.0, ge=0, le=1)
    position_bias: float = Field(default=0.0, ge=0, le=1)
    elsewhere: float = Field(default=0.0, ge=0, le=1)

    def settings(self) -> SyntheticSettings:
        """These dials; raises :class:`ConfigError` for families that are none."""
        return SyntheticSettings(
            n=self.n,
            seed=self.seed,
            noise=self.noise,
            length_bias=self.length_bias,
            family_offset=self.family_offset,
            families=tuple(self.families),
            ties=self.ties,
            position_bias=self.position_bias,
            elsewhere=self.elsewhere,
        )


class Multiturn(_Table):
    """``[data.multiturn]``: the column that holds the conversations of SFT."""

    enable: Literal[True] = True
    messages_key: str = "messages"


class Data(_Table):
    """``[data]``: what is learned from, and how much of it at a time.

    ``train``, ``val``: files (Parquet, JSONL), relative to the training file, or data sets of the
    hub (``hf:OWNER/NAME#SPLIT``); without ``val`` a
    share ``val_fraction`` of the prompts in ``train`` is held out. ``train_batch_size``: rows
    behind one update; ``micro_batch_size``: rows that one device computes at once. In GRPO the
    first counts prompts (a comparison has two, one for each order) and the second replies.

    ``max_length``: tokens of a conversation; of longer ones ``truncation`` keeps the beginning
    (``right`` cuts the end), the end (``left``), or nothing (``error``). A question to a judge is
    never cut: what is longer is unusable. ``allow_unusable``: the
    share of rows that may be unusable before the run is refused. ``deduplicate`` leaves out rows
    that repeat another. ``use_margin``: Bradley-Terry subtracts the rows' margins.
    """

    train: list[str] = []
    val: list[str] = []
    synthetic: Synthetic | None = None
    val_fraction: float = Field(default=0.1, gt=0, lt=1)
    train_batch_size: int = Field(default=96, ge=1)
    micro_batch_size: int = Field(default=1, ge=1)
    max_length: int = Field(default=4096, ge=2)
    truncation: Truncation = "right"
    multiturn: Multiturn = Multiturn()
    allow_unusable: float = Field(default=0.0, ge=0, le=1)
    deduplicate: bool = True
    use_margin: bool = False

    @field_validator("train", "val", mode="before")
    @classmethod
    def _one_file(cls, files: Any) -> Any:
        return [files] if isinstance(files, str) else files


class Optim(_Table):
    """``[optim]``: AdamW. ``warmup_steps_ratio``: the share of steps in which the rate rises.

    ``lr_scheduler``: what follows; ``wsd`` holds the rate and lets it fall over the last tenth.
    """

    lr: float = Field(default=1e-5, gt=0, allow_inf_nan=False)
    weight_decay: float = Field(default=0.01, ge=0, allow_inf_nan=False)
    warmup_steps_ratio: float = Field(default=0.03, ge=0, lt=1)
    clip_grad: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    lr_scheduler: Literal["cosine", "wsd", "constant", "linear"] = "cosine"


class TrainerTable(_Table):
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


class Lora(_Table):
    """``[lora]``: train low-rank adapters (and a scalar judge's output) instead of all weights.

    The adapters are merged into the model that the run leaves.
    """

    rank: int = Field(default=16, ge=1)
    alpha: float = Field(default=32.0, gt=0, allow_inf_nan=False)
    dropout: float = Field(default=0.0, ge=0, lt=1)
    target_modules: list[str] | Literal["all-linear"] = "all-linear"


class Grpo(_Table):
    """``[grpo]``: replies per prompt, the weight of the KL term, and Ray's dashboard (verl).

    ``max_response_length``: tokens of a reply; a longer one is cut off and has no verdict.
    ``temperature``: that of the replies learned from; validation draws the likeliest.
    """

    rollout_n: int = Field(default=4, ge=2)
    kl_loss_coef: float = Field(default=0.001, ge=0, allow_inf_nan=False)
    max_response_length: int = Field(default=1024, ge=8)
    temperature: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    ray_address: str = "http://127.0.0.1:8265"
