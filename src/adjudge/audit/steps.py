"""A log of metrics by step as an audit looks at it: the rules of the sentinel, each as a check."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial

from adjudge.checks.check import AdvantageImpact, Check, CheckResult, Finding, not_applicable
from adjudge.errors import ConfigError
from adjudge.rollouts.formats.metrics import METRIC_NAMES
from adjudge.runs.sentinel import WARM_UP, Sentinel, SentinelReading
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
                        f"{file}: {name}: step {row['step']:g} has two values (found "
                        f"{known[name]:g} and {row[name]:g}). Audit one run at a time; where rows "
                        "are single rewards, name their column: -m env_reward=COLUMN"
                    )
    return dict(sorted(steps.items()))


def _run_rules(rules: Sequence[str], needs: Sequence[str], metrics: MetricsByStep) -> CheckResult:
    """What these rules of the sentinel say, where the log has what they read."""
    for name in needs:
        if sum(name in row for row in metrics.values()) < WARM_UP:
            return not_applicable(
                f"needs {WARM_UP} steps with one of the metrics {', '.join(METRIC_NAMES[name])}"
            )
    ends = [row[end] for row in metrics.values() for end in ("judge", "low", "high") if end in row]
    if "judge" in needs and not all(0 <= end <= 1 for end in ends):
        return not_applicable("needs rewards from 0 to 1, by which the rule's levels are set")
    sentinel = Sentinel()
    known = SentinelReading.__dataclass_fields__
    for step, row in metrics.items():
        read = {name: value for name, value in row.items() if name in known and name != "step"}
        sentinel.observe(SentinelReading(step=step, **read))
    alarm = next((one for one in sentinel.alarms if one.rule in rules), None)
    if alarm is None:
        return CheckResult(detectable_why="a rule over steps")
    finding = Finding(
        sentence=f"From step {alarm.step} on {alarm.seen}.",
        otherwise="The rule has levels, not a test: read some answers of that step.",
        effect=Estimate(why="a rule over steps"),
        unit=METRIC_NAMES[needs[-1]][0],
        impact=AdvantageImpact(why="a log of metrics has no advantages"),
        severity="low" if alarm.note else "medium",
        advice=f"{alarm.advice[0].upper()}{alarm.advice[1:]}.",
        series=tuple((step, row[needs[-1]]) for step, row in metrics.items() if needs[-1] in row),
    )
    return CheckResult(finding=finding)


STEP_CHECKS: tuple[Check[MetricsByStep], ...] = tuple(
    Check(name=f"steps_{name}", title=title, looks_for=title, run=partial(_run_rules, rules, needs))
    for name, title, rules, needs in (
        ("missing", "Missing rewards, by step", ("missing", "missing_rises"), ("missing",)),
        (
            *("flat", "Groups without spread, by step"),
            ("too_harsh", "too_lenient", "no_spread", "solved"),
            ("judge", "zero_spread"),
        ),
        ("length", "Reward and length rise, by step", ("length",), ("length", "length_corr")),
        ("dominates", "One part drowns another", ("dominates",), ("env_var", "judge_var")),
    )
)
"""Checks of a log of metrics; nothing in it says of a measure that is not trained on."""
