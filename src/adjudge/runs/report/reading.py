"""What the agreement numbers of a run say, in sentences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from adjudge.runs.report.charts import esc, integer, number, percent

__all__ = ["BASELINES", "findings", "interval_text"]

BASELINES = {"response_length": "response length", "tool_calls": "number of tool calls"}
"""Baselines of a summary, and how they read: what a grader must beat to earn its place."""


def interval_text(agreement: Mapping[str, Any] | None) -> str:
    """``0.712 [0.650, 0.770]``, without the bracket where there is no interval."""
    if not agreement or agreement.get("value") is None:
        return "–"
    low, high = agreement.get("low"), agreement.get("high")
    if low is None or high is None:
        return number(agreement["value"])
    return f"{number(agreement['value'])} [{number(low)}, {number(high)}]"


def findings(summary: Mapping[str, Any]) -> list[str]:
    """Sentences in HTML, the most consequential first; empty where nothing can be said."""
    return [
        *(f"Warning: {esc(warning)}." for warning in summary.get("warnings") or []),
        *_reward(summary),
        *_order_inside_groups(summary),
        *_only_pooled(summary),
        *_against_baselines(summary),
        *_zero_spread(summary),
        *_missing(summary),
    ]


def _graders(summary: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Concordance within groups of each grader that has one."""
    found = {name: facts.get("concordance") for name, facts in summary.get("graders", {}).items()}
    return {name: c for name, c in found.items() if c and c.get("value") is not None}


def _verdict(agreement: Mapping[str, Any]) -> str:
    """``with`` or ``against`` the outcome, ``unclear`` if the interval holds 0.5 or is absent."""
    low, high = agreement.get("low"), agreement.get("high")
    if low is not None and low > 0.5:
        return "with"
    if high is not None and high < 0.5:
        return "against"
    return "unclear"


def _reward(summary: Mapping[str, Any]) -> list[str]:
    found = (summary.get("reward") or {}).get("concordance")
    if not found or found.get("value") is None:
        return []
    verdict = {
        "with": "orders the samples of a group as the environment does",
        "against": "orders the samples of a group the wrong way round",
        "unclear": "is not told apart from chance inside groups",
    }[_verdict(found)]
    return [f"The reward {verdict}: {_estimate(found)}."]


def _order_inside_groups(summary: Mapping[str, Any]) -> list[str]:
    graders = _graders(summary)
    sorted_names = sorted(graders, key=lambda name: -graders[name]["value"])
    sentences = []
    for verdict, text in (
        ("with", "Graders that follow the environment inside groups"),
        ("against", "Graders that point the wrong way inside groups"),
        ("unclear", "Graders not told apart from chance inside groups"),
    ):
        chosen = [name for name in sorted_names if _verdict(graders[name]) == verdict]
        if chosen:
            # The table beside has all numbers; only those that say something are repeated.
            each = _names(chosen) if verdict == "unclear" else _with_estimates(chosen, graders)
            sentences.append(f"{text}: {each}.")
    return sentences


def _only_pooled(summary: Mapping[str, Any]) -> list[str]:
    graders = _graders(summary)
    names = [
        name
        for name, facts in summary.get("graders", {}).items()
        if name in graders
        and facts.get("auc")
        and _verdict(facts["auc"]) == "with"
        and _verdict(graders[name]) != "with"
    ]
    if not names:
        return []
    pairs = max(graders[name].get("pairs") or 0 for name in names)
    verb = "follows" if len(names) == 1 else "follow"
    sentence = (
        f"{_names(names)} {verb} the environment over all samples, but inside groups "
        f"({integer(pairs)} pairs) that does not show: telling prompts apart also raises the "
        "pooled number, and a group baseline removes it."
    )
    return [sentence]


def _against_baselines(summary: Mapping[str, Any]) -> list[str]:
    found = {
        label: ((summary.get("baselines") or {}).get(key) or {}).get("concordance")
        for key, label in BASELINES.items()
    }
    bases = {label: c for label, c in found.items() if c and c.get("value") is not None}
    if not bases:
        return []
    each = ", ".join(f"{label} {_estimate(c)}" for label, c in bases.items())
    strongest = max(abs(c["value"] - 0.5) for c in bases.values())
    behind = [n for n, c in _graders(summary).items() if abs(c["value"] - 0.5) <= strongest]
    tail = f" No further from chance than these: {_names(behind)}." if behind else ""
    return [f"Baselines inside groups: {each}.{tail}"]


def _zero_spread(summary: Mapping[str, Any]) -> list[str]:
    share = (summary.get("reward") or {}).get("zero_spread_frac")
    if share is None:
        return []
    if share == 0:
        return ["Every group has some spread in its reward."]
    return [f"{percent(share)} of groups have the same reward throughout and teach nothing."]


def _missing(summary: Mapping[str, Any]) -> list[str]:
    missing = (summary.get("reward") or {}).get("missing")
    if not missing:
        return []
    total = summary.get("samples") or 0
    sentence = (
        f"{integer(missing)} of {integer(total)} samples ({percent(missing, total)}) have no "
        "reward. They are left out of every number here, not counted as zero."
    )
    return [sentence]


def _with_estimates(names: list[str], graders: Mapping[str, Any]) -> str:
    return ", ".join(f"{_name(name)} {_estimate(graders[name])}" for name in names)


def _estimate(agreement: Mapping[str, Any]) -> str:
    return f'<span class="whole">{interval_text(agreement)}</span>'


def _name(name: str) -> str:
    return f"<code>{esc(name)}</code>"


def _names(names: list[str]) -> str:
    return ", ".join(_name(name) for name in names)
