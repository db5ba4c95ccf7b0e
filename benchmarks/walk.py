"""How many files and functions one walk enters: what a reader must open to follow it.

    python benchmarks/walk.py [grade] [trl] [batch_judge] [--list] [--json FILE]

Each walk runs in a process of its own under ``sys.setprofile`` and ``threading.setprofile``. A file
counts when any code of it is entered. ``grade`` is the whole command with one rule and one scripted
judge, the imports included; ``trl`` is a reward call of the TRL adapter and ``batch_judge`` a
request to the service, both warm: the second call of the process is the one that is counted.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import urllib.request
from collections import Counter
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

SPEC = """
[[graders]]
name = "right"
type = "answer"
answer_type = "NUMBER"
[[graders]]
name = "quality"
type = "llm"
template = "How good is this answer to {prompt}?\\n{response}"
score_range = [0.0, 1.0]
[judges.main]
type = "scripted"
script = '{"reason": "clear", "score": 0.5}'
"""
ROLLOUTS = [
    {"prompt": f"What is {n} + {n}?", "response": f"It is {n + extra}.", "reference": str(2 * n)}
    for n in range(4)
    for extra in (n, 1)
]
Entered = set[tuple[str, str]]


class Recorder:
    """Remembers which code objects of the package are entered, in any thread, while it is on."""

    def __init__(self) -> None:
        found = find_spec("adjudge")
        assert found is not None
        assert found.origin is not None
        self._root = str(Path(found.origin).parent) + "/"
        self._seen: set[CodeType] = set()
        self.is_on = False
        threading.setprofile(self._enter)
        sys.setprofile(self._enter)

    def _enter(self, frame: FrameType, event: str, _: object) -> None:
        if event == "call" and self.is_on:
            self._seen.add(frame.f_code)

    def entered(self) -> Entered:
        """``(file, function)`` of what was entered; a module's body is ``<module>``."""
        return {
            (code.co_filename.removeprefix(self._root), code.co_qualname)
            for code in self._seen
            if code.co_filename.startswith(self._root) and code.co_filename.endswith(".py")
        }


def walk_grade(recorder: Recorder) -> None:
    """``adjudge grade`` from its first import to its last line."""
    Path("rollouts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROLLOUTS))
    Path("reward.toml").write_text(SPEC)
    recorder.is_on = True
    sys.argv = ["adjudge", "grade", "rollouts.jsonl", "-s", "reward.toml", "-o", "out", "-q"]
    from adjudge.cli.main import main as run

    with contextlib.suppress(SystemExit):
        run()
    assert Path("out/report.html").is_file()


def walk_trl(recorder: Recorder) -> None:
    """A reward call as TRL makes it: on one event loop, with its loggers."""
    from adjudge.trainers.trl import make_reward

    Path("reward.toml").write_text(SPEC)
    reward = make_reward("reward.toml")
    batch: dict[str, Any] = {
        "prompts": [[{"role": "user", "content": row["prompt"]}] for row in ROLLOUTS],
        "completions": [[{"role": "assistant", "content": row["response"]}] for row in ROLLOUTS],
        "completion_ids": [[1, 2, 3] for _ in ROLLOUTS],
        "reference": [row["reference"] for row in ROLLOUTS],
        "log_metric": lambda *_: None,
        "log_extra": lambda *_: None,
    }
    loop = asyncio.new_event_loop()

    def call() -> None:
        rewards = loop.run_until_complete(reward(**batch))
        assert len(list(rewards)) == len(ROLLOUTS)

    call()
    recorder.is_on = True
    call()


def walk_batch_judge(recorder: Recorder) -> None:
    """``POST /batch_judge`` to the service in this process, over HTTP."""
    from adjudge.service import ServiceSettings
    from adjudge.service.server import RunningService, run_service
    from adjudge.service.user_backend import load_backend

    Path("reward.toml").write_text(SPEC)
    requests = [
        {
            "request_id": str(n),
            "prompt": row["prompt"],
            "completion": row["response"],
            "answer": row["reference"],
            "answer_type": "NUMBER",
        }
        for n, row in enumerate(ROLLOUTS)
    ]
    body = json.dumps({"requests": requests}).encode()
    settings = ServiceSettings(port=0)

    def ask_twice(url: str) -> None:
        for is_warm in (False, True):
            recorder.is_on = is_warm
            request = urllib.request.Request(f"{url}/batch_judge", body)
            with urllib.request.urlopen(request) as response:
                assert response.status == 200, response.status
        recorder.is_on = False
        os.kill(os.getpid(), signal.SIGTERM)

    def ready(running: RunningService) -> None:
        threading.Thread(target=ask_twice, args=(running.url,)).start()

    run_service(load_backend("reward.toml"), settings, ready)


WALKS: dict[str, Callable[[Recorder], None]] = {
    "grade": walk_grade,
    "trl": walk_trl,
    "batch_judge": walk_batch_judge,
}


def measure(name: str) -> Entered:
    """A walk's code, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(Path(__file__).resolve()), "--child", name]
        done = subprocess.run(command, cwd=folder, check=True, stdout=subprocess.PIPE, text=True)
    return {(file, function) for file, function in json.loads(done.stdout.splitlines()[-1])}


def show(name: str, entered: Entered, *, every: bool) -> dict[str, Any]:
    """Print one walk by rooms; returns the counts."""
    files = {file for file, _ in entered}
    functions = [one for one in entered if one[1] != "<module>"]
    active = {file for file, _ in functions}
    rooms = Counter(file.partition("/")[0].removesuffix(".py") for file in files)
    print(
        f"\n{name}: {len(files)} files ({len(active)} beyond imports), {len(functions)} functions"
    )
    print("  " + ", ".join(f"{room} {count}" for room, count in rooms.most_common()))
    if every:
        for file in sorted(files):
            inside = sum(one[0] == file for one in functions)
            print(f"  {file:45}{inside:>4} functions")
    return {"files": len(files), "active": len(active), "functions": len(functions), "rooms": rooms}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("walks", nargs="*", metavar="WALK", help=", ".join(WALKS))
    parser.add_argument("--list", action="store_true", help="name every file")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", choices=WALKS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        recorder = Recorder()
        WALKS[arguments.child](recorder)
        recorder.is_on = False
        print(json.dumps(sorted(recorder.entered())), flush=True)
        return
    found = {
        name: show(name, measure(name), every=arguments.list) for name in arguments.walks or WALKS
    }
    if arguments.json:
        arguments.json.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
