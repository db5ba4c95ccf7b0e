"""Reference trainers: one that is exact about missing rewards, and the usual one that is not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from adjudge_lab.conformance.driver import Batch, StepResult, Way, split_groups

EPSILON = 1e-4


class ReferenceTrainer:
    """GRPO in plain Python, in which an answer without a reward takes no part in anything.

    Its loss is the mean over the tokens of the answers that have a reward; a KL term is over the
    same tokens. A group in which fewer than two answers have one teaches nothing.
    """

    name = "reference"
    version = "1"
    decided_at = "adjudge_lab/conformance/reference.py"
    ways: tuple[Way, ...] = (Way("None"),)
    settings: tuple[str, ...] = ("grpo", "dr_grpo", "rloo")
    batch_wide: frozenset[str] = frozenset()

    def __init__(self, checkout: Path | None = None) -> None:
        """``checkout`` is not read: the trainer is here."""

    def run_step(self, batch: Batch, way: str, setting: str) -> StepResult:  # noqa: ARG002
        """One step; raises ``RuntimeError`` where no answer has a reward."""
        rewards = [reward for group in batch.groups for reward in group]
        present = [reward is not None and math.isfinite(reward) for reward in rewards]
        if not any(present):
            raise RuntimeError("no answer has a reward")
        values = [reward if reward is not None else math.nan for reward in rewards]
        lengths = [length for group in batch.lengths for length in group]
        size = len(batch.groups[0])
        advantages: list[float] = []
        kept: list[bool] = []
        for start in range(0, len(values), size):
            group = values[start : start + size]
            mask = present[start : start + size]
            advantages += self.compute_advantages(group, mask, setting)
            kept.append(len({value for value, there in zip(group, mask, strict=True) if there}) > 1)
        tokens = sum(length for length, there in zip(lengths, present, strict=True) if there)
        gradients = [
            (batch.kl - advantage) / tokens if there else 0.0
            for advantage, there in zip(advantages, present, strict=True)
        ]
        return StepResult(
            advantages=split_groups(advantages, size),
            gradients=split_groups(gradients, size),
            reward_mean=fmean(v for v, there in zip(values, present, strict=True) if there),
            kept=kept,
        )

    def compute_advantages(
        self, group: Sequence[float], mask: Sequence[bool], setting: str
    ) -> list[float]:
        """Of one group; ``mask`` says who has a reward, the others get 0."""
        values = [value for value, there in zip(group, mask, strict=True) if there]
        count = len(values)
        if count < 2:
            return [0.0] * len(group)
        mean = sum(values) / count
        deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / (count - 1))
        scale = {"grpo": 1 / (deviation + EPSILON), "dr_grpo": 1.0, "rloo": count / (count - 1)}
        return [
            (value - mean) * scale[setting] if there else 0.0
            for value, there in zip(group, mask, strict=True)
        ]


class ZeroFillTrainer(ReferenceTrainer):
    """The same, but a missing reward is 0: what many reward functions return on a failure."""

    name = "zero fill"

    def run_step(self, batch: Batch, way: str, setting: str) -> StepResult:
        """As the reference, with 0 in place of ``None``."""
        groups = tuple(tuple(0.0 if r is None else r for r in group) for group in batch.groups)
        return super().run_step(
            Batch(groups=groups, lengths=batch.lengths, kl=batch.kl), way, setting
        )
