"""Scores of action loop and information gain on rollout files: ours against py-openjudge.

    python benchmarks/parity_openjudge.py --peer-python PATH FILES... [--messages COLUMN]

PATH is the Python of an environment with ``py-openjudge`` installed; FILES are JSONL with chat
messages in COLUMN. Prints the largest difference for each grader and exits with 1 when one is
above 1e-9, or when only one of the two has a score. Two graders differ by intent where the peer
fails: a row that it cannot grade is counted, and shown with its reason.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from adjudge.errors import GradingFailure
from adjudge.graders.rules.redundancy import (
    ActionLoopDetectionGrader,
    ObservationInformationGainGrader,
)

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.peer_openjudge_trajectory import Peer

TOLERANCE = 1e-9
GRADERS: list[tuple[str, float, Any]] = [
    ("action_loop", 1.0, ActionLoopDetectionGrader(similarity_threshold=1.0)),
    ("action_loop", 0.8, ActionLoopDetectionGrader(similarity_threshold=0.8)),
    ("action_loop", 0.5, ActionLoopDetectionGrader(similarity_threshold=0.5)),
    ("information_gain", 0.5, ObservationInformationGainGrader(similarity_threshold=0.5)),
    ("information_gain", 0.2, ObservationInformationGainGrader(similarity_threshold=0.2)),
]


@dataclass
class Tally:
    compared: int = 0
    largest: float = 0.0
    where: str = ""
    one_sided: list[str] = field(default_factory=list)

    def add(self, where: str, ours: float | str, peers: float | str) -> None:
        if isinstance(ours, float) and isinstance(peers, float):
            self.compared += 1
            if abs(ours - peers) > self.largest:
                self.largest, self.where = abs(ours - peers), where
        elif isinstance(ours, float) or isinstance(peers, float):
            self.one_sided.append(f"{where}: ours {ours}, peer {peers}")


def rows(files: list[Path]) -> Iterator[tuple[str, dict[str, Any]]]:
    for file in files:
        with file.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield f"{file.name}:{number}", json.loads(line)


def our_score(grader: Any, messages: Any) -> float | str:
    try:
        return float(grader.evaluate(messages).score)
    except GradingFailure as failure:
        return str(failure)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--peer-python", required=True)
    parser.add_argument("--messages", default="messages", help="the column of the chat messages")
    options = parser.parse_args()
    tallies = [Tally() for _ in GRADERS]
    with Peer(options.peer_python) as peer:
        print(f"peer: py-openjudge {peer.version}")
        for where, row in rows(options.files):
            messages = row[options.messages]
            for (name, threshold, grader), tally in zip(GRADERS, tallies, strict=True):
                answer = peer.grade(name, messages, threshold=threshold)
                peers = answer.error if answer.score is None else answer.score
                tally.add(where, our_score(grader, messages), peers)
    for (name, threshold, _), tally in zip(GRADERS, tallies, strict=True):
        print(
            f"{name} at threshold {threshold:g}: {tally.compared} rows compared, largest "
            f"difference {tally.largest:.1e} {tally.where}, one-sided {len(tally.one_sided)}"
        )
        for line in tally.one_sided[:5]:
            print(f"  {line}")
    failed = any(tally.largest > TOLERANCE or tally.one_sided for tally in tallies)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
