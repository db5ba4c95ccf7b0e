"""A log of metrics by step as an audit looks at it: the rules of the sentinel, each as a check."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial

from adjudge.checks.check import AdvantageImpact, Check, CheckResult, Finding, not_applicable
from adjudge.errors import ConfigError
from adjudge.rollouts.formats.metrics import METRIC_NAMES
from adjudge.runs.sentinel import WARM_UP, Sentinel, sentinel_reading
from adjudge.stats import Estimate

MetricsByStep = Mapping[int, Mapping[str, float]]
"""What a run logged of each step, by the names of :data:`METRIC_NAMES`."""


def merge_logs(logs: Mapping[str, Sequence[Mapping[str, float]]]) -> MetricsByStep:
    """The metrics of each step, in order.

    Raises :class:`ConfigError` where two rows of a step differ: they are of two runs, or no means.
    """
    steps: dict[int, dict[str, float]] = defaultdict(dict)
    for file, rows in logs.items():
        for row in rows:
            known = steps[int(row["step"])]
            for name in row:
                if known.setdefault(name, row[name]) != row[name]:
                    raise ConfigError(
                        f"{file}: metrics: step {row['step']:g} has two values of {name} (found "
                        f"{known[name]:g} and {row[name]:g}). Audit one run at a time; where rows "
                        "are single rewards, name their column: -m env_reward=COLUMN"
                    )
    return dict(sorted(steps.items()))


def _run_rules(rules: Sequence[str], needs: Sequence[str], metrics: MetricsByStep) -> CheckResult:
    """What these rules of the sentinel say, where the log has what they read."""
    for name in needs:
        if sum(name in row for row in metrics.values()) < WARM_UP:
            other = "".join(f" or {one}" for one in METRIC_NAMES[name])
            return not_applicable(f"needs {WARM_UP} steps with {name}{other}")
    if not all(0 <= row.get("judge/outcome_mean", 0) <= 1 for row in metrics.values()):
        return not_applicable("needs rewards from 0 to 1, by which the rule's levels are set")
    sentinel = Sentinel()
    for step, row in metrics.items():
        sentinel.observe(sentinel_reading(step, row, None))
    alarm = next((one for one in sentinel.alarms if one.rule in rules), None)
    if alarm is None:
        return CheckResult(detectable_why="a rule over steps")
    finding = Finding(
        sentence=f"From step {alarm.step} on {alarm.seen}.",
        otherwise="The rule has levels, not a test: read some answers of that step.",
        effect=Estimate(why="a rule over steps"),
        unit=needs[-1],
        impact=AdvantageImpact(why="a log of metrics has no advantages"),
        severity="low" if alarm.note else "medium",
        advice=f"{alarm.advice[0].upper()}{alarm.advice[1:]}.",
        series=tuple((step, row[needs[-1]]) for step, row in metrics.items() if needs[-1] in row),
    )
    return CheckResult(finding=finding)


_ALIKE = ("too_harsh", "too_lenient", "no_spread", "solved")
_SPREAD = ("judge/outcome_mean", "judge/zero_std_frac")
_PARTS = ("judge/env_group_var", "judge/part_group_var")
STEP_CHECKS: tuple[Check[MetricsByStep], ...] = tuple(
    Check(name=f"steps_{name}", title=title, looks_for=title, run=partial(_run_rules, rules, needs))
    for name, title, rules, needs in (
        ("missing", "Missing rewards, by step", ("missing",), ("judge/missing_frac",)),
        ("rises", "More missing rewards, by step", ("missing_rises",), ("judge/missing_frac",)),
        ("flat", "Groups without spread, by step", _ALIKE, _SPREAD),
        ("length", "Growing length, by step", ("length",), ("length", "judge/len_corr_group")),
        ("dominates", "One part alone, by step", ("dominates",), _PARTS),
    )
)
"""Checks of a log of metrics; nothing in it says of a measure that is not trained on."""
