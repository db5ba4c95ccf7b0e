"""The numbers that make a sample's reward, and what is said of them.

Lines ``[RUBRIC_SCORE]`` of the log say a sample's events and outcome to whoever listens.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence, Set as AbstractSet
from dataclasses import dataclass, field

from adjudge.errors import ErrorKind, Metadata
from adjudge.rewards.spec import GraderEntry, GraderScope, RewardSpec
from adjudge.stats import mean_of_all
from adjudge.types import (
    GradedSample,
    GraderError,
    GraderResult,
    GraderScore,
    RewardPart,
    RewardResult,
)

_score_logger = logging.getLogger("adjudge.rubric")


@dataclass(slots=True)
class RewardChain:
    """A sample on its way to a reward: the numbers, in the order in which they are made.

    ``idle``: the graders that are left out. ``outcome``: O. ``event_values``: its events, and
    ``events``: E. ``part``: O as the missing policy and the group step leave it, or the failure
    because of which there will be no reward. ``reward``: R. ``fell_back``: ``part`` is the fallback
    rule's.
    """

    sample: GradedSample
    idle: AbstractSet[str]
    outcome: RewardPart
    event_values: list[RewardPart] | GraderError
    events: RewardPart
    part: RewardPart
    reward: RewardPart
    fell_back: bool = False

    @property
    def source(self) -> str:
        """Who made the reward: ``graders``, ``rule_fallback``, or ``none``: it was not drawn."""
        if not self.sample.sampled:
            return "none"
        return "rule_fallback" if self.fell_back else "graders"


@dataclass
class RewardChecks:
    """What is said of all groups of a run together: lone samples, and missing rewards."""

    samples: int = 0
    groups: int = 0
    alone: int = 0
    failures: list[GraderError] = field(default_factory=list)

    def add(
        self, groups: Collection[Sequence[RewardChain]], results: Sequence[RewardResult]
    ) -> None:
        """Count some whole groups and their results."""
        self.samples += len(results)
        self.groups += len(groups)
        self.alone += sum(len(group) == 1 for group in groups)
        missing = (result.missing for result in results if result.missing is not None)
        self.failures += [one for one in missing if one.kind is not ErrorKind.NOT_SAMPLED]


_PARTS: Mapping[str, GraderScope] = {"outcome": "outcome", "events": "event"}


class ResultWriter:
    """Writes what samples have beside their rewards: parts, details, what each event adds."""

    def __init__(self, spec: RewardSpec) -> None:
        self.spec, self._counting = spec, spec.counting
        self._parts = [
            name
            for name, scope in _PARTS.items()
            if any(one.scope == scope and one.weight_at(0) for one in spec.graders)
        ]

    @property
    def info_keys(self) -> list[str]:
        """The keys of every result's ``reward_info``."""
        scores = [f"{entry.name}_score" for entry in self.spec.graders]
        return [*scores, *self._parts, "env_reward"]

    def list_parts(self, chain: RewardChain) -> dict[str, float | None]:
        """``reward_info``: the same keys for every sample of the spec, always."""
        one = chain.sample
        info = {f"{entry.name}_score": _find_score(one, entry) for entry in self.spec.graders}
        for name in self._parts:
            part: RewardPart = getattr(chain, name)
            info[name] = part if isinstance(part, float) else None
        info["env_reward"] = one.env_reward
        return info

    def make_result(self, chain: RewardChain) -> RewardResult:
        """The result that a trainer gets of a chain."""
        one, reward, source = chain.sample, chain.reward, chain.source
        if one.sampled and _score_logger.isEnabledFor(logging.INFO):
            said: dict[str, str] = dict.fromkeys(_PARTS, "none")  # what the spec does not ask for
            for name in (*self._parts, "reward"):
                part: RewardPart = getattr(chain, name)
                said[name] = f"{part:.6g}" if isinstance(part, float) else "missing"
            form = "[RUBRIC_SCORE] event=%s, outcome=%s, combined=%s"
            _score_logger.info(form, said["events"], said["outcome"], said["reward"])
        info = self.list_parts(chain)
        details: Metadata = {"source": source, **_describe(one, one.outcome)}
        if isinstance(one.events, GraderError):
            if one.sampled:
                details["events"] = _detail(one.events)
        elif one.events:
            details["events"] = [_describe(one, event, at) for at, event in enumerate(one.events)]
        if not isinstance(reward, float):
            return RewardResult(one.original_index, one.group_index, None, info, details, reward)
        result = RewardResult(one.original_index, one.group_index, reward, info, details)
        if source == "graders":
            result.event_rewards = self._event_rewards(chain)
            if self.spec.missing.suspect == "min":
                result.imputed = [found for found in self.list_failures(one) if found.suspect]
        return result

    def list_failures(self, one: GradedSample) -> list[GraderError]:
        """The failures of the graders that count."""
        return [
            result
            for name, result in one.results()
            if isinstance(result, GraderError) and name in self._counting
        ]

    def _event_rewards(self, chain: RewardChain) -> list[float] | None:
        """What each event adds to the reward; ``None`` where that is not a sum over events."""
        settings, values = self.spec.reward, chain.event_values
        if not values or isinstance(values, GraderError) or "events" not in self._parts:
            return None
        if settings.event_weight == 0 or settings.combine_mode == "multiply":
            return None
        share = settings.event_weight * settings.judge_scale
        if settings.event_reduce == "mean":
            share /= len(values)
        return [share * value for value in values if not isinstance(value, GraderError)]


def _find_score(one: GradedSample, entry: GraderEntry) -> float | None:
    """A grader's score of a sample, or the mean over its events where all have one."""
    if entry.scope == "outcome":
        result = one.outcome.get(entry.name)
        return result.score if isinstance(result, GraderScore) else None
    if isinstance(one.events, GraderError):
        return None
    return mean_of_all(_score_of(event[entry.name]) for event in one.events)


def _score_of(result: GraderResult | None) -> float | None:
    return result.score if isinstance(result, GraderScore) else None


def _describe(
    one: GradedSample, results: Mapping[str, GraderResult], event: int | None = None
) -> Metadata:
    if not one.repeats:
        return {name: _detail(result) for name, result in results.items()}
    return {name: _detail(result, one.list_draws(name, event)) for name, result in results.items()}


def _detail(result: GraderResult, draws: Sequence[GraderResult] = ()) -> Metadata:
    if isinstance(result, GraderScore):
        detail: Metadata = {"score": result.score, "reason": result.reason}
    elif isinstance(result, GraderError):
        detail = {"error": result.error, "kind": str(result.kind)}
    else:
        detail = {"rank": result.rank, "reason": result.reason}
    if result.metadata:
        detail["metadata"] = result.metadata
    if draws:
        detail["draws"] = list(map(_score_of, draws))
    return detail
