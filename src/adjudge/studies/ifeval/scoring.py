"""A model's responses judged: accuracies with intervals, samples of one prompt kept together."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from adjudge.graders.instructions.following import Reading
from adjudge.graders.instructions.report import IfevalRow, JoinBy, score_ifeval
from adjudge.judge_training.benchmarks.intervals import RESAMPLES, percentile, resampled
from adjudge.studies.ifeval.files import Place, Response

__all__ = [
    "READINGS",
    "Judged",
    "Units",
    "judge_responses",
    "metrics_of",
    "resampled_values",
    "units_of",
]

READINGS: tuple[Reading, ...] = ("strict", "loose")


@dataclass
class Judged:
    """One model's judged responses.

    ``rows[place][sample]``. What is in none of them: ``without_response`` has the keys of prompts
    without a judged sample and without a failure, ``strays`` lines of responses to no prompt of the
    benchmark, ``failures`` counts by kind (not made, or not to be judged), ``failed`` the first
    messages. ``cut`` counts judged responses that ended by their length limit.
    """

    rows: dict[Place, dict[int, IfevalRow]] = field(default_factory=dict)
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
class Units:
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
    responses: Sequence[Response],
    *,
    by: JoinBy,
    on_progress: Callable[[int, int], None] = lambda *_: None,
) -> Judged:
    """Judge every sample of every prompt, by :func:`~adjudge.graders.instructions.report`'s rules.

    ``on_progress(done, total)`` hears of responses.
    """
    found = Judged()
    lots: dict[int, list[Response]] = defaultdict(list)
    answered: set[Place] = set()
    for one in responses:
        answered.add(one.place)
        if one.failure:
            found.failures[one.failure] += 1
        else:
            lots[one.sample].append(one)
    done, total = 0, sum(map(len, lots.values()))
    for sample in sorted(lots):
        _judge(found, prompts, lots[sample], sample, by)
        done += len(lots[sample])
        on_progress(done, total)
    found.strays.sort()
    found.without_response = [row.get("key") for row in prompts if row[by] not in answered]
    return found


def _judge(
    found: Judged,
    prompts: Sequence[Mapping[str, Any]],
    responses: Sequence[Response],
    sample: int,
    by: JoinBy,
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


def units_of(
    rows: Iterable[Mapping[int, IfevalRow]],
    reading: Reading,
    *,
    whole: bool = False,
    within: str = "",
) -> Units:
    """The prompts as units: instructions of each, or with ``whole`` the prompt as one.

    ``within``: only instructions of this category or type, and prompts that have one.
    """
    followed, total = [], []
    for samples in rows:
        kept = [at for at, name in enumerate(_asked(samples)) if _belongs(name, within)]
        if not kept:
            continue
        every = [row.followed(reading) for row in samples.values()]
        if whole:
            followed.append(sum(map(all, every)) / len(every))
            total.append(1)
        else:
            followed.append(sum(labels[at] for labels in every for at in kept) / len(every))
            total.append(len(kept))
    return Units(followed, total)


def _belongs(name: str, within: str) -> bool:
    return not within or within in (name, name.partition(":")[0])


def metrics_of(judged: Judged, *, resamples: int = RESAMPLES) -> dict[str, Any]:
    """By reading: ``prompt``, ``instruction``, ``by_category`` and ``by_type``, as plain data.

    Each has ``value``, the ends ``low`` and ``high`` of its 95 % percentile bootstrap interval over
    prompts (those that have the category or type), or ``why`` there is none, ``n`` (prompts, or
    instructions) and ``prompts``. With several samples a prompt counts with their mean.
    """
    rows = list(judged.rows.values())
    types = sorted({name for own in rows for name in _asked(own)})
    categories = sorted({name.partition(":")[0] for name in types})
    prompts = [units_of(rows, reading, whole=True) for reading in READINGS]
    instructions = [units_of(rows, reading) for reading in READINGS]
    overall = _metrics([*prompts, *instructions], resamples)

    def parts(names: Sequence[str]) -> list[dict[str, Any]]:
        found = {
            name: _metrics([units_of(rows, one, within=name) for one in READINGS], resamples)
            for name in names
        }
        return [{name: both[at] for name, both in found.items()} for at in range(len(READINGS))]

    by_category, by_type = parts(categories), parts(types)
    return {
        reading: {
            "prompt": overall[at],
            "instruction": overall[at + len(READINGS)],
            "by_category": by_category[at],
            "by_type": by_type[at],
        }
        for at, reading in enumerate(READINGS)
    }


def _asked(samples: Mapping[int, IfevalRow]) -> list[str]:
    """The instructions of a prompt."""
    return next(iter(samples.values())).instruction_id_list


def resampled_values(several: Sequence[Units], resamples: int) -> list[list[float | None]]:
    """Each one's value in resamples of its prompts, which are the same of all: drawn once."""
    values: list[list[float | None]] = [[] for _ in several]

    def drawn(places: list[list[int]]) -> None:
        for own, units in zip(values, several, strict=True):
            asked = sum(map(units.total.__getitem__, places[0]))
            followed = sum(map(units.followed.__getitem__, places[0]))
            own.append(followed / asked if asked else None)

    resampled([len(several[0].total)], drawn, resamples=resamples)
    return values


def _metrics(several: Sequence[Units], resamples: int) -> list[dict[str, Any]]:
    found = []
    for units, drawn in zip(several, resampled_values(several, resamples), strict=True):
        interval = percentile(drawn)
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
