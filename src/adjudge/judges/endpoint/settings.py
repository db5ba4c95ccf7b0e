"""What can be set about an endpoint, what calls cost, and what an endpoint counted.

Money: what a call may cost, what it did cost, and a ceiling that holds while calls are out.
"""

from __future__ import annotations

import math
import operator
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
from pydantic import Field

from adjudge.config_tables import CheckedTable
from adjudge.errors import ConfigError, ErrorKind, Fields, GradingFailure, Metadata
from adjudge.text import encode_exactly
from adjudge.types import Message, Usage

if TYPE_CHECKING:
    from adjudge.judges.base import Transport
    from adjudge.judges.cassette import ReplyCache


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


def estimate_tokens(messages: Sequence[Message], sampling: Fields) -> tuple[int, int]:
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
        self.on_change: Callable[[], None] = lambda: None

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


@dataclass(frozen=True)
class EndpointKey:
    """What a model needs of an endpoint; those that agree on it share one.

    ``provider`` is the wire it speaks, ``cache_name`` what replies are kept under (default: the
    first address), ``cache`` an absolute path or an open cache, ``budget`` a ceiling shared with
    other endpoints (a run's; it gets endpoints of its own).
    ``ca_file`` and ``headers`` (each header's name and variable) are those of
    :class:`~adjudge.judges.wire.transport.AiohttpTransport`. ``transport`` opens what sends the
    bytes, where that is not HTTP to ``base_urls``.
    """

    provider: str
    base_urls: tuple[str, ...]
    key_env: str
    settings: EndpointSettings | None = None
    policy: CallPolicy | None = None
    cache: str | ReplyCache | None = None
    cache_name: str | None = None
    ca_file: str | None = None
    headers: tuple[tuple[str, str], ...] = ()
    budget: SpendCeiling | None = None
    transport: Callable[[], Transport] | None = None

    def open_transport(self) -> Transport:
        """What sends the bytes."""
        if self.transport is not None:
            return self.transport()
        from adjudge.judges.wire.transport import AiohttpTransport  # noqa: PLC0415  (a replay opens none)

        return AiohttpTransport(ca_file=self.ca_file, headers=dict(self.headers))

    def open_cache(self) -> ReplyCache | None:
        """The cache, opened where it is a path."""
        if not isinstance(self.cache, str):
            return self.cache
        from adjudge.judges.cassette import ReplyCache  # noqa: PLC0415  (few runs keep replies)

        return ReplyCache(self.cache)


_PER_E_FOLD = 1 / math.log(1.02)
_SHIFT = 2_000
"""Makes bucket numbers positive down to a femtosecond, so that truncating rounds down."""
_GAUGES = {"limit", "peak_in_flight", "loop_lag_max_s"}
"""What has a state, or a maximum over the endpoint's life, instead of a count."""


class LatencyHistogram(Counter[int]):
    """A distribution of seconds, counted in buckets 2 % wide: any quantile, constant memory.

    >>> seen = LatencyHistogram()
    >>> for tenths in range(1, 101): seen.add(tenths / 10)
    >>> round(seen.quantile(0.5), 1), round(seen.quantile(0.99), 1)
    (5.0, 9.8)
    """

    def add(self, seconds: float) -> None:
        """One call took ``seconds``."""
        self[int(math.log(seconds) * _PER_E_FOLD + _SHIFT) if seconds > 0.0 else 0] += 1

    def quantile(self, share: float) -> float | None:
        """Seconds within which ``share`` of the calls were answered, to 1 %; ``None`` if none."""
        left = share * self.total()
        for bucket in sorted(self):
            left -= self[bucket]
            if left <= 0:
                return math.exp((bucket - _SHIFT + 0.5) / _PER_E_FOLD) if bucket else 0.0
        return None


class EndpointStats(msgspec.Struct, kw_only=True):
    """What an endpoint did so far.

    Once nothing is out, ``calls == answered + sum(failures.values())``, and ``sends`` is the calls
    that were sent at all plus ``retries``, ``timeouts`` and ``hedges``. Money and tokens are of
    replies that reported them; ``assumed_usd`` is the part of ``cost_usd`` that no reply confirmed
    (cancelled, timed-out and broken sends, at their reservation).
    """

    calls: int = 0
    """Questions asked, whatever became of them."""
    answered: int = 0
    cache_hits: int = 0
    deduplicated: int = 0
    """Calls that shared the reply of an equal one in flight."""
    failures: Counter[str] = msgspec.field(default_factory=Counter)
    """Calls that ended without a reply, by kind; ``cancelled`` by their callers."""
    sends: int = 0
    retries: int = 0
    """Sent again after a failure."""
    timeouts: int = 0
    """Sent again because nothing came back for too long."""
    hedges: int = 0
    hedge_wins: int = 0
    send_failures: Counter[str] = msgspec.field(default_factory=Counter)
    """Sends that failed, by kind; most of them were sent again."""
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cost_usd: float = 0.0
    assumed_usd: float = 0.0
    unpriced: int = 0
    """Replies of models without a price."""
    latencies: LatencyHistogram = msgspec.field(default_factory=LatencyHistogram)
    """From asking to the reply, waiting for a slot included."""
    limit: int = 0
    """How many may be in flight now."""
    peak_in_flight: int = 0
    limit_cuts: int = 0
    circuit_opened: int = 0
    loop_lag_max_s: float = 0.0
    """The longest that the event loop was busy elsewhere; such time counts towards no timeout."""

    def since(self, earlier: EndpointStats | None) -> EndpointStats:
        """What was counted after ``earlier``, these stats then (``None``: from the beginning).

        A copy, detached from what goes on; gauges are as they are now.
        """
        return self._with(EndpointStats() if earlier is None else earlier, operator.sub)

    def plus(self, other: EndpointStats) -> EndpointStats:
        """What two endpoints (of two processes, say) did together; of gauges the larger one."""
        gauges = {name: max(getattr(self, name), getattr(other, name)) for name in _GAUGES}
        return msgspec.structs.replace(self._with(other, operator.add), **gauges)

    def _with(self, other: EndpointStats, combine: Callable[[Any, Any], Any]) -> EndpointStats:
        changes = {name: combine(getattr(self, name), getattr(other, name)) for name in COUNTERS}
        latencies = LatencyHistogram(combine(self.latencies, other.latencies))
        return msgspec.structs.replace(self, latencies=latencies, **changes)

    def summary(self) -> Metadata:
        """All counters as plain data, latencies as ``p50_s``, ``p95_s`` and ``p99_s``."""
        plain = msgspec.structs.asdict(self)
        seen: LatencyHistogram = plain.pop("latencies")
        plain |= {name: dict(plain[name]) for name in ("failures", "send_failures")}
        return plain | {f"p{share}_s": seen.quantile(share / 100) for share in (50, 95, 99)}


COUNTERS = tuple(
    name for name in EndpointStats.__struct_fields__ if name not in {*_GAUGES, "latencies"}
)
"""What may be added up over processes: numbers, and numbers by kind."""
