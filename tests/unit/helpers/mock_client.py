"""A client of the mock provider, over real sockets."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp

from adjudge.mock import Server, serve

HELLO = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


MESSAGES = HELLO | {"max_tokens": 10}


STREAM = HELLO | {"stream": True}


Body = Callable[[Server, aiohttp.ClientSession], Awaitable[None]]


def run(
    body: Body, loop: Callable[[], asyncio.AbstractEventLoop] | None = None, **options: Any
) -> None:
    async def main() -> None:
        async with serve(**options) as server, aiohttp.ClientSession() as session:
            await asyncio.wait_for(body(server, session), 30)

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(main())


async def ask(
    server: Server, session: aiohttp.ClientSession, body: Any = HELLO, **options: Any
) -> tuple[int, Any, bytes]:
    url = f"{server.base_url}/{'messages' if 'max_tokens' in body else 'chat/completions'}"
    async with session.post(url, json=body, **options) as response:
        return response.status, response.headers, await response.read()


def raw_post(body: Any, *headers: str) -> bytes:
    data = json.dumps(body).encode()
    lines = [
        "POST /v1/chat/completions HTTP/1.1",
        "host: x",
        f"content-length: {len(data)}",
        *headers,
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + data


async def raw(server: Server, sent: bytes) -> tuple[bytes, bool]:
    """Everything until the connection ends, and whether it was reset."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(sent)
    got = b""
    reset = False
    try:
        while data := await reader.read(65536):
            got += data
    except ConnectionResetError:
        reset = True
    writer.close()
    return got, reset


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110  (any condition, no event of it)
        await asyncio.sleep(0.001)


def content(body: bytes) -> Any:
    return json.loads(body)["choices"][0]["message"]["content"]
