"""Best-of-n by a judge: what it comes to by the judge and by the gold, for every n at once."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import groupby
from operator import itemgetter, mul

import msgspec

from adjudge.rewards.groups import snap_ties
from adjudge.studies.matrix.analysis.bootstrap import NO_VALUE, Column, Estimate, Resampling
from adjudge.studies.matrix.analysis.fits import Fits, fit_curves
from adjudge.studies.matrix.analysis.scores import NO_UNIT, known, scorers_of
from adjudge.studies.matrix.results import BestOf, StudyResult

__all__ = ["BestOfCurve", "BestOfRow", "best_of", "expected_best", "kl_of"]

_ENOUGH = 0.5
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
    fits: dict[str, Fits]
    why: str = ""


def kl_of(n: int) -> float:
    """KL of best-of-n from the policy, nats: log n − (n − 1)/n (Stiennon et al. 2020, app. G.3).

    Exact where no two answers are the same or tie, else the most it can be (Beirami et al. 2024,
    arXiv 2401.01879).

    >>> round(kl_of(16), 3)
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


def best_of(
    result: StudyResult, units: Mapping[str, float], resampling: Resampling
) -> list[BestOfCurve]:
    """The curve of each judge that scored the first policies' many answers.

    For n = 1, 2, 4, … as far as half of the prompts have so many answers that judge and gold have
    both scored; a change from n = 1 is over the same prompts. Without answers: an empty list.
    """
    if not result.best_of:
        return []
    return [
        _curve(result, judge, units, resampling)
        for judge in scorers_of(result)
        if judge != result.gold
    ]


def _curve(
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
        why = why or NO_UNIT
    scale = (units.get(judge), units.get(result.gold))
    rows = [_row(seeds, place, n, scale, resampling) for place, n in enumerate(sizes)]
    return BestOfCurve(
        judge=judge,
        seeds=sorted(seeds),
        answers=answers,
        missing=answers - used,
        prompts_left_out=asked - sum(map(len, pairs.values())),
        rows=rows,
        fits={} if why else _fits(seeds, sizes, scale, resampling),
        why=why if used else NO_VALUE,
    )


def _pairs(one: BestOf, judge: str, gold: str) -> dict[str, list[_Pair]]:
    """By prompt, the answers that both have scored."""
    found: dict[str, list[_Pair]] = {}
    if judge in one.scores and gold in one.scores:
        columns = one.scores[judge].values, one.scores[gold].values
        for prompt, proxy, right in zip(one.prompts, *columns, strict=True):
            if known(proxy) and known(right):
                found.setdefault(prompt, []).append((proxy, right))
    return found


def _sizes(counts: Sequence[int]) -> list[int]:
    """1, 2, 4, …: as many as half of the prompts have answers."""
    if not counts:
        return []
    reach = sorted(counts, reverse=True)[math.ceil(_ENOUGH * len(counts)) - 1]
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


def _row(
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
        changes = [msgspec.structs.replace(one, why=NO_UNIT) if one.value is None else one
                   for one in changes]  # fmt: skip
    levels = [
        [math.fsum(best[side] for best, _ in of.values()) / len(of) for of in here.values() if of]
        for side in (0, 1)
    ]
    proxy, gold = (math.fsum(of) / len(of) for of in levels)
    return BestOfRow(
        n=n,
        kl=kl_of(n),
        distance=math.sqrt(kl_of(n)),
        proxy=changes[0],
        gold=changes[1],
        gap=changes[2],
        proxy_level=proxy,
        gold_level=gold,
        prompts=sum(map(len, here.values())),
    )


def _changes(
    column: Mapping[str, tuple[_Pair, _Pair]], scale: tuple[float | None, float | None]
) -> list[Column]:
    """Proxy, gold, and the one less the other, as changes in SDs; empty without a unit."""
    found: list[Column] = []
    for side, unit in enumerate(scale):
        found.append(
            {}
            if unit is None
            else {prompt: (best[side] - one[side]) / unit for prompt, (best, one) in column.items()}
        )
    proxy, gold = found
    return [proxy, gold, {prompt: proxy[prompt] - gold[prompt] for prompt in proxy if gold}]


def _fits(
    seeds: _Curves,
    sizes: Sequence[int],
    scale: tuple[float | None, float | None],
    resampling: Resampling,
) -> dict[str, Fits]:
    distances = [math.sqrt(kl_of(n)) for n in sizes[1:]]
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
