"""What the mock provider costs per request: it must not be what a client's benchmark measures.

    python benchmarks/mock.py [--seconds S] [--connections N] [--quick] [--json FILE]

A load generator on raw ``asyncio.Protocol`` keeps one request under way on each of N keep-alive
connections; the provider is ``adjudge mock`` in a process of its own. Requests/s are wall clock
and share the machine's cores; "req/s per core" is the inverse of the provider's own CPU time per
request, which carries over to a loaded machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import statistics
import time
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from adjudge.engine.loop import run_blocking
from adjudge.mock import start_mock

PROMPT = "You judge answers. Say how good this one is, from 0 to 1, and why.\n" * 14
PLAIN: dict[str, Any] = {
    "model": "mock",
    "messages": [{"role": "system", "content": PROMPT}, {"role": "user", "content": "4"}],
    "temperature": 0.0,
    "max_tokens": 256,
}
SCHEMA = {
    "type": "object",
    "properties": {"score": {"type": "integer", "minimum": 1, "maximum": 5}},
    "required": ["score"],
}
FORM = {"type": "json_schema", "json_schema": {"name": "verdict", "schema": SCHEMA}}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "fixed (default)": ({}, PLAIN),
    "rubric": ({"keywords": ("4", "5")}, PLAIN),
    "schema": ({}, PLAIN | {"response_format": FORM}),
    "stream, logprobs": ({}, PLAIN | {"stream": True, "logprobs": True, "top_logprobs": 5}),
    "5 % 429, 5 % 500": ({"fail": ("429:0.05", "500:0.05")}, PLAIN),
    "lognormal 1 ms": ({"latency": ("lognormal:0.001,0.5",)}, PLAIN),
}


def request_bytes(host: str, question: dict[str, Any]) -> bytes:
    body = json.dumps(question).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: {host}\r\naccept: */*\r\n"
        "authorization: Bearer sk-none\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class Client(asyncio.Protocol):
    """One request after the other, until told to stop."""

    transport: asyncio.Transport

    def __init__(self, request: bytes) -> None:
        self.request = request
        self.replies = 0
        self.stopped = False
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]  # a socket's goes both ways
        self.transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        self.data = self.data + data if self.data else data
        if not self.whole():
            return
        self.data = b""
        self.replies += 1
        if self.stopped:
            self.transport.close()
        else:
            self.transport.write(self.request)

    def whole(self) -> bool:
        head = self.data.find(b"\r\n\r\n")
        if head < 0:
            return False
        at = self.data.find(b"content-length: ", 0, head)
        if at < 0:
            return self.data.endswith(b"\r\n0\r\n\r\n")
        return len(self.data) >= head + 4 + int(self.data[at + 16 : self.data.find(b"\r", at)])

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_result(None)


async def load(url: str, question: dict[str, Any], connections: int, seconds: float) -> int:
    at = urlsplit(url)
    assert at.hostname is not None
    assert at.port is not None
    host, port = at.hostname, at.port
    request = request_bytes(at.netloc, question)
    loop = asyncio.get_running_loop()
    clients = []
    for _ in range(connections):
        _, client = await loop.create_connection(lambda: Client(request), host, port)
        clients.append(client)
    await asyncio.sleep(seconds)
    for client in clients:
        client.stopped = True
    for client in clients:
        await client.done
    return sum(client.replies for client in clients)


def counts(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{url}/stats") as response:
        found: dict[str, Any] = json.load(response)
    return found


def own_cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def measured(name: str, connections: int, seconds: float) -> dict[str, float]:
    options, question = CASES[name]
    with start_mock(seed=1, **options) as url:
        run_blocking(load(url, question, connections, seconds / 5))
        before, cpu, start = counts(url), own_cpu(), time.perf_counter()
        replies = run_blocking(load(url, question, connections, seconds))
        elapsed, spent, after = time.perf_counter() - start, own_cpu() - cpu, counts(url)
    requests = after["requests"] - before["requests"]
    assert requests == replies, (requests, replies)
    server_us = (after["cpu_s"] - before["cpu_s"]) / requests * 1e6
    return {
        "requests_per_s": requests / elapsed,
        "server_us": server_us,
        "requests_per_s_core": 1e6 / server_us,
        "client_us": spent / requests * 1e6,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rounds, seconds = (1, 1.0) if arguments.quick else (arguments.rounds, arguments.seconds)
    print(f"{arguments.connections} keep-alive connections, a 1 KB prompt, medians of {rounds}")
    print(f"{'':18} {'req/s':>9} {'server µs':>10} {'req/s per core':>15} {'client µs':>10}")
    rows = {}
    for name in CASES:
        found = [measured(name, arguments.connections, seconds) for _ in range(rounds)]
        row = {key: statistics.median(one[key] for one in found) for key in found[0]}
        rows[name] = row
        print(
            f"{name:18} {row['requests_per_s']:9,.0f} {row['server_us']:10.1f} "
            f"{row['requests_per_s_core']:15,.0f} {row['client_us']:10.1f}",
            flush=True,
        )
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
