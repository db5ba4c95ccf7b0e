"""What becomes of rewards that are still missing, and when missing ones are an outage."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Literal

from adjudge.errors import ErrorKind, MissingRewardError
from adjudge.rewards.samples import Part
from adjudge.types import GraderError

__all__ = ["MissingPolicy", "OutageWatch", "drop_short_group", "fallback_group", "raise_missing"]

MissingPolicy = Literal["mask", "drop_group", "fallback", "raise"]


def drop_short_group(group: Sequence[Part], min_valid: int) -> list[Part]:
    """Policy ``drop_group``: with fewer than ``min_valid`` present, the whole group is missing.

    The present ones become ``GraderError(quorum)``; the failed ones keep their own reason.
    """
    valid = sum(not isinstance(outcome, GraderError) for outcome in group)
    if valid >= min_valid:
        return list(group)
    message = f"{valid} of {len(group)} samples of the group are valid, min_valid is {min_valid}"
    dropped = GraderError("group", ErrorKind.QUORUM, message)
    return [outcome if isinstance(outcome, GraderError) else dropped for outcome in group]


def fallback_group(group: Sequence[Part], fallback: Sequence[Part]) -> tuple[list[Part], bool]:
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

    Only failures of passing kinds are reported here, and only samples that were really asked. A
    process that has asked fewer so far cannot be in an outage by a handful of them: the share is
    always of the full window. A call of which nothing is missing is never an outage, whatever
    others say; calls may overlap.
    """

    def __init__(self, max_missing: float, least: int = 32) -> None:
        self.max_missing = max_missing
        self._least = least
        self._calls: deque[list[bool]] = deque()

    def begin(self, failed: Sequence[bool]) -> list[bool]:
        """Note a call's samples (True: missing); the returned list may be updated in place."""
        call = list(failed)
        self._calls.append(call)
        kept = sum(map(len, self._calls))
        longest = max(self._least, *map(len, self._calls))
        while self._calls[0] is not call and kept - len(self._calls[0]) >= longest:
            kept -= len(self._calls.popleft())
        return call

    def is_outage(self, call: list[bool]) -> bool:
        """Whether ``call`` stands in an outage, as of now."""
        if not any(call):
            return False
        window = max(len(call), self._least)
        left, missing = window, 0
        for entry in reversed(self._calls):
            recent = entry[-left:] if left < len(entry) else entry
            missing += sum(recent)
            left -= len(recent)
            if left <= 0:
                break
        return missing > self.max_missing * window
