"""What becomes of rewards that are still missing, and when missing ones are an outage."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Literal

from adjudge.errors import ErrorKind, MissingRewardError
from adjudge.types import GraderError

__all__ = ["MissingPolicy", "OutageWatch", "drop_short_group", "fallback_group", "raise_missing"]

MissingPolicy = Literal["mask", "drop_group", "fallback", "raise"]

Outcome = float | GraderError


def drop_short_group(group: Sequence[Outcome], min_valid: int) -> list[Outcome]:
    """Policy ``drop_group``: with fewer than ``min_valid`` present, the whole group is missing.

    The present ones become ``GraderError(quorum)``; the failed ones keep their own reason.
    """
    valid = sum(not isinstance(outcome, GraderError) for outcome in group)
    if valid >= min_valid:
        return list(group)
    message = f"{valid} of {len(group)} samples of the group are valid, min_valid is {min_valid}"
    dropped = GraderError("group", ErrorKind.QUORUM, message)
    return [outcome if isinstance(outcome, GraderError) else dropped for outcome in group]


def fallback_group(
    group: Sequence[Outcome], fallback: Sequence[Outcome]
) -> tuple[list[Outcome], bool]:
    """Policy ``fallback``: the rule's scores for *every* sample of a group that misses any.

    Mixing the judge's ruler and the rule's inside one group would compare nothing with nothing.
    Returns the group and whether it fell back.
    """
    if any(isinstance(outcome, GraderError) for outcome in group):
        return list(fallback), True
    return list(group), False


def raise_missing(failures: Sequence[GraderError], total: int) -> None:
    """Policy ``raise``: :class:`MissingRewardError` with everything that failed, if anything."""
    if failures:
        first = failures[0]
        raise MissingRewardError(
            f"{len(failures)} of {total} rewards are missing, first: {first.kind}: {first.error}",
            list(failures),
        )


class OutageWatch:
    """Are judges down? More than ``max_missing`` of the last max(call size, 32) samples.

    Only failures of passing kinds are reported here. A process that has asked fewer samples so
    far cannot be in an outage by a handful of them: the share is always of the full window.
    """

    def __init__(self, max_missing: float, least: int = 32) -> None:
        self.max_missing = max_missing
        self._least = least
        self._recent: deque[bool] = deque()

    def record(self, failed: Sequence[bool]) -> bool:
        """Note one call's samples (True: missing for a passing reason); True in an outage."""
        window = max(len(failed), self._least)
        self._recent.extend(failed)
        while len(self._recent) > window:
            self._recent.popleft()
        return sum(self._recent) > self.max_missing * window

    def replace_last(self, failed: Sequence[bool]) -> bool:
        """The same call's samples after asking again; True while the outage lasts."""
        for _ in range(min(len(failed), len(self._recent))):
            self._recent.pop()
        return self.record(failed)
