"""From what the graders said to rewards, in one pass of named steps.

Each step is a function over plain numbers, in this order:

1. leave out idle graders: those that had nothing to judge in a whole group
   (:func:`find_idle_graders`);
2. normalise, aggregate, gate: O = method(w, s) · Π gates + Σ penalties
   (:mod:`~adjudge.rewards.aggregate`), and E = Σ or mean over events;
3. missing: what becomes of a group in which O is missing (:mod:`~adjudge.rewards.groups`);
4. group: O → z-score, rank, … within the group (:func:`~adjudge.rewards.groups.group_step`);
5. environment: R = env and s · (w_E·E + w_O·O) by ``combine_mode``.

Pure: nothing is asked here, and the same answers make the same rewards, to the last bit.
:meth:`RewardReducer.explain` gives the chain of numbers that made each reward. Lines
``[RUBRIC_SCORE]`` of the log say what a sample's events and outcome were, for whoever listens.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Any, cast

from msgspec import structs

from adjudge.errors import LACKED, LOST, ErrorKind
from adjudge.graders.base import GraderTraits, is_listwise
from adjudge.rewards.aggregate import (
    AggregateTerm,
    aggregate,
    combine,
    combine_parts,
    component_values,
    reduce_events,
)
from adjudge.rewards.groups import (
    drop_group,
    fallback_group,
    gdpo_step,
    group_step,
    raise_missing,
)
from adjudge.rewards.spec import GraderScope, RewardSpec, check_graders
from adjudge.stats import snap_ties
from adjudge.types import (
    GradedSample,
    GraderError,
    GraderResult,
    GraderScore,
    RewardPart,
    RewardResult,
    Role,
    finite_range,
)

_score_logger = logging.getLogger("adjudge.rubric")


def log_score(event: RewardPart | None, outcome: RewardPart | None, combined: RewardPart) -> None:
    """One line per sample at INFO: E, O and the reward.

    What is missing says ``missing``; what the spec does not ask for (``None``) says ``none``.
    """
    if _score_logger.isEnabledFor(logging.INFO):
        _score_logger.info(
            "[RUBRIC_SCORE] event=%s, outcome=%s, combined=%s",
            _format_part(event),
            _format_part(outcome),
            _format_part(combined),
        )


def _format_part(part: RewardPart | None) -> str:
    if part is None:
        return "none"
    return "missing" if isinstance(part, GraderError) else f"{part:.6g}"


_log = logging.getLogger("adjudge")
_LONE_SAMPLE_EFFECT = {
    **dict.fromkeys(("centre", "rloo", "z_score", "gdpo"), "get 0 whatever the graders say"),
    "rank": "have no reward",
    "best_bonus": "always get the bonus",
}
"""What becomes of samples that are alone in their group."""


class RewardReducer:
    """Makes of what graders said the rewards that a spec says; asks nobody.

    ``graders`` are read for their role and range. Raises :class:`~adjudge.errors.ConfigError` where
    they do not fit the spec.
    """

    def __init__(self, spec: RewardSpec, graders: Mapping[str, Any]) -> None:
        self.spec, self.graders = spec, dict(graders)
        check_graders(spec, self.graders)
        scopes: tuple[GraderScope, ...] = ("outcome", "event")
        # What weighs 0 is reported only.
        self._terms: dict[GraderScope, list[AggregateTerm]] = {
            scope: [self._term(term) for term in spec.terms(scope) if term.weight != 0]
            for scope in scopes
        }
        self._counting = spec.counting
        self._compares = spec.reward.group != "none" or spec.missing.policy in (
            "drop_group",
            "fallback",
        )
        self._warned = False

    def _term(self, term: AggregateTerm) -> AggregateTerm:
        worst = _worst_contribution(
            self.graders[term.name], term.weight, self.spec.reward.normalise
        )
        return replace(term, worst=worst, suspect_is_worst=self.spec.missing.suspect == "min")

    @property
    def info_keys(self) -> list[str]:
        """The keys of every result's ``reward_info``."""
        scores = [f"{entry.name}_score" for entry in self.spec.graders]
        outcome = ["outcome"] if self._terms["outcome"] else []
        events = ["events"] if self._terms["event"] else []
        return [*scores, *outcome, *events, "env_reward"]

    def reward(
        self,
        judged: Sequence[GradedSample],
        *,
        whole_groups: bool = True,
        step: int | None = None,
    ) -> list[RewardResult]:
        """Rewards from what the graders said, in the same order; pure.

        The members of a group may stand anywhere in ``judged``, but all must be there; without
        ``whole_groups`` some may be in other calls, where nothing of the spec compares them.

        A grader that had nothing to judge in *all* samples of a group is left out of that group; in
        *some* of them, its stated score counts there. So does the stated score where the group may
        not be whole. A grader whose field a whole group lacks has nothing to judge there, either;
        where some samples have the field, the others' rewards are missing. A reward of which
        nothing is left is missing: ``not_applicable``.

        Under ``weighted_sum`` a group that ``sample_rate`` did not draw keeps the environment's
        reward; in the other modes its rewards are missing.

        Rewards of a group that differ by rounding alone are made equal. ``step`` is the training
        step, by which schedules of weights go; without one a spec that has any is a
        :class:`~adjudge.errors.ConfigError`.
        """
        found = RewardChecks()
        results = self.reward_part(judged, found, whole_groups=whole_groups, step=step)
        self.check_rewards(found)
        return results

    def reward_part(
        self,
        judged: Sequence[GradedSample],
        found: RewardChecks,
        *,
        whole_groups: bool = True,
        step: int | None = None,
    ) -> list[RewardResult]:
        """:meth:`reward` of some groups of many, noting in ``found`` what is said of all together.

        After the last part, :meth:`check_rewards` says it.
        """
        if step is not None and self.spec.schedules:
            reducer = RewardReducer(self.spec.at_step(step), self.graders)
            return reducer.reward_part(judged, found, whole_groups=whole_groups)
        chains = self.explain(judged, whole_groups=whole_groups)
        results = [self._result(chain) for chain in chains]
        found.add(_by_group(chains), results)
        return results

    def check_rewards(self, found: RewardChecks) -> None:
        """Warn of lone samples once; under policy ``raise``, raise for missing rewards.

        A group step has nothing to compare in groups of one: their ids may be wrong.
        """
        step = self.spec.reward.group
        if step != "none" and not self._warned and found.alone:
            self._warned = True
            _log.warning(
                "%s: reward.group: %r compares the samples of a group, but %d of %d groups have "
                "one sample only: these %s. Check what names the group, or use group = 'none'.",
                self.spec.where,
                step,
                found.alone,
                found.groups,
                _LONE_SAMPLE_EFFECT[step],
            )
        if self.spec.missing.policy == "raise":
            raise_missing(found.failures, found.samples)

    def explain(
        self, judged: Sequence[GradedSample], *, whole_groups: bool = True
    ) -> list[RewardChain]:
        """The numbers that made each reward, step by step; see :class:`RewardChain`."""
        self.spec.refuse_schedules("this call", "Pass step=….")
        idle = self._leave_out_idle(judged, whole_groups=whole_groups)
        chains = [self._begin(one, names) for one, names in zip(judged, idle, strict=True)]
        for group in _by_group(chains):
            if self._compares and group[0].sample.sampled:
                self._apply_missing_policy(group)
                self._apply_group_step(group)
            _snap_rewards(group)
        return chains

    # --- the steps, in their order ---------------------------------------------------------------

    def _leave_out_idle(
        self, judged: Sequence[GradedSample], *, whole_groups: bool
    ) -> list[AbstractSet[str]]:
        """For each sample, the graders that are left out of its reward: idle in its whole group."""
        if whole_groups:
            imputes = self.spec.missing.suspect == "min"
            of_group = find_idle_graders(judged, imputes=imputes)
            return [of_group.get(one.group, _NO_GRADERS) for one in judged]
        # What is left out of one sample must be left out of its group, of which nothing is known
        # but that its samples are of one row, and so have the same fields.
        alone = [find_idle_graders([one]).get(one.group, _NO_GRADERS) for one in judged]
        return [
            names
            if names >= self._counting
            else {name for name, result in one.results() if name in names and _is_lacking(result)}
            for one, names in zip(judged, alone, strict=True)
        ]

    def _begin(self, one: GradedSample, idle: AbstractSet[str]) -> RewardChain:
        """One sample's O = aggregate(outcome) and E = Σ or mean of aggregate(event), and its R."""
        settings = self.spec.reward
        outcome = self._aggregate(one.outcome, "outcome", idle)
        values: list[RewardPart] | GraderError = []
        events: RewardPart = 0.0
        event_graders = {term.name for term in self._terms["event"]}
        if isinstance(one.events, GraderError):
            values = events = one.events
        elif one.events:
            values = [self._aggregate(event, "event", idle) for event in one.events]
            events = reduce_events(values, settings.event_reduce)
        elif not event_graders or not idle >= event_graders:  # else idle for the whole group
            events = reduce_events([], settings.event_reduce)
        # An outcome of weight 0 is not needed and not missed; its place is never read.
        part = outcome if settings.outcome_weight != 0 else 0.0
        chain = RewardChain(one, idle, outcome, values, events, part, part)
        chain.reward = self._apply_environment(chain)
        if settings.combine_mode == "weighted_sum" and not one.sampled and _is_undrawn(chain):
            chain.part = 0.0  # a group that was not drawn keeps the environment's reward
            chain.reward = self._combine(0.0, one)
        if not isinstance(chain.reward, float):
            chain.part = chain.reward
        return chain

    def _aggregate(
        self, results: Mapping[str, GraderResult], scope: GraderScope, idle: AbstractSet[str]
    ) -> RewardPart:
        """O, or one event of E: method(w, normalised s) · Π gates + Σ penalties, without idle."""
        terms = self._terms[scope]
        if idle and terms:
            terms = _active_terms(terms, results, idle)
            if not terms and idle >= self._counting:
                why = "no grader had anything to judge"
                nothing = GraderError("group", ErrorKind.NOT_APPLICABLE, why)
                failed = (one for one in results.values() if isinstance(one, GraderError))
                return _blame_sample(next(filter(_is_lacking, failed), nothing), results)
            if not terms:
                return 0.0  # the other scope makes the reward
        settings = self.spec.reward
        number = aggregate(results, terms, method=settings.aggregate, normalise=settings.normalise)
        return _blame_sample(number, results)

    def _apply_missing_policy(self, group: Sequence[RewardChain]) -> None:
        """A group in which O is missing: none has one, or all have the fallback's; in place."""
        parts = [chain.part for chain in group]
        if self.spec.missing.policy == "drop_group":
            parts = drop_group(parts)
        if self.spec.missing.policy == "fallback":
            parts, fell_back = fallback_group(parts, [self._fallback(one) for one in group])
            for chain in group:
                chain.fell_back = fell_back
        for chain, part in zip(group, parts, strict=True):
            chain.part = part

    def _apply_group_step(self, group: Sequence[RewardChain]) -> None:
        """O ← step(O) within its group, and R of that; a sample without a reward counts nowhere."""
        reward = self.spec.reward
        present = [chain.part if isinstance(chain.part, float) else None for chain in group]
        if reward.group == "gdpo" and not group[0].fell_back:
            components = [
                None if outcome is None else self._components(chain.sample, chain.idle)
                for chain, outcome in zip(group, present, strict=True)
            ]
            weights = {term.name: term.weight for term in self._terms["outcome"]}
            stepped = gdpo_step(components, weights)
        else:
            stepped = group_step(present, reward.group, bonus=reward.bonus)
        for chain, value in zip(group, stepped, strict=True):
            if isinstance(chain.part, float):
                chain.part = _UNRANKED if value is None else value
            there = isinstance(chain.part, float)
            chain.reward = self._apply_environment(chain) if there else chain.part

    def _apply_environment(self, chain: RewardChain) -> RewardPart:
        """R = env and s · (w_E·E + w_O·O) by ``combine_mode``; a fallback stands for O and E."""
        settings = self.spec.reward
        judge = chain.part
        if not chain.fell_back:
            judge = combine_parts(
                chain.part,
                chain.events,
                outcome_weight=settings.outcome_weight,
                event_weight=settings.event_weight,
            )
        return self._combine(judge, chain.sample)

    def _combine(self, judge: RewardPart, one: GradedSample) -> RewardPart:
        settings = self.spec.reward
        return combine(
            judge, one.env_reward, mode=settings.combine_mode, judge_scale=settings.judge_scale
        )

    def _components(self, one: GradedSample, idle: AbstractSet[str]) -> dict[str, float] | None:
        """A sample's outcome before it is one number; ``None`` where a grader of it failed."""
        terms = _active_terms(self._terms["outcome"], one.outcome, idle)
        found = component_values(one.outcome, terms, normalise=self.spec.reward.normalise)
        return None if isinstance(found, GraderError) else found

    def _fallback(self, chain: RewardChain) -> RewardPart:
        """The fallback rule's word on a sample; missing where even it could make no reward."""
        terms = [AggregateTerm(self.spec.missing.fallback or "")]
        rule = aggregate(chain.sample.outcome, terms, normalise=self.spec.reward.normalise)
        trial = self._combine(rule, chain.sample)
        return trial if isinstance(trial, GraderError) else rule

    # --- what is said of a reward -----------------------------------------------------------------

    def components(
        self, judged: Sequence[GradedSample], *, whole_groups: bool = True
    ) -> list[dict[str, float] | None]:
        """What each grader that counts brings to a sample's outcome, by grader and unweighed.

        ``None`` where one of them is missing: then the outcome is, too. A grader that had nothing
        to judge in a whole group is in none of its samples. Components of a group that differ by
        rounding alone are made equal.
        """
        self.spec.refuse_schedules("this call", "Use RewardSpec.at_step.")
        idle = (
            self._leave_out_idle(judged, whole_groups=True)
            if whole_groups
            else [_NO_GRADERS] * len(judged)
        )
        found = [self._components(one, names) for one, names in zip(judged, idle, strict=True)]
        groups: dict[str, list[dict[str, float]]] = {}
        for one, components in zip(judged, found, strict=True):
            if components is not None:
                groups.setdefault(one.group, []).append(components)
        for members in groups.values():
            for name in members[0]:
                snapped = snap_ties([components[name] for components in members])
                for components, value in zip(members, snapped, strict=True):
                    components[name] = value
        return found

    def draw_values(self, judged: Sequence[GradedSample]) -> list[list[dict[str, float | None]]]:
        """What each draw of some whole groups came to: for each sample a mapping a draw.

        Its keys are :attr:`info_keys` and ``reward``, which here is ``None`` too where a grader
        that counts failed: an imputed number, or a fallback's, is no draw. A sample that was not
        drawn has an empty list.
        """
        drawn = [one for one in judged if one.sampled]
        columns = []
        for number in range(1 + max((len(one.repeats) for one in drawn), default=0)):
            ones = [one.repeats[number - 1] if number else one for one in drawn]
            columns.append(list(map(self._draw_values, self.explain(ones))))
        rows = iter(zip(*columns, strict=True))
        return [list(next(rows)) if one.sampled else [] for one in judged]

    def _draw_values(self, chain: RewardChain) -> dict[str, float | None]:
        failed = any(
            isinstance(result, GraderError) and name in self._counting
            for name, result in chain.sample.results()
        )
        whole = isinstance(chain.reward, float) and not failed and not chain.fell_back
        return {**self._info(chain), "reward": cast("float", chain.reward) if whole else None}

    def _result(self, chain: RewardChain) -> RewardResult:
        one, reward = chain.sample, chain.reward
        source = "none"
        if one.sampled:
            source = "rule_fallback" if chain.fell_back else "graders"
            log_score(
                chain.events if self._terms["event"] else None,
                chain.outcome if self._terms["outcome"] else None,
                reward,
            )
        info, details = self._info(chain), _details(one, source)
        if not isinstance(reward, float):
            return RewardResult(one.original_index, one.group_index, None, info, details, reward)
        events = self._event_rewards(chain) if source == "graders" else None
        imputed: list[GraderError] = []
        if self.spec.missing.suspect == "min" and source == "graders":
            found = [result for name, result in one.results() if name in self._counting]
            imputed = [one for one in found if isinstance(one, GraderError) and one.suspect]
        return RewardResult(
            one.original_index, one.group_index, reward, info, details, None, events, imputed
        )

    def _event_rewards(self, chain: RewardChain) -> list[float] | None:
        """What each event adds to the reward; ``None`` where that is not a sum over events."""
        settings = self.spec.reward
        values = chain.event_values
        if not values or isinstance(values, GraderError) or settings.combine_mode == "multiply":
            return None
        if settings.event_weight == 0 or not self._terms["event"]:
            return None
        share = settings.event_weight * settings.judge_scale
        if settings.event_reduce == "mean":
            share /= len(values)
        return [share * value for value in values if not isinstance(value, GraderError)]

    def _info(self, chain: RewardChain) -> dict[str, float | None]:
        """The same keys for every sample of this spec, always."""
        one = chain.sample
        info: dict[str, float | None] = {}
        for entry in self.spec.graders:
            if entry.scope == "event":
                info[f"{entry.name}_score"] = _event_mean(one, entry.name)
            else:
                found = one.outcome.get(entry.name)
                score = found.score if isinstance(found, GraderScore) else None
                info[f"{entry.name}_score"] = score
        if self._terms["outcome"]:
            info["outcome"] = chain.outcome if isinstance(chain.outcome, float) else None
        if self._terms["event"]:
            info["events"] = chain.events if isinstance(chain.events, float) else None
        info["env_reward"] = one.env_reward
        return info


_NO_GRADERS: frozenset[str] = frozenset()


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


_UNRANKED = GraderError("group", ErrorKind.INVALID_INPUT, "a group of one sample cannot be ranked")


def _worst_contribution(grader: Any, weight: float, normalise: bool) -> float | None:
    """What of a grader adds least to the reward; ``None`` where its range is open, or it ranks."""
    traits = GraderTraits.of(grader)
    role = traits.role
    if is_listwise(grader):
        return None  # a failed ranking is of the whole group, and blames nobody
    if role == Role.GATE:
        return 0.0
    ends = traits.score_range or (None, None)
    if role == Role.SCORE and normalise and finite_range(ends):
        ends = (0.0, 1.0)
    end = ends[weight < 0]
    return None if end is None or math.isinf(end) else float(end)


def _active_terms(
    terms: Sequence[AggregateTerm], results: Mapping[str, GraderResult], idle: AbstractSet[str]
) -> list[AggregateTerm]:
    """The terms that count in a group; a failed grader counts, as it might have had an answer."""
    return [term for term in terms if term.name not in idle or _has_failed(results[term.name])]


def _by_group(chains: Sequence[RewardChain]) -> Collection[list[RewardChain]]:
    groups: dict[str, list[RewardChain]] = {}
    for chain in chains:
        groups.setdefault(chain.sample.group, []).append(chain)
    return groups.values()


def _snap_rewards(group: Sequence[RewardChain]) -> None:
    """Rewards that differ by rounding alone made equal, in place, whatever they came from."""
    there = [chain for chain in group if isinstance(chain.reward, float)]
    rewards = cast("list[float]", [chain.reward for chain in there])
    for chain, reward in zip(there, snap_ties(rewards), strict=True):
        chain.reward = reward


def _event_mean(one: GradedSample, name: str) -> float | None:
    if isinstance(one.events, GraderError) or not one.events:
        return None
    scores = [event[name] for event in one.events]
    present = [result.score for result in scores if isinstance(result, GraderScore)]
    return math.fsum(present) / len(present) if len(present) == len(scores) else None


def _details(one: GradedSample, source: str) -> dict[str, Any]:
    details: dict[str, Any] = {"source": source}
    for name, result in one.outcome.items():
        details[name] = _detail(result, one.list_draws(name) if one.repeats else ())
    if isinstance(one.events, list):
        if one.events:
            details["events"] = [
                {
                    name: _detail(result, one.list_draws(name, place) if one.repeats else ())
                    for name, result in event.items()
                }
                for place, event in enumerate(one.events)
            ]
    elif one.sampled:
        details["events"] = _detail(one.events)
    return details


def _detail(result: GraderResult, draws: Sequence[GraderResult] = ()) -> dict[str, Any]:
    if isinstance(result, GraderScore):
        detail: dict[str, Any] = {"score": result.score, "reason": result.reason}
    elif isinstance(result, GraderError):
        detail = {"error": result.error, "kind": str(result.kind)}
    else:
        detail = {"rank": result.rank, "reason": result.reason}
    if result.metadata:
        detail["metadata"] = result.metadata
    if draws:
        detail["draws"] = [one.score if isinstance(one, GraderScore) else None for one in draws]
    return detail


def find_idle_graders(
    judged: Sequence[GradedSample], *, imputes: bool = False
) -> dict[str, set[str]]:
    """By group, the graders that had nothing to judge in all of its samples.

    Failures say neither that there was something nor that there was nothing; but where the spec
    ``imputes`` suspect ones, their grader counts, and so it counts for the whole group. A rollout
    that was lost says nothing of the others.
    """
    found: dict[str, dict[str, set[str]]] = {}
    for one in judged:
        states = found.setdefault(one.group, {})
        for name, result in one.results():
            if not (isinstance(result, GraderError) and LOST in result.metadata):
                states.setdefault(name, set()).add(_judging_state(result, imputes=imputes))
    idle = {
        group: {name for name, seen in states.items() if seen in _IDLE_STATES}
        for group, states in found.items()
    }
    return {group: names for group, names in idle.items() if names}


_IDLE_STATES = ({"lacking"}, {"idle"}, {"idle", "failed"})


def _judging_state(result: GraderResult, *, imputes: bool) -> str:
    if isinstance(result, GraderScore):
        return "judged" if not result.metadata or result.evaluable else "idle"
    if _is_lacking(result):
        return "lacking"
    imputed = imputes and isinstance(result, GraderError) and result.suspect
    return "judged" if imputed else "failed"


def _is_undrawn(chain: RewardChain) -> bool:
    reward = chain.reward
    return isinstance(reward, GraderError) and reward.kind is ErrorKind.NOT_SAMPLED


def _is_lacking(result: GraderResult) -> bool:
    return isinstance(result, GraderError) and result.kind is ErrorKind.NOT_APPLICABLE


def _blame_sample(part: RewardPart, results: Mapping[str, GraderResult]) -> RewardPart:
    """A reward that is missing for lack of a field is missing for what the sample is."""
    if not isinstance(part, GraderError) or part.kind is not ErrorKind.NOT_APPLICABLE:
        return part
    lacks = any(isinstance(one, GraderError) and LACKED in one.metadata for one in results.values())
    return structs.replace(part, kind=ErrorKind.INVALID_INPUT) if lacks else part


def _has_failed(result: GraderResult) -> bool:
    return isinstance(result, GraderError) and not _is_lacking(result)
