"""``TrainerDriver``: how the suite reaches a trainer's own advantage and loss code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

Group = Sequence[float | None]
"""The rewards of one prompt's answers, in order; ``None``: the judge failed."""


class Way(msgspec.Struct, frozen=True):
    """A way to tell a trainer that a reward is missing, e.g. ``None``, or a loss mask of zeros.

    ``documented``: the trainer's documents or code name it for a reward that is not there.
    ``functions``: with 2, the answer has a reward of another function, here a tenth of its tokens,
    and the trainer adds both.
    """

    name: str
    documented: bool = True
    functions: int = 1


def make_ways(*documented: str, undocumented: Sequence[str] = ()) -> tuple[Way, ...]:
    """Ways with one function: those that the trainer names, then those that it does not."""
    return (*map(Way, documented), *(Way(name, documented=False) for name in undocumented))


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """One step's rewards: groups of equal size, and how many tokens each answer has.

    ``kl``: the coefficient of a KL term in the loss, 0 for none.
    """

    groups: tuple[tuple[float | None, ...], ...]
    lengths: tuple[tuple[int, ...], ...]
    kl: float = 0.0

    @property
    def other_rewards(self) -> list[float]:
        """What another function, which never fails, says of each answer: a tenth of its tokens."""
        return [length / 10 for group in self.lengths for length in group]


class StepResult(msgspec.Struct, frozen=True, kw_only=True):
    """What the trainer made of a batch; what its driver cannot reach is ``None``.

    ``advantages``: by group and answer. ``gradients``: by group and answer, the derivative of the
    loss by the log-probability of one of the answer's tokens, the same token each time.
    ``reward_mean``: what the trainer logs as its mean reward. ``kept``: whether dynamic sampling
    keeps each group. In all of them an answer that the trainer left out of the batch is ``None``.
    """

    advantages: list[list[float | None]]
    gradients: list[list[float | None]] | None = None
    reward_mean: float | None = None
    kept: list[bool] | None = None


class TrainerDriver(Protocol):
    """A trainer's own code, from rewards to the gradient.

    ``settings`` are the advantage estimators that are driven, the trainer's default first; those in
    ``batch_wide`` use numbers of the whole batch. ``decided_at`` is the line of the trainer's code
    that decides. ``run_step`` raises whatever the trainer raises.
    """

    name: str
    version: str
    decided_at: str
    ways: tuple[Way, ...]
    settings: tuple[str, ...]
    batch_wide: frozenset[str]

    def run_step(self, batch: Batch, way: str, setting: str) -> StepResult:
        """Rewards to advantages and gradients; ``way`` marks a missing one."""


def split_groups(values: Sequence[float | None], size: int) -> list[list[float | None]]:
    """The groups of a batch, each of ``size`` answers."""
    return [list(values[start : start + size]) for start in range(0, len(values), size)]
