"""Action loop and information gain: ours beside py-openjudge, in one run.

    python benchmarks/trajectory.py [--peer-python PATH] [--quick] [--rounds N] [--json FILE]

PATH is the Python of an environment with ``py-openjudge`` installed; without it only ours is
measured. The trajectories are generated: every step a search with a new page and 60 words drawn
from 4,000, every fifth step a repetition of the first. Rounds alternate (ours, peer, ours, …) and
the table shows medians of the CPU time per call. ``--quick`` leaves the peer out at 2,000 steps,
where one of its calls takes some twenty seconds.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from adjudge.graders.rules.redundancy import (
    ActionLoopDetectionGrader,
    ObservationInformationGainGrader,
)

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.peer_openjudge_trajectory import Peer

STEPS = (10, 50, 200, 500, 2000)
LARGE = 2000
GRADERS: dict[str, Any] = {
    "action_loop": ActionLoopDetectionGrader(),
    "information_gain": ObservationInformationGainGrader(),
}


def trajectory(
    steps: int, *, words: int = 60, vocabulary: int = 4000, repeat_every: int = 5
) -> list[dict[str, Any]]:
    """A trajectory of ``steps`` searches whose every ``repeat_every``-th repeats the first."""
    known = [f"w{number}" for number in range(vocabulary)]
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "do the task"},
    ]
    for step in range(steps):
        source = step if step % repeat_every else 0
        rng = random.Random(source * 7919 + 13)
        call = {
            "name": f"search{source % 7}",
            "arguments": json.dumps({"q": f"term{source} foo bar", "page": source, "k": 10}),
        }
        made = {"id": f"c{step}", "type": "function", "function": call}
        messages.append({"role": "assistant", "content": "", "tool_calls": [made]})
        observation = " ".join(rng.choice(known) for _ in range(words))
        messages.append(
            {"role": "tool", "tool_call_id": f"c{step}", "name": "search", "content": observation}
        )
    messages.append({"role": "assistant", "content": "final answer"})
    return messages


@dataclass
class Row:
    grader: str
    steps: int
    score: float = math.nan
    peer_score: float | None = None
    ours_s: list[float] = field(default_factory=list)
    peer_s: list[float] = field(default_factory=list)

    @property
    def ours_ms(self) -> float:
        return statistics.median(self.ours_s) * 1e3

    @property
    def peer_ms(self) -> float | None:
        return statistics.median(self.peer_s) * 1e3 if self.peer_s else None

    @property
    def ratio(self) -> float | None:
        return self.peer_ms / self.ours_ms if self.peer_ms is not None else None

    @property
    def difference(self) -> float | None:
        return None if self.peer_score is None else abs(self.score - self.peer_score)


def timed(evaluate: Callable[[Any], Any], messages: Any, repeats: int) -> tuple[float, float]:
    """The score and the CPU seconds per call."""
    start = time.process_time()
    for _ in range(repeats):
        result = evaluate(messages)
    return result.score, (time.process_time() - start) / repeats


def measure(grader: str, steps: int, rounds: int, peer: Peer | None) -> Row:
    messages = trajectory(steps)
    row = Row(grader, steps)
    repeats = max(2, 10_000 // steps)  # short calls are repeated within a round
    peer_repeats = max(1, 200 // steps)
    evaluate = GRADERS[grader].evaluate
    evaluate(messages)  # warm
    for number in range(rounds):
        row.score, seconds = timed(evaluate, messages, repeats)
        row.ours_s.append(seconds)
        if peer is not None and (steps < LARGE or number == 0):
            answer = peer.grade(grader, messages, repeats=peer_repeats)
            row.peer_score = answer.score
            row.peer_s.append(answer.seconds)
    return row


def growth(rows: list[Row]) -> list[str]:
    """Exponents e of ours, as time ~ steps ** e, from one size to the next."""
    lines = []
    for name in GRADERS:
        own = [row for row in rows if row.grader == name]
        parts = [
            f"{a.steps}→{b.steps}: "
            f"{math.log(b.ours_ms / a.ours_ms) / math.log(b.steps / a.steps):.2f}"
            for a, b in pairwise(own)
        ]
        lines.append(f"growth exponent of ours, {name}: {', '.join(parts)}")
    return lines


def small_vocabulary() -> str:
    """The worst ordinary case for ours: every pair of observations shares most of its words."""
    messages = trajectory(LARGE, vocabulary=100, repeat_every=LARGE)
    evaluate = GRADERS["information_gain"].evaluate
    seconds = statistics.median(timed(evaluate, messages, 1)[1] for _ in range(3))
    return f"information_gain, {LARGE} steps of 60 words from 100 (ours): {seconds * 1e3:.0f} ms"


def table(rows: list[Row]) -> Table:
    shown = Table("grader", title="CPU ms per call, median of rounds")
    for title in ("steps", "ours", "peer", "ratio", "score", "peer score", "|diff|"):
        shown.add_column(title, justify="right")
    for row in rows:
        shown.add_row(
            row.grader,
            str(row.steps),
            f"{row.ours_ms:.3f}",
            "-" if row.peer_ms is None else f"{row.peer_ms:.2f}",
            "-" if row.ratio is None else f"{row.ratio:.0f}x",
            f"{row.score:.6f}",
            "-" if row.peer_score is None else f"{row.peer_score:.6f}",
            "-" if row.difference is None else f"{row.difference:.1e}",
        )
    return shown


def as_json(rows: list[Row], version: str | None) -> dict[str, Any]:
    keys = ("ours_ms", "peer_ms", "ratio", "difference")
    return {
        "peer": version and f"py-openjudge {version}",
        "rows": [{**asdict(row), **{key: getattr(row, key) for key in keys}} for row in rows],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--peer-python", help="Python of an environment with py-openjudge")
    parser.add_argument("--quick", action="store_true", help=f"no peer at {LARGE} steps")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    options = parser.parse_args()
    console = Console()
    with ExitStack() as stack:
        peer = stack.enter_context(Peer(options.peer_python)) if options.peer_python else None
        version = peer.version if peer else None
        console.print(f"peer: py-openjudge {version}" if version else "no peer: ours only")
        rows = [
            measure(
                grader, steps, options.rounds, None if options.quick and steps == LARGE else peer
            )
            for grader in GRADERS
            for steps in STEPS
        ]
    console.print(table(rows))
    for line in growth(rows):
        console.print(line)
    console.print(small_vocabulary())
    if options.json:
        options.json.write_text(json.dumps(as_json(rows, version), indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
