"""What is wrong with a run that is already there: no spec, no judge, no key.

:func:`read_run` measures rollouts, :func:`audit_run` asks every check in :data:`CHECKS`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from adjudge.audit.rollouts import PROGRESS_EVERY, AuditProgress, read_audited
from adjudge.checks.advantages import ADVANTAGE_CHECKS
from adjudge.checks.check import (
    Check,
    CheckOutcome,
    CheckResult,
    ask_check,
    ask_of_each,
    decide,
    not_applicable,
)
from adjudge.checks.filled import FILLED_CHECKS
from adjudge.checks.judge_texts import JUDGE_TEXT_CHECKS
from adjudge.checks.judges import JUDGE_CHECKS, JudgedRun
from adjudge.checks.responses import RESPONSE_CHECKS, TOOL_CHECKS
from adjudge.checks.rewards import DRIFT_CHECKS, REWARD_CHECKS
from adjudge.checks.run import AuditedRun
from adjudge.checks.steps import STEP_CHECKS, Steps
from adjudge.checks.values import VALUE_CHECKS
from adjudge.errors import ConfigError
from adjudge.extensions import load_extension

__all__ = ["CHECKS", "audit_run", "read_run"]

CHECKS: tuple[Check[AuditedRun], ...] = (
    *REWARD_CHECKS,
    *FILLED_CHECKS,
    *VALUE_CHECKS,
    *ADVANTAGE_CHECKS,
    *DRIFT_CHECKS,
    *RESPONSE_CHECKS,
    *TOOL_CHECKS,
    *JUDGE_TEXT_CHECKS,
)
"""All checks, in the order in which the documentation lists them."""

LOG_CHECKS: tuple[Check[Steps], ...] = tuple(
    replace(check, name=f"steps_{check.name}", title=f"{check.title}, by step")
    for check in STEP_CHECKS
)
"""Those of the steps of a log, beside checks of rollouts that have the same names."""


_OF_TEXTS = {"length", "format", "stale_rewards"}.union(
    check.name for check in (*RESPONSE_CHECKS, *TOOL_CHECKS)
)


def read_run(
    paths: Sequence[Path],
    mapping: Mapping[str, str] | None = None,
    checks: Sequence[Check[AuditedRun]] = CHECKS,
    progress: AuditProgress = lambda _stage, _done, _of: None,
) -> AuditedRun:
    """Read and measure dumps, run folders and logs of metrics.

    Raises :class:`~adjudge.errors.ConfigError` where there are neither rollouts nor metrics.
    """
    run = AuditedRun({name: fn for check in checks for name, fn in check.features.items()})
    progress("reading", 0, None)
    for rollout in read_audited(paths, mapping or {}, run):
        run.add(rollout)
        if len(run) % PROGRESS_EVERY == 0:
            progress("reading", len(run), None)
    if not (len(run) or run.metrics):
        first = f" The first row: {run.broken[0]:.300}" if run.broken else ""
        raise ConfigError(
            f"{', '.join(map(str, paths))}: no rollouts were found.{first} Name the columns with "
            "--map, such as --map messages=traj."
        )
    return run


def load_checks(names: Sequence[str]) -> tuple[Check[AuditedRun], ...]:
    """All checks, and a user's own: entry points of ``adjudge.checks``, or ``module:name``.

    Raises :class:`~adjudge.errors.ConfigError` for what is no check, or has the name of another.
    """
    found = {check.name: check for check in CHECKS}
    for name in names:
        check = load_extension("adjudge.checks", name, where="--check")
        if not isinstance(check, Check) or check.name in found:
            raise ConfigError(
                f"--check {name}: must be an adjudge.checks.check.Check with a name of its own "
                f"(found {getattr(check, 'name', check)!r:.80})"
            )
        found[check.name] = check
    return tuple(found.values())


def audit_run(
    run: AuditedRun,
    checks: Sequence[Check[AuditedRun]] = CHECKS,
    judged: Mapping[str, JudgedRun] | None = None,
) -> list[CheckOutcome]:
    """What each check says of a run, worst first.

    Also of a log of metrics, where there is one, and of what each judge said (``judged``).
    """
    others = ask_of_each(JUDGE_CHECKS, judged or {})
    if run.metrics:
        steps = Steps()
        for row in run.metrics.values():
            steps.add(row)
        others += [(check, steps) for check in LOG_CHECKS]
    answers: list[tuple[Check[Any], CheckResult]] = []
    for check in checks:
        result = not_applicable("needs rewards of single rollouts; a log has means of steps")
        if len(run):
            result = ask_check(check, run)
            if result.skipped and check.name in _OF_TEXTS and not run.with_texts:
                result = not_applicable("needs the texts of the rollouts")
        answers.append((check, result))
    return decide(answers + [(check, ask_check(check, evidence)) for check, evidence in others])
