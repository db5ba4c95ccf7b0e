"""Where each row of a rollouts file lies, and the few numbers of it that curves and groups need.

About a hundred bytes a row stay in memory; texts and verdicts are read from the file when asked.
"""

from __future__ import annotations

import json
import math
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from adjudge.runs.view.compare import Both, both_ways
from adjudge.runs.view.curves import LARGEST, number_of
from adjudge.runs.view.explain import Combination

__all__ = ["Group", "Rollouts", "plain"]

MOST_SCORES = 48
_MOST_STEP = 2**53
_MOST_KINDS = 200
_DEPTH = 60
_ABSENT = math.nan


class _Missing(msgspec.Struct):
    kind: str = "missing"


class _Row(msgspec.Struct):
    """What the index takes from a row of either file; the rest is passed over unread."""

    step: int | None = None
    index: int | None = None
    group: str | int | None = None
    reward: float | None = None
    missing: _Missing | None = None
    env_reward: float | None = None
    advantage: float | None = None
    reward_info: dict[str, float | None] | None = None
    tokens: float | None = None


_decoder = msgspec.json.Decoder(_Row)


class Group(NamedTuple):
    """The samples that are compared with each other, by their rows in the index."""

    name: str
    step: int
    rows: array[int]


class Rollouts:
    """The index of ``rollouts.jsonl`` or ``rewards.jsonl``, row by row.

    Rows without a step (a grading run has none) are of step 0. ``broken`` counts lines that are no
    row; they are passed over. ``scores`` has a column for every part of a reward, NaN for absent.
    ``combination``: how rewards came from their parts, if that is known.
    """

    def __init__(self, combination: Combination | None = None) -> None:
        self._combination = combination
        self.offsets = array("Q")
        self.sizes = array("L")
        self.places = array("q")
        self.reward = array("d")
        self.env_reward = array("d")
        self.advantage = array("d")
        self.tokens = array("d")
        self.group_of = array("L")
        self.kind_of = array("H")
        self.scores: dict[str, array[float]] = {}
        self.groups: list[Group] = []
        self.steps: dict[int, list[int]] = {}
        self.kinds: list[str] = [""]
        self.broken = 0
        self.lost: Counter[str] = Counter()
        self.sum = 0.0
        self.missing: dict[int, int] = {}
        self._ids: dict[tuple[int, str], int] = {}
        self._kind_ids: dict[str, int] = {"": 0}
        self._fresh: set[int] = set()
        self._turned: dict[int, int] = {}
        self._turned_sum = 0

    def __len__(self) -> int:
        return len(self.offsets)

    def add(self, offset: int, line: bytes) -> None:
        """Take in the line at ``offset``."""
        if not line.strip():
            return
        row = _row(line)
        if row is None:
            self.broken += 1
            return
        number, reward = len(self.offsets), _number(row.reward)
        self._place(number, row, reward)
        self.offsets.append(offset)
        self.sizes.append(len(line))
        self.places.append(number if row.index is None else row.index)
        info = row.reward_info or {}
        env_reward = row.env_reward if row.env_reward is not None else info.get("env_reward")
        self.reward.append(reward)
        self.env_reward.append(_number(env_reward))
        self.advantage.append(_number(row.advantage))
        self.tokens.append(_number(row.tokens))
        self._score(number, info)

    def _place(self, number: int, row: _Row, reward: float) -> None:
        """Into its step and group; a group with a missing reward is compared anew when asked."""
        step = row.step or 0
        key = (step, "" if row.group is None else str(row.group))
        if (group := self._ids.get(key)) is None:
            group = self._ids[key] = len(self.groups)
            self.groups.append(Group(key[1], step, array("L")))
            self.steps.setdefault(step, []).append(group)
        self.groups[group].rows.append(number)
        self.group_of.append(group)
        if math.isnan(reward):
            kind = self._kind(row.missing.kind if row.missing else "missing")
            self.kind_of.append(kind)
            self.lost[self.kinds[kind]] += 1
            self.missing[group] = self.missing.get(group, 0) + 1
        else:
            self.kind_of.append(0)
            self.sum += reward
        if group in self.missing:
            self._fresh.add(group)

    def _kind(self, kind: str) -> int:
        if kind not in self._kind_ids:
            if len(self.kinds) >= _MOST_KINDS:
                kind = "other"
            if kind in self._kind_ids:
                return self._kind_ids[kind]
            self._kind_ids[kind] = len(self.kinds)
            self.kinds.append(kind)
        return self._kind_ids[kind]

    def _score(self, number: int, info: dict[str, float | None]) -> None:
        for key, value in info.items():
            if key == "env_reward" or value is None:
                continue
            column = self.scores.get(key)
            if column is None:
                if len(self.scores) >= MOST_SCORES:
                    continue
                column = self.scores[key] = array("d")
            if len(column) < number:
                column.extend([_ABSENT] * (number - len(column)))
            column.append(_number(value))

    def score(self, key: str, row: int) -> float | None:
        """One part of one reward."""
        column = self.scores[key]
        return _present(column[row]) if row < len(column) else None

    def rewards_of(self, group: int) -> list[float | None]:
        """The rewards of a group, ``None`` for missing."""
        return [_present(self.reward[row]) for row in self.groups[group].rows]

    def both_ways(self, group: int) -> Both:
        """A group's advantages, with failures left out and with each as 0."""
        return both_ways(self.rewards_of(group), self._zero_filled(group))

    def _zero_filled(self, group: int) -> list[float] | None:
        """The rewards with every missing part as 0, where a group step came after the parts.

        After a z-score a 0 would be the mean, and not what a failure counted as 0 gets. ``None``
        where there was no such step, nothing is missing, or the recorded rewards came about
        otherwise (by a fallback).
        """
        how, rewards = self._combination, self.rewards_of(group)
        if how is None or how.group == "none" or "outcome" not in self.scores:
            return None
        there = [place for place, reward in enumerate(rewards) if reward is not None]
        parts = [self._parts(row) for row in self.groups[group].rows]
        again = how.rewards([parts[place] for place in there])
        recorded = [reward for reward in rewards if reward is not None]
        if len(there) == len(rewards) or not all(map(_close, again, recorded)):
            return None
        return how.rewards(parts)

    def _parts(self, row: int) -> tuple[float, float, float | None]:
        """Outcome and events, 0 where missing, and the environment's reward of a sample."""
        outcome, events = (
            self.score(key, row) if key in self.scores else None for key in ("outcome", "events")
        )
        return outcome or 0.0, events or 0.0, _present(self.env_reward[row])  # adjudge: meant

    def turned(self, group: int) -> int:
        """How many of a group's advantages would change their sign if failures counted as 0."""
        self._compare()
        return self._turned.get(group, 0)

    def turned_in_all(self) -> tuple[int, int]:
        """Rewards whose advantage would turn, and groups with any, in the whole run."""
        self._compare()
        return self._turned_sum, len(self._turned)

    def _compare(self) -> None:
        for group in self._fresh:
            found = len(self.both_ways(group).turned)
            self._turned_sum += found - self._turned.pop(group, 0)
            if found:
                self._turned[group] = found
        self._fresh.clear()

    def rows_between(self, first: int, last: int) -> Iterator[int]:
        """The rows of the steps from ``first`` to ``last``, both included."""
        for step in sorted(step for step in self.steps if first <= step <= last):
            for group in self.steps[step]:
                yield from self.groups[group].rows

    def column(self, values: Sequence[float], rows: Sequence[int]) -> list[float]:
        """What is present of ``values`` at ``rows``."""
        end = len(values)
        return [values[row] for row in rows if row < end and not math.isnan(values[row])]


def _row(line: bytes) -> _Row | None:
    """A row as it stands; in parts that are as they should be; or ``None`` for no row at all."""
    try:
        row = _decoder.decode(line)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        found = _leniently(line)
        if found is None:
            return None
        row = found
    if abs(row.step or 0) > _MOST_STEP or abs(row.index or 0) > _MOST_STEP:
        return None
    return row


def _leniently(line: bytes) -> _Row | None:
    """A row with a text that strict JSON refuses (half a surrogate pair), or of odd types."""
    try:
        found = json.loads(line.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    missing, info = found.get("missing"), found.get("reward_info")
    kind = missing.get("kind") if isinstance(missing, dict) else None
    group = found.get("group")
    return _Row(
        step=_whole(found.get("step")),
        index=_whole(found.get("index")),
        group=_shown(group) if isinstance(group, str | int) else None,
        reward=number_of(found.get("reward")),
        missing=_Missing(_shown(kind)) if isinstance(kind, str) else None,
        env_reward=number_of(found.get("env_reward")),
        advantage=number_of(found.get("advantage")),
        reward_info={_shown(key): number_of(value) for key, value in info.items()}
        if isinstance(info, dict)
        else None,
        tokens=number_of(found.get("tokens")),
    )


def _whole(value: object) -> int | None:
    return value if type(value) is int else None


def _shown(value: str | int) -> str:
    """A text without halves of surrogate pairs, which no encoder takes."""
    return str(value).encode("utf-8", "replace").decode()


def _number(value: float | None) -> float:
    return value if value is not None and -LARGEST <= value <= LARGEST else _ABSENT


def _close(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=1e-6, abs_tol=1e-9)


def _present(value: float) -> float | None:
    return None if math.isnan(value) else value


def plain(value: Any, depth: int = 0) -> Any:
    """``value`` from a file as JSON that a browser reads: no NaN, no bottomless nesting.

    A whole number that JavaScript would round is given as text.
    """
    if depth > _DEPTH:
        return "…"
    if isinstance(value, dict):
        return {str(key): plain(inner, depth + 1) for key, inner in value.items()}
    if isinstance(value, list):
        return [plain(inner, depth + 1) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if type(value) is int and abs(value) > _MOST_STEP:
        return str(value) if value.bit_length() < 4000 else "a very large number"
    return value
