"""An index of a run: curves over steps, where each sample lies, and group advantages.

Curves of any length stay in bounded memory: neighbouring steps are averaged as a run grows. Of each
row of a rollouts file about a hundred bytes stay in memory, its place and the few numbers that
curves and groups need; texts and verdicts are read from the file when asked.

Also what a group's advantages are, what they would be if failures counted as 0, and how a reward
came together from its parts, where the run says how.
"""

from __future__ import annotations

import json
import math
import tomllib
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, repeat
from typing import Any, NamedTuple, cast, get_args

import msgspec

from adjudge.rewards.groups import STD_EPSILON, GroupStep, group_step
from adjudge.stats import mean_and_std
from adjudge.text import replace_surrogates

MAX_CURVE_POINTS = 600
MAX_CURVES = 256
"""Metrics that are followed; a row with more has its further ones left out."""

MAX_DRAWN = 1e12
"""Numbers beyond this are not drawn, and count as not there."""


def drawable_number(value: object) -> float | None:
    """A number that can be drawn, else ``None``: no boolean, no NaN, none beyond ``MAX_DRAWN``."""
    if type(value) not in {int, float}:
        return None
    return float(value) if -MAX_DRAWN <= value <= MAX_DRAWN else None  # type: ignore[operator, arg-type]


class Curves:
    """Mean values over runs of ``width`` rows; ``width`` doubles when there are too many runs.

    So a point is one step while there are at most ``2 * MOST_POINTS``, and adding a row costs the
    same however many came before. A value that is absent counts in no mean.
    """

    def __init__(self) -> None:
        self.rows = 0
        self.width = 1
        self.last: dict[str, float] = {}
        self._sums: dict[str, list[float]] = {}
        self._counts: dict[str, list[int]] = {}

    def add(self, row: Mapping[str, Any]) -> None:
        """Take in one row of ``metrics.jsonl``; what is no number in it is left out."""
        values = {key: x for key, value in row.items() if (x := drawable_number(value)) is not None}
        if "step" not in values:
            values["step"] = float(self.rows + 1)
        place = self.rows // self.width
        if place >= 2 * MAX_CURVE_POINTS:
            self._halve()
            place = self.rows // self.width
        for key, value in values.items():
            if key not in self._sums and len(self._sums) >= MAX_CURVES:
                continue
            sums, counts = self._sums.setdefault(key, []), self._counts.setdefault(key, [])
            missing = place + 1 - len(sums)
            sums.extend([0.0] * missing)
            counts.extend([0] * missing)
            sums[place] += value
            counts[place] += 1
        self.rows += 1
        self.last = values

    def _halve(self) -> None:
        self.width *= 2
        for key, sums in self._sums.items():
            counts = self._counts[key]
            self._sums[key] = [sum(sums[i : i + 2]) for i in range(0, len(sums), 2)]
            self._counts[key] = [sum(counts[i : i + 2]) for i in range(0, len(counts), 2)]

    def points(self, key: str, among: str | None = None) -> list[float | None]:
        """The values of one metric, one a point; ``None`` where none of the point's rows has it.

        ``among``: of the rows that have that other metric, those without ``key`` count as 0: a
        share by kind is written for the kinds that occurred.
        """
        every = math.ceil(self.rows / self.width)
        columns = self._sums.get(key, []), self._counts.get(among or key, [])
        sums, counts = (chain(column, repeat(0)) for column in columns)
        return [
            total / n if n else None
            for total, n, _ in zip(sums, counts, range(every), strict=False)
        ]

    def total(self, key: str) -> float | None:
        """The sum of one metric over all rows that have it; ``None`` where none has."""
        return math.fsum(self._sums[key]) if key in self._sums else None

    @property
    def keys(self) -> list[str]:
        """The metrics seen so far."""
        return list(self._sums)


_ZERO_TOLERANCE = 1e-9
"""An advantage closer to 0 than this is 0: a reward that is the mean leaves a rounding error."""


class AdvantageComparison(msgspec.Struct, frozen=True):
    """A group's advantages with missing rewards left out, and with each counted as 0.

    ``left_out`` has ``None`` where the reward is missing, ``as_zero`` a number for every sample.
    ``turned`` are the places of present rewards whose advantage has the other sign when the
    failures beside them count as 0. Means and deviations are ``None`` where there is no reward.
    """

    left_out: list[float | None]
    as_zero: list[float]
    turned: list[int]
    mean: float | None
    std: float | None
    mean_as_zero: float
    std_as_zero: float


def compute_advantages(rewards: Sequence[float | None]) -> list[float | None]:
    """(r − mean)/(std + 1e-4) over the present rewards, std with n − 1; 0 for one alone.

    Rewards that differ by rounding alone count as equal, whoever recorded them.

    >>> compute_advantages([1.0, None])
    [0.0, None]
    """
    rewards = group_step(rewards, "none")
    present = [reward for reward in rewards if reward is not None]
    if not present:
        return rewards
    mean, std = mean_and_std(present)
    return [None if reward is None else (reward - mean) / (std + STD_EPSILON) for reward in rewards]


def compare_advantages(
    rewards: Sequence[float | None], filled: Sequence[float] | None = None
) -> AdvantageComparison:
    """The comparison for one group; ``rewards`` has ``None`` where one is missing.

    ``filled``: all rewards of the group as they would be with each failure as 0, where that is more
    than a 0 in the place of the missing reward.

    >>> compare_advantages([0.4, 0.6, None, None]).turned  # 0.4: the lesser of two, but above 0
    [0]
    """
    if filled is None:
        filled = [0.0 if reward is None else reward for reward in rewards]  # adjudge: meant
    left_out = compute_advantages(rewards)
    as_zero = [0.0 if value is None else value for value in compute_advantages(filled)]
    turned = [
        place
        for place, (mine, theirs) in enumerate(zip(left_out, as_zero, strict=True))
        if mine is not None
        and min(abs(mine), abs(theirs)) > _ZERO_TOLERANCE
        and (mine > 0) != (theirs > 0)
    ]
    present = [reward for reward in group_step(rewards, "none") if reward is not None]
    mean, std = mean_and_std(present) if present else (None, None)
    mean_as_zero, std_as_zero = mean_and_std(filled) if filled else (0.0, 0.0)
    return AdvantageComparison(left_out, as_zero, turned, mean, std, mean_as_zero, std_as_zero)


class RewardCombination(msgspec.Struct, frozen=True):
    """The combining part of a reward spec; ``judge_scale`` is ``None`` where it is not written."""

    mode: str
    event_weight: float
    outcome_weight: float
    judge_scale: float | None
    group: GroupStep = "none"
    bonus: float = 0.1

    def rewards(self, parts: Sequence[tuple[float, float, float | None]]) -> list[float]:
        """The rewards of one group from outcome, events and environment's reward of each sample.

        0 where there is none: the environment's reward is missing, or a sample is ranked alone.
        """
        stepped = group_step([outcome for outcome, _, _ in parts], self.group, bonus=self.bonus)
        scale = 1.0 if self.judge_scale is None else self.judge_scale
        found = []
        for outcome, (_, events, env) in zip(stepped, parts, strict=True):
            judge = self.outcome_weight * (outcome or 0.0) + self.event_weight * events
            found.append(_combine(self.mode, env, scale * judge) or 0.0)
        return found


def parse_combination(text: str) -> RewardCombination | None:
    """The settings under ``[judge]`` or ``[reward]`` of a run file; ``None`` if it has neither."""
    try:
        found = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError):
        return None
    for name in ("judge", "reward"):
        table = found.get(name)
        if (how := combination_from_table(table)) is not None:
            return how
    return None


def combination_from_table(table: object) -> RewardCombination | None:
    """The settings in one table; ``None`` if it is none, or says nothing of ``combine_mode``."""
    if not isinstance(table, dict) or "combine_mode" not in table:
        return None
    events, outcome = table.get("event_weight", 0.0), table.get("outcome_weight", 1.0)
    group = table.get("group")
    known = isinstance(group, str) and group in get_args(GroupStep)
    return RewardCombination(
        str(table["combine_mode"]),
        drawable_number(events) or 0.0,
        drawable_number(outcome) or 0.0,
        drawable_number(table.get("judge_scale")),
        cast("GroupStep", group if known else "none"),
        drawable_number(table.get("bonus")) or 0.0,
    )


def explain_reward(how: RewardCombination | None, row: Mapping[str, Any]) -> list[str] | None:
    """The sum or product in words and numbers; ``None`` where it does not give the row's reward.

    Something else may have had a hand in it (a group step, a fallback): then only the parts are
    known, and no formula is shown that does not hold.
    """
    reward, info = drawable_number(row.get("reward")), row.get("reward_info")
    if how is None or reward is None or not isinstance(info, dict):
        return None
    parts = [
        (weight, drawable_number(info.get(key)), key)
        for weight, key in ((how.event_weight, "events"), (how.outcome_weight, "outcome"))
        if weight
    ]
    if not parts or any(value is None for _, value, _ in parts):
        return None
    judge = math.fsum(weight * (value or 0.0) for weight, value, _ in parts)
    env = drawable_number(row.get("env_reward", info.get("env_reward")))
    for scale in (1.0, 10.0) if how.judge_scale is None else (how.judge_scale,):
        found = _combine(how.mode, env, scale * judge)
        if found is not None and math.isclose(found, reward, rel_tol=1e-6, abs_tol=1e-9):
            words = " + ".join(f"{weight:g} × {value:.4g} ({key})" for weight, value, key in parts)
            judged = [f"judge part {judge:.4g} = {words}"]
            # One part of weight 1 is the judge part.
            if len(parts) == 1 and parts[0][0] == 1:
                if how.mode == "replace" and scale == 1:
                    return None
                judged = []
            return [*judged, _sentence(how.mode, env, scale, judge, reward)]
    return None


def _combine(mode: str, env: float | None, judge: float) -> float | None:
    if mode == "replace":
        return judge
    if env is None or mode not in {"weighted_sum", "multiply"}:
        return None
    return env + judge if mode == "weighted_sum" else env * judge


def _sentence(mode: str, env: float | None, scale: float, judge: float, reward: float) -> str:
    judged = f"{scale:g} (judge scale) × {judge:.4g} (judge part)"
    if mode == "replace" or env is None:
        return f"reward {reward:.4g} = {judged}"
    sign = "+" if mode == "weighted_sum" else "×"
    return f"reward {reward:.4g} = {env:.4g} (environment) {sign} {judged}"


MAX_SCORES = 48
_MAX_STEP = 2**53
_MAX_KINDS = 200
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


class SampleGroup(NamedTuple):
    """The samples that are compared with each other, by their rows in the index."""

    name: str
    step: int
    rows: array[int]


class RolloutIndex:
    """The index of ``rollouts.jsonl`` or ``rewards.jsonl``, row by row.

    Rows without a step (a grading run has none) are of step 0. ``broken`` counts lines that are no
    row; they are passed over. ``scores`` has a column for every part of a reward, NaN for absent.
    ``combination``: how rewards came from their parts, if that is known.
    """

    def __init__(self, combination: RewardCombination | None = None) -> None:
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
        self.failed = bytearray()
        """1 where the reward is missing or a grader failed."""
        self.scores: dict[str, array[float]] = {}
        self.groups: list[SampleGroup] = []
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
        failed = math.isnan(reward) or any(
            value is None and key.endswith("_score") for key, value in info.items()
        )
        self.failed.append(failed)
        self._score(number, info)

    def _place(self, number: int, row: _Row, reward: float) -> None:
        """Into its step and group; a group with a missing reward is compared anew when asked."""
        step = row.step or 0
        key = (step, "" if row.group is None else str(row.group))
        if (group := self._ids.get(key)) is None:
            group = self._ids[key] = len(self.groups)
            self.groups.append(SampleGroup(key[1], step, array("L")))
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
            if len(self.kinds) >= _MAX_KINDS:
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
                if len(self.scores) >= MAX_SCORES:
                    continue
                column = self.scores[key] = array("d")
            if len(column) < number:
                column.extend([_ABSENT] * (number - len(column)))
            column.append(_number(value))

    def score(self, key: str, row: int) -> float | None:
        """One part of one reward."""
        column = self.scores[key]
        return present_number(column[row]) if row < len(column) else None

    def rewards_of(self, group: int) -> list[float | None]:
        """The rewards of a group, ``None`` for missing."""
        return [present_number(self.reward[row]) for row in self.groups[group].rows]

    def both_ways(self, group: int) -> AdvantageComparison:
        """A group's advantages, with failures left out and with each as 0."""
        return compare_advantages(self.rewards_of(group), self._zero_filled(group))

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
        return outcome or 0.0, events or 0.0, present_number(self.env_reward[row])  # adjudge: meant

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
    row: _Row | None
    try:
        row = _decoder.decode(line)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        row = _odd_row(line)
    if row is None or abs(row.step or 0) > _MAX_STEP or not 0 <= (row.index or 0) <= _MAX_STEP:
        return None
    return row


def decode_json_leniently(data: bytes) -> Any:
    """JSON with what Python's reader lets through; ``None`` for no JSON."""
    try:
        return json.loads(data.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None


def _odd_row(line: bytes) -> _Row | None:
    """A row with a text that strict JSON refuses (half a surrogate pair), or of odd types."""
    found = decode_json_leniently(line)
    if not isinstance(found, dict):
        return None
    missing, info = found.get("missing"), found.get("reward_info")
    kind = missing.get("kind") if isinstance(missing, dict) else None
    group = found.get("group")
    return _Row(
        step=_whole_number(found.get("step")),
        index=_whole_number(found.get("index")),
        group=replace_surrogates(str(group)) if isinstance(group, str | int) else None,
        reward=drawable_number(found.get("reward")),
        missing=_Missing(replace_surrogates(kind)) if isinstance(kind, str) else None,
        env_reward=drawable_number(found.get("env_reward")),
        advantage=drawable_number(found.get("advantage")),
        reward_info={replace_surrogates(key): drawable_number(value) for key, value in info.items()}
        if isinstance(info, dict)
        else None,
        tokens=drawable_number(found.get("tokens")),
    )


def _whole_number(value: object) -> int | None:
    return value if type(value) is int else None


def _number(value: float | None) -> float:
    return value if value is not None and -MAX_DRAWN <= value <= MAX_DRAWN else _ABSENT


def _close(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=1e-6, abs_tol=1e-9)


def present_number(value: float) -> float | None:
    """The number that a column holds; ``None`` for NaN, which is none."""
    return None if math.isnan(value) else value
