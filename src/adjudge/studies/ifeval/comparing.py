"""Two models on the prompts that both answered: differences with intervals, an exact test."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from adjudge.judge_training.benchmarks.intervals import (
    RESAMPLES,
    mcnemar,
    p_of_zero,
    percentile,
)
from adjudge.studies.ifeval.scoring import READINGS, Judged, Units, resampled_values, units_of

__all__ = ["compare_models"]


def compare_models(
    models: Sequence[tuple[str, Judged]], *, resamples: int = RESAMPLES
) -> list[dict[str, Any]]:
    """Every two models, reading and level, as plain data.

    ``difference`` is ``a`` less ``b`` over the prompts that both have a judged sample of, with its
    95 % paired percentile bootstrap interval over prompts and its two-sided ``p``; values are
    ``None`` where no prompt is shared. At prompt level with one sample each, ``only_a`` and
    ``only_b`` count the prompts that one follows and the other does not, and ``mcnemar_p`` is the
    exact p of equal chances. No p is adjusted for the number of comparisons.
    """
    return [
        entry
        for at, a in enumerate(models)
        for b in models[at + 1 :]
        for entry in _pair(a, b, resamples)
    ]


def _pair(a: tuple[str, Judged], b: tuple[str, Judged], resamples: int) -> list[dict[str, Any]]:
    shared = [place for place in a[1].rows if place in b[1].rows]
    ours, theirs = ([model.rows[place] for place in shared] for _, model in (a, b))
    single = all(len(rows) == 1 for rows in (*ours, *theirs))
    found = []
    for reading in READINGS:
        for level in ("prompt", "instruction"):
            whole = level == "prompt"
            units = [units_of(rows, reading, whole=whole) for rows in (ours, theirs)]
            entry: dict[str, Any] = {"a": a[0], "b": b[0], "reading": reading, "level": level}
            entry |= _difference(units[0], units[1], resamples)
            entry |= _discordant(units[0], units[1]) if whole and single and shared else _NONE
            found.append(entry)
    return found


_NONE = {"only_a": None, "only_b": None, "mcnemar_p": None}


def _difference(a: Units, b: Units, resamples: int) -> dict[str, Any]:
    # The same prompts in the same order, so the same totals.
    gained = Units([x - y for x, y in zip(a.followed, b.followed, strict=True)], a.total)
    [drawn] = resampled_values([gained], resamples)
    interval = percentile(drawn)
    return {
        "value_a": a.value,
        "value_b": b.value,
        "difference": gained.value,
        "low": interval.low,
        "high": interval.high,
        "why": interval.why if a.total else "no prompt is shared",
        "p": p_of_zero(drawn),
        "prompts": len(a.total),
    }


def _discordant(a: Units, b: Units) -> dict[str, Any]:
    pairs = list(zip(a.followed, b.followed, strict=True))
    only_a = sum(x > y for x, y in pairs)
    only_b = sum(x < y for x, y in pairs)
    return {"only_a": only_a, "only_b": only_b, "mcnemar_p": mcnemar(only_a, only_b)}
