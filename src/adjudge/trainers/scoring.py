"""What every trainer adapter does: samples and groups in, rewards and metrics out."""

from __future__ import annotations

import logging
import os
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from adjudge.checks.summary import MissingCounts, answer_properties, check_missing
from adjudge.engine.clock import LogLimiter
from adjudge.engine.loop import run_blocking
from adjudge.errors import ConfigError, ErrorKind, JudgeUnavailable
from adjudge.hosts import is_address
from adjudge.rewards.function import SpecRewardFunction
from adjudge.rewards.spec import RewardSpec
from adjudge.text import shorten_text
from adjudge.trainers.metrics import (
    RecordedCall,
    TrainerProgress,
    batch_metrics,
    collect_judge_calls,
)
from adjudge.types import GradedSample, GraderError, RewardResult, Sample, Usage

if TYPE_CHECKING:  # most trainers record nothing, and need not wait for what does
    from adjudge.trainers.recorder import FlightRecorder

_log = logging.getLogger("adjudge")

SPEC_VARIABLE = "ADJUDGE_SPEC"
"""The environment variable that names the spec where a trainer takes only a dotted path."""


RECORD_VARIABLE = "ADJUDGE_RECORD"
"""The environment variable that names the folder where a trainer takes only a dotted path."""


class ScoreOptions(TypedDict, total=False):
    """What :meth:`Scorer.ascore` takes beside samples and groups."""

    step: int | None
    whole_groups: bool
    progress: TrainerProgress | None


@dataclass
class ScorerResult:
    """A scored batch: ``results`` in the order of the samples, and what to log about them.

    ``usage`` sums the live calls behind the results (a call about a whole group counts once; kept
    replies cost nothing); ``None`` where none was made, or none said what it consumed. ``judged``
    is what the graders said, where that is known.
    """

    results: list[RewardResult]
    metrics: dict[str, float]
    usage: Usage | None = None
    judged: Sequence[GradedSample] = ()

    @property
    def rewards(self) -> list[float | None]:
        """The rewards; ``None`` is missing, never a number."""
        return [result.score for result in self.results]


def load_spec(spec: RewardSpec | Mapping[str, Any] | Path | str | None = None) -> RewardSpec:
    """``spec`` itself, of that mapping, in that file, or the one that ``ADJUDGE_SPEC`` names.

    An address (``http://…``) in a file's place is a judge service: its scores are the rewards.
    Raises :class:`~adjudge.errors.ConfigError`.
    """
    if isinstance(spec, RewardSpec):
        return spec
    if isinstance(spec, Mapping):
        return RewardSpec.from_dict(spec)
    path = spec or os.environ.get(SPEC_VARIABLE)
    if not path:
        raise ConfigError(
            f"no reward spec is given. Pass one, or name its file in {SPEC_VARIABLE}."
        )
    if isinstance(path, str) and is_address(path):
        from adjudge.client.grader import make_service_spec  # noqa: PLC0415  (who has a file needs none)

        return make_service_spec(path)
    return RewardSpec.load(path)


class Scorer(SpecRewardFunction):
    """A reward spec as adapters use it; one object for a whole run.

    ``options`` are those of :class:`~adjudge.rewards.SpecRewardFunction`; ``record``, a folder or a
    :class:`~adjudge.trainers.recorder.FlightRecorder`, writes what is scored to a run folder
    (``ADJUDGE_RECORD`` is for adapters). Holds configuration and the outage
    watch; serves any thread and loop. A pickled one (a Ray task) starts with its own watch and
    without options, such as the ``journal`` of what was graded before; it records to the same
    folder.
    """

    def __init__(
        self,
        spec: RewardSpec | Path | str | None = None,
        *,
        record: FlightRecorder | Path | str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(load_spec(spec), **options)
        self._kinds: dict[str, float] = {}
        self._missing, self._said = MissingCounts(), set[str]()
        self._limiter = LogLimiter()
        self._unreported: dict[str, Counter[ErrorKind]] = defaultdict(Counter)
        self._unreported_total = 0
        self.recorder: FlightRecorder | None = None
        if record is not None:
            self.start_recording(record)

    def start_recording(self, record: FlightRecorder | Path | str | None = None) -> None:
        """Record what is scored from now on, once nothing forbids the run: this claims a folder.

        It is the folder of ``record``, by default the one that ``ADJUDGE_RECORD`` names, if any.
        """
        folder = record or os.environ.get(RECORD_VARIABLE)
        if folder:
            from adjudge.trainers.recorder import FlightRecorder  # noqa: PLC0415  (see above)

            self.recorder = folder if isinstance(folder, FlightRecorder) else FlightRecorder(folder)
            self.recorder.open(self.spec, self.graders)

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), record=self.recorder), (self.spec,)

    @property
    def needs_groups(self) -> str | None:
        """What compares the samples of a group, or a ``sample_rate`` that leaves groups out."""
        drawn = "reward.sample_rate" if self.spec.reward.sample_rate < 1 else None
        return self.compares_groups or drawn

    async def grade(
        self, samples: Sequence[Sample], groups: Sequence[str], *, step: int | None = None
    ) -> list[GradedSample]:
        """:meth:`SpecRewardFunction.grade <adjudge.rewards.SpecRewardFunction.grade>`.

        Raises :class:`~adjudge.errors.TrainingStopped` where a recorded run is to end, and
        :class:`~adjudge.errors.JudgeUnavailable` where no money is left for a reward: every further
        step would have none.
        """
        if self.recorder is not None:
            self.recorder.check_stop()
        judged = await super().grade(samples, groups, step=step)
        watches = self.spec.missing.max_missing < 1.0
        results = chain.from_iterable(one.results() for one in judged if watches)
        for name, one in results:
            if not isinstance(one, GraderError) or one.kind is not ErrorKind.BUDGET:
                continue
            if name in self.spec.at_step(step or 0).counting:
                why = one.error.removeprefix(f"{one.name}: ")
                raise JudgeUnavailable(
                    f"{one.name}: no money is left: {why}. Raise the budget (budget_usd), or what "
                    "the provider allows, and go on.",
                    one.kind,
                )
        return judged

    async def ascore(
        self,
        samples: Sequence[Sample],
        groups: Sequence[str],
        *,
        step: int | None = None,
        whole_groups: bool = True,
        progress: TrainerProgress | None = None,
    ) -> ScorerResult:
        """Score a batch; ``groups[i]`` names sample *i*'s group; a group is whole.

        ``step`` is the training step: schedules of weights go by it, and under ``sample_rate`` each
        draws other groups, the same in every process; by default that of ``progress``, and where
        it knows none each call is a step of its own.
        Where :attr:`compares_groups` is ``None``, the members of a group may come in several calls
        of one step: then not ``whole_groups``. ``progress``: where the trainer is, for the recorder
        alone.

        Raises only :class:`~adjudge.errors.JudgeUnavailable`,
        :class:`~adjudge.errors.JudgeAuthError`, :class:`~adjudge.errors.ConfigError`, under
        policy ``raise`` :class:`~adjudge.errors.MissingRewardError` and, of a recorded run that is
        to end, :class:`~adjudge.errors.TrainingStopped`.
        """
        progress = progress or TrainerProgress(step)
        step = progress.step if step is None else step
        step = self._next_step() if step is None else step
        judged = await self.grade(samples, groups, step=step)
        return self.compute_rewards(
            judged, samples, whole_groups=whole_groups, step=step, progress=progress
        )

    def compute_rewards(
        self,
        judged: Sequence[GradedSample],
        samples: Sequence[Sample],
        *,
        whole_groups: bool = True,
        step: int | None = None,
        progress: TrainerProgress | None = None,
    ) -> ScorerResult:
        """The rewards of a whole batch, and what to log, from what was said; without waiting.

        ``step`` is the training step, which a spec with schedules of weights needs.
        """
        results = self.reward(judged, whole_groups=whole_groups, step=step)
        calls, lengths = collect_judge_calls(judged), [len(one.response or "") for one in samples]
        metrics = batch_metrics(judged, results, lengths, calls)
        if self.spec.reward.sample_rate < 1 and judged:
            metrics["judge/drawn_frac"] = sum(one.sampled for one in judged) / len(judged)
        if step is not None:
            for name, schedule in self.schedules.items():
                metrics[f"judge/{name}_weight"] = schedule.at(step)
        self._report_missing(results, step if progress is None else progress.step)
        if metrics.get("judge/missing_frac"):
            metrics |= self._watch_missing(judged, samples, results)
        metrics = self._with_known_kinds(metrics)
        if self.recorder is not None:
            where = progress or TrainerProgress()
            self.recorder.record(
                RecordedCall(samples, judged, results, metrics, where, whole_groups)
            )
        paid = [usage for call in calls if (usage := call.paid) is not None]
        return ScorerResult(results, metrics, sum(paid, Usage()) if paid else None, judged)

    def _report_missing(self, results: Sequence[RewardResult], step: int | None) -> None:
        """Log why rewards are missing or a minimum: who looks at rewards alone sees no cause.

        A line a step, and without steps, or with many calls of one, a line in ten seconds.
        """
        lost = [one.missing for one in results if one.missing is not None]
        failed = [one for one in lost if one.kind is not ErrorKind.NOT_SAMPLED]
        imputed = [one.imputed[0] for one in results if one.imputed]
        self._unreported["are missing"].update(one.kind for one in failed)
        self._unreported["have a grader's minimum for a failure"].update(
            one.kind for one in imputed
        )
        self._unreported_total += len(results) - (len(lost) - len(failed))
        if not (failed or imputed) or not self._limiter.count(step):
            return
        first = (failed or imputed)[0]
        text = shorten_text(first.error)
        if not text.startswith(f"{first.name}: "):
            text = f"{first.name}: {text}"
        place = first.metadata.get("at")
        parts = []
        for what, kinds in self._unreported.items():
            listed = ", ".join(f"{kind} {n:,}" for kind, n in kinds.most_common())
            count = f"{kinds.total()} of {self._unreported_total} rewards"
            parts += [f"{count} {what} ({listed})"] if kinds else []
        _log.warning(
            "%s%s; the first: %s%s",
            "" if self.spec.where in text else f"{self.spec.where}: ",
            " and ".join(parts),
            text,
            f" ({place})" if place else "",
        )
        self._unreported.clear()
        self._unreported_total = 0

    def _watch_missing(
        self,
        judged: Sequence[GradedSample],
        samples: Sequence[Sample],
        results: Sequence[RewardResult],
    ) -> dict[str, float]:
        """Look for what predicts missing rewards, over all batches; say each finding once."""
        rows = [
            (sample.response or "", one.group, result.score is None)
            for one, sample, result in zip(judged, samples, results, strict=True)
            if one.sampled
        ]
        self._missing.add(
            lambda place: answer_properties(rows[place][0]),
            [float(len(text)) for text, _, _ in rows],
            [group for _, group, _ in rows],
            [gone for _, _, gone in rows],
        )
        found = [one.as_dict() for one in self._missing.table() if one.predicts]
        new = check_missing([one for one in found if one["name"] not in self._said]).finding
        self._said.update(one["name"] for one in found)
        if new is not None:
            _log.warning("%s: %s", self.spec.where, new.sentence)
        return {"judge/missing_predictors": float(len(found))}

    def _with_known_kinds(self, metrics: dict[str, float]) -> dict[str, float]:
        """A share seen once is 0 where it does not occur, or a trainer's mean would omit it."""
        if "judge/missing_frac" not in metrics:
            return metrics
        found = {**self._kinds, **metrics}
        shares = ("judge/missing_frac/", "judge/suspect_frac")
        self._kinds.update(
            dict.fromkeys((name for name in metrics if name.startswith(shares)), 0.0)
        )
        return found

    def score(
        self, samples: Sequence[Sample], groups: Sequence[str], **options: Unpack[ScoreOptions]
    ) -> ScorerResult:
        """:meth:`ascore` from ordinary code, also inside somebody else's running loop."""
        return run_blocking(self.ascore(samples, groups, **options))
