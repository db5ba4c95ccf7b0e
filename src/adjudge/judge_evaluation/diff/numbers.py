"""What differs between two runs over the same rollouts, as numbers with intervals.

Everything is paired: a sample that one of the two did not reward is in no mean, correlation or
advantage of either. Intervals are 95 %, by bootstrap over groups. Where B is put for A and A for B,
each difference changes its sign and nothing else.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

import msgspec

from adjudge.config import compare_settings, flatten
from adjudge.judge_evaluation.diff.pairing import DiffRun, LabelledPairs, PairedRuns, RowPair
from adjudge.runs.summary import REWARD, summarise_noise
from adjudge.stats import TIE_TOLERANCE, Estimate, describe_sizes, mean, z_scores
from adjudge.stats.agreement import PairedScores, estimate_kendall, estimate_within_agreement
from adjudge.stats.estimates import NO_VALUE, NOTHING_VARIED, ItemColumns, bootstrap_groups, ratio
from adjudge.stats.predictions import pair_counts
from adjudge.version import __version__

_UNBOUNDED = (-math.inf, math.inf)
_ROUNDING = 1e-9
_MAX_LISTED = 1000
"""Turned advantages that the summary lists."""

Outcomes = Mapping[int, float]
"""What is right of a pair, by its place: an environment's reward, a person's label."""


def summarise_diff(runs: PairedRuns, labels: LabelledPairs | None = None) -> dict[str, Any]:
    """The whole comparison as plain data; pure. ``labels``: what people said of the samples."""
    pairs, members = runs.pairs, runs.members
    environment: dict[int, float] = {}
    conflicts = 0
    for place, (a, b) in enumerate(pairs):
        said = {one for one in (a.env_reward, b.env_reward) if one is not None}
        conflicts += len(said) > 1
        if len(said) == 1:
            environment[place] = said.pop()
    turned = [(at, *both) for at, both in runs.advantages().items() if turns_sign(*both)]
    turned.sort(key=lambda one: (-abs(one[2] - one[1]), one[0]))
    spec = runs.a.facts.get("spec_hash")
    same_spec = spec is not None and spec == runs.b.facts.get("spec_hash")
    truths = {"environment": LabelledPairs(environment, []), "labels": labels}
    parts = {
        "adjudge": __version__,
        "a": describe_run(runs.a),
        "b": describe_run(runs.b),
        "identical": not (runs.only_a or runs.only_b)
        and all(
            (one.reward, one.kind, one.scores) == (other.reward, other.kind, other.scores)
            for one, other in pairs
        ),
        "same_spec": same_spec,
        "samples": {"both": len(pairs), "only_a": runs.only_a, "only_b": runs.only_b},
        "groups": {**describe_sizes(map(len, members)), "same": runs.same_groups},
        "settings": _changed_settings(runs.a, runs.b),
        "reward": _compare_side(runs.rewards_a, runs.rewards_b, members),
        "graders": _compare_graders(runs),
        "advantages": compare_rewards(runs.rewards_a, runs.rewards_b, members),
        "noise": _measure_noise(runs) if same_spec else None,
        "truth": {
            name: _compare_truth(runs, outcomes)
            for name, outcomes in truths.items()
            if outcomes is not None and any(outcomes)
        },
        "environment_conflicts": conflicts,
        "missing": _compare_missing(pairs, members),
        "turned": [sample_numbers(runs, *one) for one in turned[:_MAX_LISTED]],
        "seed": 0,
    }
    found: dict[str, Any] = msgspec.to_builtins(parts)
    if found["identical"]:  # there is nothing to estimate, so no interval either
        right = [part[pairs] for part in found["truth"].values() for pairs in ("within", "pooled")]
        for part in (found["reward"], found["missing"], *found["graders"].values(), *right):
            if part["change"]["value"] is not None:
                part["change"] = msgspec.to_builtins(Estimate(0.0, why=NOTHING_VARIED))
    return found


def describe_run(run: DiffRun) -> dict[str, Any]:
    """What a run's folder says of its judges and of their cost; ``None`` what is not known."""
    facts, summary = run.facts, run.summary
    spending = summary.get("spending") or {}
    judged = [one["judge"] for one in (summary.get("graders") or {}).values() if one.get("judge")]
    once = spending.get("invocations", 1) == 1
    tokens = [spending.get(key) for key in ("input_tokens", "output_tokens")]
    return {
        "path": str(run.path),
        "spec": facts.get("spec_path"),
        "spec_hash": facts.get("spec_hash"),
        "adjudge": facts.get("adjudge"),
        "samples": len(run.rows),
        "models": list(dict.fromkeys(name for one in judged for name in one.get("models") or ())),
        "cost_usd": spending.get("cost_usd"),
        "calls": spending.get("calls"),
        "tokens": None if None in tokens else sum(tokens),
        "seconds": summary.get("elapsed_s") if once else None,
    }


def _measure_noise(runs: PairedRuns) -> dict[str, Any]:
    """Two runs of one spec are two draws of its judges."""
    both = [(pair.a, pair.b) for pair in runs.pairs]
    columns = {
        name: [[pair[side].scores.get(name) for pair in both] for side in (0, 1)]
        for name in runs.a.graders
    }
    columns[REWARD] = [list(runs.rewards_a), list(runs.rewards_b)]
    return summarise_noise(columns, [runs.group_of[at] for at in range(len(both))])


def _changed_settings(a: DiffRun, b: DiffRun) -> list[dict[str, Any]] | None:
    """The settings that differ; ``None`` where one of the two does not say its own."""
    if any(run.facts.get("settings") is None for run in (a, b)):
        return None
    found = compare_settings(
        *({**dict(flatten(run.facts["settings"])), "adjudge": run.facts.get("adjudge")}
          for run in (a, b))
    )  # fmt: skip
    return [{"key": one.key, "a": one.left, "b": one.right} for one in found]


def _compare_side(
    a: Sequence[float | None], b: Sequence[float | None], members: Sequence[Sequence[int]]
) -> dict[str, Any]:
    """Both means over what both have, and B less A."""
    rows: list[ItemColumns] = []
    both = []
    for group in members:
        found = [
            (one, one if differ_by_rounding(one, other) else other)
            for at in group
            if (one := a[at]) is not None
            if (other := b[at]) is not None
        ]
        if found:
            rows.append((math.fsum(y - x for x, y in found), float(len(found))))
            both += found
    return {
        "common": len(both),
        "mean_a": mean([x for x, _ in both]),
        "mean_b": mean([y for _, y in both]),
        "changed": sum(x != y for x, y in both),
        "change": _mean_change(rows),
    }


def differ_by_rounding(x: float, y: float) -> bool:
    """Whether two numbers are the same but for the rounding of the sums that they came from."""
    return abs(x - y) <= TIE_TOLERANCE * max(abs(x), abs(y), 1.0)


def _mean_change(rows: Sequence[ItemColumns]) -> Estimate:
    """Scores have no bounds: where all groups change alike, nothing says how far they may."""
    if len(rows) > 1 and len({change / n for change, n in rows}) == 1:
        return Estimate(
            ratio([math.fsum(of) for of in zip(*rows, strict=True)]), why=NOTHING_VARIED
        )
    return bootstrap_groups(rows, ratio, bounds=_UNBOUNDED)


def _compare_graders(runs: PairedRuns) -> dict[str, Any]:
    """Each grader of both, in the order of B's spec; those of one alone say whose they are."""
    ours, theirs = runs.a.graders, runs.b.graders
    found: dict[str, Any] = {}
    for name in dict.fromkeys([*theirs, *ours]):
        if name not in ours or name not in theirs:
            found[name] = {"only": "b" if name in theirs else "a"}
            continue
        a, b = ([row.scores.get(name) for row in side] for side in zip(*runs.pairs, strict=True))
        found[name] = {
            **_compare_side(a, b, runs.members),
            "missing_a": a.count(None),
            "missing_b": b.count(None),
        }
    return found


def _compare_truth(runs: PairedRuns, truth: LabelledPairs) -> dict[str, Any]:
    """How often each run orders two samples as their outcomes do, and B less A.

    ``within``: pairs inside groups, all that a group-relative trainer sees. ``pooled``: all pairs,
    the AUC where outcomes are of two kinds; its interval is that of the first-order change. Pairs
    of which people prefer one are pairs inside groups.
    """
    outcomes = truth.scores
    members = [
        [at for at in group if at in outcomes and runs.pairs[at].common] for group in runs.members
    ]
    places = [at for group in members for at in group]
    everyone = iter(_pair_sums(runs, places, outcomes))
    crossing = [_sum_rows(islice(everyone, len(group))) for group in members if group]
    inside: list[list[ItemColumns]] = [
        [(x / 2, y / 2, n / 2) for x, y, n in _pair_sums(runs, group, outcomes)]
        for group in members
    ]
    for better, worse in truth.preferences:
        if runs.pairs[better].common and runs.pairs[worse].common:
            order = {better: 1.0, worse: 0.0}
            first, _ = _pair_sums(runs, [better, worse], order)
            inside[runs.group_of[better]].append(first)
    within = [row for row in map(_sum_rows, inside) if row[2]]
    return {
        "samples": len(places),
        "within": _agreement_change(within),
        "pooled": _agreement_change(crossing, counted_twice=True),
    }


def _sum_rows(rows: Iterable[ItemColumns]) -> ItemColumns:
    found = list(rows)
    return tuple(map(math.fsum, zip(*found, strict=True))) if found else (0.0, 0.0, 0.0)


def _pair_sums(runs: PairedRuns, places: Sequence[int], outcomes: Outcomes) -> list[ItemColumns]:
    """By sample: the pairs with different outcomes that it is in; those that A, that B order right.

    A tie is half a pair. Each pair is counted at both of its samples.
    """
    right = [outcomes[at] for at in places]
    sides = []
    pairs: Sequence[int] = ()
    for rewards in (runs.rewards_a, runs.rewards_b):
        twice, pairs = pair_counts(
            [reward for at in places if (reward := rewards[at]) is not None], right
        )
        sides.append([won / 2 for won in twice])
    return [(x, y, float(n)) for x, y, n in zip(*sides, pairs, strict=True)]


def _agreement_change(
    rows: Sequence[ItemColumns], *, counted_twice: bool = False
) -> dict[str, Any]:
    """A's share, B's share and B less A; ``counted_twice``: each pair in both of its groups.

    Pairs of two groups are no sums over groups: a resample then gives the first-order change.
    """
    whole = [math.fsum(of) for of in zip(*rows, strict=True)] if rows else [0.0, 0.0, 0.0]
    known = [one / 2 if counted_twice else 0.0 for one in whole]

    def share(place: int) -> Callable[[Sequence[float]], float | None]:
        return lambda sums: ratio([sums[place] - known[place], sums[2] - known[2]])

    def change(sums: Sequence[float]) -> float | None:
        one, other = share(0)(sums), share(1)(sums)
        return None if one is None or other is None else other - one

    if not rows or not whole[2]:
        none = Estimate(why=NO_VALUE)
        return {"pairs": 0, "a": none, "b": none, "change": none}
    return {
        "pairs": round(whole[2] / 2 if counted_twice else whole[2]),
        "a": bootstrap_groups(rows, share(0), bounds=(0, 1)),
        "b": bootstrap_groups(rows, share(1), bounds=(0, 1)),
        "change": bootstrap_groups(rows, change),
    }


def _compare_missing(pairs: Sequence[RowPair], members: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Rewards that are missing of the samples in both runs, and B's share less A's."""
    gone = [(pair.a.reward is None, pair.b.reward is None) for pair in pairs]
    rows = [
        (float(sum(gone[at][1] - gone[at][0] for at in group)), float(len(group)))
        for group in members
    ]
    return {
        "a": sum(one for one, _ in gone) / len(gone),
        "b": sum(other for _, other in gone) / len(gone),
        "only_a": gone.count((True, False)),
        "only_b": gone.count((False, True)),
        "both": gone.count((True, True)),
        "change": bootstrap_groups(rows, ratio),
        "kinds_a": count_kinds([pair.a.kind for pair in pairs]),
        "kinds_b": count_kinds([pair.b.kind for pair in pairs]),
    }


def count_kinds(kinds: Sequence[str | None]) -> dict[str, int]:
    """How many rewards are missing, by kind of failure."""
    return dict(Counter(kind for kind in kinds if kind is not None).most_common())


def worst_changes(runs: PairedRuns, most: int) -> list[int]:
    """Places of the pairs that changed most: advantages, then what is missing in one run alone.

    A quarter at least is kept for each of the two, where there are so many.
    """
    moved: list[tuple[float, int]] = []
    for place, (a, b) in runs.advantages().items():
        one, other = runs.rewards_a[place] or 0.0, runs.rewards_b[place] or 0.0
        if not (differ_by_rounding(a, b) and differ_by_rounding(one, other)):
            # One that turned its sign goes before one that did not.
            moved.append((-abs(a - b) - 1e6 * turns_sign(a, b), place))
    gone = [
        place for place, (a, b) in enumerate(runs.pairs) if (a.reward is None) != (b.reward is None)
    ]
    room = max(most - len(gone), most - most // 4)
    chosen = [place for _, place in sorted(moved)][:room]
    return chosen + gone[: most - len(chosen)]


def sample_numbers(
    runs: PairedRuns, place: int, a: float | None, b: float | None
) -> dict[str, Any]:
    """Rewards and advantages of a pair, and where it is in both runs."""
    one, other = runs.pairs[place]
    return {
        "group": str(one.group),
        "where": one.where,
        "index_a": one.index,
        "index_b": other.index,
        "reward_a": one.reward,
        "reward_b": other.reward,
        "advantage_a": a,
        "advantage_b": b,
    }


# --- two judges on the same samples ---------------------------------------------------------------


class RewardAgreement(msgspec.Struct, frozen=True, kw_only=True):
    """Two judges on the samples that both judged; correlations are in [−1, 1], shares in [0, 1].

    ``common`` of ``samples`` were judged by both, in ``groups`` groups that can be compared (two
    such samples or more) of ``all_groups``. ``kendall`` is over all samples, as a judge of a test
    set is compared; ``within_kendall`` inside groups, pooled, which is all that GRPO sees.

    ``advantage_pearson``: of the GRPO advantages. ``best_changes``: groups of which no sample is
    best for both. ``sign_flips``: samples with advantages of opposite sign.
    """

    samples: int
    common: int
    groups: int
    all_groups: int
    kendall: Estimate
    within_kendall: Estimate
    advantage_pearson: Estimate
    best_changes: Estimate
    sign_flips: Estimate


def compare_rewards(
    a: Sequence[float | None], b: Sequence[float | None], members: Sequence[Sequence[int]]
) -> RewardAgreement:
    """Two judges' rewards compared; ``members`` has the places of each group's samples.

    A sample that one of them did not judge is left out on both sides: each group is compared on
    what both judged, advantages included. Intervals are by group.
    """
    pairs: list[PairedScores] = []
    for group in members:
        both = [(x, y) for at in group if (x := a[at]) is not None and (y := b[at]) is not None]
        if both:
            pairs.append(([x for x, _ in both], [y for _, y in both]))
    inside = [pair for pair in pairs if len(pair[0]) > 1]
    within = estimate_within_agreement(inside)
    changes = [(float(_best(x).isdisjoint(_best(y))), 1.0) for x, y in inside]
    turned = [sum(map(turns_sign, z_scores(x), z_scores(y))) for x, y in inside]
    flips = [(float(count), float(len(x))) for count, (x, _) in zip(turned, inside, strict=True)]
    return RewardAgreement(
        samples=len(a),
        common=sum(len(x) for x, _ in pairs),
        groups=len(inside),
        all_groups=len(members),
        kendall=estimate_kendall(pairs),
        within_kendall=within["kendall"],
        advantage_pearson=within["advantage_pearson"],
        best_changes=bootstrap_groups(changes, ratio, bounds=(0, 1)),
        sign_flips=bootstrap_groups(flips, ratio, bounds=(0, 1)),
    )


def turns_sign(one: float, other: float) -> bool:
    """Whether one of two advantages is above 0 and the other below, by more than rounding."""
    return min(one, other) <= -_ROUNDING and max(one, other) >= _ROUNDING


def _best(values: Sequence[float]) -> set[int]:
    best = max(values)
    return {place for place, value in enumerate(values) if value == best}
