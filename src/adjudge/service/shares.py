"""Fair shares of the queue: one queue for each client, emptied by weighted round-robin.

A client is who shows a key of its own, else a run (``metadata.run_id``). A turn costs a client
``1 / weight`` of virtual time, and the client that has used the least is next (start-time fair
queueing, Goyal, Vin and Cheng 1996), so that a client that floods waits for itself alone.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from operator import attrgetter
from typing import Generic, TypeVar

_T = TypeVar("_T")

OTHER = "other"
"""The client of requests without a key or run of their own, and of runs beyond the limit."""
_MAX_CLIENTS = 64
"""Clients at a time; more would let whoever invents runs grow the queue without end."""


class Share(Generic[_T]):
    """One client's queue: what waits, oldest first, and how long it waited."""

    __slots__ = ("begun", "items", "name", "used", "wait_s", "waiting", "weight")

    def __init__(self, name: str, weight: float) -> None:
        self.name = name
        self.weight = weight
        self.items: OrderedDict[_T, None] = OrderedDict()
        self.waiting = 0
        """Judgements that wait."""
        self.begun = 0
        """Judgements that were begun."""
        self.wait_s = 0.0
        """How long those waited, in all."""
        self.used = 0.0


_get_used = attrgetter("used")


class FairQueue(Generic[_T]):
    """The queues of all clients; ``places`` is for all together, ``weights`` by client (else 1)."""

    def __init__(self, places: int, weights: Mapping[str, float] | None = None) -> None:
        self._places = places
        self._weights = weights or {}
        self._clock = 0.0
        self.waiting = 0
        """Judgements that wait, of all clients."""
        self.busy: dict[Share[_T], None] = {}
        """The clients that wait."""
        self.shares: dict[str, Share[_T]] = {}
        for name in self._weights:
            self.share(name)

    def __len__(self) -> int:
        return sum(len(share.items) for share in self.busy)

    def share(self, name: str) -> Share[_T]:
        """The queue of a client; idle runs make room for others."""
        name = name or OTHER
        if (found := self.shares.get(name)) is not None:
            return found
        if len(self.shares) >= _MAX_CLIENTS + len(self._weights) and name != OTHER:
            idle = (s for s in self.shares.values() if not s.items and s.name not in self._weights)
            if (gone := next(idle, None)) is None:
                return self.share(OTHER)
            del self.shares[gone.name]
        found = self.shares[name] = Share(name, self._weights.get(name, 1.0))
        return found

    def part(self, share: Share[_T]) -> float:
        """The part of all work that the client has now, beside those that wait."""
        others = sum(one.weight for one in self.busy if one is not share)
        return share.weight / (share.weight + others)

    def places(self, share: Share[_T]) -> int:
        """The places that are the client's, beside the clients that wait now."""
        return max(1, int(self._places * self.part(share)))

    def has_room(self, share: Share[_T], count: int) -> bool:
        """Whether ``count`` more of the client may wait: free places, or within its own.

        Not asked of a client of which nothing waits: a batch may be longer than the queue.
        """
        return self.waiting + count <= self._places or share.waiting + count <= self.places(share)

    def add(self, share: Share[_T], item: _T, count: int) -> None:
        """Queue an item of ``count`` judgements."""
        if not share.items:
            share.used = max(share.used, self._clock)
            self.busy[share] = None
        share.items[item] = None
        share.waiting += count
        self.waiting += count

    def next(self) -> Share[_T] | None:
        """The client whose turn it is; ``None`` where nothing waits."""
        if len(self.busy) > 1:
            return min(self.busy, key=_get_used)
        for share in self.busy:
            return share
        return None

    def take(self, share: Share[_T], item: _T, count: int, waited_s: float, whole: bool) -> None:
        """``count`` judgements of an item were begun; ``whole``: these were its last."""
        self._clock = share.used
        share.used += count / share.weight
        share.begun += count
        share.wait_s += count * waited_s
        share.waiting -= count
        self.waiting -= count
        if whole:
            self._remove(share, item)

    def drop(self, share: Share[_T], item: _T, count: int) -> None:
        """Nobody waits for an item any more, of which ``count`` judgements were left."""
        if item in share.items:
            share.waiting -= count
            self.waiting -= count
            self._remove(share, item)

    def _remove(self, share: Share[_T], item: _T) -> None:
        del share.items[item]
        if not share.items:
            del self.busy[share]


class FairSlots:
    """So many at once; those that wait for a slot get one by turns of their clients."""

    def __init__(self, slots: int) -> None:
        self._free = slots
        self._queue: FairQueue[asyncio.Future[None]] = FairQueue(slots)

    @asynccontextmanager
    async def hold(self, name: str) -> AsyncIterator[None]:
        """Wait for a slot of the client ``name``, and hold it."""
        if self._free:
            self._free -= 1
        else:
            share, turn = self._queue.share(name), asyncio.get_running_loop().create_future()
            self._queue.add(share, turn, 1)
            try:
                await turn
            except asyncio.CancelledError:
                self._queue.drop(share, turn, 1)
                if not turn.cancelled():  # the slot came at the same moment
                    self._release()
                raise
        try:
            yield
        finally:
            self._release()

    def _release(self) -> None:
        while (share := self._queue.next()) is not None:
            turn = next(iter(share.items))
            self._queue.take(share, turn, 1, 0.0, whole=True)
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1
