"""The stock reward function: a reward spec applied to groups of samples.

Grade → normalise → aggregate → missing policy → group step → combine with the environment.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

from adjudge.engine.clock import Clock
from adjudge.engine.loop import run_blocking, run_on_engine
from adjudge.errors import ConfigError, ErrorKind
from adjudge.graders.base import is_listwise
from adjudge.rewards.aggregate import Term, aggregate
from adjudge.rewards.batch import Judged
from adjudge.rewards.combine import Part, combine, judge_part, reduce_events
from adjudge.rewards.groups import group_step
from adjudge.rewards.missing import drop_short_group, fallback_group, raise_missing
from adjudge.rewards.panel import Panel
from adjudge.rewards.samples import RewardFunction, RewardResult, RewardSample
from adjudge.rewards.spec import RewardSpec
from adjudge.runner.journal import Journal
from adjudge.runner.progress import Tally
from adjudge.types import GraderError, GraderResult, GraderScore, Role

__all__ = ["SpecRewardFunction"]

Outcome = float | GraderError


class SpecRewardFunction(RewardFunction):
    """Rewards as a :class:`~adjudge.rewards.RewardSpec` says.

    ``graders`` gives grader objects by name instead of building the spec's types; ``tally`` is a
    caller's count of results. Holds configuration, and the outage watch that looks back over
    calls; one object serves any thread, loop and process.
    """

    def __init__(
        self,
        spec: RewardSpec,
        *,
        graders: Mapping[str, Any] | None = None,
        clock: Clock | None = None,
        journal: Journal | None = None,
        show_progress: bool = False,
        tally: Tally | None = None,
    ) -> None:
        self.spec = spec
        self.graders = dict(graders or spec.build_graders())
        _check_graders(spec, self.graders)
        self._panel = Panel(
            spec,
            self.graders,
            clock=clock,
            journal=journal,
            show_progress=show_progress,
            tally=tally,
        )
        self._steps = 0

    @classmethod
    def from_file(cls, path: Path | str, *, show_progress: bool = False) -> SpecRewardFunction:
        """The reward function of a spec file; raises :class:`~adjudge.errors.ConfigError`."""
        return cls(RewardSpec.load(path), show_progress=show_progress)

    @property
    def needs_whole_groups(self) -> bool:
        """Whether :meth:`grade` must get all samples of a group in one call."""
        return self._panel.needs_whole_groups

    async def compute_batch_scores(
        self, prompt_to_samples: Mapping[str, Sequence[RewardSample]]
    ) -> list[RewardResult]:
        """One result per sample, groups in the mapping's order.

        Raises :class:`~adjudge.errors.JudgeUnavailable`, :class:`~adjudge.errors.JudgeAuthError`,
        and under policy ``raise`` :class:`~adjudge.errors.MissingRewardError`; nothing else on a
        grader's behalf.
        """
        samples = [sample for group in prompt_to_samples.values() for sample in group]
        groups = [key for key, group in prompt_to_samples.items() for _ in group]
        return self.reward(await self.grade(samples, groups))

    def compute(
        self, prompt_to_samples: Mapping[str, Sequence[RewardSample]]
    ) -> list[RewardResult]:
        """:meth:`compute_batch_scores` from ordinary code."""
        return run_blocking(self.compute_batch_scores(prompt_to_samples))

    async def grade(
        self, samples: Sequence[RewardSample], groups: Sequence[str], *, step: int | None = None
    ) -> list[Judged]:
        """Ask the graders about ``samples``; ``groups[i]`` names sample *i*'s group.

        Under ``sample_rate`` every ``step`` draws other groups (by default each call is a step of
        its own); a group whose samples come in several calls needs the same step in all.
        """
        if step is None:
            step, self._steps = self._steps, self._steps + 1
        drawn = {group: self._is_drawn(group, step) for group in dict.fromkeys(groups)}
        return await run_on_engine(
            self._panel.ask(samples, groups, [drawn[group] for group in groups])
        )

    def _is_drawn(self, group: str, step: int) -> bool:
        """Whether a group is judged under ``sample_rate``."""
        rate = self.spec.reward.sample_rate
        if rate >= 1:
            return True
        text = f"{self.spec.reward.seed}\x00{step}\x00{group}"
        digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        return int.from_bytes(digest) < rate * 2**64

    def reward(self, judged: Sequence[Judged]) -> list[RewardResult]:
        """Rewards from what the graders said, in the same order; pure.

        The members of a group may stand anywhere in ``judged``, but all must be there.
        """
        outcomes = [self._aggregate(one.outcome, "outcome") for one in judged]
        parts: list[Outcome] = list(outcomes)
        fell_back = [False] * len(judged)
        for positions in _by_group(judged).values():
            self._settle_group(judged, positions, parts, fell_back)
        results = [
            self._result(one, outcome, part, back)
            for one, outcome, part, back in zip(judged, outcomes, parts, fell_back, strict=True)
        ]
        if self.spec.missing.policy == "raise":
            failures = [r.missing for r in results if r.missing is not None]
            asked = [f for f in failures if f.kind is not ErrorKind.NOT_SAMPLED]
            raise_missing(asked, len(results))
        return results

    def _aggregate(self, results: Mapping[str, GraderResult], scope: str) -> Outcome:
        terms = self._terms(scope)
        settings = self.spec.reward
        return aggregate(
            results,
            terms,
            method=settings.aggregate,
            beta=settings.beta,
            gate=settings.gate,
            normalise=settings.normalise,
        )

    def _terms(self, scope: str) -> list[Term]:
        return self.spec.terms("event" if scope == "event" else "outcome")

    def _settle_group(
        self,
        judged: Sequence[Judged],
        positions: Sequence[int],
        parts: list[Outcome],
        fell_back: list[bool],
    ) -> None:
        """The missing policy and the group step, in place, for one group's positions."""
        if not judged[positions[0]].sampled:
            return
        missing, reward = self.spec.missing, self.spec.reward
        group = [parts[position] for position in positions]
        if missing.policy == "drop_group":
            group = drop_short_group(group, missing.min_valid)
        if missing.policy == "fallback":
            rule = [self._fallback(judged[position]) for position in positions]
            group, back = fallback_group(group, rule)
            for position in positions:
                fell_back[position] = back
        present = [None if isinstance(part, GraderError) else part for part in group]
        stepped = group_step(present, reward.group, bonus=reward.bonus)
        for position, part, value in zip(positions, group, stepped, strict=True):
            parts[position] = part if isinstance(part, GraderError) else _or_alone(value)

    def _fallback(self, one: Judged) -> Outcome:
        name = self.spec.missing.fallback or ""
        return aggregate(one.outcome, [Term(name)], normalise=self.spec.reward.normalise)

    def _result(
        self, one: Judged, outcome: Outcome, part: Outcome, fell_back: bool
    ) -> RewardResult:
        settings = self.spec.reward
        events = self._events(one)
        judge = judge_part(
            part,
            events,
            outcome_weight=settings.outcome_weight,
            event_weight=settings.event_weight,
        )
        reward = combine(
            judge,
            one.env_reward,
            mode=settings.combine_mode,
            judge_scale=settings.judge_scale,
            negative_env=settings.negative_env,
        )
        if not one.sampled and settings.unjudged == "env" and one.env_reward is not None:
            reward = one.env_reward
        missing = reward if isinstance(reward, GraderError) else None
        return RewardResult(
            one.original_index,
            one.group_index,
            None if isinstance(reward, GraderError) else reward,
            self._info(one, outcome, events),
            _details(one, self._source(one, fell_back)),
            missing,
        )

    def _events(self, one: Judged) -> Part:
        if isinstance(one.events, GraderError):
            return one.events
        values = [self._aggregate(event, "event") for event in one.events]
        return reduce_events(values, self.spec.reward.event_reduce)

    def _source(self, one: Judged, fell_back: bool) -> str:
        if not one.sampled:
            return "env" if self.spec.reward.unjudged == "env" else "none"
        return "rule_fallback" if fell_back else "graders"

    def _info(self, one: Judged, outcome: Outcome, events: Part) -> dict[str, float | None]:
        """The same keys for every sample of this spec, always."""
        info: dict[str, float | None] = {}
        for entry in self.spec.graders:
            found = one.outcome.get(entry.name)
            info[f"{entry.name}_score"] = (
                _event_mean(one, entry.name)
                if entry.scope == "event"
                else found.score
                if isinstance(found, GraderScore)
                else None
            )
        info["outcome"] = None if isinstance(outcome, GraderError) else outcome
        if any(entry.scope == "event" for entry in self.spec.graders):
            info["events"] = None if isinstance(events, GraderError) else events
        info["env_reward"] = one.env_reward
        return info


def _by_group(judged: Sequence[Judged]) -> dict[str, list[int]]:
    positions: dict[str, list[int]] = {}
    for position, one in enumerate(judged):
        positions.setdefault(one.group, []).append(position)
    return positions


def _or_alone(value: float | None) -> Outcome:
    """A present reward that the group step could not place."""
    if value is not None:
        return value
    return GraderError(
        "group", ErrorKind.INVALID_INPUT, "a lone sample has nobody to be ranked against"
    )


def _event_mean(one: Judged, name: str) -> float | None:
    if isinstance(one.events, GraderError) or not one.events:
        return None
    scores = [event[name] for event in one.events]
    present = [result.score for result in scores if isinstance(result, GraderScore)]
    return math.fsum(present) / len(present) if len(present) == len(scores) else None


def _details(one: Judged, source: str) -> dict[str, Any]:
    details: dict[str, Any] = {"source": source}
    details.update({name: _detail(result) for name, result in one.outcome.items()})
    if isinstance(one.events, GraderError):
        if one.sampled:
            details["events"] = _detail(one.events)
    elif one.events:
        details["events"] = [
            {name: _detail(result) for name, result in event.items()} for event in one.events
        ]
    return details


def _detail(result: GraderResult) -> dict[str, Any]:
    if isinstance(result, GraderError):
        detail: dict[str, Any] = {"error": result.error, "kind": str(result.kind)}
    elif isinstance(result, GraderScore):
        detail = {"score": result.score, "reason": result.reason}
    else:
        detail = {"rank": result.rank, "reason": result.reason}
    if result.metadata:
        detail["metadata"] = result.metadata
    return detail


def _check_graders(spec: RewardSpec, graders: Mapping[str, Any]) -> None:
    """What only built graders can tell: ranges to normalise by, a fallback that is a rule."""
    if lacking := [entry.name for entry in spec.graders if entry.name not in graders]:
        raise ConfigError(f"{spec.where}: no grader object for {lacking[0]!r}")
    for entry in spec.graders:
        grader = graders[entry.name]
        listwise = is_listwise(grader)
        if listwise and entry.scope == "event":
            raise ConfigError(f"{spec.where}: graders.{entry.name}: ranks groups, not events")
        role = Role(getattr(grader, "role", Role.SCORE))
        if listwise or role is not Role.SCORE or entry.weight == 0 or not spec.reward.normalise:
            continue
        low, high = getattr(grader, "score_range", None) or (None, None)
        if low is None or high is None:
            raise ConfigError(
                f"{spec.where}: graders.{entry.name}: has no finite score_range to normalise by; "
                "set one on the grader, or [reward] normalise = false"
            )
    fallback = spec.missing.fallback
    if fallback is not None and not getattr(graders[fallback], "is_rule", False):
        raise ConfigError(
            f"{spec.where}: missing.fallback: {fallback!r} is not a rule grader, so it may fail "
            "for the same reason as the one it replaces"
        )
