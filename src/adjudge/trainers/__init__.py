"""A reward spec inside other people's trainers: their shapes in and out, no logic of their own.

:data:`TRAINERS` declares the trainers that adjudge works with: one declaration each, for every
table, message and name. ``adjudge.make_reward(trainer=…)`` finds its adapters here, messages their
install lines, and ``docs/generate_conformance.py --table`` makes the table of ``docs/trainers.md``
of the rows, with what was measured of each trainer alone (``docs/conformance/results.json``).

Nothing here imports a trainer before it is used.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adjudge.errors import ConfigError
from adjudge.extensions import load_extension

if TYPE_CHECKING:
    from adjudge.rewards.spec import RewardSpec

__all__ = ["INSTALL_LINES", "SHIPPED_TRAINERS", "TRAINERS", "Trainer", "make_trainer_reward"]


@dataclass(frozen=True)
class Trainer:
    """A trainer, or one of its ways to ask for rewards: a row of the table, in Markdown.

    ``add`` is what a user adds, ``missing`` what a missing reward does then, ``refused`` what
    adjudge refuses: first "whole-group specs", where a call of the trainer has one sample.
    ``measured`` names results of the trainer's own code; ``tested`` the version, where the first of
    these does not. ``install`` has, by the names of ``make_reward(trainer=…)``, the command that
    installs the trainer; the first name is also the module in :mod:`adjudge.trainers` that has it.
    ``sees`` is what graders see, cells of the second table: the prompt, the reference, other fields
    and the group.
    """

    title: str
    add: str
    missing: str
    refused: str
    measured: tuple[str, ...] = ()
    tested: str = ""
    install: Mapping[str, str] = field(default_factory=dict)
    sees: str = ""


TRAINERS = (
    Trainer(
        "[TRL](trl.md) `GRPOTrainer`, `RLOOTrainer`",
        '`reward_funcs=make_reward("reward.toml")`',
        "leaves its group's mean and deviation",
        "other reward functions without `share_missing`; whole-group specs if a group is split "
        "over processes",
        measured=("trl-1.16.0",),
        sees="the trainer's prompt | a column | columns | blocks of `num_generations`",
        install={"trl": "pip install 'trl>=1.6'"},
    ),
    Trainer(
        "TRL `trl grpo`",
        "`reward_funcs: [adjudge.trainers.trl.reward]`, `ADJUDGE_SPEC`",
        "as above",
        "as above; renamed columns",
        measured=("trl-1.16.0",),
    ),
    Trainer(
        "TRL `AsyncGRPOTrainer`",
        '`PicklableReward("reward.toml")`',
        "as above",
        "metrics",
        tested="1.16.0, its call only",
    ),
    Trainer(
        "TRL `OnlineDPOTrainer`",
        '`PicklableReward("reward.toml")`',
        "ends the run",
        'every `missing.policy` but `"raise"`, since TRL makes it 0; metrics',
        tested="1.16.0",
    ),
    Trainer("TRL before 1.6", "–", "–", "always", measured=("trl-1.5.1",)),
    Trainer(
        "[verl](verl.md), V1 `sync` (default)",
        "[5 settings](verl.md)",
        "the rollout leaves the batch",
        'whole-group specs (a service allows group steps); `missing.policy = "raise"`',
        measured=("verl-0.9.1",),
    ),
    Trainer(
        "verl, other trainers",
        "the same",
        "leaves its group's mean and deviation",
        "whole-group specs (in V1 a service allows group steps); estimators but `adjudge_grpo`",
        measured=("verl-0.9.1",),
    ),
    Trainer(
        "verl",
        "[4 settings](verl.md)",
        "as above; with `grpo` the group's mean",
        "other estimators; with `rollout.mode=async` whole-group specs",
        measured=("verl-0.6.1",),
        sees="`raw_prompt`, else the prompt's tokens | `reward_model.ground_truth` | "
        "`extra_info`, columns | `uid`",
        install={"verl": "pip install verl==0.6.1"},
    ),
    Trainer(
        "[verifiers, prime-rl](verifiers.md)",
        "a 2-line file",
        "the rollout fails and has no reward",
        "whole-group specs; `combine_mode`",
        measured=("prime-rl-559b447",),
        tested="verifiers 0.4.0",
        sees="what nobody sampled | `reference_field` | the task's fields | –",
        install={"verifiers": "pip install verifiers==0.4.0"},
    ),
    Trainer(
        "[slime, miles](plugins.md)",
        "3 flags",
        "leaves its group's mean and deviation, and the loss",
        "`--reward-key`; without `--group-rm` whole-group specs",
        measured=("slime-624b824", "miles-31f1ca9"),
        tested="624b824; 31f1ca9 (2026-08-21)",
        sees="the sample's prompt | `label` | `metadata` | with `--group-rm`",
        install={
            "slime": "pip install git+https://github.com/THUDM/slime",
            "miles": "pip install git+https://github.com/radixark/miles",
        },
    ),
    Trainer(
        "[ms-swift](plugins.md)",
        "a 3-line file, `--scale_rewards none`",
        "its group's mean; advantage 0",
        "other scalings; metrics",
        measured=("ms-swift-4.6.0",),
        sees="the trainer's prompt | a column | columns | blocks of `num_generations`",
        install={"ms-swift": "pip install ms-swift==4.6.0"},
    ),
    Trainer(
        "[OpenRLHF](plugins.md), as an agent",
        "a 2-line file",
        "its group's mean; advantage 0",
        "estimators but `dr_grpo`, `rloo`",
        measured=("openrlhf-0.11.2",),
        sees="the prompt | `label` | – | as an agent",
        install={"openrlhf": "pip install openrlhf==0.11.2"},
    ),
    Trainer(
        "OpenRLHF, as a function",
        "a 2-line file",
        "dynamic filtering replaces its group",
        "whole-group specs; metrics",
        measured=("openrlhf-0.11.2",),
    ),
    Trainer(
        "[ROLL](plugins.md)",
        "2 lines of YAML",
        "`reinforce` with group means: its group's mean; else its prompt is replaced",
        "whole-group specs; metrics",
        measured=("roll-8eb27cc",),
        sees="the prompt | `ground_truth` | columns | –",
        install={"roll": "pip install git+https://github.com/alibaba/ROLL"},
    ),
    Trainer(
        "[tinker-cookbook](plugins.md)",
        "3 lines",
        "leaves its group",
        "whole-group specs",
        measured=("tinker-cookbook-0.6.1",),
        sees="the question | a keyword | keywords | –",
        install={"tinker-cookbook": "pip install tinker-cookbook==0.6.1"},
    ),
    Trainer(
        "[SkyRL](plugins.md)",
        "a script",
        "leaves its group's mean and deviation",
        "whole-group specs; estimators but `adjudge_grpo`",
        measured=("skyrl-a956457",),
        sees="the environment's prompt | `reward_spec.ground_truth` | columns, `extra_info` | –",
        install={"skyrl": "pip install git+https://github.com/NovaSky-AI/SkyRL"},
    ),
    Trainer(
        "[AReaL](plugins.md)",
        "2 settings",
        "leaves its group",
        "whole-group specs; AReaL 1.0.4",
        measured=("areal-cbff54d", "areal-1.0.4"),
        sees="the row's `messages` | a column | columns | –",
        install={"areal": "pip install git+https://github.com/areal-project/AReaL"},
    ),
    Trainer(
        "[rLLM](plugins.md), agent flows",
        "1 line",
        "leaves its group",
        "whole-group specs; workflows",
        measured=("rllm-9beb6e0",),
        sees="the task | `metadata` | `metadata` | –",
        install={"rllm": "pip install git+https://github.com/rllm-org/rllm"},
    ),
    Trainer(
        "Unsloth, Axolotl",
        "TRL's line",
        "not tested; as in their TRL",
        "their TRL before 1.6",
        measured=("unsloth-2026.10.9", "axolotl-0.21.0"),
    ),
    Trainer(
        "NeMo-RL, open-instruct",
        "no adapter; NeMo-RL: [NeMo-Gym](verifiers.md)",
        "–",
        "–",
        measured=("nemo-rl-7ea279a", "open-instruct-e6c3044"),
    ),
)
"""In the order of the table."""

INSTALL_LINES = {name: command for one in TRAINERS for name, command in one.install.items()}
"""The command that installs a shipped trainer, by the trainer's name."""

SHIPPED_TRAINERS = {
    name: f"adjudge.trainers.{next(iter(one.install)).replace('-', '_')}:make_reward"
    for name in sorted(INSTALL_LINES)
    for one in TRAINERS
    if name in one.install
}
"""Trainers by their names, and the adapter of each: ``make_reward(spec, **options)``."""


def make_trainer_reward(spec: RewardSpec | Path | str | None, trainer: str, **options: Any) -> Any:
    """A reward spec in the form that ``trainer`` calls.

    ``trainer`` is one of :data:`SHIPPED_TRAINERS`, the name of an installed package's adapter, or
    ``module:function`` of the user's own, which may stand beside the spec. The adapter gets
    ``spec`` as it is, and ``options``. Raises :class:`~adjudge.errors.ConfigError`.
    """
    beside = None
    if isinstance(spec, Path | str) and Path(spec).is_file():  # not a judge service's address
        beside = Path(spec).parent
    try:
        adapter = load_extension(
            "adjudge.trainers", trainer, where="trainer", folder=beside, shipped=SHIPPED_TRAINERS
        )
        return _call_adapter(adapter, trainer, spec, options)
    except (ConfigError, ImportError) as error:
        cause = error.__cause__ if isinstance(error, ConfigError) else error
        install = INSTALL_LINES.get(trainer)
        if install and isinstance(cause, ModuleNotFoundError):
            raise ConfigError(
                f"trainer: {trainer!r} needs a package that is not installed (found no "
                f"{cause.name}). Run: {install}"
            ) from error
        raise


def _call_adapter(adapter: Any, trainer: str, spec: Any, options: dict[str, Any]) -> Any:
    if not callable(adapter):
        raise ConfigError(
            f"trainer: must be a function make_reward(spec, **options) (found {trainer!r}, of type "
            f"{type(adapter).__name__})"
        )
    try:
        parameters = inspect.signature(adapter)
    except ValueError:  # what is built in may have no signature
        return adapter(spec, **options)
    try:
        parameters.bind(spec, **options)
    except TypeError as error:
        raise ConfigError(f"trainer {trainer!r}: {error} (its parameters: {parameters})") from None
    return adapter(spec, **options)
