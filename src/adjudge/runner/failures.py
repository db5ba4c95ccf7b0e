"""Warnings about graders that fail, for who looks at scores alone."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from adjudge.engine.clock import LogLimiter
from adjudge.errors import ErrorKind
from adjudge.text import shorten_text
from adjudge.types import GraderError

_log = logging.getLogger("adjudge")

_GATHER_S = 0.5
"""Failures that come together are one warning."""

_Columns = Sequence[Mapping[str, Sequence[Any]]]


class FailureWarnings:
    """Warns of each grader and kind at once, then at most every ten seconds, with counts.

    One object for all calls of a runner; used on the engine's loop alone.
    """

    def __init__(self) -> None:
        self._limiter = LogLimiter()
        self._done: Counter[str] = Counter()
        """Answers by grader, of calls that have ended."""
        self._done_before: dict[tuple[str, ErrorKind], int] = {}
        """The same at the last warning."""

    @contextmanager
    def watch(self, columns: _Columns) -> Iterator[Callable[[GraderError], None]]:
        """Takes a call's failures while it fills ``columns``, each grader's results by its name."""
        new: dict[tuple[str, ErrorKind], list[GraderError]] = {}
        loop = asyncio.get_running_loop()
        timer: asyncio.TimerHandle | None = None

        def take(error: GraderError) -> None:
            nonlocal timer
            if error.kind is not ErrorKind.NOT_APPLICABLE:
                new.setdefault((error.name, error.kind), []).append(error)
                timer = timer or loop.call_later(_GATHER_S, report)

        def report() -> None:
            nonlocal timer
            timer = None
            for key, errors in new.items():
                if failed := self._limiter.count(key, len(errors)):
                    self._warn(key, failed, self._count_done(key[0], columns), errors[0])
            new.clear()

        try:
            yield take
        finally:
            if timer is not None:
                timer.cancel()
                report()
            for name in {name for column in columns for name in column}:
                self._done[name] = self._count_done(name, columns)

    def _count_done(self, name: str, columns: _Columns) -> int:
        results = [column[name] for column in columns]
        return self._done[name] + sum(len(one) - one.count(None) for one in results)

    def _warn(self, key: tuple[str, ErrorKind], failed: int, done: int, first: GraderError) -> None:
        asked = done - self._done_before.get(key, 0)
        self._done_before[key] = done
        problem = shorten_text(first.error)
        _log.warning("%s: %d of %d failed (%s): %s", key[0], failed, asked, key[1], problem)
