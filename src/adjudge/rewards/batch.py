"""One batch laid out for the runners, and their results collected per sample again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from adjudge.engine.tasks import run_all
from adjudge.errors import ErrorKind
from adjudge.rewards.samples import RewardSample
from adjudge.runner.runner import GradingRunner
from adjudge.types import GraderError, GraderRank, GraderResult, GraderScore, Role

__all__ = ["Batch", "Judged"]


@dataclass(slots=True)
class Judged:
    """What the graders said about one sample; the rollout itself is not kept."""

    original_index: int
    group_index: int
    group: str
    env_reward: float | None
    outcome: dict[str, GraderResult]
    events: list[dict[str, GraderResult]] | GraderError
    sampled: bool = True

    def results(self) -> Iterator[tuple[str, GraderResult]]:
        """Every result with its grader's name, those of events included."""
        yield from self.outcome.items()
        if isinstance(self.events, list):
            for event in self.events:
                yield from event.items()


class _Stage:
    """One runner over one list of items."""

    def __init__(self, runner: GradingRunner, items: list[dict[str, Any]]) -> None:
        self.runner = runner
        self.items = items
        self.results: dict[str, list[GraderResult]] = {}

    async def ask(self) -> None:
        if self.items:
            self.results = await self.runner.arun(self.items)

    async def ask_again(self, chosen: Callable[[GraderResult], bool], draw: int) -> None:
        again = {
            name: [position for position, result in enumerate(results) if chosen(result)]
            for name, results in self.results.items()
        }
        await run_all(self._ask_some(name, some, draw) for name, some in again.items() if some)

    async def _ask_some(self, name: str, positions: list[int], draw: int) -> None:
        items = [self.items[position] for position in positions]
        for position in positions:
            failed = self.results[name][position]
            if self.runner.tally is not None and isinstance(failed, GraderError):
                self.runner.tally.withdraw(failed)
        answers = await self.runner.arun(items, graders=[name], draw=draw)
        for position, answer in zip(positions, answers[name], strict=True):
            self.results[name][position] = answer

    def row(self, position: int) -> dict[str, GraderResult]:
        return {name: results[position] for name, results in self.results.items()}


class Batch:
    """Samples of one call: which items each runner gets, and which results each sample got."""

    def __init__(
        self,
        samples: Sequence[RewardSample],
        groups: Sequence[str],
        sampled: Sequence[bool],
        runners: Mapping[str, GradingRunner],
    ) -> None:
        self._samples, self._groups, self._sampled = samples, groups, sampled
        self._runners = runners
        self._asked = [position for position, chosen in enumerate(sampled) if chosen]
        self._fields = {position: samples[position].fields() for position in self._asked}
        self._stage_of: dict[str, _Stage] = {}
        self._event_places: dict[int, list[int]] = {}
        self._group_places: dict[str, list[int]] = {}
        for how, runner in runners.items():
            self._stage_of[how] = _Stage(runner, self._items(how))

    async def ask(self) -> None:
        """Ask every grader about everything."""
        await run_all(stage.ask() for stage in self._stage_of.values())

    async def ask_again(self, chosen: Callable[[GraderResult], bool], draw: int = 0) -> None:
        """Ask again whose result is ``chosen``; ``draw`` numbers the repeat."""
        for stage in self._stage_of.values():
            await stage.ask_again(chosen, draw)

    def _items(self, how: str) -> list[dict[str, Any]]:
        if how == "outcome":
            return [self._fields[position] for position in self._asked]
        return self._event_items() if how == "event" else self._group_items()

    def _event_items(self) -> list[dict[str, Any]]:
        """Each event's own fields laid over its sample's."""
        items: list[dict[str, Any]] = []
        for position in self._asked:
            fields = self._fields[position]
            events = fields.get("events")
            if not isinstance(events, list):
                continue
            self._event_places[position] = list(range(len(items), len(items) + len(events)))
            items.extend(
                {**fields, **(event if isinstance(event, dict) else {"event": event})}
                for event in events
            )
        return items

    def _group_items(self) -> list[dict[str, Any]]:
        """One item per group: the fields that all its samples have, as lists."""
        for position in self._asked:
            self._group_places.setdefault(self._groups[position], []).append(position)
        items = []
        for positions in self._group_places.values():
            members = [self._fields[position] for position in positions]
            shared = set(members[0]).intersection(*members[1:])
            items.append({name: [member[name] for member in members] for name in sorted(shared)})
        return items

    def judged(self, roles: Mapping[str, Role]) -> list[Judged]:
        """What was said about each sample, in order; ``roles`` are the graders'."""
        rows = {p: row for row, p in enumerate(self._asked)}
        ranks = self._ranks(roles)
        return [
            self._one(position, rows.get(position), ranks.get(position, {}))
            for position in range(len(self._samples))
        ]

    def _one(self, position: int, row: int | None, ranks: Mapping[str, GraderResult]) -> Judged:
        sample = self._samples[position]
        env_reward = (sample.extra or {}).get("env_reward")
        judged = Judged(
            sample.original_index,
            sample.group_index,
            self._groups[position],
            env_reward if isinstance(env_reward, int | float) else None,
            {},
            [],
            sampled=row is not None,
        )
        if row is None:
            judged.events = _not_sampled("events")
            for how in ("outcome", "group"):
                if how in self._runners:
                    for name in self._runners[how].grader_configs:
                        judged.outcome[name] = _not_sampled(name)
            return judged
        if "outcome" in self._stage_of:
            judged.outcome.update(self._stage_of["outcome"].row(row))
        judged.outcome.update(ranks)
        if "event" in self._stage_of:
            judged.events = self._events(position)
        return judged

    def _events(self, position: int) -> list[dict[str, GraderResult]] | GraderError:
        places = self._event_places.get(position)
        if places is None:
            return GraderError(
                "events",
                ErrorKind.INVALID_INPUT,
                "graders with scope = 'event' need a list in the sample's 'events' field",
            )
        return [self._stage_of["event"].row(place) for place in places]

    def _ranks(self, roles: Mapping[str, Role]) -> dict[int, dict[str, GraderResult]]:
        """Each sample's share of the listwise results, as rewards in [0, 1]."""
        shares: dict[int, dict[str, GraderResult]] = {}
        if "group" not in self._stage_of:
            return shares
        stage = self._stage_of["group"]
        for item, positions in enumerate(self._group_places.values()):
            for name, results in stage.results.items():
                scores = _rank_scores(results[item], len(positions), roles[name])
                for position, score in zip(positions, scores, strict=True):
                    shares.setdefault(position, {})[name] = score
        return shares


def _rank_scores(result: GraderResult, n: int, role: Role) -> Sequence[GraderResult]:
    if not isinstance(result, GraderRank):
        return [result] * n
    if len(result.rank) != n:
        message = f"{len(result.rank)} ranks for {n} samples"
        return [GraderError(result.name, ErrorKind.INCOMPLETE, message, role=role)] * n
    scores = result.as_scores()
    if scores is None:
        message = "a lone sample has nobody to be ranked against"
        return [GraderError(result.name, ErrorKind.INVALID_INPUT, message, role=role)] * n
    return [
        GraderScore(
            result.name,
            score,
            result.reason,
            {"rank": place},
            (0.0, 1.0),
            role,
            result.provenance,
        )
        for score, place in zip(scores, result.rank, strict=True)
    ]


def _not_sampled(name: str) -> GraderError:
    return GraderError(name, ErrorKind.NOT_SAMPLED, "this group was not drawn (sample_rate)")
