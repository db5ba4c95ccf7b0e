"""One call on its way: the question, and every send of it."""

from __future__ import annotations

import asyncio
from enum import Enum
from typing import Any

import msgspec

from adjudge.errors import GradingFailure
from adjudge.judges.base import ChatCall, HttpRequest, Reply, Wire
from adjudge.judges.budget import Price
from adjudge.judges.hedging import LatencyDigest
from adjudge.judges.replicas import Replica

__all__ = ["Flight", "Send", "Why", "shared"]


class Why(Enum):
    """Why a send was cancelled."""

    LOST = "another send of the same call was first"
    LATE = "it was silent for too long"
    LEFT = "nobody waits for the call any more"


class Flight(msgspec.Struct, eq=False, kw_only=True):
    """One call from being asked to its one outcome; ``waiters`` are all who get it.

    ``deadline`` and ``asked`` are times of the sweeper's clock. ``first_sends`` counts sends that
    are not hedges, ``late`` how often it was sent again for silence.
    """

    call: ChatCall
    wire: Wire
    request: HttpRequest
    group: str | None
    price: Price | None
    cache_key: str | None
    join_key: tuple[int, str, bytes] | None
    digest: LatencyDigest
    waiters: list[asyncio.Future[Reply]]
    asked: float = 0.0
    deadline: float = 0.0
    sends: list[Send] = []
    first_sends: int = 0
    hedges: int = 0
    late: int = 0
    hedge_queued: bool = False
    given_up: bool = False
    """A send of it was cancelled for silence."""
    was_silent: bool = False
    """Why it is sent again: nothing came (else a send failed)."""
    done: bool = False
    failure: GradingFailure | None = None
    avoid: Replica | None = None
    estimate: tuple[float, int] | None = None
    """Reservation of one send in dollars, and in tokens; worked out when needed."""


class Send(msgspec.Struct, eq=False):
    """One HTTP request of a flight. ``heard`` is when it was sent, or last gave a sign of life."""

    flight: Flight
    replica: Replica
    hedge: bool
    probe: bool
    sent: float
    heard: float
    running: bool = False
    streaming: bool = False
    """Its first chunk has come."""
    why: Why | None = None
    task: asyncio.Task[Any] | None = None


def shared(reply: Reply) -> Reply:
    """``reply`` for those who asked the same at the same time."""
    provenance = msgspec.structs.replace(reply.provenance, source="shared")
    return msgspec.structs.replace(reply, provenance=provenance)
