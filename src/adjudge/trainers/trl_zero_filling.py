"""Trainers that count a missing reward as 0: what is exact there, and what is refused.

Which of TRL's do is read off the trainer's code and not off a version, since others derive from
these classes.
"""

from __future__ import annotations

import inspect
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from types import FunctionType

from adjudge.errors import ConfigError
from adjudge.rewards.spec import RewardSpec
from adjudge.trainers.trl_batch import GroupLayout, TrlBatch


@dataclass(frozen=True)
class ZeroFilling:
    """A trainer, ``who``, that counts a missing reward as 0.

    Exact all the same is a group that is missing as a whole, where ``keeps_groups_apart``, and the
    mean of the group in the place of the missing ones, where ``only_centres`` too. ``remedy`` is
    what a refusal advises.
    """

    who: str
    keeps_groups_apart: bool
    only_centres: bool
    remedy: str = (
        "GRPOTrainer or RLOOTrainer of trl >= 1.6, which leave a missing reward out of its group. "
        "GRPOTrainer of 1.0 and later is exact with scale_rewards='none' too"
    )

    def check(self, spec: RewardSpec, layout: GroupLayout) -> None:
        """Refuse a spec whose missing rewards would become 0; raises :class:`ConfigError`."""
        missing = spec.missing
        exact = missing.policy == "raise" or (self.only_centres and layout.broken is None)
        if self.keeps_groups_apart:
            exact = exact or missing.policy in ("drop_group", "fallback")
        if exact:
            return
        allowed = ["'raise'"]
        if self.keeps_groups_apart:
            allowed += ["'drop_group'", "'fallback'"]
        decides = self.only_centres and layout.broken is not None  # else none would be exact
        who = f"{self.who}, where {layout.broken}" if decides else self.who
        raise ConfigError(
            f"{spec.where}: missing.policy: does not hold under {who}, which counts a missing "
            "reward as 0, so that a failed judge looks like a bad answer "
            f"(found {missing.policy!r}; allowed here: {', '.join(allowed)}). Use one of these, or "
            f"{self.remedy}."
        )

    def exact(
        self, rewards: Sequence[float | None], layout: GroupLayout, spec: RewardSpec
    ) -> list[float | None]:
        """Rewards that make the advantages what they are without the missing ones.

        Raises :class:`ConfigError` where no rewards do.
        """
        found = list(rewards)
        groups: dict[str, list[int]] = defaultdict(list)
        for place, group in enumerate(layout.groups):
            groups[group].append(place)
        for places in groups.values():
            present = [one for place in places if (one := rewards[place]) is not None]
            if len(present) == len(places) or (not present and self.keeps_groups_apart):
                continue
            if not (present and self.only_centres):
                raise ConfigError(
                    f"{spec.where}: {len(places) - len(present)} of {len(places)} rewards of a "
                    f"group are missing, and {self.who} would count them as 0. Use "
                    f"missing.policy = 'raise', or {self.remedy}."
                )
            mean = sum(present) / len(present)
            for place in places:
                found[place] = mean if rewards[place] is None else rewards[place]
        return found


def detect_zero_filling(batch: TrlBatch) -> ZeroFilling | None:
    """How the caller treats missing rewards; ``None`` where nothing says that it makes them 0.

    A trainer that cannot be seen through its loggers is one of those that are imported.
    """
    trainer = batch.trainer
    if trainer is None:
        who = _imported_zero_filling_trainer(batch.of_a_trainer)
        return None if who is None else ZeroFilling(who, False, False)
    if not _adds_up_missing(type(trainer)):
        return None
    scale = getattr(trainer, "scale_rewards", None)
    aggregation = getattr(trainer, "multi_objective_aggregation", "sum_then_normalize")
    apart = scale in ("group", "none") and aggregation == "sum_then_normalize"
    alone = len(getattr(trainer, "reward_funcs", ())) == 1
    return ZeroFilling(_describe_trainer(type(trainer)), apart, apart and alone and scale == "none")


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
