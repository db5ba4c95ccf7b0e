"""One spec in process and behind the wire: the same rewards, to the bit."""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.unit.helpers.asked_backends import answers

from adjudge import RewardSpec
from adjudge.client.exchange import encode_request
from adjudge.client.grader import fields_to_request
from adjudge.errors import GradingFailure
from adjudge.rewards import RewardSample
from adjudge.service.spec_backend import SpecBackend
from adjudge.trainers.scoring import Scorer
from adjudge.wire import JudgeRequest

OWN = """
import json

def seen(response, **fields):
    return len(json.dumps({**fields, "response": response}, sort_keys=True, default=str)) / 1e6

def kind(response, reference):
    return len(type(reference).__name__) / 100

def level(response, level):
    return 0.5 if level is None else level
"""
REFERENCES = [
    *(["Paris", "City of Paris"], ["Paris", 4], [], {"value": "Paris"}, {"a": [1, {"b": None}]}),
    *(4, 4.0, True, "Paris", "", None),
]
GRADERS: list[dict[str, Any]] = [
    {"type": "string_match"},
    {"type": "answer"},
    {"type": "similarity"},
    {"type": "json_match"},
    {"type": "string_match", "mapper": {"reference": "ground_truth"}},
    {"type": "own_served:kind", "score_range": [0, 1]},
    {"type": "own_served:seen", "score_range": [0, 1]},
]
Outcome = tuple[float | None, str | None]


@pytest.fixture(autouse=True)
def _beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    (tmp_path / "own_served.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "own_served", raising=False)


def make_spec(grader: dict[str, Any], **reward: Any) -> RewardSpec:
    return RewardSpec.from_dict({"graders": [{"name": "g", **grader}], "reward": reward})


def in_process(spec: RewardSpec, response: str, columns: dict[str, Any]) -> Outcome:
    [result] = Scorer(spec).score([RewardSample(0, 0, "p", response, None, columns)], ["p"]).results
    return result.score, None if result.missing is None else str(result.missing.kind)


def served(spec: RewardSpec, response: str, columns: dict[str, Any]) -> Outcome:
    sample = RewardSample(0, 0, "p", response, None, columns)
    sent, _ = encode_request(fields_to_request(sample.fields()))
    request = msgspec.json.decode(sent, type=JudgeRequest)
    [answer] = answers(SpecBackend(spec), request)
    return answer.score, None if answer.error is None else str(answer.error.kind)


@pytest.mark.parametrize("reference", REFERENCES, ids=repr)
@pytest.mark.parametrize("grader", GRADERS, ids=lambda one: one["type"])
def test_a_reference_is_the_same_value_on_both_ways(grader: dict[str, Any], reference: Any) -> None:
    columns = {"reference": reference, "ground_truth": reference, "level": 3, "env_reward": 0.5}
    for response in ("Paris", "4", "Paris, City of Paris", '{"value": "Paris"}'):
        found = in_process(make_spec(grader), response, columns)
        assert served(make_spec(grader), response, columns) == found


def test_a_list_is_never_joined() -> None:
    columns = {"reference": ["Paris", "City of Paris"]}
    assert served(make_spec(GRADERS[0]), "Paris", columns) == (1.0, None)
    assert served(make_spec(GRADERS[0]), "Paris, City of Paris", columns) == (0.0, None)
    as_tuples = {"reference": ("Paris", "City of Paris"), "pairs": [(1, 2)]}
    assert served(make_spec(GRADERS[0]), "Paris", as_tuples) == (1.0, None)
    refused = served(make_spec(GRADERS[0]), "Paris", {"reference": {"value": "Paris"}})
    assert refused == (None, "invalid_input")


class Number:
    """A number of some library."""

    def __float__(self) -> float:
        return 0.25

    def __repr__(self) -> str:
        return "Number()"


@pytest.mark.parametrize("env_reward", [0.25, 1, None, math.nan, "0.25", Number()], ids=repr)
@pytest.mark.parametrize("mode", ["replace", "weighted_sum", "multiply"])
def test_the_environments_reward_counts_on_both_ways(mode: str, env_reward: Any) -> None:
    spec = make_spec(GRADERS[0], combine_mode=mode)
    columns = {"reference": "Paris", "env_reward": env_reward}
    assert served(spec, "Paris", columns) == in_process(spec, "Paris", columns)


@pytest.mark.parametrize(
    "columns",
    [
        {"level": None},
        {"level": 0.25},
        {},
        {"level": 0.25, "metadata": {"level": 0.75}, "group": "a", "index": 3},
    ],
)
def test_columns_are_the_same_with_none_in_them(columns: dict[str, Any]) -> None:
    for grader in ("own_served:level", "own_served:seen"):
        spec = make_spec({"type": grader, "score_range": [0, 1]})
        assert served(spec, "r", columns) == in_process(spec, "r", columns)


def test_a_column_that_cannot_be_sent_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    columns = {"picture": object(), "raw": b"x", "keys": {1: 2}, "level": 0.25, "nan": math.nan}
    with caplog.at_level(logging.WARNING, "adjudge"):
        for _ in range(2):
            request = fields_to_request({"prompt": "p", "response": "r", **columns})
    assert request.metadata is not None
    assert set(request.metadata) == {"level", "nan"}
    sent = msgspec.json.decode(encode_request(request)[0])
    assert sent["metadata"] == {"level": 0.25, "nan": None}
    said = [record.getMessage() for record in caplog.records]
    for name, kind in (("picture", "object"), ("raw", "bytes"), ("keys", "dict")):
        assert len([line for line in said if f"'{name}'" in line and kind in line]) == 1


@pytest.mark.parametrize("name", ["reference", "messages"])
def test_a_sample_is_refused_by_the_name_of_what_cannot_be_sent(name: str) -> None:
    with pytest.raises(GradingFailure) as refused:
        fields_to_request({"prompt": "p", "response": "r", name: [{"image": object()}]})
    assert refused.value.kind == "invalid_input"
    assert str(refused.value).startswith(f"{name}: ")
