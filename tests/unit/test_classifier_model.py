"""Scalar judges behind servers: which route is found, what is refused, what is kept.

Servers here speak the formats of real ones (see ``test_wire_classifier.py``) over real HTTP, and
score a conversation by the length of its response.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
from tests.refusals import refuses
from tests.unit.helpers.json_server import Answer, JsonServer, serving

from adjudge import GradingRunner
from adjudge.engine.loop import run_blocking
from adjudge.errors import ErrorKind, GradingFailure
from adjudge.graders import ScalarGrader
from adjudge.judges import ClassifierModel, EndpointSettings, ReplyCache
from adjudge.judges.cassette import CacheMode
from adjudge.judges.discovery import check_judge_features
from adjudge.judges.endpoint.connections import aclose_all
from adjudge.rewards.spec import RewardSpec
from adjudge.types import GraderError, GraderScore

QUICK = EndpointSettings(max_attempts=1, deadline_s=5.0)
NOT_FOUND = (404, {"error": {"message": "Not Found", "code": 404}})
TOKEN_IDS_WANTED = (400, {"error": {"message": "Either text or input_ids should be provided."}})


def logit(text: str) -> float:
    return len(text) / 10 - 2.5


def sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-value))


def score_pair(body: dict[str, Any]) -> Any:
    return {"data": [{"score": logit(body["text_2"])}]}


def vllm(
    *, field: str = "use_activation", act: Callable[[float], float] = sigmoid, outputs: int = 1
) -> Answer:
    """``/classify`` of vLLM; ``act`` unless ``field`` is false."""

    def answer(path: str, body: dict[str, Any]) -> tuple[int, Any]:
        if path != "/classify":
            return NOT_FOUND
        if body["model"] != "rm":
            return 404, {"error": {"message": "The model does not exist."}}
        value = logit(body["messages"][-1]["content"])
        value = value if body.get(field) is False else act(value)
        return 200, {"model": "rm", "data": [{"index": 0, "probs": [value] * outputs}],
                     "usage": {"prompt_tokens": 7}}  # fmt: skip

    return answer


def only(path: str, reply: Callable[[dict[str, Any]], Any]) -> Answer:
    return lambda asked, body: (200, reply(body)) if asked == path else NOT_FOUND


@pytest.fixture
def server() -> Iterator[JsonServer]:
    with serving(vllm()) as found:
        yield found


def conversation(response: str, prompt: str = "q") -> list[dict[str, str]]:
    return [{"role": "user", "content": prompt}, {"role": "assistant", "content": response}]


def score(model: ClassifierModel, response: str = "x" * 5) -> float:
    return float(json.loads(model.chat(conversation(response)).text)["score"])


def judge(server: JsonServer, **options: Any) -> ClassifierModel:
    return ClassifierModel("rm", **{"base_url": server.url, "settings": QUICK, **options})


# -- routes --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "reply"),
    [
        ("/pooling", lambda body: {"data": [{"data": [logit(body["messages"][-1]["content"])]}]}),
        ("/score", score_pair),
        ("/judge", lambda body: {"score": logit(body["completion"])}),
    ],
)
def test_the_route_that_is_there_is_found(server: JsonServer, path: str, reply: Any) -> None:
    server.behaviour = only(path, reply)
    model = judge(server)
    assert score(model) == -2.0
    assert score(model, "y" * 95) == 7.0
    assert server.asked[-1][0] == path


def test_sglang_takes_token_ids(server: JsonServer, monkeypatch: pytest.MonkeyPatch) -> None:
    def sglang(path: str, body: dict[str, Any]) -> tuple[int, Any]:
        if path != "/classify":
            return NOT_FOUND
        if "input_ids" not in body:
            return TOKEN_IDS_WANTED
        ids = body["input_ids"]
        return 200, {"embedding": [len(ids) / 10 - 2.5], "meta_info": {"prompt_tokens": len(ids)}}

    server.behaviour = sglang
    with refuses("base_url"):
        score(judge(server))
    model = judge(server, tokenizer="some/name")
    template(model, monkeypatch)
    assert score(model) == pytest.approx((len("user:q;assistant:xxxxx;") / 10) - 2.5)


def template(model: ClassifierModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tokenizer whose ids are the characters of ``role:content;``."""

    class Tokenizer:
        chat_template = "x"
        added_tokens_decoder: ClassVar[dict[int, Any]] = {}
        all_special_tokens: Sequence[str] = ()

        def apply_chat_template(self, turns: Any, **_: Any) -> str:
            return "".join(f"{turn['role']}:{turn['content']};" for turn in turns)

        def __call__(self, text: str, **_: Any) -> Any:
            return type("Encoded", (), {"input_ids": [ord(sign) for sign in text]})()

    assert model.encoder is not None
    name = "adjudge.judges.models.classifier.read_tokenizer"
    monkeypatch.setattr(name, lambda place: Tokenizer())


# -- what is no raw output -----------------------------------------------------------------------


def test_a_softmax_over_one_output_is_refused(server: JsonServer) -> None:
    server.behaviour = vllm(field="none", act=lambda _: 1.0)
    with refuses("base_url"):
        score(judge(server))


def test_a_question_is_refused(server: JsonServer) -> None:
    with refuses("model"):
        judge(server).chat([{"role": "user", "content": "q"}])
    assert not server.asked


# -- calls ---------------------------------------------------------------------------------------


def test_a_server_that_is_down_is_searched_again(server: JsonServer) -> None:
    works, server.behaviour = server.behaviour, lambda *_: (500, {"error": {"message": "down"}})
    model = judge(server)
    for _ in range(2):
        with pytest.raises(GradingFailure) as caught:
            score(model)
        assert caught.value.kind is ErrorKind.SERVER_ERROR
    server.behaviour = works
    assert score(model) == -2.0


def test_one_bad_answer_is_missing_and_the_others_have_scores(server: JsonServer) -> None:
    def answer(path: str, body: dict[str, Any]) -> tuple[int, Any]:
        status, reply = vllm()(path, body)
        if status == 200 and body["messages"][-1]["content"] == "null":
            reply["data"][0]["probs"] = [None]
        return status, reply

    server.behaviour = answer
    grader = ScalarGrader(judge(server))
    rows = [{"prompt": "q", "response": text} for text in ("good", "null", "better")]
    found: list[Any] = GradingRunner({"rm": grader}, show_progress=False).run(rows)["rm"]
    assert [type(one) for one in found] == [GraderScore, GraderError, GraderScore]
    assert found[1].kind is ErrorKind.OUT_OF_RANGE
    assert found[0].score == logit("good")


def test_each_conversation_is_kept_and_a_replay_asks_nothing(
    server: JsonServer, tmp_path: Path
) -> None:
    path = tmp_path / "tape.sqlite"
    with_cache = judge(server, cache=ReplyCache(path))
    wanted = [score(with_cache, "x" * n) for n in (3, 4, 5)]
    assert with_cache._endpoint_key.cache.close().stored == 3  # type: ignore[union-attr]
    count = len(server.asked)
    modes: tuple[CacheMode, ...] = ("replay", "record")
    for mode in modes:
        cache = ReplyCache(path, mode)
        again = judge(server, cache=cache)
        assert [score(again, "x" * n) for n in (3, 4, 5)] == wanted
        cache.close()
    assert len(server.asked) == count


def test_another_route_is_another_call(server: JsonServer, tmp_path: Path) -> None:
    """The same server may give a probability by one route and a raw output by another."""

    def both(path: str, body: dict[str, Any]) -> tuple[int, Any]:
        if path != "/score":
            return vllm()(path, body)
        return 200, {"data": [{"score": sigmoid(logit(body["text_2"]))}]}

    server.behaviour = both
    cache = ReplyCache(tmp_path / "tape.sqlite")
    by_score = judge(server, route="score", cache=cache)
    assert score(by_score) == pytest.approx(sigmoid(-2.0))
    assert score(judge(server, route="classify", cache=cache)) == -2.0
    assert score(judge(server, cache=cache)) == -2.0
    assert all("route" not in body for _, body in server.asked)
    cache.close()


# -- tables and doctor ---------------------------------------------------------------------------


def spec(table: dict[str, Any]) -> RewardSpec:
    data = {
        "graders": [{"name": "rm", "type": "scalar"}],
        "reward": {"normalise": False},
        "judges": {"main": {"type": "classifier", "model": "rm", **table}},
    }
    return RewardSpec.from_dict(data, where="spec.toml")


def check(server: JsonServer) -> dict[str, tuple[str, str]]:
    model = spec({"base_url": server.url}).build_judges()["main"]
    assert isinstance(model, ClassifierModel)
    found = run_blocking(check_judge_features(model))
    return {finding.feature: (finding.honoured, finding.note) for finding in found}


def test_doctor_on_probabilities_and_on_other_servers(server: JsonServer) -> None:
    server.behaviour = vllm(field="none")
    assert check(server)["raw output"][0] == "unclear"
    run_blocking(aclose_all())
    server.behaviour = lambda *_: NOT_FOUND
    assert check(server)["reply"][0] == "failed"
