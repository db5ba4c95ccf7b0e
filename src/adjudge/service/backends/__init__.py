"""What ``adjudge serve TARGET`` puts behind the service: a reward spec or a class of the user's.

:class:`Damping` lowers scores where a judge says that it is unsure: a named option, never the
default.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from adjudge.errors import ConfigError, ErrorKind, GradingFailure, JudgeAuthError
from adjudge.graders.binding import ArgumentBinding
from adjudge.judges.endpoint.connections import aclose_all
from adjudge.rewards.function import SpecRewardFunction
from adjudge.rewards.spec import MissingSettings, RewardSpec, is_trained_judge
from adjudge.service.backend import Backend
from adjudge.service.backends.conversion import (
    request_error_response,
    request_failure_response,
    request_to_sample,
    result_to_response,
)
from adjudge.service.backends.user import UserBackend
from adjudge.wire import JudgeRequest, JudgeResponse

__all__ = ["DampedBackend", "Damping", "SpecBackend", "UserBackend", "adapt_spec", "load_backend"]


class Damping(msgspec.Struct, frozen=True):
    """A score whose confidence is under ``below`` (0 to 1) is multiplied by ``factor`` (0 to 1).

    This is no calibration: it pulls towards 0, so it raises negative scores, and on any other
    scale than one that begins at 0 it means little. :meth:`parse` reads ``BELOW:FACTOR``.
    """

    below: float = 0.5
    factor: float = 0.8

    def __post_init__(self) -> None:
        if not (0 <= self.below <= 1 and 0 <= self.factor <= 1):
            raise ValueError("below and factor must be numbers from 0 to 1")

    @classmethod
    def parse(cls, text: str) -> Damping:
        """The damping that ``BELOW:FACTOR`` means; raises :class:`ConfigError`.

        >>> Damping.parse("0.5:0.8")
        Damping(below=0.5, factor=0.8)
        """
        below, _, factor = text.partition(":")
        try:
            return cls(float(below), float(factor))
        except ValueError:
            raise ConfigError(
                "damping: must be BELOW:FACTOR, two numbers from 0 to 1, like 0.5:0.8 "
                f"(found {text[:40]!r})"
            ) from None


class DampedBackend:
    """Another backend with :class:`Damping` on its scores.

    A damped response says so: ``metadata.damped`` has the score as it was.
    """

    def __init__(self, backend: Backend, damping: Damping) -> None:
        self._backend, self._damping = backend, damping
        self.name, self.version = backend.name, self._versioned()
        self.one_by_one = backend.one_by_one
        self.compares_groups = backend.compares_groups

    def _versioned(self) -> str:
        return f"{self._backend.version}-{self._damping.below:g}:{self._damping.factor:g}"

    @property
    def grader_names(self) -> list[str]:
        """See :class:`SpecBackend`."""
        return list(getattr(self._backend, "grader_names", ()))

    def list_lost_fields(self, item: Mapping[str, Any]) -> Iterator[str]:
        """See :class:`SpecBackend`."""
        yield from getattr(self._backend, "list_lost_fields", lambda _: ())(item)

    async def start(self) -> None:
        """See :class:`~adjudge.service.backend.Backend`."""
        await self._backend.start()
        self.version = self._versioned()

    async def score(self, requests: Sequence[JudgeRequest]) -> list[JudgeResponse]:
        """See :class:`~adjudge.service.backend.Backend`."""
        responses = await self._backend.score(requests)
        for response in responses:
            self._damp(response)
        return responses

    def _damp(self, response: JudgeResponse) -> None:
        score, confidence = response.score, response.confidence
        if score is None or confidence is None or not math.isfinite(score):
            return
        if confidence < self._damping.below:
            response.metadata = {**(response.metadata or {}), "damped": score}
            response.score = score * self._damping.factor
            if (parts := response.reward_components) is not None:
                damped = {name: part * self._damping.factor for name, part in parts.items()}
                response.reward_components = damped

    async def aclose(self) -> None:
        """See :class:`~adjudge.service.backend.Backend`."""
        await self._backend.aclose()


_log = logging.getLogger("adjudge.service")

_MASKING_POLICIES = ("mask", "raise")
_SLOW_RULES = ("code_execution",)
"""Rules that take their own time, each in a sandbox."""


def adapt_spec(spec: RewardSpec) -> RewardSpec:
    """``spec`` as a service applies it: what belongs to a training step is left to the trainer.

    No outage is waited for and nothing stops at one (``max_missing``, ``patience_s``, policy
    ``raise``): each failure is its own request's, at once. Every request is judged
    (``sample_rate``). What compares a group stays.
    """
    policy = spec.missing.policy
    missing = MissingSettings(
        policy="mask" if policy in _MASKING_POLICIES else policy,
        fallback=spec.missing.fallback,
        max_missing=1.0,
        patience_s=0.0,
    )
    reward = spec.reward.model_copy(update={"sample_rate": 1.0})
    return spec.model_copy(update={"missing": missing, "reward": reward})


class SpecBackend:
    """Scores with a :class:`~adjudge.rewards.SpecRewardFunction`; the score is the reward.

    ``function`` and ``spec`` are what a group's rendezvous asks (:func:`adapt_spec` applied);
    ``grader_names`` are what ``/health`` shows.
    ``version`` is the spec's fingerprint. Requests go in batches where all graders are rules,
    else one by one; then ``max_concurrency``, if the spec sets it, is how many are asked at once.
    Raises :class:`ConfigError` for a spec that cannot be built.
    """

    def __init__(self, spec: RewardSpec) -> None:
        spec.refuse_schedules("a judge service", "Give the grader a number.")
        self.spec = adapt_spec(spec)
        self._judges = self.spec.build_judges()
        self._graders = graders = self.spec.build_graders(self._judges)
        self.spec.check_machine(graders)
        self.function = SpecRewardFunction(self.spec, graders=graders)
        self.name = spec.where
        self.version = self.function.fingerprint
        self.compares_groups = self._find_group_need()
        self.one_by_one = any(map(_is_slow, graders.values()))
        self.grader_names = [entry.name for entry in spec.graders]
        capped = self.one_by_one and "max_concurrency" in spec.model_fields_set
        self._slots: contextlib.AbstractAsyncContextManager[Any] = (
            asyncio.Semaphore(spec.max_concurrency) if capped else contextlib.nullcontext()
        )

    def _find_group_need(self) -> str | None:
        if self.function.needs_whole_groups:
            return "a grader that compares the samples of a group"
        if self.spec.reward.group != "none":
            return f"reward.group = {self.spec.reward.group!r}"
        if self.spec.missing.policy in ("drop_group", "fallback"):
            return f"missing.policy = {self.spec.missing.policy!r}"
        return None

    def list_lost_fields(self, item: Mapping[str, Any]) -> Iterator[str]:
        """What the spec reads and a sample of the fields ``item`` alone has not, in words."""
        mode = self.spec.reward.combine_mode
        if mode != "replace" and "env_reward" not in item:
            yield f"reward.combine_mode = {mode!r} needs env_reward"
        for entry in self.spec.graders:
            if entry.scope != "outcome":  # an event's fields are made of the messages
                continue
            grader, where = self._graders[entry.name], f"graders.{entry.name}"
            mapped = [path.partition(".")[0] for path in (entry.mapper or {}).values()]
            if lost := [field for field in mapped if field not in item]:
                yield f"{where}: mapper reads {lost[0]}"
                continue
            try:
                ArgumentBinding(entry.name, grader, entry.mapper).arguments(item, 0)
            except GradingFailure as error:
                yield f"{where}: {error}"

    async def start(self) -> None:
        """Load the judges that are models of this machine; raises :class:`ConfigError`."""
        for judge in self._judges.values():
            await judge.start()

    async def score(self, requests: Sequence[JudgeRequest]) -> list[JudgeResponse]:
        """One response per request, in order; see :class:`~adjudge.service.backend.Backend`."""
        found: dict[int, JudgeResponse] = {}
        samples = []
        for place, request in enumerate(requests):
            try:
                samples.append(request_to_sample(request, place))
            except GradingFailure as failure:
                found[place] = request_failure_response(request, failure)
        asked = [requests[sample.original_index] for sample in samples]
        try:
            async with self._slots:
                groups = [str(sample.original_index) for sample in samples]
                judged = await self.function.grade(samples, groups)
        except (JudgeAuthError, ConfigError) as error:
            answers = self._fail_all(asked, error)
        else:
            rewards = self.function.reward(judged, whole_groups=False)
            parts: list[dict[str, float] | None] = [None] * len(judged)
            if len(self.spec.counting) > 1:
                parts = self.function.components(judged, whole_groups=False)
            answers = [
                result_to_response(request, one, reward, self.grader_names, components)
                for request, one, reward, components in zip(
                    asked, judged, rewards, parts, strict=True
                )
            ]
        for sample, answer in zip(samples, answers, strict=True):
            found[sample.original_index] = answer
        return [found[place] for place in range(len(requests))]

    @staticmethod
    def _fail_all(
        requests: Sequence[JudgeRequest], error: JudgeAuthError | ConfigError
    ) -> list[JudgeResponse]:
        """A refused key or a wrong setting: no request fares better, and only the owner can act."""
        _log.error("%s", error)
        kind = ErrorKind.AUTH if isinstance(error, JudgeAuthError) else ErrorKind.BUG
        return [request_error_response(request, kind, str(error)) for request in requests]

    async def aclose(self) -> None:
        """Close connections and caches, and let go of models."""
        for judge in self._judges.values():
            await judge.aclose()
        if any(table.has_server for table in self.spec.judges.values()):
            await aclose_all()


def _is_slow(grader: Any) -> bool:
    """Whether a grader waits: for a judge, for a program that runs, for whatever it was made to."""
    return not getattr(grader, "is_rule", False) or getattr(grader, "type_name", "") in _SLOW_RULES


def load_backend(
    target: str,
    *,
    arguments: Mapping[str, str] | None = None,
    damping: Damping | None = None,
) -> Backend:
    """The backend that ``target`` names: a reward spec, or a class (``module:Class``).

    A spec is a ``.toml`` file or the folder of a trained judge. ``arguments`` go to the class's
    constructor by name, read as its annotations say; a spec takes none. Nothing is loaded before
    ``start``. Raises :class:`ConfigError` naming what is wrong.
    """
    backend: Backend
    if target.endswith(".toml") or is_trained_judge(target):
        if arguments:
            raise ConfigError(
                f"{target}: a reward spec takes no arguments. Set the values in the file."
            )
        backend = SpecBackend(RewardSpec.load(target))
    elif ":" in target:
        backend = UserBackend(target, arguments)
    else:
        raise ConfigError(
            f"{target!r}: must be a reward spec (a .toml file), the folder of a "
            "trained judge, or 'module:Class' of your own judge"
        )
    if damping is not None and backend.compares_groups is not None:
        raise ConfigError(
            f"damping: {target} compares the samples of a group ({backend.compares_groups}); such "
            "scores cannot be damped. Leave it out."
        )
    if damping is not None:
        backend = DampedBackend(backend, damping)
    return backend
