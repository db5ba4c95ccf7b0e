"""How judges compare: agreement, criteria marked differently, what length and format explain."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import islice

import msgspec

from adjudge.judge_evaluation.swap.judgements import TEXT_FEATURES, CriterionMarks, TextFeatures
from adjudge.stats import Estimate, z_scores
from adjudge.stats.agreement import (
    PairedScores,
    correlation,
    estimate_agreement,
    estimate_within_agreement,
)
from adjudge.stats.bootstrap import bootstrap_groups, ratio
from adjudge.stats.estimates import ItemColumns, residual_share

_ROUNDING = 1e-9


class RewardAgreement(msgspec.Struct, frozen=True, kw_only=True):
    """Two judges on the samples that both judged; correlations are in [−1, 1], shares in [0, 1].

    ``common`` of ``samples`` were judged by both, in ``groups`` groups that can be compared (two
    such samples or more) of ``all_groups``. The first four are over all samples, as a judge of a
    test set is compared; ``within_…`` are inside groups, pooled, which is all that GRPO sees.

    ``kappa``: quadratic-weighted, where both scales are discrete and overlap; else none.
    ``advantage_pearson``: of the GRPO advantages. ``best_changes``: groups of which no sample is
    best for both. ``best_differs``: groups whose sets of best samples are not the same.
    ``sign_flips``: samples with advantages of opposite sign. ``sign_differs``: the same, and those
    where only one of the two is 0. ``flat``: groups that one of the judges, or both, scored all
    alike: nothing can flip there.
    """

    samples: int
    common: int
    groups: int
    all_groups: int
    pearson: Estimate
    spearman: Estimate
    kendall: Estimate
    kappa: Estimate
    within_pearson: Estimate
    within_spearman: Estimate
    within_kendall: Estimate
    advantage_pearson: Estimate
    best_changes: Estimate
    best_differs: Estimate
    sign_flips: Estimate
    sign_differs: Estimate
    flat: int


def compare_rewards(
    a: Sequence[float | None],
    b: Sequence[float | None],
    members: Sequence[Sequence[int]],
    *,
    seed: int = 0,
) -> RewardAgreement:
    """Two judges' rewards compared; ``members`` has the places of each group's samples.

    A sample that one of them did not judge is left out on both sides: each group is compared on
    what both judged, advantages included. Intervals are by group.
    """
    pairs = [_common_rewards(a, b, group) for group in members]
    pairs = [pair for pair in pairs if pair[0]]
    inside = [pair for pair in pairs if len(pair[0]) > 1]
    within = estimate_within_agreement(inside, seed=seed)
    return RewardAgreement(
        samples=len(a),
        common=sum(len(x) for x, _ in pairs),
        groups=len(inside),
        all_groups=len(members),
        **estimate_agreement(pairs, seed=seed),
        **{f"within_{name}": within[name] for name in ("pearson", "spearman", "kendall")},
        advantage_pearson=within["advantage_pearson"],
        **_changes(inside, seed),
        flat=sum(min(x) == max(x) or min(y) == max(y) for x, y in inside),
    )


def _common_rewards(
    a: Sequence[float | None], b: Sequence[float | None], group: Sequence[int]
) -> PairedScores:
    x, y = [], []
    for place in group:
        one, other = a[place], b[place]
        if one is not None and other is not None:
            x.append(one)
            y.append(other)
    return x, y


def advantage_sign(advantage: float) -> int:
    """−1, 0 or 1; what rounding alone makes differ from 0 is 0."""
    return 0 if abs(advantage) < _ROUNDING else int(math.copysign(1, advantage))


def _changes(inside: Sequence[PairedScores], seed: int) -> dict[str, Estimate]:
    changes, differs, flips, turns = [], [], [], []
    for x, y in inside:
        best_x, best_y = _best(x), _best(y)
        changes.append((float(best_x.isdisjoint(best_y)), 1.0))
        differs.append((float(best_x != best_y), 1.0))
        signs = [
            (advantage_sign(one), advantage_sign(other))
            for one, other in zip(z_scores(x), z_scores(y), strict=True)
        ]
        flips.append((float(sum(one * other < 0 for one, other in signs)), float(len(x))))
        turns.append((float(sum(one != other for one, other in signs)), float(len(x))))
    rows = {
        "best_changes": changes,
        "best_differs": differs,
        "sign_flips": flips,
        "sign_differs": turns,
    }
    return {
        name: bootstrap_groups(of, ratio, bounds=(0, 1), seed=seed) for name, of in rows.items()
    }


def _best(values: Sequence[float]) -> set[int]:
    best = max(values)
    return {place for place, value in enumerate(values) if value == best}


_MarkPair = tuple[float | None, float | None]
_MAX_CRITERIA = 50
_MIN_CRITERION_GROUPS = 2


class CriterionDisagreement(msgspec.Struct, frozen=True, kw_only=True):
    """One criterion, or all together (an empty name), on the samples that both judges marked.

    ``differs``: the share marked differently, "does not apply" being a mark of its own.
    ``met_first``, ``met_second``: the share that each judge marked as met; what does not apply is
    not met.
    """

    criterion: str
    samples: int
    differs: Estimate
    met_first: float
    met_second: float


def compare_criteria(
    a: Sequence[CriterionMarks],
    b: Sequence[CriterionMarks],
    members: Sequence[Sequence[int]],
    *,
    seed: int = 0,
) -> list[CriterionDisagreement]:
    """All criteria together first, then each that two groups or more share, the worst first.

    Empty where one judge marked none. At most 50 criteria; of more, those marked most often.
    """
    if not (any(a) and any(b)):
        return []
    found: dict[str, list[list[_MarkPair]]] = {}
    for group in members:
        fresh: dict[str, list[_MarkPair]] = {}
        for place in group:
            for name in a[place].keys() & b[place].keys():
                fresh.setdefault(name, []).append((a[place][name], b[place][name]))
        for name, marks in fresh.items():
            found.setdefault(name, []).append(marks)
        if fresh:
            together = [mark for _, marks in sorted(fresh.items()) for mark in marks]
            found.setdefault("", []).append(together)
    whole = found.pop("", None)
    if whole is None:
        return []
    shared = {name: of for name, of in found.items() if len(of) >= _MIN_CRITERION_GROUPS}
    often = sorted(shared.items(), key=lambda one: (-sum(map(len, one[1])), one[0]))
    each = [_criterion(name, of, seed) for name, of in islice(often, _MAX_CRITERIA)]
    each.sort(key=lambda one: -(one.differs.value or 0.0))
    return [_criterion("", whole, seed), *each]


def _criterion(
    name: str, groups: Sequence[Sequence[_MarkPair]], seed: int
) -> CriterionDisagreement:
    rows = [(float(sum(x != y for x, y in marks)), float(len(marks))) for marks in groups]
    marks = [mark for group in groups for mark in group]
    return CriterionDisagreement(
        criterion=name,
        samples=len(marks),
        differs=bootstrap_groups(rows, ratio, bounds=(0, 1), seed=seed),
        met_first=math.fsum(float(x or 0) for x, _ in marks) / len(marks),
        met_second=math.fsum(float(y or 0) for _, y in marks) / len(marks),
    )


_LENGTH, _FORMAT, _ALL = (0,), (1, 2, 3), (0, 1, 2, 3)
_CELLS = [(i, j) for i in range(len(TEXT_FEATURES)) for j in range(i, len(TEXT_FEATURES))]


class ExplainedAdvantages(msgspec.Struct, frozen=True, kw_only=True):
    """Shares of the variance of GRPO advantages; adjusted R², so chance is 0 and may be below.

    ``length_r``: the correlation of advantage and length, with its sign. ``length``, ``format``
    (Markdown, lists and code together) and ``both``: R² of the regression on these.
    ``format_beyond_length``: ``both`` less ``length``. Without a value: no answer differs from its
    group in that. ``groups`` of them entered: those in which
    the judge told two samples apart.
    """

    length_r: Estimate
    length: Estimate
    format: Estimate
    both: Estimate
    format_beyond_length: Estimate
    groups: int


def explain_advantages(
    rewards: Sequence[float | None],
    features: Sequence[TextFeatures],
    members: Sequence[Sequence[int]],
    *,
    seed: int = 0,
) -> ExplainedAdvantages:
    """Regress a judge's advantages on the answers' features, both standardised inside groups.

    The advantage is (r − mean)/std over the samples of a group that the judge judged; a feature
    becomes the same over the same samples, and 0 where they do not differ. R² is adjusted for the
    number of features by the degrees of freedom inside groups, Σ(n − 1):
    1 − (1 − R²)·D/(D − p) (Ezekiel 1930). Intervals are by group.
    """
    rows = []
    for group in members:
        present = [(reward, features[at]) for at in group if (reward := rewards[at]) is not None]
        values = [reward for reward, _ in present]
        if len(values) > 1 and min(values) < max(values):
            rows.append(_row(z_scores(values), [shape for _, shape in present]))

    def part(wanted: Sequence[int], less: Sequence[int] = ()) -> Estimate:
        return _part(rows, wanted, less, seed)

    return ExplainedAdvantages(
        length_r=bootstrap_groups(rows, _length_r, seed=seed),
        length=part(_LENGTH),
        format=part(_FORMAT),
        both=part(_ALL),
        format_beyond_length=part(_ALL, _LENGTH),
        groups=len(rows),
    )


def _part(
    rows: Sequence[ItemColumns], wanted: Sequence[int], less: Sequence[int], seed: int
) -> Estimate:
    """R² on the features ``wanted``, less that on ``less``, adjusted, with its interval.

    Resamples are biased by chance as the sample is by it, so they lie around R² before adjusting:
    the interval is moved by as much as adjusting moved the value.
    """

    def difference(sums: Sequence[float], *, adjust: bool) -> float | None:
        whole = _r_squared(sums, wanted, adjust=adjust)
        rest = _r_squared(sums, less, adjust=adjust) if less else 0.0
        return None if whole is None or rest is None else whole - rest

    found = bootstrap_groups(rows, lambda sums: difference(sums, adjust=True), seed=seed)
    raw = difference([math.fsum(of) for of in zip(*rows, strict=True)], adjust=False) if rows else 0
    if found.low is None or found.high is None or found.value is None or raw is None:
        return found
    moved = found.value - raw
    return Estimate(found.value, found.low + moved, found.high + moved)


def _row(advantages: Sequence[float], shapes: Sequence[TextFeatures]) -> ItemColumns:
    """Σ a², Σ a·f for each feature, Σ f·g for every two."""
    columns = [z_scores([float(shape[at]) for shape in shapes]) for at in range(len(TEXT_FEATURES))]
    return (
        _dot(advantages, advantages),
        *(_dot(advantages, column) for column in columns),
        *(_dot(columns[i], columns[j]) for i, j in _CELLS),
    )


def _dot(x: Sequence[float], y: Sequence[float]) -> float:
    return math.fsum(map(float.__mul__, x, y))


def _length_r(sums: Sequence[float]) -> float | None:
    return correlation(sums[1], sums[0], sums[1 + len(TEXT_FEATURES)])


def _r_squared(sums: Sequence[float], wanted: Sequence[int], *, adjust: bool) -> float | None:
    """R² on some features from the sums; a feature that adds nothing is left out.

    ``None`` where none of them varies inside groups: there is nothing to ask. Advantages have
    Σ a² = Σ(n − 1): the degrees of freedom.
    """
    freedom, first = sums[0], 1 + len(TEXT_FEATURES)
    cell = {cell: sums[first + place] for place, cell in enumerate(_CELLS)}
    square = [[cell[min(i, j), max(i, j)] for j in wanted] for i in wanted]
    unexplained, used = residual_share(square, [sums[1 + i] for i in wanted], freedom)
    if not used or freedom <= used + 1:
        return None
    return 1 - unexplained * (freedom / (freedom - used) if adjust else 1.0)
