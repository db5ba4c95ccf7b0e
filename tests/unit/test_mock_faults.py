"""Every fault of the mock provider, as a client on a real socket sees it."""

import json
from typing import Any

import aiohttp
import pytest
from tests.unit.helpers.mock_client import (
    HELLO,
    MESSAGES,
    STREAM,
    ask,
    content,
    raw,
    raw_post,
    run,
    until,
)

from adjudge.mock import FAULTS, Server
from adjudge.mock.responder import MODIFIERS, STREAM_FAULTS


@pytest.mark.parametrize("name", ["hang", "stall"])
def test_silence(name: str) -> None:
    async def body(server: Server, session: aiohttp.ClientSession) -> None:
        with pytest.raises(TimeoutError):
            await ask(server, session, timeout=aiohttp.ClientTimeout(total=0.5))
        await until(lambda: server.stats.cancelled == 1)

    run(body, fail=(f"{name}:1",))


def faulty(name: str, question: dict[str, Any] = HELLO, **options: Any) -> tuple[int, Any, bytes]:
    found: list[tuple[int, Any, bytes]] = []

    async def body(server: Server, session: aiohttp.ClientSession) -> None:
        found.append(await ask(server, session, question))
        assert server.stats.faults == {name: 1}
        assert server.stats.replied == 0

    run(body, fail=(f"{name}:1",), **options)
    return found[0]


def test_replies_that_say_something_else() -> None:
    refused = json.loads(faulty("refusal")[2])["choices"][0]
    assert refused["message"]["content"] is None
    assert refused["message"]["refusal"]
    filtered = json.loads(faulty("content-filter")[2])["choices"][0]
    assert filtered["finish_reason"] == "content_filter"
    assert json.loads(faulty("refusal", MESSAGES)[2])["stop_reason"] == "refusal"
    assert content(faulty("empty")[2]) == ""
    assert json.loads(faulty("empty", MESSAGES)[2])["content"] == []
    cut = json.loads(faulty("max-tokens")[2])["choices"][0]
    assert (cut["message"]["content"], cut["finish_reason"]) == ('{"score": 1, "r', "length")
    assert content(faulty("duplicate-text", reply="4")[2]) == "4\n4"


def test_details_that_go_wrong() -> None:
    wanted = HELLO | {"logprobs": True, "structured_outputs": {"choice": ["1", "2"]}}
    choice = json.loads(faulty("drop-logprobs", wanted)[2])["choices"][0]
    assert (choice["logprobs"], choice["message"]["content"]) == (None, "2")
    choice = json.loads(faulty("drop-schema", wanted)[2])["choices"][0]
    assert choice["message"]["content"].startswith("On the whole")
    assert choice["logprobs"] is not None
    assert json.loads(faulty("wrong-id")[2])["id"] == "chatcmpl-wrong-0"
    found = faulty("wrong-id", STREAM)[2]
    chunks = [json.loads(line[6:]) for line in found.splitlines() if line.startswith(b"data: {")]
    assert len({chunk["id"] for chunk in chunks}) == len(chunks) > 3


def test_what_was_not_asked_for_cannot_go_wrong() -> None:
    async def body(server: Server, session: aiohttp.ClientSession) -> None:
        assert content((await ask(server, session))[2])
        assert server.stats.faults == {}
        assert server.stats.replied == 1

    run(body, fail=("cut-stream:1", "drop-logprobs:1", "drop-schema:1"))


def test_every_fault_is_given_for_whole_replies_and_for_streams() -> None:
    names = [name for name in FAULTS if name not in {"hang", "stall"}]
    for name in names:

        async def body(server: Server, _session: aiohttp.ClientSession, name: str = name) -> None:
            form = {"structured_outputs": {"choice": ["1"]}, "logprobs": True}
            for question in (HELLO | form, STREAM | form):
                await raw(server, raw_post(question, "connection: close"))
            given = 1 if name in STREAM_FAULTS else 2
            assert server.stats.faults == {name: given}
            assert server.stats.requests == 2
            assert server.stats.in_flight == 0

        run(body, fail=(f"{name}=0.01:1" if name == "drip" else f"{name}:1",))
    assert set(MODIFIERS) <= set(names)
