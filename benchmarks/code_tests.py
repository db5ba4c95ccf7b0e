"""What a test of code costs, by the style of the test: milliseconds a sample and a test.

    python benchmarks/code_tests.py [--against OTHER_SRC] [--samples 30] [--tests 10]

One sample at a time, so that nothing but its own processes is measured. With ``--against`` the
sources of another version run in turns with these, sample by sample, and the last column is this
version's time over the other's.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

CODE = "def f(x):\n    return x * x"
STYLES: dict[str, Callable[[int], object]] = {
    "stdio": lambda n: {"input": f"{n}", "output": f"{n * n}"},
    "function": lambda n: {"args": [n], "expected": n * n},
    "assert call == literal": lambda n: f"assert f({n}) == {n * n}",
    "assert abs(...) < eps": lambda n: f"assert abs(f({n}) - {n * n}) < 1e-6",
    "check(candidate)": lambda n: f"def check(c):\n    assert c({n}) == {n * n}\ncheck(f)",
    "1000 calls in a test": lambda _: "for n in range(1000): assert f(n) == n * n",
}


def serve() -> None:
    """Grade what standard input asks for, a line each; answer with the seconds it took."""
    from adjudge.graders.rules.code import CodeExecutionGrader

    grader = CodeExecutionGrader()
    for line in sys.stdin:
        style, tests = json.loads(line)
        prints = "\nprint(f(int(input())))" if style == "stdio" else ""
        code = f"```python\n{CODE}{prints}\n```"
        cases = [STYLES[style](n) for n in range(tests)]
        started = time.perf_counter()
        score = asyncio.run(grader.aevaluate(code, cases, function="f"))
        seconds = time.perf_counter() - started
        assert score.score == 1.0, score
        print(seconds, flush=True)


def started(source: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, __file__, "--serve"],
        env={**os.environ, "PYTHONPATH": str(source)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def seconds(server: subprocess.Popen[str], style: str, tests: int) -> float:
    assert server.stdin is not None
    assert server.stdout is not None
    print(json.dumps([style, tests]), file=server.stdin, flush=True)
    return float(server.stdout.readline())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--against", type=Path)
    parser.add_argument("--samples", type=int, default=30)
    parser.add_argument("--tests", type=int, default=10)
    parser.add_argument("--serve", action="store_true")
    arguments = parser.parse_args()
    if arguments.serve:
        serve()
        return
    here = Path(__file__).parents[1] / "src"
    servers = [started(source) for source in (arguments.against, here) if source]
    print(f"{'style':<24}{'tests':>6}" + f"{'ms a sample':>16}{'ms a test':>18}   ratio")
    for style in STYLES:
        for tests in (1, arguments.tests):
            rounds = [
                [seconds(server, style, tests) for server in servers]
                for _ in range(arguments.samples + 1)
            ][1:]
            middle = [1000 * statistics.median(times) for times in zip(*rounds, strict=True)]
            ratio = f"{statistics.median(r[-1] / r[0] for r in rounds):8.2f}" if middle[1:] else ""
            sample = " -> ".join(f"{ms:.0f}" for ms in middle)
            test = " -> ".join(f"{ms / tests:.1f}" for ms in middle)
            print(f"{style:<24}{tests:>6}{sample:>16}{test:>18}{ratio}")
    for server in servers:
        assert server.stdin is not None
        server.stdin.close()
        server.wait()


if __name__ == "__main__":
    main()
