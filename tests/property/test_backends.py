"""The mapping between the wire and samples, whatever a request holds."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import msgspec
from hypothesis import example, given, settings, strategies as st

from adjudge.errors import ErrorKind
from adjudge.rewards.spec import RewardSpec
from adjudge.service.spec_backend import SpecBackend, request_to_sample
from adjudge.service.user_backend import read_answer
from adjudge.wire import JudgeRequest

_text = st.text(max_size=20) | st.just("\ud800")
_scalars = st.none() | st.booleans() | st.integers() | st.floats() | _text
_json: st.SearchStrategy[Any] = st.recursive(
    _scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_text, inner, max_size=3),
    max_leaves=6,
)
_NAMES = ("prompt", "response", "messages", "reference", "answer_type", "images", "query", "group")
_requests = st.builds(
    JudgeRequest,
    prompt=_text,
    completion=_text,
    answer=_json,
    answer_type=st.none() | st.sampled_from(["NUMBER", "ANY", "ODD"]),
    request_id=st.none() | _text,
    metadata=st.none() | st.dictionaries(st.sampled_from(_NAMES) | _text, _json, max_size=4),
    messages=st.none() | st.lists(st.dictionaries(_text, _json, max_size=2), max_size=2),
)
_SPEC = RewardSpec.from_dict(
    {
        "graders": [
            {"name": "answer", "type": "answer"},
            {"name": "length", "type": "length_penalty"},
            {"name": "format", "type": "reasoning_format"},
        ]
    }
)
_backend = SpecBackend(_SPEC)


@given(_requests, st.integers(0, 99))
@example(JudgeRequest(prompt="q", completion="", messages=[]), 0)
def test_a_request_says_what_its_sample_is_and_metadata_fills_in(
    request: JudgeRequest, place: int
) -> None:
    sample = request_to_sample(request, place)
    fields = sample.fields()
    own = {
        "prompt": request.prompt,
        "response": request.completion,
        "messages": request.messages,
        "reference": request.answer,
        "answer_type": request.answer_type,
    }
    given_ = request.metadata or {}
    for name, value in own.items():
        assert fields.get(name) == (value if value is not None else given_.get(name)) or (
            fields.get(name) != fields.get(name)  # NaN
        )
    rest = {name: value for name, value in given_.items() if name not in own}
    marks = {"ending"} if fields.get("messages") is not None and not request.completion else set()
    assert fields.keys() - own.keys() == rest.keys() | marks
    assert all(fields[name] is value for name, value in rest.items() if name not in marks)
    assert (sample.original_index, sample.group_index) == (place, place)


@settings(max_examples=40)
@given(st.lists(_requests, max_size=3))
def test_every_request_gets_one_answer_a_score_or_an_error(requests: list[JudgeRequest]) -> None:
    responses = asyncio.run(_backend.score(requests))
    assert [one.request_id for one in responses] == [one.request_id for one in requests]
    for response in responses:
        assert (response.score is None) != (response.error is None)
        assert response.score is None or math.isfinite(response.score)
        # What came in as JSON, as an id does, goes out as JSON.
        assert msgspec.json.encode(msgspec.structs.replace(response, request_id=None))
        assert response.detailed_scores is not None
        assert list(response.detailed_scores) == ["answer", "length", "format"]


@given(_json | st.dictionaries(st.sampled_from(["score", "confidence", "metadata"]), _json))
def test_whatever_a_judge_returns_is_a_finite_score_or_an_error(said: Any) -> None:
    response = read_answer(JudgeRequest("p", "c", request_id="r"), said)
    assert response.request_id == "r"
    assert (response.score is None) != (response.error is None)
    assert response.score is None or math.isfinite(response.score)
    if response.error is not None:
        assert response.error.kind in (ErrorKind.BUG, ErrorKind.OUT_OF_RANGE)
