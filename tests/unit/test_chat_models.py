"""The chat models as users hold them: keys, addresses, loops, threads, processes, closing."""

from __future__ import annotations

import asyncio
import contextlib
import json
import pickle
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.unit.helpers.json_server import JsonServer, serving

from adjudge.errors import ConfigError, ErrorKind, GradingFailure
from adjudge.judges.base import ChatCall, HttpRequest, HttpResponse, Reply
from adjudge.judges.cassette import ReplyCache
from adjudge.judges.endpoint.connections import aclose_all, open_endpoints
from adjudge.judges.endpoint.settings import EndpointSettings
from adjudge.judges.models.http import AnthropicChatModel, OpenAIChatModel

MESSAGES = [{"role": "user", "content": "How good is it?"}]
KEYS = ("OPENAI_API_KEY", "OPENAI_BASE_URL", "GROQ_API_KEY", "ANTHROPIC_API_KEY")


class Provider:
    """Answers both formats, and may insist on streams or on a temperature of its own."""

    stream_only = own_temperature = False

    def answer(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        if path == "/v1/messages":
            text = {"type": "text", "text": "answer"}
            return 200, {"content": [text], "stop_reason": "end_turn"}
        if self.stream_only and not body.get("stream"):
            problem = "This model only support stream mode, please enable the stream parameter"
            return 400, {"error": {"message": problem}}
        if self.own_temperature and "temperature" in body:
            problem = "Unsupported value: 'temperature' does not support 0 with this model."
            return 400, {"error": {"message": problem, "code": "unsupported_value"}}
        answer = {"content": f"{body['model']}:{body['messages'][-1]['content']}"}
        choice: dict[str, Any] = {"index": 0, "finish_reason": "stop"}
        if not body.get("stream"):
            return 200, {"choices": [choice | {"message": answer}]}
        chunk = json.dumps({"choices": [choice | {"delta": answer}]})
        return 200, f"data: {chunk}\n\ndata: [DONE]\n\n"


@pytest.fixture
def how() -> Provider:
    return Provider()


@pytest.fixture
def provider(how: Provider, monkeypatch: pytest.MonkeyPatch) -> Iterator[JsonServer]:
    for name in KEYS:
        monkeypatch.delenv(name, raising=False)
    with serving(how.answer) as server:
        yield server


def model_at(provider: JsonServer, name: str = "m", **more: Any) -> OpenAIChatModel:
    return OpenAIChatModel(name, base_url=f"{provider.url}/v1", **more)


# -- asking --------------------------------------------------------------------------------------


def test_the_seeds_way_to_construct(provider: JsonServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", f"{provider.url}/v1/")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1\n")
    model = OpenAIChatModel(model="qwen3-max", temperature=0.0)
    assert model.chat(MESSAGES).text.startswith("qwen3-max:")
    assert provider.headers[0]["authorization"] == "Bearer sk-1"


def test_closing_and_asking_again(provider: JsonServer) -> None:
    model = model_at(provider)
    model.chat(MESSAGES)
    asyncio.run(aclose_all())
    assert model.chat(MESSAGES).text
    assert len(provider.clients) == 2


def test_a_forked_child_asks_on_connections_of_its_own(provider: JsonServer) -> None:
    script = f"""
        import os, warnings
        warnings.simplefilter("ignore")
        from adjudge.judges.models.http import OpenAIChatModel

        model = OpenAIChatModel("m", base_url="{provider.url}/v1")
        messages = [{{"role": "user", "content": "x"}}]
        model.chat(messages)
        if os.fork() == 0:
            print(model.chat(messages).text, flush=True)
            os._exit(0)
        os.wait()
        print(model.chat(messages).text)
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=180, check=True)
    assert result.stdout.split() == ["m:x", "m:x"]
    assert result.stderr == ""
    assert len(provider.clients) == 2  # the parent's, used twice, and the child's


# -- streams -------------------------------------------------------------------------------------


def test_a_model_that_only_streams_is_found_out_once(provider: JsonServer, how: Provider) -> None:
    how.stream_only = True
    model = model_at(provider)
    for _ in range(3):
        assert model.chat(MESSAGES).text == "m:How good is it?"
    assert [bool(body.get("stream")) for body in provider.bodies] == [False, True, True, True]


@pytest.mark.parametrize(("temperature", "sent"), [(0, [0, None, None]), (0.7, [0.7, 0.7])])
def test_a_model_that_refuses_temperature_0_is_found_out_once(
    provider: JsonServer,
    how: Provider,
    temperature: float,
    sent: list[Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What was chosen for its own sake is not given up."""
    how.own_temperature = True
    model = model_at(provider, temperature=temperature)
    for _ in range(2):
        if temperature:
            with pytest.raises(GradingFailure, match="temperature"):
                model.chat(MESSAGES)
        else:
            assert model.chat(MESSAGES).text == "m:How good is it?"
    assert [body.get("temperature") for body in provider.bodies] == sent
    assert len(caplog.records) == (temperature == 0)


# -- a wire of one's own -------------------------------------------------------------------------


class HouseWire:
    """The simplest of formats, over the chat completions of the provider above."""

    def __init__(self, key: str | None) -> None:
        self.headers = {"x-house-key": key or ""}

    def request(self, call: ChatCall) -> HttpRequest:
        text = call.messages[-1]["content"]
        if text == "unwritable":
            return "no request"  # type: ignore[return-value]
        body = json.dumps({"model": call.model, "messages": [{"content": text}]}).encode()
        return HttpRequest(path="/house", headers=self.headers, body=body)

    def reply(self, call: ChatCall, response: HttpResponse) -> Reply:
        text = json.loads(response.body)["choices"][0]["message"]["content"]
        return Reply(text=text) if "unreadable" not in text else text


def test_a_wire_of_ones_own(provider: JsonServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1")
    model = model_at(provider, wire=HouseWire, temperature=0.5)
    assert model.chat(MESSAGES).text == "m:How good is it?"
    assert provider.bodies[-1] == {"model": "m", "messages": [{"content": "How good is it?"}]}
    assert provider.headers[-1]["x-house-key"] == "sk-1"
    assert model.features == frozenset()
    assert pickle.loads(pickle.dumps(model)).chat(MESSAGES).text == "m:How good is it?"
    for text, found in (("unreadable", "Reply .found str"), ("unwritable", "HttpRequest .found")):
        with pytest.raises(TypeError, match=found):
            model.chat([{"role": "user", "content": text}])
    assert model_at(provider).chat(MESSAGES).text == "m:How good is it?", "beside the shipped one"


# -- keys ----------------------------------------------------------------------------------------


def test_a_key_that_is_missing_is_named_at_the_first_call(
    provider: JsonServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for model in (
        OpenAIChatModel("m"),
        AnthropicChatModel("m"),
        OpenAIChatModel("m", preset="groq"),
    ):
        with pytest.raises(GradingFailure, match=model.api_key_env) as caught:
            model.chat(MESSAGES)
        assert caught.value.kind is ErrorKind.AUTH
    monkeypatch.setenv("OPENAI_API_KEY", "sk\u2026")
    with pytest.raises(GradingFailure, match="characters") as caught:
        OpenAIChatModel("m").chat(MESSAGES)
    assert "sk" not in str(caught.value)


def test_keys_are_read_at_every_call(provider: JsonServer, monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_at(provider)
    for key in ("one", "two"):
        monkeypatch.setenv("OPENAI_API_KEY", key)
        model.chat(MESSAGES)
    monkeypatch.delenv("OPENAI_API_KEY")
    model.chat(MESSAGES)
    sent = [headers.get("authorization") for headers in provider.headers]
    assert sent == ["Bearer one", "Bearer two", None]


# -- configuration -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"preset": "opnai"}, "did you mean 'openai'"),
        ({"preset": "anthropic"}, "preset: is unknown"),
        ({"base_url": "http://u:p@h/v1"}, "user or password"),
        ({"base_url": []}, "at least 1"),
        ({"base_url": "http://h/v1/chat/completions"}, "before /chat/completions"),
        ({"max_retries": 3}, "max_attempts"),
        ({"timeout": 3}, "deadline_s"),
        ({"messages": []}, "achat"),
        ({"model": None}, "model"),
    ],
)
def test_what_cannot_be_meant_is_refused(arguments: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        OpenAIChatModel(**{"model": "m"} | arguments)


def test_models_with_equal_settings_share_an_endpoint(provider: JsonServer, tmp_path: Path) -> None:
    seven = EndpointSettings(max_concurrency=7)
    others: list[tuple[int, dict[str, Any]]] = [
        (1, {"settings": seven}),
        (1, {"settings": EndpointSettings(max_concurrency=7)}),
        (1, {}),
        (2, {"settings": EndpointSettings(max_concurrency=8)}),
        (3, {"cache": tmp_path / "x.sqlite"}),
        (4, {"api_key_env": "OTHER_KEY"}),
    ]

    async def ask_all() -> None:
        for endpoints, other in others:
            call = ChatCall(model="m", messages=MESSAGES)
            assert (await model_at(provider, **other).ask(call)).text
            assert len(open_endpoints()) == endpoints

    asyncio.run(ask_all())


@pytest.mark.parametrize("by", ["the loop's shutdown", "aclose_all"])
def test_a_cache_opened_from_a_path_is_written_and_closed(
    provider: JsonServer, tmp_path: Path, by: str
) -> None:
    path = tmp_path / "replies.sqlite"
    model = model_at(provider, temperature=0.0, cache=path)

    def files() -> list[str]:
        return [file.name for file in tmp_path.iterdir()]

    async def main() -> None:
        for draw in range(3):
            call = ChatCall(model="m", messages=MESSAGES, draw=draw, sampling=model.sampling)
            await model.ask(call)
        if by == "aclose_all":
            await aclose_all()
            assert files() == [path.name]

    asyncio.run(main())
    assert files() == [path.name]
    with contextlib.closing(ReplyCache(path, "replay")) as cache:
        assert cache._file.count() == 3
