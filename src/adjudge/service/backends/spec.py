"""A reward spec behind the judge service."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from adjudge.client.wire import JudgeRequest, JudgeResponse
from adjudge.errors import ConfigError, ErrorKind, GradingFailure, JudgeAuthError
from adjudge.judges.connections import aclose_all
from adjudge.rewards.built import check_machine
from adjudge.rewards.function import SpecRewardFunction
from adjudge.rewards.spec import MissingSettings, RewardSpec
from adjudge.service.backends.mapping import failed, refused, response_of, sample_of
from adjudge.service.settings import ServiceSettings

__all__ = ["SpecBackend", "for_service"]

_log = logging.getLogger("adjudge.service")

_BOTH_WAYS = ("mask", "raise")
_WAITS = ("code_execution",)
"""Rules that take their own time, each in a sandbox."""


def for_service(spec: RewardSpec) -> RewardSpec:
    """``spec`` as a service applies it: what belongs to a training step is left to the trainer.

    No outage is waited for and nothing stops at one (``max_missing``, ``patience_s``, policy
    ``raise``): each failure is its own request's, at once. Every request is judged
    (``sample_rate``). What compares a group stays.
    """
    policy = spec.missing.policy
    missing = MissingSettings(
        policy="mask" if policy in _BOTH_WAYS else policy,
        min_valid=spec.missing.min_valid,
        fallback=spec.missing.fallback,
        max_missing=1.0,
        patience_s=0.0,
    )
    reward = spec.reward.model_copy(update={"sample_rate": 1.0})
    return spec.model_copy(update={"missing": missing, "reward": reward})


class SpecBackend:
    """Scores with a :class:`~adjudge.rewards.SpecRewardFunction`; the score is the reward.

    ``function`` and ``spec`` are what a group's rendezvous asks (:func:`for_service` applied).
    ``version`` is the spec's fingerprint. Requests go in batches where all graders are rules,
    else one by one; then ``max_concurrency``, if the spec sets it, is how many are asked at once.
    Raises :class:`ConfigError` for a spec that cannot be built.
    """

    def __init__(self, spec: RewardSpec, settings: ServiceSettings | None = None) -> None:
        self._settings = settings or ServiceSettings()
        self.spec = for_service(spec)
        self._judges = self.spec.build_judges()
        graders = self.spec.build_graders(self._judges)
        check_machine(self.spec, graders)
        self.function = SpecRewardFunction(self.spec, graders=graders)
        self.name = spec.where
        self.version = self.function.fingerprint
        self.compares_groups = self._compared()
        self.one_by_one = any(map(_takes_its_time, graders.values()))
        self._names = [entry.name for entry in spec.graders]
        capped = self.one_by_one and "max_concurrency" in spec.model_fields_set
        self._slots: contextlib.AbstractAsyncContextManager[Any] = (
            asyncio.Semaphore(spec.max_concurrency) if capped else contextlib.nullcontext()
        )

    @classmethod
    def from_file(cls, path: Path | str, settings: ServiceSettings | None = None) -> SpecBackend:
        """The backend of a spec file; raises :class:`ConfigError`."""
        return cls(RewardSpec.load(path), settings)

    def _compared(self) -> str | None:
        if self.function.needs_whole_groups:
            return "a grader that compares the samples of a group"
        if self.spec.reward.group != "none":
            return f"reward.group = {self.spec.reward.group!r}"
        if self.spec.missing.policy in ("drop_group", "fallback"):
            return f"missing.policy = {self.spec.missing.policy!r}"
        return None

    async def start(self) -> None:
        """Load the judges that are models of this machine; raises :class:`ConfigError`."""
        for judge in self._judges.values():
            if (start := getattr(judge, "start", None)) is not None:
                await start()

    async def score(self, requests: Sequence[JudgeRequest]) -> list[JudgeResponse]:
        """One response per request, in order; see :class:`~adjudge.service.backend.Backend`."""
        if self.compares_groups is not None:
            why = f"this spec compares whole groups ({self.compares_groups}): use /group_judge"
            return [failed(request, ErrorKind.UNSUPPORTED, why) for request in requests]
        found: dict[int, JudgeResponse] = {}
        samples = []
        for place, request in enumerate(requests):
            try:
                samples.append(sample_of(request, place, self._settings.max_image_mb))
            except GradingFailure as failure:
                found[place] = refused(request, failure)
        asked = [requests[sample.original_index] for sample in samples]
        try:
            async with self._slots:
                groups = [str(sample.original_index) for sample in samples]
                judged = await self.function.grade(samples, groups)
        except (JudgeAuthError, ConfigError) as error:
            answers = self._stopped(asked, error)
        else:
            triples = zip(asked, judged, self.function.reward(judged), strict=True)
            answers = [response_of(*triple, self._names) for triple in triples]
        for sample, answer in zip(samples, answers, strict=True):
            found[sample.original_index] = answer
        return [found[place] for place in range(len(requests))]

    @staticmethod
    def _stopped(
        requests: Sequence[JudgeRequest], error: JudgeAuthError | ConfigError
    ) -> list[JudgeResponse]:
        """A refused key or a wrong setting: no request fares better, and only the owner can act."""
        _log.error("%s", error)
        kind = ErrorKind.AUTH if isinstance(error, JudgeAuthError) else ErrorKind.BUG
        return [failed(request, kind, str(error)) for request in requests]

    async def aclose(self) -> None:
        """Close connections and caches, and let go of models."""
        for judge in self._judges.values():
            if (close := getattr(judge, "aclose", None)) is not None:
                await close()
        if any(table.has_server for table in self.spec.judges.values()):
            await aclose_all()


def _takes_its_time(grader: Any) -> bool:
    """Whether a grader waits: for a judge, for a program that runs, for whatever it was made to."""
    return not getattr(grader, "is_rule", False) or getattr(grader, "type_name", "") in _WAITS
