"""The samples of one call as single questions, and their results collected per sample again."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from adjudge.errors import ErrorKind, GradingFailure
from adjudge.judges.base import call_round
from adjudge.messages import split_events
from adjudge.runner.runner import GradingRequest, GradingRunner
from adjudge.types import GraderError, GraderRank, GraderResult, GraderScore, RewardSample, Role


@dataclass(frozen=True)
class GraderNames:
    """Names of a spec's graders by what they are asked about; ``roles`` of all."""

    outcome: Sequence[str]
    event: Sequence[str]
    group: Sequence[str]
    roles: Mapping[str, Role]


@dataclass(slots=True)
class GradedSample:
    """What the graders said about one sample; the rollout itself is not kept.

    ``sampled``: its group was drawn. ``asked``: something was really asked, not just resumed.
    """

    original_index: int
    group_index: int
    group: str
    env_reward: float | None
    outcome: dict[str, GraderResult]
    events: list[dict[str, GraderResult]] | GraderError
    sampled: bool = True
    asked: bool = True

    def results(self) -> Iterator[tuple[str, GraderResult]]:
        """Every result with its grader's name, those of events included."""
        if isinstance(self.events, GraderError) or not self.events:
            return iter(self.outcome.items())
        return chain(self.outcome.items(), *(event.items() for event in self.events))


def find_idle_graders(
    judged: Sequence[GradedSample], *, imputes: bool = False
) -> dict[str, set[str]]:
    """By group of two or more, the graders that had nothing to judge in any of its samples.

    Failures say neither that there was something nor that there was nothing; but where the spec
    ``imputes`` suspect ones, their grader counts, and so it counts for the whole group. A sample
    alone tells nothing about its group, which a trainer may have sent in several calls.
    """
    idle: dict[str, set[str]] = {}
    for one in judged:
        names = [
            name
            for name, result in one.results()
            if result.metadata and isinstance(result, GraderScore) and not result.evaluable
        ]
        if names:
            idle.setdefault(one.group, set()).update(names)
    if not idle:
        return idle
    sizes = Counter(one.group for one in judged)
    for one in judged:
        if (found := idle.get(one.group)) is not None:
            found -= {n for n, r in one.results() if _has_judged(r, imputes=imputes)}
    return {group: names for group, names in idle.items() if names and sizes[group] > 1}


def _has_judged(result: GraderResult, *, imputes: bool) -> bool:
    if isinstance(result, GraderError):
        return imputes and result.suspect
    return isinstance(result, GraderScore) and result.evaluable


class GradingBatch:
    """Samples of one call laid out as asks; every sample remembers the places of its answers.

    All asks of a call go through the runner as one stream, so its concurrency is the call's.
    """

    def __init__(
        self,
        samples: Sequence[RewardSample],
        groups: Sequence[str],
        sampled: Sequence[bool],
        roster: GraderNames,
        runner: GradingRunner,
    ) -> None:
        self._samples, self._groups, self._sampled = samples, groups, sampled
        self._roster, self._runner = roster, runner
        self._asks: list[GradingRequest] = []
        self._results: list[GraderResult] = []
        self._asked: list[bool] = []
        self._outcome: dict[int, dict[str, int]] = {}
        self._events: dict[int, list[dict[str, int]] | GraderError] = {}
        self._members: dict[str, list[int]] = {}
        self._ranked: dict[str, dict[str, int]] = {}
        self._lay_out()

    def _lay_out(self) -> None:
        fields = {p: self._samples[p].fields() for p, drawn in enumerate(self._sampled) if drawn}
        for place, own in fields.items():
            self._outcome[place] = self._add(self._roster.outcome, own)
            if self._roster.event:
                self._events[place] = self._add_events(own)
        if self._roster.group:
            for place in fields:
                self._members.setdefault(self._groups[place], []).append(place)
            for group, places in self._members.items():
                item = _group_fields([fields[place] for place in places])
                self._ranked[group] = self._add(self._roster.group, item)

    def _add(self, names: Sequence[str], fields: Mapping[str, Any]) -> dict[str, int]:
        places = {}
        for name in names:
            places[name] = len(self._asks)
            self._asks.append(GradingRequest(name, fields))
        return places

    def _add_events(self, fields: Mapping[str, Any]) -> list[dict[str, int]] | GraderError:
        """Each event's own fields laid over its sample's; the whole event is ``event``.

        Events are the sample's ``events`` (none sum to 0), else the assistant's turns in its
        ``messages``; messages without any say nothing of what the policy did.
        """
        events = fields.get("events")
        if events is None:
            try:
                events = split_events(fields.get("messages"))
            except GradingFailure as failure:
                return _no_events_error(str(failure))
            if not events:
                return _no_events_error("its messages have no turn of the assistant")
        if not isinstance(events, list):
            return _no_events_error(f"'events' is a {type(events).__name__}")
        items = [event if isinstance(event, dict) else {"event": event} for event in events]
        return [self._add(self._roster.event, {**fields, "event": item, **item}) for item in items]

    @property
    def asks(self) -> Sequence[GradingRequest]:
        """Every question, as it will be asked."""
        return self._asks

    async def ask(self) -> None:
        """Ask every grader about everything."""
        self._results, self._asked = await self._round(self._asks)

    async def _round(self, asks: Sequence[GradingRequest]) -> tuple[list[GraderResult], list[bool]]:
        """Ask in one round, in which equal calls to a recorded judge end alike."""
        before = call_round.set(object())
        try:
            return await self._runner.aask(asks)
        finally:
            call_round.reset(before)

    async def ask_again(
        self, chosen: Callable[[GraderResult], bool], *, draw: int | None = None
    ) -> None:
        """Ask those again whose result is ``chosen``: the same draw, or once with a new one."""
        places = [
            place
            for place, result in enumerate(self._results)
            if chosen(result) and (draw is None or self._asks[place].draw < draw)
        ]
        for place in places:
            if draw is not None:
                self._asks[place] = self._asks[place]._replace(draw=draw)
            failed = self._results[place]
            if self._runner.tally is not None and isinstance(failed, GraderError):
                self._runner.tally.withdraw(failed)
        if not places:
            return
        answers, _ = await self._round([self._asks[place] for place in places])
        for place, answer in zip(places, answers, strict=True):
            self._results[place] = answer
            self._asked[place] = True

    def judged(self) -> list[GradedSample]:
        """What was said about each sample, in order."""
        ranks, all_asked = self._ranks(), all(self._asked)
        return [
            self._one(place, ranks.get(place), all_asked) for place in range(len(self._samples))
        ]

    def _one(
        self, place: int, ranks: Mapping[str, GraderResult] | None, all_asked: bool
    ) -> GradedSample:
        sample = self._samples[place]
        if self._sampled[place]:
            outcome = {n: self._results[p] for n, p in self._outcome[place].items()}
            if ranks:
                outcome.update(ranks)
            events = self._event_results(place) if self._roster.event else []
            asked = (all_asked and bool(self._outcome[place])) or self._was_asked(place)
        else:
            names = (*self._roster.outcome, *self._roster.group)
            outcome = {name: _not_sampled_error(name) for name in names}
            events, asked = _not_sampled_error("events"), False
        return GradedSample(
            sample.original_index,
            sample.group_index,
            self._groups[place],
            _finite_number(sample.extra.get("env_reward")) if sample.extra else None,
            outcome,
            events,
            sampled=self._sampled[place],
            asked=asked,
        )

    def _event_results(self, place: int) -> list[dict[str, GraderResult]] | GraderError:
        events = self._events[place]
        if isinstance(events, GraderError):
            return events
        return [{name: self._results[p] for name, p in event.items()} for event in events]

    def _was_asked(self, place: int) -> bool:
        if any(self._asked[p] for p in self._outcome[place].values()):
            return True
        events = self._events.get(place, [])
        layouts = list(events) if isinstance(events, list) else []
        layouts.append(self._ranked.get(self._groups[place], {}))
        return any(self._asked[p] for layout in layouts for p in layout.values())

    def _ranks(self) -> dict[int, dict[str, GraderResult]]:
        """Each sample's share of the listwise results, as rewards in [0, 1]."""
        shares: dict[int, dict[str, GraderResult]] = {}
        for group, asked in self._ranked.items():
            places = self._members[group]
            for name, at in asked.items():
                role = self._roster.roles[name]
                scores = _rank_scores(self._results[at], len(places), role)
                for place, score in zip(places, scores, strict=True):
                    shares.setdefault(place, {})[name] = score
        return shares


def _group_fields(members: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """A group as one item: the fields that all its samples have, as lists."""
    shared = set(members[0]).intersection(*members[1:])
    return {name: [member[name] for member in members] for name in sorted(shared)}


def _finite_number(value: Any) -> float | None:
    """A finite number of any library, else ``None``."""
    if value is None or isinstance(value, str) or not hasattr(value, "__float__"):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):  # an array of several, an integer beyond floats
        return None
    return number if math.isfinite(number) else None


def _rank_scores(result: GraderResult, n: int, role: Role) -> Sequence[GraderResult]:
    if not isinstance(result, GraderRank):
        return [result] * n
    if len(result.rank) != n:
        message = f"{len(result.rank)} ranks for {n} samples"
        return [GraderError(result.name, ErrorKind.INCOMPLETE, message, role=role)] * n
    scores = result.as_scores()
    if scores is None:
        message = "a group of one sample cannot be ranked"
        return [GraderError(result.name, ErrorKind.INVALID_INPUT, message, role=role)] * n
    reason, source = result.reason, result.provenance
    return [
        GraderScore(result.name, score, reason, {"rank": place}, (0.0, 1.0), role, source)
        for score, place in zip(scores, result.rank, strict=True)
    ]


def _no_events_error(why: str) -> GraderError:
    return GraderError(
        "events",
        ErrorKind.INVALID_INPUT,
        "graders with scope = 'event' need a list in the sample's 'events' field, or messages; "
        + why,
    )


def _not_sampled_error(name: str) -> GraderError:
    return GraderError(name, ErrorKind.NOT_SAMPLED, "this group was not drawn (sample_rate)")
