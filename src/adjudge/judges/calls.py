"""What the calls of a stretch of time came to, endpoint by endpoint: a run's table of calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from adjudge.judges.connections import Connection, open_connections
from adjudge.judges.stats import Stats

__all__ = ["CallCount"]


class CallCount:
    """Counts from its making to :meth:`table`, over all endpoints of the running loop.

    Endpoints are shared, so the calls of others on the same loop count too.
    """

    def __init__(self) -> None:
        self._before = {id(one): _now(one) for one in open_connections()}

    def table(self) -> list[dict[str, Any]]:
        """One entry per endpoint that was asked, in the order of opening.

        ``base_urls``, ``models``, and the numbers of :class:`~adjudge.judges.stats.Stats`: times in
        seconds, money in US dollars, ``None`` where nothing was measured.
        """
        return _entries(self._before, open_connections())


def _entries(before: dict[int, Stats], now: Sequence[Connection]) -> list[dict[str, Any]]:
    entries = []
    for one in now:
        stats = one.endpoint.stats.since(before.get(id(one), Stats()))
        if stats.calls:
            entries.append(
                {
                    "base_urls": list(one.wanted.base_urls),
                    "models": sorted(one.models),
                    **stats.summary(),
                }
            )
    return entries


def _now(connection: Connection) -> Stats:
    """The counts so far, detached from what goes on."""
    return connection.endpoint.stats.since(Stats())
