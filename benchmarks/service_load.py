"""A judge service under load for long, then under too much, then back.

    python benchmarks/service_load.py [--minutes M] [--quick] [--json FILE]

A real ``adjudge serve`` with a judge that takes a model's time (benchmarks/service_load_judge.py),
asked over ``/judge`` and ``/batch_judge``. Its capacity is measured first (a closed loop); then
Poisson arrivals at 80 % of it, three times it for a minute, and 80 % again. Latency counts from
when a request was due. Every answer is checked against its request; the server's memory and CPU
time are read each second. "in line" is the share of time that the server could have run and other
processes did; "skipped" what the generator did not send since it did not run itself: on a machine
that is not idle, latencies are also those of the machine. Exits with 1 if an answer was wrong or
lost, if there was a 429 at 80 %, if latency did not return, or if memory grew.

With a full queue at the end of the overload, what comes back cannot be faster than queue_size /
(capacity - offered): a few seconds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import uvloop

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.service import cpu_of
from benchmarks.service_load_generator import Load, Phase
from tests.unit.helpers.service_processes import outcomes

from adjudge.service.server import RunningService, start_service_process

HERE = Path(__file__).parent
JUDGE = "benchmarks.service_load_judge:Judge"
QUEUE = 1000
CONNECTIONS = 256
STEADY, OVER = 0.8, 3.0


class Watch:
    """The server's memory and CPU, and this process's CPU, sampled each second."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self.samples: list[tuple[float, float, float, float, float]] = []

    async def run(self) -> None:
        while True:
            self.look()
            await asyncio.sleep(1.0)

    def look(self) -> None:
        pages = int(Path(f"/proc/{self._pid}/statm").read_text().split()[1])
        mb = pages * os.sysconf("SC_PAGE_SIZE") / 1e6
        threads = Path(f"/proc/{self._pid}/task").glob("*/schedstat")
        waited = sum(int(one.read_text().split()[1]) for one in threads) / 1e9
        now = time.perf_counter()
        self.samples.append((now, mb, cpu_of(self._pid), time.process_time(), waited))

    def during(self, phase: Phase) -> dict[str, float]:
        end = phase.began + phase.seconds
        found = [one for one in self.samples if phase.began <= one[0] <= end] or self.samples[-1:]
        seconds = max(found[-1][0] - found[0][0], 1e-9)
        mb = [one[1] for one in found]
        late = found[len(found) // 3 :]  # what is allocated once is by then
        slope = 0.0
        if len(late) > 10:
            slope, _ = statistics.linear_regression(
                [one[0] for one in late], [one[1] for one in late]
            )
        return {
            "rss_first_mb": mb[0],
            "rss_peak_mb": max(mb),
            "rss_last_mb": mb[-1],
            "rss_mb_per_hour": slope * 3600,
            "server_cpu": (found[-1][2] - found[0][2]) / seconds,
            "server_waited_for_cpu": (found[-1][4] - found[0][4]) / seconds,
            "generator_cpu": (found[-1][3] - found[0][3]) / seconds,
        }


async def loaded(running: RunningService, lengths: dict[str, float]) -> dict[str, Any]:
    load, watch = Load(running.port), Watch(running.pid)
    watching = asyncio.create_task(watch.run())
    warm = Phase("warm")
    await load.closed(warm, CONNECTIONS, min(2.0, lengths["capacity"]))
    phases = [Phase("capacity")]
    await load.closed(phases[0], CONNECTIONS, lengths["capacity"])
    capacity = phases[0].per_s
    for name, times in (("steady", STEADY), ("overload", OVER), ("after", STEADY)):
        phases.append(Phase(name))
        print(f"{name}: {times * capacity:,.0f} items/s, {lengths[name]:.0f} s", flush=True)
        await load.scheduled(phases[-1], times * capacity, lengths[name])
    await load.finish(*phases)
    watch.look()
    watching.cancel()
    load.close()
    rows = {phase.name: row(phase, watch) for phase in phases}
    return {
        "capacity": capacity,
        "phases": rows,
        "normal_after_s": recovered(phases[1], phases[3]),
        "server_counted": await asyncio.to_thread(outcomes, running.url),
        "load_average": os.getloadavg(),
    }


def row(phase: Phase, watch: Watch) -> dict[str, Any]:
    took = sorted(phase.took)

    def at(share: float) -> float:
        return took[min(int(len(took) * share), len(took) - 1)] * 1e3

    return {
        "seconds": round(phase.seconds, 2),
        "skipped_s": round(phase.skipped_s, 2),
        "sent": phase.sent,
        "answered": phase.answered,
        "failed": dict(phase.failed),
        "wrong": phase.wrong,
        "lost": phase.lost,
        "resent": phase.resent,
        **({f"p{q * 100:g}_ms": at(q) for q in (0.5, 0.99, 0.999)} if took else {}),
        "max_ms": at(1.0) if took else None,
        "last_429_s": phase.last_429,
        "retry_after_s": {str(s): n for s, n in sorted(phase.retry_after.items())},
        **watch.during(phase),
    }


def recovered(steady: Phase, after: Phase) -> int | None:
    """Seconds until a second's slowest percent is within twice what it usually was before."""

    def p99(values: list[float]) -> float:
        return sorted(values)[int(len(values) * 0.99)]

    limit = 2 * statistics.median(map(p99, steady.latencies_by_second().values()))
    for second, values in sorted(after.latencies_by_second().items()):
        if p99(values) <= limit:
            return second
    return None


def complaints(found: dict[str, Any], growth_mb: float) -> list[str]:
    problems = []
    for name, one in found["phases"].items():
        failed = sum(one["failed"].values())
        if one["wrong"] or one["lost"] or one["sent"] != one["answered"] + failed:
            problems.append(f"{name}: answers are wrong or lost")
        if set(one["failed"]) - {"429"}:
            problems.append(f"{name}: failures other than 429: {one['failed']}")
        if "0" in one["retry_after_s"]:
            problems.append(f"{name}: a 429 without Retry-After")
    if found["phases"]["steady"]["failed"]:
        problems.append("steady: a 429 below capacity")
    if found["normal_after_s"] is None:
        problems.append("after: latency did not come back")
    elif (found["phases"]["after"]["last_429_s"] or 0.0) > found["normal_after_s"]:
        problems.append("after: a 429 when the queue had emptied")
    steady, after = found["phases"]["steady"], found["phases"]["after"]
    grown = steady["rss_last_mb"] - steady["rss_first_mb"]
    if max(grown, after["rss_last_mb"] - found["phases"]["overload"]["rss_peak_mb"]) > growth_mb:
        problems.append(f"the server grew by {grown:.1f} MB")
    return problems


def shown(found: dict[str, Any]) -> None:
    print(f"capacity {found['capacity']:,.0f} items/s, machine load {found['load_average'][0]:.1f}")
    print(
        f"{'':9} {'s':>5} {'sent':>8} {'answered':>8} {'429':>7} {'other':>5} {'wrong':>5} "
        f"{'lost':>4} {'p50 ms':>7} {'p99 ms':>7} {'max ms':>7} {'RSS MB':>13} {'CPU srv/gen':>11} "
        f"{'in line':>8} {'skipped s':>9}"
    )
    for name, one in found["phases"].items():
        other = sum(one["failed"].values()) - one["failed"].get("429", 0)
        print(
            f"{name:9} {one['seconds']:5.0f} {one['sent']:8,} {one['answered']:8,} "
            f"{one['failed'].get('429', 0):7,} {other:5} {one['wrong']:5} {one['lost']:4} "
            f"{one.get('p50_ms', 0):7.1f} {one.get('p99_ms', 0):7.1f} {one['max_ms'] or 0:7.1f} "
            f"{one['rss_first_mb']:6.1f}-{one['rss_last_mb']:6.1f} "
            f"{one['server_cpu']:5.0%}/{one['generator_cpu']:4.0%} "
            f"{one['server_waited_for_cpu']:8.0%} {one['skipped_s']:9.1f}"
        )
    print(
        f"memory in the steady phase: {found['phases']['steady']['rss_mb_per_hour']:+.2f} MB/h; "
        f"usual latency {found['normal_after_s']} s after the overload"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--minutes", type=float, default=10.0, help="at 80 %% of capacity")
    parser.add_argument("--quick", action="store_true", help="20 s, then 10 s of overload")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    target = arguments.json and arguments.json.resolve()
    lengths = {"capacity": 10.0, "steady": arguments.minutes * 60, "overload": 60.0, "after": 30.0}
    if arguments.quick:
        lengths = {"capacity": 3.0, "steady": 20.0, "overload": 10.0, "after": 10.0}
    os.chdir(HERE.parent)  # where the judge's module is found
    command = [sys.executable, "-m", "adjudge", "serve", JUDGE, "--port=0", "--json", "--until-eof"]
    with start_service_process([*command, f"--queue-size={QUEUE}"]) as (running, _):
        found = uvloop.run(loaded(running, lengths))
    shown(found)
    if target is not None:
        target.write_text(json.dumps(found, indent=1))
    if problems := complaints(found, growth_mb=20.0):
        raise SystemExit("\n".join(problems))


if __name__ == "__main__":
    main()
