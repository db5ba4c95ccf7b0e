"""What a trainer hands in and gets back, and the class that stands between."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from adjudge.types import GraderError

__all__ = ["Part", "RewardFunction", "RewardResult", "RewardSample", "check_results"]

Part = float | GraderError
"""A part of a reward on its way: a number, or the failure that leaves it missing."""


@dataclass
class RewardSample:
    """One rollout of a batch.

    ``original_index`` is its place in the batch, ``group_index`` its place in the group;
    ``extra`` holds any other fields that graders may ask for (``reference``, ``env_reward``, …).
    """

    original_index: int
    group_index: int
    prompt: str | None
    response: str | None
    messages: list[dict[str, Any]] | None = None
    extra: Mapping[str, Any] | None = None

    def fields(self) -> dict[str, Any]:
        """The sample as one flat mapping, which graders pick their arguments from."""
        flat = dict(self.extra or ())
        if self.prompt is not None:
            flat["prompt"] = self.prompt
        if self.response is not None:
            flat["response"] = self.response
        if self.messages is not None:
            flat["messages"] = self.messages
        return flat


@dataclass
class RewardResult:
    """One reward, or why there is none.

    ``score`` is a finite float or ``None``; then ``missing`` says why. ``reward_info`` has the same
    keys for every sample of a run, ``None`` where a part is missing; ``details`` has each grader's
    score and reason or error. ``event_rewards`` is what each event (turn) adds to ``score``, in
    order; ``None`` where the score is missing, or is no sum with a part for each event.
    """

    original_index: int
    group_index: int
    score: float | None
    reward_info: dict[str, float | None] = field(default_factory=dict)
    details: dict[str, Any] | None = None
    missing: GraderError | None = None
    event_rewards: list[float] | None = None


class RewardFunction:
    """Scores whole groups: derive and write :meth:`compute_batch_scores`.

    The stock one, built from a reward spec, is :class:`adjudge.rewards.SpecRewardFunction`.
    """

    async def compute_batch_scores(
        self,
        prompt_to_samples: Mapping[str, Sequence[RewardSample]],  # noqa: ARG002  (the hook)
    ) -> list[RewardResult]:
        """One result per sample, in any order, matched by ``original_index``.

        ``prompt_to_samples`` maps a group id (the prompt, a uid) to the group's samples.
        """
        raise TypeError(f"{type(self).__name__} must define compute_batch_scores")


def check_results(
    results: Iterable[RewardResult], prompt_to_samples: Mapping[str, Sequence[RewardSample]]
) -> dict[int, RewardResult]:
    """Results by ``original_index``, every input index exactly once; ``ValueError`` otherwise."""
    wanted = [sample.original_index for group in prompt_to_samples.values() for sample in group]
    found: dict[int, RewardResult] = {}
    for result in results:
        if result.original_index in found:
            raise ValueError(f"two results for original_index {result.original_index}")
        found[result.original_index] = result
    if len(set(wanted)) != len(wanted):
        raise ValueError("two samples share an original_index")
    if lost := set(wanted) - found.keys():
        raise ValueError(f"no result for original_index {sorted(lost)[:10]}")
    if strange := found.keys() - set(wanted):
        raise ValueError(f"results for unknown original_index {sorted(strange)[:10]}")
    return found
