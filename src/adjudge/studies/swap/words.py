"""A study's numbers in words, for the terminal and the page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["PAIR_NUMBERS", "SHARES", "calls_line", "interval", "missing_line", "notes", "value"]

PAIR_NUMBERS: Mapping[str, tuple[str, str]] = {
    "best_changes": ("best changes", "groups of which no sample is best for both"),
    "sign_flips": ("sign flips", "samples whose GRPO advantage changes its sign"),
    "within_kendall": ("τ-b within", "Kendall's, inside groups"),
    "within_spearman": ("ρ within", "Spearman's, inside groups"),
    "within_pearson": ("r within", "Pearson's, inside groups"),
    "advantage_pearson": ("r advantages", "Pearson's, of the GRPO advantages"),
    "best_differs": ("best differs", "groups whose sets of best samples differ, ties included"),
    "sign_differs": ("sign differs", "the sign of the advantage, 0 being a third one"),
    "kendall": ("τ-b", "Kendall's, over all samples"),
    "spearman": ("ρ", "Spearman's, over all samples"),
    "pearson": ("r", "Pearson's, over all samples"),
    "kappa": ("κ quadratic", "over all samples, where both scales are discrete"),
}
"""Each number of a pair: its heading, and what it is."""

SHARES: Mapping[str, tuple[str, str]] = {
    "length": ("length", "R² of the advantage on length"),
    "format": ("format", "R² on Markdown, lists and code together"),
    "both": ("both", "R² on length and format together"),
    "format_beyond_length": ("format beyond length", "R² on both less that on length"),
    "length_r": ("r with length", "correlation with length, with its sign"),
}
"""Each share of a judge's advantage variance: its heading, and what it is."""

_SHARE_OF = ("best_changes", "best_differs", "sign_flips", "sign_differs", "differs")


def value(name: str, found: Mapping[str, Any]) -> str:
    """An estimate's number: shares in percent."""
    number = found["value"]
    if number is None:
        return "–"
    return _text(name, number)


def interval(name: str, found: Mapping[str, Any]) -> str:
    """Its interval."""
    if found["low"] is None or found["high"] is None:
        return ""
    return f"{_text(name, found['low'])}…{_text(name, found['high'])}".replace(" %…", "…")


def _text(name: str, number: float) -> str:
    if name in _SHARE_OF:
        return f"{100 * number:.1f} %"
    return f"{number:.3f}".replace("-", "−")


def missing_line(judge: Mapping[str, Any]) -> str:
    """What is missing of a judge, by kind."""
    return ", ".join(f"{kind} {count:,}" for kind, count in judge["missing_by_kind"].items())


def calls_line(judge: Mapping[str, Any]) -> str:
    """What it took to ask a judge."""
    calls = judge["calls"]
    if calls is None:
        return str(judge["kind"])
    said = [f"{calls['calls']:,} calls"]
    if calls["resumed_results"]:
        said.append(f"{calls['resumed_results']:,} results from before")
    if calls["cost_usd"] is not None:
        said.append(f"{calls['cost_usd']:.4f} USD")
    elif calls["result_tokens"]:
        said.append(f"{calls['result_tokens']:,} tokens")
    return ", ".join(said)


def notes() -> list[str]:
    """How to read the numbers."""
    return list(_NOTES)


_NOTES = (
    (
        "Every pair is compared on the samples that both judged, advantages included: (r − "
        "mean)/std of a group's common samples. A reward that a judge failed to give is missing "
        "and is never a number."
    ),
    (
        "Intervals are 95 %, by bootstrap over groups; the samples of a group are not independent. "
        "Rank correlations over all samples are linearised for it; those inside groups are exact."
    ),
    (
        "R² is adjusted for the number of features, so chance is 0 and a little below 0 is chance. "
        "Advantages and features are standardised inside groups. What length explains may be "
        "quality that comes with length: it says what a policy will be paid for, not why."
    ),
    (
        "A judge that scores a group alike (flat) gives it no gradient; nothing can flip there. "
        "Best changes: no sample is best for both, so a tie never counts; best differs counts it."
    ),
)
