"""The formulas of rewards: from one sample's results to one number, and from a group's to rewards.

A failure of any grader that counts makes the aggregate missing: no weight is spread over the
survivors, because then two samples of one group would be measured with different rulers. For the
same reason a grader that had nothing to judge is left out for a whole group or for none of it.

A group step is computed from the present rewards alone, with exactly rounded sums, so the rest of a
group is bit for bit what the group without the missing sample would give, in any order. Rewards
that differ by rounding alone are made equal first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set as AbstractSet
from dataclasses import dataclass
from typing import TypeGuard

from adjudge.errors import BLAMED, FINAL, LOST, Cause, ErrorKind
from adjudge.rewards.spec import EventReduce, GroupStep, JudgedReward, RewardSettings
from adjudge.stats import mean_and_std, rank_rewards, snap_ties, z_scores
from adjudge.types import (
    GradedSample,
    GraderError,
    GraderResult,
    GraderScore,
    RewardPart,
    Role,
)

STD_EPSILON = 1e-4
"""What TRL adds to the standard deviation of a group."""


@dataclass(frozen=True)
class AggregateTerm:
    """How one grader enters: its weight (0 = report only).

    ``worst`` is what adds least to the reward, on the scale that is aggregated; ``None`` where
    the grader's range is open. ``suspect_is_worst``: a failure that the candidate may have brought
    about counts as ``worst`` instead of leaving the reward missing.
    """

    name: str
    weight: float = 1.0
    worst: float | None = None
    suspect_is_worst: bool = False


_SCORE = Role.SCORE  # looked up for each grader of each sample
RoleValues = list[tuple[AggregateTerm, Role, float]]
_DEFAULTS = RewardSettings()


def aggregate(
    results: Mapping[str, GraderResult],
    terms: Sequence[AggregateTerm],
    settings: RewardSettings = _DEFAULTS,
) -> RewardPart:
    """One number for one sample, or the ``GraderError`` that makes it missing.

    Scores (normalised to [0, 1] unless ``normalise`` is false or the grader has no finite range)
    are combined by ``settings.aggregate``:

    * ``weighted_mean``: Σ wᵢsᵢ / Σ wᵢ;
    * ``points``: Σ wᵢsᵢ / Σ wᵢ over positive wᵢ, weights being signed points (HealthBench);
    * ``min``: the smallest.

    Gates multiply and penalties are added: scores·Πgates + Σ penalties. Weights scale penalties; a
    gate's weight only says whether it counts. A score that was stated with nothing to judge counts
    as any other.
    """
    values = collect_values(results, terms, settings.normalise)
    if isinstance(values, GraderError):
        return values
    scores = [(term, value) for term, role, value in values if role is _SCORE]
    if settings.aggregate == "points" and scores and all(term.weight <= 0 for term, _ in scores):
        why = "no grader of positive points had anything to judge"
        return GraderError("aggregate", ErrorKind.NOT_APPLICABLE, why)
    try:
        # Gates alone: open is 1, closed is 0; penalties alone start from 0.
        total = 0.0
        if scores and settings.aggregate == "min":
            total = min(value for _, value in scores)
        elif scores:  # the points that there are are those above 0
            possible = math.fsum([term.weight for term, _ in scores if term.weight > 0])
            total = math.fsum([term.weight * value for term, value in scores]) / possible
        if len(scores) < len(values):
            gates = [value for _, role, value in values if role is Role.GATE]
            total = total if scores else float(bool(gates))
            penalties = [
                term.weight * value for term, role, value in values if role is Role.PENALTY
            ]
            total = total * math.prod(gates) + math.fsum(penalties)
    except ArithmeticError as error:
        return GraderError("aggregate", ErrorKind.OUT_OF_RANGE, f"does not compute: {error}")
    if not math.isfinite(total):
        return GraderError("aggregate", ErrorKind.OUT_OF_RANGE, f"overflows to {total}")
    return total


def normalise(result: GraderScore, wanted: bool) -> float:
    """(s − low) / (high − low), where the score has a finite range and a share is ``wanted``."""
    if result.role is not _SCORE or not wanted:
        return result.score
    value = result.normalized
    return result.score if value is None else value


def collect_values(
    results: Mapping[str, GraderResult], terms: Sequence[AggregateTerm], share: bool
) -> RoleValues | GraderError:
    """What counts, in the order of ``terms``; or the failure that makes the sample missing.

    A ``share`` of the range is wanted, as in :func:`normalise`.
    """
    values: RoleValues = []
    failures: list[GraderError] = []
    for term in terms:
        if term.weight == 0:
            continue
        result = results[term.name]
        if isinstance(result, GraderScore) and not result.metadata:  # the usual case
            value: RewardPart = normalise(result, share)
        else:
            value = _term_value(term, result, share)
        if isinstance(value, GraderError):
            failures.append(value)
        else:
            values.append((term, result.role, value))
    return _join_failures(failures) if failures else values


def _term_value(term: AggregateTerm, result: GraderResult, share: bool) -> RewardPart:
    if isinstance(result, GraderError):
        # A failed ranking blames nobody, save the one whom it names; a rank's scores are in [0, 1].
        worst = float(term.weight < 0) if BLAMED in result.metadata else term.worst
        worst = worst if term.suspect_is_worst and result.suspect else None
        return result if worst is None else worst
    if not isinstance(result, GraderScore):
        return GraderError(term.name, ErrorKind.BUG, "a rank is not a score")
    if result.cause is Cause.CANDIDATE and term.weight < 0 and term.worst is not None:
        return term.worst  # the grader's minimum would spare it what the points take away
    return normalise(result, share)


def _join_failures(failures: Sequence[GraderError]) -> GraderError:
    """The first failure in the spec's order, naming the others; its marks are those of all.

    ``suspect`` and ``final`` say whether any is, ``local`` that one is and none may pass by itself.
    """
    first = failures[0]
    others = ", ".join(f"{failure.name} ({failure.kind})" for failure in failures[1:])
    message = f"{first.name}: {first.error}" + (f"; also failed: {others}" if others else "")
    local = any(failure.metadata.get("local") for failure in failures)
    said = {
        "local": local and not any(failure.passing for failure in failures),
        FINAL: any(failure.final for failure in failures),
    }
    marks = {"suspect": any(failure.suspect for failure in failures)}
    marks |= {mark: True for mark, holds in said.items() if holds}
    return GraderError(first.name, first.kind, message, marks)


def find_active(
    terms: Sequence[AggregateTerm], results: Mapping[str, GraderResult], idle: AbstractSet[str]
) -> Sequence[AggregateTerm]:
    """The terms that count in a group; a failed grader counts, as it might have had an answer."""
    return [
        term
        for term in terms
        if term.name not in idle
        or (
            isinstance(result := results[term.name], GraderError)
            and result.kind is not ErrorKind.NOT_APPLICABLE
        )
    ]


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
    if not isinstance(result, GraderError):
        return "failed"
    if result.kind is ErrorKind.NOT_APPLICABLE:
        return "lacking"
    return "judged" if imputes and result.suspect else "failed"


def has_kind(part: GraderResult | RewardPart, kind: ErrorKind) -> TypeGuard[GraderError]:
    """Whether a result, or a part of a reward, is a failure of this kind."""
    return isinstance(part, GraderError) and part.kind is kind


def reduce_events(events: Sequence[RewardPart], how: EventReduce) -> RewardPart:
    """E, the sum or mean over a sample's events; one missing event makes it missing.

    No events sum to 0; their mean does not exist and is ``invalid_input``.
    """
    present = []
    for event in events:
        if isinstance(event, GraderError):
            return event
        present.append(event)
    if how == "sum":
        return math.fsum(present)
    if not present:
        return GraderError("events", ErrorKind.INVALID_INPUT, "no events to take a mean of")
    return math.fsum(present) / len(present)


def group_step(
    rewards: Sequence[float | None],
    step: GroupStep,
    *,
    bonus: float = 0.1,
    epsilon: float = 0.0,
) -> list[float | None]:
    """``rewards`` of one group after ``step``; ``None`` stays ``None`` and counts nowhere.

    NaN and infinities are no rewards: they become ``None``. Near-ties are made equal before, by
    :func:`snap_ties`.

    * ``none``: unchanged otherwise;
    * ``centre``: r − mean, as Dr. GRPO (Liu et al. 2025);
    * ``rloo``: r − mean of the others (Ahmadian et al. 2024), which is n/(n − 1)·(r − mean); a lone
      sample has no others and gets 0, as from ``centre``;
    * ``z_score``: (r − mean)/(std + ``epsilon``), std with n − 1 as in GRPO; 0 where all are equal;
    * ``gdpo``: of several components, see :func:`gdpo_step`; of one, as these are, ``z_score``;
    * ``rank``: (n − place)/(n − 1), best 1, worst 0, ties at mid-rank; a lone sample has nobody to
      be ranked against and becomes ``None``;
    * ``best_bonus``: the best (all that tie) get ``bonus`` on top.
    """
    rewards = [one if one is not None and math.isfinite(one) else None for one in rewards]
    present = [reward for reward in rewards if reward is not None]
    if not present:
        return rewards
    present = snap_ties(present)
    stepped: Sequence[float | None] = present
    if step in ("centre", "rloo"):
        mean, _ = mean_and_std(present)
        n = len(present)
        share = n / (n - 1) if step == "rloo" and n > 1 else 1.0
        stepped = [share * (reward - mean) for reward in present]
    elif step in ("z_score", "gdpo"):
        stepped = z_scores(present, epsilon)
    elif step == "rank":
        # Alone, a sample has nobody to be ranked against.
        stepped = rank_rewards([-one for one in present]) if len(present) > 1 else [None]
    elif step == "best_bonus":
        best = max(present)
        stepped = [reward + bonus if reward == best else reward for reward in present]
    values = iter(stepped)
    return [None if reward is None else next(values) for reward in rewards]


def gdpo_step(
    components: Sequence[Mapping[str, float] | None], weights: Mapping[str, float]
) -> list[float | None]:
    """Σ wₖ·zₖ for each sample of one group, zₖ being component k's z-score within the group.

    GDPO (Liu et al. 2026, arXiv:2601.05242) without its last step: that divides by the deviation of
    the whole batch, which no group knows, and belongs to the trainer. ``components[i]`` has sample
    *i*'s components by name, ``None`` where one is missing: such a sample stays ``None`` and counts
    in no component, so the others are those of the group without it. A component that all samples
    share, and a lone sample's, is 0.

    >>> scores = (1.0, 0.0), (0.0, 1.0), (0.0, 0.0)
    >>> said = [{"right": right, "form": form} for right, form in scores]
    >>> [round(total, 2) for total in gdpo_step(said, {"right": 1.0, "form": 0.5})]
    [0.87, 0.0, -0.87]
    """
    components = [
        one if one is not None and all(map(math.isfinite, one.values())) else None
        for one in components
    ]
    present = [one for one in components if one is not None]
    if not present:
        return [None] * len(components)
    terms: list[list[float]] = [[] for _ in present]
    for name in present[0]:
        column = [None if one is None else one[name] for one in components]
        stepped = group_step(column, "z_score")
        found = (value for value in stepped if value is not None)
        for mine, value in zip(terms, found, strict=True):
            mine.append(weights[name] * value)
    totals = iter(terms)
    return [None if one is None else math.fsum(next(totals)) for one in components]


def weigh_parts(outcome: RewardPart, events: RewardPart, settings: JudgedReward) -> RewardPart:
    """J = event_weight·E + outcome_weight·O; a part of weight 0 is not needed and not missed."""
    if settings.event_weight == 0 and isinstance(outcome, float):  # the usual case
        return settings.outcome_weight * outcome
    weighted = []
    for part, weight in ((events, settings.event_weight), (outcome, settings.outcome_weight)):
        if weight != 0:
            if isinstance(part, GraderError):
                return part
            weighted.append(weight * part)
    return weighted[0] if len(weighted) == 1 else math.fsum(weighted)


def combine(judge: RewardPart, env_reward: float | None, settings: JudgedReward) -> RewardPart:
    """The reward from J and the environment's reward, s being ``judge_scale``.

    ``replace`` is s·J, ``weighted_sum`` env + s·J, ``multiply`` env·s·J, of a negative env too. A
    needed environment reward that is absent is ``invalid_input``.
    """
    mode, scale = settings.combine_mode, settings.judge_scale
    if not isinstance(judge, float):
        return judge
    if mode == "replace":
        reward = scale * judge
    elif env_reward is None or not math.isfinite(env_reward):
        why = f"combine_mode = {mode!r} needs a finite env_reward; the sample has none"
        return GraderError("env_reward", ErrorKind.INVALID_INPUT, why)
    elif mode == "weighted_sum":
        reward = env_reward + scale * judge
    else:
        reward = env_reward * scale * judge
    if math.isfinite(reward):
        return reward
    return GraderError("reward", ErrorKind.OUT_OF_RANGE, f"the reward overflows to {reward}")
