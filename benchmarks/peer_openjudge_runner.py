"""py-openjudge's runner, for benchmarks/runner.py: a size per line in, seconds per line out."""

from __future__ import annotations

import asyncio
import sys
import time

from openjudge.graders.base_grader import BaseGrader
from openjudge.graders.schema import GraderScore
from openjudge.runner.grading_runner import GraderConfig, GradingRunner


class Constant(BaseGrader):  # type: ignore[misc]  # untyped where the package is not installed
    async def _aevaluate(self, x: int, **kwargs: object) -> GraderScore:
        return GraderScore(name="g", score=0.5, reason="")


def seconds(n: int) -> float:
    items = [{"x": i} for i in range(n)]
    runner = GradingRunner({"g": GraderConfig(Constant(name="g"))}, show_progress=False)
    start = time.perf_counter()
    asyncio.run(runner.arun(items))
    return time.perf_counter() - start


seconds(100)
for line in sys.stdin:
    if not line.strip():
        break
    print(seconds(int(line)), flush=True)
