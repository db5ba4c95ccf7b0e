"""Equal requests: who shares a score, for how long, and which requests are equal."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.helpers.stand_in_service import score_of
from tests.unit.helpers.virtual_service import (
    Service,
    answers,
    in_virtual_time,
    kind,
    line_to,
    scores,
)

from adjudge.client.exchange import prepare_request
from adjudge.errors import ErrorKind, GradingFailure
from adjudge.wire import JudgeRequest


@in_virtual_time
async def test_equal_requests_share_one_and_later_ones_come_from_the_cache() -> None:
    service = Service()
    line = line_to(service)
    found = await answers(line, "a", "a", "a", "bb")
    assert scores(found) == [0.01, 0.01, 0.01, 0.02]
    again = await answers(line, "a", "bb")
    assert [one.cached for one in again] == [True, True]
    counted = line.metrics()
    assert (counted["cache_hits"], counted["shared_in_flight"]) == (2, 2)
    assert counted["cache_hit_rate"] == pytest.approx(2 / 6)
    assert sum(len(items) for _, _, items in service.posts) == 2


@in_virtual_time
async def test_the_oldest_are_forgotten_first() -> None:
    service = Service()
    line = line_to(service, cache_size=2)
    await answers(line, "a", "bb")
    await answers(line, "a")  # used last
    await answers(line, "ccc")
    assert [one.cached for one in await answers(line, "a", "bb")] == [True, False]


@in_virtual_time
async def test_another_version_of_the_judge_clears_the_cache() -> None:
    service = Service()
    line = line_to(service)
    await answers(line, "a", "bb")
    service.each = lambda request: {**score_of(request), "metadata": {"model_version": "v2"}}
    await answers(line, "ccc")
    assert line.metrics()["model_version"] == "v2"
    assert [one.cached for one in await answers(line, "a", "ccc")] == [False, True]


@in_virtual_time
async def test_failures_are_never_kept() -> None:
    service = Service()
    service.plan = lambda n: 400 if n == 0 else 0.1
    line = line_to(service)
    assert kind((await answers(line, "a"))[0]) == "invalid_input"
    assert scores(await answers(line, "a")) == [0.01]


TEXTS = st.sampled_from(["a||b", "c", "a", "b||c", "", "None", "null", '"'])
REQUESTS = st.fixed_dictionaries(
    {"completion": TEXTS},
    optional={
        "answer": TEXTS | st.none() | st.sampled_from([1, 1.0, True, ["a"], ["a", "b"]]),
        "answer_type": TEXTS | st.none(),
        "metadata": st.none() | st.dictionaries(st.sampled_from("xy"), TEXTS | st.booleans()),
        "images": st.none() | st.lists(TEXTS, max_size=2),
    },
)


def told(request: JudgeRequest) -> str:
    """What it says, as text: 1, 1.0 and True are equal, and three answers."""
    metadata = request.metadata and sorted(request.metadata.items())
    parts = request.prompt, request.completion, request.answer, request.answer_type, request.images
    return repr((*parts, metadata))


@given(REQUESTS, REQUESTS)
def test_only_equal_requests_have_equal_keys(a: dict[str, Any], b: dict[str, Any]) -> None:
    one = JudgeRequest(prompt="p", **a)
    other = JudgeRequest(prompt="p", **b)
    same = told(one) == told(other)
    assert (prepare_request(one).key == prepare_request(other).key) is same


@pytest.mark.parametrize(
    "problem",
    [
        {"completion": 3},
        {"prompt": "half \ud800"},
        {"prompt": b"x"},
        *[{"answer": one} for one in (math.inf, object(), b"4", Decimal(4), [b"4"])],
        {"metadata": {"x": object()}},
        {"messages": "text"},
        {"images": "one"},
    ],
    ids=lambda problem: next(iter(problem)),
)
def test_what_is_no_request_is_refused_before_it_is_sent(problem: dict[str, Any]) -> None:
    with pytest.raises(GradingFailure) as caught:
        prepare_request(JudgeRequest(**{"prompt": "p", "completion": "c", **problem}))
    assert caught.value.kind is ErrorKind.INVALID_INPUT


def test_the_order_of_metadata_and_the_request_id_do_not_count() -> None:
    one = JudgeRequest(prompt="p", completion="c", metadata={"a": 1, "b": 2}, request_id="1")
    other = JudgeRequest(prompt="p", completion="c", metadata={"b": 2, "a": 1}, request_id="2")
    assert prepare_request(one).key == prepare_request(other).key


def test_half_surrogate_pairs_of_the_policy_are_question_marks() -> None:
    prepared = prepare_request(JudgeRequest("p", "half \ud800 é"))
    assert prepared.request.completion == "half ? é"
    assert prepared.key == prepare_request(JudgeRequest("p", "half ? é")).key
    call = {"name": "f\ud800", "arguments": {"a\udfff": ["b\ud800", 3, None]}}
    messages = [{"role": "assistant", "content": "half \ud800", "tool_calls": [call]}]
    metadata = {"events": ({"text": "\udc80"},), "n": 1}
    prepared = prepare_request(JudgeRequest("p", "c", messages=messages, metadata=metadata))
    assert prepared.request.messages == [
        {
            "role": "assistant",
            "content": "half ?",
            "tool_calls": [{"name": "f?", "arguments": {"a?": ["b?", 3, None]}}],
        }
    ]
    assert prepared.request.metadata == {"events": [{"text": "?"}], "n": 1}
    assert messages[0]["content"] == "half \ud800"  # the caller's own stay as they are


def test_what_is_no_request_stays_so_beside_half_a_surrogate_pair() -> None:
    endless: dict[str, Any] = {"text": "\ud800"}
    endless["again"] = endless
    for metadata in (endless, {"text": "\ud800", "thing": object()}):
        with pytest.raises(GradingFailure, match="cannot be sent"):
            prepare_request(JudgeRequest("p", "c", metadata=metadata))
