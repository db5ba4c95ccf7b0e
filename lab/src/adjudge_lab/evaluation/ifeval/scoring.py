"""A model's responses judged: accuracies with intervals, and two models compared.

Samples of one prompt are kept together. Two models are compared on the prompts that both answered:
differences with intervals, an exact test.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from adjudge.graders.instructions.grader import ReadingMode
from adjudge.graders.instructions.report import IfevalJoinBy, IfevalRow, score_ifeval
from adjudge.judge_evaluation.benchmarks.statistics import (
    DEFAULT_RESAMPLES,
    bootstrap_p_value,
    mcnemar_p_value,
    percentile_interval,
    resample_statistic,
)
from adjudge_lab.evaluation.ifeval.files import IfevalResponse, JoinKey

__all__ = [
    "IFEVAL_READINGS",
    "JudgedResponses",
    "PromptUnits",
    "build_prompt_units",
    "compare_ifeval_models",
    "compute_ifeval_metrics",
    "judge_responses",
    "resample_values",
]


IFEVAL_READINGS: tuple[ReadingMode, ...] = ("strict", "loose")


@dataclass
class JudgedResponses:
    """One model's judged responses.

    ``rows[place][sample]``. What is in none of them: ``without_response`` has the keys of prompts
    without a judged sample and without a failure, ``strays`` lines of responses to no prompt of the
    benchmark, ``failures`` counts by kind (not made, or not to be judged), ``failed`` the first
    messages. ``cut`` counts judged responses that ended by their length limit.
    """

    rows: dict[JoinKey, dict[int, IfevalRow]] = field(default_factory=dict)
    without_response: list[Any] = field(default_factory=list)
    strays: list[int] = field(default_factory=list)
    failures: Counter[str] = field(default_factory=Counter)
    failed: list[str] = field(default_factory=list)
    cut: int = 0

    @property
    def samples(self) -> tuple[int, int]:
        """Fewest and most judged samples of a prompt that has any."""
        counts = [len(own) for own in self.rows.values()]
        return (min(counts), max(counts)) if counts else (0, 0)


@dataclass(frozen=True)
class PromptUnits:
    """What is resampled: a prompt with what it followed (samples' mean) and of how many."""

    followed: list[float]
    total: list[int]

    @property
    def value(self) -> float | None:
        """Followed of total, in [0, 1]; ``None`` of nothing."""
        asked = sum(self.total)
        return sum(self.followed) / asked if asked else None


def judge_responses(
    prompts: Sequence[Mapping[str, Any]],
    responses: Sequence[IfevalResponse],
    *,
    by: IfevalJoinBy,
    on_progress: Callable[[int, int], None] = lambda *_: None,
) -> JudgedResponses:
    """Judge every sample of every prompt, by :func:`~adjudge.graders.instructions.report`'s rules.

    ``on_progress(done, total)`` hears of responses.
    """
    found = JudgedResponses()
    lots: dict[int, list[IfevalResponse]] = defaultdict(list)
    answered: set[JoinKey] = set()
    for one in responses:
        answered.add(one.place)
        if one.failure:
            found.failures[one.failure] += 1
        else:
            lots[one.sample].append(one)
    done, total = 0, sum(map(len, lots.values()))
    for sample in sorted(lots):
        _judge_sample(found, prompts, lots[sample], sample, by)
        done += len(lots[sample])
        on_progress(done, total)
    found.strays.sort()
    found.without_response = [row.get("key") for row in prompts if row[by] not in answered]
    return found


def _judge_sample(
    found: JudgedResponses,
    prompts: Sequence[Mapping[str, Any]],
    responses: Sequence[IfevalResponse],
    sample: int,
    by: IfevalJoinBy,
) -> None:
    given = [{by: one.place, "response": one.text} for one in responses]
    report = score_ifeval(prompts, given, by=by)
    cut = {one.place for one in responses if one.cut}
    for row in report.rows:
        place = row.prompt if by == "prompt" else row.key
        found.rows.setdefault(place, {})[sample] = row
        found.cut += place in cut
    found.strays += [responses[number - 1].line for number in report.without_prompt]
    for failure in report.failures:
        found.failures[failure.kind.value] += 1
        found.failed.append(f"key {failure.key}: {failure.message}")


def build_prompt_units(
    rows: Iterable[Mapping[int, IfevalRow]],
    reading: ReadingMode,
    *,
    whole: bool = False,
    within: str = "",
) -> PromptUnits:
    """The prompts as units: instructions of each, or with ``whole`` the prompt as one.

    ``within``: only instructions of this category or type, and prompts that have one.
    """
    followed, total = [], []
    for samples in rows:
        kept = [
            at for at, name in enumerate(_instruction_names(samples)) if _is_within(name, within)
        ]
        if not kept:
            continue
        every = [row.followed(reading) for row in samples.values()]
        if whole:
            followed.append(sum(map(all, every)) / len(every))
            total.append(1)
        else:
            followed.append(sum(labels[at] for labels in every for at in kept) / len(every))
            total.append(len(kept))
    return PromptUnits(followed, total)


def _is_within(name: str, within: str) -> bool:
    return not within or within in (name, name.partition(":")[0])


def compute_ifeval_metrics(
    judged: JudgedResponses, *, resamples: int = DEFAULT_RESAMPLES
) -> dict[str, Any]:
    """By reading: ``prompt``, ``instruction``, ``by_category`` and ``by_type``, as plain data.

    Each has ``value``, the ends ``low`` and ``high`` of its 95 % percentile bootstrap interval over
    prompts (those that have the category or type), or ``why`` there is none, ``n`` (prompts, or
    instructions) and ``prompts``. With several samples a prompt counts with their mean.
    """
    rows = list(judged.rows.values())
    types = sorted({name for own in rows for name in _instruction_names(own)})
    categories = sorted({name.partition(":")[0] for name in types})
    prompts = [build_prompt_units(rows, reading, whole=True) for reading in IFEVAL_READINGS]
    instructions = [build_prompt_units(rows, reading) for reading in IFEVAL_READINGS]
    overall = _interval_metrics([*prompts, *instructions], resamples)

    def parts(names: Sequence[str]) -> list[dict[str, Any]]:
        found = {
            name: _interval_metrics(
                [build_prompt_units(rows, one, within=name) for one in IFEVAL_READINGS], resamples
            )
            for name in names
        }
        return [
            {name: both[at] for name, both in found.items()} for at in range(len(IFEVAL_READINGS))
        ]

    by_category, by_type = parts(categories), parts(types)
    return {
        reading: {
            "prompt": overall[at],
            "instruction": overall[at + len(IFEVAL_READINGS)],
            "by_category": by_category[at],
            "by_type": by_type[at],
        }
        for at, reading in enumerate(IFEVAL_READINGS)
    }


def _instruction_names(samples: Mapping[int, IfevalRow]) -> list[str]:
    """The instructions of a prompt."""
    return next(iter(samples.values())).instruction_id_list


def resample_values(several: Sequence[PromptUnits], resamples: int) -> list[list[float | None]]:
    """Each one's value in resamples of its prompts, which are the same of all: drawn once."""
    values: list[list[float | None]] = [[] for _ in several]

    def add_values(places: list[list[int]]) -> None:
        for own, units in zip(values, several, strict=True):
            asked = sum(map(units.total.__getitem__, places[0]))
            followed = sum(map(units.followed.__getitem__, places[0]))
            own.append(followed / asked if asked else None)

    resample_statistic([len(several[0].total)], add_values, resamples=resamples)
    return values


def _interval_metrics(several: Sequence[PromptUnits], resamples: int) -> list[dict[str, Any]]:
    found = []
    for units, drawn in zip(several, resample_values(several, resamples), strict=True):
        interval = percentile_interval(drawn)
        found.append(
            {
                "value": units.value,
                "low": interval.low,
                "high": interval.high,
                "why": interval.why,
                "n": sum(units.total),
                "prompts": len(units.total),
            }
        )
    return found


def compare_ifeval_models(
    models: Sequence[tuple[str, JudgedResponses]], *, resamples: int = DEFAULT_RESAMPLES
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
        for entry in _compare_pair(a, b, resamples)
    ]


def _compare_pair(
    a: tuple[str, JudgedResponses], b: tuple[str, JudgedResponses], resamples: int
) -> list[dict[str, Any]]:
    shared = [place for place in a[1].rows if place in b[1].rows]
    ours, theirs = ([model.rows[place] for place in shared] for _, model in (a, b))
    single = all(len(rows) == 1 for rows in (*ours, *theirs))
    found = []
    for reading in IFEVAL_READINGS:
        for level in ("prompt", "instruction"):
            whole = level == "prompt"
            units = [build_prompt_units(rows, reading, whole=whole) for rows in (ours, theirs)]
            entry: dict[str, Any] = {"a": a[0], "b": b[0], "reading": reading, "level": level}
            entry |= _compare_units(units[0], units[1], resamples)
            entry |= _discordant(units[0], units[1]) if whole and single and shared else _NO_MCNEMAR
            found.append(entry)
    return found


_NO_MCNEMAR = {"only_a": None, "only_b": None, "mcnemar_p": None}


def _compare_units(a: PromptUnits, b: PromptUnits, resamples: int) -> dict[str, Any]:
    # The same prompts in the same order, so the same totals.
    gained = PromptUnits([x - y for x, y in zip(a.followed, b.followed, strict=True)], a.total)
    [drawn] = resample_values([gained], resamples)
    interval = percentile_interval(drawn)
    return {
        "value_a": a.value,
        "value_b": b.value,
        "difference": gained.value,
        "low": interval.low,
        "high": interval.high,
        "why": interval.why if a.total else "no prompt is shared",
        "p": bootstrap_p_value(drawn),
        "prompts": len(a.total),
    }


def _discordant(a: PromptUnits, b: PromptUnits) -> dict[str, Any]:
    pairs = list(zip(a.followed, b.followed, strict=True))
    only_a = sum(x > y for x, y in pairs)
    only_b = sum(x < y for x, y in pairs)
    return {"only_a": only_a, "only_b": only_b, "mcnemar_p": mcnemar_p_value(only_a, only_b)}
