"""The graders of a spec about a group, in two steps: each sample by itself, then all together."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from adjudge.errors import ConfigError, ErrorKind, JudgeAuthError
from adjudge.graders.base import is_listwise
from adjudge.rewards.batch_grader import BatchGrader
from adjudge.rewards.function import SpecRewardFunction
from adjudge.rewards.reducer import RewardReducer
from adjudge.rewards.spec import GraderEntry, RewardSpec
from adjudge.types import GradedSample, GraderError, RewardResult, Sample


class GroupJudge:
    """What :class:`~adjudge.rewards.SpecRewardFunction` does with a group, in two steps.

    ``deadline_s``: for one sample's graders, and for those that compare the group. Every failure
    is that sample's (or that group's) at once: waiting out an outage is for the training side, and
    so is policy ``raise``. Raises ``ConfigError`` for ``sample_rate`` below 1.
    """

    def __init__(self, function: SpecRewardFunction, deadline_s: float) -> None:
        spec, graders = function.spec, function.graders
        if spec.reward.sample_rate < 1:
            raise ConfigError(
                f"{spec.where}: reward.sample_rate: must be 1 in a service, since the sender of a "
                f"group waits for its answer (found {spec.reward.sample_rate:g}). Set 1, and send "
                "fewer groups."
            )
        calm: dict[str, Any] = {"max_missing": 1.0, "patience_s": 0.0}
        if spec.missing.policy == "raise":
            calm["policy"] = "mask"
        spec = spec.model_copy(update={"missing": spec.missing.model_copy(update=calm)})
        together = [entry for entry in spec.graders if is_listwise(graders[entry.name])]
        alone = [entry for entry in spec.graders if entry not in together]
        self.names = [entry.name for entry in spec.graders]
        self._reducer = RewardReducer(spec, graders)
        self._alone, self._together = alone, together
        self._alone_grader = _make_grader(spec, alone, graders)
        self._together_grader = _make_grader(spec, together, graders)
        self._deadline_s = deadline_s

    async def judge_sample(self, sample: Sample, group: str) -> GradedSample:
        """What the graders say that see one sample."""
        if self._alone_grader is None:
            return self._unjudged(sample, group)
        try:
            async with asyncio.timeout(self._deadline_s):
                [judged] = await self._alone_grader.grade([sample], [group], [True])
        except (TimeoutError, JudgeAuthError, ConfigError) as error:
            return self._unjudged(sample, group, _failure_kind(error, self._deadline_s))
        return judged

    async def judge_group(
        self, judged: Sequence[GradedSample], samples: Sequence[Sample | None]
    ) -> tuple[list[GradedSample], list[RewardResult]]:
        """What all graders said, and the rewards, once everybody of a group is there.

        Compared are those whose samples are given; the others have been.
        """
        everything = list(judged)
        new = [place for place, sample in enumerate(samples) if sample is not None]
        if self._together_grader is not None and new:
            there = [sample for sample in samples if sample is not None]
            groups = [judged[place].group for place in new]
            try:
                async with asyncio.timeout(self._deadline_s):
                    found = await self._together_grader.grade(there, groups, [True] * len(new))
                added = [one.outcome for one in found]
            except (TimeoutError, JudgeAuthError, ConfigError) as error:
                failure = _failure_kind(error, self._deadline_s)
                added = [_grader_errors(self._together, failure)] * len(new)
            for place, more in zip(new, added, strict=True):
                outcome = {**judged[place].outcome, **more}
                everything[place] = replace(judged[place], outcome=outcome)
        return everything, self._reducer.reward(everything)

    def comparison(self, judged: GradedSample) -> dict[str, Any]:
        """What the graders that compare have said of a sample; empty where that may pass."""
        found = {one.name: judged.outcome.get(one.name) for one in self._together}
        failed = any(one is None or getattr(one, "passing", False) for one in found.values())
        return {} if failed else found

    def components(self, judged: Sequence[GradedSample]) -> list[dict[str, float] | None]:
        """What each grader brings to the rewards of a group.

        Trainers read them by place, so a grader that had nothing to judge has its stated score.
        """
        return self._reducer.components(judged, whole_groups=False)

    @property
    def compares_samples(self) -> bool:
        """Whether a grader will need the samples themselves again."""
        return self._together_grader is not None

    def _unjudged(
        self, sample: Sample, group: str, failure: tuple[ErrorKind, str] | None = None
    ) -> GradedSample:
        """A sample of which nothing was asked, or whose graders all failed in the same way."""
        outcome: dict[str, Any] = {}
        events: list[Any] | GraderError = []
        if failure is not None:
            outcome = _grader_errors([e for e in self._alone if e.scope == "outcome"], failure)
            if any(entry.scope == "event" for entry in self._alone):
                events = GraderError("events", *failure)
        place, env_reward = sample.original_index, sample.env_reward
        return GradedSample(place, sample.group_index, group, env_reward, outcome, events)


def _make_grader(spec: RewardSpec, entries: list[GraderEntry], graders: Any) -> BatchGrader | None:
    """The batch grader of some of a spec's graders, ``None`` for none."""
    if not entries:
        return None
    part = spec.model_copy(update={"graders": entries})
    return BatchGrader(part, {entry.name: graders[entry.name] for entry in entries})


def _grader_errors(
    entries: Sequence[GraderEntry], failure: tuple[ErrorKind, str]
) -> dict[str, Any]:
    return {entry.name: GraderError(entry.name, *failure) for entry in entries}


def _failure_kind(error: Exception, deadline_s: float) -> tuple[ErrorKind, str]:
    if isinstance(error, TimeoutError):
        return ErrorKind.TIMEOUT, f"no answer within {deadline_s:g} s (deadline_s)"
    if isinstance(error, JudgeAuthError):
        return ErrorKind.AUTH, str(error)
    return ErrorKind.UNSUPPORTED, str(error)
