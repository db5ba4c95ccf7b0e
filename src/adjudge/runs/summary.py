"""A run in numbers: what each grader said, what it is worth, what is missing, and its noise."""

from __future__ import annotations

import math
import time
from array import array
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from adjudge.checks.summary import MissingCounts
from adjudge.errors import Cause, ErrorKind
from adjudge.graders.base import GraderTraits
from adjudge.graders.registry import SHIPPED
from adjudge.rewards.grader_fit import find_unscaled
from adjudge.rewards.spec import GraderEntry, RewardSpec
from adjudge.runs.rows import GradedRow, RunObserver
from adjudge.stats import describe_sizes, group_spread, mean, missing_by_bin, missing_by_value, std
from adjudge.types import (
    GraderError,
    GraderResult,
    GraderScore,
)

if TYPE_CHECKING:
    from adjudge.stats.predictions import ConcordanceEstimate

UNSCALED = "no finite range: its scores count as they are"
"""Of a grader that ``[reward] normalise`` leaves as it is."""


class NumberColumn(Sequence[float | None]):
    """A finite number a sample, or ``None``, in 8 bytes each."""

    def __init__(self) -> None:
        self._values = array("d")

    def append(self, value: float | None) -> None:
        """Add the next sample's."""
        self._values.append(math.nan if value is None else value)

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, place: Any) -> Any:
        value = self._values[place]
        return None if value != value else value  # noqa: PLR0124  (NaN)

    def __iter__(self) -> Iterator[float | None]:
        return (None if value != value else value for value in self._values)  # noqa: PLR0124

    def present(self) -> array[float]:
        """The numbers that there are."""
        return array("d", (value for value in self._values if value == value))  # noqa: PLR0124


class _CallTotals:
    """Where one grader's results came from, gathered result by result."""

    def __init__(self) -> None:
        self._sources: Counter[str] = Counter()
        self._models: Counter[str] = Counter()
        self._input_tokens = self._output_tokens = self._hedge_wins = 0
        self._costs = array("d")

    def add(self, result: GraderResult) -> None:
        """Count one result; it is none of a judge's without ``provenance``."""
        where = result.provenance
        if where is None:
            return
        self._sources[where.source or "unknown"] += 1
        self._models[where.model or "unknown"] += 1
        self._hedge_wins += where.hedged
        if where.paid is not None:
            self._input_tokens += where.paid.input_tokens
            self._output_tokens += where.paid.output_tokens
            if where.paid.cost_usd is not None:
                self._costs.append(where.paid.cost_usd)

    def summarise(self) -> dict[str, Any] | None:
        """Plain data; ``None`` when no judge was asked."""
        if not self._sources:
            return None
        return {
            "sources": dict(self._sources.most_common()),
            "models": dict(self._models.most_common()),
            "input_tokens": self._input_tokens,
            "output_tokens": self._output_tokens,
            "cost_usd": sum(self._costs) if self._costs else None,
            "hedge_wins": self._hedge_wins,
        }


class _GraderTotals:
    """What one grader has said so far: a score a sample, and counts of the rest."""

    def __init__(self, entry: GraderEntry, grader: Any) -> None:
        self._entry, self._traits = entry, GraderTraits.of(grader)
        self.scores = NumberColumn()
        self._kinds: Counter[str] = Counter()
        self._causes: Counter[Cause] = Counter()
        self._untrusted = 0
        self.calls = _CallTotals()

    def add(self, score: float | None, results: Sequence[GraderResult]) -> None:
        """One sample's: its score, and what that was made from (several of events)."""
        self.scores.append(score)
        causes = {one.cause if isinstance(one, GraderScore) else None for one in results}
        for result in results:
            self.calls.add(result)
            if isinstance(result, GraderError):
                _count_kind(self._kinds, result)
            elif isinstance(result, GraderScore):
                self._untrusted += not result.trusted
        if len(causes) == 1 and (cause := causes.pop()) is not None:
            self._causes[cause] += 1

    def summarise(
        self,
        env: Sequence[float | None],
        groups: Sequence[int],
        not_drawn: int,
        beside: Sequence[str] | None,
    ) -> dict[str, Any]:
        """The grader's part of ``summary.json``; ``beside`` is of one that is not scaled."""
        role, score_range = self._traits.role, self._traits.score_range
        spread = _spread(self.scores, groups)
        present = spread.pop("present")
        type_ = self._entry.type
        return {
            "type": type_ if type_ in SHIPPED else f"{type_} (own)",
            "role": str(role),
            "weight": self._entry.weight_at(0),  # a schedule's first
            "score_range": list(score_range) if score_range else None,
            "unscaled": beside is not None,
            **({"unscaled_beside": beside} if beside else {}),
            "scored": present,
            **spread,
            "missing": len(self.scores) - present - not_drawn,
            "missing_by_kind": dict(self._kinds.most_common()),
            "not_evaluable": self._causes[Cause.NOT_APPLICABLE],
            "candidate_fault": self._causes[Cause.CANDIDATE],
            "untrusted": self._untrusted,
            "judge": self.calls.summarise(),
            **_agreements(self.scores, env, groups),
        }


class GradingTotals(RunObserver):
    """The numbers of ``summary.json``, gathered sample by sample in the order of the input.

    Of a sample some bytes are kept and none of its texts: its group's number, its lengths, its
    rewards and scores. ``groups``, ``outcomes`` (the environment's rewards), ``reward`` and
    ``scores`` have one entry a sample; ``unevaluable`` counts the samples of which a grader had
    nothing to judge. ``started``: when the run began, by ``time.perf_counter``.
    """

    def __init__(self, spec: RewardSpec, graders: Mapping[str, Any], started: float) -> None:
        self._spec, self._started = spec, started
        self._unscaled = find_unscaled(spec, graders)
        self._numbers: dict[str, int] = {}
        self.groups = array("l")
        self.outcomes, self.reward = NumberColumn(), NumberColumn()
        self._stepped = NumberColumn()
        self._graders = {
            entry.name: _GraderTotals(entry, graders[entry.name]) for entry in spec.graders
        }
        self._lengths, self._tool_calls = array("d"), array("d")
        self._properties: list[frozenset[str]] = []
        self._known_properties: dict[frozenset[str], frozenset[str]] = {}
        self._drawn, self._missing = bytearray(), bytearray()
        self._kinds: Counter[str] = Counter()
        self._suspect_kinds: Counter[str] = Counter()
        self._examples: dict[str, str] = {}
        self._passing = self._suspects = 0
        self.unevaluable = 0

    @property
    def scores(self) -> list[NumberColumn]:
        """Each grader's scores, in the order of the spec."""
        return [one.scores for one in self._graders.values()]

    def on_sample(self, one: GradedRow) -> None:
        """Count the next sample."""
        judged, result = one.judged, one.result
        self.groups.append(self._numbers.setdefault(one.group, len(self._numbers)))
        self.outcomes.append(one.env_reward)
        self.reward.append(result.score)
        if self._spec.reward.group != "none":
            # What the graders' answers came to, where that was compared in the group.
            compared = result.score is not None and (result.details or {}).get("source")
            outcome = result.reward_info.get("outcome") if compared == "graders" else None
            self._stepped.append(outcome)
        self._lengths.append(one.length)
        self._tool_calls.append(one.tool_calls)
        own = one.properties
        self._properties.append(self._known_properties.setdefault(own, own))
        self._drawn.append(judged.sampled)
        self._missing.append(result.score is None and judged.sampled)
        said: dict[str, list[GraderResult]] = {name: [] for name in self._graders}
        for name, answer in judged.results():
            if name in said:
                said[name].append(answer)
        for name, totals in self._graders.items():
            totals.add(result.reward_info[f"{name}_score"], said[name])
        for repeat in judged.repeats:
            for name, again in repeat.results():
                self._graders[name].calls.add(again)
        self._suspects += any(
            isinstance(answer, GraderError) and answer.suspect
            for name in self._spec.counting
            for answer in said[name]
        )
        if (missing := result.missing) is not None:
            self._passing += missing.passing
            _count_kind(self._kinds, missing)
            if missing.suspect:
                _count_kind(self._suspect_kinds, missing)
            if missing.kind is not ErrorKind.NOT_SAMPLED:
                prefix = f"{missing.name}: "
                message = prefix + missing.error.removeprefix(prefix)
                self._examples.setdefault(str(missing.kind), message[:200])
        self.unevaluable += any(
            isinstance(answer, GraderScore) and not answer.evaluable
            for answer in judged.outcome.values()
        )

    def on_end(self, summary: dict[str, Any]) -> None:
        """Add the numbers of ``summary.json``.

        Against the environment's reward each grader has two figures: ``auc`` over all pairs of
        samples, and ``concordance`` over pairs inside a group, the only ones a GRPO group sees.
        """
        groups, env, count = self.groups, self.outcomes, len(self.groups)
        elapsed_s, drawn = time.perf_counter() - self._started, sum(self._drawn)
        of_graders = {
            name: one.summarise(env, groups, count - drawn, self._unscaled.get(name))
            for name, one in self._graders.items()
        }
        # How many groups miss all their rewards, some, or none.
        sizes = Counter(groups)
        lost = Counter(group for group, gone in zip(groups, self._missing, strict=True) if gone)
        whole = sum(lost[group] == size for group, size in sizes.items())
        # A reward that the environment's is part of agrees with it by construction.
        reward, negative = self._spec.reward, sum(x is not None and x < 0 for x in env)
        compared = env if reward.combine_mode == "replace" else []
        summary |= {
            "samples": count,
            "groups": describe_sizes(sizes.values()),
            "reward": {
                **_spread(self.reward, groups),
                **self._before_group_step(),
                "missing": sum(self._missing),
                "not_sampled": count - drawn,
                **({"negative_products": negative} if reward.combine_mode == "multiply" else {}),
                **_agreements(self.reward, compared, groups),
            },
            "graders": of_graders,
            "baselines": {
                "response_length": _agreements(self._lengths, env, groups),
                "tool_calls": _agreements(self._tool_calls, env, groups),
            },
            "env_reward": {
                "present": len(outcomes),
                "mean": mean(outcomes),
                "std": std(outcomes),
                "binary": len(set(outcomes)) <= 2,
            }
            if (outcomes := env.present())
            else None,
            "missing": {
                "by_kind": dict(self._kinds.most_common()),
                "passing": self._passing,
                "examples": self._examples,
                "by_length_decile": missing_by_bin(self._lengths, self._missing),
                "by_env_reward": missing_by_value(env, self._missing),
                "by_property": [one.as_dict() for one in self._count_missing().table()],
                "by_group": {
                    "all": whole,
                    "some": len(lost) - whole,
                    "none": len(sizes) - len(lost),
                },
                "suspect": self._suspects,
                "suspect_by_kind": dict(self._suspect_kinds.most_common()),
            },
            "elapsed_s": round(elapsed_s, 3),
            "samples_per_s": round(count / elapsed_s, 1) if elapsed_s > 0 else None,
        }

    def _before_group_step(self) -> dict[str, Any]:
        """What went into the group step, after which means say little; nothing where none is."""
        present = self._stepped.present()
        if not present:
            return {}
        step = self._spec.reward.group
        return {"before_step": {"step": step, "mean": mean(present), "std": std(present)}}

    def _count_missing(self) -> MissingCounts:
        """What the answers that were asked about have to do with their missing rewards."""
        rows = array("l", (at for at, drawn in enumerate(self._drawn) if drawn))
        counts = MissingCounts()
        if any(self._missing):
            counts.add(
                lambda place: self._properties[rows[place]],
                [self._lengths[at] for at in rows],
                [self.groups[at] for at in rows],
                [bool(self._missing[at]) for at in rows],
            )
        return counts


def _spread(values: NumberColumn, groups: Sequence[int]) -> dict[str, Any]:
    present = values.present()
    spread = group_spread(values, groups)
    return {
        "present": len(present),
        "missing": len(values) - len(present),
        "mean": mean(present),
        "std": std(present),
        "min": min(present, default=None),
        "max": max(present, default=None),
        "zero_spread_frac": spread.zero_frac,
        "within_group_std": spread.mean_std,
    }


def _agreements(
    scores: Sequence[float | None], env: Sequence[float | None], groups: Sequence[int]
) -> dict[str, Any]:
    if all(value is None for value in env):
        return {"auc": None, "concordance": None}
    from adjudge.stats.predictions import (  # noqa: PLC0415  (where the environment has a reward)
        concordance,
        within_group_concordance,
    )

    return {
        "auc": _agreement_fields(concordance(scores, env, groups)),
        "concordance": _agreement_fields(within_group_concordance(scores, env, groups)),
    }


def _agreement_fields(agreement: ConcordanceEstimate) -> dict[str, Any] | None:
    keys = ("value", "low", "high", "pairs")
    return None if agreement.value is None else {key: getattr(agreement, key) for key in keys}


def _count_kind(kinds: Counter[str], error: GraderError) -> None:
    """What was not asked about did not fail."""
    if error.kind is not ErrorKind.NOT_SAMPLED:
        kinds[str(error.kind)] += 1


# --- noise --------------------------------------------------------------------------------------

DrawColumns = Mapping[str, Sequence[Sequence[float | None]]]
"""By grader, and under :data:`REWARD`, a column a draw, with a number a sample."""
REWARD = ""


class DrawTotals(RunObserver):
    """What all draws of a run said, gathered sample by sample in the order of the input.

    ``asked_again`` are the names of the graders that take a draw.
    """

    def __init__(self, names: Sequence[str], asked_again: frozenset[str], draws: int) -> None:
        self._keys = {name: f"{name}_score" for name in names if name in asked_again}
        self._keys[REWARD] = "reward"
        self._once = [name for name in names if name not in asked_again]
        self._columns = {name: [NumberColumn() for _ in range(draws)] for name in self._keys}
        self._groups = array("l")
        self._numbers: dict[str, int] = {}

    def on_sample(self, one: GradedRow) -> None:
        """Count the next sample; one that is not drawn has no draws."""
        if not one.draw_values:
            return
        self._groups.append(self._numbers.setdefault(one.group, len(self._numbers)))
        for name, key in self._keys.items():
            for number, column in enumerate(self._columns[name]):
                column.append(one.draw_values[number][key])

    def on_end(self, summary: dict[str, Any]) -> None:
        """``noise`` of ``summary.json``."""
        summary["noise"] = summarise_noise(self._columns, self._groups, once=self._once)


def summarise_noise(
    columns: DrawColumns, groups: Sequence[Hashable], *, once: Sequence[str] = ()
) -> dict[str, Any]:
    """Plain data: the noise share of each grader and of the reward, and what would halve it.

    ``once``: graders that were asked once, as their answers do not change.
    """
    from adjudge.stats.noise import noise_share, votes_to_halve  # noqa: PLC0415  (few draw again)

    found = {}
    for name, draws in columns.items():
        share = noise_share(draws, groups)
        ends = (("votes", share.value), ("low", share.low), ("high", share.high))
        halve = {end: votes_to_halve(value) for end, value in ends}
        found[name] = {
            **msgspec.structs.asdict(share),
            "pairs_right": share.pairs_right,
            "to_halve": None if share.value is None else halve,
        }
    reward = found.pop(REWARD)
    return {
        "draws": len(columns[REWARD]),
        "reward": reward,
        "graders": {**found, **dict.fromkeys(once)},
    }
