"""How much may be in flight, how fast calls may go out, and what servers say about both."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

__all__ = ["AdaptiveLimit", "RateBucket", "retry_after"]

CUT = 0.8
GROWTH = 0.05
SATURATED = 0.8
PAUSE_STREAK = 3
MAX_RETRY_AFTER_S = 3600.0


class AdaptiveLimit:
    """A limit on calls in flight that learns: slow start, slow growth, cuts when told to.

    Starts at ``start`` and doubles per round of ``limit`` successes up to the threshold (the last
    limit that was too high, at first ``maximum``), then grows by 5 % a round; only while at least
    80 % of it is used. ``throttled`` (429, 503, 529) cuts to 80 %, once per ``cooldown_s`` or what
    the server asked for, and again within it while a working server refuses more than it answers
    (a bounded queue); nothing grows meanwhile. ``faltered`` (other 5xx, timeouts, lost
    connections) stops growth for a round. Three refusals in a row without a success stop all
    sending for as long as the server says, else for 1 s, 2 s, … ``cooldown_s``, or until a call
    that was out is answered.

    Source: additive increase, multiplicative decrease; constants as in inspect_ai's adaptive
    connections.
    """

    __slots__ = (
        "_cooldown",
        "_minimum",
        "_pause",
        "_refused",
        "_skip",
        "_start",
        "_streak",
        "_taken",
        "_threshold",
        "_told_until",
        "_value",
        "cooling_until",
        "cuts",
        "in_flight",
        "limit",
        "maximum",
        "paused_until",
        "peak",
    )

    def __init__(
        self, start: int, maximum: int, minimum: int = 1, cooldown_s: float = 15.0
    ) -> None:
        self.maximum = maximum
        self.limit = min(start, maximum)
        """How many may be in flight now."""
        self.in_flight = 0
        """Slots taken; whoever took one counts it down again."""
        self.peak = 0
        self.cuts = 0
        self.cooling_until = float("-inf")
        self.paused_until = float("-inf")
        self._start = self.limit
        self._minimum = min(minimum, maximum)
        self._cooldown = cooldown_s
        self._value = float(self.limit)
        self._threshold = float(maximum)
        self._skip = 0
        self._streak = 0
        self._pause = 0.0
        self._told_until = float("-inf")
        self._refused = self._taken = 0

    def take(self) -> None:
        """Occupy a slot; the caller has checked that ``in_flight < limit``."""
        self.in_flight += 1
        self.peak = max(self.peak, self.in_flight)

    def succeeded(self, now: float) -> None:
        """A call was answered; called while it still holds its slot."""
        self._streak = 0
        self._pause = 0.0
        self._taken += 1
        self.paused_until = min(self.paused_until, self._told_until)
        if self.limit >= self.maximum:
            return
        if self._skip > 0:
            self._skip -= 1
        elif now >= self.cooling_until and self.in_flight >= SATURATED * self._value:
            self._set(self._value + (1.0 if self._value < self._threshold else GROWTH))

    def faltered(self) -> None:
        """A call failed for a reason that says nothing about load: no growth for a round."""
        self._skip = self.limit

    def throttled(self, now: float, wait_s: float | None) -> None:
        """The server refused for load; ``wait_s`` is how long it asked to wait, if it said so."""
        self._refused += 1
        if now >= self.cooling_until or self._refused > self._taken > 0:
            self._refused = self._taken = 0
            self._set(max(self._value * CUT, float(self._minimum)))
            self._threshold = self._value
            self.cuts += 1
            self.cooling_until = now + self._cooldown
        self.cooling_until = max(self.cooling_until, now + (wait_s or 0.0))
        self._streak += 1
        if self._streak >= PAUSE_STREAK:
            self._stop(now, wait_s)

    def restart(self) -> None:
        """The server is back after an outage: start slowly again, up to what it could take."""
        self._threshold = max(self._threshold if self.cuts else 0.0, self._value)
        self._set(min(self._value, float(self._start)))

    def _stop(self, now: float, wait_s: float | None) -> None:
        if wait_s is not None:
            self._told_until = max(self._told_until, now + wait_s)
            self.paused_until = max(self.paused_until, self._told_until)
        elif now >= self.paused_until:
            self._pause = min(max(1.0, 2 * self._pause), self._cooldown)
            self.paused_until = now + self._pause

    def _set(self, value: float) -> None:
        self._value = min(value, float(self.maximum))
        self.limit = max(1, int(self._value))


class RateBucket:
    """So many units (requests or tokens) a minute, of which ``burst_s`` seconds' worth at once.

    In any T seconds at most ``(T + burst_s) · rate`` units go out, plus one call's excess over the
    burst: a call larger than the whole bucket goes when the bucket is full and leaves it in debt.
    """

    __slots__ = ("_capacity", "_level", "_rate", "_stamp")

    def __init__(self, per_minute: float, burst_s: float = 6.0) -> None:
        self._rate = per_minute / 60.0
        self._capacity = max(self._rate * burst_s, 1.0)
        self._level = self._capacity
        self._stamp = float("-inf")

    def admits(self, units: float, now: float) -> bool:
        """Whether ``units`` may go out now."""
        if now > self._stamp:
            gained = (now - self._stamp) * self._rate
            self._level = min(self._capacity, self._level + gained)
            self._stamp = now
        # A margin against rounding, which would cost a whole further wait.
        return self._level >= min(units, self._capacity) - 1e-9

    def take(self, units: float) -> None:
        """Note that ``units`` went out; negative ``units`` give back what was not used."""
        self._level = min(self._capacity, self._level - units)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that a response asks to wait, or ``None`` when it does not say; at most an hour.

    Reads, in this order, ``retry-after-ms``, ``retry-after`` (seconds or a date), and the latest
    reset among exhausted limits in OpenAI's ``x-ratelimit-*`` and Anthropic's
    ``anthropic-ratelimit-*`` headers. Header names are in lower case; values that make no sense
    are as good as absent.

    >>> retry_after({"retry-after-ms": "250"})
    0.25
    >>> retry_after({"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "6m0.5s"})
    360.5
    """
    found = _number(headers.get("retry-after-ms"))
    wait = None if found is None else found / 1000
    if wait is None and (value := headers.get("retry-after")) is not None:
        wait = _number(value)
        if wait is None:
            wait = _until(value, headers)
    if wait is None:
        wait = _exhausted(headers)
    return None if wait is None else min(max(wait, 0.0), MAX_RETRY_AFTER_S)


def _exhausted(headers: Mapping[str, str]) -> float | None:
    openai = [
        _duration(headers.get(f"x-ratelimit-reset-{name}", ""))
        for name in ("requests", "tokens")
        if headers.get(f"x-ratelimit-remaining-{name}") == "0"
    ]
    anthropic = [
        _until(headers.get(f"anthropic-ratelimit-{name}-reset", ""), headers)
        for name in ("requests", "tokens", "input-tokens", "output-tokens")
        if headers.get(f"anthropic-ratelimit-{name}-remaining") == "0"
    ]
    return max((wait for wait in openai + anthropic if wait is not None), default=None)


def _number(text: str | None) -> float | None:
    """A finite number ≥ 0."""
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if 0.0 <= value < float("inf") else None


_UNITS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}


def _duration(text: str) -> float | None:
    """``6m0s``, ``1.5s``, ``17ms`` or plain seconds."""
    total, number, unit = 0.0, "", ""
    for char in text[:40].strip() + "0":
        if unit and not char.isalpha():
            value = _number(number)
            if value is None or unit not in _UNITS:
                return None
            total += value * _UNITS[unit]
            number = unit = ""
        if char.isalpha():
            unit += char
        else:
            number += char
    rest = number[:-1]
    return total if not rest else _number(text) if not total else None


def _until(text: str, headers: Mapping[str, str]) -> float | None:
    """Seconds from the response's own date (else from this machine's) until a date."""
    end = _date(text)
    if end is None:
        return None
    start = _date(headers.get("date", ""))
    return end - (time.time() if start is None else start)


def _date(text: str) -> float | None:
    """An HTTP or RFC 3339 date as POSIX seconds."""
    for parse in (datetime.fromisoformat, parsedate_to_datetime):
        try:
            moment = parse(text)
        except (ValueError, TypeError):
            continue
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    return None
