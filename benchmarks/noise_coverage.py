"""How often does the interval of a judge's noise share hold the share? Simulated judges.

Scores of groups of rollouts, drawn 2 or 4 times, from judges whose noise share is known:

- ``normal``: signal and noise are normal, everywhere the same;
- ``1 to 5``: the same, rounded to a scale with ends, which every group uses in another place;
- ``verdicts``: 0 or 1, with a chance of 1 that is each rollout's own;
- ``uneven``: normal, with variances that differ between rollouts and groups (a standard deviation
  of 0.5 of each of their logarithms); ``very uneven``: of 1, so that few groups have most of it.

For each kind, number of groups, size, draws and share: how often the 95 % interval holds the share
(before it is cut to [0, 1]), how wide it is, and how often no draw differed from another, so that
there is but an upper bound; these runs count, too. In some cells a tenth of the draws is missing.

    python benchmarks/noise_coverage.py --runs 2000

The last lines count the cells outside of 93-97 % and name them. ``--quick`` is a part of the cells.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations, product
from typing import Any

import numpy as np

from adjudge.stats.noise import noise_share, share_interval

KINDS = ("normal", "1 to 5", "verdicts", "uneven", "very uneven")
SHARES = (0.05, 0.3, 0.7, 1.0)
GROUPS = (8, 32, 200)
TABLES = ((4, 2), (8, 2), (16, 2), (4, 4), (8, 4), (16, 4))
_CHUNK_NUMBERS = 4_000_000
_TRUTH_GROUPS = 150_000
_UNEVEN = {"uneven": 0.5, "very uneven": 1.0}


@dataclass(frozen=True)
class Cell:
    """One kind of judge on one shape of run."""

    kind: str
    groups: int
    size: int
    draws: int
    share: float
    missing: float = 0.0

    def __str__(self) -> str:
        lost = f", {self.missing:.0%} missing" if self.missing else ""
        return f"{self.kind}, {self.groups} x {self.size}, {self.draws} draws, {self.share}{lost}"


def draw_scores(cell: Cell, runs: int, rng: np.random.Generator, latent: float) -> np.ndarray:
    """Scores of ``runs`` x groups x size x draws; ``latent``: the share before any rounding."""
    shape = (runs, cell.groups, cell.size)
    if cell.kind == "verdicts":
        centre = rng.beta(4, 4, size=(*shape[:2], 1))
        if latent < 1:
            mass = latent / (1 - latent)
            chance = rng.beta(np.maximum(centre * mass, 1e-9), (1 - centre) * mass, size=shape)
        else:
            chance = np.broadcast_to(centre, shape)
        return (rng.random(size=(*shape, cell.draws)) < chance[..., None]).astype(float)
    signal = rng.normal(size=(*shape, 1)) * np.sqrt(1 - latent)
    noise = rng.normal(size=(*shape, cell.draws)) * np.sqrt(latent)
    if spread := _UNEVEN.get(cell.kind):
        signal *= _factors(rng, (*shape[:2], 1, 1), spread)
        noise *= _factors(rng, (*shape[:2], 1, 1), spread) * _factors(rng, (*shape, 1), spread)
    if cell.kind == "1 to 5":
        level = 3 + 0.7 * rng.normal(size=(*shape[:2], 1, 1))
        return np.asarray(np.clip(np.round(level + 1.2 * (signal + noise)), 1, 5))
    return np.asarray(signal + noise)


def _factors(rng: np.random.Generator, shape: tuple[int, ...], spread: float) -> np.ndarray:
    """Standard deviations whose squares are 1 on average, with ``spread`` in their logarithm."""
    return np.exp((spread * rng.normal(size=shape) - spread**2 / 2) / 2)


def group_sums(scores: np.ndarray, present: np.ndarray) -> np.ndarray:
    """What ``noise_share`` adds up, for all runs at once: runs x groups x (noise, all, degrees)."""
    noise, total, degrees = (np.zeros(scores.shape[:2]) for _ in range(3))
    pairs = list(combinations(range(scores.shape[-1]), 2))
    for one, other in pairs:
        both = (present[..., one] & present[..., other]).astype(float)
        count = both.sum(-1)
        a, b = scores[..., one], scores[..., other]
        noise = noise + _squares(a - b, both, count) / 2
        total = total + (_squares(a, both, count) + _squares(b, both, count)) / 2
        degrees = degrees + np.maximum(count - 1, 0)
    return np.stack([noise, total, degrees], axis=-1) / len(pairs)


def _squares(values: np.ndarray, weights: np.ndarray, count: np.ndarray) -> np.ndarray:
    mean = (values * weights).sum(-1) / np.maximum(count, 1)
    squares: np.ndarray = (weights * (values - mean[..., None]) ** 2).sum(-1)
    return squares


def find_latent(cell: Cell) -> tuple[float, float]:
    """The share before rounding that gives the cell's share after it, and what that comes to."""
    if cell.kind != "1 to 5" or cell.share == 1:
        return cell.share, cell.share
    low, high = 0.0, 1.0
    for _ in range(14):
        middle = (low + high) / 2
        found = _large_share(cell, middle)
        low, high = (middle, high) if found < cell.share else (low, middle)
    return middle, found


def _large_share(cell: Cell, latent: float) -> float:
    large = Cell(cell.kind, _TRUTH_GROUPS, 4, 2, cell.share)
    scores = draw_scores(large, 1, np.random.default_rng(7), latent)
    noise, total, _ = group_sums(scores, np.ones(scores.shape, bool)).sum(axis=(0, 1))
    return float(noise / total)


def simulate(cell: Cell, runs: int, truth: tuple[float, float]) -> dict[str, Any]:
    """Coverage in per cent, mean width, and the runs in which no draw differed, in per cent."""
    seed = [KINDS.index(cell.kind), cell.groups, cell.size, cell.draws, round(100 * cell.share)]
    rng = np.random.default_rng([*seed, round(100 * cell.missing)])
    latent, share = truth
    chunk = max(1, _CHUNK_NUMBERS // (cell.groups * cell.size * cell.draws))
    held = level = none = 0
    widths: list[float] = []
    for start in range(0, runs, chunk):
        count = min(chunk, runs - start)
        scores = draw_scores(cell, count, rng, latent)
        present = rng.random(size=scores.shape) >= cell.missing
        sums = group_sums(scores, present)
        if start == 0:
            check_first(scores[0], present[0], sums[0])
        for one in sums:
            used = [tuple(row) for row in one[one[:, 2] > 0].tolist()]
            noise, total, _ = one.sum(axis=0)
            if noise <= 1e-12 * total:
                level += 1
                low, high = 0.0, 1 - 0.05 ** (1 / len(used))
            else:
                found = share_interval(used, cell.draws)
                none += found[0] is None
                low, high = 0.0 if found[0] is None else found[0], found[1] or 1.0
            held += low <= share <= high
            widths.append(min(1.0, high) - max(0.0, low))
    return {
        "held": 100 * held / runs,
        "width": float(np.mean(widths)),
        "level": 100 * level / runs,
        "none": 100 * none / runs,
    }


def check_first(scores: np.ndarray, present: np.ndarray, sums: np.ndarray) -> None:
    """What is simulated is what is shipped."""
    flat, there = scores.reshape(-1, scores.shape[-1]), present.reshape(-1, scores.shape[-1])
    draws = [
        [float(x) if ok else None for x, ok in zip(column, some, strict=True)]
        for column, some in zip(flat.T, there.T, strict=True)
    ]
    groups = np.repeat(np.arange(scores.shape[0]), scores.shape[1]).tolist()
    found = noise_share(draws, groups)
    noise, total, _ = sums.sum(axis=0)
    if total > 0 and found.value is not None and abs(found.value - min(1.0, noise / total)) > 1e-9:
        raise SystemExit(f"the simulation has {noise / total}, noise_share {found.value}")


def list_cells(*, quick: bool) -> Iterator[Cell]:
    """All cells, in the order of the table."""
    groups, tables = (GROUPS[:2], TABLES[1:5:3]) if quick else (GROUPS, TABLES)
    for kind, count, (size, draws), share in product(KINDS, groups, tables, SHARES):
        yield Cell(kind, count, size, draws, share)
        if size == 8:
            yield Cell(kind, count, size, draws, share, 0.1)


def main() -> None:
    """Print a line a cell; then those outside of 93-97 %."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    truths: dict[tuple[str, float], tuple[float, float]] = {}
    outside, count = [], 0
    for cell in list_cells(quick=options.quick):
        key = (cell.kind, cell.share)
        if key not in truths:
            truths[key] = find_latent(cell)
        found = simulate(cell, options.runs, truths[key])
        count += 1
        if not 93 <= found["held"] <= 97:
            outside.append((cell, found))
        level = f", {found['level']:.0f} % level" if found["level"] >= 1 else ""
        print(f"{cell!s:62} {found['held']:5.1f} %  width {found['width']:.2f}{level}", flush=True)
    print(f"\n{len(outside)} of {count} cells are outside of 93-97 %:")
    for cell, found in outside:
        print(f"  {found['held']:5.1f} %  {cell}")


if __name__ == "__main__":
    main()
