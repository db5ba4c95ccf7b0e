"""Training steps whose judging overlaps generation, beside the same steps judged at the end.

    PYTHONPATH=src OMP_NUM_THREADS=1 python benchmarks/train_overlap.py [--quick]
        [--batch 128] [--lanes 8] [--latency fixed:0.2] [--json FILE]

Needs what `adjudge train` needs. Three arms, each a process with a judge (`adjudge mock`) of its
own: judged when all rollouts have ended, judged as they end, and one step behind
(`pipeline_async_enabled`). Before they start, the number of questions in flight is chosen so that
judging a step takes as long as generating it when one follows the other. Then the arms take turns,
a few steps at a time, so that a machine that others use is as busy for one as for another; the
first step of a turn is not counted, since the arm that is behind comes to it with its judging done.
The first two arms must find the same rewards and the same final weights.

All numbers are medians over turns, with the middle half of the ratios in brackets. "Not run" is the
time for which the generating thread was ready and others had the cores (Linux only).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from adjudge.engine.loop import run_blocking
from adjudge.mock import start_mock
from adjudge.runner.journal import Journal
from adjudge.trainers.scoring import Scorer
from adjudge_lab.rl.collector import RolloutCollector
from adjudge_lab.rl.episodes import build_task
from adjudge_lab.rl.local_player import LocalPlayer
from adjudge_lab.rl.policy import build_first_policy, load_policy, save_policy
from adjudge_lab.rl.rewards import build_reward_spec
from adjudge_lab.rl.rollouts import Rollout, RolloutBatch, RolloutStore, ScoredRollouts
from adjudge_lab.rl.runfile import RunFile
from adjudge_lab.rl.runfile_checks import resolve_run_file
from adjudge_lab.rl.trl_backend import TrainerHooks, load_libraries, train_policy

EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "rl_tiny.toml"
LATENCIES = ("fixed:0.2", "lognormal:0.2,0.5")
AT_END, AS_THEY_END, BEHIND = "at the end", "as they end", "one step behind"
ARMS = (AT_END, AS_THEY_END, BEHIND)
TURN = 3
"""Steps of a turn; the first is not counted."""
TURNS = 10
HEAD = (
    "| judged | generate | judge | wait | update | step | ratio | generating: CPU | not run "
    "| asking: CPU |"
)

Row = dict[str, float]
Turns = list[dict[str, Row]]
"""Each turn's rows by arm."""


class Case(NamedTuple):
    """``lanes`` of ``batch`` rollouts played at once, ``flight`` questions to the judge at once."""

    latency: str
    batch: int
    lanes: int
    flight: int
    turns: int


class Watched(RolloutCollector):
    """A collector that notes for how long each step was generated and judged."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.judged: dict[int, tuple[float, float]] = {}
        self.generated: dict[int, tuple[float, float]] = {}
        self.computed = 0.0
        self.began: float | None = None

    def generate(self, step: int, version: int) -> RolloutBatch:
        if self.began is None:
            wait_for_turn("ready")
            self.began = time.perf_counter()
        cpu, delay = time.thread_time(), not_run()
        batch = super().generate(step, version)
        self.generated[step] = (time.thread_time() - cpu, not_run() - delay)
        return batch

    async def _judge(self, step: int, rollouts: Sequence[Rollout]) -> None:
        began = time.perf_counter()
        await super()._judge(step, rollouts)
        first, _ = self.judged.get(step, (began, began))
        self.judged[step] = (min(first, began), time.perf_counter())


class AtEnd(Watched):
    """A collector that asks the judge when all rollouts of a step have ended."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._held: list[tuple[RolloutBatch, Sequence[Rollout]]] = []

    def _ask(self, batch: RolloutBatch, rollouts: Sequence[Rollout]) -> None:
        self._held.append((batch, list(rollouts)))

    def score_batch(self, batch: RolloutBatch) -> ScoredRollouts:
        held, self._held = self._held, []
        for one in held:
            super()._ask(*one)
        return super().score_batch(batch)


def not_run() -> float:
    """Seconds for which this thread could have run and did not get a core; 0 where not known."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0


def wait_for_turn(said: Any) -> None:
    """Say something, and wait until this process is told to go on."""
    print(json.dumps(said), flush=True)
    if not sys.stdin.readline():
        sys.exit("nobody waits for this arm any more")


def end_with(parent: int) -> None:
    """End this process when its parent has: its judge is gone, too, and would be waited for."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


def run_of(case: Case, arm: str, warm_start: int) -> RunFile:
    """The example's run with the settings of ``case``, its judge asked without a service."""
    data = tomllib.loads(EXAMPLE.read_text(encoding="utf-8"))
    del data["services"]
    data["judge"]["mock"] |= {"latency": [case.latency], "fail": []}
    data["rollout"]["episodes_per_batch"] = case.lanes
    data["training"] |= {
        "iterations_per_epoch": case.turns * TURN,
        "batch_size": case.batch,
        "learning_rate": 1e-5,  # replies that stay as long as they are keep the balance
        "warm_start_iterations": warm_start,
        "async_semaphore_max": case.flight,
        "pipeline_async_enabled": arm == BEHIND,
        "save_every_n_iters": 1000,
    }
    return resolve_run_file(data, where=EXAMPLE.name, folder=EXAMPLE.parent)


def worked(run: RunFile, arm: str, start: Path, url: str) -> dict[str, Any]:
    """Train one arm from the policy in ``start``, turn by turn."""
    spec = build_reward_spec(run, url)
    model, tokenizer = load_policy(start)
    player = LocalPlayer(
        model, tokenizer,
        max_tokens=run.rollout.max_tokens, temperature=run.rollout.temperature,
        seed=run.training.seed,
    )  # fmt: skip
    rewards: list[list[float | None]] = []
    rows: list[Row] = []
    with TemporaryDirectory() as folder:
        journal = Journal(Path(folder) / "journal.jsonl", "overlap")
        collector = (AtEnd if arm == AT_END else Watched)(
            run, build_task(run, spec), Scorer(spec, journal=journal), player,
            journal=journal, store=RolloutStore(Path(folder) / "state"),
        )  # fmt: skip

        def stepped(step: int, row: Row) -> bool:
            assert collector.began is not None
            seconds = time.perf_counter() - collector.began
            rows.append(row_of(collector, step, row, seconds, run_blocking(loop_cpu())))
            if step % TURN == 0:
                wait_for_turn([median_row(rows[1 - TURN :])])
            collector.began = time.perf_counter()
            return False

        def settled(one: ScoredRollouts) -> None:
            rewards.append([result.score for result in one.results])

        train_policy(
            model, tokenizer, run, TrainerHooks(run, collector, on_settled=settled),
            folder=Path(folder) / "checkpoints", resume=None, on_step=stepped,
            on_saved=lambda _: None,
        )  # fmt: skip
    return {"rewards": rewards, "weights": digest(model)}


async def loop_cpu() -> float:
    """What the thread that asks the judges has computed so far."""
    return time.thread_time()


def row_of(collector: Watched, step: int, row: Row, seconds: float, computed: float) -> Row:
    """A step in seconds; ``judge`` from the first question to the last answer."""
    first, last = collector.judged[step]
    cpu, delay = collector.generated[step]
    asking, collector.computed = computed - collector.computed, computed
    return {
        "generate": row["generate_s"],
        "judge": last - first,
        "wait": row["judge_wait_s"],
        "update": row["update_s"],
        "step": seconds,
        "cpu": cpu,
        "asking": asking,
        "not_run": delay,
    }


def median_row(rows: Sequence[Row]) -> Row:
    """The median of each number."""
    return {name: median(row[name] for row in rows) for name in rows[0]}


def digest(model: Any) -> str:
    """The weights, bit for bit."""
    said = sha256()
    for name, one in sorted(model.state_dict().items()):
        said.update(name.encode() + one.detach().cpu().numpy().tobytes())
    return said.hexdigest()


class Arm:
    """A process that trains one arm when it is told to."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._next()

    def turn(self) -> Row:
        """Let it do its steps: what they took."""
        row: Row = self._told()[0]
        return row

    def end(self) -> dict[str, Any]:
        """Let it finish: its rewards and weights."""
        found: dict[str, Any] = self._told()
        return found

    def _told(self) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return self._next()

    def _next(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            sys.exit(f"an arm died (exit code {self._process.wait()})")
        return json.loads(line)


@contextmanager
def started(case: Case, arm: str, start: Path) -> Iterator[Arm]:
    """An arm and its judge."""
    mock = run_of(case, arm, 0).judge.mock
    assert mock is not None
    with start_mock(mock.settings()) as url:
        work = json.dumps([case, arm, str(start), url])
        command = [sys.executable, "-W", "ignore", __file__, "--work", work]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:
            try:
                yield Arm(process)
            finally:
                process.kill()


def calibrated(case: Case, start: Path) -> Case:
    """``case`` with so many questions in flight that judging takes as long as generating."""
    with started(case._replace(turns=2), AT_END, start) as arm:
        found = median_row([arm.turn(), arm.turn()])
    flight = max(1, round(case.flight * found["judge"] / found["generate"]))
    print(f"generating {found['generate']:.2f} s a step: {flight} in flight", flush=True)
    return case._replace(flight=flight)


def measured(case: Case, start: Path) -> Turns:
    """What the arms came to; complains where the first two found different things."""
    turns: Turns = []
    with (
        started(case, AT_END, start) as one,
        started(case, AS_THEY_END, start) as other,
        started(case, BEHIND, start) as behind,
    ):
        arms = dict(zip(ARMS, (one, other, behind), strict=True))
        for number in range(case.turns):
            first = number % len(ARMS)
            order = (*ARMS[first:], *ARMS[:first])
            turns.append({name: arms[name].turn() for name in order})
            print(f"  {said(turns[-1])}", flush=True)
        if one.end() != other.end():
            sys.exit("judged at the end and as they end: not the same rewards and weights")
    return turns


def said(turn: dict[str, Row]) -> str:
    """A turn in a line."""
    base = turn[AT_END]
    rest = ", ".join(
        f"{arm} {turn[arm]['step']:.2f} s ({base['step'] / turn[arm]['step']:.2f})" for arm in ARMS
    )
    return (
        f"one after the other: generating {base['generate']:.2f} s, judging {base['judge']:.2f} s; "
        f"a step {rest}; load {os.getloadavg()[0]:.1f}"
    )


def table(turns: Turns) -> str:
    """Seconds a step, as Markdown."""
    lines = [HEAD, "|---" * HEAD[1:].count("|") + "|"]
    for arm in ARMS:
        row = median_row([turn[arm] for turn in turns])
        ratios = sorted(turn[AT_END]["step"] / turn[arm]["step"] for turn in turns)
        low, high = ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]
        row["ratio"] = median(ratios)
        names = ("generate", "judge", "wait", "update", "step", "ratio", "cpu", "not_run", "asking")
        cells = {name: f"{row[name]:.2f}" for name in names}
        if arm != AT_END:
            cells["ratio"] += f" ({low:.2f}-{high:.2f})"
        lines.append(f"| {arm} | {' | '.join(cells.values())} |")
    return "\n".join(lines)


def main() -> None:
    """Warm up once, then measure each latency and print its table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true", help="one turn, fixed latency")
    parser.add_argument("--turns", type=int, default=TURNS, help=f"of {TURN - 1} counted steps")
    parser.add_argument("--batch", type=int, default=128, help="rollouts a step")
    parser.add_argument("--lanes", type=int, default=8, help="rollouts played side by side")
    parser.add_argument("--latency", action="append", help="as `adjudge mock` takes it")
    parser.add_argument("--start", type=Path, help="a policy's folder, instead of a warm start")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--work", help=argparse.SUPPRESS)
    given = parser.parse_args()
    quiet()
    if given.work:
        threading.Thread(target=end_with, args=(os.getppid(),), daemon=True).start()
        case, arm, place, url = json.loads(given.work)
        print(json.dumps(worked(run_of(Case(*case), arm, 0), arm, Path(place), url)), flush=True)
        return
    report: dict[str, Any] = {}
    with TemporaryDirectory() as folder:
        start = given.start or warmed(Path(folder))
        for latency in given.latency or (LATENCIES[:1] if given.quick else LATENCIES):
            case = Case(latency, given.batch, given.lanes, 16, 1 if given.quick else given.turns)
            print(f"{latency}: steps of {case.batch}, {case.lanes} at a time", flush=True)
            found = measured(calibrated(case, start), start)
            print("rewards and weights of the first two arms are equal; seconds a step:")
            print(table(found), flush=True)
            report[latency] = found
    if given.json:
        given.json.write_text(json.dumps(report))


def warmed(folder: Path) -> Path:
    """The policy that all arms start from: it can speak, and is often wrong."""
    run = run_of(Case(LATENCIES[0], 64, 16, 16, 1), AT_END, 60)
    model, tokenizer, _ = build_first_policy(run, str(folder / "sft"), lambda _: None)
    save_policy(model, tokenizer, folder / "start")
    return folder / "start"


def quiet() -> None:
    """One thread for torch, and no bars."""
    load_libraries()


if __name__ == "__main__":
    main()
