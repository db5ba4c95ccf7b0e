"""A spec's graders asked about a batch: once, again where it may help, and through an outage.

With several ``draws`` each grader that takes one is asked so many times about each sample, as
draws 0, 1, 2, …. The first makes the reward. The others stand in ``repeats``, and no outage is seen
in their failures.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, TypedDict, Unpack

from msgspec import structs

from adjudge.engine.clock import Clock, LogLimiter, SystemClock
from adjudge.engine.loop import run_on_engine
from adjudge.errors import (
    ASKED_AGAIN,
    BLAMED,
    LOST,
    REDRAW_KINDS,
    ErrorKind,
    Fields,
    GradingFailure,
    JudgeUnavailable,
)
from adjudge.graders.base import is_listwise
from adjudge.graders.binding import BoundGrader, GraderConfig
from adjudge.judges.asking import Ask, AskReason, JudgeCall, compute_wait
from adjudge.judges.base import call_round
from adjudge.messages import split_events
from adjudge.rewards.judge_watch import JudgeWatch
from adjudge.rewards.spec import RewardSpec
from adjudge.runner.journal import Journal, sample_key
from adjudge.runner.progress import Tally
from adjudge.runner.runner import CallListener, Subject, WorkerPool, WorkItem
from adjudge.types import (
    GradedSample,
    GraderError,
    GraderRank,
    GraderResult,
    GraderScore,
    Role,
    Sample,
)

_log = logging.getLogger("adjudge")

_REPORT_EVERY_S = 0.9
_NOTE_CHARS = 120
_PROBED = 4


class _SharedAnswers(dict[str, GraderResult]):
    """What listwise graders say of a group: each member gets its share, as a reward in [0, 1]."""

    def __init__(self, members: Sequence[GradedSample], roles: Mapping[str, Role]) -> None:
        super().__init__()
        self._members, self._roles = members, roles

    def __setitem__(self, name: str, result: GraderResult) -> None:
        super().__setitem__(name, result)
        shares = _rank_scores(result, len(self._members), self._roles[name])
        for one, share in zip(self._members, shares, strict=True):
            one.outcome[name] = share


@dataclass
class _Call:
    """What one call asks: its samples, and every question.

    An answer goes straight to its place: a sample's ``outcome``, an event of it, or the members of
    a group. Samples are known by their places in ``graded``; ``asked`` are those that were asked
    about. ``counting``: the graders without which a reward is missing.
    """

    graded: list[GradedSample] = field(default_factory=list)
    items: list[WorkItem] = field(default_factory=list)
    asked: list[GradedSample] = field(default_factory=list)
    listener: CallListener | None = None
    counting: Collection[str] = ()

    def listen(self, listener: TranscriptListener) -> None:
        """Tell ``listener`` of the judge calls of each question from now on."""

        def tell(item: WorkItem, calls: list[JudgeCall], result: GraderResult) -> None:
            places = [self.graded[one].original_index for one in item.subject.samples]
            event = "" if item.subject.event is None else f"#{item.subject.event}"
            failed = isinstance(result, GraderError)
            listener.add_calls(places, f"{item.place}{event}", calls, failed=failed)

        self.listener = tell

    def find_failed(self) -> Iterator[tuple[int, GraderError]]:
        """The failures of now, each with the number of its question."""
        for at, item in enumerate(self.items):
            if type(error := item.results[item.place]) is GraderError:
                yield at, error

    def find_asked(self, known: Collection[int]) -> list[GradedSample]:
        """The samples that were asked about; ``known``: the questions that a journal answered."""
        asked: set[int] = set()
        for at, item in enumerate(self.items):
            failed = isinstance(item.results[item.place], GraderError)
            if not item.ask.draw and (failed or at not in known):
                asked.update(item.subject.samples)
        return [self.graded[place] for place in sorted(asked)]


class TranscriptListener(Protocol):
    """Who keeps what judges were asked and said."""

    def add_calls(
        self, samples: Sequence[int], grader: str, calls: list[JudgeCall], *, failed: bool
    ) -> None:
        """The calls of one question of a grader, in the order in which they ended.

        ``samples``: the places (``original_index``) of whom it was asked about, several for a
        question about a group. A question about an event is of ``GRADER#NUMBER``.
        """


class AskOptions(TypedDict, total=False):
    """How a batch is asked about.

    ``journal``: where answers are kept, and found again. ``tally``: a caller's count of results.
    ``startup_patience_s``: how long to wait for a judge that has never been reached, by default
    ``patience_s`` of the spec. ``draws``: how often each grader that takes a draw is asked, of
    which the first makes the reward. ``listener`` hears of judge calls. ``columns``: those of the
    samples of all calls, where they are known.
    """

    clock: Clock | None
    journal: Journal | None
    tally: Tally | None
    startup_patience_s: float | None
    draws: int
    listener: TranscriptListener | None
    columns: Collection[str]


class BatchGrader:
    """The graders of a spec, and how they are asked.

    ``graders`` are the built objects by name. The same object serves call after call; the outage
    watch looks back over calls. ``draws``: how often each of ``asked_again``, the graders that take
    a draw, is asked. ``needs_whole_groups``: a grader compares the samples of a group, so that all
    must come in one call. ``compares_groups``: what needs that for the rewards, a grader or a
    setting of the spec; ``None`` where nothing does.
    """

    def __init__(
        self, spec: RewardSpec, graders: Mapping[str, object], **options: Unpack[AskOptions]
    ) -> None:
        self.draws = options.get("draws", 1)
        self._listener = options.get("listener")
        self._clock = options.get("clock") or SystemClock()
        self._counting = spec.counting
        patience_s, columns = options.get("startup_patience_s"), options.get("columns", ())
        self._watch = JudgeWatch(spec, graders, patience_s, columns)
        self._waits = LogLimiter(_REPORT_EVERY_S, self._clock)
        # What is asked about each sample, each event and each group.
        self._outcome: list[BoundGrader] = []
        self._event: list[BoundGrader] = []
        self._group: list[BoundGrader] = []
        for entry in spec.graders:
            config = GraderConfig(graders[entry.name], entry.mapper)
            of_scope = self._event if entry.scope == "event" else self._outcome
            bound = self._group if is_listwise(config.grader) else of_scope
            bound.append(BoundGrader(entry.name, config))
        self._names = [entry.name for entry in spec.graders]
        bound = [*self._outcome, *self._event, *self._group]
        self.asked_again = frozenset(one.name for one in bound if one.takes_draw)
        self.needs_whole_groups = bool(self._group)
        self.compares_groups = _RANKS if self._group else spec.group_setting
        # All questions of a call are one stream, so the concurrency is the call's.
        journal, tally = options.get("journal"), options.get("tally")
        self._pool = WorkerPool(spec.max_concurrency, journal, tally, stop_on_auth=True)

    async def grade(
        self,
        samples: Sequence[Sample],
        groups: Sequence[str],
        sampled: Sequence[bool],
        *,
        counting: Collection[str] | None = None,
    ) -> list[GradedSample]:
        """One :class:`~adjudge.types.GradedSample` per sample, in order; from any event loop.

        ``groups[i]`` names sample *i*'s group; only the ``sampled`` are asked about; ``counting``
        are the graders that make a reward (by default all that the spec gives a weight). Raises
        :class:`~adjudge.errors.JudgeUnavailable` where judges give no rewards any more, and
        :class:`~adjudge.errors.JudgeAuthError` when a provider refuses the key, a grader's
        :class:`~adjudge.errors.ConfigError`, and one for a grader that has never answered and
        cannot; see :class:`~adjudge.rewards.judge_watch.JudgeWatch`.
        """
        return await run_on_engine(self._grade(samples, groups, sampled, counting))

    async def _grade(
        self,
        samples: Sequence[Sample],
        groups: Sequence[str],
        sampled: Sequence[bool],
        counting: Collection[str] | None,
    ) -> list[GradedSample]:
        call = self._lay_out(samples, groups, sampled)
        call.counting = self._counting if counting is None else counting
        self._watch.check_fields(call.items)
        if self._listener is not None:
            call.listen(self._listener)
        call.asked = call.find_asked(await self._run(call, call.items))
        await self._ask_again(call, "again")
        try:
            await self._outlast_outage(call)
        finally:
            if self._pool.tally is not None:
                self._pool.tally.note = ""
        self._watch.settle_lacked(call.graded, samples)
        self._watch.check_answers(call.graded, samples)
        for one in call.graded:
            for repeat in one.repeats:  # of graders that take no draw the first answers
                repeat.outcome = {**one.outcome, **repeat.outcome}
                if isinstance(one.events, list) and isinstance(repeat.events, list):
                    events = zip(one.events, repeat.events, strict=True)
                    repeat.events = [{**known, **again} for known, again in events]
        return call.graded

    def journal_keys(
        self, samples: Sequence[Sample], groups: Sequence[str], sampled: Sequence[bool]
    ) -> list[tuple[str, str, int]]:
        """Under which sample key, grader and draw the journal would know each answer."""
        items = self._lay_out(samples, groups, sampled).items
        return [(one.key, one.grader.name, one.ask.draw) for one in items if one.key is not None]

    # --- what is asked --------------------------------------------------------------------------

    def _lay_out(
        self, samples: Sequence[Sample], groups: Sequence[str], sampled: Sequence[bool]
    ) -> _Call:
        call = _Call()
        contents: dict[int, Fields] = {}
        for place, (sample, group, drawn) in enumerate(zip(samples, groups, sampled, strict=True)):
            at, env_reward = sample.original_index, sample.env_reward
            one = GradedSample(at, sample.group_index, group, env_reward, {}, [], drawn)
            call.graded.append(one)
            if not drawn or sample.is_lost:
                kind, why = ErrorKind.NOT_SAMPLED, "this group was not drawn (sample_rate)"
                if sample.is_lost:  # the environment pays nothing for it, drawn or not
                    kind, why = ErrorKind.INVALID_INPUT, sample.problem or _NO_RESPONSE
                marks = {LOST: True} if sample.is_lost else {}
                for grader in (*self._outcome, *self._group):
                    one.outcome[grader.name] = GraderError(grader.name, kind, why, marks)
                one.events = GraderError("events", kind, why, marks)
                continue
            contents[place] = sample.fields()
        for draw in range(self.draws):
            self._add_draw(call, contents, Ask(draw))
        # What makes rewards is asked first; then what begins alike is asked next to each other,
        # since servers cache the beginnings of prompts.
        numbers = {group: number for number, group in enumerate(dict.fromkeys(groups))}
        places = {name: place for place, name in enumerate(self._names)}

        def order(item: WorkItem) -> tuple[int, int, int]:
            group = groups[item.subject.samples[0]]
            return item.ask.draw, numbers[group], places[item.grader.name]

        call.items.sort(key=order)
        return call

    def _add_draw(self, call: _Call, contents: Mapping[int, Fields], ask: Ask) -> None:
        """Ask about all samples: every grader at first, then those that take a draw."""
        outcome, event, group = (
            [grader for grader in graders if grader.takes_draw or not ask.draw]
            for graders in (self._outcome, self._event, self._group)
        )
        members: dict[str, dict[int, GradedSample]] = {}
        for place, fields in contents.items():
            one = first = call.graded[place]
            if ask.draw:
                one = replace(first, outcome={}, repeats=())
                first.repeats = (*first.repeats, one)
            self._add(call, outcome, fields, one.outcome, ask, Subject([place]))
            if event:
                one.events = self._add_events(call, event, fields, ask, place)
            if group:
                members.setdefault(one.group, {})[place] = one
        roles = {grader.name: grader.role for grader in group}
        for several in members.values():
            rows = [contents[place] for place in several]  # one item: what all have, as lists
            names = sorted(set(rows[0]).intersection(*rows[1:]))
            shared = {name: [row[name] for row in rows] for name in names}
            answers = _SharedAnswers(list(several.values()), roles)
            self._add(call, group, shared, answers, ask, Subject(list(several)))

    def _add(
        self,
        call: _Call,
        graders: Sequence[BoundGrader],
        fields: Fields,
        results: dict[str, GraderResult],
        ask: Ask,
        subject: Subject,
    ) -> None:
        key = None if self._pool.journal is None else sample_key(fields)
        for grader in graders:
            results[grader.name] = _UNANSWERED  # keeps the spec's order
            call.items.append(WorkItem(grader, fields, ask, results, grader.name, key, subject))

    def _add_events(
        self,
        call: _Call,
        graders: Sequence[BoundGrader],
        fields: Fields,
        ask: Ask,
        place: int,
    ) -> list[dict[str, GraderResult]] | GraderError:
        """Each event's own fields laid over its sample's; the whole event is ``event``.

        Events are the sample's ``events`` (none sum to 0), else the assistant's turns in its
        ``messages`` after those of the prompt; none of these says nothing of what the policy did.
        """
        events = fields.get("events")
        if events is None:
            try:
                events = split_events(fields.get("messages"), fields.get("opening_turns") or 0)
            except GradingFailure as failure:
                return _no_events_error(str(failure))
            if not events:
                return _no_events_error("its messages have no turn of the assistant")
        if not isinstance(events, list):
            return _no_events_error(f"'events' is a {type(events).__name__}")
        answers: list[dict[str, GraderResult]] = []
        for at, event in enumerate(events):
            item = event if isinstance(event, dict) else {"event": event}
            answers.append({})
            seen = {**fields, "event": item, **item}
            self._add(call, graders, seen, answers[-1], ask, Subject([place], at))
        return answers

    # --- asking ---------------------------------------------------------------------------------

    async def _run(self, call: _Call, items: Sequence[WorkItem]) -> set[int]:
        """Ask in one round, in which equal calls to a recorded judge end alike."""
        before = call_round.set(object())
        try:
            return await self._pool.run(items, len(items), call.listener)
        finally:
            call_round.reset(before)

    async def _ask_again(self, call: _Call, why: AskReason) -> None:
        """Ask what may pass once more, then a reply that nobody could read.

        A grader of the user's own has its one redraw here; the others have asked again themselves.
        """
        await self._repeat(call, [at for at, error in call.find_failed() if error.passing], why)
        unread = (
            at
            for at, error in call.find_failed()
            if error.kind in REDRAW_KINDS and ASKED_AGAIN not in error.metadata
        )
        items = call.items
        again = [at for at in unread if not (items[at].grader.asks_again or items[at].ask.attempt)]
        for at in again:
            items[at] = items[at]._replace(ask=Ask(items[at].ask.draw, 1, "redraw"))
        await self._repeat(call, again, "redraw")

    async def _repeat(self, call: _Call, places: Sequence[int], why: AskReason) -> None:
        """Ask these questions again, the same attempts at the same draws."""
        asked = [call.items[at] for at in places]
        for item in asked:
            if self._pool.tally is not None:
                self._pool.tally.withdraw(item.results[item.place])
        if asked:
            await self._run(
                call, [one._replace(ask=structs.replace(one.ask, why=why)) for one in asked]
            )

    # --- outages --------------------------------------------------------------------------------

    async def _outlast_outage(self, call: _Call) -> None:
        """Ask again, less and less often, until the judges are back or patience is at its end."""
        watched = self._watch.begin_call(call.asked, call.counting)
        started, asks = self._clock.time(), 0
        while (outage := self._watch.find_outage(call.graded, watched)) is not None:
            left = outage.patience_s - (self._clock.time() - started)
            if left <= 0:
                raise JudgeUnavailable(outage.ending, outage.failure.kind)
            if self._pool.tally is not None:
                waited = f"waiting, {outage.patience_s - left:.0f} s of {outage.patience_s:g} s: "
                self._pool.tally.note = waited + outage.reason[:_NOTE_CHARS]
            # Many calls at once wait for the same judge: one of them says so.
            if self._waits.count():
                _log.warning("%s; asking again for up to %.0f s", outage.reason, left)
            await self._clock.sleep(min(compute_wait(asks), left))
            asks += 1
            if outage.lost:
                await self._ask_lost(call)
            await self._ask_again(call, "outage")
            now = self._watch.find_outage(call.graded, watched)
            if outage.never_reached and not (now and now.never_reached):
                # It came up while the others of this round still failed at once.
                await self._ask_again(call, "outage")
            self._watch.update(watched, call.asked, call.counting)

    async def _ask_lost(self, call: _Call) -> None:
        """Ask a few questions again to which judges gave no verdict; all, once one is answered."""
        lost = [
            at
            for at, error in call.find_failed()
            if self._watch.lacks_verdict(call.items[at].grader.name, error)
        ]
        await self._repeat(call, lost[:_PROBED], "outage")
        left = {at for at, _ in call.find_failed()}
        if not left.issuperset(lost[:_PROBED]):
            await self._repeat(call, [at for at in lost if at in left], "outage")


_RANKS = "a grader that compares the samples of a group"
_UNANSWERED = GraderError("grader", ErrorKind.CANCELLED, "was not answered")
_NO_RESPONSE = "the rollout has no response"


def _rank_scores(result: GraderResult, n: int, role: Role) -> list[GraderResult]:
    """Each member's share of one answer, of which only the first was paid for."""
    shares: list[GraderResult] = [result] * n
    if isinstance(result, GraderRank):
        shares = _share_ranks(result, n, role)
    if (source := result.provenance) is not None and source.usage is not None:
        unpaid = structs.replace(source, usage=None)
        shares[1:] = [structs.replace(one, provenance=unpaid) for one in shares[1:]]
    return shares


def _share_ranks(result: GraderRank, n: int, role: Role) -> list[GraderResult]:
    """Ranks as rewards in [0, 1]; a sample that could not be ranked has the failure, and blame."""
    source, scores, failure = result.provenance, result.as_scores(), result.failure
    shares: list[GraderResult] = []
    if len(result.rank) != n or scores is None:
        kind, why = ErrorKind.INVALID_INPUT, "fewer than two samples have a rank"
        if len(result.rank) != n:
            kind, why = ErrorKind.INCOMPLETE, f"{len(result.rank)} ranks for {n} samples"
        return [GraderError(result.name, kind, why, role=role, provenance=source)] * n
    for score, place in zip(scores, result.rank, strict=True):
        if score is not None:
            ends, place_of = (0.0, 1.0), {"rank": place}
            share = GraderScore(result.name, score, result.reason, place_of, ends, role, source)
            shares.append(share)
        elif failure is not None:  # GraderRank has one where a rank is missing
            blamed = {**failure.metadata, BLAMED: True}
            shares.append(
                structs.replace(
                    failure, name=result.name, metadata=blamed, role=role, provenance=source
                )
            )
    return shares


def _no_events_error(why: str) -> GraderError:
    return GraderError(
        "events",
        ErrorKind.INVALID_INPUT,
        "graders with scope = 'event' need a list in the sample's 'events' field, or messages; "
        + why,
    )
