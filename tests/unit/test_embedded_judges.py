"""Embedded judges without llama.cpp: tables, errors, keys, and the catalogue of models."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
import tomlkit
from tests.e2e.helpers.command import invoke
from tests.refusals import refuses

from adjudge.errors import ConfigError, ErrorKind, GradingFailure
from adjudge.judges import (
    Reply,
    ReplyCache,
    response_failure,
)
from adjudge.judges.base import ChatCall, HttpResponse
from adjudge.judges.models.embedded import EmbeddedChatModel
from adjudge.judges.models.model_files import (
    MODEL_FILES,
    fetch_model,
    fetched_path,
    find_model_file,
)
from adjudge.judges.presets import PRESETS
from adjudge.judges.wire.openai import OpenAIWire
from adjudge.rewards.spec import RewardSpec


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF")
    return path


def _spec(folder: Path, **table: Any) -> RewardSpec:
    content = {
        "graders": [{"name": "good", "type": "helpfulness"}],
        "judges": {"main": {"type": "embedded", **table}},
    }
    (folder / "spec.toml").write_text(tomlkit.dumps(content))
    return RewardSpec.load(folder / "spec.toml")


def _judge(folder: Path, **table: Any) -> Any:
    return _spec(folder, **table).build_judges()["main"]


def test_as_many_calls_are_out_as_there_are_slots(gguf: Path) -> None:
    def limits(**table: Any) -> tuple[int, int, float]:
        found = _judge(gguf.parent, model="m.gguf", **table)._endpoint_key
        settings = found.settings
        return found.policy.start_concurrency, settings.max_concurrency, settings.deadline_s

    assert limits() == (8, 8, 86_400.0)
    assert limits(batch_size=3) == (3, 3, 86_400.0)
    assert limits(batch_size=3, endpoint={"deadline_s": 60.0}) == (3, 3, 60.0)


def test_slots_and_threads_are_not_about_replies(tmp_path: Path) -> None:
    hashes = {
        _spec(tmp_path, model="smollm2", **keys).hash
        for keys in ({}, {"batch_size": 3}, {"batch_size": 2})
    }
    assert len(hashes) == 1
    assert _spec(tmp_path, model="smollm2", max_length=512).hash not in hashes


@pytest.mark.parametrize(
    ("use", "key"),
    [
        (lambda: EmbeddedChatModel("smollm2", base_url="http://localhost:1/v1"), "base_url"),
        (lambda: fetch_model("gpt"), "model"),
        (lambda: find_model_file("/proc/self/mem"), "model"),
        (lambda: find_model_file("SmolLM"), "model"),
    ],
)
def test_what_cannot_be_meant_is_refused(use: Callable[[], Any], key: str) -> None:
    with refuses(key):
        use()


def test_a_model_that_is_not_here_says_how_to_get_it(tmp_path: Path) -> None:
    with refuses("model"):
        find_model_file("smollm2")
    judge = _judge(tmp_path, model="smollm2")  # a replay needs no file
    with pytest.raises(ConfigError, match=r"\[embedded\]|adjudge models fetch smollm2"):
        judge.check_machine()


def test_a_file_of_another_kind_is_refused_before_a_run_begins(tmp_path: Path) -> None:
    for content in (b"{}\n", b""):
        (tmp_path / "m.gguf").write_bytes(content)
        with refuses("judges.main.model") as caught:
            _judge(tmp_path, model="m.gguf")
        assert f"begins with {content!r}" in str(caught.value)


def test_doctor_finds_a_model_beside_the_spec_and_says_why_it_does_not_start(gguf: Path) -> None:
    _spec(gguf.parent, model="m.gguf")
    done = invoke("doctor", "--json", gguf.parent / "spec.toml")
    assert done.exit_code in (2, 3), done.output
    (finding,) = json.loads(done.stdout)["judges"]["main"]["findings"]
    assert (finding["feature"], finding["honoured"]) == ("reply", "failed")
    # Where the library is installed llama.cpp refuses the file, else the library is missing.
    assert re.search("cannot load|xllamacpp", finding["note"])


def test_a_replay_needs_no_library_and_no_file(tmp_path: Path) -> None:
    path = tmp_path / "calls.sqlite"
    ReplyCache(path).close()
    with closing(ReplyCache(path, "replay")) as cache:
        judge = EmbeddedChatModel("smollm2", cache=cache)
        judge.check_machine()
        asyncio.run(judge.wait_until_reachable(1.0))


@pytest.mark.parametrize("model", ["smollm2", "m.gguf"])
def test_a_reply_is_replayed_for_its_length_whatever_the_slots(gguf: Path, model: str) -> None:
    """A reply that ran into ``max_length`` is cut: a longer one is another question."""
    name, path = str(gguf) if model == "m.gguf" else model, gguf.parent / "calls.sqlite"

    def ask(cache: ReplyCache, max_length: int, **keys: Any) -> str:
        return EmbeddedChatModel(name, cache=cache, max_length=max_length, **keys).chat([]).text

    judge = EmbeddedChatModel(name, max_length=64)
    call = ChatCall(model=judge.model, messages=[], sampling={})
    with closing(ReplyCache(path, sampled=True)) as cache:
        key = cache.key(call, f"embedded {judge.fingerprint} 64")
        cache.keep(key, Reply(text="cut", finish_reason="length"), call)
    with closing(ReplyCache(path, "replay")) as cache:
        assert ask(cache, 64, batch_size=3) == "cut"
        with pytest.raises(GradingFailure, match="not in the cassette"):
            ask(cache, 4096)


def test_models_are_listed() -> None:
    done = invoke("models", "list")
    assert "smollm2" in done.output
    assert "not fetched" in done.output


def test_the_place_of_a_model_is_one_line_for_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / ("long [bold]" * 15)))
    path = fetched_path(MODEL_FILES["smollm2"])
    path.parent.mkdir(parents=True)
    path.write_bytes(b"GGUF")
    done = invoke("models", "fetch", "smollm2")
    assert done.output == f"{path}\n"


# ── servers of the user's ────────────────────────────────────────────────────────────────────


def _grammar(*choices: str) -> Any:
    call = ChatCall(model="m", messages=[], choices=choices)
    body = OpenAIWire(PRESETS["llamacpp"]).request(call).body
    return msgspec.json.decode(body)["grammar"]


def test_choices_are_a_grammar() -> None:
    assert _grammar("A", "B") == 'root ::= "A" | "B"'
    assert _grammar('a"b\\', "[x]\n") == r'root ::= "a\"b\\" | "[x]\x0A"'
    assert _grammar("é\b\x7f") == r'root ::= "é\x08\x7F"'


NO_PARSER = "Unable to generate parser for this template. Automatic parser generation failed"


@pytest.mark.parametrize(
    ("status", "message", "kind"),
    [
        (400, "request (3031 tokens) exceeds the available context size", ErrorKind.TOO_LONG),
        (400, "failed: JSON schema error at #/a: cannot resolve $ref", ErrorKind.UNSUPPORTED),
        (400, f"{NO_PARSER}: JSON schema error at #: unrecognized type", ErrorKind.UNSUPPORTED),
        (400, "Failed to initialize samplers: failed to parse grammar", ErrorKind.UNSUPPORTED),
        (500, "image input is not supported - hint: mmproj", ErrorKind.UNSUPPORTED),
        (500, "out of memory", ErrorKind.SERVER_ERROR),
    ],
)
def test_what_llama_cpp_complains_of(status: int, message: str, kind: ErrorKind) -> None:
    body = b'{"error": {"code": %d, "message": "%s"}}' % (status, message.encode())
    failure = response_failure(HttpResponse(status=status, headers={}, body=body))
    assert failure.kind is kind
    assert message[:30] in str(failure)
