"""Money: what a call may cost, what it did cost, and a ceiling that holds while calls are out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

import msgspec

from adjudge.types import Usage

__all__ = ["Afford", "Price", "SpendCeiling", "estimate_tokens"]

IMAGE_TOKENS = 1_500
"""Assumed for an image or another part that is not text; providers bill these by tile."""

BYTES_PER_TOKEN = 3
"""On the safe side: English has about 4, CJK text about 3 bytes of UTF-8 a token."""


class Price(msgspec.Struct, frozen=True, kw_only=True):
    """US dollars per million tokens; ``cached_input`` (default: ``input``) for cache reads.

    >>> price = Price(input=1.0, output=4.0, cached_input=0.1)
    >>> price.cost(Usage(input_tokens=1_000_000, cached_tokens=500_000, output_tokens=250_000))
    1.55
    """

    input: float
    output: float
    cached_input: float | None = None

    def cost(self, usage: Usage) -> float:
        """Dollars for ``usage``, whose ``input_tokens`` include its ``cached_tokens``."""
        cached = min(usage.cached_tokens, usage.input_tokens)
        cached_price = self.input if self.cached_input is None else self.cached_input
        fresh = (usage.input_tokens - cached) * self.input
        return (fresh + cached * cached_price + usage.output_tokens * self.output) / 1e6


def estimate_tokens(
    messages: Sequence[Mapping[str, Any]], sampling: Mapping[str, Any], assumed_output: int
) -> tuple[int, int]:
    """Input and output tokens that a call may take, rather too many than too few.

    Output is the call's own limit (``max_completion_tokens``, ``max_tokens``), else
    ``assumed_output``, times ``n`` where it is set.
    """
    size = sum(_bytes_of(message.get("content")) for message in messages)
    size += sum(_bytes_of(call) for message in messages for call in message.get("tool_calls") or ())
    limit = sampling.get("max_completion_tokens") or sampling.get("max_tokens") or assumed_output
    return math.ceil(size / BYTES_PER_TOKEN) + 8 * len(messages), limit * (sampling.get("n") or 1)


def _bytes_of(content: Any) -> int:
    if content is None:
        return 0
    if isinstance(content, str):
        return len(content) if content.isascii() else len(content.encode(errors="surrogatepass"))
    if isinstance(content, Mapping):
        if isinstance(content.get("text"), str):
            return _bytes_of(content["text"])
        if "function" in content:
            return len(str(content["function"]))
        return IMAGE_TOKENS * BYTES_PER_TOKEN
    return sum(_bytes_of(part) for part in content)


class Afford(Enum):
    """Whether the ceiling leaves room for a reservation."""

    YES = "yes"
    WAIT = "wait"
    NEVER = "never"


class SpendCeiling:
    """A ceiling in dollars: reserve before sending, settle after.

    ``spent + reserved`` never passes ``ceiling``, so what was really spent passes it at most by
    what calls cost beyond their reservations. ``None`` is no ceiling.
    """

    __slots__ = ("ceiling", "reserved", "spent")

    def __init__(self, ceiling: float | None) -> None:
        self.ceiling = ceiling
        self.spent = 0.0
        self.reserved = 0.0

    def afford(self, estimate: float) -> Afford:
        """``WAIT``: calls that are out may settle below their reservations and leave room."""
        if self.ceiling is None:
            return Afford.YES
        left = self.ceiling - self.spent - estimate
        if left < 0:
            return Afford.NEVER
        # A margin against rounding, which would make the last of several equal shares wait.
        return Afford.YES if self.reserved <= left + 1e-12 else Afford.WAIT

    def reserve(self, estimate: float) -> None:
        """Set ``estimate`` aside for a call that is sent now."""
        self.reserved += estimate

    def settle(self, estimate: float, cost: float) -> None:
        """Turn the reservation of ``estimate`` into what the call did cost."""
        self.reserved = max(0.0, self.reserved - estimate)
        self.spent += cost
