"""What a test of code costs, by the style of the test: milliseconds a sample and a test.

    python benchmarks/code_tests.py [--against OTHER_SRC] [--samples 30] [--tests 10]

A sample alone, and eight at once, which is what a batch pays for. With ``--against`` the sources of
another version run in turns with these; ``ratio`` is this version's time over the other's.
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
    """Grade what standard input asks for, a line each; answer with the seconds a sample took."""
    from adjudge.graders.code.grader import CodeExecutionGrader

    grader = CodeExecutionGrader(deadline_s=300, test_deadline_s=60)

    async def grade(response: str, cases: list[object], at_once: int) -> None:
        tasks = [
            asyncio.create_task(grader.aevaluate(response, cases, function="f"))
            for _ in range(at_once)
        ]
        for task in tasks:
            assert (await task).score == 1.0, await task

    for line in sys.stdin:
        style, tests, at_once = json.loads(line)
        prints = "\nprint(f(int(input())))" if style == "stdio" else ""
        cases = [STYLES[style](n) for n in range(tests)]
        start = time.perf_counter()
        asyncio.run(grade(f"```python\n{CODE}{prints}\n```", cases, at_once))
        print((time.perf_counter() - start) / at_once, flush=True)


def started(source: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, __file__, "--serve"],
        env={**os.environ, "PYTHONPATH": str(source)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def seconds(server: subprocess.Popen[str], *request: object) -> float:
    assert server.stdin is not None
    assert server.stdout is not None
    print(json.dumps(request), file=server.stdin, flush=True)
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
    print(f"{'style':<24}{'tests':>6}{'at once':>8}{'ms a sample':>16}{'ms a test':>18}   ratio")
    for style in STYLES:
        for tests, at_once in ((1, 1), (arguments.tests, 1), (arguments.tests, 8)):
            rounds = [
                [seconds(server, style, tests, at_once) for server in servers]
                for _ in range(max(2, arguments.samples // at_once) + 1)
            ][1:]
            middle = [1000 * statistics.median(times) for times in zip(*rounds, strict=True)]
            ratio = f"{statistics.median(r[-1] / r[0] for r in rounds):8.2f}" if middle[1:] else ""
            sample = " -> ".join(f"{ms:.0f}" for ms in middle)
            test = " -> ".join(f"{ms / tests:.1f}" for ms in middle)
            print(f"{style:<24}{tests:>6}{at_once:>8}{sample:>16}{test:>18}{ratio}", flush=True)
    for server in servers:
        assert server.stdin is not None
        server.stdin.close()
        server.wait()


if __name__ == "__main__":
    main()
