"""Kills runs that have a budget, and compares what their judge was paid with what they booked.

    python -m benchmarks.budget_kills --kills 1000 --seed 1

A judge of this process counts what it answers, at random cost within what was reserved. A run is
a forked process, killed after a random time and resumed in its folder until its budget is spent.
``paid <= booked <= budget`` is checked while the run works, after each kill and at its end, where
``summary.json`` must know of every kill and of every call. Exits with 1 where one fails.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

from benchmarks.train_resume import CountingJudge, Question, counting_judge

from adjudge import RewardSpec
from adjudge.runs.grading import grade_rollouts
from adjudge.runs.job import GradingJob
from adjudge.runs.spending import SPENDING_FILE

SPEC = """
[[graders]]
name = "quality"
type = "llm"
template = "From 0 to 1, how good is this? {{response}} {{reply_form}}"
score_range = [0.0, 1.0]
[missing]
max_missing = 1.0
patience_s = 0.0
[judges.main]
type = "vllm"
model = "m"
base_url = "{url}"
max_tokens = 100
temperature = 1.0
price = {{ input = 10.0, output = 30.0 }}
endpoint = {{ max_concurrency = {concurrency} }}
"""


class PaidJudge(CountingJudge):
    """Counts what it is paid, at once with the answer; ``answering``: how many it works on."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.paid, self.answering, self._rng = 0.0, 0, random.Random(seed)
        self._lock = threading.Lock()

    def reply(self, body: bytes) -> tuple[Question, bytes]:
        """The question and its answer."""
        prompt = json.loads(body)["messages"][-1]["content"]
        question = Question(prompt, time.time())
        with self._lock:
            self.answering += 1
            self.questions.append(question)
        time.sleep(self._rng.choice((0.0, 0.002, 0.02, 0.1)))
        reads, writes = self._rng.randint(1, len(prompt)), self._rng.randint(1, 100)
        message = {"role": "assistant", "content": '{"reason": "r", "score": 0.5}'}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        usage = {"prompt_tokens": reads, "completion_tokens": writes}
        with self._lock:
            self.paid += (reads * 10.0 + writes * 30.0) / 1e6
            self.answering -= 1
        return question, json.dumps({"model": "m", "choices": [choice], "usage": usage}).encode()


def booked(folder: Path) -> float:
    """What a run folder's file says that all invocations cost at most."""
    path = folder / "out" / SPENDING_FILE
    if not path.exists():
        return 0.0
    found = json.loads(path.read_text())["invocations"]
    return float(sum(one["cost_usd"] + one["reserved_usd"] for one in found))


def start_run(folder: Path, budget_usd: float) -> int:
    """Grade in a forked process; its number."""
    child = os.fork()
    if child:
        return child
    try:
        os.dup2(os.open(folder / "err.txt", os.O_CREAT | os.O_APPEND | os.O_WRONLY), 2)
        spec = RewardSpec.load(folder / "spec.toml")
        rows = [folder / "rollouts.jsonl"]
        grade_rollouts(
            GradingJob(rows, spec, folder / "out", show_progress=False, budget_usd=budget_usd)
        )
    except BaseException as error:  # noqa: BLE001  (a child never goes on in its parent's place)
        print(repr(error), file=sys.stderr)
        os._exit(1)
    os._exit(0)


def play_folder(judge: PaidJudge, rng: random.Random, folder: Path, most_kills: int) -> int:
    """Kill and resume one run until it ends; how often it was killed."""
    budget, kills, counted = rng.choice((0.02, 0.1, 0.5)) * rng.uniform(0.5, 1.5), 0, 0
    rows = [{"prompt": f"p{i // 4}", "response": f"{i} " + "x" * rng.randrange(400)}
            for i in range(rng.choice((20, 200, 600)))]  # fmt: skip
    (folder / "rollouts.jsonl").write_text("\n".join(map(json.dumps, rows)))
    spec = SPEC.format(url=judge.url, concurrency=rng.choice((1, 4, 20, 64)))
    (folder / "spec.toml").write_text(spec)
    before, asked = judge.paid, len(judge.questions)

    def check() -> None:
        paid = judge.paid - before  # before the file is read: both only grow
        found = booked(folder)
        if not paid - 1e-9 <= found <= budget + 1e-9:
            sys.exit(f"{folder}: paid {paid:.6f}, booked {found:.6f}, budget {budget:.6f}")

    while True:
        child, asked_before = start_run(folder, budget), len(judge.questions)
        end = time.monotonic() + (
            rng.choice((0.15, 0.5, 1.6)) * rng.random() if kills < most_kills else 600
        )
        done = 0
        while not done and time.monotonic() < end:
            check()
            done, status = os.waitpid(child, os.WNOHANG)
            time.sleep(0.005)
        if done:
            break
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        time.sleep(0.01)
        while judge.answering:
            time.sleep(0.005)
        kills += 1
        counted += len(judge.questions) > asked_before
        check()
    if status:
        sys.exit(f"{folder}: ended with {status}: {(folder / 'err.txt').read_text()[-500:]}")
    check()
    summary = json.loads((folder / "out" / "summary.json").read_text())["spending"]
    requests = len(judge.questions) - asked
    # A run that had written its last numbers when it was killed is no killed one.
    known = counted <= summary["invocations"] - 1 and summary["killed"] <= kills
    again = sum(one[n] for one in summary["endpoints"] for n in ("retries", "hedges", "timeouts"))
    if not (known and requests <= summary["calls"] + again):
        sys.exit(f"{folder}: {kills} kills ({counted} with calls), {requests} requests: {summary}")
    paid = judge.paid - before
    print(f"{kills:4} kills, {requests:5} requests, {summary['calls']:5} calls, paid {paid:.4f}, "
          f"booked {summary['cost_usd']:.4f}, budget {budget:.4f}", flush=True)  # fmt: skip
    return kills


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    rng, kills = random.Random(given.seed), 0
    with counting_judge(PaidJudge(given.seed)) as judge:
        while kills < given.kills:
            with tempfile.TemporaryDirectory() as folder:
                kills += play_folder(judge, rng, Path(folder), min(40, given.kills - kills))
    print(f"{kills} kills: paid <= booked <= budget at every look")


if __name__ == "__main__":
    main()
