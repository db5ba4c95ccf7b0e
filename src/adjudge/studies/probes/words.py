"""Numbers and verdicts of a card as words that every output shares."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from adjudge.studies.probes.card import Finding

__all__ = ["about_many", "effect_text", "interval_text", "limit_text", "note", "verdict_line"]


def effect_text(one: Finding) -> str:
    """The effect; "–" where there is none."""
    return "–" if one.effect is None else _signed(one.effect, one)


def interval_text(one: Finding) -> str:
    """Its interval, or nothing."""
    if one.low is None or one.high is None:
        return ""
    return f"{_signed(one.low, one)} to {_signed(one.high, one)}"


def limit_text(one: Finding) -> str:
    """The threshold with the sign of what it bounds."""
    return f"±{one.threshold:g}" if one.sided == "both" else f"≤ {one.threshold:g}"


def _signed(value: float, one: Finding) -> str:
    plain = one.unit.startswith("share") and one.probe != "self_preference"
    text = f"{value:.3f}" if plain else f"{value:+.3f}"
    return text.replace("-", "−")


def note(one: Finding) -> str:
    """What else is to be said of a line: why there is no verdict, what is missing."""
    notes = [one.why] if one.why else []
    if one.missing:
        kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(one.lost.items()))
        notes.append(f"{one.missing} items missing" + (f" ({kinds})" if kinds else ""))
    if one.remedy:
        notes.append(f"what helps: {one.remedy}")
    return "; ".join(notes)


def verdict_line(card: Mapping[str, Any]) -> str:
    """How many probes have each verdict."""
    return ", ".join(f"{count} {verdict}" for verdict, count in card["verdicts"].items() if count)


def about_many(card: Mapping[str, Any]) -> str:
    """What many probes at once mean for the verdicts."""
    decided = sum(card["verdicts"][name] for name in ("pass", "fail", "uncertain"))
    tail = (1 - card["level"]) / 2
    bound = min(1.0, decided * tail)
    if card["family_wise"]:
        return (
            f"Intervals are at level {card['level']:.4f} (Bonferroni over the probes): a judge "
            "within all thresholds fails one or more probes with a probability of at most "
            f"{bound:.1%}."
        )
    several = ""
    if decided > 1:
        several = (
            f"; one at all {decided} thresholds at once would fail one or more with at most "
            f"{bound:.0%}"
        )
    return (
        f"Each interval is at level {card['level']:.0%} for itself: a judge that is exactly at a "
        f"threshold fails that probe with a probability of about {tail:.1%}{several}. One that is "
        "well within hardly ever fails."
    )
