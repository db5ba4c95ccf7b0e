"""Several base URLs that serve the same model: which one gets a call."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence

from adjudge.judges.breaker import Breaker

__all__ = ["Replica", "pick"]

SPILL_FACTOR = 2
SPILL_SLACK = 8


class Replica:
    """One base URL: what is in flight there, and whether it works."""

    __slots__ = ("breaker", "in_flight", "sends", "url")

    def __init__(self, url: str, breaker: Breaker) -> None:
        self.url = url
        self.breaker = breaker
        self.in_flight = 0
        self.sends = 0


def pick(
    replicas: Sequence[Replica], now: float, group: str | None, avoid: Replica | None
) -> Replica | None:
    """The replica for a call that is sent now; ``None`` while all are ejected.

    One that is due for its probe goes first: otherwise it would never come back. ``avoid`` is
    where this call failed or hangs, taken only when there is nothing else. Calls of a ``group``
    go to one replica (rendezvous hashing, so that a lost replica moves only its own groups),
    unless it has more than twice the least busy one's calls, and 8. The rest goes to the least
    busy.
    """
    if len(replicas) == 1:
        return replicas[0] if replicas[0].breaker.admits(now) else None
    able = [replica for replica in replicas if replica.breaker.admits(now)]
    if len(able) > 1 and avoid in able:
        able.remove(avoid)
    for replica in able:
        if not replica.breaker.closed:
            return replica
    if not able:
        return None
    idlest = min(able, key=_load)
    if group is None:
        return idlest
    home = max(able, key=lambda replica: _weight(group, replica.url))
    spill = home.in_flight > SPILL_FACTOR * idlest.in_flight + SPILL_SLACK
    return idlest if spill else home


def _load(replica: Replica) -> tuple[int, int]:
    return replica.in_flight, replica.sends


@functools.lru_cache(maxsize=16_384)
def _weight(group: str, url: str) -> bytes:
    """Python's own hash differs between processes; the ranks of one run should agree."""
    return hashlib.blake2b(f"{url}\n{group}".encode(errors="replace"), digest_size=8).digest()
