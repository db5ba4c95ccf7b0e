"""A run that is killed and resumed, for the test that compares it with one that nobody disturbed.

Both ask a judge of this process, over HTTP, which remembers what it was asked and when. Libraries
are imported once, in a process that forks each attempt, so that a moment of the run is hit and not
an import. SIGKILL cannot be caught: what a run kept is what was with the operating system.
"""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, TypeVar

RUN = """
version = 1

[model]
base = "tiny"
label = "killed"

[[graders]]
name = "quality"
type = "llm"
template = "Right?\\n{{reply_form}}\\n{{rollout}}\\nQuestion: {{query}}\\nAnswer: {{response}}"
score_range = [0.0, 2.0]

[[graders]]
name = "gold"
type = "adjudge_lab.rl.tiny:CapitalGrader"
weight = 0.0

[judge]
type = "openai"
model = "counting"
base_url = "{url}"
combine_mode = "weighted_sum"
price = {{input = 1.0, output = 1.0}}

[rollout]
env_name = "capitals"
max_tokens = 12

[training]
iterations_per_epoch = {steps}
warm_start_iterations = 12
batch_size = 16
group_size = 4
save_every_n_iters = 3
async_semaphore_max = 8
pipeline_async_enabled = {lag}
seed = 5

[evaluation]
instances = 4
every_n_iters = 5

[logging]
to = "none"
"""

_LATE_S = 0.25
"""A reply sent so shortly before a kill may not have been read."""


_TAG = re.compile(r"(</?\w+-|\[\d+-|→-)[0-9a-f]{6,16}")
"""Every process has tags of its own."""

_AGAIN = "\n\nYour last reply to this question"
"""How a question begins that is asked again since the reply was of no use: still that question."""


@dataclass
class Question:
    """What the judge was asked, when that came and was answered, by the system's clock."""

    text: str
    came: float
    over: float = math.inf


@dataclass
class CountingJudge:
    """Answers by what it is shown, always the same; to every twelfth text with nothing of use."""

    questions: list[Question] = field(default_factory=list)
    url: str = ""

    def reply(self, body: bytes) -> tuple[Question, bytes]:
        """The question and its answer."""
        said = json.loads(body)["messages"][-1]["content"]
        said = _TAG.sub(r"\1", said)
        question = Question(said.split(_AGAIN)[0], time.time())
        self.questions.append(question)
        # By the question alone, so that whatever the repair ask says, the answer stays of no use.
        number = int.from_bytes(sha256(question.text.encode()).digest()[:4])
        time.sleep(0.01 + number % 7 / 100)
        score = number // 7 % 3
        text = json.dumps({"score": score, "reason": "so"}) if number % 12 else "I would rather not"
        answer = {
            "id": "x", "object": "chat.completion", "created": 1, "model": "counting",
            "choices": [
                {"index": 0, "finish_reason": "stop",
                 "message": {"role": "assistant", "content": text}}
            ],
            "usage": {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11},
        }  # fmt: skip
        return question, json.dumps(answer).encode()


JudgeT = TypeVar("JudgeT", bound=CountingJudge)


@contextmanager
def counting_judge(judge: JudgeT) -> Iterator[JudgeT]:
    """``judge`` on a port of its own."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            question, answer = judge.reply(body)
            question.over = time.time()
            try:
                self.send_response(200)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)
            except OSError:  # whoever asked was killed
                self.close_connection = True

        def handle_one_request(self) -> None:
            try:
                super().handle_one_request()
            except OSError:
                self.close_connection = True

        def log_message(self, *_: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 128

    server = Server(("127.0.0.1", 0), Handler)
    judge.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield judge
    finally:
        server.shutdown()
        server.server_close()


@dataclass
class Kill:
    """When to kill: ``wait`` seconds after the run told of its progress ``heard`` times."""

    heard: int
    wait: float


@dataclass
class Attempt:
    """One attempt: ``killed`` after ``seconds``, at the time ``moment``; what there was then."""

    killed: bool
    seconds: float
    moment: float
    steps: int
    saved: list[str]
    kept: list[str]
    error: str = ""


@dataclass
class Killed:
    """A run in ``folder``: its attempts, and what the judge was asked in each.

    ``flying``: what each kill found in flight, or answered so lately that it may not have been
    read. An endpoint may send a question twice to have the faster answer: that is one question.
    """

    folder: Path
    attempts: list[Attempt]
    asked: list[set[str]]
    flying: list[set[str]]

    @property
    def kills(self) -> list[Attempt]:
        """The attempts that were killed."""
        return [one for one in self.attempts if one.killed]

    @property
    def questions(self) -> set[str]:
        """All that was asked."""
        return set().union(*self.asked)

    def paid_again(self) -> tuple[int, list[str]]:
        """How many were asked in two attempts, and those whose first answer was not in flight."""
        count, wrong = 0, []
        for number, now in enumerate(self.asked):
            for text in now:
                before = [past for past in range(number) if text in self.asked[past]]
                count += bool(before)
                if before and text not in self.flying[before[-1]]:
                    wrong.append(text)
        return count, wrong


def write_run(place: Path, url: str, *, steps: int, lag: bool) -> Path:
    """The run file; both runs have the same, or they would be two runs."""
    source = place / "run.toml"
    source.write_text(RUN.format(url=url, steps=steps, lag=str(lag).lower()), encoding="utf-8")
    return source


def train(source: Path, folder: Path, judge: CountingJudge, kills: Sequence[Kill]) -> Killed:
    """Run ``source`` into ``folder``, killed at each of ``kills``; then to its end."""
    before = len(judge.questions)
    command = [sys.executable, str(Path(__file__)), str(source), str(folder)]
    done = subprocess.run(
        [*command, *(f"{one.heard}:{one.wait}" for one in kills)],
        stdout=subprocess.PIPE,
        check=True,
        timeout=600,
    )
    attempts = [Attempt(**json.loads(line)) for line in done.stdout.splitlines()]
    asked: list[set[str]] = [set() for _ in attempts]
    flying: list[set[str]] = [set() for _ in attempts]
    for one in judge.questions[before:]:
        number = sum(attempt.moment < one.came for attempt in attempts)
        asked[number].add(one.text)
        if one.over > attempts[number].moment - _LATE_S:
            flying[number].add(one.text)
    return Killed(folder, attempts, asked, flying)


def work(source: Path, folder: Path, kills: Sequence[Kill]) -> None:
    """Fork an attempt for each of ``kills``, kill it, and a last one; a line of JSON each."""
    from adjudge_lab.rl import run as running
    from adjudge_lab.rl.runfile_checks import load_run_file
    from adjudge_lab.rl.trl_backend import load_libraries

    load_libraries()  # before the fork, once for all
    run = load_run_file(source)
    for kill in [*kills, None]:
        started = time.perf_counter()
        hears, tells = os.pipe()
        child = os.fork()
        if child == 0:
            job = running.TrainingJob(run, source, folder)
            _attempt(job, tells)
        os.close(tells)
        status = os.waitpid(child, 0)[1] if kill is None else _wait(child, hears, kill)
        os.close(hears)
        moment = time.time()
        if status is None:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        one = _seen(folder, status is None, time.perf_counter() - started, moment)
        if status:
            one.error = f"ended with status {os.waitstatus_to_exitcode(status)}"
        print(json.dumps(one.__dict__), flush=True)
        if status is not None:
            return


def _attempt(job: Any, tells: int) -> None:
    """In the forked child, which ends here; a byte to ``tells`` for each progress."""
    import traceback

    from adjudge_lab.rl.run import train_run

    def tell(stage: str, done: int, _: int) -> None:
        if stage != "warm start" or done % 6 == 0:
            os.write(tells, b".")

    job.on_progress = tell
    try:
        train_run(job)
    except BaseException:  # noqa: BLE001  (the child's status says it)
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def _wait(child: int, hears: int, kill: Kill) -> int | None:
    """The child's status; ``None`` where it still runs at the moment of ``kill``."""
    for _ in range(kill.heard):
        os.read(hears, 1)  # nothing, at once, when it has ended
    until = time.perf_counter() + kill.wait
    while time.perf_counter() < until:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return status
        time.sleep(0.002)
    return None


def _seen(folder: Path, killed: bool, seconds: float, moment: float) -> Attempt:
    return Attempt(
        killed,
        seconds,
        moment,
        len(rows(folder / "metrics.jsonl")),
        sorted(path.name for path in (folder / "checkpoints").glob("*")),
        sorted(path.name for path in (folder / "state").glob("step-*")),
    )


def rows(path: Path) -> list[dict[str, Any]]:
    """The whole rows of a file; none where there is no file."""
    found = []
    for line in path.read_bytes().splitlines() if path.exists() else ():
        try:
            found.append(json.loads(line))
        except ValueError:
            break
    return found


_TIMES = re.compile(r"_s\Z|latency")
"""Metrics that are times."""


def without_times(value: Any) -> Any:
    """``value`` without what no two runs have alike."""
    if isinstance(value, dict):
        return {key: without_times(one) for key, one in value.items() if not _TIMES.search(key)}
    return [without_times(one) for one in value] if isinstance(value, list) else value


def differences(one: Path, other: Path) -> list[str]:
    """What two run folders do not have in common, beside times; empty where all is the same."""
    found = []
    for name in ("rollouts.jsonl", "metrics.jsonl", "evaluation.jsonl", "samples.jsonl"):
        ours, theirs = (without_times(rows(folder / name)) for folder in (one, other))
        if not ours:
            found.append(f"{name}: empty")
        if len(ours) != len(theirs):
            found.append(f"{name}: {len(ours)} rows and {len(theirs)}")
        for place, (mine, its) in enumerate(zip(ours, theirs, strict=False)):
            if mine != its:
                keys = [key for key in {*mine, *its} if mine.get(key) != its.get(key)]
                found.append(f"{name}: row {place}: {', '.join(sorted(keys))}")
    return [*found, *_weights_that_differ(one / "model", other / "model")]


def _weights_that_differ(one: Path, other: Path) -> list[str]:
    import torch
    import transformers

    ours, theirs = (
        transformers.AutoModelForCausalLM.from_pretrained(folder).state_dict()
        for folder in (one, other)
    )
    return [name for name in ours if not torch.equal(ours[name], theirs[name])]


def main() -> None:
    """The process that forks: SOURCE FOLDER, and HEARD:WAIT of each kill."""
    source, folder, *kills = sys.argv[1:]
    moments = [one.split(":") for one in kills]
    work(Path(source), Path(folder), [Kill(int(heard), float(wait)) for heard, wait in moments])


if __name__ == "__main__":
    main()
