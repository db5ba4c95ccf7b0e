"""The check of tool calls that go round in circles, and of what that earned."""

from __future__ import annotations

from collections import Counter

from adjudge.audit.effects import impact_without, measure_difference
from adjudge.audit.findings import AuditResult, Check, Finding, not_applicable, severity_of
from adjudge.audit.responses import describe_earned, is_notable, rank_rows, share_by_group
from adjudge.audit.rollouts import AuditedRollout, AuditedRun
from adjudge.errors import GradingFailure
from adjudge.graders.rules.redundancy import action_texts
from adjudge.graders.rules.trajectory import parse_trajectory
from adjudge.stats.estimates import np

LOOP_TIMES = 3
"""The same call with the same result so often is a loop; twice may be a retry."""


def count_repeats(rollout: AuditedRollout) -> float | None:
    """How often a rollout makes the call that it makes most often, with the same result each time.

    ``None`` without a readable tool call. Calls are equal with the same name and arguments, in any
    order of keys.
    """
    if not rollout.messages:
        return None
    try:
        steps = parse_trajectory(rollout.messages).steps
    except GradingFailure:
        return None
    if not steps:
        return None
    texts = action_texts([step.call for step in steps])
    times = Counter(zip(texts, (step.observation for step in steps), strict=True))
    return float(max(times.values()))


def _find_tool_loops(run: AuditedRun) -> AuditResult:
    repeats = run.feature("tool_loops.repeats")
    known = np.isfinite(repeats)
    count = int(known.sum())
    if not count:
        return not_applicable("no rollout has tool calls with results")
    mask = known & (repeats >= LOOP_TIMES)
    unit = "share of rollouts with tool calls"
    effect = share_by_group(mask[known], run.group[known])
    if not is_notable(mask, known):
        return AuditResult(effect=effect, unit=unit)
    earned = measure_difference(mask, run.advantage, run.group)
    rewarded = float((mask & (run.advantage > 0)).sum()) / len(run)
    harm = max(rewarded, float(mask.sum()) / len(run) / 2)
    finding = Finding(
        sentence=(
            f"{mask.sum()} of {count} rollouts ({100 * mask.sum() / count:.1f} %) make the same "
            f"tool call with the same result {LOOP_TIMES} times or more (up to "
            f"{int(repeats[mask].max())}). {describe_earned(earned)}"
        ),
        effect=effect,
        unit=unit,
        rows=rank_rows(mask, run),
        affected=int(mask.sum()),
        impact=impact_without(run, mask),
        harm=harm,
        severity=severity_of(harm),
        advice=(
            "Add `action_loop` to the spec as a penalty, or stop a rollout that repeats itself. "
            "Where loops are rewarded, look at what the reward pays for."
        ),
    )
    return AuditResult(finding=finding, effect=effect, unit=unit)


TOOL_CHECKS = (
    Check(
        name="tool_loops",
        title="Tool loops",
        looks_for=f"the same call with the same result {LOOP_TIMES} times or more",
        run=_find_tool_loops,
        features={"tool_loops.repeats": count_repeats},
    ),
)
