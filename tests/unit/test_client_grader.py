"""A judge service as a grader and as a spec: what is sent, and what becomes of failures."""

from __future__ import annotations

import asyncio
import pickle
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.helpers.command import invoke
from tests.refusals import refuses
from tests.unit.helpers.stand_in_service import (
    StandIn,
    score_of,
)

from adjudge import GraderError, GraderScore, GradingRunner, RewardSpec, SpecRewardFunction
from adjudge.client import ServedGrader
from adjudge.errors import ConfigError
from adjudge.rewards import RewardSample
from adjudge.trainers.scoring import SPEC_VARIABLE, Scorer, load_spec
from adjudge.trainers.trl import make_reward
from adjudge.types import Sample


def graded(url: str, *items: Any, **parameters: Any) -> list[Any]:
    runner = GradingRunner({"served": ServedGrader(url, **parameters)}, show_progress=False)
    return runner.run(list(items))["served"]


def test_a_sample_as_a_request(service: StandIn) -> None:
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    (found,) = graded(
        service.url,
        {
            "prompt": "q",
            "response": "aaa",
            "reference": ["x", "y"],
            "answer_type": "ANY",
            "messages": messages,
            "images": ["aGk="],
            "index": 3,
            "group": "g",
            "env_reward": 1.0,
            "level": 5,
            "callback": print,
            "answer": None,
        },
    )
    assert found.score == 0.03
    assert found.reason == "3 characters"
    assert found.metadata == {"model_version": "v1"}
    assert found.provenance.model == "v1"
    assert found.provenance.latency_s > 0
    assert service.requests == [
        {
            "request_id": "r1",
            "prompt": "q",
            "completion": "aaa",
            "answer": ["x", "y"],
            "answer_type": "ANY",
            "metadata": {"index": 3, "group": "g", "env_reward": 1.0, "level": 5, "answer": None},
            "messages": messages,
            "images": ["aGk="],
        }
    ]


def test_other_shapes_of_samples(service: StandIn) -> None:
    messages = [{"role": "user", "content": "q"}]
    gold = {"b": [1]}
    graded(
        service.url,
        {"messages": messages},
        {"prompt": "q", "response": "a", "reference": gold, "answer": gold},
        Sample(prompt="q", response="a", extra={"reference": 4}).fields(),
    )
    # Samples may be sent in any order.
    sent = [(one["prompt"], one["completion"], one.get("answer")) for one in service.requests]
    assert sorted(sent, key=str) == [("q", "a", 4), ("q", "a", gold), (None, "", None)]
    [row] = [one for one in service.requests if one.get("answer") == gold]
    assert row["metadata"] == {"answer": gold}
    (found,) = graded(service.url, {"prompt": "q"})
    assert isinstance(found, GraderError)
    assert (found.kind, "response" in found.error) == ("invalid_input", True)


def test_kinds_are_the_services_own_and_scores_may_be_of_any_scale(service: StandIn) -> None:
    def each(request: dict[str, Any]) -> dict[str, Any]:
        if request["completion"] == "b":
            error = {"kind": "unparsable", "message": "no verdict"}
            return {"request_id": request["request_id"], "error": error}
        details = {"score": -7.5, "detailed_scores": {"depth": 1}, "confidence": 0.25}
        return {**score_of(request), **details}

    service.each = each
    ok, failed = graded(
        service.url, {"prompt": "p", "response": "a"}, {"prompt": "p", "response": "b"}
    )
    assert isinstance(ok, GraderScore)
    assert ok.score == -7.5
    assert graded(service.url, {"prompt": "p", "response": "a"})[0].score == -7.5
    assert len(service.requests) == 3  # nothing is cached
    assert ok.metadata["detailed_scores"] == {"depth": 1.0}
    assert ok.metadata["confidence"] == 0.25
    assert isinstance(failed, GraderError)
    assert (failed.kind, failed.error) == ("unparsable", "no verdict")
    samples = [RewardSample(0, 0, "p", "aaa"), RewardSample(1, 1, "p", "b")]
    scored = Scorer(service.url).score(samples, ["g"] * 2)
    assert scored.rewards == [-7.5, None]
    assert scored.metrics["judge/missing_frac/unparsable"] == 0.5


def test_an_address_is_a_spec(service: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = load_spec(service.url + "/")
    assert isinstance(spec, RewardSpec)
    assert spec.where == service.url
    monkeypatch.setenv(SPEC_VARIABLE, service.url)
    scored = Scorer().score(
        [RewardSample(0, 0, "p", "aaa"), RewardSample(1, 1, "p", "b")], ["g"] * 2
    )
    assert scored.rewards == [0.03, 0.01]
    again = pickle.loads(pickle.dumps(Scorer()))
    assert again.score([RewardSample(0, 0, "p", "aaa")], ["g"]).rewards == [0.03]
    reward = make_reward(service.url)
    assert asyncio.run(reward(["p", "p"], ["aa", "a"])) == [0.02, 0.01]


def test_an_address_in_a_spec_of_ones_own(service: StandIn) -> None:
    kind = {"name": "s", "type": "adjudge.client.grader:ServedGrader", "url": service.url}
    samples = [RewardSample(i, i, "p", "x" * n) for i, n in enumerate((10, 30))]
    for scale, rewards in (({}, [-0.1, 0.1]), ({"score_range": [0, 0.5]}, [-0.2, 0.2])):
        table: dict[str, Any] = {**kind, **scale}
        spec = RewardSpec.from_dict({"graders": [table], "reward": {"group": "centre"}})
        results = SpecRewardFunction(spec).compute({"g": samples})
        assert [result.score for result in results] == pytest.approx(rewards)


def test_an_address_on_the_command_line(service: StandIn, tmp_path: Path) -> None:
    rollouts = tmp_path / "rollouts.jsonl"
    rollouts.write_text('{"prompt": "p", "response": "aaa"}\n')
    words = ["grade", rollouts, "--spec", service.url, "-o"]
    done = invoke(*words, tmp_path / "run")
    assert done.exit_code == 0, done.output
    assert '"reward":0.03' in (tmp_path / "run" / "rewards.jsonl").read_text()
    service.version = "v2"  # a restart with another judge, whose scores are on another ruler
    assert invoke(*words, tmp_path / "run").exit_code == 2
    assert invoke(*words, tmp_path / "other").exit_code != 0
    assert '"kind":"unsupported"' in (tmp_path / "other" / "rewards.jsonl").read_text()
    assert invoke("grade", rollouts, "--spec", "http://127.0.0.1:9").exit_code == 2


def test_an_address_that_cannot_be_used_is_named() -> None:
    for address in ("http://", "https://user:word@host", "http://169.254.169.254/x"):
        with pytest.raises(ConfigError, match="judge_url"):
            load_spec(address)


def test_a_named_key_that_is_missing_is_said_before_anything_is_sent(service: StandIn) -> None:
    with refuses("graders.served"):
        graded(service.url, {"prompt": "p", "response": "r"}, api_key_env="NO_SUCH_KEY")
    assert not service.posts
