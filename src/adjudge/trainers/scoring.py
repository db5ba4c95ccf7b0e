"""What every adapter does between a trainer's shapes: samples and groups in, rewards out."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from adjudge.engine.loop import run_blocking
from adjudge.errors import ConfigError
from adjudge.rewards.batch import Judged
from adjudge.rewards.function import SpecRewardFunction
from adjudge.rewards.samples import RewardResult, RewardSample
from adjudge.rewards.spec import RewardSpec
from adjudge.runner.journal import Journal
from adjudge.runs.missing_watch import MissingWatch, properties_of
from adjudge.trainers.metrics import batch_metrics, calls_behind
from adjudge.types import Provenance, Usage

__all__ = ["SPEC_VARIABLE", "Scored", "Scorer", "load_spec"]

_log = logging.getLogger("adjudge")

SPEC_VARIABLE = "ADJUDGE_SPEC"
"""The environment variable that names the spec where a trainer takes only a dotted path."""


@dataclass
class Scored:
    """A scored batch: ``results`` in the order of the samples, and what to log about them.

    ``usage`` sums the live calls behind the results (a call about a whole group counts once; kept
    replies cost nothing); ``None`` where none was made, or none said what it consumed.
    """

    results: list[RewardResult]
    metrics: dict[str, float]
    usage: Usage | None = None

    @property
    def rewards(self) -> list[float | None]:
        """The rewards; ``None`` is missing, never a number."""
        return [result.score for result in self.results]


def load_spec(spec: RewardSpec | Path | str | None = None) -> RewardSpec:
    """``spec`` itself, the one in that file, or the one that ``ADJUDGE_SPEC`` names.

    An address (``http://…``) in a file's place is a judge service, whose scores are the rewards.
    Raises :class:`~adjudge.errors.ConfigError`.
    """
    if isinstance(spec, RewardSpec):
        return spec
    path = spec or os.environ.get(SPEC_VARIABLE)
    if not path:
        raise ConfigError(f"no reward spec: pass one, or name its file in {SPEC_VARIABLE}")
    if isinstance(path, str) and path.startswith(("http://", "https://")):
        from adjudge.client.grader import served_spec  # noqa: PLC0415  (who has a file needs none)

        return served_spec(path)
    return RewardSpec.load(path)


class Scorer:
    """A reward spec as adapters use it; one object for a whole run.

    Holds configuration and the outage watch; serves any thread and loop. A pickled one (a Ray
    task) starts with its own watch, and without the ``journal`` of what was graded before.
    """

    def __init__(
        self, spec: RewardSpec | Path | str | None = None, *, journal: Journal | None = None
    ) -> None:
        self.spec = load_spec(spec)
        self._function = SpecRewardFunction(self.spec, journal=journal)
        self._kinds: dict[str, float] = {}
        self._watch, self._warned = MissingWatch(), set[str]()

    def __reduce__(self) -> tuple[type[Scorer], tuple[RewardSpec]]:
        return type(self), (self.spec,)

    @property
    def info_keys(self) -> list[str]:
        """The keys of every result's ``reward_info``, always the same."""
        return self._function.info_keys

    @property
    def needs_whole_groups(self) -> bool:
        """Whether :meth:`grade` must get all samples of a group in one call."""
        return self._function.needs_whole_groups

    @property
    def compares_groups(self) -> str | None:
        """What in the spec needs all samples of a group in one call; ``None`` when nothing does."""
        spec = self.spec
        if self._function.needs_whole_groups:
            return "a grader that compares the samples of a group"
        if spec.reward.group != "none":
            return f"reward.group = {spec.reward.group!r}"
        if spec.missing.policy in ("drop_group", "fallback"):
            return f"missing.policy = {spec.missing.policy!r}"
        return None

    async def ascore(
        self,
        samples: Sequence[RewardSample],
        groups: Sequence[str],
        *,
        step: int | None = None,
        whole_groups: bool = True,
    ) -> Scored:
        """Score a batch; ``groups[i]`` names sample *i*'s group, whose members are all there.

        Under ``sample_rate`` each ``step`` draws other groups, the same in every process; by
        default each call is a step of its own. Where :attr:`compares_groups` is ``None``, the
        members of a group may come in several calls of one step: then not ``whole_groups``.

        Raises only :class:`~adjudge.errors.JudgeUnavailable`,
        :class:`~adjudge.errors.JudgeAuthError`, :class:`~adjudge.errors.ConfigError` and, under
        policy ``raise``, :class:`~adjudge.errors.MissingRewardError`.
        """
        judged = await self.grade(samples, groups, step=step)
        return self.settle(judged, samples, whole_groups=whole_groups)

    async def grade(
        self, samples: Sequence[RewardSample], groups: Sequence[str], *, step: int | None = None
    ) -> list[Judged]:
        """What the graders say: the first half of :meth:`ascore`, of any part of a batch.

        Where :attr:`needs_whole_groups`, all members of a group belong into one call.
        """
        return await self._function.grade(samples, groups, step=step)

    def settle(
        self,
        judged: Sequence[Judged],
        samples: Sequence[RewardSample],
        *,
        whole_groups: bool = True,
    ) -> Scored:
        """The rewards of a whole batch from what was said: the second half, without waiting."""
        results = self._function.reward(judged, whole_groups=whole_groups)
        calls, lengths = calls_behind(judged), [len(one.response or "") for one in samples]
        metrics = batch_metrics(judged, results, lengths, calls)
        if metrics.get("judge/missing_frac"):
            metrics |= self._watch_missing(judged, samples, results)
        return Scored(results, self._with_known_kinds(metrics), _usage(calls))

    def _watch_missing(
        self,
        judged: Sequence[Judged],
        samples: Sequence[RewardSample],
        results: Sequence[RewardResult],
    ) -> dict[str, float]:
        """Look for what predicts missing rewards, over all batches; say each finding once."""
        rows = [
            (sample.response or "", one.group, result.score is None)
            for one, sample, result in zip(judged, samples, results, strict=True)
            if one.sampled
        ]
        self._watch.add(
            lambda place: properties_of(rows[place][0]),
            [float(len(text)) for text, _, _ in rows],
            [group for _, group, _ in rows],
            [gone for _, _, gone in rows],
        )
        found = self._watch.predictors()
        for one in found:
            if one.name not in self._warned:
                self._warned.add(one.name)
                _log.warning("%s: %s", self.spec.where, one.sentence)
        return {"judge/missing_predictors": float(len(found))}

    def _with_known_kinds(self, metrics: dict[str, float]) -> dict[str, float]:
        """A kind seen once is 0 where it does not occur, or a trainer's mean would leave it out."""
        if "judge/missing_frac" not in metrics:
            return metrics
        found = {**self._kinds, **metrics}
        kinds = (name for name in metrics if name.startswith("judge/missing_frac/"))
        self._kinds.update(dict.fromkeys(kinds, 0.0))
        return found

    def score(
        self, samples: Sequence[RewardSample], groups: Sequence[str], *, step: int | None = None
    ) -> Scored:
        """:meth:`ascore` from ordinary code, also inside somebody else's running loop."""
        return run_blocking(self.ascore(samples, groups, step=step))


def _usage(calls: Sequence[Provenance]) -> Usage | None:
    """What the batch's live calls consumed; a cost where any of them has one."""
    found = [usage for call in calls if (usage := call.paid) is not None]
    return sum(found, Usage()) if found else None
