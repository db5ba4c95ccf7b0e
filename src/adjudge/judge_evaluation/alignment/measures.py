"""How far a judge agrees with people, and people with each other.

Of each grader, and of the reward as a whole. A person's opinion of a sample is a score of the
person's own; where a judge gives one of two scores, "the judge is wrong" is the other score. All
intervals are clustered by group: people look at several samples of one prompt.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import permutations
from typing import Any, NamedTuple

import msgspec

from adjudge.judge_evaluation.labels import WHOLE_REWARD, JoinedLabel
from adjudge.runs.labels import implied_score
from adjudge.runs.records import RunRecord
from adjudge.stats import Estimate, collect, snap_ties
from adjudge.stats.agreement import (
    MAX_LEVELS,
    binary_levels,
    estimate_alpha,
    estimate_kappas,
    estimate_within_agreement,
    estimate_youden,
    find_levels,
    have_same_scale,
)
from adjudge.stats.estimates import NO_VALUE, estimate_share, np, ratio
from adjudge.stats.predictions import concordance, within_group_concordance

_KAPPAS = ("plain", "quadratic")
_SAME = 1e-9
_NO_OPINION = "no label is a score, or says right or wrong of a judge that gives one of two scores"


class Disputed(msgspec.Struct, frozen=True, kw_only=True):
    """A sample about which judge and people differ.

    ``size``: the distance of the judge's score from the mean of the people's, as a share of the
    run's range; of right-and-wrong labels, the share of people who say that the judge is wrong.
    """

    target: str
    index: int
    step: int | None
    where: str
    group: str
    size: float
    judge: float | None
    people: dict[str, str]
    notes: list[str]
    link: str
    """What the address of ``adjudge view`` ends with for this sample."""


class Alignment(msgspec.Struct, frozen=True, kw_only=True):
    """One judge against people, over all labels or over those that were drawn at random.

    ``right``: the share of right-and-wrong labels that say right. ``accuracy``: the share of
    opinions that are the judge's own level. ``kappas``: Cohen's, of judge and person. ``tau_b``:
    Kendall's inside groups, of the judge and the mean of the people. ``auc``: how often the judge
    orders two samples as people do, and ``auc_within``, inside groups. ``preferences``: the share
    of preferred samples that the judge scores higher, a tie being a half. ``alphas``:
    Krippendorff's, of people alone and with the judge as one more. ``ceiling``: accuracy and kappas
    of people with each other. ``youden``: J of a judge of two levels. ``confusion``: rows are
    people's levels, columns the judge's.
    """

    labels: int
    samples: int
    people: int
    groups: int
    judge_missing: int
    outdated: int
    right: Estimate
    accuracy: Estimate
    kappas: dict[str, Estimate]
    tau_b: Estimate
    auc: Estimate
    auc_within: Estimate
    preferences: Estimate
    alphas: dict[str, Estimate]
    ceiling: dict[str, Estimate]
    youden: Estimate
    levels: list[float]
    confusion: list[list[int]]

    @property
    def kappa(self) -> Estimate:
        """The κ that counts: quadratic, which is the plain one where there are two levels."""
        return self.kappas["quadratic"]


class TargetAlignment(msgspec.Struct, frozen=True, kw_only=True):
    """One grader, or the reward: over all labels, and over the random ones where others are."""

    target: str
    whole: Alignment
    random: Alignment | None
    worst: list[Disputed]


class _Opinion(NamedTuple):
    """What one person gives one sample."""

    record: RunRecord
    author: str
    score: float


class _Target(NamedTuple):
    """A grader or the reward: its levels in the run, and what passes.

    ``equal``: scores of the judge and of people, and what each counts as: those that differ by
    rounding alone are one level.
    """

    name: str
    equal: Mapping[float, float]
    levels: Sequence[float]
    threshold: float | None

    def score_of(self, record: RunRecord) -> float | None:
        """What the judge gives a sample."""
        score = _score_of(record, self.name)
        return None if score is None else self.equal[score]


def measure_alignment(
    joined: Sequence[JoinedLabel],
    records: Iterable[RunRecord],
    *,
    thresholds: Mapping[str, float] | None = None,
) -> list[TargetAlignment]:
    """Each grader that has labels, and the reward, against people.

    ``thresholds``: by target, the score from which on judge and people call a sample good. Then
    classes are compared and not scores.
    """
    named = [(one.label.grader or WHOLE_REWARD, one) for one in joined]
    by_target = collect((name, one) for name, one in named if one.label.kind != "note")
    notes = collect(
        ((name, _sample(one.record)), one.label.note) for name, one in named if one.label.note
    )
    raw: dict[str, set[float]] = {name: set() for name in by_target}
    for record in records:
        for name in by_target:
            if (score := _score_of(record, name)) is not None:
                raw[name].add(score)
    found = []
    for name in sorted(by_target, key=lambda one: (one != WHOLE_REWARD, one)):
        labels = by_target[name]
        said = {one.label.score for one in labels if one.label.score is not None}
        limit = (thresholds or {}).get(name)
        either = sorted({*raw[name], *said, *([] if limit is None else [limit])})
        equal = dict(zip(either, snap_ties(either), strict=True))
        levels = sorted({equal[score] for score in raw[name]})
        target = _Target(name, equal, levels, None if limit is None else equal[limit])
        drawn = [one for one in labels if one.label.queue == "random"]
        found.append(
            TargetAlignment(
                target=name,
                whole=_measure(target, labels),
                random=_measure(target, drawn) if 0 < len(drawn) < len(labels) else None,
                worst=_find_disputed(target, labels, notes),
            )
        )
    return found


def _score_of(record: RunRecord, name: str) -> float | None:
    return record.reward if name == WHOLE_REWARD else record.scores.get(name)


# --- one judge ----------------------------------------------------------------------------------


def _measure(target: _Target, labels: Sequence[JoinedLabel]) -> Alignment:
    fresh = [one for one in labels if not _is_outdated(target, one)]
    opinions = _opinions(target, labels)
    judged = [
        (one, score) for one in opinions if (score := target.score_of(one.record)) is not None
    ]
    if target.threshold is not None:
        limit = target.threshold
        judged = [(one._replace(score=float(one.score >= limit)), float(score >= limit))
                  for one, score in judged]  # fmt: skip
    people = [one for one, _ in judged]
    pairs = list(collect((p.record.group_key, (p.score, score)) for p, score in judged).values())
    kappas, accuracy = _compare(pairs)
    known = {_sample(one.record): score for one, score in judged}
    levels = find_levels(value for group in pairs for pair in group for value in pair)
    table = Counter(pair for group in pairs for pair in group)
    few = accuracy.value is not None and len(levels) <= MAX_LEVELS
    means = [
        _SampleMean(same[0].record.group_key, judge, _mean_score(same))
        for same in collect((_sample(one.record), one) for one in opinions).values()
        if (judge := target.score_of(same[0].record)) is not None
    ]
    return Alignment(
        labels=len(labels),
        samples=len({_sample(one.record) for one in labels}),
        people=len({one.label.author for one in labels}),
        groups=len({one.record.group_key for one in labels}),
        judge_missing=sum(target.score_of(one.record) is None for one in labels),
        outdated=len(labels) - len(fresh),
        right=_share(
            (one.record.group_key, float(one.label.verdict == "right"))
            for one in fresh
            if one.label.verdict is not None
        ),
        accuracy=accuracy,
        kappas=kappas,
        tau_b=_tau_b(means),
        auc=_auc(target, means, within=False),
        auc_within=_auc(target, means, within=True),
        preferences=_preferences(target, labels),
        alphas={"people": _alpha(people, {}), "people and judge": _alpha(people, known)},
        ceiling=_ceiling(people),
        youden=_youden(target, pairs),
        levels=levels if few else [],
        confusion=[[table[one, other] for other in levels] for one in levels] if few else [],
    )


def _is_outdated(target: _Target, one: JoinedLabel) -> bool:
    """Whether a verdict is about another score than the judge's in this run."""
    then, now = one.label.judge_score, target.score_of(one.record)
    if one.label.verdict is None:
        return False
    return now is None or (then is not None and not _is_same(then, now))


def _mean_score(same: Sequence[_Opinion]) -> float:
    return math.fsum(one.score for one in same) / len(same)


def _is_same(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=_SAME, abs_tol=_SAME)


def _opinions(target: _Target, labels: Sequence[JoinedLabel]) -> list[_Opinion]:
    """A person's own score; else, where the judge has two levels, what the verdict comes to."""
    found: dict[Hashable, _Opinion] = {}
    for own in (False, True):  # a score goes before a verdict
        for label, record, _ in labels:
            judge = target.score_of(record)
            score = label.score if own else implied_score(label, judge, target.levels)
            if score is not None:
                score = target.equal.get(score, score)
                one = _Opinion(record, label.author, score)
                found[_sample(record), label.author] = one
    return list(found.values())


def _sample(record: RunRecord) -> tuple[int | None, int]:
    return record.step, record.index


def _share(rows: Iterable[tuple[Hashable, float]]) -> Estimate:
    groups = collect(rows).values()
    n = sum(map(len, groups))
    found = estimate_share([(math.fsum(hits), float(len(hits))) for hits in groups])
    return msgspec.structs.replace(found, n=n)


def _compare(
    groups: Sequence[Sequence[tuple[float, float]]],
    sides: tuple[str, str] = ("people give", "the judge gives"),
) -> tuple[dict[str, Estimate], Estimate]:
    """The kappas and the share of equal pairs; neither where the two have other scales."""
    flat = [pair for group in groups for pair in group]
    n = len(flat)
    if not flat:
        none = Estimate(n=0, why=_NO_OPINION)
        return dict.fromkeys(_KAPPAS, none), none
    hits = [(float(sum(a == b for a, b in group)), float(len(group))) for group in groups]
    accuracy = msgspec.structs.replace(estimate_share(hits), n=n)
    values = [set(side) for side in zip(*flat, strict=True)]
    constant = [name for name, own in zip(sides, values, strict=True) if len(own) == 1]
    if constant and values[0] & values[1]:
        why = f"{constant[0]} one score only"
        return dict.fromkeys(_KAPPAS, Estimate(n=n, why=why)), accuracy
    if not have_same_scale(*np.asarray(flat, float).T):
        why = "judge and people have no common levels; give --threshold"
        return dict.fromkeys(_KAPPAS, Estimate(n=n, why=why)), Estimate(n=n, why=why)
    kappas = {
        str(name): msgspec.structs.replace(one, n=n)
        for name, one in estimate_kappas(groups).items()
    }
    return kappas, accuracy


def _youden(target: _Target, groups: Sequence[Sequence[tuple[float, float]]]) -> Estimate:
    """J, where judge and people give the same two levels, of which the higher one passes."""
    levels = binary_levels(target.levels if target.threshold is None else (0.0, 1.0))
    said = {value for group in groups for pair in group for value in pair}
    if levels is None or not said <= {*levels}:
        return Estimate(n=0, why="needs a judge of two levels, and people's scores of the same two")
    return estimate_youden([[(a == levels[1], b == levels[1]) for a, b in own] for own in groups])


class _SampleMean(NamedTuple):
    """One sample's group, its score by the judge, and the mean of the people's."""

    group: Hashable
    judge: float
    people: float


def _tau_b(means: Sequence[_SampleMean]) -> Estimate:
    pairs = [
        ([one.judge for one in group], [one.people for one in group])
        for group in collect((one.group, one) for one in means).values()
        if len(group) > 1
    ]
    if not pairs:
        return Estimate(n=0, why="no group has two samples with a person's score")
    found = estimate_within_agreement(pairs)["kendall"]
    why = found.why
    if found.value is None:
        why = "inside groups the judge or the people give one value"
    return msgspec.structs.replace(found, n=sum(len(one) for one, _ in pairs), why=why)


def _auc(target: _Target, means: Sequence[_SampleMean], *, within: bool) -> Estimate:
    limit = target.threshold
    outcomes = [one.people if limit is None else float(one.people >= limit) for one in means]
    find = within_group_concordance if within else concordance
    found = find([one.judge for one in means], outcomes, [one.group for one in means])
    why = ""
    if found.value is None:
        place = "in each group " if within else ""
        why = f"{place}people give one value" if means else NO_VALUE
    return Estimate(found.value, found.low, found.high, found.samples, why)


def _preferences(target: _Target, labels: Sequence[JoinedLabel]) -> Estimate:
    rows = []
    for label, record, other in labels:
        if label.kind == "preferred" and other is not None:
            better, worse = target.score_of(record), target.score_of(other)
            if better is not None and worse is not None:
                rows.append(
                    (record.group_key, 0.5 if _is_same(better, worse) else float(better > worse))
                )
    return _share(rows)


# --- people -------------------------------------------------------------------------------------


def _alpha(people: Sequence[_Opinion], judge: Mapping[Any, float]) -> Estimate:
    """``judge``: one more rating by sample."""
    rows = []
    for sample, same in collect((_sample(one.record), one) for one in people).items():
        own = [judge[sample]] if sample in judge else []
        rows.append((same[0].record.group_key, [*(one.score for one in same), *own]))
    n = sum(len(scores) > 1 for _, scores in rows)
    return msgspec.structs.replace(estimate_alpha(list(collect(rows).values())), n=n)


def _ceiling(people: Sequence[_Opinion]) -> dict[str, Estimate]:
    """Each two people on a sample that both gave a score, in both orders."""
    groups = list(
        collect(
            (one.record.group_key, (one.score, other.score))
            for same in collect((_sample(one.record), one) for one in people).values()
            for one, other in permutations(same, 2)
        ).values()
    )
    if not groups:
        why = "no sample has the scores of two people"
        return dict.fromkeys(("accuracy", *_KAPPAS), Estimate(n=0, why=why))
    kappas, accuracy = _compare(groups, ("people give", "people give"))
    return {"accuracy": accuracy, **kappas}


# --- where they differ --------------------------------------------------------------------------


def _find_disputed(
    target: _Target, labels: Sequence[JoinedLabel], notes: Mapping[Any, list[str]]
) -> list[Disputed]:
    """Samples on which judge and people differ, the worst first."""
    span = target.levels[-1] - target.levels[0] if target.levels else 0.0
    opinions = collect((_sample(one.record), one) for one in _opinions(target, labels))
    found = []
    for sample, same in collect((_sample(one.record), one) for one in labels).items():
        record, step = same[0].record, same[0].label.step
        judge = target.score_of(record)
        verdicts = [one.label.verdict for one in same if not _is_outdated(target, one)]
        wrong = ratio([float(verdicts.count("wrong")), float(len(verdicts) - verdicts.count(None))])
        sizes = [] if wrong is None else [wrong]
        if sample in opinions and judge is not None:
            apart = abs(judge - _mean_score(opinions[sample]))
            sizes.append(min(1.0, apart / span) if span else float(apart > 0))
        if not sizes or max(sizes) <= _SAME:
            continue
        people = collect(
            (label.author, label.verdict or f"{label.score:g}")
            for label, _, _ in same
            if label.kind != "preferred"
        )
        found.append(
            Disputed(
                target=target.name,
                index=record.index,
                step=step,
                where=record.where,
                group=str(record.group),
                size=max(sizes),
                judge=judge,
                people={author: ", ".join(said) for author, said in people.items()},
                notes=notes.get((target.name, sample), []),
                link=f"#sample={record.index if step is None else f'{step}/{record.index}'}",
            )
        )
    return sorted(found, key=lambda one: (-one.size, one.step or 0, one.index))
