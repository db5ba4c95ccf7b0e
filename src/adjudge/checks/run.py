"""What checks look at: each rollout once with its texts, then numbers of all of them.

An :class:`AuditedRollout` is one rollout with its texts, rewards and verdicts. It is measured and
dropped: of each rollout an :class:`AuditedRun` keeps numbers in columns alone, so that 100,000 long
rollouts fit in memory.
"""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

from adjudge.datasets.files import find_container, read_rows
from adjudge.datasets.sources import number_lines, open_binary
from adjudge.errors import ConfigError
from adjudge.extensions import describe_cause
from adjudge.intake.columns import is_not_finite_text
from adjudge.messages import content_text, format_tool_call
from adjudge.rewards.formulas import STD_EPSILON
from adjudge.rollouts.input_report import InputReport
from adjudge.stats.estimates import np

NOT_A_NUMBER = "not_a_number"
"""The kind of a reward that is NaN, infinite, null or not there in a dump."""

REWARD_COPIES = frozenset({"reward", "rewards", "score", "env_reward"})
_MOST_COMPONENTS = 32
_LARGEST = 1e100  # its square is a float, too


@dataclass(slots=True, kw_only=True)
class AuditedRollout:
    """One rollout with its texts, as it is measured.

    ``reward`` is what the trainer got, ``None`` where it is missing, and ``missing`` then names the
    kind of the failure where the run says it; beside a reward it is a failure that became a number
    (``missing.suspect``). ``components`` are the numbers that the reward was made of; not finite
    ones stay as they are. ``env_reward`` is the environment's, where a judge gave ``reward``;
    ``advantage`` is what the run recorded. ``reasons`` has what each grader said in words, failures
    included. ``truncated``: whether it was cut off; ``None`` where it is unknown. ``opening`` is
    all that stands before the policy, empty where that is not known. ``has_texts`` is false where
    the rollouts of a run folder are gone, and of a lost rollout.
    """

    index: int
    where: str
    group: str
    step: int | None = None
    reward: float | None = None
    env_reward: float | None = None
    advantage: float | None = None
    components: dict[str, float | None] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    missing: str = ""
    prompt: str = ""
    opening: str = ""
    reference: str = ""
    response: str = ""
    messages: Sequence[Mapping[str, Any]] = ()
    finish: str = ""
    truncated: bool | None = None
    extras: Mapping[str, Any] = field(default_factory=dict)
    has_texts: bool = True
    _generated: str | None = field(default=None, init=False, repr=False)

    @property
    def generated(self) -> str:
        """All that the policy wrote: its turns with their tool calls, or the response."""
        if not self.messages:
            return self.response
        if self._generated is None:  # nearly every check asks
            turns = [m for m in self.messages if m.get("role") == "assistant"]
            self._generated = "\n".join(
                "\n".join([content_text(turn.get("content")) or "", *_format_calls(turn)]).strip()
                for turn in turns
            )
            if not turns:
                self._generated = self.response
        return self._generated


MetricsByStep = Mapping[int, Mapping[str, float]]
"""What a run logged of each step, by the names of its metrics."""

RolloutFeature = Callable[[AuditedRollout], float | None]
"""A number of one rollout; ``None`` where it has none."""


class BlockFeature(NamedTuple):
    """A feature that is measured faster of several rollouts together.

    ``measure`` gives an array with a number for each of them, or with a row of numbers.
    """

    measure: Callable[[Sequence[AuditedRollout]], Any]


Feature = RolloutFeature | BlockFeature
_BLOCK_ROLLOUTS, _BLOCK_CHARACTERS = 64, 1 << 17


def _format_calls(message: Mapping[str, Any]) -> list[str]:
    calls = message.get("tool_calls")
    return [format_tool_call(call) for call in calls] if isinstance(calls, list) else []


def _length(rollout: AuditedRollout) -> float | None:
    return float(len(rollout.generated)) if rollout.has_texts else None


BASE_FEATURES: Mapping[str, RolloutFeature] = {
    **{name: attrgetter(name) for name in ("reward", "env_reward", "advantage", "step")},
    "length": _length,
    "truncated": attrgetter("truncated"),
}
"""What every audit measures; each check may name more."""


class AuditedRun:
    """The numbers of all rollouts of a run, in columns; a row is a rollout.

    Columns are numpy arrays of floats with NaN for absent: ``reward``, ``env_reward``,
    ``recorded`` (advantages that the run wrote), ``step``, ``component(name)``, ``feature(name)``.
    ``advantage`` is computed from ``reward`` within groups, as GRPO does, and is the recorded one
    where the run has no single reward. ``group`` has the number of each row's group, ``place`` its
    place in the group. ``places`` and ``where`` lead back to the rollout. ``metrics`` are means by
    step, of all the rows of ``logs``.
    """

    def __init__(self, features: Mapping[str, Feature] | None = None) -> None:
        self._features = {**BASE_FEATURES, **(features or {})}
        self._block: list[AuditedRollout] = []
        self._block_characters = 0
        self._failed: dict[str, str] = {}
        self._measured: dict[str, list[Any]] = {name: [] for name in self._features}
        self._parts: dict[str, array[float]] = {}
        self._groups: dict[str, int] = {}
        self._group_of = array("l")
        self.where: list[str] = []
        self.kinds: list[str] = []
        self.notes: list[str] = []
        self.logs: dict[str, list[dict[str, float]]] = {}
        self.metrics: MetricsByStep = {}
        self.broken: list[str] = []
        self.broken_count = 0
        self.with_texts = 0
        self.input = InputReport(split_steps=True)

    def __len__(self) -> int:
        return len(self.where)

    def add(self, rollout: AuditedRollout) -> None:
        """Measure a rollout."""
        self._group_of.append(self._groups.setdefault(rollout.group, len(self._groups)))
        self.where.append(rollout.where)
        self.kinds.append(rollout.missing)
        self.with_texts += rollout.has_texts
        self._block.append(rollout)
        self._block_characters += len(rollout.generated)
        if len(self._block) >= _BLOCK_ROLLOUTS or self._block_characters >= _BLOCK_CHARACTERS:
            self._measure_block()

    def _measure_block(self) -> None:
        """Measure the latest rollouts, one feature after the other, which a processor likes."""
        block, self._block, self._block_characters = self._block, [], 0
        for name, measure in self._features.items() if block else ():
            try:
                if isinstance(measure, BlockFeature):
                    numbers = measure.measure(block)
                else:
                    numbers = np.array([measure(one) for one in block], dtype=float)
            except Exception as error:  # noqa: BLE001  (of a user's check, which then fails)
                self._failed.setdefault(name, describe_cause(error))
                continue
            self._measured[name].append(numbers)
        first = len(self) - len(block)
        for name in dict.fromkeys(name for one in block for name in one.components):
            if name in self._parts or len(self._parts) < _MOST_COMPONENTS:
                parts = self._parts.setdefault(name, array("d"))
                parts.extend([math.nan] * (first - len(parts)))
                values = (one.components.get(name) for one in block)
                parts.extend(math.nan if one is None else float(one) for one in values)

    @cached_property
    def reward(self) -> Any:
        """The trainer's reward; NaN where missing, infinite where too large to compute with."""
        column = self.feature("reward")
        return np.where(np.abs(column) > _LARGEST, np.copysign(math.inf, column), column)

    @cached_property
    def is_null(self) -> Any:
        """Which rows have no number as reward though others of their file have one."""
        files = [where.rpartition(":")[0] for where in self.where]
        rewarded = {files[row] for row in np.flatnonzero(~np.isnan(self.reward)).tolist()}
        kinds = zip(self.kinds, files, strict=True)
        null = [kind == NOT_A_NUMBER and file in rewarded for kind, file in kinds]
        return np.array(null, dtype=bool)

    @cached_property
    def is_nan(self) -> Any:
        """Which rows without a reward have NaN or Infinity in their file, read as null."""
        lines: dict[str, dict[int, list[int]]] = {}  # one line may hold several rows
        for row, kind in enumerate(self.kinds):
            if kind != NOT_A_NUMBER:
                continue
            file, _, place = self.where[row].rpartition(":")
            line = place.partition(".")[0]
            if line.isdigit():
                lines.setdefault(file, {}).setdefault(int(line), []).append(row)
        found = np.zeros(len(self), dtype=bool)
        for file, rows in lines.items():
            for number in _find_not_finite_rows(file):
                if number in rows:
                    found[rows[number]] = True
        return found

    env_reward = cached_property(lambda run: run.feature("env_reward"))
    """The environment's reward beside a judge's; NaN where there is none."""

    recorded = cached_property(lambda run: run.feature("advantage"))
    """The advantages that the run wrote down."""

    step = cached_property(lambda run: run.feature("step"))
    """The training step; NaN where the run has none."""

    @cached_property
    def group(self) -> Any:
        """The number of each row's group."""
        return np.frombuffer(self._group_of, dtype=f"i{self._group_of.itemsize}").astype(int)

    @cached_property
    def group_sizes(self) -> Any:
        """How many rollouts each group has."""
        return np.bincount(self.group, minlength=len(self._groups))

    @cached_property
    def place(self) -> Any:
        """The place of each row within its group, from 0, in the order of the run."""
        order = np.argsort(self.group, kind="stable")
        sizes = self.group_sizes
        starts = np.repeat(np.cumsum(sizes) - sizes, sizes)
        found = np.empty(len(self), dtype=float)
        found[order] = np.arange(len(self)) - starts
        return found

    @cached_property
    def advantage(self) -> Any:
        """Computed within groups from ``reward``; the recorded one where there is no reward."""
        finite = np.isfinite(self.reward)
        return compute_advantage_column(self.reward, self.group) if finite.any() else self.recorded

    @property
    def components(self) -> list[str]:
        """The names of the numbers that the reward was made of."""
        self._measure_block()
        return list(self._parts)

    def component(self, name: str) -> Any:
        """A part of the reward."""
        parts = self._parts[name]
        parts.extend([math.nan] * (len(self) - len(parts)))
        return np.array(parts, dtype=float)

    def feature(self, name: str) -> Any:
        """What was measured of the texts; raises what measuring a rollout raised."""
        self._measure_block()
        if name in self._failed:
            raise ValueError(f"{name}: {self._failed[name]}")
        measured = self._measured[name]
        return np.concatenate(measured) if measured else np.zeros(0)


def _find_not_finite_rows(file: str) -> Iterator[int]:
    """The rows of a file, as places count them, with NaN or Infinity; none where it is gone.

    The columns that a reward usually has are looked at, or all where a row has none of them.
    """
    with suppress(OSError, ConfigError, ValueError, RecursionError):
        for number, row in _read_unmended(Path(file)):
            if not isinstance(row, dict):
                continue
            names = [name for name in row if name.lower() in REWARD_COPIES] or list(row)
            if any(_is_not_finite(row[name]) for name in names):
                yield number


def _read_unmended(file: Path) -> Iterator[tuple[int, Any]]:
    """The rows that may have NaN or Infinity, which other readers of JSON make null."""
    container = find_container(file)
    if container in ("table", "parquet"):
        for where, row in read_rows([file]):
            yield int(where.rpartition(":")[2]), row
        return
    with open_binary(file) as stream:
        if container == "array":
            yield from enumerate(json.load(stream), start=1)
            return
        for number, line in number_lines(stream):
            if b"NaN" in line or b"Infinity" in line:
                with suppress(ValueError, RecursionError):
                    yield number, json.loads(line)


def _is_not_finite(value: Any) -> bool:
    if isinstance(value, dict | list):
        return any(map(_is_not_finite, value.values() if isinstance(value, dict) else value))
    return is_not_finite_text(value) or (isinstance(value, float) and not math.isfinite(value))


def compute_advantage_column(reward: Any, group: Any, used: Any = None) -> Any:
    """(r − mean)/(std + 1e-4) within groups for whole columns; NaN where there is no reward.

    ``used``: a mask of the rows that count; the others get NaN. It is 0 in a group without spread
    and for one alone.
    """
    present = np.isfinite(reward) if used is None else np.isfinite(reward) & used
    size = int(group.max()) + 1 if len(group) else 0
    counts = np.bincount(group[present], minlength=size)
    sums = np.bincount(group[present], weights=reward[present], minlength=size)
    mean = sums / np.maximum(counts, 1)
    off = np.where(present, reward - mean[group], 0.0)
    off[np.abs(off) <= 1e-9 * np.maximum(np.abs(mean[group]), 1e-300)] = 0.0  # rounding
    square = np.bincount(group, weights=off * off, minlength=size)
    std = np.sqrt(square / np.maximum(counts - 1, 1))
    return np.where(present, off / (std[group] + STD_EPSILON), np.nan)
