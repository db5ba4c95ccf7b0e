"""A sentinel over a training run: whether what the judge pays for is still what was wanted.

It sees one :class:`SentinelReading` a step and raises each :class:`SentinelAlarm` once, with what
to change. Its rules and thresholds, all stated here:

- ``divergence``: the gold falls from its best while the judge does not. Page's CUSUM of
  (best − gold)/σ − ``CUSUM_SLACK`` passes ``CUSUM_LIMIT``, and the drop is at least ``MIN_DROP``.
- ``collapse``: the same fall, and the judge's reward falls with it.
- ``drift``: the judge's mean on a frozen canary set leaves its first readings; a two-sided CUSUM.
- ``length``: inside groups the reward follows length (mean correlation over ``LENGTH_CORR``), and
  answers have grown by ``LENGTH_GROWTH``.
- ``too_harsh``: scores are all alike and low (``LOW_SCORE``); no answer earns more than another.
- ``too_lenient``: scores are all alike and high (``HIGH_SCORE``), and the gold is not, or is
  unknown.
- ``no_spread``: scores are all alike in between.
- ``solved``: scores are all alike and high, and so is the gold; a note, not an alarm.
- ``missing``: ``MISSING_SHARE`` of the rewards are missing, from the first step on: what is
  learned, and every mean that is shown, comes from the others.
- ``missing_rises``: that share has doubled, and grown by ``MISSING_GROWTH``: the policy may have
  found what its judge cannot read.
- ``dominates``: the judge's part makes more than ``DOMINANCE_SHARE`` of the variance that groups
  are compared by; the environment's reward is drowned.

*All alike*: ``ZERO_SPREAD`` of the groups have no spread; for low and high scores also a standard
deviation of at most ``FLAT_STD`` over the batch. σ is the median absolute deviation of the moves
over ``MOVE_LAG`` steps (the last ``MOVE_COUNT`` of them), scaled to a standard deviation: neither a
trend nor a sudden fall is noise, and what successive steps share is not hidden from it. Only so
far: on gold that wanders by itself ``divergence`` and ``collapse`` raise false alarms, in 46 % of
runs where its autocorrelation from step to step is .7, and in 1.25 % at .3. "Best", levels and
shares are exponentially weighted means. Nothing but ``missing`` is said before ``WARM_UP`` readings
of a quantity, and what is missing is left out.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Literal, NamedTuple

SentinelAction = Literal["warn", "stop"]

WARM_UP = 8
MEAN_WEIGHT = 0.3
"""Of a new reading in the weighted means."""
CUSUM_SLACK, CUSUM_LIMIT, MIN_DROP = 3.0, 8.0, 0.1
CANARY_SLACK, CANARY_LIMIT, CANARY_FLOOR = 2.0, 8.0, 0.01
SIGMA_FLOOR = 0.02
"""The least σ of a mean score: a curve at its ceiling has no noise to measure by."""
MOVE_LAG, MOVE_COUNT = 5, 100
_SIGMA_PER_MAD = 1 / (0.6745 * math.sqrt(2))
LENGTH_CORR, LENGTH_GROWTH = 0.6, 1.25
ZERO_SPREAD, FLAT_STD = 0.7, 0.05
LOW_SCORE, HIGH_SCORE = 0.25, 0.9
DOMINANCE_SHARE = 0.9
MISSING_SHARE, MISSING_GROWTH = 0.25, 0.1


@dataclass(frozen=True, kw_only=True)
class SentinelReading:
    """One step; ``None`` is not known.

    ``judge`` is the mean judge score of the batch in [0, 1] and ``spread`` its standard deviation;
    ``gold`` the mean of a measure that is not trained on, in [0, 1]; ``canary`` the judge's mean
    on answers that never change. ``length`` is the mean length, ``length_corr`` the mean
    correlation of reward and length inside groups, ``zero_spread`` the share of groups without
    spread, ``missing`` the share of rewards that were asked for and are not there; ``judge_var``
    and ``env_var`` are mean within-group variances of the two parts of a sum.
    """

    step: int
    judge: float | None = None
    spread: float | None = None
    gold: float | None = None
    canary: float | None = None
    length: float | None = None
    length_corr: float | None = None
    zero_spread: float | None = None
    missing: float | None = None
    judge_var: float | None = None
    env_var: float | None = None


@dataclass(frozen=True)
class SentinelAlarm:
    """What is wrong since ``step``, in words: ``seen``, and ``advice`` on what to change.

    A ``note`` is no fault and stops nothing.
    """

    step: int
    rule: str
    seen: str
    advice: str
    note: bool = False


def sentinel_reading(step: int, row: Mapping[str, float], gold: str | None) -> SentinelReading:
    """A row of ``metrics.jsonl`` as the sentinel reads it; ``gold`` names the gold's grader."""
    return SentinelReading(
        step=step,
        judge=row.get("judge/outcome_mean"),
        spread=row.get("judge/score_std"),
        gold=None if gold is None else row.get(f"judge/{gold}_score_mean"),
        length=row.get("length"),
        length_corr=row.get("judge/len_corr_group"),
        zero_spread=row.get("judge/zero_std_frac"),
        missing=row.get("judge/missing_frac"),
        judge_var=row.get("judge/part_group_var"),
        env_var=row.get("judge/env_group_var"),
    )


class Sentinel:
    """Watches a run; ``action`` says whether an alarm stops it.

    ``judge_scale`` is the run's own, for the advice.

    >>> sentinel = Sentinel("stop")
    >>> for step in range(40):
    ...     hacked = step / 40
    ...     reading = SentinelReading(step=step, judge=0.5 + hacked / 2, gold=0.7 - 0.6 * hacked)
    ...     for alarm in sentinel.observe(reading):
    ...         print(alarm.step, alarm.rule)
    14 divergence
    >>> sentinel.should_stop
    True
    """

    def __init__(self, action: SentinelAction = "warn", *, judge_scale: float = 1.0) -> None:
        self._action = action
        self._judge_scale = judge_scale
        self._alarms: list[SentinelAlarm] = []
        self._levels = {
            name: _Level() for name in SentinelReading.__dataclass_fields__ if name != "step"
        }
        self._fall = _GoldDecline()
        self._canary = _Canary()

    @property
    def alarms(self) -> list[SentinelAlarm]:
        """What was raised so far, in order."""
        return list(self._alarms)

    @property
    def should_stop(self) -> bool:
        """Whether training should end here."""
        return self._action == "stop" and any(not alarm.note for alarm in self._alarms)

    def observe(self, reading: SentinelReading) -> list[SentinelAlarm]:
        """Take in a step; the alarms that it raises, each rule once in a run."""
        fresh = {
            name: float(value)
            for name in self._levels
            if (value := getattr(reading, name)) is not None and math.isfinite(value)
        }
        for name, value in fresh.items():
            self._levels[name].add(value)
        if "gold" in fresh:
            self._fall.add(fresh["gold"], self._levels["gold"], self._levels["judge"].value)
        if "canary" in fresh:
            self._canary.add(fresh["canary"])
        known = {alarm.rule for alarm in self._alarms}
        raised = [
            SentinelAlarm(reading.step, *found)
            for found in self._findings()
            if found.rule not in known
        ]
        self._alarms += raised
        return raised

    def _findings(self) -> Iterator[_Finding]:
        for rule in (
            self._divergence,
            self._drift,
            self._length,
            self._flatness,
            self._dominance,
            self._missing,
            self._missing_rises,
        ):
            if (found := rule()) is not None:
                yield found

    def _divergence(self) -> _Finding | None:
        fall, judge, gold = self._fall, self._levels["judge"], self._levels["gold"]
        if not fall.is_over or judge.value is None or fall.judge_then is None:
            return None
        seen = (
            f"the gold fell from {fall.best:.2f} to {gold.value:.2f} while the judge went from "
            f"{fall.judge_then:.2f} to {judge.value:.2f}"
        )
        if judge.value < fall.judge_then - max(MIN_DROP, judge.sigma):
            advice = "both fall, so this is not the judge: lower learning_rate, or raise batch_size"
            return _Finding("collapse", seen, advice)
        advice = (
            "the policy exploits the judge: keep the weights of the best step, read the answers of "
            "the last, and correct the rubric (or add a rule grader or a second judge against it)"
        )
        return _Finding("divergence", seen, advice)

    def _drift(self) -> _Finding | None:
        if not self._canary.is_over:
            return None
        now = self._levels["canary"].value or 0.0
        seen = (
            f"the judge's mean on the same answers went from {self._canary.first:.3f} to {now:.3f}"
        )
        return _Finding(
            "drift", seen, "the judge changed: pin its model, and its prompt and sampling"
        )

    def _length(self) -> _Finding | None:
        corr, length = self._levels["length_corr"], self._levels["length"]
        if not (corr.is_warm and length.is_warm) or (corr.value or 0.0) < LENGTH_CORR:
            return None
        if length.first <= 0 or (length.value or 0.0) < LENGTH_GROWTH * length.first:
            return None
        seen = (
            f"inside groups the reward follows length (correlation {corr.value:.2f}), and answers "
            f"grew from {length.first:.0f} to {length.value:.0f}"
        )
        advice = (
            "tell the judge to ignore length, or add a length_penalty or soft_overlong grader to "
            "the reward"
        )
        return _Finding("length", seen, advice)

    def _flatness(self) -> _Finding | None:
        zero, spread, judge = (self._levels[name] for name in ("zero_spread", "spread", "judge"))
        same = zero.is_warm and (zero.value or 0.0) >= ZERO_SPREAD
        flat = spread.is_warm and (spread.value if spread.value is not None else 1.0) <= FLAT_STD
        if not judge.is_warm or judge.value is None:
            return None
        extreme = judge.value <= LOW_SCORE or judge.value >= HIGH_SCORE
        if not (same or (flat and extreme)):
            return None
        share = f", {zero.value:.0%} of the groups have no spread" if zero.value is not None else ""
        seen = f"scores are all alike at {judge.value:.2f}{share}: there is nothing to learn from"
        if judge.value <= LOW_SCORE:
            return _Finding(
                "too_harsh",
                seen,
                "the judge is too harsh: say in the rubric what earns a middle score, with "
                "examples, or give partial credit; a longer warm start helps too",
            )
        if judge.value < HIGH_SCORE:
            return _Finding(
                "no_spread",
                seen,
                "the scale is too coarse or the policy says one thing only: more criteria, a finer "
                "scale, a higher temperature",
            )
        gold = self._levels["gold"]
        if gold.value is not None and gold.value >= HIGH_SCORE:
            return _Finding(
                "solved", seen, "the gold agrees: stop here, or set a harder task", True
            )
        below = "" if gold.value is None else f", yet the gold is {gold.value:.2f}"
        return _Finding(
            "too_lenient",
            seen + below,
            "the judge is too lenient: ask for more in the rubric, with examples of what is not "
            "enough, or use a stronger judge model",
        )

    def _dominance(self) -> _Finding | None:
        env, part = self._levels["env_var"], self._levels["judge_var"]
        if not (env.is_warm and part.is_warm) or env.value is None or part.value is None:
            return None
        if env.value <= 0 or part.value <= 0:
            return None
        share = part.value / (part.value + env.value)
        if share < DOMINANCE_SHARE:
            return None
        even = self._judge_scale * math.sqrt(env.value / part.value)
        return _Finding(
            "dominates",
            f"the judge's part makes {share:.0%} of what groups are compared by and "
            "outweighs the environment's reward",
            f"lower judge_scale (at {even:.2g} both weigh alike) or outcome_weight, or use "
            'combine_mode = "multiply"',
        )

    def _missing(self) -> _Finding | None:
        share = self._levels["missing"].value
        if share is None or share < MISSING_SHARE:
            return None
        return _Finding(
            "missing",
            f"{share:.0%} of the rewards are missing; what is learned, and every mean, comes from "
            f"the other {1 - share:.0%}",
            "see which kinds fail (missing by kind in the report, judge/missing_frac/KIND in "
            "metrics.jsonl) and correct that before you train on",
        )

    def _missing_rises(self) -> _Finding | None:
        level = self._levels["missing"]
        if not level.is_warm or level.value is None:
            return None
        if level.value < max(2 * level.first, level.first + MISSING_GROWTH):
            return None
        return _Finding(
            "missing_rises",
            f"missing rewards went from {level.first:.0%} to {level.value:.0%}",
            "read the answers whose rewards are missing: the policy may have learned to write what "
            "its judge cannot read, and is not paid less for it",
        )


class _Finding(NamedTuple):
    rule: str
    seen: str
    advice: str
    note: bool = False


class _Level:
    """A quantity over the steps: weighted mean, first mean, and noise."""

    def __init__(self) -> None:
        self.value: float | None = None
        self.first = 0.0
        self._count = 0
        self._recent: deque[float] = deque(maxlen=MOVE_LAG)
        self._moves: deque[float] = deque(maxlen=MOVE_COUNT)

    @property
    def is_warm(self) -> bool:
        return self._count >= WARM_UP

    @property
    def sigma(self) -> float:
        """Of one reading; at least :data:`SIGMA_FLOOR`."""
        if not self._moves:
            return SIGMA_FLOOR
        middle = median(self._moves)
        return max(SIGMA_FLOOR, _SIGMA_PER_MAD * median(abs(move - middle) for move in self._moves))

    def add(self, x: float) -> None:
        self._count += 1
        # The mean of the first readings, then the weighted one: no lone start is trusted.
        before = x if self.value is None else self.value
        self.value = before + max(MEAN_WEIGHT, 1 / self._count) * (x - before)
        if self._count <= WARM_UP:
            self.first += (x - self.first) / self._count
        if len(self._recent) == MOVE_LAG:
            self._moves.append(x - self._recent[0])
        self._recent.append(x)


class _GoldDecline:
    """How far the gold has fallen from its best, as a CUSUM."""

    def __init__(self) -> None:
        self.best = -math.inf
        self.judge_then: float | None = None
        self._sum = 0.0
        self._drop = 0.0

    @property
    def is_over(self) -> bool:
        return self._sum > CUSUM_LIMIT and self._drop >= MIN_DROP

    def add(self, x: float, level: _Level, judge: float | None) -> None:
        if not level.is_warm or level.value is None:
            return
        if level.value >= self.best:
            self.best, self.judge_then, self._sum = level.value, judge, 0.0
        self._drop = self.best - level.value
        self._sum = max(0.0, self._sum + (self.best - x) / level.sigma - CUSUM_SLACK)


class _Canary:
    """A two-sided CUSUM of the canary's mean against its first readings."""

    def __init__(self) -> None:
        self._firsts: list[float] = []
        self._up = self._down = 0.0

    @property
    def first(self) -> float:
        return sum(self._firsts) / len(self._firsts)

    @property
    def is_over(self) -> bool:
        return max(self._up, self._down) > CANARY_LIMIT

    def add(self, x: float) -> None:
        if len(self._firsts) < WARM_UP:
            self._firsts.append(x)
            return
        middle = self.first
        squares = sum((one - middle) * (one - middle) for one in self._firsts) / (WARM_UP - 1)
        off = (x - middle) / max(CANARY_FLOOR, math.sqrt(squares))
        self._up = max(0.0, self._up + off - CANARY_SLACK)
        self._down = max(0.0, self._down - off - CANARY_SLACK)
