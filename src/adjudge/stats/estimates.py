"""A number with its interval: of means and shares by formula; and exact tests.

numpy and scipy come with the extra ``full`` and are imported at their first use: a command shows
its help without them, and says in one line what to install when it is run. What grading loads never
imports this module; a contract of the import linter holds that.

Source of the distributions: :mod:`scipy.special`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from adjudge.errors import ConfigError
from adjudge.installation import install_command
from adjudge.stats import Estimate, mean_and_std

CONFIDENCE_LEVEL = 0.95
NOTHING_VARIED = "nothing varied"
NO_VALUE = "no value"
EQUALITY_TOLERANCE = 1e-10
"""Numbers that differ by a smaller share of their size differ by rounding."""

ItemColumns = tuple[float, ...]
"""What one item contributes: the columns of which a statistic needs the sums."""


def t_quantile(p: float, freedom: float) -> float:
    """The ``p`` quantile of Student's t with ``freedom`` > 0 degrees of freedom.

    >>> round(t_quantile(0.975, 2), 4)
    4.3027
    """
    return float(special.stdtrit(freedom, p))


def t_tail(t: float, freedom: float) -> float:
    """P(T > t) of Student's t.

    >>> round(2 * t_tail(2.0, 10), 5)
    0.07339
    """
    return float(special.stdtr(freedom, -t))


def normal_quantile(p: float) -> float:
    """The ``p`` quantile of the standard normal distribution."""
    return float(special.ndtri(p))


def normal_tail(z: float) -> float:
    """P(Z > z) of the standard normal distribution."""
    return float(special.ndtr(-z))


def binomial_two_sided(successes: int, n: int) -> float:
    """Exact two-sided p of ``successes`` in ``n`` at probability ½; 1 for ``n`` = 0."""
    return min(1.0, 2 * float(special.bdtr(min(successes, n - successes), n, 0.5)))


def t_interval(values: Sequence[float], *, alone: str = "one seed") -> Estimate:
    """The mean of independent numbers with the interval of Student's t.

    Exact for normal differences between them, and wide for few: ±2.5 SD with three. ``alone``: what
    to say where there is one.
    """
    n = len(values)
    if not n:
        return Estimate(why=NO_VALUE)
    middle = math.fsum(values) / n
    if n < 2:
        return Estimate(middle, why=alone)
    _, spread = mean_and_std(values)
    if spread <= EQUALITY_TOLERANCE * abs(middle):
        return Estimate(middle, why=NOTHING_VARIED)
    half = t_quantile((1 + CONFIDENCE_LEVEL) / 2, n - 1) * spread / math.sqrt(n)
    return Estimate(middle, middle - half, middle + half)


def unseen_share_bound(n: int, level: float) -> float:
    """The largest share of items that may behave otherwise when none of ``n`` did.

    The upper Clopper-Pearson bound of 0 in ``n``: 1 − (α/2)^(1/n).

    >>> round(unseen_share_bound(40, 0.95), 3)
    0.088
    """
    return 1.0 - math.pow((1.0 - level) / 2, 1.0 / n)


def estimate_share(rows: Sequence[ItemColumns], *, level: float = CONFIDENCE_LEVEL) -> Estimate:
    """Σ hits / Σ trials with Wilson's interval, rows being ``(hits, trials)`` of an item each.

    Trials of one item are no independent trials: the interval is that of as many trials as have
    the variance that the items show (the design effect), between the number of items and that of
    trials, with the quantile of Student's t of items − 1. Where fewer than three items have the
    rarer outcome, nothing says how alike their trials are, and items are counted.

    >>> estimate_share([(0, 1)] * 40).high < 0.09
    True
    >>> estimate_share([(8, 8)] * 10).low < 0.75
    True
    """
    hits, trials = (math.fsum(row[place] for row in rows) for place in (0, 1))
    if trials <= 0:
        return Estimate(why=NO_VALUE)
    p = hits / trials
    n = _effective_trials(rows, p, trials)
    upper = (1 + level) / 2
    z = normal_quantile(upper) if n == trials else t_quantile(upper, max(1, len(rows) - 1))
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    low = centre - half if hits else 0.0
    high = centre + half if hits < trials else 1.0
    return Estimate(p, low, high)


_TELLING_ITEMS = 3
"""Items with the rarer outcome from which the variance between items is estimated."""


def _effective_trials(rows: Sequence[ItemColumns], p: float, trials: float) -> float:
    """How many independent trials have the variance of the share that the items show."""
    items = float(sum(of > 0 for _, of in rows))
    rarer = min(sum(hits > 0 for hits, _ in rows), sum(hits < of for hits, of in rows))
    if rarer < _TELLING_ITEMS or items < 2:
        return items
    off = math.fsum((hits - p * of) ** 2 for hits, of in rows)
    variance = off * items / (items - 1) / trials**2
    if variance <= 0:
        return trials
    return min(trials, max(items, p * (1 - p) / variance))


def estimate_largest_share(
    parts: Sequence[Sequence[ItemColumns]], *, level: float = CONFIDENCE_LEVEL
) -> Estimate:
    """The largest of several shares, with an interval that allows for having looked for it.

    The largest of several noisy shares is too large on average. Its lower end is the largest of
    the parts' lower ends at the level 1 − (1 − level)/k of k parts (Bonferroni), its upper end the
    largest upper end: the true maximum lies above all of the true shares.
    """
    found = [estimate_share(rows, level=level) for rows in parts if rows]
    values = [one.value for one in found if one.value is not None]
    if not values:
        return Estimate(why=NO_VALUE)
    strict = 1 - (1 - level) / len(parts)
    lows = [estimate_share(rows, level=strict).low for rows in parts if rows]
    highs = [one.high for one in found]
    return Estimate(
        max(values),
        max(low for low in lows if low is not None),
        max(high for high in highs if high is not None),
    )


class LazyLibrary:
    """A module that is imported when a name of it is first asked for.

    Raises :class:`~adjudge.errors.ConfigError` if it is not installed.
    """

    def __init__(self, module: str) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        """The module's own attribute, kept."""
        try:
            value = getattr(import_module(self._module), name)
        except ModuleNotFoundError as error:
            package = str(error.name).partition(".")[0]
            raise ConfigError(
                f"intervals and comparisons need {package}, which is not installed. "
                f"Run: {install_command('full')}"
            ) from None
        setattr(self, name, value)
        return value


np: Any = LazyLibrary("numpy")
special: Any = LazyLibrary("scipy.special")
optimize: Any = LazyLibrary("scipy.optimize")


def require_stats() -> None:
    """Raise :class:`~adjudge.errors.ConfigError` without numpy or scipy; ask before judges do."""
    _ = np.float64, special.ndtri
