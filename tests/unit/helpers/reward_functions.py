"""Reward functions of graders that say what a sample holds."""

import asyncio
from collections.abc import Mapping
from typing import Any

from adjudge import (
    FunctionGrader,
    GradingFailure,
    RewardResult,
    RewardSample,
    RewardSpec,
    SpecRewardFunction,
)


class FakeClock:
    """Time passes only by sleeping."""

    def __init__(self) -> None:
        self.now = 0.0

    def time(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        await asyncio.sleep(0)


def build(
    graders: Mapping[str, Any],
    *,
    entries: Mapping[str, Mapping[str, Any]] | None = None,
    reward: Mapping[str, Any] | None = None,
    missing: Mapping[str, Any] | None = None,
    clock: FakeClock | None = None,
) -> SpecRewardFunction:
    listed = [{"name": name, "type": "m:C", **(entries or {}).get(name, {})} for name in graders]
    spec = RewardSpec.from_dict(
        {"graders": listed, "reward": dict(reward or {}), "missing": dict(missing or {})}
    )
    return SpecRewardFunction(spec, graders=graders, clock=clock)


def samples(*extras: Mapping[str, Any], group: int = 4) -> dict[str, list[RewardSample]]:
    made: dict[str, list[RewardSample]] = {}
    for index, extra in enumerate(extras):
        key = f"g{index // group}"
        made.setdefault(key, []).append(
            RewardSample(index, index % group, "p", "r", None, dict(extra))
        )
    return made


def scored(**options: Any) -> FunctionGrader:
    def judge(s: Any) -> float:
        if isinstance(s, str):
            raise GradingFailure(s, f"recorded {s}")
        return float(s)

    options.setdefault("score_range", (0.0, 1.0))
    return FunctionGrader(judge, "judge", **options)


def values(results: list[RewardResult]) -> list[float | None]:
    return [result.score for result in sorted(results, key=lambda r: r.original_index)]
