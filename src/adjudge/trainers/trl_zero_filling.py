"""TRL's trainers that count a missing reward as 0: refused.

They are found from their code and not from a version, since others derive from these classes.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from functools import cache
from types import FunctionType

from adjudge.errors import ConfigError
from adjudge.rewards.spec import RewardSpec
from adjudge.trainers.declarations import find_install_line
from adjudge.trainers.trl_batch import TrlBatch


def refuse_older_trl() -> None:
    """Raise :class:`ConfigError` where the imported TRL counts a missing reward as 0."""
    for name in ("GRPO", "RLOO"):
        module = sys.modules.get(f"trl.trainer.{name.lower()}_trainer")
        trainer = getattr(module, f"{name}Trainer", None)
        if trainer is not None and _adds_up_missing(trainer):
            raise ConfigError(
                f"trl: {_describe_trainer(trainer)} counts a missing reward as 0, so that a failed "
                f"judge looks like a bad answer. Run: {find_install_line('trl')}"
            )


def refuse_zero_filling(batch: TrlBatch, spec: RewardSpec) -> None:
    """Raise :class:`ConfigError` where the caller would count a missing reward as 0.

    ``OnlineDPOTrainer`` does so in every version. Policy ``raise`` leaves none missing.
    """
    refuse_older_trl()
    who = _find_zero_filling(batch)
    if who is not None and spec.missing.policy != "raise":
        raise ConfigError(
            f"{spec.where}: missing.policy: does not hold under {who}, which counts a missing "
            "reward as 0, so that a failed judge looks like a bad answer "
            f"(found {spec.missing.policy!r}; allowed here: 'raise'). Use this policy, or "
            "GRPOTrainer or RLOOTrainer of trl >= 1.6."
        )


def _find_zero_filling(batch: TrlBatch) -> str | None:
    """The trainer that makes missing rewards 0; ``None`` where nothing says that it does.

    A trainer that cannot be seen through its loggers is one of those that are imported.
    """
    if batch.trainer is None:
        return _imported_zero_filling_trainer(batch.of_a_trainer)
    trainer = type(batch.trainer)
    return _describe_trainer(trainer) if _adds_up_missing(trainer) else None


@cache
def _imported_zero_filling_trainer(of_a_trainer: bool) -> str | None:
    """A class of TRL in this process that adds up missing rewards.

    Trainers say their state to reward functions; the rollout process of AsyncGRPO does not.
    """
    for name, module in sorted(sys.modules.items()):
        if name.startswith("trl.") and ("async_grpo" in name) != of_a_trainer:
            for one in list(vars(module).values()):
                if inspect.isclass(one) and one.__module__ == name and _adds_up_missing(one):
                    return _describe_trainer(one)
    return None


def _describe_trainer(trainer: type) -> str:
    version = getattr(sys.modules.get("trl"), "__version__", None)
    return f"{trainer.__name__} of TRL {version}" if version else trainer.__name__


def _adds_up_missing(trainer: type) -> bool:
    """Whether a method of it does so."""
    if trainer not in _trainer_cache:
        _trainer_cache[trainer] = any(map(_is_bare_sum, _methods(trainer)))
    return _trainer_cache[trainer]


_trainer_cache: dict[type, bool] = {}


def _is_bare_sum(method: FunctionType) -> bool:
    """Whether it sums reward functions with NaN as 0, and never looks for it again.

    TRL 1.6 and later set the rewards and then the advantages of such rows apart (``isnan``,
    ``nan_to_num``); before 0.20 ``isnan`` serves a warning only, which names ``nan_row_idx``.
    """
    code = method.__code__
    names = {*code.co_names, *code.co_varnames, *code.co_cellvars}
    if "nansum" not in names or not names & {"reward_funcs", "reward_weights"}:
        return False
    return "nan_to_num" not in names and ("isnan" not in names or "nan_row_idx" in names)


def _methods(trainer: type) -> Iterator[FunctionType]:
    """The methods that run: a base's only where it is not replaced, or called by ``super``."""
    replaced: set[str] = set()
    for base in trainer.__mro__:
        for name, value in vars(base).items():
            method = inspect.unwrap(value) if callable(value) else value
            if name not in replaced and isinstance(method, FunctionType):
                yield method
                if "super" not in method.__code__.co_names:
                    replaced.add(name)
