"""Up to 1,024 ranks before one judge service: what a step waits for, and what breaks first.

    python benchmarks/ranks.py [--each 8] [--cpu-ms 1] [--json FILE]

In virtual time, with the real client of every rank, the real queue of the service and the real
endpoint to the judge. Simulated are the wire, the service's one core (each judged sample holds it
for ``--cpu-ms``) and the inference servers: 64 calls at a time each, lognormal latency with a
median of 2 s and a 99th percentile of 8 s; what is more waits there. All ranks send ``--each``
samples at the same moment, as at the end of a generation.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.tail import CALL, WIRE

from adjudge.client.connection import LoopConnection, RequestOutcome, prepare_request
from adjudge.client.settings import ClientSettings
from adjudge.engine.clock import run_virtual
from adjudge.errors import ErrorKind, GradingFailure
from adjudge.judges.base import HttpRequest, HttpResponse
from adjudge.judges.endpoint.endpoint import Endpoint
from adjudge.judges.endpoint.settings import EndpointSettings
from adjudge.service.backend import BackendQueue, QueueFull
from adjudge.service.settings import ServiceSettings
from adjudge.wire import ErrorInfo, JudgeRequest, JudgeResponse

RANKS = (8, 64, 256, 1024)
SLOTS, MEDIAN_S, SIGMA = 64, 2.0, math.log(4.0) / 2.326


class Plan(NamedTuple):
    """What is set; ``None`` is the default of adjudge. ``services`` share the ranks evenly."""

    name: str
    judges: int
    services: int = 1
    concurrency: int | None = None
    queue: int | None = None
    seconds: float | None = None


class Judges:
    """Inference servers behind one address: each has 64 slots, and the fuller ones wait."""

    def __init__(self, count: int, seed: int) -> None:
        self._random, self._slots = random.Random(seed), asyncio.Semaphore(count * SLOTS)
        self.calls = self.open = self.peak = 0

    async def post(
        self, base_url: str, request: HttpRequest, on_chunk: Callable[[], None] | None = None
    ) -> HttpResponse:
        self.calls += 1
        self.open += 1
        self.peak = max(self.peak, self.open)
        try:
            async with self._slots:
                await asyncio.sleep(MEDIAN_S * math.exp(self._random.gauss(0.0, SIGMA)))
        finally:
            self.open -= 1
        return HttpResponse(status=200, headers={}, body=b"")

    async def aclose(self) -> None:
        pass


class JudgeBackend:
    """The service's backend: a judge asked through an endpoint, after some work of its core."""

    name, version, one_by_one = "judge", "1", True
    compares_groups: str | None = None

    def __init__(self, judges: Judges, core: asyncio.Lock, cpu_s: float, plan: Plan) -> None:
        settings = EndpointSettings()
        if plan.concurrency is not None:
            settings = msgspec.structs.replace(settings, max_concurrency=plan.concurrency)
        self._endpoint = Endpoint(["http://judge"], judges, settings)
        self._core, self._cpu_s = core, cpu_s
        self.core_s = 0.0

    async def start(self) -> None:
        pass

    async def score(self, requests: Sequence[JudgeRequest]) -> list[JudgeResponse]:
        async with self._core:
            self.core_s += self._cpu_s
            await asyncio.sleep(self._cpu_s)
        try:
            await self._endpoint.ask(CALL, WIRE)
        except GradingFailure as failure:
            return [JudgeResponse(error=ErrorInfo.of(failure, str(failure)))]
        return [JudgeResponse(0.5)]

    async def aclose(self) -> None:
        pass


class ServiceWire:
    """The wire from the ranks to one service; a connection is a request that is open there."""

    def __init__(self, judges: Judges, cpu_s: float, plan: Plan) -> None:
        default = ServiceSettings()
        settings = ServiceSettings(
            concurrency=plan.concurrency or default.concurrency,
            queue_size=plan.queue or default.queue_size,
            deadline_s=plan.seconds or default.deadline_s,
        )
        self.backend = JudgeBackend(judges, asyncio.Lock(), cpu_s, plan)
        self.queue = BackendQueue(self.backend, settings, lambda size: None)
        self.open = self.peak = self.peak_queue = self.refused = 0

    async def post(
        self, base_url: str, request: HttpRequest, on_chunk: Callable[[], None] | None = None
    ) -> HttpResponse:
        body = json.loads(request.body)
        raw = body.get("requests", [body])
        asked = [msgspec.convert(one, JudgeRequest) for one in raw]
        self.open += 1
        self.peak = max(self.peak, self.open)
        self.peak_queue = max(self.peak_queue, self.queue.waiting + len(asked))
        try:
            answers = await self.queue.score(asked)
        except QueueFull as full:
            self.refused += 1
            headers = {"retry-after": str(full.retry_after)}
            return HttpResponse(status=429, headers=headers, body=b"{}")
        finally:
            self.open -= 1
        said = {"responses": answers} if "requests" in body else answers[0]
        return HttpResponse(status=200, headers={}, body=msgspec.json.encode(said))

    async def aclose(self) -> None:
        pass


def simulate(plan: Plan, ranks: int, each: int, cpu_s: float, seed: int = 0) -> dict[str, Any]:
    """One step of ``ranks`` × ``each`` samples."""

    async def run() -> dict[str, Any]:
        loop = asyncio.get_running_loop()
        judges = Judges(plan.judges, seed)
        services = [ServiceWire(judges, cpu_s, plan) for _ in range(plan.services)]
        settings = ClientSettings.from_config({"judge_url": "http://service"})
        if plan.seconds is not None:
            settings = msgspec.structs.replace(settings, timeout=plan.seconds)
        clients = [
            LoopConnection(
                settings,
                Endpoint(["http://service"], services[rank % len(services)], settings.endpoint),
            )
            for rank in range(ranks)
        ]
        waiters: list[asyncio.Future[RequestOutcome]] = [
            client.ask(prepare_request(JudgeRequest(prompt=f"{rank}", completion=f"{place}")))
            for rank, client in enumerate(clients)
            for place in range(each)
        ]
        start = loop.time()
        await asyncio.wait(waiters)
        ended = loop.time() - start
        kinds = Counter(map(_failure_kind, (waiter.result() for waiter in waiters)))
        found = kinds.pop(None, 0)
        row = {
            "plan": plan.name, "ranks": ranks, "step_s": ended,
            "missing": 1.0 - found / len(waiters),
            "kinds": {str(kind): count for kind, count in kinds.most_common()},
            "connections": max(one.peak for one in services),
            "queue": max(one.peak_queue for one in services),
            "refused": sum(one.refused for one in services),
            "calls": judges.calls / len(waiters),
            "judge_calls": judges.peak,
            "core": max(one.backend.core_s for one in services) / ended,
        }  # fmt: skip
        for client in clients:
            await client.aclose()
        for one in services:
            one.queue.stop()
        return row

    return run_virtual(run())


def _failure_kind(answer: RequestOutcome) -> ErrorKind | str | None:
    if answer.response is not None and answer.response.score is not None:
        return None
    return answer.failure.kind if isinstance(answer.failure, GradingFailure) else "error"


def list_plans(samples: int) -> list[Plan]:
    """As installed; with settings for the size; with the judges that the size needs."""
    many = 16
    return [
        Plan("as installed, 1 judge server", 1),
        Plan("room and time, 1 judge server", 1, 1, None, samples, 600.0),
        Plan("room and time, 16 judge servers", many, 1, many * SLOTS, samples, 600.0),
        Plan("the same, 4 services", many, 4, many * SLOTS // 4, samples, 600.0),
    ]


def tabulate(rows: Sequence[dict[str, Any]]) -> str:
    """Markdown."""
    titles = (
        "settings", "ranks", "step", "missing", "connections", "queue", "refused",
        "calls a sample", "calls in flight", "core",
    )  # fmt: skip
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for row in rows:
        why = ", ".join(row["kinds"])
        missing = f"{row['missing']:.0%}" + (f" ({why})" if why else "")
        lines.append(
            f"| {row['plan']} | {row['ranks']:,} | {row['step_s']:.0f} s | {missing} | "
            f"{row['connections']:,} | {row['queue']:,} | {row['refused']:,} | "
            f"{row['calls']:.2f} | {row['judge_calls']:,} | {row['core']:.0%} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--each", type=int, default=8, help="samples of a rank and step")
    parser.add_argument("--cpu-ms", type=float, default=1.0, help="of the service, for a sample")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows = [
        simulate(plan, ranks, arguments.each, arguments.cpu_ms / 1e3)
        for plan in list_plans(max(RANKS) * arguments.each)
        for ranks in RANKS
    ]
    print(tabulate(rows))
    if arguments.json:
        arguments.json.write_text(json.dumps(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
