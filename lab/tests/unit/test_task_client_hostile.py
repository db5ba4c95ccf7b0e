"""Task apps that do what they should not: what comes of it is a failure of a kind."""

import asyncio
from typing import Any

import pytest
from aiohttp import web
from lab.tests.unit.helpers.task_apps import (
    failure,
    rollout,
    said,
    seat_of,
    speaking,
    strange,
    task,
    user,
    words,
)

from adjudge.errors import ConfigError, ErrorKind, GradingFailure
from adjudge_lab.environments import fetch_rubrics


@pytest.fixture(autouse=True)
def no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ENVIRONMENT_API_KEY", raising=False)


SHAPES = [
    (b"", "no rollout"),
    (b"<html>", "no rollout"),
    (b"[" * 100_000, "no rollout"),
    (b"null", "no rollout"),
    ({}, "trajectories"),
    ({"trajectories": []}, "0 trajectories"),
    ({"trajectories": rollout(1.0)["trajectories"] * 2}, "2 trajectories"),
    ({"trajectories": [{"steps": 3}]}, "no rollout"),
    ({"trajectories": [{"steps": [[]]}]}, "no rollout"),
    (rollout("1.0"), "reward"),
    (rollout(True), "reward"),
    (b'{"trajectories": [{"steps": [{"reward": NaN}]}]}', "no rollout"),
    (b'{"trajectories": [{"steps": [{"reward": 1e999}]}]}', "rollout"),
    (b'{"trajectories": [{"steps": [{"reward": 1' + b"0" * 400 + b"}]}]}", "rollout"),
    (rollout(1e308), "a reward beyond"),
    (rollout(1.0, metrics={"outcome_score": -1e308}), "a score beyond"),
    (rollout(1.0, metrics={"outcome_score": "high"}), "outcome_score"),
    (rollout(1.0, metrics=[1]), "metrics"),
    ({"trajectories": [{"steps": [{"reward": 1, "info": [1]}]}]}, "info"),
    ({"trajectories": [{"steps": [{"reward": 1}], "length": 4}]}, "a length that is not"),
    ({"trajectories": [{"steps": [{"reward": 1, "done": "yes"}]}]}, "done"),
    ({"trajectories": [{"steps": [{"reward": 1, "info": {"a": "x" * (2 << 20)}}]}]}, "an info"),
    (
        {"trajectories": [{"steps": [{"reward": 1}], "final": {"observation": "x" * (2 << 20)}}]},
        "final observation",
    ),
]


@pytest.mark.parametrize(("answer", "words"), SHAPES, ids=range(len(SHAPES)))
def test_an_answer_that_is_none_is_a_failure(answer: Any, words: str) -> None:
    found = failure(speaking(answer))
    assert found.kind is ErrorKind.SERVER_ERROR
    assert words in str(found)
    assert len(str(found)) <= 500


@pytest.mark.parametrize(
    ("answer", "words"),
    [(rollout(), "0 steps for 1 replies"), (rollout(1.0, 1.0), "2 steps for 1 replies")],
)
def test_every_reply_must_have_its_step(answer: Any, words: str) -> None:
    found = failure(speaking(answer))
    assert found.kind is ErrorKind.UNSUPPORTED
    assert words in str(found)


def test_an_app_that_asks_nothing_played_nothing() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        return web.json_response(rollout())

    assert failure(handler).kind is ErrorKind.UNSUPPORTED


@pytest.mark.parametrize(
    ("status", "kind", "asked"),
    [
        (400, ErrorKind.INVALID_INPUT, 1),
        (422, ErrorKind.INVALID_INPUT, 1),
        (404, ErrorKind.UNSUPPORTED, 1),
        (302, ErrorKind.UNSUPPORTED, 1),
        (408, ErrorKind.TIMEOUT, 1),
        (500, ErrorKind.SERVER_ERROR, 3),
        (503, ErrorKind.SERVER_ERROR, 3),
    ],
)
def test_statuses_and_how_often_they_are_tried(
    status: int, kind: ErrorKind, asked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("adjudge_lab.environments.task_client._PAUSE_S", 0.01)
    calls = 0

    async def handler(request: web.Request) -> web.StreamResponse:
        nonlocal calls
        calls += 1
        said = {"error": {"kind": "x", "message": "no\x1b[2J such thing"}}
        headers = {"Retry-After": "0", "Location": "http://192.0.2.1/"}
        return web.json_response(said, status=status, headers=headers)

    found = failure(handler)
    assert (found.kind, calls) == (kind, asked)
    assert f"HTTP {status}: no [2J such thing" in str(found)


def test_what_was_played_is_not_played_again() -> None:
    calls = 0

    async def cut(request: web.Request) -> web.StreamResponse:
        nonlocal calls
        calls += 1
        await said(await seat_of(request), user("a"))
        assert request.transport is not None
        request.transport.close()
        await asyncio.sleep(0)
        return web.Response()

    async def broken(request: web.Request) -> web.StreamResponse:
        nonlocal calls
        calls += 1
        await said(await seat_of(request), user("a"))
        return web.Response(status=500)

    assert (failure(cut).kind, calls) == (ErrorKind.CONNECTION, 1)
    assert (failure(broken).kind, calls) == (ErrorKind.SERVER_ERROR, 2)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"not HTTP at all\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000,
    ],
    ids=range(6),
)
def test_what_is_no_http_is_no_connection(answer: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adjudge_lab.environments.task_client._PAUSE_S", 0.01)

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100_000)
        writer.write(answer)
        writer.close()

    async def work() -> None:
        server = await asyncio.start_server(speak, "127.0.0.1", 0)
        async with server:
            await task(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}").play(5, words)

    with pytest.raises(GradingFailure) as caught:
        asyncio.run(work())
    assert caught.value.kind is ErrorKind.CONNECTION


def test_an_app_that_never_answers_and_one_that_never_ends() -> None:
    async def silent(request: web.Request) -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError

    async def endless(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        while True:
            await answer.write(b" " * 1_000_000)

    assert failure(silent, timeout_s=0.2).kind is ErrorKind.TIMEOUT
    found = failure(endless)
    assert found.kind is ErrorKind.SERVER_ERROR
    assert "longer than" in str(found)


@pytest.mark.parametrize(
    ("info", "words"),
    [
        (b"[]", "not a JSON object"),
        (b"{", "not a JSON object"),
        (b'{"rubrics": 3}', "rubrics"),
        (b'{"rubrics": {"outcome": {"criteria": []}}}', "rubrics: outcome"),
        (b'{"rubrics": {"global_rubric": {"criteria": ["a"], "x": 1}}}', "global_rubric"),
    ],
)
def test_rubrics_that_are_none(info: bytes, words: str) -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        return web.Response(body=info)

    async def work() -> None:
        async with strange(handler) as url:
            await fetch_rubrics(url)

    with pytest.raises(ConfigError, match=words):
        asyncio.run(work())
