"""Reward against √KL: fitted forms of training, and best-of-n.

Gao's two forms are fitted by least squares: where they peak, and how sure that is. Best-of-n by a
judge is measured by the judge and by the gold, for every n at once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import groupby
from operator import itemgetter, mul

import msgspec

from adjudge.stats import Estimate, snap_ties
from adjudge.stats.estimates import NO_VALUE
from adjudge_lab.statistics import ColumnMeans, PromptColumn, Resampling
from adjudge_lab.studies.results import (
    NO_SCORE_UNIT,
    ArmResult,
    BestOfScores,
    StudyResult,
    change_by_prompt,
    is_known,
    list_scorers,
    sort_checkpoints,
)

KlCurve = Sequence[tuple[float, PromptColumn]]
"""Distances d and, by prompt, the change of the reward from d = 0."""

_FORMS = ("bon", "rl")
_LINEAR = (0, 1, 3, 4)
_SINGULAR = 1e-9
_MIN_DISTANCES = 3
_TOO_FEW_DISTANCES = f"fewer than {_MIN_DISTANCES} distances above 0 with a score"
_EQUAL_DISTANCES = "the distances are all the same"


class FittedForm(msgspec.Struct, frozen=True, kw_only=True):
    """One form. ``peak``: the distance of its maximum, ``None`` where it has none, and why.

    ``extrapolated``: the peak lies beyond the largest distance seen. ``at_peak``: the change of the
    reward there. ``r2``: 1 − residuals/deviations from the mean; below 0 for a fit that is worse
    than the mean.
    """

    alpha: Estimate
    beta: Estimate
    r2: float | None
    peak: Estimate
    extrapolated: bool | None
    at_peak: float | None


class CurveFits(msgspec.Struct, frozen=True, kw_only=True):
    """Both forms of one curve: ``bon`` d(α − β·d) and ``rl`` d(α − β·log d).

    ``better``: that with the larger R², ``None`` of equals. ``points``: pairs of seed and distance;
    ``at_zero``: checkpoints left out as their KL was estimated at 0 or less, or had no score;
    ``largest``: distance seen. Without ``forms``: ``why``.
    """

    forms: dict[str, FittedForm] = {}
    better: str | None = None
    points: int = 0
    at_zero: int = 0
    largest: float | None = None
    seeds: int = 0
    why: str = ""


def fit_arms(
    arms: Sequence[ArmResult], scorer: str, unit: float | None, resampling: Resampling
) -> CurveFits:
    """Both forms of ``scorer`` over the checkpoints of arms that differ in the seed.

    The origin of each arm is its own step 0; changes are in ``unit``, the SD of the scorer.
    """
    if unit is None:
        return CurveFits(why=NO_SCORE_UNIT)
    curves: dict[int, KlCurve] = {}
    left_out = 0
    for arm in arms:
        points = sort_checkpoints(arm)
        if not points or points[0].step != 0:
            left_out += len(points)
            continue
        curve = []
        for point in points[1:]:
            moved = change_by_prompt(points[0], point, [scorer])
            if point.distance > 0 and math.isfinite(point.distance) and moved:
                column = {prompt: by / unit for prompt, (by,) in moved.items()}
                curve.append((point.distance, column))
            else:
                left_out += 1
        if curve:
            curves[arm.seed] = curve
    return msgspec.structs.replace(fit_curves(curves, resampling), at_zero=left_out)


def fit_curves(curves: Mapping[int, KlCurve], resampling: Resampling) -> CurveFits:
    """Both forms through the origin, linear in α and β: ordinary least squares over all points.

    R(d) − R(0) = d(α − β·d) for best-of-n and d(α − β·log d) for reinforcement learning (Gao et al.
    2022, arXiv 2210.10760, d = √KL). Maxima are at α/2β and e^(α/β − 1) if β > 0. Intervals
    resample seeds and prompts, those of α and β know of few seeds by t as well, those of a peak do
    not and are rough; distances are taken as they are. Points of one curve depend on each
    other, so R² says how well a form follows the curve, not how sure it is.
    """
    distances = {seed: [d for d, _ in curve] for seed, curve in curves.items()}
    flat = [d for of in distances.values() for d in of]
    few = CurveFits(points=len(flat), seeds=len(curves), largest=max(flat, default=None))
    if len(flat) < _MIN_DISTANCES:
        return msgspec.structs.replace(few, why=_TOO_FEW_DISTANCES)
    bases = {
        form: {seed: [_basis(form, d) for d in of] for seed, of in distances.items()}
        for form in _FORMS
    }

    def statistic(seeds: Sequence[tuple[int, ColumnMeans]]) -> list[float | None]:
        found: list[float | None] = []
        for form in _FORMS:
            pair = _least_squares([(bases[form][seed], means) for seed, means in seeds])
            found += [None] * 3 if pair is None else [*pair, _find_peak(form, *pair)]
        return found

    columns = {seed: [column for _, column in curve] for seed, curve in curves.items()}
    numbers = resampling.averages(columns, statistic, _LINEAR)
    if numbers[0].value is None and numbers[3].value is None:
        return msgspec.structs.replace(few, why=_EQUAL_DISTANCES)
    seen = [
        (d, math.fsum(column.values()) / len(column))
        for curve in curves.values()
        for d, column in curve
    ]
    forms = {
        form: _fit_form(form, numbers[3 * place : 3 * place + 3], seen)
        for place, form in enumerate(_FORMS)
    }
    return msgspec.structs.replace(few, forms=forms, better=_better_form(forms))


def _basis(form: str, d: float) -> tuple[float, float]:
    return d, -d * (d if form == "bon" else math.log(d))


def _least_squares(
    seeds: Sequence[tuple[Sequence[tuple[float, float]], ColumnMeans]],
) -> tuple[float, float] | None:
    """α and β of y = α·f + β·g by the normal equations; ``None`` where f and g are parallel."""
    ff = fg = gg = fy = gy = 0.0
    for basis, means in seeds:
        for (f, g), y in zip(basis, means, strict=True):
            if y is not None:
                ff += f * f
                fg += f * g
                gg += g * g
                fy += f * y
                gy += g * y
    determinant = ff * gg - fg * fg
    if determinant <= _SINGULAR * ff * gg:
        return None
    return (gg * fy - fg * gy) / determinant, (ff * gy - fg * fy) / determinant


def _find_peak(form: str, alpha: float, beta: float) -> float | None:
    if beta <= 0 or (form == "bon" and alpha <= 0):
        return None
    if form == "bon":
        return alpha / (2 * beta)
    exponent = alpha / beta - 1
    return math.exp(exponent) if exponent < 700 else None


def _fit_form(
    form: str, numbers: Sequence[Estimate], seen: Sequence[tuple[float, float]]
) -> FittedForm:
    alpha, beta, peak = numbers
    if alpha.value is None or beta.value is None:
        missing = Estimate(why=_EQUAL_DISTANCES)
        return FittedForm(
            alpha=missing, beta=missing, r2=None, peak=missing, extrapolated=None, at_peak=None
        )
    at_peak = None
    if peak.value is None:
        why = "β is not above 0: no maximum" if beta.value <= 0 else "it falls from the start"
        peak = Estimate(why=why if form == "bon" or beta.value <= 0 else "beyond all numbers")
    else:
        at_peak = _form_value(form, peak.value, alpha.value, beta.value)
    return FittedForm(
        alpha=alpha,
        beta=beta,
        r2=_r_squared([(_form_value(form, d, alpha.value, beta.value), y) for d, y in seen]),
        peak=peak,
        extrapolated=None if peak.value is None else peak.value > max(d for d, _ in seen),
        at_peak=at_peak if at_peak is not None and math.isfinite(at_peak) else None,
    )


def _form_value(form: str, d: float, alpha: float, beta: float) -> float:
    f, g = _basis(form, d)
    return alpha * f + beta * g


def _r_squared(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Of (fitted, seen); ``None`` where what was seen does not vary."""
    middle = math.fsum(y for _, y in pairs) / len(pairs)
    around = math.fsum((y - middle) ** 2 for _, y in pairs)
    if around <= 1e-24 * math.fsum(y * y for _, y in pairs) or around == 0:
        return None
    return 1 - math.fsum((y - fitted) ** 2 for fitted, y in pairs) / around


def _better_form(forms: Mapping[str, FittedForm]) -> str | None:
    r2 = {name: form.r2 for name, form in forms.items() if form.r2 is not None}
    if len(r2) < len(_FORMS) or r2["bon"] == r2["rl"]:
        return None
    return max(r2, key=lambda name: r2[name])


_MIN_PROMPT_SHARE = 0.5
_Pair = tuple[float, float]


class BestOfRow(msgspec.Struct, frozen=True, kw_only=True):
    """The best of ``n`` by a judge. ``kl``: log n − (n − 1)/n nats; ``distance``: its root.

    ``proxy`` and ``gold``: change from one answer, in SDs of the first policy's answers; ``gap``:
    the one less the other. ``proxy_level``, ``gold_level``: the scores themselves. ``prompts``:
    how many have so many answers.
    """

    n: int
    kl: float
    distance: float
    proxy: Estimate
    gold: Estimate
    gap: Estimate
    proxy_level: float
    gold_level: float
    prompts: int


class BestOfCurve(msgspec.Struct, frozen=True, kw_only=True):
    """Best-of-n by ``judge``. ``fits``: of ``gold`` and ``proxy`` over √KL, ``None`` without curve.

    ``answers``: how many there are; ``missing``: those that judge or gold has not scored, which
    are left out; ``prompts_left_out``: prompts without an answer that both have scored.
    """

    judge: str
    seeds: list[int]
    answers: int
    missing: int
    prompts_left_out: int
    rows: list[BestOfRow]
    fits: dict[str, CurveFits]
    why: str = ""


def best_of_n_kl(n: int) -> float:
    """KL of best-of-n from the policy, nats: log n − (n − 1)/n (Stiennon et al. 2020, app. G.3).

    Exact where no two answers are the same or tie, else the most it can be (Beirami et al. 2024,
    arXiv 2401.01879).

    >>> round(best_of_n_kl(16), 3)
    1.835
    """
    return math.log(n) - (n - 1) / n


def expected_best(pairs: Sequence[_Pair], sizes: Sequence[int]) -> list[_Pair]:
    """Mean proxy and gold of the best of n by proxy, over all subsets of n of the answers.

    ``pairs``: (proxy, gold) of N answers to one prompt; each of ``sizes`` is 1 … N. The answer of
    rank i from below is the best of C(i − 1, n − 1) of the C(N, n) subsets (Nakano et al. 2021,
    WebGPT, app. I; Gao et al. 2022); of equals each is taken equally often. O(N log N) in all.

    >>> expected_best([(1.0, 0.0), (2.0, 1.0), (3.0, 0.0)], [1, 2, 3])[1]
    (2.6666666666666665, 0.3333333333333333)
    """
    levels = snap_ties([proxy for proxy, _ in pairs])
    snapped = sorted(zip(levels, (gold for _, gold in pairs), strict=True), key=itemgetter(0))
    golds, proxies = [], []
    for proxy, tied in groupby(snapped, key=itemgetter(0)):
        block = [gold for _, gold in tied]
        proxies += [proxy] * len(block)
        golds += [math.fsum(block) / len(block)] * len(block)
    found = []
    for n in sizes:
        weights = _weights(len(pairs), n)
        found.append((_dot(weights, proxies[n - 1 :]), _dot(weights, golds[n - 1 :])))
    return found


def _dot(x: Sequence[float], y: Sequence[float]) -> float:
    return math.fsum(map(mul, x, y))


@lru_cache(maxsize=64)
def _weights(count: int, n: int) -> list[float]:
    """C(i − 1, n − 1)/C(count, n) for the ranks i = n … count, from the top down by recurrence."""
    weight = n / count
    found = [weight]
    for rank in range(count, n, -1):
        weight *= (rank - n) / (rank - 1)
        found.append(weight)
    found.reverse()
    return found


def best_of_curves(
    result: StudyResult, units: Mapping[str, float], resampling: Resampling
) -> list[BestOfCurve]:
    """The curve of each judge that scored the first policies' many answers.

    For n = 1, 2, 4, … as far as half of the prompts have so many answers that judge and gold have
    both scored; a change from n = 1 is over the same prompts. Without answers: an empty list.
    """
    if not result.best_of:
        return []
    return [
        _best_of_curve(result, judge, units, resampling)
        for judge in list_scorers(result)
        if judge != result.gold
    ]


def _best_of_curve(
    result: StudyResult, judge: str, units: Mapping[str, float], resampling: Resampling
) -> BestOfCurve:
    pairs = {one.seed: _pairs(one, judge, result.gold) for one in result.best_of}
    answers = sum(len(one.prompts) for one in result.best_of)
    used = sum(len(of) for prompts in pairs.values() for of in prompts.values())
    asked = sum(len(set(one.prompts)) for one in result.best_of)
    sizes = _sizes([len(of) for prompts in pairs.values() for of in prompts.values()])
    seeds = {seed: _columns(prompts, sizes) for seed, prompts in pairs.items() if prompts}
    why = "" if len(sizes) > 1 else "fewer than two answers a prompt"
    if judge not in units or result.gold not in units:
        why = why or NO_SCORE_UNIT
    scale = (units.get(judge), units.get(result.gold))
    rows = [_best_of_row(seeds, place, n, scale, resampling) for place, n in enumerate(sizes)]
    return BestOfCurve(
        judge=judge,
        seeds=sorted(seeds),
        answers=answers,
        missing=answers - used,
        prompts_left_out=asked - sum(map(len, pairs.values())),
        rows=rows,
        fits={} if why else _fit_curve(seeds, sizes, scale, resampling),
        why=why if used else NO_VALUE,
    )


def _pairs(one: BestOfScores, judge: str, gold: str) -> dict[str, list[_Pair]]:
    """By prompt, the answers that both have scored."""
    found: dict[str, list[_Pair]] = {}
    if judge in one.scores and gold in one.scores:
        columns = one.scores[judge].values, one.scores[gold].values
        for prompt, proxy, right in zip(one.prompts, *columns, strict=True):
            if is_known(proxy) and is_known(right):
                found.setdefault(prompt, []).append((proxy, right))
    return found


def _sizes(counts: Sequence[int]) -> list[int]:
    """1, 2, 4, …: as many as half of the prompts have answers."""
    if not counts:
        return []
    reach = sorted(counts, reverse=True)[math.ceil(_MIN_PROMPT_SHARE * len(counts)) - 1]
    return [1 << power for power in range(reach.bit_length())]


_Curves = Mapping[int, Sequence[Mapping[str, tuple[_Pair, _Pair]]]]
"""By seed and size: by prompt, the best of n and the mean answer of the same prompt."""


def _columns(
    prompts: Mapping[str, Sequence[_Pair]], sizes: Sequence[int]
) -> list[dict[str, tuple[_Pair, _Pair]]]:
    found: list[dict[str, tuple[_Pair, _Pair]]] = [{} for _ in sizes]
    for prompt, pairs in prompts.items():
        reached = [n for n in sizes if n <= len(pairs)]
        bests = expected_best(pairs, reached)
        for column, best in zip(found, bests, strict=False):
            column[prompt] = (best, bests[0])
    return found


def _best_of_row(
    seeds: _Curves,
    place: int,
    n: int,
    scale: tuple[float | None, float | None],
    resampling: Resampling,
) -> BestOfRow:
    here = {seed: of[place] for seed, of in seeds.items()}
    at_one = Estimate(0.0, why="the origin")
    changes = [at_one] * 3
    if n > 1:
        changes = resampling.means({seed: _changes(of, scale) for seed, of in here.items()}, 3)
        changes = [msgspec.structs.replace(one, why=NO_SCORE_UNIT) if one.value is None else one
                   for one in changes]  # fmt: skip
    levels = [
        [math.fsum(best[side] for best, _ in of.values()) / len(of) for of in here.values() if of]
        for side in (0, 1)
    ]
    proxy, gold = (math.fsum(of) / len(of) for of in levels)
    return BestOfRow(
        n=n,
        kl=best_of_n_kl(n),
        distance=math.sqrt(best_of_n_kl(n)),
        proxy=changes[0],
        gold=changes[1],
        gap=changes[2],
        proxy_level=proxy,
        gold_level=gold,
        prompts=sum(map(len, here.values())),
    )


def _changes(
    column: Mapping[str, tuple[_Pair, _Pair]], scale: tuple[float | None, float | None]
) -> list[PromptColumn]:
    """Proxy, gold, and the one less the other, as changes in SDs; empty without a unit."""
    found: list[PromptColumn] = []
    for side, unit in enumerate(scale):
        found.append(
            {}
            if unit is None
            else {prompt: (best[side] - one[side]) / unit for prompt, (best, one) in column.items()}
        )
    proxy, gold = found
    return [proxy, gold, {prompt: proxy[prompt] - gold[prompt] for prompt in proxy if gold}]


def _fit_curve(
    seeds: _Curves,
    sizes: Sequence[int],
    scale: tuple[float | None, float | None],
    resampling: Resampling,
) -> dict[str, CurveFits]:
    distances = [math.sqrt(best_of_n_kl(n)) for n in sizes[1:]]
    return {
        target: fit_curves(
            {
                seed: [
                    (distance, _changes(column, scale)[side])
                    for distance, column in zip(distances, of[1:], strict=True)
                    if column
                ]
                for seed, of in seeds.items()
            },
            resampling,
        )
        for side, target in ((1, "gold"), (0, "proxy"))
    }
