"""``adjudge eval ifeval MODEL``: an endpoint asked, a file gone on with, vLLM."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from urllib.request import urlopen

import pytest
from lab.tests.unit.helpers.ifeval_files import GOOD, prompt, write_prompts
from tests.rows import read_jsonl, write_jsonl
from typer.testing import CliRunner, Result

from adjudge.cli.main import command_line
from adjudge.errors import ErrorKind, GradingFailure
from adjudge.judges.base import ChatModel, Reply
from adjudge.judges.models.embedded import EmbeddedChatModel
from adjudge.mock import start_mock
from adjudge_lab.evaluation.ifeval import generation

pytestmark = pytest.mark.slow  # whole commands, one after the other

PROMPTS = 4


@pytest.fixture(autouse=True)
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_prompts(Path("data.jsonl"), PROMPTS)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with start_mock(behaviour="fixed", reply=GOOD) as base_url:
        yield base_url


def asked(url: str) -> int:
    """How many requests the server has had."""
    with urlopen(f"{url}/stats") as answer:
        return int(json.load(answer)["requests"])


def command(target: str, *arguments: str) -> Result:
    given = ["eval", "ifeval", target, "--data", "data.jsonl", "-o", "out", "-q"]
    return CliRunner().invoke(command_line(), [*given, *arguments])


def model(target: str, *arguments: str) -> dict[str, Any]:
    done = command(target, *arguments)
    assert done.exit_code == 0, done.output
    [found] = json.loads(Path("out/summary.json").read_text())["models"]
    assert isinstance(found, dict)
    return found


def refused(target: str, *arguments: str) -> str:
    done = command(target, *arguments)
    assert done.exit_code == 2, done.output
    return " ".join(done.stderr.split())


def test_an_endpoint_is_asked_once_for_each_response(url: str) -> None:
    before, target = asked(url), f"{url}#m"
    found = model(target)
    assert found["strict"]["prompt"]["value"] == 1.0
    assert (found["generated"]["made"], found["generated"]["kept"]) == (PROMPTS, 0)
    rows = read_jsonl(Path("out/responses.jsonl"))
    assert [row["key"] for row in rows] == list(range(PROMPTS))
    assert (rows[0]["prompt"], rows[0]["response"]) == (prompt(0)["prompt"], GOOD)
    assert asked(url) - before == PROMPTS
    assert model(target)["generated"]["made"] == 0
    assert asked(url) - before == PROMPTS
    # A torn line is made again, and so are samples that are new.
    data = Path("out/responses.jsonl").read_bytes()
    Path("out/responses.jsonl").write_bytes(data[:-40])
    found = model(target)
    assert found["generated"]["made"] == 1
    assert found["problems"][0]["reason"].startswith("cut off")
    assert len(read_jsonl(Path("out/responses.jsonl"))) == PROMPTS
    assert asked(url) - before == PROMPTS + 1


def test_more_samples_are_made_beside_those_there_are(url: str) -> None:
    drawn = ("--temperature", "0.7", "--max-tokens", "64")
    assert model(f"{url}#m", *drawn, "--n-samples", "2")["generated"]["made"] == 2 * PROMPTS
    found = model(f"{url}#m", *drawn, "--n-samples", "3")
    assert (found["generated"]["made"], found["generated"]["kept"]) == (PROMPTS, 2 * PROMPTS)
    assert found["samples"] == [3, 3]
    # Fewer are taken of the file, not all of it.
    assert model(f"{url}#m", *drawn, "--n-samples", "1")["samples"] == [1, 1]


def test_responses_drawn_in_another_way_are_not_gone_on_with(url: str) -> None:
    model(f"{url}#m", "--responses", "kept.jsonl")
    assert len(read_jsonl(Path("kept.jsonl"))) == PROMPTS
    assert "line 1 is from another model or other generation settings" in refused(
        f"{url}#m", "--responses", "kept.jsonl", "--max-tokens", "7"
    )
    write_jsonl(Path("theirs.jsonl"), [{"prompt": "p", "response": "r"}])
    assert "theirs.jsonl: line 1 is from another" in refused(
        f"{url}#m", "--responses", "theirs.jsonl"
    )


def test_a_table_that_another_model_made_is_not_written_over(url: str) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    pyarrow = pytest.importorskip("pyarrow")
    for _ in range(2):  # its own is written anew
        model(f"{url}#m", "--responses", "gen.parquet")
    parquet.write_table(pyarrow.Table.from_pylist([{"prompt": "p", "responses": ["r"]}]), "v.pq")
    before = asked(url)
    for name, more in (("gen.parquet", ("--max-tokens", "7")), ("v.pq", ())):
        kept = Path(name).read_bytes()
        said = refused(f"{url}#m", "--responses", name, *more, "-o", f"other-{name}")
        assert f"{name}: is from another model or other generation settings" in said
        assert Path(name).read_bytes() == kept
    assert asked(url) == before


def test_against_stored_responses(url: str) -> None:
    rows = [{"prompt": prompt(key)["prompt"], "response": "a, b"} for key in range(PROMPTS)]
    write_jsonl(Path("stored.jsonl"), rows)
    done = command(f"{url}#m", "--against", "stored.jsonl")
    assert done.exit_code == 0, done.output
    found = json.loads(Path("out/summary.json").read_text())
    assert [one["name"] for one in found["models"]] == [f"{url}#m", "stored"]
    assert found["compared"][0]["difference"] == 1.0
    [folder] = Path("out").glob("1-*")
    assert len(read_jsonl(folder / "responses.jsonl")) == PROMPTS


def test_what_failed_is_missing_and_is_tried_again() -> None:
    with start_mock(behaviour="fixed", reply=GOOD, fail=("400:0.5",), seed=1) as url:
        found = model(f"{url}#m")
        gone = PROMPTS - found["prompts"]
        assert 0 < gone < PROMPTS
        assert found["failures"]["by_kind"] == {"invalid_input": gone}
        assert found["strict"]["prompt"]["value"] == 1.0
        again = model(f"{url}#m")
    assert again["generated"]["made"] == gone
    assert len(read_jsonl(Path("out/responses.jsonl"))) == PROMPTS


class Away(ChatModel):
    """A server that is not there, or refuses the key; counts how often it is asked."""

    model, kind = "away", "scripted"

    def __init__(self, failure: ErrorKind) -> None:
        self.failure, self.asked = failure, 0

    async def achat(self, messages: Any, **asked: Any) -> Reply:
        self.asked += 1
        raise GradingFailure(self.failure, "nobody")


@pytest.mark.parametrize(("failure", "most"), [(ErrorKind.CONNECTION, 16), (ErrorKind.AUTH, 1)])
def test_a_server_that_is_away_ends_it(
    monkeypatch: pytest.MonkeyPatch, failure: ErrorKind, most: int
) -> None:
    write_prompts(Path("data.jsonl"), 200)
    away = Away(failure)
    monkeypatch.setattr(generation, "connect_endpoint", lambda *_: away)
    monkeypatch.setitem(generation._IN_FLIGHT, "endpoint", 1)
    done = command("http://localhost:9/v1#m")
    assert done.exit_code == 3, done.output
    assert "To resume, run:" in done.stderr
    assert "-o out" in done.stderr
    assert away.asked == most


class Scripted(ChatModel):
    """A model file that answers one prompt, is cut at the second and fails at the others."""

    model, kind = "scripted", "scripted"

    def __init__(self) -> None:
        self.settings: tuple[Any, ...] = ()
        self.asked: list[str] = []

    async def achat(self, messages: Any, **asked: Any) -> Reply:
        self.asked.append(messages[0]["content"])
        assert (asked["temperature"], asked["max_tokens"]) == (0.0, 64)
        if len(self.asked) > 2:
            raise GradingFailure(ErrorKind.TIMEOUT, "too late")
        reason = "stop" if len(self.asked) == 1 else "length"
        return Reply(text=GOOD, finish_reason=reason)


def test_a_model_file_is_served_here(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("small.gguf").write_bytes(b"GGUF 1")
    monkeypatch.setattr(EmbeddedChatModel, "check_machine", lambda _: None)
    first, second = Scripted(), Scripted()

    def connect(scripted: Scripted) -> None:
        def keep_settings(*settings: Any) -> Scripted:
            scripted.settings = settings
            return scripted

        monkeypatch.setattr(generation, "connect_endpoint", keep_settings)

    connect(first)
    found = model("small.gguf", "--max-tokens", "64")
    assert (first.settings[0].kind, *first.settings[1:]) == ("embedded", 8, 64)
    assert (found["name"], found["kind"], found["prompts"]) == ("small.gguf", "embedded", 2)
    assert found["cut_by_length"] == 1
    assert found["failures"]["by_kind"] == {"timeout": PROMPTS - 2}
    strict = found["strict"]["prompt"]
    assert (strict["value"], strict["least"], strict["most"]) == (1.0, 0.5, 1.0)
    # Only what failed is asked again; a file with other weights is another model.
    connect(second)
    assert model("small.gguf", "--max-tokens", "64")["prompts"] == PROMPTS
    assert second.asked == first.asked[2:]
    Path("small.gguf").write_bytes(b"GGUF 2")
    assert "from another model or other generation settings" in refused(
        "small.gguf", "--max-tokens", "64"
    )


def test_options_of_transformers_are_refused_for_a_model_file() -> None:
    Path("small.gguf").write_bytes(b"GGUF")
    assert "--dtype: can only be used with" in refused("small.gguf", "--dtype", "float32")
    assert "--api-key-env: can only be used with an endpoint" in refused(
        "small.gguf", "--api-key-env", "KEY"
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--n-samples", "2"), "all samples are the same at temperature 0"),
        (("--temperature", "-1"), "(found -1.0)"),
        (("--batch-size", "2"), "--batch-size: can only be used with a model that is loaded here"),
        (("--tp-size", "2"), "--tp-size, --gpu-mem-util, --max-model-len: can only be used with"),
        (("--tp-size", "0"), "--tp-size"),
        (("--gpu-mem-util", "95"), "--gpu-mem-util"),
        (
            ("--dtype", "bfloat61"),
            "--dtype: is unknown; did you mean 'bfloat16'? (found 'bfloat61'",
        ),
        (("--responses", "a.jsonl", "--responses", "b.jsonl"), "needs one model and one file"),
        (("--responses", "a.csv"), "a.csv: responses must be written to a .jsonl file"),
    ],
)
def test_what_cannot_be_meant_is_named(arguments: tuple[str, ...], said: str) -> None:
    assert said in refused("http://localhost:9/v1#m", *arguments)


def folder() -> str:
    path = Path("model")
    path.mkdir()
    (path / "config.json").write_text("{}")
    return str(path)


def test_without_the_library_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    place = folder()
    assert "needs torch and transformers (torch is not installed)" in refused(place)
    assert "need vLLM, which is not installed. Run: pip install vllm" in refused(
        place, "--tp-size", "2"
    )


class StandIn(ModuleType):
    """What is used of vLLM, by its source. A word is a token, and prompt 2 has too many."""

    def __init__(self) -> None:
        super().__init__("vllm")
        self.__spec__ = ModuleSpec("vllm", None)
        self.loaded: list[dict[str, Any]] = []
        self.drawn: list[dict[str, Any]] = []
        self.LLM, self.SamplingParams = self._load, self._params
        self.chat_template = "a template"  # of its tokenizer
        self.added_tokens_decoder: dict[int, Any] = {}
        self.all_special_tokens: list[str] = []

    def _load(self, **options: Any) -> StandIn:
        self.loaded.append(options)
        config = SimpleNamespace(max_model_len=options["max_model_len"])
        self.llm_engine = SimpleNamespace(model_config=config)
        return self

    def _params(self, **options: Any) -> dict[str, Any]:
        return options

    def get_tokenizer(self) -> StandIn:
        return self

    def apply_chat_template(self, turns: Any, **options: Any) -> str:
        assert options == {"tokenize": False, "add_generation_prompt": True}
        text = str(turns[0]["content"])
        return text * 5000 if "number 2" in text else text

    def __call__(self, text: str, **options: Any) -> SimpleNamespace:
        return SimpleNamespace(input_ids=[1] * len(text.split()))

    def generate(self, prompts: Any, *, sampling_params: Any, use_tqdm: bool) -> list[Any]:
        assert len(prompts) == len(sampling_params) <= 3
        assert {len(one["prompt_token_ids"]) for one in prompts} <= {5}
        self.drawn += sampling_params
        text = f"<think>hm, so</think>{GOOD}"
        said = SimpleNamespace(text=text, finish_reason="length")
        return [SimpleNamespace(outputs=[said]) for _ in prompts]


def test_vllm_is_given_what_was_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against a stand-in: no vLLM runs here."""
    vllm = StandIn()
    monkeypatch.setitem(sys.modules, "vllm", vllm)
    place = folder()
    found = model(
        place, "--tp-size", "4", "--gpu-mem-util", "0.95", "--max-model-len", "8192",
        "--batch-size", "3", "--n-samples", "2", "--max-tokens", "4096", "--dtype", "bfloat16",
        "--temperature", "0.7",
    )  # fmt: skip
    assert vllm.loaded == [
        {
            "model": str(Path(place).resolve()),
            "tensor_parallel_size": 4,
            "gpu_memory_utilization": 0.95,
            "max_model_len": 8192,
            "dtype": "bfloat16",
        }
    ]
    assert {one["max_tokens"] for one in vllm.drawn} == {4096}
    assert len({one["seed"] for one in vllm.drawn}) == len(vllm.drawn) == 2 * (PROMPTS - 1)
    assert found["failures"]["by_kind"] == {"invalid_input": 2}
    assert found["cut_by_length"] == 2 * (PROMPTS - 1)
    assert found["strict"]["prompt"]["value"] == 1.0  # thinking is not the response
