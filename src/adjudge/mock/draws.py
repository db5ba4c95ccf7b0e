"""Reproducible chance: draw *k* of request *n* depends on the seed, *n* and *k* alone.

So a fault added to the command line moves no other draw, and request 17 meets the same fate in
every run with one seed, however the requests before it overlapped.
"""

from __future__ import annotations

from enum import IntEnum

__all__ = ["Stream", "uniform"]

_MASK = (1 << 64) - 1


class Stream(IntEnum):
    """What a draw is for; the members of a family count on from the number given here."""

    FAULT = 0
    VARIANT = 1
    MODIFIER = 16
    LATENCY = 64


def _mixed(z: int) -> int:
    """The finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014)."""
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def uniform(seed: int, number: int, stream: int) -> float:
    """A number strictly between 0 and 1 for draw ``stream`` of request ``number``."""
    z = _mixed((seed + number * 0x9E3779B97F4A7C15) & _MASK)
    z = _mixed((z + stream * 0xD1B54A32D192ED03) & _MASK)
    return ((z >> 12) + 0.5) * 2.0**-52
