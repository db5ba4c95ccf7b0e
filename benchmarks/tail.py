"""Slow judges and outages: what a step of 2,000 calls waits for, in virtual time.

    python benchmarks/tail.py [--seeds 5] [--json FILE]

Latency is lognormal (median 0.2 s, 99th percentile 20 times that), one call in 200 hangs for 60 s,
and at most 64 calls are in flight, hedges included. Every strategy is driven by 64 workers over one
iterator; medians over seeds. Nothing really waits, so a run takes seconds and says nothing about
CPU time; only the last table does, with a transport and a wire that answer at once.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.unit.helpers.virtual_time import run_virtual

from adjudge.errors import ErrorKind, GradingFailure
from adjudge.judges.base import ChatCall, HttpRequest, HttpResponse, Reply, Transport
from adjudge.judges.endpoint.endpoint import Endpoint
from adjudge.judges.endpoint.settings import CallPolicy, EndpointKey, EndpointSettings

FEW = 20
CALLS, CAP, MEDIAN_S, SIGMA = 2_000, 64, 0.2, 1.288
HANG_SHARE, HANG_S = 0.005, 60.0
OUTAGE = (60.0, 120.0)
END_S = 180.0

Ask = Callable[[], Awaitable[object]]
Latency = Callable[["Server"], float]
Row = dict[str, float]


def lognormal(server: Server, sigma: float = SIGMA) -> float:
    return MEDIAN_S * math.exp(server.random.gauss(0.0, sigma))


def with_hangs(server: Server, share: float = HANG_SHARE) -> float:
    return HANG_S if server.random.random() < share else lognormal(server)


def with_load(server: Server, sigma: float = SIGMA) -> float:
    """Five times as slow at 64 in flight as alone."""
    return lognormal(server, sigma) * (1 + (server.in_flight / 32) ** 2)


class Server:
    """A provider in virtual time; ``status`` says what it answers at which time (0: no line)."""

    def __init__(
        self,
        seed: int,
        latency: Latency = with_hangs,
        status: Callable[[Server, float], int] = lambda server, now: 200,
    ) -> None:
        self.random = random.Random(seed)
        self.latency = latency
        self.status = status
        self.in_flight = self.peak = 0
        self.times: list[float] = []

    async def post(self, base_url: str, request: HttpRequest) -> HttpResponse:
        now = asyncio.get_running_loop().time()
        self.times.append(now)
        self.in_flight += 1
        self.peak = max(self.peak, self.in_flight)
        try:
            status = self.status(self, now)
            await asyncio.sleep(self.latency(self) if status == 200 else 0.01)
            if status == 0:
                raise GradingFailure(ErrorKind.CONNECTION, "refused")
        finally:
            self.in_flight -= 1
        return HttpResponse(status=status, headers={}, body=b"")

    async def aclose(self) -> None:
        pass


class PlainWire:
    """A wire that costs nothing."""

    reply_of = Reply(text="1")

    def request(self, call: ChatCall) -> HttpRequest:
        return REQUEST

    def reply(self, call: ChatCall, response: HttpResponse) -> Reply:
        if response.status == 429:
            raise GradingFailure(ErrorKind.RATE_LIMITED, "429", {"status": 429})
        return self.reply_of


REQUEST = HttpRequest(path="/chat/completions", headers={}, body=b"")
CALL = ChatCall(model="m", messages=[{"role": "user", "content": "?"}])
WIRE = PlainWire()


async def drive(ask: Ask, n: int = CALLS, workers: int = CAP) -> float:
    """``n`` calls by ``workers``; seconds on the loop's clock."""
    loop = asyncio.get_running_loop()
    start = loop.time()
    work = iter(range(n))

    async def worker() -> None:
        for _ in work:
            await ask()

    async with asyncio.TaskGroup() as group:
        for _ in range(workers):
            group.create_task(worker())
    return loop.time() - start


# ── strategies ───────────────────────────────────────────────────────────────────────────────────


def gather(server: Server) -> Ask:
    return lambda: server.post("", REQUEST)


def fixed_timeout(server: Server) -> Ask:
    async def ask() -> None:
        while True:
            try:
                async with asyncio.timeout(30):
                    await server.post("", REQUEST)
            except TimeoutError:
                continue
            return

    return ask


def adaptive_timeout(server: Server) -> Ask:
    """1.3 × the 99th percentile, at least 4 × the median, doubling; 8 s until 64 calls are done."""
    seen: list[float] = []

    def quantile() -> float:
        if len(seen) < 64:
            return 40 * MEDIAN_S
        window = sorted(seen[-2000:])
        return window[int(len(window) * 0.99)]

    async def ask() -> None:
        loop = asyncio.get_running_loop()
        for attempt in range(8):
            limit = max(quantile(), 4 * MEDIAN_S) * 1.3 * 2.0 ** max(0, attempt - 1)
            start = loop.time()
            try:
                async with asyncio.timeout(limit):
                    await server.post("", REQUEST)
            except TimeoutError:
                seen.append(limit)
            else:
                seen.append(loop.time() - start)
                return
        raise TimeoutError

    return ask


def open_line(server: Transport, policy: CallPolicy | None = None, **settings: Any) -> Endpoint:
    chosen = EndpointSettings(**{"max_concurrency": CAP} | settings), policy
    key = EndpointKey("test", ("http://a",), "", *chosen, transport=lambda: server)
    return Endpoint(key, rng=random.Random(1))


PEERS: dict[str, Callable[[Server], Ask]] = {
    "gather": gather,
    "gather, 30 s timeout, retry": fixed_timeout,
    "adaptive timeout alone": adaptive_timeout,
}
OURS: dict[str, dict[str, Any]] = {"endpoint": {}, "endpoint, no hedges": {"hedge": False}}


def step(name: str, latency: Latency, seed: int) -> Row:
    """One step of 2,000 calls by one strategy."""
    server, row = Server(seed, latency), Row()

    async def run() -> None:
        if name in PEERS:
            row["wall_s"] = await drive(PEERS[name](server))
            return
        line = open_line(server, **OURS[name])
        row["wall_s"] = await drive(lambda: line.ask(CALL, WIRE))
        row["hedges"] = line.stats.hedges / CALLS
        row["hedges_won"] = line.stats.hedge_wins / max(1, line.stats.hedges)

    run_virtual(run())
    return row | {"extra_sends": len(server.times) / CALLS - 1, "peak": server.peak}


def small_step(seed: int, earlier: int) -> Row:
    """20 calls at once, of which one in ten hangs, after a step of so many others."""
    server, row = Server(seed), Row()

    async def run() -> None:
        line = open_line(server)
        await drive(lambda: line.ask(CALL, WIRE), earlier)
        server.latency = partial(with_hangs, share=0.1)
        before = len(server.times)
        row["wall_s"] = await drive(lambda: line.ask(CALL, WIRE), FEW)
        row["extra_sends"] = (len(server.times) - before) / FEW - 1

    run_virtual(run())
    return row


def outage_status(server: Server, now: float, down: int) -> int:
    if OUTAGE[0] <= now < OUTAGE[1]:
        return down
    return 429 if now < OUTAGE[1] and server.random.random() < 0.1 else 200


def outage(seed: int, down: int) -> Row:
    """64 workers for 180 s; down from 60 to 120 s, one 429 in ten sends until then, then healthy.

    ``down`` is 0 (connection refused) or 200 with hangs only. ``sends_outage``: sends per call that
    was open during the outage; ``sends_all``: over the whole run; the rest: seconds after its end.
    """
    row: Row = {}
    done: list[float] = []
    asked: list[float] = []
    failed: list[str] = []

    def latency(server: Server) -> float:
        now = asyncio.get_running_loop().time()
        hangs = down == 200 and OUTAGE[0] <= now < OUTAGE[1]
        return 1e6 if hangs else lognormal(server, 0.5)

    server = Server(seed, latency, partial(outage_status, down=down))

    async def run() -> None:
        loop = asyncio.get_running_loop()
        line = open_line(server)

        async def worker() -> None:
            while loop.time() < END_S:
                asked.append(loop.time())
                try:
                    await line.ask(CALL, WIRE)
                    done.append(loop.time())
                except GradingFailure as failure:
                    failed.append(failure.kind)

        async with asyncio.TaskGroup() as group:
            for _ in range(CAP):
                group.create_task(worker())
        row["limit_cuts"] = line.stats.limit_cuts

    run_virtual(run())
    sends = sum(OUTAGE[0] <= at < OUTAGE[1] for at in server.times)
    pending = CAP + sum(OUTAGE[0] <= at < OUTAGE[1] for at in asked)
    full = CAP / (MEDIAN_S * math.exp(0.125))  # replies a second when all slots are busy
    rates = [sum(s <= at < s + 2 for at in done) / 2 for s in range(int(OUTAGE[1]), int(END_S) - 2)]
    row |= {
        "calls": len(asked),
        "failed": len(failed),
        "sends_outage": sends / pending,
        "sends_all": len(server.times) / len(asked),
        "first_reply_s": min(at for at in done if at >= OUTAGE[1]) - OUTAGE[1],
        "half_speed_s": next((s for s, r in enumerate(rates) if r >= 0.5 * full), math.nan),
        "full_speed_s": next((s for s, r in enumerate(rates) if r >= 0.9 * full), math.nan),
    }
    return row


class Instant:
    """A transport that answers at once."""

    RESPONSE = HttpResponse(status=200, headers={}, body=b"")

    async def post(self, base_url: str, request: HttpRequest) -> HttpResponse:
        return self.RESPONSE

    async def aclose(self) -> None:
        pass


def overhead(workers: int, n: int = 4_000, repeats: int = 30) -> Row:
    """CPU µs per call."""
    import uvloop

    spent = []

    async def run() -> None:
        line = open_line(Instant(), CallPolicy(start_concurrency=workers), max_concurrency=workers)
        for _ in range(repeats):
            start = time.process_time()
            await drive(lambda: line.ask(CALL, WIRE), n, workers)
            spent.append((time.process_time() - start) / n * 1e6)

    uvloop.run(run())
    return {"ask_us": min(spent)}


def medians(rows: list[Row]) -> Row:
    return {name: round(statistics.median(row[name] for row in rows), 3) for name in rows[0]}


def show(title: str, table: dict[str, Row]) -> None:
    columns = list(dict.fromkeys(column for row in table.values() for column in row))
    print(f"\n{title}\n" + " " * 30 + "".join(f"{column:>16.15}" for column in columns))
    for name, row in table.items():
        print(f"{name:30}" + "".join(f"{row.get(column, ''):>16}" for column in columns))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    seeds = range(options.seeds)
    report: dict[str, dict[str, Row]] = {}
    loads: dict[str, tuple[Latency, list[str]]] = {
        "heavy tail and hangs": (with_hangs, [*PEERS, *OURS]),
        "latency grows with load, heavy tail": (with_load, [*PEERS, *OURS]),
        "latency grows with load, little chance": (
            partial(with_load, sigma=0.3),
            ["gather", "adaptive timeout alone", *OURS],
        ),
    }
    for title, (latency, names) in loads.items():
        rows = {name: medians([step(name, latency, seed) for seed in seeds]) for name in names}
        for row in rows.values():
            row["vs_gather"] = round(rows["gather"]["wall_s"] / row["wall_s"], 2)
        report[title] = rows
        show(title, rows)
    starts = {"cold": 0, "warm": CALLS}
    report["small"] = {
        name: medians([small_step(seed, n) for seed in seeds]) for name, n in starts.items()
    }
    show(f"{FEW} calls, of which one in ten hangs", report["small"])
    report["outage"] = {
        "refused": medians([outage(seed, 0) for seed in seeds]),
        "hangs": medians([outage(seed, 200) for seed in seeds]),
    }
    show("outage of 60 s, one 429 in ten before it ends", report["outage"])
    report["overhead"] = {f"{n} in flight": overhead(n) for n in (64, 256, 1024)}
    show("CPU of Endpoint.ask", {k: medians([row]) for k, row in report["overhead"].items()})
    if options.json:
        options.json.write_text(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
