"""The metrics of each step of a log, as an audit looks at them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from adjudge.checks.check import Check
from adjudge.checks.steps import STEP_CHECKS, Steps
from adjudge.errors import ConfigError

MetricsByStep = Mapping[int, Mapping[str, float]]
"""What a run logged of each step, by the names of :data:`METRIC_NAMES`."""

LOG_CHECKS: tuple[Check[Steps], ...] = tuple(
    replace(check, name=f"steps_{check.name}", title=f"{check.title}, by step")
    for check in STEP_CHECKS
)
"""Those of steps, beside checks of rollouts that have the same names."""


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


def read_steps(metrics: MetricsByStep) -> Steps:
    """The steps of a log, for its checks."""
    steps = Steps()
    for row in metrics.values():
        steps.add(row)
    return steps
