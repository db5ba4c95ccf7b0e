"""Run suites two beside each other, and end with a table: suite, passed, seconds.

    python .ci/suites.py ci                   what every change must pass, after `make demo test`
    python .ci/suites.py nightly [SUITE …]    what else must hold; SUITE: a target of the Makefile

A suite is a target of the Makefile. The nightly remembers outside the checkout which suites were
green at this commit, and does not run them again; named suites run in any case. The exit code is 1
where a suite is red. Standard library only.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from environment import ROOT, find_cache

BESIDE = 2
"""Suites at a time: most of them compute on one core."""
SHOWN_LINES = 60
"""Of the output of a suite that is red."""


@dataclass(frozen=True)
class Suite:
    """A target of the Makefile.

    ``minutes``: about how long it takes; long ones begin first. ``alone``: suites of one word do
    not run at the same time: each cluster of Ray would take the other for its own.
    """

    target: str
    minutes: float
    alone: str = ""


CI = (
    Suite("test-service", 8),
    Suite("test-verl091", 5, "ray"),
    Suite("test-trl", 4),
    Suite("check", 2),
    Suite("test-needs", 2),
    Suite("docs", 1),
    Suite("test-wheel", 1),
    Suite("test-verifiers", 1),
    Suite("test-ray", 1, "ray"),
)

NIGHTLY = (
    Suite("test-embedded", 12),
    Suite("test-random", 10),
    Suite("test-verl", 10, "ray"),
    Suite("bench-peers-quick", 8),
    Suite("test-ray-cluster", 5, "ray"),
    Suite("demo-judge", 4),
    Suite("test-serving", 3),
    Suite("demo-rl", 2),
    Suite("test-environments", 2),
    Suite("demo-agent", 2),
    Suite("bench-quick", 2),
    Suite("test-sinks", 1),
    Suite("test-openjudge", 1),
    Suite("test-notebook", 1),
    Suite("test-formats", 1),
    Suite("test-plugins", 1),
)


@dataclass
class Outcome:
    """How a suite ended. ``passed``: what pytest counted, where it ran."""

    green: bool
    passed: str
    seconds: int


class Memory:
    """Which suites were green at one state of the checkout."""

    def __init__(self, state: str | None) -> None:
        self.state = state
        self._path = find_cache() / "nightly.json"

    def read(self) -> dict[str, Outcome]:
        """The green suites of this state, by target."""
        try:
            kept = json.loads(self._path.read_text("utf-8"))
        except (OSError, ValueError):  # the first night, or cut off while writing: run all
            return {}
        if self.state is None or kept["state"] != self.state:
            return {}
        return {target: Outcome(**one) for target, one in kept["green"].items()}

    def add(self, target: str, outcome: Outcome) -> None:
        """Remember a green suite."""
        if self.state is None:
            return
        green = {name: vars(one) for name, one in (self.read() | {target: outcome}).items()}
        text = json.dumps({"state": self.state, "green": green}, indent=1)
        part = self._path.with_suffix(".part")
        self._path.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(text, encoding="utf-8")
        part.replace(self._path)


class Run:
    """Suites that run beside each other; their output goes to files in ``folder``."""

    def __init__(self, suites: list[Suite], folder: Path, memory: Memory) -> None:
        self.waiting = sorted(suites, key=lambda suite: -suite.minutes)
        self.outcomes: dict[str, Outcome] = {}
        self.memory = memory
        self.folder = folder
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self._taken: set[str] = set()
        self._changed = threading.Condition()
        self.stopped = False

    def run(self) -> None:
        """Run them all; a green one is remembered at once."""
        self.folder.mkdir(parents=True, exist_ok=True)
        lines = [threading.Thread(target=self._work, daemon=True) for _ in range(BESIDE)]
        for line in lines:
            line.start()
        for line in lines:
            while line.is_alive():  # a join without end would not let a signal through
                line.join(1.0)

    def stop(self, *_: object) -> None:
        """End what runs, begin nothing more."""
        self.stopped = True
        for process in self.running.values():
            os.killpg(process.pid, signal.SIGTERM)

    def _work(self) -> None:
        while (suite := self._take()) is not None:
            outcome = self._run(suite)
            with self._changed:
                self.outcomes[suite.target] = outcome
                self._taken.discard(suite.alone)
                self._changed.notify_all()

    def _take(self) -> Suite | None:
        with self._changed:
            while self.waiting and not self.stopped:
                for suite in self.waiting:
                    if suite.alone not in self._taken:
                        self.waiting.remove(suite)
                        self._taken |= {suite.alone} - {""}
                        return suite
                self._changed.wait(1.0)
            return None

    def _run(self, suite: Suite) -> Outcome:
        log = self.folder / f"{suite.target}.log"
        print(f"{_clock()} {suite.target}: begins, {log}", flush=True)
        start = time.monotonic()
        with log.open("wb") as file:
            process = subprocess.Popen(
                ["make", "--no-print-directory", suite.target],
                cwd=ROOT, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,
                start_new_session=True,
            )  # fmt: skip
            self.running[suite.target] = process
            code = process.wait()
            del self.running[suite.target]
        text = log.read_text("utf-8", errors="replace")
        passed = "stopped" if code and self.stopped else _read_passed(text)
        outcome = Outcome(code == 0, passed, round(time.monotonic() - start))
        if outcome.green:
            self.memory.add(suite.target, outcome)
        elif not self.stopped:
            tail = "\n".join(text.splitlines()[-SHOWN_LINES:])
            print(f"\n== {suite.target} is red (exit code {code}):\n{tail}\n", flush=True)
        print(f"{_clock()} {suite.target}: {outcome.passed}, {outcome.seconds} s", flush=True)
        return outcome


def _read_passed(text: str) -> str:
    found = re.findall(r"^(?:=+ )?((?:\d+ \w+, )*\d+ \w+) in [\d.]+s", text, re.MULTILINE)
    return "; ".join(found) or "no tests counted"


def _clock() -> str:
    return time.strftime("%H:%M:%S")


def find_state() -> str | None:
    """The commit; ``None`` where the checkout has changes of its own."""
    git = ["git", "-C", str(ROOT)]
    changed = subprocess.run([*git, "status", "--porcelain"], capture_output=True, check=True)
    if changed.stdout.strip():
        return None
    found = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    return found.stdout.strip()


def choose(names: list[str]) -> list[Suite]:
    """The suites of these targets."""
    known = {suite.target: suite for suite in (*CI, *NIGHTLY)}
    if unknown := [name for name in names if name not in known]:
        sys.exit(f"unknown suite {unknown[0]!r} (allowed: {', '.join(known)})")
    return [known[name] for name in names]


def write_table(outcomes: dict[str, Outcome], before: dict[str, Outcome]) -> Iterator[str]:
    """Suite, passed, seconds: a line each."""
    yield f"{'suite':<18}{'seconds':>8}  passed"
    for target, one in [*outcomes.items(), *before.items()]:
        note = " (before, at this commit)" if target in before else ""
        red = "" if one.green else "RED: "
        yield f"{target:<18}{one.seconds:>8}  {red}{one.passed}{note}"


def main() -> None:
    """Read the command line, run, print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("set", choices=["ci", "nightly"])
    parser.add_argument(
        "suites", nargs="*", help="targets of the Makefile [default: the whole set]"
    )
    options = parser.parse_args()
    memory = Memory(find_state() if options.set == "nightly" else None)
    if memory.state is None and options.set == "nightly":
        print("the checkout has changes that are not committed: nothing is remembered")
    suites = choose(options.suites) or list(CI if options.set == "ci" else NIGHTLY)
    known = {} if options.suites else memory.read()
    before = {one.target: known[one.target] for one in suites if one.target in known}
    suites = [suite for suite in suites if suite.target not in before]
    run = Run(suites, find_cache() / "logs" / options.set, memory)
    signal.signal(signal.SIGTERM, run.stop)
    signal.signal(signal.SIGINT, run.stop)
    start = time.monotonic()
    run.run()
    print()
    print(*write_table(run.outcomes, before), sep="\n")
    red = [target for target, one in run.outcomes.items() if not one.green]
    print(f"{len(run.outcomes) - len(red)} green, {len(red)} red, {time.monotonic() - start:.0f} s")
    sys.exit(1 if red or run.stopped else 0)


if __name__ == "__main__":
    main()
