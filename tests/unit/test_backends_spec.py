"""The spec backend: requests as samples, rewards as responses, failures with their kinds."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path
from typing import Any

import pytest
from tests.refusals import refuses
from tests.unit.helpers.asked_backends import answers

from adjudge.errors import ConfigError, ErrorKind
from adjudge.rewards.spec import RewardSpec
from adjudge.service.spec_backend import SpecBackend
from adjudge.service.user_backend import load_backend
from adjudge.wire import JudgeRequest, JudgeResponse

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"0" * 13).decode()
OWN = """
import json
from adjudge import BaseGrader, GradingFailure
from adjudge.errors import ConfigError, ErrorKind, JudgeAuthError
from adjudge.judges import Reply
from adjudge.types import Provenance, Usage

asked = []

def judge(messages):
    asked.append(messages)
    text = str(messages[-1]["content"])
    for kind in ErrorKind:
        if f"fail with {kind.value}." in text:
            raise GradingFailure(kind, f"scripted {kind.value}")
    if "mumble" in text:
        return "hm"
    usage = Usage(input_tokens=10, output_tokens=2, cost_usd=0.25)
    source = Provenance(source="live", model="judge-1", usage=usage)
    said = json.dumps({"reason": "it is fine", "score": 4})
    return Reply(text=said, finish_reason="stop", usage=usage, model="judge-1", provenance=source)

class Odd(BaseGrader):
    score_range = (0.0, 1.0)

    async def aevaluate(self, response, prompt=None, reference=None, tenant=None):
        if response == "explode":
            raise ValueError(f"cannot read {prompt}")
        if response == "refuse":
            raise ConfigError("setting x is wrong")
        if response == "shout":
            return 7.0
        return 0.25 if tenant is None else 0.75
"""
RULES = {"graders": [{"name": "answer", "type": "answer"}]}
JUDGED = {
    "graders": [
        {
            "name": "quality",
            "type": "llm",
            "template": "Rate {response} to {query}. {reply_form}",
            "score_range": [1, 5],
        },
        {"name": "length", "type": "length_penalty", "min_length": 0, "weight": 0.0},
    ],
    "judges": {"main": {"type": "scripted", "function": "own_service:judge"}},
}


@pytest.fixture
def beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A spec's folder with own graders in it."""
    import sys

    (tmp_path / "own_service.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "own_service", raising=False)
    return tmp_path


def backend(data: dict[str, Any], folder: Path | None = None) -> SpecBackend:
    return SpecBackend(RewardSpec.from_dict(data, where="spec.toml", folder=folder))


def scored(data: dict[str, Any], *requests: JudgeRequest, folder: Path) -> list[JudgeResponse]:
    return answers(backend(data, folder), *requests)


def ask(completion: str, **rest: Any) -> JudgeRequest:
    return JudgeRequest(prompt="What is 2+2?", completion=completion, **rest)


def error(response: JudgeResponse) -> tuple[ErrorKind, str]:
    assert response.score is None
    assert response.error is not None
    return response.error.kind, response.error.message


def test_the_score_is_the_reward_and_the_graders_are_told_apart(beside: Path) -> None:
    one, other = scored(
        RULES,
        ask("It is <answer>4</answer>", answer=4, answer_type="NUMBER", request_id="a"),
        ask("It is <answer>5</answer>", answer=4, answer_type="NUMBER"),
        folder=beside,
    )
    assert (one.score, one.request_id, one.error) == (1.0, "a", None)
    assert one.detailed_scores == {"answer": 1.0}
    assert one.explanation == "answer: equal_value"
    assert (other.score, other.request_id) == (0.0, None)


def test_what_several_graders_bring_to_a_score_is_named(beside: Path) -> None:
    """Normalised, not weighted, in the order of the spec; nothing where there is no score."""
    brief = {"name": "brief", "type": "length_penalty", "min_length": 0, "max_length": 2}
    graders = [{**brief, "penalty_rate": 0.5, "weight": 0.1}, *JUDGED["graders"]]
    asked = [ask("four"), ask("fail with timeout.")]
    found, failed = scored({**JUDGED, "graders": graders}, *asked, folder=beside)
    assert found.reward_components == {"brief": -1.0, "quality": 0.75}
    assert found.score == pytest.approx(0.75 - 0.1)
    assert (failed.score, failed.reward_components) == (None, None)
    [alone] = scored(JUDGED, ask("four"), folder=beside)
    assert alone.reward_components is None


SENT = [kind for kind in ErrorKind if kind is not ErrorKind.AUTH]


@pytest.mark.parametrize("kind", SENT)
def test_a_failed_judge_is_its_requests_error_and_nobody_elses(
    beside: Path, kind: ErrorKind
) -> None:
    failing, fine = scored(JUDGED, ask(f"fail with {kind}."), ask("four"), folder=beside)
    assert error(failing) == (kind, f"quality: scripted {kind}")
    assert failing.detailed_scores == {"quality": None, "length": 0.0}
    assert fine.score == 0.75


def test_a_refused_key_is_said(beside: Path) -> None:
    [response] = scored(JUDGED, ask("fail with auth."), folder=beside)
    assert error(response) == (ErrorKind.AUTH, "quality: scripted auth")


@pytest.mark.parametrize(("suspect", "score"), [("missing", None), ("min", 0.0)])
def test_what_the_answer_may_have_caused_counts_as_the_spec_says(
    beside: Path, suspect: str, score: float | None
) -> None:
    data = {**JUDGED, "missing": {"suspect": suspect}}
    [response] = scored(data, ask("fail with refused."), folder=beside)
    assert response.score == score
    seen = None if score is None else {"quality": ErrorKind.REFUSED}
    assert response.failures == seen, "a number does not hide what failed"


def test_own_graders_break_in_their_own_place(beside: Path) -> None:
    odd = {"graders": [{"name": "odd", "type": "own_service:Odd"}]}
    found = scored(odd, ask("explode"), ask("shout"), ask("fine"), folder=beside)
    kind, message = error(found[0])
    assert kind is ErrorKind.BUG
    assert message.startswith("odd: ValueError at own_service.py:")
    assert "2+2" not in message
    assert error(found[1])[0] is ErrorKind.OUT_OF_RANGE
    assert found[2].score == 0.25
    stopped = scored(odd, ask("refuse"), folder=beside)
    assert error(stopped[0]) == (ErrorKind.BUG, "setting x is wrong")


def test_images_reach_the_judge_as_data_uris(beside: Path) -> None:
    import own_service  # type: ignore[import-not-found]  # written by the fixture

    [shown] = scored(JUDGED, ask("four", images=[f"data:image/png;base64,{PNG}"]), folder=beside)
    assert shown.score == 0.75
    parts = own_service.asked[-1][-1]["content"]
    images = [part for part in parts if part["type"] == "image_url"]
    assert [part["image_url"]["url"] for part in images] == [f"data:image/png;base64,{PNG}"]
    assert any("What is 2+2?" in part.get("text", "") for part in parts)


def test_events_count_and_are_explained_by_number(beside: Path) -> None:
    data = {
        "graders": [{"name": "odd", "type": "own_service:Odd", "scope": "event"}],
        "reward": {"event_weight": 1.0, "outcome_weight": 0.0, "event_reduce": "mean"},
    }
    turns = [{"role": "user", "content": "go"}, {"role": "assistant", "content": "a"}]
    [response] = scored(data, ask("a", messages=turns), folder=beside)
    assert response.score == 0.25
    assert response.detailed_scores == {"odd": 0.25}


@pytest.mark.parametrize(
    ("data", "what"),
    [
        ({"reward": {"group": "z_score"}}, "reward.group = 'z_score'"),
        ({"missing": {"policy": "drop_group"}}, "missing.policy = 'drop_group'"),
        ({"missing": {"policy": "fallback", "fallback": "answer"}}, "'fallback'"),
    ],
)
def test_what_compares_groups_is_said(beside: Path, data: dict[str, Any], what: str) -> None:
    comparing = backend({**RULES, **data}, beside)
    assert comparing.compares_groups is not None
    assert what in comparing.compares_groups
    assert backend(RULES).compares_groups is None


def test_rules_take_batches_and_what_waits_goes_one_by_one(beside: Path) -> None:
    assert not backend(RULES).one_by_one
    assert backend(JUDGED, beside).one_by_one
    assert backend({**JUDGED, "max_concurrency": 2}, beside).max_concurrency == 2
    assert backend({"graders": [{"name": "odd", "type": "own_service:Odd"}]}, beside).one_by_one


def test_code_goes_one_by_one(sandboxed: None) -> None:
    assert backend({"graders": [{"name": "code", "type": "code_execution"}]}).one_by_one


def test_a_backend_is_loaded_from_a_spec_file(beside: Path) -> None:
    path = beside / "reward.toml"
    path.write_text('[[graders]]\nname = "answer"\ntype = "answer"\n')
    loaded = load_backend(str(path))

    async def used() -> list[JudgeResponse]:
        await loaded.start()
        try:
            return await loaded.score([ask("<answer>4</answer>", answer=["4", "5"])])
        finally:
            await loaded.aclose()

    assert asyncio.run(used())[0].score == 1.0
    with pytest.raises(ConfigError, match="takes no arguments"):
        load_backend(str(path), arguments={"a": "b"})
    with refuses("'reward'"):
        load_backend("reward")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_backend(str(beside / "none.toml"))


def test_a_local_judge_is_loaded_at_the_start(beside: Path) -> None:
    graders = [{"name": "rm", "type": "scalar", "activation": "sigmoid"}]
    judges = {"main": {"type": "local", "model": "no/such", "task": "score"}}
    with refuses("graders.rm"):
        asyncio.run(backend({"graders": graders, "judges": judges}, beside).start())


def test_explanations_are_bounded(beside: Path) -> None:
    (beside / "own_wordy.py").write_text(
        "from adjudge import BaseGrader, GraderScore\n"
        "class Wordy(BaseGrader):\n"
        "    score_range = (0.0, 1.0)\n"
        "    async def aevaluate(self, response):\n"
        "        return GraderScore(self.name, 1.0, 'w' * 100_000, {'confidence': 0.5})\n"
    )
    data = {"graders": [{"name": "wordy", "type": "own_wordy:Wordy"}]}
    [response] = scored(data, ask("x"), folder=beside)
    assert response.explanation is not None
    assert len(response.explanation) == 4_001
    assert response.explanation.endswith("w…")
    assert response.confidence == 0.5
