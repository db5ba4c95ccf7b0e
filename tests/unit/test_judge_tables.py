"""``[judges.NAME]`` tables: what they build, what they refuse, and which grader asks which."""

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.refusals import refuses

from adjudge import GradingRunner
from adjudge.errors import ConfigError
from adjudge.judges import ReplyCache
from adjudge.judges.base import ChatCall, Reply
from adjudge.rewards.spec import RewardSpec

OWN = """
from adjudge import BaseGrader

class Asks(BaseGrader):
    score_range = (0.0, 1.0)

    def __init__(self, model, scale: float = 1.0, name: str = ""):
        super().__init__(name)
        self.model, self.scale = model, scale

    async def aevaluate(self, response):
        reply = await self.model.achat([{"role": "user", "content": response}])
        return self.scale * float(reply.text)

class MayAsk(BaseGrader):
    score_range = (0.0, 1.0)

    def __init__(self, model=None, name: str = ""):
        super().__init__(name)
        self.model = model

    async def aevaluate(self, response):
        return 0.5

def by_length(messages):
    return str(len(messages[-1]["content"]) / 10)

OWN = "no function"
"""


def spec(
    judges: dict[str, Any], *graders: dict[str, Any], folder: Path | None = None
) -> RewardSpec:
    entries = [{"name": f"g{i}", **grader} for i, grader in enumerate(graders)]
    data = {"graders": entries or [{"name": "g", "type": "answer"}], "judges": judges}
    return RewardSpec.from_dict(data, where="spec.toml", folder=folder)


@pytest.fixture
def beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A spec's folder with own graders in it."""
    (tmp_path / "own_judged.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_recorded_and_scripted_judges(beside: Path) -> None:
    with closing(ReplyCache(beside / "tape.sqlite", sampled=True)) as cache:
        question = [{"role": "user", "content": "abc"}]
        call = ChatCall(model="m", messages=question, sampling={"temperature": 1.0})
        cache.keep(cache.key(call, "openai"), Reply(text="0.25", model="m"), call)
    judges = {
        "tape": {"type": "recorded", "cassette": "tape.sqlite"},
        "said": {"type": "scripted", "script": {"abc": "0.75"}},
        "computed": {"type": "scripted", "function": "own_judged:by_length"},
    }
    graders = [{"type": "own_judged:Asks", "judge": name} for name in judges]
    built = spec(judges, *graders, folder=beside).build_graders()
    results = GradingRunner(built, show_progress=False).run([{"response": "abc"}])
    assert [getattr(results[f"g{i}"][0], "score", None) for i in range(3)] == [0.25, 0.75, 0.3]


@pytest.mark.parametrize(
    ("kind", "keys", "key"),
    [
        ("openi", {"model": "m"}, "type"),
        ("openai", {}, "model"),
        ("openai", {"temprature": 1}, "temprature"),
        ("openai", {"top_p": float("nan")}, "top_p"),
        ("openai", {"price": {"input": 1.0}}, "price.output"),
        ("openai", {"cache": ""}, "cache"),
        ("openai", {"features": ["choices"]}, "features"),
        (
            "openai",
            {"temperature": 0.0, "extra_body": {"temperature": 1}},
            "extra_body.temperature",
        ),
        ("openai", {"extra_body": {"model": "other"}}, "model"),
        ("openai", {"extra_body": {"extra_body": {}}}, "extra_body"),
        ("openai", {"api_key_env": ""}, "api_key_env"),
        ("vllm", {"base_url": "ftp://x"}, "base_url"),
        ("vllm", {"endpoint": {"max_concurency": 3}}, "endpoint.max_concurency"),
        ("vllm", {"endpoint": {"max_concurrency": "many"}}, "endpoint.max_concurrency"),
        ("anthropic", {"seed": 1}, "seed"),
        ("anthropic", {"stream": True}, "stream"),
        ("classifier", {"temperature": 0.5}, "temperature"),
        ("classifier", {"extra_body": {"route": "judge"}}, "extra_body.route"),
        ("classifier", {"route": "embed"}, "route"),
        ("classifier", {"route": "sglang"}, "route"),
        ("classifier", {"route": "score", "tokenizer": "x"}, "tokenizer"),
        ("local", {"task": "rank"}, "task"),
        ("local", {"task": "score", "temperature": 0.0}, "temperature"),
        ("local", {"batch_size": 0}, "batch_size"),
        ("openai", {"extra_body": {"api_key": "sk-secret"}}, "api_key"),
        ("local", {"dtype": "fp16"}, "dtype"),
        ("local", {"seed": 1}, "seed"),
        ("local", {"extra_body": {"top_k": 3}}, "sampling"),
        ("local", {"extra_body": {"chat_template_kwargs": "x"}}, "sampling"),
        ("scripted", {}, ""),
        ("scripted", {"script": "x", "function": "a:b"}, ""),
        ("scripted", {"function": "own_judged:OWN"}, "function"),
        ("recorded", {}, "cassette"),
    ],
)
def test_a_wrong_table_is_refused_by_file_and_key(
    kind: str, keys: dict[str, Any], key: str, beside: Path
) -> None:
    named = {} if kind in ("scripted", "recorded") or not keys else {"model": "m"}
    with refuses(f"judges.main.{key}".rstrip("."), where="spec.toml"):
        spec({"main": {"type": kind, **named, **keys}}, folder=beside).build_judges()


@pytest.mark.parametrize("key", ["api_key", "api_key_env"])
def test_a_literal_key_is_refused_and_never_shown(key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        spec({"main": {"type": "openai", "model": "m", key: "sk-secret-1"}}).build_judges()
    assert "sk-secret" not in str(caught.value)
    assert "environment variable" in str(caught.value)


@pytest.mark.parametrize("value", [None, ""])
def test_a_variable_that_a_table_names_must_have_a_value(
    value: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HOUSE_KEY", raising=False)
    if value is not None:
        monkeypatch.setenv("HOUSE_KEY", value)
    table = {"type": "vllm", "model": "m", "base_url": "http://gpu:8000/v1"}
    spec({"main": table}).build_judges()["main"].check_machine()
    for keys in ({"api_key_env": "HOUSE_KEY"}, {"headers": {"X-Team": "HOUSE_KEY"}}):
        with pytest.raises(ConfigError, match="HOUSE_KEY"):
            spec({"main": table | keys}).build_judges()["main"].check_machine()


def test_missing_cassettes_and_functions_are_config_errors(tmp_path: Path) -> None:
    for table, word in (
        ({"type": "recorded", "cassette": "none.sqlite"}, "the cassette does not exist"),
        ({"type": "scripted", "function": "no_such_module_x:f"}, "cannot be imported"),
    ):
        with pytest.raises(ConfigError, match=word):
            spec({"main": table}, folder=tmp_path).build_judges()


def test_which_judge_is_asked_must_be_clear(beside: Path) -> None:
    two = {name: {"type": "scripted", "script": "1"} for name in ("strict", "kind")}
    asks = {"type": "own_judged:Asks"}
    with refuses("graders.g0.judge"):
        spec(two, asks, folder=beside).build_graders()
    with refuses("graders.g0.model"):
        spec({}, asks, folder=beside).build_graders()
    with refuses("graders.g0.judge"):
        spec(two, {**asks, "judge": "strct"})
    with refuses("graders.g0.judge"):
        spec(two, {"type": "answer", "judge": "strict"}).build_graders()
    built = spec(two, {**asks, "judge": "kind"}, {"type": "own_judged:MayAsk"}, folder=beside)
    graders = built.build_graders()
    assert graders["g0"].model.model == "kind"
    assert graders["g1"].model is None


def test_several_judges_and_votes_make_a_panel(beside: Path) -> None:
    two = {name: {"type": "scripted", "script": str(i)} for i, name in enumerate(("no", "yes"))}
    asks = {"type": "own_judged:Asks"}
    both = spec(two, {**asks, "judge": ["no", "yes"]}, folder=beside).build_graders()["g0"]
    results = GradingRunner({"g0": both}, show_progress=False).run([{"response": "x"}])
    assert getattr(results["g0"][0], "score", None) == 0.5
    assert both.score_range == (0.0, 1.0)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"judge": ["no", "no"]}, "each judge once"),
        ({"judge": []}, "at least 1 item"),
        ({"judge": ["no", "ye"]}, "did you mean 'yes'"),
        ({"judge": "no", "panel": {"reduce": "mean"}}, "several judges, or votes"),
        ({"judge": ["no", "yes"], "panel": {"reduce": "avg"}}, "panel.reduce"),
        ({"judge": ["no", "yes"], "panel": {"quorum": 3}}, "quorum"),
        ({"judge": "no", "panel": {"votes": 3}}, "takes no draw"),
    ]
    for keys, complaint in wrong:
        with pytest.raises(ConfigError, match=complaint):
            spec(two, {**asks, **keys}, folder=beside).build_graders()


def test_what_changes_replies_changes_the_hash_and_nothing_else_does() -> None:
    def hashed(**keys: Any) -> str:
        return spec({"main": {"type": "openai", "model": "m", **keys}}).hash

    assert hashed() == hashed(endpoint={"max_concurrency": 3}) == hashed(cache="a.sqlite")
    assert hashed() == hashed(price={"input": 1.0, "output": 1.0}) == hashed(api_key_env="OTHER")
    assert len({hashed(), hashed(temperature=0.0), hashed(base_url="http://a:1/v1")}) == 3
