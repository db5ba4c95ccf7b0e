"""Checks of rewards and groups that are counted: NaN, groups of one, groups without spread."""

from __future__ import annotations

from typing import Any

from adjudge.audit.effects import impact_without
from adjudge.audit.findings import AuditResult, Check, Finding, not_applicable, severity_of
from adjudge.audit.rollouts import AuditedRun
from adjudge.stats.estimates import Estimate, np

MAX_ROWS = 200
"""Affected samples that a finding names."""

_SHARE = "share of samples"


def count_affected(
    run: AuditedRun, bad: Any, sentence: str, *, harm: float | None = None, advice: str = ""
) -> AuditResult:
    """The result of a check of facts: every sample of ``bad`` is one, and chance plays no part.

    ``sentence`` has places for ``count`` and ``of``; ``harm`` is the share of samples if not given.
    """
    total, count = len(run), int(bad.sum())
    if not count:
        return AuditResult(effect=Estimate(0.0), unit=_SHARE, detectable=1 / max(1, total))
    share = count / total
    harm = share if harm is None else harm
    finding = Finding(
        sentence=sentence.format(count=f"{count:,}", of=f"{total:,}"),
        effect=Estimate(share, why="counted"),
        unit=_SHARE,
        rows=tuple(np.flatnonzero(bad)[:MAX_ROWS].tolist()),
        affected=count,
        impact=impact_without(run, bad),
        harm=harm,
        severity=severity_of(harm),
        advice=advice,
    )
    return AuditResult(finding=finding, effect=finding.effect, unit=_SHARE)


def _find_not_finite(run: AuditedRun) -> AuditResult:
    return count_affected(
        run,
        np.isinf(run.reward) | np.isinf(run.recorded),
        "{count} of {of} rewards or advantages are NaN or infinite.",
        harm=1.0,
        advice="Mark them as missing: one of them makes a whole group's advantages NaN.",
    )


def _find_lone_samples(run: AuditedRun) -> AuditResult:
    if (run.group_sizes <= 1).all():
        return not_applicable("every group has one sample: this is no group-relative run")
    return count_affected(
        run,
        run.group_sizes[run.group] == 1,
        "{count} of {of} samples are alone in their group: their advantage is always 0.",
        advice="Check the group column, and whether the other samples of the prompt were lost.",
    )


REWARD_CHECKS = (
    Check(
        name="not_finite",
        title="NaN or infinite rewards",
        looks_for="rewards, components or advantages that are NaN or infinite",
        run=_find_not_finite,
    ),
    Check(
        name="lone_samples",
        title="Groups of one",
        looks_for="samples that are alone in their group, so that they teach nothing",
        run=_find_lone_samples,
    ),
)
