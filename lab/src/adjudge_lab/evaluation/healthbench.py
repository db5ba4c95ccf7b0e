"""HealthBench's rows with their rubrics, the answers joined to them, and the official aggregate.

The aggregate: means that are clipped once, bootstrap spread, means by tag. Source: the HealthBench
part of OpenAI's simple-evals (arXiv 2505.08775). A sample's score, points of what is met over all
positive points, is not clipped; what is clipped to [0, 1] is the mean.
"""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from adjudge.datasets.files import read_rows
from adjudge.errors import ConfigError, GradingFailure, RolloutError
from adjudge.messages import content_text, read_prompt
from adjudge.rubrics import (
    Incomplete,
    Rubric,
    RubricScore,
    rubric_from,
    score,
    score_range,
    subscores,
)
from adjudge.stats.estimates import expanded_tail, percentile_interval, resample_statistics
from adjudge.types import MISSING, get_path
from adjudge_lab.evaluation.responses import (
    FileProblem,
    JoinBy,
    PromptResponse,
    read_responses,
)

_RUBRIC_COLUMNS = ("rubrics", "rubric", "reward_model.rubrics", "extra_info.reward_model.rubrics")
_KEY_COLUMNS = ("prompt_id", "key", "id")


class HealthbenchItem(msgspec.Struct, frozen=True, kw_only=True):
    """One conversation to be answered, and what a good answer has.

    ``key``: the row's ``prompt_id``, ``key`` or ``id``, else its number from 0. ``place`` is what
    answers are joined by. ``themes``: tags of the whole row, such as ``theme:hedging``.
    """

    key: str
    place: str
    turns: list[dict[str, Any]]
    rubric: Rubric
    themes: tuple[str, ...] = ()


def read_healthbench_items(path: Path, by: JoinBy) -> list[HealthbenchItem]:
    """The rows of a HealthBench file: ``prompt`` (chat messages) and a rubric each.

    The rubric is ``rubrics`` (or ``rubric``, or in ``reward_model`` as verl has it): a list of
    ``{criterion, points, tags}``; tags are an object, or a list such as ``["axis:accuracy"]``.
    ``example_tags`` are the row's own. Raises :class:`ConfigError` for a row that is broken or
    has nothing to earn, and for two rows with the same prompt (by which answers are joined) or the
    same key: the rows are the benchmark, so none is left out in silence.
    """
    items: list[HealthbenchItem] = []
    seen: dict[str, str] = {}
    for number, (where, row) in enumerate(read_rows([path])):
        if isinstance(row, RolloutError):
            raise ConfigError(str(row))
        item = _read_item(row, where, number, by)
        for name, place in {by: item.place, "key": item.key}.items():
            if (first := seen.setdefault(f"{name} {place}", where)) != where:
                which = "" if name == by else f" ({place[:80]!r})"
                raise ConfigError(
                    f"{where}: has the same {name}{which} as {first}. Keep one of them."
                )
        items.append(item)
    if not items:
        raise ConfigError(f"{path}: has no rows")
    return items


def _read_item(row: Mapping[str, Any], where: str, number: int, by: JoinBy) -> HealthbenchItem:
    prompt = read_prompt(row.get("prompt"))
    if prompt is None:
        raise ConfigError(
            f"{where}: prompt: must be chat messages or a text (found columns: "
            f"{', '.join(map(str, row))[:200]})"
        )
    found = (get_path(row, path) for path in _RUBRIC_COLUMNS)
    given = next((one for one in found if one is not MISSING and one is not None), None)
    try:
        rubric = dataclasses.replace(rubric_from(given, where=where), scheme="points", clip=False)
    except GradingFailure as error:
        raise ConfigError(
            f"{error}. Give each entry of rubrics as {{criterion, points, tags}}."
        ) from None
    if score_range(rubric) is None:
        raise ConfigError(f"{where}: has no criterion with positive points, so it cannot be scored")
    key = _row_key(row) or str(number)
    tags = row.get("example_tags") or ()
    return HealthbenchItem(
        key=key,
        place=key if by == "key" else _prompt_key(prompt),
        turns=prompt,
        rubric=rubric,
        themes=tuple(tag for tag in tags if isinstance(tag, str)),
    )


def _prompt_key(turns: list[dict[str, Any]]) -> str:
    return json.dumps([[str(t.get("role")), content_text(t.get("content"))] for t in turns])


def _row_key(row: Mapping[str, Any]) -> str:
    found = (row.get(name) for name in _KEY_COLUMNS)
    return next((str(one) for one in found if isinstance(one, str | int)), "")


def read_healthbench_answers(
    path: Path, by: JoinBy
) -> tuple[list[PromptResponse], list[FileProblem]]:
    """The answers of a file and what was wrong with it, as :func:`read_responses` reads them.

    They are joined by the whole ``prompt``, as the benchmark has it, or by a key.
    """
    return read_responses(path, by, _key_place if by == "key" else _prompt_place, texts_only=True)


def _key_place(row: Mapping[str, Any]) -> str | None:
    return _row_key(row) or None


def _prompt_place(row: Mapping[str, Any]) -> str | None:
    turns = read_prompt(row.get("prompt"))
    return None if turns is None else _prompt_key(turns)


HEALTHBENCH_RESAMPLES = 1_000
"""As many as the published code draws."""


class MarkedSample(msgspec.Struct, frozen=True, kw_only=True):
    """One sample: its ``score``, or why it has no score (``kind``, ``reason``).

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


def build_missing_sample(
    item: HealthbenchItem, answer: PromptResponse, kind: str, reason: str
) -> MarkedSample:
    """A sample about which nothing is known but what any marks could give."""
    low, high = score_range(item.rubric) or (0.0, 1.0)
    return MarkedSample(
        key=item.key, sample=answer.sample, score=None, low=low, high=high, kind=kind, reason=reason
    )


def mark_sample(
    item: HealthbenchItem, answer: PromptResponse, detail: Mapping[str, Any]
) -> MarkedSample:
    """The marked sample from a rubric grader's ``detail``."""
    metadata = detail.get("metadata") or {}
    known = {criterion.id for criterion in item.rubric.criteria}
    criteria = metadata.get("criteria") or {}
    marks = {name: one["met"] for name, one in criteria.items() if name in known}
    outcome = score(item.rubric, marks)
    if isinstance(outcome, RubricScore) and "error" not in detail:
        by_tag = _tag_scores(item, marks) | dict.fromkeys(item.themes, outcome.score)
        return MarkedSample(
            key=item.key,
            sample=answer.sample,
            score=outcome.score,
            low=outcome.score,
            high=outcome.score,
            tags=by_tag,
            unsaid=bool(metadata.get("empty") or metadata.get("unclosed_think")),
        )
    whole = build_missing_sample(
        item, answer, str(detail.get("kind", "incomplete")), str(detail.get("error", ""))
    )
    if isinstance(outcome, Incomplete):
        return msgspec.structs.replace(whole, low=outcome.low, high=outcome.high)
    return whole


def _tag_scores(item: HealthbenchItem, marks: Mapping[str, Any]) -> dict[str, float]:
    names = dict.fromkeys(name for one in item.rubric.criteria for name in one.tags)
    found = {}
    for name in names:
        for value, outcome in subscores(item.rubric, marks, name).items():
            if isinstance(outcome, RubricScore):
                found[f"{name}:{value}"] = outcome.score
    return found


def summarise_healthbench(samples: Sequence[MarkedSample]) -> dict[str, Any]:
    """``overall``, ``tags``, what is missing, and the ``bounds`` of the overall score.

    A prompt with several samples counts with the mean of those that have a score. ``bounds``: the
    overall score where every missing sample had its lowest, and its highest.
    """
    asked = _group_by_prompt(samples).values()
    prompts = _group_by_prompt([one for one in samples if one.score is not None])
    tags = sorted({tag for one in samples for tag in one.tags})
    ends = [
        _clip(_mean([_mean([getattr(one, end) for one in own]) for own in asked]))
        for end in ("low", "high")
    ]
    kinds: dict[str, int] = {}
    for one in samples:
        if one.score is None:
            kinds[one.kind] = kinds.get(one.kind, 0) + 1
    return {
        "overall": _statistics([_mean(_known_scores(own)) for own in prompts.values()]),
        "tags": {tag: _statistics(_tag_means(prompts.values(), tag)) for tag in tags},
        "bounds": ends,
        "samples": len(samples),
        "scored": sum(one.score is not None for one in samples),
        "unsaid": sum(one.unsaid for one in samples),
        "missing_by_kind": kinds,
    }


def _group_by_prompt(samples: Sequence[MarkedSample]) -> dict[str, list[MarkedSample]]:
    found: dict[str, list[MarkedSample]] = {}
    for one in samples:
        found.setdefault(one.key, []).append(one)
    return found


def _known_scores(samples: Sequence[MarkedSample]) -> list[float]:
    return [one.score for one in samples if one.score is not None]


def _tag_means(prompts: Any, tag: str) -> list[float]:
    lists = ([one.tags[tag] for one in own if tag in one.tags] for own in prompts)
    return [_mean(own) for own in lists if own]


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else 0.0


def _clip(value: float) -> float:
    return min(1.0, max(0.0, value))


def _statistics(values: Sequence[float]) -> dict[str, Any]:
    """``score`` (clipped mean), ``bootstrap_std``, its 95 % interval, ``n_samples``."""
    if not values:
        return {"score": None, "mean": None, "bootstrap_std": None, "low": None, "high": None,
                "why": "no sample has a score", "n_samples": 0}  # fmt: skip

    drawn = resample_statistics(
        [[(value, 1.0) for value in values]],
        lambda sums: _clip(sums[0] / sums[1]),
        resamples=HEALTHBENCH_RESAMPLES,
        seed=0,
    )
    interval = percentile_interval(drawn, tail=expanded_tail(len(values)))
    return {
        "score": _clip(_mean(values)),
        "mean": _mean(values),
        "bootstrap_std": statistics.pstdev(drawn),
        "low": interval.low,
        "high": interval.high,
        "why": interval.why,
        "n_samples": len(values),
    }
