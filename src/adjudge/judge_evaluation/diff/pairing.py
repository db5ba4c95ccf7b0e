"""Two runs over the same rollouts, joined sample by sample.

A run is a folder of ``adjudge grade`` or ``adjudge train``, or a dump whose rollouts have rewards.
What is kept of a sample are its numbers; texts are read again for the few that are shown.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from adjudge.errors import ConfigError, RolloutError, RunFolderError
from adjudge.judge_evaluation.labels import join_labels, read_label_files
from adjudge.rewards.formulas import group_step
from adjudge.rollouts.samples import GroupNames, SampleReader, compute_rollout_key
from adjudge.runs.labels import LABELS_FILE, Label, implied_score
from adjudge.runs.records import RunRecord, RunRecords
from adjudge.runs.sample_index import MissingReason
from adjudge.stats import collect, snap_ties, z_scores
from adjudge.types import Sample


class DiffRun:
    """One side of a comparison: its rows without their texts, and what its folder says of it.

    ``facts`` and ``summary`` are empty for a dump, whose files are ``dumps`` in the place of
    ``path``, and whose rows that are no samples are counted in ``broken``. Raises
    :class:`~adjudge.errors.RunFolderError` and what reading rollouts raises.
    """

    def __init__(
        self, path: Path, mapping: Mapping[str, str] | None = None, *, dumps: Sequence[Path] = ()
    ) -> None:
        self.path = path
        self._reader = SampleReader(dumps or [path], mapping or {})
        self.broken = self._reader.broken
        is_run = not dumps and any(
            (path / name).is_file() for name in ("rewards.jsonl", "rollouts.jsonl")
        )
        self._records = RunRecords(path) if is_run else None
        self.facts: Mapping[str, Any] = self._records.facts if self._records else {}
        self.summary: Mapping[str, Any] = self._records.summary if self._records else {}
        texts = dict.fromkeys(("details", "messages", "prompt", "response"))
        self.rows = [msgspec.structs.replace(one, **texts) for one in self._read()]
        if not self.rows:
            raise RunFolderError(f"{path}: has no samples. Give a run that is finished.")
        if self._records is None and all(row.reward is None for row in self.rows):
            raise RunFolderError(
                f"{path}: its rollouts have no rewards. Grade them with `adjudge grade`, or name "
                "the column with --map env_reward=COLUMN."
            )

    @property
    def graders(self) -> list[str]:
        """The graders with scores, in the order of the spec."""
        return list(dict.fromkeys(name for row in self.rows for name in row.scores))

    @property
    def is_training(self) -> bool:
        """Whether samples are counted anew in each step."""
        return self._records is not None and self._records.is_training

    def __iter__(self) -> Iterator[RunRecord]:
        return iter(self.rows)

    def _read(self) -> Iterator[RunRecord]:
        if self._records is None:
            return (record for record, _ in self._read_dump())
        if self._records.is_training:  # its rows have no keys, but their rollouts are at hand
            return (
                msgspec.structs.replace(record, key=record.key or compute_rollout_key(sample))
                for record, sample in self._records.with_samples()
            )
        return iter(self._records)

    def _read_dump(self) -> Iterator[tuple[RunRecord, Sample]]:
        """A dump's rollouts; what the trainer learned from is the reward."""
        groups = GroupNames()
        for sample in self._reader:
            own, reward = self._reader.read_own_reward(sample)
            reward = reward if own else sample.env_reward
            record = RunRecord(
                index=sample.original_index,
                group=groups.name(sample),
                reward=reward,
                env_reward=sample.env_reward if own else None,
                missing=MissingReason("not_stored") if reward is None else None,
                key=compute_rollout_key(sample),
                where=sample.where,
                step=sample.step,
            )
            yield record, sample

    def read_places(self, places: Collection[int]) -> dict[int, tuple[RunRecord, Sample | None]]:
        """The whole records of a few samples with their rollouts, by place.

        Where the files that were graded are gone or changed, what the folder kept of them.
        """
        if self._records is None:
            return dict(_pick(self._read_dump(), places))
        try:
            return dict(_pick(self._records.with_samples(), places))
        except (ConfigError, RolloutError, RunFolderError, OSError):
            return dict(_pick(self._records.with_kept_samples(), places))


def _pick(rows: Iterable[Any], places: Collection[int]) -> Iterator[tuple[int, Any]]:
    last = max(places, default=-1)
    for place, row in enumerate(rows):
        if place > last:
            return
        if place in places:
            yield place, row


class RowPair(NamedTuple):
    """One sample in both runs."""

    a: RunRecord
    b: RunRecord

    @property
    def common(self) -> bool:
        """Whether both gave it a reward."""
        return self.a.reward is not None and self.b.reward is not None


class PairedRuns:
    """The samples that two runs have in common, and how they were found.

    ``pairs`` stand in an order that does not depend on that of the runs' rows, and ``rows`` has the
    places of their rows in both. ``members`` has the places of each group's pairs, and ``group_of``
    the group of a place; what is one group is one in both runs. Samples are joined by content, of
    equal rollouts the k-th with the k-th. ``same_groups``: whether both runs group the common
    samples alike. Raises :class:`~adjudge.errors.RunFolderError` for runs without a common sample.
    """

    def __init__(self, a: DiffRun, b: DiffRun) -> None:
        self.a, self.b = a, b
        self.rows = list(_join_by_content(a.rows, b.rows))
        self.rows.sort(key=lambda rows: (a.rows[rows[0]].key, sorted(rows)))
        self.pairs = found = [RowPair(a.rows[at], b.rows[other]) for at, other in self.rows]
        if not found:
            raise RunFolderError(
                f"{a.path} and {b.path}: have no sample in common. Grade the same rollouts twice."
            )
        self.only_a, self.only_b = len(a.rows) - len(found), len(b.rows) - len(found)
        groups = [(pair.a.group_key, pair.b.group_key) for pair in found]
        ours, theirs = map(set, zip(*groups, strict=True))
        self.same_groups = len(set(groups)) == len(ours) == len(theirs)
        self.members = list(collect((key, at) for at, key in enumerate(groups)).values())
        self.group_of = {at: number for number, group in enumerate(self.members) for at in group}
        self.rewards_a = self._snapped([pair.a.reward for pair in found])
        self.rewards_b = self._snapped([pair.b.reward for pair in found])

    def _snapped(self, rewards: Sequence[float | None]) -> list[float | None]:
        """The rewards with those of a group made equal that differ by rounding alone."""
        found = list(rewards)
        for group in self.members:
            for at, reward in zip(
                group, group_step([rewards[at] for at in group], "none"), strict=True
            ):
                found[at] = reward
        return found

    def advantages(self) -> dict[int, tuple[float, float]]:
        """Both GRPO advantages of each pair that both rewarded, over its group's such samples."""
        found: dict[int, tuple[float, float]] = {}
        for group in self.members:
            common = [at for at in group if self.pairs[at].common]
            if common:
                sides = [
                    z_scores([reward for at in common if (reward := side[at]) is not None])
                    for side in (self.rewards_a, self.rewards_b)
                ]
                found |= dict(zip(common, zip(*sides, strict=True), strict=True))
        return found


class LabelledPairs(NamedTuple):
    """What people said of samples that are in both runs.

    ``scores``: by place, the mean of their scores of the reward as a whole; where a run gives one
    of two rewards, right and wrong are scores, too. ``preferences``: the places of two samples of a
    group, the better one first.
    """

    scores: Mapping[int, float]
    preferences: Sequence[tuple[int, int]]


def read_labels(runs: PairedRuns) -> LabelledPairs:
    """The labels in either run's folder of the reward as a whole; one grader's are about one judge.

    Of one person's labels of a sample in both folders the later one counts.
    """
    said: dict[int, dict[str, float]] = defaultdict(dict)
    preferred: dict[Hashable, tuple[int, int]] = {}
    found = sorted(
        (one for side in (0, 1) for one in _joined_labels(runs, side)),
        key=lambda one: (one[1].score is not None, one[1].time),  # a score goes before a verdict
    )
    for at, label, over, score in found:
        if score is not None:
            said[at][label.author] = score
        elif over is not None and over != at and runs.group_of[over] == runs.group_of[at]:
            preferred[label.author, frozenset((at, over))] = at, over
    means = {at: math.fsum(of.values()) / len(of) for at, of in said.items()}
    return LabelledPairs(means, list(preferred.values()))


def _joined_labels(
    runs: PairedRuns, side: int
) -> Iterator[tuple[int, Label, int | None, float | None]]:
    """The labels of one run: place, label, the place of the worse sample, and the score it means.

    What names no sample of both runs is left out, as is a label of a run that was in the folder
    before.
    """
    run = (runs.a, runs.b)[side]
    if not (file := run.path / LABELS_FILE).is_file():
        return
    places = {(pair[side].step, pair[side].index): at for at, pair in enumerate(runs.pairs)}
    rewards = [row.reward for row in run.rows if row.reward is not None]
    equal = dict(zip(rewards, snap_ties(rewards), strict=True))
    levels = sorted(set(equal.values()))
    whole = [one for one in read_label_files([file]) if one.label.grader is None]
    for label, record, other in join_labels(whole, run).joined:
        if (at := places.get((record.step, record.index))) is not None:
            over = None if other is None else places.get((other.step, other.index))
            judge = None if record.reward is None else equal[record.reward]
            score = implied_score(label, judge, levels) if label.score is None else label.score
            yield at, label, over, score


def _join_by_content(a: Sequence[RunRecord], b: Sequence[RunRecord]) -> Iterator[tuple[int, int]]:
    """The places of equal rollouts, those of the same group first, and then in their order."""
    left, right = list(range(len(a))), list(range(len(b)))
    keys: list[Callable[[RunRecord], Hashable]] = [
        lambda row: (row.key, row.group_key),
        lambda row: row.key,
    ]
    for key in keys:
        waiting: dict[Hashable, deque[int]] = defaultdict(deque)
        for place in right:
            waiting[key(b[place])].append(place)
        unmatched = []
        for place in left:
            if same := waiting[key(a[place])]:
                yield place, same.popleft()
            else:
                unmatched.append(place)
        left = unmatched
        right = sorted(place for places in waiting.values() for place in places)
