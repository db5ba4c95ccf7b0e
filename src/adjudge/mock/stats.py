"""What a mock provider has counted."""

from __future__ import annotations

from collections import Counter
from typing import Any

__all__ = ["Stats"]


class Stats:
    """Counts since the start.

    ``requests``: chat requests, all of them. ``replied``: sound replies sent to the end.
    ``refused``: by reason (``bad_request outage key rpm stream_only``). ``faults``: by name.
    ``cancelled``: requests whose client left before the reply had ended.
    """

    def __init__(self) -> None:
        self.requests = 0
        self.replied = 0
        self.cancelled = 0
        self.connections = 0
        self.open = 0
        self.in_flight = 0
        self.in_flight_peak = 0
        self.refused: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()

    def as_dict(self) -> dict[str, Any]:
        """The counts as JSON has them."""
        return {
            "requests": self.requests,
            "replied": self.replied,
            "refused": dict(self.refused),
            "faults": dict(self.faults),
            "cancelled": self.cancelled,
            "connections": {"total": self.connections, "open": self.open},
            # A reply without latency is never seen in flight.
            "in_flight": {
                "now": self.in_flight,
                "peak": max(self.in_flight_peak, min(1, self.requests)),
            },
        }
