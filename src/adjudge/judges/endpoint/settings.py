"""What can be set about an endpoint, each with its default and the reason for it, and money.

Money: what a call may cost, what it did cost, and a ceiling that holds while calls are out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec
from pydantic import Field

from adjudge.config_tables import CheckedTable
from adjudge.errors import ConfigError, ErrorKind, GradingFailure
from adjudge.text import encode_exactly
from adjudge.types import Usage


class EndpointSettings(CheckedTable):
    """How calls to one provider survive. All times in seconds; ``ConfigError`` on a wrong value.

    ``max_concurrency``: calls in flight, never more, hedges included. High enough for a
    local server with continuous batching; the limit finds its own level below.
    ``requests_per_minute``: the account's rate, if known. Without it the provider's
    refusals set the pace.
    ``tokens_per_minute``: the same in tokens, of prompts and replies.
    ``max_attempts``: sends per call, hedges apart.
    ``deadline_s``: from asking to giving up, waiting for a slot included. Only this ends a
    call as ``timeout``. Raise it for judges that think for minutes.
    ``hedge``: a call slower than 75 % of all (and than 1.5 medians and 0.05 s) is sent a
    second time while a tenth of the slots is free, at most for 15 % of the calls and fewer where
    that rarely wins. Never for 15 s after a refusal for load.
    ``budget_usd``: no send that could pass it; needs a price.
    """

    max_concurrency: int = Field(default=256, ge=1)
    requests_per_minute: float | None = Field(default=None, gt=0)
    tokens_per_minute: float | None = Field(default=None, gt=0)
    max_attempts: int = Field(default=5, ge=1)
    deadline_s: float = Field(default=120.0, gt=0)
    hedge: bool = True
    budget_usd: float | None = Field(default=None, gt=0)


class CallPolicy(msgspec.Struct, frozen=True):
    """What no user needs to set about an endpoint; code that is no judge's client may.

    ``start_concurrency``: the limit at the start and after an outage; it doubles every round.
    ``resends_silent``: a send that is silent for longer than 1.3 times the 98th percentile (at
    least 1 s, 3 medians and 1.7 times the 95th), twice as long after each such re-send, is
    cancelled and sent again.
    ``breaker_failures``: failures in a row that stop all sending to a server. A burst of
    resets or a restart reaches it; one failure in ten practically never does.
    ``breaker_cooldown_s``: before one call may probe, doubling up to 10 s.
    ``breaker_waits``: calls wait meanwhile, up to their deadline; else they end at once as
    ``circuit_open``.
    """

    start_concurrency: int = 20
    resends_silent: bool = True
    breaker_failures: int = 8
    breaker_cooldown_s: float = 1.0
    breaker_waits: bool = True


ASSUMED_OUTPUT_TOKENS = 1_024
"""Assumed for the reply of a call that sets no limit itself."""

IMAGE_TOKENS = 1_500
"""Assumed for an image or another part that is not text; providers bill these by tile."""

BYTES_PER_TOKEN = 3
"""On the safe side: English has about 4, CJK text about 3 bytes of UTF-8 a token."""


class Price(CheckedTable):
    """US dollars per million tokens; ``cached_input`` (default: ``input``) for cache reads.

    >>> price = Price(input=1.0, output=4.0, cached_input=0.1)
    >>> price.cost(Usage(input_tokens=1_000_000, cached_tokens=500_000, output_tokens=250_000))
    1.55
    """

    input: float = Field(ge=0, allow_inf_nan=False)
    """For a million tokens of prompts."""
    output: float = Field(ge=0, allow_inf_nan=False)
    """For a million tokens of replies."""
    cached_input: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """For a million prompt tokens that the server had in its cache; by default ``input``."""

    def cost(self, usage: Usage) -> float:
        """Dollars for ``usage``, whose ``input_tokens`` include its ``cached_tokens``."""
        cached = min(usage.cached_tokens, usage.input_tokens)
        cached_price = self.input if self.cached_input is None else self.cached_input
        fresh = (usage.input_tokens - cached) * self.input
        return (fresh + cached * cached_price + usage.output_tokens * self.output) / 1e6


def estimate_tokens(
    messages: Sequence[Mapping[str, Any]], sampling: Mapping[str, Any]
) -> tuple[int, int]:
    """Input and output tokens that a call may take, rather too many than too few.

    Output is the call's own limit (``max_completion_tokens``, ``max_tokens``), else
    ``ASSUMED_OUTPUT_TOKENS``, times ``n`` where it is set.
    """
    keys = ("content", "tool_calls")
    size = sum(_count_bytes(message.get(key)) for message in messages for key in keys)
    limit = (
        sampling.get("max_completion_tokens") or sampling.get("max_tokens") or ASSUMED_OUTPUT_TOKENS
    )
    return math.ceil(size / BYTES_PER_TOKEN) + 8 * len(messages), limit * (sampling.get("n") or 1)


def _count_bytes(content: Any) -> int:
    if isinstance(content, str):
        return len(content) if content.isascii() else len(encode_exactly(content))
    if isinstance(content, Mapping):
        if isinstance(content.get("text"), str):
            return _count_bytes(content["text"])
        if "function" in content:
            return len(str(content["function"]))
        return IMAGE_TOKENS * BYTES_PER_TOKEN
    return sum(_count_bytes(part) for part in content or ())


class SpendCeiling:
    """A ceiling in dollars: reserve before sending, settle after.

    ``spent + reserved`` never passes ``ceiling``, so what was really spent passes it at most by
    what calls cost beyond their reservations. ``None`` is no ceiling. ``on_change`` is called after
    every change, so before a send goes out; where it raises ``OSError``, nothing is sent.
    """

    def __init__(self, ceiling: float | None) -> None:
        if ceiling is not None and not ceiling >= 0:  # of NaN, nothing is ever affordable
            raise ConfigError(f"budget_usd: must be 0 or more (found {ceiling!r})")
        self.ceiling = ceiling
        self.spent = 0.0
        self.reserved = 0.0
        self.sends = self.out = 0
        self.on_change: Callable[[], None] = _do_nothing

    def admits(self, estimate: float, _now: float = 0.0) -> bool:
        """Whether there is room now: calls that are out may cost less than their reservations.

        Raises ``GradingFailure`` where there never will be.
        """
        if self.ceiling is None:
            return True
        left = self.ceiling - self.spent - estimate
        if left < 0:
            raise GradingFailure(ErrorKind.BUDGET, "the spend ceiling is reached")
        # A margin against rounding, which would make the last of several equal shares wait.
        return self.reserved <= left + 1e-12

    def reserve(self, estimate: float) -> None:
        """Set ``estimate`` aside for a call that is sent now."""
        self.reserved += estimate
        self.sends += 1
        self.out += 1
        self.on_change()

    def release(self, estimate: float, cost: float) -> None:
        """Turn the reservation of ``estimate`` into what the call did cost."""
        self.spent += cost  # first: who reads both from another thread never finds too little
        self.out -= 1
        self.reserved = max(0.0, self.reserved - estimate) if self.out else 0.0
        with suppress(OSError):  # it stops the next send
            self.on_change()


def _do_nothing() -> None:
    """Nobody keeps what changes."""
