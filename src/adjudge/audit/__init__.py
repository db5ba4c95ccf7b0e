"""What is wrong with a run that is already there: no spec, no judge, no key.

:func:`read_run` measures rollouts, :func:`audit_run` asks every check in :data:`CHECKS`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from adjudge.audit.rollouts import read_audited
from adjudge.checks.advantages import ADVANTAGE_CHECKS
from adjudge.checks.check import Check, CheckOutcome, ask_of_each, run_checks
from adjudge.checks.filled import FILLED_CHECKS
from adjudge.checks.judge_texts import JUDGE_TEXT_CHECKS
from adjudge.checks.judges import JUDGE_CHECKS, SEEN_BY_AUDIT, JudgedRun
from adjudge.checks.responses import RESPONSE_CHECKS, TOOL_CHECKS
from adjudge.checks.rewards import DRIFT_CHECKS, REWARD_CHECKS
from adjudge.checks.run import AuditedRun
from adjudge.checks.values import VALUE_CHECKS

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


def read_run(
    paths: Sequence[Path],
    mapping: Mapping[str, str] | None = None,
    checks: Sequence[Check[AuditedRun]] = CHECKS,
) -> AuditedRun:
    """Read and measure dumps and run folders."""
    run = AuditedRun({name: fn for check in checks for name, fn in check.features.items()})
    for rollout in read_audited(paths, mapping or {}, run):
        run.add(rollout)
    return run


def audit_run(
    run: AuditedRun,
    checks: Sequence[Check[AuditedRun]] = CHECKS,
    judged: Mapping[str, JudgedRun] | None = None,
) -> list[CheckOutcome]:
    """What each check says of a run, worst first; ``judged``: what each of its judges said.

    Of judges those checks are asked whose answers rewards and reasons do not have.
    """
    of_judges = [check for check in JUDGE_CHECKS if check.name not in SEEN_BY_AUDIT]
    return run_checks([*((check, run) for check in checks), *ask_of_each(of_judges, judged or {})])
