"""A run's judge calls: what each grader's replies came to, and each endpoint's table in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from adjudge.runs.distributions import mean
from adjudge.types import GraderResult, GraderScore, Provenance

__all__ = ["endpoint_name", "endpoint_rows", "grader_calls", "hedge_note"]


def grader_calls(results: Iterable[GraderResult]) -> dict[str, Any] | None:
    """Where one grader's results came from; ``None`` when no judge was asked.

    ``hedge_shift`` is the mean score of the results whose reply a hedge won, minus that of the
    other live ones: far from 0, fast replies are other replies. ``None`` without both kinds.
    """
    found = [(one, one.provenance) for one in results if one.provenance is not None]
    if not found:
        return None
    usages = [where.paid for _, where in found if where.paid is not None]
    costs = [usage.cost_usd for usage in usages if usage.cost_usd is not None]
    return {
        "sources": _counts(where.source for _, where in found),
        "models": _counts(where.model for _, where in found),
        "input_tokens": sum(usage.input_tokens for usage in usages),
        "output_tokens": sum(usage.output_tokens for usage in usages),
        "cost_usd": sum(costs) if costs else None,
        "hedge_wins": sum(where.hedged for _, where in found),
        "hedge_shift": _shift(found),
    }


def _counts(names: Iterable[str | None]) -> dict[str, int]:
    return dict(Counter(name or "unknown" for name in names).most_common())


def _shift(found: Iterable[tuple[GraderResult, Provenance]]) -> float | None:
    live = [
        (one.score, where.hedged)
        for one, where in found
        if isinstance(one, GraderScore) and where.source == "live"
    ]
    won = mean([score for score, hedged in live if hedged])
    others = mean([score for score, hedged in live if not hedged])
    return None if won is None or others is None else won - others


def endpoint_name(entry: Mapping[str, Any]) -> str:
    """Models and address of an endpoint, as a heading."""
    urls = [url.partition("://")[2] for url in entry["base_urls"]]
    more = f" and {len(urls) - 1} more" if len(urls) > 1 else ""
    return f"{', '.join(entry['models'])} @ {urls[0]}{more}"


def endpoint_rows(entry: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The numbers of an endpoint as label and text, without those that say nothing."""
    failures = _listed(entry["failures"])
    rows = [
        ("calls", f"{entry['calls']:,}"),
        ("answered", f"{entry['answered']:,}"),
        ("from the cache", _count(entry["cache_hits"])),
        ("shared with an equal call", _count(entry["deduplicated"])),
        ("failed", failures),
        ("sends", f"{entry['sends']:,}"),
        ("sends that failed", _listed(entry["send_failures"])),
        ("sent again after a failure", _count(entry["retries"])),
        ("sent again for silence", _count(entry["timeouts"])),
        ("hedges", _hedges(entry)),
        ("tokens in / out", _tokens(entry)),
        ("cost", _cost(entry)),
        ("latency p50 / p95 / p99", _latency(entry)),
        ("in flight: peak, limit now", f"{entry['peak_in_flight']:,}, {entry['limit']:,}"),
        ("limit cut", _count(entry["limit_cuts"])),
        ("circuit opened", _count(entry["circuit_opened"])),
        ("longest loop lag", f"{entry['loop_lag_max_s'] * 1e3:.0f} ms"),
    ]
    return [(label, text) for label, text in rows if text]


def hedge_note(name: str, calls: Mapping[str, Any]) -> str:
    """What hedge winners did to a grader's scores; empty when nothing is known."""
    if calls["hedge_shift"] is None:
        return ""
    return (
        f"{name}: {calls['hedge_wins']:,} replies came from hedges; "
        f"their scores are {calls['hedge_shift']:+.3f} against the others'"
    )


def _count(number: int) -> str:
    return f"{number:,}" if number else ""


def _listed(kinds: Mapping[str, int]) -> str:
    return ", ".join(f"{kind} {count:,}" for kind, count in sorted(kinds.items()))


def _hedges(entry: Mapping[str, Any]) -> str:
    return f"{entry['hedges']:,}, {entry['hedge_wins']:,} won" if entry["hedges"] else ""


def _tokens(entry: Mapping[str, Any]) -> str:
    if not entry["input_tokens"] and not entry["output_tokens"]:
        return ""
    cached = f" ({entry['cached_tokens']:,} cached)" if entry["cached_tokens"] else ""
    return f"{entry['input_tokens']:,}{cached} / {entry['output_tokens']:,}"


def _cost(entry: Mapping[str, Any]) -> str:
    if not entry["cost_usd"] and not entry["assumed_usd"]:
        return "unknown: no price" if entry["unpriced"] else ""
    notes = []
    if entry["assumed_usd"]:
        notes.append(f"{entry['assumed_usd']:.4f} of it assumed")
    if entry["unpriced"]:
        notes.append(f"{entry['unpriced']:,} replies without a price")
    return f"{entry['cost_usd']:.4f} USD" + (f" ({', '.join(notes)})" if notes else "")


def _latency(entry: Mapping[str, Any]) -> str:
    quantiles = [entry["p50_s"], entry["p95_s"], entry["p99_s"]]
    if None in quantiles:
        return ""
    return " / ".join(f"{seconds:.3g}" for seconds in quantiles) + " s"
