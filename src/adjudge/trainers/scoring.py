"""What every adapter does between a trainer's shapes: samples and groups in, rewards out."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from adjudge.engine.loop import run_blocking
from adjudge.errors import ConfigError
from adjudge.rewards.function import SpecRewardFunction
from adjudge.rewards.samples import RewardResult, RewardSample
from adjudge.rewards.spec import RewardSpec
from adjudge.trainers.metrics import batch_metrics

__all__ = ["SPEC_VARIABLE", "Scored", "Scorer", "load_spec"]

SPEC_VARIABLE = "ADJUDGE_SPEC"
"""The environment variable that names the spec where a trainer takes only a dotted path."""


@dataclass
class Scored:
    """A scored batch: ``results`` in the order of the samples, and what to log about them."""

    results: list[RewardResult]
    metrics: dict[str, float]

    @property
    def rewards(self) -> list[float | None]:
        """The rewards; ``None`` is missing, never a number."""
        return [result.score for result in self.results]


def load_spec(spec: RewardSpec | Path | str | None = None) -> RewardSpec:
    """``spec`` itself, the one in that file, or the one that ``ADJUDGE_SPEC`` names.

    Raises :class:`~adjudge.errors.ConfigError`.
    """
    if isinstance(spec, RewardSpec):
        return spec
    path = spec or os.environ.get(SPEC_VARIABLE)
    if not path:
        raise ConfigError(f"no reward spec: pass one, or name its file in {SPEC_VARIABLE}")
    return RewardSpec.load(path)


class Scorer:
    """A reward spec as adapters use it; one object for a whole run.

    Holds configuration and the outage watch; serves any thread and loop. A pickled one (a Ray
    task) starts with its own watch.
    """

    def __init__(self, spec: RewardSpec | Path | str | None = None) -> None:
        self.spec = load_spec(spec)
        self._function = SpecRewardFunction(self.spec)

    def __reduce__(self) -> tuple[type[Scorer], tuple[RewardSpec]]:
        return type(self), (self.spec,)

    @property
    def info_keys(self) -> list[str]:
        """The keys of every result's ``reward_info``, always the same."""
        return self._function.info_keys

    async def ascore(self, samples: Sequence[RewardSample], groups: Sequence[str]) -> Scored:
        """Score a batch; ``groups[i]`` names sample *i*'s group, whose members are all there.

        Raises only :class:`~adjudge.errors.JudgeUnavailable`,
        :class:`~adjudge.errors.JudgeAuthError`, :class:`~adjudge.errors.ConfigError` and, under
        policy ``raise``, :class:`~adjudge.errors.MissingRewardError`.
        """
        judged = await self._function.grade(samples, groups)
        results = self._function.reward(judged)
        metrics = batch_metrics(judged, results, [len(one.response or "") for one in samples])
        return Scored(results, metrics)

    def score(self, samples: Sequence[RewardSample], groups: Sequence[str]) -> Scored:
        """:meth:`ascore` from ordinary code, also inside somebody else's running loop."""
        return run_blocking(self.ascore(samples, groups))
