"""The mock provider on a running loop, over real sockets."""

import asyncio
import json
from typing import Any

import aiohttp
import pytest
from tests.refusals import refuses
from tests.unit.helpers.mock_client import (
    HELLO,
    MESSAGES,
    ask,
    content,
    raw,
    raw_post,
    run,
    until,
)

from adjudge.errors import ConfigError
from adjudge.mock import Server, serve


def test_both_providers_and_the_small_endpoints() -> None:
    async def body(server: Server, session: aiohttp.ClientSession) -> None:
        status, headers, found = await ask(server, session)
        assert (status, headers["content-type"]) == (200, "application/json")
        assert content(found) == '{"score": 1, "reason": "mock"}'
        status, _, found = await ask(server, session, MESSAGES)
        assert json.loads(found)["content"][0]["text"] == '{"score": 1, "reason": "mock"}'
        for path, key in (("/v1/models", "data"), ("/health", "status"), ("/stats", "requests")):
            async with session.get(server.url + path) as response:
                assert response.status == 200
                assert key in await response.json()
        async with session.get(f"{server.base_url}/nothing") as response:
            assert response.status == 404
        async with session.get(f"{server.base_url}/chat/completions") as response:
            assert response.status == 405
        report = server.report()
        assert (report["requests"], report["replied"], report["cancelled"]) == (2, 2, 0)
        assert report["connections"] == {"total": 1, "open": 1}

    run(body)


def test_a_client_that_leaves_has_cancelled() -> None:
    async def body(server: Server, _session: aiohttp.ClientSession) -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(raw_post(HELLO))
        await until(lambda: server.stats.in_flight == 1)
        writer.close()
        await until(lambda: server.stats.cancelled == 1)
        assert server.stats.in_flight == 0
        assert server.stats.replied == 0

    run(body, latency=("fixed:60",))


def test_a_bad_request_is_answered_and_the_connection_closed() -> None:
    async def body(server: Server, session: aiohttp.ClientSession) -> None:
        got, _ = await raw(server, b"nonsense\r\n\r\n")
        assert got.startswith(b"HTTP/1.0 400 ")
        wrongs: tuple[Any, ...] = ({"messages": 3}, {"messages": [], "stream": "yes"})
        for wrong in wrongs:
            status, _, found = await ask(server, session, wrong)
            assert status == 400
            assert json.loads(found)["error"]["type"] == "invalid_request_error"
        assert server.stats.refused["bad_request"] == 2

    run(body)


def test_the_key_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(server: Server, session: aiohttp.ClientSession) -> None:
        for headers, expected in (
            ({}, 401),
            ({"authorization": "Bearer wrong"}, 401),
            ({"authorization": "secret-1"}, 401),
            ({"authorization": "Bearer secret-1"}, 200),
            ({"x-api-key": "secret-1"}, 200),
        ):
            status, _, found = await ask(server, session, headers=headers)
            assert status == expected
            assert b"secret" not in found
            async with session.get(f"{server.url}/stats", headers=headers) as response:
                assert response.status == expected
        async with session.get(f"{server.url}/health") as response:
            assert response.status == 200
        assert server.stats.refused == {"key": 3}

    monkeypatch.setenv("MOCK_TEST_KEY", "secret-1")
    run(body, require_key="MOCK_TEST_KEY")
    monkeypatch.delenv("MOCK_TEST_KEY")
    with refuses("--require-key"):
        serve(require_key="MOCK_TEST_KEY")


def test_a_seed_gives_one_fate_per_request_number() -> None:
    fates: list[list[Any]] = []

    async def body(server: Server, session: aiohttp.ClientSession) -> None:
        fates.append([(await ask(server, session))[0] for _ in range(60)])

    options: dict[str, Any] = {"fail": ("500:0.3", "429:0.3")}
    for seed in (7, 7, 8):
        run(body, seed=seed, **options)
    assert fates[0] == fates[1] != fates[2]
    assert set(fates[0]) == {200, 429, 500}


def test_a_port_in_use_is_explained() -> None:
    async def body(server: Server, _session: aiohttp.ClientSession) -> None:
        with pytest.raises(ConfigError, match="--port 0 for a free port"):
            await serve(port=server.port).__aenter__()

    run(body)
