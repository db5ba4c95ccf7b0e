"""After a failure: does the same call stand a chance, and when."""

from __future__ import annotations

import random

from adjudge.errors import ErrorKind

__all__ = ["RETRYABLE", "UNHEALTHY", "full_jitter"]

UNHEALTHY = frozenset({ErrorKind.SERVER_ERROR, ErrorKind.CONNECTION, ErrorKind.TRUNCATED})
"""Failures of the server or the line; all others, 429 included, show a server that answers."""

RETRYABLE = UNHEALTHY | {ErrorKind.RATE_LIMITED}
"""Kinds that the same call may survive. The others (a refused key, a bad request, no money,
a refusal) would come back the same, and cost again."""


def full_jitter(failures: int, base_s: float, cap_s: float, rng: random.Random) -> float:
    """Seconds to wait after the ``failures``-th failure: U(0, min(cap, base · 2^(failures − 1))).

    Source: "full jitter" of the AWS Architecture Blog, "Exponential Backoff And Jitter" (2015).
    """
    return rng.uniform(0.0, min(cap_s, base_s * 2.0 ** (failures - 1)))
