"""Models' responses judged: accuracies with intervals and bounds, and every two models compared.

Samples of one prompt are kept together. Two models are compared on the prompts that both answered:
differences with intervals, an exact test. Every number is a ratio of two sums over prompts, or the
mean of two, so a resample is a row of counts times columns, and all models and pairs share the
draws of one size.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import combinations
from operator import gt, lt, sub
from statistics import fmean
from typing import Any, NamedTuple

from adjudge.errors import ErrorKind, GradingFailure
from adjudge.graders.ifeval import (
    ReadingMode,
    follows,
    parse_instructions,
)
from adjudge.stats import Estimate
from adjudge.stats.estimates import (
    DEFAULT_RESAMPLES,
    binomial_two_sided,
    bootstrap_p_value,
    draw_counts,
    expanded_tail,
    np,
    percentile_interval,
)
from adjudge_lab.evaluation.responses import JoinBy, JoinKey, PromptResponse

IFEVAL_READINGS: tuple[ReadingMode, ...] = ("strict", "loose")


@dataclass(frozen=True)
class IfevalRow:
    """One judged response: for each instruction whether it is followed, in both readings."""

    key: Any
    prompt: str
    response: str
    instruction_id_list: list[str]
    labels: Mapping[ReadingMode, list[bool]]

    def output(self, reading: ReadingMode) -> dict[str, Any]:
        """The row as the reference writes it to ``eval_results_strict.jsonl`` (or ``_loose``)."""
        return {
            "follow_all_instructions": all(self.labels[reading]),
            "follow_instruction_list": self.labels[reading],
            "instruction_id_list": self.instruction_id_list,
            "prompt": self.prompt,
            "response": self.response,
        }


@dataclass
class JudgedResponses:
    """One model's judged responses.

    ``rows[place][sample]``. What is in none of them: ``without_response`` has the keys of prompts
    without a judged sample and without a failure, ``strays`` lines of responses to no prompt of the
    benchmark, ``failures`` counts by kind (not made, or not to be judged), ``failed`` the first
    messages. ``cut`` counts judged responses that ended by their length limit.

    ``instructions`` has the types of every prompt of the benchmark, in its order, and
    ``responses_due`` how many responses each should have: the most that any has, failed ones too.
    """

    rows: dict[JoinKey, dict[int, IfevalRow]] = field(default_factory=dict)
    without_response: list[Any] = field(default_factory=list)
    strays: list[int] = field(default_factory=list)
    failures: Counter[str] = field(default_factory=Counter)
    failed: list[str] = field(default_factory=list)
    cut: int = 0
    instructions: dict[JoinKey, list[str]] = field(default_factory=dict)
    responses_due: int = 1

    @property
    def samples(self) -> tuple[int, int]:
        """Fewest and most judged samples of a prompt that has any."""
        counts = [len(own) for own in self.rows.values()]
        return (min(counts), max(counts)) if counts else (0, 0)


def judge_responses(
    prompts: Sequence[Mapping[str, Any]],
    responses: Sequence[PromptResponse],
    *,
    by: JoinBy,
    on_progress: Callable[[int, int], None] = lambda *_: None,
) -> JudgedResponses:
    """Judge every sample of every prompt.

    A response that is not text, and instructions that cannot be read, are failures: in no share,
    never counted as 0. ``on_progress(done, total)`` hears of responses.
    """
    found = JudgedResponses()
    found.instructions = {row[by]: _instruction_types(row) for row in prompts}
    lots: dict[int, list[PromptResponse]] = defaultdict(list)
    answered: Counter[JoinKey] = Counter()
    for one in responses:
        answered[one.place] += 1
        if one.failure:
            found.failures[one.failure] += 1
        else:
            lots[one.sample].append(one)
    done, total = 0, sum(map(len, lots.values()))
    for _, lot in sorted(lots.items()):
        given = {each.place: each for each in lot}
        found.strays += [odd.line for odd in lot if odd.place not in found.instructions]
        for prompt in prompts:
            if (said := given.get(prompt[by])) is not None:
                _judge_response(found, prompt, said)
        done += len(lot)
        on_progress(done, total)
    found.strays.sort()
    found.without_response = [row.get("key") for row in prompts if row[by] not in answered]
    found.responses_due = max(answered[place] for place in found.instructions)
    return found


def _instruction_types(prompt: Mapping[str, Any]) -> list[str]:
    names = prompt["instruction_id_list"]
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


def _judge_response(found: JudgedResponses, prompt: Mapping[str, Any], one: PromptResponse) -> None:
    try:
        row = _judge_text(prompt, one.text)
    except GradingFailure as failure:
        found.failures[failure.kind.value] += 1
        found.failed.append(f"key {prompt.get('key')}: {failure}")
    else:
        found.rows.setdefault(one.place, {})[one.sample] = row
        found.cut += one.cut


def _judge_text(prompt: Mapping[str, Any], text: Any) -> IfevalRow:
    if not isinstance(text, str):
        message = f"response must be text, got {type(text).__name__}"
        raise GradingFailure(ErrorKind.INVALID_INPUT, message)
    asked = parse_instructions(prompt.get("instruction_id_list"), prompt.get("kwargs"))
    checks = [check for _, check in asked]
    return IfevalRow(
        key=prompt.get("key"),
        prompt=prompt["prompt"],
        response=text,
        instruction_id_list=[name for name, _ in asked],
        labels={reading: follows(text, checks, reading) for reading in IFEVAL_READINGS},
    )


Part = tuple[str, str]
"""``prompt`` or ``instruction`` and nothing, or ``by_category`` or ``by_type`` and a name."""

_PROMPT, _INSTRUCTION, _MEAN = ("prompt", ""), ("instruction", ""), ("mean", "")


@cache
def _parts(instruction: str) -> tuple[Part, ...]:
    """Where an instruction counts."""
    category = instruction.partition(":")[0]
    return _INSTRUCTION, ("by_category", category), ("by_type", instruction)


@dataclass
class _PartTotals:
    """One part of one model: of each prompt that has it, what was followed and of how many.

    ``followed`` is the mean over the prompt's judged samples. ``least`` and ``most`` are sums over
    all prompts and responses that are due, with every missing response wrong, or right, and ``due``
    what they are of.
    """

    followed: list[float] = field(default_factory=list)
    total: list[int] = field(default_factory=list)
    least: int = 0
    most: int = 0
    due: int = 0


def _totals_by_part(judged: JudgedResponses, reading: ReadingMode) -> dict[Part, _PartTotals]:
    found: dict[Part, _PartTotals] = defaultdict(_PartTotals)
    for place, names in judged.instructions.items():
        samples = judged.rows.get(place, {})
        for part, (followed, count) in _followed_by_part(names, samples, reading).items():
            totals = found[part]
            if samples:
                totals.followed.append(followed / len(samples))
                totals.total.append(count)
            missing = judged.responses_due - len(samples)
            totals.least += followed
            totals.most += followed + missing * count
            totals.due += judged.responses_due * count
    return found


def _followed_by_part(
    names: Sequence[str], samples: Mapping[int, IfevalRow], reading: ReadingMode
) -> dict[Part, tuple[int, int]]:
    """What a prompt's samples followed together, and of how many one sample could."""
    if not names:
        return {}
    every = [row.labels[reading] for row in samples.values()]
    found = {_PROMPT: (sum(map(all, every)), 1)}
    for at, name in enumerate(names):
        hits = sum(labels[at] for labels in every)
        for part in _parts(name):
            followed, count = found.get(part, (0, 0))
            found[part] = (followed + hits, count + 1)
    return found


def compute_ifeval_metrics(
    models: Sequence[JudgedResponses], *, resamples: int = DEFAULT_RESAMPLES
) -> list[dict[str, Any]]:
    """Of each model, by reading: ``prompt``, ``instruction``, ``by_category`` and ``by_type``.

    Also ``mean``, that of ``prompt`` and ``instruction``: on model cards IFEval's average.

    Each has ``value``, the ends ``low`` and ``high`` of its 95 % expanded bootstrap interval over
    prompts (those that have the category or type), or ``why`` it has none, ``n`` (prompts, or
    instructions) and ``prompts``. With several samples a prompt counts with their mean.

    ``least`` and ``most`` are the value if every missing response followed nothing, or everything:
    all that are due to a prompt of the benchmark and have no label. They are no interval, and equal
    to ``value`` where nothing is missing.
    """
    columns = {
        (at, reading, part): totals
        for at, judged in enumerate(models)
        for reading in IFEVAL_READINGS
        for part, totals in _totals_by_part(judged, reading).items()
        if totals.total
    }
    means = {
        (at, reading, _MEAN): ((at, reading, _PROMPT), (at, reading, _INSTRUCTION))
        for at, reading, part in columns
        if part == _PROMPT
    }
    places = {where: at for at, where in enumerate(columns)}
    estimates = bootstrap_ratios(
        [PromptRatio(one.followed, one.total) for one in columns.values()],
        resamples,
        means=[(places[a], places[b]) for a, b in means.values()],
    )
    cells = {
        where: _metric_cell(totals, found)
        for (where, totals), (found, _) in zip(columns.items(), estimates, strict=False)
    }
    for (where, (a, b)), (found, _) in zip(means.items(), estimates[len(columns) :], strict=True):
        cells[where] = _mean_cell(cells[a], cells[b], found)
    return [
        _metrics_of_model({(r, part): cell for (of, r, part), cell in cells.items() if of == at})
        for at in range(len(models))
    ]


def _mean_cell(
    prompts: Mapping[str, Any], instructions: Mapping[str, Any], found: Estimate
) -> dict[str, Any]:
    """The mean of the shares of prompts and of instructions, of the same prompts."""
    bounds = {key: fmean((prompts[key], instructions[key])) for key in ("least", "most")}
    ends = {"value": found.value, "low": found.low, "high": found.high, "why": found.why}
    return {**ends, **bounds, "n": prompts["n"], "prompts": prompts["prompts"]}


def _metric_cell(totals: _PartTotals, found: Estimate) -> dict[str, Any]:
    return {
        "value": found.value,
        "low": found.low,
        "high": found.high,
        "why": found.why,
        "least": totals.least / totals.due,
        "most": totals.most / totals.due,
        "n": sum(totals.total),
        "prompts": len(totals.total),
    }


def _metrics_of_model(cells: Mapping[tuple[ReadingMode, Part], Any]) -> dict[str, Any]:
    found: dict[str, Any] = {
        reading: {"prompt": None, "instruction": None, "mean": None}
        | {"by_category": {}, "by_type": {}}
        for reading in IFEVAL_READINGS
    }
    for (reading, (level, name)), cell in sorted(cells.items()):
        if name:
            found[reading][level][name] = cell
        else:
            found[reading][level] = cell
    return found


class PromptRatio(NamedTuple):
    """A sum over prompts by another: each prompt's part in either, in order."""

    followed: Sequence[float]
    total: Sequence[float]

    @property
    def value(self) -> float | None:
        """``None`` of nothing."""
        total = math.fsum(self.total)
        return math.fsum(self.followed) / total if total else None


_ROUNDING = 1e-12
_COLUMNS_AT_ONCE = 512
"""Columns resampled together: 2,000 resamples of so many take 8 MB."""


def bootstrap_ratios(
    ratios: Sequence[PromptRatio],
    resamples: int = DEFAULT_RESAMPLES,
    *,
    seed: int = 0,
    means: Sequence[tuple[int, int]] = (),
) -> list[tuple[Estimate, float | None]]:
    """Each ratio with its expanded 95 % interval over prompts, and its p against 0.

    Then likewise the mean of each two ratios that ``means`` names by their places; both are of the
    same prompts. Ratios over as many prompts share their resamples. No total of a prompt may be 0.
    """
    found: dict[int, tuple[Estimate, float | None]] = {}
    by_size: dict[int, list[int]] = defaultdict(list)
    for at, one in enumerate(ratios):
        by_size[len(one.total)].append(at)
    for size, places in by_size.items():
        tail = expanded_tail(size)
        counts = list(draw_counts(size, resamples, seed)) if size else []
        for first in range(0, len(places), _COLUMNS_AT_ONCE):
            some = places[first : first + _COLUMNS_AT_ONCE]
            drawn = _resampled_ratios([ratios[at] for at in some], counts)
            for at, own in zip(some, drawn, strict=True):
                interval = percentile_interval(own, ratios[at].value, tail=tail)
                found[at] = interval, bootstrap_p_value(own, size)
        for at, pair in enumerate(means, len(ratios)):
            if pair[0] in places:
                two = [ratios[one] for one in pair]
                own = np.mean(_resampled_ratios(two, counts), axis=0)
                values = [one.value for one in two if one.value is not None]
                value = fmean(values) if len(values) == len(two) else None
                interval = percentile_interval(own, value, tail=tail)
                found[at] = interval, bootstrap_p_value(own, size)
    return [found[at] for at in range(len(ratios) + len(means))]


def _resampled_ratios(ratios: Sequence[PromptRatio], counts: Sequence[Any]) -> Any:
    """Each ratio in every resample: (ratios, resamples)."""
    if not counts:
        return [[]] * len(ratios)
    followed = np.array([one.followed for one in ratios], dtype=float)
    total = np.array([one.total for one in ratios], dtype=float)
    drawn = np.concatenate([(followed @ some.T) / (total @ some.T) for some in counts], axis=1)
    drawn[abs(drawn) < _ROUNDING] = 0.0
    return drawn


def compare_ifeval_models(
    models: Sequence[tuple[str, JudgedResponses]], *, resamples: int = DEFAULT_RESAMPLES
) -> list[dict[str, Any]]:
    """Every two models, reading and level, as plain data.

    ``difference`` is ``a`` less ``b`` over the prompts that both have a judged sample of, with its
    95 % paired expanded bootstrap interval over prompts and its two-sided ``p``; values are
    ``None`` where no prompt is shared. At prompt level with one sample each, ``only_a`` and
    ``only_b`` count the prompts that one follows and the other does not, and ``mcnemar_p`` is the
    exact p of equal chances. No p is adjusted for the number of comparisons.
    """
    labels = [_labels_by_level(judged) for _, judged in models]
    pairs = [
        pair
        for (a, ours), (b, theirs) in combinations(zip(models, labels, strict=True), 2)
        for pair in _pair_models(a, b, ours, theirs)
    ]
    found = bootstrap_ratios([pair.gained for pair in pairs], resamples)
    return [_comparison(*one) for one in zip(pairs, found, strict=True)]


_LEVELS: Mapping[str, Callable[[Sequence[bool]], int]] = {"prompt": all, "instruction": sum}
"""What each counts of one sample's labels."""

_Labels = Mapping[JoinKey, Mapping[tuple[ReadingMode, str], float]]
"""Of each judged prompt, by reading and level, what its samples follow in the mean."""


def _labels_by_level(judged: JudgedResponses) -> _Labels:
    return {
        place: {
            (reading, level): sum(count(row.labels[reading]) for row in samples.values())
            / len(samples)
            for reading in IFEVAL_READINGS
            for level, count in _LEVELS.items()
        }
        for place, names in judged.instructions.items()
        if names and (samples := judged.rows.get(place))
    }


class _Pair(NamedTuple):
    """Two models at one reading and level, over the prompts that both have."""

    names: tuple[str, str]
    reading: ReadingMode
    level: str
    first: list[float]
    second: list[float]
    total: list[int]
    single: bool

    @property
    def gained(self) -> PromptRatio:
        """The first less the second."""
        return PromptRatio(list(map(sub, self.first, self.second)), self.total)


def _pair_models(
    a: tuple[str, JudgedResponses], b: tuple[str, JudgedResponses], ours: _Labels, theirs: _Labels
) -> Iterator[_Pair]:
    shared = [place for place in ours if place in theirs]
    single = all(len(model.rows[place]) == 1 for place in shared for _, model in (a, b))
    counts = {"prompt": [1] * len(shared)}
    counts["instruction"] = [len(a[1].instructions[place]) for place in shared]
    for reading in IFEVAL_READINGS:
        for level in _LEVELS:
            first, second = (
                [rows[place][reading, level] for place in shared] for rows in (ours, theirs)
            )
            yield _Pair((a[0], b[0]), reading, level, first, second, counts[level], single)


def _comparison(pair: _Pair, estimate: tuple[Estimate, float | None]) -> dict[str, Any]:
    found, p_value = estimate
    entry = {
        "a": pair.names[0],
        "b": pair.names[1],
        "reading": pair.reading,
        "level": pair.level,
        "value_a": PromptRatio(pair.first, pair.total).value,
        "value_b": PromptRatio(pair.second, pair.total).value,
        "difference": found.value,
        "low": found.low,
        "high": found.high,
        "why": found.why if pair.total else "no prompt is shared",
        "p": p_value,
        "prompts": len(pair.total),
    }
    if pair.level != "prompt" or not pair.single or not pair.total:
        return entry | {"only_a": None, "only_b": None, "mcnemar_p": None}
    only_a, only_b = sum(map(gt, pair.first, pair.second)), sum(map(lt, pair.first, pair.second))
    p = binomial_two_sided(only_a, only_a + only_b)  # McNemar, exact
    return entry | {"only_a": only_a, "only_b": only_b, "mcnemar_p": p}
