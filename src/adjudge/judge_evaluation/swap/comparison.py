"""How judges compare: agreement, criteria marked differently, what length and format explain."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import islice

import msgspec

from adjudge.judge_evaluation.intervals import (
    Estimate,
    ItemColumns,
    bootstrap_groups,
    concordance_shares,
    correlation,
    ratio,
    spearman_shares,
)
from adjudge.judge_evaluation.swap.judgements import TEXT_FEATURES, CriterionMarks, TextFeatures
from adjudge.rewards.groups import z_scores
from adjudge.types import mid_ranks

__all__ = [
    "CriterionDisagreement",
    "ExplainedAdvantages",
    "RewardAgreement",
    "advantage_sign",
    "compare_criteria",
    "compare_rewards",
    "explain_advantages",
]


_ROUNDING = 1e-9
_MAX_LEVELS = 20


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


_Pair = tuple[list[float], list[float]]


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
    overall = _overall(pairs, seed)
    return RewardAgreement(
        samples=len(a),
        common=sum(len(x) for x, _ in pairs),
        groups=len(inside),
        all_groups=len(members),
        **overall,
        **_within(inside, seed),
        **_changes(inside, seed),
        flat=sum(min(x) == max(x) or min(y) == max(y) for x, y in inside),
    )


def _common_rewards(
    a: Sequence[float | None], b: Sequence[float | None], group: Sequence[int]
) -> _Pair:
    x, y = [], []
    for place in group:
        one, other = a[place], b[place]
        if one is not None and other is not None:
            x.append(one)
            y.append(other)
    return x, y


def _overall(pairs: Sequence[_Pair], seed: int) -> dict[str, Estimate]:
    x = [value for xs, _ in pairs for value in xs]
    y = [value for _, ys in pairs for value in ys]
    if not x or min(x) == max(x) or min(y) == max(y):
        return dict.fromkeys(("pearson", "spearman", "kendall", "kappa"), Estimate())
    own = [(_centre(side), _scale(side, _centre(side))) for side in (x, y)]
    moments = _moment_rows(pairs, own)
    shared = [(_centre(x), _scale((*x, *y), _centre(x)))] * 2
    ranks, orders = spearman_shares(x, y), concordance_shares(x, y)
    cubes = [math.fsum(share[at] for share in ranks) / 3 for at in range(3)]
    halves = [sum(share[at] for share in orders) / 2 for at in range(3)]

    def spearman(sums: Sequence[float]) -> float | None:
        return correlation(
            *((s - 2 * whole) / cubes[1] for s, whole in zip(sums, cubes, strict=True))
        )

    def kendall(sums: Sequence[float]) -> float | None:
        return correlation(
            *((s - whole) / halves[1] for s, whole in zip(sums, halves, strict=True))
        )

    return {
        "pearson": bootstrap_groups(moments, _pearson, seed=seed),
        "spearman": bootstrap_groups(_by_group(ranks, pairs), spearman, seed=seed),
        "kendall": bootstrap_groups(_by_group(orders, pairs), kendall, seed=seed),
        "kappa": Estimate()
        if not _same_scale(x, y)
        else bootstrap_groups(_moment_rows(pairs, shared), _kappa, seed=seed),
    }


def _centre(values: Sequence[float]) -> float:
    return math.fsum(value / len(values) for value in values)


def _scale(values: Sequence[float], centre: float) -> float:
    return max(abs(value / 2 - centre / 2) for value in values) * 2


def _moment_rows(pairs: Sequence[_Pair], units: Sequence[tuple[float, float]]) -> list[ItemColumns]:
    """n, Σx, Σy, Σx², Σy², Σxy of each group, in units (centre, scale) of each side."""
    rows: list[ItemColumns] = []
    for group in pairs:
        xs, ys = (
            [(value - centre) / scale for value in side]
            for side, (centre, scale) in zip(group, units, strict=True)
        )
        rows.append(
            (
                float(len(xs)),
                math.fsum(xs),
                math.fsum(ys),
                math.fsum(value * value for value in xs),
                math.fsum(value * value for value in ys),
                math.fsum(map(float.__mul__, xs, ys)),
            )
        )
    return rows


def _moments(sums: Sequence[float]) -> tuple[float, float, float, float]:
    n, x, y, xx, yy, xy = sums
    return xx / n - (x / n) ** 2, yy / n - (y / n) ** 2, xy / n - x * y / n**2, (x - y) / n


def _pearson(sums: Sequence[float]) -> float | None:
    of_x, of_y, product, _ = _moments(sums)
    return correlation(product, of_x, of_y)


def _kappa(sums: Sequence[float]) -> float | None:
    """1 − Σ(x−y)²/n ÷ its expectation were they independent (Cohen, Psychol. Bull. 70, 1968)."""
    of_x, of_y, product, apart = _moments(sums)
    expected = of_x + of_y + apart**2
    return 2 * product / expected if expected > _ROUNDING**2 else None


def _same_scale(x: Sequence[float], y: Sequence[float]) -> bool:
    """Whether both have few levels, in ranges that overlap by half."""
    if len({*x, *y}) > _MAX_LEVELS:
        return False
    overlap = min(max(x), max(y)) - max(min(x), min(y))
    return overlap >= (max(*x, *y) - min(*x, *y)) / 2


def _by_group(
    shares: Sequence[tuple[float, float, float]], pairs: Sequence[_Pair]
) -> list[ItemColumns]:
    rows, start = [], 0
    for x, _ in pairs:
        some = shares[start : start + len(x)]
        rows.append(tuple(math.fsum(share[at] for share in some) for at in range(3)))
        start += len(x)
    return rows


def _within(inside: Sequence[_Pair], seed: int) -> dict[str, Estimate]:
    one, other = (
        max((max(pair[at]) / 2 - min(pair[at]) / 2 for pair in inside), default=0.0) or 1.0
        for at in (0, 1)
    )
    linear = [_products(_centred(x, one), _centred(y, other)) for x, y in inside]
    ranked = [_products(_centred(mid_ranks(x)), _centred(mid_ranks(y))) for x, y in inside]
    ordered = [
        tuple(sum(share[at] for share in concordance_shares(x, y)) / 2 for at in range(3))
        for x, y in inside
    ]
    scaled = [_products(z_scores(x), z_scores(y)) for x, y in inside]

    def pooled(rows: Sequence[ItemColumns]) -> Estimate:
        return bootstrap_groups(rows, lambda sums: correlation(*sums), seed=seed)

    return {
        "within_pearson": pooled(linear),
        "within_spearman": pooled(ranked),
        "within_kendall": pooled(ordered),
        "advantage_pearson": pooled(scaled),
    }


def _centred(values: Sequence[float], scale: float = 1.0) -> list[float]:
    if min(values) == max(values):
        return [0.0] * len(values)
    scaled = [value / scale for value in values]
    mean = math.fsum(scaled) / len(scaled)
    return [value - mean for value in scaled]


def _products(x: Sequence[float], y: Sequence[float]) -> ItemColumns:
    return (
        math.fsum(map(float.__mul__, x, y)),
        math.fsum(value * value for value in x),
        math.fsum(value * value for value in y),
    )


def advantage_sign(advantage: float) -> int:
    """−1, 0 or 1; what rounding alone makes differ from 0 is 0."""
    return 0 if abs(advantage) < _ROUNDING else int(math.copysign(1, advantage))


def _changes(inside: Sequence[_Pair], seed: int) -> dict[str, Estimate]:
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
_PIVOT = 1e-9
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

    ``None`` where none of them varies inside groups: there is nothing to ask.

    Gaussian elimination of the normal equations, each pivot taking its share. Advantages have
    Σ a² = Σ(n − 1): the degrees of freedom.
    """
    freedom, first = sums[0], 1 + len(TEXT_FEATURES)
    cell = {}
    for place, (i, j) in enumerate(_CELLS):
        cell[i, j] = cell[j, i] = sums[first + place]
    size = len(wanted)
    table = [[cell[i, j] for j in wanted] + [sums[1 + i]] for i in wanted]
    scales = [table[k][k] for k in range(size)]
    left, used = freedom, 0
    for k in range(size):
        pivot = table[k][k]
        if pivot <= _PIVOT * max(scales[k], freedom):
            continue
        left -= table[k][size] ** 2 / pivot
        used += 1
        for row in range(k + 1, size):
            factor = table[row][k] / pivot
            table[row] = [
                own - factor * other for own, other in zip(table[row], table[k], strict=True)
            ]
    if not used or freedom <= used + 1:
        return None
    unexplained = max(0.0, left / freedom)
    return 1 - unexplained * (freedom / (freedom - used) if adjust else 1.0)
