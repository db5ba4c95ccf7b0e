"""The bare transports for benchmarks/judge_calls.py: what no judge client can do without.

    python -m benchmarks.judge_floor raw|aiohttp BASE_URL IN_FLIGHT

Both ask on uvloop over keep-alive connections, encode and decode with msgspec, and do nothing else:
no limits, no retries, no timeouts beyond aiohttp's own. ``raw`` is HTTP/1.1 by hand on
``asyncio.Protocol``, good for one well-behaved server on this machine.
"""

from __future__ import annotations

import asyncio
import os
import sys
from urllib.parse import urlsplit

import aiohttp
import msgspec
import uvloop
from benchmarks.judge_question import SAMPLING, Item, messages, pool, serve_calls


class Message(msgspec.Struct):
    content: str


class Choice(msgspec.Struct):
    message: Message


class Completion(msgspec.Struct):
    choices: list[Choice]


class Verdict(msgspec.Struct):
    score: float
    reason: str


completion = msgspec.json.Decoder(Completion)
verdict = msgspec.json.Decoder(Verdict)
encode = msgspec.json.Encoder().encode


def question(item: Item) -> bytes:
    return encode({**SAMPLING, "model": "mock", "messages": messages(**item)})


def score(body: bytes) -> float:
    return verdict.decode(completion.decode(body).choices[0].message.content).score


class Line(asyncio.Protocol):
    """One keep-alive connection with at most one request under way."""

    transport: asyncio.Transport
    reply: asyncio.Future[bytes]
    data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]  # a socket's goes both ways

    def data_received(self, data: bytes) -> None:
        self.data = data = self.data + data if self.data else data
        head = data.find(b"\r\n\r\n")
        if head < 0:
            return
        at = data.find(b"content-length: ", 0, head) + 16
        size = int(data[at : data.find(b"\r", at)])
        if len(data) >= head + 4 + size:
            self.data = b""
            self.reply.set_result(data[head + 4 :])

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.reply.done():
            self.reply.set_exception(ConnectionError("the server closed the connection"))


class Raw:
    """Requests by hand."""

    def __init__(self, base_url: str) -> None:
        at = urlsplit(base_url)
        assert at.hostname is not None
        assert at.port is not None
        self._host, self._port = at.hostname, at.port
        self._free: list[Line] = []
        self._head = (
            f"POST {at.path}/chat/completions HTTP/1.1\r\nhost: {at.netloc}\r\n"
            f"authorization: Bearer {os.environ['OPENAI_API_KEY']}\r\n"
            "content-type: application/json\r\ncontent-length: "
        ).encode()

    async def ask(self, item: Item) -> float:
        loop = asyncio.get_running_loop()
        if self._free:
            line = self._free.pop()
        else:
            _, line = await loop.create_connection(Line, self._host, self._port)
        line.reply = loop.create_future()
        body = question(item)
        line.transport.write(b"%b%d\r\n\r\n%b" % (self._head, len(body), body))
        found = score(await line.reply)
        self._free.append(line)
        return found

    async def close(self) -> None:
        for line in self._free:
            line.transport.close()


class Aiohttp:
    """One session with its defaults, and as many connections as calls in flight."""

    def __init__(self, base_url: str, in_flight: int) -> None:
        self._url = f"{base_url}/chat/completions"
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=in_flight))
        self._headers = {
            "content-type": "application/json",
            "authorization": f"Bearer {os.environ['OPENAI_API_KEY']}",
        }

    async def ask(self, item: Item) -> float:
        body = question(item)
        async with self._session.post(self._url, data=body, headers=self._headers) as response:
            return score(await response.read())

    async def close(self) -> None:
        await self._session.close()


async def opened(kind: str, base_url: str, in_flight: int) -> Raw | Aiohttp:
    return Raw(base_url) if kind == "raw" else Aiohttp(base_url, in_flight)


def main(kind: str, base_url: str, in_flight: str) -> None:
    workers = int(in_flight)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        client = runner.run(opened(kind, base_url, workers))
        serve_calls(lambda items: runner.run(pool(client.ask, items, workers)))
        runner.run(client.close())


if __name__ == "__main__":
    main(*sys.argv[1:])
