"""The main job end to end: `adjudge grade` on many short samples, as a user's process.

    python benchmarks/grade.py [--samples 100000] [--json FILE]

Four rule graders on self-made samples, in groups of eight; the whole process is timed, from start
to the report on disk. Also at a tenth of the size, for growth.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SPEC = """
[[graders]]
name = "answer"
type = "answer"
answer_type = "NUMBER"
[[graders]]
name = "format"
type = "reasoning_format"
[[graders]]
name = "length"
type = "length_penalty"
[[graders]]
name = "repetition"
type = "ngram_repetition"
"""


def write_rollouts(path: Path, n: int) -> None:
    rng = random.Random(1)
    with path.open("w") as file:
        for i in range(n):
            group = i // 8
            truth = group % 97
            answer = truth if rng.random() < 0.6 else rng.randrange(97)
            text = f"<think>{rng.randrange(97)} and {rng.randrange(97)}</think>"
            row = {
                "prompt": f"question {group}",
                "response": f"{text}<answer>{answer}</answer>",
                "reference": str(truth),
                "group": group,
                "env_reward": float(answer == truth),
            }
            file.write(json.dumps(row) + "\n")


def grade(n: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_rollouts(folder / "rollouts.jsonl", n)
        (folder / "reward.toml").write_text(SPEC)
        command = [sys.executable, "-m", "adjudge", "grade", "rollouts.jsonl", "-s", "reward.toml",
                   "-o", "out", "-q", "--json"]  # fmt: skip
        start = time.perf_counter()
        done = subprocess.run(command, cwd=folder, check=True, capture_output=True)
        wall = time.perf_counter() - start
        summary = json.loads(done.stdout)
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
        report = (folder / "out" / "report.html").stat().st_size / 1e6
    assert summary["samples"] == n
    return {"wall_s": wall, "samples_per_s": n / wall, "peak_mb": peak, "report_mb": report}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--samples", type=int, default=100_000)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    found = {n: grade(n) for n in (arguments.samples // 10, arguments.samples)}
    print(f"{'samples':>10}{'wall s':>10}{'samples/s':>12}{'peak MB':>10}{'report MB':>11}")
    for n, row in found.items():
        print(
            f"{n:>10,}{row['wall_s']:>10.2f}{row['samples_per_s']:>12,.0f}"
            f"{row['peak_mb']:>10.0f}{row['report_mb']:>11.1f}"
        )
    if arguments.json:
        arguments.json.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
