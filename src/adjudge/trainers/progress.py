"""Where a trainer is when it asks for rewards, and one of its calls, as a recorder takes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from adjudge.types import GradedSample, RewardResult, Sample


@dataclass(frozen=True)
class TrainerProgress:
    """Where a trainer is when it asks for rewards; ``None`` is not known.

    ``step`` is its own count, ``policy_version`` the number of updates behind the policy that wrote
    the answers; ``evaluating``: they are not trained on.
    """

    step: int | None = None
    policy_version: int | None = None
    evaluating: bool = False


@dataclass(frozen=True)
class RecordedCall:
    """One call of a trainer with its rewards; ``whole_groups`` as for :meth:`.Scorer.ascore`."""

    samples: Sequence[Sample]
    judged: Sequence[GradedSample]
    results: Sequence[RewardResult]
    metrics: Mapping[str, float]
    progress: TrainerProgress
    whole_groups: bool = True
