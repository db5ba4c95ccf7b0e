"""What a judge call costs, beside py-openjudge's, aiohttp's and the floor's, in one run.

    python benchmarks/judge_calls.py [--peer-python PATH] [--latency SPEC] [--quick] [--json FILE]

The provider is ``adjudge mock`` in a process of its own, which answers at once unless a latency is
given; every client is a fresh interpreter. CPU is the client's own (the provider's is not in it),
calls/s share the cores with the provider. Rounds interleave and medians are shown; ratios are
medians of each round's own. The prompt has 1 KB (relevance: 3 KB, its own), endpoint settings are
the defaults, no cache. ``LLMGrader`` is asked as py-openjudge's is: the same template, a schema.

*In flight* is how many calls are asked at a time. A provider that answers at once keeps few of
1,024 waiting; with ``--latency fixed:0.2`` all of them are.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from adjudge.mock import start_mock

ROOT = Path(__file__).parent.parent
CLIENTS = {
    "floor: raw protocol": ("judge_floor", "raw"),
    "bare aiohttp": ("judge_floor", "aiohttp"),
    "adjudge transport": ("judge_ours", "transport"),
    "adjudge model": ("judge_ours", "model"),
    "adjudge grader": ("judge_ours", "grader"),
    "adjudge grader, schema": ("judge_ours", "schema"),
    "adjudge LLMGrader": ("judge_ours", "llm"),
    "adjudge LLMGrader, plain": ("judge_ours", "llm-plain"),
    "adjudge relevance": ("judge_ours", "relevance"),
}
PEER = "py-openjudge"
PEER_CALLS = {64: 300, 256: 512, 1024: 1024}
PEER_ROUNDS = 3
REPLY = '{"score": 1, "reason": "mock"}'
STEP_LATENCY = "fixed:0.005"

Row = dict[str, float]


class Client:
    """A client process: asked for so many calls, it answers with what they took."""

    def __init__(self, python: str, module: str, kind: str, url: str, in_flight: int) -> None:
        self.command = [python, "-m", f"benchmarks.{module}", kind, url, str(in_flight)]
        self.process = subprocess.Popen(
            self.command,
            cwd=ROOT,
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exc: object) -> None:
        self.process.communicate()

    def run(self, calls: int) -> Row:
        assert self.process.stdin is not None
        print(calls, file=self.process.stdin, flush=True)
        row: Row = self.read()
        if row["failed"]:
            raise RuntimeError(f"{row['failed']:.0f} of {calls} calls failed: {self.command}")
        return row

    def read(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())


def environment() -> dict[str, str]:
    """No proxy, no other address, a key that is none, and the peer's log off."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not (name.startswith("OPENAI_") or name.upper().endswith("_PROXY"))
    }
    return kept | {"OPENAI_API_KEY": "sk-none", "LOGURU_AUTOINIT": "0"}


def measured(
    url: str, in_flight: int, calls: int, rounds: int, peer: str | None
) -> dict[str, list[Row]]:
    """All clients at one concurrency, round by round; the peer in the first few of them."""
    with ExitStack() as stack:
        clients = {
            name: stack.enter_context(Client(sys.executable, *client, url, in_flight))
            for name, client in CLIENTS.items()
        }
        for client in clients.values():  # connections open, and the limit grows to what is needed
            client.run(max(2 * in_flight, 500))
        work = dict.fromkeys(clients, calls)
        if peer is not None:
            clients[PEER] = stack.enter_context(
                Client(peer, "peer_openjudge_judge", "calls", url, in_flight)
            )
            clients[PEER].run(64)
            work[PEER] = PEER_CALLS[in_flight]
        rows: dict[str, list[Row]] = {name: [] for name in clients}
        for number in range(rounds):
            for name, client in clients.items():
                if name != PEER or number < PEER_ROUNDS:
                    rows[name].append(client.run(work[name]))
    return rows


def paired(rows: Sequence[Row], others: Sequence[Row], what: str) -> float:
    """Median of ``rows / others``, each round by itself."""
    pairs = zip(rows, others, strict=False)
    return statistics.median(row[what] / other[what] for row, other in pairs)


def summary(rows: dict[str, list[Row]]) -> dict[str, Row]:
    table: dict[str, Row] = {}
    for name, found in rows.items():
        table[name] = {key: statistics.median(one[key] for one in found) for key in found[0]}
        table[name]["vs_aiohttp"] = paired(found, rows["bare aiohttp"], "cpu_us")
        if PEER in rows:
            table[name]["cpu_vs_peer"] = paired(rows[PEER], found, "cpu_us")
            table[name]["rate_vs_peer"] = paired(found, rows[PEER], "per_s")
    return table


def show(in_flight: int, table: dict[str, Row]) -> None:
    peer = f"{'CPU vs peer':>13}{'rate vs peer':>14}" if PEER in table else ""
    head = f"{'CPU µs/call':>12}{'calls/s':>10}{'vs aiohttp':>12}{'peak MB':>9}"
    print(f"\n{f'{in_flight:,} in flight':26}{head}{peer}")
    for name, row in table.items():
        line = f"{name:26}{row['cpu_us']:12.1f}{row['per_s']:10,.0f}{row['vs_aiohttp']:11.2f}x"
        line += f"{row['peak_mb']:9.0f}"
        if peer:
            line += f"{row['cpu_vs_peer']:12.1f}x{row['rate_vs_peer']:13.1f}x"
        print(line, flush=True)


def growth(url: str, sizes: Sequence[int], rounds: int) -> dict[int, Row]:
    """Ours with more and more calls at 64 in flight, each size in fresh processes."""
    rows: dict[int, list[Row]] = {size: [] for size in sizes}
    for _ in range(rounds):
        for size in sizes:
            with Client(sys.executable, *CLIENTS["adjudge grader"], url, 64) as client:
                client.run(1000)
                rows[size].append(client.run(size))
    return {
        size: {key: statistics.median(one[key] for one in found) for key in found[0]}
        for size, found in rows.items()
    }


def show_growth(table: dict[int, Row]) -> None:
    print(f"\n{'growth, 64 in flight':26}{'CPU µs/call':>12}{'calls/s':>10}{'peak MB':>9}")
    for size, row in table.items():
        line = f"{f'adjudge grader, {size:,}':26}{row['cpu_us']:12.1f}{row['per_s']:10,.0f}"
        print(f"{line}{row['peak_mb']:9.0f}")
    small, large = min(table), max(table)
    first, last = table[small], table[large]
    exponent = 1 + math.log(last["cpu_us"] / first["cpu_us"]) / math.log(large / small)
    kept = (last["grown_mb"] - first["grown_mb"]) * 1e6 / (large - small)
    print(f"CPU grows with calls to the power {exponent:.2f}; a call leaves {kept:,.0f} bytes")


def steps(peer: str | None) -> dict[str, dict[str, list[int]]]:
    """One model and one runner through several ``asyncio.run``, then threads: what failed."""
    clients = {"adjudge": (sys.executable, "judge_ours")}
    if peer is not None:
        clients[PEER] = (peer, "peer_openjudge_judge")
    found = {}
    with start_mock(reply=REPLY, latency=(STEP_LATENCY,), seed=1) as url:
        for name, (python, module) in clients.items():
            with Client(python, module, "steps", url, 32) as client:
                found[name] = client.read()
    return found


def show_steps(table: dict[str, dict[str, list[int]]]) -> None:
    print("\nfailures of 64 calls, one model and runner: asyncio.run six times, then eight threads")
    for name, row in table.items():
        cells = "".join(f"{failed:4}" for failed in row["steps"])
        threads = "".join(f"{failed:4}" for failed in row["threads"])
        print(f"{name:16}{cells}   |{threads}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--peer-python", help="an interpreter that has py-openjudge")
    parser.add_argument("--latency", metavar="SPEC", help="the provider's, as for adjudge mock")
    parser.add_argument("--quick", action="store_true", help="64 in flight, fewer calls and rounds")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    peer = arguments.peer_python
    rounds, calls = (4, 1_000) if arguments.quick else (15, 3_000)
    sizes = (1_000, 5_000) if arguments.quick else (1_000, 5_000, 10_000, 50_000)
    report: dict[str, Any] = {"in_flight": {}}
    latency = (arguments.latency,) if arguments.latency else ()
    with start_mock(reply=REPLY, latency=latency, seed=1) as url:
        for in_flight in (64,) if arguments.quick else (64, 256, 1024):
            table = summary(measured(url, in_flight, calls, rounds, peer))
            report["in_flight"][in_flight] = table
            show(in_flight, table)
        report["growth"] = growth(url, sizes, 1 if arguments.quick else 3)
        show_growth(report["growth"])
    report["steps"] = steps(peer)
    show_steps(report["steps"])
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
