"""Judges and wire formats of the user's own: what a spec says of them, and how they fail."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from adjudge import GraderError, GraderScore, GradingRunner
from adjudge.errors import ConfigError, ErrorKind, GradingFailure
from adjudge.judges.base import ChatCall, ChatModel
from adjudge.judges.table import JudgeTable, build_judge
from adjudge.rewards.spec import RewardSpec

OWN = """
import asyncio
from adjudge.errors import GradingFailure
from adjudge.judges import OpenAIChatModel
from adjudge.judges.base import ChatModel, HttpRequest, Reply

class House(ChatModel):
    def __init__(self, url: str, temperature: float = 0.0, key_env: str = "HOUSE_KEY"):
        self.url, self.sampling = url, {"temperature": temperature}

    async def answer(self, call):
        text = call.messages[-1]["content"]
        await asyncio.sleep(0)
        if "late" in text:
            raise GradingFailure("timeout", "too late")
        if "broken" in text:
            raise KeyError("house")
        if "number" in text:
            return 1.0
        if "whole" in text:
            return Reply(text='{"score": 0.25, "reason": ""}', model="house-2")
        return '{"score": 0.5, "reason": "' + self.url + '"}'

class Free(ChatModel):
    def __init__(self, **options):
        self.options = options

    async def answer(self, call):
        return "1"

class Picky(ChatModel):
    def __init__(self, size: int):
        if size < 3:
            raise ValueError("size must be 3 or more")

class Silent(ChatModel):
    pass

class Misspelt(ChatModel):
    features = {"shema"}

    async def answer(self, call):
        return "1"

class Blocking(ChatModel):
    def answer(self, call):
        return "1"

class Leaking:
    def __init__(self, key):
        self.key = key

    def request(self, call):
        if "failure" in call.messages[-1]["content"]:
            sent = {"sent": {"key": self.key}, "status": 401}
            raise GradingFailure("auth", "refused: " + self.key, sent)
        raise ValueError(self.key)

    def reply(self, call, response):
        return Reply(text="")

class Unborn:
    def __init__(self, key):
        int(key)

    request = reply = None

class Mine(OpenAIChatModel):
    pass

class Hasty(ChatModel):
    def __init__(self):
        {}["url"]

class Line:
    features = frozenset({"schema"})

    def __init__(self, key):
        self.key = key

    def request(self, call):
        return HttpRequest(path="/line", headers={}, body=call.messages[-1]["content"].encode())

    def reply(self, call, response):
        return Reply(text=response.body.decode())
"""
TEMPLATE = "How good is {response}?"


@pytest.fixture(autouse=True)
def beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a spec with own judges in it."""
    (tmp_path / "own_judges.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "own_judges", raising=False)
    return tmp_path


def spec(**judge: Any) -> RewardSpec:
    grader = {"name": "g", "type": "llm", "template": TEMPLATE, "score_range": [0.0, 1.0]}
    return RewardSpec.from_dict({"graders": [grader], "judges": {"main": judge}}, where="s.toml")


def house(**keys: Any) -> RewardSpec:
    return spec(**{"type": "own_judges:House", "url": "http://house", **keys})


def test_the_other_keys_are_the_constructors() -> None:
    model: Any = house(temperature=0.5).build_judges()["main"]
    assert (model.url, model.sampling, model.model) == (
        "http://house",
        {"temperature": 0.5},
        "main",
    )
    free: Any = spec(type="own_judges:Free", task=[1], script=2.5).build_judges()["main"]
    assert free.options == {"task": [1], "script": 2.5}, "keys of shipped types are free here"


@pytest.mark.parametrize(
    ("judge", "complaint"),
    [
        ({"type": "own_judges:House", "url": "u", "temprature": 1.0}, "did you mean 'temperature'"),
        ({"type": "own_judges:House"}, "judges.main: url: is required by type 'House'"),
        ({"type": "own_judges:House", "url": 3}, "judges.main: url: "),
        ({"type": "own_judges:House", "url": "u", "temperature": "hot"}, "main: temperature: "),
        ({"type": "own_judges:Picky", "size": 1}, "Picky refuses its keys: size must be 3"),
        ({"type": "own_judges:Hasty"}, "Hasty cannot be made: KeyError: 'url'"),
        ({"type": "own_judges:Misspelt"}, "features: has a name that is none of Misspelt"),
        ({"type": "own_judges:Line", "key": "k"}, "must be a class derived from ChatModel"),
        ({"type": "own_judges:Hause", "url": "u"}, "cannot be imported"),
        ({"type": "own_judges:House", "url": "u", "api_key": "sk-1"}, "Name the environment"),
        ({"type": "scripted", "script": "1", "wire": "a:B"}, "judges.main.wire: unknown key"),
        ({"type": "vllm", "model": "m", "wire": "lines"}, "wire: the wire format is unknown"),
        ({"type": "vllm", "model": "m", "wire": "own_judges:Line", "stream": True}, "stream: is"),
    ],
)
def test_wrong_keys_are_named(judge: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        spec(**judge).build_judges()
    assert complaint in str(caught.value)
    assert str(caught.value).startswith("s.toml: judges.main")
    assert "sk-1" not in str(caught.value)


def test_its_failure_is_an_error_with_a_kind_and_never_a_number() -> None:
    graders = house().build_graders()
    samples = [{"response": text} for text in ("fine", "whole", "late", "broken", "number")]
    result = asyncio.run(GradingRunner(graders).arun(samples))
    fine, whole, late, broken, number = result["g"]
    assert isinstance(fine, GraderScore)
    assert (fine.score, fine.reason) == (0.5, "http://house")
    assert fine.provenance is not None
    assert (fine.provenance.source, fine.provenance.model) == ("live", "main")
    assert isinstance(whole, GraderScore)
    assert whole.score == 0.25
    for failed, kind in ((late, "timeout"), (broken, "bug"), (number, "bug")):
        assert isinstance(failed, GraderError)
        assert failed.kind == ErrorKind(kind)
        assert failed is not number or "a Reply or text (found float)" in failed.error


def test_a_class_without_the_method_says_so() -> None:
    with pytest.raises(NotImplementedError, match="Silent must have the method: async answer"):
        spec(type="own_judges:Silent").build_judges()["main"].chat([])


@pytest.mark.parametrize("wire", ["Leaking", "Unborn"])
def test_a_key_is_in_no_message_of_an_own_wire(wire: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOUSE_KEY", "sk-secret")
    keys = {"api_key_env": "HOUSE_KEY", "base_url": "http://127.0.0.1:1", "model": "m"}
    model = spec(type="vllm", wire=f"own_judges:{wire}", **keys).build_judges()["main"]
    for text in ("a", "failure"):
        with pytest.raises(GradingFailure) as caught:
            model.chat([{"role": "user", "content": text}])
        assert "sk-secret" not in str(caught.value) + repr(caught.value.metadata)
        assert caught.value.__cause__ is None
        assert caught.value.kind == "bug" or caught.value.metadata == {"status": 401}
        if caught.value.kind == "bug":
            assert "raised ValueError" in str(caught.value)
            assert str(caught.value.metadata["at"]).startswith("own_judges.py:")


def test_what_must_be_a_coroutine_says_so() -> None:
    model = spec(type="own_judges:Blocking").build_judges()["main"]
    with pytest.raises(ConfigError, match="answer must be `async def` .found a function that"):
        model.chat([{"role": "user", "content": "?"}])


def test_an_own_wire_is_part_of_what_replies_are_kept_under() -> None:
    def built(**keys: Any) -> Any:
        table = JudgeTable.model_validate({"type": "vllm", "model": "m", **keys})
        return build_judge("main", table, where="s.toml")

    plain, own = built(), built(wire="own_judges:Line")
    assert plain.fingerprint != own.fingerprint
    assert plain._endpoint_key.cache_name != own._endpoint_key.cache_name
    assert plain._endpoint_key.provider != own._endpoint_key.provider


def test_a_model_is_asked_with_its_own_sampling_and_the_calls() -> None:
    asked: list[ChatCall] = []

    class Own(ChatModel):
        model, sampling = "own", {"temperature": 0.0, "top_p": 0.5}

        async def answer(self, call: ChatCall) -> str:
            asked.append(call)
            return "<think>hm</think>yes"

    reply = Own().chat([], draw=2, top_p=0.9, group="g", choices=["no"])
    assert (reply.text, reply.reasoning, reply.ignored) == ("yes", "hm", ("choices",))
    assert asked[0].sampling == {"temperature": 0.0, "top_p": 0.9}
    assert (asked[0].draw, asked[0].group, asked[0].model) == (2, "g", "own")
