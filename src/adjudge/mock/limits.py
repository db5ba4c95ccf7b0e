"""A requests-per-minute limit as providers keep it, and the headers that tell of it."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta

from adjudge.mock.asked import Api

__all__ = ["Bucket", "rate_headers", "retry_headers"]


class Bucket:
    """A token bucket: full at the start, refilled evenly, ``rpm`` tokens at most."""

    def __init__(self, rpm: float, now: float) -> None:
        self.rpm = rpm
        self._capacity = max(1.0, rpm)
        self._left = self._capacity
        self._then = now

    def take(self, now: float) -> float:
        """0 when a request may pass, else the seconds until the next one may."""
        per_second = self.rpm / 60
        self._left = min(self._capacity, self._left + (now - self._then) * per_second)
        self._then = now
        if self._left >= 1.0 - 1e-9:
            self._left -= 1.0
            return 0.0
        return (1.0 - self._left) / per_second

    def headers(self, api: Api, wait: float = 0.0) -> bytes:
        """The limit, what is left, when it is full again and, with ``wait``, when to retry."""
        full_in = (self._capacity - self._left) * 60 / self.rpm
        lines = rate_headers(api, self.rpm, max(0, int(self._left + 1e-9)), full_in)
        return lines + _retry_lines(api, wait, math.ceil(wait)) if wait else lines


def rate_headers(api: Api, limit: float, left: int, reset_s: float) -> bytes:
    """Rate-limit headers: durations like ``6m0.5s`` (OpenAI), RFC 3339 times (Anthropic)."""
    if api == "anthropic":
        reset = (datetime.now(UTC) + timedelta(seconds=reset_s)).strftime("%Y-%m-%dT%H:%M:%SZ")
        prefix = "anthropic-ratelimit-requests-"
        lines = f"{prefix}limit: {limit:g}\r\n{prefix}remaining: {left}\r\n{prefix}reset: {reset}"
    else:
        minutes, seconds = divmod(round(reset_s, 3), 60)
        reset = f"{minutes:.0f}m{seconds:g}s" if minutes else f"{seconds:g}s"
        lines = (
            f"x-ratelimit-limit-requests: {limit:g}\r\n"
            f"x-ratelimit-remaining-requests: {left}\r\nx-ratelimit-reset-requests: {reset}"
        )
    return lines.encode() + b"\r\n"


def retry_headers(api: Api, seconds: float) -> bytes:
    """All that a provider says on refusing for ``seconds``: nothing left, and when to retry."""
    return rate_headers(api, 60, 0, seconds) + _retry_lines(api, seconds, seconds)


def _retry_lines(api: Api, exact: float, shown: float) -> bytes:
    lines = b"retry-after: %b\r\n" % f"{shown:g}".encode()
    if api == "openai":
        lines += b"retry-after-ms: %d\r\n" % math.ceil(exact * 1000)
    return lines
