"""An index of a run: curves over steps, where each sample lies, and group advantages.

Curves of any length stay in bounded memory: neighbouring steps are averaged as a run grows. Of each
row of a rollouts file about a hundred bytes stay in memory, its place and the few numbers that
curves and groups need; texts and verdicts are read from the file when asked.

Also what a group's advantages are, what they would be if failures counted as 0, and how a reward
came together from its parts, where the run says how.
"""

from __future__ import annotations

import math
import tomllib
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import chain, repeat
from typing import Annotated, Any, NamedTuple

import msgspec

from adjudge.rewards.formulas import STD_EPSILON, group_step
from adjudge.stats import mean_and_std

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

    ``left_out`` has ``None`` where the reward is missing. ``turned`` are the places of present
    rewards whose advantage has the other sign when the failures beside them count as 0. The
    numbers as 0 are ``None`` where they are not known: after a group step.
    """

    left_out: list[float | None]
    as_zero: Sequence[float | None]
    turned: list[int]


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
    rewards: Sequence[float | None],
    filled: Sequence[float] | None = None,
    *,
    stepped: bool = False,
) -> AdvantageComparison:
    """The comparison for one group; ``rewards`` has ``None`` where one is missing.

    ``filled``: the rewards with each failure as 0. ``stepped``: a group step came after the
    rewards' parts, so that a 0 in the place of a missing reward is not what a failure counted as 0
    gets (after a z-score it would be the mean).

    >>> compare_advantages([0.4, 0.6, None, None]).turned  # 0.4: the lesser of two, but above 0
    [0]
    """
    left_out = compute_advantages(rewards)
    if stepped and None in rewards:
        return AdvantageComparison(left_out, [None] * len(rewards), [])
    if filled is None:
        filled = [0.0 if reward is None else reward for reward in rewards]  # adjudge: meant
    as_zero = [0.0 if value is None else value for value in compute_advantages(filled)]
    turned = [
        place
        for place, (mine, theirs) in enumerate(zip(left_out, as_zero, strict=True))
        if mine is not None
        and min(abs(mine), abs(theirs)) > _ZERO_TOLERANCE
        and (mine > 0) != (theirs > 0)
    ]
    return AdvantageComparison(left_out, as_zero, turned)


def read_reward_settings(run: Mapping[str, Any], config: str) -> dict[str, Any]:
    """How rewards come from their parts: of ``run.json``, or ``config.toml`` of a training run."""
    tables = [run.get("reward")]
    with suppress(tomllib.TOMLDecodeError, RecursionError):
        found = tomllib.loads(config)
        tables += [found.get("judge"), found.get("reward")]
    return next((one for one in tables if isinstance(one, dict) and "combine_mode" in one), {})


def explain_reward(settings: Mapping[str, Any], row: Mapping[str, Any]) -> list[str] | None:
    """The sum or product in words and numbers; ``None`` where it does not give the row's reward.

    Something else may have had a hand in it (a group step, a fallback): then only the parts are
    known, and no formula is shown that does not hold.
    """
    reward, info = drawable_number(row.get("reward")), row.get("reward_info")
    mode = settings.get("combine_mode")
    if reward is None or not isinstance(info, dict) or mode is None:
        return None
    weights = {
        "events": settings.get("event_weight", 0.0),
        "outcome": settings.get("outcome_weight", 1.0),
    }
    parts = [
        (weight, drawable_number(info.get(name)), name)
        for name, weight in ((name, drawable_number(one) or 0.0) for name, one in weights.items())
        if weight
    ]
    if not parts or any(value is None for _, value, _ in parts):
        return None
    judge = math.fsum(weight * (value or 0.0) for weight, value, _ in parts)
    scale = drawable_number(settings.get("judge_scale")) or 1.0
    env = drawable_number(row.get("env_reward", info.get("env_reward")))
    signs = {"replace": "", "weighted_sum": "+", "multiply": "×"}
    if (sign := signs.get(str(mode))) is None or (sign and env is None):
        return None
    judged = scale * judge
    found = {"": judged, "+": (env or 0.0) + judged, "×": (env or 0.0) * judged}[sign]
    if not math.isclose(found, reward, rel_tol=1e-6, abs_tol=1e-9):
        return None
    alone = len(parts) == 1 and parts[0][0] == 1  # one part of weight 1 is the judge part
    if alone and not sign and scale == 1:
        return None
    words = " + ".join(f"{weight:g} × {value:.4g} ({name})" for weight, value, name in parts)
    before = f"{env:.4g} (environment) {sign} " if sign else ""
    last = f"reward {reward:.4g} = {before}{scale:g} (judge scale) × {judge:.4g} (judge part)"
    return [*([] if alone else [f"judge part {judge:.4g} = {words}"]), last]


MAX_SCORES = 48
_MAX_STEP = 2**53
_MAX_KINDS = 200
_ABSENT = math.nan


class _Missing(msgspec.Struct):
    kind: str = "missing"


class _Row(msgspec.Struct):
    """What the index takes from a row of either file; the rest is passed over unread."""

    step: Annotated[int, msgspec.Meta(ge=-_MAX_STEP, le=_MAX_STEP)] | None = None
    index: Annotated[int, msgspec.Meta(ge=0, le=_MAX_STEP)] | None = None
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
    ``stepped``: whether the recorded rewards came from a group step.
    """

    def __init__(self, *, stepped: bool = False) -> None:
        self.stepped = stepped
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
        return compare_advantages(self.rewards_of(group), stepped=self.stepped)

    def turned(self, group: int) -> int | None:
        """How many of a group's advantages would change their sign if failures counted as 0.

        ``None`` where that is not known.
        """
        if self.stepped and group in self.missing:
            return None
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


def _row(line: bytes) -> _Row | None:
    """A row of a run; ``None`` for anything else."""
    try:
        return _decoder.decode(line)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None


def _number(value: float | None) -> float:
    return value if value is not None and -MAX_DRAWN <= value <= MAX_DRAWN else _ABSENT


def present_number(value: float) -> float | None:
    """The number that a column holds; ``None`` for NaN, which is none."""
    return None if math.isnan(value) else value
