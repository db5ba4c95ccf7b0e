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
:meth:`RewardReducer.explain` gives the chain of numbers that made each reward.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Mapping, Sequence, Set as AbstractSet
from itertools import product

from msgspec import structs

from adjudge.errors import LACKED, ErrorKind, Metadata, MissingRewardError
from adjudge.graders.base import GraderTraits, is_listwise
from adjudge.rewards.chain import ResultWriter, RewardChain, RewardChecks
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
from adjudge.rewards.spec import GraderEntry, GraderScope, Problems, RewardSpec
from adjudge.stats import snap_ties
from adjudge.types import (
    GradedSample,
    GraderError,
    GraderResult,
    RewardPart,
    RewardResult,
    Role,
    finite_range,
)

_log = logging.getLogger("adjudge")
_LONE_SAMPLE_EFFECT = {
    **dict.fromkeys(("centre", "rloo", "z_score", "gdpo"), "get 0 whatever the graders say"),
    "rank": "have no reward",
    "best_bonus": "always get the bonus",
}
"""What becomes of samples that are alone in their group."""


class RewardReducer(ResultWriter):
    """Makes of what graders said the rewards that a spec says; asks nobody.

    ``graders`` are read for their role and range. Raises :class:`~adjudge.errors.ConfigError` where
    they do not fit the spec.
    """

    def __init__(self, spec: RewardSpec, graders: Mapping[str, object]) -> None:
        super().__init__(spec)
        self.graders: Metadata = dict(graders)
        check_graders(spec, self.graders)
        scopes: tuple[GraderScope, ...] = ("outcome", "event")
        imputes = spec.missing.suspect == "min"
        # What weighs 0 is reported only.
        self._terms = {
            scope: [
                AggregateTerm(
                    entry.name, weight, _worst_contribution(spec, graders, entry), imputes
                )
                for entry in spec.graders
                if entry.scope == scope and (weight := entry.weight_at(0)) != 0
            ]
            for scope in scopes
        }
        self._event_graders = {term.name for term in self._terms["event"]}
        self._compares = spec.reward.group != "none" or spec.missing.policy in (
            "drop_group",
            "fallback",
        )
        self._has_schedules = bool(spec.schedules)
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
        if step is not None and self._has_schedules:
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
        if self._has_schedules:
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
            column: list[dict[str, float | None]] = []
            for chain in self.explain(ones):
                whole = not chain.fell_back and not self.list_failures(chain.sample)
                reward = chain.reward if whole and isinstance(chain.reward, float) else None
                column.append({**self.list_parts(chain), "reward": reward})
            columns.append(column)
        rows = iter(zip(*columns, strict=True))
        return [list(next(rows)) if one.sampled else [] for one in judged]


_NO_GRADERS: frozenset[str] = frozenset()
_UNRANKED = GraderError("group", ErrorKind.INVALID_INPUT, "a group of one sample cannot be ranked")


def _worst_contribution(
    spec: RewardSpec, graders: Mapping[str, object], entry: GraderEntry
) -> float | None:
    """What of a grader adds least to the reward; ``None`` where its range is open, or it ranks."""
    grader, weight = graders[entry.name], entry.weight_at(0)
    traits = GraderTraits.of(grader)
    role = traits.role
    if is_listwise(grader):
        return None  # a failed ranking is of the whole group, and blames nobody
    if role == Role.GATE:
        return 0.0
    ends = traits.score_range or (None, None)
    if role == Role.SCORE and spec.reward.normalise and finite_range(ends):
        ends = (0.0, 1.0)
    end = ends[weight < 0]
    return None if end is None or math.isinf(end) else float(end)


def _by_group(chains: Sequence[RewardChain]) -> Collection[list[RewardChain]]:
    groups: dict[str, list[RewardChain]] = {}
    for chain in chains:
        groups.setdefault(chain.sample.group, []).append(chain)
    return groups.values()


# --- whether built graders fit the spec, which the spec alone cannot tell -------------------------

_Graders = Mapping[str, object]


def check_graders(spec: RewardSpec, graders: _Graders) -> None:
    """What only built graders can tell; raises :class:`~adjudge.errors.ConfigError`."""
    if lacking := [entry.name for entry in spec.graders if entry.name not in graders]:
        spec.refuse(f"graders.{lacking[0]}", "the grader object is missing")
    by_entry = (_check_grader(spec, entry, graders[entry.name]) for entry in spec.graders)
    spec.refuse_first(*by_entry, _check_scores(spec, graders))


def _check_grader(spec: RewardSpec, entry: GraderEntry, grader: object) -> Problems:
    key = f"graders.{entry.name}"
    traits, ranks = GraderTraits.of(grader), is_listwise(grader)
    role = traits.role
    if ranks and entry.scope == "event":
        yield key, "ranks groups, not events. Set scope = 'outcome'."
    is_outcome_gate = role is Role.GATE and entry.counts and entry.scope == "outcome"
    if is_outcome_gate and spec.reward.group == "gdpo":
        why = (
            "is a gate, which multiplies, but reward.group = 'gdpo' adds up graders. Use weight = "
            "0, or group = 'z_score'."
        )
        yield key, why
    if role is not Role.SCORE and (lowest := min(entry.weights)) < 0:
        yield f"{key}.weight", f"must be at least 0 for a {role} (found {lowest})"
    is_fallback = entry.name == spec.missing.fallback
    if (entry.counts or is_fallback) and _lacks_range(spec, grader):
        yield from _check_unscaled(spec, entry, grader)
    if is_fallback and not traits.is_rule:
        why = (
            f"{entry.name!r} is not a rule grader, so it may fail for the same reason as the one "
            "it replaces. Name a rule grader."
        )
        yield "missing.fallback", why
    if is_fallback and (entry.scope == "event" or ranks or role is not Role.SCORE):
        yield "missing.fallback", f"{entry.name!r} must score whole samples, one at a time"


def _check_unscaled(spec: RewardSpec, entry: GraderEntry, grader: object) -> Problems:
    """A grader without a finite range counts as it is, but where a scale is needed."""
    key = f"graders.{entry.name}"
    if entry.type == "rubric":
        why = (
            "signed points have no finite score_range to normalise by. Set clip = true, so that a "
            "negative sum counts as 0, or [reward] normalise = false."
        )
        yield key, why
    worst = (GraderTraits.of(grader).score_range or (None, None))[min(entry.weights) < 0]
    why = ""
    if entry.name == spec.missing.fallback:
        why = "missing.fallback, whose scores take the place of rewards"
    elif spec.missing.suspect == "min" and (worst is None or math.isinf(worst)):
        why = "missing.suspect = 'min', which gives a failure the lowest score"
    if why:
        yield f"{key}.score_range", f"is required by {why}. Give [low, high]."


def _lacks_range(spec: RewardSpec, grader: object) -> bool:
    """Whether ``normalise`` finds nothing to normalise by in a grader that it is for."""
    traits = GraderTraits.of(grader)
    scored = traits.role is Role.SCORE and not is_listwise(grader)
    return spec.reward.normalise and scored and finite_range(traits.score_range) is None


def _list_scored(spec: RewardSpec, graders: _Graders) -> list[GraderEntry]:
    """The graders whose scores are averaged."""
    return [
        entry
        for entry in spec.graders
        if entry.counts and GraderTraits.of(graders[entry.name]).role is Role.SCORE
    ]


def find_unscaled(spec: RewardSpec, graders: _Graders) -> dict[str, list[str]]:
    """The graders without a range: their scores count as they are.

    Each has the names of the normalised ones of its scope, beside which its scores count.
    """
    scored = _list_scored(spec, graders)
    lacking = {entry.name for entry in scored if _lacks_range(spec, graders[entry.name])}
    return {
        entry.name: [
            one.name for one in scored if one.scope == entry.scope and one.name not in lacking
        ]
        for entry in scored
        if entry.name in lacking
    }


def _check_scores(spec: RewardSpec, graders: _Graders) -> Problems:
    """What the scores of a scope are together."""
    if spec.reward.aggregate == "points":
        for scope, step in product(("outcome", "event"), spec.schedule_ends):
            scored = [one for one in _list_scored(spec, graders) if one.scope == scope]
            weights = [one.weight_at(step) for one in scored]
            if any(weights) and max(weights) <= 0:
                why = f"aggregate = 'points' needs a positive weight among the {scope} scores"
                yield "graders", why
    for name, beside in find_unscaled(spec, graders).items():
        if spec.reward.aggregate == "min" and beside:
            why = (
                "is required by aggregate = 'min', which compares its scores with those of "
                f"{beside[0]} in [0, 1]. Give [low, high]."
            )
            yield f"graders.{name}.score_range", why
