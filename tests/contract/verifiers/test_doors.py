"""The table of rollouts as traces of the real verifiers."""

import asyncio
from typing import Any

import pytest
from tests import doors
from tests.doors import Door, Rollout

vf: Any = pytest.importorskip(
    "verifiers.v1", reason="verifiers is not installed here; run `make test-verifiers`"
)

from pydantic import TypeAdapter  # noqa: E402

from adjudge.trainers.verifiers import make_reward  # noqa: E402
from adjudge.types import Sample  # noqa: E402


class Data(vf.TaskData):  # type: ignore[misc]  # verifiers is not installed where mypy runs
    answer: Any = None
    solution: Any = None
    ground_truth: Any = None


def to_message(turn: dict[str, Any]) -> Any:
    calls = [{"id": one["id"], **one["function"]} for one in turn.get("tool_calls", ())]
    given = {**turn, "tool_calls": calls} if calls else turn
    return TypeAdapter(vf.Message).validate_python(given)


def give(rollouts: list[Rollout]) -> list[Sample]:
    reward = make_reward(doors.SPEC)
    with doors.looking() as found:
        for one in rollouts:
            data = Data(prompt=one.prompt, **one.columns)
            trace = vf.Trace[Data, vf.State, vf.AgentConfig](
                task=vf.TraceTask[Data](type="Plain", data=data),
                agent=vf.AgentInfo[vf.AgentConfig](config=vf.AgentConfig()),
            )
            for place, turn in enumerate(one.talk):
                sampled = place >= len(one.before) and turn["role"] == "assistant"
                node = {"message": to_message(turn), "parent": place - 1 if place else None}
                trace.nodes.append(vf.MessageNode(**node, sampled=sampled))
            if one.finish == "length":
                trace.stop_condition = "max_output_tokens"
            asyncio.run(reward(data, trace))
    return found


DOORS = [Door("verifiers", give, "is_plain", finish=True)]


@pytest.mark.parametrize(("door", "stratum"), doors.list_cells(DOORS))
def test_a_sample_is_the_same_of_a_trace(door: Door, stratum: str) -> None:
    doors.check_cell(door, stratum)


def test_every_cell_is_tested_or_cannot_be() -> None:
    doors.check_cells(DOORS)
