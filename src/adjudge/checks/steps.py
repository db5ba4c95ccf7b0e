"""Checks of the steps of a training: whether what the judge pays for is still what was wanted.

:class:`StepWatch` sees each step's row of ``metrics.jsonl`` and raises the finding of each check of
:data:`STEP_CHECKS` once, as a :class:`StepAlarm`.

Whether a metric has moved, rather than wandered, is decided on the means of blocks of ``BLOCK``
steps (of the double from ``MOST_BLOCKS`` blocks on, and so forth: a run of any length has few of
them and few looks). The last ``RECENT`` blocks must lie ``LIMIT`` times a block's noise below the
best ``BEST`` successive ones. Noise is a standard deviation over distances that hold what
successive steps share, and takes no trend for noise: by the moves over ``LAG`` blocks, about their
mean; by the smaller three quarters of the bends over ``BEND`` blocks; the smaller of both, with
``PRIOR_WEIGHT`` moves at a prior value, for a short run knows little of its noise. ``LIMIT`` is
such that of honest runs of 200 steps about 2 % raise ``divergence`` or ``collapse`` where the
gold's autocorrelation from step to step is .9 and its standard deviation .1, and fewer where either
is less. On a gold that has no level (a random walk) no test can tell a fall from wandering.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from adjudge.checks.check import Check, CheckResult, Finding, not_applicable
from adjudge.stats import collect

SentinelAction = Literal["warn", "stop"]

WARM_UP, WINDOW = 8, 24
"""Steps before anything but ``missing`` is said, and steps of a recent mean."""
BLOCK, MOST_BLOCKS, RECENT, BEST, LAG, BEND = 4, 64, 2, 4, 3, 2
LIMIT, PRIOR_WEIGHT, SCORE_NOISE, SHARE_NOISE = 5.7, 3.0, 0.08, 0.03
_TRIMMED, _BEND_VARIANCE = 0.75, 0.368 * 3.0
"""The share of the bends that is kept, and the mean of its squares for a noise of 1: of a normal,
with the 3 (not 6) that blocks have of steps that share much."""
LEAST_DROP, LEAST_RISE, LEAST_GROWTH = 0.1, 0.1, 1.25
"""Of the gold, of the share of missing rewards, and of length (a factor)."""
LENGTH_CORR, DOMINANCE_SHARE = 0.6, 0.9
MOST_ALIKE, ALL_ALIKE = 0.9, 0.98
"""Shares of the groups without spread, beside a gold that says more and without."""
LOW_SCORE, HIGH_SCORE = 0.25, 0.9
MISSING_SHARE, MISSING_AT_ONCE = 0.25, 0.5

_METRICS = {
    "judge": "judge/outcome_mean",
    "length": "length",
    "length_corr": "judge/len_corr_group",
    "zero_spread": "judge/zero_std_frac",
    "missing": "judge/missing_frac",
    "judge_var": "judge/part_group_var",
    "env_var": "judge/env_group_var",
}

_Columns = tuple[float, ...]


class Blocks:
    """Means of successive blocks of steps, and whether their first column has fallen.

    ``fall``: the means of the best blocks and of the last ones, if so. ``least``: the smallest fall
    that counts; ``noise``: the prior standard deviation of a block.
    """

    def __init__(self, least: float, noise: float) -> None:
        self.fall: tuple[_Columns, _Columns] | None = None
        self._least, self._noise, self._size = least, noise, BLOCK
        self._means: list[_Columns] = []
        self._open: list[_Columns] = []

    def add(self, *values: float) -> None:
        """A step."""
        self._open.append(values)
        if len(self._open) < self._size:
            return
        self._means.append(_column_means(self._open))
        self._open.clear()
        if len(self._means) == MOST_BLOCKS:
            pairs = zip(self._means[::2], self._means[1::2], strict=True)
            self._means, self._size = [_column_means(pair) for pair in pairs], 2 * self._size
        if len(self._means) >= RECENT + BEST:
            self.fall = self._find_fall()

    def _find_fall(self) -> tuple[_Columns, _Columns] | None:
        levels = [mean[0] for mean in self._means]
        windows = range(len(levels) - RECENT - BEST + 1)
        best = max(windows, key=lambda at: sum(levels[at : at + BEST]))
        before = _column_means(self._means[best : best + BEST])
        now = _column_means(self._means[-RECENT:])
        drop = before[0] - now[0]
        is_large = drop >= self._least and drop > LIMIT * self._sigma(levels)
        return (before, now) if is_large else None

    def _sigma(self, levels: Sequence[float]) -> float:
        moves = [after - level for level, after in zip(levels, levels[LAG:], strict=False)]
        middle, count = sum(moves) / len(moves), len(moves)
        by_moves = sum((move - middle) * (move - middle) for move in moves) / (count - 1) / 2
        threes = zip(levels, levels[BEND:], levels[2 * BEND :], strict=False)
        bends = sorted(abs(first - 2 * second + third) for first, second, third in threes)
        kept = bends[: int(_TRIMMED * len(bends))]
        by_bends = sum(bend * bend for bend in kept) / len(kept) / _BEND_VARIANCE
        prior, seen = PRIOR_WEIGHT * self._noise * self._noise, count / LAG
        return math.sqrt((prior + seen * min(by_moves, by_bends)) / (PRIOR_WEIGHT + seen))


def _column_means(rows: Sequence[_Columns]) -> _Columns:
    return tuple(sum(column) / len(column) for column in zip(*rows, strict=True))


class Steps:
    """The metrics of a training's steps so far, as the checks read them.

    ``gold`` names the grader that is not trained on.
    """

    def __init__(self, gold: str | None = None) -> None:
        golds = {} if gold is None else {"gold": f"judge/{gold}_score_mean"}
        self._metrics = {**_METRICS, **golds}
        self._recent = {name: deque[float](maxlen=WINDOW) for name in self._metrics}
        self.gold_and_judge = Blocks(LEAST_DROP, SCORE_NOISE)
        self.kept = Blocks(LEAST_RISE, SHARE_NOISE)
        self.shortness = Blocks(math.log(LEAST_GROWTH), SCORE_NOISE)

    def add(self, row: Mapping[str, float]) -> None:
        """Take in a step's metrics; what is not there, or not finite, is left out."""
        found = {name: float(row.get(metric, math.nan)) for name, metric in self._metrics.items()}
        found = {name: value for name, value in found.items() if math.isfinite(value)}
        for name, value in found.items():
            self._recent[name].append(value)
        if "gold" in found and "judge" in found:
            self.gold_and_judge.add(found["gold"], found["judge"])
        if "missing" in found:
            self.kept.add(1 - found["missing"])
        if found.get("length", 0.0) > 0:
            self.shortness.add(-math.log(found["length"]))

    def mean(self, name: str, errors: float = 0.0) -> float:
        """Over the last ``WINDOW`` steps that have it, plus so many standard errors; 0 for none."""
        values = self._recent.get(name) or (0.0,)
        mean = sum(values) / len(values)
        if not errors:
            return mean
        squares = sum((value - mean) * (value - mean) for value in values)
        return mean + errors * math.sqrt(squares) / len(values)

    def lacks(self, name: str, least: int) -> str:
        """What a check still needs that needs ``least`` steps with a metric; "" for nothing."""
        if not self._recent.get(name):
            return self._metrics.get(name, name)
        return "" if len(self._recent[name]) >= least else f"{least} steps"


@dataclass(frozen=True)
class StepAlarm:
    """A finding since ``step``: what was ``seen``, and ``advice`` on what to change.

    ``otherwise`` says how an honest run may have it. A ``note`` is no fault and stops nothing.
    """

    step: int
    rule: str
    seen: str
    advice: str
    note: bool = False
    otherwise: str = ""


class StepWatch:
    """Watches a run by :data:`STEP_CHECKS`; ``action`` says whether an alarm stops it.

    ``gold`` as for :class:`Steps`.

    >>> watch = StepWatch("stop", gold="right")
    >>> for step in range(40):
    ...     row = {"judge/outcome_mean": 0.5 + step / 80, "judge/right_score_mean": 0.7 - step / 66}
    ...     for alarm in watch.observe(step, row):
    ...         print(alarm.step, alarm.rule)
    35 divergence
    >>> watch.should_stop
    True
    """

    def __init__(self, action: SentinelAction = "warn", *, gold: str | None = None) -> None:
        self.alarms: list[StepAlarm] = []
        self._action, self._steps = action, Steps(gold)
        self._silent = list(STEP_CHECKS)

    @property
    def should_stop(self) -> bool:
        """Whether training should end here."""
        return self._action == "stop" and any(not alarm.note for alarm in self.alarms)

    @property
    def unchecked(self) -> dict[str, str]:
        """The checks that could not be made, and what each of them lacks."""
        found = {check.name: check.run(self._steps).skipped for check in self._silent}
        return {name: lack for name, lack in found.items() if lack}

    def observe(self, step: int, row: Mapping[str, float]) -> list[StepAlarm]:
        """Take in a step's metrics; the alarms that it raises, each rule once in a run."""
        self._steps.add(row)
        raised = []
        for check in tuple(self._silent):
            if (one := check.run(self._steps).finding) is not None:
                self._silent.remove(check)
                words = one.sentence, one.advice, one.severity == "low", one.otherwise
                raised.append(StepAlarm(step, check.name, *words))
        self.alarms += raised
        return raised


def describe_unchecked(unchecked: Mapping[str, str], gold: str) -> str:
    """One line on the checks that could not be made; ``gold``: where its grader is named.

    >>> describe_unchecked({"solved": "gold", "collapse": "gold", "length": "24 steps"}, "--gold")
    'not checked: 2 for want of --gold (solved, collapse), 1 for want of 24 steps (length)'
    """
    names = collect((gold if lack == "gold" else lack, name) for name, lack in unchecked.items())
    parts = [f"{len(ones)} for want of {lack} ({', '.join(ones)})" for lack, ones in names.items()]
    return f"not checked: {', '.join(parts)}" if parts else ""


# --- the checks: what each says if it finds something, and the table -----------------------------


def _gold_falls(steps: Steps, *, judge_falls: bool) -> str:
    if (fall := steps.gold_and_judge.fall) is None:
        return ""
    (gold_then, judge_then), (gold, judge) = fall
    if (judge_then - judge >= LEAST_DROP) != judge_falls:
        return ""
    judges = f"the judge went from {judge_then:.2f} to {judge:.2f}"
    return f"the gold fell from {gold_then:.2f} to {gold:.2f} while {judges}"


def _length_grows(steps: Steps) -> str:
    fall, corr = steps.shortness.fall, steps.mean("length_corr")
    if fall is None or corr < LENGTH_CORR:
        return ""
    follows = f"inside groups the reward follows length (correlation {corr:.2f})"
    then, now = (math.exp(-part[0]) for part in fall)
    return f"{follows}, and answers grew from {then:.0f} to {now:.0f}"


def _alike(steps: Steps, *, which: str) -> str:
    """Groups without spread, where ``which`` of four findings that is by the judge and the gold."""
    zero, judge, gold = (steps.mean(name) for name in ("zero_spread", "judge", "gold"))
    found, beside, least = "no_spread", "", ALL_ALIKE
    if not steps.lacks("gold", WARM_UP):
        beside = f" where the gold is {gold:.2f}"
        if judge >= HIGH_SCORE:
            found, least = "solved" if gold >= HIGH_SCORE else "too_lenient", MOST_ALIKE
        elif judge <= LOW_SCORE < gold:
            found, least = "too_harsh", MOST_ALIKE
    if zero < least or found != which:
        return ""
    return f"{zero:.0%} of the groups have no spread, at scores of {judge:.2f}{beside}"


def _judge_dominates(steps: Steps) -> str:
    env, part = steps.mean("env_var"), steps.mean("judge_var")
    if env <= 0 or part < DOMINANCE_SHARE * (part + steps.mean("env_var", errors=2)):
        return ""
    share = f"the judge's part makes {part / (part + env):.0%} of what groups are compared by"
    even = f"{math.sqrt(env / part):.2g} times this judge_scale makes both weigh alike"
    return f"{share} and outweighs the environment's reward ({even})"


def _many_missing(steps: Steps) -> str:
    share = steps.mean("missing")
    if share < (MISSING_AT_ONCE if steps.lacks("missing", WARM_UP) else MISSING_SHARE):
        return ""
    learned = f"what is learned, and every mean, comes from the other {1 - share:.0%}"
    return f"{share:.0%} of the rewards are missing; {learned}"


def _missing_rise(steps: Steps) -> str:
    if (fall := steps.kept.fall) is None:
        return ""
    return "missing rewards went from {:.0%} to {:.0%}".format(*(1 - part[0] for part in fall))


def _check(
    name: str,
    looks_for: str,
    measure: Callable[[Steps], str],
    needs: Mapping[str, int],
    advice: str,
    otherwise: str,
) -> Check[Steps]:
    """A check that applies once so many steps have the metrics that it ``needs``."""

    def run(steps: Steps) -> CheckResult:
        if lacks := [lack for one, least in needs.items() if (lack := steps.lacks(one, least))]:
            return not_applicable(lacks[0])
        if not (sentence := measure(steps)):
            return CheckResult()
        return CheckResult(
            finding=Finding(
                sentence=sentence,
                otherwise=otherwise,
                advice=advice,
                severity="high" if otherwise else "low",
            )
        )

    return Check(name=name, title=name.replace("_", " "), looks_for=looks_for, run=run)


_FALL_STEPS = BLOCK * (RECENT + BEST)
_GOLD_FALLS = {"gold": _FALL_STEPS, "judge": _FALL_STEPS}
_ALIKE = {"judge": WARM_UP, "zero_spread": WARM_UP}
_ALIKE_BY_GOLD = {"gold": WARM_UP, **_ALIKE}
_OUTAGE = "the judge's server may be down: the kinds are timeout or unavailable then"

# What a check looks for, what it needs, what to change, and how an honest run may have it.
# fmt: off
STEP_CHECKS: tuple[Check[Steps], ...] = (
    _check("divergence", "the gold falls from its best and the judge does not",
           partial(_gold_falls, judge_falls=False), _GOLD_FALLS,
           "the policy exploits the judge: keep the weights of the best step, read the answers of "
           "the last, and correct the rubric (or add a rule grader or a second judge against it)",
           "the prompts may ask more of what the gold alone measures: a held-out gold then stays"),
    _check("collapse", "the gold falls from its best, and the judge with it",
           partial(_gold_falls, judge_falls=True), _GOLD_FALLS,
           "both fall, so this is not the judge: lower learning_rate, or raise batch_size",
           "the prompts may have become harder: a held-out gold then stays"),
    _check("length", "inside groups the reward follows length, and answers have grown",
           _length_grows, {"length_corr": WARM_UP, "length": _FALL_STEPS},
           "tell the judge to ignore length, or add a length_penalty or soft_overlong grader",
           "longer answers may be better ones: a gold then rises with them"),
    _check("too_harsh", "groups have no spread: scores are low, and the gold is not",
           partial(_alike, which="too_harsh"), _ALIKE_BY_GOLD,
           "the judge is too harsh: say in the rubric what earns a middle score, with examples, "
           "or give partial credit; a longer warm start helps too",
           "the gold may be too lenient: read answers that it likes"),
    _check("too_lenient", "groups have no spread: scores are high, and the gold is not",
           partial(_alike, which="too_lenient"), _ALIKE_BY_GOLD,
           "the judge is too lenient: ask for more in the rubric, with examples of what is not "
           "enough, or use a stronger judge model",
           "the gold may be too harsh: read answers that it does not like"),
    _check("no_spread", "groups have no spread: scores are in between, or there is no gold",
           partial(_alike, which="no_spread"), _ALIKE,
           "the scale is too coarse, the judge too harsh or too lenient, or the policy says one "
           "thing only: more criteria, partial credit, a finer scale, a higher temperature",
           "the task may be too hard for the policy, or solved: a gold then agrees"),
    _check("solved", "groups have no spread: scores and gold are high (a note)",
           partial(_alike, which="solved"), _ALIKE_BY_GOLD,
           "the gold agrees: stop here, or set a harder task", ""),
    _check("dominates", "the judge's part makes nearly all that groups are compared by",
           _judge_dominates, {"judge_var": WARM_UP, "env_var": WARM_UP},
           'lower judge_scale or outcome_weight, or use combine_mode = "multiply"',
           "the environment's reward may be rare as yet: the share then falls later"),
    _check("missing", "a quarter of the rewards or more are missing",
           _many_missing, {"missing": 1},
           "see which kinds fail (missing by kind in the report, judge/missing_frac/KIND in "
           "metrics.jsonl) and correct that before you train on", _OUTAGE),
    _check("missing_rises", "missing rewards become more",
           _missing_rise, {"missing": _FALL_STEPS},
           "read the answers without a reward: the policy may have learned to write what "
           "its judge cannot read, and is not paid less for it", _OUTAGE),
)
# fmt: on
