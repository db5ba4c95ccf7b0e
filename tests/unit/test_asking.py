"""How judges are asked: independent draws, and again where a reply could not be read."""

import asyncio
import json
import random
import re
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from tests.unit.helpers.reward_functions import build

import adjudge
from adjudge import (
    ErrorKind,
    GradingFailure,
    RewardSample,
    SpecRewardFunction,
)
from adjudge.graders.registry import SHIPPED, load_grader_class
from adjudge.judges import Reply, ScriptedModel
from adjudge.judges.base import ChatCall, ChatModel, TokenLogprobs
from adjudge.mock.forms import make_instance, read_schema
from adjudge.runner.progress import Tally
from adjudge.types import GraderMode

JUDGED = sorted(name for name, where in SHIPPED.items() if ".llm." in where and name != "scalar")
PARAMETERS: dict[str, dict[str, Any]] = {
    "llm": {"template": "Rate {response}. {reply_form}", "score_range": (0, 9)},
    "rubric": {"criteria": ["is brief", "is kind", "is right", "is new"], "ask": "each"},
    "pairwise": {"orders": "one"},
    "tournament": {"orders": "one"},
}  # fmt: skip
CALL = {"id": "1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
FIELDS = {
    "messages": [
        {"role": "user", "content": "Where is it?"},
        {"role": "assistant", "content": "I look.", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "1", "content": "a shelf"},
    ],
    "reference": "On a shelf.", "context": "A shelf.", "tool_definitions": [{"name": "look"}],
    "plan": "Look.", "reflection": "I looked.", "observation": "a shelf", "memory": "a shelf",
}  # fmt: skip


class Chance(ChatModel):
    """Fills any form by chance, which the question, its draw and the attempt decide."""

    model = "chance"
    features = frozenset({"schema", "choices", "logprobs"})

    async def answer(self, call: ChatCall) -> Reply | str:
        shelves = re.findall(r"shelf (\d)", str(call.messages))  # fences differ by process
        chance = random.Random(repr((shelves, call.draw, call.attempt)))
        if call.choices is None:
            found = make_instance(read_schema(call.schema or {"type": "object"}), chance.random())
            if "places" in found:
                found["places"] = dict(
                    zip(found["places"], chance.sample(range(1, 5), 4), strict=True)
                )
            if "better" in found:
                found["better"] = chance.choice("AB")
            return json.dumps(found)
        said = chance.choice(call.choices)
        return Reply(text=said, logprobs=[TokenLogprobs(said, -0.01, {said: -0.01})])


@pytest.mark.parametrize("name", JUDGED)
def test_draws_are_as_many_independent_asks(name: str) -> None:
    grader = load_grader_class(name)(Chance(), **PARAMETERS.get(name, {}))
    listwise = grader.mode is GraderMode.LISTWISE
    texts = [f"On shelf {number}." for number in range(4)]
    samples = [RewardSample(at, at, "Where?", text, None, FIELDS) for at, text in enumerate(texts)]
    function = build({"judge": grader}, reward={"normalise": False})
    made = SpecRewardFunction(function.spec, graders={"judge": grader}, draws=8)
    rewards = made.compute({"g": samples})
    drawn = [(one.details or {})["judge"]["draws"] for one in rewards]

    async def ask(fields: Mapping[str, Any]) -> list[Any]:
        return [await grader.aevaluate(**fields, draw=draw) for draw in range(8)]

    if listwise:
        group = {key: [one.fields()[key] for one in samples] for key in samples[0].fields()}
        ranks = asyncio.run(ask(group))
        wanted = [list(one) for one in zip(*(rank.as_scores() for rank in ranks), strict=True)]
    else:
        wanted = [[s.score for s in asyncio.run(ask(one.fields()))] for one in samples]
    assert drawn == wanted
    assert any(len(set(one)) > 1 for one in drawn)


@pytest.mark.parametrize("name", [name for name in JUDGED if name != "expected_score"])
@pytest.mark.parametrize("said", [ErrorKind.TIMEOUT, ErrorKind.REFUSED, "I would rather not."])
def test_without_a_verdict_there_is_no_score(name: str, said: Any) -> None:
    grader = load_grader_class(name)(ScriptedModel(said), **PARAMETERS.get(name, {}))
    fields: dict[str, Any] = {"prompt": "Where?", "response": "Here.", **FIELDS}
    if grader.mode is GraderMode.LISTWISE:
        fields = {key: [value] * 2 for key, value in fields.items()} | {"response": ["a", "b"]}
    with pytest.raises(GradingFailure) as failed:
        asyncio.run(grader.aevaluate(**fields))
    assert failed.value.kind is (said if isinstance(said, ErrorKind) else ErrorKind.UNPARSABLE)


def pairs(judge: Any, draws: int = 1, **settings: Any) -> Any:
    """A run of a comparison in one order, of responses that a reference is compared with."""
    spec = {"graders": [{"name": "pair", "type": "pairwise", "orders": "one", **settings}],
            "judges": {"main": judge}}  # fmt: skip
    rows = [
        {"prompt": "2 + 2?", "response": f"four {i}", "reference": "It is 4."} for i in range(4)
    ]
    return adjudge.grade(rows, spec, draws=draws, progress=False)


def test_a_judge_that_follows_position_alone_is_all_noise() -> None:
    run = pairs({"type": "scripted", "script": '{"reason": "first", "better": "A"}'}, draws=4)
    for row in run.rows:
        first = row.scores["pair"]
        assert row.result.details["pair"]["draws"] == [first, 1 - first, first, 1 - first]
    noise = run.summary["noise"]["graders"]["pair"]
    assert (noise["value"], noise["pairs_right"]) == (1.0, 0.5)
    assert run.summary["asks"] == {"draw": 12, "first": 4}


def test_a_panel_asks_no_more_often_than_its_members() -> None:
    run = pairs({"type": "scripted", "script": "hm"}, panel={"votes": 2})
    assert run.summary["asks"] == {"first": 4, "draw": 4, "repair": 8, "redraw": 8}


BAD, GOOD, LEAKED = (
    "hm",
    '{"reason": "", "better": "A"}',
    '{"reason": "", "better": "A"}<|im_end|>\n',
)


@pytest.mark.parametrize(
    ("replies", "asks"),
    [
        ([GOOD], {"first": 1}),
        ([LEAKED], {"first": 1}),
        ([BAD, GOOD], {"first": 1, "repair": 1}),
        ([BAD, BAD, GOOD], {"first": 1, "repair": 1, "redraw": 1}),
        ([BAD], {"first": 1, "repair": 1, "redraw": 1}),
        ([ErrorKind.REFUSED, GOOD], {"first": 1, "redraw": 1}),
        ([ErrorKind.REFUSED, BAD, GOOD], {"first": 1, "redraw": 1, "repair": 1}),
        ([ErrorKind.TIMEOUT], {"first": 1, "again": 1}),
        ([ErrorKind.BUDGET], {"first": 1}),
    ],
)
@pytest.mark.parametrize("draw", [0, 1])
def test_an_unreadable_reply_costs_two_further_calls_at_most(
    replies: Sequence[Any], asks: Mapping[str, int], draw: int
) -> None:
    asked: list[Any] = []

    class Judge(ScriptedModel):
        async def answer(self, call: ChatCall) -> Reply:
            asked.append(call.messages)
            assert call.draw == draw
            return await ScriptedModel(replies).answer(
                ChatCall(model="", messages=call.messages, attempt=call.attempt)
            )

    class Second(load_grader_class("pairwise")):  # type: ignore[misc]
        async def aevaluate(self, **fields: Any) -> Any:
            return await super().aevaluate(**fields, draw=draw)

    made = build({"pair": Second(Judge("-"), orders="one")}, missing={"patience_s": 0.0})
    tally = Tally(1)
    made = SpecRewardFunction(made.spec, graders=made.graders, tally=tally)
    [result] = made.compute({"g": [RewardSample(0, 0, "2 + 2?", "4", None, {"reference": "5"})]})
    first = {"draw": asks["first"]} if draw else {"first": asks["first"]}
    assert tally.asks == {**{why: n for why, n in asks.items() if why != "first"}, **first}
    assert (result.score is None) == (replies[-1] not in (GOOD, LEAKED))
    redrawn = [messages for messages in asked if "could not be used" not in str(messages)]
    assert all(messages == asked[0] for messages in redrawn)  # the same question, the same order
