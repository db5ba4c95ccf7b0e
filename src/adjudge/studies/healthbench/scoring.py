"""The official aggregate: means that are clipped once, bootstrap spread, means by tag.

Source: the HealthBench part of OpenAI's simple-evals (arXiv 2505.08775). A sample's score, points
of what is met over all positive points, is not clipped; what is clipped to [0, 1] is the mean.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from adjudge.judge_training.benchmarks.intervals import percentile, resampled
from adjudge.rubrics import Incomplete, Scored, score, score_range, subscores
from adjudge.studies.healthbench.items import Answer, Item

__all__ = ["RESAMPLES", "Marked", "marked", "missing_sample", "summarised"]

RESAMPLES = 1_000
"""As many as the published code draws."""


class Marked(msgspec.Struct, frozen=True, kw_only=True):
    """One sample: its ``score``, or ``kind`` and ``reason`` of why there is none.

    ``low`` and ``high``: between which the score lies where marks are missing, else the score.
    ``tags``: the score by tag (``axis:accuracy``), where its criteria are all marked and have
    something to earn; of a row's own tags the score itself.
    """

    key: str
    sample: int
    score: float | None
    low: float
    high: float
    tags: Mapping[str, float] = {}
    kind: str = ""
    reason: str = ""
    unsaid: bool = False


def missing_sample(item: Item, answer: Answer, kind: str, reason: str) -> Marked:
    """A sample about which nothing is known but what any marks could give."""
    low, high = score_range(item.rubric) or (0.0, 1.0)
    return Marked(
        key=item.key, sample=answer.sample, score=None, low=low, high=high, kind=kind, reason=reason
    )


def marked(item: Item, answer: Answer, detail: Mapping[str, Any]) -> Marked:
    """What a rubric grader's ``detail`` of a sample comes to."""
    metadata = detail.get("metadata") or {}
    known = {criterion.id for criterion in item.rubric.criteria}
    told = metadata.get("criteria") or {}
    marks = {name: one["met"] for name, one in told.items() if name in known}
    outcome = score(item.rubric, marks)
    if isinstance(outcome, Scored) and "error" not in detail:
        by_tag = _by_tag(item, marks) | dict.fromkeys(item.themes, outcome.score)
        return Marked(
            key=item.key,
            sample=answer.sample,
            score=outcome.score,
            low=outcome.score,
            high=outcome.score,
            tags=by_tag,
            unsaid=bool(metadata.get("empty") or metadata.get("unclosed_think")),
        )
    whole = missing_sample(
        item, answer, str(detail.get("kind", "incomplete")), str(detail.get("error", ""))
    )
    if isinstance(outcome, Incomplete):
        return msgspec.structs.replace(whole, low=outcome.low, high=outcome.high)
    return whole


def _by_tag(item: Item, marks: Mapping[str, Any]) -> dict[str, float]:
    names = dict.fromkeys(name for one in item.rubric.criteria for name in one.tags)
    found = {}
    for name in names:
        for value, outcome in subscores(item.rubric, marks, name).items():
            if isinstance(outcome, Scored):
                found[f"{name}:{value}"] = outcome.score
    return found


def summarised(samples: Sequence[Marked], *, seed: int = 0) -> dict[str, Any]:
    """``overall``, ``tags``, what is missing, and the ``bounds`` of the overall score.

    A prompt with several samples counts with the mean of those that have a score. ``bounds``: the
    overall score where every missing sample had its lowest, and its highest.
    """
    asked = _by_prompt(samples).values()
    prompts = _by_prompt([one for one in samples if one.score is not None])
    tags = sorted({tag for one in samples for tag in one.tags})
    ends = [
        _clipped(_mean([_mean([getattr(one, end) for one in own]) for own in asked]))
        for end in ("low", "high")
    ]
    kinds: dict[str, int] = {}
    for one in samples:
        if one.score is None:
            kinds[one.kind] = kinds.get(one.kind, 0) + 1
    return {
        "overall": _statistics([_mean(_scores(own)) for own in prompts.values()], seed),
        "tags": {tag: _statistics(_tagged(prompts.values(), tag), seed) for tag in tags},
        "bounds": ends,
        "samples": len(samples),
        "scored": sum(one.score is not None for one in samples),
        "unsaid": sum(one.unsaid for one in samples),
        "missing_by_kind": kinds,
    }


def _by_prompt(samples: Sequence[Marked]) -> dict[str, list[Marked]]:
    found: dict[str, list[Marked]] = {}
    for one in samples:
        found.setdefault(one.key, []).append(one)
    return found


def _scores(samples: Sequence[Marked]) -> list[float]:
    return [one.score for one in samples if one.score is not None]


def _tagged(prompts: Any, tag: str) -> list[float]:
    lists = ([one.tags[tag] for one in own if tag in one.tags] for own in prompts)
    return [_mean(own) for own in lists if own]


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else 0.0


def _clipped(value: float) -> float:
    return min(1.0, max(0.0, value))


def _statistics(values: Sequence[float], seed: int) -> dict[str, Any]:
    """``score`` (clipped mean), ``bootstrap_std``, its 95 % interval, ``n_samples``."""
    if not values:
        return {"score": None, "mean": None, "bootstrap_std": None, "low": None, "high": None,
                "why": "no sample has a score", "n_samples": 0}  # fmt: skip

    def resample(places: list[list[int]]) -> float:
        return _clipped(_mean([values[at] for at in places[0]]))

    drawn = resampled([len(values)], resample, resamples=RESAMPLES, seed=seed)
    interval = percentile(drawn)
    return {
        "score": _clipped(_mean(values)),
        "mean": _mean(values),
        "bootstrap_std": statistics.pstdev([one for one in drawn if one is not None]),
        "low": interval.low,
        "high": interval.high,
        "why": interval.why,
        "n_samples": len(values),
    }
