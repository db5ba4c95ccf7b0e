"""From what the graders said to rewards, in one pass of named steps.

Each step is a function over plain numbers, in this order:

1. leave out idle graders: those that had nothing to judge in a whole group
   (:func:`~adjudge.rewards.formulas.find_idle_graders`);
2. normalise, aggregate, gate: O = method(w, s) · Π gates + Σ penalties
   (:func:`~adjudge.rewards.formulas.aggregate`), and E = Σ or mean over events;
3. missing: a group in which O is missing drops out, or has the fallback rule's O;
4. group: O → z-score, rank, … within the group (:func:`~adjudge.rewards.formulas.group_step`);
5. environment: R = env and s · (w_E·E + w_O·O) by ``combine_mode``
   (:func:`~adjudge.rewards.formulas.combine`).

Pure: nothing is asked here, and the same answers make the same rewards, to the last bit.
:meth:`RewardReducer.explain` gives the chain of numbers that made each reward. Lines
``[RUBRIC_SCORE]`` of the log say a sample's events and outcome to whoever listens.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence, Set as AbstractSet
from dataclasses import dataclass, field

from msgspec import structs

from adjudge.errors import LACKED, ErrorKind, Metadata, MissingRewardError
from adjudge.rewards.formulas import (
    AggregateTerm,
    aggregate,
    collect_values,
    combine,
    find_active,
    find_idle_graders,
    gdpo_step,
    group_step,
    has_kind,
    reduce_events,
    weigh_parts,
)
from adjudge.rewards.grader_fit import check_graders, worst_contribution
from adjudge.rewards.spec import GraderEntry, GraderScope, RewardSpec
from adjudge.stats import collect, mean_of_all, snap_ties
from adjudge.types import (
    GradedSample,
    GraderError,
    GraderResult,
    GraderScore,
    RewardPart,
    RewardResult,
    Role,
)

_log = logging.getLogger("adjudge")
_score_logger = logging.getLogger("adjudge.rubric")
_LONE_SAMPLE_EFFECT = {
    **dict.fromkeys(("centre", "rloo", "z_score", "gdpo"), "get 0 whatever the graders say"),
    "rank": "have no reward",
    "best_bonus": "always get the bonus",
}
"""What becomes of samples that are alone in their group."""


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


class RewardReducer:
    """Makes of what graders said the rewards that a spec says; asks nobody.

    ``graders`` are read for their role and range. Raises :class:`~adjudge.errors.ConfigError` where
    they do not fit the spec.
    """

    def __init__(self, spec: RewardSpec, graders: Mapping[str, object]) -> None:
        self.spec, self._counting = spec, spec.counting
        self.graders: Metadata = dict(graders)
        check_graders(spec, self.graders)
        self._parts = [
            name
            for name, scope in _PARTS.items()
            if any(one.scope == scope and one.weight_at(0) for one in spec.graders)
        ]
        scopes: tuple[GraderScope, ...] = ("outcome", "event")
        imputes = spec.missing.suspect == "min"
        # What weighs 0 is reported only.
        self._terms = {
            scope: [
                AggregateTerm(entry.name, weight, worst_contribution(spec, graders, entry), imputes)
                for entry in spec.graders
                if entry.scope == scope and (weight := entry.weight_at(0)) != 0
            ]
            for scope in scopes
        }
        self._event_graders = {term.name for term in self._terms["event"]}
        self._compares = spec.group_setting is not None
        self.schedules = spec.schedules
        self._warned = False

    def reward(
        self,
        judged: Sequence[GradedSample],
        *,
        whole_groups: bool = True,
        step: int | None = None,
        found: RewardChecks | None = None,
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
        :class:`~adjudge.errors.ConfigError`. With ``found`` these are some groups of many: what is
        said of all together is noted there, and said by :meth:`check_rewards` after the last.
        """
        reducer = self
        if step is not None and self.schedules:
            reducer = RewardReducer(self.spec.at_step(step), self.graders)
        chains = reducer.explain(judged, whole_groups=whole_groups)
        results = list(map(reducer.make_result, chains))
        checks = RewardChecks() if found is None else found
        checks.add(_by_group(chains), results)
        if found is None:
            self.check_rewards(checks)
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
        if self.spec.missing.policy == "raise" and found.failures:
            first = found.failures[0]
            raise MissingRewardError(
                f"{len(found.failures)} of {found.samples} rewards are missing, first: "
                f"{first.kind}: {first.error}",
                found.failures,
            )

    def explain(
        self, judged: Sequence[GradedSample], *, whole_groups: bool = True
    ) -> list[RewardChain]:
        """The numbers that made each reward, step by step; see :class:`RewardChain`."""
        idle = self._leave_out_idle(judged, whole_groups=whole_groups)
        chains = [self._begin(one, names) for one, names in zip(judged, idle, strict=True)]
        for group in _by_group(chains):
            if self._compares and group[0].sample.sampled:
                self._apply_missing_policy(group)
                self._apply_group_step(group)
            # Rewards that differ by rounding alone made equal, whatever they came from.
            there = [
                (at, chain.reward)
                for at, chain in enumerate(group)
                if isinstance(chain.reward, float)
            ]
            if len(there) > 1:
                snapped = snap_ties([reward for _, reward in there])
                for (at, _), reward in zip(there, snapped, strict=True):
                    group[at].reward = reward
        return chains

    # --- the steps, in their order ---------------------------------------------------------------

    def _leave_out_idle(
        self, judged: Sequence[GradedSample], *, whole_groups: bool
    ) -> list[AbstractSet[str]]:
        """For each sample, the graders that are left out of its reward: idle in its whole group."""
        if self.schedules:
            self.spec.refuse_schedules("this call", "Pass step=…, or use RewardSpec.at_step.")
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
            else {
                name
                for name, result in one.results()
                if name in names and has_kind(result, ErrorKind.NOT_APPLICABLE)
            }
            for one, names in zip(judged, alone, strict=True)
        ]

    def _begin(self, one: GradedSample, idle: AbstractSet[str]) -> RewardChain:
        """One sample's O = aggregate(outcome) and E = Σ or mean of aggregate(event), and its R."""
        settings = self.spec.reward
        outcome = self._aggregate(one.outcome, "outcome", idle)
        values: list[RewardPart] | GraderError
        events: RewardPart = 0.0
        if isinstance(one.events, GraderError):
            values = events = one.events
        else:
            values = [self._aggregate(event, "event", idle) for event in one.events]
            if values or not (self._event_graders and idle >= self._event_graders):
                events = reduce_events(values, settings.event_reduce)  # else no event counts
        # An outcome of weight 0 is not needed and not missed; its place is never read.
        part = outcome if settings.outcome_weight != 0 else 0.0
        chain = RewardChain(one, idle, outcome, values, events, part, part)
        chain.reward = self._apply_environment(chain)
        undrawn = not one.sampled and has_kind(chain.reward, ErrorKind.NOT_SAMPLED)
        if undrawn and settings.combine_mode == "weighted_sum":
            chain.part = 0.0  # a group that was not drawn keeps the environment's reward
            chain.reward = combine(0.0, one.env_reward, settings)
        if not isinstance(chain.reward, float):
            chain.part = chain.reward
        return chain

    def _aggregate(
        self, results: Mapping[str, GraderResult], scope: GraderScope, idle: AbstractSet[str]
    ) -> RewardPart:
        """O, or one event of E: method(w, normalised s) · Π gates + Σ penalties, without idle.

        Where no grader is left: missing if no other scope makes the reward, else 0.
        """
        terms = self._terms[scope]
        active = find_active(terms, results, idle) if idle else terms
        if active or not (idle and terms):
            number = aggregate(results, active, self.spec.reward)
        elif idle >= self._counting:
            why = "no grader had anything to judge"
            nothing = GraderError("group", ErrorKind.NOT_APPLICABLE, why)
            lacking = (one for one in results.values() if has_kind(one, ErrorKind.NOT_APPLICABLE))
            number = next(lacking, nothing)
        else:
            number = 0.0
        if has_kind(number, ErrorKind.NOT_APPLICABLE) and any(
            isinstance(one, GraderError) and LACKED in one.metadata for one in results.values()
        ):  # missing for what the sample is
            return structs.replace(number, kind=ErrorKind.INVALID_INPUT)
        return number

    def _apply_missing_policy(self, group: Sequence[RewardChain]) -> None:
        """``drop_group``: with one missing, all are. ``fallback``: then all have the rule's score.

        Mixing the judge's ruler and the rule's inside one group would compare nothing with nothing.
        """
        failed = sum(isinstance(chain.part, GraderError) for chain in group)
        policy, rule = self.spec.missing.policy, [AggregateTerm(self.spec.missing.fallback or "")]
        for chain in group if failed else ():
            if policy == "fallback":  # missing where even the rule could make no reward
                stated = aggregate(chain.sample.outcome, rule, self.spec.reward)
                trial = combine(stated, chain.sample.env_reward, self.spec.reward)
                chain.part = trial if isinstance(trial, GraderError) else stated
                chain.fell_back = True
            elif policy == "drop_group" and not isinstance(chain.part, GraderError):
                why = f"{failed} of {len(group)} rewards of the group are missing"
                chain.part = GraderError("group", ErrorKind.QUORUM, why)

    def _apply_group_step(self, group: Sequence[RewardChain]) -> None:
        """O ← step(O) within its group, and R of that; a sample without a reward counts nowhere."""
        reward = self.spec.reward
        if reward.group == "gdpo" and not group[0].fell_back:
            weights = {term.name: term.weight for term in self._terms["outcome"]}
            components = [
                self._components(chain.sample, chain.idle)
                if isinstance(chain.part, float)
                else None
                for chain in group
            ]
            stepped = gdpo_step(components, weights)
        else:
            present = [chain.part if isinstance(chain.part, float) else None for chain in group]
            stepped = group_step(present, reward.group, bonus=reward.bonus)
        for chain, value in zip(group, stepped, strict=True):
            if isinstance(chain.part, float):
                chain.part = _UNRANKED if value is None else value
            there = isinstance(chain.part, float)
            chain.reward = self._apply_environment(chain) if there else chain.part

    def _apply_environment(self, chain: RewardChain) -> RewardPart:
        """R = env and s · (w_E·E + w_O·O) by ``combine_mode``; a fallback stands for O and E."""
        judge = chain.part
        if not chain.fell_back:
            judge = weigh_parts(chain.part, chain.events, self.spec.reward)
        return combine(judge, chain.sample.env_reward, self.spec.reward)

    def _components(self, one: GradedSample, idle: AbstractSet[str]) -> dict[str, float] | None:
        """A sample's outcome before it is one number; ``None`` where a grader of it failed."""
        terms = find_active(self._terms["outcome"], one.outcome, idle)
        found = collect_values(one.outcome, terms, self.spec.reward.normalise)
        if isinstance(found, GraderError):
            return None
        return {term.name: value for term, role, value in found if role is not Role.GATE}

    # --- what a result has beside its reward -----------------------------------------------------

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

    # --- what else is known of the numbers --------------------------------------------------------

    def components(
        self, judged: Sequence[GradedSample], *, whole_groups: bool = True
    ) -> list[dict[str, float] | None]:
        """What each grader that counts brings to a sample's outcome, by grader and unweighed.

        ``None`` where one of them is missing: then the outcome is, too. A grader that had nothing
        to judge in a whole group is in none of its samples. Components of a group that differ by
        rounding alone are made equal.
        """
        idle = self._leave_out_idle(judged, whole_groups=whole_groups)
        found = [self._components(one, names) for one, names in zip(judged, idle, strict=True)]
        groups: dict[str, list[dict[str, float]]] = {}
        for one, components in zip(judged, found, strict=True):
            if components is not None:
                groups.setdefault(one.group, []).append(components)
        for members in groups.values():
            for name in members[0] if len(members) > 1 else ():
                snapped = snap_ties([components[name] for components in members])
                for components, value in zip(members, snapped, strict=True):
                    components[name] = value
        return found


_NO_GRADERS: frozenset[str] = frozenset()
_UNRANKED = GraderError("group", ErrorKind.INVALID_INPUT, "a group of one sample cannot be ranked")


def _by_group(chains: Sequence[RewardChain]) -> Collection[list[RewardChain]]:
    return collect((chain.sample.group, chain) for chain in chains).values()


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
