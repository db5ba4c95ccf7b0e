"""The judge service with replicas on Ray Serve, beside the plain one: requests/s and latency.

    python benchmarks/service_ray.py [--seconds S]      (an environment with ray[serve])

Three judges (benchmarks/service_ray_judges.py) behind the plain server and behind 1 and 2 replicas,
64 connections, each with a prompt of its own. All of it, the load generator included, shares this
machine's cores, so two replicas can show a gain only where judging takes more than the way there.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import sys
import time
from functools import partial
from pathlib import Path

import uvloop

from adjudge.service.server import start_service_process

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
from benchmarks.service import Client  # noqa: E402  (a sibling)

WAYS: dict[str, list[str]] = {
    "plain": [],
    "ray, 1 replica": ["--ray", "--replicas=1", "--ray-address=local"],
    "ray, 2 replicas": ["--ray", "--replicas=2", "--ray-address=local"],
}
JUDGES = ("Nothing", "Busy", "Far")
CONNECTIONS = 64


def request(port: int, number: int) -> bytes:
    body = json.dumps({"prompt": f"question {number}", "completion": "4" * 600}).encode()
    head = (
        f"POST /judge HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def load(port: int, seconds: float) -> list[float]:
    stop = time.perf_counter() + seconds
    loop = asyncio.get_running_loop()
    clients = []
    for number in range(CONNECTIONS):
        make = partial(Client, request(port, number), stop)
        _, client = await loop.create_connection(make, "127.0.0.1", port)
        clients.append(client)
    for client in clients:
        await client.done
    return sorted(one for client in clients for one in client.latencies)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seconds", type=float, default=4.0)
    seconds = parser.parse_args().seconds
    print(f"{'judge':8} {'served by':16} {'requests/s':>10} {'p50 ms':>7} {'p99 ms':>7}")
    os.environ["PYTHONPATH"] = str(HERE.parent / "src")
    with contextlib.chdir(HERE):
        for judge in JUDGES:
            for way, options in WAYS.items():
                command = [sys.executable, "-m", "adjudge", "serve", f"service_ray_judges:{judge}"]
                with start_service_process(
                    [*command, "--port=0", "--json", "--until-eof", *options]
                ) as (
                    running,
                    _,
                ):
                    uvloop.run(load(running.port, seconds / 2))
                    found = uvloop.run(load(running.port, seconds))
                count = len(found)
                rate, middle, slow = count / seconds, found[count // 2], found[-(count // 100) - 1]
                print(f"{judge:8} {way:16} {rate:10,.0f} {middle * 1e3:7.1f} {slow * 1e3:7.1f}")


if __name__ == "__main__":
    main()
