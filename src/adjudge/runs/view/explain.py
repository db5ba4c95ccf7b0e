"""How a reward came together from its parts, where the run says how."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any, cast, get_args

import msgspec

from adjudge.rewards.groups import GroupStep, group_step
from adjudge.runs.view.curves import number_of

__all__ = ["Combination", "combination_from", "combination_of", "explained"]


class Combination(msgspec.Struct, frozen=True):
    """The combining part of a reward spec; ``judge_scale`` is ``None`` where it is not written."""

    mode: str
    event_weight: float
    outcome_weight: float
    judge_scale: float | None
    group: GroupStep = "none"
    bonus: float = 0.1

    def rewards(self, parts: Sequence[tuple[float, float, float | None]]) -> list[float]:
        """The rewards of one group from outcome, events and environment's reward of each sample.

        0 where there is none: the environment's reward is missing, or a sample is ranked alone.
        """
        stepped = group_step([outcome for outcome, _, _ in parts], self.group, bonus=self.bonus)
        scale = 1.0 if self.judge_scale is None else self.judge_scale
        found = []
        for outcome, (_, events, env) in zip(stepped, parts, strict=True):
            judge = self.outcome_weight * (outcome or 0.0) + self.event_weight * events
            found.append(_combined(self.mode, env, scale * judge) or 0.0)
        return found


def combination_of(text: str) -> Combination | None:
    """The settings under ``[judge]`` or ``[reward]`` of a run file; ``None`` if it has neither."""
    try:
        found = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError):
        return None
    for name in ("judge", "reward"):
        table = found.get(name)
        if (how := combination_from(table)) is not None:
            return how
    return None


def combination_from(table: object) -> Combination | None:
    """The settings in one table; ``None`` if it is none, or says nothing of ``combine_mode``."""
    if not isinstance(table, dict) or "combine_mode" not in table:
        return None
    events, outcome = table.get("event_weight", 0.0), table.get("outcome_weight", 1.0)
    group = table.get("group")
    known = isinstance(group, str) and group in get_args(GroupStep)
    return Combination(
        str(table["combine_mode"]),
        number_of(events) or 0.0,
        number_of(outcome) or 0.0,
        number_of(table.get("judge_scale")),
        cast("GroupStep", group if known else "none"),
        number_of(table.get("bonus")) or 0.0,
    )


def explained(how: Combination | None, row: Mapping[str, Any]) -> list[str] | None:
    """The sum or product in words and numbers; ``None`` where it does not give the row's reward.

    Something else may have had a hand in it (a group step, a fallback): then only the parts are
    known, and no formula is shown that does not hold.
    """
    reward, info = number_of(row.get("reward")), row.get("reward_info")
    if how is None or reward is None or not isinstance(info, dict):
        return None
    parts = [
        (weight, number_of(info.get(key)), key)
        for weight, key in ((how.event_weight, "events"), (how.outcome_weight, "outcome"))
        if weight
    ]
    if not parts or any(value is None for _, value, _ in parts):
        return None
    judge = math.fsum(weight * (value or 0.0) for weight, value, _ in parts)
    env = number_of(row.get("env_reward", info.get("env_reward")))
    for scale in (1.0, 10.0) if how.judge_scale is None else (how.judge_scale,):
        found = _combined(how.mode, env, scale * judge)
        if found is not None and math.isclose(found, reward, rel_tol=1e-6, abs_tol=1e-9):
            words = " + ".join(f"{weight:g} × {value:.4g} ({key})" for weight, value, key in parts)
            judged = f"judge part {judge:.4g} = {words}"
            return [judged, _sentence(how.mode, env, scale, judge, reward)]
    return None


def _combined(mode: str, env: float | None, judge: float) -> float | None:
    if mode == "replace":
        return judge
    if env is None or mode not in {"weighted_sum", "multiply"}:
        return None
    return env + judge if mode == "weighted_sum" else env * judge


def _sentence(mode: str, env: float | None, scale: float, judge: float, reward: float) -> str:
    judged = f"{scale:g} (judge scale) × {judge:.4g}"
    if mode == "replace" or env is None:
        return f"reward {reward:.4g} = {judged}"
    sign = "+" if mode == "weighted_sum" else "×"
    return f"reward {reward:.4g} = {env:.4g} (environment) {sign} {judged}"
