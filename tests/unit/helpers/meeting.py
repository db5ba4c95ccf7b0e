"""Groups that meet at a rendezvous, on a virtual clock."""

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any
from unittest.mock import patch

from tests.unit.helpers.reward_functions import build
from tests.unit.helpers.virtual_time import run_virtual

from adjudge import (
    BaseGrader,
    FunctionGrader,
    GraderMode,
    GraderRank,
    GradingFailure,
    SpecRewardFunction,
)
from adjudge.service import ServiceSettings
from adjudge.stats import mid_ranks
from adjudge.types import Provenance, Usage
from adjudge.wire import GroupRequest


def run_here(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """In virtual time, the test's loop standing for the engine's, as the service's does."""
    with patch("adjudge.engine.loop.on_engine", lambda: True):
        return run_virtual(coroutine)


class Longest(BaseGrader):
    """Ranks a group by length; counts how often, and of how many, it was asked."""

    def __init__(self, wait: float = 0.0) -> None:
        super().__init__("longest", GraderMode.LISTWISE)
        self.wait = wait
        self.asked: list[list[str]] = []

    async def aevaluate(self, response: list[str]) -> GraderRank:
        self.asked.append(response)
        await asyncio.sleep(self.wait)
        if "nobody" in response:
            raise GradingFailure("unparsable", "cannot rank")
        ranks = mid_ranks([-len(one) for one in response])
        paid = Provenance(source="live", model="ranker", usage=Usage(cost_usd=0.3))
        return GraderRank(self.name, ranks, provenance=paid)


class Quality(FunctionGrader):
    """``value`` of the sample after ``wait`` seconds; a text is the kind of a failure."""

    def __init__(self) -> None:
        self.asked = 0
        super().__init__(self.judge, "quality", score_range=(0.0, 1.0))

    async def judge(self, value: Any, wait: float = 0.0) -> float:
        self.asked += 1
        await asyncio.sleep(wait)
        if isinstance(value, str):
            raise GradingFailure(value, f"recorded {value}")
        return float(value)


def function(
    *,
    listwise: bool = False,
    wait: float = 0.0,
    policy: Mapping[str, Any] | None = None,
    **reward: Any,
) -> SpecRewardFunction:
    graders: dict[str, Any] = {"quality": Quality()}
    if listwise:
        graders["longest"] = Longest(wait)
    return build(
        graders, reward=reward, missing={"patience_s": 0, "max_missing": 1.0, **(policy or {})}
    )


def settings(**given: Any) -> ServiceSettings:
    return ServiceSettings(**{"deadline_s": 60.0, "group_timeout_s": 300.0, **given})


def sample(
    name: str, value: Any = 0.5, *, size: int = 4, group: str = "g", **given: Any
) -> GroupRequest:
    fields = {"value": value, "wait": given.pop("wait", 0.0), **given.pop("metadata", {})}
    return GroupRequest(
        prompt="p",
        completion=given.pop("completion", name),
        request_id=name,
        metadata=fields,
        group_id=group,
        group_size=size,
        **given,
    )
