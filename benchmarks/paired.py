"""Benchmarks of this checkout beside another one's, in turns: did a change make anything slower?

    git worktree add --detach /tmp/before COMMIT
    python benchmarks/paired.py /tmp/before [--rounds N] [--only NAME …] [--json FILE]

Each benchmark runs with ``--quick`` here and there, one after the other, in every round; the order
changes from round to round. Each figure's ratio is here / there of the same round, and the median
and the range of the rounds are shown, so that a machine which others use as well shifts both sides.
Only figures that both checkouts have are compared. For times less than 1 is better.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent.parent
BENCHMARKS: dict[str, list[str]] = {
    "runner": ["--quick"],
    "trajectory": ["--quick"],
    "tail": ["--seeds", "1"],
    "service": ["--quick"],
    "service_client": ["--rounds", "3"],
    "grade": ["--samples", "20000"],
}


def measure(checkout: Path, name: str) -> dict[str, float]:
    """One run of a benchmark in a checkout: its figures by their path in the JSON."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "figures.json"
        sources = [str(checkout / "src"), str(checkout / "lab" / "src")]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sources)}
        script = str(checkout / "benchmarks" / f"{name}.py")
        command = [sys.executable, script, *BENCHMARKS[name], "--json", str(out)]
        subprocess.run(command, cwd=checkout, env=environment, check=True, capture_output=True)
        return dict(flatten(json.loads(out.read_text())))


def flatten(value: Any, path: str = "") -> Iterator[tuple[str, float]]:
    """Every number of a JSON document with the keys that lead to it."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from flatten(inner, f"{path}/{key}" if path else str(key))
    elif isinstance(value, list):
        for place, inner in enumerate(value):
            yield from flatten(inner, f"{path}/{place}")
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield path, float(value)


def compare(there: Path, name: str, rounds: int) -> dict[str, dict[str, float]]:
    """Each figure here and there, and their ratio over the rounds."""
    sides: tuple[list[dict[str, float]], list[dict[str, float]]] = ([], [])
    for number in range(rounds):
        for side in (0, 1) if number % 2 == 0 else (1, 0):
            sides[side].append(measure((HERE, there)[side], name))
    rows: dict[str, dict[str, float]] = {}
    for path in sides[0][0]:
        pairs = [(a[path], b[path]) for a, b in zip(*sides, strict=True) if path in a and path in b]
        ratios = [a / b for a, b in pairs if b]
        if len(ratios) == rounds:
            rows[path] = {
                "here": statistics.median(a for a, _ in pairs),
                "there": statistics.median(b for _, b in pairs),
                "ratio": statistics.median(ratios),
                "lowest": min(ratios),
                "highest": max(ratios),
            }
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("there", type=Path, help="a checkout of the commit to compare with")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=BENCHMARKS, default=list(BENCHMARKS))
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    found: dict[str, dict[str, dict[str, float]]] = {}
    for name in arguments.only:
        found[name] = compare(arguments.there.resolve(), name, arguments.rounds)
        print(f"\n{name:58}{'here':>12}{'there':>12}{'ratio':>8}   range", flush=True)
        for path, row in found[name].items():
            span = f"{row['lowest']:.2f}-{row['highest']:.2f}"
            figures = f"{row['here']:12,.4g}{row['there']:12,.4g}{row['ratio']:8.2f}   {span}"
            print(f"  {path[-55:]:56}{figures}", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
