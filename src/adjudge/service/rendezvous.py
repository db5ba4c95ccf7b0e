"""Where the samples of a group meet, each sent over HTTP on its own as soon as it is complete.

A group's graders are asked in two steps: a sample's own graders when it arrives; only those that
compare samples, and the group step, wait for the others. So nobody who generates has to hold a slot
while waiting, and a sample that never comes costs the others ``group_timeout_s`` at most.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from copy import copy
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any, TypeVar

import msgspec

from adjudge.errors import ErrorKind, GradingFailure
from adjudge.graders.base import is_listwise
from adjudge.rewards.reducer import RewardReducer
from adjudge.service import ServiceSettings
from adjudge.service.backend import Backend, GroupRendezvous, failure_response
from adjudge.service.queue import FairSlots, queue_full
from adjudge.service.requests import RequestRefused
from adjudge.service.spec_backend import (
    GraderPart,
    SpecBackend,
    make_responses,
    request_to_sample,
)
from adjudge.types import GradedSample, Sample
from adjudge.wire import MAX_GROUP_SIZE, MAX_ID_LENGTH, GroupRequest, JudgeResponse

_ABORTED = GradingFailure(ErrorKind.CANCELLED, "announced as aborted; it is not judged")


def _invalid(problem: str) -> GradingFailure:
    return GradingFailure(ErrorKind.INVALID_INPUT, problem)


RUN_ID_FIELD = "run_id"
"""The key of a request's ``metadata`` that keeps apart runs which use the same group ids."""

_SAMPLES_PER_PLACE = 16  # samples that wait, per `queue_size`
_REMEMBERED = 8192  # answers of settled groups kept for late retries
_GroupKey = tuple[str, str]
_T = TypeVar("_T")


@dataclass(slots=True, eq=False)
class _GroupSample:
    """One sample of a group, whoever waits for it; ``digest`` is that of its request.

    ``aborted``: announced so. ``size``: bytes of the request while its text is kept. ``judging``:
    what its own graders say; ``None``: it was announced as aborted, or cannot be read. ``judged``:
    what all graders said, once it is settled. ``compared``: what the graders that compare said of
    it before its group opened again.
    ``may_pass``: it failed, or was dropped with one that failed, for a reason that may pass.
    """

    name: str
    aborted: bool
    digest: bytes
    size: int
    sample: Sample | None = None
    judging: asyncio.Task[GradedSample] | None = None
    judged: GradedSample | None = None
    compared: Mapping[str, Any] = field(default_factory=dict)
    answer: JudgeResponse | None = None
    may_pass: bool = False


@dataclass(slots=True, eq=False)
class _Group:
    """A group; ``closed``: it waits for nobody any more. ``counts`` are there once it is settled.

    ``awaited``: with how many samples it closes. ``stale``: the names of those that failed when it
    was settled before, and that may come again; until then their failures hold.
    """

    key: _GroupKey
    size: int
    settled: asyncio.Future[None]
    awaited: int
    samples: dict[str, _GroupSample] = field(default_factory=dict)
    stale: set[str] = field(default_factory=set)
    timer: asyncio.TimerHandle = field(init=False)
    closed: bool = False
    counts: dict[str, int] = field(default_factory=dict)


class Rendezvous(GroupRendezvous):
    """Judges groups whose samples come one by one; lives on one event loop.

    ``settings``: ``group_timeout_s`` from a group's first sample until it is settled with those
    that are there; ``deadline_s`` for a sample's graders and for those that compare;
    ``concurrency`` samples are judged at once; ``queue_size`` groups may be open, with as much
    text as sixteen of the largest requests have.
    """

    def __init__(self, reducer: RewardReducer, settings: ServiceSettings) -> None:
        self._reducer = reducer
        graders = reducer.spec.graders
        listwise = [one for one in graders if is_listwise(reducer.graders[one.name])]
        alone = [one for one in graders if one not in listwise]
        self._alone = GraderPart(reducer, alone, settings.deadline_s)
        self._together = GraderPart(reducer, listwise, settings.deadline_s)
        self._settings = settings
        self._slots = FairSlots(settings.concurrency)
        self._open: dict[_GroupKey, _Group] = {}
        self._settled: dict[_GroupKey, _Group] = {}
        self._held_bytes = 0
        self._tasks: set[asyncio.Task[Any]] = set()

    async def join(self, request: GroupRequest) -> JudgeResponse:
        """The answer to one sample of a group, once its group is settled.

        The group is settled when ``group_size`` samples are there or announced ``aborted``, or
        ``group_timeout_s`` after the first; over those that are there, as if it had no others.
        ``metadata.group`` says how many were present, aborted, absent. The same ``request_id``
        again is the same sample: judged once, answered alike, also after a disconnect. One that
        failed for a reason that may pass is judged anew, beside what is known of the others; so is
        the new text of one that ``replays``.

        Errors: ``cancelled`` (the answer to an announcement, at once), ``incomplete`` (came after
        the group was closed), ``invalid_input`` (no or too long ids, a size that contradicts the
        group's, more samples than its size, another sample under a known ``request_id``). Raises
        :class:`.RequestRefused` (429) where too many groups are open.
        """
        try:
            found, sent = self._find_or_add(request)
        except RequestRefused:
            raise
        except GradingFailure as failure:
            if request.aborted and failure.kind is ErrorKind.INCOMPLETE:
                failure = _ABORTED  # also of a group that is closed
            response = failure_response(failure, request.request_id)
            response.metadata = failure.metadata or None
            return response
        if request.aborted:
            return failure_response(_ABORTED, sent.name)
        # Shielded: whoever goes away leaves the sample, and finds it judged on coming back.
        is_late = found.closed and not found.settled.done()
        await asyncio.shield(found.settled)
        member = found.samples[sent.name]
        # It may have come while the one before was judged.
        if is_late and member.digest != sent.digest and found.key in self._settled:
            return await self.join(request)
        return copy(member.answer or failure_response(_ABORTED, sent.name))  # each gets facts added

    def stop_waiting(self) -> None:
        """Nobody can come any more: groups that are not complete end as by :meth:`aclose`."""
        self._end([group for group in self._open.values() if not group.closed])

    async def aclose(self) -> None:
        """Stop: all groups are answered ``cancelled``, so that they are sent again."""
        self._end(list(self._open.values()))
        if tasks := set(self._tasks):
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    def _end(self, groups: list[_Group]) -> None:
        for group in groups:
            self._drop(group)
            # Without counts: the group was not settled, and may meet again elsewhere.
            for member in group.samples.values():
                failure = GradingFailure(ErrorKind.CANCELLED, "the service stops")
                member.answer = failure_response(failure, member.name)
            if not group.settled.done():
                group.settled.set_result(None)

    def _find_or_add(self, request: GroupRequest) -> tuple[_Group, _GroupSample]:
        """The group that the request sits in (open, closed, or settled), and what was sent."""
        key, name = _find_key(request)
        body = msgspec.json.encode(request)
        digest = blake2b(body, digest_size=16).digest()
        new = _GroupSample(name, request.aborted, digest, len(body))
        group = self._open.get(key) or self._settled.get(key)
        if group is not None and group.size != request.group_size:
            raise _invalid(
                f"group_size: found {request.group_size}, but the group has {group.size}. Give "
                f"each run its own metadata.{RUN_ID_FIELD} where two use the same group ids"
            )
        known = None if group is None else group.samples.get(name)
        anew = group is None or (
            group.settled.done() and self._is_judged_anew(group, new, replays=request.replays)
        )
        if group is None or anew or name in group.stale:
            known = None
        full = self._held_bytes + new.size > self._settings.max_held
        if full and known is None and (group is None or anew or not group.closed):
            # Whoever went away has left a text here: connections do not bound them.
            raise queue_full(
                f"{len(self._open)} groups are open with {self._held_bytes / 1e6:.1f} MB of texts: "
                "raise max_body_mb, or send fewer groups at once",
                retry_after=1.0,
            )
        if group is None or anew:
            group = self._open_group(key, request.group_size, group, name)
        if known is None:
            self._add_sample(group, new, request)
        elif not group.closed and (request.aborted or request.replays):
            if known.digest != new.digest:
                if known.judging is not None:
                    known.judging.cancel()
                known.sample = known.judging = known.judged = None
                if not request.aborted:
                    self._add_sample(group, new, request)
        elif (
            not (request.aborted or known.aborted)  # of an announced one nothing is known
            and known.digest != new.digest
            and (group.settled.done() or not request.replays)
        ):
            raise _invalid(
                "request_id: another sample of the group has the same. Give each sample its own, "
                "and send the same text in a retry"
            )
        return group, new

    def _is_judged_anew(self, settled: _Group, new: _GroupSample, *, replays: bool) -> bool:
        """Whether a settled group opens again for a sample, since there is a reason.

        What is known of the others counts as it is. Those that may pass too are waited for.
        """
        earlier = settled.samples.get(new.name)
        if earlier is None or new.aborted:
            return False
        if earlier.digest == new.digest:
            return earlier.may_pass
        # It would have to be compared with texts that are gone.
        kept = (one for n, one in settled.samples.items() if n != new.name and not one.may_pass)
        return replays and not (self._together.entries and any(one.judged for one in kept))

    def _open_group(self, key: _GroupKey, size: int, earlier: _Group | None, name: str) -> _Group:
        """A group that waits for its samples; ``earlier``: settled, and open again for ``name``."""
        most, waiting = self._settings.queue_size, _count_samples(self._open)
        full = len(self._open) >= most or waiting >= _SAMPLES_PER_PLACE * most
        runs = [run for run, _ in self._open] if full else []
        if full and runs.count(key[0]) >= most // len({*runs, key[0]}):
            raise queue_full(
                f"{len(self._open)} groups are open with {waiting} samples: raise "
                "queue_size, or send fewer groups at once",
                retry_after=1.0,
            )
        loop = asyncio.get_running_loop()
        group = self._open[key] = _Group(key, size, loop.create_future(), size)
        group.timer = loop.call_later(self._settings.group_timeout_s, self._close, group)
        if earlier is not None:
            del self._settled[key]
            group.awaited, group.samples = len(earlier.samples), {**earlier.samples}
            group.stale = {n for n, one in group.samples.items() if one.may_pass} | {name}
        return group

    def _add_sample(self, group: _Group, member: _GroupSample, request: GroupRequest) -> None:
        """A new sample of an open group, judged from now on."""
        before = group.samples.get(member.name)
        if before is None and len(group.samples) >= group.size:
            raise _invalid(
                f"group_size: the group already has its {group.size} samples, so this one is not "
                "judged. Send the group's real size, aborted samples included"
            )
        if group.closed:
            raise GradingFailure(
                ErrorKind.INCOMPLETE,
                "came after the group was closed: group_timeout_s had passed since its first",
                {"group": group.counts} if group.counts else None,
            )
        group.samples[member.name] = member
        group.stale.discard(member.name)
        if before is not None:
            self._forget_text(before)
            if before.judged is not None and before.digest == member.digest:
                member.compared = self._together.find_kept(before.judged)
        self._held_bytes += member.size
        if not member.aborted:
            member.sample = request_to_sample(request)
            member.judging = self._task(self._judge_sample(member, member.sample, group.key))
        if not group.stale and len(group.samples) >= group.awaited:
            self._close(group)

    async def _judge_sample(
        self, member: _GroupSample, sample: Sample, key: _GroupKey
    ) -> GradedSample:
        async with self._slots.hold(key[0]):
            [judged] = await self._alone.grade([sample], key[1])
        if member.compared or not self._together.entries:  # the text is not needed any more
            member.sample = None
            self._forget_text(member)
        return replace(judged, outcome={**judged.outcome, **member.compared})

    def _forget_text(self, member: _GroupSample) -> None:
        self._held_bytes -= member.size
        member.size = 0

    def _close(self, group: _Group) -> None:
        """Wait for nobody any more: settle the group with those that are there."""
        if group.closed:
            return
        group.closed = True
        self._task(self._settle(group))

    async def _settle(self, group: _Group) -> None:
        try:
            await self._judge_group(group)
            self._remember(group)
        except BaseException as error:  # noqa: BLE001  (who waits gets it)
            if not group.settled.done():
                group.settled.set_exception(error)
                group.settled.exception()  # seen, also where nobody waits
        self._drop(group)
        if not group.settled.done():
            group.settled.set_result(None)

    async def _judge_group(self, group: _Group) -> None:
        there = [one for _, one in sorted(group.samples.items()) if one.judging is not None]
        counts = group.counts = {
            "size": group.size,
            "present": len(there),
            "aborted": len(group.samples) - len(there),
            "absent": group.size - len(group.samples),
        }
        said = [one.judged or await one.judging for one in there if one.judging is not None]
        compared = {
            place: one.sample
            for place, one in enumerate(there)
            if one.sample is not None and one.judged is None
        }
        if compared:
            found = await self._together.grade([*compared.values()], group.key[1])
            for place, more in zip(compared, found, strict=True):
                outcome = {**said[place].outcome, **more.outcome}
                said[place] = replace(said[place], outcome=outcome)
        names = [one.name for one in there]
        answers = make_responses(self._reducer, names, said, whole_groups=True)
        new = [one for one in group.samples.values() if one.judged is None]
        for member, judged, answer in zip(there, said, answers, strict=True):
            if member.judged is None:  # the others keep the answer that was sent
                member.judged, member.answer = judged, answer
        for member in new:
            member.answer = member.answer or failure_response(_ABORTED, member.name)
            member.answer.metadata = {**(member.answer.metadata or {}), "group": counts}
        errors = [one.answer.error if one.answer is not None else None for one in there]
        dropped_may_pass = any(error is not None and error.passing for error in errors)
        for member, error in zip(there, errors, strict=True):
            member.may_pass = error is not None and (
                error.passing or (dropped_may_pass and error.kind is ErrorKind.QUORUM)
            )

    def _drop(self, group: _Group) -> None:
        if self._open.pop(group.key, None) is not None:
            for member in group.samples.values():
                self._forget_text(member)
        group.timer.cancel()

    def _remember(self, group: _Group) -> None:
        """Keep the answers for retries that come late; the oldest groups are forgotten."""
        for member in group.samples.values():
            member.sample = None
        self._settled[group.key] = group
        while len(self._settled) > 1 and _count_samples(self._settled) > _REMEMBERED:
            del self._settled[next(iter(self._settled))]

    def _task(self, work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _count_samples(groups: Mapping[_GroupKey, _Group]) -> int:
    return sum(len(group.samples) for group in groups.values())


def make_rendezvous(backend: Backend, settings: ServiceSettings) -> GroupRendezvous:
    """The backend's own, or one for its spec."""
    if isinstance(backend, SpecBackend) and backend.damping is None:
        return Rendezvous(backend.reducer, settings)
    return backend.rendezvous


def _find_key(request: GroupRequest) -> tuple[_GroupKey, str]:
    """The group's key and the sample's name; ``GradingFailure`` for what cannot be either."""
    for name in ("group_id", "request_id"):
        if not 1 <= len(getattr(request, name) or "") <= MAX_ID_LENGTH:
            told = "groups" if name == "group_id" else "the samples of a group"
            raise _invalid(
                f"{name}: must have 1 to {MAX_ID_LENGTH} characters; it tells {told} apart"
            )
    if not 1 <= request.group_size <= MAX_GROUP_SIZE:
        raise _invalid(f"group_size: found {request.group_size}, must be 1 to {MAX_GROUP_SIZE}")
    run = (request.metadata or {}).get(RUN_ID_FIELD, "")
    if not isinstance(run, str) or len(run) > MAX_ID_LENGTH:
        raise _invalid(
            f"metadata.{RUN_ID_FIELD}: must be text of at most {MAX_ID_LENGTH} characters"
        )
    return (run, request.group_id), request.request_id or ""
