"""The transport against real sockets: servers that behave, and servers that do not."""

from __future__ import annotations

import asyncio
import gzip
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from adjudge.errors import ErrorKind, GradingFailure
from adjudge.judges.base import HttpRequest, HttpResponse
from adjudge.judges.wire.transport import AiohttpTransport

REQUEST = HttpRequest(
    path="/chat/completions", headers={"authorization": "Bearer k", "x-a": "b"}, body=b'{"a":1}'
)
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-RateLimit-Remaining: 7\r\n\r\n{}"


class Server:
    """What a scripted server saw."""

    def __init__(self) -> None:
        self.url = ""
        self.connections = 0
        self.heads: list[bytes] = []
        self.bodies: list[bytes] = []
        self.gone = asyncio.Event()


Answer = Callable[[Server, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def serving(answer: Answer | bytes) -> AsyncIterator[Server]:
    """A server that reads requests and lets ``answer`` write to each."""
    seen = Server()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.connections += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                seen.heads.append(head)
                seen.bodies.append(await _read_body(reader, head.lower()))
                if isinstance(answer, bytes):
                    writer.write(answer)
                else:
                    await answer(seen, writer)
                if writer.is_closing():
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            seen.gone.set()
        finally:
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    seen.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    try:
        yield seen
    finally:
        server.close()


async def _read_body(reader: asyncio.StreamReader, head: bytes) -> bytes:
    if b"transfer-encoding: chunked" not in head:
        return await reader.readexactly(int(head.split(b"content-length:")[1].split()[0]))
    body = b""
    while size := int(await reader.readline(), 16):
        body += await reader.readexactly(size)
        await reader.readline()
    await reader.readline()
    return body


@asynccontextmanager
async def opened(transport: AiohttpTransport | None = None) -> AsyncIterator[AiohttpTransport]:
    transport = transport or AiohttpTransport()
    try:
        yield transport
    finally:
        await transport.aclose()


def on_uvloop(coroutine: Any) -> Any:
    return pytest.importorskip("uvloop").run(coroutine)


async def once(answer: Answer | bytes) -> HttpResponse:
    async with serving(answer) as server, opened() as transport:
        return await transport.post(server.url, REQUEST)


def failure(answer: Answer | bytes) -> GradingFailure:
    with pytest.raises(GradingFailure) as caught:
        asyncio.run(once(answer))
    return caught.value


def closing(data: bytes) -> Answer:
    async def answer(seen: Server, writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        await writer.drain()
        writer.close()

    return answer


def resetting(data: bytes) -> Answer:
    async def answer(seen: Server, writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        await writer.drain()
        await asyncio.sleep(0.02)  # the data must be out before the reset
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()

    return answer


def test_redirects_are_not_followed() -> None:
    async def run() -> None:
        async with serving(OK) as other, opened() as transport:
            redirect = f"HTTP/1.1 307 X\r\nLocation: {other.url}/x\r\nContent-Length: 0\r\n\r\n"
            async with serving(redirect.encode()) as server:
                response = await transport.post(server.url, REQUEST)
            assert response.status == 307
            assert other.connections == 0

    asyncio.run(run())


@pytest.mark.parametrize("run", [asyncio.run, on_uvloop])
@pytest.mark.parametrize("late", [0.0, 0.005])
@pytest.mark.parametrize("cut", [None, 20])
def test_an_unasked_response_never_answers_the_next_request(
    run: Callable[..., Any], late: float, cut: int | None
) -> None:
    async def twice(seen: Server, writer: asyncio.StreamWriter) -> None:
        body = seen.bodies[-1]
        answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        writer.write(answer)
        if late:
            await asyncio.sleep(late)
        writer.write(answer[:cut])
        said.append(body)

    said: list[bytes] = []

    async def main() -> None:
        async with serving(twice) as server, opened() as transport:
            for i in range(8):
                body = b'{"i":%d}' % i
                response = await transport.post(
                    server.url, HttpRequest(path="/x", headers={}, body=body)
                )
                assert response.body == body
                while body not in said:  # noqa: ASYNC110  (the server runs on either loop)
                    await asyncio.sleep(0.001)
                await asyncio.sleep(0.01)  # it has been said, and is read in the loop's next turns

    run(main())


def test_cookies_are_not_kept() -> None:
    async def run() -> None:
        answer = b"HTTP/1.1 200 OK\r\nSet-Cookie: a=b\r\nContent-Length: 2\r\n\r\n{}"
        async with serving(answer) as server, opened() as transport:
            await transport.post(server.url, REQUEST)
            await transport.post(server.url, REQUEST)
            assert b"cookie" not in server.heads[1].lower()

    asyncio.run(run())


@pytest.mark.parametrize("run", [asyncio.run, on_uvloop])  # ends and data come apart differently
@pytest.mark.parametrize("end", [closing, resetting])
@pytest.mark.parametrize(
    "head",
    [b"Content-Length: 50\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n10\r\n"],
    ids=["length", "chunked"],
)
def test_a_body_that_ends_early_is_cut(
    run: Callable[..., HttpResponse], end: Callable[[bytes], Answer], head: bytes
) -> None:
    response = run(once(end(b"HTTP/1.1 200 OK\r\n" + head + b'{"choice')))
    assert response.cut
    assert response.body == b'{"choice'
    assert response.status == 200


@pytest.mark.parametrize("end", [closing, resetting])
@pytest.mark.parametrize("data", [b"", b"HTTP/1.1 200 O"])
def test_no_response_is_a_failed_connection(end: Callable[[bytes], Answer], data: bytes) -> None:
    found = failure(end(data))
    assert found.kind is ErrorKind.CONNECTION
    assert "Bearer" not in str(found)
    assert found.metadata == {}  # the request had left: who knows whether it is billed


def test_a_refused_connection_says_so() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    async def run() -> None:
        async with opened() as transport:
            await transport.post(f"http://127.0.0.1:{port}/v1", REQUEST)

    with pytest.raises(GradingFailure, match="127.0.0.1.*connection refused") as caught:
        asyncio.run(run())
    assert caught.value.kind is ErrorKind.CONNECTION
    assert caught.value.metadata == {"sent": False}


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://no-such-host.invalid/v1", "the host name was not found"),
        ("https://127.0.0.1:{}/v1", "connecting failed"),  # it hangs up on the handshake
    ],
)
def test_without_a_name_or_tls_nothing_is_sent(url: str, why: str) -> None:
    async def run() -> None:
        hang_up = lambda reader, writer: writer.close()  # noqa: E731
        async with await asyncio.start_server(hang_up, "127.0.0.1") as server, opened() as line:
            await line.post(url.format(server.sockets[0].getsockname()[1]), REQUEST)

    with pytest.raises(GradingFailure, match=why) as caught:
        asyncio.run(run())
    assert caught.value.metadata == {"sent": False}


@pytest.mark.parametrize("packed", [False, True])
def test_a_body_longer_than_the_limit_is_not_read(packed: bool) -> None:
    body = gzip.compress(b"x" * 300_000) if packed else b"x" * 300_000
    kind = b"Content-Encoding: gzip\r\n" if packed else b""
    data = b"HTTP/1.1 200 OK\r\n%bContent-Length: %d\r\n\r\n%b" % (kind, len(body), body)

    async def run() -> None:
        async with serving(data) as server, opened(AiohttpTransport(max_body_bytes=10_000)) as line:
            await line.post(server.url, REQUEST)

    with pytest.raises(GradingFailure, match="longer than 10000 bytes") as caught:
        asyncio.run(run())
    assert caught.value.kind is ErrorKind.SERVER_ERROR


@pytest.mark.parametrize("begun", [False, True])
def test_cancelling_closes_the_connection(begun: bool) -> None:
    asked = asyncio.Event()

    async def hang(seen: Server, writer: asyncio.StreamWriter) -> None:
        if begun:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n{")
        asked.set()

    async def run() -> None:
        async with serving(hang) as server, opened() as transport:
            task = asyncio.create_task(transport.post(server.url, REQUEST))
            await asked.wait()
            await asyncio.sleep(0.02)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.wait_for(server.gone.wait(), 5)

    asyncio.run(run())


def test_proxies_of_the_environment_are_used_but_not_for_this_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def run() -> None:
        async with serving(OK) as proxy, serving(OK) as server, opened() as transport:
            monkeypatch.setenv("http_proxy", proxy.url.removesuffix("/v1"))
            monkeypatch.delenv("no_proxy", raising=False)
            monkeypatch.delenv("NO_PROXY", raising=False)
            await transport.post("http://judge.test/v1", REQUEST)
            assert proxy.heads[0].startswith(b"POST http://judge.test/v1/chat/completions HTTP")
            await transport.post(server.url, REQUEST)
            assert len(proxy.heads) == 1
            monkeypatch.setenv("no_proxy", "judge.test")
            async with opened() as excepted:
                assert excepted._target("http://judge.test", "/x")[1] is None
                assert excepted._target("http://other.test", "/x")[1] is not None

    asyncio.run(run())
