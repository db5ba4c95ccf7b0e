"""What every trainer adapter does: samples and groups in, rewards and metrics out.

What a trainer logs about a scored batch has the same names in every trainer.
"""

from __future__ import annotations

import logging
import os
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adjudge.engine.loop import run_blocking
from adjudge.errors import ConfigError, ErrorKind
from adjudge.rewards.function import SpecRewardFunction
from adjudge.rewards.spec import RewardSpec
from adjudge.runs.summary import MissingWatch, answer_properties
from adjudge.stats import group_spread, mean, mean_and_std, quantile, snap_ties, std
from adjudge.text import shorten_text
from adjudge.types import AnySample, GradedSample, GraderError, Provenance, RewardResult, Usage


def batch_metrics(
    judged: Sequence[GradedSample],
    results: Sequence[RewardResult],
    lengths: Sequence[int],
    calls: Sequence[Provenance] | None = None,
) -> dict[str, float]:
    """The metrics of one batch by name; what could not be computed is absent, never 0.

    ``calls`` are those behind the results (:func:`collect_judge_calls`) where they are known
    already.

    ``judge/score_mean`` and ``score_std`` of the rewards there are, ``judge/env_ratio`` (mean
    reward over mean environment reward), ``judge/missing_frac`` of the samples that were drawn,
    and the same by kind (``judge/missing_frac/timeout``), ``judge/suspect_frac`` of those that the
    answers may have brought about, ``judge/zero_std_frac`` of the groups,
    ``judge/len_corr_group`` (mean Pearson correlation with length inside groups),
    ``judge/latency_p50`` and ``latency_p99`` in seconds, ``judge/cost_usd``,
    ``judge/NAME_mean`` of each part. (:class:`~adjudge.trainers.scoring.Scorer` adds
    ``judge/missing_predictors``, how many properties of answers predict a missing reward, and
    ``judge/NAME_weight`` of each weight that is a schedule.)
    """
    scores = [result.score for result in results]
    present = [score for score in scores if score is not None]
    groups = [one.group for one in judged]
    drawn = sum(one.sampled for one in judged)
    found: dict[str, float | None] = {
        "score_mean": mean(present),
        "score_std": std(present),
        "env_ratio": _env_ratio(judged, results),
        "missing_frac": (drawn - _count_present(judged, scores)) / drawn if drawn else None,
        "zero_std_frac": group_spread(scores, groups).zero_frac,
        "len_corr_group": group_length_correlation(scores, lengths, groups),
        **_missing_by_kind(results, drawn),
        "suspect_frac": _suspect_share(results, drawn),
        **_call_metrics(collect_judge_calls(judged) if calls is None else calls),
        **_part_means(results),
    }
    return {f"judge/{name}": value for name, value in found.items() if value is not None}


def _count_present(judged: Sequence[GradedSample], scores: Sequence[float | None]) -> int:
    return sum(one.sampled and score is not None for one, score in zip(judged, scores, strict=True))


def _env_ratio(judged: Sequence[GradedSample], results: Sequence[RewardResult]) -> float | None:
    pairs = [
        (result.score, one.env_reward)
        for one, result in zip(judged, results, strict=True)
        if result.score is not None and one.env_reward is not None
    ]
    total = sum(env for _, env in pairs)
    return sum(score for score, _ in pairs) / total if total else None


def _suspect_share(results: Sequence[RewardResult], drawn: int) -> float | None:
    suspect = sum(one.missing is not None and one.missing.suspect for one in results)
    return suspect / drawn if suspect else None


def _missing_by_kind(results: Sequence[RewardResult], drawn: int) -> dict[str, float]:
    counts: dict[str, int] = defaultdict(int)
    for result in results:
        if result.missing is not None and result.missing.kind != "not_sampled":
            counts[f"missing_frac/{result.missing.kind}"] += 1
    return {name: count / drawn for name, count in counts.items()}


def collect_judge_calls(judged: Sequence[GradedSample]) -> list[Provenance]:
    """The calls that a batch's results came from; one about a whole group is there once."""
    calls = {
        id(call): call
        for one in judged
        for _, result in one.results()
        if (call := result.provenance) is not None
    }
    return list(calls.values())


def _call_metrics(calls: Sequence[Provenance]) -> dict[str, float | None]:
    live = [p.latency_s for p in calls if p.source == "live" and p.latency_s is not None]
    paid = [usage for p in calls if (usage := p.paid) is not None]
    costs = [usage.cost_usd for usage in paid if usage.cost_usd is not None]
    return {
        "latency_p50": quantile(live, 0.5),
        "latency_p99": quantile(live, 0.99),
        "cost_usd": sum(costs) if costs else None,
    }


def _part_means(results: Sequence[RewardResult]) -> dict[str, float | None]:
    names = results[0].reward_info if results else {}
    parts = {}
    for name in names:
        values = [result.reward_info[name] for result in results]
        parts[f"{name}_mean"] = mean([value for value in values if value is not None])
    return parts


def group_length_correlation(
    scores: Sequence[float | None], lengths: Sequence[int], groups: Sequence[str]
) -> float | None:
    """Mean over groups of the Pearson correlation of reward and length; ``None`` without any.

    Inside groups, because a group-relative trainer sees nothing else. Groups in which one of the
    two does not vary have none.
    """
    members: dict[str, tuple[list[float], list[int]]] = {}
    for score, length, group in zip(scores, lengths, groups, strict=True):
        if score is not None:
            rewards, sizes = members.setdefault(group, ([], []))
            rewards.append(score)
            sizes.append(length)
    found = [one for pairs in members.values() if (one := _pearson(*pairs)) is not None]
    return mean(found)


def _pearson(xs: Sequence[float], ys: Sequence[float]) -> float | None:
    if len(xs) < 3:
        return None
    xs = snap_ties(xs)
    mean_x, std_x = mean_and_std(xs)
    mean_y, std_y = mean_and_std(ys)
    if std_x == 0 or std_y == 0:
        return None
    products = [(x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)]
    covariance = sum(products) / (len(xs) - 1)
    return max(-1.0, min(1.0, covariance / (std_x * std_y)))


_log = logging.getLogger("adjudge")

SPEC_VARIABLE = "ADJUDGE_SPEC"
"""The environment variable that names the spec where a trainer takes only a dotted path."""


@dataclass
class ScorerResult:
    """A scored batch: ``results`` in the order of the samples, and what to log about them.

    ``usage`` sums the live calls behind the results (a call about a whole group counts once; kept
    replies cost nothing); ``None`` where none was made, or none said what it consumed.
    """

    results: list[RewardResult]
    metrics: dict[str, float]
    usage: Usage | None = None

    @property
    def rewards(self) -> list[float | None]:
        """The rewards; ``None`` is missing, never a number."""
        return [result.score for result in self.results]


def load_spec(spec: RewardSpec | Path | str | None = None) -> RewardSpec:
    """``spec`` itself, the one in that file, or the one that ``ADJUDGE_SPEC`` names.

    An address (``http://…``) in a file's place is a judge service, whose scores are the rewards.
    Raises :class:`~adjudge.errors.ConfigError`.
    """
    if isinstance(spec, RewardSpec):
        return spec
    path = spec or os.environ.get(SPEC_VARIABLE)
    if not path:
        raise ConfigError(
            f"no reward spec is given. Pass one, or name its file in {SPEC_VARIABLE}."
        )
    if isinstance(path, str) and path.startswith(("http://", "https://")):
        from adjudge.client.grader import make_service_spec  # noqa: PLC0415  (who has a file needs none)

        return make_service_spec(path)
    return RewardSpec.load(path)


class Scorer(SpecRewardFunction):
    """A reward spec as adapters use it; one object for a whole run.

    ``options`` are those of :class:`~adjudge.rewards.SpecRewardFunction`. Holds configuration and
    the outage watch; serves any thread and loop. A pickled one (a Ray task) starts with its own
    watch and without options, such as the ``journal`` of what was graded before.
    """

    def __init__(self, spec: RewardSpec | Path | str | None = None, **options: Any) -> None:
        super().__init__(load_spec(spec), **options)
        self._kinds: dict[str, float] = {}
        self._predictors, self._said = MissingWatch(), set[str]()

    def __reduce__(self) -> tuple[type[Scorer], tuple[RewardSpec]]:
        return type(self), (self.spec,)

    @property
    def compares_groups(self) -> str | None:
        """What in the spec needs all samples of a group in one call; ``None`` when nothing does."""
        spec = self.spec
        if self.needs_whole_groups:
            return "a grader that compares the samples of a group"
        if spec.reward.group != "none":
            return f"reward.group = {spec.reward.group!r}"
        if spec.missing.policy in ("drop_group", "fallback"):
            return f"missing.policy = {spec.missing.policy!r}"
        return None

    async def ascore(
        self,
        samples: Sequence[AnySample],
        groups: Sequence[str],
        *,
        step: int | None = None,
        whole_groups: bool = True,
    ) -> ScorerResult:
        """Score a batch; ``groups[i]`` names sample *i*'s group, whose members are all there.

        ``step`` is the training step: schedules of weights go by it, and under ``sample_rate`` each
        draws other groups, the same in every process; by default each call is a step of its own.
        Where :attr:`compares_groups` is ``None``, the members of a group may come in several calls
        of one step: then not ``whole_groups``.

        Raises only :class:`~adjudge.errors.JudgeUnavailable`,
        :class:`~adjudge.errors.JudgeAuthError`, :class:`~adjudge.errors.ConfigError` and, under
        policy ``raise``, :class:`~adjudge.errors.MissingRewardError`.
        """
        step = self._next_step() if step is None else step
        judged = await self.grade(samples, groups, step=step)
        return self.compute_rewards(judged, samples, whole_groups=whole_groups, step=step)

    def compute_rewards(
        self,
        judged: Sequence[GradedSample],
        samples: Sequence[AnySample],
        *,
        whole_groups: bool = True,
        step: int | None = None,
    ) -> ScorerResult:
        """The rewards of a whole batch, and what to log, from what was said; without waiting.

        ``step`` is the training step, which a spec with schedules of weights needs.
        """
        results = self.reward(judged, whole_groups=whole_groups, step=step)
        calls, lengths = collect_judge_calls(judged), [len(one.response or "") for one in samples]
        metrics = batch_metrics(judged, results, lengths, calls)
        if step is not None:
            for name, schedule in self.spec.schedules.items():
                metrics[f"judge/{name}_weight"] = schedule.at(step)
        if metrics.get("judge/missing_frac"):
            self._report_new_kinds(results)
            metrics |= self._watch_missing(judged, samples, results)
        return ScorerResult(results, self._with_known_kinds(metrics), _usage(calls))

    def _report_new_kinds(self, results: Sequence[RewardResult]) -> None:
        """Log the first failure of each kind: who looks at rewards alone sees ``None`` only."""
        by_kind: dict[ErrorKind, list[GraderError]] = {}
        for result in results:
            if result.missing is not None and result.missing.kind is not ErrorKind.NOT_SAMPLED:
                by_kind.setdefault(result.missing.kind, []).append(result.missing)
        for kind, errors in by_kind.items():
            if kind in self._said:
                continue
            self._said.add(kind)
            place = errors[0].metadata.get("at")
            _log.warning(
                "%s: %d of %d rewards are missing (%s); the first: %s: %s%s. "
                "This is said once for each kind.",
                self.spec.where,
                len(errors),
                len(results),
                kind,
                errors[0].name,
                shorten_text(errors[0].error),
                f" ({place})" if place else "",
            )

    def _watch_missing(
        self,
        judged: Sequence[GradedSample],
        samples: Sequence[AnySample],
        results: Sequence[RewardResult],
    ) -> dict[str, float]:
        """Look for what predicts missing rewards, over all batches; say each finding once."""
        rows = [
            (sample.response or "", one.group, result.score is None)
            for one, sample, result in zip(judged, samples, results, strict=True)
            if one.sampled
        ]
        self._predictors.add(
            lambda place: answer_properties(rows[place][0]),
            [float(len(text)) for text, _, _ in rows],
            [group for _, group, _ in rows],
            [gone for _, _, gone in rows],
        )
        found = self._predictors.predictors()
        for one in found:
            if one.name not in self._said:
                self._said.add(one.name)
                _log.warning("%s: %s", self.spec.where, one.sentence)
        return {"judge/missing_predictors": float(len(found))}

    def _with_known_kinds(self, metrics: dict[str, float]) -> dict[str, float]:
        """A kind seen once is 0 where it does not occur, or a trainer's mean would leave it out."""
        if "judge/missing_frac" not in metrics:
            return metrics
        found = {**self._kinds, **metrics}
        kinds = (name for name in metrics if name.startswith("judge/missing_frac/"))
        self._kinds.update(dict.fromkeys(kinds, 0.0))
        return found

    def score(
        self, samples: Sequence[AnySample], groups: Sequence[str], *, step: int | None = None
    ) -> ScorerResult:
        """:meth:`ascore` from ordinary code, also inside somebody else's running loop."""
        return run_blocking(self.ascore(samples, groups, step=step))


def _usage(calls: Sequence[Provenance]) -> Usage | None:
    """What the batch's live calls consumed; a cost where any of them has one."""
    found = [usage for call in calls if (usage := call.paid) is not None]
    return sum(found, Usage()) if found else None
